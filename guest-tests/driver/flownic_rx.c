// SPDX-License-Identifier: GPL-2.0
/*
 * Receive queues: from buffers to frames to the stack, and NAPI.
 *
 * A frame begins in the buffer that the device gives back first, with a header that says in how
 * many buffers it is; the next ones have no header. It becomes an skb: what is short is copied, so
 * that the page can be posted again at once; else the pages become the skb's fragments.
 *
 * Where an XDP program is attached it sees the frame first (flownic_xdp.c).
 */

#include <linux/filter.h>

#include "flownic_net.h"

/* Buffers to post at once, so that the ring is not published one by one. */
#define FLOWNIC_REFILL		16

/* What flownic puts into the header's unused fields (docs/guest-abi.md, "Hash in the header"). */
#define FLOWNIC_HDR_F_HASH	0x80
#define FLOWNIC_HDR_F_HASH_L4	0x40

void flownic_rx_count_drop(struct flownic_rx *rx)
{
	u64_stats_update_begin(&rx->stats.syncp);
	u64_stats_inc(&rx->stats.drops);
	u64_stats_update_end(&rx->stats.syncp);
}

/*
 * An skb with what is at @offset of @page: a short frame is copied and the page recycled, of a long
 * one only the Ethernet header is, and the page becomes a fragment. @meta bytes in front of it are
 * a program's metadata. The page is used up, whatever is returned.
 */
struct sk_buff *flownic_rx_build(struct flownic_pair *pair, struct page *page, unsigned int offset,
				 unsigned int len, unsigned int meta)
{
	struct flownic_rx *rx = &pair->rx;
	unsigned int copy = len <= FLOWNIC_COPY_LEN ? len : ETH_HLEN;
	struct sk_buff *skb;

	skb = napi_alloc_skb(&pair->napi, FLOWNIC_COPY_LEN + meta);
	if (unlikely(!skb)) {
		u64_stats_update_begin(&rx->stats.syncp);
		u64_stats_inc(&rx->stats.alloc_fail);
		u64_stats_update_end(&rx->stats.syncp);
		page_pool_recycle_direct(rx->pool, page);
		return NULL;
	}

	skb_put_data(skb, page_address(page) + offset - meta, meta + copy);
	if (meta) {
		__skb_pull(skb, meta);
		skb_metadata_set(skb, meta);
	}
	if (copy < len) {
		skb_add_rx_frag(skb, 0, page, offset + copy, len - copy, PAGE_SIZE);
		skb_mark_for_recycle(skb);
	} else {
		page_pool_recycle_direct(rx->pool, page);
	}
	return skb;
}

bool flownic_rx_add_page(struct sk_buff *skb, struct page *page, unsigned int offset,
			 unsigned int len)
{
	unsigned int frag = skb_shinfo(skb)->nr_frags;

	if (unlikely(frag == MAX_SKB_FRAGS))
		return false;
	skb_add_rx_frag(skb, frag, page, offset, len, PAGE_SIZE);
	skb_mark_for_recycle(skb);
	return true;
}

/* Adds a frame's further buffers. False: it is malformed; all its buffers have been taken. */
static bool flownic_rx_add_rest(struct flownic_pair *pair, struct sk_buff *skb,
				unsigned int buffers)
{
	struct flownic_rx *rx = &pair->rx;
	unsigned int len;
	struct page *page;

	while (buffers--) {
		page = flownic_rx_get(rx, &len);
		if (unlikely(!page))
			return false;
		if (unlikely(!len || len > pair->fn->rx_room ||
			     !flownic_rx_add_page(skb, page, pair->fn->rx_headroom, len))) {
			page_pool_recycle_direct(rx->pool, page);
			flownic_rx_drop_rest(rx, buffers);
			return false;
		}
	}
	return true;
}

/* Gives the stack the hash that the device computed, and takes it out of the header. */
static bool flownic_rx_hash(const struct flownic_net *fn, struct sk_buff *skb,
			    struct virtio_net_hdr_v1 *hdr)
{
	enum pkt_hash_types type;
	u32 hash;

