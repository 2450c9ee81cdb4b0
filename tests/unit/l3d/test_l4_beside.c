/* What the archive's loads and stores do beside other writers, and with copies that are damaged. */
#include "support/test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "l3d/l4_private.h"
#include "support/process_state.h"

#define HOUR_MS 3600000u

struct rig {
    struct hl_l3d d;
    struct l4 l4;
    struct hl_archive *archive;
    char dir[64], url[80], pool[80];
};

static int setup(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof(r));
    snprintf(r.dir, sizeof(r.dir), "/tmp/helios-test-l4-beside-%d-XXXXXX", (int)getpid());
    if (mkdtemp(r.dir) == NULL)
        return -1;
    snprintf(r.url, sizeof(r.url), "dir:%s", r.dir);
    snprintf(r.pool, sizeof(r.pool), "/dev/shm/helios-test-l4-beside-%d", (int)getpid());
    r.d.l4 = &r.l4;
    r.l4.url = r.url;
    r.l4.opts = (struct l4_opts){.low_pct = 100, .load_timeout_ms = HOUR_MS};
    pthread_mutex_init(&r.l4.bad_lock, NULL);
    pthread_mutex_init(&r.l4.room_lock, NULL);
    pthread_mutex_init(&r.l4.filling_lock, NULL);
    pthread_mutex_init(&r.l4.sign_lock, NULL);
    const struct hl_pool_options pool = {
        .path = r.pool, .capacity = 4 * HL_POOL_UNIT, .quarantine_ms = 1, .beat_ms = 1};
    if (hl_pool_open(&pool, NULL, &r.d.pool) != HL_OK ||
        hl_archive_open(&(struct hl_archive_options){.url = r.url}, &r.archive) != HL_OK)
        return -1;
    atomic_store(&r.l4.archive, r.archive);
    *state = &r;
    return 0;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    char command[96];
    l4_bad_fini(&r->d);
    hl_archive_close(r->archive);
    hl_pool_remove(r->d.pool);
    snprintf(command, sizeof(command), "rm -rf '%s'", r->dir);
    return system(command);
}

static const struct hl_id shard = {7, 1};

static void fill(struct rig *r, struct hl_pool_extent *x)
{
    static const char header[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}";
    const uint64_t len = sizeof(header) - 1;
    assert_int_equal(hl_pool_alloc_at(r->d.pool, shard, 8 + len + 8, -1, x), HL_OK);
    memcpy(x->ptr, &len, 8);
    memcpy((char *)x->ptr + 8, header, len);
    memset((char *)x->ptr + 8 + len, 5, 8);
}

static void seal(struct rig *r, const struct hl_pool_extent *x)
{
    uint32_t crc = hl_crc32(0, x->ptr, x->size);
    assert_int_equal(hl_pool_seal(r->d.pool, x, crc, &crc, 1, NULL), HL_OK);
}

/* It is in the archive, and another thread has begun to write it to the pool. */
static void archived_and_begun(struct rig *r, struct hl_pool_extent *x)
{
    struct hl_pool_ref ref;
    fill(r, x);
    seal(r, x);
    assert_int_equal(l4_store_now(&r->d, shard), HL_OK);
    assert_int_equal(hl_pool_find(r->d.pool, shard, &ref), HL_OK);
    assert_true(hl_pool_evict_one(r->d.pool, &ref));
    fill(r, x);
}

struct loading {
    struct rig *r;
    _Atomic pid_t thread; /* 0: it has not begun */
    hl_status st;
};

static void *load_main(void *arg)
{
    struct loading *l = arg;
    atomic_store(&l->thread, gettid());
    l->st = l4_load_now(&l->r->d, shard);
    return NULL;
}

/* Seen asleep several times in a row, it waits for the other writer, not briefly for a lock. */
static void wait_until_it_sleeps(const struct loading *l)
{
    const uint64_t end = hl_now_ns() + 30 * HL_NS_PER_S;
    char path[64];
    while (atomic_load(&l->thread) == 0)
        assert_true(hl_now_ns() < end);
    snprintf(path, sizeof(path), "/proc/self/task/%d/stat", (int)atomic_load(&l->thread));
    for (int asleep = 0; asleep < 10;) {
        char state = process_state(path);
        assert_true(state != '\0' && hl_now_ns() < end);
        asleep = state == 'S' ? asleep + 1 : 0;
        usleep(100);
    }
}

static void load_beside(struct rig *r, const struct hl_pool_extent *x, bool succeeds)
{
    struct loading l = {.r = r};
    struct hl_pool_ref ref;
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, load_main, &l), 0);
    wait_until_it_sleeps(&l);
    if (succeeds)
        seal(r, x);
    else
        hl_pool_abort(r->d.pool, x);
    pthread_join(thread, NULL);
    assert_int_equal(l.st, HL_OK);
    assert_int_equal(hl_pool_find(r->d.pool, shard, &ref), HL_OK);
}

TEST_IN(setup, teardown, a_load_waits_for_another_writer_of_its_shard)
{
    struct hl_pool_extent x;
    archived_and_begun(*state, &x);
    load_beside(*state, &x, true);
}

TEST_IN(setup, teardown, a_load_takes_over_when_the_other_writer_fails)
{
    struct hl_pool_extent x;
    archived_and_begun(*state, &x);
    load_beside(*state, &x, false);
}

TEST_IN(setup, teardown, a_load_that_waits_ends_with_the_daemon)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    archived_and_begun(r, &x);
    atomic_store(&r->d.stopping, true);
    assert_int_equal(l4_load_now(&r->d, shard), HL_ECANCELED);
}

TEST_IN(setup, teardown, a_damaged_copy_stays_while_the_pool_s_is_damaged_too)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    uint64_t size;
    fill(r, &x);
    seal(r, &x);
    assert_int_equal(l4_store_now(&r->d, shard), HL_OK);
    l4_bad_mark(&r->d, shard);
    char *last = (char *)x.ptr + x.size - 1;
    *last ^= 1;
    assert_int_equal(l4_store_now(&r->d, shard), HL_ECORRUPT);
    assert_int_equal(hl_archive_size(r->archive, shard, &size), HL_OK);
    *last ^= 1;
    assert_int_equal(l4_store_now(&r->d, shard), HL_OK);
    assert_false(l4_bad_has(&r->d, shard));
}
