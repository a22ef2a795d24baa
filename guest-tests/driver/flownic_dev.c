// SPDX-License-Identifier: GPL-2.0
/*
 * The device: STOPPED or RUNNING, and how it gets from one to the other.
 *
 *	probe -> start -> RUNNING -> stop -> STOPPED -> negotiate -> start -> RUNNING ...
 *
 * What was agreed upon when it started holds until it stops: the receive offloads, and how buffers
 * are laid out. To change either is to restart it (flownic_dev_restart()), which takes some
 * milliseconds, loses what is in the rings, and makes the device forget everything that it has
 * been told; so everything is told again. A device that hangs is treated in the same way.
 */

#include <linux/virtio_config.h>

#include "flownic_net.h"

#define FLOWNIC_GSO_FEATURES	(BIT_ULL(VIRTIO_NET_F_GUEST_TSO4) |	\
				 BIT_ULL(VIRTIO_NET_F_GUEST_TSO6) |	\
				 BIT_ULL(VIRTIO_NET_F_GUEST_ECN) |	\
				 BIT_ULL(VIRTIO_NET_F_GUEST_USO4) |	\
				 BIT_ULL(VIRTIO_NET_F_GUEST_USO6))
#define FLOWNIC_RX_FEATURES	(BIT_ULL(VIRTIO_NET_F_GUEST_CSUM) | FLOWNIC_GSO_FEATURES)

/* The features to run with: all that the device has, less the receive offloads not wanted now. */
static u64 flownic_dev_features(const struct flownic_net *fn)
{
	u64 features = fn->offered;

	if (rcu_access_pointer(fn->xdp_prog) || !fn->rx_csum)
		features &= ~FLOWNIC_RX_FEATURES;
	else if (!fn->large_rx)
		features &= ~FLOWNIC_GSO_FEATURES;
	return features;
}

bool flownic_dev_has_large_rx(const struct flownic_net *fn)
{
	return fn->offered & FLOWNIC_GSO_FEATURES;
}

/* Does the device run with other features or another layout than are wanted now? */
bool flownic_dev_stale(const struct flownic_net *fn)
{
	return !fn->running || fn->vdev->features != flownic_dev_features(fn) ||
	       !fn->rx_headroom != !rcu_access_pointer(fn->xdp_prog);
}

/* Initializes the device up to its features (virtio 1.4, 3.1.1). */
static int flownic_dev_negotiate(struct flownic_net *fn)
{
	struct virtio_device *vdev = fn->vdev;
	u64 features = flownic_dev_features(fn);
	unsigned int bit;
	int err;

	virtio_reset_device(vdev);
	virtio_add_status(vdev, VIRTIO_CONFIG_S_ACKNOWLEDGE);
	virtio_add_status(vdev, VIRTIO_CONFIG_S_DRIVER);
	for (bit = 0; bit < 64; bit++) {
		if (features & BIT_ULL(bit))
			__virtio_set_bit(vdev, bit);
		else
			__virtio_clear_bit(vdev, bit);
	}
	err = vdev->config->finalize_features(vdev);
	if (err)
		return err;
	virtio_add_status(vdev, VIRTIO_CONFIG_S_FEATURES_OK);
	if (!(vdev->config->get_status(vdev) & VIRTIO_CONFIG_S_FEATURES_OK)) {
		dev_err(&vdev->dev, "the device refuses the features %#llx\n", features);
		return -EINVAL;
	}
	return 0;
}

static int flownic_dev_find_vqs(struct flownic_net *fn)
{
	bool ctrl = virtio_has_feature(fn->vdev, VIRTIO_NET_F_CTRL_VQ);
	unsigned int i, count = 2 * fn->max_pairs + ctrl;
	struct virtqueue_info *infos;
	struct virtqueue **vqs;
	int err = -ENOMEM;

	vqs = kcalloc(count, sizeof(*vqs), GFP_KERNEL);
	infos = kcalloc(count, sizeof(*infos), GFP_KERNEL);
	if (!vqs || !infos)
		goto out;
	for (i = 0; i < fn->max_pairs; i++) {
		infos[2 * i].name = fn->pairs[i].rx_name;
		infos[2 * i].callback = flownic_rx_callback;
		infos[2 * i + 1].name = fn->pairs[i].tx_name;
		infos[2 * i + 1].callback = flownic_tx_callback;
	}
	if (ctrl) {
		infos[count - 1].name = "control";
		infos[count - 1].callback = flownic_ctrl_callback;
	}
	err = flownic_find_vqs(fn->vdev, count, vqs, infos);
	if (err)
		goto out;
	for (i = 0; i < fn->max_pairs; i++) {
		fn->pairs[i].rx.vq = vqs[2 * i];
		fn->pairs[i].tx.vq = vqs[2 * i + 1];
	}
	if (ctrl)
		flownic_ctrl_start(fn, vqs[count - 1]);
out:
	kfree(infos);
	kfree(vqs);
	return err;
}

