/* Shows users what is known about the use and the place of a shard, and what the policy made of it.
 */
#include <inttypes.h>

#include "base/clock.h"
#include "base/plane.h"
#include "controller/placement/placement_private.h"
#include "core/catalog/sweep.h"

#define WRONG_MAX 64 /* nodes that are named */

static struct hl_api_shard_reader_list readers_of(const struct hl_controller *c,
                                                  const struct hl_placed_shard *s, int64_t now_ms,
                                                  struct hl_arena *arena)
{
    struct hl_reader_count counts[HL_READERS];
    unsigned n = hl_attributes_readers(&s->use, &c->placement->core.params, now_ms, counts);
    struct hl_api_shard_reader_list list = {hl_arena_array(arena, n, sizeof(*list.items)), 0};
    for (unsigned i = 0; list.items != NULL && i < n; i++)
        list.items[list.count++] =
            (struct hl_api_shard_reader){placed_node_name(c, counts[i].node), counts[i].count};
    return list;
}

static struct hl_api_shard_change_list changes_of(const struct hl_controller *c, struct hl_id id,
                                                  struct hl_arena *arena)
{
    struct hl_change changes[HL_CHANGES_MAX];
    unsigned n = hl_placement_shard_history(&c->placement->core, id, changes);
    struct hl_api_shard_change_list list = {hl_arena_array(arena, n, sizeof(*list.items)), 0};
    for (unsigned i = 0; list.items != NULL && i < n; i++)
        list.items[list.count++] =
            (struct hl_api_shard_change){.time_ms = placement_wall_ms(changes[i].at_ms),
                                         .from = hl_life_state_text(changes[i].from),
                                         .to = hl_life_state_text(changes[i].to),
                                         .reason = hl_life_event_text(changes[i].event),
                                         .node = placed_node_name(c, changes[i].node),
                                         .value = changes[i].value,
                                         .limit = changes[i].limit,
                                         .numbers = hl_life_event_numbers(changes[i].event)};
    return list;
}

static struct hl_api_text_list refused_by(struct hl_controller *c, struct hl_id id,
                                          struct hl_arena *arena)
{
    struct place wrong[WRONG_MAX];
    size_t n = copies_wrong(c, id, wrong, WRONG_MAX);
    struct hl_api_text_list list = {hl_arena_array(arena, WRONG_MAX, sizeof(*list.items)), 0};
    for (size_t i = 0; list.items != NULL && i < n && i < WRONG_MAX; i++)
        list.items[list.count++] = wrong[i].node->name;
    return list;
}

static struct hl_api_shard_decision decision_of(const struct hl_controller *c, struct hl_id id)
{
    const struct noted_decision *n = noted_find(c, id);
    if (n == NULL)
        return (struct hl_api_shard_decision){
            .reason = "", .numbers = "", .node = "", .backbone_percent = -1};
    const struct hl_decision *d = &n->decision;
    return (struct hl_api_shard_decision){.time_ms = n->at_ms,
                                          .reason = hl_life_event_text(d->event),
                                          .value = d->value,
                                          .limit = d->limit,
                                          .numbers = hl_life_event_numbers(d->event),
                                          .tier = (enum hl_api_tier)d->goal.tier,
                                          .node = placed_node_name(c, d->goal.node),
                                          .gain_seconds = d->gain_s,
                                          .cost_seconds = d->cost_s,
                                          .carried_out = n->carried_out,
                                          .backbone_percent = n->busy_pct};
}

static struct hl_api_shard_placement shard_describe(struct hl_controller *c,
                                                    const struct hl_placed_shard *s,
                                                    const struct hl_shard_rec *rec,
                                                    struct hl_arena *arena)
{
    const struct hl_placement_params *params = &c->placement->core.params;
    const struct hl_attributes *use = &s->use;
    int64_t now = placement_now_ms();
    bool moves =
        hl_life_is_moving((enum hl_life_state)s->life.state) && s->life.state != HL_LIFE_MIGRATED;
    return (struct hl_api_shard_placement){
        .id = hl_id_print(s->id, arena),
        .state = hl_life_state_text((enum hl_life_state)s->life.state),
        .since_ms = placement_wall_ms(s->changed_ms),
        .tier = (enum hl_api_tier)s->place.tier,
        .node = placed_node_name(c, s->place.node),
        .goal_tier = moves ? (enum hl_api_tier)s->goal.tier : HL_API_TIER_UNSAID,
        .goal_node = moves ? placed_node_name(c, s->goal.node) : "",
        .pinned = s->pinned,
        .pinned_version = pin_has_version(c, rec->version),
        .heat = hl_attributes_heat(use, params, now),
        .stability = hl_attributes_stability(use, params, now),
        .fluidity = hl_attributes_fluidity(use, params, now),
        .accesses = hl_attributes_count(use, params, now),
        .window_ms = params->window_ms,
        .last_access_ms = use->last_ms >= 0 ? placement_wall_ms(use->last_ms) : -1,
        .moves = use->moves,
        .readers = readers_of(c, s, now, arena),
        .changes = changes_of(c, s->id, arena),
        .decision = decision_of(c, s->id),
        .refused_by = refused_by(c, s->id, arena)};
}

