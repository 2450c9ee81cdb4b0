/* A manifest that anybody may have put into an archive: its file, and the JSON in it. What is
 * accepted is restored into an empty catalogue, and written again says the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/manifest.h"

static hl_status commit(void *arg, const struct hl_records *records)
{
    (void)arg;
    (void)records;
    return HL_OK;
}

/* The visible version that the manifest names. */
static const struct hl_version_rec *restored(const struct hl_catalog *c,
                                             const struct hl_manifest *m)
{
    struct hl_model_rec *model;
    struct hl_version_rec *v;
    if (hl_catalog_model(c, m->model, &model) != HL_OK ||
        hl_catalog_version(model, m->number, &v) != HL_OK ||
        v->state != HL_API_VERSION_STATE_VISIBLE)
        abort();
    return v;
}

static void round_trip(const struct hl_manifest *m)
{
    struct hl_catalog c = {0};
    struct hl_manifest again;
    char *text;
    if (hl_catalog_restore(&c, &m, 1, commit, NULL) != HL_OK) { /* two shards of one id */
        if (HASH_COUNT(c.shards) != 0)
            abort();
        hl_catalog_fini(&c);
        return;
    }
    const struct hl_version_rec *v = restored(&c, m);
    if (!hl_id_equal(hl_manifest_id(v), m->id) ||
        hl_manifest_encode(v, m->cluster, &text) != HL_OK ||
        hl_manifest_decode(text, strlen(text), &again) != HL_OK || !hl_id_equal(again.id, m->id) ||
        again.bytes != m->bytes)
        abort();
    hl_manifest_fini(&again);
    free(text);
    hl_catalog_fini(&c);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The bytes as a file, and as the text of one. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct hl_manifest m;
    const char *text;
    size_t len;
    void *file;
    size_t file_size;
    if (hl_manifest_unwrap(data, size, &text, &len) == HL_OK &&
        hl_manifest_decode(text, len, &m) == HL_OK)
        hl_manifest_fini(&m);
    if (hl_manifest_decode((const char *)data, size, &m) == HL_OK) {
        round_trip(&m);
        hl_manifest_fini(&m);
    }
    if (hl_manifest_wrap((const char *)data, size, &file, &file_size) == HL_OK) {
        if (hl_manifest_unwrap(file, file_size, &text, &len) != HL_OK || len != size ||
            memcmp(text, data, len) != 0)
            abort();
        free(file);
    }
    return 0;
}
