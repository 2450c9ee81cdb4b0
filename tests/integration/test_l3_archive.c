/* The real helios-l3d with an archive beneath its pool: what is not in memory is loaded from
 * there. */
#include "support/test.h"

#include "base/clock.h"
#include "integration/l3_archive_world.h"

/* ---- methods --------------------------------------------------------------------------------- */

TEST(an_evicted_shard_is_read_again_on_every_way)
{
    static const char *const ways[] = {"shm", "net"};
    struct place p;
    begin(&p, "64MiB", "manual");
    struct shard s = new_shard(&p, 3 * MIB + 17, 5);
    assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 0); /* not archived: stays */
    assert_int_equal(ask(&p, "evict", ids(&s, 1), "kept"), 1);
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "bytes"), s.size); /* already there: fine */
    assert_int_equal(l4_number(&p, "usedBytes"), s.size);
    assert_int_equal(l4_number(&p, "shards"), 1);
    for (size_t i = 0; i < 2; i++) {
        helios_client *c = world_client(&p.w, ways[i], MS, 0);
        helios_id id = {s.id.hi, s.id.lo};
        const void *data = NULL;
        size_t size = 0;
        uint64_t found = 0;
        assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 1);
        assert_int_equal(pool_number(&p, "shards"), 0);
        assert_read(c, &s);
        assert_int_equal(pool_number(&p, "shards"), 1); /* in memory again */
        assert_int_equal(ask(&p, "evict", ids(&s, 1), "bytes"), s.size);
        if (helios_map(c, id, &data, &size) != HELIOS_OK)
            fail_msg("%s", helios_last_error());
        assert_int_equal(size, s.size);
        assert_memory_equal(data, s.bytes, s.size);
        /* pinned shards stay */
        assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), ways[i][0] == 'n');
        assert_int_equal(helios_unmap(c, data), HELIOS_OK);
        (void)ask(&p, "evict", ids(&s, 1), "evicted");
        assert_int_equal(helios_find(c, id, &found, NULL), HELIOS_OK);
        assert_int_equal(found, s.size);
        helios_close(c);
        assert_exact(&p);
    }
    /* on each path, once for a copy, once for a view, once for a lookup */
    assert_metric(&p, "\nhelios_path_total{op=\"write\",path=\"archive-store\","
                      "reason=\"archive-in\",result=\"ok\"} 1\n");
    assert_metric(&p, "\nhelios_path_total{op=\"read\",path=\"archive-load\","
                      "reason=\"archive-out\",result=\"ok\"} 6\n");
    free(s.bytes);
    end(&p);
}

TEST(what_is_in_neither_is_not_found_and_what_is_no_shard_not_archived)
{
    struct place p;
    json_t *r = NULL;
    begin(&p, "16MiB", "manual");
    struct shard s = {.id = id_of(77), .bytes = calloc(1, 100), .size = 100};
    helios_client *c = world_client(&p.w, "shm", MS, 0);
    helios_id id = {s.id.hi, s.id.lo};
    const void *data;
    assert_int_equal(helios_get(c, id, s.bytes, 100), HELIOS_ENOENT);
    assert_non_null(strstr(helios_last_error(), hl_id_format(s.id).s));
    assert_int_equal(helios_map(c, id, &data, NULL), HELIOS_ENOENT);
    assert_int_equal(call(&p, "archive", ids(&s, 1), &r), HL_ENOENT);
    s.crc = hl_crc32(0, s.bytes, s.size);
    put_shard(&p, &s); /* a hundred zeros */
    assert_int_equal(call(&p, "archive", ids(&s, 1), &r), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), hl_id_format(s.id).s));
    assert_int_equal(l4_number(&p, "usedBytes"), 0);
    assert_int_equal(ask(&p, "dropArchived", ids(&s, 1), "dropped"), 0);
    assert_int_equal(call(&p, "archive", json_pack("{s:[s]}", "ids", "nonsense"), &r), HL_EINVAL);
    helios_close(c);
    free(s.bytes);
    end(&p);
}

