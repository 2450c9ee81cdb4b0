/* hybridps/chunks/chunks.h - the memory of one chunk: an address on the device, one on the host,
 * and what is mapped at them now.
 *
 * Where nothing is mapped, and where the host's copy is hidden, an access faults. Device memory may
 * lie in several pieces where no single one is long enough; the addresses are contiguous all the
 * same.
 *
 * Owns:    a chunk owns its addresses and its memory; the device is borrowed.
 * Threads: one at a time for a chunk.
 * Errors:  the device's; HL_ENOMEM. A failing call changed nothing.
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
    void *landing; /* where host memory is while it is filled; NULL: at its address */
    enum hl_chunk_host host_state;
    bool sealed;                    /* host memory is shown, but only to be read */
    bool device_sealed;             /* the device's, too */
    bool shared;                    /* host memory shows a file that other processes show too, */
    int file;                       /* borrowed; */
    uint64_t file_at;               /* what is written there is this process's alone */
    bool pins, pinned;              /* host memory is to be locked for the device's copies; is */
    bool keeps_pinned;              /* also while it has no content, which is not given back */
    bool keeps_host, keeps_device;  /* the addresses are somebody else's; fini leaves them */
    struct hl_device_block *blocks; /* one after the other from `address`; none: not there */
    struct hl_device_copy *copies;  /* one to a block, while a copy is under way */
    size_t count, cap, copying;
};

hl_status hl_chunk_memory_init(struct hl_chunk_memory *m, struct hl_device *d,
                               uint64_t bytes) HL_CHECK;
void hl_chunk_memory_fini(struct hl_chunk_memory *m);

/* Before it has any content: host memory is that of `file` from there on, as far as this process
 * writes nothing. The file is not shortened. */
hl_status hl_chunk_memory_share(struct hl_chunk_memory *m, int file, uint64_t at) HL_CHECK;
/* What this process wrote in a part of its host memory becomes the file's. */
hl_status hl_chunk_host_publish(struct hl_chunk_memory *m, uint64_t offset,
                                uint64_t bytes) HL_CHECK;
/* The file has nothing of the chunk any more, and gives its memory back. */
hl_status hl_chunk_host_withdraw(struct hl_chunk_memory *m) HL_CHECK;
/* A part of its host memory, which is shown, is as the file has it, and the file's own again where
 * whole pages are. */
hl_status hl_chunk_host_renew(struct hl_chunk_memory *m, uint64_t offset, uint64_t bytes) HL_CHECK;

/* Closed: nobody reads there before hl_chunk_device_show. */
hl_status hl_chunk_device_take(struct hl_chunk_memory *m, bool closed) HL_CHECK;
void hl_chunk_device_drop(struct hl_chunk_memory *m);
/* Close what was taken to the CPU's users, or open it: for memory that the CPU reaches, where
 * copies do not need it open. */
hl_status hl_chunk_device_show(struct hl_chunk_memory *m, bool shown) HL_CHECK;
/* What is shown can only be read, or is written again. */
hl_status hl_chunk_device_seal(struct hl_chunk_memory *m, bool sealed) HL_CHECK;
/* Host memory is pinned when it is shown, from now on, so that copies run at the speed of the link.
 * Pinning takes as long as some copies: with `keep` it lasts while the chunk has no content, too,
 * and what is new is what was there. Where the driver refuses, all is as before. */
void hl_chunk_host_pin(struct hl_chunk_memory *m, bool keep);
/* Hidden memory keeps its content. What is new is zero. */
hl_status hl_chunk_host_set(struct hl_chunk_memory *m, enum hl_chunk_host state) HL_CHECK;

/* Hidden host memory is filled before anybody reads it: until it has landed, or is taken back as it
 * was hidden before, copies find it elsewhere, and its address stays closed. */
hl_status hl_chunk_host_land(struct hl_chunk_memory *m) HL_CHECK;
hl_status hl_chunk_host_landed(struct hl_chunk_memory *m) HL_CHECK; /* shown */
void hl_chunk_host_unland(struct hl_chunk_memory *m);
/* Where copies find it. */
void *hl_chunk_host_reach(const struct hl_chunk_memory *m);

/* Shown host memory can only be read, or is written again. */
hl_status hl_chunk_host_seal(struct hl_chunk_memory *m, bool sealed) HL_CHECK;

/* A snapshot of `content` (NULL: bytes that are NaN as every float type) where the chunk is not: at
 * its device address, or at its host address. It can be read; and written once it is opened. */
hl_status hl_chunk_view_put(struct hl_chunk_memory *m, bool on_host, const void *content) HL_CHECK;
hl_status hl_chunk_view_open(struct hl_chunk_memory *m, bool on_host, bool writable) HL_CHECK;
/* A private copy of `content` (NULL: as above), and the same where the chunk's memory is, to be
 * read and written: for a process that has nothing of the device. */
hl_status hl_chunk_snapshot_take(const struct hl_chunk_memory *m, const void *content,
                                 void **out) HL_CHECK;
void hl_chunk_snapshot_drop(const struct hl_chunk_memory *m, void *snapshot); /* NULL is fine */
hl_status hl_chunk_snapshot_show(struct hl_chunk_memory *m, bool on_host, void *snapshot) HL_CHECK;
/* Nothing is at that address any more. */
void hl_chunk_view_drop(struct hl_chunk_memory *m, bool on_host);

/* The whole chunk, in or out. Each copy that began is waited for, until anything but HL_ETIMEDOUT.
 */
hl_status hl_chunk_copy_begin(struct hl_chunk_memory *m, bool out) HL_CHECK;
hl_status hl_chunk_copy_wait(struct hl_chunk_memory *m, int timeout_ms) HL_CHECK;
/* Done when it returns: for one copy alone, which has nothing to run beside. */
hl_status hl_chunk_copy_now(struct hl_chunk_memory *m, bool out) HL_CHECK;

#endif
