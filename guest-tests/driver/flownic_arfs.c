// SPDX-License-Identifier: GPL-2.0
/*
 * Accelerated RFS: filters that bring each flow to the queue of the CPU where
 * it is consumed.
 *
 * The stack calls flownic_rx_flow_steer() for a packet that came in on another
 * queue than its flow's consumer would like. That is in softirq, and takes a
 * slot and no more; no memory is allocated. A work item gives commands to the
 * device, a bounded number at a time, and another one frees the slots of flows
 * that the stack has no more use for, also of those whose queue is idle.
 *
 * A slot is what the stack believes: from the moment that its index was given
 * to the stack as the filter's id, until rps_may_expire_flow() says that it is
 * not needed. That there is a filter at the device is another matter, since the
 * device may be full, busy, stopped or down. So each slot knows two queues, the
 * one that is wanted and the one that the device's filter has, if any, and all
 * the work is to make the second like the first.
 *
 * States of a slot, and who changes them, all with the lock held:
 *
 *	FREE	-> TODO		flow_steer: a new flow
 *	IDLE	-> TODO		flow_steer: other queue; expiry; stop and go
 *	TODO	-> BUSY		work: a command is under way
 *	BUSY	-> IDLE		work: the device has what is wanted
 *	BUSY	-> TODO		work: no longer, or not yet
 *	IDLE	-> FREE		it is dead, and the device has no filter
 *
 * While a slot is BUSY its wish may change; the newest counts, and those in
 * between are never sent. Only one command of a slot is under way at a time.
 */
#include <linux/delay.h>
#include <linux/jhash.h>
#include <linux/slab.h>
#include <net/flow_dissector.h>

#include "flownic_arfs.h"

#ifdef CONFIG_RFS_ACCEL

#include <linux/rtnetlink.h>

#define SLOTS_MAX	8192
/* A round of expiry: how often, and of how many slots. */
#define EXPIRE_PERIOD	msecs_to_jiffies(250)
#define EXPIRE_QUOTA	1024
/* The stack learns of a filter's id only after we have returned it. */
#define EXPIRE_GRACE	msecs_to_jiffies(500)
/* How often, at most, filters are told to go that must not stay. */
#define RECONCILE_ATTEMPTS	50
#define RECONCILE_PAUSE_MS	5

static void free_slot(struct flownic_arfs *arfs, struct flownic_arfs_slot *slot)
{
	slot->state = FLOWNIC_SLOT_FREE;
	hash_del(&slot->node);
	list_add(&slot->list, &arfs->free);
	arfs->used--;
}

/**
 * flownic_arfs_settle - puts an idle or busy slot where it belongs now
 * @arfs: the table
 * @slot: the slot
 */
void flownic_arfs_settle(struct flownic_arfs *arfs, struct flownic_arfs_slot *slot)
{
	if (slot->device != flownic_arfs_target(arfs, slot)) {
		slot->state = FLOWNIC_SLOT_TODO;
		list_add_tail(&slot->list, &arfs->todo);
	} else if (slot->dead) {
		free_slot(arfs, slot);
	} else {
		slot->state = FLOWNIC_SLOT_IDLE;
	}
}

static void settle_all(struct flownic_arfs *arfs)
{
	u32 i;

	for (i = 0; i < arfs->size; i++)
		if (arfs->slots[i].state == FLOWNIC_SLOT_IDLE)
			flownic_arfs_settle(arfs, &arfs->slots[i]);
}

/* Has the device a filter, or is it about to have one, at a place where none is wanted? */
static bool is_stale(const struct flownic_arfs *arfs, const struct flownic_arfs_slot *slot)
{
	u16 target = flownic_arfs_target(arfs, slot);

	if (slot->state == FLOWNIC_SLOT_FREE)
		return false;
	if (slot->state == FLOWNIC_SLOT_BUSY && slot->asked != FLOWNIC_NOWHERE &&
	    slot->asked != target)
		return true;
	return slot->device != FLOWNIC_NOWHERE && slot->device != target;
}

static bool any_stale(struct flownic_arfs *arfs)
{
	bool stale = false;
	u32 i;

	spin_lock_bh(&arfs->lock);
	for (i = 0; i < arfs->size && !stale; i++)
		stale = is_stale(arfs, &arfs->slots[i]);
	spin_unlock_bh(&arfs->lock);
	return stale;
}

