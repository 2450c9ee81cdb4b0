/* mem/device/device_private.h - what device.c and the back ends share.
 *
 * device.c does the accounting (blocks, ranges, copies in flight, capacity) for every back end; a
 * back end only carries out operations on memory, and is never asked for more than it has.
 *
 * Threads: as device.h; the device's `lock` guards the accounting. A back end is called by several
 *          threads at a time.
 */
#ifndef HL_MEM_DEVICE_PRIVATE_H
#define HL_MEM_DEVICE_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>

#include "mem/device/device.h"

#define HL_DEVICE_TIMEOUT_MS 30000

/* A block as a back end sees it. */
struct device_mem {
    uint64_t size;
    uint64_t offset; /* in the descriptor that exports it */
    uint64_t handle; /* the back end's own */
    uint64_t address;
    void *host;
    bool own_address; /* not in a range that the caller reserved */
    bool closed;      /* map it without access for the CPU */
    bool imported;
};

enum device_dir { DEVICE_IN, DEVICE_OUT, DEVICE_WITHIN };

struct device_op {
    enum device_dir dir;
    uint64_t dst, src; /* addresses, of the device or of the process */
    size_t len;
};

/* All calls may come from several threads at a time; arguments are already checked. */
struct device_ops {
    const char *kind;
    /* `rest` is the spec behind "kind" (with its ':', or ""). Fills d->impl and the fields
     * under "facts". */
    hl_status (*open)(struct hl_device *d, const char *rest,
                      const struct hl_device_options *options);
    void (*settle)(struct hl_device *d); /* waits for all copies, frees their handles */
    void (*close)(struct hl_device *d);  /* after settle; no block or range is left */
    /* m->address: where it is mapped immediately afterwards; 0: not at all, or where the back end
     * chooses. */
    hl_status (*create)(struct hl_device *d, struct device_mem *m);
    void (*destroy)(struct hl_device *d, struct device_mem *m);
    /* `at` 0: the back end chooses. */
    hl_status (*map)(struct hl_device *d, struct device_mem *m, uint64_t at);
    void (*unmap)(struct hl_device *d, struct device_mem *m);
    hl_status (*reserve)(struct hl_device *d, uint64_t size, uint64_t *address);
    void (*unreserve)(struct hl_device *d, uint64_t address, uint64_t size);
    /* Its mappings in that part of a range were replaced. NULL: the back end caches none. */
    void (*range_reset)(struct hl_device *d, uint64_t address, uint64_t size);
    /* The address that copies use, whether or not the block is mapped or accessible. NULL: the
     * block's own address. */
    uint64_t (*reach)(struct hl_device *d, const struct device_mem *m);
    hl_status (*copy)(struct hl_device *d, const struct device_op *op);
    hl_status (*begin)(struct hl_device *d, const struct device_op *op, void **handle);
    /* Anything but HL_ETIMEDOUT ends the copy and the handle. */
    hl_status (*wait)(struct hl_device *d, void *handle, int timeout_ms);
    /* NULL: no other code starts work on the device. */
    hl_status (*quiesce)(struct hl_device *d, int timeout_ms);
    hl_status (*pin)(struct hl_device *d, void *ptr, size_t len);
    void (*unpin)(struct hl_device *d, void *ptr);
    hl_status (*export)(struct hl_device *d, const struct device_mem *m, int *fd);
    /* Creates and maps; size, offset are set. */
    hl_status (*import)(struct hl_device *d, int fd, struct device_mem *m);
    /* Bytes that can be allocated; `left` is what the accounting says is left. */
    void (*room)(struct hl_device *d, uint64_t left, uint64_t *free, uint64_t *largest);
};

struct device_slot {
    struct device_mem mem;
    uint32_t gen;  /* odd while it is in use */
    uint32_t busy; /* number of copies in flight */
    uint32_t next; /* in the list of unused slots */
};

struct device_range {
    uint64_t address, size;
};

struct hl_device {
    const struct device_ops *ops;
    void *impl;
    int timeout_ms;

    /* facts */
    char name[96];
    char backing[64];
    char pci[16];
    uint64_t capacity, granule;
    int numa;
    bool bounded, nic_direct, shareable, has_ranges;

    pthread_mutex_t lock; /* all below */
    struct device_slot *slots;
    uint32_t slot_count, slot_cap, spare;
    struct device_range *ranges;
    size_t range_count, range_cap;
    uint64_t used, blocks;
};

extern const struct device_ops device_emu, device_cuda;

#endif
