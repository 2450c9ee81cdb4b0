/* Creating, adopting and closing the pool's file.
 *
 * The magic is written last into a new file, so an owner recognizes a file whose creation was
 * interrupted, and creates it again. The lock (flock) ends with the process, however the process
 * ends. A clean close only clears the owner: adoption is the same after a close as after
 * SIGKILL. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "mem/pool/fill.h"
#include "mem/pool/pool_private.h"
#include "os/cond.h"
#include "os/file.h"
#include "os/map_guard.h"
#include "os/shm.h"

#define LATE_MS       1000 /* a heartbeat that is later was held up */
#define SLOTS_MIN     1024
#define SLOTS_MAX     ((uint64_t)1 << 22)
#define CAPACITY_MAX  ((uint64_t)1 << 56)
#define OPEN_ATTEMPTS 10

uint32_t pool_super_crc(const struct hl_pool_super *s)
{
    size_t from = offsetof(struct hl_pool_super, uuid);
    return hl_crc32(0, (const uint8_t *)s + from, offsetof(struct hl_pool_super, fixed_end) - from);
}

static uint64_t data_offset_of(uint64_t slots)
{
    uint64_t end = HL_POOL_UNIT + slots * sizeof(struct hl_pool_entry);
    return (end + HL_POOL_UNIT - 1) / HL_POOL_UNIT * HL_POOL_UNIT;
}

hl_status pool_super_check(const struct hl_pool_super *s, uint64_t file_size, const char *name)
{
    if (POOL_GET(s->magic) != HL_POOL_MAGIC)
        return hl_fail(HL_EINVAL, "%s is not a Helios pool", name);
    if (s->layout != HL_POOL_LAYOUT)
        return hl_fail(HL_EUNSUPPORTED, "%s has pool layout %" PRIu32 ", this program knows %d",
                       name, s->layout, HL_POOL_LAYOUT);
    uint64_t slots = s->index_slots;
    if (s->fixed_crc != pool_super_crc(s) || slots == 0 || (slots & (slots - 1)) != 0 ||
        slots > UINT32_MAX || s->index_offset != HL_POOL_UNIT ||
        s->data_offset != data_offset_of(slots) || s->capacity % HL_POOL_UNIT != 0 ||
        s->file_size < s->data_offset || s->capacity > s->file_size - s->data_offset)
        return hl_fail(HL_ECORRUPT, "the superblock of %s is damaged", name);
    if (s->file_size != file_size)
        return hl_fail(HL_ECORRUPT, "%s has %" PRIu64 " bytes but was made with %" PRIu64, name,
                       file_size, s->file_size);
    return HL_OK;
}

/* ---- a new file ------------------------------------------------------------------------------ */

static uint64_t slots_for(const struct hl_pool_options *o, uint64_t capacity)
{
    if (o->index_slots != 0)
        return o->index_slots;
    uint64_t slots = SLOTS_MIN;
    while (slots < SLOTS_MAX && slots < 2 * (capacity / HL_POOL_UNIT))
        slots *= 2;
    return slots;
}

/* The memory is bound first, because a page stays on the node where it was allocated. */
static hl_status make_pages(struct hl_pool *pool, const struct hl_pool_options *o, uint64_t size,
                            uint64_t data_offset)
{
    void *base = NULL;
    HL_TRY(hl_shm_check_room(pool->fd, pool->path, size));
    if (ftruncate(pool->fd, (off_t)size) != 0)
        return hl_fail(hl_status_of_errno(errno), "make pool %s: %m", pool->path);
    HL_TRY(hl_shm_map(pool->fd, size, 1, &base));
    pool->base = base;
    pool->file_size = size;
    pool->guard = hl_map_guard_add(base, size, pool->fd, true);
    pool_regions_bind(pool, data_offset);
    if (o->prefault)
        pool_regions_collapse(pool, data_offset);
    HL_TRY(hl_shm_reserve(pool->fd, pool->path, size));
    if (o->prefault)
        pool_regions_prefault(pool, data_offset);
    pool_regions_look(pool, data_offset, o->prefault);
    return HL_OK;
}

