/* The real helios-l3d with an archive, for its tests: start, shards, calls, checks. */
#ifndef TESTS_INTEGRATION_L3_ARCHIVE_WORLD_H
#define TESTS_INTEGRATION_L3_ARCHIVE_WORLD_H

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
#include "mem/socket/socket.h"
#include "net/net.h"
#include "os/file.h"
#include "os/loop.h"
#include "rpc/rpc.h"
#include "support/fault.h"
#include "support/rpc_json.h"
#include "unit/mem/archive/archive_rig.h"

#define MS 20000

static struct hl_rpc *rpc;

struct place {
    struct world w;
    struct hl_rpc_peer *peer;
    char archive[128]; /* directory */
};

static inline void connect_peer(struct place *p)
{
    hl_rpc_peer_close(p->peer);
    assert_int_equal(hl_rpc_open(rpc, p->w.address, "L3", &p->peer), HL_OK);
}

/* In the environment, as `helios up` hands it on. */
static inline void begin(struct place *p, const char *size, const char *mode)
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

static inline void end(struct place *p)
{
    hl_rpc_peer_close(p->peer);
    world_end(&p->w);
    assert_int_equal(hl_dir_remove(p->archive), HL_OK);
    unsetenv("HELIOS_ARCHIVE_URL");
    unsetenv("HELIOS_ARCHIVE_MODE");
    unsetenv("HELIOS_ARCHIVE_LOAD_TIMEOUT");
}

static inline hl_status call(struct place *p, const char *method, json_t *params, json_t **result)
{
    hl_status st = rpc_json_call(p->peer, method, params, MS, result);
    json_decref(params);
    return st;
}

static inline json_t *must(struct place *p, const char *method, json_t *params)
{
    json_t *result = NULL;
    if (call(p, method, params, &result) != HL_OK)
        fail_msg("%s: %s", method, hl_error_text());
    return result;
}

static inline json_t *ids(const struct shard *s, size_t n)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, json_string(hl_id_format(s[i].id).s));
    return json_pack("{s:o}", "ids", list);
}

static inline int64_t ask(struct place *p, const char *method, json_t *params, const char *field)
{
    json_t *r = must(p, method, params);
    int64_t n = hl_json_int(r, field, -1);
    json_decref(r);
    return n;
}

static inline int64_t pool_number(struct place *p, const char *field)
{
    json_t *r = must(p, "poolInfo", NULL);
    int64_t n = hl_json_int(json_object_get(r, "pool"), field, -1);
    json_decref(r);
    return n;
}

static inline int64_t l4_number(struct place *p, const char *field)
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
static inline void put_shard(struct place *p, struct shard *s)
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

static inline struct shard new_shard(struct place *p, uint64_t data, unsigned seed)
{
    struct shard s = shard_make(id_of(1), data, seed, 1);
    put_shard(p, &s);
    return s;
}

static inline void assert_read(helios_client *c, const struct shard *s)
{
    char *back = malloc(s->size);
    helios_id id = {s->id.hi, s->id.lo};
    if (helios_get(c, id, back, s->size) != HELIOS_OK)
        fail_msg("%s", helios_last_error());
    assert_memory_equal(back, s->bytes, s->size);
    free(back);
}

/* The pool's units are those of its shards, to the byte. */
static inline void assert_exact(struct place *p)
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

static inline void assert_metric(struct place *p, const char *line)
{
    json_t *r = must(p, "metrics", NULL);
    if (strstr(hl_json_str(r, "text", ""), line) == NULL)
        fail_msg("no line '%s' in %s", line, hl_json_str(r, "text", ""));
    json_decref(r);
}

static inline void archived_path(const struct place *p, const struct shard *s, char *out,
                                 size_t cap)
{
    struct hl_id_text id = hl_id_format(s->id);
    snprintf(out, cap, "%s/%.2s/%s.safetensors", p->archive, id.s, id.s);
}

#endif
