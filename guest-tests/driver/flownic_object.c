// SPDX-License-Identifier: GPL-2.0
/*
 * The device's flow-filter table: groups, classifiers and rules.
 *
 * A group orders rules; there is one for people's rules and, after it, one for
 * the flows of accelerated RFS. A classifier says which bits rules look at. It
 * is made when the first rule needs it and destroyed after the last, and any
 * number of rules share it. Who owns rules are flownic_flow.c and
 * flownic_arfs.c; their ids never meet, since each has its own range of them.
 *
 * Classifiers change under RTNL. The ones of accelerated RFS are made before
 * its work runs and stay until it has stopped.
 */
#include <linux/bitmap.h>
#include <linux/slab.h>

#include "flownic_ctl.h"

/* As many classifiers as anybody needs, whatever the device offers. */
#define CLASSIFIERS_MAX		256
/* Room for capabilities: each selector once, actions to spare. */
#define CAP_ROOM		512

static const u16 group_priority[FLOWNIC_GROUPS] = {
	[FLOWNIC_GROUP_USER] = 2,
	[FLOWNIC_GROUP_ARFS] = 1,
};

static void put_object(void *data, u16 type, u32 id)
{
	struct flownic_obj_hdr *hdr = data;

	put_unaligned_le16(type, &hdr->type);
	put_unaligned_le32(id, &hdr->id);
}

/* Reads a capability into @cap, zeroed beyond what the device has of it. */
static int cap_get(struct flownic_ctl *ctl, u16 id, void *cap, u32 size, u32 *length)
{
	struct flownic_call *call;
	struct flownic_cap_hdr *hdr;
	int err;

	call = flownic_admin_call(ctl, FLOWNIC_ADMIN_DEVICE_CAP_GET, sizeof(*hdr), size);
	if (!call)
		return -ENOMEM;
	hdr = call->data;
	put_unaligned_le16(id, &hdr->id);
	err = flownic_call_run(call);
	if (!err) {
		*length = min(call->result_len, size);
		memset(cap, 0, size);
		memcpy(cap, call->result, *length);
	}
	flownic_call_put(call);
	return err;
}

static int cap_set(struct flownic_ctl *ctl, u16 id, const void *cap, u32 size)
{
	struct flownic_call *call;
	struct flownic_cap_hdr *hdr;
	int err;

	call = flownic_admin_call(ctl, FLOWNIC_ADMIN_DRIVER_CAP_SET, sizeof(*hdr) + size, 0);
	if (!call)
		return -ENOMEM;
	hdr = call->data;
	put_unaligned_le16(id, &hdr->id);
	memcpy(hdr + 1, cap, size);
	err = flownic_call_run(call);
	flownic_call_put(call);
	return err;
}

/* Takes all opcodes into use that the device has. */
static int use_opcodes(struct flownic_ctl *ctl)
{
	struct flownic_call *call;
	u64 opcodes = 0;
	int err;

	call = flownic_admin_call(ctl, FLOWNIC_ADMIN_LIST_QUERY, 0, sizeof(__le64));
	err = flownic_call_run(call);
	if (!err && call->result_len >= sizeof(__le64))
		opcodes = get_unaligned_le64(call->result);
	flownic_call_put(call);
	if (err)
		return err;
	if (!(opcodes & BIT_ULL(FLOWNIC_ADMIN_OBJ_CREATE)))
		return -EOPNOTSUPP;

	call = flownic_admin_call(ctl, FLOWNIC_ADMIN_LIST_USE, sizeof(__le64), 0);
	if (call)
		put_unaligned_le64(opcodes, call->data);
	err = flownic_call_run(call);
	flownic_call_put(call);
	return err;
}

