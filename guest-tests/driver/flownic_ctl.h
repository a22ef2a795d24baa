/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The programming half: what its files share. See flownic_net.h for what it
 * offers to the rest of the driver, and when that is called.
 *
 * All of it exists only if the device takes commands in band; else fn->ctl is
 * NULL. What users have set is kept here and is what counts: the device
 * forgets everything when it is restarted, and is told again
 * (flownic_ctl_restore()).
 *
 * Locks: everything changes under RTNL, but for accelerated RFS, whose table
 * has a spinlock of its own and whose work gives commands without RTNL, and for
 * moderation, which has a mutex, since DIM's work does the same.
 */
#ifndef FLOWNIC_CTL_H
#define FLOWNIC_CTL_H

#include <linux/completion.h>
#include <linux/ethtool.h>
#include <linux/hashtable.h>
#include <linux/list.h>
#include <linux/refcount.h>
#include <linux/spinlock.h>
#include <linux/workqueue.h>

#include "flownic_abi.h"
#include "flownic_match.h"
#include "flownic_net.h"

#if LINUX_VERSION_CODE >= KERNEL_VERSION(6, 12, 0)
#include <linux/unaligned.h>
#else
#include <asm/unaligned.h>
#endif

/* Tables of RSS may change their size, and the stack helps with folding them. */
#define FLOWNIC_DYNAMIC_RSS_TABLE	(LINUX_VERSION_CODE >= KERNEL_VERSION(7, 0, 0))
/* The stack keeps RSS contexts, and asks for hash fields by operations of their own. */
#define FLOWNIC_RXFH_CONTEXT_OPS	(LINUX_VERSION_CODE >= KERNEL_VERSION(6, 17, 0))

/* A command on its way (flownic_cmd.c). */

/**
 * struct flownic_call - a command, and room for its answer
 * @cmd: for the transmit queue; first
 * @ctl: whose command it is
 * @refs: one of the caller, one of the device while it has the buffers
 * @done: the device has answered, or never will
 * @kind: enum flownic_kind
 * @sequence: to tell that the answer is this command's
 * @out: what the device reads
 * @in: what the device writes
 * @out_len: bytes of @out
 * @in_len: room in @in
 * @data: where the command's data goes, in @out
 * @result: where its result is, in @in, after flownic_call_wait()
 * @result_len: bytes of it that the device has written
 */
struct flownic_call {
	struct flownic_cmd cmd;
	struct flownic_ctl *ctl;
	refcount_t refs;
	struct completion done;
	u8 kind;
	u32 sequence;
	u8 *out;
	u8 *in;
	u32 out_len;
	u32 in_len;
	void *data;
	void *result;
	u32 result_len;
};

struct flownic_call *flownic_admin_call(struct flownic_ctl *ctl, u16 opcode, u32 data_len,
					u32 result_room);
struct flownic_call *flownic_control_call(struct flownic_ctl *ctl, u8 class, u8 command,
					  u32 data_len, u32 result_room);
int flownic_call_start(struct flownic_call *call);
int flownic_call_wait(struct flownic_call *call);
void flownic_call_put(struct flownic_call *call);
int flownic_call_run(struct flownic_call *call);
int flownic_control(struct flownic_ctl *ctl, u8 class, u8 command, const void *data, u32 data_len);

/* Objects of the flow-filter table (flownic_object.c). */

/* Groups, the higher priority first: people's rules go before learned ones. */
enum flownic_group_id {
	FLOWNIC_GROUP_USER,
	FLOWNIC_GROUP_ARFS,
	FLOWNIC_GROUPS,
};

/**
 * struct flownic_classifier - selectors with masks, shared by rules with the same ones
 * @list: in flownic_objects.classifiers
 * @match: the selectors; its key means nothing
 * @id: at the device
 * @refs: rules that use it
 */
struct flownic_classifier {
	struct list_head list;
	struct flownic_match match;
	u32 id;
	unsigned int refs;
};

/**
 * struct flownic_objects - the device's table, and how much of it there is
 * @limits: as the device said
 * @actions: bitmap of actions that it knows
 * @available: there is such a table at all
 * @classifiers: those that exist at the device
 * @ids: which ids they have
 */
struct flownic_objects {
	struct {
		u32 groups;
		u32 classifiers;
		u32 rules;
	} limits;
	DECLARE_BITMAP(actions, 256);
	bool available;
	struct list_head classifiers;
	unsigned long *ids;
};

