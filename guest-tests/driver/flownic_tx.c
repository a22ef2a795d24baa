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

#define FLOWNIC_TOKEN_XDP	1UL
#define FLOWNIC_TOKEN_CMD	2UL
#define FLOWNIC_TOKEN_KIND	3UL

/* The most descriptors that a packet can take: the linear part, fragments, and a header. */
#define FLOWNIC_TX_ROOM		(MAX_SKB_FRAGS + 2)

static void *flownic_token(void *object, unsigned long kind)
{
	return (void *)((unsigned long)object | kind);
}

static bool flownic_tx_has_room(const struct flownic_net *fn, const struct flownic_tx *tx)
{
	return tx->pending < fn->tx_ring && tx->vq->num_free >= FLOWNIC_TX_ROOM;
}

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

static void flownic_cmds_done(struct flownic_cmd *cmds)
{
	while (cmds) {
		/* It may be gone when flownic_cmd_done() returns. */
		struct flownic_cmd *next = cmds->next;

		flownic_cmd_done(cmds, cmds->used_len);
		cmds = next;
	}
}

/* What became of a chain, done or given up, by its token. */
struct flownic_tx_reaped {
	unsigned int packets;
	unsigned int bytes;
	struct flownic_cmd *cmds;
	struct flownic_cmd **last_cmd;
};

static void flownic_tx_finish(struct flownic_tx *tx, void *token, unsigned int len, int budget,
			      struct flownic_tx_reaped *reaped)
{
	unsigned long kind = (unsigned long)token & FLOWNIC_TOKEN_KIND;
	void *object = (void *)((unsigned long)token & ~FLOWNIC_TOKEN_KIND);

	WRITE_ONCE(tx->pending, tx->pending - 1);
	if (kind == FLOWNIC_TOKEN_CMD) {
		struct flownic_cmd *cmd = object;

		cmd->used_len = len;
		cmd->next = NULL;
		*reaped->last_cmd = cmd;
		reaped->last_cmd = &cmd->next;
	} else if (kind == FLOWNIC_TOKEN_XDP) {
		tx->xdp_pending--;
		xdp_return_frame(object);
	} else {
		struct sk_buff *skb = object;

		reaped->packets++;
		reaped->bytes += skb->len;
		napi_consume_skb(skb, budget);
	}
}

/* Under the lock. Returns completed commands, for flownic_cmds_done() without it. */
static struct flownic_cmd *flownic_tx_reap(struct flownic_pair *pair, int budget)
{
	struct flownic_tx_reaped reaped = {};
	struct flownic_tx *tx = &pair->tx;
	unsigned int len;
	void *token;

	reaped.last_cmd = &reaped.cmds;
	while ((token = virtqueue_get_buf(tx->vq, &len)))
		flownic_tx_finish(tx, token, len, budget, &reaped);

	netdev_tx_completed_queue(tx->txq, reaped.packets, reaped.bytes);
	if (netif_tx_queue_stopped(tx->txq) && tx->open && flownic_tx_has_room(pair->fn, tx)) {
		netif_tx_wake_queue(tx->txq);
		u64_stats_update_begin(&tx->stats.syncp);
		u64_stats_inc(&tx->stats.wake);
		u64_stats_update_end(&tx->stats.syncp);
	}
	if (!tx->pending && waitqueue_active(&pair->fn->drained))
		wake_up(&pair->fn->drained);
	return reaped.cmds;
}

/* From NAPI. A budget of 0 is netpoll's, which may have interrupted the lock's holder. */
void flownic_tx_poll(struct flownic_pair *pair, int budget)
{
	struct flownic_tx *tx = &pair->tx;
	struct flownic_cmd *cmds;

	if (!READ_ONCE(tx->pending))
		return;
	if (budget) {
		__netif_tx_lock(tx->txq, smp_processor_id());
	} else if (!__netif_tx_trylock(tx->txq)) {
		return;
	} else if (tx->xdp_pending) {
		/* Their pages can't be given back with interrupts off. */
		__netif_tx_unlock(tx->txq);
		return;
	}
	virtqueue_disable_cb(tx->vq);
	cmds = flownic_tx_reap(pair, budget);
	__netif_tx_unlock(tx->txq);
	flownic_cmds_done(cmds);
}