static int use_resources(struct flownic_ctl *ctl)
{
	struct flownic_objects *objects = &ctl->objects;
	struct flownic_cap_resources cap;
	u32 length;
	int err;

	err = cap_get(ctl, FLOWNIC_CAP_RESOURCES, &cap, sizeof(cap), &length);
	if (err)
		return err;
	objects->limits.groups = le32_to_cpu(cap.groups_limit);
	objects->limits.classifiers = min_t(u32, le32_to_cpu(cap.classifiers_limit),
					    CLASSIFIERS_MAX);
	objects->limits.rules = min(le32_to_cpu(cap.rules_limit),
				    le32_to_cpu(cap.rules_per_group_limit));
	if (objects->limits.groups < FLOWNIC_GROUPS || !objects->limits.classifiers ||
	    objects->limits.rules < 2 ||
	    cap.selectors_per_classifier_limit < FLOWNIC_MATCH_SELECTORS)
		return -EOPNOTSUPP;
	return cap_set(ctl, FLOWNIC_CAP_RESOURCES, &cap, sizeof(cap));
}

/* Takes those selectors into use that this driver knows. */
static int use_selectors(struct flownic_ctl *ctl)
{
	u8 offered[CAP_ROOM], wanted[CAP_ROOM] = {};
	struct flownic_selectors *from = (void *)offered, *to = (void *)wanted;
	u32 length, at = sizeof(*from), used = sizeof(*to);
	unsigned int i;
	int err;

	err = cap_get(ctl, FLOWNIC_CAP_SELECTORS, offered, sizeof(offered), &length);
	if (err)
		return err;
	for (i = 0; i < from->count && at + sizeof(struct flownic_selector) <= length; i++) {
		const struct flownic_selector *selector = (void *)(offered + at);
		u32 size = sizeof(*selector) + selector->length;

		if (at + size > length)
			break;
		if (flownic_selector_length(selector->type) == selector->length) {
			memcpy(wanted + used, selector, size);
			used += size;
			to->count++;
		}
		at += size;
	}
	return to->count ? cap_set(ctl, FLOWNIC_CAP_SELECTORS, wanted, used) : -EOPNOTSUPP;
}

static int use_actions(struct flownic_ctl *ctl)
{
	static const u8 known[] = {
		FLOWNIC_ACTION_DROP, FLOWNIC_ACTION_DIRECT_RX_VQ, FLOWNIC_ACTION_RSS_CONTEXT,
	};
	unsigned long *actions = ctl->objects.actions;
	u8 offered[CAP_ROOM], wanted[sizeof(struct flownic_cap_actions) + sizeof(known)] = {};
	struct flownic_cap_actions *from = (void *)offered, *to = (void *)wanted;
	unsigned int i;
	u32 length;
	int err;

	err = cap_get(ctl, FLOWNIC_CAP_ACTIONS, offered, sizeof(offered), &length);
	if (err)
		return err;
	bitmap_zero(actions, 256);
	for (i = 0; i < from->count && sizeof(*from) + i < length; i++)
		__set_bit(from->actions[i], actions);
	for (i = 0; i < ARRAY_SIZE(known); i++)
		if (test_bit(known[i], actions))
			to->actions[to->count++] = known[i];
	if (!test_bit(FLOWNIC_ACTION_DIRECT_RX_VQ, actions))
		return -EOPNOTSUPP;
	return cap_set(ctl, FLOWNIC_CAP_ACTIONS, wanted, sizeof(*to) + to->count);
}

static int create_groups(struct flownic_ctl *ctl)
{
	struct flownic_obj_flags *object;
	struct flownic_group *group;
	struct flownic_call *call;
	unsigned int i;
	int err = 0;

	for (i = 0; i < FLOWNIC_GROUPS && !err; i++) {
		call = flownic_admin_call(ctl, FLOWNIC_ADMIN_OBJ_CREATE,
					  sizeof(*object) + sizeof(*group), 0);
		if (!call)
			return -ENOMEM;
		object = call->data;
		put_object(object, FLOWNIC_OBJ_GROUP, i);
		group = (void *)(object + 1);
		put_unaligned_le16(group_priority[i], &group->priority);
		err = flownic_call_run(call);
		flownic_call_put(call);
	}
	return err;
}

