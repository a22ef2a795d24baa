/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that this driver builds for: 6.1 and 7.3.
 *
 * Each entry lets the rest of the driver be written for the newer kernel. Where the older one has
 * nothing of the kind, the entry does nothing, and says what is missing then.
 */
#ifndef FLOWNIC_COMPAT_H
#define FLOWNIC_COMPAT_H

#include <linux/netdevice.h>
#include <linux/slab.h>
#include <linux/version.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 6, 0)
#include <net/page_pool/helpers.h>
#else
#include <net/page_pool.h>
#endif

/* Queue statistics by netlink. */
#define FLOWNIC_HAS_QSTATS	(LINUX_VERSION_CODE >= KERNEL_VERSION(6, 10, 0))

/* UDP segmentation offload in virtio. Before, the driver does not take it. */
#ifndef VIRTIO_NET_F_HOST_USO
#define VIRTIO_NET_F_GUEST_USO4		54
#define VIRTIO_NET_F_GUEST_USO6		55
#define VIRTIO_NET_F_HOST_USO		56
#define VIRTIO_NET_HDR_GSO_UDP_L4	5
/* The kernel's parser of headers does not know of it. */
#define FLOWNIC_HAS_GUEST_USO	0
#else
#define FLOWNIC_HAS_GUEST_USO	1
#endif

/* Dynamic interrupt moderation; where it is not configured only the device can adapt. */
#define FLOWNIC_HAS_DIM		IS_REACHABLE(CONFIG_DIMLIB)

#if FLOWNIC_HAS_DIM
#include <linux/dim.h>

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 13, 0)
static inline void flownic_net_dim(struct dim *dim, const struct dim_sample *sample)
{
	net_dim(dim, sample);
}
#else
static inline void flownic_net_dim(struct dim *dim, const struct dim_sample *sample)
{
	net_dim(dim, *sample);
}
#endif
#endif

#ifndef kzalloc_obj
#define kzalloc_obj(object)	kzalloc(sizeof(object), GFP_KERNEL)
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 11, 0)
static inline int flownic_find_vqs(struct virtio_device *vdev, unsigned int count,
				   struct virtqueue *vqs[], struct virtqueue_info infos[])
{
	return virtio_find_vqs(vdev, count, vqs, infos, NULL);
}
#else
struct virtqueue_info {
	const char *name;
	vq_callback_t *callback;
	bool ctx;
};

static inline int flownic_find_vqs(struct virtio_device *vdev, unsigned int count,
				   struct virtqueue *vqs[], struct virtqueue_info infos[])
{
	vq_callback_t **callbacks = kcalloc(count, sizeof(*callbacks), GFP_KERNEL);
	const char **names = kcalloc(count, sizeof(*names), GFP_KERNEL);
	unsigned int i;
	int err = -ENOMEM;

	if (callbacks && names) {
		for (i = 0; i < count; i++) {
			callbacks[i] = infos[i].callback;
			names[i] = infos[i].name;
		}
		err = virtio_find_vqs(vdev, count, vqs, callbacks, names, NULL);
	}
	kfree(names);
	kfree(callbacks);
	return err;
}
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 9, 0)
static inline void flownic_pool_params(struct page_pool_params *params, struct net_device *dev,
				       struct napi_struct *napi, unsigned int queue)
{
	params->netdev = dev;
	params->napi = napi;
	params->queue_idx = queue;
}
#else
/* The pool is not shown as the queue's, and pages freed elsewhere take the slower way back. */
static inline void flownic_pool_params(struct page_pool_params *params, struct net_device *dev,
				       struct napi_struct *napi, unsigned int queue)
{
}
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 5, 0)
static inline void skb_frag_fill_page_desc(skb_frag_t *frag, struct page *page, int offset,
					   int size)
{
	__skb_frag_set_page(frag, page);
	skb_frag_off_set(frag, offset);
	skb_frag_size_set(frag, size);
}
#endif

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 14, 0)
/* Netlink does not show which NAPI instance serves a queue, nor with which interrupt. */
enum netdev_queue_type {
	NETDEV_QUEUE_TYPE_RX,
	NETDEV_QUEUE_TYPE_TX,
};

static inline void netif_queue_set_napi(struct net_device *dev, unsigned int queue,
					enum netdev_queue_type type, struct napi_struct *napi)
{
}

static inline void netif_napi_set_irq(struct napi_struct *napi, int irq)
{
}

/* What users set for a NAPI instance does not last. */
static inline void netif_napi_add_config(struct net_device *dev, struct napi_struct *napi,
					 int (*poll)(struct napi_struct *, int), int index)
{
	netif_napi_add(dev, napi, poll);
}
#endif

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 3, 0)
static inline void flownic_set_xdp_features(struct net_device *dev)
{
	dev->xdp_features = NETDEV_XDP_ACT_BASIC | NETDEV_XDP_ACT_REDIRECT |
			    NETDEV_XDP_ACT_NDO_XMIT | NETDEV_XDP_ACT_RX_SG |
			    NETDEV_XDP_ACT_NDO_XMIT_SG;
}
#else
/* XDP works as well; it is not announced. */
static inline void flownic_set_xdp_features(struct net_device *dev)
{
}
#endif

#endif
