// SPDX-License-Identifier: GPL-2.0
/*
 * ethtool -c/-C: how long the device may hold back interrupts.
 *
 * There is a setting for all queues and one for each. Whoever sets all of them
 * overrides what single ones had, as with virtio's commands RX_SET and TX_SET.
 * A queue that comes into use gets the common setting.
 *
 * The time of a receive queue may be found by others (adaptive-rx): by the
 * device, which is told so, or by the kernel's DIM (flownic_dim.c), if the
 * private flag "dim" is set or the device does not know how.
 *
 * Until somebody sets something the host's values are in force, and asked for.
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

static int send_adaptive(struct flownic_ctl *ctl, u16 vq_index)
{
	struct flownic_adaptive_set data = { .vq_index = cpu_to_le16(vq_index), .on = 1 };

	return flownic_control(ctl, FLOWNIC_CTRL_FLOWNIC, FLOWNIC_ADAPTIVE_SET, &data,
			       sizeof(data));
}

/* Values of a virtqueue as the device has them. */
static int ask_queue(struct flownic_ctl *ctl, u16 vq_index, struct flownic_moderation *moderation)
{
	struct flownic_coal_vq answer;
	struct flownic_call *call;
	int err;

	call = flownic_control_call(ctl, FLOWNIC_CTRL_NOTF_COAL, FLOWNIC_NOTF_COAL_VQ_GET,
				    2 * sizeof(__le16), sizeof(answer));
	if (call) {
		memset(call->data, 0, 2 * sizeof(__le16));
		put_unaligned_le16(vq_index, call->data);
	}
	err = flownic_call_run(call);
	if (!err && call->result_len < sizeof(answer))
		err = -EIO;
	if (!err) {
		memcpy(&answer, call->result, sizeof(answer));
		moderation->frames = le32_to_cpu(answer.coal.max_packets);
		moderation->usecs = le32_to_cpu(answer.coal.max_usecs);
	}
	flownic_call_put(call);
	return err;
}

/* Does the device find the time of a receive queue, and which has it found? */
static bool ask_adaptive(struct flownic_ctl *ctl, unsigned int queue, u32 *usecs)
{
	struct flownic_adaptive answer = {};
	struct flownic_call *call;

	if (!ctl->coalesce.device_adapts)
		return false;
	call = flownic_control_call(ctl, FLOWNIC_CTRL_FLOWNIC, FLOWNIC_ADAPTIVE_GET,
				    sizeof(__le16), sizeof(answer));
	if (call)
		put_unaligned_le16(2 * queue, call->data);
	if (!flownic_call_run(call) && call->result_len >= sizeof(answer))
		memcpy(&answer, call->result, sizeof(answer));
	flownic_call_put(call);
	if (answer.on)
		*usecs = le32_to_cpu(answer.usecs);
	return answer.on;
}

static bool same(const struct flownic_moderation *a, const struct flownic_moderation *b)
{
	return a->usecs == b->usecs && a->frames == b->frames;
}

/* Queues from @from to before @to have the common setting, as the device says, too. */
static void follow(struct flownic_coalesce *coalesce, unsigned int from, unsigned int to)
{
	for (; from < to; from++) {
		coalesce->rx_queue[from] = coalesce->rx;
		coalesce->tx_queue[from] = coalesce->tx;
		coalesce->adapts[from] = coalesce->adaptive;
	}
}

/* Tells DIM which queues it has. */
static void set_dim(struct flownic_ctl *ctl)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;
	unsigned int i;

	for (i = 0; i < ctl->fn->max_pairs; i++)
		flownic_dim_set(&ctl->fn->pairs[i], coalesce->dim && coalesce->adapts[i] &&
						    i < ctl->fn->num_pairs);
}

/* Sets a receive queue whose setting is its own. */
static int apply_queue(struct flownic_ctl *ctl, unsigned int queue)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;
	int err = send_queue(ctl, 2 * queue, &coalesce->rx_queue[queue]);

	if (!err && coalesce->adapts[queue] && !coalesce->dim)
		err = send_adaptive(ctl, 2 * queue);
	return err;
}

/* Sets all queues to the common setting. */
static int apply_all(struct flownic_ctl *ctl)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;
	int err = send_all(ctl, FLOWNIC_NOTF_COAL_RX_SET, &coalesce->rx);

	if (!err && coalesce->adaptive && !coalesce->dim)
		err = send_adaptive(ctl, FLOWNIC_ADAPTIVE_ALL);
	return err ?: send_all(ctl, FLOWNIC_NOTF_COAL_TX_SET, &coalesce->tx);
}

