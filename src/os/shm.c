#include "os/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/text.h"
#include "os/file.h"
#include "os/numa.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif

#define PREFAULT_THREADS_MAX 64
#define PREFAULT_STEP        ((uint64_t)16 << 20)
#define COLLAPSE_FAILURES    4 /* in a row: memory is too fragmented to try further */

uint64_t hl_shm_granule(int fd)
{
    struct statfs fs;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC && (uint64_t)fs.f_bsize > page)
        return (uint64_t)fs.f_bsize;
    return page;
}

bool hl_shm_is_memory(int fd)
{
    struct statfs fs;
    return fstatfs(fd, &fs) == 0 && (fs.f_type == TMPFS_MAGIC || fs.f_type == HUGETLBFS_MAGIC);
}

static hl_status fail_reserve(int fd, const char *path, uint64_t size, int err)
{
    struct statfs fs;
    if (err != ENOSPC || fstatfs(fd, &fs) != 0)
        return hl_fail(hl_status_of_errno(err), "reserve %" PRIu64 " bytes for %s: %s", size, path,
                       strerror(err));
    /* A failed fallocate has given back what it took, so this is what was free. */
    char asked[32], left[32];
    uint64_t have = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    return hl_fail(HL_ENOSPC,
                   "%s needs %s but its filesystem has %s free; choose a smaller size, remove "
                   "unused files there, or enlarge it (mount -o remount,size=...)",
                   path, hl_format_bytes(size, asked, sizeof(asked)),
                   hl_format_bytes(have, left, sizeof(left)));
}

/* Checked in advance, because filling memory completely only to free it again harms other
 * processes. */
hl_status hl_shm_check_room(int fd, const char *path, uint64_t size)
{
    struct statfs fs;
    struct stat sb;
    if (fstat(fd, &sb) != 0)
        return fail_reserve(fd, path, size, errno);
    if (fstatfs(fd, &fs) == 0 && fs.f_blocks > 0 &&
        size > (uint64_t)sb.st_blocks * 512 + (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize)
        return fail_reserve(fd, path, size, ENOSPC);
    return size > INT64_MAX ? fail_reserve(fd, path, size, EFBIG) : HL_OK;
}

hl_status hl_shm_reserve(int fd, const char *path, uint64_t size)
{
    HL_TRY(hl_shm_check_room(fd, path, size));
    int rc;
    do
        rc = fallocate(fd, 0, 0, (off_t)size);
    while (rc != 0 && errno == EINTR);
    return rc == 0 ? HL_OK : fail_reserve(fd, path, size, errno);
}

/* The size of a huge page, which the processor maps at once; 0 if there are none. */
static uint64_t huge_page_bytes(void)
{
    unsigned long long n = 0;
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "re");
    if (f == NULL)
        return 0;
    if (fscanf(f, "%llu", &n) != 1 || (n & (n - 1)) != 0)
        n = 0;
    fclose(f);
    return n;
}

/* Reserves an address range aligned to `align` with an inaccessible mapping. */
static void *reserve_aligned(size_t size, size_t align)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    uint8_t *p = mmap(NULL, size + align, PROT_NONE, flags, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    uint8_t *at = (uint8_t *)(((uintptr_t)p + align - 1) & ~(uintptr_t)(align - 1));
    if (at > p)
        munmap(p, (size_t)(at - p));
    if (at < p + align)
        munmap(at + size, (size_t)(p + align - at));
    return at;
}

hl_status hl_shm_lock(int fd, const char *name, int timeout_ms)
{
    uint64_t until = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return hl_fail(hl_status_of_errno(errno), "flock of %s: %m", name);
        if (hl_now_ns() > until)
            return hl_fail(HL_ETIMEDOUT,
                           "another process has been opening or closing %s for more than %d ms",
                           name, timeout_ms);
        /* flock has no deadline, except by a signal, and signals belong to the program. A process
         * that holds the lock makes or maps a file, which takes no longer than this pause. */
        nanosleep(&(struct timespec){.tv_nsec = HL_NS_PER_MS}, NULL);
    }
    return HL_OK;
}

hl_status hl_shm_open_locked(const char *name, bool make, int timeout_ms, int *fd)
{
    for (;;) {
        struct stat sb;
        int file = shm_open(name, make ? O_RDWR | O_CREAT : O_RDWR, 0600);
        if (file < 0)
            return hl_fail(hl_status_of_errno(errno), "open shared memory %s: %m", name);
        hl_status st = hl_file_check_private(file, name);
        if (st == HL_OK)
            st = hl_shm_lock(file, name, timeout_ms);
        if (st == HL_OK && fstat(file, &sb) == 0 && sb.st_nlink > 0) {
            *fd = file;
            return HL_OK;
        }
        close(file);
        HL_TRY(st);
    }
}

