// SPDX-License-Identifier: GPL-2.0
/*
 * XDP: a program sees each frame before the stack does.
 *
 * A program needs buffers with room at both ends and frames as they were on the wire, so attaching
 * the first one and detaching the last one restart the device (flownic_dev.c), with another layout
 * and without receive offloads. One program for another is a swap of pointers.
 *
 * What becomes of a frame, by verdict:
 *
 *	PASS		an skb, which flownic_rx.c takes on
 *	TX		collected, and sent by this pair's transmit queue when the poll ends
 *	REDIRECT	the kernel's; flushed when the poll ends
 *	else		dropped, the buffers recycled
 */

#include <linux/bpf_trace.h>
#include <linux/filter.h>

#include "flownic_net.h"

static unsigned int flownic_xdp_room(void)
{
	return SKB_WITH_OVERHEAD(PAGE_SIZE) - XDP_PACKET_HEADROOM;
}

unsigned int flownic_xdp_max_mtu(const struct flownic_net *fn, bool frags)
{
	/* One fragment less than an skb may have, since the first buffer becomes one as well. */
	unsigned int buffers = frags ? MAX_SKB_FRAGS - 1 : 1;

	return min_t(unsigned int, buffers * flownic_xdp_room() - VLAN_ETH_HLEN, fn->dev->max_mtu);
}

/* Adds a frame's further buffers. False: it is malformed; all its buffers have been taken. */
static bool flownic_xdp_add_rest(struct flownic_pair *pair, struct xdp_buff *xdp,
				 unsigned int buffers)
{
	struct skb_shared_info *info = xdp_get_shared_info_from_buff(xdp);
	struct flownic_net *fn = pair->fn;
	struct flownic_rx *rx = &pair->rx;
	unsigned int len;
	struct page *page;

	info->nr_frags = 0;
	info->xdp_frags_size = 0;
	xdp_buff_set_frags_flag(xdp);
	while (buffers--) {
		page = flownic_rx_get(rx, &len);
		if (unlikely(!page))
			return false;
		if (unlikely(!len || len > fn->rx_room || info->nr_frags == MAX_SKB_FRAGS - 1)) {
			page_pool_recycle_direct(rx->pool, page);
			flownic_rx_drop_rest(rx, buffers);
			return false;
		}
		skb_frag_fill_page_desc(&info->frags[info->nr_frags++], page, fn->rx_headroom, len);
		info->xdp_frags_size += len;
	}
	return true;
}

/* The frame as the program left it. The buffers are used up, whatever is returned. */
static struct sk_buff *flownic_xdp_build(struct flownic_pair *pair, struct xdp_buff *xdp)
{
	struct skb_shared_info *info = xdp_get_shared_info_from_buff(xdp);
	struct page *page = virt_to_page(xdp->data_hard_start);
	unsigned int i, nr_frags, meta = 0;
	struct sk_buff *skb;

	nr_frags = xdp_buff_has_frags(xdp) ? info->nr_frags : 0;
	if (!xdp_data_meta_unsupported(xdp))
		meta = xdp->data - xdp->data_meta;
	skb = flownic_rx_build(pair, page, xdp->data - page_address(page),
			       xdp->data_end - xdp->data, meta);
	for (i = 0; i < nr_frags; i++) {
		skb_frag_t *frag = &info->frags[i];

		if (likely(skb))
			flownic_rx_add_page(skb, skb_frag_page(frag), skb_frag_off(frag),
					    skb_frag_size(frag));
		else
			page_pool_recycle_direct(pair->rx.pool, skb_frag_page(frag));
	}
	return skb;
}

static void flownic_xdp_send(struct flownic_pair *pair)
{
	struct flownic_rx *rx = &pair->rx;
	int i, sent;

	sent = flownic_tx_frames(pair, rx->xdp_tx, rx->xdp_tx_count, true);
	for (i = sent; i < rx->xdp_tx_count; i++)
		xdp_return_frame_rx_napi(rx->xdp_tx[i]);
	u64_stats_update_begin(&rx->stats.syncp);
	u64_stats_add(&rx->stats.xdp_tx, sent);
	u64_stats_add(&rx->stats.xdp_drops, rx->xdp_tx_count - sent);
	u64_stats_update_end(&rx->stats.syncp);
	rx->xdp_tx_count = 0;
}

static bool flownic_xdp_tx(struct flownic_pair *pair, struct xdp_buff *xdp)
{
	struct flownic_rx *rx = &pair->rx;
	struct xdp_frame *frame = xdp_convert_buff_to_frame(xdp);

	if (unlikely(!frame))
		return false;
	rx->xdp_tx[rx->xdp_tx_count++] = frame;
	if (rx->xdp_tx_count == FLOWNIC_XDP_BATCH)
		flownic_xdp_send(pair);
	return true;
}

/* At the end of a poll. */
void flownic_xdp_flush(struct flownic_pair *pair)
{
	struct flownic_rx *rx = &pair->rx;

	if (rx->xdp_tx_count)
		flownic_xdp_send(pair);
	if (rx->xdp_redirected) {
		rx->xdp_redirected = false;
		xdp_do_flush();
	}
}

/*
 * Runs the program on a frame of @len bytes in @page and @rest further buffers. Returns an skb
 * if the frame goes up the stack; all else has been done then, counting included.
 */
