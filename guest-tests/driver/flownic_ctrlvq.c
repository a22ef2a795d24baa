// SPDX-License-Identifier: GPL-2.0
/*
 * QEMU's control queue: number of queue pairs, MAC address, receive mode, VLANs.
 *
 * QEMU keeps this queue to itself and tells the device only of the queue pairs. All else that the
 * device is told goes in band (flownic_cmd.c).
 *
 * The queue is, under its mutex,
 *
 *	absent	the device has none, or is stopped: commands get -EOPNOTSUPP
 *	idle	a command may be given
 *	stuck	one was not answered in time. Its memory still is the device's, so that nothing
 *		can be asked any more until a restart: commands get -EIO
 */

#include <linux/if_vlan.h>

#include "flownic_net.h"

#define FLOWNIC_CTRL_TIMEOUT	(5 * HZ)
/* Addresses of each kind in the filter table; with more of them the NIC takes all. */
#define FLOWNIC_CTRL_ADDRESSES	64

/* A command as it is in memory: what the device reads, and the byte that it writes. */
struct flownic_ctrl_buf {
	struct virtio_net_ctrl_hdr hdr;
	union {
		struct virtio_net_ctrl_mq mq;
		u8 mac[ETH_ALEN];
		u8 on;
		__virtio16 vlan;
		/* Two tables, each a count and addresses. */
		u8 table[2 * (sizeof(__virtio32) + FLOWNIC_CTRL_ADDRESSES * ETH_ALEN)];
	} data;
	virtio_net_ctrl_ack ack ____cacheline_aligned_in_smp;
};

void flownic_ctrl_callback(struct virtqueue *vq)
{
	struct flownic_net *fn = vq->vdev->priv;

	complete(&fn->ctrl.done);
}

/* Gives the command in fn->ctrl.buf, with @len bytes of data. The mutex is held. */
static int flownic_ctrl_send(struct flownic_net *fn, u8 class, u8 cmd, unsigned int len)
{
	struct flownic_ctrl *ctrl = &fn->ctrl;
	struct flownic_ctrl_buf *buf = ctrl->buf;
	struct scatterlist out[2], in, *sgs[] = { out, &in };
	unsigned int used;
	int err;

	if (!ctrl->vq)
		return -EOPNOTSUPP;
	if (ctrl->stuck)
		return -EIO;
	buf->hdr.class = class;
	buf->hdr.cmd = cmd;
	buf->ack = VIRTIO_NET_ERR;
	sg_init_table(out, len ? 2 : 1);
	sg_set_buf(&out[0], &buf->hdr, sizeof(buf->hdr));
	if (len)
		sg_set_buf(&out[1], &buf->data, len);
	sg_init_one(&in, &buf->ack, sizeof(buf->ack));

	reinit_completion(&ctrl->done);
	err = virtqueue_add_sgs(ctrl->vq, sgs, 1, 1, buf, GFP_KERNEL);
	if (err)
		return err;
	virtqueue_kick(ctrl->vq);
	while (!virtqueue_get_buf(ctrl->vq, &used)) {
		if (virtqueue_is_broken(ctrl->vq) ||
		    !wait_for_completion_timeout(&ctrl->done, FLOWNIC_CTRL_TIMEOUT)) {
			ctrl->stuck = true;
			dev_err(&fn->vdev->dev, "control command %u.%u was not answered\n", class, cmd);
			return -ETIMEDOUT;
		}
	}
	return buf->ack == VIRTIO_NET_OK ? 0 : -EIO;
}

int flownic_ctrl_set_pairs(struct flownic_net *fn, unsigned int pairs)
{
	struct flownic_ctrl_buf *buf = fn->ctrl.buf;
	int err;

	if (!virtio_has_feature(fn->vdev, VIRTIO_NET_F_MQ))
		return pairs == 1 ? 0 : -EOPNOTSUPP;
	mutex_lock(&fn->ctrl.lock);
	buf->data.mq.virtqueue_pairs = cpu_to_virtio16(fn->vdev, pairs);
	err = flownic_ctrl_send(fn, VIRTIO_NET_CTRL_MQ, VIRTIO_NET_CTRL_MQ_VQ_PAIRS_SET,
				sizeof(buf->data.mq));
	mutex_unlock(&fn->ctrl.lock);
	return err;
}

int flownic_ctrl_set_mac(struct flownic_net *fn, const u8 *mac)
{
	struct flownic_ctrl_buf *buf = fn->ctrl.buf;
	int err;

	if (!virtio_has_feature(fn->vdev, VIRTIO_NET_F_CTRL_MAC_ADDR))
		return -EOPNOTSUPP;
	mutex_lock(&fn->ctrl.lock);
	ether_addr_copy(buf->data.mac, mac);
	err = flownic_ctrl_send(fn, VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_ADDR_SET, ETH_ALEN);
	mutex_unlock(&fn->ctrl.lock);
	return err;
}

static int flownic_ctrl_send_vlan(struct flownic_net *fn, u16 id, bool add)
{
	struct flownic_ctrl_buf *buf = fn->ctrl.buf;

	buf->data.vlan = cpu_to_virtio16(fn->vdev, id);
	return flownic_ctrl_send(fn, VIRTIO_NET_CTRL_VLAN,
				 add ? VIRTIO_NET_CTRL_VLAN_ADD : VIRTIO_NET_CTRL_VLAN_DEL,
				 sizeof(buf->data.vlan));
}

int flownic_ctrl_vlan(struct flownic_net *fn, u16 id, bool add)
{
	int err = 0;

	mutex_lock(&fn->ctrl.lock);
	__assign_bit(id, fn->ctrl.vlans, add);
	/* A stopped device is told when it starts. */
	if (fn->ctrl.vq)
		err = flownic_ctrl_send_vlan(fn, id, add);
	mutex_unlock(&fn->ctrl.lock);
	return err;
}

