// SPDX-License-Identifier: GPL-2.0
/*
 * ethtool -n/-N: people's flow rules.
 *
 * A rule has a location, and of rules that match the one at the lowest location
 * wins. Locations are the rules' ids at the device, which orders them in the
 * same way.
 *
 * States of a location:
 *
 *	empty		table[location] is NULL; the device has no such rule
 *	present		the rule is here and at the device
 *	lost		the rule is here only: the device could not take it back
 *			after a restart. It is tried again at the next one, and
 *			may be replaced or deleted like any other.
 *
 * All of it is under RTNL. A rule is put together whole, with its classifier,
 * before anything of the device's table changes; what fails then leaves the
 * table as it was. A rule whose action alone changes is changed in one step,
 * if the device can.
 *
 * Who adds a rule without a location is told an id. An equal rule that is added
 * later takes the first one's place and id, so that two who need not know of
 * each other have the same id to delete. The first one to do so deletes the
 * rule; the others are not told that it does not exist.
 *
 * Rules outlive ifdown and restarts of the device, and end with `ntuple off`.
 */
#include <linux/slab.h>

#include "flownic_ctl.h"

/* So many rules, or a quarter of what the device takes; the rest is for accelerated RFS. */
#define USER_RULES_MAX	2048

/**
 * struct flownic_flow - a rule
 * @fs: as the user has said it
 * @context: RSS context, if @fs has FLOW_RSS
 * @match: what it matches
 * @target: what it does
 * @classifier: with the masks of @match
 * @present: the device has it
 */
struct flownic_flow {
	struct ethtool_rx_flow_spec fs;
	u32 context;
	struct flownic_match match;
	struct flownic_target target;
	struct flownic_classifier *classifier;
	bool present;
};

/* Works out what a rule does. Where it fails, nothing has happened yet. */
static int parse_target(struct flownic_ctl *ctl, struct flownic_flow *flow)
{
	u64 cookie = flow->fs.ring_cookie;
	struct flownic_target *target = &flow->target;
	unsigned int last;

	if (cookie == RX_CLS_FLOW_WAKE)
		return -EOPNOTSUPP;
	if (cookie == RX_CLS_FLOW_DISC) {
		if (flow->fs.flow_type & FLOW_RSS)
			return -EINVAL;
		target->action = FLOWNIC_ACTION_DROP;
	} else {
		if (ethtool_get_flow_spec_ring_vf(cookie))
			return -EINVAL;
		last = ethtool_get_flow_spec_ring(cookie);
		if (last >= ctl->fn->num_pairs)
			return -EINVAL;
		target->queue = last;
		target->action = FLOWNIC_ACTION_DIRECT_RX_VQ;
		if (flow->fs.flow_type & FLOW_RSS) {
			const struct flownic_rss *rss = flownic_rss_of(ctl, flow->context);

			if (!rss || last + flownic_rss_max_queue(rss) >= ctl->fn->num_pairs)
				return -EINVAL;
			target->action = FLOWNIC_ACTION_RSS_CONTEXT;
			target->context = flow->context;
		}
	}
	return test_bit(target->action, ctl->objects.actions) ? 0 : -EOPNOTSUPP;
}

static int write_rule(struct flownic_ctl *ctl, u16 opcode, u32 location, struct flownic_flow *flow)
{
	struct flownic_call *call;
	int err;

	call = flownic_rule_call(ctl, opcode, location, FLOWNIC_GROUP_USER, flow->classifier->id,
				 &flow->match, &flow->target);
	err = flownic_call_run(call);
	flownic_call_put(call);
	flow->present = !err;
	return err;
}

static int destroy_rule(struct flownic_ctl *ctl, u32 location, struct flownic_flow *flow)
{
	struct flownic_call *call;
	int err;

	if (!flow->present)
		return 0;
	call = flownic_rule_destroy_call(ctl, location);
	err = flownic_call_run(call);
	flownic_call_put(call);
	/* A rule that the device does not know is one that it does not have. */
	if (err == -ENXIO)
		err = 0;
	if (!err)
		flow->present = false;
	return err;
}

