/* SPDX-License-Identifier: GPL-2.0 */
/*
 * flownic_net: the structures that its files share, and what they offer each other.
 *
 * Two things are started and stopped, and each has its states:
 *
 *	the device	flownic_dev.c	STOPPED -> flownic_dev_start() -> RUNNING
 *					RUNNING -> flownic_dev_stop() -> STOPPED
 *	the interface	flownic_netdev.c down -> flownic_open() -> up -> flownic_close() -> down
 *
 * The device runs from probe to remove, but for the moments in which it is restarted because
 * something cannot be changed otherwise (flownic_dev_restart()). It has virtqueues, interrupts,
 * page pools and posted buffers while it runs, so that commands can be given at any time. The
 * interface is up when users say so; only then is NAPI enabled and are frames sent or received.
 * Both change under RTNL only.
 *
 * Locks, outermost first:
 *	RTNL			states of device and interface, numbers of queues, the XDP program
 *	fn->ctrl.lock		mutex: one command at a time on QEMU's control queue
 *	the netdev TX queue's	a transmit virtqueue, adding and reaping alike
 * A receive virtqueue belongs to its NAPI instance while that is enabled, else to RTNL's holder.
 */
#ifndef FLOWNIC_NET_H
#define FLOWNIC_NET_H

#include <linux/bpf.h>
#include <linux/cpu_rmap.h>
#include <linux/etherdevice.h>
#include <linux/ethtool.h>
#include <linux/if_vlan.h>
#include <linux/interrupt.h>
#include <linux/netdevice.h>
#include <linux/scatterlist.h>
#include <linux/u64_stats_sync.h>
#include <net/xdp.h>

#include "flownic_compat.h"

#define FLOWNIC_NAME		"flownic_net"
/* The header in front of every frame: virtio 1 without a hash report. */
#define FLOWNIC_HDR_LEN		sizeof(struct virtio_net_hdr_v1)
/* Bytes that a received frame has in its first, linear part; shorter frames are copied whole. */
#define FLOWNIC_COPY_LEN	256
#define FLOWNIC_XDP_BATCH	16

struct flownic_net;
struct flownic_ctl;
struct flownic_ctrl_buf;

/*
 * A command in band (flownic_cmd.c). The caller owns it, and its buffers, until
 * flownic_cmd_done() has been called with it.
 */
struct flownic_cmd {
	/* For flownic_tx.c, between reaping and flownic_cmd_done(). */
	struct flownic_cmd *next;
	u32 used_len;
};

/* Counters have one writer each: who holds the queue. */
struct flownic_rx_stats {
	u64_stats_t packets;
	u64_stats_t bytes;
	u64_stats_t drops;		/* malformed, or no memory for an skb */
	u64_stats_t alloc_fail;		/* pages for buffers, and skbs, that were not to be had */
	u64_stats_t csum_unnecessary;	/* the device vouched for it */
	u64_stats_t csum_none;
	u64_stats_t gso_packets;	/* came in one piece, larger than MTU */
	u64_stats_t gso_bytes;
	u64_stats_t gso_wire_packets;
	u64_stats_t hashes;		/* had a hash in the header */
	u64_stats_t xdp_packets;
	u64_stats_t xdp_drops;
	u64_stats_t xdp_tx;
	u64_stats_t xdp_redirects;
	u64_stats_t polls;		/* NAPI polls that were given a budget */
	struct u64_stats_sync syncp;
};

struct flownic_tx_stats {
	u64_stats_t packets;		/* on the wire: each segment counts */
	u64_stats_t bytes;
	u64_stats_t drops;
	u64_stats_t csum_none;
	u64_stats_t needs_csum;
	u64_stats_t gso_packets;
	u64_stats_t gso_bytes;
	u64_stats_t gso_wire_packets;
	u64_stats_t gso_wire_bytes;
	u64_stats_t stop;
	u64_stats_t wake;
	u64_stats_t kicks;
	u64_stats_t xdp_packets;
	u64_stats_t timeouts;
	u64_stats_t commands;
	struct u64_stats_sync syncp;
};

