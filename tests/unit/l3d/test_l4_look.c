/* What a full pool does before it trusts the archive: files that are taken away while the daemon
 * runs, one by one or as a whole, and callers that must not wait for the look. */
#include "support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "l3d/l4_private.h"
#include "os/file.h"
#include "os/loop.h"

#define UNITS   4u
#define HOUR_MS 3600000u

struct rig {
    struct hl_l3d d;
    struct l4 l4;
    struct hl_archive *archive;
    char dir[64], aside[80], url[80], pool[80];
};

static int setup(void **state)
{
    static struct rig r;
    memset(&r, 0, sizeof(r));
    snprintf(r.dir, sizeof(r.dir), "/tmp/helios-test-l4-look-%d-XXXXXX", (int)getpid());
    if (mkdtemp(r.dir) == NULL)
        return -1;
    snprintf(r.aside, sizeof(r.aside), "%s.aside", r.dir);
    snprintf(r.url, sizeof(r.url), "dir:%s", r.dir);
    snprintf(r.pool, sizeof(r.pool), "/dev/shm/helios-test-l4-look-%d", (int)getpid());
    r.d.l4 = &r.l4;
    r.l4.url = r.url;
    r.l4.opts = (struct l4_opts){.low_pct = 100, .load_timeout_ms = HOUR_MS};
    r.l4.mode = HL_API_ARCHIVE_MODE_MANUAL;
    const struct hl_pool_options pool = {
        .path = r.pool, .capacity = UNITS * HL_POOL_UNIT, .quarantine_ms = 1, .beat_ms = 1};
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
    l4_bad_fini(&r->d);
    hl_archive_close(r->archive);
    hl_pool_remove(r->d.pool);
    return hl_dir_remove(r->dir) == HL_OK && hl_dir_remove(r->aside) == HL_OK ? 0 : -1;
}

static struct hl_id id_of(uint64_t number)
{
    return (struct hl_id){7, number};
}

static void fill_unit(struct rig *r, uint64_t number)
{
    static const char header[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}";
    const uint64_t len = sizeof(header) - 1;
    struct hl_pool_extent x;
    assert_int_equal(hl_pool_alloc_at(r->d.pool, id_of(number), 8 + len + 8, -1, &x), HL_OK);
    memcpy(x.ptr, &len, 8);
    memcpy((char *)x.ptr + 8, header, len);
    memcpy((char *)x.ptr + 8 + len, &number, 8);
    uint32_t crc = hl_crc32(0, x.ptr, x.size);
    assert_int_equal(hl_pool_seal(r->d.pool, &x, crc, &crc, 1, NULL), HL_OK);
}

/* The pool is full, and everything in it is archived. */
static void fill_archived(struct rig *r)
{
    for (uint64_t i = 0; i < UNITS; i++) {
        fill_unit(r, i);
        assert_int_equal(l4_store_now(&r->d, id_of(i)), HL_OK);
    }
}

static void path_of(const struct rig *r, uint64_t number, char *out, size_t cap)
{
    struct hl_id_text id = hl_id_format(id_of(number));
    snprintf(out, cap, "%s/%.2s/%s.safetensors", r->dir, id.s, id.s);
}

static void take_away(const struct rig *r, uint64_t number)
{
    char path[200];
    path_of(r, number, path, sizeof(path));
    assert_int_equal(unlink(path), 0);
}

static bool file_is_there(const struct rig *r, uint64_t number)
{
    char path[200];
    path_of(r, number, path, sizeof(path));
    return access(path, F_OK) == 0;
}

static bool pool_has(struct rig *r, uint64_t number)
{
    struct hl_pool_ref ref;
    return hl_pool_find(r->d.pool, id_of(number), &ref) == HL_OK;
}

static bool archive_has(struct rig *r, uint64_t number)
{
    uint64_t size;
    return l4_has(&r->d, id_of(number), &size);
}

static const struct l4_want unit = {.near = -1, .size = 1};

TEST_IN(setup, teardown, the_only_copy_of_a_shard_whose_file_is_gone_stays_in_the_pool)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    fill_archived(r);
    for (uint64_t i = 0; i < UNITS; i++)
        if (i != 2)
            take_away(r, i);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_OK);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_int_equal(pool_has(r, i), i != 2);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ENOSPC);
    assert_false(archive_has(r, 0)); /* the index forgets what a look has missed */
    assert_false(l4_is_away(&r->d));
}

TEST_IN(setup, teardown, the_only_copy_of_a_shard_whose_file_has_another_size_stays)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    char path[200];
    fill_archived(r);
    for (uint64_t i = 0; i < UNITS; i++) {
        path_of(r, i, path, sizeof(path));
        assert_int_equal(truncate(path, 9), 0);
    }
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ENOSPC);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_true(pool_has(r, i) && l4_bad_has(&r->d, id_of(i)));
}