TEST(a_shard_whose_archived_file_is_gone_stays_in_the_pool_and_is_archived_again)
{
    struct place p;
    char path[256];
    begin(&p, "64MiB", "manual");
    struct shard s = new_shard(&p, 3 * MIB, 5);
    archived_path(&p, &s, path, sizeof(path));
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 0);
    assert_int_equal(pool_number(&p, "shards"), 1);
    assert_int_equal(l4_number(&p, "shards"), 0);
    assert_metric(&p, "\nhelios_fault_total{cause=\"missing\",path=\"archive\"} 1\n");
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    assert_int_equal(access(path, F_OK), 0);
    assert_int_equal(unlink(path), 0);
    /* each list of the archive, as a sweep asks for it, has all files looked at */
    for (uint64_t end = hl_now_ns() + TEST_PATIENCE_NS; l4_number(&p, "shards") != 0;) {
        json_decref(must(&p, "listArchived", NULL));
        assert_true(hl_now_ns() < end);
    }
    assert_metric(&p, "\nhelios_fault_total{cause=\"missing\",path=\"archive\"} 2\n");
    assert_metric(&p, "\nhelios_archive_up 1\n");
    free(s.bytes);
    end(&p);
}

TEST(an_archive_that_is_away_is_not_empty)
{
    struct place p;
    char aside[160];
    begin(&p, "64MiB", "manual");
    struct shard s = new_shard(&p, 3 * MIB, 5);
    snprintf(aside, sizeof(aside), "%s.aside", p.archive);
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    assert_int_equal(rename(p.archive, aside), 0);
    assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 0);
    assert_int_equal(pool_number(&p, "shards"), 1);
    assert_int_equal(l4_number(&p, "shards"), 1);
    assert_metric(&p, "\nhelios_archive_up 0\n");
    assert_int_equal(rename(aside, p.archive), 0);
    for (uint64_t end = hl_now_ns() + TEST_PATIENCE_NS;
         ask(&p, "evict", ids(&s, 1), "evicted") != 1;)
        assert_true(hl_now_ns() < end);
    assert_metric(&p, "\nhelios_archive_up 1\n");
    free(s.bytes);
    end(&p);
}

TEST(what_was_archived_is_there_after_a_reboot)
{
    struct place p;
    struct shard s[5];
    begin(&p, "64MiB", "manual");
    for (unsigned i = 0; i < 5; i++)
        s[i] = new_shard(&p, (i + 1) * 700001, i);
    assert_int_equal(ask(&p, "archive", ids(s, 4), "archived"), 4);
    world_kill(&p.w);
    assert_int_equal(unlink(p.w.pool), 0);
    world_launch(&p.w);
    world_wait(&p.w);
    connect_peer(&p);
    assert_int_equal(pool_number(&p, "shards"), 0);
    assert_int_equal(l4_number(&p, "shards"), 4);
    size_t listed = 0;
    int64_t cursor = 0;
    do {
        json_t *r = must(&p, "listArchived",
                         json_pack("{s:I s:i}", "cursor", (json_int_t)cursor, "limit", 3));
        listed += json_array_size(hl_json_list(r, "extents"));
        cursor = hl_json_int(r, "next", 0);
        json_decref(r);
    } while (cursor != 0);
    assert_int_equal(listed, 4);
    helios_client *c = world_client(&p.w, "shm", MS, 0);
    char byte;
    for (unsigned i = 0; i < 4; i++)
        assert_read(c, &s[i]);
    assert_int_equal(helios_get(c, (helios_id){s[4].id.hi, s[4].id.lo}, &byte, 1), HELIOS_ENOENT);
    assert_int_equal(pool_number(&p, "shards"), 4);
    assert_exact(&p);
    assert_int_equal(ask(&p, "dropArchived", ids(s, 5), "dropped"), 4);
    assert_int_equal(l4_number(&p, "usedBytes"), 0);
    helios_close(c);
    for (unsigned i = 0; i < 5; i++)
        free(s[i].bytes);
    end(&p);
}

/* ---- many readers ---------------------------------------------------------------------------- */

#define READERS 8

struct reader {
    const struct place *p;
    const struct shard *s;
    size_t count;
    unsigned seed;
    int failures;
};