/* What kind of chain a transmit queue's token stands for, in its low bits; 0 is a packet's skb. */
#define FLOWNIC_TOKEN_XDP	1UL
#define FLOWNIC_TOKEN_CMD	2UL
#define FLOWNIC_TOKEN_KIND	3UL

/* The most descriptors that a packet can take: the linear part, fragments, and a header. */
#define FLOWNIC_TX_ROOM		(MAX_SKB_FRAGS + 2)

/* A receive queue. */
struct flownic_rx {
	struct virtqueue *vq;
	struct page_pool *pool;
	unsigned int posted;		/* buffers that the device has */
	struct xdp_rxq_info xdp_rxq;
	struct xdp_frame *xdp_tx[FLOWNIC_XDP_BATCH];	/* collected by this poll */
	unsigned int xdp_tx_count;
	bool xdp_redirected;		/* by this poll */
	unsigned long interrupts;	/* one writer: the interrupt */
	struct flownic_rx_stats stats;
#if FLOWNIC_HAS_DIM
	/* flownic_dim.c */
	struct dim dim;
	struct flownic_ctl *dim_ctl;
	bool dim_on;
#endif
};

/* A transmit queue. */
struct flownic_tx {
	struct virtqueue *vq;
	struct netdev_queue *txq;	/* has the lock */
	bool usable;			/* the virtqueue is there and the device runs */
	bool open;			/* for packets, so that it is woken when there is room */
	unsigned int pending;		/* chains that the device has */
	unsigned int xdp_pending;	/* of those, XDP's frames */
	unsigned long interrupts;	/* one writer: the interrupt */
	struct scatterlist sg[FLOWNIC_TX_ROOM];
	struct flownic_tx_stats stats;
};

/*
 * A queue pair: one receive and one transmit queue, one NAPI instance that serves both. Each of the
 * two virtqueues has an MSI-X vector. The pair's interrupt, which users see and whose affinity
 * they set, is the receive queue's; the other one follows it (flownic_irq.c).
 */
struct flownic_pair {
	struct flownic_net *fn;
	unsigned int index;
	struct napi_struct napi;
	bool up;			/* NAPI is enabled; under the transmit queue's lock, too */
	struct flownic_rx rx;
	struct flownic_tx tx;

	/* flownic_irq.c */
	int rx_irq;			/* negative: there is none of its own */
	int tx_irq;
	struct irq_affinity_notify notify;
	bool notified;
	int rmap_index;
	cpumask_t affinity;		/* outlives restarts */
	bool affinity_set;		/* by a user, not by us */

	char rx_name[24];
	char tx_name[24];
} ____cacheline_aligned_in_smp;

/* QEMU's control queue (flownic_ctrlvq.c). */
struct flownic_ctrl {
	struct virtqueue *vq;		/* NULL: the device has none */
	struct mutex lock;		/* one command at a time */
	struct completion done;
	struct flownic_ctrl_buf *buf;
	bool stuck;
	DECLARE_BITMAP(vlans, VLAN_N_VID);
	struct work_struct rx_mode;	/* ndo_set_rx_mode() may not sleep */
};

struct flownic_net {
	struct net_device *dev;
	struct virtio_device *vdev;
	struct flownic_pair *pairs;	/* max_pairs of them, for good */
	unsigned int max_pairs;
	unsigned int num_pairs;		/* in use: the first ones; under RTNL */
	bool running;			/* the device; under RTNL */
	bool up;			/* the interface: NAPI of num_pairs pairs is enabled */
	u64 offered;			/* features that both sides have */
	wait_queue_head_t drained;	/* a transmit queue's last chain was reaped */
	struct virtio_net_hdr_v1 *no_offloads;	/* a header of zeroes */
	struct mutex irq_lock;		/* affinities, and dev->rx_cpu_rmap for its writers */