/**
 * struct flownic_target - what a rule does with a packet
 * @action: enum flownic_action
 * @queue: DIRECT_RX_VQ: the receive queue; RSS_CONTEXT: added to what the context gives
 * @context: RSS_CONTEXT: which; 0 is the main one
 */
struct flownic_target {
	u8 action;
	u16 queue;
	u16 context;
};

int flownic_objects_probe(struct flownic_ctl *ctl);
int flownic_objects_restore(struct flownic_ctl *ctl);
bool flownic_objects_present(struct flownic_ctl *ctl);
void flownic_objects_free(struct flownic_ctl *ctl);
struct flownic_classifier *flownic_classifier_get(struct flownic_ctl *ctl,
						  const struct flownic_match *match);
void flownic_classifier_put(struct flownic_ctl *ctl, struct flownic_classifier *classifier);
struct flownic_call *flownic_rule_call(struct flownic_ctl *ctl, u16 opcode, u32 id, u32 group,
				       u32 classifier, const struct flownic_match *match,
				       const struct flownic_target *target);
struct flownic_call *flownic_rule_destroy_call(struct flownic_ctl *ctl, u32 id);

/* RSS (flownic_rss.c, flownic_rxfh.c). */

#define FLOWNIC_RSS_TABLE_MAX	512	/* four entries for each of up to 128 queues */
#define FLOWNIC_RSS_KEY		40
#define FLOWNIC_RSS_CONTEXTS	64	/* ids 1 to 63; the device may have fewer */

/**
 * struct flownic_rss - a configuration: the main one, or a context's
 * @size: entries of @table in use, a power of two
 * @table: receive queues
 * @key: of the Toeplitz hash
 * @hash_types: what is hashed over (FLOWNIC_HASH_*)
 */
struct flownic_rss {
	u32 size;
	u16 table[FLOWNIC_RSS_TABLE_MAX];
	u8 key[FLOWNIC_RSS_KEY];
	u32 hash_types;
};

int flownic_rss_probe(struct flownic_ctl *ctl);
void flownic_rss_restore(struct flownic_ctl *ctl);
void flownic_rss_free(struct flownic_ctl *ctl);
int flownic_rss_check_pairs(struct flownic_ctl *ctl, unsigned int pairs);
void flownic_rss_set_pairs(struct flownic_ctl *ctl, unsigned int pairs);
int flownic_rss_set_hash(struct flownic_ctl *ctl, bool on);
u32 flownic_rss_size(const struct flownic_ctl *ctl, unsigned int pairs);
struct flownic_rss *flownic_rss_of(struct flownic_ctl *ctl, u32 context);
unsigned int flownic_rss_max_queue(const struct flownic_rss *rss);
int flownic_rss_apply(struct flownic_ctl *ctl, u32 context, const struct flownic_rss *wanted);
int flownic_rss_create(struct flownic_ctl *ctl, u32 context, const struct flownic_rss *wanted);
int flownic_rss_remove(struct flownic_ctl *ctl, u32 context);
u32 flownic_rss_get_fields(const struct flownic_rss *rss, u32 flow_type);
int flownic_rss_set_fields(struct flownic_ctl *ctl, struct flownic_rss *rss, u32 flow_type,
			   u32 fields);

/* People's flow rules (flownic_flow.c). */

struct flownic_flow;

/**
 * struct flownic_flows - rules by location
 * @table: @size of them, NULL where there is none
 * @owed: for each, how many may delete it besides the one who does
 * @size: locations; they are rule ids of the device, too
 * @count: rules
 */
struct flownic_flows {
	struct flownic_flow **table;
	u32 *owed;
	u32 size;
	u32 count;
};

int flownic_flow_probe(struct flownic_ctl *ctl);
void flownic_flow_restore(struct flownic_ctl *ctl);
void flownic_flow_free(struct flownic_ctl *ctl);
void flownic_flow_flush(struct flownic_ctl *ctl);
int flownic_flow_check_pairs(struct flownic_ctl *ctl, unsigned int pairs);
int flownic_flow_check_context(struct flownic_ctl *ctl, u32 context, unsigned int max_queue);
bool flownic_flow_uses_context(struct flownic_ctl *ctl, u32 context);
int flownic_flow_get(struct flownic_ctl *ctl, struct ethtool_rxnfc *info, u32 *locations);
int flownic_flow_set(struct flownic_ctl *ctl, struct ethtool_rxnfc *info);

