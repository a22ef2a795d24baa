// SPDX-License-Identifier: GPL-2.0
/*
 * Accelerated RFS: the work that makes the device's filters what is wanted.
 *
 * It takes slots from the list of those to do, a batch at a time, gives all commands of a batch to
 * the device and then waits for each. Whatever comes of a command, its slot is settled afterwards:
 * it is idle, free, or to do again.
 *
 *	done		the device has, or has no more, the filter
 *	EAGAIN, EBUSY	it has too much under way: again in a moment
 *	ENOSPC		it is full: no filters are created, and flows that are new are refused,
 *			until one has gone or some time has passed; others still move and go
 *	EINVAL		it does not take such a filter: never again for this flow
 *	ETIMEDOUT	no answer: it may yet be done, so the slot counts as one with a filter; again, later
 *	otherwise	nonsense: again, later
 */
#include "flownic_arfs.h"

#ifdef CONFIG_RFS_ACCEL

/* Commands under way at a time. */
#define BATCH		16
/* The device is busy, or full, or does not answer: when to try again. */
#define RETRY_BUSY	msecs_to_jiffies(10)
#define RETRY_FULL	msecs_to_jiffies(200)
#define RETRY_FAILED	msecs_to_jiffies(500)

/* One command of a batch. */
struct step {
	struct flownic_arfs_slot *slot;
	struct flownic_call *call;
	u16 opcode;
	u16 queue;
	int err;
};

/* Decides what is to be done for a slot that was taken from the list. */
static u16 choose_opcode(struct flownic_ctl *ctl, const struct flownic_arfs_slot *slot, u16 queue)
{
	if (slot->device == FLOWNIC_NOWHERE)
		return FLOWNIC_ADMIN_OBJ_CREATE;
	if (queue != FLOWNIC_NOWHERE && ctl->capabilities & FLOWNIC_CAPABLE_RULE_MODIFY)
		return FLOWNIC_ADMIN_OBJ_MODIFY;
	/* If the device cannot move filters, the new one is created in the next round. */
	return FLOWNIC_ADMIN_OBJ_DESTROY;
}

/* Takes up to a batch of slots; *@left bounds a round, so that failures end it. */
static unsigned int take_batch(struct flownic_ctl *ctl, struct step *steps, unsigned int *left)
{
	struct flownic_arfs *arfs = &ctl->arfs;
	unsigned int count = 0;

	spin_lock_bh(&arfs->lock);
	while (count < BATCH && *left && !list_empty(&arfs->todo)) {
		struct flownic_arfs_slot *slot;
		struct step *step = &steps[count];

		slot = list_first_entry(&arfs->todo, struct flownic_arfs_slot, list);
		list_del(&slot->list);
		(*left)--;
		slot->state = FLOWNIC_SLOT_BUSY;
		step->queue = flownic_arfs_target(arfs, slot);
		step->opcode = choose_opcode(ctl, slot, step->queue);
		slot->asked = step->opcode == FLOWNIC_ADMIN_OBJ_DESTROY ? FLOWNIC_NOWHERE :
									  step->queue;
		/* It may have changed its mind, and a full device need not be asked. */
		if (step->queue == slot->device ||
		    (step->opcode == FLOWNIC_ADMIN_OBJ_CREATE && arfs->device_full)) {
			flownic_arfs_settle(arfs, slot);
			continue;
		}
		step->slot = slot;
		count++;
	}
	spin_unlock_bh(&arfs->lock);
	return count;
}

/* A busy slot's flow does not change, so that no lock is needed. */
static void start_step(struct flownic_ctl *ctl, struct step *step)
{
	struct flownic_arfs *arfs = &ctl->arfs;
	const struct flownic_tuple *tuple = &step->slot->tuple;
	u32 id = arfs->first_id + flownic_arfs_index(arfs, step->slot);
	struct flownic_target target = {
		.action = FLOWNIC_ACTION_DIRECT_RX_VQ,
		.queue = step->queue,
	};
	const struct flownic_classifier *classifier;
	struct flownic_match match;

	if (step->opcode == FLOWNIC_ADMIN_OBJ_DESTROY) {
		step->call = flownic_rule_destroy_call(ctl, id);
	} else {
		classifier = arfs->classifiers[flownic_arfs_classifier(tuple)];
		flownic_match_tuple(&match, tuple);
		step->call = flownic_rule_call(ctl, step->opcode, id, FLOWNIC_GROUP_ARFS,
					       classifier->id, &match, &target);
	}
	step->err = step->call ? flownic_call_start(step->call) : -ENOMEM;
}

