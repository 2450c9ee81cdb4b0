/* os/shm.h - memory that has a name or a descriptor: reserving, mapping, prefaulting, sealing.
 *
 * Owns:    nothing; descriptors are close-on-exec and belong to the caller.
 * Threads: any.
 * Errors:  HL_ENOSPC with the bytes asked and free, HL_ENOMEM, HL_EPERM, HL_EIO.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_OS_SHM_H
#define HL_OS_SHM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Bytes an allocation on this file's filesystem is a multiple of (huge pages there). */
uint64_t hl_shm_granule(int fd);
/* True when the file lies in memory (tmpfs, hugetlbfs). */
bool hl_shm_is_memory(int fd);
/* HL_ENOSPC when the filesystem has no room for the file to be that long. */
hl_status hl_shm_check_room(int fd, const char *path, uint64_t size) HL_CHECK;
/* Grow the file to `size` with real pages behind it, so that a later store can't get SIGBUS. */
hl_status hl_shm_reserve(int fd, const char *path, uint64_t size) HL_CHECK;
/* At an address that is a multiple of a huge page when it is as long as one. */
hl_status hl_shm_map(int fd, uint64_t size, bool writable, void **out) HL_CHECK;
void hl_shm_unmap(void *ptr, uint64_t size);
/* Map part of a file copy-on-write, for reading and writing: written pages become the process's
 * own, and the file never changes. `fd` may be read-only. `offset` is a multiple of the granule of
 * the file. Unmap *out with *len. HL_ENOMEM also where huge pages can't be promised: without that
 * promise a write could end the process. */
hl_status hl_shm_map_private(int fd, uint64_t offset, uint64_t size, void **out,
                             uint64_t *len) HL_CHECK;
/* A file of POSIX shared memory that several processes come to and leave: open (make: or create)
 * and flock it, also where another one takes its name away in between. HL_ENOENT, HL_ETIMEDOUT. */
hl_status hl_shm_open_locked(const char *name, bool make, int timeout_ms, int *fd) HL_CHECK;
hl_status hl_shm_lock(int fd, const char *name, int timeout_ms) HL_CHECK;
/* Touch every page on up to one thread per CPU. Content stays. */
void hl_shm_prefault(void *ptr, uint64_t size, bool writable);

struct hl_shm_range {
    void *ptr;
    uint64_t size;
    int node; /* its threads run there; -1 = anywhere */
};

/* The same for several ranges at once. */
void hl_shm_prefault_on(const struct hl_shm_range *ranges, size_t count, bool writable);

/* Put ranges of a writable mapping of a file on tmpfs or of a memfd into huge pages, those that are
 * and those yet to be made, whatever the mount says. As far as it goes: Linux 6.1, memory that is
 * not too scattered. Before hl_shm_reserve it costs half of what it costs after, and can't go
 * beyond what the filesystem has. Content stays. */
void hl_shm_collapse_on(const struct hl_shm_range *ranges, size_t count);
/* How many bytes of the mapping lie in huge pages now; looks at every page. */
uint64_t hl_shm_huge_bytes(const void *ptr, uint64_t size);

/* A second, read-only descriptor of the same file. */
hl_status hl_shm_reopen(int fd, int *out) HL_CHECK;

/* A memfd of `size` bytes that can no longer shrink or grow. */
hl_status hl_memfd_create(const char *name, uint64_t size, int *out) HL_CHECK;
/* HL_EPERM unless fd is a memfd that can't shrink below `size`. */
hl_status hl_memfd_check(int fd, uint64_t size) HL_CHECK;

#endif
