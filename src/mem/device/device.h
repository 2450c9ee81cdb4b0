/* mem/device/device.h - device memory (L1): physical blocks, the addresses they are mapped at,
 * copies.
 *
 * A back end is a table of functions (mem/device_private.h); the spec says which one:
 *
 * "emu:BYTES[:nic=no][:numa=N]" is an emulated device, a memfd of exactly so many bytes, sealed
 * against growing, so that no process gets more than there is. nic=no: as if no NIC could reach it.
 * numa=N: memory of that node is preferred. "emu" alone has no memory: a rank opens it to import.
 *
 * "cuda:WHICH[:BYTES]" goes through the driver API. WHICH is an ordinal or a PCI id (0000:04:00.0);
 * BYTES bounds what is taken, without it that is all the driver says is free.
 *
 * The Agent owns a node's devices; a rank maps blocks that were exported to it.
 *
 * A freed block is unmapped, and its memory goes back (see keeps_memory): using it afterwards
 * faults. So does a reserved range where nothing is mapped, and the same address serves again
 * later: a manager that evicts keeps its pointers.
 *
 * Owns:    a device owns its blocks and ranges; closing it ends them all. Pins are the caller's to
 *          end before. So are exported descriptors; they keep the memory of a cuda block alive.
 * Threads: any; a block is freed or remapped by one thread, and not while others start copies.
 * Errors:  HL_ENOSPC with asked and free bytes (nothing changed), HL_ESTALE (the block was freed),
 *          HL_EBUSY (copies of it are under way; blocks are in the range), HL_EPERM (imported
 *          blocks are read-only), HL_EUNSUPPORTED (the driver can't), HL_ETIMEDOUT, HL_EIO with the
 *          driver's name and text of the error.
 * Units:   bytes; addresses are the device's, and those of the process where host is not NULL.
 * Limits:  2^32 - 1 blocks; sizes are rounded up to the granule.
 */
#ifndef HL_MEM_DEVICE_H
#define HL_MEM_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* For hl_device_alloc and hl_device_map: where. Any other value is an address in a range. */
#define HL_DEVICE_ANYWHERE 0
#define HL_DEVICE_UNMAPPED UINT64_MAX

struct hl_device;

struct hl_device_options {
    const char *cuda_driver; /* library; NULL or "" = libcuda.so.1 */
    int timeout_ms;          /* of a copy that is waited for; 0 = 30 s */
    /* emu: memory of freed blocks stays, with its content, for the next ones: making and zeroing
     * pages takes longer than a copy. For a device whose blocks have one user. */
    bool keeps_memory;
};

extern const struct hl_option_rows hl_device_rows; /* device.*: cuda_driver */

struct hl_device_info {
    char kind[8];      /* "emu", "cuda" */
    char name[96];     /* "emu:64MiB"; the driver's name of the device */
    char backing[64];  /* "memfd", "cuda vmm", "cuda memory" */
    char pci[16];      /* "0000:04:00.0"; "" = none */
    uint64_t capacity; /* never more is in use */
    uint64_t used;     /* whole granules of live blocks; imported ones are not counted */
    uint64_t free;     /* at most capacity - used; less where others use the device too */
    uint64_t largest;  /* longest block that can be had now */
    uint64_t granule;
    uint64_t blocks; /* imported ones too */
    int numa;        /* node of the memory or beside the device; -1 = unknown */
    bool bounded;    /* its spec says how many bytes may be taken */
    bool nic_direct; /* a NIC may register the blocks */
    bool shareable;  /* blocks can be exported */
    bool ranges;     /* addresses can be reserved */
};

/* A block. Copy it freely; only `id` is believed. */
struct hl_device_block {
    uint64_t id;
    uint64_t size;    /* whole granules */
    uint64_t address; /* on the device; 0 = not mapped */
    void *host;       /* the same where the CPU reaches it, else NULL */
    uint64_t offset;  /* in the descriptor that exports it */
    bool read_only;   /* was imported */
};

/* What another process needs to map a block. */
struct hl_device_share {
    int fd; /* to be sent (SCM_RIGHTS) */
    uint64_t offset;
    uint64_t size;
};

/* A copy under way, in the caller's memory until a wait has ended it. */
struct hl_device_copy {
    struct hl_device *device;
    uint64_t blocks[2]; /* 0 = none */
    void *handle;
};

hl_status hl_device_open(const char *spec, const struct hl_device_options *options,
                         struct hl_device **out) HL_CHECK;
/* Waits for copies, frees all blocks. NULL is fine. */
void hl_device_close(struct hl_device *d);
void hl_device_info(struct hl_device *d, struct hl_device_info *out);

