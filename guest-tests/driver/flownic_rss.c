// SPDX-License-Identifier: GPL-2.0
/*
 * RSS: the main configuration and contexts, as the device has them.
 *
 * Each configuration has a table of receive queues, a key and hash types. The
 * tables have at least four entries for each queue in use, so that no queue
 * gets much more than its share, and follow the number of queues: a table that
 * users have set is folded or unfolded, if it repeats itself, the default one
 * is made anew. How users set them is in flownic_rxfh.c.
 *
 * Every change goes to the device first and is kept here once the device has
 * taken it. So the shadow is what the device has, and what it is told again
 * after a restart.
 */
#include <linux/log2.h>
#include <linux/slab.h>

#include "flownic_ctl.h"

#define HASH_TYPES	(FLOWNIC_HASH_IPV4 | FLOWNIC_HASH_TCPV4 | FLOWNIC_HASH_UDPV4 |	\
			 FLOWNIC_HASH_IPV6 | FLOWNIC_HASH_TCPV6 | FLOWNIC_HASH_UDPV6)

/**
 * flownic_rss_size - entries that tables have
 * @ctl: the device
 * @pairs: queues in use
 *
 * Return: a power of two. Before 6.18 or so, the stack wants it to be always the same.
 */
u32 flownic_rss_size(const struct flownic_ctl *ctl, unsigned int pairs)
{
	if (!FLOWNIC_DYNAMIC_RSS_TABLE)
		pairs = ctl->fn->max_pairs;
	return min_t(u32, ctl->rss_max_table, 4 * roundup_pow_of_two(pairs));
}

/**
 * flownic_rss_of - a configuration by its context
 * @ctl: the device
 * @context: 0 is the main one
 *
 * Return: the configuration, NULL if there is no such context.
 */
struct flownic_rss *flownic_rss_of(struct flownic_ctl *ctl, u32 context)
{
	if (!context)
		return &ctl->rss;
	return context < FLOWNIC_RSS_CONTEXTS ? ctl->contexts[context] : NULL;
}

/**
 * flownic_rss_max_queue - the last queue that a table names
 * @rss: the configuration
 *
 * Return: its index.
 */
unsigned int flownic_rss_max_queue(const struct flownic_rss *rss)
{
	unsigned int max_queue = 0;
	u32 i;

	for (i = 0; i < rss->size; i++)
		max_queue = max_t(unsigned int, max_queue, rss->table[i]);
	return max_queue;
}

static void set_default_table(struct flownic_ctl *ctl, struct flownic_rss *rss, unsigned int pairs)
{
	u32 i;

	rss->size = flownic_rss_size(ctl, pairs);
	for (i = 0; i < rss->size; i++)
		rss->table[i] = ethtool_rxfh_indir_default(i, pairs);
}

/* Folding a table that repeats itself only shortens it. */
static void resize_table(struct flownic_rss *rss, u32 size)
{
	u32 i;

	for (i = rss->size; i < size; i++)
		rss->table[i] = rss->table[i % rss->size];
	rss->size = size;
}

static u32 config_length(const struct flownic_rss *rss)
{
	return sizeof(struct flownic_rss_head) + rss->size * sizeof(__le16) +
	       sizeof(struct flownic_rss_tail) + sizeof(rss->key);
}

static void put_config(const struct flownic_ctl *ctl, const struct flownic_rss *rss, void *data)
{
	struct flownic_rss_head *head = data;
	__le16 *table = (__le16 *)(head + 1);
	struct flownic_rss_tail *tail = (void *)(table + rss->size);
	u32 i;

	put_unaligned_le32(rss->hash_types, &head->hash_types);
	put_unaligned_le16(rss->size - 1, &head->table_mask);
	/* Frames without a hash, such as ARP, stay on the first queue. */
	put_unaligned_le16(0, &head->unclassified_queue);
	for (i = 0; i < rss->size; i++)
		put_unaligned_le16(rss->table[i], &table[i]);
	put_unaligned_le16(ctl->fn->num_pairs, &tail->max_tx_vq);
	tail->key_length = sizeof(rss->key);
	memcpy(tail->key, rss->key, sizeof(rss->key));
}

static int send_config(struct flownic_ctl *ctl, u32 context, u8 command,
		       const struct flownic_rss *rss)
{
	u32 length = config_length(rss) + (context ? sizeof(struct flownic_rss_ctx_hdr) : 0);
	struct flownic_call *call;
	int err;

	call = flownic_control_call(ctl, context ? FLOWNIC_CTRL_RSS_CTX : FLOWNIC_CTRL_MQ, command,
				    length, 0);
	if (!call)
		return -ENOMEM;
	if (context) {
		struct flownic_rss_ctx_hdr *hdr = call->data;

		put_unaligned_le16(context, &hdr->id);
		put_config(ctl, rss, hdr + 1);
	} else {
		put_config(ctl, rss, call->data);
	}
	err = flownic_call_run(call);
	flownic_call_put(call);
	return err;
}