/* Sets all queues: the common setting, and those of single ones that differ. */
static int apply(struct flownic_ctl *ctl)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;
	int err = apply_all(ctl);
	unsigned int i;

	for (i = 0; !err && i < ctl->fn->num_pairs; i++) {
		if (coalesce->adapts[i] != coalesce->adaptive ||
		    !same(&coalesce->rx_queue[i], &coalesce->rx))
			err = apply_queue(ctl, i);
		if (!err && !same(&coalesce->tx_queue[i], &coalesce->tx))
			err = send_queue(ctl, 2 * i + 1, &coalesce->tx_queue[i]);
	}
	return err;
}

int flownic_get_coalesce(struct net_device *dev, struct ethtool_coalesce *ec,
			 struct kernel_ethtool_coalesce *kec, struct netlink_ext_ack *extack)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_coalesce *coalesce;

	if (!ctl || !ctl->coalesce.available)
		return -EOPNOTSUPP;
	coalesce = &ctl->coalesce;
	mutex_lock(&coalesce->lock);
	ec->use_adaptive_rx_coalesce = coalesce->adaptive;
	ec->rx_coalesce_usecs = coalesce->rx.usecs;
	ec->rx_max_coalesced_frames = coalesce->rx.frames;
	ec->tx_coalesce_usecs = coalesce->tx.usecs;
	ec->tx_max_coalesced_frames = coalesce->tx.frames;
	mutex_unlock(&coalesce->lock);
	return 0;
}

int flownic_set_coalesce(struct net_device *dev, struct ethtool_coalesce *ec,
			 struct kernel_ethtool_coalesce *kec, struct netlink_ext_ack *extack)
{
	struct flownic_moderation rx = { ec->rx_coalesce_usecs, ec->rx_max_coalesced_frames };
	struct flownic_moderation tx = { ec->tx_coalesce_usecs, ec->tx_max_coalesced_frames };
	struct flownic_moderation old_rx, old_tx;
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_coalesce *coalesce;
	bool old_adaptive;
	int err;

	if (!ctl || !ctl->coalesce.available)
		return -EOPNOTSUPP;
	coalesce = &ctl->coalesce;
	mutex_lock(&coalesce->lock);
	old_rx = coalesce->rx;
	old_tx = coalesce->tx;
	old_adaptive = coalesce->adaptive;
	coalesce->rx = rx;
	coalesce->tx = tx;
	coalesce->adaptive = ec->use_adaptive_rx_coalesce;
	err = apply_all(ctl);
	if (err) {
		NL_SET_ERR_MSG(extack, "The device refuses these values");
		coalesce->rx = old_rx;
		coalesce->tx = old_tx;
		coalesce->adaptive = old_adaptive;
		apply_all(ctl);
	}
	/* Whichever it is, all queues have it. */
	coalesce->changed = true;
	follow(coalesce, 0, ctl->fn->max_pairs);
	set_dim(ctl);
	mutex_unlock(&coalesce->lock);
	return err;
}

int flownic_get_per_queue_coalesce(struct net_device *dev, u32 queue, struct ethtool_coalesce *ec)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_moderation rx, tx;
	bool adaptive;
	int err;

	if (!ctl || !ctl->coalesce.available)
		return -EOPNOTSUPP;
	if (queue >= ctl->fn->num_pairs)
		return -EINVAL;
	mutex_lock(&ctl->coalesce.lock);
	/* As the device has them: the host may have set others, and who adapts may have changed them. */
	err = ask_queue(ctl, 2 * queue, &rx);
	err = err ?: ask_queue(ctl, 2 * queue + 1, &tx);
	adaptive = ctl->coalesce.dim && ctl->coalesce.adapts[queue];
	adaptive = adaptive || ask_adaptive(ctl, queue, &rx.usecs);
	mutex_unlock(&ctl->coalesce.lock);
	if (err)
		return err;
	ec->use_adaptive_rx_coalesce = adaptive;
	ec->rx_coalesce_usecs = rx.usecs;
	ec->rx_max_coalesced_frames = rx.frames;
	ec->tx_coalesce_usecs = tx.usecs;
	ec->tx_max_coalesced_frames = tx.frames;
	return 0;
}

