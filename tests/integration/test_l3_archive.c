/* The real helios-l3d with an archive beneath its pool: what memory misses comes from there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>

#include "base/id.h"
#include "base/log.h"
#include "core/json.h"
#include "integration/client_world.h"
#include "integration/fake_node.h"
#include "mem/l3_client.h"
#include "net/net.h"
#include "os/file.h"
#include "os/loop.h"
#include "rpc/rpc.h"
#include "support/fault.h"
#include "unit/mem/archive_rig.h"

#define MS 20000

static struct hl_rpc *rpc;

struct place {
    struct world w;
    struct hl_rpc_peer *peer;
    char archive[128]; /* directory */
};

static void connect_peer(struct place *p)
{
    hl_rpc_peer_close(p->peer);
    assert_int_equal(hl_rpc_open(rpc, p->w.address, "L3", &p->peer), HL_OK);
}

/* In the environment, as `helios up` hands it on. */
static void begin(struct place *p, const char *size, const char *mode)
{
    *p = (struct place){0};
    snprintf(p->archive, sizeof(p->archive), "/tmp/helios-test-archive-%d", (int)getpid());
    assert_int_equal(hl_dir_remove(p->archive), HL_OK);
    char url[160];
    snprintf(url, sizeof(url), "dir:%s", p->archive);
    setenv("HELIOS_ARCHIVE_URL", url, 1);
    setenv("HELIOS_ARCHIVE_MODE", mode, 1);
    world_start(&p->w, size);
    connect_peer(p);
}

static void end(struct place *p)
{
    hl_rpc_peer_close(p->peer);
    world_end(&p->w);
    assert_int_equal(hl_dir_remove(p->archive), HL_OK);
    unsetenv("HELIOS_ARCHIVE_URL");
    unsetenv("HELIOS_ARCHIVE_MODE");
    unsetenv("HELIOS_ARCHIVE_LOAD_TIMEOUT");
}

static hl_status call(struct place *p, const char *method, json_t *params, json_t **result)
{
    hl_status st = hl_rpc_call(p->peer, method, params, MS, result);
    json_decref(params);
    return st;
}

static json_t *must(struct place *p, const char *method, json_t *params)
{
    json_t *result = NULL;
    if (call(p, method, params, &result) != HL_OK)
        fail_msg("%s: %s", method, hl_error_text());
    return result;
}

static json_t *ids(const struct shard *s, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_string(hl_id_format(s[i].id).s));
    return json_pack("{s:o}", "ids", list);
}

static int64_t ask(struct place *p, const char *method, json_t *params, const char *field)
{
    json_t *r = must(p, method, params);
    int64_t n = hl_json_int(r, field, -1);
    json_decref(r);
    return n;
}

static int64_t pool_number(struct place *p, const char *field)
{
    json_t *r = must(p, "poolInfo", NULL);
    int64_t n = hl_json_int(json_object_get(r, "pool"), field, -1);
    json_decref(r);
    return n;
}

static int64_t l4_number(struct place *p, const char *field)
{
    json_t *r = must(p, "poolInfo", NULL), *tier;
    int64_t n = -1;
    size_t i;
    json_array_foreach (hl_json_list(json_object_get(r, "pool"), "tiers"), i, tier) {
        if (strcmp(hl_json_str(tier, "tier", ""), "L4") == 0)
            n = hl_json_int(tier, field, -1);
    }
    json_decref(r);
    return n;
}

