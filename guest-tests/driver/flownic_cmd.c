// SPDX-License-Identifier: GPL-2.0
/*
 * Commands in band: how this driver programs the device.
 *
 * A command is a frame on transmit queue 0 whose chain of descriptors has a
 * part that the device writes: the reply. The calls of this file are
 *
 *	flownic_admin_call(), flownic_control_call()	make a call; the caller
 *							fills call->data
 *	flownic_call_start()	the device has it now; several may be under way
 *	flownic_call_wait()	its answer is there, or there will be none
 *	flownic_call_put()	ends it
 *	flownic_call_run()	the three in a row
 *
 * Waiting is bounded. A call has two owners, the caller and the device: when
 * the caller gives up, the buffers stay until the device has returned them,
 * at the latest when it is stopped.
 */
#include <linux/delay.h>
#include <linux/slab.h>

#include "flownic_ctl.h"

#define CALL_TIMEOUT	msecs_to_jiffies(5000)
/* For a device that has not answered the last time, so that many commands do not add up. */
#define CALL_TIMEOUT_SILENT	msecs_to_jiffies(200)
/* Between looks at the ring, should an interrupt be late. */
#define CALL_PATIENCE	msecs_to_jiffies(50)

/* What comes before the command: the virtio-net header, Ethernet, the channel. */
#define HEADERS_LEN	(FLOWNIC_HDR_LEN + ETH_HLEN + sizeof(struct flownic_chan_hdr))
#define REPLY_ALIGN	64

static unsigned long call_deadline(const struct flownic_ctl *ctl)
{
	return jiffies + (READ_ONCE(ctl->silent) ? CALL_TIMEOUT_SILENT : CALL_TIMEOUT);
}

static struct flownic_call *call_new(struct flownic_ctl *ctl, u8 kind, u32 command_len,
				     u32 answer_room)
{
	struct flownic_net *fn = ctl->fn;
	struct flownic_chan_hdr *hdr;
	struct flownic_call *call;
	struct ethhdr *eth;
	u32 out_room;

	if (WARN_ON_ONCE(command_len > FLOWNIC_COMMAND_MAX))
		return NULL;
	call = kzalloc_obj(*call);
	if (!call)
		return NULL;
	call->ctl = ctl;
	call->kind = kind;
	call->sequence = atomic_inc_return(&ctl->sequence);
	call->out_len = HEADERS_LEN + command_len;
	call->in_len = sizeof(struct flownic_chan_hdr) + answer_room;
	refcount_set(&call->refs, 1);
	init_completion(&call->done);

	out_room = ALIGN(call->out_len, REPLY_ALIGN);
	call->out = kzalloc(out_room + call->in_len, GFP_KERNEL);
	if (!call->out) {
		kfree(call);
		return NULL;
	}
	call->in = call->out + out_room;

	eth = (struct ethhdr *)(call->out + FLOWNIC_HDR_LEN);
	ether_addr_copy(eth->h_dest, fn->dev->dev_addr);
	ether_addr_copy(eth->h_source, fn->dev->dev_addr);
	eth->h_proto = htons(FLOWNIC_ETHERTYPE);
	/* Two bytes off its natural alignment, as every header behind Ethernet's. */
	hdr = (struct flownic_chan_hdr *)(eth + 1);
	put_unaligned_le32(FLOWNIC_MAGIC, &hdr->magic);
	hdr->version = FLOWNIC_VERSION;
	hdr->kind = kind;
	put_unaligned_le32(call->sequence, &hdr->sequence);
	put_unaligned_le16(command_len, &hdr->length);
	call->data = hdr + 1;
	return call;
}

/**
 * flownic_admin_call - makes an admin command
 * @ctl: the device
 * @opcode: enum flownic_admin_opcode
 * @data_len: bytes of data; the caller fills call->data, which may be unaligned
 * @result_room: bytes that the result may have
 *
 * Return: the call, NULL without memory.
 */
struct flownic_call *flownic_admin_call(struct flownic_ctl *ctl, u16 opcode, u32 data_len,
					u32 result_room)
{
	struct flownic_admin_cmd *cmd;
	struct flownic_call *call;

	call = call_new(ctl, FLOWNIC_KIND_ADMIN, sizeof(*cmd) + data_len,
			sizeof(struct flownic_admin_answer) + result_room);
	if (!call)
		return NULL;
	cmd = call->data;
	put_unaligned_le16(opcode, &cmd->opcode);
	put_unaligned_le16(FLOWNIC_ADMIN_GROUP_SELF, &cmd->group_type);
	call->data = cmd + 1;
	return call;
}

/**
 * flownic_control_call - makes a control command
 * @ctl: the device
 * @class: enum flownic_ctrl_class
 * @command: of that class
 * @data_len: bytes of data; the caller fills call->data, which may be unaligned
 * @result_room: bytes that the result may have
 *
 * Return: the call, NULL without memory.
 */
struct flownic_call *flownic_control_call(struct flownic_ctl *ctl, u8 class, u8 command,
					  u32 data_len, u32 result_room)
{
	struct flownic_ctrl_hdr *hdr;
	struct flownic_call *call;

	call = call_new(ctl, FLOWNIC_KIND_CONTROL, sizeof(*hdr) + data_len, 1 + result_room);
	if (!call)
		return NULL;
	hdr = call->data;
	hdr->class = class;
	hdr->command = command;
	call->data = hdr + 1;
	return call;
}

/**
 * flownic_call_put - lets go of a call
 * @call: may be NULL
 */
void flownic_call_put(struct flownic_call *call)
{
	if (!call || !refcount_dec_and_test(&call->refs))
		return;
	kfree(call->out);
	kfree(call);
}

