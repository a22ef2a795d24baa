// SPDX-License-Identifier: GPL-2.0
/*
 * Transmit queues: what comes back from the device, and when queues begin and end.
 *
 * Chains are reaped by NAPI while a pair is up, by a work item while it is down, and given up when
 * the device stops.
 */

#include "flownic_net.h"

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
	if (!tx->pending && wq_has_sleeper(&pair->fn->drained))
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
	WRITE_ONCE(tx->open, true);
	netif_tx_wake_queue(tx->txq);
	__netif_tx_unlock_bh(tx->txq);
}

/* They may not any more. What the device has stays there. */
void flownic_tx_close(struct flownic_pair *pair)
{
	struct flownic_tx *tx = &pair->tx;

	__netif_tx_lock_bh(tx->txq);
	WRITE_ONCE(tx->open, false);
	netif_tx_stop_queue(tx->txq);
	/* The watchdog shall not count from a packet of long ago. */
	txq_trans_cond_update(tx->txq);
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
