// SPDX-License-Identifier: GPL-2.0
/*
 * The interface: down or up, and what users set with `ip link` and `ethtool -K`.
 *
 * From down to up NAPI is enabled for each queue pair in use, then the transmit queues are opened;
 * from up to down they are closed, the device gets a moment to send what it has, and NAPI is
 * disabled. All of it under RTNL.
 *
 * The stack knows the NAPI of a pair only while it is enabled. It would wait for ever for one that
 * is disabled when NAPI stops being threaded; what users have set for it lasts in its configuration.
 */

#include "flownic_net.h"

/* How long the device may take for what it has been given, before queues are stopped. */
#define FLOWNIC_DRAIN		(HZ / 10)

/* Enables a pair. Its transmit queue is not started yet. */
static int flownic_pair_up(struct flownic_pair *pair)
{
	struct net_device *dev = pair->fn->dev;
	int err;

	netif_napi_add_config(dev, &pair->napi, flownic_poll, pair->index);
	netif_napi_set_irq(&pair->napi, pair->rx_irq);
	napi_enable(&pair->napi);
	err = flownic_rx_up(pair);
	if (err) {
		napi_disable(&pair->napi);
		netif_napi_del(&pair->napi);
		return err;
	}
	netif_queue_set_napi(dev, pair->index, NETDEV_QUEUE_TYPE_RX, &pair->napi);
	netif_queue_set_napi(dev, pair->index, NETDEV_QUEUE_TYPE_TX, &pair->napi);
	__netif_tx_lock_bh(pair->tx.txq);
	WRITE_ONCE(pair->up, true);
	__netif_tx_unlock_bh(pair->tx.txq);
	return 0;
}

static void flownic_pair_down(struct flownic_pair *pair)
{
	struct net_device *dev = pair->fn->dev;

	__netif_tx_lock_bh(pair->tx.txq);
	WRITE_ONCE(pair->up, false);
	__netif_tx_unlock_bh(pair->tx.txq);
	netif_queue_set_napi(dev, pair->index, NETDEV_QUEUE_TYPE_RX, NULL);
	netif_queue_set_napi(dev, pair->index, NETDEV_QUEUE_TYPE_TX, NULL);
	napi_disable(&pair->napi);
	netif_napi_del(&pair->napi);
	flownic_rx_down(pair);
}

/*
 * @stale: the first pair that has not been in use until now; what waits in its receive ring, and in
 * that of all above, is old.
 */
int flownic_up(struct flownic_net *fn, unsigned int stale)
{
	unsigned int i;
	int err;

	ASSERT_RTNL();
	for (i = stale; i < fn->num_pairs; i++)
		flownic_rx_discard(&fn->pairs[i]);
	for (i = 0; i < fn->num_pairs; i++) {
		err = flownic_pair_up(&fn->pairs[i]);
		if (err)
			goto undo;
	}
	fn->up = true;
	for (i = 0; i < fn->max_pairs; i++) {
		if (i < fn->num_pairs)
			flownic_tx_open(&fn->pairs[i]);
		else
			/* The watchdog looks at queues that nobody uses, too. */
			netif_tx_start_queue(fn->pairs[i].tx.txq);
	}
	/* Interrupts are armed by NAPI, and by nothing else. */
	local_bh_disable();
	for (i = 0; i < fn->num_pairs; i++)
		napi_schedule(&fn->pairs[i].napi);
	local_bh_enable();
	return 0;

undo:
	while (i--)
		flownic_pair_down(&fn->pairs[i]);
	schedule_work(&fn->reap_work);
	return err;
}

/* Waits until the device has sent what pairs from @first on have given it, but not for ever. */
void flownic_drain(struct flownic_net *fn, unsigned int first)
{
	unsigned int i;

	for (i = first; i < fn->num_pairs; i++) {
		struct flownic_tx *tx = &fn->pairs[i].tx;

		/* NAPI reaps as interrupts come, but those may be some packets away. */
		local_bh_disable();
		napi_schedule(&fn->pairs[i].napi);
		local_bh_enable();
		wait_event_timeout(fn->drained, !READ_ONCE(tx->pending), FLOWNIC_DRAIN);
	}
}

void flownic_down(struct flownic_net *fn)
{
	unsigned int i;

	ASSERT_RTNL();
	if (!fn->up)
		return;
	for (i = 0; i < fn->num_pairs; i++)
		flownic_tx_close(&fn->pairs[i]);
	flownic_drain(fn, 0);
	fn->up = false;
	for (i = 0; i < fn->num_pairs; i++)
		flownic_pair_down(&fn->pairs[i]);
	/* Commands, and packets that are late, are completed by this from now on. */
	schedule_work(&fn->reap_work);
}