static void free_flow(struct flownic_ctl *ctl, struct flownic_flow *flow)
{
	if (!IS_ERR_OR_NULL(flow->classifier))
		flownic_classifier_put(ctl, flow->classifier);
	kfree(flow);
}

/* Puts a rule in the place of another one, which is still there if this fails. */
static int replace_rule(struct flownic_ctl *ctl, u32 location, struct flownic_flow *old,
			struct flownic_flow *new)
{
	int err;

	if (old->present && ctl->capabilities & FLOWNIC_CAPABLE_RULE_MODIFY &&
	    flownic_match_same(&old->match, &new->match))
		return write_rule(ctl, FLOWNIC_ADMIN_OBJ_MODIFY, location, new);

	err = destroy_rule(ctl, location, old);
	if (err)
		return err;
	err = write_rule(ctl, FLOWNIC_ADMIN_OBJ_CREATE, location, new);
	if (err && write_rule(ctl, FLOWNIC_ADMIN_OBJ_CREATE, location, old))
		netdev_warn(ctl->fn->dev, "Lost the rule at location %u\n", location);
	return err;
}

/*
 * Where a rule goes for which the user leaves the choice to the driver: to an equal one, which
 * it replaces, else to the last free location.
 */
static int choose_location(struct flownic_ctl *ctl, const struct flownic_flow *flow, u32 *location)
{
	struct flownic_flows *flows = &ctl->flows;
	bool first = *location == RX_CLS_LOC_FIRST;
	u32 i, at, found = flows->size;

	for (i = 0; i < flows->size; i++) {
		at = first ? i : flows->size - 1 - i;
		if (!flows->table[at]) {
			if (found == flows->size)
				found = at;
		} else if (*location == RX_CLS_LOC_ANY &&
			   flows->table[at]->fs.flow_type == flow->fs.flow_type &&
			   flownic_match_same(&flows->table[at]->match, &flow->match)) {
			found = at;
			break;
		}
	}
	if (found == flows->size)
		return -ENOSPC;
	*location = found;
	return 0;
}

static int insert(struct flownic_ctl *ctl, struct ethtool_rxnfc *info)
{
	bool chosen = info->fs.location & RX_CLS_LOC_SPECIAL;
	struct flownic_flows *flows = &ctl->flows;
	u32 location = info->fs.location;
	struct flownic_flow *flow, *old;
	int err;

	if (!(ctl->fn->dev->features & NETIF_F_NTUPLE))
		return -EOPNOTSUPP;
	flow = kzalloc_obj(*flow);
	if (!flow)
		return -ENOMEM;
	flow->fs = info->fs;
	flow->context = info->fs.flow_type & FLOW_RSS ? info->rss_context : 0;
	err = flownic_match_spec(&flow->match, &flow->fs);
	err = err ?: parse_target(ctl, flow);
	if (!err && chosen)
		err = choose_location(ctl, flow, &location);
	else if (!err && location >= flows->size)
		err = -EINVAL;
	if (err)
		goto free;
	flow->classifier = flownic_classifier_get(ctl, &flow->match);
	err = PTR_ERR_OR_ZERO(flow->classifier);
	if (err)
		goto free;

	flow->fs.location = location;
	old = flows->table[location];
	if (old)
		err = replace_rule(ctl, location, old, flow);
	else
		err = write_rule(ctl, FLOWNIC_ADMIN_OBJ_CREATE, location, flow);
	if (err)
		goto free;

	/* Nothing can fail from here on. */
	flows->table[location] = flow;
	if (old)
		free_flow(ctl, old);
	else
		flows->count++;
	/* An id that is told again is to be deleted again. */
	flows->owed[location] = old && chosen ? flows->owed[location] + 1 : 0;
	info->fs.location = location;
	return 0;

free:
	free_flow(ctl, flow);
	return err;
}

