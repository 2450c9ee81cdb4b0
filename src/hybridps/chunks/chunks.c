#include "hybridps/chunks/chunks.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "os/file.h"

#define HUGE_PAGE (UINT64_C(2) << 20)

/* Uses huge pages where they fit: a chunk's memory is allocated and freed with its content, and
 * faults of small pages would take longer than the copies. */
static void *reserve_host(uint64_t span)
{
    uint64_t extra = span >= HUGE_PAGE ? HUGE_PAGE : 0;
    uint8_t *p =
        mmap(NULL, span + extra, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED || extra == 0)
        return p;
    uint8_t *at = (uint8_t *)(((uintptr_t)p + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
    if (at > p)
        munmap(p, (size_t)(at - p));
    if (at < p + extra)
        munmap(at + span, (size_t)(p + extra - at));
    (void)madvise(at, span, MADV_HUGEPAGE); /* only a hint */
    return at;
}

/* Calls the kernel directly, because libucm's mremap drops the fifth argument. */
static bool move_pages(void *from, void *to, uint64_t span, int flags)
{
    return syscall(SYS_mremap, from, span, span, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to) != -1;
}

hl_status hl_chunk_memory_init(struct hl_chunk_memory *m, struct hl_device *d, uint64_t bytes)
{
    struct hl_device_info info;
    hl_device_info(d, &info);
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    uint64_t unit = info.granule > page ? info.granule : page;
    if (bytes == 0 || bytes > INT64_MAX - unit)
        return hl_fail(HL_EINVAL, "%s: invalid chunk size of %" PRIu64 " bytes", info.name, bytes);
    struct hl_chunk_memory c = {.device = d, .span = (bytes + unit - 1) / unit * unit};
    HL_TRY(hl_device_reserve(d, c.span, &c.address));
    void *p = reserve_host(c.span);
    if (p == MAP_FAILED) {
        int err = errno;
        hl_status st = hl_device_unreserve(d, c.address);
        (void)st; /* ignored: nothing is mapped there */
        return hl_fail(hl_status_of_errno(err),
                       "host addresses for a chunk of %" PRIu64 " bytes: %s", c.span,
                       strerror(err));
    }
    c.host = p;
    *m = c;
    return HL_OK;
}

/* Call before host memory is freed: the device would continue to access the freed pages. */
static void unpin_host(struct hl_chunk_memory *m)
{
    if (m->pinned)
        hl_device_unpin(m->device, m->host);
    m->pinned = false;
}

static void pin_host(struct hl_chunk_memory *m)
{
    if (!m->pins || m->pinned)
        return;
    m->pinned = hl_device_pin(m->device, m->host, m->span) == HL_OK;
    m->pins = m->pinned;
    if (!m->pinned)
        hl_error_clear(); /* copies are slower without pinning, but correct */
}

void hl_chunk_host_pin(struct hl_chunk_memory *m, bool keep)
{
    m->pins = true;
    m->keeps_pinned = keep;
}

void hl_chunk_memory_fini(struct hl_chunk_memory *m)
{
    if (m->device == NULL)
        return;
    hl_chunk_device_drop(m);
    unpin_host(m);
    hl_status st = m->keeps_device ? hl_device_range_take(m->device, m->address)
                                   : hl_device_unreserve(m->device, m->address);
    (void)st; /* only a copy that never ended can keep it; closing the device ends that copy too */
    if (m->landing != NULL)
        munmap(m->landing, m->span);
    if (!m->keeps_host)
        munmap(m->host, m->span);
    free(m->blocks);
    free(m->copies);
    *m = (struct hl_chunk_memory){0};
}

/* ---- a file that other processes map too ---- */

hl_status hl_chunk_memory_share(struct hl_chunk_memory *m, int file, uint64_t at)
{
    if (mmap(m->host, m->span, PROT_NONE, MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED, file,
             (off_t)at) == MAP_FAILED)
        return hl_fail(hl_status_of_errno(errno),
                       "shared host memory of a chunk of %" PRIu64 " bytes: %s", m->span,
                       strerror(errno));
    m->shared = true;
    m->file = file;
    m->file_at = at;
    return HL_OK;
}

hl_status hl_chunk_host_publish(struct hl_chunk_memory *m, uint64_t offset, uint64_t bytes)
{
    for (uint64_t done = 0; done < bytes;) {
        ssize_t n = pwrite(m->file, (const uint8_t *)m->host + offset + done, bytes - done,
                           (off_t)(m->file_at + offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hl_fail(hl_status_of_errno(n == 0 ? EIO : errno),
                           "write %" PRIu64 " bytes that ranks share: %m", bytes);
        done += (uint64_t)n;
    }
    return HL_OK;
}

hl_status hl_chunk_host_withdraw(struct hl_chunk_memory *m)
{
    if (fallocate(m->file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)m->file_at,
                  (off_t)m->span) != 0)
        return hl_fail(hl_status_of_errno(errno), "give back what ranks shared: %m");
    return HL_OK;
}

/* Reads part of a page, which also holds bytes of other ranks. */
HL_CHECK static hl_status renew_bytes(struct hl_chunk_memory *m, uint64_t from, uint64_t to)
{
    while (from < to) {
        ssize_t n =
            pread(m->file, (uint8_t *)m->host + from, to - from, (off_t)(m->file_at + from));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return hl_fail(hl_status_of_errno(n == 0 ? EIO : errno),
                           "read %" PRIu64 " bytes that ranks share: %m", to - from);
        from += (uint64_t)n;
    }
    return HL_OK;
}

hl_status hl_chunk_host_renew(struct hl_chunk_memory *m, uint64_t offset, uint64_t bytes)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = offset + bytes;
    uint64_t first = (offset + page - 1) / page * page, last = end / page * page;
    if (first >= last)
        return renew_bytes(m, offset, end);
    if (madvise((uint8_t *)m->host + first, last - first, MADV_DONTNEED) != 0)
        return hl_fail(hl_status_of_errno(errno), "give back host memory that ranks share: %m");
    HL_TRY(renew_bytes(m, offset, first));
    return renew_bytes(m, last, end);
}

/* ---- device ---- */

static hl_status grow_pieces(struct hl_chunk_memory *m)
{
    if (m->count < m->cap)
        return HL_OK;
    size_t cap = m->cap == 0 ? 1 : m->cap * 2;
    struct hl_device_block *blocks = realloc(m->blocks, cap * sizeof(*blocks));
    if (blocks != NULL)
        m->blocks = blocks;
    struct hl_device_copy *copies = realloc(m->copies, cap * sizeof(*copies));
    if (copies != NULL)
        m->copies = copies;
    if (blocks == NULL || copies == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a chunk's pieces");
    m->cap = cap;
    return HL_OK;
}

/* Allocates the rest in one piece, or the longest piece available. */
static hl_status take_piece(struct hl_chunk_memory *m, uint64_t at, uint64_t left, bool closed)
{
    HL_TRY(grow_pieces(m));
    hl_status (*alloc)(struct hl_device *, uint64_t, uint64_t, struct hl_device_block *) =
        closed ? hl_device_alloc_closed : hl_device_alloc;
    hl_status st = alloc(m->device, left, m->address + at, &m->blocks[m->count]);
    if (st == HL_ENOSPC) {
        struct hl_device_info info;
        hl_device_info(m->device, &info);
        if (info.free < left || info.largest == 0 || info.largest >= left)
            return st;
        st = alloc(m->device, info.largest, m->address + at, &m->blocks[m->count]);
    }
    m->count += st == HL_OK;
    return st;
}

hl_status hl_chunk_device_take(struct hl_chunk_memory *m, bool closed)
{
    m->device_sealed = false;
    for (uint64_t at = 0; at < m->span;) {
        hl_status st = take_piece(m, at, m->span - at, closed);
        if (st != HL_OK) {
            hl_chunk_device_drop(m);
            return st;
        }
        at += m->blocks[m->count - 1].size;
    }
    return HL_OK;
}

void hl_chunk_device_drop(struct hl_chunk_memory *m)
{
    for (size_t i = 0; i < m->count; i++) {
        hl_status st = hl_device_free(m->device, &m->blocks[i]);
        (void)st; /* refused only while a copy that never ended uses it */
    }
    m->count = 0;
}

HL_CHECK static hl_status protect_device(struct hl_chunk_memory *m, int prot)
{
    if (mprotect((void *)(uintptr_t)m->address, m->span, prot) != 0)
        return hl_fail(hl_status_of_errno(errno),
                       "device memory of a chunk of %" PRIu64 " bytes: %s", m->span,
                       strerror(errno));
    m->device_sealed = prot == PROT_READ;
    return HL_OK;
}

hl_status hl_chunk_device_show(struct hl_chunk_memory *m, bool shown)
{
    return protect_device(m, shown ? PROT_READ | PROT_WRITE : PROT_NONE);
}

hl_status hl_chunk_device_seal(struct hl_chunk_memory *m, bool sealed)
{
    return protect_device(m, sealed ? PROT_READ : PROT_READ | PROT_WRITE);
}

/* ---- host ---- */

hl_status hl_chunk_host_set(struct hl_chunk_memory *m, enum hl_chunk_host state)
{
    int rc = 0;
    if (state == m->host_state)
        return HL_OK;
    if (state == HL_CHUNK_HOST_NONE && !(m->pinned && m->keeps_pinned)) {
        unpin_host(m);
        rc = madvise(m->host, m->span, MADV_DONTNEED);
    }
    if (rc == 0)
        rc = mprotect(m->host, m->span,
                      state == HL_CHUNK_HOST_SHOWN ? PROT_READ | PROT_WRITE : PROT_NONE);
    if (rc != 0)
        return hl_fail(hl_status_of_errno(errno), "host memory of a chunk of %" PRIu64 " bytes: %s",
                       m->span, strerror(errno));
    m->host_state = state;
    m->sealed = false;
    if (state == HL_CHUNK_HOST_SHOWN)
        pin_host(m);
    return HL_OK;
}

/* ---- landing ---- */

/* The landing has the same offset from the start of a huge page as the chunk, so huge pages stay
 * whole when they move. */
hl_status hl_chunk_host_land(struct hl_chunk_memory *m)
{
    void *p = reserve_host(m->span);
    if (p == MAP_FAILED)
        return hl_fail(hl_status_of_errno(errno), "addresses for %" PRIu64 " bytes: %s", m->span,
                       strerror(errno));
    if (!move_pages(m->host, p, m->span, MREMAP_DONTUNMAP) ||
        mprotect(p, m->span, PROT_READ | PROT_WRITE) != 0) {
        int err = errno;
        munmap(p, m->span);
        return hl_fail(hl_status_of_errno(err), "move %" PRIu64 " bytes of host memory: %s",
                       m->span, strerror(err));
    }
    m->landing = p;
    return HL_OK;
}

hl_status hl_chunk_host_landed(struct hl_chunk_memory *m)
{
    if (!move_pages(m->landing, m->host, m->span, 0))
        return hl_fail(hl_status_of_errno(errno), "move %" PRIu64 " bytes of host memory: %s",
                       m->span, strerror(errno));
    m->landing = NULL;
    m->host_state = HL_CHUNK_HOST_SHOWN;
    m->sealed = false;
    return HL_OK;
}

void hl_chunk_host_unland(struct hl_chunk_memory *m)
{
    if (m->landing == NULL)
        return;
    if (mprotect(m->landing, m->span, PROT_NONE) != 0 ||
        !move_pages(m->landing, m->host, m->span, 0))
        munmap(m->landing, m->span); /* the hidden memory has no current content */
    m->landing = NULL;
}

void *hl_chunk_host_reach(const struct hl_chunk_memory *m)
{
    return m->landing != NULL ? m->landing : m->host;
}

hl_status hl_chunk_host_seal(struct hl_chunk_memory *m, bool sealed)
{
    if (m->host_state != HL_CHUNK_HOST_SHOWN || m->sealed == sealed)
        return HL_OK;
    if (mprotect(m->host, m->span, sealed ? PROT_READ : PROT_READ | PROT_WRITE) != 0)
        return hl_fail(hl_status_of_errno(errno), "host memory of a chunk of %" PRIu64 " bytes: %s",
                       m->span, strerror(errno));
    m->sealed = sealed;
    return HL_OK;
}

/* ---- views ---- */

static void *view_address(const struct hl_chunk_memory *m, bool on_host)
{
    return on_host ? m->host : (void *)(uintptr_t)m->address;
}

void hl_chunk_view_drop(struct hl_chunk_memory *m, bool on_host)
{
    void *at = view_address(m, on_host);
    bool shared = on_host && m->shared;
    int flags = MAP_PRIVATE | MAP_NORESERVE | MAP_FIXED | (shared ? 0 : MAP_ANONYMOUS);
    if (mmap(at, m->span, PROT_NONE, flags, shared ? m->file : -1,
             shared ? (off_t)m->file_at : 0) == MAP_FAILED)
        (void)mprotect(at, m->span, PROT_NONE); /* too many mappings to add one */
    if (on_host && !shared)
        (void)madvise(at, m->span, MADV_HUGEPAGE); /* only a hint */
}

hl_status hl_chunk_snapshot_take(const struct hl_chunk_memory *m, const void *content, void **out)
{
    void *p = mmap(NULL, m->span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return hl_fail(hl_status_of_errno(errno), "a copy of %" PRIu64 " bytes: %s", m->span,
                       strerror(errno));
    if (content != NULL)
        memcpy(p, content, m->span);
    else
        memset(p, 0xff, m->span);
    *out = p;
    return HL_OK;
}

void hl_chunk_snapshot_drop(const struct hl_chunk_memory *m, void *snapshot)
{
    if (snapshot != NULL)
        munmap(snapshot, m->span);
}

/* libucm learns of the change from the mmap in hl_chunk_view_drop. */
hl_status hl_chunk_snapshot_show(struct hl_chunk_memory *m, bool on_host, void *snapshot)
{
    hl_chunk_view_drop(m, on_host);
    if (!move_pages(snapshot, view_address(m, on_host), m->span, 0))
        return hl_fail(hl_status_of_errno(errno), "a view of %" PRIu64 " bytes: %s", m->span,
                       strerror(errno));
    return HL_OK;
}

/* Fills the view before it appears at its address, because other threads may be reading there. */
hl_status hl_chunk_view_put(struct hl_chunk_memory *m, bool on_host, const void *content)
{
    void *p = NULL;
    HL_TRY(hl_chunk_snapshot_take(m, content, &p));
    hl_status st = HL_OK;
    if (mprotect(p, m->span, PROT_READ) != 0)
        st = hl_fail(hl_status_of_errno(errno), "a view of %" PRIu64 " bytes: %s", m->span,
                     strerror(errno));
    if (st == HL_OK && !on_host)
        hl_device_range_reset(m->device, m->address, m->span);
    if (st == HL_OK)
        st = hl_chunk_snapshot_show(m, on_host, p);
    if (st != HL_OK)
        hl_chunk_snapshot_drop(m, p);
    return st;
}

hl_status hl_chunk_view_open(struct hl_chunk_memory *m, bool on_host, bool writable)
{
    int prot = writable ? PROT_READ | PROT_WRITE : PROT_READ;
    if (mprotect(view_address(m, on_host), m->span, prot) != 0)
        return hl_fail(hl_status_of_errno(errno), "a view of %" PRIu64 " bytes: %s", m->span,
                       strerror(errno));
    return HL_OK;
}

/* ---- copies ---- */

hl_status hl_chunk_copy_wait(struct hl_chunk_memory *m, int timeout_ms)
{
    hl_status first = HL_OK;
    while (m->copying > 0) {
        hl_status st = hl_device_wait(&m->copies[m->copying - 1], timeout_ms);
        if (st == HL_ETIMEDOUT)
            return st;
        first = first == HL_OK ? st : first;
        m->copying--;
    }
    return first;
}

static hl_status begin_piece(struct hl_chunk_memory *m, int out, size_t i, uint64_t at)
{
    uint8_t *host = (uint8_t *)hl_chunk_host_reach(m) + at;
    const struct hl_device_block *b = &m->blocks[i];
    return out ? hl_device_begin_out(m->device, b, 0, host, b->size, &m->copies[i])
               : hl_device_begin_in(m->device, b, 0, host, b->size, &m->copies[i]);
}

hl_status hl_chunk_copy_begin(struct hl_chunk_memory *m, bool out)
{
    uint64_t at = 0;
    for (size_t i = 0; i < m->count; i++) {
        hl_status st = begin_piece(m, out, i, at);
        if (st != HL_OK) {
            hl_status ended = hl_chunk_copy_wait(m, 30000);
            return ended == HL_ETIMEDOUT ? ended : st;
        }
        m->copying = i + 1;
        at += m->blocks[i].size;
    }
    return HL_OK;
}

hl_status hl_chunk_copy_now(struct hl_chunk_memory *m, bool out)
{
    uint8_t *host = hl_chunk_host_reach(m);
    for (size_t i = 0; i < m->count; i++) {
        const struct hl_device_block *b = &m->blocks[i];
        HL_TRY(out ? hl_device_copy_out(m->device, b, 0, host, b->size)
                   : hl_device_copy_in(m->device, b, 0, host, b->size));
        host += b->size;
    }
    return HL_OK;
}