static int flownic_open(struct net_device *dev)
{
	struct flownic_net *fn = netdev_priv(dev);
	int err;

	/* A restart has failed: this is the way to try again, interface and all. */
	if (!fn->running)
		return flownic_dev_restart(fn);

	err = flownic_up(fn, 0);
	if (!err)
		flownic_ctl_up(fn);
	return err;
}

static int flownic_close(struct net_device *dev)
{
	struct flownic_net *fn = netdev_priv(dev);

	flownic_ctl_down(fn);
	flownic_down(fn);
	return 0;
}

static int flownic_change_mtu(struct net_device *dev, int mtu)
{
	struct flownic_net *fn = netdev_priv(dev);
	struct bpf_prog *prog = rtnl_dereference(fn->xdp_prog);

	if (prog && mtu > flownic_xdp_max_mtu(fn, flownic_xdp_has_frags(prog))) {
		netdev_warn(dev, "MTU %d is too large for the XDP program\n", mtu);
		return -EINVAL;
	}
	/* Frames of any size fit into receive buffers, so nothing else depends on it. */
	WRITE_ONCE(dev->mtu, mtu);
	return 0;
}

static int flownic_set_mac_address(struct net_device *dev, void *addr)
{
	struct flownic_net *fn = netdev_priv(dev);
	struct sockaddr *sa = addr;
	int err;

	err = eth_prepare_mac_addr_change(dev, addr);
	if (err)
		return err;
	err = flownic_ctrl_set_mac(fn, sa->sa_data);
	if (err)
		return err;
	eth_commit_mac_addr_change(dev, addr);
	return 0;
}

static void flownic_set_rx_mode(struct net_device *dev)
{
	struct flownic_net *fn = netdev_priv(dev);

	schedule_work(&fn->ctrl.rx_mode);
}

static int flownic_vlan_add(struct net_device *dev, __be16 proto, u16 id)
{
	return flownic_ctrl_vlan(netdev_priv(dev), id, true);
}

static int flownic_vlan_kill(struct net_device *dev, __be16 proto, u16 id)
{
	return flownic_ctrl_vlan(netdev_priv(dev), id, false);
}

static netdev_features_t flownic_fix_features(struct net_device *dev, netdev_features_t features)
{
	struct flownic_net *fn = netdev_priv(dev);

	/* A program is to see frames as they were on the wire. */
	if (rcu_access_pointer(fn->xdp_prog))
		features &= ~(NETIF_F_RXCSUM | NETIF_F_GRO_HW);
	return features;
}

static int flownic_set_features(struct net_device *dev, netdev_features_t features)
{
	struct flownic_net *fn = netdev_priv(dev);
	netdev_features_t changed = dev->features ^ features;
	int err;

	fn->rx_csum = features & NETIF_F_RXCSUM;
	fn->large_rx = features & NETIF_F_GRO_HW;
	if (changed & (NETIF_F_RXCSUM | NETIF_F_GRO_HW) && flownic_dev_stale(fn)) {
		err = flownic_dev_restart(fn);
		if (err)
			return err;
	}
	return flownic_ctl_set_features(fn, features, changed);
}

static void flownic_tx_timeout(struct net_device *dev, unsigned int queue)
{
	struct flownic_net *fn = netdev_priv(dev);
	struct flownic_tx *tx = &fn->pairs[queue].tx;

	/* Closed for a restart that takes long: one more would not make it faster. */
	if (!READ_ONCE(tx->open))
		return;
	u64_stats_update_begin(&tx->stats.syncp);
	u64_stats_inc(&tx->stats.timeouts);
	u64_stats_update_end(&tx->stats.syncp);
	netdev_err(dev, "transmit queue %u: %u packets not sent; restarting the device\n", queue,
		   READ_ONCE(tx->pending));
	schedule_work(&fn->reset_work);
}

const struct net_device_ops flownic_netdev_ops = {
	.ndo_open		= flownic_open,
	.ndo_stop		= flownic_close,
	.ndo_start_xmit		= flownic_start_xmit,
	.ndo_features_check	= passthru_features_check,
	.ndo_validate_addr	= eth_validate_addr,
	.ndo_set_mac_address	= flownic_set_mac_address,
	.ndo_set_rx_mode	= flownic_set_rx_mode,
	.ndo_vlan_rx_add_vid	= flownic_vlan_add,
	.ndo_vlan_rx_kill_vid	= flownic_vlan_kill,
	.ndo_change_mtu		= flownic_change_mtu,
	.ndo_get_stats64	= flownic_get_stats64,
	.ndo_tx_timeout		= flownic_tx_timeout,
	.ndo_fix_features	= flownic_fix_features,
	.ndo_set_features	= flownic_set_features,
	.ndo_bpf		= flownic_xdp,
	.ndo_xdp_xmit		= flownic_xdp_xmit,
#ifdef CONFIG_RFS_ACCEL
	.ndo_rx_flow_steer	= flownic_rx_flow_steer,
#endif
};