static int delete(struct flownic_ctl *ctl, u32 location)
{
	struct flownic_flows *flows = &ctl->flows;
	struct flownic_flow *flow;
	int err;

	if (location >= flows->size)
		return -ENOENT;
	flow = flows->table[location];
	if (!flow) {
		if (!flows->owed[location])
			return -ENOENT;
		flows->owed[location]--;
		return 0;
	}
	err = destroy_rule(ctl, location, flow);
	if (err)
		return err;
	flows->table[location] = NULL;
	flows->count--;
	free_flow(ctl, flow);
	return 0;
}

/**
 * flownic_flow_set - ethtool -N
 * @ctl: the device
 * @info: the request; gets the location that was chosen
 *
 * Return: 0 or a negative error.
 */
int flownic_flow_set(struct flownic_ctl *ctl, struct ethtool_rxnfc *info)
{
	switch (info->cmd) {
	case ETHTOOL_SRXCLSRLINS:
		return insert(ctl, info);
	case ETHTOOL_SRXCLSRLDEL:
		return delete(ctl, info->fs.location);
	default:
		return -EOPNOTSUPP;
	}
}

static int get_rule(struct flownic_ctl *ctl, struct ethtool_rxnfc *info)
{
	struct flownic_flows *flows = &ctl->flows;
	u32 location = info->fs.location;
	struct flownic_flow *flow;

	flow = location < flows->size ? flows->table[location] : NULL;
	if (!flow)
		return -ENOENT;
	info->fs = flow->fs;
	if (flow->fs.flow_type & FLOW_RSS) {
		info->flow_type |= FLOW_RSS;
		info->rss_context = flow->context;
	}
	info->data = flows->size;
	return 0;
}

static int get_locations(struct flownic_ctl *ctl, struct ethtool_rxnfc *info, u32 *locations)
{
	struct flownic_flows *flows = &ctl->flows;
	u32 location, count = 0;

	if (info->rule_cnt < flows->count)
		return -EMSGSIZE;
	for (location = 0; location < flows->size; location++)
		if (flows->table[location])
			locations[count++] = location;
	info->rule_cnt = count;
	info->data = flows->size;
	return 0;
}

/**
 * flownic_flow_get - ethtool -n
 * @ctl: the device
 * @info: the request and its answer
 * @locations: room for info->rule_cnt of them, if that is what is asked for
 *
 * Return: 0 or a negative error.
 */
int flownic_flow_get(struct flownic_ctl *ctl, struct ethtool_rxnfc *info, u32 *locations)
{
	switch (info->cmd) {
	case ETHTOOL_GRXCLSRLCNT:
		info->rule_cnt = ctl->flows.count;
		/* This driver chooses locations itself. */
		info->data = ctl->flows.size | RX_CLS_LOC_SPECIAL;
		return 0;
	case ETHTOOL_GRXCLSRULE:
		return get_rule(ctl, info);
	case ETHTOOL_GRXCLSRLALL:
		return get_locations(ctl, info, locations);
	default:
		return -EOPNOTSUPP;
	}
}

/**
 * flownic_flow_flush - deletes all rules
 * @ctl: the device
 */
void flownic_flow_flush(struct flownic_ctl *ctl)
{
	u32 location;
	int err;

	for (location = 0; location < ctl->flows.size; location++) {
		if (!ctl->flows.table[location])
			continue;
		err = delete(ctl, location);
		if (err)
			netdev_warn(ctl->fn->dev, "The rule at location %u stays: error %d\n",
				    location, err);
	}
	memset(ctl->flows.owed, 0, ctl->flows.size * sizeof(*ctl->flows.owed));
}

/**
 * flownic_flow_check_pairs - may the number of queues change?
 * @ctl: the device
 * @pairs: to this
 *
 * Return: 0, or -EINVAL if a rule needs a queue that would go away.
 */
