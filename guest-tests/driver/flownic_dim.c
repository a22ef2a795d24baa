// SPDX-License-Identifier: GPL-2.0
/*
 * Moderation that the kernel adapts: DIM, for receive queues.
 *
 * NAPI takes a sample after each poll that has emptied the queue. Once in 64 interrupts DIM
 * compares what has come with what came before, and may want another time: a work item gives it
 * to the device, since NAPI can't sleep.
 *
 * DIM waits for the work item to be done before it measures again. So that is said in any case,
 * whatever has become of the command: else a queue would keep one time for ever.
 */
#include "flownic_ctl.h"

#define FLOWNIC_PRIV_DIM	BIT(0)

#if FLOWNIC_HAS_DIM

static void flownic_dim_work(struct work_struct *work)
{
	struct dim *dim = container_of(work, struct dim, work);
	struct flownic_rx *rx = container_of(dim, struct flownic_rx, dim);
	struct flownic_pair *pair = container_of(rx, struct flownic_pair, rx);
	struct dim_cq_moder moder = net_dim_get_rx_moderation(dim->mode, dim->profile_ix);
	struct flownic_moderation moderation = { moder.usec, moder.pkts };

	flownic_coal_dim(rx->dim_ctl, pair->index, &moderation);
	dim->state = DIM_START_MEASURE;
}

/**
 * flownic_dim_sample - a poll has emptied the queue
 * @pair: its pair
 *
 * Context: NAPI, before interrupts are asked for again.
 */
void flownic_dim_sample(struct flownic_pair *pair)
{
	struct flownic_rx *rx = &pair->rx;
	struct dim_sample sample = {};

	if (!READ_ONCE(rx->dim_on))
		return;
	dim_update_sample(READ_ONCE(rx->interrupts), u64_stats_read(&rx->stats.packets),
			  u64_stats_read(&rx->stats.bytes), &sample);
	flownic_net_dim(&rx->dim, &sample);
}

/**
 * flownic_dim_set - DIM finds a queue's time, or does so no more
 * @pair: the queue's pair
 * @on: whether it does; it begins where it was
 */
void flownic_dim_set(struct flownic_pair *pair, bool on)
{
	WRITE_ONCE(pair->rx.dim_on, on);
	if (on)
		schedule_work(&pair->rx.dim.work);
}

/**
 * flownic_dim_init - prepares all queues; DIM is off
 * @ctl: the device
 */
void flownic_dim_init(struct flownic_ctl *ctl)
{
	unsigned int i;

	for (i = 0; i < ctl->fn->max_pairs; i++) {
		struct flownic_rx *rx = &ctl->fn->pairs[i].rx;

		rx->dim_ctl = ctl;
		INIT_WORK(&rx->dim.work, flownic_dim_work);
		rx->dim.mode = DIM_CQ_PERIOD_MODE_START_FROM_EQE;
	}
}

/**
 * flownic_dim_free - ends it; NAPI is disabled
 * @ctl: the device
 */
void flownic_dim_free(struct flownic_ctl *ctl)
{
	unsigned int i;

	for (i = 0; i < ctl->fn->max_pairs; i++) {
		flownic_dim_set(&ctl->fn->pairs[i], false);
		cancel_work_sync(&ctl->fn->pairs[i].rx.dim.work);
	}
}

#else

void flownic_dim_sample(struct flownic_pair *pair)
{
}

void flownic_dim_set(struct flownic_pair *pair, bool on)
{
}

void flownic_dim_init(struct flownic_ctl *ctl)
{
}

void flownic_dim_free(struct flownic_ctl *ctl)
{
}

#endif

/* `ethtool --set-priv-flags`: who finds the time where somebody does. */
static const char flag_names[][ETH_GSTRING_LEN] = { "dim" };

static bool has_flags(const struct flownic_net *fn)
{
	return fn->ctl && fn->ctl->coalesce.available;
}

int flownic_flags_count(const struct flownic_net *fn)
{
	return has_flags(fn) ? ARRAY_SIZE(flag_names) : 0;
}

void flownic_flags_strings(const struct flownic_net *fn, u8 *data)
{
	if (has_flags(fn))
		memcpy(data, flag_names, sizeof(flag_names));
}

u32 flownic_get_priv_flags(struct net_device *dev)
{
	const struct flownic_net *fn = netdev_priv(dev);

	return has_flags(fn) && fn->ctl->coalesce.dim ? FLOWNIC_PRIV_DIM : 0;
}

int flownic_set_priv_flags(struct net_device *dev, u32 flags)
{
	const struct flownic_net *fn = netdev_priv(dev);
	bool dim = flags & FLOWNIC_PRIV_DIM;

	if (!has_flags(fn) || (dim ? !FLOWNIC_HAS_DIM : !fn->ctl->coalesce.device_adapts))
		return -EOPNOTSUPP;
	return flownic_coal_choose(fn->ctl, dim);
}
