/* A pool over an archive, without the daemon: what a full pool evicts, what must stay, what counts
 * as archived. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "core/catalog/derived_id.h"
#include "l3d/l4_private.h"
#include "os/loop.h"

#define UNITS    4u
#define CAPACITY (UNITS * HL_POOL_UNIT)
#define HOUR_MS  3600000u

static const struct hl_id us = {1, 1}, them = {2, 2};

struct rig {
    struct hl_l3d d;
    struct l4 l4;
    struct hl_archive *archive;
    char dir[64], url[80], pool[80];
};

static hl_status rig_start(struct rig *r)
{
    r->d.l4 = &r->l4;
    r->l4.url = r->url;
    r->l4.opts = (struct l4_opts){.low_pct = 100, .load_timeout_ms = HOUR_MS};
    r->l4.mode = HL_API_ARCHIVE_MODE_MANUAL;
    pthread_mutex_init(&r->l4.bad_lock, NULL);
    pthread_mutex_init(&r->l4.room_lock, NULL);
    pthread_mutex_init(&r->l4.sign_lock, NULL);
    pthread_mutex_init(&r->l4.order_lock, NULL);
    HL_TRY(hl_pool_open(
        &(struct hl_pool_options){
            .path = r->pool, .capacity = CAPACITY, .quarantine_ms = 1, .beat_ms = 1},
        NULL, &r->d.pool));
    return hl_archive_open(&(struct hl_archive_options){.url = r->url}, &r->archive);
}

static int setup(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof(r));
    snprintf(r.dir, sizeof(r.dir), "/tmp/helios-test-l4-%d-XXXXXX", (int)getpid());
    if (mkdtemp(r.dir) == NULL)
        return -1;
    snprintf(r.url, sizeof(r.url), "dir:%s", r.dir);
    snprintf(r.pool, sizeof(r.pool), "/dev/shm/helios-test-l4-%d", (int)getpid());
    *state = &r;
    return rig_start(&r) == HL_OK ? 0 : -1;
}

static int teardown(void **state)
{
    struct rig *r = *state;
    char command[96];
    l4_bad_fini(&r->d);
    l4_order_fini(&r->d);
    hl_archive_close(r->archive);
    hl_pool_remove(r->d.pool);
    snprintf(command, sizeof(command), "rm -rf '%s'", r->dir);
    return system(command);
}

static void use_archive(struct rig *r)
{
    atomic_store(&r->l4.archive, r->archive);
}

/* Fills one unit of the pool with a shard by its header. */
static void fill_with(struct rig *r, struct hl_id id, uint64_t number)
{
    static const char header[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}";
    const uint64_t len = sizeof(header) - 1;
    char bytes[8 + sizeof(header) - 1 + 8];
    struct hl_pool_extent x;
    memcpy(bytes, &len, 8);
    memcpy(bytes + 8, header, len);
    memcpy(bytes + 8 + len, &number, 8);
    assert_int_equal(hl_pool_alloc_at(r->d.pool, id, sizeof(bytes), -1, &x), HL_OK);
    memcpy(x.ptr, bytes, sizeof(bytes));
    uint32_t crc = hl_crc32(0, bytes, sizeof(bytes));
    assert_int_equal(hl_pool_seal(r->d.pool, &x, crc, &crc, 1, NULL), HL_OK);
}

static struct hl_id fill_unit(struct rig *r, uint64_t number)
{
    struct hl_id id = {7, number};
    fill_with(r, id, number);
    return id;
}

static void fill_pool(struct rig *r)
{
    for (uint64_t i = 0; i < UNITS; i++)
        fill_unit(r, i);
}

static bool pool_has(struct rig *r, struct hl_id id)
{
    struct hl_pool_ref ref;
    return hl_pool_find(r->d.pool, id, &ref) == HL_OK;
}

static const struct l4_want unit = {.near = -1, .size = 1};

TEST_IN(setup, teardown, without_an_archive_a_full_pool_is_full)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    fill_pool(r);
    assert_int_equal(l4_try_alloc(&r->d, &unit, &x), HL_ENOSPC);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ENOSPC); /* and does not wait */
    assert_false(l4_makes_room(&r->d, 1));
}

TEST_IN(setup, teardown, only_what_is_archived_goes)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    use_archive(r);
    fill_pool(r);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ENOSPC);
    assert_int_equal(l4_store_now(&r->d, (struct hl_id){7, 2}), HL_OK);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_OK);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_int_equal(pool_has(r, (struct hl_id){7, i}), i != 2);
}