/* Accelerated RFS (flownic_arfs.c). */

#define FLOWNIC_ARFS_HASH_BITS	10

struct flownic_arfs_slot;

/**
 * struct flownic_arfs_stats - what has become of the stack's wishes
 * @staged: flows that were new to the table
 * @inserted: filters that the device took
 * @moved: filters that changed their queue
 * @expired: filters removed because the stack had no more use for them
 * @refused: wishes for packets that no filter can be made for
 * @full: wishes that came while all slots were in use, and ENOSPC of the device
 * @busy: commands that the device put off
 * @errors: commands that failed otherwise
 */
struct flownic_arfs_stats {
	u64 staged;
	u64 inserted;
	u64 moved;
	u64 expired;
	u64 refused;
	u64 full;
	u64 busy;
	u64 errors;
};

struct flownic_arfs {
	spinlock_t lock;		/* all below, softirq too */
	bool enabled;			/* ntuple is on */
	bool running;			/* interface and device are up */
	unsigned int pairs;		/* receive queues that may be filtered to */
	struct flownic_arfs_slot *slots;
	unsigned int size;
	unsigned int used;		/* slots that are not free */
	unsigned int active;		/* filters at the device */
	bool device_full;		/* it had no room the last time */
	unsigned long full_since;	/* in jiffies */
	u32 first_id;			/* rule id of slot 0 */
	struct list_head free;
	struct list_head todo;		/* wanted other than the device has it */
	DECLARE_HASHTABLE(flows, FLOWNIC_ARFS_HASH_BITS);
	struct flownic_arfs_stats stats;

	struct flownic_classifier *classifiers[4];
	struct workqueue_struct *wq;
	struct delayed_work program;
	struct delayed_work expire;
	unsigned int cursor;		/* where the next scan for expiry goes on */
};

int flownic_arfs_probe(struct flownic_ctl *ctl);
void flownic_arfs_free(struct flownic_ctl *ctl);
void flownic_arfs_enable(struct flownic_ctl *ctl, bool on);
void flownic_arfs_run(struct flownic_ctl *ctl, bool on);
void flownic_arfs_device_gone(struct flownic_ctl *ctl);
void flownic_arfs_set_pairs(struct flownic_ctl *ctl, unsigned int pairs);

/* Interrupt moderation (flownic_coal.c). */

/**
 * struct flownic_moderation - of one queue
 * @usecs: signal at the latest so long after a packet
 * @frames: or after so many packets
 */
struct flownic_moderation {
	u32 usecs;
	u32 frames;
};

/**
 * struct flownic_coalesce - moderation of all queues
 * @lock: mutex, within RTNL: all below, and the order of commands
 * @rx: of all receive queues, as last set
 * @tx: of all transmit queues
 * @adaptive: whether somebody finds the time of all receive queues, as last set
 * @rx_queue: of each of max_pairs receive queues
 * @tx_queue: of each transmit queue
 * @adapts: whether somebody finds the receive queue's time
 * @dim: it is the kernel who does, not the device
 * @device_adapts: the device can
 * @changed: somebody has set something; before, the host's values are in force
 * @available: the device has moderation
 * @dim_changes: times that DIM has chosen
 */
struct flownic_coalesce {
	struct mutex lock;
	struct flownic_moderation rx;
	struct flownic_moderation tx;
	bool adaptive;
	struct flownic_moderation *rx_queue;
	struct flownic_moderation *tx_queue;
	bool *adapts;
	bool dim;
	bool device_adapts;
	bool changed;
	bool available;
	u64 dim_changes;
};

void flownic_coal_set_pairs(struct flownic_ctl *ctl, unsigned int from, unsigned int to);
int flownic_coal_probe(struct flownic_ctl *ctl);
void flownic_coal_restore(struct flownic_ctl *ctl);
void flownic_coal_free(struct flownic_ctl *ctl);
void flownic_coal_dim(struct flownic_ctl *ctl, unsigned int queue,
		      const struct flownic_moderation *moderation);
int flownic_coal_choose(struct flownic_ctl *ctl, bool dim);
int flownic_get_coalesce(struct net_device *dev, struct ethtool_coalesce *ec,
			 struct kernel_ethtool_coalesce *kec, struct netlink_ext_ack *extack);
int flownic_set_coalesce(struct net_device *dev, struct ethtool_coalesce *ec,
			 struct kernel_ethtool_coalesce *kec, struct netlink_ext_ack *extack);