/**
 * flownic_rss_apply - changes a configuration
 * @ctl: the device
 * @context: 0 is the main one
 * @wanted: what it shall be
 *
 * Return: 0, or a negative error: then it is as it was.
 */
int flownic_rss_apply(struct flownic_ctl *ctl, u32 context, const struct flownic_rss *wanted)
{
	int err;

	err = send_config(ctl, context, context ? FLOWNIC_RSS_CTX_MOD : FLOWNIC_MQ_RSS_CONFIG,
			  wanted);
	if (!err)
		*flownic_rss_of(ctl, context) = *wanted;
	return err;
}

/**
 * flownic_rss_create - makes a context
 * @ctl: the device
 * @context: its id, at least 1
 * @wanted: its configuration
 *
 * Return: 0, -ENOSPC if the device has not so many, or another negative error.
 */
int flownic_rss_create(struct flownic_ctl *ctl, u32 context, const struct flownic_rss *wanted)
{
	struct flownic_rss *rss;
	int err;

	if (!context || context > ctl->max_contexts)
		return -ENOSPC;
	if (ctl->contexts[context])
		return -EBUSY;
	rss = kmemdup(wanted, sizeof(*wanted), GFP_KERNEL);
	if (!rss)
		return -ENOMEM;
	err = send_config(ctl, context, FLOWNIC_RSS_CTX_ADD, rss);
	if (err) {
		kfree(rss);
		return err;
	}
	ctl->contexts[context] = rss;
	return 0;
}

/**
 * flownic_rss_remove - deletes a context
 * @ctl: the device
 * @context: its id
 *
 * Return: 0, -ENOENT, -EBUSY while rules refer to it, or another negative error.
 */
int flownic_rss_remove(struct flownic_ctl *ctl, u32 context)
{
	__le16 id = cpu_to_le16(context);
	int err;

	if (!context || !flownic_rss_of(ctl, context))
		return -ENOENT;
	if (flownic_flow_uses_context(ctl, context))
		return -EBUSY;
	err = flownic_control(ctl, FLOWNIC_CTRL_RSS_CTX, FLOWNIC_RSS_CTX_DEL, &id, sizeof(id));
	if (err)
		return err;
	kfree(ctl->contexts[context]);
	ctl->contexts[context] = NULL;
	return 0;
}

/* May all tables have so many entries? Those that users have set must repeat themselves. */
static int check_size(struct flownic_ctl *ctl, u32 size)
{
#if FLOWNIC_DYNAMIC_RSS_TABLE
	struct net_device *dev = ctl->fn->dev;
	bool possible;
	u32 i, *table;

	if (size == ctl->rss.size)
		return 0;
	table = kmalloc_array(ctl->rss.size, sizeof(*table), GFP_KERNEL);
	if (!table)
		return -ENOMEM;
	for (i = 0; i < ctl->rss.size; i++)
		table[i] = ctl->rss.table[i];
	possible = ethtool_rxfh_indir_can_resize(dev, table, ctl->rss.size, size);
	kfree(table);
	return possible ? ethtool_rxfh_ctxs_can_resize(dev, size) : -EINVAL;
#else
	return 0;
#endif
}

/**
 * flownic_rss_check_pairs - may the number of queues change?
 * @ctl: the device
 * @pairs: to this
 *
 * Return: 0, or -EINVAL if a table that users have set names a queue that would
 * go away or cannot be folded.
 */
int flownic_rss_check_pairs(struct flownic_ctl *ctl, unsigned int pairs)
{
	u32 i;

	if (netif_is_rxfh_configured(ctl->fn->dev) && flownic_rss_max_queue(&ctl->rss) >= pairs)
		return -EINVAL;
	for (i = 1; i < FLOWNIC_RSS_CONTEXTS; i++)
		if (ctl->contexts[i] && flownic_rss_max_queue(ctl->contexts[i]) >= pairs)
			return -EINVAL;
	return check_size(ctl, flownic_rss_size(ctl, pairs));
}

static void report(struct flownic_ctl *ctl, const char *what, u32 context, int err)
{
	if (err)
		netdev_warn(ctl->fn->dev, "RSS context %u could not be %s: error %d\n", context,
			    what, err);
}

/**
 * flownic_rss_set_pairs - the number of queues changes
 * @ctl: the device
 * @pairs: to this, which flownic_rss_check_pairs() has allowed
 */