hl_status hl_shm_map(int fd, uint64_t size, bool writable, void **out)
{
    int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    uint64_t huge = huge_page_bytes();
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    size_t len = ((size_t)size + page - 1) & ~(page - 1);
    void *at = huge > 0 && size >= huge ? reserve_aligned(len, (size_t)huge) : NULL;
    void *p = mmap(at, (size_t)size, prot, MAP_SHARED | (at != NULL ? MAP_FIXED : 0), fd, 0);
    if (p == MAP_FAILED) {
        int err = errno;
        if (at != NULL)
            munmap(at, len);
        return hl_fail(hl_status_of_errno(err), "map %" PRIu64 " bytes: %s", size, strerror(err));
    }
    *out = p;
    return HL_OK;
}

hl_status hl_shm_map_private(int fd, uint64_t offset, uint64_t size, void **out, uint64_t *len)
{
    uint64_t granule = hl_shm_granule(fd), huge = huge_page_bytes();
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    size_t n = (size_t)((size + granule - 1) / granule * granule);
    /* Only written pages take memory. Huge pages are reserved in advance, or don't exist at all. */
    int flags = MAP_PRIVATE | (granule == page ? MAP_NORESERVE : 0);
    /* A huge page of the file can only be mapped as one if address and offset have the same
     * alignment. */
    void *room = granule == page && huge > 0 && n >= huge
                     ? reserve_aligned(n + (size_t)(offset % huge), (size_t)huge)
                     : NULL;
    uint8_t *at = room != NULL ? (uint8_t *)room + offset % huge : NULL;
    void *p = mmap(at, n, PROT_READ | PROT_WRITE, flags | (at != NULL ? MAP_FIXED : 0), fd,
                   (off_t)offset);
    int err = errno;
    if (room != NULL && at > (uint8_t *)room)
        munmap(room, (size_t)(at - (uint8_t *)room));
    if (p == MAP_FAILED) {
        if (at != NULL)
            munmap(at, n);
        return hl_fail(hl_status_of_errno(err), "map %" PRIu64 " bytes copy-on-write: %s", size,
                       strerror(err));
    }
    *out = p;
    *len = n;
    return HL_OK;
}

void hl_shm_unmap(void *ptr, uint64_t size)
{
    if (ptr != NULL)
        munmap(ptr, (size_t)size);
}

/* A share of a range, and what a thread does with it.
 *
 *     ranges   | node 0                      | node 1                      |
 *     parts    | at .. end | at .. end | ... | at .. end | ...             |   one thread each
 *
 * run_on makes all parts, starts the threads and joins them; meanwhile a part belongs to its
 * thread. */
struct part {
    uint8_t *at;
    uint8_t *end;
    bool writable;
    int node;
    uint64_t huge; /* bytes of a huge page */
    void (*work)(struct part *);
    int started;
    pthread_t thread;
};

static void prefault_part(struct part *p)
{
    while (p->at < p->end) {
        uint64_t left = (uint64_t)(p->end - p->at);
        uint64_t n = left < PREFAULT_STEP ? left : PREFAULT_STEP;
        int advice = p->writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
        if (madvise(p->at, (size_t)n, advice) != 0) {
            /* Kernels before 5.14: a read maps the page, which fallocate has already allocated. */
            uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
            for (uint64_t i = 0; i < n; i += page)
                (void)*(volatile uint8_t *)(p->at + i);
        }
        p->at += n;
    }
}

/* Touches one small page, from which the huge one can be made, on the node that it is bound to. */
static bool collapse_page(uint8_t *at, uint64_t huge)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return madvise(at, page, MADV_POPULATE_WRITE) == 0 &&
           madvise(at, (size_t)huge, MADV_COLLAPSE) == 0;
}

static void collapse_part(struct part *p)
{
    int failed = 0;
    uint8_t *at = (uint8_t *)(((uintptr_t)p->at + p->huge - 1) & ~(uintptr_t)(p->huge - 1));
    for (; at + p->huge <= p->end && failed < COLLAPSE_FAILURES; at += p->huge)
        failed = collapse_page(at, p->huge) ? 0 : errno == EINVAL ? COLLAPSE_FAILURES : failed + 1;
}

static void *part_thread(void *arg)
{
    struct part *p = arg;
    if (p->node >= 0)
        hl_numa_run_on(p->node);
    p->work(p);
    return NULL;
}