TEST_IN(setup, teardown, a_derived_shard_goes_before_what_is_archived)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    const struct hl_id derived = hl_id_derived(5, 0);
    use_archive(r);
    for (uint64_t i = 0; i + 1 < UNITS; i++) { /* all of them less recently used */
        fill_unit(r, i);
        assert_int_equal(l4_store_now(&r->d, (struct hl_id){7, i}), HL_OK);
    }
    fill_with(r, derived, 9);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_OK);
    assert_false(pool_has(r, derived));
    for (uint64_t i = 0; i + 1 < UNITS; i++)
        assert_true(pool_has(r, (struct hl_id){7, i}));
}

TEST_IN(setup, teardown, a_cut_that_runs_keeps_its_shards)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    const struct hl_id derived = hl_id_derived(5, 0);
    for (uint64_t i = 0; i + 1 < UNITS; i++)
        fill_unit(r, i);
    fill_with(r, derived, 9);
    atomic_store(&r->d.running_cuts[0], UINT64_C(5));
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ENOSPC);
    assert_true(pool_has(r, derived));
    atomic_store(&r->d.running_cuts[0], UINT64_C(0)); /* the cut is made, or abandoned */
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_OK);
    assert_false(pool_has(r, derived));
}

TEST_IN(setup, teardown, a_cache_of_the_archive_archives_what_has_to_go)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    uint64_t size;
    use_archive(r);
    r->l4.mode = HL_API_ARCHIVE_MODE_WRITE_BEHIND;
    fill_pool(r);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_OK);
    for (uint64_t i = 0; i < UNITS; i++) {
        const struct hl_id id = {7, i};
        assert_true(pool_has(r, id) || l4_has(&r->d, id, &size)); /* none is lost */
    }
}

TEST_IN(setup, teardown, more_than_the_pool_is_not_waited_for)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    use_archive(r);
    const struct l4_want most_of_it = {.near = -1, .size = CAPACITY - HL_POOL_UNIT};
    const struct l4_want more = {.near = -1, .size = CAPACITY + 1};
    const struct l4_want most = {.near = -1, .size = UINT64_MAX};
    const struct hl_id id = fill_unit(r, 0);
    assert_int_equal(l4_store_now(&r->d, id), HL_OK);
    assert_int_not_equal(l4_alloc(&r->d, &more, &x), HL_OK);
    assert_int_not_equal(l4_alloc(&r->d, &most, &x), HL_OK);
    assert_true(pool_has(r, id)); /* nor is anything evicted */
    assert_true(l4_makes_room(&r->d, CAPACITY));
    assert_false(l4_makes_room(&r->d, CAPACITY + 1)); /* shards that can't all stay */
    r->l4.mode = HL_API_ARCHIVE_MODE_WRITE_BEHIND;
    assert_true(l4_makes_room(&r->d, CAPACITY + 1));
    assert_int_equal(l4_alloc(&r->d, &most_of_it, &x), HL_OK);
}

TEST_IN(setup, teardown, nobody_waits_for_room_that_nobody_wants)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    atomic_bool cancel = true;
    const struct l4_want want = {.near = -1, .size = 1, .cancel = &cancel};
    use_archive(r);
    fill_pool(r);
    assert_int_equal(l4_store_now(&r->d, (struct hl_id){7, 0}), HL_OK);
    assert_int_equal(l4_alloc(&r->d, &want, &x), HL_ECANCELED);
    atomic_store(&r->d.stopping, true);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ECANCELED);
    assert_true(pool_has(r, (struct hl_id){7, 0})); /* nothing was evicted for it */
}

/* The pool is full, and everything in it is archived. */
static void fill_archived(struct rig *r)
{
    use_archive(r);
    fill_pool(r);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_int_equal(l4_store_now(&r->d, (struct hl_id){7, i}), HL_OK);
}

static hl_status order(struct rig *r, uint64_t first, uint64_t second, uint64_t ttl_ms)
{
    const struct hl_id_text a = hl_id_format((struct hl_id){7, first}),
                            b = hl_id_format((struct hl_id){7, second});
    const char *ids[] = {a.s, b.s};
    return l4_order_give(&r->d, &(struct hl_api_text_list){ids, 2}, ttl_ms);
}

static void expect_leaves(struct rig *r, uint64_t number)
{
    struct hl_pool_extent x;
    assert_true(pool_has(r, (struct hl_id){7, number}));
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_OK);
    assert_false(pool_has(r, (struct hl_id){7, number}));
}