/* `at`: HL_DEVICE_ANYWHERE, HL_DEVICE_UNMAPPED, or an address in a range. Content is undefined. */
hl_status hl_device_alloc(struct hl_device *d, uint64_t size, uint64_t at,
                          struct hl_device_block *out) HL_CHECK;
/* The same at an address in a range. Where the CPU reaches the memory it has no access until the
 * caller gives it (mprotect): nobody reads there what the block is still to be filled with. */
hl_status hl_device_alloc_closed(struct hl_device *d, uint64_t size, uint64_t at,
                                 struct hl_device_block *out) HL_CHECK;
/* HL_EBUSY while a copy of it is under way. An imported block is only unmapped. */
hl_status hl_device_free(struct hl_device *d, const struct hl_device_block *block) HL_CHECK;

/* Addresses without memory behind them. `address` is a multiple of the granule. */
hl_status hl_device_reserve(struct hl_device *d, uint64_t size, uint64_t *address) HL_CHECK;
/* HL_EBUSY while blocks are mapped in it. */
hl_status hl_device_unreserve(struct hl_device *d, uint64_t address) HL_CHECK;
/* The caller has put memory of its own at addresses of a range where no block is mapped: nothing is
 * kept of the mappings that were there. */
void hl_device_range_reset(struct hl_device *d, uint64_t address, uint64_t size);
/* As hl_device_unreserve, but the addresses, and what is mapped there, are the caller's from now
 * on: closing the device leaves them. */
hl_status hl_device_range_take(struct hl_device *d, uint64_t address) HL_CHECK;
/* The block (not mapped now) gets an address; both write the block's new face into it. */
hl_status hl_device_map(struct hl_device *d, uint64_t at, struct hl_device_block *block) HL_CHECK;
hl_status hl_device_unmap(struct hl_device *d, struct hl_device_block *block) HL_CHECK;

/* Done when they return. The blocks must be mapped. HL_ETIMEDOUT: the device does not answer, and
 * may still use the host memory and the blocks (which stay busy): end the process. */
hl_status hl_device_copy_in(struct hl_device *d, const struct hl_device_block *dst, uint64_t offset,
                            const void *src, size_t len) HL_CHECK;
hl_status hl_device_copy_out(struct hl_device *d, const struct hl_device_block *src,
                             uint64_t offset, void *dst, size_t len) HL_CHECK;
hl_status hl_device_copy_within(struct hl_device *d, const struct hl_device_block *dst,
                                uint64_t dst_offset, const struct hl_device_block *src,
                                uint64_t src_offset, size_t len) HL_CHECK;

/* The same beside what the caller does next. Copies in one direction are done in their order. The
 * host memory is the device's until a wait returned anything but HL_ETIMEDOUT; each copy that began
 * is waited for to such an end. */
hl_status hl_device_begin_in(struct hl_device *d, const struct hl_device_block *dst,
                             uint64_t offset, const void *src, size_t len,
                             struct hl_device_copy *copy) HL_CHECK;
hl_status hl_device_begin_out(struct hl_device *d, const struct hl_device_block *src,
                              uint64_t offset, void *dst, size_t len,
                              struct hl_device_copy *copy) HL_CHECK;
/* timeout_ms 0 only asks. */
hl_status hl_device_wait(struct hl_device_copy *copy, int timeout_ms) HL_CHECK;

/* Waits until all is over that this process has begun on the device, also what others in it began,
 * as a framework's kernels that use blocks by their addresses. Copies of such a block read what was
 * there before, and freeing it faults them, unless this comes first. HL_ETIMEDOUT: not over yet. */
hl_status hl_device_quiesce(struct hl_device *d) HL_CHECK;

/* Lock host memory so that copies of it run at full speed and beside the CPU. */
hl_status hl_device_pin(struct hl_device *d, void *ptr, size_t len) HL_CHECK;
void hl_device_unpin(struct hl_device *d, void *ptr);

/* share->fd is new. emu: it reaches all of the device's memory, for reading. */
hl_status hl_device_export(struct hl_device *d, const struct hl_device_block *block,
                           struct hl_device_share *share) HL_CHECK;
/* Map a block of another process for reading; the descriptor is not kept. */
hl_status hl_device_import(struct hl_device *d, const struct hl_device_share *share,
                           struct hl_device_block *out) HL_CHECK;

/* Sum over the blocks against the counters; HL_ECORRUPT names both. */
hl_status hl_device_audit(struct hl_device *d) HL_CHECK;

#endif
