/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What a rule matches: selectors, their masks, and the key, as the device
 * takes them.
 */
#ifndef FLOWNIC_MATCH_H
#define FLOWNIC_MATCH_H

#include <linux/ethtool.h>
#include <linux/in6.h>

#include "flownic_abi.h"

#define FLOWNIC_MATCH_SELECTORS	3	/* Ethernet, IP, transport */

/**
 * struct flownic_match - selectors with their masks, and a key
 * @count: number of selectors
 * @length: bytes of all selectors, thus of @mask and @key
 * @type: the selectors' types (enum flownic_selector_type)
 * @mask: their masks, one after another
 * @key: the values, zero wherever @mask is
 */
struct flownic_match {
	u8 count;
	u8 length;
	u8 type[FLOWNIC_MATCH_SELECTORS];
	u8 mask[FLOWNIC_KEY_MAX];
	u8 key[FLOWNIC_KEY_MAX];
};

/**
 * struct flownic_tuple - a flow: protocol, addresses and ports
 * @n_proto: ETH_P_IP or ETH_P_IPV6
 * @ip_proto: IPPROTO_TCP or IPPROTO_UDP
 * @reserved: zero, so that tuples can be compared as bytes
 * @sport: source port
 * @dport: destination port
 * @saddr: source address, an IPv4 one in the first word and zeroes
 * @daddr: destination address
 */
struct flownic_tuple {
	__be16 n_proto;
	u8 ip_proto;
	u8 reserved;
	__be16 sport;
	__be16 dport;
	struct in6_addr saddr;
	struct in6_addr daddr;
};

unsigned int flownic_selector_length(u8 type);
int flownic_match_spec(struct flownic_match *match, const struct ethtool_rx_flow_spec *fs);
void flownic_match_tuple(struct flownic_match *match, const struct flownic_tuple *tuple);
bool flownic_match_same_mask(const struct flownic_match *a, const struct flownic_match *b);
bool flownic_match_same(const struct flownic_match *a, const struct flownic_match *b);

#endif /* FLOWNIC_MATCH_H */