int flownic_set_per_queue_coalesce(struct net_device *dev, u32 queue, struct ethtool_coalesce *ec)
{
	struct flownic_moderation rx = { ec->rx_coalesce_usecs, ec->rx_max_coalesced_frames };
	struct flownic_moderation tx = { ec->tx_coalesce_usecs, ec->tx_max_coalesced_frames };
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_coalesce *coalesce;
	struct flownic_moderation old;
	bool old_adapts;
	int err;

	if (!ctl || !ctl->coalesce.available)
		return -EOPNOTSUPP;
	if (queue >= ctl->fn->num_pairs)
		return -EINVAL;
	coalesce = &ctl->coalesce;
	mutex_lock(&coalesce->lock);
	old = coalesce->rx_queue[queue];
	old_adapts = coalesce->adapts[queue];
	coalesce->rx_queue[queue] = rx;
	coalesce->adapts[queue] = ec->use_adaptive_rx_coalesce;
	err = apply_queue(ctl, queue);
	err = err ?: send_queue(ctl, 2 * queue + 1, &tx);
	if (err) {
		coalesce->rx_queue[queue] = old;
		coalesce->adapts[queue] = old_adapts;
		apply_queue(ctl, queue);
	} else {
		coalesce->changed = true;
		coalesce->tx_queue[queue] = tx;
	}
	set_dim(ctl);
	mutex_unlock(&coalesce->lock);
	return err;
}

/**
 * flownic_coal_dim - DIM wants another time
 * @ctl: the device
 * @queue: the receive queue
 * @moderation: what DIM wants
 *
 * Context: process, without RTNL.
 */
void flownic_coal_dim(struct flownic_ctl *ctl, unsigned int queue,
		      const struct flownic_moderation *moderation)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;

	mutex_lock(&coalesce->lock);
	/* A queue that has just gone out of use is refused by the device. */
	if (coalesce->dim && coalesce->adapts[queue] &&
	    !send_queue(ctl, 2 * queue, moderation)) {
		coalesce->rx_queue[queue] = *moderation;
		coalesce->dim_changes++;
	}
	mutex_unlock(&coalesce->lock);
}

/**
 * flownic_coal_choose - who finds the time where somebody does
 * @ctl: the device
 * @dim: the kernel, not the device
 *
 * Return: 0 or a negative error.
 */
int flownic_coal_choose(struct flownic_ctl *ctl, bool dim)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;
	int err = 0;

	mutex_lock(&coalesce->lock);
	if (dim != coalesce->dim) {
		coalesce->dim = dim;
		coalesce->changed = true;
		err = apply(ctl);
		set_dim(ctl);
	}
	mutex_unlock(&coalesce->lock);
	return err;
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
	mutex_lock(&coalesce->lock);
	/* The device does the same with queues that are enabled. */
	follow(coalesce, from, to);
	set_dim(ctl);
	mutex_unlock(&coalesce->lock);
}

/* What the host has set, which is in force until this driver sets anything. */
static int learn(struct flownic_ctl *ctl)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;
	u32 usecs;
	int err;

	err = ask_queue(ctl, 0, &coalesce->rx);
	err = err ?: ask_queue(ctl, 1, &coalesce->tx);
	if (err)
		return err;
	coalesce->adaptive = ask_adaptive(ctl, 0, &usecs);
	follow(coalesce, 0, ctl->fn->max_pairs);
	return 0;
}

/**
 * flownic_coal_probe - finds out whether the device has moderation
 * @ctl: the device
 *
 * Return: 0 or -ENOMEM.
 */
int flownic_coal_probe(struct flownic_ctl *ctl)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;
	unsigned int pairs = ctl->fn->max_pairs;

	mutex_init(&coalesce->lock);
	flownic_dim_init(ctl);
	coalesce->rx_queue = kcalloc(pairs, sizeof(*coalesce->rx_queue), GFP_KERNEL);
	coalesce->tx_queue = kcalloc(pairs, sizeof(*coalesce->tx_queue), GFP_KERNEL);
	coalesce->adapts = kcalloc(pairs, sizeof(*coalesce->adapts), GFP_KERNEL);
	if (!coalesce->rx_queue || !coalesce->tx_queue || !coalesce->adapts)
		return -ENOMEM;
	coalesce->device_adapts = ctl->capabilities & FLOWNIC_CAPABLE_ADAPTIVE;
	coalesce->dim = FLOWNIC_HAS_DIM && !coalesce->device_adapts;
	coalesce->available = !learn(ctl);
	return 0;
}

/**
 * flownic_coal_restore - tells a device that has forgotten it
 * @ctl: the device
 */
void flownic_coal_restore(struct flownic_ctl *ctl)
{
	struct flownic_coalesce *coalesce = &ctl->coalesce;
	int err;

	if (!coalesce->available)
		return;
	mutex_lock(&coalesce->lock);
	err = coalesce->changed ? apply(ctl) : learn(ctl);
	set_dim(ctl);
	mutex_unlock(&coalesce->lock);
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
	kfree(ctl->coalesce.adapts);
}
