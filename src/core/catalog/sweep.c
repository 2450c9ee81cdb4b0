#include "core/catalog/sweep.h"

#include "core/catalog/catalog.h"

#define UNKNOWN_NS UINT64_C(2000000000) /* longest time until a node hears of a removal */

void hl_orphan_see(struct hl_orphan *orphan, const struct hl_sweep *sweep, bool archived)
{
    if (orphan->round == 0)
        *orphan = (struct hl_orphan){
            .since_ns = sweep->now_ns, .since_ms = sweep->now_ms, .first_round = sweep->round};
    orphan->archived = archived || (orphan->archived && orphan->round == sweep->round);
    orphan->round = sweep->round;
}

bool hl_sweep_has_open_version(const struct hl_catalog *catalog)
{
    for (const struct hl_model_rec *m = catalog->models; m != NULL; m = m->hh.next)
        for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            if (v->state == HL_API_VERSION_STATE_OPEN)
                return true;
    return false;
}

bool hl_sweep_being_written(const struct hl_catalog *catalog, int64_t since_ms, int64_t now_ms)
{
    for (const struct hl_model_rec *m = catalog->models; m != NULL; m = m->hh.next)
        for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            if (v->state == HL_API_VERSION_STATE_OPEN &&
                /* created in the future: the wall clock was set back */
                (v->created_ms <= since_ms || v->created_ms > now_ms))
                return true;
    return false;
}

enum hl_orphan_fate hl_sweep_orphan(const struct hl_orphan *orphan, bool is_known,
                                    const struct hl_sweep *sweep, const struct hl_catalog *catalog)
{
    if (orphan->round != sweep->round || is_known)
        return HL_ORPHAN_FORGOTTEN;
    if (sweep->importing || orphan->first_round == sweep->round)
        return HL_ORPHAN_WAITS;
    uint64_t grace_ns = hl_sweep_has_open_version(catalog) ? sweep->grace_ns : 1;
    if (sweep->now_ns - orphan->since_ns < grace_ns ||
        hl_sweep_being_written(catalog, orphan->since_ms, sweep->now_ms))
        return HL_ORPHAN_WAITS;
    return HL_ORPHAN_FREED;
}

bool hl_sweep_copy_goes(bool removed, uint64_t unknown_ns, bool has_open_version,
                        const struct hl_sweep *sweep)
{
    uint64_t grace_ns = has_open_version ? sweep->grace_ns : UNKNOWN_NS;
    return removed || sweep->now_ns - unknown_ns >= grace_ns;
}

/* ---- shards of versions ---------------------------------------------------------------------- */

bool hl_shard_is_pooled(const struct hl_shard_rec *s)
{
    return !s->dropping && s->missed < HL_SWEEP_LOST_MISSES;
}

bool hl_shard_is_archived(const struct hl_shard_rec *s)
{
    return s->archived && !s->unarchiving;
}

void hl_sweep_made(struct hl_shard_rec *s, enum hl_api_tier tier, unsigned round)
{
    if (tier == HL_API_TIER_L4) {
        s->archived = true;
        s->archive_round = round;
    } else {
        s->missed = 0;
        s->seen_round = round;
    }
    s->lost = s->unusable;
}

void hl_sweep_dropped(struct hl_shard_rec *s, enum hl_api_tier tier)
{
    if (tier == HL_API_TIER_L4) {
        s->archived = false;
        s->archive_round = 0;
    } else {
        s->missed = HL_SWEEP_LOST_MISSES;
        s->seen_round = 0;
    }
}

bool hl_sweep_count(struct hl_shard_rec *s, unsigned round)
{
    bool was_pooled = hl_shard_is_pooled(s), was_archived = s->archived;
    s->missed = s->seen_round == round ? 0 : s->missed + 1;
    s->archived = s->archive_round == round;
    bool pooled = hl_shard_is_pooled(s);
    return pooled != was_pooled || (!pooled && s->archived != was_archived);
}

enum hl_sweep_turn hl_sweep_settle(struct hl_shard_rec *s, bool has_copies)
{
    bool was_lost = s->lost;
    s->lost = s->unusable || (s->missed >= HL_SWEEP_LOST_MISSES && !has_copies);
    if (was_lost && !s->lost)
        return HL_SWEEP_FOUND;
    return s->lost && !was_lost && s->cut == NULL ? HL_SWEEP_LOST : HL_SWEEP_SAME;
}

bool hl_sweep_archives(const struct hl_shard_rec *s)
{
    return s->version->state == HL_API_VERSION_STATE_VISIBLE && s->cut == NULL && !s->archived &&
           !s->unarchiving && !s->dropping && s->missed == 0;
}

/* ---- manifests ------------------------------------------------------------------------------- */

enum hl_manifest_fate hl_sweep_manifest(const struct hl_manifest_seen *seen, unsigned round)
{
    bool pooled = seen->pool == round, archived = seen->archive == round;
    if (seen->wanted != round)
        return pooled || archived ? HL_MANIFEST_ORPHAN : HL_MANIFEST_GONE;
    if (archived)
        return HL_MANIFEST_KEPT;
    return pooled ? HL_MANIFEST_POOLED : HL_MANIFEST_MISSING;
}
