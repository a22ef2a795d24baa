// SPDX-License-Identifier: GPL-2.0
/*
 * Counters, and the three places where they are read: `ip -s link`, `ethtool -S`, and the queue
 * statistics of netdev-genl (`ynl ... --dump qstats-get`) on kernels that have those.
 *
 * A queue's counters are never reset, so that a queue that is not in use any more still counts in
 * the totals.
 */

#include "flownic_net.h"

#if FLOWNIC_HAS_QSTATS
#include <net/netdev_queues.h>
#endif

struct flownic_counter {
	char name[24];
	size_t offset;
};

#define RX(counter)	{ #counter, offsetof(struct flownic_rx, stats.counter) }
#define TX(counter)	{ #counter, offsetof(struct flownic_tx, stats.counter) }

static const struct flownic_counter flownic_rx_counters[] = {
	RX(packets), RX(bytes), RX(drops), RX(alloc_fail), RX(csum_unnecessary), RX(csum_none),
	RX(gso_packets), RX(gso_bytes), RX(gso_wire_packets), RX(hashes),
	RX(xdp_packets), RX(xdp_drops), RX(xdp_tx), RX(xdp_redirects), RX(polls),
};

static const struct flownic_counter flownic_tx_counters[] = {
	TX(packets), TX(bytes), TX(drops), TX(csum_none), TX(needs_csum),
	TX(gso_packets), TX(gso_bytes), TX(gso_wire_packets), TX(gso_wire_bytes),
	TX(stop), TX(wake), TX(kicks), TX(xdp_packets), TX(timeouts), TX(commands),
};

#undef RX
#undef TX

/* Of each queue, after those above. */
#define FLOWNIC_INTERRUPTS	"interrupts"

#define FLOWNIC_RX_COUNT	(ARRAY_SIZE(flownic_rx_counters) + 1)
#define FLOWNIC_TX_COUNT	(ARRAY_SIZE(flownic_tx_counters) + 1)

static u64 flownic_read(const struct u64_stats_sync *syncp, const u64_stats_t *counter)
{
	unsigned int start;
	u64 value;

	do {
		start = u64_stats_fetch_begin(syncp);
		value = u64_stats_read(counter);
	} while (u64_stats_fetch_retry(syncp, start));
	return value;
}

int flownic_get_sset_count(struct net_device *dev, int sset)
{
	struct flownic_net *fn = netdev_priv(dev);

	if (sset == ETH_SS_PRIV_FLAGS)
		return flownic_flags_count(fn);
	if (sset != ETH_SS_STATS)
		return -EOPNOTSUPP;
	return fn->num_pairs * (FLOWNIC_RX_COUNT + FLOWNIC_TX_COUNT) + flownic_ctl_stats_count(fn);
}

static void flownic_get_names(u8 **data, const char *kind, unsigned int index,
			      const struct flownic_counter *counters, unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		ethtool_sprintf(data, "%s%u_%s", kind, index, counters[i].name);
	ethtool_sprintf(data, "%s%u_%s", kind, index, FLOWNIC_INTERRUPTS);
}

void flownic_get_strings(struct net_device *dev, u32 sset, u8 *data)
{
	struct flownic_net *fn = netdev_priv(dev);
	unsigned int i;

	if (sset == ETH_SS_PRIV_FLAGS)
		flownic_flags_strings(fn, data);
	if (sset != ETH_SS_STATS)
		return;
	for (i = 0; i < fn->num_pairs; i++)
		flownic_get_names(&data, "rx", i, flownic_rx_counters,
				  ARRAY_SIZE(flownic_rx_counters));
	for (i = 0; i < fn->num_pairs; i++)
		flownic_get_names(&data, "tx", i, flownic_tx_counters,
				  ARRAY_SIZE(flownic_tx_counters));
	flownic_ctl_stats_strings(fn, &data);
}

void flownic_get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data)
{
	struct flownic_net *fn = netdev_priv(dev);
	unsigned int i, j;

	for (i = 0; i < fn->num_pairs; i++) {
		const struct flownic_rx *rx = &fn->pairs[i].rx;

		for (j = 0; j < ARRAY_SIZE(flownic_rx_counters); j++)
			*data++ = flownic_read(&rx->stats.syncp,
					       (void *)rx + flownic_rx_counters[j].offset);
		*data++ = READ_ONCE(rx->interrupts);
	}
	for (i = 0; i < fn->num_pairs; i++) {
		const struct flownic_tx *tx = &fn->pairs[i].tx;

		for (j = 0; j < ARRAY_SIZE(flownic_tx_counters); j++)
			*data++ = flownic_read(&tx->stats.syncp,
					       (void *)tx + flownic_tx_counters[j].offset);
		*data++ = READ_ONCE(tx->interrupts);
	}
	flownic_ctl_stats(fn, data);
}