/* Its tensors have no checksums in the header: after a restart it could not be loaded. */
TEST_IN(setup, teardown, the_only_copy_of_a_shard_whose_file_has_lost_its_checksum_stays)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    char path[200];
    fill_archived(r);
    for (uint64_t i = 0; i < UNITS; i++) {
        path_of(r, i, path, sizeof(path));
        (void)!removexattr(path, "user.helios.crc32");
    }
    atomic_store(&r->l4.archive, NULL);
    hl_archive_close(r->archive);
    r->archive = NULL;
    assert_int_equal(hl_archive_open(&(struct hl_archive_options){.url = r->url}, &r->archive),
                     HL_OK);
    atomic_store(&r->l4.archive, r->archive);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ENOSPC);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_true(pool_has(r, i));
}

TEST_IN(setup, teardown, what_a_sweep_misses_is_archived_again)
{
    struct rig *r = *state;
    struct hl_archive_info info;
    fill_archived(r);
    take_away(r, 1);
    take_away(r, 3);
    l4_check_now(&r->d);
    assert_int_equal(r->l4.check.missing, 2);
    hl_archive_stat(r->archive, &info);
    assert_int_equal(info.count, 2);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_int_equal(archive_has(r, i), i % 2 == 0);
    assert_int_equal(l4_store_now(&r->d, id_of(1)), HL_OK);
    assert_true(file_is_there(r, 1));
    l4_check_now(&r->d);
    assert_int_equal(r->l4.check.missing, 0);
}

TEST_IN(setup, teardown, an_order_to_archive_is_not_met_by_a_file_that_is_gone)
{
    struct rig *r = *state;
    fill_archived(r);
    take_away(r, 0);
    assert_int_equal(l4_store_now(&r->d, id_of(0)), HL_OK);
    assert_true(file_is_there(r, 0));
}

TEST_IN(setup, teardown, a_load_that_finds_no_file_makes_the_index_forget_it)
{
    struct rig *r = *state;
    struct hl_pool_ref ref;
    fill_unit(r, 0);
    assert_int_equal(l4_store_now(&r->d, id_of(0)), HL_OK);
    assert_int_equal(hl_pool_find(r->d.pool, id_of(0), &ref), HL_OK);
    assert_true(hl_pool_evict_one(r->d.pool, &ref));
    take_away(r, 0);
    assert_int_equal(l4_load_now(&r->d, id_of(0)), HL_ENOENT);
    assert_false(archive_has(r, 0));
}

/* ---- the whole archive ----------------------------------------------------------------------- */

static void expect_away(struct rig *r)
{
    struct hl_pool_extent x;
    struct hl_archive_info info;
    l4_check_now(&r->d);
    assert_true(l4_is_away(&r->d));
    assert_int_equal(r->l4.check.missing, 0);
    atomic_store(&r->l4.look_ns, 0); /* do not spare the archive the next look */
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ENOSPC);
    assert_non_null(strstr(hl_error_text(), r->url));
    for (uint64_t i = 0; i < UNITS; i++)
        assert_true(pool_has(r, i) && archive_has(r, i));
    hl_archive_stat(r->archive, &info);
    assert_int_equal(info.count, UNITS);
    assert_int_equal(l4_store_now(&r->d, id_of(0)), HL_EUNAVAIL);
}

TEST_IN(setup, teardown, a_directory_that_is_not_mounted_any_more_is_not_an_empty_one)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    fill_archived(r);
    assert_int_equal(rename(r->dir, r->aside), 0);
    expect_away(r);
    assert_int_equal(mkdir(r->dir, 0700), 0); /* the mount point below it */
    expect_away(r);
    assert_int_equal(rmdir(r->dir), 0);
    assert_int_equal(rename(r->aside, r->dir), 0);
    l4_check_now(&r->d);
    assert_false(l4_is_away(&r->d));
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_OK);
}

TEST_IN(setup, teardown, a_directory_that_was_removed_is_away)
{
    struct rig *r = *state;
    uint32_t crc;
    fill_archived(r);
    assert_int_equal(hl_dir_remove(r->dir), HL_OK);
    assert_int_equal(l4_verify(&r->d, id_of(0), &crc), HL_EUNAVAIL); /* and not HL_ENOENT */
    expect_away(r);
}

TEST_IN(setup, teardown, an_archive_that_is_away_is_not_asked_for_every_shard)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    fill_archived(r);
    assert_int_equal(rename(r->dir, r->aside), 0);
    assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_ENOSPC);
    assert_true(l4_is_away(&r->d));
    assert_int_equal(rename(r->aside, r->dir), 0);
    assert_int_equal(l4_look(&r->d, id_of(0)), HL_EUNAVAIL); /* not yet */
    atomic_store(&r->l4.look_ns, 0);
    assert_int_equal(l4_look(&r->d, id_of(0)), HL_OK);
    assert_false(l4_is_away(&r->d));
}

TEST_IN(setup, teardown, the_owner_is_written_again)
{
    struct rig *r = *state;
    char command[120], path[120];
    const struct hl_archive_claim us = {.cluster = {1, 1}, .revision = 3};
    assert_int_equal(hl_archive_claim(r->archive, &us), HL_OK);
    fill_archived(r);
    snprintf(command, sizeof(command), "rm -rf '%s'/*", r->dir);
    assert_int_equal(system(command), 0);
    l4_check_now(&r->d);
    assert_int_equal(r->l4.check.missing, UNITS);
    snprintf(path, sizeof(path), "%s/helios-cluster.json", r->dir);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(l4_store_now(&r->d, id_of(0)), HL_OK);
    assert_true(file_is_there(r, 0));
}