/* Reads a packet's flow. False for what has no ports, or more than one IP header. */
static bool read_tuple(const struct sk_buff *skb, struct flownic_tuple *tuple)
{
	struct flow_keys keys;

	if (skb->protocol != htons(ETH_P_IP) && skb->protocol != htons(ETH_P_IPV6))
		return false;
	if (skb->encapsulation || skb_vlan_tag_present(skb) ||
	    !skb_flow_dissect_flow_keys(skb, &keys, 0) ||
	    keys.control.flags & (FLOW_DIS_IS_FRAGMENT | FLOW_DIS_ENCAPSULATION) ||
	    keys.basic.n_proto != skb->protocol ||
	    (keys.basic.ip_proto != IPPROTO_TCP && keys.basic.ip_proto != IPPROTO_UDP))
		return false;

	memset(tuple, 0, sizeof(*tuple));
	tuple->n_proto = keys.basic.n_proto;
	tuple->ip_proto = keys.basic.ip_proto;
	tuple->sport = keys.ports.src;
	tuple->dport = keys.ports.dst;
	switch (keys.control.addr_type) {
	case FLOW_DISSECTOR_KEY_IPV4_ADDRS:
		tuple->saddr.s6_addr32[0] = keys.addrs.v4addrs.src;
		tuple->daddr.s6_addr32[0] = keys.addrs.v4addrs.dst;
		return true;
	case FLOW_DISSECTOR_KEY_IPV6_ADDRS:
		tuple->saddr = keys.addrs.v6addrs.src;
		tuple->daddr = keys.addrs.v6addrs.dst;
		return true;
	default:
		return false;
	}
}

static u32 hash_tuple(const struct flownic_tuple *tuple)
{
	static_assert(sizeof(*tuple) % sizeof(u32) == 0);

	return jhash2((const u32 *)tuple, sizeof(*tuple) / sizeof(u32), 0);
}

static struct flownic_arfs_slot *find_slot(struct flownic_arfs *arfs,
					   const struct flownic_tuple *tuple, u32 hash)
{
	struct flownic_arfs_slot *slot;

	hash_for_each_possible(arfs->flows, slot, node, hash)
		if (!memcmp(&slot->tuple, tuple, sizeof(*tuple)))
			return slot;
	return NULL;
}

static struct flownic_arfs_slot *new_slot(struct flownic_arfs *arfs,
					  const struct flownic_tuple *tuple, u32 hash)
{
	struct flownic_arfs_slot *slot;

	if (arfs->device_full || list_empty(&arfs->free)) {
		arfs->stats.full++;
		return NULL;
	}
	slot = list_first_entry(&arfs->free, struct flownic_arfs_slot, list);
	list_del(&slot->list);
	slot->tuple = *tuple;
	slot->device = FLOWNIC_NOWHERE;
	slot->dead = false;
	slot->barred = false;
	slot->state = FLOWNIC_SLOT_IDLE;
	hash_add(arfs->flows, &slot->node, hash);
	if (!arfs->used++)
		queue_delayed_work(arfs->wq, &arfs->expire, EXPIRE_PERIOD);
	arfs->stats.staged++;
	return slot;
}

static int stage(struct flownic_arfs *arfs, const struct flownic_tuple *tuple, u16 rxq, u32 flow_id)
{
	u32 hash = hash_tuple(tuple);
	struct flownic_arfs_slot *slot;

	if (!arfs->enabled || !arfs->running)
		return -ENODEV;
	if (rxq >= arfs->pairs) {
		arfs->stats.refused++;
		return -EINVAL;
	}
	slot = find_slot(arfs, tuple, hash);
	if (!slot) {
		slot = new_slot(arfs, tuple, hash);
		if (!slot)
			return -ENOSPC;
	}
	slot->dead = false;
	slot->wanted = rxq;
	slot->flow_id = flow_id;
	slot->staged = jiffies;
	if (slot->state == FLOWNIC_SLOT_IDLE)
		flownic_arfs_settle(arfs, slot);
	if (slot->state == FLOWNIC_SLOT_TODO)
		queue_delayed_work(arfs->wq, &arfs->program, 0);
	return flownic_arfs_index(arfs, slot);
}

/**
 * flownic_rx_flow_steer - the stack would like a flow's packets on another queue
 * @dev: the interface
 * @skb: a packet of the flow
 * @rxq: the queue
 * @flow_id: the stack's name for it, for rps_may_expire_flow()
 *
 * Context: softirq.
 *
 * Return: the filter's id, not negative; -EPROTONOSUPPORT for packets that no
 * filter can be made for, -ENOSPC if there is no room.
 */
int flownic_rx_flow_steer(struct net_device *dev, const struct sk_buff *skb, u16 rxq, u32 flow_id)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_tuple tuple;
	int id;

	if (!ctl || !ctl->arfs.size)
		return -EOPNOTSUPP;
	if (!read_tuple(skb, &tuple)) {
		spin_lock(&ctl->arfs.lock);
		ctl->arfs.stats.refused++;
		spin_unlock(&ctl->arfs.lock);
		return -EPROTONOSUPPORT;
	}
	spin_lock(&ctl->arfs.lock);
	id = stage(&ctl->arfs, &tuple, rxq, flow_id);
	spin_unlock(&ctl->arfs.lock);
	return id;
}

