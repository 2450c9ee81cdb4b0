#include "core/placement/saved.h"

#include <math.h>
#include <string.h>

#include "core/placement/rules.h"

void hl_saved_take(struct hl_placement *p, uint32_t index, struct hl_saved *out)
{
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    struct hl_change changes[HL_CHANGES_MAX];
    unsigned n = hl_life_history(&s->life, &p->history, index, changes);
    *out = (struct hl_saved){.use = s->use,
                             .window_ms = p->params.window_ms,
                             .place = s->place,
                             .changed_ms = s->changed_ms,
                             .change_count = n < HL_SAVED_CHANGES ? n : HL_SAVED_CHANGES};
    memcpy(out->changes, changes, out->change_count * sizeof(*changes));
    s->unsaved = false;
    s->kept = true;
}

void hl_saved_undo(struct hl_placement *p, struct hl_id id)
{
    uint32_t index = hl_shard_table_find(&p->shards, id);
    if (index != HL_SHARD_NONE)
        hl_shard_at(&p->shards, index)->unsaved = true;
}

static int64_t clamp_time(int64_t ms, int64_t now_ms)
{
    return ms < 0 ? 0 : ms < now_ms ? ms : now_ms;
}

static float clamp_float(float x)
{
    return x >= 0 && isfinite(x) ? x : 0;
}

/* Limits the values of a record so that arithmetic on them stays in bounds. */
static struct hl_attributes clamp_use(const struct hl_placement *p, const struct hl_attributes *in,
                                      int64_t now_ms)
{
    struct hl_attributes use = *in;
    use.interval_ms = clamp_float(use.interval_ms);
    use.interval_m2 = clamp_float(use.interval_m2);
    use.recent_moves = clamp_float(use.recent_moves);
    use.last_ms = use.last_ms < 0 ? -1 : clamp_time(use.last_ms, now_ms);
    use.placed_ms = clamp_time(use.placed_ms, now_ms);
    use.slice_ms = clamp_time(use.slice_ms, now_ms);
    use.window_ms = clamp_time(use.window_ms, now_ms);
    if (use.last_reader >= p->node_count)
        use.last_reader = HL_READER_NONE;
    for (unsigned i = 0; i < HL_READERS; i++)
        if (use.readers[i].node >= p->node_count)
            use.readers[i] = (struct hl_reader){.node = HL_READER_NONE};
    return use;
}

static hl_status find_placed(struct hl_placement *p, struct hl_id id, int64_t now_ms,
                             uint32_t *index)
{
    hl_placement_advance(p, now_ms);
    *index = hl_shard_table_find(&p->shards, id);
    return *index != HL_SHARD_NONE
               ? HL_OK
               : hl_fail(HL_ENOENT, "no shard %s is placed", hl_id_format(id).s);
}

hl_status hl_saved_give_use(struct hl_placement *p, struct hl_id id, const struct hl_saved *saved,
                            int64_t now_ms)
{
    uint32_t index;
    HL_TRY(find_placed(p, id, now_ms, &index));
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    if (s->use.last_ms >= 0 || s->use.moves > 0)
        return hl_fail(HL_ECONFLICT, "shard %s was read or moved already", hl_id_format(id).s);
    int64_t placed_ms = s->use.placed_ms;
    s->use = clamp_use(p, &saved->use, p->now_ms);
    if (saved->place.tier != s->place.tier || saved->place.node != s->place.node)
        s->use.placed_ms = placed_ms;
    if (saved->window_ms > 0 && saved->window_ms != p->params.window_ms)
        hl_attributes_rewindow(&s->use, &p->params, saved->window_ms, p->now_ms);
    s->crowded = hl_rules_are_crowded(s, &p->params);
    s->kept = true;
    hl_placement_touch(p, index);
    return HL_OK;
}

/* The number of changes that form a chain, the newest first: each begins in the state in which the
 * next one ends. */
static unsigned chain_length(const struct hl_saved *saved)
{
    unsigned n = 0;
    while (n < saved->change_count && n < HL_SAVED_CHANGES) {
        const struct hl_change *c = &saved->changes[n];
        bool known =
            c->from < HL_LIFE_STATES && c->to < HL_LIFE_STATES && c->event < HL_LIFE_EVENTS;
        if (!known || (n > 0 && c->to != saved->changes[n - 1].from))
            break;
        n++;
    }
    return n;
}

static bool are_about_copies(const struct hl_change *changes, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        if (changes[i].event != HL_LIFE_ON_LOST && changes[i].event != HL_LIFE_ON_FOUND)
            return false;
    return true;
}

hl_status hl_saved_give_life(struct hl_placement *p, struct hl_id id, const struct hl_saved *saved,
                             int64_t now_ms)
{
    uint32_t index;
    HL_TRY(find_placed(p, id, now_ms, &index));
    struct hl_placed_shard *s = hl_shard_at(&p->shards, index);
    struct hl_change since[HL_CHANGES_MAX];
    unsigned since_count = hl_life_history(&s->life, &p->history, index, since);
    if (!are_about_copies(since, since_count))
        return hl_fail(HL_ECONFLICT, "shard %s has a life already", hl_id_format(id).s);
    if (saved->place.tier != s->place.tier || saved->place.node != s->place.node)
        return HL_EBUSY;
    unsigned n = chain_length(saved), newest = 0;
    while (newest < n && hl_life_is_moving(saved->changes[newest].to))
        newest++;
    struct hl_life life = {.state = s->life.state, .lost = s->life.lost};
    for (unsigned i = n; i-- > newest;)
        hl_life_restore(&life, &p->history, index, &saved->changes[i]);
    if (n > 0 && saved->changes[0].event == HL_LIFE_ON_LOST && since_count == 0) {
        since[since_count++] = (struct hl_change){.at_ms = p->now_ms,
                                                  .event = HL_LIFE_ON_FOUND,
                                                  .node = s->place.node,
                                                  .value = s->place.tier};
    }
    for (unsigned i = since_count; i-- > 0;) {
        since[i].from = since[i].to = (enum hl_life_state)life.state;
        hl_life_restore(&life, &p->history, index, &since[i]);
    }
    s->life = life;
    s->changed_ms = newest == 0 ? clamp_time(saved->changed_ms, p->now_ms) : s->changed_ms;
    s->use.placed_ms = clamp_time(saved->use.placed_ms, p->now_ms);
    hl_placement_touch(p, index);
    return HL_OK;
}
