/* A catalogue with a model: version 1 imported, version 2 saved by two ranks. */
#ifndef CATALOG_RIG_H
#define CATALOG_RIG_H

#include <jansson.h>
#include <stdio.h>

#include "core/catalog/catalog.h"
#include "support/test.h"
#include "unit/core/catalog/shard_list.h"

static hl_status keep_nothing(void *arg, const struct hl_records *records)
{
    (void)arg;
    (void)records;
    return HL_OK;
}

static uint64_t size_of_shard(int n)
{
    return 1000u + (uint64_t)n;
}

static uint32_t crc_of_shard(int n)
{
    return 4000000000u + (uint32_t)n;
}

static json_t *shard_row(int n, int pp)
{
    char id[33];
    snprintf(id, sizeof(id), "%032x", (unsigned)n);
    return json_pack("{s:s s:i s:i s:s s:I s:I s:i s:s}", "id", id, "pp", pp, "tp", 0, "part",
                     pp == 0 ? "embedding" : "head", "sizeBytes", (json_int_t)size_of_shard(n),
                     "crc32", (json_int_t)crc_of_shard(n), "tensors", 1, "layout", "w\tF32\t4,2\n");
}

static inline struct hl_version_rec *import_model(struct hl_catalog *c, const char *name, int first,
                                                  const char *config)
{
    struct hl_version_rec *v;
    json_t *shards = json_pack("[o,o]", shard_row(first, 0), shard_row(first + 1, 1));
    struct hl_import_done done = {.name = name,
                                  .source = "/data/tiny",
                                  .tp = 1,
                                  .pp = 2,
                                  .virtual_stages = 1,
                                  .config = config,
                                  .now_ms = 1000,
                                  .shards = shard_list(shards)};
    assert_int_equal(hl_catalog_import(c, &done, keep_nothing, NULL, &v), HL_OK);
    json_decref(shards);
    return v;
}

/* Imports one version of "many" with shards from `first` on. */
static inline struct hl_version_rec *import_parts(struct hl_catalog *c, int first, int shards)
{
    struct hl_version_rec *v;
    json_t *rows = json_array();
    for (int i = 0; i < shards; i++) {
        char part[24];
        json_t *row = shard_row(first + i, 0);
        snprintf(part, sizeof(part), "part-%d", i);
        json_object_set_new(row, "part", json_string(part));
        json_array_append_new(rows, row);
    }
    struct hl_import_done done = {.name = "many",
                                  .source = "/data/many",
                                  .tp = 1,
                                  .pp = 1,
                                  .virtual_stages = 1,
                                  .config = "{}",
                                  .now_ms = 1000,
                                  .shards = shard_list(rows)};
    assert_int_equal(hl_catalog_import(c, &done, keep_nothing, NULL, &v), HL_OK);
    json_decref(rows);
    return v;
}

/* Its shards are `first` and the next one. */
static inline struct hl_version_rec *save_version(struct hl_catalog *c, const char *name, int first,
                                                  int64_t step, int64_t now_ms)
{
    struct hl_version_rec *v = NULL;
    struct hl_version_begin begin = {
        .model = name, .job = "j-1", .attempt = 1, .step = step, .world = 2, .now_ms = now_ms};
    for (int rank = 0; rank < 2; rank++) {
        begin.rank = rank;
        assert_int_equal(hl_catalog_begin(c, &begin, keep_nothing, NULL, &v), HL_OK);
        json_t *shards = json_pack("[o]", shard_row(first + rank, rank));
        struct hl_version_commit part = {.version = v,
                                         .rank = rank,
                                         .shards = shard_list(shards),
                                         .meta = "{}",
                                         .now_ms = now_ms};
        assert_int_equal(hl_catalog_commit_part(c, &part, keep_nothing, NULL), HL_OK);
        json_decref(shards);
    }
    return v;
}

#endif