static hl_status make_pool(struct hl_pool *pool, const struct hl_pool_options *o, uint64_t capacity)
{
    uint64_t slots = slots_for(o, capacity);
    uint64_t granule = hl_shm_granule(pool->fd);
    uint64_t size = data_offset_of(slots) + capacity;
    uint64_t making = HL_POOL_MAKING;
    size = (size + granule - 1) / granule * granule;
    if (slots < 2 || slots > UINT32_MAX / 2 || (slots & (slots - 1)) != 0)
        return hl_fail(HL_EINVAL, "pool %s: index slots must be a power of two", pool->path);
    /* In shared memory a file of zeros counts as unfinished, and no page may be allocated before
     * the binding: a huge page would grow where it is. */
    if (ftruncate(pool->fd, 0) != 0 ||
        (!hl_shm_is_memory(pool->fd) && pwrite(pool->fd, &making, sizeof(making), 0) < 0))
        return hl_fail(hl_status_of_errno(errno), "make pool %s: %m", pool->path);
    HL_TRY(pool_regions_plan(pool, o, capacity, data_offset_of(slots), granule));
    struct hl_pool_fill fill;
    hl_pool_fill_begin(&fill, pool->path, pool->fd, size, true);
    hl_status st = make_pages(pool, o, size, data_offset_of(slots));
    hl_pool_fill_end(&fill);
    HL_TRY(st);
    struct hl_pool_super *s = (struct hl_pool_super *)pool->base;
    POOL_SET(s->magic, making);
    s->layout = HL_POOL_LAYOUT;
    s->uuid = hl_id_random();
    s->capacity = capacity;
    s->file_size = size;
    s->index_offset = HL_POOL_UNIT;
    s->index_slots = slots;
    s->data_offset = data_offset_of(slots);
    pool_regions_store(pool, s);
    s->fixed_crc = pool_super_crc(s);
    POOL_SET(s->magic, HL_POOL_MAGIC);
    return HL_OK;
}

/* ---- an existing file ------------------------------------------------------------------------ */

/* Completes the failure that this thread reported last. */
static hl_status fail_unusable(hl_status st)
{
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    return hl_fail(st, "%.900s; remove the file and lose its shards", text);
}

static hl_status map_existing(struct hl_pool *pool, const struct hl_pool_options *o,
                              uint64_t capacity, uint64_t file_size)
{
    void *base = NULL;
    char has[32], asks[32];
    HL_TRY(hl_shm_map(pool->fd, file_size, 1, &base));
    pool->base = base;
    pool->file_size = file_size;
    pool->guard = hl_map_guard_add(base, file_size, pool->fd, true);
    const struct hl_pool_super *s = base;
    hl_status st = pool_super_check(s, file_size, pool->path);
    if (st == HL_ECORRUPT)
        return fail_unusable(st);
    HL_TRY(st);
    if (s->capacity != capacity)
        return hl_fail(HL_EINVAL,
                       "pool %s holds %s (%" PRIu64 " bytes) but %s (%" PRIu64
                       ") are requested; request the same, or remove the file and lose its shards",
                       pool->path, hl_format_bytes(s->capacity, has, sizeof(has)), s->capacity,
                       hl_format_bytes(capacity, asks, sizeof(asks)), capacity);
    pool_regions_load(pool, s);
    pool_regions_bind(pool, s->data_offset);
    if (o->prefault) {
        struct hl_pool_fill fill;
        hl_pool_fill_begin(&fill, pool->path, pool->fd, file_size, false);
        pool_regions_collapse(pool, s->data_offset);
        pool_regions_prefault(pool, s->data_offset);
        hl_pool_fill_end(&fill);
    }
    pool_regions_look(pool, s->data_offset, o->prefault);
    return HL_OK;
}

static uint64_t capacity_of(const struct hl_pool_options *o)
{
    uint64_t bytes = o->capacity;
    for (size_t i = 0; i < o->region_count && o->capacity == 0; i++)
        bytes += o->regions[i].bytes;
    return (bytes + HL_POOL_UNIT - 1) / HL_POOL_UNIT * HL_POOL_UNIT;
}

/* Creates a new pool, or maps the existing one. */
static hl_status make_or_map(struct hl_pool *pool, const struct hl_pool_options *o, int *made)
{
    struct stat sb;
    uint64_t magic = 0;
    uint64_t capacity = capacity_of(o);
    if (fstat(pool->fd, &sb) != 0)
        return hl_fail(HL_EIO, "stat %s: %m", pool->path);
    if (!S_ISREG(sb.st_mode))
        return hl_fail(HL_EINVAL, "%s is not a regular file; choose another path for the pool",
                       pool->path);
    if (sb.st_size > 0 && pread(pool->fd, &magic, sizeof(magic), 0) < (ssize_t)sizeof(magic))
        magic = 1;
    if (sb.st_size == 0 || magic == HL_POOL_MAKING || (magic == 0 && hl_shm_is_memory(pool->fd))) {
        *made = 1;
        return make_pool(pool, o, capacity);
    }
    if (magic != HL_POOL_MAGIC || (uint64_t)sb.st_size < HL_POOL_UNIT)
        return hl_fail(HL_EINVAL,
                       "%s exists and is not a Helios pool; choose another path or remove the file",
                       pool->path);
    return map_existing(pool, o, capacity, (uint64_t)sb.st_size);
}

