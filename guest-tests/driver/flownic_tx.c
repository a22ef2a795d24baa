// SPDX-License-Identifier: GPL-2.0
/*
 * Transmit queues.
 *
 * A transmit virtqueue carries chains of three kinds, told apart by the low bits of their token:
 * packets of the stack, frames of XDP, and commands for the device (queue 0 only). All adding and
 * reaping is done under the netdev queue's lock, since a virtqueue cannot do both at once.
 *
 * A queue is, to the stack,
 *
 *	closed		the interface is down, or about to go down or up
 *	started		there is room for one packet more, however fragmented
 *	stopped		there may be none; flownic_tx_reap() wakes it when there is
 *
 * The interrupt is either armed (it comes when three quarters of what is outstanding have been
 * done) or NAPI is going to poll, and will arm it. It is never off for longer than that, so a
 * packet is always reaped in the end, and xmit need not care.
 */

#include <linux/tcp.h>
#include <linux/udp.h>

#include "flownic_net.h"

static void flownic_tx_kick(struct flownic_tx *tx)
{
	if (virtqueue_kick_prepare(tx->vq) && virtqueue_notify(tx->vq)) {
		u64_stats_update_begin(&tx->stats.syncp);
		u64_stats_inc(&tx->stats.kicks);
		u64_stats_update_end(&tx->stats.syncp);
	}
}

/* Says in the header what the device has to do. False if that cannot be said. */
static bool flownic_tx_header(const struct flownic_net *fn, const struct sk_buff *skb,
			      struct virtio_net_hdr_v1 *hdr)
{
	const struct skb_shared_info *info = skb_shinfo(skb);
	unsigned int headers;

	memset(hdr, 0, sizeof(*hdr));
	if (skb->ip_summed == CHECKSUM_PARTIAL) {
		hdr->flags = VIRTIO_NET_HDR_F_NEEDS_CSUM;
		hdr->csum_start = cpu_to_virtio16(fn->vdev, skb_checksum_start_offset(skb));
		hdr->csum_offset = cpu_to_virtio16(fn->vdev, skb->csum_offset);
	}
	if (!skb_is_gso(skb))
		return true;

	if (info->gso_type & SKB_GSO_TCPV4)
		hdr->gso_type = VIRTIO_NET_HDR_GSO_TCPV4;
	else if (info->gso_type & SKB_GSO_TCPV6)
		hdr->gso_type = VIRTIO_NET_HDR_GSO_TCPV6;
	else if (info->gso_type & SKB_GSO_UDP_L4)
		hdr->gso_type = VIRTIO_NET_HDR_GSO_UDP_L4;
	else
		return false;
	if (info->gso_type & SKB_GSO_TCP_ECN)
		hdr->gso_type |= VIRTIO_NET_HDR_GSO_ECN;
	headers = skb_transport_offset(skb);
	headers += info->gso_type & SKB_GSO_UDP_L4 ? sizeof(struct udphdr) : tcp_hdrlen(skb);
	hdr->hdr_len = cpu_to_virtio16(fn->vdev, headers);
	hdr->gso_size = cpu_to_virtio16(fn->vdev, info->gso_size);
	return true;
}

static void flownic_tx_count(struct flownic_tx *tx, const struct sk_buff *skb, unsigned int headers)
{
	struct flownic_tx_stats *stats = &tx->stats;
	unsigned int segments = 1, bytes = skb->len;

	if (skb_is_gso(skb)) {
		segments = skb_shinfo(skb)->gso_segs;
		bytes += (segments - 1) * headers;
	}
	u64_stats_update_begin(&stats->syncp);
	u64_stats_add(&stats->packets, segments);
	u64_stats_add(&stats->bytes, bytes);
	if (skb->ip_summed == CHECKSUM_PARTIAL)
		u64_stats_inc(&stats->needs_csum);
	else
		u64_stats_inc(&stats->csum_none);
	if (skb_is_gso(skb)) {
		u64_stats_inc(&stats->gso_packets);
		u64_stats_add(&stats->gso_bytes, skb->len);
		u64_stats_add(&stats->gso_wire_packets, segments);
		u64_stats_add(&stats->gso_wire_bytes, bytes);
	}
	u64_stats_update_end(&stats->syncp);
}

/* Puts the header in front of the packet, and the whole into the ring. */
static int flownic_tx_add(const struct flownic_net *fn, struct flownic_tx *tx, struct sk_buff *skb)
{
	struct virtio_net_hdr_v1 hdr;
	int num, err;

	if (!flownic_tx_header(fn, skb, &hdr))
		return -EPROTONOSUPPORT;
	err = skb_cow_head(skb, sizeof(hdr));
	if (err)
		return err;

	memcpy(__skb_push(skb, sizeof(hdr)), &hdr, sizeof(hdr));
	sg_init_table(tx->sg, ARRAY_SIZE(tx->sg));
	num = skb_to_sgvec(skb, tx->sg, 0, skb->len);
	/* From here on the header is the ring's alone; the packet is as long as it was. */
	__skb_pull(skb, sizeof(hdr));
	if (num < 0)
		return num;

	err = virtqueue_add_outbuf(tx->vq, tx->sg, num, skb, GFP_ATOMIC);
	if (err)
		return err;
	WRITE_ONCE(tx->pending, tx->pending + 1);
	flownic_tx_count(tx, skb, virtio16_to_cpu(fn->vdev, hdr.hdr_len));
	return 0;
}