	/* How much of the virtqueues is used, and how large those are (flownic_queues.c). */
	unsigned int rx_ring;
	unsigned int tx_ring;
	unsigned int rx_ring_max;
	unsigned int tx_ring_max;

	/* How receive buffers are laid out, from the device's start to its stop. */
	unsigned int rx_headroom;	/* before the virtio-net header */
	unsigned int rx_room;		/* for header and frame */

	struct bpf_prog __rcu *xdp_prog;
	bool rx_csum;			/* wanted: checksums done by the device (rx) */
	bool large_rx;			/* wanted: frames larger than MTU (rx-gro-hw) */

	struct flownic_ctrl ctrl;
	struct work_struct config_work;	/* link state and announcements */
	struct work_struct reset_work;	/* restarts the device after a timeout */
	struct work_struct reap_work;	/* completes commands while the interface is down */

	/*
	 * The programming half's own state: flownic_ctl_probe() makes it, flownic_ctl_remove()
	 * frees it; NULL if the device takes no commands in band.
	 */
	struct flownic_ctl *ctl;
};

/* flownic_dev.c: the device, under RTNL */
int flownic_dev_start(struct flownic_net *fn);
void flownic_dev_stop(struct flownic_net *fn);
/* Stops and starts with what is wanted now, interface included. After an error it is stopped. */
int flownic_dev_restart(struct flownic_net *fn);
void flownic_dev_check(struct flownic_net *fn);
bool flownic_dev_stale(const struct flownic_net *fn);
bool flownic_dev_has_large_rx(const struct flownic_net *fn);
void flownic_dev_reset_work(struct work_struct *work);

/* flownic_netdev.c: the interface, under RTNL */
extern const struct net_device_ops flownic_netdev_ops;
int flownic_up(struct flownic_net *fn, unsigned int stale);
void flownic_down(struct flownic_net *fn);
void flownic_drain(struct flownic_net *fn, unsigned int first);

/* flownic_rxbuf.c */
void flownic_rx_layout(struct flownic_net *fn);
int flownic_rx_start(struct flownic_pair *pair);
void flownic_rx_fill(struct flownic_pair *pair);
void flownic_rx_stop(struct flownic_pair *pair);
void flownic_rx_discard(struct flownic_pair *pair);
int flownic_rx_up(struct flownic_pair *pair);
void flownic_rx_down(struct flownic_pair *pair);
bool flownic_rx_refill(struct flownic_pair *pair, gfp_t gfp);
struct page *flownic_rx_get(struct flownic_rx *rx, unsigned int *len);
void flownic_rx_drop_rest(struct flownic_rx *rx, unsigned int buffers);

/* flownic_rx.c */
int flownic_poll(struct napi_struct *napi, int budget);
void flownic_rx_callback(struct virtqueue *vq);
void flownic_rx_count_drop(struct flownic_rx *rx);
struct sk_buff *flownic_rx_build(struct flownic_pair *pair, struct page *page, unsigned int offset,
				 unsigned int len, unsigned int meta);
bool flownic_rx_add_page(struct sk_buff *skb, struct page *page, unsigned int offset,
			 unsigned int len);

/* flownic_tx.c */
netdev_tx_t flownic_start_xmit(struct sk_buff *skb, struct net_device *dev);
int flownic_tx_frames(struct flownic_pair *pair, struct xdp_frame **frames, int count, bool kick);

/* flownic_txdone.c */
void flownic_tx_callback(struct virtqueue *vq);
void flownic_tx_poll(struct flownic_pair *pair, int budget);
bool flownic_tx_arm(struct flownic_pair *pair);
void flownic_tx_start(struct flownic_pair *pair);
void flownic_tx_refuse(struct flownic_pair *pair);
void flownic_tx_open(struct flownic_pair *pair);
void flownic_tx_close(struct flownic_pair *pair);
void flownic_tx_stop(struct flownic_pair *pair);
void flownic_tx_reap_work(struct work_struct *work);

