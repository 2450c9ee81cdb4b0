/* Uses: what is known of the use and the life of shards, kept in the store, so that a restarted
 * Controller does not begin from nothing.
 *
 *     pass timer   uses_run            shards that were used --> "use/ID", one batch at a time
 *     the start    placement_load_use  "use/ID" --> uses (table)
 *     a shard is placed, or found      uses_placed: its entry --> the placement
 *
 * Writes are bounded: USES_BATCH records per run of the timer, each shard at most once per
 * placement.keep_use, and USES_MAX records in all. So a restart of the Controller loses only what
 * came since the last write. It loses more if so many shards are in use that a lap takes longer, or
 * that there is no room for all; uses_gauges tells for how many. A record is deleted with its
 * shard. A record that can't be read counts as missing. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "controller/placement/placement_private.h"

#define USES_BATCH 256
#define USES_MAX   65536
#define USES_LOOK  65536 /* shards checked per run */
#define USES_AWAIT_MS                                                                              \
    (10 * 60 * INT64_C(1000)) /* how long a node may take to report that it has a shard */

/* A use from an earlier Controller, kept until the shard is placed where it was. */
struct kept_use {
    struct hl_id id;
    struct hl_saved saved;
    bool given; /* its use was handed over; its life still waits */
    UT_hash_handle hh;
};

/* ---- records --------------------------------------------------------------------------------- */

static int64_t past_to_wall(int64_t ms)
{
    return ms < 0 ? 0 : placement_wall_ms(ms);
}

static json_t *record_of(const struct hl_controller *c, const struct hl_saved *s)
{
    uint32_t slices[HL_SLICES];
    struct hl_api_use_reader readers[HL_READERS];
    struct hl_api_use_change changes[HL_SAVED_CHANGES];
    const struct hl_attributes *a = &s->use;
    struct hl_api_use_record r = {.last_ms = past_to_wall(a->last_ms),
                                  .last_node = placed_node_name(c, a->last_reader),
                                  .interval_ms = (double)a->interval_ms,
                                  .interval_m2 = (double)a->interval_m2,
                                  .intervals = a->intervals,
                                  .recent_moves = (double)a->recent_moves,
                                  .moves = a->moves,
                                  .window_ms = s->window_ms,
                                  .slice_ms = placement_wall_ms(a->slice_ms),
                                  .slices = {slices, HL_SLICES},
                                  .readers_ms = placement_wall_ms(a->window_ms),
                                  .readers = {readers, 0},
                                  .tier = (enum hl_api_tier)s->place.tier,
                                  .node = placed_node_name(c, s->place.node),
                                  .placed_ms = placement_wall_ms(a->placed_ms),
                                  .changed_ms = placement_wall_ms(s->changed_ms),
                                  .changes = {changes, s->change_count}};
    for (unsigned i = 0; i < HL_SLICES; i++)
        slices[i] = a->slices[i];
    for (unsigned i = 0; i < HL_READERS; i++)
        if (a->readers[i].node != HL_READER_NONE)
            readers[r.readers.count++] = (struct hl_api_use_reader){
                placed_node_name(c, a->readers[i].node), a->readers[i].now, a->readers[i].before};
    for (unsigned i = 0; i < s->change_count; i++) {
        const struct hl_change *x = &s->changes[i];
        changes[i] = (struct hl_api_use_change){.time_ms = placement_wall_ms(x->at_ms),
                                                .from = hl_life_state_text(x->from),
                                                .to = hl_life_state_text(x->to),
                                                .reason = hl_life_event_text(x->event),
                                                .node = placed_node_name(c, x->node),
                                                .value = x->value,
                                                .limit = x->limit};
    }
    return hl_api_to_json(&hl_api_use_record_type, &r);
}

/* A node that is no longer known counts as none. */
static uint16_t node_index(struct hl_controller *c, const char *name)
{
    const struct placed_node *n =
        name[0] != '\0' && node_find(c, name) != NULL ? placed_node_need(c, name) : NULL;
    return n != NULL ? n->index : HL_READER_NONE;
}

