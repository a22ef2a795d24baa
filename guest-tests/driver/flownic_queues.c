// SPDX-License-Identifier: GPL-2.0
/*
 * How many queue pairs are used (`ethtool -l`, `-L`), and how large their rings are (`-g`, `-G`).
 *
 * All virtqueues that the device has exist at any time; fn->num_pairs of them are used. A change of
 * that number while the interface is up goes through these steps, and loses nothing but what the
 * stack had queued for a transmit queue that goes:
 *
 *	fewer	steering leaves the pairs, the stack sends no more there, what the device has is
 *		sent, QEMU switches them off, NAPI takes what was received and is disabled
 *	more	QEMU switches them on, NAPI is enabled, the stack may send there, steering may follow
 *
 * A ring's size is how much of the virtqueue the driver uses. The virtqueue itself is as large as
 * the device made it, so nothing has to be stopped: a receive ring that has become too large is not
 * refilled for a while, a transmit queue stops earlier.
 */

#include "flownic_net.h"

#define FLOWNIC_RING_MIN	64U

void flownic_get_channels(struct net_device *dev, struct ethtool_channels *ch)
{
	struct flownic_net *fn = netdev_priv(dev);

	ch->max_combined = fn->max_pairs;
	ch->combined_count = fn->num_pairs;
}

/* The part in which NAPI is down: the stack's idea of the queues, and the map of CPUs to queues. */
static int flownic_switch_pairs(struct flownic_net *fn, unsigned int pairs)
{
	unsigned int old = fn->num_pairs;
	bool up = fn->up;
	int err;

	flownic_down(fn);
	WRITE_ONCE(fn->num_pairs, pairs);
	err = netif_set_real_num_queues(fn->dev, pairs, pairs);
	if (!err)
		err = flownic_irq_map(fn);
	if (err) {
		WRITE_ONCE(fn->num_pairs, old);
		netif_set_real_num_queues(fn->dev, old, old);
	}
	if (!up)
		return err;
	/* With the old number it worked before. */
	return flownic_up(fn, min(old, pairs)) ?: err;
}

static int flownic_fewer_pairs(struct flownic_net *fn, unsigned int pairs)
{
	unsigned int i, old = fn->num_pairs;
	int err;

	flownic_ctl_set_pairs(fn, pairs);
	err = netif_set_real_num_tx_queues(fn->dev, pairs);
	if (err)
		goto undo;
	if (fn->up)
		flownic_drain(fn, pairs);
	err = flownic_ctrl_set_pairs(fn, pairs);
	if (err)
		goto undo_tx;
	if (fn->up) {
		local_bh_disable();
		for (i = pairs; i < old; i++)
			napi_schedule(&fn->pairs[i].napi);
		local_bh_enable();
	}
	err = flownic_switch_pairs(fn, pairs);
	if (err)
		goto undo_ctrl;
	return 0;

undo_ctrl:
	flownic_ctrl_set_pairs(fn, old);
undo_tx:
	netif_set_real_num_tx_queues(fn->dev, old);
undo:
	flownic_ctl_set_pairs(fn, old);
	return err;
}

static int flownic_more_pairs(struct flownic_net *fn, unsigned int pairs)
{
	unsigned int old = fn->num_pairs;
	int err;

	err = flownic_ctrl_set_pairs(fn, pairs);
	if (err)
		return err;
	err = flownic_switch_pairs(fn, pairs);
	if (err) {
		flownic_ctrl_set_pairs(fn, old);
		return err;
	}
	flownic_ctl_set_pairs(fn, pairs);
	return 0;
}

int flownic_set_channels(struct net_device *dev, struct ethtool_channels *ch)
{
	struct flownic_net *fn = netdev_priv(dev);
	unsigned int pairs = ch->combined_count;
	int err;

	/* The core has compared the numbers with the largest ones. */
	if (ch->rx_count || ch->tx_count || ch->other_count || !pairs)
		return -EINVAL;
	if (pairs == fn->num_pairs)
		return 0;
	if (!fn->running)
		return -ENETDOWN;
	err = flownic_ctl_check_pairs(fn, pairs);
	if (err)
		return err;

	err = pairs < fn->num_pairs ? flownic_fewer_pairs(fn, pairs)
				    : flownic_more_pairs(fn, pairs);
	if (!err)
		flownic_irq_spread(fn);
	return err;
}

void flownic_get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			   struct kernel_ethtool_ringparam *kernel_ring,
			   struct netlink_ext_ack *extack)
{
	struct flownic_net *fn = netdev_priv(dev);

	ring->rx_max_pending = fn->rx_ring_max;
	ring->tx_max_pending = fn->tx_ring_max;
	ring->rx_pending = fn->rx_ring;
	ring->tx_pending = fn->tx_ring;
}

int flownic_set_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			  struct kernel_ethtool_ringparam *kernel_ring,
			  struct netlink_ext_ack *extack)
{
	struct flownic_net *fn = netdev_priv(dev);
	unsigned int i;

	if (ring->rx_mini_pending || ring->rx_jumbo_pending)
		return -EINVAL;
	if (ring->rx_pending < min(FLOWNIC_RING_MIN, fn->rx_ring_max) ||
	    ring->tx_pending < min(FLOWNIC_RING_MIN, fn->tx_ring_max)) {
		NL_SET_ERR_MSG_MOD(extack, "A ring needs 64 entries at least");
		return -EINVAL;
	}
	WRITE_ONCE(fn->rx_ring, ring->rx_pending);
	WRITE_ONCE(fn->tx_ring, ring->tx_pending);
	if (!fn->up)
		return 0;
	/* NAPI posts what is missing now, and wakes queues that have room again. */
	local_bh_disable();
	for (i = 0; i < fn->num_pairs; i++)
		napi_schedule(&fn->pairs[i].napi);
	local_bh_enable();
	return 0;
}