static void expire_slot(struct flownic_ctl *ctl, u32 index)
{
	struct flownic_arfs *arfs = &ctl->arfs;
	struct flownic_arfs_slot *slot = &arfs->slots[index];

	if (slot->state == FLOWNIC_SLOT_FREE || slot->dead ||
	    time_before(jiffies, slot->staged + EXPIRE_GRACE) ||
	    !rps_may_expire_flow(ctl->fn->dev, slot->wanted, slot->flow_id, index))
		return;
	slot->dead = true;
	if (slot->state == FLOWNIC_SLOT_IDLE)
		flownic_arfs_settle(arfs, slot);
}

/* Runs as long as there are flows, whether or not any packets come in. */
static void expire_work(struct work_struct *work)
{
	struct flownic_arfs *arfs = container_of(work, struct flownic_arfs, expire.work);
	struct flownic_ctl *ctl = container_of(arfs, struct flownic_ctl, arfs);
	unsigned int i, quota = min_t(unsigned int, arfs->size, EXPIRE_QUOTA);
	bool todo, used;

	spin_lock_bh(&arfs->lock);
	for (i = 0; i < quota && arfs->used; i++) {
		expire_slot(ctl, arfs->cursor);
		arfs->cursor = (arfs->cursor + 1) % arfs->size;
		/* Packets are waiting for the lock. */
		if (i % 64 == 63) {
			spin_unlock_bh(&arfs->lock);
			cond_resched();
			spin_lock_bh(&arfs->lock);
		}
	}
	todo = !list_empty(&arfs->todo);
	used = arfs->used;
	spin_unlock_bh(&arfs->lock);
	if (todo)
		queue_delayed_work(arfs->wq, &arfs->program, 0);
	if (used)
		queue_delayed_work(arfs->wq, &arfs->expire, EXPIRE_PERIOD);
}

/*
 * Sees to it that the device has no filter that it shall not have, and begins with those that it
 * shall have. Gives up if the device will not. Not from the work itself.
 */
static void reconcile(struct flownic_arfs *arfs)
{
	unsigned int attempt;

	for (attempt = 0; attempt < RECONCILE_ATTEMPTS; attempt++) {
		spin_lock_bh(&arfs->lock);
		settle_all(arfs);
		spin_unlock_bh(&arfs->lock);
		mod_delayed_work(arfs->wq, &arfs->program, 0);
		if (!any_stale(arfs))
			return;
		flush_delayed_work(&arfs->program);
		if (!any_stale(arfs))
			return;
		msleep(RECONCILE_PAUSE_MS);
	}
}

/**
 * flownic_arfs_enable - `ethtool -K ntuple on` or off
 * @ctl: the device
 * @on: on
 *
 * When this returns after off, the device has no filters.
 */
void flownic_arfs_enable(struct flownic_ctl *ctl, bool on)
{
	struct flownic_arfs *arfs = &ctl->arfs;

	if (!arfs->size)
		return;
	spin_lock_bh(&arfs->lock);
	arfs->enabled = on;
	spin_unlock_bh(&arfs->lock);
	reconcile(arfs);
}

/**
 * flownic_arfs_run - the interface is up, or goes down
 * @ctl: the device
 * @on: up
 *
 * Filters are removed when it goes down, and come back when it is up again.
 */
void flownic_arfs_run(struct flownic_ctl *ctl, bool on)
{
	struct flownic_arfs *arfs = &ctl->arfs;

	if (!arfs->size)
		return;
	spin_lock_bh(&arfs->lock);
	arfs->running = on;
	arfs->pairs = ctl->fn->num_pairs;
	spin_unlock_bh(&arfs->lock);
	if (on)
		queue_delayed_work(arfs->wq, &arfs->expire, EXPIRE_PERIOD);
	else
		cancel_delayed_work_sync(&arfs->expire);
	reconcile(arfs);
}

/**
 * flownic_arfs_set_pairs - the number of queues changes
 * @ctl: the device
 * @pairs: to this
 *
 * When this returns, no filter points to a queue that goes away.
 */
void flownic_arfs_set_pairs(struct flownic_ctl *ctl, unsigned int pairs)
{
	struct flownic_arfs *arfs = &ctl->arfs;

	if (!arfs->size)
		return;
	spin_lock_bh(&arfs->lock);
	arfs->pairs = pairs;
	spin_unlock_bh(&arfs->lock);
	reconcile(arfs);
}

/**
 * flownic_arfs_device_gone - the device stops, and forgets
 * @ctl: the device
 *
 * No commands are given from now on until flownic_arfs_run().
 */