int flownic_ctrl_announced(struct flownic_net *fn)
{
	int err;

	mutex_lock(&fn->ctrl.lock);
	err = flownic_ctrl_send(fn, VIRTIO_NET_CTRL_ANNOUNCE, VIRTIO_NET_CTRL_ANNOUNCE_ACK, 0);
	mutex_unlock(&fn->ctrl.lock);
	return err;
}

static int flownic_ctrl_switch(struct flownic_net *fn, u8 cmd, bool on)
{
	struct flownic_ctrl_buf *buf = fn->ctrl.buf;

	buf->data.on = on;
	return flownic_ctrl_send(fn, VIRTIO_NET_CTRL_RX, cmd, sizeof(buf->data.on));
}

/* Appends a table of addresses; an empty one if there are too many. Returns where it ends. */
static u8 *flownic_ctrl_table(struct flownic_net *fn, u8 *at, struct netdev_hw_addr_list *list)
{
	__virtio32 *count = (__virtio32 *)at;
	struct netdev_hw_addr *addr;
	unsigned int n = 0;

	at += sizeof(*count);
	if (netdev_hw_addr_list_count(list) <= FLOWNIC_CTRL_ADDRESSES) {
		netdev_hw_addr_list_for_each(addr, list) {
			ether_addr_copy(at, addr->addr);
			at += ETH_ALEN;
			n++;
		}
	}
	put_unaligned(cpu_to_virtio32(fn->vdev, n), count);
	return at;
}

static void flownic_ctrl_rx_mode(struct flownic_net *fn)
{
	struct flownic_ctrl_buf *buf = fn->ctrl.buf;
	struct net_device *dev = fn->dev;
	bool promisc, allmulti;
	unsigned int len;
	u8 *end;
	int err;

	if (!fn->ctrl.vq || !virtio_has_feature(fn->vdev, VIRTIO_NET_F_CTRL_RX))
		return;
	netif_addr_lock_bh(dev);
	promisc = dev->flags & IFF_PROMISC || netdev_uc_count(dev) > FLOWNIC_CTRL_ADDRESSES;
	allmulti = dev->flags & IFF_ALLMULTI || netdev_mc_count(dev) > FLOWNIC_CTRL_ADDRESSES;
	end = flownic_ctrl_table(fn, buf->data.table, &dev->uc);
	end = flownic_ctrl_table(fn, end, &dev->mc);
	netif_addr_unlock_bh(dev);

	len = end - buf->data.table;
	err = flownic_ctrl_send(fn, VIRTIO_NET_CTRL_MAC, VIRTIO_NET_CTRL_MAC_TABLE_SET, len);
	if (!err)
		err = flownic_ctrl_switch(fn, VIRTIO_NET_CTRL_RX_PROMISC, promisc);
	if (!err)
		err = flownic_ctrl_switch(fn, VIRTIO_NET_CTRL_RX_ALLMULTI, allmulti);
	if (err)
		netdev_warn(dev, "the device did not take the receive mode (%d)\n", err);
}

static void flownic_ctrl_rx_mode_work(struct work_struct *work)
{
	struct flownic_net *fn = container_of(work, struct flownic_net, ctrl.rx_mode);

	mutex_lock(&fn->ctrl.lock);
	flownic_ctrl_rx_mode(fn);
	mutex_unlock(&fn->ctrl.lock);
}

/* Says everything to a device that has just started. What it refuses is reported, and no more. */
void flownic_ctrl_restore(struct flownic_net *fn)
{
	unsigned int id;
	int err;

	err = flownic_ctrl_set_pairs(fn, fn->num_pairs);
	if (err)
		dev_warn(&fn->vdev->dev, "%u queue pairs were refused (%d)\n", fn->num_pairs, err);
	/* Only an address that is not the device's own has to be said. */
	if (fn->dev->addr_assign_type != NET_ADDR_PERM)
		flownic_ctrl_set_mac(fn, fn->dev->dev_addr);
	mutex_lock(&fn->ctrl.lock);
	for_each_set_bit(id, fn->ctrl.vlans, VLAN_N_VID)
		flownic_ctrl_send_vlan(fn, id, true);
	flownic_ctrl_rx_mode(fn);
	mutex_unlock(&fn->ctrl.lock);
}

void flownic_ctrl_start(struct flownic_net *fn, struct virtqueue *vq)
{
	mutex_lock(&fn->ctrl.lock);
	fn->ctrl.vq = vq;
	fn->ctrl.stuck = false;
	mutex_unlock(&fn->ctrl.lock);
}

/* Before the device stops. Takes as long as a command that is under way. */
void flownic_ctrl_stop(struct flownic_net *fn)
{
	mutex_lock(&fn->ctrl.lock);
	fn->ctrl.vq = NULL;
	mutex_unlock(&fn->ctrl.lock);
}

int flownic_ctrl_init(struct flownic_net *fn)
{
	struct flownic_ctrl *ctrl = &fn->ctrl;

	mutex_init(&ctrl->lock);
	init_completion(&ctrl->done);
	INIT_WORK(&ctrl->rx_mode, flownic_ctrl_rx_mode_work);
	ctrl->buf = kzalloc(sizeof(struct flownic_ctrl_buf), GFP_KERNEL);
	return ctrl->buf ? 0 : -ENOMEM;
}

/* The interface is gone, so nobody asks for a receive mode any more. */
void flownic_ctrl_free(struct flownic_net *fn)
{
	cancel_work_sync(&fn->ctrl.rx_mode);
	kfree(fn->ctrl.buf);
}
