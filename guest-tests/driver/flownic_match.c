// SPDX-License-Identifier: GPL-2.0
/*
 * From what people and the kernel say to what the device matches.
 *
 * A rule of ethtool names a flow type and some fields with masks, a flow of
 * accelerated RFS is a 5-tuple. The device knows neither: it compares headers
 * under masks, one selector for each header. Below a selector for a transport
 * header the IP header's protocol must be matched whole, and below one for an
 * IP header the EtherType.
 *
 * Masks of ethtool's structures have ones where a bit counts. Fields with a
 * mask of zero are not looked at, whatever their value.
 */
#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/string.h>
#include <linux/tcp.h>
#include <linux/udp.h>

#include "flownic_match.h"

static_assert(sizeof(struct ethhdr) == FLOWNIC_LEN_ETH);
static_assert(sizeof(struct iphdr) == FLOWNIC_LEN_IPV4);
static_assert(sizeof(struct ipv6hdr) == FLOWNIC_LEN_IPV6);
static_assert(sizeof(struct tcphdr) == FLOWNIC_LEN_TCP);
static_assert(sizeof(struct udphdr) == FLOWNIC_LEN_UDP);

/**
 * flownic_selector_length - length of the header that a selector matches
 * @type: enum flownic_selector_type
 *
 * Return: bytes, 0 for a type that is not known.
 */
unsigned int flownic_selector_length(u8 type)
{
	switch (type) {
	case FLOWNIC_SEL_ETH:
		return FLOWNIC_LEN_ETH;
	case FLOWNIC_SEL_IPV4:
		return FLOWNIC_LEN_IPV4;
	case FLOWNIC_SEL_IPV6:
		return FLOWNIC_LEN_IPV6;
	case FLOWNIC_SEL_TCP:
		return FLOWNIC_LEN_TCP;
	case FLOWNIC_SEL_UDP:
		return FLOWNIC_LEN_UDP;
	default:
		return 0;
	}
}

/* Adds a selector that ignores all of its header, returns where that starts. */
static unsigned int add(struct flownic_match *match, u8 type)
{
	unsigned int at = match->length;

	match->type[match->count++] = type;
	match->length += flownic_selector_length(type);
	return at;
}

static void put(struct flownic_match *match, unsigned int at, const void *key, const void *mask,
		unsigned int size)
{
	const u8 *value = key, *bits = mask;
	unsigned int i;

	for (i = 0; i < size; i++) {
		match->mask[at + i] = bits[i];
		match->key[at + i] = value[i] & bits[i];
	}
}

/* Matches a field of the header that starts at @at. */
#define PUT(match, at, header, field, value, mask)				\
	put(match, (at) + offsetof(struct header, field), value, mask,		\
	    sizeof_field(struct header, field))

static unsigned int add_eth(struct flownic_match *match, __be16 n_proto)
{
	static const __be16 all = cpu_to_be16(0xffff);
	unsigned int at = add(match, FLOWNIC_SEL_ETH);

	PUT(match, at, ethhdr, h_proto, &n_proto, &all);
	return at;
}

static unsigned int add_ip(struct flownic_match *match, __be16 n_proto)
{
	add_eth(match, n_proto);
	return add(match, n_proto == htons(ETH_P_IP) ? FLOWNIC_SEL_IPV4 : FLOWNIC_SEL_IPV6);
}

/* The traffic class is spread over two bytes of an IPv6 header. */
static void put_tclass(struct flownic_match *match, unsigned int at, u8 tclass, u8 mask)
{
	__be32 key_word = cpu_to_be32((u32)tclass << 20);
	__be32 mask_word = cpu_to_be32((u32)mask << 20);

	put(match, at, &key_word, &mask_word, sizeof(key_word));
}

static void put_protocol(struct flownic_match *match, unsigned int ip, __be16 n_proto, u8 protocol,
			 u8 mask)
{
	if (n_proto == htons(ETH_P_IP))
		PUT(match, ip, iphdr, protocol, &protocol, &mask);
	else
		PUT(match, ip, ipv6hdr, nexthdr, &protocol, &mask);
}

static u8 transport_selector(u8 ip_proto)
{
	return ip_proto == IPPROTO_TCP ? FLOWNIC_SEL_TCP : FLOWNIC_SEL_UDP;
}

