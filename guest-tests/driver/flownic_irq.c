// SPDX-License-Identifier: GPL-2.0
/*
 * Interrupts: which they are, which CPUs they go to, and who is told.
 *
 * Each of a pair's two virtqueues has an MSI-X vector, and either schedules the pair's NAPI. The
 * receive queue's is the one that users see as the pair's: it is reported with the NAPI instance,
 * and its affinity is what they set. A notifier follows that affinity and
 *
 *	- remembers it for after a restart, in which vectors are given back and new ones obtained,
 *	- moves the transmit queue's vector along, so that NAPI stays on one CPU,
 *	- keeps dev->rx_cpu_rmap up to date, by which accelerated RFS finds a CPU's queue.
 *
 * The map holds the pairs in use and no others, so it is made anew when their number changes. It
 * is read in NAPI without a lock: it is replaced only while all NAPI instances are disabled.
 */

#include <linux/cpumask.h>
#include <linux/pci.h>

#include "flownic_net.h"

/* The vector of virtqueue @index: the first one is for configuration changes. */
static int flownic_irq_of(const struct flownic_net *fn, unsigned int index)
{
	struct device *parent = fn->vdev->dev.parent;

	if (!dev_is_pci(parent) || !to_pci_dev(parent)->msix_enabled)
		return -1;
	return pci_irq_vector(to_pci_dev(parent), index + 1);
}

/* With fewer vectors than queues they are shared, and are nobody's in particular. */
static bool flownic_irq_per_queue(const struct flownic_net *fn)
{
	unsigned int last = 2 * fn->max_pairs - 1;

	if (virtio_has_feature(fn->vdev, VIRTIO_NET_F_CTRL_VQ))
		last++;
	return flownic_irq_of(fn, last) > 0;
}

static void flownic_irq_apply(struct flownic_pair *pair, const struct cpumask *mask)
{
	cpumask_copy(&pair->affinity, mask);
	if (pair->tx_irq > 0)
		irq_set_affinity(pair->tx_irq, mask);
#ifdef CONFIG_RFS_ACCEL
	if (pair->fn->dev->rx_cpu_rmap && pair->rmap_index >= 0)
		cpu_rmap_update(pair->fn->dev->rx_cpu_rmap, pair->rmap_index, mask);
#endif
}

/* Process context, some time after the affinity was set. */
static void flownic_irq_notify(struct irq_affinity_notify *notify, const cpumask_t *mask)
{
	struct flownic_pair *pair = container_of(notify, struct flownic_pair, notify);

	mutex_lock(&pair->fn->irq_lock);
	pair->affinity_set = true;
	flownic_irq_apply(pair, mask);
	mutex_unlock(&pair->fn->irq_lock);
}

/* The pair lives longer than its notifier. */
static void flownic_irq_release(struct kref *ref)
{
}

/*
 * Makes the map of CPUs to queues for the pairs in use. Nobody may be looking: NAPI is disabled.
 */
int flownic_irq_map(struct flownic_net *fn)
{
#ifdef CONFIG_RFS_ACCEL
	struct cpu_rmap *map = NULL, *old;
	unsigned int i;

	if (fn->pairs[0].rx_irq > 0) {
		map = alloc_cpu_rmap(fn->num_pairs, GFP_KERNEL);
		if (!map)
			return -ENOMEM;
	}
	mutex_lock(&fn->irq_lock);
	for (i = 0; i < fn->max_pairs; i++) {
		struct flownic_pair *pair = &fn->pairs[i];

		pair->rmap_index = -1;
		if (!map || i >= fn->num_pairs)
			continue;
		pair->rmap_index = cpu_rmap_add(map, pair);
		cpu_rmap_update(map, pair->rmap_index, &pair->affinity);
	}
	old = fn->dev->rx_cpu_rmap;
	fn->dev->rx_cpu_rmap = map;
	mutex_unlock(&fn->irq_lock);
	if (old) {
		/* A packet that was held up in a backlog may just be looking. */
		synchronize_net();
		cpu_rmap_put(old);
	}
#endif
	return 0;
}

static void flownic_irq_unmap(struct flownic_net *fn)
{
#ifdef CONFIG_RFS_ACCEL
	struct cpu_rmap *map;

	mutex_lock(&fn->irq_lock);
	map = fn->dev->rx_cpu_rmap;
	fn->dev->rx_cpu_rmap = NULL;
	mutex_unlock(&fn->irq_lock);
	if (map) {
		synchronize_net();
		cpu_rmap_put(map);
	}
#endif
}

/* One CPU for each queue as long as there are enough, in turn otherwise. */
static void flownic_irq_default(struct flownic_pair *pair)
{
	unsigned int cpu = cpumask_local_spread(pair->index % num_online_cpus(), NUMA_NO_NODE);

	cpumask_copy(&pair->affinity, cpumask_of(cpu));
}

int flownic_irq_start(struct flownic_net *fn)
{
	bool per_queue = flownic_irq_per_queue(fn);
	unsigned int i;

	for (i = 0; i < fn->max_pairs; i++) {
		struct flownic_pair *pair = &fn->pairs[i];

		pair->rx_irq = per_queue ? flownic_irq_of(fn, 2 * i) : -1;
		pair->tx_irq = per_queue ? flownic_irq_of(fn, 2 * i + 1) : -1;
		if (!pair->affinity_set)
			flownic_irq_default(pair);
		if (pair->rx_irq <= 0)
			continue;
		irq_set_affinity(pair->rx_irq, &pair->affinity);
		irq_set_affinity(pair->tx_irq, &pair->affinity);
		pair->notify.notify = flownic_irq_notify;
		pair->notify.release = flownic_irq_release;
		pair->notified = !irq_set_affinity_notifier(pair->rx_irq, &pair->notify);
	}
	return flownic_irq_map(fn);
}

/* Before the vectors go: a notifier must not outlive its interrupt, nor the map its notifiers. */
void flownic_irq_stop(struct flownic_net *fn)
{
	unsigned int i;

	for (i = 0; i < fn->max_pairs; i++) {
		struct flownic_pair *pair = &fn->pairs[i];

		if (pair->notified)
			irq_set_affinity_notifier(pair->rx_irq, NULL);
		pair->notified = false;
		pair->rx_irq = -1;
		pair->tx_irq = -1;
	}
	flownic_irq_unmap(fn);
}

/* XPS: a CPU sends on the queue whose interrupt it takes, so that a flow stays with its pair. */
void flownic_irq_spread(struct flownic_net *fn)
{
	unsigned int i, cpu;
	cpumask_var_t mask;

	if (!zalloc_cpumask_var(&mask, GFP_KERNEL))
		return;
	for (i = 0; i < fn->num_pairs; i++) {
		unsigned int n = 0;

		cpumask_clear(mask);
		for_each_online_cpu(cpu)
			if (n++ % fn->num_pairs == i)
				cpumask_set_cpu(cpu, mask);
		netif_set_xps_queue(fn->dev, mask, i);
	}
	free_cpumask_var(mask);
}