void flownic_arfs_device_gone(struct flownic_ctl *ctl)
{
	struct flownic_arfs *arfs = &ctl->arfs;
	u32 i;

	if (!arfs->size)
		return;
	spin_lock_bh(&arfs->lock);
	arfs->running = false;
	spin_unlock_bh(&arfs->lock);
	cancel_delayed_work_sync(&arfs->expire);
	cancel_delayed_work_sync(&arfs->program);

	spin_lock_bh(&arfs->lock);
	INIT_LIST_HEAD(&arfs->todo);
	arfs->active = 0;
	arfs->device_full = false;
	for (i = 0; i < arfs->size; i++) {
		struct flownic_arfs_slot *slot = &arfs->slots[i];

		if (slot->state == FLOWNIC_SLOT_FREE)
			continue;
		slot->device = FLOWNIC_NOWHERE;
		/* It may have refused because it had forgotten the rest already. */
		slot->barred = false;
		flownic_arfs_settle(arfs, slot);
	}
	spin_unlock_bh(&arfs->lock);
}

static int get_classifiers(struct flownic_ctl *ctl)
{
	static const __be16 n_proto[] = { cpu_to_be16(ETH_P_IP), cpu_to_be16(ETH_P_IPV6) };
	static const u8 ip_proto[] = { IPPROTO_TCP, IPPROTO_UDP };
	struct flownic_arfs *arfs = &ctl->arfs;
	struct flownic_tuple tuple = {};
	struct flownic_match match;
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(arfs->classifiers); i++) {
		struct flownic_classifier *classifier;

		tuple.n_proto = n_proto[i / 2];
		tuple.ip_proto = ip_proto[i % 2];
		WARN_ON(flownic_arfs_classifier(&tuple) != i);
		flownic_match_tuple(&match, &tuple);
		classifier = flownic_classifier_get(ctl, &match);
		if (IS_ERR(classifier))
			return PTR_ERR(classifier);
		arfs->classifiers[i] = classifier;
	}
	return 0;
}

/**
 * flownic_arfs_probe - makes an empty table
 * @ctl: the device; ctl->flows has been probed
 *
 * Return: 0, also if the device has no use for this, or -ENOMEM.
 */
int flownic_arfs_probe(struct flownic_ctl *ctl)
{
	struct flownic_arfs *arfs = &ctl->arfs;
	u32 i, size;
	int err;

	spin_lock_init(&arfs->lock);
	INIT_LIST_HEAD(&arfs->free);
	INIT_LIST_HEAD(&arfs->todo);
	hash_init(arfs->flows);
	INIT_DELAYED_WORK(&arfs->program, flownic_arfs_program);
	INIT_DELAYED_WORK(&arfs->expire, expire_work);
	if (!ctl->objects.available || ctl->objects.limits.rules <= ctl->flows.size)
		return 0;
	err = get_classifiers(ctl);
	if (err == -ENOMEM)
		return err;
	if (err) {
		dev_info(&ctl->fn->vdev->dev, "No accelerated RFS: error %d\n", err);
		return 0;
	}

	size = min_t(u32, ctl->objects.limits.rules - ctl->flows.size, SLOTS_MAX);
	arfs->slots = kvcalloc(size, sizeof(*arfs->slots), GFP_KERNEL);
	/* Filters matter most where processors are busy, and there an ordinary worker has to wait. */
	arfs->wq = alloc_ordered_workqueue(FLOWNIC_NAME, WQ_HIGHPRI);
	if (!arfs->slots || !arfs->wq)
		return -ENOMEM;
	for (i = 0; i < size; i++)
		list_add_tail(&arfs->slots[i].list, &arfs->free);
	arfs->size = size;
	arfs->first_id = ctl->flows.size;
	return 0;
}

/**
 * flownic_arfs_free - ends it; the device is told to forget all at once
 * @ctl: the device
 */
void flownic_arfs_free(struct flownic_ctl *ctl)
{
	struct flownic_arfs *arfs = &ctl->arfs;

	flownic_arfs_device_gone(ctl);
	if (arfs->wq)
		destroy_workqueue(arfs->wq);
	kvfree(arfs->slots);
	arfs->slots = NULL;
	arfs->size = 0;
}

#else /* !CONFIG_RFS_ACCEL */

int flownic_arfs_probe(struct flownic_ctl *ctl)
{
	return 0;
}

void flownic_arfs_enable(struct flownic_ctl *ctl, bool on) {}
void flownic_arfs_run(struct flownic_ctl *ctl, bool on) {}
void flownic_arfs_set_pairs(struct flownic_ctl *ctl, unsigned int pairs) {}
void flownic_arfs_device_gone(struct flownic_ctl *ctl) {}
void flownic_arfs_free(struct flownic_ctl *ctl) {}

#endif
