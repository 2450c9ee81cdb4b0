/* The emulated device: one memfd. A block is an extent of it, mapped at the same offset of an
 * address window that is otherwise inaccessible: an access to a freed block faults and never hits
 * another mapping. Pages are reserved when a block is made and released when it is freed (unless
 * the device keeps them), so every block has its memory. Asynchronous copies run in order on a
 * separate thread.
 *
 *     emu_begin  --> first -> job -> job <- last -->  copy_engine: move_bytes, without the lock
 *     emu_wait   <-- job->done, `done` broadcast <--------'
 *
 *     A copy: queued --> moved --> done --emu_wait--> freed
 *
 * `work` wakes the engine for each job, and once to end it; `done` wakes all waiters, and each
 * checks its own job. A wait that times out does not free its job, because the engine may still use
 * it. `lock` (extents, mappings) and `queue_lock` are never held together. */
#include "mem/device/device_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/copy.h"
#include "base/text.h"
#include "mem/device/mapping_cache.h"
#include "mem/extents.h"
#include "os/cond.h"
#include "os/file.h"
#include "os/numa.h"
#include "os/shm.h"

#define BLOCKS_MAX (1u << 20)
#define NUMA_MAX   1023

/* `done` is guarded by queue_lock; the rest is constant once the job is queued. */
struct copy_job {
    struct copy_job *next;
    struct device_op op;
    bool done;
};

struct emu {
    int fd; /* -1: it has no memory of its own */
    uint8_t *window;
    uint64_t len;   /* length of both */
    uint8_t *alias; /* all memory, for copies: users can close their mappings; NULL: none */
    bool keeps_memory;
    pthread_mutex_t lock; /* guards extents and mappings */
    struct hl_extents *extents;
    struct hl_mapping_cache mappings; /* only if the device keeps memory */

    pthread_mutex_t queue_lock; /* guards everything below */
    pthread_cond_t work, done;
    struct copy_job *first, **last;
    bool started, stop;
    pthread_t thread;
};

static struct emu *emu_of(struct hl_device *d)
{
    return d->impl;
}

static hl_status fail_errno(int err, const char *what, uint64_t len)
{
    return hl_fail(hl_status_of_errno(err), "%s of %" PRIu64 " bytes: %s", what, len,
                   strerror(err));
}

/* ---- opening ---- */

struct spec {
    uint64_t bytes;
    int nic, numa;
};

static hl_status parse_word(const char *word, struct spec *out)
{
    char *end;
    if (strcmp(word, "nic=no") == 0) {
        out->nic = 0;
        return HL_OK;
    }
    if (strncmp(word, "numa=", 5) == 0 && word[5] >= '0' && word[5] <= '9') {
        unsigned long node = strtoul(word + 5, &end, 10);
        if (*end == '\0' && node <= NUMA_MAX) {
            out->numa = (int)node;
            return HL_OK;
        }
    }
    return hl_fail(HL_EINVAL, "\"%s\" is neither nic=no nor numa=N", word);
}

static hl_status emu_parse(const char *rest, struct spec *out)
{
    char text[128], *save = NULL;
    if (snprintf(text, sizeof(text), "%s", rest) >= (int)sizeof(text))
        return hl_fail(HL_EINVAL, "it is too long");
    if (text[0] == '\0')
        return HL_OK;
    char *word = strtok_r(text, ":", &save);
    HL_TRY(hl_parse_bytes(word != NULL ? word : "", &out->bytes));
    if (out->bytes == 0)
        return hl_fail(HL_EINVAL, "invalid device size of 0 bytes");
    for (word = strtok_r(NULL, ":", &save); word != NULL; word = strtok_r(NULL, ",", &save))
        HL_TRY(parse_word(word, out));
    return HL_OK;
}