static void *reader_main(void *arg)
{
    struct reader *r = arg;
    helios_client *c = NULL;
    helios_options o = {HELIOS_OPTIONS_INIT, .controller = "", .l3 = r->p->w.address,
                        .path = r->seed % 2 ? "shm" : "net", .timeout_ms = 4 * MS};
    if (helios_open(&o, &c) != HELIOS_OK) {
        r->failures++;
        return NULL;
    }
    for (size_t i = 0; i < r->count; i++) {
        const struct shard *s = &r->s[(i * (r->seed + 1) + r->seed) % r->count];
        char *back = malloc(s->size);
        helios_id id = {s->id.hi, s->id.lo};
        if (helios_get(c, id, back, s->size) != HELIOS_OK || memcmp(back, s->bytes, s->size) != 0) {
            print_error("%s\n", helios_last_error());
            r->failures++;
        }
        free(back);
    }
    helios_close(c);
    return NULL;
}

static void read_by_all(struct place *p, const struct shard *s, size_t count)
{
    pthread_t threads[READERS];
    struct reader r[READERS];
    int failures = 0;
    for (unsigned i = 0; i < READERS; i++) {
        r[i] = (struct reader){p, s, count, i, 0};
        assert_int_equal(pthread_create(&threads[i], NULL, reader_main, &r[i]), 0);
    }
    for (unsigned i = 0; i < READERS; i++) {
        pthread_join(threads[i], NULL);
        failures += r[i].failures;
    }
    assert_int_equal(failures, 0);
}

TEST(readers_of_one_missing_shard_share_its_load)
{
    struct place p;
    begin(&p, "64MiB", "manual");
    struct shard s = new_shard(&p, 20 * MIB, 1);
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    for (int round = 0; round < 3; round++) {
        assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 1);
        read_by_all(&p, &s, 1);
        assert_int_equal(pool_number(&p, "shards"), 1);
        assert_exact(&p);
    }
    free(s.bytes);
    end(&p);
}

TEST(a_pool_smaller_than_the_models_serves_them_all)
{
    struct place p;
    struct shard s[12];
    begin(&p, "16MiB", "write-behind");
    for (unsigned i = 0; i < 12;
         i++) /* 36 MiB into 16: what does not fit is archived to make room */
        s[i] = new_shard(&p, 3 * MIB + i, i);
    assert_true(pool_number(&p, "usedBytes") <= pool_number(&p, "capacityBytes"));
    assert_true(l4_number(&p, "shards") >= 7);
    read_by_all(&p, s, 12);
    assert_exact(&p);
    for (unsigned i = 0; i < 12; i++)
        free(s[i].bytes);
    end(&p);
}

/* The network's thread does not wait: the caller does. */
static hl_status put_waiting(struct hl_net_client *net, const struct shard *s)
{
    struct hl_id id;
    hl_status st = HL_EBUSY;
    for (int i = 0; i < MS / 10 && st == HL_EBUSY; i++) {
        st = hl_net_put(net, s->bytes, s->size, s->crc, MS, &id);
        nap_ms(10);
    }
    return st;
}

TEST(a_put_over_the_network_waits_for_room)
{
    struct place p;
    struct hl_net_client *net = NULL;
    begin(&p, "16MiB", "manual");
    struct shard s[2] = {new_shard(&p, 7 * MIB, 1), new_shard(&p, 7 * MIB, 2)};
    struct shard more = shard_make(id_of(9), 6 * MIB, 3, 1);
    json_t *r = must(&p, "poolInfo", NULL);
    assert_int_equal(
        hl_net_connect(hl_json_str(json_object_get(r, "pool"), "dataAddress", ""), MS, &net),
        HL_OK);
    json_decref(r);
    assert_int_equal(put_waiting(net, &more), HL_ENOSPC);
    assert_int_equal(ask(&p, "archive", ids(s, 2), "archived"), 2);
    assert_int_equal(put_waiting(net, &more), HL_OK);
    assert_exact(&p);
    hl_net_close(net);
    read_by_all(&p, s, 2);
    for (int i = 0; i < 2; i++)
        free(s[i].bytes);
    free(more.bytes);
    end(&p);
}

