/* Accesses of shards, for clients that record them. While there is no such client, none is kept. */
#include <stdio.h>

#include "base/text.h"
#include "controller/placement/placement_private.h"

#define RECORDED_MAX     4096
#define RECORD_SILENT_MS (60 * 1000)

static void record_one(struct placement *x, const char *node, const struct hl_recorded *what)
{
    struct hl_recorded entry = *what;
    snprintf(entry.node, sizeof(entry.node), "%s", node);
    hl_recording_add(&x->recording, &entry);
}

void record_report(struct hl_controller *c, const struct hl_api_controller_report_access_params *p,
                   int64_t before_ms)
{
    struct placement *x = c->placement;
    int64_t now = placement_now_ms();
    for (size_t i = 0; hl_recording_is_on(&x->recording) && i < p->reports.count; i++) {
        const struct hl_api_access_report *r = &p->reports.items[i];
        int64_t at = now - r->age_ms;
        struct hl_recorded entry = {.at_ms = at,
                                    .span_ms = hl_recorded_span(before_ms, at),
                                    .count =
                                        r->count < UINT32_MAX ? (uint32_t)r->count : UINT32_MAX};
        if (r->count == 0 || hl_id_parse(r->id, &entry.shard) != HL_OK)
            continue;
        const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, entry.shard);
        entry.size_bytes = s != NULL ? s->size_bytes : 0;
        record_one(x, p->node, &entry);
    }
}

void placement_written(struct hl_controller *c, const char *node,
                       const struct hl_api_shard_list *shards)
{
    struct placement *x = c->placement;
    for (size_t i = 0; hl_recording_is_on(&x->recording) && i < shards->count; i++) {
        struct hl_recorded entry = {.at_ms = placement_now_ms(),
                                    .size_bytes = shards->items[i].size_bytes,
                                    .count = 1,
                                    .is_write = true};
        if (hl_id_parse(shards->items[i].id, &entry.shard) == HL_OK)
            record_one(x, node, &entry);
    }
}

void record_tick(struct hl_controller *c)
{
    struct placement *x = c->placement;
    if (placement_now_ms() - x->recorded_ms > RECORD_SILENT_MS)
        hl_recording_stop(&x->recording);
}

static hl_status record_begin(struct placement *x, uint64_t *cursor)
{
    if (!hl_recording_is_on(&x->recording)) {
        HL_TRY(hl_recording_start(&x->recording));
        x->recording_id = hl_random_u64() >> 1 | 1; /* JSON integers have 63 bits */
    }
    *cursor = x->recording.next;
    return HL_OK;
}

static struct hl_api_shard_access access_of(const struct hl_recorded *e, struct hl_arena *arena)
{
    return (struct hl_api_shard_access){.id = hl_id_print(e->shard, arena),
                                        .node = e->node,
                                        .size_bytes = e->size_bytes,
                                        .at_ms = e->at_ms,
                                        .span_ms = e->span_ms,
                                        .count = e->count,
                                        .write = e->is_write};
}

void method_record_accesses(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_record_accesses_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct placement *x = c->placement;
    struct hl_arena *arena = hl_rpc_call_arena(call);
    uint32_t limit = p->limit < RECORDED_MAX ? p->limit : RECORDED_MAX;
    struct hl_api_controller_record_accesses_results r = {.next = p->cursor};
    hl_status st = HL_OK;
    if (p->recording == 0)
        st = record_begin(x, &r.next);
    else if (!hl_recording_is_on(&x->recording) || p->recording != x->recording_id)
        st = hl_fail(HL_ENOENT, "this recording of accesses has ended: the Controller was "
                                "restarted, or no call fetched from it for a minute; record again");
    r.accesses.items = hl_arena_array(arena, limit, sizeof(*r.accesses.items));
    if (st == HL_OK && hl_arena_failed(arena))
        st = hl_fail(HL_ENOMEM, "out of memory for accesses of shards");
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    const struct hl_recorded *e;
    while (r.accesses.count < limit &&
           (e = hl_recording_take(&x->recording, &r.next, &r.lost)) != NULL)
        r.accesses.items[r.accesses.count++] = access_of(e, arena);
    x->recorded_ms = r.now_ms = placement_now_ms();
    r.recording = x->recording_id;
    hl_reply_controller_record_accesses(call, &r);
}