void flownic_rss_set_pairs(struct flownic_ctl *ctl, unsigned int pairs)
{
	u32 i, size = flownic_rss_size(ctl, pairs), old_size = ctl->rss.size;
	struct flownic_rss wanted = ctl->rss;

	if (netif_is_rxfh_configured(ctl->fn->dev))
		resize_table(&wanted, size);
	else
		set_default_table(ctl, &wanted, pairs);
	report(ctl, "resized", 0, flownic_rss_apply(ctl, 0, &wanted));

	if (size == old_size)
		return;
	for (i = 1; i < FLOWNIC_RSS_CONTEXTS; i++) {
		if (!ctl->contexts[i])
			continue;
		wanted = *ctl->contexts[i];
		resize_table(&wanted, size);
		report(ctl, "resized", i, flownic_rss_apply(ctl, i, &wanted));
	}
#if FLOWNIC_DYNAMIC_RSS_TABLE
	ethtool_rxfh_ctxs_resize(ctl->fn->dev, size);
#endif
}

/**
 * flownic_rss_set_hash - shall received frames carry their hash?
 * @ctl: the device
 * @on: yes
 *
 * Return: 0 or a negative error.
 */
int flownic_rss_set_hash(struct flownic_ctl *ctl, bool on)
{
	struct flownic_hash_set data = { .on = on };
	int err;

	err = flownic_control(ctl, FLOWNIC_CTRL_FLOWNIC, FLOWNIC_HASH_SET, &data, sizeof(data));
	if (!err)
		ctl->hash_on = on;
	return err;
}

/**
 * struct rss_flow_type - how a flow type of ethtool is hashed
 * @addresses: the hash type over addresses
 * @ports: the one over ports too, 0 if there is none
 * @omit: where the bits for fields that are left out of @ports begin
 */
struct rss_flow_type {
	u32 addresses;
	u32 ports;
	unsigned int omit;
};

static bool find_flow_type(u32 flow_type, struct rss_flow_type *type)
{
	memset(type, 0, sizeof(*type));
	switch (flow_type) {
	case TCP_V4_FLOW:
		type->ports = FLOWNIC_HASH_TCPV4;
		type->omit = FLOWNIC_HASH_OMIT_TCPV4;
		break;
	case UDP_V4_FLOW:
		type->ports = FLOWNIC_HASH_UDPV4;
		type->omit = FLOWNIC_HASH_OMIT_UDPV4;
		break;
	case TCP_V6_FLOW:
		type->ports = FLOWNIC_HASH_TCPV6;
		type->omit = FLOWNIC_HASH_OMIT_TCPV6;
		break;
	case UDP_V6_FLOW:
		type->ports = FLOWNIC_HASH_UDPV6;
		type->omit = FLOWNIC_HASH_OMIT_UDPV6;
		break;
	}
	switch (flow_type) {
	case TCP_V4_FLOW:
	case UDP_V4_FLOW:
	case SCTP_V4_FLOW:
	case AH_ESP_V4_FLOW:
	case AH_V4_FLOW:
	case ESP_V4_FLOW:
	case IPV4_FLOW:
		type->addresses = FLOWNIC_HASH_IPV4;
		return true;
	case TCP_V6_FLOW:
	case UDP_V6_FLOW:
	case SCTP_V6_FLOW:
	case AH_ESP_V6_FLOW:
	case AH_V6_FLOW:
	case ESP_V6_FLOW:
	case IPV6_FLOW:
		type->addresses = FLOWNIC_HASH_IPV6;
		return true;
	default:
		return false;
	}
}

#define FIELDS_L3	(RXH_IP_SRC | RXH_IP_DST)
#define FIELDS_L4	(FIELDS_L3 | RXH_L4_B_0_1 | RXH_L4_B_2_3)

static const struct {
	u32 field;
	u32 omit;
} rss_fields[] = {
	{ RXH_IP_SRC, FLOWNIC_OMIT_SRC_ADDR },
	{ RXH_IP_DST, FLOWNIC_OMIT_DST_ADDR },
	{ RXH_L4_B_0_1, FLOWNIC_OMIT_SRC_PORT },
	{ RXH_L4_B_2_3, FLOWNIC_OMIT_DST_PORT },
};

/**
 * flownic_rss_get_fields - what packets of a flow type are hashed over
 * @rss: the configuration
 * @flow_type: of ethtool, TCP_V4_FLOW and so on
 *
 * Return: RXH_*, 0 for what is not hashed.
 */