	if (!(hdr->flags & FLOWNIC_HDR_F_HASH))
		return false;
	type = hdr->flags & FLOWNIC_HDR_F_HASH_L4 ? PKT_HASH_TYPE_L4 : PKT_HASH_TYPE_L3;
	hdr->flags &= ~(FLOWNIC_HDR_F_HASH | FLOWNIC_HDR_F_HASH_L4);
	if (!(hdr->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM)) {
		hash = virtio16_to_cpu(fn->vdev, hdr->csum_start) |
		       (u32)virtio16_to_cpu(fn->vdev, hdr->csum_offset) << 16;
	} else if (hdr->gso_type == VIRTIO_NET_HDR_GSO_NONE) {
		hash = virtio16_to_cpu(fn->vdev, hdr->hdr_len) |
		       (u32)virtio16_to_cpu(fn->vdev, hdr->gso_size) << 16;
	} else {
		return false;
	}
	if (!(fn->dev->features & NETIF_F_RXHASH))
		return false;
	skb_set_hash(skb, hash, type);
	return true;
}

/* Checksum, segmentation, hash: from the header into the skb. False: the header is malformed. */
static bool flownic_rx_offloads(struct flownic_pair *pair, struct sk_buff *skb,
				struct virtio_net_hdr_v1 *hdr)
{
	struct flownic_rx_stats *stats = &pair->rx.stats;
	bool hashed = flownic_rx_hash(pair->fn, skb, hdr);
	unsigned int segments;

	if (hdr->flags & VIRTIO_NET_HDR_F_DATA_VALID)
		skb->ip_summed = CHECKSUM_UNNECESSARY;
	if (virtio_net_hdr_to_skb(skb, (struct virtio_net_hdr *)hdr,
				  virtio_is_little_endian(pair->fn->vdev)))
		return false;

	u64_stats_update_begin(&stats->syncp);
	if (skb->ip_summed == CHECKSUM_NONE)
		u64_stats_inc(&stats->csum_none);
	else
		u64_stats_inc(&stats->csum_unnecessary);
	if (hashed)
		u64_stats_inc(&stats->hashes);
	if (skb_is_gso(skb)) {
		segments = DIV_ROUND_UP(skb->len, skb_shinfo(skb)->gso_size);
		u64_stats_inc(&stats->gso_packets);
		u64_stats_add(&stats->gso_bytes, skb->len);
		u64_stats_add(&stats->gso_wire_packets, segments);
	}
	u64_stats_update_end(&stats->syncp);
	return true;
}

/* One frame, which begins in @page. */
static void flownic_rx_frame(struct flownic_pair *pair, struct bpf_prog *prog, struct page *page,
			     unsigned int len)
{
	struct flownic_net *fn = pair->fn;
	struct flownic_rx *rx = &pair->rx;
	struct virtio_net_hdr_v1 hdr;
	struct sk_buff *skb = NULL;
	unsigned int rest;

	memcpy(&hdr, page_address(page) + fn->rx_headroom, sizeof(hdr));
	rest = virtio16_to_cpu(fn->vdev, hdr.num_buffers);
	/* The device is software, and may be wrong: look before trusting its lengths. */
	if (unlikely(len < sizeof(hdr) + ETH_HLEN || len > fn->rx_room || !rest)) {
		page_pool_recycle_direct(rx->pool, page);
		flownic_rx_drop_rest(rx, rest ? rest - 1 : 0);
		flownic_rx_count_drop(rx);
		return;
	}
	len -= sizeof(hdr);
	rest--;

	if (prog) {
		/* No offloads were negotiated with a program around; the hash may be there. */
		skb = flownic_xdp_run(pair, prog, page, len, rest);
		if (!skb)
			return;
	} else {
		skb = flownic_rx_build(pair, page, fn->rx_headroom + sizeof(hdr), len, 0);
		if (unlikely(!skb)) {
			flownic_rx_drop_rest(rx, rest);
			flownic_rx_count_drop(rx);
			return;
		}
		if (rest && unlikely(!flownic_rx_add_rest(pair, skb, rest)))
			goto drop;
		u64_stats_update_begin(&rx->stats.syncp);
		u64_stats_inc(&rx->stats.packets);
		u64_stats_add(&rx->stats.bytes, skb->len);
		u64_stats_update_end(&rx->stats.syncp);
	}

	if (unlikely(!flownic_rx_offloads(pair, skb, &hdr)))
		goto drop;
	skb_record_rx_queue(skb, pair->index);
	skb->protocol = eth_type_trans(skb, fn->dev);
	napi_gro_receive(&pair->napi, skb);
	return;

drop:
	flownic_rx_count_drop(rx);
	dev_kfree_skb_any(skb);
}

