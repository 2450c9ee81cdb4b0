/* core/catalog/manifest.h - a manifest: what the catalogue knows about one visible version, stored
 * as an object next to its shards.
 *
 * If the Controller's state is lost, pool and archive still hold the shards; the manifests say
 * which models and versions they belong to. A manifest is JSON, kept as a safetensors file with one
 * tensor of bytes, so that an archive takes it like a shard and verifies it by its CRC.
 *
 * Its id distinguishes it from shards, whose ids are random: the upper half is HL_MANIFEST_HI, the
 * lower half is a hash of the model's name, the version's number and the ids of its shards. So the
 * same version always has the same manifest id, and a different version with that number has
 * another one.
 *
 * Owns:    hl_manifest owns its JSON (hl_manifest_fini).
 * Threads: any. Pure: no I/O, no clock.
 * Errors:  HL_ECORRUPT for data that is not a manifest or was changed; HL_EUNSUPPORTED for one of a
 *          later release; HL_EINVAL for a version that is not visible; HL_ENOMEM.
 * Units:   bytes; ms since 1970.
 * Limits:  HL_MANIFEST_MAX bytes of JSON, HL_MANIFEST_SHARDS_MAX shards, and the same number of
 *          ranks.
 */
#ifndef HL_CORE_CATALOG_MANIFEST_H
#define HL_CORE_CATALOG_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/arena.h"
#include "base/id.h"
#include "base/status.h"
#include "core/catalog/catalog.h"
#include "core/catalog/manifest_id.h"

#define HL_MANIFEST_SCHEMA     1
#define HL_MANIFEST_MAX        ((size_t)48 << 20)
#define HL_MANIFEST_SHARDS_MAX (1 << 20)

struct hl_manifest {
    struct hl_id id;
    struct hl_id cluster; /* the cluster that wrote it */
    const char *model;    /* borrowed from `doc`, like the config */
    const char *config;
    int tp, pp, virtual_stages;
    int64_t number;
    int64_t step;
    int64_t visible_ms;
    struct hl_api_manifest doc;
    struct hl_arena arena; /* its texts and lists */
    uint64_t bytes;        /* of the shards */
};

/* Id of the version's manifest. */
struct hl_id hl_manifest_id(const struct hl_version_rec *v);
/* JSON text, without a NUL in it; free(). HL_EINVAL unless the version is visible. */
hl_status hl_manifest_encode(const struct hl_version_rec *v, struct hl_id cluster,
                             char **out) HL_CHECK;
/* Validates everything: the text may come from anywhere. */
hl_status hl_manifest_decode(const char *text, size_t len, struct hl_manifest *out) HL_CHECK;
void hl_manifest_fini(struct hl_manifest *m);

/* The file that holds the text; free(). */
hl_status hl_manifest_wrap(const char *text, size_t len, void **out, size_t *size) HL_CHECK;
/* The text in a file, borrowed; its CRC is checked. */
hl_status hl_manifest_unwrap(const void *file, size_t size, const char **text,
                             size_t *len) HL_CHECK;

/* Makes all these versions visible, in one batch, and creates missing models. A version that is in
 * the catalogue but not visible is replaced. HL_EEXIST if one is already visible, or a shard
 * belongs to another version. */
hl_status hl_catalog_restore(struct hl_catalog *c, const struct hl_manifest *const *list,
                             size_t count, hl_catalog_commit_fn commit, void *arg) HL_CHECK;

#endif
