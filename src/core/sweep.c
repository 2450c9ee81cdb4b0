#include "core/sweep.h"

#include "core/catalog.h"

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
                /* created after now: the wall clock was set back */
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