/**
 * flownic_tx_command() - put a command in band on transmit queue 0 and kick the device
 * @fn: the NIC; its device must be running
 * @out: what the device reads, a terminated list: the virtio-net header (zeroes), the Ethernet
 *	header, the channel header and the command. Memory as for DMA: kmalloc()ed, not on the
 *	stack.
 * @in: what the device writes: the reply, channel header first
 * @cmd: given back to flownic_cmd_done(); not to be used until then
 *
 * Takes transmit queue 0's lock, so the caller may not hold it. Context: process or softirq.
 *
 * If 0 is returned, flownic_cmd_done() is called exactly once, without any lock of this driver and
 * with bottom halves off: from NAPI while the interface is up, from a work item, which the
 * interrupt queues, while it is down, or from whoever stops the device. It may be called before
 * this function has returned, and may itself give commands.
 *
 * Return: 0; -ENODEV if the device is not running or is broken; -ENOSPC if the ring is full, as it
 * may be under traffic: try again later, for instance when another command is done.
 */
int flownic_tx_command(struct flownic_net *fn, struct scatterlist *out, struct scatterlist *in,
		       struct flownic_cmd *cmd);

/*
 * Reaps completed commands here and now, for those who wait. Process context. Needed only if
 * interrupts cannot be relied on; waiting on a completion is enough otherwise.
 */
void flownic_tx_reap_commands(struct flownic_net *fn);

/* flownic_cmd.c: used_len is how much the device wrote; 0 if it was stopped and never will. */
void flownic_cmd_done(struct flownic_cmd *cmd, u32 used_len);

/* flownic_xdp.c */
int flownic_xdp(struct net_device *dev, struct netdev_bpf *bpf);
int flownic_xdp_xmit(struct net_device *dev, int count, struct xdp_frame **frames, u32 flags);
unsigned int flownic_xdp_max_mtu(const struct flownic_net *fn, bool frags);
struct sk_buff *flownic_xdp_run(struct flownic_pair *pair, struct bpf_prog *prog,
				struct page *page, unsigned int len, unsigned int rest);
void flownic_xdp_flush(struct flownic_pair *pair);

/* flownic_ctrlvq.c: 0, -EOPNOTSUPP, -EIO (refused), -ETIMEDOUT */
int flownic_ctrl_init(struct flownic_net *fn);
void flownic_ctrl_free(struct flownic_net *fn);
void flownic_ctrl_start(struct flownic_net *fn, struct virtqueue *vq);
void flownic_ctrl_stop(struct flownic_net *fn);
void flownic_ctrl_restore(struct flownic_net *fn);
int flownic_ctrl_set_pairs(struct flownic_net *fn, unsigned int pairs);
int flownic_ctrl_set_mac(struct flownic_net *fn, const u8 *mac);
int flownic_ctrl_vlan(struct flownic_net *fn, u16 id, bool add);
int flownic_ctrl_announced(struct flownic_net *fn);
void flownic_ctrl_callback(struct virtqueue *vq);

/* flownic_queues.c: ethtool -l/-L and -g/-G */
void flownic_get_channels(struct net_device *dev, struct ethtool_channels *ch);
int flownic_set_channels(struct net_device *dev, struct ethtool_channels *ch);
void flownic_get_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			   struct kernel_ethtool_ringparam *kernel_ring,
			   struct netlink_ext_ack *extack);
int flownic_set_ringparam(struct net_device *dev, struct ethtool_ringparam *ring,
			  struct kernel_ethtool_ringparam *kernel_ring,
			  struct netlink_ext_ack *extack);

/* flownic_irq.c */
int flownic_irq_start(struct flownic_net *fn);
void flownic_irq_stop(struct flownic_net *fn);
int flownic_irq_map(struct flownic_net *fn);
void flownic_irq_spread(struct flownic_net *fn);

