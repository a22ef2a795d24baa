// SPDX-License-Identifier: GPL-2.0
/*
 * flownic_net: a driver for flownic, a NIC made of software, as QEMU presents it (virtio-net-pci on
 * -netdev vhost-user).
 *
 * This file is about how the driver and a device come together and part: features, probe, remove.
 *
 * The driver has no device table on purpose: the device is one that virtio_net drives as well, and
 * which of the two gets it is to be a choice, not a race. Who loads this module before virtio_net,
 * or unbinds the device from that and binds it to this one, has chosen.
 */

#include <linux/module.h>
#include <linux/virtio_ids.h>

#include "flownic_net.h"

#define FLOWNIC_RX_RING		512
#define FLOWNIC_TX_RING		1024

/* What the device says at any time: the link, and that peers ought to be told of us. */
static void flownic_config_work(struct work_struct *work)
{
	struct flownic_net *fn = container_of(work, struct flownic_net, config_work);
	u16 status = VIRTIO_NET_S_LINK_UP;

	rtnl_lock();
	if (!fn->running || fn->dev->reg_state != NETREG_REGISTERED)
		goto out;
	if (virtio_has_feature(fn->vdev, VIRTIO_NET_F_STATUS))
		virtio_cread(fn->vdev, struct virtio_net_config, status, &status);
	if (status & VIRTIO_NET_S_ANNOUNCE &&
	    virtio_has_feature(fn->vdev, VIRTIO_NET_F_GUEST_ANNOUNCE)) {
		if (netif_running(fn->dev))
			__netdev_notify_peers(fn->dev);
		flownic_ctrl_announced(fn);
	}
	if (!(status & VIRTIO_NET_S_LINK_UP)) {
		netif_carrier_off(fn->dev);
	} else {
		/* QEMU takes the link away while nobody serves the device. */
		if (!netif_carrier_ok(fn->dev))
			flownic_dev_check(fn);
		if (fn->running)
			netif_carrier_on(fn->dev);
	}
out:
	rtnl_unlock();
}

static void flownic_config_changed(struct virtio_device *vdev)
{
	struct flownic_net *fn = vdev->priv;

	schedule_work(&fn->config_work);
}

static void flownic_init_features(struct flownic_net *fn)
{
	struct virtio_device *vdev = fn->vdev;
	struct net_device *dev = fn->dev;

	dev->features = NETIF_F_HIGHDMA;
	if (virtio_has_feature(vdev, VIRTIO_NET_F_CSUM)) {
		dev->hw_features |= NETIF_F_HW_CSUM | NETIF_F_SG;
		if (virtio_has_feature(vdev, VIRTIO_NET_F_HOST_TSO4))
			dev->hw_features |= NETIF_F_TSO;
		if (virtio_has_feature(vdev, VIRTIO_NET_F_HOST_TSO6))
			dev->hw_features |= NETIF_F_TSO6;
		if (virtio_has_feature(vdev, VIRTIO_NET_F_HOST_ECN))
			dev->hw_features |= NETIF_F_TSO_ECN;
		if (virtio_has_feature(vdev, VIRTIO_NET_F_HOST_USO))
			dev->hw_features |= NETIF_F_GSO_UDP_L4;
	}
	dev->vlan_features = dev->hw_features;
	if (virtio_has_feature(vdev, VIRTIO_NET_F_GUEST_CSUM)) {
		dev->hw_features |= NETIF_F_RXCSUM;
		fn->rx_csum = true;
		if (flownic_dev_has_large_rx(fn)) {
			dev->hw_features |= NETIF_F_GRO_HW;
			fn->large_rx = true;
		}
	}
	dev->features |= dev->hw_features;
	if (virtio_has_feature(vdev, VIRTIO_NET_F_CTRL_VLAN))
		dev->features |= NETIF_F_HW_VLAN_CTAG_FILTER;
	flownic_set_xdp_features(dev);
}

