/* mem/device/device.h - device memory (L1): physical blocks, the addresses they are mapped at,
 * copies.
 *
 * A back end is a table of functions (device_private.h); the spec says which one:
 *
 * "emu:BYTES[:nic=no][:numa=N]" is an emulated device: a memfd of exactly BYTES, sealed against
 * growing so that no process can get more. nic=no: as if no NIC could reach it. numa=N: memory of
 * that node is preferred. "emu" alone has no memory: a rank opens it to import.
 *
 * "cuda:WHICH[:BYTES]" goes through the driver API. WHICH is an ordinal or a PCI id (0000:04:00.0);
 * BYTES limits how much memory is taken; without it, all that the driver reports as free.
 *
 * The Agent owns a node's devices; ranks map the blocks that it exports to them.
 *
 * Freeing a block unmaps it and returns its memory (see keeps_memory); using it afterwards faults.
 * So does using a reserved range where nothing is mapped. A range's addresses can be mapped again
 * later, so a manager that evicts blocks keeps its pointers.
 *
 * Owns:    a device owns its blocks and ranges; closing it frees them all. The caller has to unpin
 *          host memory before that. Exported descriptors belong to the caller, too; they keep the
 *          memory of a cuda block alive.
 * Threads: any; only one thread may free or remap a block, and not while others start copies.
 * Errors:  HL_ENOSPC with requested and free bytes (nothing changed), HL_ESTALE (the block was
 *          freed), HL_EBUSY (copies of it are in flight; blocks are in the range), HL_EPERM
 *          (imported blocks are read-only), HL_EUNSUPPORTED (the driver can't), HL_ETIMEDOUT,
 *          HL_EIO with the driver's name and text of the error.
 * Units:   bytes; addresses are the device's, and those of the process where host is not NULL.
 * Limits:  2^32 - 1 blocks; sizes are rounded up to the granule.
 */
#ifndef HL_MEM_DEVICE_H
#define HL_MEM_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Values of `at` in hl_device_alloc and hl_device_map. Any other value is an address in a range. */
#define HL_DEVICE_ANYWHERE 0
#define HL_DEVICE_UNMAPPED UINT64_MAX

struct hl_device;

struct hl_device_options {
    const char *cuda_driver; /* library; NULL or "" = libcuda.so.1 */
    int timeout_ms;          /* of a blocking copy; 0 = 30 s */
    /* emu: keeps the memory of freed blocks, with its content, for later blocks, because allocating
     * and zeroing pages takes longer than a copy. Only for a device whose blocks have one user. */
    bool keeps_memory;
};

extern const struct hl_option_rows hl_device_rows; /* device.*: cuda_driver */

struct hl_device_info {
    char kind[8];      /* "emu", "cuda" */
    char name[96];     /* "emu:64MiB"; the driver's name of the device */
    char backing[64];  /* "memfd", "cuda vmm", "cuda memory" */
    char pci[16];      /* "0000:04:00.0"; "" = none */
    uint64_t capacity; /* `used` never exceeds it */
    uint64_t used;     /* whole granules of live blocks; imported ones are not counted */
    uint64_t free;     /* at most capacity - used; less when others use the device too */
    uint64_t largest;  /* longest block that can be allocated now */
    uint64_t granule;
    uint64_t blocks; /* imported ones too */
    int numa;        /* NUMA node of the memory, or next to the device; -1 = unknown */
    bool bounded;    /* its spec limits how many bytes may be taken */
    bool nic_direct; /* a NIC may register the blocks */
    bool shareable;  /* blocks can be exported */
    bool ranges;     /* addresses can be reserved */
};

/* A block. It may be copied freely: the device trusts only `id`. */
struct hl_device_block {
    uint64_t id;
    uint64_t size;    /* whole granules */
    uint64_t address; /* on the device; 0 = not mapped */
    void *host;       /* its address for the CPU, NULL if the CPU can't reach it */
    uint64_t offset;  /* in the descriptor that exports it */
    bool read_only;   /* was imported */
};

/* What another process needs to map a block. */
struct hl_device_share {
    int fd; /* to be sent (SCM_RIGHTS) */
    uint64_t offset;
    uint64_t size;
};

/* A copy in flight. Stays in the caller's memory until a wait has ended it. */
struct hl_device_copy {
    struct hl_device *device;
    uint64_t blocks[2]; /* 0 = none */
    void *handle;
};

hl_status hl_device_open(const char *spec, const struct hl_device_options *options,
                         struct hl_device **out) HL_CHECK;
/* Waits for copies in flight, then frees all blocks. NULL is fine. */
void hl_device_close(struct hl_device *d);
void hl_device_info(struct hl_device *d, struct hl_device_info *out);