/* flownic_stats.c: ethtool -S, rtnl_link_stats64, queue statistics */
int flownic_get_sset_count(struct net_device *dev, int sset);
void flownic_get_strings(struct net_device *dev, u32 sset, u8 *data);
void flownic_get_ethtool_stats(struct net_device *dev, struct ethtool_stats *stats, u64 *data);
void flownic_get_stats64(struct net_device *dev, struct rtnl_link_stats64 *tot);
void flownic_stats_init(struct flownic_net *fn);

/*
 * What the programming half offers (flownic_cmd.c, flownic_rss.c, flownic_flow.c, flownic_arfs.c,
 * flownic_ethtool.c), and when it is called. All under RTNL and able to sleep unless said
 * otherwise.
 */

/*
 * Once, from probe: the device runs, the interface is not registered yet. Asks the device what it
 * can do, makes fn->ctl, and adds to dev->hw_features and dev->features what that allows (ntuple,
 * rxhash). A device that takes no commands is no error: fn->ctl stays NULL, 0 is returned.
 */
int flownic_ctl_probe(struct flownic_net *fn);
/* Once, from remove (or a failed probe): the interface is unregistered, the device still runs. */
void flownic_ctl_remove(struct flownic_net *fn);
/* After a restart: the device has forgotten everything, say it again. The interface is down. */
void flownic_ctl_restore(struct flownic_net *fn);
/* Has the device forgotten it without a restart? */
bool flownic_ctl_lost(struct flownic_net *fn);
/* Before the device stops: no new commands of one's own (aRFS) until flownic_ctl_restore(). */
void flownic_ctl_quiesce(struct flownic_net *fn);
/*
 * `ethtool -L`: may the number of pairs change, and it has changed. While it does, fn->num_pairs is
 * the larger of the two numbers, and the queues that are new have been started.
 */
int flownic_ctl_check_pairs(struct flownic_net *fn, unsigned int pairs);
void flownic_ctl_set_pairs(struct flownic_net *fn, unsigned int pairs);
/* `ethtool -K`: of the features that change, those that are not the data path's. */
int flownic_ctl_set_features(struct flownic_net *fn, netdev_features_t wanted,
			     netdev_features_t changed);
/* The interface is up, or about to go down: for aRFS. */
void flownic_ctl_up(struct flownic_net *fn);
void flownic_ctl_down(struct flownic_net *fn);
/* ethtool -S: counters of the programming half, after the driver's own. May be 0. */
int flownic_ctl_stats_count(struct flownic_net *fn);
void flownic_ctl_stats_strings(struct flownic_net *fn, u8 **data);
void flownic_ctl_stats(struct flownic_net *fn, u64 *data);

/* A poll has emptied a receive queue, in NAPI: for DIM. */
void flownic_dim_sample(struct flownic_pair *pair);
/* Private flags; there may be none. */
int flownic_flags_count(const struct flownic_net *fn);
void flownic_flags_strings(const struct flownic_net *fn, u8 *data);

#ifdef CONFIG_RFS_ACCEL
/* ndo_rx_flow_steer(): softirq, only stages. */
int flownic_rx_flow_steer(struct net_device *dev, const struct sk_buff *skb, u16 rxq, u32 flow_id);
#endif

extern const struct ethtool_ops flownic_ethtool_ops;

static inline bool flownic_xdp_has_frags(const struct bpf_prog *prog)
{
	return prog->aux->xdp_has_frags;
}

static inline void *flownic_token(void *object, unsigned long kind)
{
	return (void *)((unsigned long)object | kind);
}

static inline bool flownic_tx_has_room(const struct flownic_net *fn, const struct flownic_tx *tx)
{
	return tx->pending < fn->tx_ring && tx->vq->num_free >= FLOWNIC_TX_ROOM;
}

/* vq->priv is the transport's. */
static inline struct flownic_pair *flownic_pair_of(struct virtqueue *vq)
{
	struct flownic_net *fn = vq->vdev->priv;

	return &fn->pairs[vq->index / 2];
}

#endif