static int create_classifier(struct flownic_ctl *ctl, const struct flownic_classifier *classifier)
{
	const struct flownic_match *match = &classifier->match;
	struct flownic_selectors *selectors;
	struct flownic_obj_flags *object;
	struct flownic_call *call;
	const u8 *mask = match->mask;
	unsigned int i;
	u8 *at;
	int err;

	call = flownic_admin_call(ctl, FLOWNIC_ADMIN_OBJ_CREATE,
				  sizeof(*object) + sizeof(*selectors) +
				  match->count * sizeof(struct flownic_selector) + match->length,
				  0);
	if (!call)
		return -ENOMEM;
	object = call->data;
	put_object(object, FLOWNIC_OBJ_CLASSIFIER, classifier->id);
	selectors = (void *)(object + 1);
	selectors->count = match->count;
	at = selectors->selectors;
	for (i = 0; i < match->count; i++) {
		struct flownic_selector *selector = (void *)at;

		selector->type = match->type[i];
		selector->flags = FLOWNIC_SEL_PARTIAL_MASK;
		selector->length = flownic_selector_length(match->type[i]);
		memcpy(selector->mask, mask, selector->length);
		mask += selector->length;
		at = selector->mask + selector->length;
	}
	err = flownic_call_run(call);
	flownic_call_put(call);
	return err;
}

static struct flownic_call *destroy_call(struct flownic_ctl *ctl, u16 type, u32 id)
{
	struct flownic_call *call;

	call = flownic_admin_call(ctl, FLOWNIC_ADMIN_OBJ_DESTROY,
				  sizeof(struct flownic_obj_hdr), 0);
	if (call)
		put_object(call->data, type, id);
	return call;
}

/**
 * flownic_classifier_get - a classifier for these masks, made if there is none
 * @ctl: the device
 * @match: what to look at
 *
 * Return: the classifier, with one more user; or an error pointer: -ENOSPC if
 * there are too many, -EINVAL or -EOPNOTSUPP if the device cannot mask like that.
 */
struct flownic_classifier *flownic_classifier_get(struct flownic_ctl *ctl,
						  const struct flownic_match *match)
{
	struct flownic_objects *objects = &ctl->objects;
	struct flownic_classifier *classifier;
	int err;

	list_for_each_entry(classifier, &objects->classifiers, list) {
		if (flownic_match_same_mask(&classifier->match, match)) {
			classifier->refs++;
			return classifier;
		}
	}
	classifier = kzalloc_obj(*classifier);
	if (!classifier)
		return ERR_PTR(-ENOMEM);
	classifier->match = *match;
	classifier->refs = 1;
	classifier->id = find_first_zero_bit(objects->ids, objects->limits.classifiers);
	err = -ENOSPC;
	if (classifier->id < objects->limits.classifiers)
		err = create_classifier(ctl, classifier);
	if (err) {
		kfree(classifier);
		return ERR_PTR(err);
	}
	__set_bit(classifier->id, objects->ids);
	list_add(&classifier->list, &objects->classifiers);
	return classifier;
}

/**
 * flownic_classifier_put - one user less
 * @ctl: the device
 * @classifier: no rule of the user's uses it any more
 */
void flownic_classifier_put(struct flownic_ctl *ctl, struct flownic_classifier *classifier)
{
	struct flownic_call *call;

	if (--classifier->refs)
		return;
	/* If this fails the device is gone, or keeps an id that is never used again. */
	call = destroy_call(ctl, FLOWNIC_OBJ_CLASSIFIER, classifier->id);
	if (!flownic_call_run(call))
		__clear_bit(classifier->id, ctl->objects.ids);
	flownic_call_put(call);
	list_del(&classifier->list);
	kfree(classifier);
}

/**
 * flownic_rule_call - makes a command that creates or changes a rule
 * @ctl: the device
 * @opcode: FLOWNIC_ADMIN_OBJ_CREATE or FLOWNIC_ADMIN_OBJ_MODIFY
 * @id: the rule's
 * @group: enum flownic_group_id
 * @classifier: id of a classifier with the masks of @match
 * @match: the key
 * @target: what to do
 *
 * Return: the call, NULL without memory.
 */