/* Notes what has become of a command. Returns when to try again, in jiffies; 0: no need. */
static unsigned long finish_step(struct flownic_arfs *arfs, const struct step *step)
{
	struct flownic_arfs_slot *slot = step->slot;
	bool created = slot->device == FLOWNIC_NOWHERE;

	switch (step->err) {
	case 0:
		slot->device = step->queue;
		if (step->opcode == FLOWNIC_ADMIN_OBJ_DESTROY) {
			slot->device = FLOWNIC_NOWHERE;
			arfs->active--;
			arfs->stats.expired += slot->dead;
			arfs->device_full = false;
		} else if (created) {
			arfs->active++;
			arfs->stats.inserted++;
		} else {
			arfs->stats.moved++;
		}
		return 0;
	case -EAGAIN:
	case -EBUSY:
		arfs->stats.busy++;
		return RETRY_BUSY;
	case -ENOSPC:
		/* Until it has room no more are created, but others may still move and go. */
		arfs->stats.full++;
		arfs->device_full = true;
		arfs->full_since = jiffies;
		return 0;
	case -ENXIO:
		/* The device has no such filter: so be it. */
		if (!created)
			arfs->active--;
		slot->device = FLOWNIC_NOWHERE;
		return RETRY_BUSY;
	case -EEXIST:
		/* A command that seemed lost was not. Which queue it has will not matter. */
		if (created)
			arfs->active++;
		slot->device = FLOWNIC_NOWHERE - 1;
		return RETRY_BUSY;
	case -ETIMEDOUT:
		/* It may be done later, or never. Until that is known there may be a filter, anywhere. */
		arfs->stats.errors++;
		if (step->opcode != FLOWNIC_ADMIN_OBJ_DESTROY) {
			arfs->active += created;
			slot->device = FLOWNIC_NOWHERE - 1;
		}
		return RETRY_FAILED;
	case -EINVAL:
	case -EOPNOTSUPP:
		arfs->stats.errors++;
		slot->barred = true;
		return 0;
	default:
		arfs->stats.errors++;
		return RETRY_FAILED;
	}
}

/**
 * flownic_arfs_program - makes the device's filters what is wanted
 * @work: flownic_arfs.program
 */
void flownic_arfs_program(struct work_struct *work)
{
	struct flownic_arfs *arfs = container_of(work, struct flownic_arfs, program.work);
	struct flownic_ctl *ctl = container_of(arfs, struct flownic_ctl, arfs);
	unsigned int i, count, left = arfs->size;
	struct step steps[BATCH];
	unsigned long retry = 0;
	bool more;

	spin_lock_bh(&arfs->lock);
	if (time_after(jiffies, arfs->full_since + RETRY_FULL))
		arfs->device_full = false;
	spin_unlock_bh(&arfs->lock);

	while ((count = take_batch(ctl, steps, &left))) {
		for (i = 0; i < count; i++)
			start_step(ctl, &steps[i]);
		for (i = 0; i < count; i++) {
			if (!steps[i].err)
				steps[i].err = flownic_call_wait(steps[i].call);
			flownic_call_put(steps[i].call);
		}
		spin_lock_bh(&arfs->lock);
		for (i = 0; i < count; i++) {
			retry = max(retry, finish_step(arfs, &steps[i]));
			flownic_arfs_settle(arfs, steps[i].slot);
		}
		spin_unlock_bh(&arfs->lock);
		if (retry)
			break;
	}

	spin_lock_bh(&arfs->lock);
	more = !list_empty(&arfs->todo);
	if (arfs->device_full)
		retry = max(retry, RETRY_FULL);
	spin_unlock_bh(&arfs->lock);
	if (more)
		queue_delayed_work(arfs->wq, &arfs->program, retry);
}

#endif /* CONFIG_RFS_ACCEL */