static void touch(struct rig *r, uint64_t number)
{
    struct hl_pool_ref ref;
    assert_int_equal(hl_pool_find(r->d.pool, (struct hl_id){7, number}, &ref), HL_OK);
    hl_pool_touch(r->d.pool, &ref);
}

TEST_IN(setup, teardown, what_is_named_leaves_first_and_then_what_was_used_longest_ago)
{
    struct rig *r = *state;
    fill_archived(r);
    touch(r, 3);
    touch(r, 0);
    assert_int_equal(order(r, 2, 0, HOUR_MS), HL_OK);
    expect_leaves(r, 2);
    expect_leaves(r, 0); /* although it was used last */
    expect_leaves(r, 1); /* never */
    expect_leaves(r, 3);
    assert_int_equal(r->l4.evicted_ordered, 2);
    assert_int_equal(r->l4.evicted_unused, 2);
}

TEST_IN(setup, teardown, an_order_that_is_not_renewed_ends)
{
    struct rig *r = *state;
    fill_archived(r);
    touch(r, 2);
    assert_int_equal(order(r, 2, 1, 0), HL_OK);
    expect_leaves(r, 0);
    assert_int_equal(r->l4.evicted_ordered, 0);
    assert_int_equal(order(r, 2, 1, HOUR_MS), HL_OK);
    assert_int_equal(order(r, 3, 1, HOUR_MS), HL_OK); /* it replaces the previous order */
    expect_leaves(r, 3);
}

TEST_IN(setup, teardown, what_was_used_since_it_was_named_does_not_leave_first)
{
    struct rig *r = *state;
    fill_archived(r);
    assert_int_equal(order(r, 2, 1, HOUR_MS), HL_OK);
    touch(r, 2);
    expect_leaves(r, 1);
}

TEST_IN(setup, teardown, nothing_leaves_by_an_order_that_may_not_leave)
{
    struct rig *r = *state;
    const char *bad[] = {"no id"};
    use_archive(r);
    fill_pool(r);
    assert_int_equal(l4_store_now(&r->d, (struct hl_id){7, 1}), HL_OK);
    assert_int_equal(order(r, 0, 3, HOUR_MS), HL_OK); /* neither is archived */
    assert_int_equal(l4_order_give(&r->d, &(struct hl_api_text_list){bad, 1}, HOUR_MS), HL_EINVAL);
    expect_leaves(r, 1);
}

TEST_IN(setup, teardown, a_damaged_copy_counts_as_absent)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    uint64_t size;
    use_archive(r);
    fill_pool(r);
    const struct hl_id id = {7, 0};
    assert_false(l4_has(&r->d, id, &size));
    assert_int_equal(l4_store_now(&r->d, id), HL_OK);
    assert_true(l4_has(&r->d, id, &size));
    l4_bad_mark(&r->d, id);
    l4_bad_mark(&r->d, id);
    assert_false(l4_has(&r->d, id, &size));
    assert_false(l4_bad_has(&r->d, (struct hl_id){7, 1}));
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ENOSPC); /* the pool's copy is the only one */
    assert_true(pool_has(r, id));
    l4_bad_clear(&r->d, id);
    assert_true(l4_has(&r->d, id, &size));
}

TEST_IN(setup, teardown, a_damaged_copy_is_replaced_by_the_pool_s)
{
    struct rig *r = *state;
    uint64_t size;
    use_archive(r);
    const struct hl_id id = fill_unit(r, 0);
    assert_int_equal(l4_store_now(&r->d, id), HL_OK);
    l4_bad_mark(&r->d, id);
    assert_int_equal(l4_store_now(&r->d, id), HL_OK);
    assert_true(l4_has(&r->d, id, &size));
    assert_int_equal(hl_archive_verify(r->archive, id), HL_OK);
}

TEST_IN(setup, teardown, what_is_discarded_is_nowhere)
{
    struct rig *r = *state;
    uint64_t size;
    use_archive(r);
    const struct hl_id both = fill_unit(r, 0), pool_only = fill_unit(r, 1);
    assert_int_equal(l4_store_now(&r->d, both), HL_OK);
    l4_bad_mark(&r->d, both);
    l4_discard(&r->d, both);
    l4_discard(&r->d, pool_only);
    l4_discard(&r->d, (struct hl_id){9, 9}); /* fine */
    assert_false(pool_has(r, both));
    assert_false(pool_has(r, pool_only));
    assert_false(l4_bad_has(&r->d, both));
    assert_int_equal(hl_archive_size(r->archive, both, &size), HL_ENOENT);
}