/* Rings are as large as the device made them; the driver may use less of them. */
static void flownic_dev_limit_rings(struct flownic_net *fn)
{
	fn->rx_ring_max = virtqueue_get_vring_size(fn->pairs[0].rx.vq);
	fn->tx_ring_max = virtqueue_get_vring_size(fn->pairs[0].tx.vq);
	fn->rx_ring = min(fn->rx_ring, fn->rx_ring_max);
	fn->tx_ring = min(fn->tx_ring, fn->tx_ring_max);
}

int flownic_dev_start(struct flownic_net *fn)
{
	unsigned int i;
	int err;

	ASSERT_RTNL();
	flownic_rx_layout(fn);
	err = flownic_dev_find_vqs(fn);
	if (err)
		return err;
	flownic_dev_limit_rings(fn);
	for (i = 0; i < fn->max_pairs; i++) {
		err = flownic_rx_start(&fn->pairs[i]);
		if (err)
			goto stop_rx;
	}
	err = flownic_irq_start(fn);
	if (err)
		goto stop_irq;

	virtio_device_ready(fn->vdev);
	for (i = 0; i < fn->max_pairs; i++)
		flownic_tx_start(&fn->pairs[i]);
	for (i = 0; i < fn->num_pairs; i++)
		flownic_rx_fill(&fn->pairs[i]);
	fn->running = true;
	flownic_ctrl_restore(fn);
	return 0;

stop_irq:
	flownic_irq_stop(fn);
stop_rx:
	while (i--)
		flownic_rx_stop(&fn->pairs[i]);
	flownic_ctrl_stop(fn);
	fn->vdev->config->del_vqs(fn->vdev);
	return err;
}

void flownic_dev_stop(struct flownic_net *fn)
{
	unsigned int i;

	ASSERT_RTNL();
	if (!fn->running)
		return;
	fn->running = false;
	for (i = 0; i < fn->max_pairs; i++)
		flownic_tx_refuse(&fn->pairs[i]);
	flownic_ctrl_stop(fn);
	flownic_irq_stop(fn);
	virtio_reset_device(fn->vdev);
	/* No interrupt can queue it any more. */
	cancel_work_sync(&fn->reap_work);
	for (i = 0; i < fn->max_pairs; i++) {
		flownic_tx_stop(&fn->pairs[i]);
		flownic_rx_stop(&fn->pairs[i]);
	}
	fn->vdev->config->del_vqs(fn->vdev);
}

int flownic_dev_restart(struct flownic_net *fn)
{
	bool up = netif_running(fn->dev);
	int err;

	ASSERT_RTNL();
	if (up)
		flownic_ctl_down(fn);
	flownic_ctl_quiesce(fn);
	flownic_down(fn);
	flownic_dev_stop(fn);

	err = flownic_dev_negotiate(fn);
	if (!err)
		err = flownic_dev_start(fn);
	if (err)
		goto fail;
	flownic_ctl_restore(fn);
	if (up) {
		/* What has arrived since the start is fresh. */
		err = flownic_up(fn, fn->max_pairs);
		if (err)
			goto stop;
		flownic_ctl_up(fn);
	}
	schedule_work(&fn->config_work);
	return 0;

stop:
	flownic_ctl_quiesce(fn);
	flownic_dev_stop(fn);
fail:
	virtio_reset_device(fn->vdev);
	netif_carrier_off(fn->dev);
	netdev_err(fn->dev, "the device did not restart (%d); it is tried again when the interface is set up\n",
		   err);
	return err;
}

/*
 * The link has come up. If meanwhile the device was reset by somebody else, it has forgotten all that
 * it had been told, and is told again.
 */
void flownic_dev_check(struct flownic_net *fn)
{
	ASSERT_RTNL();
	if (!flownic_ctl_lost(fn))
		return;
	netdev_info(fn->dev, "the device was reset; restarting it\n");
	/* First, so that nobody tells it to change what it does not have. */
	flownic_ctl_quiesce(fn);
	flownic_dev_restart(fn);
}

void flownic_dev_reset_work(struct work_struct *work)
{
	struct flownic_net *fn = container_of(work, struct flownic_net, reset_work);

	rtnl_lock();
	if (fn->dev->reg_state == NETREG_REGISTERED && fn->running)
		flownic_dev_restart(fn);
	rtnl_unlock();
}