void flownic_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *tot)
{
	struct flownic_net *fn = netdev_priv(dev);
	unsigned int i;

	for (i = 0; i < fn->max_pairs; i++) {
		const struct flownic_rx_stats *rx = &fn->pairs[i].rx.stats;
		const struct flownic_tx_stats *tx = &fn->pairs[i].tx.stats;

		tot->rx_packets += flownic_read(&rx->syncp, &rx->packets);
		tot->rx_bytes += flownic_read(&rx->syncp, &rx->bytes);
		tot->rx_dropped += flownic_read(&rx->syncp, &rx->drops);
		tot->rx_dropped += flownic_read(&rx->syncp, &rx->xdp_drops);
		tot->tx_packets += flownic_read(&tx->syncp, &tx->packets);
		tot->tx_bytes += flownic_read(&tx->syncp, &tx->bytes);
		tot->tx_dropped += flownic_read(&tx->syncp, &tx->drops);
	}
}

#if FLOWNIC_HAS_QSTATS
static void flownic_get_queue_stats_rx(struct net_device *dev, int index,
				       struct netdev_queue_stats_rx *stats)
{
	struct flownic_net *fn = netdev_priv(dev);
	const struct flownic_rx_stats *rx = &fn->pairs[index].rx.stats;

	stats->packets = flownic_read(&rx->syncp, &rx->packets);
	stats->bytes = flownic_read(&rx->syncp, &rx->bytes);
	stats->alloc_fail = flownic_read(&rx->syncp, &rx->alloc_fail);
	stats->csum_unnecessary = flownic_read(&rx->syncp, &rx->csum_unnecessary);
	stats->csum_none = flownic_read(&rx->syncp, &rx->csum_none);
	stats->hw_gro_packets = flownic_read(&rx->syncp, &rx->gso_packets);
	stats->hw_gro_bytes = flownic_read(&rx->syncp, &rx->gso_bytes);
	stats->hw_gro_wire_packets = flownic_read(&rx->syncp, &rx->gso_wire_packets);
}

static void flownic_get_queue_stats_tx(struct net_device *dev, int index,
				       struct netdev_queue_stats_tx *stats)
{
	struct flownic_net *fn = netdev_priv(dev);
	const struct flownic_tx_stats *tx = &fn->pairs[index].tx.stats;

	stats->packets = flownic_read(&tx->syncp, &tx->packets);
	stats->bytes = flownic_read(&tx->syncp, &tx->bytes);
	stats->csum_none = flownic_read(&tx->syncp, &tx->csum_none);
	stats->needs_csum = flownic_read(&tx->syncp, &tx->needs_csum);
	stats->hw_gso_packets = flownic_read(&tx->syncp, &tx->gso_packets);
	stats->hw_gso_bytes = flownic_read(&tx->syncp, &tx->gso_bytes);
	stats->hw_gso_wire_packets = flownic_read(&tx->syncp, &tx->gso_wire_packets);
	stats->hw_gso_wire_bytes = flownic_read(&tx->syncp, &tx->gso_wire_bytes);
	stats->stop = flownic_read(&tx->syncp, &tx->stop);
	stats->wake = flownic_read(&tx->syncp, &tx->wake);
}

/* What the core does not add up: the queues that are not in use now, but were. */
static void flownic_get_base_stats(struct net_device *dev, struct netdev_queue_stats_rx *rx,
				   struct netdev_queue_stats_tx *tx)
{
	/* Only what is set here is reported for the whole device. */
	rx->packets = 0;
	rx->bytes = 0;
	rx->alloc_fail = 0;
	rx->csum_unnecessary = 0;
	rx->csum_none = 0;
	rx->hw_gro_packets = 0;
	rx->hw_gro_bytes = 0;
	rx->hw_gro_wire_packets = 0;
	tx->packets = 0;
	tx->bytes = 0;
	tx->csum_none = 0;
	tx->needs_csum = 0;
	tx->hw_gso_packets = 0;
	tx->hw_gso_bytes = 0;
	tx->hw_gso_wire_packets = 0;
	tx->hw_gso_wire_bytes = 0;
	tx->stop = 0;
	tx->wake = 0;
	netdev_stat_queue_sum(dev, dev->real_num_rx_queues, dev->num_rx_queues, rx,
			      dev->real_num_tx_queues, dev->num_tx_queues, tx);
}

static const struct netdev_stat_ops flownic_stat_ops = {
	.get_queue_stats_rx	= flownic_get_queue_stats_rx,
	.get_queue_stats_tx	= flownic_get_queue_stats_tx,
	.get_base_stats		= flownic_get_base_stats,
};
#endif

void flownic_stats_init(struct flownic_net *fn)
{
#if FLOWNIC_HAS_QSTATS
	fn->dev->stat_ops = &flownic_stat_ops;
#endif
}
