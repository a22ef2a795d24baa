/* SPDX-License-Identifier: GPL-2.0 */
/*
 * What differs between the kernels that this driver builds for: 6.1 and 7.3.
 *
 * Each entry lets the rest of the driver be written for the newer kernel. Where the older one has
 * nothing of the kind, the entry does nothing, and says what is missing then.
 */
#ifndef FLOWNIC_COMPAT_H
#define FLOWNIC_COMPAT_H

#include <linux/version.h>
#include <linux/virtio.h>
#include <linux/virtio_config.h>
#include <linux/virtio_net.h>

#define FLOWNIC_KERNEL(major, minor)	(LINUX_VERSION_CODE >= KERNEL_VERSION(major, minor, 0))

#endif