/* The number of threads that touch a range: the CPUs of its node, or its share of all CPUs. */
static uint64_t threads_for(const struct hl_shm_range *r, size_t ranges)
{
    long all = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t count = r->node >= 0 ? hl_numa_cpus(r->node) : 0;
    if (count == 0)
        count = (all < 1 ? 1 : (uint64_t)all) / ranges;
    if (count > PREFAULT_THREADS_MAX / ranges)
        count = PREFAULT_THREADS_MAX / ranges;
    if (count > r->size / PREFAULT_STEP + 1)
        count = r->size / PREFAULT_STEP + 1;
    return count > 0 ? count : 1;
}

static size_t split_range(const struct hl_shm_range *r, size_t ranges, const struct part *like,
                          struct part *parts)
{
    uint64_t unit = like->huge > 0 ? like->huge : (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t count = threads_for(r, ranges);
    uint64_t share = (r->size / count + unit - 1) / unit * unit;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t from = i * share < r->size ? i * share : r->size;
        uint64_t to = i + 1 < count && from + share < r->size ? from + share : r->size;
        parts[i] = *like;
        parts[i].at = (uint8_t *)r->ptr + from;
        parts[i].end = (uint8_t *)r->ptr + to;
        parts[i].node = r->node;
    }
    return (size_t)count;
}

static void run_on(const struct hl_shm_range *ranges, size_t count, const struct part *like)
{
    struct part parts[2 * PREFAULT_THREADS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < count && i < PREFAULT_THREADS_MAX; i++)
        n += split_range(&ranges[i], count, like, &parts[n]);
    if (n == 1 && parts[0].node < 0) {
        parts[0].work(&parts[0]);
        return;
    }
    for (size_t i = 0; i < n; i++)
        parts[i].started = pthread_create(&parts[i].thread, NULL, part_thread, &parts[i]) == 0;
    for (size_t i = 0; i < n; i++)
        if (!parts[i].started)
            parts[i].work(&parts[i]);
    for (size_t i = 0; i < n; i++)
        if (parts[i].started)
            pthread_join(parts[i].thread, NULL);
}

void hl_shm_prefault_on(const struct hl_shm_range *ranges, size_t count, bool writable)
{
    run_on(ranges, count, &(struct part){.work = prefault_part, .writable = writable});
}

void hl_shm_prefault(void *ptr, uint64_t size, bool writable)
{
    hl_shm_prefault_on(&(struct hl_shm_range){ptr, size, -1}, 1, writable);
}

/* ---- huge pages ------------------------------------------------------------------------------ */

void hl_shm_collapse_on(const struct hl_shm_range *ranges, size_t count)
{
    uint64_t huge = huge_page_bytes();
    if (huge > 0)
        run_on(ranges, count, &(struct part){.work = collapse_part, .huge = huge});
}

/* ---- huge pages ------------------------------------------------------------------------------ */

uint64_t hl_shm_huge_bytes(const void *ptr, uint64_t size)
{
    uintptr_t from = (uintptr_t)ptr, to = from + size, first, last;
    char line[512];
    bool inside = false;
    uint64_t kib = 0, n;
    FILE *f = fopen("/proc/self/smaps", "re");
    if (f == NULL)
        return 0;
    while (fgets(line, sizeof(line), f) != NULL) {
        if (sscanf(line, "%" SCNxPTR "-%" SCNxPTR " ", &first, &last) == 2)
            inside = first < to && last > from;
        else if (inside && (sscanf(line, "ShmemPmdMapped: %" SCNu64, &n) == 1 ||
                            sscanf(line, "FilePmdMapped: %" SCNu64, &n) == 1))
            kib += n;
    }
    fclose(f);
    return kib * 1024;
}

hl_status hl_shm_reopen(int fd, int *out)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    int again = open(path, O_RDONLY | O_CLOEXEC);
    if (again < 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "open %s for reading: %s", path, strerror(err));
    }
    *out = again;
    return HL_OK;
}

hl_status hl_memfd_create(const char *name, uint64_t size, int *out)
{
    HL_AUTO(hl_closep) int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0 || size > INT64_MAX || ftruncate(fd, (off_t)size) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "memory of %" PRIu64 " bytes for %s: %s", size,
                       name, strerror(err));
    }
    *out = fd;
    fd = -1;
    return HL_OK;
}

hl_status hl_memfd_check(int fd, uint64_t size)
{
    struct stat sb;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & F_SEAL_SHRINK) == 0)
        return hl_fail(HL_EPERM, "the descriptor is not a memfd sealed against shrinking "
                                 "(F_SEAL_SHRINK), so its bytes can't be relied on");
    if (fstat(fd, &sb) != 0 || sb.st_size < 0 || (uint64_t)sb.st_size < size)
        return hl_fail(HL_EINVAL, "the memfd is shorter than the %" PRIu64 " bytes announced",
                       size);
    return HL_OK;
}
