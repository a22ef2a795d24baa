// SPDX-License-Identifier: GPL-2.0
/*
 * The programming half as a whole: found, told again after a restart, stopped.
 *
 * What is called when is said in flownic_net.h. Order matters in a few places:
 * rules refer to classifiers, groups and RSS contexts, so they come after those;
 * and accelerated RFS, which works by itself, is the first to stop and the last
 * to start.
 */
#include <linux/slab.h>

#include "flownic_ctl.h"

/* Asks the device who it is. Other devices, or a host that does not allow it, do not answer. */
static int identify(struct flownic_ctl *ctl)
{
	struct flownic_identity *identity = &ctl->identity;
	struct flownic_call *call;
	int err;

	call = flownic_control_call(ctl, FLOWNIC_CTRL_FLOWNIC, FLOWNIC_IDENTIFY, 0,
				    sizeof(*identity));
	err = flownic_call_run(call);
	if (!err && call->result_len < sizeof(*identity))
		err = -EIO;
	if (!err)
		memcpy(identity, call->result, sizeof(*identity));
	flownic_call_put(call);
	if (err)
		return err;
	if (le32_to_cpu(identity->abi) != FLOWNIC_ABI_VERSION)
		return -EPROTONOSUPPORT;
	ctl->capabilities = le32_to_cpu(identity->capabilities);
	return 0;
}

static int reset(struct flownic_ctl *ctl)
{
	return flownic_control(ctl, FLOWNIC_CTRL_FLOWNIC, FLOWNIC_RESET, NULL, 0);
}

/* Which statistics the device keeps; none is fine. */
static void query_stats(struct flownic_ctl *ctl)
{
	struct flownic_call *call;

	call = flownic_control_call(ctl, FLOWNIC_CTRL_STATS, FLOWNIC_STATS_QUERY, 0,
				    sizeof(struct flownic_stats_query));
	if (!flownic_call_run(call) && call->result_len >= sizeof(__le64))
		ctl->stats_types = get_unaligned_le64(call->result);
	flownic_call_put(call);
}

static void free_all(struct flownic_ctl *ctl)
{
	flownic_arfs_free(ctl);
	flownic_coal_free(ctl);
	flownic_flow_free(ctl);
	flownic_rss_free(ctl);
	flownic_objects_free(ctl);
	kfree(ctl);
}

static int probe_all(struct flownic_ctl *ctl)
{
	int err;

	err = reset(ctl);
	err = err ?: flownic_rss_probe(ctl);
	err = err ?: flownic_objects_probe(ctl);
	err = err ?: flownic_flow_probe(ctl);
	err = err ?: flownic_arfs_probe(ctl);
	err = err ?: flownic_coal_probe(ctl);
	return err;
}

int flownic_ctl_probe(struct flownic_net *fn)
{
	struct device *parent = &fn->vdev->dev;
	struct net_device *dev = fn->dev;
	struct flownic_ctl *ctl;
	int err;

	ctl = kzalloc_obj(*ctl);
	if (!ctl)
		return -ENOMEM;
	ctl->fn = fn;
	ctl->pairs = fn->num_pairs;
	INIT_LIST_HEAD(&ctl->objects.classifiers);
	err = identify(ctl);
	if (err) {
		dev_info(parent, "The device takes no commands in band (%d): no RSS, flow rules, moderation\n",
			 err);
		kfree(ctl);
		return 0;
	}
	err = probe_all(ctl);
	if (err) {
		dev_err(parent, "The device could not be set up: error %d\n", err);
		flownic_arfs_device_gone(ctl);
		reset(ctl);
		free_all(ctl);
		return err == -ENOMEM ? err : 0;
	}
	query_stats(ctl);
	dev_info(parent, "flownic %.*s: %u flow rules, %u RSS contexts\n",
		 (int)sizeof(ctl->identity.version), ctl->identity.version,
		 ctl->objects.limits.rules, ctl->max_contexts);

	if (ctl->objects.available) {
		dev->hw_features |= NETIF_F_NTUPLE;
		dev->features |= NETIF_F_NTUPLE;
		flownic_arfs_enable(ctl, true);
	}
	if (ctl->capabilities & FLOWNIC_CAPABLE_HASH_SET && !flownic_rss_set_hash(ctl, true)) {
		dev->hw_features |= NETIF_F_RXHASH;
		dev->features |= NETIF_F_RXHASH;
	}
	fn->ctl = ctl;
	return 0;
}

void flownic_ctl_remove(struct flownic_net *fn)
{
	struct flownic_ctl *ctl = fn->ctl;

	if (!ctl)
		return;
	fn->ctl = NULL;
	flownic_arfs_device_gone(ctl);
	flownic_dim_free(ctl);
	reset(ctl);
	free_all(ctl);
}

void flownic_ctl_quiesce(struct flownic_net *fn)
{
	if (fn->ctl)
		flownic_arfs_device_gone(fn->ctl);
}

bool flownic_ctl_lost(struct flownic_net *fn)
{
	return fn->ctl && fn->ctl->objects.available && !flownic_objects_present(fn->ctl);
}

void flownic_ctl_restore(struct flownic_net *fn)
{
	struct flownic_ctl *ctl = fn->ctl;
	int err;

	if (!ctl)
		return;
	/* A restarted device has forgotten; one that was not quite restarted is told to. */
	err = reset(ctl);
	if (err) {
		netdev_err(fn->dev, "The device takes no commands any more: error %d\n", err);
		return;
	}
	flownic_rss_restore(ctl);
	if (ctl->objects.available) {
		err = flownic_objects_restore(ctl);
		if (err)
			netdev_err(fn->dev, "The flow table could not be restored: error %d\n",
				   err);
		flownic_flow_restore(ctl);
	}
	flownic_coal_restore(ctl);
}

int flownic_ctl_check_pairs(struct flownic_net *fn, unsigned int pairs)
{
	struct flownic_ctl *ctl = fn->ctl;
	int err;

	if (!ctl)
		return 0;
	err = flownic_rss_check_pairs(ctl, pairs);
	return err ?: flownic_flow_check_pairs(ctl, pairs);
}

void flownic_ctl_set_pairs(struct flownic_net *fn, unsigned int pairs)
{
	struct flownic_ctl *ctl = fn->ctl;

	if (!ctl)
		return;
	flownic_rss_set_pairs(ctl, pairs);
	flownic_arfs_set_pairs(ctl, pairs);
	flownic_coal_set_pairs(ctl, ctl->pairs, pairs);
	ctl->pairs = pairs;
}

int flownic_ctl_set_features(struct flownic_net *fn, netdev_features_t wanted,
			     netdev_features_t changed)
{
	struct flownic_ctl *ctl = fn->ctl;
	int err;

	if (!ctl)
		return 0;
	if (changed & NETIF_F_RXHASH) {
		err = flownic_rss_set_hash(ctl, wanted & NETIF_F_RXHASH);
		if (err)
			return err;
	}
	if (changed & NETIF_F_NTUPLE) {
		flownic_arfs_enable(ctl, wanted & NETIF_F_NTUPLE);
		if (!(wanted & NETIF_F_NTUPLE))
			flownic_flow_flush(ctl);
	}
	return 0;
}

void flownic_ctl_up(struct flownic_net *fn)
{
	if (fn->ctl)
		flownic_arfs_run(fn->ctl, true);
}

void flownic_ctl_down(struct flownic_net *fn)
{
	if (fn->ctl)
		flownic_arfs_run(fn->ctl, false);
}