u32 flownic_rss_get_fields(const struct flownic_rss *rss, u32 flow_type)
{
	struct rss_flow_type type;
	u32 fields = 0;
	size_t i;

	if (!find_flow_type(flow_type, &type))
		return 0;
	if (!(rss->hash_types & type.ports))
		return rss->hash_types & type.addresses ? FIELDS_L3 : 0;
	for (i = 0; i < ARRAY_SIZE(rss_fields); i++)
		if (!(rss->hash_types >> type.omit & rss_fields[i].omit))
			fields |= rss_fields[i].field;
	return fields;
}

/**
 * flownic_rss_set_fields - says what packets of a flow type are to be hashed over
 * @ctl: the device
 * @rss: the configuration to change; it still has to be applied
 * @flow_type: of ethtool
 * @fields: RXH_*
 *
 * virtio knows hashes over both addresses, or those and both ports; flownic can leave out any
 * of them. Over both addresses alone, TCP and UDP share the setting of all packets of their IP
 * version.
 *
 * Return: 0, or -EINVAL for what the device cannot do.
 */
int flownic_rss_set_fields(struct flownic_ctl *ctl, struct flownic_rss *rss, u32 flow_type,
			   u32 fields)
{
	u32 types = rss->hash_types;
	struct rss_flow_type type;
	size_t i;

	if (!find_flow_type(flow_type, &type) || fields & ~FIELDS_L4)
		return -EINVAL;
	if (type.ports)
		types &= ~(type.ports | 0xfU << type.omit);
	if (fields == FIELDS_L3) {
		types |= type.addresses;
	} else if (!fields) {
		/* TCP and UDP would still be hashed as any packet of their IP version. */
		if (type.ports && types & type.addresses)
			return -EINVAL;
		types &= ~type.addresses;
	} else {
		if (!type.ports)
			return -EINVAL;
		types |= type.ports;
		for (i = 0; i < ARRAY_SIZE(rss_fields); i++)
			if (!(fields & rss_fields[i].field))
				types |= rss_fields[i].omit << type.omit;
		if (fields != FIELDS_L4 && !(ctl->capabilities & FLOWNIC_CAPABLE_HASH_FIELDS))
			return -EINVAL;
	}
	if (types & HASH_TYPES & ~ctl->hash_types)
		return -EINVAL;
	rss->hash_types = types;
	return 0;
}

/**
 * flownic_rss_probe - sets up what a NIC starts with: RSS over all queues
 * @ctl: the device
 *
 * Return: 0 or a negative error.
 */
int flownic_rss_probe(struct flownic_ctl *ctl)
{
	struct flownic_identity *identity = &ctl->identity;
	struct flownic_rss *rss = &ctl->rss;

	ctl->hash_types = le32_to_cpu(identity->hash_types) & HASH_TYPES;
	ctl->rss_max_table = min_t(u32, le16_to_cpu(identity->rss_max_table),
				   FLOWNIC_RSS_TABLE_MAX);
	ctl->max_contexts = min_t(u32, le16_to_cpu(identity->max_rss_contexts),
				  FLOWNIC_RSS_CONTEXTS - 1);
	if (!(ctl->capabilities & FLOWNIC_CAPABLE_RSS_CONTEXTS))
		ctl->max_contexts = 0;
	if (!is_power_of_2(ctl->rss_max_table) || identity->rss_max_key < FLOWNIC_RSS_KEY)
		return -EOPNOTSUPP;

	rss->hash_types = ctl->hash_types;
	netdev_rss_key_fill(rss->key, sizeof(rss->key));
	set_default_table(ctl, rss, ctl->fn->num_pairs);
	return send_config(ctl, 0, FLOWNIC_MQ_RSS_CONFIG, rss);
}

/**
 * flownic_rss_restore - tells a device that has forgotten it
 * @ctl: the device
 */
void flownic_rss_restore(struct flownic_ctl *ctl)
{
	u32 i;

	report(ctl, "restored", 0, send_config(ctl, 0, FLOWNIC_MQ_RSS_CONFIG, &ctl->rss));
	for (i = 1; i < FLOWNIC_RSS_CONTEXTS; i++)
		if (ctl->contexts[i])
			report(ctl, "restored", i,
			       send_config(ctl, i, FLOWNIC_RSS_CTX_ADD, ctl->contexts[i]));
	if (ctl->hash_on)
		flownic_rss_set_hash(ctl, true);
}

/**
 * flownic_rss_free - ends it; the device is told to forget all at once
 * @ctl: the device
 */
void flownic_rss_free(struct flownic_ctl *ctl)
{
	u32 i;

	for (i = 1; i < FLOWNIC_RSS_CONTEXTS; i++)
		kfree(ctl->contexts[i]);
}
