#include "os/shm.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "base/text.h"
#include "os/file.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ  22
#define MADV_POPULATE_WRITE 23
#endif

#define PREFAULT_THREADS_MAX 64
#define PREFAULT_STEP        ((uint64_t)16 << 20)

uint64_t hl_shm_granule(int fd)
{
    struct statfs fs;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (fstatfs(fd, &fs) == 0 && fs.f_type == HUGETLBFS_MAGIC && (uint64_t)fs.f_bsize > page)
        return (uint64_t)fs.f_bsize;
    return page;
}

int hl_shm_is_memory(int fd)
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
    /* A failed fallocate has given back what it took, so this is what there was. */
    char asked[32], left[32];
    uint64_t have = (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize;
    return hl_fail(HL_ENOSPC,
                   "%s needs %s but its filesystem has %s free; choose a smaller size, remove "
                   "unused files there, or enlarge it (mount -o remount,size=...)",
                   path, hl_format_bytes(size, asked, sizeof(asked)),
                   hl_format_bytes(have, left, sizeof(left)));
}

hl_status hl_shm_reserve(int fd, const char *path, uint64_t size)
{
    struct statfs fs;
    struct stat sb;
    if (fstat(fd, &sb) != 0)
        return fail_reserve(fd, path, size, errno);
    /* Asked before, because filling memory up to the brim only to give it back hurts others. */
    if (fstatfs(fd, &fs) == 0 && fs.f_blocks > 0 &&
        size > (uint64_t)sb.st_blocks * 512 + (uint64_t)fs.f_bavail * (uint64_t)fs.f_bsize)
        return fail_reserve(fd, path, size, ENOSPC);
    if (size > INT64_MAX)
        return fail_reserve(fd, path, size, EFBIG);
    int rc;
    do
        rc = fallocate(fd, 0, 0, (off_t)size);
    while (rc != 0 && errno == EINTR);
    return rc == 0 ? HL_OK : fail_reserve(fd, path, size, errno);
}

hl_status hl_shm_map(int fd, uint64_t size, int writable, void **out)
{
    int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    void *p = mmap(NULL, (size_t)size, prot, MAP_SHARED, fd, 0);
    if (p == MAP_FAILED) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "map %" PRIu64 " bytes: %s", size, strerror(err));
    }
    *out = p;
    return HL_OK;
}

void hl_shm_unmap(void *ptr, uint64_t size)
{
    if (ptr != NULL)
        munmap(ptr, (size_t)size);
}

struct prefault {
    uint8_t *at;
    uint8_t *end;
    int writable;
};

static void *prefault_part(void *arg)
{
    struct prefault *p = arg;
    while (p->at < p->end) {
        uint64_t left = (uint64_t)(p->end - p->at);
        uint64_t n = left < PREFAULT_STEP ? left : PREFAULT_STEP;
        int advice = p->writable ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
        if (madvise(p->at, (size_t)n, advice) != 0) {
            /* Kernels before 5.14: reading maps the page, which fallocate has already made. */
            uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
            for (uint64_t i = 0; i < n; i += page)
                (void)*(volatile uint8_t *)(p->at + i);
        }
        p->at += n;
    }
    return NULL;
}

void hl_shm_prefault(void *ptr, uint64_t size, int writable)
{
    struct prefault parts[PREFAULT_THREADS_MAX];
    pthread_t threads[PREFAULT_THREADS_MAX];
    int started[PREFAULT_THREADS_MAX] = {0};
    long cpus = sysconf(_SC_NPROCESSORS_ONLN);
    uint64_t count = cpus < 1 ? 1 : (uint64_t)cpus;
    if (count > PREFAULT_THREADS_MAX)
        count = PREFAULT_THREADS_MAX;
    if (count > size / PREFAULT_STEP + 1)
        count = size / PREFAULT_STEP + 1;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t share = (size / count + page - 1) / page * page;
    for (uint64_t i = 0; i < count; i++) {
        uint64_t from = i * share < size ? i * share : size;
        uint64_t to = from + share < size ? from + share : size;
        parts[i] = (struct prefault){(uint8_t *)ptr + from, (uint8_t *)ptr + to, writable};
        if (i > 0)
            started[i] = pthread_create(&threads[i], NULL, prefault_part, &parts[i]) == 0;
    }
    for (uint64_t i = 0; i < count; i++)
        if (!started[i])
            prefault_part(&parts[i]);
    for (uint64_t i = 1; i < count; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
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
