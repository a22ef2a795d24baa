// SPDX-License-Identifier: GPL-2.0
/*
 * ethtool -c/-C: how long the device may hold back interrupts.
 *
 * There is a setting for all queues and one for each. Whoever sets all of them
 * overrides what single ones had, as with virtio's commands RX_SET and TX_SET.
 * A queue that comes into use gets the common setting.
 */
#include <linux/slab.h>

#include "flownic_ctl.h"

static void put_coal(struct flownic_coal *coal, const struct flownic_moderation *moderation)
{
	coal->max_packets = cpu_to_le32(moderation->frames);
	coal->max_usecs = cpu_to_le32(moderation->usecs);
}

static int send_all(struct flownic_ctl *ctl, u8 command,
		    const struct flownic_moderation *moderation)
{
	struct flownic_coal coal;

	put_coal(&coal, moderation);
	return flownic_control(ctl, FLOWNIC_CTRL_NOTF_COAL, command, &coal, sizeof(coal));
}

static int send_queue(struct flownic_ctl *ctl, u16 vq_index,
		      const struct flownic_moderation *moderation)
{
	struct flownic_coal_vq data = { .vq_index = cpu_to_le16(vq_index) };

	put_coal(&data.coal, moderation);
	return flownic_control(ctl, FLOWNIC_CTRL_NOTF_COAL, FLOWNIC_NOTF_COAL_VQ_SET, &data,
			       sizeof(data));
}

static bool same(const struct flownic_moderation *a, const struct flownic_moderation *b)
{
	return a->usecs == b->usecs && a->frames == b->frames;
}

static void fill(struct flownic_moderation *queues, unsigned int from, unsigned int to,
		 const struct flownic_moderation *moderation)
{
	for (; from < to; from++)
		queues[from] = *moderation;
}

int flownic_get_coalesce(struct net_device *dev, struct ethtool_coalesce *ec,
			 struct kernel_ethtool_coalesce *kec, struct netlink_ext_ack *extack)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);

	if (!ctl || !ctl->coalesce.available)
		return -EOPNOTSUPP;
	ec->rx_coalesce_usecs = ctl->coalesce.rx.usecs;
	ec->rx_max_coalesced_frames = ctl->coalesce.rx.frames;
	ec->tx_coalesce_usecs = ctl->coalesce.tx.usecs;
	ec->tx_max_coalesced_frames = ctl->coalesce.tx.frames;
	return 0;
}

int flownic_set_coalesce(struct net_device *dev, struct ethtool_coalesce *ec,
			 struct kernel_ethtool_coalesce *kec, struct netlink_ext_ack *extack)
{
	struct flownic_moderation rx = { ec->rx_coalesce_usecs, ec->rx_max_coalesced_frames };
	struct flownic_moderation tx = { ec->tx_coalesce_usecs, ec->tx_max_coalesced_frames };
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_coalesce *coalesce;
	int err;

	if (!ctl || !ctl->coalesce.available)
		return -EOPNOTSUPP;
	coalesce = &ctl->coalesce;
	err = send_all(ctl, FLOWNIC_NOTF_COAL_RX_SET, &rx);
	if (err) {
		NL_SET_ERR_MSG(extack, "The device refuses these values for receiving");
		return err;
	}
	err = send_all(ctl, FLOWNIC_NOTF_COAL_TX_SET, &tx);
	if (err) {
		NL_SET_ERR_MSG(extack, "The device refuses these values for sending");
		send_all(ctl, FLOWNIC_NOTF_COAL_RX_SET, &coalesce->rx);
		rx = coalesce->rx;
	} else {
		coalesce->tx = tx;
		fill(coalesce->tx_queue, 0, ctl->fn->max_pairs, &tx);
	}
	coalesce->rx = rx;
	fill(coalesce->rx_queue, 0, ctl->fn->max_pairs, &rx);
	return err;
}

