// SPDX-License-Identifier: GPL-2.0
/*
 * ethtool -S: counters of the programming half, and those that the device keeps.
 */
#include "flownic_ctl.h"

static const char ctl_names[][ETH_GSTRING_LEN] = {
	"commands",
	"command_errors",
	"command_timeouts",
	"flow_rules",
	"arfs_flows",
	"arfs_filters",
	"arfs_staged",
	"arfs_inserted",
	"arfs_moved",
	"arfs_expired",
	"arfs_refused",
	"arfs_full",
	"arfs_busy",
	"arfs_errors",
	"dim_changes",
};

/* Of the device, for each queue pair in use. */
static const char * const rx_names[] = { "notifications", "interrupts", "drops", "drop_overruns" };
static const char * const tx_names[] = { "notifications", "interrupts", "drops", "drop_malformed" };

/* And of each of its queues, receiving and sending; struct flownic_signals. A name has little room. */
static const char * const signal_names[] = {
	"interrupts_unwanted", "interrupts_held", "interrupts_by_time", "interrupts_by_count",
};

#define PAIR_COUNTERS	(ARRAY_SIZE(rx_names) + ARRAY_SIZE(tx_names))
#define PAIR_SIGNALS	(2 * ARRAY_SIZE(signal_names))

static bool device_counts(const struct flownic_ctl *ctl)
{
	u64 need = BIT_ULL(FLOWNIC_STATS_RX_BASIC) | BIT_ULL(FLOWNIC_STATS_TX_BASIC);

	return (ctl->stats_types & need) == need;
}

static bool device_counts_signals(const struct flownic_ctl *ctl)
{
	return ctl->capabilities & FLOWNIC_CAPABLE_SIGNALS;
}

int flownic_ctl_stats_count(struct flownic_net *fn)
{
	unsigned int of_pair = 0;

	if (!fn->ctl)
		return 0;
	if (device_counts(fn->ctl))
		of_pair += PAIR_COUNTERS;
	if (device_counts_signals(fn->ctl))
		of_pair += PAIR_SIGNALS;
	return ARRAY_SIZE(ctl_names) + fn->num_pairs * of_pair;
}

static void put_name(u8 **data, const char *direction, unsigned int queue, const char *name)
{
	snprintf(*data, ETH_GSTRING_LEN, "%s%u_device_%s", direction, queue, name);
	*data += ETH_GSTRING_LEN;
}

void flownic_ctl_stats_strings(struct flownic_net *fn, u8 **data)
{
	unsigned int i, j;

	if (!fn->ctl)
		return;
	memcpy(*data, ctl_names, sizeof(ctl_names));
	*data += sizeof(ctl_names);
	for (i = 0; device_counts(fn->ctl) && i < fn->num_pairs; i++) {
		for (j = 0; j < ARRAY_SIZE(rx_names); j++)
			put_name(data, "rx", i, rx_names[j]);
		for (j = 0; j < ARRAY_SIZE(tx_names); j++)
			put_name(data, "tx", i, tx_names[j]);
	}
	for (i = 0; device_counts_signals(fn->ctl) && i < 2 * fn->num_pairs; i++)
		for (j = 0; j < ARRAY_SIZE(signal_names); j++)
			put_name(data, i % 2 ? "tx" : "rx", i / 2, signal_names[j]);
}

static u64 *put_own(struct flownic_ctl *ctl, u64 *data)
{
	struct flownic_arfs *arfs = &ctl->arfs;

	*data++ = atomic64_read(&ctl->commands);
	*data++ = atomic64_read(&ctl->command_errors);
	*data++ = atomic64_read(&ctl->command_timeouts);
	*data++ = ctl->flows.count;
	spin_lock_bh(&arfs->lock);
	*data++ = arfs->used;
	*data++ = arfs->active;
	*data++ = arfs->stats.staged;
	*data++ = arfs->stats.inserted;
	*data++ = arfs->stats.moved;
	*data++ = arfs->stats.expired;
	*data++ = arfs->stats.refused;
	*data++ = arfs->stats.full;
	*data++ = arfs->stats.busy;
	*data++ = arfs->stats.errors;
	spin_unlock_bh(&arfs->lock);
	*data++ = READ_ONCE(ctl->coalesce.dim_changes);
	return data;
}

