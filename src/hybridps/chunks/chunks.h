/* hybridps/chunks/chunks.h - the memory of one chunk: an address on the device, one on the host,
 * and what is currently mapped at them.
 *
 * An access faults where nothing is mapped or the host's copy is hidden. Device memory may consist
 * of several pieces if no single one is long enough; the addresses are contiguous anyway.
 *
 * Owns:    a chunk owns its addresses and its memory; the device is borrowed.
 * Threads: one at a time per chunk.
 * Errors:  the device's; HL_ENOMEM. A failed call has changed nothing.
 * Units:   bytes.
 * Limits:  one copy of a chunk at a time.
 */
#ifndef HL_HYBRIDPS_CHUNKS_CHUNKS_H
#define HL_HYBRIDPS_CHUNKS_CHUNKS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "mem/device/device.h"

enum hl_chunk_host { HL_CHUNK_HOST_NONE, HL_CHUNK_HOST_HIDDEN, HL_CHUNK_HOST_SHOWN };

struct hl_chunk_memory {
    struct hl_device *device;
    uint64_t span; /* whole granules and pages */
    uint64_t address;
    void *host;
    void *landing; /* where host memory is mapped while it is filled; NULL: at its address */
    enum hl_chunk_host host_state;
    bool sealed;                   /* host memory is shown read-only */
    bool device_sealed;            /* device memory is read-only, too */
    bool shared;                   /* host memory maps a file that other processes map too */
    int file;                      /* borrowed */
    uint64_t file_at;              /* offset in it; writes are private to this process */
    bool pins, pinned;             /* lock host memory for the device's copies; it is locked */
    bool keeps_pinned;             /* also while it has no content; its memory is then kept */
    bool keeps_host, keeps_device; /* the addresses belong to another owner; fini leaves them */
    /* one after the other from `address`; none: not on the device */
    struct hl_device_block *blocks;
    struct hl_device_copy *copies; /* one per block, while a copy is in flight */
    size_t count, cap, copying;
};

hl_status hl_chunk_memory_init(struct hl_chunk_memory *m, struct hl_device *d,
                               uint64_t bytes) HL_CHECK;
void hl_chunk_memory_fini(struct hl_chunk_memory *m);

/* Call before the chunk has any content: its host memory becomes a copy-on-write mapping of `file`
 * from `at` on. The file must not be truncated. */
hl_status hl_chunk_memory_share(struct hl_chunk_memory *m, int file, uint64_t at) HL_CHECK;
/* Writes what this process wrote in a part of its host memory to the file. */
hl_status hl_chunk_host_publish(struct hl_chunk_memory *m, uint64_t offset,
                                uint64_t bytes) HL_CHECK;
/* Removes the chunk's content from the file and frees the file's memory. */
hl_status hl_chunk_host_withdraw(struct hl_chunk_memory *m) HL_CHECK;
/* Makes a part of the host memory, which must be shown, equal to the file again; whole pages map
 * the file directly again. */
hl_status hl_chunk_host_renew(struct hl_chunk_memory *m, uint64_t offset, uint64_t bytes) HL_CHECK;

/* Takes device memory. closed: not accessible before hl_chunk_device_show. */
hl_status hl_chunk_device_take(struct hl_chunk_memory *m, bool closed) HL_CHECK;
void hl_chunk_device_drop(struct hl_chunk_memory *m);
/* Closes or opens the device memory for accesses by the CPU. For memory that the CPU can reach and
 * that copies don't need open. */
hl_status hl_chunk_device_show(struct hl_chunk_memory *m, bool shown) HL_CHECK;
/* Makes shown device memory read-only, or writable again. */
hl_status hl_chunk_device_seal(struct hl_chunk_memory *m, bool sealed) HL_CHECK;
/* From now on host memory is pinned when it is shown, so that copies run at link speed. Pinning
 * takes as long as several copies. With `keep` memory therefore stays pinned while the chunk has no
 * content, and new content starts with the old bytes. If the driver refuses, nothing changes. */
void hl_chunk_host_pin(struct hl_chunk_memory *m, bool keep);
/* Hidden memory keeps its content. New memory is zero. */
hl_status hl_chunk_host_set(struct hl_chunk_memory *m, enum hl_chunk_host state) HL_CHECK;

/* Fills hidden host memory before anyone can read it. Until it has landed, or is reset to the
 * hidden state by unland, copies use another address and the memory's own address stays closed. */
hl_status hl_chunk_host_land(struct hl_chunk_memory *m) HL_CHECK;
hl_status hl_chunk_host_landed(struct hl_chunk_memory *m) HL_CHECK; /* shown */
void hl_chunk_host_unland(struct hl_chunk_memory *m);
/* The address that copies use. */
void *hl_chunk_host_reach(const struct hl_chunk_memory *m);

/* Makes shown host memory read-only, or writable again. */
hl_status hl_chunk_host_seal(struct hl_chunk_memory *m, bool sealed) HL_CHECK;

/* Maps a snapshot of `content` (NULL: bytes that are NaN in every float type) where the chunk is
 * absent: at its device address, or at its host address. It is readable, and writable once opened
 * so. */
hl_status hl_chunk_view_put(struct hl_chunk_memory *m, bool on_host, const void *content) HL_CHECK;
hl_status hl_chunk_view_open(struct hl_chunk_memory *m, bool on_host, bool writable) HL_CHECK;
/* For a process that has no access to the device: takes a private copy of `content` (NULL: as
 * above), and shows it, readable and writable, at the chunk's addresses. */
hl_status hl_chunk_snapshot_take(const struct hl_chunk_memory *m, const void *content,
                                 void **out) HL_CHECK;
void hl_chunk_snapshot_drop(const struct hl_chunk_memory *m, void *snapshot); /* NULL is fine */
hl_status hl_chunk_snapshot_show(struct hl_chunk_memory *m, bool on_host, void *snapshot) HL_CHECK;
/* Unmaps the view at that address. */
void hl_chunk_view_drop(struct hl_chunk_memory *m, bool on_host);

/* Copies the whole chunk in or out. Every copy must be waited for until the result is not
 * HL_ETIMEDOUT. */
hl_status hl_chunk_copy_begin(struct hl_chunk_memory *m, bool out) HL_CHECK;
hl_status hl_chunk_copy_wait(struct hl_chunk_memory *m, int timeout_ms) HL_CHECK;
/* The same, blocking: for a single copy that nothing would overlap with. */
hl_status hl_chunk_copy_now(struct hl_chunk_memory *m, bool out) HL_CHECK;

#endif