TEST_IN(setup, teardown, a_shard_of_neither_is_known_to_be_nowhere)
{
    struct rig *r = *state;
    struct hl_archive *a = NULL;
    uint64_t size;
    const struct hl_id id = {9, 9};
    assert_int_equal(l4_knows(&r->d, id), HL_OK);
    assert_int_equal(l4_need(&r->d, &a), HL_EUNSUPPORTED);
    assert_null(a);
    use_archive(r);
    assert_int_equal(l4_knows(&r->d, id), HL_OK);
    assert_int_equal(l4_need(&r->d, &a), HL_OK);
    assert_ptr_equal(a, r->archive);
    assert_false(l4_has(&r->d, id, &size));
    assert_int_equal(l4_store_now(&r->d, id), HL_ENOENT);
}

TEST_IN(setup, teardown, calls_that_take_shards_out_name_the_pool_s_cluster)
{
    struct rig *r = *state;
    const struct hl_id_text own = hl_id_format(us), other = hl_id_format(them);
    assert_int_equal(claim_allows(&r->d, ""), HL_OK);
    hl_pool_claim(r->d.pool, &(struct hl_pool_claim){us, 1});
    assert_int_equal(claim_allows(&r->d, ""), HL_EPERM);
    assert_int_equal(claim_allows(&r->d, other.s), HL_EPERM);
    assert_int_equal(claim_allows(&r->d, own.s), HL_OK);
    assert_int_equal(claim_allows_import(&r->d, ""), HL_OK); /* adds to it */
    assert_int_equal(claim_allows_import(&r->d, other.s), HL_EPERM);
}

TEST_IN(setup, teardown, the_archive_s_owner_has_to_agree)
{
    struct rig *r = *state;
    const struct hl_id_text own = hl_id_format(us);
    hl_pool_claim(r->d.pool, &(struct hl_pool_claim){us, 1});
    assert_int_equal(claim_allows_archive(&r->d, own.s), HL_OK); /* there is no claim */
    assert_int_equal(claim_allows_archive(&r->d, ""), HL_EPERM);
    use_archive(r);
    assert_int_equal(claim_allows_archive(&r->d, own.s), HL_OK); /* claimed by no cluster */
    const struct hl_archive_claim theirs = {.cluster = them, .revision = 1};
    assert_int_equal(hl_archive_claim(r->archive, &theirs), HL_OK);
    assert_int_equal(claim_allows_archive(&r->d, own.s), HL_EPERM);
    assert_non_null(strstr(hl_error_text(), "archive"));
}

TEST_IN(setup, teardown, an_archive_of_another_cluster_gets_no_shard)
{
    struct rig *r = *state;
    struct hl_archive_claim now;
    uint64_t size;
    use_archive(r);
    const struct hl_id one = fill_unit(r, 0), two = fill_unit(r, 1);
    hl_pool_claim(r->d.pool, &(struct hl_pool_claim){us, 5});
    assert_int_equal(l4_store_now(&r->d, one), HL_OK); /* it was empty: now it is claimed */
    hl_archive_claimed(r->archive, &now);
    assert_true(hl_id_equal(now.cluster, us));
    assert_int_equal(now.revision, 5);
    hl_pool_claim(r->d.pool, &(struct hl_pool_claim){them, 9});
    assert_int_equal(l4_store_now(&r->d, two), HL_EPERM);
    assert_false(l4_has(&r->d, two, &size));
}

/* ---- orders that are stopped ----------------------------------------------------------------- */

/* Blocks the only worker until released. */
struct plug {
    struct work work;
    atomic_bool runs, go;
};

static void plug_run(struct work *w)
{
    struct plug *p = (struct plug *)w;
    atomic_store(&p->runs, true);
    while (!atomic_load(&p->go))
        usleep(100);
}

static void plug_done(struct work *w)
{
    (void)w;
}

static void plug_in(struct plug *p, struct workers *workers)
{
    *p = (struct plug){.work = {.run = plug_run, .done = plug_done}};
    workers_add(workers, &p->work);
    while (!atomic_load(&p->runs))
        usleep(100);
}

#define OPEN 1 /* the call has not ended */

struct askers {
    struct hl_loop *loop;
    unsigned open;
    int st[4];
};

struct asker {
    struct askers *all;
    int number;
};

static void on_answer(void *arg, hl_status st, const char *text)
{
    struct asker *a = arg;
    (void)text;
    a->all->st[a->number] = st;
    if (--a->all->open == 0)
        hl_loop_stop(a->all->loop);
}