static int flownic_init_address(struct flownic_net *fn)
{
	struct net_device *dev = fn->dev;
	u8 mac[ETH_ALEN];
	u16 mtu;

	if (virtio_has_feature(fn->vdev, VIRTIO_NET_F_MAC)) {
		virtio_cread_bytes(fn->vdev, offsetof(struct virtio_net_config, mac), mac,
				   sizeof(mac));
		if (!is_valid_ether_addr(mac)) {
			dev_err(&fn->vdev->dev, "%pM is no address for a NIC\n", mac);
			return -EINVAL;
		}
		eth_hw_addr_set(dev, mac);
	} else {
		eth_hw_addr_random(dev);
	}

	dev->min_mtu = ETH_MIN_MTU;
	dev->max_mtu = ETH_MAX_MTU;
	if (virtio_has_feature(fn->vdev, VIRTIO_NET_F_MTU)) {
		virtio_cread(fn->vdev, struct virtio_net_config, mtu, &mtu);
		if (mtu < dev->min_mtu) {
			dev_err(&fn->vdev->dev, "%u is no MTU for a NIC\n", mtu);
			return -EINVAL;
		}
		dev->mtu = mtu;
		dev->max_mtu = mtu;
	}
	return 0;
}

static int flownic_init_pairs(struct flownic_net *fn)
{
	unsigned int i;

	fn->no_offloads = kzalloc_obj(*fn->no_offloads);
	fn->pairs = kvcalloc(fn->max_pairs, sizeof(*fn->pairs), GFP_KERNEL);
	if (!fn->pairs || !fn->no_offloads)
		return -ENOMEM;
	for (i = 0; i < fn->max_pairs; i++) {
		struct flownic_pair *pair = &fn->pairs[i];

		pair->fn = fn;
		pair->index = i;
		pair->rx_irq = -1;
		pair->tx_irq = -1;
		pair->tx.txq = netdev_get_tx_queue(fn->dev, i);
		u64_stats_init(&pair->rx.stats.syncp);
		u64_stats_init(&pair->tx.stats.syncp);
		/* The names that virtio_net uses, which scripts look for in /proc/interrupts. */
		snprintf(pair->rx_name, sizeof(pair->rx_name), "input.%u", i);
		snprintf(pair->tx_name, sizeof(pair->tx_name), "output.%u", i);
		/* As one that is disabled: an early interrupt schedules nothing. */
		set_bit(NAPI_STATE_SCHED, &pair->napi.state);
	}
	return 0;
}

static void flownic_free_pairs(struct flownic_net *fn)
{
	kvfree(fn->pairs);
	kfree(fn->no_offloads);
}

/* A device without these would need another, older kind of driver. */
static int flownic_validate(struct virtio_device *vdev)
{
	if (!virtio_has_feature(vdev, VIRTIO_F_VERSION_1) ||
	    !virtio_has_feature(vdev, VIRTIO_NET_F_MRG_RXBUF)) {
		dev_err(&vdev->dev, "version_1 and mrg_rxbuf are needed\n");
		return -ENODEV;
	}
	return 0;
}

static unsigned int flownic_count_pairs(struct virtio_device *vdev)
{
	u16 pairs = 1;

	if (virtio_has_feature(vdev, VIRTIO_NET_F_MQ) &&
	    virtio_has_feature(vdev, VIRTIO_NET_F_CTRL_VQ))
		virtio_cread(vdev, struct virtio_net_config, max_virtqueue_pairs, &pairs);
	return clamp_t(u16, pairs, 1, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MAX);
}

static int flownic_probe(struct virtio_device *vdev)
{
	unsigned int pairs = flownic_count_pairs(vdev);
	struct flownic_net *fn;
	struct net_device *dev;
	int err;

	dev = alloc_etherdev_mqs(sizeof(*fn), pairs, pairs);
	if (!dev)
		return -ENOMEM;
	SET_NETDEV_DEV(dev, &vdev->dev);
	dev->netdev_ops = &flownic_netdev_ops;
	dev->ethtool_ops = &flownic_ethtool_ops;
	dev->needed_headroom = FLOWNIC_HDR_LEN;
	dev->priv_flags |= IFF_UNICAST_FLT | IFF_LIVE_ADDR_CHANGE;

	fn = netdev_priv(dev);
	vdev->priv = fn;
	fn->dev = dev;
	fn->vdev = vdev;
	fn->offered = vdev->features;
	fn->max_pairs = pairs;
	fn->num_pairs = min(pairs, num_online_cpus());
	fn->rx_ring = FLOWNIC_RX_RING;
	fn->tx_ring = FLOWNIC_TX_RING;
	init_waitqueue_head(&fn->drained);
	mutex_init(&fn->irq_lock);
	INIT_WORK(&fn->config_work, flownic_config_work);
	INIT_WORK(&fn->reset_work, flownic_dev_reset_work);
	INIT_WORK(&fn->reap_work, flownic_tx_reap_work);
	flownic_init_features(fn);
	flownic_stats_init(fn);

	err = flownic_init_address(fn);
	if (err)
		goto free_dev;
	err = flownic_ctrl_init(fn);
	if (err)
		goto free_dev;
	err = flownic_init_pairs(fn);
	if (err)
		goto free_pairs;

	rtnl_lock();
	err = flownic_dev_start(fn);
	if (err)
		goto unlock;
	err = flownic_ctl_probe(fn);
	if (err)
		goto stop;
	netif_set_real_num_tx_queues(dev, fn->num_pairs);
	netif_set_real_num_rx_queues(dev, fn->num_pairs);
	netif_carrier_off(dev);
	err = register_netdevice(dev);
	if (err)
		goto ctl_remove;
	flownic_irq_spread(fn);
	rtnl_unlock();
	schedule_work(&fn->config_work);
	return 0;

ctl_remove:
	flownic_ctl_remove(fn);
stop:
	flownic_dev_stop(fn);
unlock:
	rtnl_unlock();
	cancel_work_sync(&fn->config_work);
free_pairs:
	flownic_free_pairs(fn);
	flownic_ctrl_free(fn);
free_dev:
	free_netdev(dev);
	return err;
}

