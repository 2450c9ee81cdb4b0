/* A catalogue on a store that the test can inspect and make fail. */
#ifndef TESTS_UNIT_CORE_CATALOG_RIG_H
#define TESTS_UNIT_CORE_CATALOG_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog.h"
#include "unit/core/catalog/shard_list.h"

/* A store that keeps what was committed, and can be made to fail. */
struct fake_store {
    json_t *records;
    int fail;
};

static inline hl_status fake_commit(void *arg, const struct hl_records *records)
{
    struct fake_store *s = arg;
    if (s->fail)
        return hl_fail(HL_EIO, "disk full");
    for (size_t i = 0; i < records->count; i++) {
        if (records->list[i].value != NULL)
            json_object_set(s->records, records->list[i].key, records->list[i].value);
        else
            json_object_del(s->records, records->list[i].key);
    }
    return HL_OK;
}

static inline json_t *shard(unsigned id, int pp, int tp, const char *part, int size)
{
    char text[33];
    snprintf(text, sizeof(text), "%032x", id);
    return json_pack("{s:s s:i s:i s:s s:i s:i s:i}", "id", text, "pp", pp, "tp", tp, "part", part,
                     "sizeBytes", size, "crc32", 7, "tensors", 2);
}

/* A shard with the lines of a layout. */
static inline json_t *laid_out(unsigned id, int pp, int tp, const char *part, const char *layout)
{
    json_t *s = shard(id, pp, tp, part, 100);
    int lines = 0;
    for (const char *at = layout; (at = strchr(at, '\n')) != NULL; at++)
        lines++;
    json_object_set_new(s, "tensors", json_integer(lines));
    json_object_set_new(s, "layout", json_string(layout));
    return s;
}

static inline struct hl_version_rec *import_two_shards(struct hl_catalog *c, struct fake_store *s,
                                                       const char *name, unsigned id)
{
    json_t *shards = json_pack("[o,o]", shard(id, 0, 1, "layer-0000", 300),
                               shard(id + 1, 0, 0, "embedding", 200));
    struct hl_import_done done = {.name = name,
                                  .source = "/data/m",
                                  .tp = 2,
                                  .pp = 1,
                                  .virtual_stages = 1,
                                  .config = "{\"architecture\":\"llama\"}",
                                  .seconds = 0.5,
                                  .now_ms = 1000,
                                  .shards = shard_list(shards)};
    struct hl_version_rec *v = NULL;
    hl_status st = hl_catalog_import(c, &done, fake_commit, s, &v);
    json_decref(shards);
    return st == HL_OK ? v : NULL;
}

static inline int load_all(struct hl_catalog *c, json_t *records, const char *prefix)
{
    const char *key;
    json_t *value;
    /* the store returns keys in order */
    char *text = json_dumps(records, JSON_SORT_KEYS);
    json_t *sorted = json_loads(text, 0, NULL);
    free(text);
    json_object_foreach (sorted, key, value) {
        if (strncmp(key, prefix, strlen(prefix)) == 0 && hl_catalog_load(c, key, value) != HL_OK)
            return -1;
    }
    json_decref(sorted);
    return 0;
}

struct saving {
    struct hl_catalog c;
    struct fake_store s;
    struct hl_version_rec *base;
};

static inline void saving_init(struct saving *t)
{
    *t = (struct saving){.s = {json_object(), 0}};
    t->base = import_two_shards(&t->c, &t->s, "tiny", 1);
    assert_non_null(t->base);
}

static inline void saving_fini(struct saving *t)
{
    hl_catalog_fini(&t->c);
    json_decref(t->s.records);
}

/* One of two ranks saves at step 10; returns its version, or NULL with hl_error_text(). */
static inline struct hl_version_rec *begin_again(struct saving *t, uint32_t generation, int rank,
                                                 uint64_t token)
{
    struct hl_version_begin b = {.model = "tiny",
                                 .job = "j",
                                 .attempt = 1,
                                 .generation = generation,
                                 .step = 10,
                                 .rank = rank,
                                 .world = 2,
                                 .token = token,
                                 .now_ms = 5,
                                 .check = HL_API_LAYOUT_CHECK_UNCHECKED};
    struct hl_version_rec *v = NULL;
    return hl_catalog_begin(&t->c, &b, fake_commit, &t->s, &v) == HL_OK ? v : NULL;
}

static inline struct hl_version_rec *begin(struct saving *t, int rank, uint64_t token)
{
    return begin_again(t, 0, rank, token);
}

/* Takes the reference to shards. */
static inline hl_status commit(struct saving *t, struct hl_version_rec *v, int rank, json_t *shards)
{
    struct hl_version_commit p = {
        .version = v, .rank = rank, .shards = shard_list(shards), .meta = "", .now_ms = 6};
    hl_status st = hl_catalog_commit_part(&t->c, &p, fake_commit, &t->s);
    json_decref(shards);
    return st;
}

static inline json_t *one(unsigned id, int tp)
{
    return json_pack("[o]", shard(id, 0, tp, "embedding", 100));
}

#endif