int flownic_get_per_queue_coalesce(struct net_device *dev, u32 queue, struct ethtool_coalesce *ec)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);

	if (!ctl || !ctl->coalesce.available)
		return -EOPNOTSUPP;
	if (queue >= ctl->fn->num_pairs)
		return -EINVAL;
	ec->rx_coalesce_usecs = ctl->coalesce.rx_queue[queue].usecs;
	ec->rx_max_coalesced_frames = ctl->coalesce.rx_queue[queue].frames;
	ec->tx_coalesce_usecs = ctl->coalesce.tx_queue[queue].usecs;
	ec->tx_max_coalesced_frames = ctl->coalesce.tx_queue[queue].frames;
	return 0;
}

int flownic_set_per_queue_coalesce(struct net_device *dev, u32 queue, struct ethtool_coalesce *ec)
{
	struct flownic_moderation rx = { ec->rx_coalesce_usecs, ec->rx_max_coalesced_frames };
	struct flownic_moderation tx = { ec->tx_coalesce_usecs, ec->tx_max_coalesced_frames };
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_coalesce *coalesce;
	int err;

	if (!ctl || !ctl->coalesce.available)
		return -EOPNOTSUPP;
	if (queue >= ctl->fn->num_pairs)
		return -EINVAL;
	coalesce = &ctl->coalesce;
	err = send_queue(ctl, 2 * queue, &rx);
	if (err)
		return err;
	err = send_queue(ctl, 2 * queue + 1, &tx);
	if (err) {
		send_queue(ctl, 2 * queue, &coalesce->rx_queue[queue]);
		return err;
	}
	coalesce->rx_queue[queue] = rx;
	coalesce->tx_queue[queue] = tx;
	return 0;
}

/**
 * flownic_coal_set_pairs - the number of queues has changed
 * @ctl: the device
 * @from: it was
 * @to: it is
 */
void flownic_coal_set_pairs(struct flownic_ctl *ctl, unsigned int from, unsigned int to)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;

	if (!coalesce->available)
		return;
	/* The device does the same with queues that are enabled. */
	fill(coalesce->rx_queue, from, to, &coalesce->rx);
	fill(coalesce->tx_queue, from, to, &coalesce->tx);
}

/**
 * flownic_coal_probe - starts without moderation, if the device has it
 * @ctl: the device
 *
 * Return: 0 or -ENOMEM.
 */
int flownic_coal_probe(struct flownic_ctl *ctl)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;

	coalesce->rx_queue = kcalloc(ctl->fn->max_pairs, sizeof(*coalesce->rx_queue), GFP_KERNEL);
	coalesce->tx_queue = kcalloc(ctl->fn->max_pairs, sizeof(*coalesce->tx_queue), GFP_KERNEL);
	if (!coalesce->rx_queue || !coalesce->tx_queue)
		return -ENOMEM;
	coalesce->available = !send_all(ctl, FLOWNIC_NOTF_COAL_RX_SET, &coalesce->rx) &&
			      !send_all(ctl, FLOWNIC_NOTF_COAL_TX_SET, &coalesce->tx);
	return 0;
}

/**
 * flownic_coal_restore - tells a device that has forgotten it
 * @ctl: the device
 */
void flownic_coal_restore(struct flownic_ctl *ctl)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;
	unsigned int i;
	int err;

	if (!coalesce->available)
		return;
	err = send_all(ctl, FLOWNIC_NOTF_COAL_RX_SET, &coalesce->rx);
	err = err ?: send_all(ctl, FLOWNIC_NOTF_COAL_TX_SET, &coalesce->tx);
	for (i = 0; i < ctl->fn->num_pairs; i++) {
		if (!err && !same(&coalesce->rx_queue[i], &coalesce->rx))
			err = send_queue(ctl, 2 * i, &coalesce->rx_queue[i]);
		if (!err && !same(&coalesce->tx_queue[i], &coalesce->tx))
			err = send_queue(ctl, 2 * i + 1, &coalesce->tx_queue[i]);
	}
	if (err)
		netdev_warn(ctl->fn->dev, "Interrupt moderation could not be restored: error %d\n",
			    err);
}

/**
 * flownic_coal_free - ends it
 * @ctl: the device
 */
void flownic_coal_free(struct flownic_ctl *ctl)
{
	kfree(ctl->coalesce.rx_queue);
	kfree(ctl->coalesce.tx_queue);
}