static int64_t wall_to_past(int64_t wall_ms, int64_t now_ms, int64_t wall_now_ms)
{
    int64_t age = wall_now_ms - wall_ms;
    return age < 0 ? now_ms : age < HL_HISTORY_BACK_MS ? now_ms - age : now_ms - HL_HISTORY_BACK_MS;
}

static uint16_t count_of(uint32_t count)
{
    return count < UINT16_MAX ? (uint16_t)count : UINT16_MAX;
}

static struct hl_change change_of(struct hl_controller *c, const struct hl_api_use_change *r,
                                  int64_t now_ms, int64_t wall_ms)
{
    struct hl_change x = {.at_ms = wall_to_past(r->time_ms, now_ms, wall_ms),
                          .node = node_index(c, r->node),
                          .value = r->value,
                          .limit = r->limit};
    while (x.event < HL_LIFE_EVENTS && strcmp(hl_life_event_text(x.event), r->reason) != 0)
        x.event++;
    while (x.from < HL_LIFE_STATES && strcmp(hl_life_state_text(x.from), r->from) != 0)
        x.from++;
    while (x.to < HL_LIFE_STATES && strcmp(hl_life_state_text(x.to), r->to) != 0)
        x.to++;
    return x;
}

static void saved_read(struct hl_controller *c, const struct hl_api_use_record *r,
                       struct hl_saved *s)
{
    int64_t now = placement_now_ms(), wall = hl_wall_ms();
    *s = (struct hl_saved){
        .window_ms = r->window_ms,
        .place = {.node = node_index(c, r->node), .tier = (uint8_t)r->tier},
        .changed_ms = wall_to_past(r->changed_ms, now, wall),
        .use = {.interval_ms = (float)r->interval_ms,
                .interval_m2 = (float)r->interval_m2,
                .intervals = (uint8_t)(r->intervals < UINT8_MAX ? r->intervals : UINT8_MAX),
                .recent_moves = (float)r->recent_moves,
                .moves = count_of(r->moves),
                .last_ms = r->last_ms > 0 ? wall_to_past(r->last_ms, now, wall) : -1,
                .last_reader = node_index(c, r->last_node),
                .placed_ms = wall_to_past(r->placed_ms, now, wall),
                .slice_ms = wall_to_past(r->slice_ms, now, wall),
                .window_ms = wall_to_past(r->readers_ms, now, wall)}};
    for (unsigned i = 0; i < HL_SLICES && i < r->slices.count; i++)
        s->use.slices[i] = count_of(r->slices.items[i]);
    for (unsigned i = 0; i < HL_READERS; i++) {
        const struct hl_api_use_reader *x = i < r->readers.count ? &r->readers.items[i] : NULL;
        s->use.readers[i] = x != NULL ? (struct hl_reader){.node = node_index(c, x->node),
                                                           .now = count_of(x->now),
                                                           .before = count_of(x->before)}
                                      : (struct hl_reader){.node = HL_READER_NONE};
    }
    for (; s->change_count < HL_SAVED_CHANGES && s->change_count < r->changes.count;
         s->change_count++)
        s->changes[s->change_count] = change_of(c, &r->changes.items[s->change_count], now, wall);
}

hl_status placement_load_use(struct hl_controller *c, const char *key, const json_t *record)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_use_record r;
    struct hl_id id;
    HL_TRY(hl_id_parse(key + strlen("use/"), &id));
    if (c->placement->conf.keep_use_ms == 0) {
        uses_gone(c, id);
        return HL_OK;
    }
    HL_TRY(hl_api_from_json(&hl_api_use_record_type, record, &arena, &r));
    struct kept_use *u = calloc(1, sizeof(*u));
    if (u == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the use of shard %s", hl_id_format(id).s);
    u->id = id;
    saved_read(c, &r, &u->saved);
    HASH_ADD(hh, c->placement->uses, id, sizeof(u->id), u);
    c->placement->uses_kept++;
    return HL_OK;
}