struct sk_buff *flownic_xdp_run(struct flownic_pair *pair, struct bpf_prog *prog,
				struct page *page, unsigned int len, unsigned int rest)
{
	struct flownic_net *fn = pair->fn;
	struct flownic_rx *rx = &pair->rx;
	struct sk_buff *skb = NULL;
	struct xdp_buff xdp;
	unsigned int bytes;
	u32 verdict;

	if (unlikely(rest && !flownic_xdp_has_frags(prog))) {
		page_pool_recycle_direct(rx->pool, page);
		flownic_rx_drop_rest(rx, rest);
		flownic_rx_count_drop(rx);
		return NULL;
	}
	xdp_init_buff(&xdp, PAGE_SIZE, &rx->xdp_rxq);
	xdp_prepare_buff(&xdp, page_address(page), fn->rx_headroom + FLOWNIC_HDR_LEN, len, true);
	if (rest && unlikely(!flownic_xdp_add_rest(pair, &xdp, rest))) {
		flownic_rx_count_drop(rx);
		goto drop;
	}

	/* The program may shorten it, but this is what was received. */
	bytes = xdp_get_buff_len(&xdp);
	verdict = bpf_prog_run_xdp(prog, &xdp);
	u64_stats_update_begin(&rx->stats.syncp);
	u64_stats_inc(&rx->stats.packets);
	u64_stats_add(&rx->stats.bytes, bytes);
	u64_stats_inc(&rx->stats.xdp_packets);
	u64_stats_update_end(&rx->stats.syncp);

	switch (verdict) {
	case XDP_PASS:
		skb = flownic_xdp_build(pair, &xdp);
		if (unlikely(!skb))
			flownic_rx_count_drop(rx);
		return skb;
	case XDP_TX:
		if (likely(flownic_xdp_tx(pair, &xdp)))
			return NULL;
		trace_xdp_exception(fn->dev, prog, verdict);
		break;
	case XDP_REDIRECT:
		if (likely(!xdp_do_redirect(fn->dev, &xdp, prog))) {
			rx->xdp_redirected = true;
			u64_stats_update_begin(&rx->stats.syncp);
			u64_stats_inc(&rx->stats.xdp_redirects);
			u64_stats_update_end(&rx->stats.syncp);
			return NULL;
		}
		trace_xdp_exception(fn->dev, prog, verdict);
		break;
	case XDP_DROP:
		break;
	default:
		bpf_warn_invalid_xdp_action(fn->dev, prog, verdict);
		fallthrough;
	case XDP_ABORTED:
		trace_xdp_exception(fn->dev, prog, verdict);
		break;
	}
	u64_stats_update_begin(&rx->stats.syncp);
	u64_stats_inc(&rx->stats.xdp_drops);
	u64_stats_update_end(&rx->stats.syncp);
drop:
	xdp_return_buff(&xdp);
	return NULL;
}

/* Frames that another device's program sends here. Softirq; any CPU, so pairs are shared. */
int flownic_xdp_xmit(struct net_device *dev, int count, struct xdp_frame **frames, u32 flags)
{
	struct flownic_net *fn = netdev_priv(dev);
	unsigned int pairs = READ_ONCE(fn->num_pairs);

	if (unlikely(flags & ~XDP_XMIT_FLAGS_MASK))
		return -EINVAL;
	if (unlikely(!netif_running(dev) || !netif_carrier_ok(dev)))
		return -ENETDOWN;
	return flownic_tx_frames(&fn->pairs[smp_processor_id() % pairs], frames, count,
				 flags & XDP_XMIT_FLUSH);
}

static int flownic_xdp_check(struct flownic_net *fn, const struct netdev_bpf *bpf)
{
	if (!bpf->prog)
		return 0;
	if (fn->dev->mtu <= flownic_xdp_max_mtu(fn, flownic_xdp_has_frags(bpf->prog)))
		return 0;
	NL_SET_ERR_MSG_MOD(bpf->extack, "The MTU is too large for this program");
	return -EOPNOTSUPP;
}

static int flownic_xdp_setup(struct flownic_net *fn, struct netdev_bpf *bpf)
{
	struct bpf_prog *old = rtnl_dereference(fn->xdp_prog);
	int err;

	err = flownic_xdp_check(fn, bpf);
	if (err)
		return err;

	rcu_assign_pointer(fn->xdp_prog, bpf->prog);
	if (!old == !bpf->prog)
		goto swapped;

	/* A device that goes away needs no new layout. */
	if (fn->dev->reg_state != NETREG_REGISTERED)
		goto swapped;
	/* Receive offloads go away or come back, most often by a restart; if not, that is due. */
	netdev_update_features(fn->dev);
	err = flownic_dev_stale(fn) ? flownic_dev_restart(fn) : 0;
	if (err) {
		NL_SET_ERR_MSG_MOD(bpf->extack, "The device did not restart");
		rcu_assign_pointer(fn->xdp_prog, old);
		return err;
	}
swapped:
	if (old)
		bpf_prog_put(old);
	return 0;
}

int flownic_xdp(struct net_device *dev, struct netdev_bpf *bpf)
{
	struct flownic_net *fn = netdev_priv(dev);

	switch (bpf->command) {
	case XDP_SETUP_PROG:
		return flownic_xdp_setup(fn, bpf);
	default:
		return -EINVAL;
	}
}
