/* What a thread did, and when. The memory grows by doubling, so a record usually costs one
 * store. */
#include <stdbool.h>
#include <stdlib.h>

#include "maco/cpu/runtime_private.h"
#include "maco/plan/plan.h"

#define FIRST_ROOM 1024

static bool grow_records(struct hl_maco_thread *w)
{
    size_t room = w->record_room > 0 ? 2 * w->record_room : FIRST_ROOM;
    struct hl_maco_record *r = realloc(w->records, room * sizeof(*r));
    if (r == NULL) {
        w->unrecorded = 1;
        return false;
    }
    w->records = r;
    w->record_room = room;
    return true;
}

/* Times are in ticks until the records are read. */
void hl_maco_record(struct hl_maco_thread *w, uint32_t task, uint16_t kind, uint64_t from,
                    uint64_t to)
{
    const struct hl_maco_state *s = w->rt->state;
    w->tick = to;
    if (task != MACO_NONE && s->view.id != NULL && s->view.id[task] == MACO_NONE)
        return; /* a join */
    if (kind == HL_MACO_WAIT && w->role == HL_MACO_PROXY)
        return; /* a waiting link is a gap between its transfers */
    if (w->n_records == w->record_room && !grow_records(w))
        return;
    struct hl_maco_record r = {.start_ns = from, .end_ns = to, .task = task, .kind = kind};
    r.worker = (uint16_t)w->index;
    if (kind == HL_MACO_WAIT && w->waits != MACO_NONE) {
        const maco_event *e = &s->events[w->waits];
        uint64_t before = e->needed * (s->iteration - 1);
        r.have = (uint32_t)(__atomic_load_n(&e->count, __ATOMIC_RELAXED) - before);
        r.need = e->needed;
    }
    w->records[w->n_records++] = r;
}

hl_status hl_maco_run_records(const maco_runtime *rt, struct hl_maco_record **records, size_t *n)
{
    size_t total = 0, at = 0;
    if (!hl_maco_quiet(rt))
        return hl_fail(HL_EBUSY, "a thread is still at work in the last run");
    for (uint32_t i = 0; i < hl_maco_threads(rt); i++) {
        total += rt->threads[i].n_records;
        if (rt->threads[i].unrecorded)
            return hl_fail(HL_ENOMEM, "out of memory allocating the records of the run");
    }
    struct hl_maco_record *all = malloc((total + 1) * sizeof(*all));
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu records", total);
    for (uint32_t i = 0; i < hl_maco_threads(rt); i++)
        for (size_t k = 0; k < rt->threads[i].n_records; k++) {
            struct hl_maco_record r = rt->threads[i].records[k];
            r.start_ns = hl_tick_ns(&rt->clock, r.start_ns);
            r.end_ns = hl_tick_ns(&rt->clock, r.end_ns);
            all[at++] = r;
        }
    *records = all;
    *n = total;
    return HL_OK;
}