int flownic_get_per_queue_coalesce(struct net_device *dev, u32 queue, struct ethtool_coalesce *ec);
int flownic_set_per_queue_coalesce(struct net_device *dev, u32 queue, struct ethtool_coalesce *ec);

/* Moderation that the kernel adapts (flownic_dim.c). */

void flownic_dim_init(struct flownic_ctl *ctl);
void flownic_dim_set(struct flownic_pair *pair, bool on);
void flownic_dim_free(struct flownic_ctl *ctl);
u32 flownic_get_priv_flags(struct net_device *dev);
int flownic_set_priv_flags(struct net_device *dev, u32 flags);

/**
 * struct flownic_ctl - the programming half of a NIC
 * @fn: the NIC
 * @identity: what the device said about itself, as it came
 * @capabilities: FLOWNIC_CAPABLE_*
 * @hash_types: FLOWNIC_HASH_* that the device can do
 * @max_contexts: highest id of an RSS context
 * @rss_max_table: most entries of an RSS table
 * @hash_on: it puts hashes into headers of received frames
 * @pairs: queues in use, as last told
 * @silent: it has not answered the last command
 * @sequence: of the last command
 * @stats_types: FLOWNIC_STATS_* that it keeps, as a bitmap
 * @commands: given
 * @command_errors: that were refused
 * @command_timeouts: that were not answered in time
 * @objects: the flow-filter table
 * @rss: the main configuration
 * @contexts: others, by id; NULL where there is none
 * @flows: people's rules
 * @arfs: accelerated RFS
 * @coalesce: moderation
 */
struct flownic_ctl {
	struct flownic_net *fn;
	struct flownic_identity identity;
	u32 capabilities;
	u32 hash_types;
	u32 max_contexts;
	u32 rss_max_table;
	bool hash_on;
	bool silent;
	unsigned int pairs;
	atomic_t sequence;
	u64 stats_types;
	atomic64_t commands;
	atomic64_t command_errors;
	atomic64_t command_timeouts;
	struct flownic_objects objects;
	struct flownic_rss rss;
	struct flownic_rss *contexts[FLOWNIC_RSS_CONTEXTS];
	struct flownic_flows flows;
	struct flownic_arfs arfs;
	struct flownic_coalesce coalesce;
};

static inline struct flownic_ctl *flownic_ctl_of(const struct net_device *dev)
{
	const struct flownic_net *fn = netdev_priv(dev);

	return fn->ctl;
}

/* ethtool operations of RSS, which differ between kernels (flownic_rxfh.c). */
u32 flownic_get_rxfh_key_size(struct net_device *dev);
u32 flownic_get_rxfh_indir_size(struct net_device *dev);
#if FLOWNIC_RXFH_CONTEXT_OPS
int flownic_get_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh);
int flownic_set_rxfh(struct net_device *dev, struct ethtool_rxfh_param *rxfh,
		     struct netlink_ext_ack *extack);
int flownic_create_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
				const struct ethtool_rxfh_param *rxfh,
				struct netlink_ext_ack *extack);
int flownic_modify_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
				const struct ethtool_rxfh_param *rxfh,
				struct netlink_ext_ack *extack);
int flownic_remove_rxfh_context(struct net_device *dev, struct ethtool_rxfh_context *ctx,
				u32 context, struct netlink_ext_ack *extack);
int flownic_get_rxfh_fields(struct net_device *dev, struct ethtool_rxfh_fields *fields);
int flownic_set_rxfh_fields(struct net_device *dev, const struct ethtool_rxfh_fields *fields,
			    struct netlink_ext_ack *extack);
#else
int flownic_get_rxfh(struct net_device *dev, u32 *indir, u8 *key, u8 *hfunc);
int flownic_set_rxfh(struct net_device *dev, const u32 *indir, const u8 *key, const u8 hfunc);
int flownic_get_rxfh_context(struct net_device *dev, u32 *indir, u8 *key, u8 *hfunc, u32 context);
int flownic_set_rxfh_context(struct net_device *dev, const u32 *indir, const u8 *key,
			     const u8 hfunc, u32 *context, bool delete);
/* ETHTOOL_GRXFH and ETHTOOL_SRXFH */
int flownic_get_hash_fields(struct flownic_ctl *ctl, struct ethtool_rxnfc *info);
int flownic_set_hash_fields(struct flownic_ctl *ctl, const struct ethtool_rxnfc *info);
#endif

#endif /* FLOWNIC_CTL_H */