/* Ports are at the same place in TCP and UDP. */
static void put_ports(struct flownic_match *match, unsigned int at, __be16 source,
		      __be16 source_mask, __be16 dest, __be16 dest_mask)
{
	static_assert(offsetof(struct tcphdr, source) == offsetof(struct udphdr, source));
	static_assert(offsetof(struct tcphdr, dest) == offsetof(struct udphdr, dest));

	PUT(match, at, udphdr, source, &source, &source_mask);
	PUT(match, at, udphdr, dest, &dest, &dest_mask);
}

static void match_transport4(struct flownic_match *match, const struct ethtool_tcpip4_spec *key,
			     const struct ethtool_tcpip4_spec *mask, u8 ip_proto)
{
	unsigned int ip = add_ip(match, htons(ETH_P_IP));

	PUT(match, ip, iphdr, saddr, &key->ip4src, &mask->ip4src);
	PUT(match, ip, iphdr, daddr, &key->ip4dst, &mask->ip4dst);
	PUT(match, ip, iphdr, tos, &key->tos, &mask->tos);
	put_protocol(match, ip, htons(ETH_P_IP), ip_proto, 0xff);
	put_ports(match, add(match, transport_selector(ip_proto)), key->psrc, mask->psrc, key->pdst,
		  mask->pdst);
}

static void match_transport6(struct flownic_match *match, const struct ethtool_tcpip6_spec *key,
			     const struct ethtool_tcpip6_spec *mask, u8 ip_proto)
{
	unsigned int ip = add_ip(match, htons(ETH_P_IPV6));

	put(match, ip + offsetof(struct ipv6hdr, saddr), key->ip6src, mask->ip6src, 16);
	put(match, ip + offsetof(struct ipv6hdr, daddr), key->ip6dst, mask->ip6dst, 16);
	put_tclass(match, ip, key->tclass, mask->tclass);
	put_protocol(match, ip, htons(ETH_P_IPV6), ip_proto, 0xff);
	put_ports(match, add(match, transport_selector(ip_proto)), key->psrc, mask->psrc, key->pdst,
		  mask->pdst);
}

/* The first four bytes after the IP header: only TCP and UDP have selectors. */
static int put_l4_bytes(struct flownic_match *match, __be32 key, __be32 mask, u8 ip_proto,
			u8 proto_mask)
{
	if (!mask)
		return 0;
	if (proto_mask != 0xff || (ip_proto != IPPROTO_TCP && ip_proto != IPPROTO_UDP))
		return -EOPNOTSUPP;
	put(match, add(match, transport_selector(ip_proto)), &key, &mask, sizeof(key));
	return 0;
}

static int match_ip4(struct flownic_match *match, const struct ethtool_usrip4_spec *key,
		     const struct ethtool_usrip4_spec *mask)
{
	unsigned int ip = add_ip(match, htons(ETH_P_IP));

	if (mask->ip_ver || key->ip_ver != ETH_RX_NFC_IP4)
		return -EINVAL;
	PUT(match, ip, iphdr, saddr, &key->ip4src, &mask->ip4src);
	PUT(match, ip, iphdr, daddr, &key->ip4dst, &mask->ip4dst);
	PUT(match, ip, iphdr, tos, &key->tos, &mask->tos);
	put_protocol(match, ip, htons(ETH_P_IP), key->proto, mask->proto);
	return put_l4_bytes(match, key->l4_4_bytes, mask->l4_4_bytes, key->proto, mask->proto);
}

static int match_ip6(struct flownic_match *match, const struct ethtool_usrip6_spec *key,
		     const struct ethtool_usrip6_spec *mask)
{
	unsigned int ip = add_ip(match, htons(ETH_P_IPV6));

	put(match, ip + offsetof(struct ipv6hdr, saddr), key->ip6src, mask->ip6src, 16);
	put(match, ip + offsetof(struct ipv6hdr, daddr), key->ip6dst, mask->ip6dst, 16);
	put_tclass(match, ip, key->tclass, mask->tclass);
	put_protocol(match, ip, htons(ETH_P_IPV6), key->l4_proto, mask->l4_proto);
	return put_l4_bytes(match, key->l4_4_bytes, mask->l4_4_bytes, key->l4_proto,
			    mask->l4_proto);
}

static void match_ether(struct flownic_match *match, const struct ethhdr *key,
			const struct ethhdr *mask)
{
	unsigned int at = add(match, FLOWNIC_SEL_ETH);

	put(match, at, key, mask, sizeof(*key));
}