/* Both kinds of replies are alike: which counters are wanted decides. */
static u64 *put_reply(u64 *data, const u8 *reply, bool rx)
{
	const struct flownic_stats_rx_basic *r = (const void *)reply;
	const struct flownic_stats_tx_basic *t = (const void *)reply;

	*data++ = get_unaligned_le64(&r->notifications);
	*data++ = get_unaligned_le64(&r->interrupts);
	*data++ = get_unaligned_le64(&r->drops);
	*data++ = rx ? get_unaligned_le64(&r->drop_overruns) :
		       get_unaligned_le64(&t->drop_malformed);
	return data;
}

/*
 * Asks about all queues at once. Counters of a device that does not answer are 0, which they can't
 * be for long if it does.
 */
static u64 *put_queues(struct flownic_ctl *ctl, u64 *data)
{
	u64 *end = data + ctl->fn->num_pairs * PAIR_COUNTERS;
	const u32 reply = sizeof(struct flownic_stats_rx_basic);
	unsigned int i, queues = 2 * ctl->fn->num_pairs;
	struct flownic_stats_get *get;
	struct flownic_call *call;

	static_assert(sizeof(struct flownic_stats_rx_basic) ==
		      sizeof(struct flownic_stats_tx_basic));

	memset(data, 0, ctl->fn->num_pairs * PAIR_COUNTERS * sizeof(*data));
	call = flownic_control_call(ctl, FLOWNIC_CTRL_STATS, FLOWNIC_STATS_GET,
				    queues * sizeof(*get), queues * reply);
	if (!call)
		return end;
	get = call->data;
	for (i = 0; i < queues; i++) {
		u64 type = i % 2 ? FLOWNIC_STATS_TX_BASIC : FLOWNIC_STATS_RX_BASIC;

		put_unaligned_le16(i, &get[i].vq_index);
		put_unaligned_le64(BIT_ULL(type), &get[i].types);
	}
	if (!flownic_call_run(call) && call->result_len >= queues * reply)
		for (i = 0; i < queues; i++)
			data = put_reply(data, (u8 *)call->result + i * reply, i % 2 == 0);
	flownic_call_put(call);
	return end;
}

/* As put_queues(). */
static void put_signals(struct flownic_ctl *ctl, u64 *data)
{
	unsigned int i, queues = 2 * ctl->fn->num_pairs;
	struct flownic_signals_get get = { .count = cpu_to_le16(queues) };
	unsigned int counters = queues * ARRAY_SIZE(signal_names);
	struct flownic_call *call;

	static_assert(sizeof(struct flownic_signals) == ARRAY_SIZE(signal_names) * sizeof(__le64));

	memset(data, 0, counters * sizeof(*data));
	call = flownic_control_call(ctl, FLOWNIC_CTRL_FLOWNIC, FLOWNIC_SIGNALS_GET, sizeof(get),
				    counters * sizeof(__le64));
	if (!call)
		return;
	memcpy(call->data, &get, sizeof(get));
	if (!flownic_call_run(call) && call->result_len >= counters * sizeof(__le64))
		for (i = 0; i < counters; i++)
			data[i] = get_unaligned_le64((u8 *)call->result + i * sizeof(__le64));
	flownic_call_put(call);
}

void flownic_ctl_stats(struct flownic_net *fn, u64 *data)
{
	struct flownic_ctl *ctl = fn->ctl;

	if (!ctl)
		return;
	data = put_own(ctl, data);
	if (device_counts(ctl))
		data = put_queues(ctl, data);
	if (device_counts_signals(ctl))
		put_signals(ctl, data);
}
