/* Manifests and headers: they tell which version the shards belonged to when no catalogue does.
 * Both are read and written in workers. */
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "base/utf8.h"
#include "core/catalog/manifest.h"
#include "core/model/layout.h"
#include "core/safetensors/safetensors.h"
#include "l3d/l4_private.h"

#define DESCRIBE_MAX 256 /* per call */

/* ---- put ------------------------------------------------------------------------------------- */

struct putting {
    struct work work;
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    struct hl_id id;
    void *file;
    size_t size;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

static hl_status put_file(const struct putting *p)
{
    struct hl_pool *pool = p->d->pool;
    struct hl_pool_extent x;
    uint64_t chunks = hl_chunk_count(p->size);
    HL_AUTO(hl_freep) uint32_t *crcs = calloc(chunks + 1, sizeof(*crcs));
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the checksums of a manifest");
    HL_TRY(l4_alloc(p->d, &(struct l4_want){.near = -1, .id = p->id, .size = p->size}, &x));
    memcpy(x.ptr, p->file, p->size);
    for (uint64_t i = 0; i < chunks; i++) {
        uint64_t at = i * HL_CHUNK;
        uint64_t len = p->size - at < HL_CHUNK ? p->size - at : HL_CHUNK;
        crcs[i] = hl_crc32(0, (const char *)p->file + at, len);
    }
    hl_status st = hl_pool_seal(pool, &x, hl_crc32(0, p->file, p->size), crcs, chunks, NULL);
    if (st != HL_OK)
        hl_pool_abort(pool, &x);
    return st;
}

static void put_run(struct work *w)
{
    struct putting *p = (struct putting *)w;
    p->st = put_file(p);
    if (p->st == HL_EEXIST)
        p->st = HL_OK;
    if (p->st != HL_OK)
        snprintf(p->text, sizeof(p->text), "%s", hl_error_text());
}

static void put_done(struct work *w)
{
    struct putting *p = (struct putting *)w;
    if (p->st == HL_OK)
        hl_reply_l3_put_manifest(p->call, &(struct hl_api_l3_put_manifest_results){0});
    else
        hl_rpc_reject(p->call, p->st, p->text);
    free(p->file);
    free(p);
}

static hl_status put_parse(struct hl_l3d *d, const struct hl_api_l3_put_manifest_params *params,
                           struct putting *p)
{
    const char *text = params->manifest;
    struct hl_manifest m;
    HL_TRY(claim_allows(d, params->cluster));
    HL_TRY(hl_manifest_decode(text, strlen(text), &m));
    p->id = m.id;
    hl_manifest_fini(&m);
    return hl_manifest_wrap(text, strlen(text), &p->file, &p->size);
}

void method_put_manifest(void *arg, struct hl_rpc_call *call,
                         const struct hl_api_l3_put_manifest_params *params)
{
    struct hl_l3d *d = arg;
    struct hl_pool_ref ref;
    uint64_t size;
    struct putting *p = calloc(1, sizeof(*p));
    hl_status st = p != NULL ? put_parse(d, params, p)
                             : hl_fail(HL_ENOMEM, "out of memory allocating a manifest");
    if (st != HL_OK) {
        free(p);
        hl_rpc_reject(call, st, NULL);
        return;
    }
    if (hl_pool_find(d->pool, p->id, &ref) == HL_OK || l4_has(d, p->id, &size)) {
        free(p->file);
        free(p);
        hl_reply_l3_put_manifest(call, &(struct hl_api_l3_put_manifest_results){0});
        return;
    }
    p->d = d;
    p->call = call;
    p->work = (struct work){.run = put_run, .done = put_done};
    l4_run(d, &p->work);
}

/* ---- describe -------------------------------------------------------------------------------- */

struct describing {
    struct work work;
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    const struct hl_id *ids;
    struct hl_api_found_list found;
};

/* Reads from the pool, or with ref NULL from the archive. */
static hl_status read_manifest_of(struct hl_l3d *d, struct hl_id id, const struct hl_pool_ref *ref,
                                  struct hl_arena *arena, struct hl_api_found *out)
{
    struct hl_archive *a = l4_archive(d);
    uint64_t size = ref != NULL ? ref->size : 0;
    uint32_t crc = 0;
    if (ref == NULL)
        HL_TRY(hl_archive_size(a, id, &size));
    if (size > HL_MANIFEST_MAX * 2)
        return hl_fail(HL_ECORRUPT, "manifest %s: it is too long", hl_id_format(id).s);
    HL_AUTO(hl_freep) char *file = malloc(size + 1);
    if (file == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a manifest");
    if (ref != NULL) {
        HL_TRY(hl_pool_read(d->pool, ref, 0, file, size));
    } else {
        HL_TRY(hl_archive_crc(a, id, &crc));
        HL_TRY(hl_archive_get(a, id, file, size, crc));
    }
    const char *text;
    size_t len;
    HL_TRY(hl_manifest_unwrap(file, size, &text, &len));
    for (size_t i = 0, n; i < len; i += n)
        if ((n = hl_utf8_sequence(text + i, len - i)) == 0)
            return hl_fail(HL_ECORRUPT, "manifest %s: it is not UTF-8", hl_id_format(id).s);
    out->manifest = hl_arena_text(arena, text, len);
    return HL_OK;
}

/* A bad copy in the pool does no harm if the archive has a good one. */
static hl_status read_manifest(struct hl_l3d *d, struct hl_id id, struct hl_arena *arena,
                               struct hl_api_found *out)
{
    struct hl_pool_ref ref;
    uint64_t size;
    bool archived = l4_has(d, id, &size);
    if (hl_pool_find(d->pool, id, &ref) != HL_OK)
        return read_manifest_of(d, id, NULL, arena, out);
    hl_status st = read_manifest_of(d, id, &ref, arena, out);
    return st != HL_OK && archived ? read_manifest_of(d, id, NULL, arena, out) : st;
}

static hl_status put_header(const struct hl_safetensors *st, struct hl_arena *arena,
                            struct hl_api_found *out)
{
    char *layout;
    struct hl_safetensors_origin origin;
    hl_safetensors_read_origin(st, &origin);
    HL_TRY(hl_layout_text(st->tensors, st->count, &layout));
    out->layout = hl_arena_strdup(arena, layout);
    free(layout);
    out->model = hl_arena_strdup(arena, origin.model);
    out->part = hl_arena_strdup(arena, origin.part);
    out->version = origin.version;
    out->pp = origin.pp;
    out->tp = origin.tp;
    out->ep = origin.ep;
    out->tensors = (uint32_t)st->count;
    return HL_OK;
}

/* Reads the header of a shard in the pool; the chunks that contain it are checked. */
static hl_status read_header(struct hl_l3d *d, const struct hl_pool_ref *ref,
                             struct hl_arena *arena, struct hl_api_found *out)
{
    unsigned char head[8];
    uint64_t n = 0;
    struct hl_safetensors st;
    if (ref->size < sizeof(head))
        return hl_fail(HL_ECORRUPT, "shard %s is not a safetensors file", hl_id_format(ref->id).s);
    HL_TRY(hl_pool_read(d->pool, ref, 0, head, sizeof(head)));
    HL_TRY(hl_safetensors_header_len(head, sizeof(head), ref->size, &n));
    HL_AUTO(hl_freep) char *bytes = malloc(sizeof(head) + n);
    if (bytes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a header of shard %s",
                       hl_id_format(ref->id).s);
    HL_TRY(hl_pool_read(d->pool, ref, 0, bytes, sizeof(head) + n));
    HL_TRY(hl_safetensors_parse(bytes, sizeof(head) + n, ref->size, &st));
    hl_status status = put_header(&st, arena, out);
    hl_safetensors_fini(&st);
    return status;
}

static struct hl_api_found describe_one(struct hl_l3d *d, struct hl_id id, struct hl_arena *arena)
{
    struct hl_pool_ref ref;
    uint64_t size = 0;
    uint32_t crc = 0;
    bool pooled = hl_pool_find(d->pool, id, &ref) == HL_OK;
    bool archived = !pooled && l4_has(d, id, &size);
    struct hl_api_found out = {.id = hl_id_print(id, arena)};
    hl_status st = HL_OK;
    if (!pooled && !archived)
        return out;
    if (archived)
        st = hl_archive_crc(l4_archive(d), id, &crc);
    out.tier = pooled ? HL_API_TIER_L3 : HL_API_TIER_L4;
    out.size_bytes = pooled ? ref.size : size;
    out.crc32 = pooled ? ref.crc32 : crc;
    if (st == HL_OK && hl_manifest_is(id))
        st = read_manifest(d, id, arena, &out);
    else if (st == HL_OK && pooled)
        st = read_header(d, &ref, arena, &out);
    if (st != HL_OK)
        out.error = hl_arena_strdup(arena, hl_error_text());
    return out;
}

static void describe_run(struct work *w)
{
    struct describing *x = (struct describing *)w;
    for (size_t i = 0; i < x->found.count; i++)
        x->found.items[i] = describe_one(x->d, x->ids[i], hl_rpc_call_arena(x->call));
    hl_error_clear();
}

static void describe_done(struct work *w)
{
    struct describing *x = (struct describing *)w;
    hl_reply_l3_describe(x->call, &(struct hl_api_l3_describe_results){.found = x->found});
    free(x);
}

static hl_status describe_parse(struct hl_l3d *d, const struct hl_api_text_list *list,
                                struct hl_arena *arena, struct describing *x)
{
    struct hl_archive *a;
    if (l4_is_unreachable(d))
        return l4_need(d, &a);
    if (list->count > DESCRIBE_MAX)
        return hl_fail(HL_EINVAL, "describe: at most %d ids at once are allowed, not %zu",
                       DESCRIBE_MAX, list->count);
    struct hl_id *ids = hl_arena_array(arena, list->count, sizeof(*ids));
    x->found.items = hl_arena_array(arena, list->count, sizeof(*x->found.items));
    if (ids == NULL || x->found.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory describing %zu shards", list->count);
    for (size_t i = 0; i < list->count; i++)
        HL_TRY(hl_id_parse(list->items[i], &ids[i]));
    x->ids = ids;
    x->found.count = list->count;
    return HL_OK;
}

void method_describe(void *arg, struct hl_rpc_call *call,
                     const struct hl_api_l3_describe_params *params)
{
    struct describing *x = calloc(1, sizeof(*x));
    hl_status st = x != NULL ? describe_parse(arg, &params->ids, hl_rpc_call_arena(call), x)
                             : hl_fail(HL_ENOMEM, "out of memory describing shards");
    if (st != HL_OK) {
        free(x);
        hl_rpc_reject(call, st, NULL);
        return;
    }
    x->d = arg;
    x->call = call;
    x->work = (struct work){.run = describe_run, .done = describe_done};
    l4_run(arg, &x->work);
}