/* From NAPI, when it has completed. False: so much is done already that it should go on. */
bool flownic_tx_arm(struct flownic_pair *pair)
{
	struct flownic_tx *tx = &pair->tx;
	bool armed;

	__netif_tx_lock(tx->txq, smp_processor_id());
	armed = virtqueue_enable_cb_delayed(tx->vq);
	if (!armed)
		virtqueue_disable_cb(tx->vq);
	__netif_tx_unlock(tx->txq);
	return armed;
}

/* Instead of NAPI while the interface is down: reaps and arms. Process context. */
static void flownic_tx_service(struct flownic_pair *pair)
{
	struct flownic_tx *tx = &pair->tx;
	struct flownic_cmd *cmds;
	bool armed;

	do {
		local_bh_disable();
		__netif_tx_lock(tx->txq, smp_processor_id());
		cmds = NULL;
		armed = true;
		if (tx->usable) {
			virtqueue_disable_cb(tx->vq);
			cmds = flownic_tx_reap(pair, 0);
			armed = virtqueue_enable_cb(tx->vq);
		}
		__netif_tx_unlock(tx->txq);
		flownic_cmds_done(cmds);
		local_bh_enable();
	} while (!armed);
}

void flownic_tx_reap_work(struct work_struct *work)
{
	struct flownic_net *fn = container_of(work, struct flownic_net, reap_work);
	unsigned int i;

	for (i = 0; i < fn->max_pairs; i++)
		if (!READ_ONCE(fn->pairs[i].up))
			flownic_tx_service(&fn->pairs[i]);
}

void flownic_tx_reap_commands(struct flownic_net *fn)
{
	flownic_tx_service(&fn->pairs[0]);
}

/* The device's interrupt. */
void flownic_tx_callback(struct virtqueue *vq)
{
	struct flownic_pair *pair = flownic_pair_of(vq);

	WRITE_ONCE(pair->tx.interrupts, pair->tx.interrupts + 1);
	virtqueue_disable_cb(vq);
	if (!READ_ONCE(pair->up))
		schedule_work(&pair->fn->reap_work);
	else
		napi_schedule(&pair->napi);
}

/* The stack, and XDP, may send. */
void flownic_tx_open(struct flownic_pair *pair)
{
	struct flownic_tx *tx = &pair->tx;

	__netif_tx_lock_bh(tx->txq);
	tx->open = true;
	netif_tx_wake_queue(tx->txq);
	__netif_tx_unlock_bh(tx->txq);
}

/* They may not any more. What the device has stays there. */
void flownic_tx_close(struct flownic_pair *pair)
{
	struct flownic_tx *tx = &pair->tx;

	__netif_tx_lock_bh(tx->txq);
	tx->open = false;
	netif_tx_stop_queue(tx->txq);
	__netif_tx_unlock_bh(tx->txq);
}

/* The device runs and takes commands. */
void flownic_tx_start(struct flownic_pair *pair)
{
	struct flownic_tx *tx = &pair->tx;

	__netif_tx_lock_bh(tx->txq);
	tx->usable = true;
	__netif_tx_unlock_bh(tx->txq);
}

/* It is about to stop. */
void flownic_tx_refuse(struct flownic_pair *pair)
{
	struct flownic_tx *tx = &pair->tx;

	__netif_tx_lock_bh(tx->txq);
	tx->usable = false;
	__netif_tx_unlock_bh(tx->txq);
}

/* The device has been reset and has let go of all chains: what it had not done is given up. */
void flownic_tx_stop(struct flownic_pair *pair)
{
	struct flownic_tx_reaped reaped = {};
	struct flownic_tx *tx = &pair->tx;
	unsigned int dropped, len;
	void *token;

	reaped.last_cmd = &reaped.cmds;
	local_bh_disable();
	__netif_tx_lock(tx->txq, smp_processor_id());
	while ((token = virtqueue_get_buf(tx->vq, &len)))
		flownic_tx_finish(tx, token, len, 0, &reaped);
	dropped = tx->pending;
	while ((token = virtqueue_detach_unused_buf(tx->vq)))
		flownic_tx_finish(tx, token, 0, 0, &reaped);
	WARN_ON_ONCE(tx->pending || tx->xdp_pending);
	netdev_tx_reset_queue(tx->txq);
	u64_stats_update_begin(&tx->stats.syncp);
	u64_stats_add(&tx->stats.drops, dropped);
	u64_stats_update_end(&tx->stats.syncp);
	__netif_tx_unlock(tx->txq);
	flownic_cmds_done(reaped.cmds);
	local_bh_enable();
}