/* Puts the shard through the pool's socket, which names it. */
static void put_shard(struct place *p, struct shard *s)
{
    struct hl_l3_client *c = NULL;
    struct hl_l3_staging staging = {0};
    struct hl_pool_ref ref;
    assert_int_equal(hl_l3_connect(p->w.socket, MS, &c), HL_OK);
    assert_int_equal(hl_l3_staging_open(s->size, &staging), HL_OK);
    memcpy(staging.ptr, s->bytes, s->size);
    if (hl_l3_put(c, &staging, s->size, MS, &ref) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(ref.crc32, s->crc);
    s->id = ref.id;
    hl_l3_staging_close(&staging);
    hl_l3_close(c);
}

static struct shard new_shard(struct place *p, uint64_t data, unsigned seed)
{
    struct shard s = shard_make(id_of(1), data, seed, 1);
    put_shard(p, &s);
    return s;
}

static void assert_read(helios_client *c, const struct shard *s)
{
    char *back = malloc(s->size);
    helios_id id = {s->id.hi, s->id.lo};
    if (helios_get(c, id, back, s->size) != HELIOS_OK)
        fail_msg("%s", helios_last_error());
    assert_memory_equal(back, s->bytes, s->size);
    free(back);
}

/* The pool's units are those of its shards, to the byte. */
static void assert_exact(struct place *p)
{
    json_t *r = must(p, "inventory", NULL), *extent;
    int64_t units = 0;
    size_t i;
    json_array_foreach (hl_json_list(r, "extents"), i, extent) {
        units += (int64_t)hl_pool_units((uint64_t)hl_json_int(extent, "sizeBytes", 0));
    }
    assert_int_equal(pool_number(p, "shards"), json_array_size(hl_json_list(r, "extents")));
    assert_int_equal(pool_number(p, "usedBytes"), units * (int64_t)HL_POOL_UNIT);
    json_decref(r);
}

static void assert_metric(struct place *p, const char *line)
{
    json_t *r = must(p, "metrics", NULL);
    if (strstr(hl_json_str(r, "text", ""), line) == NULL)
        fail_msg("no line '%s' in %s", line, hl_json_str(r, "text", ""));
    json_decref(r);
}

/* ---- methods --------------------------------------------------------------------------------- */

static void an_evicted_shard_is_read_again_on_every_way(void **state)
{
    static const char *const ways[] = {"shm", "net"};
    struct place p;
    (void)state;
    begin(&p, "64MiB", "manual");
    struct shard s = new_shard(&p, 3 * MIB + 17, 5);
    assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 0); /* not archived: it stays */
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "bytes"), s.size); /* there already: fine */
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
        assert_int_equal(pool_number(&p, "shards"), 1); /* memory is warm again */
        assert_int_equal(ask(&p, "evict", ids(&s, 1), "bytes"), s.size);
        if (helios_map(c, id, &data, &size) != HELIOS_OK)
            fail_msg("%s", helios_last_error());
        assert_int_equal(size, s.size);
        assert_memory_equal(data, s.bytes, s.size);
        /* what is pinned stays */
        assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), ways[i][0] == 'n');
        assert_int_equal(helios_unmap(c, data), HELIOS_OK);
        (void)ask(&p, "evict", ids(&s, 1), "evicted");
        assert_int_equal(helios_find(c, id, &found, NULL), HELIOS_OK);
        assert_int_equal(found, s.size);
        helios_close(c);
        assert_exact(&p);
    }
    /* on each way once for a copy, once for a view, once for a look */
    assert_metric(&p, "\nhelios_path_total{op=\"write\",path=\"archive-store\","
                      "reason=\"archive-in\",result=\"ok\"} 1\n");
    assert_metric(&p, "\nhelios_path_total{op=\"read\",path=\"archive-load\","
                      "reason=\"archive-out\",result=\"ok\"} 6\n");
    free(s.bytes);
    end(&p);
}

static void what_is_in_neither_is_not_found_and_what_is_no_shard_not_archived(void **state)
{
    struct place p;
    json_t *r = NULL;
    (void)state;
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
    put_shard(&p, &s); /* hundred zeros */
    assert_int_equal(call(&p, "archive", ids(&s, 1), &r), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), hl_id_format(s.id).s));
    assert_int_equal(l4_number(&p, "usedBytes"), 0);
    assert_int_equal(ask(&p, "dropArchived", ids(&s, 1), "dropped"), 0);
    assert_int_equal(call(&p, "archive", json_pack("{s:[s]}", "ids", "nonsense"), &r), HL_EINVAL);
    helios_close(c);
    free(s.bytes);
    end(&p);
}