TEST(a_full_pool_without_archived_shards_is_an_ordinary_error)
{
    struct place p;
    struct hl_l3_client *c = NULL;
    struct hl_l3_staging staging = {0};
    struct hl_pool_ref ref;
    begin(&p, "16MiB", "manual");
    struct shard a = new_shard(&p, 7 * MIB, 1), b = new_shard(&p, 7 * MIB, 2);
    assert_int_equal(hl_l3_connect(p.w.socket, MS, &c), HL_OK);
    assert_int_equal(hl_l3_staging_open(4 * MIB, &staging), HL_OK);
    assert_int_equal(hl_l3_put(c, &staging, 4 * MIB, MS, &ref), HL_ENOSPC);
    assert_exact(&p);
    /* for eviction, a pinned shard is like one that is not archived */
    assert_int_equal(ask(&p, "archive", ids(&a, 1), "archived"), 1);
    assert_int_equal(hl_l3_pin(c, a.id, 0, MS, &ref), HL_OK);
    assert_int_equal(hl_l3_put(c, &staging, 4 * MIB, MS, &ref), HL_ENOSPC);
    hl_l3_close(c);
    assert_int_equal(hl_l3_connect(p.w.socket, MS, &c), HL_OK);
    assert_int_equal(hl_l3_put(c, &staging, 4 * MIB, MS, &ref), HL_OK);
    assert_exact(&p);
    assert_int_equal(hl_l3_pin(c, b.id, 0, MS, &ref), HL_OK); /* never archived: still there */
    hl_l3_staging_close(&staging);
    hl_l3_close(c);
    free(a.bytes);
    free(b.bytes);
    end(&p);
    fault_shown("shm", "full", "refused-exact");
}

/* ---- faults ---------------------------------------------------------------------------------- */

TEST(a_load_that_fails_tells_everybody_and_leaves_nothing)
{
    struct place p;
    char path[256], back[16];
    begin(&p, "64MiB", "manual");
    struct shard s[2] = {new_shard(&p, 5 * MIB, 1), new_shard(&p, 5 * MIB, 2)};
    assert_int_equal(ask(&p, "archive", ids(s, 2), "archived"), 2);
    assert_int_equal(ask(&p, "evict", ids(s, 2), "evicted"), 2);
    archived_path(&p, &s[0], path, sizeof(path));
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "!", 1, 4 * MIB), 1);
    close(fd);
    archived_path(&p, &s[1], path, sizeof(path));
    assert_int_equal(truncate(path, 2 * MIB), 0);
    helios_client *c = world_client(&p.w, "shm", MS, 0);
    for (int i = 0; i < 2; i++) {
        helios_id id = {s[i].id.hi, s[i].id.lo};
        assert_int_equal(helios_get_range(c, id, 0, back, 16), HELIOS_ECORRUPT);
        assert_non_null(strstr(helios_last_error(), hl_id_format(s[i].id).s));
        assert_non_null(strstr(helios_last_error(), p.archive));
        free(s[i].bytes);
    }
    assert_int_equal(pool_number(&p, "usedBytes"), 0);
    helios_close(c);
    end(&p);
    fault_shown("archive-dir", "corrupt", "noticed-refused");
    fault_shown("archive-dir", "wrong-size", "noticed-refused");
}

TEST(a_daemon_killed_while_it_archives_leaves_whole_shards)
{
    struct place p;
    struct shard s[4];
    begin(&p, "128MiB", "manual");
    for (unsigned i = 0; i < 4; i++)
        s[i] = new_shard(&p, 20 * MIB, i);
    for (int round = 0; round < 4; round++) {
        json_t *params = ids(s, 4);
        (void)!rpc_json_call(p.peer, "archive", params, 5 + 20 * round,
                             NULL); /* the deadline passes */
        json_decref(params);
        world_kill(&p.w);
        world_launch(&p.w);
        world_wait(&p.w);
        connect_peer(&p);
        assert_int_equal(pool_number(&p, "shards"), 4);
    }
    assert_int_equal(ask(&p, "archive", ids(s, 4), "archived"), 4);
    assert_int_equal(ask(&p, "evict", ids(s, 4), "evicted"), 4);
    helios_client *c = world_client(&p.w, "shm", MS, 0);
    for (unsigned i = 0; i < 4; i++) {
        assert_read(c, &s[i]);
        free(s[i].bytes);
    }
    helios_close(c);
    end(&p);
    fault_shown("archive-dir", "kill", "no-half-exact");
}

/* ---- healing --------------------------------------------------------------------------------- */

int main(int argc, char **argv)
{
    hl_log_init("test", HL_LOG_ERROR);
    if (hl_rpc_create(&rpc) != HL_OK)
        return 1;
    int failed = tests_run(argc, argv);
    hl_rpc_destroy(rpc);
    return failed;
}