/* Two daemons with one S3 prefix; the other one's cluster has claimed it. */
TEST_IN(setup, teardown, an_archive_that_another_cluster_has_claimed_is_left_alone)
{
    struct rig *r = *state;
    char path[120];
    const struct hl_archive_claim us = {.cluster = {1, 1}, .revision = 3};
    struct hl_archive_claim now;
    hl_pool_claim(r->d.pool, &(struct hl_pool_claim){us.cluster, us.revision});
    assert_int_equal(hl_archive_claim(r->archive, &us), HL_OK);
    fill_unit(r, 0);
    fill_unit(r, 1);
    assert_int_equal(l4_store_now(&r->d, id_of(0)), HL_OK);
    snprintf(path, sizeof(path), "%s/helios-cluster.json", r->dir);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "{\"cluster\": \"%s\", \"revision\": 1}\n", hl_id_format(id_of(9)).s);
    assert_int_equal(fclose(f), 0);
    l4_check_now(&r->d);
    hl_archive_claimed(r->archive, &now);
    assert_true(now.taken && hl_id_equal(now.cluster, id_of(9)));
    assert_int_equal(l4_store_now(&r->d, id_of(1)), HL_EPERM);
    assert_int_equal(claim_allows_archive(&r->d, hl_id_format(us.cluster).s), HL_EPERM);
    assert_false(l4_is_away(&r->d));
}

/* ---- callers that must not wait -------------------------------------------------------------- */

static void loop_start(struct rig *r)
{
    assert_int_equal(hl_loop_create(&r->d.loop), HL_OK);
    assert_int_equal(workers_start(r->d.loop, 1, false, &r->l4.loads), HL_OK);
}

static void loop_end(struct rig *r)
{
    workers_stop(r->l4.loads);
    hl_loop_destroy(r->d.loop);
}

/* Until the worker has looked for room; the answer after that. */
static hl_status try_until_looked(struct rig *r)
{
    const uint64_t end = hl_now_ns() + 30 * HL_NS_PER_S;
    struct hl_pool_extent x;
    hl_status first = l4_try_alloc(&r->d, &unit, &x);
    assert_int_equal(first, HL_EBUSY);
    while (r->l4.maker.running) {
        assert_true(hl_now_ns() < end);
        uv_run(hl_loop_uv(r->d.loop), UV_RUN_ONCE);
    }
    return l4_try_alloc(&r->d, &unit, &x);
}

TEST_IN(setup, teardown, who_can_not_wait_is_told_that_room_comes)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    loop_start(r);
    fill_archived(r);
    for (uint64_t i = 1; i < UNITS; i++)
        take_away(r, i);
    hl_status st = try_until_looked(r);
    assert_true(st == HL_OK || st == HL_EBUSY); /* the quarantine may not be over */
    for (uint64_t i = 0; i < UNITS; i++)
        assert_int_equal(pool_has(r, i), i != 0);
    if (st == HL_EBUSY)
        assert_int_equal(l4_alloc(&r->d, &unit, &x), HL_OK);
    l4_room_stop(&r->d);
    loop_end(r);
}

TEST_IN(setup, teardown, who_can_not_wait_is_told_that_there_is_no_room)
{
    struct rig *r = *state;
    loop_start(r);
    fill_archived(r);
    for (uint64_t i = 0; i < UNITS; i++)
        take_away(r, i);
    assert_int_equal(try_until_looked(r), HL_ENOSPC);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_true(pool_has(r, i));
    loop_end(r);
}

TEST_IN(setup, teardown, a_shard_used_just_now_stays)
{
    struct rig *r = *state;
    loop_start(r);
    r->l4.opts.hold_ms = HOUR_MS;
    fill_archived(r);
    for (uint64_t i = 0; i < UNITS; i++) {
        struct hl_pool_ref ref;
        assert_int_equal(hl_pool_find(r->d.pool, id_of(i), &ref), HL_OK);
        hl_pool_touch(r->d.pool, &ref);
    }
    assert_int_equal(try_until_looked(r), HL_EBUSY);
    for (uint64_t i = 0; i < UNITS; i++)
        assert_true(pool_has(r, i));
    l4_room_stop(&r->d);
    loop_end(r);
}

TEST_IN(setup, teardown, no_room_is_made_for_a_daemon_that_ends)
{
    struct rig *r = *state;
    struct hl_pool_extent x;
    loop_start(r);
    fill_archived(r);
    assert_int_equal(l4_try_alloc(&r->d, &unit, &x), HL_EBUSY);
    atomic_store(&r->d.stopping, true);
    l4_room_stop(&r->d);
    assert_int_not_equal(l4_try_alloc(&r->d, &unit, &x), HL_OK);
    assert_false(r->l4.maker.running); /* nothing is left behind on the loop */
    loop_end(r);
}