static void askers_start(struct rig *r, struct askers *all, unsigned open)
{
    use_archive(r);
    assert_int_equal(hl_loop_create(&r->d.loop), HL_OK);
    assert_int_equal(workers_start(r->d.loop, 1, false, &r->l4.loads), HL_OK);
    assert_int_equal(workers_start(r->d.loop, 1, true, &r->l4.fetches), HL_OK);
    assert_int_equal(workers_start(r->d.loop, 1, true, &r->l4.stores), HL_OK);
    *all = (struct askers){.loop = r->d.loop, .open = open, .st = {OPEN, OPEN, OPEN, OPEN}};
}

static void askers_end(struct rig *r)
{
    workers_stop(r->l4.fetches);
    workers_stop(r->l4.loads);
    workers_stop(r->l4.stores);
    hl_loop_destroy(r->d.loop);
}

/* Only in the archive. */
static struct hl_id archived_alone(struct rig *r, uint64_t number)
{
    struct hl_id id = fill_unit(r, number);
    struct hl_pool_ref ref;
    assert_int_equal(l4_store_now(&r->d, id), HL_OK);
    assert_int_equal(hl_pool_find(r->d.pool, id, &ref), HL_OK);
    assert_true(hl_pool_evict_one(r->d.pool, &ref));
    return id;
}

TEST_IN(setup, teardown, a_load_that_nobody_else_waits_for_is_stopped)
{
    static const struct hl_id order = {5, 5}, other = {6, 6};
    struct rig *r = *state;
    struct askers all;
    struct plug plug;
    askers_start(r, &all, 4);
    struct hl_id alone = archived_alone(r, 1), shared = archived_alone(r, 2);
    struct asker asks[] = {{&all, 0}, {&all, 1}, {&all, 2}, {&all, 3}};
    plug_in(&plug, r->l4.fetches);
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = alone, .order = order}, on_answer,
           &asks[0]);
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = shared, .order = order}, on_answer,
           &asks[1]);
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = shared}, on_answer, &asks[2]);
    assert_int_equal(l4_stop_order(&r->d, other), 0);
    assert_int_equal(l4_stop_order(&r->d, order), 1);
    assert_int_equal(l4_stop_order(&r->d, order), 0); /* it is stopped already */
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = alone, .order = other}, on_answer,
           &asks[3]); /* too late */
    atomic_store(&plug.go, true);
    assert_int_equal(hl_loop_run(r->d.loop), HL_OK);
    assert_int_equal(all.st[0], HL_ECANCELED);
    assert_int_equal(all.st[1], HL_OK); /* others waited for it */
    assert_int_equal(all.st[2], HL_OK);
    assert_int_equal(all.st[3], HL_OK); /* loaded again */
    assert_true(pool_has(r, alone) && pool_has(r, shared));
    askers_end(r);
}

TEST_IN(setup, teardown, a_store_that_is_stopped_leaves_nothing)
{
    static const struct hl_id order = {5, 5};
    struct rig *r = *state;
    struct askers all;
    struct plug plug;
    uint64_t size;
    askers_start(r, &all, 1);
    struct hl_id id = fill_unit(r, 1);
    struct asker ask = {&all, 0};
    plug_in(&plug, r->l4.stores);
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_STORE, .id = id, .order = order}, on_answer, &ask);
    assert_int_equal(l4_stop_order(&r->d, order), 1);
    atomic_store(&plug.go, true);
    assert_int_equal(hl_loop_run(r->d.loop), HL_OK);
    assert_int_equal(all.st[0], HL_ECANCELED);
    assert_false(l4_has(&r->d, id, &size));
    askers_end(r);
}

TEST_IN(setup, teardown, a_reader_does_not_wait_behind_what_moves_fetch)
{
    static const struct hl_id order = {5, 5};
    struct rig *r = *state;
    struct askers all;
    struct plug plug;
    askers_start(r, &all, 2);
    struct hl_id id = archived_alone(r, 1);
    struct asker asks[] = {{&all, 0}, {&all, 1}};
    plug_in(&plug, r->l4.fetches); /* and stays there */
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = id, .order = order}, on_answer,
           &asks[0]);
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = id}, on_answer, &asks[1]);
    assert_int_equal(hl_loop_run(r->d.loop), HL_OK);
    assert_int_equal(all.st[0], HL_OK);
    assert_int_equal(all.st[1], HL_OK);
    atomic_store(&plug.go, true);
    askers_end(r);
}