/* ---- giving them back ------------------------------------------------------------------------ */

static void use_free(struct hl_controller *c, struct kept_use *u)
{
    HASH_DEL(c->placement->uses, u);
    free(u);
}

void uses_placed(struct hl_controller *c, struct hl_id id)
{
    struct placement *p = c->placement;
    struct kept_use *u = NULL;
    if (p->uses == NULL)
        return;
    HASH_FIND(hh, p->uses, &id, sizeof(id), u);
    if (u == NULL)
        return;
    int64_t now = placement_now_ms();
    hl_status st = u->given ? HL_OK : hl_saved_give_use(&p->core, id, &u->saved, now);
    u->given = true;
    if (st == HL_OK)
        st = hl_saved_give_life(&p->core, id, &u->saved, now);
    if (st == HL_EBUSY)
        return; /* its node has not reported the shard yet */
    if (st != HL_OK)
        hl_debug("use of a shard: %s", hl_error_text());
    use_free(c, u);
}

/* ---- keeping them ---------------------------------------------------------------------------- */

/* A batch on its way to the store. */
struct use_batch {
    struct hl_controller *c;
    size_t count;
    struct hl_id ids[USES_BATCH];
};

static void batch_end(struct use_batch *b, hl_status st, const char *text)
{
    struct placement *p = b->c->placement;
    p->uses_writing = false;
    for (size_t i = 0; st != HL_OK && i < b->count; i++)
        hl_saved_undo(&p->core, b->ids[i]);
    if (trouble_is_new(&p->uses_trouble, st))
        hl_warn("the use of shards can't be stored, a restart forgets it error=\"%s\"", text);
    free(b);
}

static void on_uses_written(void *arg, hl_status st, const char *text)
{
    struct use_batch *b = arg;
    if (controller_stopped(b->c))
        free(b);
    else
        batch_end(b, st, text);
}

static hl_status gone_add(struct placement *p, struct hl_records *records)
{
    for (; p->uses_gone_count > 0 && records->count < USES_BATCH; p->uses_gone_count--)
        HL_TRY(hl_records_add(records, NULL, "use/%s",
                              hl_id_format(p->uses_gone[p->uses_gone_count - 1]).s));
    return HL_OK;
}

/* True: the record does not fit. */
static bool use_is_left_out(const struct placement *p, const struct hl_placed_shard *s)
{
    return s->used && s->unsaved && !s->kept && p->uses_kept >= USES_MAX;
}

static void lap_end(struct placement *p)
{
    if (p->uses_lap_left > 0 && p->uses_left == 0)
        hl_warn("the use of some shards is not kept, a restart forgets it shards=%u records=%u; "
                "from now on helios_shard_uses says how many",
                p->uses_lap_left, p->uses_kept);
    p->uses_left = p->uses_lap_left;
    p->uses_lap_left = 0;
    p->uses_at = 0;
}

void uses_gauges(const struct hl_controller *c, struct hl_buf *out)
{
    const struct placement *p = c->placement;
    unsigned waiting = 0, left_out = 0;
    if (p->conf.keep_use_ms == 0)
        return; /* because the options say so */
    for (uint32_t i = 0; i < p->core.shards.end; i++) {
        const struct hl_placed_shard *s = hl_shard_at(&p->core.shards, i);
        bool left = use_is_left_out(p, s);
        left_out += left;
        waiting += s->used && s->unsaved && !left;
    }
    hl_metric_family(out, "helios_shard_uses", "gauge",
                     "Shards by their use: kept in the store, waiting to be stored, or left out "
                     "for lack of room.");
    (void)hl_buf_printf(out,
                        "helios_shard_uses{state=\"kept\"} %u\n"
                        "helios_shard_uses{state=\"waiting\"} %u\n"
                        "helios_shard_uses{state=\"left_out\"} %u\n",
                        p->uses_kept, waiting, left_out);
}