void method_shard_placement(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_shard_placement_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct hl_id id = {0};
    hl_status st = hl_id_parse(p->id, &id);
    const struct hl_shard_rec *rec = st == HL_OK ? hl_catalog_shard(&c->catalog, id) : NULL;
    const struct hl_placed_shard *s = placement_find(c, id);
    if (st == HL_OK && (rec == NULL || s == NULL))
        st = hl_fail(HL_ENOENT,
                     "shard %s is not placed: it has no readable copy, or belongs to no "
                     "visible version",
                     p->id);
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    hl_reply_controller_shard_placement(
        call, &(struct hl_api_controller_shard_placement_results){
                  .placement = shard_describe(c, s, rec, hl_rpc_call_arena(call))});
}

/* No reader of the version waits for the archive. */
static bool version_in_memory(struct hl_controller *c, const struct hl_version_rec *v)
{
    struct place places[PLACES_MAX];
    for (size_t i = 0; i < v->shard_count; i++) {
        if (hl_shard_is_pooled(v->shards[i]))
            continue;
        size_t n = copies_places(c, v->shards[i]->id, HL_API_TIER_L1, places, PLACES_MAX);
        bool found = false;
        for (size_t k = 0; k < n && k < PLACES_MAX && !found; k++)
            found = places[k].tier != HL_API_TIER_L4;
        if (!found)
            return false;
    }
    return v->shard_count > 0;
}

void placement_describe_version(struct hl_controller *c, const struct hl_version_rec *v,
                                struct hl_api_model_version *version)
{
    struct hl_set_view view;
    version->pinned = pin_has_version(c, v);
    version->in_memory = version_in_memory(c, v);
    if (set_look(c, v, &view))
        version->heat = view.heat;
}

static void count_fates(const struct hl_placement *p, struct hl_buf *out)
{
    hl_metric_family(out, "helios_access_reports_total", "counter",
                     "Reports of reads, by what became of them.");
    for (int i = 0; i < HL_REPORT_FATES; i++)
        (void)hl_buf_printf(out, "helios_access_reports_total{fate=\"%s\"} %" PRIu64 "\n",
                            hl_report_fate_text((enum hl_report_fate)i), p->stats.reports[i]);
}

void placement_gauges(struct hl_controller *c, struct hl_buf *out)
{
    const struct hl_placement *p = &c->placement->core;
    unsigned states[HL_LIFE_STATES] = {0};
    for (uint32_t i = 0; i < p->shards.end; i++)
        if (hl_shard_is_used(&p->shards, i))
            states[hl_shard_at(&p->shards, i)->life.state]++;
    hl_metric_family(out, "helios_shards", "gauge", "Placed shards by state of their life.");
    for (int i = 0; i < HL_LIFE_STATES; i++)
        (void)hl_buf_printf(out, "helios_shards{state=\"%s\"} %u\n",
                            hl_life_state_text((enum hl_life_state)i), states[i]);
    count_fates(p, out);
    hl_metric_family(out, "helios_accesses_total", "counter", "Reads of shards that count.");
    (void)hl_buf_printf(out, "helios_accesses_total %" PRIu64 "\n", p->stats.accesses);
    hl_metric_family(out, "helios_accesses_unnamed_total", "counter",
                     "Reads by processes that read more shards than they can count one by one.");
    (void)hl_buf_printf(out, "helios_accesses_unnamed_total %" PRIu64 "\n",
                        c->placement->unnamed_reads);
    hl_metric_family(out, "helios_placement_passes_total", "counter",
                     "Passes of the placement policy that were completed.");
    (void)hl_buf_printf(out, "helios_placement_passes_total %" PRIu64 "\n", c->placement->passes);
    uses_gauges(c, out);
    warm_gauges(c, out);
    double busy = backbone_busy_pct(c);
    if (busy < 0)
        return;
    hl_metric_family(out, "helios_backbone_busy_ratio", "gauge",
                     "Use of the backbone that raises policy.migrate_base.");
    (void)hl_buf_printf(out, "helios_backbone_busy_ratio %.4f\n", busy / 100);
}