/* `at`: HL_DEVICE_ANYWHERE, HL_DEVICE_UNMAPPED, or an address in a range. Content is undefined. */
hl_status hl_device_alloc(struct hl_device *d, uint64_t size, uint64_t at,
                          struct hl_device_block *out) HL_CHECK;
/* As hl_device_alloc, at an address in a range. If the CPU can reach the memory, it has no access
 * until the caller grants it (mprotect), so no thread reads the block before it is filled. */
hl_status hl_device_alloc_closed(struct hl_device *d, uint64_t size, uint64_t at,
                                 struct hl_device_block *out) HL_CHECK;
/* HL_EBUSY while a copy of it is in flight. An imported block is only unmapped. */
hl_status hl_device_free(struct hl_device *d, const struct hl_device_block *block) HL_CHECK;

/* Reserves addresses without memory behind them. `address` is a multiple of the granule. */
hl_status hl_device_reserve(struct hl_device *d, uint64_t size, uint64_t *address) HL_CHECK;
/* HL_EBUSY while blocks are mapped in it. */
hl_status hl_device_unreserve(struct hl_device *d, uint64_t address) HL_CHECK;
/* Tells the device that the caller has mapped memory of its own at addresses of a range where no
 * block is mapped. The device forgets the mappings that it had cached there. */
void hl_device_range_reset(struct hl_device *d, uint64_t address, uint64_t size);
/* As hl_device_unreserve, but the addresses and whatever is mapped there become the caller's:
 * closing the device leaves them alone. */
hl_status hl_device_range_take(struct hl_device *d, uint64_t address) HL_CHECK;
/* Map a block that is not mapped, or unmap it. Both update the fields of *block. */
hl_status hl_device_map(struct hl_device *d, uint64_t at, struct hl_device_block *block) HL_CHECK;
hl_status hl_device_unmap(struct hl_device *d, struct hl_device_block *block) HL_CHECK;

/* Blocking copies. The blocks must be mapped. HL_ETIMEDOUT: the device does not respond and may
 * still use the host memory and the blocks (which stay busy); end the process. */
hl_status hl_device_copy_in(struct hl_device *d, const struct hl_device_block *dst, uint64_t offset,
                            const void *src, size_t len) HL_CHECK;
hl_status hl_device_copy_out(struct hl_device *d, const struct hl_device_block *src,
                             uint64_t offset, void *dst, size_t len) HL_CHECK;
hl_status hl_device_copy_within(struct hl_device *d, const struct hl_device_block *dst,
                                uint64_t dst_offset, const struct hl_device_block *src,
                                uint64_t src_offset, size_t len) HL_CHECK;

/* Asynchronous copies. Copies in one direction complete in the order in which they began. The host
 * memory belongs to the device until a wait returns anything but HL_ETIMEDOUT; every copy must be
 * waited for until then. */
hl_status hl_device_begin_in(struct hl_device *d, const struct hl_device_block *dst,
                             uint64_t offset, const void *src, size_t len,
                             struct hl_device_copy *copy) HL_CHECK;
hl_status hl_device_begin_out(struct hl_device *d, const struct hl_device_block *src,
                              uint64_t offset, void *dst, size_t len,
                              struct hl_device_copy *copy) HL_CHECK;
/* timeout_ms 0 only asks. */
hl_status hl_device_wait(struct hl_device_copy *copy, int timeout_ms) HL_CHECK;

/* Waits for all work that this process has begun on the device, including that of other libraries,
 * such as a framework's kernels that use blocks by address. Call it before copying or freeing a
 * block that such a kernel uses: otherwise the copy reads old content, and the kernel faults.
 * HL_ETIMEDOUT: work is still running. */
hl_status hl_device_quiesce(struct hl_device *d) HL_CHECK;

/* Locks host memory so that copies of it run at full speed and in parallel with the CPU. */
hl_status hl_device_pin(struct hl_device *d, void *ptr, size_t len) HL_CHECK;
void hl_device_unpin(struct hl_device *d, void *ptr);

/* share->fd is a new descriptor. emu: it gives read access to all of the device's memory. */
hl_status hl_device_export(struct hl_device *d, const struct hl_device_block *block,
                           struct hl_device_share *share) HL_CHECK;
/* Maps a block of another process for reading; the descriptor is not kept. */
hl_status hl_device_import(struct hl_device *d, const struct hl_device_share *share,
                           struct hl_device_block *out) HL_CHECK;

/* Compares the sums over the blocks with the counters; HL_ECORRUPT names both. */
hl_status hl_device_audit(struct hl_device *d) HL_CHECK;

#endif
