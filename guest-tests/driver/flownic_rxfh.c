// SPDX-License-Identifier: GPL-2.0
/*
 * ethtool -x/-X: how users see and set RSS, for each kernel's interface.
 *
 * The newer one keeps contexts itself, chooses their ids and checks what users
 * ask for; the older one leaves all of that to the driver. Either way a change
 * is put together in a copy of the configuration, which flownic_rss_apply()
 * gives to the device.
 */
#include "flownic_ctl.h"

u32 flownic_get_rxfh_key_size(struct net_device *dev)
{
	return flownic_ctl_of(dev) ? FLOWNIC_RSS_KEY : 0;
}

u32 flownic_get_rxfh_indir_size(struct net_device *dev)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);

	return ctl ? ctl->rss.size : 0;
}

static void get_config(const struct flownic_rss *rss, u32 *indir, u8 *key)
{
	u32 i;

	for (i = 0; indir && i < rss->size; i++)
		indir[i] = rss->table[i];
	if (key)
		memcpy(key, rss->key, sizeof(rss->key));
}

/* What is NULL stays as it is. The stack has checked that the queues exist. */
static void change_config(struct flownic_rss *rss, const u32 *indir, const u8 *key)
{
	u32 i;

	for (i = 0; indir && i < rss->size; i++)
		rss->table[i] = indir[i];
	if (key)
		memcpy(rss->key, key, sizeof(rss->key));
}

/* A new context spreads over all queues and hashes as the main one. */
static void start_config(struct flownic_ctl *ctl, struct flownic_rss *rss)
{
	u32 i;

	*rss = ctl->rss;
	for (i = 0; i < rss->size; i++)
		rss->table[i] = ethtool_rxfh_indir_default(i, ctl->fn->num_pairs);
}

static int apply_config(struct flownic_ctl *ctl, u32 context, const struct flownic_rss *wanted)
{
	int err;

	/* Rules may add to the queue that a context gives: the sum must exist, too. */
	err = flownic_flow_check_context(ctl, context, flownic_rss_max_queue(wanted));
	return err ?: flownic_rss_apply(ctl, context, wanted);
}

#if FLOWNIC_RXFH_CONTEXT_OPS

static int check_function(const struct ethtool_rxfh_param *rxfh, struct netlink_ext_ack *extack)
{
	if (rxfh->hfunc != ETH_RSS_HASH_NO_CHANGE && rxfh->hfunc != ETH_RSS_HASH_TOP) {
		NL_SET_ERR_MSG_MOD(extack, "The device hashes with Toeplitz only");
		return -EOPNOTSUPP;
	}
	if (rxfh->input_xfrm != RXH_XFRM_NO_CHANGE && rxfh->input_xfrm) {
		NL_SET_ERR_MSG_MOD(extack, "The device does not transform the hash's input");
		return -EOPNOTSUPP;
	}
	return 0;
}

int flownic_get_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);

	if (!ctl)
		return -EOPNOTSUPP;
	rxfh->hfunc = ETH_RSS_HASH_TOP;
	get_config(&ctl->rss, rxfh->indir, rxfh->key);
	return 0;
}

static int modify(struct net_device *dev, u32 context, const struct ethtool_rxfh_param *rxfh,
		  struct netlink_ext_ack *extack)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_rss *rss, wanted;
	int err;

	rss = ctl ? flownic_rss_of(ctl, context) : NULL;
	if (!rss)
		return ctl ? -ENOENT : -EOPNOTSUPP;
	err = check_function(rxfh, extack);
	if (err)
		return err;
	wanted = *rss;
	change_config(&wanted, rxfh->indir, rxfh->key);
	return apply_config(ctl, context, &wanted);
}

int flownic_set_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh,
		     struct netlink_ext_ack *extack)
{
	return modify(dev, 0, rxfh, extack);
}

int flownic_create_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
				const struct ethtool_rxfh_param *rxfh,
				struct netlink_ext_ack *extack)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_rss wanted;
	int err;

	if (!ctl)
		return -EOPNOTSUPP;
	err = check_function(rxfh, extack);
	if (err)
		return err;
	start_config(ctl, &wanted);
	change_config(&wanted, rxfh->indir, rxfh->key);
	err = flownic_rss_create(ctl, rxfh->rss_context, &wanted);
	if (err == -ENOSPC)
		NL_SET_ERR_MSG_MOD(extack, "The device has no more RSS contexts");
	if (err)
		return err;
	/* The stack knows what users have said, not what the driver has chosen. */
	get_config(&wanted, rxfh->indir ? NULL : ethtool_rxfh_context_indir(ctx),
		   rxfh->key ? NULL : ethtool_rxfh_context_key(ctx));
	ctx->hfunc = ETH_RSS_HASH_TOP;
	ctx->input_xfrm = 0;
	return 0;
}

