// SPDX-License-Identifier: GPL-2.0
/*
 * Receive buffers.
 *
 * A buffer is a page of the queue's page pool. Its states:
 *
 *	posted	the device has it: flownic_rx_refill() -> flownic_rx_get()
 *	ours	for as long as a frame is looked at
 *	gone	into an skb or an XDP frame, from which it comes back to the pool by itself
 *
 * How the device is to fill it is decided when the device starts (flownic_rx_layout()):
 *
 *	plain	the whole page. The largest frame that there is, 64 KiB and its headers, then
 *		fits into as many pages as an skb has room for fragments.
 *	XDP	with the headroom and tailroom that programs expect
 */

#include "flownic_net.h"

void flownic_rx_layout(struct flownic_net *fn)
{
	if (rcu_access_pointer(fn->xdp_prog)) {
		fn->rx_headroom = XDP_PACKET_HEADROOM - FLOWNIC_HDR_LEN;
		fn->rx_room = SKB_WITH_OVERHEAD(PAGE_SIZE) - fn->rx_headroom;
	} else {
		fn->rx_headroom = 0;
		fn->rx_room = PAGE_SIZE;
	}
}

struct page *flownic_rx_get(struct flownic_rx *rx, unsigned int *len)
{
	struct page *page = virtqueue_get_buf(rx->vq, len);

	if (page)
		rx->posted--;
	return page;
}

/* Posts what is missing. Returns false if there was no memory for it. */
bool flownic_rx_refill(struct flownic_pair *pair, gfp_t gfp)
{
	struct flownic_net *fn = pair->fn;
	struct flownic_rx *rx = &pair->rx;
	struct scatterlist sg;
	bool added = false;

	while (rx->posted < fn->rx_ring && rx->vq->num_free) {
		struct page *page = page_pool_alloc_pages(rx->pool, gfp | __GFP_NOWARN);

		if (unlikely(!page))
			break;
		sg_init_table(&sg, 1);
		sg_set_page(&sg, page, fn->rx_room, fn->rx_headroom);
		if (unlikely(virtqueue_add_inbuf(rx->vq, &sg, 1, page, gfp))) {
			page_pool_put_full_page(rx->pool, page, false);
			break;
		}
		rx->posted++;
		added = true;
	}
	if (added)
		virtqueue_kick(rx->vq);
	if (likely(rx->posted >= fn->rx_ring || !rx->vq->num_free))
		return true;

	u64_stats_update_begin(&rx->stats.syncp);
	u64_stats_inc(&rx->stats.alloc_fail);
	u64_stats_update_end(&rx->stats.syncp);
	return false;
}

/* The buffers of a frame after its first one: takes them from the device and drops them. */
void flownic_rx_drop_rest(struct flownic_rx *rx, unsigned int buffers)
{
	unsigned int len;
	struct page *page;

	while (buffers-- && (page = flownic_rx_get(rx, &len)))
		page_pool_recycle_direct(rx->pool, page);
}

/*
 * Throws away what arrived while nobody was listening: it is old, and not for those who are going
 * to. NAPI is disabled.
 */
void flownic_rx_discard(struct flownic_pair *pair)
{
	struct flownic_rx *rx = &pair->rx;
	unsigned int len;
	struct page *page;

	while ((page = flownic_rx_get(rx, &len)))
		page_pool_put_full_page(rx->pool, page, false);
	flownic_rx_refill(pair, GFP_KERNEL);
}

int flownic_rx_start(struct flownic_pair *pair)
{
	struct flownic_net *fn = pair->fn;
	struct flownic_rx *rx = &pair->rx;
	struct page_pool_params params = {
		.pool_size = fn->rx_ring,
		.nid = NUMA_NO_NODE,
		.dev = fn->vdev->dev.parent,
		.dma_dir = DMA_FROM_DEVICE,
	};

	flownic_pool_params(&params, fn->dev, &pair->napi, pair->index);
	rx->posted = 0;
	rx->pool = page_pool_create(&params);
	if (IS_ERR(rx->pool)) {
		int err = PTR_ERR(rx->pool);

		rx->pool = NULL;
		return err;
	}
	return 0;
}

/* The device is ready now and gets its buffers. Fewer than wanted is no error: NAPI tries again. */
void flownic_rx_fill(struct flownic_pair *pair)
{
	flownic_rx_refill(pair, GFP_KERNEL);
}

/* The device has been reset: takes back what it had. */
void flownic_rx_stop(struct flownic_pair *pair)
{
	struct flownic_rx *rx = &pair->rx;
	struct page *page;

	if (!rx->pool)
		return;
	while ((page = virtqueue_detach_unused_buf(rx->vq)))
		page_pool_put_full_page(rx->pool, page, false);
	page_pool_destroy(rx->pool);
	rx->pool = NULL;
}

/* What XDP has to know of the queue: its pool, and its NAPI instance, which has an ID by now. */
int flownic_rx_up(struct flownic_pair *pair)
{
	struct flownic_rx *rx = &pair->rx;
	int err;

	err = __xdp_rxq_info_reg(&rx->xdp_rxq, pair->fn->dev, pair->index, pair->napi.napi_id,
				 PAGE_SIZE);
	if (err)
		return err;
	err = xdp_rxq_info_reg_mem_model(&rx->xdp_rxq, MEM_TYPE_PAGE_POOL, rx->pool);
	if (err)
		xdp_rxq_info_unreg(&rx->xdp_rxq);
	return err;
}

void flownic_rx_down(struct flownic_pair *pair)
{
	if (xdp_rxq_info_is_reg(&pair->rx.xdp_rxq))
		xdp_rxq_info_unreg(&pair->rx.xdp_rxq);
}