/* ---- opening and closing --------------------------------------------------------------------- */

static hl_status fail_owned(int fd, const char *path)
{
    struct hl_pool_super s;
    memset(&s, 0, sizeof(s));
    if (pread(fd, &s, sizeof(s), 0) == (ssize_t)sizeof(s) && s.owner_pid != 0)
        return hl_fail(HL_EBUSY,
                       "pool %s is in use by process %" PRIu32 "; stop it or choose another path",
                       path, s.owner_pid);
    return hl_fail(HL_EBUSY, "pool %s is in use by another process", path);
}

/* Locks the file of that name. The flock makes one process the owner. If the name refers to another
 * file by the time we have the lock, another process has replaced it, and we try again. */
static hl_status open_locked(const char *path, int *out)
{
    for (int i = 0; i < OPEN_ATTEMPTS; i++) {
        HL_AUTO(hl_closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        struct stat mine, named;
        if (fd < 0)
            return hl_fail(hl_status_of_errno(errno), "open pool %s: %m", path);
        HL_TRY(hl_file_check_private(fd, path));
        if (flock(fd, LOCK_EX | LOCK_NB) != 0)
            return errno == EWOULDBLOCK ? fail_owned(fd, path)
                                        : hl_fail(HL_EIO, "lock pool %s: %m", path);
        if (fstat(fd, &mine) == 0 && stat(path, &named) == 0 && mine.st_ino == named.st_ino &&
            mine.st_dev == named.st_dev) {
            *out = fd;
            fd = -1;
            return HL_OK;
        }
    }
    return hl_fail(HL_EBUSY,
                   "pool %s keeps being removed and recreated; end the other program that does it",
                   path);
}

/* The heartbeat thread: one per pool, from take_over to hl_pool_close.
 *
 *     beat_ms over, or beat_stop: pool_beat with the lock held --> wait for beat_wake
 *
 * `beat_stop` is set under the lock, and the wait releases the lock and sleeps in one step, so no
 * signal is lost. Other processes read the heartbeat in the superblock and consider an owner with
 * an old one dead. */
static void *beat_main(void *arg)
{
    struct hl_pool *pool = arg;
    struct timespec next;
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&pool->lock);
    while (!pool->beat_stop) {
        pool_beat(pool);
        clock_gettime(CLOCK_MONOTONIC, &next);
        uint64_t ns = (uint64_t)next.tv_nsec + pool->beat_ms * HL_NS_PER_MS;
        next.tv_sec += (time_t)(ns / HL_NS_PER_S);
        next.tv_nsec = (long)(ns % HL_NS_PER_S);
        pthread_cond_timedwait(&pool->beat_wake, &pool->lock, &next);
    }
    pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* No lock is needed: no other thread knows the pool before the heartbeat thread is started, at the
 * end. */
static hl_status take_over(struct hl_pool *pool, struct hl_pool_found *found, int made)
{
    pool->super = (struct hl_pool_super *)pool->base;
    pool->slots = pool->super->index_slots;
    pool->index = (struct hl_pool_entry *)(pool->base + pool->super->index_offset);
    pool->notes = calloc(pool->slots, sizeof(*pool->notes));
    if (pool->notes == NULL)
        return hl_fail(HL_ENOMEM,
                       "pool %s: out of memory allocating the notes of %" PRIu64 " slots",
                       pool->path, pool->slots);
    HL_TRY(hl_extents_create(pool->super->capacity / HL_POOL_UNIT, pool->slots, &pool->extents));
    hl_extents_divide(pool->extents, pool->region_ends, pool->region_count);
    /* Incarnation 0 makes the last owner's views stale before anything changes. The new incarnation
     * is stored last, when the index is clean: new views can open from then on. */
    POOL_SET(pool->super->incarnation, 0);
    found->adopted = !made;
    uint64_t late_ms = 2 * (uint64_t)pool->beat_ms;
    hl_listening_init(&pool->listening, (late_ms > LATE_MS ? late_ms : LATE_MS) * HL_NS_PER_MS,
                      hl_now_ns(), hl_wall_ms());
    if (!made)
        HL_TRY(pool_adopt(pool, found));
    uint64_t incarnation = hl_random_u64();
    POOL_SET(pool->super->owner_pid, (uint32_t)getpid());
    POOL_SET(pool->super->heartbeat_ns, hl_now_ns());
    POOL_SET(pool->super->incarnation, incarnation != 0 ? incarnation : 1);
    if (pool->beat_ms == 0)
        return HL_OK;
    int rc = pthread_create(&pool->beat, NULL, beat_main, pool);
    if (rc != 0)
        return hl_fail(HL_ENOMEM, "heartbeat thread of pool %s: %s", pool->path, strerror(rc));
    pool->beat_running = true;
    return HL_OK;
}

hl_status hl_pool_open(const struct hl_pool_options *options, struct hl_pool_found *found,
                       struct hl_pool **out)
{
    struct hl_pool_found seen = {0};
    int made = 0;
    uint64_t capacity = capacity_of(options);
    if (capacity == 0 || capacity > CAPACITY_MAX || options->capacity > CAPACITY_MAX)
        return hl_fail(HL_EINVAL, "pool %s: invalid capacity of %" PRIu64 " bytes", options->path,
                       options->capacity);
    struct hl_pool *pool = calloc(1, sizeof(*pool));
    if (pool == NULL || (pool->path = strdup(options->path)) == NULL) {
        free(pool);
        return hl_fail(HL_ENOMEM, "out of memory allocating pool %s", options->path);
    }
    hl_cond_init(&pool->beat_wake);
    hl_cond_init(&pool->changed);
    pthread_mutex_init(&pool->lock, NULL);
    pool->fd = pool->guard = -1;
    pool->quarantine_head = pool->quarantine_tail = NO_SLOT;
    pool->beat_ms = options->beat_ms;
    pool->quarantine_ns =
        (options->quarantine_ms != 0 ? options->quarantine_ms : DEFAULT_QUARANTINE_MS) *
        HL_NS_PER_MS;
    pool->lease_ns = (options->lease_ms != 0 ? options->lease_ms : HL_POOL_LEASE_MS) * HL_NS_PER_MS;
    hl_status st = open_locked(pool->path, &pool->fd);
    if (st == HL_OK)
        st = make_or_map(pool, options, &made);
    if (st == HL_OK)
        st = take_over(pool, &seen, made);
    if (st != HL_OK) {
        if (made && pool->fd >= 0)
            unlink(pool->path);
        hl_pool_close(pool);
        return st;
    }
    if (found != NULL)
        *found = seen;
    *out = pool;
    return HL_OK;
}

/* The heartbeat thread ends first; then incarnation 0 tells readers. They have mappings of their
 * own, so this one can be unmapped. */
void hl_pool_close(struct hl_pool *pool)
{
    if (pool == NULL)
        return;
    if (pool->beat_running) {
        pthread_mutex_lock(&pool->lock);
        pool->beat_stop = true;
        pthread_cond_signal(&pool->beat_wake);
        pthread_mutex_unlock(&pool->lock);
        pthread_join(pool->beat, NULL);
    }
    /* After the last beat: a view that sees no owner reconnects instead of waiting until the
     * heartbeat is too old. */
    if (pool->super != NULL) {
        POOL_SET(pool->super->incarnation, 0);
        POOL_SET(pool->super->owner_pid, 0);
    }
    hl_extents_destroy(pool->extents);
    free(pool->notes);
    hl_map_guard_remove(pool->guard);
    hl_shm_unmap(pool->base, pool->file_size);
    hl_closep(&pool->fd);
    pthread_cond_destroy(&pool->beat_wake);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->lock);
    free(pool->path);
    free(pool);
}

void hl_pool_remove(struct hl_pool *pool)
{
    if (pool != NULL)
        unlink(pool->path); /* still locked: a new owner that waits for the lock checks the name */
    hl_pool_close(pool);
}

const char *hl_pool_path(const struct hl_pool *pool)
{
    return pool->path;
}

void *hl_pool_base(const struct hl_pool *pool, size_t *len)
{
    *len = (size_t)pool->file_size;
    return pool->base;
}

hl_status hl_pool_reopen(const struct hl_pool *pool, int *fd)
{
    return hl_shm_reopen(pool->fd, fd);
}
