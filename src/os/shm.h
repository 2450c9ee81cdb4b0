/* os/shm.h - memory with a name or a descriptor: reserving, mapping, prefaulting, sealing.
 *
 * Owns:    nothing; descriptors are close-on-exec and belong to the caller.
 * Threads: any.
 * Errors:  HL_ENOSPC with the requested and the free bytes, HL_ENOMEM, HL_EPERM, HL_EIO.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_OS_SHM_H
#define HL_OS_SHM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

/* Allocation unit of this file's filesystem in bytes (its huge page size on hugetlbfs). */
uint64_t hl_shm_granule(int fd);
/* True when the file lies in memory (tmpfs, hugetlbfs). */
bool hl_shm_is_memory(int fd);
/* HL_ENOSPC if the filesystem has no room for a file of that size. */
hl_status hl_shm_check_room(int fd, const char *path, uint64_t size) HL_CHECK;
/* Grows the file to `size` and allocates its pages, so that a later store can't raise SIGBUS. */
hl_status hl_shm_reserve(int fd, const char *path, uint64_t size) HL_CHECK;
/* Maps the file; if it is at least as long as a huge page, at an address aligned to one. */
hl_status hl_shm_map(int fd, uint64_t size, bool writable, void **out) HL_CHECK;
void hl_shm_unmap(void *ptr, uint64_t size);
/* Map part of a file copy-on-write, for reading and writing: written pages become the process's
 * own, and the file never changes. `fd` may be read-only. `offset` is a multiple of the granule of
 * the file. Unmap *out with *len. HL_ENOMEM also where huge pages can't be promised: without that
 * promise a write could end the process. */
hl_status hl_shm_map_private(int fd, uint64_t offset, uint64_t size, void **out,
                             uint64_t *len) HL_CHECK;
/* Opens (make: or creates) and flocks a POSIX shared memory file that several processes join and
 * leave; handles the case that another one unlinks it in between. HL_ENOENT, HL_ETIMEDOUT. */
hl_status hl_shm_open_locked(const char *name, bool make, int timeout_ms, int *fd) HL_CHECK;
hl_status hl_shm_lock(int fd, const char *name, int timeout_ms) HL_CHECK;
/* Touches every page, with up to one thread per CPU. The content is unchanged. */
void hl_shm_prefault(void *ptr, uint64_t size, bool writable);

struct hl_shm_range {
    void *ptr;
    uint64_t size;
    int node; /* NUMA node on which its threads run; -1 = any */
};

/* The same for several ranges at once. */
void hl_shm_prefault_on(const struct hl_shm_range *ranges, size_t count, bool writable);

/* Puts ranges of a writable mapping of a tmpfs file or memfd into huge pages, both existing and
 * future ones, whatever the mount options say. Best effort: it needs Linux 6.1 and memory that is
 * not too fragmented. Before hl_shm_reserve it costs half as much as after it, and it can't exceed
 * what the filesystem has. The content is unchanged. */
void hl_shm_collapse_on(const struct hl_shm_range *ranges, size_t count);
/* How many bytes of the mapping are in huge pages now; checks every page. */
uint64_t hl_shm_huge_bytes(const void *ptr, uint64_t size);

/* A second, read-only descriptor of the same file. */
hl_status hl_shm_reopen(int fd, int *out) HL_CHECK;

/* A memfd of `size` bytes that can no longer shrink or grow. */
hl_status hl_memfd_create(const char *name, uint64_t size, int *out) HL_CHECK;
/* HL_EPERM unless fd is a memfd that can't shrink below `size`. */
hl_status hl_memfd_check(int fd, uint64_t size) HL_CHECK;

#endif