/**
 * flownic_match_spec - translates a rule of ethtool
 * @match: result
 * @fs: the rule's flow specification
 *
 * Return: 0, -EOPNOTSUPP for what the device has no selector for (other
 * protocols, VLAN tags, user data), -EINVAL for what cannot be meant.
 */
int flownic_match_spec(struct flownic_match *match, const struct ethtool_rx_flow_spec *fs)
{
	const union ethtool_flow_union *key = &fs->h_u, *mask = &fs->m_u;
	int err = 0;

	memset(match, 0, sizeof(*match));
	if ((fs->flow_type & FLOW_EXT) &&
	    (fs->m_ext.vlan_etype || fs->m_ext.vlan_tci || fs->m_ext.data[0] || fs->m_ext.data[1]))
		return -EOPNOTSUPP;

	switch (fs->flow_type & ~(FLOW_EXT | FLOW_MAC_EXT | FLOW_RSS)) {
	case TCP_V4_FLOW:
		match_transport4(match, &key->tcp_ip4_spec, &mask->tcp_ip4_spec, IPPROTO_TCP);
		break;
	case UDP_V4_FLOW:
		match_transport4(match, &key->udp_ip4_spec, &mask->udp_ip4_spec, IPPROTO_UDP);
		break;
	case TCP_V6_FLOW:
		match_transport6(match, &key->tcp_ip6_spec, &mask->tcp_ip6_spec, IPPROTO_TCP);
		break;
	case UDP_V6_FLOW:
		match_transport6(match, &key->udp_ip6_spec, &mask->udp_ip6_spec, IPPROTO_UDP);
		break;
	case IPV4_USER_FLOW:
		err = match_ip4(match, &key->usr_ip4_spec, &mask->usr_ip4_spec);
		break;
	case IPV6_USER_FLOW:
		err = match_ip6(match, &key->usr_ip6_spec, &mask->usr_ip6_spec);
		break;
	case ETHER_FLOW:
		match_ether(match, &key->ether_spec, &mask->ether_spec);
		break;
	default:
		return -EOPNOTSUPP;
	}
	/* dst-mac, which any flow type may have: the Ethernet selector is the first. */
	if (!err && fs->flow_type & FLOW_MAC_EXT)
		put(match, offsetof(struct ethhdr, h_dest), fs->h_ext.h_dest, fs->m_ext.h_dest,
		    ETH_ALEN);
	return err;
}

/**
 * flownic_match_tuple - matches one flow, by all of its 5-tuple
 * @match: result
 * @tuple: the flow
 */
void flownic_match_tuple(struct flownic_match *match, const struct flownic_tuple *tuple)
{
	static const struct in6_addr all = { { { [0 ... 15] = 0xff } } };
	static const __be16 port = cpu_to_be16(0xffff);
	unsigned int ip;

	memset(match, 0, sizeof(*match));
	ip = add_ip(match, tuple->n_proto);
	if (tuple->n_proto == htons(ETH_P_IP)) {
		put(match, ip + offsetof(struct iphdr, saddr), &tuple->saddr, &all, 4);
		put(match, ip + offsetof(struct iphdr, daddr), &tuple->daddr, &all, 4);
	} else {
		put(match, ip + offsetof(struct ipv6hdr, saddr), &tuple->saddr, &all, 16);
		put(match, ip + offsetof(struct ipv6hdr, daddr), &tuple->daddr, &all, 16);
	}
	put_protocol(match, ip, tuple->n_proto, tuple->ip_proto, 0xff);
	put_ports(match, add(match, transport_selector(tuple->ip_proto)), tuple->sport, port,
		  tuple->dport, port);
}

/**
 * flownic_match_same_mask - do two matches look at the same bits?
 * @a: one
 * @b: another
 *
 * Return: true if one classifier serves both.
 */
bool flownic_match_same_mask(const struct flownic_match *a, const struct flownic_match *b)
{
	return a->count == b->count && a->length == b->length &&
	       !memcmp(a->type, b->type, a->count) && !memcmp(a->mask, b->mask, a->length);
}

/**
 * flownic_match_same - do two matches find the same packets?
 * @a: one
 * @b: another
 *
 * Return: true if rules with them differ in nothing but what they do.
 */
bool flownic_match_same(const struct flownic_match *a, const struct flownic_match *b)
{
	return flownic_match_same_mask(a, b) && !memcmp(a->key, b->key, a->length);
}