static hl_status open_memory(struct emu *e, int *node)
{
    HL_TRY(hl_memfd_create("helios-device", e->len, &e->fd));
    /* An exported descriptor must not be reopened for writing by accident. */
    if (fchmod(e->fd, 0400) != 0)
        return fail_errno(errno, "memory", e->len);
    if (*node >= 0) {
        void *all;
        HL_TRY(hl_shm_map(e->fd, e->len, 1, &all));
        if (hl_numa_bind(all, e->len, *node) != HL_OK) {
            hl_error_clear();
            *node = -1; /* a preference; the device reports the actual node */
        }
        hl_shm_unmap(all, e->len);
    }
    void *w = mmap(NULL, e->len, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (w == MAP_FAILED)
        return fail_errno(errno, "addresses", e->len);
    e->window = w;
    if (e->keeps_memory) {
        void *all;
        HL_TRY(hl_shm_map(e->fd, e->len, 1, &all));
        e->alias = all;
    }
    uint64_t units = e->len / (uint64_t)sysconf(_SC_PAGESIZE);
    return hl_extents_create(units, units < BLOCKS_MAX ? (uint32_t)units : BLOCKS_MAX, &e->extents);
}

static void emu_close(struct hl_device *d)
{
    struct emu *e = emu_of(d);
    if (e->window != NULL)
        munmap(e->window, e->len);
    hl_shm_unmap(e->alias, e->len);
    if (e->fd >= 0)
        close(e->fd);
    hl_extents_destroy(e->extents);
    hl_mapping_cache_fini(&e->mappings);
    pthread_cond_destroy(&e->work);
    pthread_cond_destroy(&e->done);
    pthread_mutex_destroy(&e->lock);
    pthread_mutex_destroy(&e->queue_lock);
    free(e);
}

static void set_facts(struct hl_device *d, const struct spec *spec)
{
    d->granule = (uint64_t)sysconf(_SC_PAGESIZE);
    d->capacity = emu_of(d)->len;
    d->numa = spec->numa;
    d->nic_direct = spec->nic;
    d->bounded = d->shareable = d->has_ranges = true;
    snprintf(d->backing, sizeof(d->backing), "memfd");
}

static hl_status emu_open(struct hl_device *d, const char *rest,
                          const struct hl_device_options *options)
{
    struct spec spec = {.nic = 1, .numa = -1};
    HL_TRY(emu_parse(rest, &spec));
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (spec.bytes > 0 && spec.bytes < page)
        return hl_fail(HL_EINVAL, "%" PRIu64 " bytes are less than a page of %" PRIu64, spec.bytes,
                       page);
    struct emu *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return hl_fail(HL_ENOMEM, "out of memory");
    *e = (struct emu){.fd = -1,
                      .len = spec.bytes / page * page,
                      .keeps_memory = options != NULL && options->keeps_memory};
    e->last = &e->first;
    hl_cond_init(&e->work);
    hl_cond_init(&e->done);
    pthread_mutex_init(&e->lock, NULL);
    pthread_mutex_init(&e->queue_lock, NULL);
    d->impl = e;
    hl_status st = e->len > 0 ? open_memory(e, &spec.numa) : HL_OK;
    if (st != HL_OK)
        emu_close(d);
    else
        set_facts(d, &spec);
    return st;
}

/* ---- blocks ---- */

/* The last step of a free: from now on another block may get the bytes. */
static void give_extent(struct hl_device *d, const struct device_mem *m)
{
    struct emu *e = emu_of(d);
    pthread_mutex_lock(&e->lock);
    hl_extents_give(e->extents, m->offset / d->granule, m->size / d->granule);
    pthread_mutex_unlock(&e->lock);
}

/* Takes the memory that was mapped there last, if it is free: all its pages are present. */
static bool take_cached_mapping(struct hl_device *d, struct device_mem *m)
{
    struct emu *e = emu_of(d);
    pthread_mutex_lock(&e->lock);
    const struct hl_cached_mapping *one = hl_mapping_cache_find(&e->mappings, m->address, m->size);
    bool taken = one != NULL && hl_extents_claim(e->extents, one->offset / d->granule,
                                                 m->size / d->granule) == HL_OK;
    if (taken)
        m->offset = one->offset;
    pthread_mutex_unlock(&e->lock);
    return taken;
}

/* The extent is taken under the lock; the pages are reserved without it, because fallocate may have
 * to zero or swap. Until then only this call knows the extent. */
static hl_status emu_create(struct hl_device *d, struct device_mem *m)
{
    struct emu *e = emu_of(d);
    uint64_t start, free, largest;
    if (m->address != 0 && take_cached_mapping(d, m))
        return HL_OK;
    pthread_mutex_lock(&e->lock);
    hl_status st = hl_extents_take(e->extents, m->size / d->granule, &start);
    free = hl_extents_free(e->extents) * d->granule;
    largest = hl_extents_largest(e->extents) * d->granule;
    pthread_mutex_unlock(&e->lock);
    if (st != HL_OK)
        return hl_fail(st,
                       "%s: %" PRIu64 " bytes requested, %" PRIu64 " free, but only %" PRIu64
                       " of them in one piece",
                       d->name, m->size, free, largest);
    m->offset = start * d->granule;
    int rc;
    do
        rc = fallocate(e->fd, 0, (off_t)m->offset, (off_t)m->size);
    while (rc != 0 && errno == EINTR);
    if (rc != 0) {
        int err = errno;
        give_extent(d, m);
        return hl_fail(err == ENOMEM ? HL_ENOSPC : hl_status_of_errno(err),
                       "%s: the host can't back %" PRIu64 " bytes: %s", d->name, m->size,
                       strerror(err));
    }
    return HL_OK;
}

/* Frees the pages first and the extent last: the reverse order could punch a hole into the next
 * owner's block. */
static void emu_destroy(struct hl_device *d, struct device_mem *m)
{
    struct emu *e = emu_of(d);
    if (m->imported)
        return;
    int rc;
    do
        rc = e->keeps_memory ? 0
                             : fallocate(e->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                                         (off_t)m->offset, (off_t)m->size);
    while (rc != 0 && errno == EINTR);
    give_extent(d, m);
}

/* Whether the mapping kept there is of exactly this memory. */
static bool uncache_mapping(struct emu *e, const struct device_mem *m, void *place)
{
    pthread_mutex_lock(&e->lock);
    const struct hl_cached_mapping *one =
        hl_mapping_cache_find(&e->mappings, (uintptr_t)place, m->size);
    bool same = one != NULL && one->offset == m->offset;
    hl_mapping_cache_forget(&e->mappings, (uintptr_t)place, m->size);
    pthread_mutex_unlock(&e->lock);
    return same && (m->closed || mprotect(place, m->size, PROT_READ | PROT_WRITE) == 0);
}

/* Maps the pages elsewhere and moves the mapping, because another thread may read at `place` at any
 * moment. libucm's mremap loses the fifth argument, so the system call is made directly. */
static bool map_closed(struct emu *e, const struct device_mem *m, void *place)
{
    void *p = mmap(NULL, m->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, e->fd,
                   (off_t)m->offset);
    if (p == MAP_FAILED)
        return false;
    if (mprotect(p, m->size, PROT_NONE) == 0 &&
        syscall(SYS_mremap, p, m->size, m->size, MREMAP_MAYMOVE | MREMAP_FIXED, place) != -1)
        return true;
    int err = errno;
    munmap(p, m->size);
    errno = err;
    return false;
}

static bool map_open(struct emu *e, const struct device_mem *m, void *place)
{
    return mmap(place, m->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_POPULATE,
                e->fd, (off_t)m->offset) != MAP_FAILED;
}

static hl_status emu_map(struct hl_device *d, struct device_mem *m, uint64_t at)
{
    struct emu *e = emu_of(d);
    void *place =
        at == HL_DEVICE_ANYWHERE ? (void *)(e->window + m->offset) : (void *)(uintptr_t)at;
    /* The pages exist already; mapping them one fault at a time would take longer than a copy. */
    if (!uncache_mapping(e, m, place) &&
        !(m->closed ? map_closed(e, m, place) : map_open(e, m, place)))
        return fail_errno(errno, "a mapping", m->size);
    m->host = place;
    m->address = (uintptr_t)place;
    return HL_OK;
}

static bool cache_mapping(struct emu *e, const struct device_mem *m)
{
    if (!e->keeps_memory || mprotect(m->host, m->size, PROT_NONE) != 0)
        return false;
    pthread_mutex_lock(&e->lock);
    bool cached = hl_mapping_cache_add(&e->mappings, m->address, m->size, m->offset);
    pthread_mutex_unlock(&e->lock);
    return cached;
}

static void emu_unmap(struct hl_device *d, struct device_mem *m)
{
    /* The addresses stay reserved, so an access faults. */
    if (m->own_address)
        munmap(m->host, m->size);
    else if (!cache_mapping(emu_of(d), m) &&
             mmap(m->host, m->size, PROT_NONE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
        (void)mprotect(m->host, m->size, PROT_NONE); /* there are too many mappings to add one */
    m->host = NULL;
    m->address = 0;
}

static hl_status emu_reserve(struct hl_device *d, uint64_t size, uint64_t *address)
{
    (void)d;
    void *p = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return fail_errno(errno, "addresses", size);
    *address = (uintptr_t)p;
    return HL_OK;
}

static void emu_range_reset(struct hl_device *d, uint64_t address, uint64_t size)
{
    struct emu *e = emu_of(d);
    pthread_mutex_lock(&e->lock);
    hl_mapping_cache_forget(&e->mappings, address, size);
    pthread_mutex_unlock(&e->lock);
}

static void emu_unreserve(struct hl_device *d, uint64_t address, uint64_t size)
{
    emu_range_reset(d, address, size);
    munmap((void *)(uintptr_t)address, size);
}

static void emu_room(struct hl_device *d, uint64_t left, uint64_t *free, uint64_t *largest)
{
    struct emu *e = emu_of(d);
    *free = left;
    *largest = 0;
    if (e->extents == NULL)
        return;
    pthread_mutex_lock(&e->lock);
    *largest = hl_extents_largest(e->extents) * d->granule;
    pthread_mutex_unlock(&e->lock);
}

/* ---- other processes ---- */

static hl_status emu_export(struct hl_device *d, const struct device_mem *m, int *fd)
{
    (void)m;
    return hl_shm_reopen(emu_of(d)->fd, fd);
}

static hl_status emu_import(struct hl_device *d, int fd, struct device_mem *m)
{
    (void)d;
    /* Otherwise the owner could truncate it and make the mapping fault. */
    HL_TRY(hl_memfd_check(fd, m->offset + m->size));
    void *p = mmap(NULL, m->size, PROT_READ, MAP_SHARED, fd, (off_t)m->offset);
    if (p == MAP_FAILED)
        return fail_errno(errno, "a mapping", m->size);
    m->host = p;
    m->address = (uintptr_t)p;
    m->own_address = true;
    return HL_OK;
}

/* ---- copies ---- */

/* Smaller copies stay in a cache anyway. */
#define COLD_MIN ((size_t)64 << 10)

static void move_bytes(const struct device_op *op)
{
    void *dst = (void *)(uintptr_t)op->dst;
    const void *src = (const void *)(uintptr_t)op->src;
    bool overlap = op->dst - op->src < op->len || op->src - op->dst < op->len;
    if (overlap || op->len < COLD_MIN)
        memmove(dst, src, op->len);
    else
        /* Whole pieces belong to a large transfer, which this processor does not read back. */
        hl_copy(dst, src, op->len, op->len < HL_COPY_BULK ? op->len : HL_COPY_LARGE);
}

static uint64_t emu_reach(struct hl_device *d, const struct device_mem *m)
{
    const uint8_t *alias = emu_of(d)->alias;
    return alias != NULL && !m->imported ? (uintptr_t)alias + m->offset : m->address;
}

static hl_status emu_copy(struct hl_device *d, const struct device_op *op)
{
    (void)d;
    move_bytes(op);
    return HL_OK;
}

/* Moves one job at a time, in the order of emu_begin, without the lock. It ends only when the queue
 * is empty, so emu_settle finishes copies in flight instead of dropping them. */
static void *copy_engine(void *arg)
{
    struct emu *e = arg;
    pthread_mutex_lock(&e->queue_lock);
    for (;;) {
        while (e->first == NULL && !e->stop)
            pthread_cond_wait(&e->work, &e->queue_lock);
        struct copy_job *job = e->first;
        if (job == NULL)
            break;
        e->first = job->next;
        if (e->first == NULL)
            e->last = &e->first;
        pthread_mutex_unlock(&e->queue_lock);
        move_bytes(&job->op);
        pthread_mutex_lock(&e->queue_lock);
        job->done = true;
        pthread_cond_broadcast(&e->done);
    }
    pthread_mutex_unlock(&e->queue_lock);
    return NULL;
}

/* The first copy starts the thread, under the lock, so two callers can't start two. */
static hl_status emu_begin(struct hl_device *d, const struct device_op *op, void **handle)
{
    struct emu *e = emu_of(d);
    struct copy_job *job = calloc(1, sizeof(*job));
    if (job == NULL)
        return hl_fail(HL_ENOMEM, "out of memory");
    job->op = *op;
    pthread_mutex_lock(&e->queue_lock);
    if (!e->started && pthread_create(&e->thread, NULL, copy_engine, e) != 0) {
        pthread_mutex_unlock(&e->queue_lock);
        free(job);
        return hl_fail(HL_ENOMEM, "%s: a thread can't be started", d->name);
    }
    e->started = true;
    *e->last = job;
    e->last = &job->next;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->queue_lock);
    *handle = job;
    return HL_OK;
}

static hl_status emu_wait(struct hl_device *d, void *handle, int timeout_ms)
{
    struct emu *e = emu_of(d);
    struct copy_job *job = handle;
    uint64_t end = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
    struct timespec ts = {.tv_sec = (time_t)(end / HL_NS_PER_S),
                          .tv_nsec = (long)(end % HL_NS_PER_S)};
    int rc = 0;
    pthread_mutex_lock(&e->queue_lock);
    while (!job->done && rc == 0)
        rc = pthread_cond_timedwait(&e->done, &e->queue_lock, &ts);
    bool done = job->done;
    pthread_mutex_unlock(&e->queue_lock);
    if (!done)
        return hl_fail(HL_ETIMEDOUT, "%s: a copy of %zu bytes is not done after %d ms", d->name,
                       job->op.len, timeout_ms);
    free(job);
    return HL_OK;
}

static void emu_settle(struct hl_device *d)
{
    struct emu *e = emu_of(d);
    /* No other call runs during a close. */
    if (!e->started)
        return;
    pthread_mutex_lock(&e->queue_lock);
    e->stop = true;
    pthread_cond_signal(&e->work);
    pthread_mutex_unlock(&e->queue_lock);
    pthread_join(e->thread, NULL);
}

static hl_status emu_pin(struct hl_device *d, void *ptr, size_t len)
{
    (void)d, (void)ptr, (void)len; /* the CPU makes its copies: nothing to gain */
    return HL_OK;
}

static void emu_unpin(struct hl_device *d, void *ptr)
{
    (void)d, (void)ptr;
}

const struct device_ops device_emu = {
    .kind = "emu",
    .open = emu_open,
    .settle = emu_settle,
    .close = emu_close,
    .create = emu_create,
    .destroy = emu_destroy,
    .map = emu_map,
    .unmap = emu_unmap,
    .reserve = emu_reserve,
    .unreserve = emu_unreserve,
    .range_reset = emu_range_reset,
    .reach = emu_reach,
    .copy = emu_copy,
    .begin = emu_begin,
    .wait = emu_wait,
    .pin = emu_pin,
    .unpin = emu_unpin,
    .export = emu_export,
    .import = emu_import,
    .room = emu_room,
};