static int flownic_rx_poll(struct flownic_pair *pair, int budget)
{
	struct flownic_net *fn = pair->fn;
	struct flownic_rx *rx = &pair->rx;
	struct bpf_prog *prog;
	unsigned int len;
	struct page *page;
	int done = 0;

	rcu_read_lock();
	prog = rcu_dereference(fn->xdp_prog);
	/* A program that is just coming or going waits for the restart that gives it its layout. */
	if (!fn->rx_headroom)
		prog = NULL;
	while (done < budget && (page = flownic_rx_get(rx, &len))) {
		flownic_rx_frame(pair, prog, page, len);
		done++;
	}
	if (prog)
		flownic_xdp_flush(pair);
	rcu_read_unlock();

	u64_stats_update_begin(&rx->stats.syncp);
	u64_stats_inc(&rx->stats.polls);
	u64_stats_update_end(&rx->stats.syncp);

	/* Without memory for half a ring NAPI goes on polling: the device would not call again. */
	if (rx->posted + FLOWNIC_REFILL <= fn->rx_ring &&
	    !flownic_rx_refill(pair, GFP_ATOMIC) && rx->posted < fn->rx_ring / 2)
		return budget;
	return done;
}

/*
 * NAPI of a queue pair. While it is scheduled both interrupts are off; it re-arms them when it has
 * completed, and looks once more, since something may have come in between.
 */
int flownic_poll(struct napi_struct *napi, int budget)
{
	struct flownic_pair *pair = container_of(napi, struct flownic_pair, napi);
	struct virtqueue *vq = pair->rx.vq;
	unsigned int used;
	bool busy;
	int done;

	flownic_tx_poll(pair, budget);
	/* netpoll wants transmission served and nothing else. */
	if (!budget)
		return 0;
	/*
	 * Who busy-polls comes back at once, and takes this mark away before its last round. To ask for an interrupt
	 * after each look in vain, and to take that back, would get one for whatever arrives in between.
	 */
	busy = test_bit(NAPI_STATE_IN_BUSY_POLL, &napi->state);
	if (busy)
		virtqueue_disable_cb(vq);
	done = flownic_rx_poll(pair, budget);
	if (busy || done == budget)
		return done;

	flownic_dim_sample(pair);
	used = virtqueue_enable_cb_prepare(vq);
	if (!napi_complete_done(napi, done)) {
		/* Somebody wants another round. */
		virtqueue_disable_cb(vq);
		return done;
	}
	if (virtqueue_poll(vq, used) || !flownic_tx_arm(pair)) {
		if (napi_schedule_prep(napi)) {
			virtqueue_disable_cb(vq);
			__napi_schedule(napi);
		}
	}
	return done;
}

/* The device's interrupt. */
void flownic_rx_callback(struct virtqueue *vq)
{
	struct flownic_pair *pair = flownic_pair_of(vq);

	WRITE_ONCE(pair->rx.interrupts, pair->rx.interrupts + 1);
	if (napi_schedule_prep(&pair->napi)) {
		virtqueue_disable_cb(vq);
		__napi_schedule(&pair->napi);
	}
}
