/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Accelerated RFS: what its two files share. Its states, and how it works, are explained in
 * flownic_arfs.c.
 */
#ifndef FLOWNIC_ARFS_H
#define FLOWNIC_ARFS_H

#include "flownic_ctl.h"

#ifdef CONFIG_RFS_ACCEL

/* No queue: there is, or shall be, no filter. */
#define FLOWNIC_NOWHERE		0xffff

enum flownic_slot_state {
	FLOWNIC_SLOT_FREE,
	FLOWNIC_SLOT_IDLE,
	FLOWNIC_SLOT_TODO,
	FLOWNIC_SLOT_BUSY,
};

/**
 * struct flownic_arfs_slot - a flow
 * @node: in flownic_arfs.flows, unless FREE
 * @list: in free if FREE, in todo if TODO
 * @tuple: which flow
 * @flow_id: the stack's, for rps_may_expire_flow()
 * @staged: when the stack last asked, in jiffies
 * @wanted: the queue that the stack wants
 * @device: the queue that the device's filter has, or FLOWNIC_NOWHERE
 * @asked: if BUSY, the queue that it will have when the command is done, or FLOWNIC_NOWHERE
 * @state: enum flownic_slot_state
 * @dead: the stack needs it no more
 * @barred: the device does not take such a filter
 */
struct flownic_arfs_slot {
	struct hlist_node node;
	struct list_head list;
	struct flownic_tuple tuple;
	u32 flow_id;
	unsigned long staged;
	u16 wanted;
	u16 device;
	u16 asked;
	u8 state;
	bool dead;
	bool barred;
};

/* The filter's id, which the stack knows the slot by. */
static inline u32 flownic_arfs_index(const struct flownic_arfs *arfs,
				     const struct flownic_arfs_slot *slot)
{
	return slot - arfs->slots;
}

/* Where the device should send a flow now. */
static inline u16 flownic_arfs_target(const struct flownic_arfs *arfs,
				      const struct flownic_arfs_slot *slot)
{
	if (slot->dead || slot->barred || !arfs->enabled || !arfs->running ||
	    slot->wanted >= arfs->pairs)
		return FLOWNIC_NOWHERE;
	return slot->wanted;
}

/* Which of the four classifiers a flow needs. */
static inline unsigned int flownic_arfs_classifier(const struct flownic_tuple *tuple)
{
	return (tuple->n_proto == htons(ETH_P_IPV6) ? 2 : 0) + (tuple->ip_proto == IPPROTO_UDP);
}

void flownic_arfs_settle(struct flownic_arfs *arfs, struct flownic_arfs_slot *slot);
void flownic_arfs_program(struct work_struct *work);

#endif /* CONFIG_RFS_ACCEL */

#endif /* FLOWNIC_ARFS_H */