static void flownic_tx_stop_queue(struct flownic_tx *tx)
{
	netif_tx_stop_queue(tx->txq);
	u64_stats_update_begin(&tx->stats.syncp);
	u64_stats_inc(&tx->stats.stop);
	u64_stats_update_end(&tx->stats.syncp);
}

netdev_tx_t flownic_start_xmit(struct sk_buff *skb, struct net_device *dev)
{
	struct flownic_net *fn = netdev_priv(dev);
	struct flownic_tx *tx = &fn->pairs[skb_get_queue_mapping(skb)].tx;
	bool more = netdev_xmit_more();

	/* The stack starts all queues when a system wakes up, even if the device did not. */
	if (unlikely(!tx->open)) {
		netif_tx_stop_queue(tx->txq);
		return NETDEV_TX_BUSY;
	}
	/* XDP and commands take room, too, and do not stop the queue when they take the last. */
	if (unlikely(!flownic_tx_has_room(fn, tx))) {
		flownic_tx_stop_queue(tx);
		flownic_tx_kick(tx);
		return NETDEV_TX_BUSY;
	}

	if (unlikely(flownic_tx_add(fn, tx, skb))) {
		u64_stats_update_begin(&tx->stats.syncp);
		u64_stats_inc(&tx->stats.drops);
		u64_stats_update_end(&tx->stats.syncp);
		dev_kfree_skb_any(skb);
		if (!more)
			flownic_tx_kick(tx);
		return NETDEV_TX_OK;
	}
	skb_tx_timestamp(skb);

	/* All under the lock that reaping takes, so nobody can make room between look and stop. */
	if (unlikely(!flownic_tx_has_room(fn, tx)))
		flownic_tx_stop_queue(tx);
	if (__netdev_tx_sent_queue(tx->txq, skb->len, more))
		flownic_tx_kick(tx);
	return NETDEV_TX_OK;
}

/*
 * Frames of XDP. Returns how many were taken; the others stay the caller's. XDP frames have no
 * offloads, so they share one header of zeroes, which saves them the need for headroom.
 */
int flownic_tx_frames(struct flownic_pair *pair, struct xdp_frame **frames, int count, bool kick)
{
	struct flownic_net *fn = pair->fn;
	struct flownic_tx *tx = &pair->tx;
	unsigned int bytes = 0;
	int sent;

	__netif_tx_lock(tx->txq, smp_processor_id());
	for (sent = 0; sent < count && tx->open && flownic_tx_has_room(fn, tx); sent++) {
		struct xdp_frame *frame = frames[sent];
		unsigned int i, nr_frags = 0;
		struct skb_shared_info *info = xdp_get_shared_info_from_frame(frame);

		if (xdp_frame_has_frags(frame))
			nr_frags = info->nr_frags;
		sg_init_table(tx->sg, nr_frags + 2);
		sg_set_buf(&tx->sg[0], fn->no_offloads, sizeof(*fn->no_offloads));
		sg_set_buf(&tx->sg[1], frame->data, frame->len);
		for (i = 0; i < nr_frags; i++)
			sg_set_page(&tx->sg[i + 2], skb_frag_page(&info->frags[i]),
				    skb_frag_size(&info->frags[i]), skb_frag_off(&info->frags[i]));
		if (virtqueue_add_outbuf(tx->vq, tx->sg, nr_frags + 2,
					 flownic_token(frame, FLOWNIC_TOKEN_XDP), GFP_ATOMIC))
			break;
		WRITE_ONCE(tx->pending, tx->pending + 1);
		tx->xdp_pending++;
		bytes += xdp_get_frame_len(frame);
	}
	u64_stats_update_begin(&tx->stats.syncp);
	u64_stats_add(&tx->stats.packets, sent);
	u64_stats_add(&tx->stats.xdp_packets, sent);
	u64_stats_add(&tx->stats.bytes, bytes);
	u64_stats_update_end(&tx->stats.syncp);
	if (sent) {
		/* Or the watchdog takes a queue that is busy with our frames for one that hangs. */
		txq_trans_cond_update(tx->txq);
		if (kick)
			flownic_tx_kick(tx);
	}
	__netif_tx_unlock(tx->txq);
	return sent;
}

int flownic_tx_command(struct flownic_net *fn, struct scatterlist *out, struct scatterlist *in,
		       struct flownic_cmd *cmd)
{
	struct flownic_tx *tx = &fn->pairs[0].tx;
	struct scatterlist *sgs[] = { out, in };
	int err = -ENODEV;

	__netif_tx_lock_bh(tx->txq);
	if (tx->usable && !virtqueue_is_broken(tx->vq)) {
		err = virtqueue_add_sgs(tx->vq, sgs, 1, 1, flownic_token(cmd, FLOWNIC_TOKEN_CMD),
					GFP_ATOMIC);
		if (!err) {
			WRITE_ONCE(tx->pending, tx->pending + 1);
			u64_stats_update_begin(&tx->stats.syncp);
			u64_stats_inc(&tx->stats.commands);
			u64_stats_update_end(&tx->stats.syncp);
			flownic_tx_kick(tx);
		}
	}
	__netif_tx_unlock_bh(tx->txq);
	return err;
}