static hl_status use_add(struct hl_controller *c, uint32_t index, struct use_batch *b,
                         struct hl_records *records)
{
    struct placement *p = c->placement;
    const struct hl_placed_shard *s = hl_shard_at(&p->core.shards, index);
    struct hl_saved saved;
    p->uses_kept += !s->kept;
    hl_saved_take(&p->core, index, &saved);
    b->ids[b->count++] = s->id;
    json_t *record = record_of(c, &saved);
    return record != NULL
               ? hl_records_add(records, record, "use/%s", hl_id_format(s->id).s)
               : hl_fail(HL_ENOMEM, "out of memory for the use of shard %s", hl_id_format(s->id).s);
}

/* Continues where the last run stopped; a lap begins no sooner than placement.keep_use after the
 * previous one. */
static hl_status used_add(struct hl_controller *c, struct use_batch *b, struct hl_records *records)
{
    struct placement *p = c->placement;
    int64_t now = placement_now_ms();
    if (p->uses_at == 0 && (p->conf.keep_use_ms == 0 || now - p->uses_lap_ms < p->conf.keep_use_ms))
        return HL_OK;
    if (p->uses_at == 0)
        p->uses_lap_ms = now;
    for (unsigned left = USES_LOOK; left > 0 && p->uses_at < p->core.shards.end; left--) {
        if (records->count >= USES_BATCH)
            return HL_OK;
        const struct hl_placed_shard *s = hl_shard_at(&p->core.shards, p->uses_at);
        if (use_is_left_out(p, s))
            p->uses_lap_left++;
        else if (s->used && s->unsaved)
            HL_TRY(use_add(c, p->uses_at, b, records));
        p->uses_at++;
    }
    if (p->uses_at >= p->core.shards.end)
        lap_end(p);
    return HL_OK;
}

static void uses_expire(struct hl_controller *c)
{
    struct placement *p = c->placement;
    struct kept_use *u, *next;
    if (p->uses == NULL || placement_now_ms() - p->started_ms < USES_AWAIT_MS)
        return;
    HASH_ITER (hh, p->uses, u, next) {
        if (hl_catalog_shard(&c->catalog, u->id) == NULL)
            uses_gone(c, u->id);
        use_free(c, u);
    }
}

void uses_run(struct hl_controller *c)
{
    struct placement *p = c->placement;
    struct hl_records records = {0};
    uses_expire(c);
    struct use_batch *b = p->uses_writing ? NULL : calloc(1, sizeof(*b));
    if (b == NULL)
        return;
    b->c = c;
    hl_status st = gone_add(p, &records);
    if (st == HL_OK)
        st = used_add(c, b, &records);
    if (st == HL_OK && records.count == 0) {
        free(b);
        return;
    }
    p->uses_writing = true;
    if (st == HL_OK)
        st = controller_write(c, &records, on_uses_written, b);
    if (st != HL_OK)
        batch_end(b, st, hl_error_text());
    hl_records_fini(&records);
}

void uses_gone(struct hl_controller *c, struct hl_id id)
{
    struct placement *p = c->placement;
    if (p->uses_gone_count == p->uses_gone_room) {
        size_t room = p->uses_gone_room == 0 ? USES_BATCH : p->uses_gone_room * 2;
        struct hl_id *more = realloc(p->uses_gone, room * sizeof(*more));
        if (more == NULL)
            return; /* the next start finds that the shard is gone */
        p->uses_gone = more;
        p->uses_gone_room = room;
    }
    p->uses_gone[p->uses_gone_count++] = id;
    p->uses_kept -= p->uses_kept > 0;
}

void uses_fini(struct hl_controller *c)
{
    struct kept_use *u, *next;
    HASH_ITER (hh, c->placement->uses, u, next) {
        use_free(c, u);
    }
    free(c->placement->uses_gone);
    c->placement->uses_gone = NULL;
}