static void flownic_remove(struct virtio_device *vdev)
{
	struct flownic_net *fn = vdev->priv;

	unregister_netdev(fn->dev);
	rtnl_lock();
	flownic_ctl_remove(fn);
	flownic_dev_stop(fn);
	rtnl_unlock();
	/* They find an interface that is gone, or a device that is stopped. */
	cancel_work_sync(&fn->config_work);
	cancel_work_sync(&fn->reset_work);
	flownic_free_pairs(fn);
	flownic_ctrl_free(fn);
	free_netdev(fn->dev);
}

static int __maybe_unused flownic_freeze(struct virtio_device *vdev)
{
	struct flownic_net *fn = vdev->priv;

	rtnl_lock();
	netif_device_detach(fn->dev);
	if (netif_running(fn->dev))
		flownic_ctl_down(fn);
	flownic_ctl_quiesce(fn);
	flownic_down(fn);
	flownic_dev_stop(fn);
	rtnl_unlock();
	return 0;
}

static int __maybe_unused flownic_restore(struct virtio_device *vdev)
{
	struct flownic_net *fn = vdev->priv;
	int err;

	rtnl_lock();
	err = flownic_dev_restart(fn);
	netif_device_attach(fn->dev);
	rtnl_unlock();
	return err;
}

static const unsigned int flownic_features[] = {
	VIRTIO_NET_F_CSUM, VIRTIO_NET_F_GUEST_CSUM,
	VIRTIO_NET_F_HOST_TSO4, VIRTIO_NET_F_HOST_TSO6, VIRTIO_NET_F_HOST_ECN,
	VIRTIO_NET_F_HOST_USO,
	VIRTIO_NET_F_GUEST_TSO4, VIRTIO_NET_F_GUEST_TSO6, VIRTIO_NET_F_GUEST_ECN,
#if FLOWNIC_HAS_GUEST_USO
	VIRTIO_NET_F_GUEST_USO4, VIRTIO_NET_F_GUEST_USO6,
#endif
	VIRTIO_NET_F_MRG_RXBUF, VIRTIO_NET_F_MTU, VIRTIO_NET_F_MAC, VIRTIO_NET_F_STATUS,
	VIRTIO_NET_F_CTRL_VQ, VIRTIO_NET_F_CTRL_RX, VIRTIO_NET_F_CTRL_VLAN,
	VIRTIO_NET_F_CTRL_MAC_ADDR, VIRTIO_NET_F_GUEST_ANNOUNCE, VIRTIO_NET_F_MQ,
	VIRTIO_NET_F_SPEED_DUPLEX,
};

static const struct virtio_device_id flownic_ids[] = {
	{ VIRTIO_ID_NET, VIRTIO_DEV_ANY_ID },
	{ },
};

static struct virtio_driver flownic_driver = {
	.driver.name		= FLOWNIC_NAME,
	.driver.owner		= THIS_MODULE,
	.id_table		= flownic_ids,
	.feature_table		= flownic_features,
	.feature_table_size	= ARRAY_SIZE(flownic_features),
	.validate		= flownic_validate,
	.probe			= flownic_probe,
	.remove			= flownic_remove,
	.config_changed		= flownic_config_changed,
#ifdef CONFIG_PM_SLEEP
	.freeze			= flownic_freeze,
	.restore		= flownic_restore,
#endif
};
module_virtio_driver(flownic_driver);

MODULE_DESCRIPTION("flownic, a NIC made of software");
MODULE_LICENSE("GPL");
