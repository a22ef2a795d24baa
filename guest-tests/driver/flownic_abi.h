/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a driver and a flownic device say to each other, in C.
 *
 * docs/guest-abi.md is the contract; the layouts that it takes over from the
 * virtio specification (1.4: 2.13 "Device groups", 5.1.6.5 "Control
 * virtqueue", 5.1.6.6 "Flow filter") are here as well. Fields are
 * little-endian unless they belong to a network header.
 */
#ifndef FLOWNIC_ABI_H
#define FLOWNIC_ABI_H

#include <linux/build_bug.h>
#include <linux/if_ether.h>
#include <linux/types.h>

/* The channel: how a command travels on a transmit queue. */

#define FLOWNIC_ETHERTYPE	0x88b5	/* IEEE 802 local experimental 1 */
#define FLOWNIC_MAGIC		0x6e776c66	/* "flwn" */
#define FLOWNIC_VERSION		1
#define FLOWNIC_COMMAND_MAX	16384	/* bytes after the channel header */

enum flownic_kind {
	FLOWNIC_KIND_ADMIN	= 1,
	FLOWNIC_KIND_CONTROL	= 2,
	FLOWNIC_KIND_REPLY	= 0x80,	/* added to the command's kind */
};

/* The status of a reply: what the channel thinks of the command. */
enum flownic_chan_status {
	FLOWNIC_CHAN_OK		= 0,	/* see the answer */
	FLOWNIC_CHAN_VERSION	= 1,
	FLOWNIC_CHAN_KIND	= 2,
	FLOWNIC_CHAN_MALFORMED	= 3,
	FLOWNIC_CHAN_CLOSED	= 4,	/* the host does not allow this road */
};

struct flownic_chan_hdr {
	__le32 magic;
	__u8 version;
	__u8 kind;
	__u8 status;
	__u8 reserved;
	__le32 sequence;
	__le16 length;		/* bytes of command or answer that follow */
	__le16 reserved2;
};

static_assert(sizeof(struct flownic_chan_hdr) == 16);

/* Admin commands: the flow-filter table. */

enum flownic_admin_opcode {
	FLOWNIC_ADMIN_LIST_QUERY	= 0x0,
	FLOWNIC_ADMIN_LIST_USE		= 0x1,
	FLOWNIC_ADMIN_CAP_ID_LIST_QUERY	= 0x7,
	FLOWNIC_ADMIN_DEVICE_CAP_GET	= 0x8,
	FLOWNIC_ADMIN_DRIVER_CAP_SET	= 0x9,
	FLOWNIC_ADMIN_OBJ_CREATE	= 0xa,
	FLOWNIC_ADMIN_OBJ_MODIFY	= 0xb,
	FLOWNIC_ADMIN_OBJ_QUERY		= 0xc,
	FLOWNIC_ADMIN_OBJ_DESTROY	= 0xd,
};

#define FLOWNIC_ADMIN_GROUP_SELF	0

/* Statuses are errno values of Linux's numbering. */
enum flownic_admin_status {
	FLOWNIC_ADMIN_OK	= 0,
	FLOWNIC_ADMIN_ENXIO	= 6,
	FLOWNIC_ADMIN_EAGAIN	= 11,
	FLOWNIC_ADMIN_ENOMEM	= 12,
	FLOWNIC_ADMIN_EBUSY	= 16,
	FLOWNIC_ADMIN_EEXIST	= 17,
	FLOWNIC_ADMIN_EINVAL	= 22,
	FLOWNIC_ADMIN_ENOSPC	= 28,
};

struct flownic_admin_cmd {
	__le16 opcode;
	__le16 group_type;
	__u8 reserved[12];
	__le64 group_member_id;
};

struct flownic_admin_answer {
	__le16 status;
	__le16 qualifier;
	__u8 reserved[4];
};

static_assert(sizeof(struct flownic_admin_cmd) == 24);
static_assert(sizeof(struct flownic_admin_answer) == 8);

/* Capabilities. */

enum flownic_cap_id {
	FLOWNIC_CAP_RESOURCES	= 0x800,
	FLOWNIC_CAP_SELECTORS	= 0x801,
	FLOWNIC_CAP_ACTIONS	= 0x802,
};

/* Before the data of DEVICE_CAP_GET and DRIVER_CAP_SET. */
struct flownic_cap_hdr {
	__le16 id;
	__u8 reserved[6];
};

struct flownic_cap_resources {
	__le32 groups_limit;
	__le32 classifiers_limit;
	__le32 rules_limit;
	__le32 rules_per_group_limit;
	__u8 last_rule_priority;
	__u8 selectors_per_classifier_limit;
	__u8 reserved[2];
};

enum flownic_selector_type {
	FLOWNIC_SEL_ETH		= 1,
	FLOWNIC_SEL_IPV4	= 2,
	FLOWNIC_SEL_IPV6	= 3,
	FLOWNIC_SEL_TCP		= 4,
	FLOWNIC_SEL_UDP		= 5,
	FLOWNIC_SEL_MAX,
};

#define FLOWNIC_SEL_PARTIAL_MASK	0x01

/* Length of the header that a selector matches. */
#define FLOWNIC_LEN_ETH		14
#define FLOWNIC_LEN_IPV4	20
#define FLOWNIC_LEN_IPV6	40
#define FLOWNIC_LEN_TCP		20
#define FLOWNIC_LEN_UDP		8
#define FLOWNIC_KEY_MAX		(FLOWNIC_LEN_ETH + FLOWNIC_LEN_IPV6 + FLOWNIC_LEN_TCP)

struct flownic_selector {
	__u8 type;
	__u8 flags;
	__u8 reserved[2];
	__u8 length;
	__u8 reserved2[3];
	__u8 mask[];
};

/* The selector capability and a classifier: selectors, one after another. */
struct flownic_selectors {
	__u8 count;
	__u8 reserved[7];
	__u8 selectors[];
};

enum flownic_action {
	FLOWNIC_ACTION_DROP		= 1,
	FLOWNIC_ACTION_DIRECT_RX_VQ	= 2,
	FLOWNIC_ACTION_RSS_CONTEXT	= 0x80,	/* flownic's own */
};

struct flownic_cap_actions {
	__u8 count;
	__u8 reserved[7];
	__u8 actions[];
};

static_assert(sizeof(struct flownic_cap_hdr) == 8);
static_assert(sizeof(struct flownic_cap_resources) == 20);
static_assert(sizeof(struct flownic_selector) == 8);
static_assert(sizeof(struct flownic_selectors) == 8);
static_assert(sizeof(struct flownic_cap_actions) == 8);

/* Objects. Ids are chosen by the driver, below the type's limit. */

enum flownic_obj_type {
	FLOWNIC_OBJ_GROUP	= 0x200,
	FLOWNIC_OBJ_CLASSIFIER	= 0x201,
	FLOWNIC_OBJ_RULE	= 0x202,
};

struct flownic_obj_hdr {
	__le16 type;
	__u8 reserved[2];
	__le32 id;
};

/* Before an object's data in CREATE and MODIFY. */
struct flownic_obj_flags {
	struct flownic_obj_hdr hdr;
	__le64 flags;
};

struct flownic_group {
	__le16 priority;	/* the higher goes first */
};

struct flownic_rule {
	__le32 group_id;
	__le32 classifier_id;
	__u8 priority;		/* the higher goes first, then the lower id */
	__u8 key_length;
	__u8 action;
	__u8 reserved;
	__le16 vq_index;	/* or, with RSS_CONTEXT, the context */
	__le16 queue_offset;	/* with RSS_CONTEXT: added to its queue */
	__u8 key[];
};

static_assert(sizeof(struct flownic_obj_hdr) == 8);
static_assert(sizeof(struct flownic_obj_flags) == 16);
static_assert(sizeof(struct flownic_group) == 2);
static_assert(sizeof(struct flownic_rule) == 16);

/* Control commands. */

enum flownic_ctrl_class {
	FLOWNIC_CTRL_RX		= 0,
	FLOWNIC_CTRL_MAC	= 1,
	FLOWNIC_CTRL_VLAN	= 2,
	FLOWNIC_CTRL_MQ		= 4,
	FLOWNIC_CTRL_NOTF_COAL	= 6,
	FLOWNIC_CTRL_STATS	= 8,
	FLOWNIC_CTRL_RSS_CTX	= 9,
	FLOWNIC_CTRL_FLOWNIC	= 0xf0,
};

#define FLOWNIC_RX_PROMISC		0
#define FLOWNIC_RX_ALLMULTI		1

#define FLOWNIC_MAC_TABLE_SET		0

#define FLOWNIC_VLAN_ADD		0
#define FLOWNIC_VLAN_DEL		1

#define FLOWNIC_MQ_RSS_CONFIG		1
#define FLOWNIC_MQ_HASH_CONFIG		2

#define FLOWNIC_NOTF_COAL_TX_SET	0
#define FLOWNIC_NOTF_COAL_RX_SET	1
#define FLOWNIC_NOTF_COAL_VQ_SET	2
#define FLOWNIC_NOTF_COAL_VQ_GET	3

#define FLOWNIC_STATS_QUERY		0
#define FLOWNIC_STATS_GET		1

#define FLOWNIC_RSS_CTX_CAP_GET		0
#define FLOWNIC_RSS_CTX_ADD		1
#define FLOWNIC_RSS_CTX_MOD		2
#define FLOWNIC_RSS_CTX_DEL		3

#define FLOWNIC_IDENTIFY		0
#define FLOWNIC_RESET			1
#define FLOWNIC_HASH_SET		2
#define FLOWNIC_RULE_HITS		3
#define FLOWNIC_ADAPTIVE_SET		6
#define FLOWNIC_ADAPTIVE_GET		7
#define FLOWNIC_SIGNALS_GET		8

struct flownic_ctrl_hdr {
	__u8 class;
	__u8 command;
};

enum flownic_ctrl_ack {
	FLOWNIC_CTRL_OK		= 0,
	FLOWNIC_CTRL_ERR	= 1,
};

static_assert(sizeof(struct flownic_ctrl_hdr) == 2);

/* Hash types of RSS (5.1.6.4.3.1). */
#define FLOWNIC_HASH_IPV4	0x001
#define FLOWNIC_HASH_TCPV4	0x002
#define FLOWNIC_HASH_UDPV4	0x004
#define FLOWNIC_HASH_IPV6	0x008
#define FLOWNIC_HASH_TCPV6	0x010
#define FLOWNIC_HASH_UDPV6	0x020

/*
 * flownic's own, if it is capable of them: what of a packet is hashed. Source ^ destination in
 * the place of each; source | destination and source ^ destination; and fields of a flow type that
 * are left out.
 */
#define FLOWNIC_HASH_SYM_XOR	BIT(9)
#define FLOWNIC_HASH_SYM_OR_XOR	BIT(10)
#define FLOWNIC_HASH_OMIT_TCPV4	16
#define FLOWNIC_HASH_OMIT_UDPV4	20
#define FLOWNIC_HASH_OMIT_TCPV6	24
#define FLOWNIC_HASH_OMIT_UDPV6	28
#define FLOWNIC_OMIT_SRC_ADDR	0x1
#define FLOWNIC_OMIT_DST_ADDR	0x2
#define FLOWNIC_OMIT_SRC_PORT	0x4
#define FLOWNIC_OMIT_DST_PORT	0x8

/*
 * An RSS configuration: this, table_mask + 1 entries of __le16 (receive
 * queues), and struct flownic_rss_tail with the key.
 */
struct flownic_rss_head {
	__le32 hash_types;
	__le16 table_mask;
	__le16 unclassified_queue;
} __packed;

struct flownic_rss_tail {
	__le16 max_tx_vq;
	__u8 key_length;
	__u8 key[];
} __packed;

struct flownic_rss_ctx_hdr {
	__le16 id;
	__u8 reserved[6];
};

static_assert(sizeof(struct flownic_rss_head) == 8);
static_assert(sizeof(struct flownic_rss_tail) == 3);
static_assert(sizeof(struct flownic_rss_ctx_hdr) == 8);

struct flownic_coal {
	__le32 max_packets;
	__le32 max_usecs;
};

struct flownic_coal_vq {
	__le16 vq_index;
	__le16 reserved;
	struct flownic_coal coal;
};

static_assert(sizeof(struct flownic_coal) == 8);
static_assert(sizeof(struct flownic_coal_vq) == 12);

/* Statistics: GET takes these, and answers each type with a reply and its counters. */
struct flownic_stats_query {
	__le64 types[1];	/* bitmap of the types that the device keeps */
};

struct flownic_stats_get {
	__le16 vq_index;
	__u8 reserved[6];
	__le64 types;
};

struct flownic_stats_reply {
	__u8 type;
	__u8 reserved;
	__le16 vq_index;
	__le16 reserved2;
	__le16 size;		/* of this header and the counters */
};

/* Types, as bit numbers in the bitmaps. */
#define FLOWNIC_STATS_RX_BASIC	0
#define FLOWNIC_STATS_RX_CSUM	1
#define FLOWNIC_STATS_RX_GSO	2
#define FLOWNIC_STATS_TX_BASIC	16
#define FLOWNIC_STATS_TX_CSUM	17
#define FLOWNIC_STATS_TX_GSO	18

struct flownic_stats_rx_basic {
	struct flownic_stats_reply hdr;
	__le64 notifications;
	__le64 packets;
	__le64 bytes;
	__le64 interrupts;
	__le64 drops;
	__le64 drop_overruns;
};

struct flownic_stats_tx_basic {
	struct flownic_stats_reply hdr;
	__le64 notifications;
	__le64 packets;
	__le64 bytes;
	__le64 interrupts;
	__le64 drops;
	__le64 drop_malformed;
};

static_assert(sizeof(struct flownic_stats_query) == 8);
static_assert(sizeof(struct flownic_stats_get) == 16);
static_assert(sizeof(struct flownic_stats_reply) == 8);
static_assert(sizeof(struct flownic_stats_rx_basic) == 56);
static_assert(sizeof(struct flownic_stats_tx_basic) == 56);

/* The device's own class. */

#define FLOWNIC_ABI_VERSION	1

#define FLOWNIC_CAPABLE_HASH_SET	BIT(0)
#define FLOWNIC_CAPABLE_RSS_CONTEXTS	BIT(1)
#define FLOWNIC_CAPABLE_ACTION_RSS	BIT(2)
#define FLOWNIC_CAPABLE_RULE_MODIFY	BIT(3)
#define FLOWNIC_CAPABLE_HASH_FIELDS	BIT(4)
#define FLOWNIC_CAPABLE_ADAPTIVE	BIT(5)
#define FLOWNIC_CAPABLE_SIGNALS		BIT(6)

struct flownic_identity {
	__le32 abi;
	__le16 queue_pairs;
	__le16 max_rss_contexts;	/* ids are 1 to this */
	__le16 rss_max_table;		/* entries, a power of two */
	__u8 rss_max_key;
	__u8 reserved;
	__le32 hash_types;
	__le32 capabilities;
	__u8 features[8];		/* le64, not aligned */
	__le32 profile;
	__u8 reserved2[8];
	char version[24];
};

static_assert(sizeof(struct flownic_identity) == 64);

struct flownic_hash_set {
	__u8 on;
	__u8 reserved[3];
};

static_assert(sizeof(struct flownic_hash_set) == 4);

/* Moderation whose time the device finds. */
#define FLOWNIC_ADAPTIVE_ALL	0xffff	/* vq_index: all receive queues */

struct flownic_adaptive_set {
	__le16 vq_index;
	__u8 on;
	__u8 reserved;
};

struct flownic_adaptive {
	__u8 on;
	__u8 reserved[3];
	__le32 usecs;		/* that it has come to */
};

/* What became of signals, for each of some virtqueues. */
struct flownic_signals_get {
	__le16 vq_index;	/* the first of them */
	__le16 count;
};

struct flownic_signals {
	__le64 suppressed;
	__le64 held;
	__le64 by_time;
	__le64 by_count;
};

static_assert(sizeof(struct flownic_signals_get) == 4);
static_assert(sizeof(struct flownic_signals) == 32);
static_assert(sizeof(struct flownic_adaptive_set) == 4);
static_assert(sizeof(struct flownic_adaptive) == 8);

/* The hash in the header of a received frame, see "Hash in the header". */
#define FLOWNIC_HDR_HASH	0x80	/* in flags: a hash is there */
#define FLOWNIC_HDR_HASH_L4	0x40	/* it was computed over ports, too */

#endif /* FLOWNIC_ABI_H */
