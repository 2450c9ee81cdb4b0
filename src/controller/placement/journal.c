/* The journal of moves: one record for each unfinished move, written before the step that it
 * describes is carried out. That record alone decides which copy of a moving shard is in force, so
 * its commit is the switch. In the records nodes have names, and times are wall-clock times. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/placement/placement_private.h"

static const char ordered[] = "ordered";

static const char *reason_text(enum hl_life_event reason)
{
    return reason < HL_LIFE_EVENTS ? hl_life_event_text(reason) : ordered;
}

static enum hl_life_event reason_of(const char *text)
{
    unsigned i = 0;
    while (i < HL_LIFE_EVENTS && strcmp(hl_life_event_text((enum hl_life_event)i), text) != 0)
        i++;
    return (enum hl_life_event)i;
}

static json_t *move_record(const struct hl_controller *c, const struct hl_move_rec *rec)
{
    const struct hl_move_order *o = &rec->order;
    const struct hl_id_text shard = hl_id_format(o->shard);
    const struct hl_api_move_record r = {
        .shard = shard.s,
        .phase = hl_move_phase_text(rec->phase),
        .from_tier = (enum hl_api_tier)o->from.tier,
        .from_node = placed_node_name(c, o->from.node),
        .tier = (enum hl_api_tier)o->goal.tier,
        .node = placed_node_name(c, o->goal.node),
        .keep_source = o->keep_source,
        .reason = reason_text(o->reason),
        .value = o->value,
        .limit = o->limit,
        .gain_seconds = o->gain_s,
        .cost_seconds = o->cost_s,
        .priority = o->priority,
        .size_bytes = o->size_bytes,
        .crc32 = o->crc32,
        .goal_had = o->goal_had,
        .bytes_per_s = o->bytes_per_s,
        .began_ms = placement_wall_ms(rec->began_ms),
        .switched_ms = rec->switched_ms != 0 ? placement_wall_ms(rec->switched_ms) : 0};
    return hl_api_to_json(&hl_api_move_record_type, &r);
}

hl_status move_record_write(struct hl_controller *c, const struct hl_move_rec *rec, bool erase,
                            hl_store_written done, void *arg)
{
    struct hl_records records = {0};
    json_t *value = erase ? NULL : move_record(c, rec);
    hl_status st = !erase && value == NULL
                       ? hl_fail(HL_ENOMEM, "out of memory for the record of a move")
                       : hl_records_add(&records, value, "move/%s", hl_id_format(rec->order.id).s);
    if (st == HL_OK)
        st = controller_write(c, &records, done, arg);
    hl_records_fini(&records);
    return st;
}

static hl_status place_read(struct hl_controller *c, enum hl_api_tier tier, const char *node,
                            struct hl_place *out)
{
    const struct placed_node *n = node[0] != '\0' ? placed_node_need(c, node) : NULL;
    if ((tier == HL_API_TIER_L1 || tier == HL_API_TIER_L2) != (n != NULL))
        return hl_fail(HL_EINVAL, "%s of node '%.100s'", hl_api_tier_name(tier), node);
    *out = (struct hl_place){.node = n != NULL ? n->index : HL_READER_NONE, .tier = (uint8_t)tier};
    return HL_OK;
}

static enum hl_move_phase phase_of(const char *text)
{
    unsigned i = 0;
    while (i < HL_MOVE_PHASES && strcmp(hl_move_phase_text((enum hl_move_phase)i), text) != 0)
        i++;
    return (enum hl_move_phase)i;
}

static hl_status move_read(struct hl_controller *c, const struct hl_api_move_record *r,
                           struct hl_id id, struct hl_move_rec *out)
{
    int64_t now = placement_now_ms();
    struct hl_move_rec rec = {
        .order = {.id = id,
                  .keep_source = r->keep_source,
                  .goal_had = r->goal_had,
                  .reason = reason_of(r->reason),
                  .value = r->value,
                  .limit = r->limit,
                  .gain_s = r->gain_seconds,
                  .cost_s = r->cost_seconds,
                  .priority = (uint8_t)r->priority,
                  .size_bytes = r->size_bytes,
                  .crc32 = r->crc32,
                  .bytes_per_s = r->bytes_per_s},
        .phase = phase_of(r->phase),
        .began_ms = now - (hl_wall_ms() - r->began_ms),
        .switched_ms = r->switched_ms != 0 ? now : 0,
        .status =
            strcmp(r->phase, hl_move_phase_text(HL_MOVE_PHASE_UNDOING)) == 0 ? HL_ESTALE : HL_OK};
    HL_TRY(hl_id_parse(r->shard, &rec.order.shard));
    HL_TRY(place_read(c, r->from_tier, r->from_node, &rec.order.from));
    HL_TRY(place_read(c, r->tier, r->node, &rec.order.goal));
    rec.order.copy_ms =
        c->opts.copy_timeout_ms + copy_paced_ms(rec.order.size_bytes, rec.order.bytes_per_s);
    rec.order.copy_ms = budget_copy_ms(c, &rec.order);
    *out = rec;
    return HL_OK;
}

hl_status placement_load_move(struct hl_controller *c, const char *key, const json_t *record)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_move_record r;
    struct hl_move_rec rec;
    struct hl_id id;
    HL_TRY(hl_id_parse(key + strlen("move/"), &id));
    HL_TRY(hl_api_from_json(&hl_api_move_record_type, record, &arena, &r));
    HL_TRY(move_read(c, &r, id, &rec));
    HL_TRY(hl_migration_restore(&c->placement->moves, &rec, placement_now_ms()));
    hl_info("move in the journal continues id=%s shard=%s phase=%s", hl_id_format(id).s, r.shard,
            r.phase);
    return HL_OK;
}