struct flownic_call *flownic_rule_call(struct flownic_ctl *ctl, u16 opcode, u32 id, u32 group,
				       u32 classifier, const struct flownic_match *match,
				       const struct flownic_target *target)
{
	struct flownic_obj_flags *object;
	struct flownic_call *call;
	struct flownic_rule *rule;

	call = flownic_admin_call(ctl, opcode, sizeof(*object) + sizeof(*rule) + match->length, 0);
	if (!call)
		return NULL;
	object = call->data;
	put_object(object, FLOWNIC_OBJ_RULE, id);
	rule = (void *)(object + 1);
	put_unaligned_le32(group, &rule->group_id);
	put_unaligned_le32(classifier, &rule->classifier_id);
	/* All the same: among rules of a group the lower id goes first, as users expect. */
	rule->priority = 0;
	rule->key_length = match->length;
	rule->action = target->action;
	switch (target->action) {
	case FLOWNIC_ACTION_DIRECT_RX_VQ:
		put_unaligned_le16(2 * target->queue, &rule->vq_index);
		break;
	case FLOWNIC_ACTION_RSS_CONTEXT:
		put_unaligned_le16(target->context, &rule->vq_index);
		put_unaligned_le16(target->queue, &rule->queue_offset);
		break;
	}
	memcpy(rule->key, match->key, match->length);
	return call;
}

/**
 * flownic_rule_destroy_call - makes a command that destroys a rule
 * @ctl: the device
 * @id: the rule's
 *
 * Return: the call, NULL without memory.
 */
struct flownic_call *flownic_rule_destroy_call(struct flownic_ctl *ctl, u32 id)
{
	return destroy_call(ctl, FLOWNIC_OBJ_RULE, id);
}

/**
 * flownic_objects_probe - finds out what table the device has
 * @ctl: the device
 *
 * Return: 0 also if it has none that this driver can use; then
 * ctl->objects.available stays false.
 */
int flownic_objects_probe(struct flownic_ctl *ctl)
{
	struct flownic_objects *objects = &ctl->objects;
	int err;

	INIT_LIST_HEAD(&objects->classifiers);
	objects->ids = bitmap_zalloc(CLASSIFIERS_MAX, GFP_KERNEL);
	if (!objects->ids)
		return -ENOMEM;
	err = flownic_objects_restore(ctl);
	if (err == -ENOMEM)
		return err;
	if (err)
		dev_info(&ctl->fn->vdev->dev, "No flow rules: error %d\n", err);
	objects->available = !err;
	return 0;
}

/**
 * flownic_objects_restore - sets up the table of a device that has none of ours
 * @ctl: the device
 *
 * Negotiates, and creates groups and classifiers. Rules are their owners' affair.
 *
 * Return: 0 or a negative error.
 */
int flownic_objects_restore(struct flownic_ctl *ctl)
{
	struct flownic_classifier *classifier;
	int err;

	err = use_opcodes(ctl);
	err = err ?: use_resources(ctl);
	err = err ?: use_selectors(ctl);
	err = err ?: use_actions(ctl);
	err = err ?: create_groups(ctl);
	bitmap_zero(ctl->objects.ids, CLASSIFIERS_MAX);
	list_for_each_entry(classifier, &ctl->objects.classifiers, list) {
		__set_bit(classifier->id, ctl->objects.ids);
		err = err ?: create_classifier(ctl, classifier);
	}
	return err;
}

/**
 * flownic_objects_present - does the device still have what it was given?
 * @ctl: the device
 *
 * Groups are there as long as the device remembers anything.
 *
 * Return: false if it says that it has not; true also if it says nothing.
 */
bool flownic_objects_present(struct flownic_ctl *ctl)
{
	struct flownic_call *call;
	int err;

	call = flownic_admin_call(ctl, FLOWNIC_ADMIN_OBJ_QUERY, sizeof(struct flownic_obj_flags),
				  sizeof(struct flownic_obj_flags) + sizeof(struct flownic_group));
	if (!call)
		return true;
	put_object(call->data, FLOWNIC_OBJ_GROUP, FLOWNIC_GROUP_USER);
	err = flownic_call_run(call);
	flownic_call_put(call);
	return err != -ENXIO && err != -EINVAL;
}

/**
 * flownic_objects_free - ends it, after all rules; the device is told to forget all at once
 * @ctl: the device
 */
void flownic_objects_free(struct flownic_ctl *ctl)
{
	struct flownic_classifier *classifier, *next;

	list_for_each_entry_safe(classifier, next, &ctl->objects.classifiers, list)
		kfree(classifier);
	INIT_LIST_HEAD(&ctl->objects.classifiers);
	bitmap_free(ctl->objects.ids);
	ctl->objects.ids = NULL;
}