static struct plug held; /* blocks the reader's worker */

/* Then releases the reader. */
static void on_refused(void *arg, hl_status st, const char *text)
{
    atomic_store(&held.go, true);
    on_answer(arg, st, text);
}

/* Without a waiting caller. */
static const struct l4_asked ahead = {.kind = L4_LOAD, .order = {5, 5}, .gives_way = true};

static void ask_ahead(struct rig *r, struct hl_id id, l4_done done, struct asker *a)
{
    struct l4_asked what = ahead;
    what.id = id;
    l4_ask(&r->d, &what, done, a);
}

TEST_IN(setup, teardown, a_load_that_gives_way_ends_when_another_one_begins)
{
    struct rig *r = *state;
    struct askers all;
    struct plug fetches;
    askers_start(r, &all, 3);
    struct hl_id id = archived_alone(r, 1), read = archived_alone(r, 2);
    struct asker asks[] = {{&all, 0}, {&all, 1}, {&all, 2}};
    plug_in(&fetches, r->l4.fetches);
    plug_in(&held, r->l4.loads);
    ask_ahead(r, id, on_refused, &asks[0]);
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = read}, on_answer, &asks[1]);
    ask_ahead(r, id, on_answer, &asks[2]); /* none begins, either */
    atomic_store(&fetches.go, true);
    assert_int_equal(hl_loop_run(r->d.loop), HL_OK);
    assert_int_equal(all.st[0], HL_EBUSY);
    assert_int_equal(all.st[1], HL_OK);
    assert_int_equal(all.st[2], HL_EBUSY);
    assert_true(pool_has(r, read) && !pool_has(r, id));
    askers_end(r);
}

TEST_IN(setup, teardown, a_load_that_gives_way_goes_on_for_who_joins_it)
{
    struct rig *r = *state;
    struct askers all;
    struct plug fetches;
    askers_start(r, &all, 3);
    struct hl_id id = archived_alone(r, 1), read = archived_alone(r, 2);
    struct asker asks[] = {{&all, 0}, {&all, 1}, {&all, 2}};
    plug_in(&fetches, r->l4.fetches);
    ask_ahead(r, id, on_answer, &asks[0]);
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = id}, on_answer, &asks[1]);
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = read}, on_answer, &asks[2]);
    assert_int_equal(hl_loop_run(r->d.loop), HL_OK);
    for (int i = 0; i < 3; i++)
        assert_int_equal(all.st[i], HL_OK);
    atomic_store(&fetches.go, true);
    askers_end(r);
}

/* One shard is only in the archive; the pool is full of others that could be evicted. */
static struct hl_id archived_beside_full_pool(struct rig *r)
{
    struct hl_id id = archived_alone(r, 100);
    struct hl_pool_info info;
    do { /* its bytes are in quarantine for a moment */
        usleep(100);
        hl_pool_info(r->d.pool, &info);
    } while (info.quarantined > 0);
    fill_pool(r);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_int_equal(l4_store_now(&r->d, (struct hl_id){7, i}), HL_OK);
    return id;
}

TEST_IN(setup, teardown, nothing_leaves_the_pool_for_a_load_that_gives_way)
{
    struct rig *r = *state;
    struct askers all;
    askers_start(r, &all, 1);
    struct hl_id id = archived_beside_full_pool(r);
    struct asker ask = {&all, 0};
    ask_ahead(r, id, on_answer, &ask);
    assert_int_equal(hl_loop_run(r->d.loop), HL_OK);
    assert_int_equal(all.st[0], HL_ENOSPC);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_true(pool_has(r, (struct hl_id){7, i}));
    askers_end(r);
}

TEST_IN(setup, teardown, room_is_made_for_who_joins_a_load_that_gives_way)
{
    struct rig *r = *state;
    struct askers all;
    struct plug fetches;
    askers_start(r, &all, 2);
    struct hl_id id = archived_beside_full_pool(r);
    struct asker asks[] = {{&all, 0}, {&all, 1}};
    plug_in(&fetches, r->l4.fetches);
    ask_ahead(r, id, on_answer, &asks[0]);
    l4_ask(&r->d, &(struct l4_asked){.kind = L4_LOAD, .id = id}, on_answer, &asks[1]);
    assert_int_equal(hl_loop_run(r->d.loop), HL_OK);
    assert_int_equal(all.st[0], HL_ENOSPC);
    assert_int_equal(all.st[1], HL_OK);
    assert_true(pool_has(r, id));
    atomic_store(&fetches.go, true);
    askers_end(r);
}