static void what_was_archived_is_there_after_a_reboot(void **state)
{
    struct place p;
    struct shard s[5];
    (void)state;
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
    helios_options o = {.controller = "",
                        .l3 = r->p->w.address,
                        .path = r->seed % 2 ? "shm" : "net",
                        .timeout_ms = 4 * MS};
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

static void readers_of_one_missing_shard_share_its_load(void **state)
{
    struct place p;
    (void)state;
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

static void a_pool_smaller_than_the_models_serves_them_all(void **state)
{
    struct place p;
    struct shard s[12];
    (void)state;
    begin(&p, "16MiB", "write-behind");
    for (unsigned i = 0; i < 12; i++) /* 36 MiB into 16: what does not fit is archived on the way */
        s[i] = new_shard(&p, 3 * MIB + i, i);
    assert_true(pool_number(&p, "usedBytes") <= pool_number(&p, "capacityBytes"));
    assert_true(l4_number(&p, "shards") >= 7);
    read_by_all(&p, s, 12);
    assert_exact(&p);
    for (unsigned i = 0; i < 12; i++)
        free(s[i].bytes);
    end(&p);
}

static void a_put_over_the_network_waits_for_room(void **state)
{
    struct place p;
    struct hl_net_client *net = NULL;
    struct hl_id id;
    (void)state;
    begin(&p, "16MiB", "manual");
    struct shard s[2] = {new_shard(&p, 7 * MIB, 1), new_shard(&p, 7 * MIB, 2)};
    struct shard more = shard_make(id_of(9), 6 * MIB, 3, 1);
    json_t *r = must(&p, "poolInfo", NULL);
    assert_int_equal(
        hl_net_connect(hl_json_str(json_object_get(r, "pool"), "dataAddress", ""), MS, &net),
        HL_OK);
    json_decref(r);
    assert_int_equal(hl_net_put(net, more.bytes, more.size, more.crc, MS, &id), HL_ENOSPC);
    assert_int_equal(ask(&p, "archive", ids(s, 2), "archived"), 2);
    hl_status st = HL_EBUSY; /* the network's thread does not wait: who asks does */
    for (int i = 0; i < MS / 10 && st == HL_EBUSY; i++) {
        st = hl_net_put(net, more.bytes, more.size, more.crc, MS, &id);
        nap_ms(10);
    }
    assert_int_equal(st, HL_OK);
    assert_exact(&p);
    hl_net_close(net);
    read_by_all(&p, s, 2);
    for (int i = 0; i < 2; i++)
        free(s[i].bytes);
    free(more.bytes);
    end(&p);
}

static void a_full_pool_without_archived_shards_is_an_ordinary_error(void **state)
{
    struct place p;
    struct hl_l3_client *c = NULL;
    struct hl_l3_staging staging = {0};
    struct hl_pool_ref ref;
    (void)state;
    begin(&p, "16MiB", "manual");
    struct shard a = new_shard(&p, 7 * MIB, 1), b = new_shard(&p, 7 * MIB, 2);
    assert_int_equal(hl_l3_connect(p.w.socket, MS, &c), HL_OK);
    assert_int_equal(hl_l3_staging_open(4 * MIB, &staging), HL_OK);
    assert_int_equal(hl_l3_put(c, &staging, 4 * MIB, MS, &ref), HL_ENOSPC);
    assert_exact(&p);
    /* pinned is as good as not archived */
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

static void archived_path(const struct place *p, const struct shard *s, char *out, size_t cap)
{
    struct hl_id_text id = hl_id_format(s->id);
    snprintf(out, cap, "%s/%.2s/%s.safetensors", p->archive, id.s, id.s);
}

static void a_load_that_fails_tells_everybody_and_leaves_nothing(void **state)
{
    struct place p;
    char path[256], back[16];
    (void)state;
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

static void a_daemon_killed_while_it_archives_leaves_whole_shards(void **state)
{
    struct place p;
    struct shard s[4];
    (void)state;
    begin(&p, "128MiB", "manual");
    for (unsigned i = 0; i < 4; i++)
        s[i] = new_shard(&p, 20 * MIB, i);
    for (int round = 0; round < 4; round++) {
        json_t *params = ids(s, 4);
        (void)!hl_rpc_call(p.peer, "archive", params, 5 + 20 * round,
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

static void assert_heal(struct place *p, const struct shard *s, json_t *sources, const char *state,
                        const char *source)
{
    json_t *r = must(p, "heal",
                     json_pack("{s:s s:o}", "id", hl_id_format(s->id).s, "sources",
                               sources != NULL ? sources : json_array()));
    assert_string_equal(hl_json_str(r, "state", ""), state);
    assert_string_equal(hl_json_str(r, "source", ""), source);
    json_decref(r);
}

static void spoil_in_pool(struct place *p, const struct shard *s)
{
    json_t *r = must(p, "locate", json_pack("{s:[s]}", "ids", hl_id_format(s->id).s));
    const json_t *extent = json_array_get(hl_json_list(r, "extents"), 0);
    world_flip_at(&p->w, (off_t)(hl_json_int(extent, "offset", 0) + (int64_t)s->size / 2));
    json_decref(r);
}

static void a_bad_shard_is_replaced_from_the_archive(void **state)
{
    struct place p;
    char path[256];
    (void)state;
    begin(&p, "32MiB", "manual");
    struct shard s = new_shard(&p, 5 * MIB + 1, 3);
    assert_heal(&p, &s, NULL, "good", "");
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, NULL, "lost", ""); /* there is no other copy: nothing is changed */
    assert_int_equal(pool_number(&p, "shards"), 1);
    spoil_in_pool(&p, &s); /* the same bit again: good */
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    spoil_in_pool(&p, &s);
    helios_client *c = world_client(&p.w, "shm", MS, 1);
    assert_heal(&p, &s, NULL, "healed", "L4");
    assert_read(c, &s);
    assert_exact(&p);
    /* The archive's copy is bad too: the pool's stays as it is, and is not taken for good. */
    archived_path(&p, &s, path, sizeof(path));
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "!", 1, 4 * MIB), 1);
    close(fd);
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, NULL, "lost", "");
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, NULL, "good", "");
    assert_exact(&p);
    helios_close(c);
    free(s.bytes);
    end(&p);
}

static void a_missing_shard_is_healed_like_a_bad_one(void **state)
{
    struct place p;
    (void)state;
    begin(&p, "32MiB", "manual");
    struct shard s = new_shard(&p, 2 * MIB, 3);
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 1);
    assert_heal(&p, &s, NULL, "healed", "L4");
    assert_int_equal(pool_number(&p, "shards"), 1);
    assert_int_equal(ask(&p, "free", ids(&s, 1), "freed"), 1);
    assert_int_equal(ask(&p, "dropArchived", ids(&s, 1), "dropped"), 1);
    assert_heal(&p, &s, NULL, "lost", "");
    assert_int_equal(pool_number(&p, "usedBytes"), 0);
    free(s.bytes);
    end(&p);
}

static json_t *source_of(const struct node *n, const struct shard *s);

static void a_source_with_an_impossible_size_is_refused(void **state)
{
    struct place p;
    struct shard s = {.size = (uint64_t)1 << 43};
    (void)state;
    begin(&p, "32MiB", "manual");
    json_t *params =
        json_pack("{s:s s:[o]}", "id", hl_id_format(id_of(7)).s, "sources", source_of(NULL, &s));
    json_t *result = NULL;
    assert_int_equal(call(&p, "heal", params, &result), HL_EINVAL);
    end(&p);
}

static json_t *source_of(const struct node *n, const struct shard *s)
{
    return json_pack("{s:s s:I s:I s:s s:s s:s s:i}", "id", hl_id_format(s->id).s, "sizeBytes",
                     (json_int_t)s->size, "crc32", (json_int_t)s->crc, "sourceNode", "node-7",
                     "sourceAddress", n != NULL ? hl_rpc_server_address(n->server) : "127.0.0.1:1",
                     "sourceDataAddress", n != NULL ? hl_net_server_address(n->net) : "127.0.0.1:1",
                     "timeoutMs", 5000);
}

static void a_bad_shard_is_replaced_from_a_node(void **state)
{
    struct place p;
    struct node n;
    char path[256], *back;
    (void)state;
    begin(&p, "32MiB", "manual");
    struct shard s = new_shard(&p, 5 * MIB + 1, 3);
    node_start(&n, rpc, &s);
    spoil_in_pool(&p, &s);
    /* a dead node first, then the good one */
    assert_heal(&p, &s, json_pack("[o o]", source_of(NULL, &s), source_of(&n, &s)), "healed",
                "node-7");
    assert_heal(&p, &s, NULL, "good", "");
    /* not in the pool at all: size and CRC are the source's */
    assert_int_equal(ask(&p, "free", ids(&s, 1), "freed"), 1);
    assert_heal(&p, &s, json_pack("[o]", source_of(&n, &s)), "healed", "node-7");
    assert_exact(&p);
    /* pool and archive are bad: both are good afterwards */
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    archived_path(&p, &s, path, sizeof(path));
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "!!", 2, 4 * MIB), 2);
    close(fd);
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, json_pack("[o]", source_of(&n, &s)), "healed", "node-7");
    back = malloc(s.size);
    fd = open(path, O_RDONLY);
    assert_int_equal(pread(fd, back, s.size, 0), s.size);
    close(fd);
    assert_memory_equal(back, s.bytes, s.size);
    /* the node's copy is bad: nothing is taken from it */
    size_t len;
    ((char *)hl_pool_base(n.pool, &len))[n.ref.offset + 100] ^= 1;
    assert_int_equal(ask(&p, "dropArchived", ids(&s, 1), "dropped"), 1);
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, json_pack("[o]", source_of(&n, &s)), "lost", "");
    assert_exact(&p);
    node_stop(&n);
    free(back);
    free(s.bytes);
    end(&p);
    fault_shown("archive-dir", "corrupt", "healed");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_evicted_shard_is_read_again_on_every_way),
        cmocka_unit_test(what_is_in_neither_is_not_found_and_what_is_no_shard_not_archived),
        cmocka_unit_test(what_was_archived_is_there_after_a_reboot),
        cmocka_unit_test(readers_of_one_missing_shard_share_its_load),
        cmocka_unit_test(a_pool_smaller_than_the_models_serves_them_all),
        cmocka_unit_test(a_put_over_the_network_waits_for_room),
        cmocka_unit_test(a_full_pool_without_archived_shards_is_an_ordinary_error),
        cmocka_unit_test(a_load_that_fails_tells_everybody_and_leaves_nothing),
        cmocka_unit_test(a_daemon_killed_while_it_archives_leaves_whole_shards),
        cmocka_unit_test(a_bad_shard_is_replaced_from_the_archive),
        cmocka_unit_test(a_source_with_an_impossible_size_is_refused),
        cmocka_unit_test(a_missing_shard_is_healed_like_a_bad_one),
        cmocka_unit_test(a_bad_shard_is_replaced_from_a_node),
    };
    hl_log_init("test", HL_LOG_ERROR);
    if (hl_rpc_create(&rpc) != HL_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    hl_rpc_destroy(rpc);
    return failed;
}