/**
 * flownic_cmd_done - the transmit queue has a command back
 * @cmd: the command
 * @used_len: bytes that the device has written, 0 if it never will
 *
 * Context: bottom halves off.
 */
void flownic_cmd_done(struct flownic_cmd *cmd, u32 used_len)
{
	struct flownic_call *call = container_of(cmd, struct flownic_call, cmd);

	call->cmd.used_len = used_len;
	complete(&call->done);
	flownic_call_put(call);
}

/**
 * flownic_call_start - gives a command to the device
 * @call: the call; may be started once
 *
 * If the transmit queue is full of frames, waits until some have gone.
 * Context: process.
 *
 * Return: 0, or a negative error: then there is nothing to wait for.
 */
int flownic_call_start(struct flownic_call *call)
{
	unsigned long deadline = call_deadline(call->ctl);
	struct scatterlist out, in;
	int err;

	sg_init_one(&out, call->out, call->out_len);
	sg_init_one(&in, call->in, call->in_len);
	refcount_inc(&call->refs);
	for (;;) {
		err = flownic_tx_command(call->ctl->fn, &out, &in, &call->cmd);
		if (err != -ENOSPC || time_after(jiffies, deadline))
			break;
		usleep_range(100, 200);
		flownic_tx_reap_commands(call->ctl->fn);
	}
	if (err)
		refcount_dec(&call->refs);
	else
		atomic64_inc(&call->ctl->commands);
	return err;
}

static int admin_error(const struct flownic_admin_answer *answer)
{
	u16 status = get_unaligned_le16(&answer->status);

	switch (status) {
	case FLOWNIC_ADMIN_OK:
	case FLOWNIC_ADMIN_ENXIO:
	case FLOWNIC_ADMIN_EAGAIN:
	case FLOWNIC_ADMIN_ENOMEM:
	case FLOWNIC_ADMIN_EBUSY:
	case FLOWNIC_ADMIN_EEXIST:
	case FLOWNIC_ADMIN_EINVAL:
	case FLOWNIC_ADMIN_ENOSPC:
		return -status;	/* the specification numbers them as Linux does */
	default:
		return -EIO;
	}
}

/* Looks at a reply, none of which is trusted. */
static int parse_reply(struct flownic_call *call)
{
	const struct flownic_chan_hdr *hdr = (void *)call->in;
	u32 written = min(call->cmd.used_len, call->in_len);
	u32 answer, need;

	if (!written)
		return -ENODEV;
	if (written < sizeof(*hdr) || get_unaligned_le32(&hdr->magic) != FLOWNIC_MAGIC ||
	    get_unaligned_le32(&hdr->sequence) != call->sequence)
		return -EIO;
	switch (hdr->status) {
	case FLOWNIC_CHAN_OK:
		break;
	case FLOWNIC_CHAN_CLOSED:
		return -EPERM;
	case FLOWNIC_CHAN_VERSION:
	case FLOWNIC_CHAN_KIND:
		return -EPROTONOSUPPORT;
	default:
		return -EIO;
	}
	need = call->kind == FLOWNIC_KIND_ADMIN ? sizeof(struct flownic_admin_answer) : 1;
	answer = min_t(u32, written - sizeof(*hdr), get_unaligned_le16(&hdr->length));
	if (hdr->kind != (call->kind | FLOWNIC_KIND_REPLY) || answer < need)
		return -EIO;

	call->result = (u8 *)(hdr + 1) + need;
	call->result_len = answer - need;
	if (call->kind == FLOWNIC_KIND_ADMIN)
		return admin_error((const void *)(hdr + 1));
	return *(const u8 *)(hdr + 1) == FLOWNIC_CTRL_OK ? 0 : -EINVAL;
}

/**
 * flownic_call_wait - waits for the answer
 * @call: a call that was started
 *
 * Context: process.
 *
 * Return: 0, with call->result and call->result_len; the device's own error;
 * -ETIMEDOUT; -ENODEV if the device was stopped; -EIO if it answers nonsense;
 * -EPERM if the host does not allow commands.
 */
int flownic_call_wait(struct flownic_call *call)
{
	struct flownic_ctl *ctl = call->ctl;
	unsigned long deadline = call_deadline(ctl);
	int err;

	while (!wait_for_completion_timeout(&call->done, CALL_PATIENCE)) {
		flownic_tx_reap_commands(ctl->fn);
		if (time_after(jiffies, deadline) && !completion_done(&call->done)) {
			WRITE_ONCE(ctl->silent, true);
			atomic64_inc(&ctl->command_timeouts);
			return -ETIMEDOUT;
		}
	}
	WRITE_ONCE(ctl->silent, false);
	err = parse_reply(call);
	if (err)
		atomic64_inc(&ctl->command_errors);
	return err;
}

/**
 * flownic_call_run - gives a command and waits for its answer
 * @call: the call; NULL is -ENOMEM, so that makers need not be checked
 *
 * The caller still has to put it.
 *
 * Return: as flownic_call_start() and flownic_call_wait().
 */
int flownic_call_run(struct flownic_call *call)
{
	int err;

	if (!call)
		return -ENOMEM;
	err = flownic_call_start(call);
	return err ?: flownic_call_wait(call);
}

/**
 * flownic_control - runs a control command that has no result
 * @ctl: the device
 * @class: enum flownic_ctrl_class
 * @command: of that class
 * @data: its data
 * @data_len: bytes of that
 *
 * Return: as flownic_call_run().
 */
int flownic_control(struct flownic_ctl *ctl, u8 class, u8 command, const void *data, u32 data_len)
{
	struct flownic_call *call = flownic_control_call(ctl, class, command, data_len, 0);
	int err;

	if (call)
		memcpy(call->data, data, data_len);
	err = flownic_call_run(call);
	flownic_call_put(call);
	return err;
}
