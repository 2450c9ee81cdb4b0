/* The RPC face of the archive. */
#include <stdlib.h>

#include "core/json.h"
#include "l3d/l4_private.h"
#include "mem/pool_evict.h"

/* One call about many shards; it is answered when the last of them is. */
struct batch {
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    enum l4_kind kind;
    size_t waiting;
    int count; /* that went well */
    uint64_t bytes;
    hl_status st; /* of the first that failed */
    char text[HL_ERROR_TEXT_MAX];
};

struct item {
    struct batch *batch;
    struct hl_id id;
};

static void batch_done(struct batch *b)
{
    if (--b->waiting > 0)
        return;
    if (b->st != HL_OK)
        hl_rpc_reject(b->call, b->st, b->text);
    else if (b->kind == L4_STORE)
        hl_rpc_reply(b->call,
                     json_pack("{s:i s:I}", "archived", b->count, "bytes", (json_int_t)b->bytes));
    else
        hl_rpc_reply(b->call,
                     json_pack("{s:i}", b->kind == L4_UNTRASH ? "restored" : "dropped", b->count));
    free(b);
}

/* What is not there needs not be taken out, nor brought back when it is stored. */
static int is_fine(enum l4_kind kind, hl_status st)
{
    return (st == HL_ENOENT && kind != L4_STORE) || (st == HL_EEXIST && kind == L4_UNTRASH);
}

static void on_item(void *arg, hl_status st, const char *text)
{
    struct item *it = arg;
    struct batch *b = it->batch;
    uint64_t size = 0;
    if (st == HL_OK) {
        b->count++;
        if (l4_has(b->d, it->id, &size))
            b->bytes += size;
    } else if (b->st == HL_OK && !is_fine(b->kind, st)) {
        b->st = st;
        snprintf(b->text, sizeof(b->text), "%s", text);
    }
    free(it);
    batch_done(b);
}

static void batch_start(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params,
                        enum l4_kind kind)
{
    struct batch *b = calloc(1, sizeof(*b));
    size_t i;
    json_t *text;
    struct hl_archive *a;
    hl_status ready = b != NULL ? l4_need(d, &a) : hl_fail(HL_ENOMEM, "archive call");
    if (ready == HL_OK && kind != L4_STORE)
        ready = claim_allows_archive(d, params);
    if (ready != HL_OK) {
        free(b);
        hl_rpc_reject(call, ready, NULL);
        return;
    }
    *b = (struct batch){.d = d, .call = call, .kind = kind, .waiting = 1};
    json_array_foreach (hl_json_list(params, "ids"), i, text) {
        struct item *it = calloc(1, sizeof(*it));
        hl_status st = it != NULL ? hl_id_parse(json_string_value(text), &it->id)
                                  : hl_fail(HL_ENOMEM, "shard of an archive call");
        if (st != HL_OK) {
            b->st = st;
            snprintf(b->text, sizeof(b->text), "%s", hl_error_text());
            free(it);
            break;
        }
        it->batch = b;
        b->waiting++;
        l4_ask(d, kind, it->id, on_item, it);
    }
    batch_done(b);
}

void method_archive(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    batch_start(d, call, params, L4_STORE);
}

void method_drop_archived(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    batch_start(d, call, params, hl_json_bool(params, "trash", 0) ? L4_TRASH : L4_DROP);
}

void method_untrash(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    batch_start(d, call, params, L4_UNTRASH);
}

void method_evict(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    int evicted = 0;
    uint64_t bytes = 0, size;
    size_t i;
    json_t *text;
    hl_status st = claim_allows(d, params);
    if (st != HL_OK) {
        hl_rpc_reject(call, st, NULL);
        return;
    }
    json_array_foreach (hl_json_list(params, "ids"), i, text) {
        struct hl_id id;
        struct hl_pool_ref ref;
        if (hl_id_parse(json_string_value(text), &id) != HL_OK || !l4_has(d, id, &size) ||
            hl_pool_find(d->pool, id, &ref) != HL_OK || !hl_pool_evict_one(d->pool, &ref))
            continue;
        evicted++;
        bytes += ref.size;
    }
    hl_rpc_reply(call, json_pack("{s:i s:I}", "evicted", evicted, "bytes", (json_int_t)bytes));
}

void method_touch(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    size_t i;
    json_t *text;
    json_array_foreach (hl_json_list(params, "ids"), i, text) {
        struct hl_id id;
        struct hl_pool_ref ref;
        if (hl_id_parse(json_string_value(text), &id) == HL_OK &&
            hl_pool_find(d->pool, id, &ref) == HL_OK)
            hl_pool_touch(d->pool, &ref);
    }
    hl_rpc_reply(call, NULL);
}

void method_list_archived(struct hl_l3d *d, struct hl_rpc_call *call, const json_t *params)
{
    uint64_t cursor = (uint64_t)hl_json_int(params, "cursor", 0);
    size_t limit = (size_t)hl_json_int(params, "limit", 0), n = 0;
    if (limit == 0 || limit > INVENTORY_MAX)
        limit = INVENTORY_MAX;
    HL_AUTO(hl_freep) struct hl_archive_ref *refs = calloc(limit, sizeof(*refs));
    if (refs == NULL) {
        hl_rpc_reject(call, hl_fail(HL_ENOMEM, "list of %zu shards", limit), NULL);
        return;
    }
    struct hl_archive *a = l4_archive(d);
    if (l4_away(d)) { /* an empty list would call shards lost */
        hl_rpc_reject(call, l4_need(d, &a), NULL);
        return;
    }
    if (a != NULL)
        n = hl_archive_page(a, &cursor, refs, limit);
    else
        cursor = 0;
    json_t *extents = json_array();
    for (size_t i = 0; i < n; i++)
        if (!l4_bad_has(d, refs[i].id))
            json_array_append_new(
                extents, json_pack("{s:s s:I s:I}", "id", hl_id_format(refs[i].id).s, "sizeBytes",
                                   (json_int_t)refs[i].size, "crc32", (json_int_t)refs[i].crc));
    hl_rpc_reply(call, json_pack("{s:o s:I}", "extents", extents, "next", (json_int_t)cursor));
}

const char *l4_mode(const struct hl_l3d *d)
{
    if (d->l4->opener == NULL)
        return "";
    return d->l4->opts.write_behind ? "write-behind" : "manual";
}

json_t *l4_tier(struct hl_l3d *d)
{
    struct hl_archive_info info = {.scheme = "away"};
    struct hl_archive *a = l4_archive(d);
    if (d->l4->opener == NULL)
        return NULL;
    if (a != NULL)
        hl_archive_stat(a, &info);
    /* No watermarks: nothing is evicted from it. */
    return json_pack("{s:s s:s s:I s:I s:I s:I s:i s:s}", "tier", "L4", "name", d->l4->url,
                     "quotaBytes", (json_int_t)info.quota_bytes, "usedBytes",
                     (json_int_t)info.used_bytes, "writingBytes", (json_int_t)info.writing_bytes,
                     "shards", (json_int_t)(info.count - info.manifests), "numaId", -1, "backing",
                     info.scheme);
}