int flownic_modify_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
				const struct ethtool_rxfh_param *rxfh,
				struct netlink_ext_ack *extack)
{
	return modify(dev, rxfh->rss_context, rxfh, extack);
}

int flownic_remove_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
				u32 context, struct netlink_ext_ack *extack)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);

	return ctl ? flownic_rss_remove(ctl, context) : -EOPNOTSUPP;
}

int flownic_get_rxfh_fields(struct net_device *dev, struct ethtool_rxfh_fields *fields)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_rss *rss;

	rss = ctl ? flownic_rss_of(ctl, fields->rss_context) : NULL;
	if (!rss)
		return ctl ? -ENOENT : -EOPNOTSUPP;
	fields->data = flownic_rss_get_fields(rss, fields->flow_type);
	return 0;
}

int flownic_set_rxfh_fields(struct net_device *dev, const struct ethtool_rxfh_fields *fields,
			    struct netlink_ext_ack *extack)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_rss *rss, wanted;
	int err;

	rss = ctl ? flownic_rss_of(ctl, fields->rss_context) : NULL;
	if (!rss)
		return ctl ? -ENOENT : -EOPNOTSUPP;
	wanted = *rss;
	err = flownic_rss_set_fields(ctl, &wanted, fields->flow_type, fields->data);
	if (err) {
		NL_SET_ERR_MSG_MOD(extack, "The device cannot hash over these fields");
		return err;
	}
	return flownic_rss_apply(ctl, fields->rss_context, &wanted);
}

#else /* !FLOWNIC_RXFH_CONTEXT_OPS */

int flownic_get_rxfh_context(struct net_device *dev, u32 *indir, u8 *key, u8 *hfunc, u32 context)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_rss *rss;

	rss = ctl ? flownic_rss_of(ctl, context) : NULL;
	if (!rss)
		return ctl ? -ENOENT : -EOPNOTSUPP;
	if (hfunc)
		*hfunc = ETH_RSS_HASH_TOP;
	get_config(rss, indir, key);
	return 0;
}

int flownic_get_rxfh(struct net_device *dev, u32 *indir, u8 *key, u8 *hfunc)
{
	return flownic_get_rxfh_context(dev, indir, key, hfunc, 0);
}

static int create(struct flownic_ctl *ctl, const u32 *indir, const u8 *key, u32 *context)
{
	struct flownic_rss wanted;
	u32 id = 1;
	int err;

	while (id < FLOWNIC_RSS_CONTEXTS && ctl->contexts[id])
		id++;
	start_config(ctl, &wanted);
	change_config(&wanted, indir, key);
	err = flownic_rss_create(ctl, id, &wanted);
	if (!err)
		*context = id;
	return err;
}

int flownic_set_rxfh_context(struct net_device *dev, const u32 *indir, const u8 *key,
			     const u8 hfunc, u32 *context, bool delete)
{
	struct flownic_ctl *ctl = flownic_ctl_of(dev);
	struct flownic_rss *rss, wanted;

	if (!ctl || (hfunc != ETH_RSS_HASH_NO_CHANGE && hfunc != ETH_RSS_HASH_TOP))
		return -EOPNOTSUPP;
	if (*context == ETH_RXFH_CONTEXT_ALLOC)
		return delete ? -EINVAL : create(ctl, indir, key, context);
	if (delete)
		return flownic_rss_remove(ctl, *context);
	rss = flownic_rss_of(ctl, *context);
	if (!rss)
		return -ENOENT;
	wanted = *rss;
	change_config(&wanted, indir, key);
	return apply_config(ctl, *context, &wanted);
}

int flownic_set_rxfh(struct net_device *dev, const u32 *indir, const u8 *key, const u8 hfunc)
{
	u32 context = 0;

	return flownic_set_rxfh_context(dev, indir, key, hfunc, &context, false);
}

int flownic_get_hash_fields(struct flownic_ctl *ctl, struct ethtool_rxnfc *info)
{
	u32 context = info->flow_type & FLOW_RSS ? info->rss_context : 0;
	struct flownic_rss *rss = flownic_rss_of(ctl, context);

	if (!rss)
		return -ENOENT;
	info->data = flownic_rss_get_fields(rss, info->flow_type & ~FLOW_RSS);
	return 0;
}

int flownic_set_hash_fields(struct flownic_ctl *ctl, const struct ethtool_rxnfc *info)
{
	u32 context = info->flow_type & FLOW_RSS ? info->rss_context : 0;
	struct flownic_rss *rss = flownic_rss_of(ctl, context), wanted;
	int err;

	if (!rss)
		return -ENOENT;
	wanted = *rss;
	err = flownic_rss_set_fields(ctl, &wanted, info->flow_type & ~FLOW_RSS, info->data);
	return err ?: flownic_rss_apply(ctl, context, &wanted);
}

#endif
