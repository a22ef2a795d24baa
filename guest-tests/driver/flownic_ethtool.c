// SPDX-License-Identifier: GPL-2.0
/*
 * What ethtool can do with the device: which function does what.
 */
#include "flownic_ctl.h"

static void flownic_get_drvinfo(struct net_device *dev, struct ethtool_drvinfo *info)
{
	const struct flownic_net *fn = netdev_priv(dev);

	strscpy(info->driver, FLOWNIC_NAME, sizeof(info->driver));
	strscpy(info->bus_info, virtio_bus_name(fn->vdev), sizeof(info->bus_info));
	if (fn->ctl)
		snprintf(info->fw_version, sizeof(info->fw_version), "%.*s",
			 (int)sizeof(fn->ctl->identity.version), fn->ctl->identity.version);
}

/* A link made of software has no speed. */
static int flownic_get_link_ksettings(struct net_device *dev, struct ethtool_link_ksettings *ks)
{
	ks->base.speed = SPEED_UNKNOWN;
	ks->base.duplex = DUPLEX_FULL;
	ks->base.port = PORT_OTHER;
	ks->base.autoneg = AUTONEG_DISABLE;
	return 0;
}

static int flownic_get_rxnfc(struct net_device *dev, struct ethtool_rxnfc *info, u32 *locations)
{
	const struct flownic_net *fn = netdev_priv(dev);

	if (info->cmd == ETHTOOL_GRXRINGS) {
		info->data = fn->num_pairs;
		return 0;
	}
	if (!fn->ctl)
		return -EOPNOTSUPP;
#if !FLOWNIC_RXFH_CONTEXT_OPS
	if (info->cmd == ETHTOOL_GRXFH)
		return flownic_get_hash_fields(fn->ctl, info);
#endif
	return flownic_flow_get(fn->ctl, info, locations);
}

static int flownic_set_rxnfc(struct net_device *dev, struct ethtool_rxnfc *info)
{
	const struct flownic_net *fn = netdev_priv(dev);

	if (!fn->ctl)
		return -EOPNOTSUPP;
#if !FLOWNIC_RXFH_CONTEXT_OPS
	if (info->cmd == ETHTOOL_SRXFH)
		return flownic_set_hash_fields(fn->ctl, info);
#endif
	return flownic_flow_set(fn->ctl, info);
}

#if FLOWNIC_RXFH_CONTEXT_OPS
static u32 flownic_get_rx_ring_count(struct net_device *dev)
{
	const struct flownic_net *fn = netdev_priv(dev);

	return fn->num_pairs;
}
#endif

const struct ethtool_ops flownic_ethtool_ops = {
	.supported_coalesce_params = ETHTOOL_COALESCE_USECS | ETHTOOL_COALESCE_MAX_FRAMES |
				     ETHTOOL_COALESCE_USE_ADAPTIVE_RX,
	.get_drvinfo = flownic_get_drvinfo,
	.get_link = ethtool_op_get_link,
	.get_link_ksettings = flownic_get_link_ksettings,
	.get_ts_info = ethtool_op_get_ts_info,

	.get_channels = flownic_get_channels,
	.set_channels = flownic_set_channels,
	.get_ringparam = flownic_get_ringparam,
	.set_ringparam = flownic_set_ringparam,

	.get_sset_count = flownic_get_sset_count,
	.get_strings = flownic_get_strings,
	.get_ethtool_stats = flownic_get_ethtool_stats,

	.get_priv_flags = flownic_get_priv_flags,
	.set_priv_flags = flownic_set_priv_flags,

	.get_coalesce = flownic_get_coalesce,
	.set_coalesce = flownic_set_coalesce,
	.get_per_queue_coalesce = flownic_get_per_queue_coalesce,
	.set_per_queue_coalesce = flownic_set_per_queue_coalesce,

	.get_rxnfc = flownic_get_rxnfc,
	.set_rxnfc = flownic_set_rxnfc,
	.get_rxfh_key_size = flownic_get_rxfh_key_size,
	.get_rxfh_indir_size = flownic_get_rxfh_indir_size,
	.get_rxfh = flownic_get_rxfh,
	.set_rxfh = flownic_set_rxfh,
#if FLOWNIC_RXFH_CONTEXT_OPS
	.supported_input_xfrm = RXH_XFRM_SYM_XOR | RXH_XFRM_SYM_OR_XOR,
	.rxfh_per_ctx_fields = true,
	.rxfh_per_ctx_key = true,
	.cap_rss_rxnfc_adds = true,
	.rxfh_indir_space = FLOWNIC_RSS_TABLE_MAX,
	.rxfh_max_num_contexts = FLOWNIC_RSS_CONTEXTS,
	.get_rx_ring_count = flownic_get_rx_ring_count,
	.get_rxfh_fields = flownic_get_rxfh_fields,
	.set_rxfh_fields = flownic_set_rxfh_fields,
	.create_rxfh_context = flownic_create_rxfh_context,
	.modify_rxfh_context = flownic_modify_rxfh_context,
	.remove_rxfh_context = flownic_remove_rxfh_context,
#else
	.get_rxfh_context = flownic_get_rxfh_context,
	.set_rxfh_context = flownic_set_rxfh_context,
#endif
};