int flownic_flow_check_pairs(struct flownic_ctl *ctl, unsigned int pairs)
{
	u32 location;

	for (location = 0; location < ctl->flows.size; location++) {
		const struct flownic_flow *flow = ctl->flows.table[location];
		unsigned int last;

		if (!flow || flow->target.action == FLOWNIC_ACTION_DROP)
			continue;
		last = flow->target.queue;
		/* The main configuration follows the number of queues unless users have set it. */
		if (flow->target.action == FLOWNIC_ACTION_RSS_CONTEXT) {
			if (flow->context || netif_is_rxfh_configured(ctl->fn->dev))
				last += flownic_rss_max_queue(flownic_rss_of(ctl, flow->context));
			else if (last)
				last += pairs - 1;
		}
		if (last >= pairs)
			return -EINVAL;
	}
	return 0;
}

/**
 * flownic_flow_check_context - may a context use these queues?
 * @ctl: the device
 * @context: its id
 * @max_queue: the last queue that its table will name
 *
 * Return: 0, or -EINVAL if a rule would add to it and end up beyond all queues.
 */
int flownic_flow_check_context(struct flownic_ctl *ctl, u32 context, unsigned int max_queue)
{
	u32 location;

	for (location = 0; location < ctl->flows.size; location++) {
		const struct flownic_flow *flow = ctl->flows.table[location];

		if (flow && flow->target.action == FLOWNIC_ACTION_RSS_CONTEXT &&
		    flow->context == context &&
		    flow->target.queue + max_queue >= ctl->fn->num_pairs)
			return -EINVAL;
	}
	return 0;
}

/**
 * flownic_flow_uses_context - does any rule send packets through a context?
 * @ctl: the device
 * @context: its id
 *
 * Return: true if so.
 */
bool flownic_flow_uses_context(struct flownic_ctl *ctl, u32 context)
{
	u32 location;

	for (location = 0; location < ctl->flows.size; location++) {
		const struct flownic_flow *flow = ctl->flows.table[location];

		if (flow && flow->target.action == FLOWNIC_ACTION_RSS_CONTEXT &&
		    flow->context == context)
			return true;
	}
	return false;
}

/**
 * flownic_flow_probe - makes an empty table
 * @ctl: the device; ctl->objects has been probed
 *
 * Return: 0 or a negative error.
 */
int flownic_flow_probe(struct flownic_ctl *ctl)
{
	struct flownic_flows *flows = &ctl->flows;

	if (!ctl->objects.available)
		return 0;
	flows->size = clamp_t(u32, ctl->objects.limits.rules / 4, 1, USER_RULES_MAX);
	flows->table = kvcalloc(flows->size, sizeof(*flows->table), GFP_KERNEL);
	flows->owed = kvcalloc(flows->size, sizeof(*flows->owed), GFP_KERNEL);
	if (!flows->table || !flows->owed) {
		/* What there is of them is freed with @ctl. */
		flows->size = 0;
		return -ENOMEM;
	}
	return 0;
}

/**
 * flownic_flow_restore - gives all rules to a device that has none
 * @ctl: the device
 */
void flownic_flow_restore(struct flownic_ctl *ctl)
{
	u32 location, lost = 0;

	for (location = 0; location < ctl->flows.size; location++) {
		struct flownic_flow *flow = ctl->flows.table[location];

		if (flow && write_rule(ctl, FLOWNIC_ADMIN_OBJ_CREATE, location, flow))
			lost++;
	}
	if (lost)
		netdev_warn(ctl->fn->dev, "%u flow rules could not be restored\n", lost);
}

/**
 * flownic_flow_free - ends it; the device is told to forget all at once
 * @ctl: the device
 */
void flownic_flow_free(struct flownic_ctl *ctl)
{
	u32 location;

	for (location = 0; location < ctl->flows.size; location++)
		kfree(ctl->flows.table[location]);
	kvfree(ctl->flows.table);
	kvfree(ctl->flows.owed);
	ctl->flows.table = NULL;
	ctl->flows.owed = NULL;
	ctl->flows.size = 0;
}
