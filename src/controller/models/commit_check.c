/* Before a version becomes visible: L3 has every shard of it, with the size and the checksum that
 * its ranks have stated. */
#include <inttypes.h>
#include <string.h>

#include "controller/controller_private.h"

json_t *commit_check_ids(const struct hl_version_rec *v, const json_t *named)
{
    json_t *ids = json_array(), *s;
    size_t i;
    for (size_t k = 0; k < v->shard_count; k++)
        json_array_append_new(ids, json_string(hl_id_format(v->shards[k]->id).s));
    json_array_foreach (named, i, s)
        json_array_append_new(ids, json_string(hl_json_str(s, "id", "")));
    return ids;
}

/* found: FoundShard; NULL = L3 has none. */
static hl_status compare(const char *what, uint64_t size, uint32_t crc, const json_t *found)
{
    if (found == NULL)
        return hl_fail(HL_ENOENT, "%s is neither in the pool nor in the archive; save again", what);
    uint64_t found_size = (uint64_t)hl_json_int(found, "sizeBytes", 0);
    uint32_t found_crc = (uint32_t)hl_json_int(found, "crc32", 0);
    if (found_size != size)
        return hl_fail(HL_EINVAL, "%s has %" PRIu64 " bytes in the pool, but %" PRIu64 " stated",
                       what, found_size, size);
    if (hl_json_bool(found, "crc32Known", 0) && found_crc != crc)
        return hl_fail(HL_EINVAL, "%s has CRC-32 %08x in the pool, but %08x stated", what,
                       found_crc, crc);
    return HL_OK;
}

/* What earlier commits have linked. */
static hl_status check_linked(const struct hl_version_rec *v, const json_t *by_id)
{
    char what[HL_CATALOG_KEY_MAX + 64], key[HL_CATALOG_KEY_MAX];
    for (size_t k = 0; k < v->shard_count; k++) {
        const struct hl_shard_rec *s = v->shards[k];
        struct hl_id_text id = hl_id_format(s->id);
        snprintf(what, sizeof(what), "shard %s (%s)", hl_shard_key(s, key, sizeof(key)), id.s);
        HL_TRY(compare(what, s->size_bytes, s->crc32, json_object_get(by_id, id.s)));
    }
    return HL_OK;
}

static hl_status check_named(const json_t *named, const json_t *by_id)
{
    char what[192];
    size_t i;
    const json_t *s;
    json_array_foreach (named, i, s) {
        const char *id = hl_json_str(s, "id", "");
        snprintf(what, sizeof(what), "part %.63s at pp %d, tp %d (%.32s)",
                 hl_json_str(s, "part", "?"), (int)hl_json_int(s, "pp", 0),
                 (int)hl_json_int(s, "tp", 0), id);
        HL_TRY(compare(what, (uint64_t)hl_json_int(s, "sizeBytes", 0),
                       (uint32_t)hl_json_int(s, "crc32", 0), json_object_get(by_id, id)));
    }
    return HL_OK;
}

hl_status commit_check(const struct hl_version_rec *v, const json_t *named, const json_t *found)
{
    json_t *by_id = json_object(), *s;
    size_t i;
    json_array_foreach (found, i, s)
        json_object_set(by_id, hl_json_str(s, "id", ""), s);
    hl_status st = check_linked(v, by_id);
    if (st == HL_OK)
        st = check_named(named, by_id);
    json_decref(by_id);
    return st;
}
