/* A cluster for the tests of the queue: servers with slots, and an exact planner. A gang takes
 * `slots` slots in units, each on one server. */
#ifndef HL_TESTS_UNIT_CORE_QUEUE_RIG_H
#define HL_TESTS_UNIT_CORE_QUEUE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/queue/queue.h"

#define RIG_SERVERS  8
#define RIG_PER      4
#define RIG_SLOTS    (RIG_SERVERS * RIG_PER)
#define RIG_GANGS    64
#define RIG_NOBODY   (-1)
#define RIG_GRACE_MS 10

struct rig {
    int servers, per; /* slots of a server */
    bool away[RIG_SERVERS];
    int owner[RIG_SLOTS];
    bool lent[RIG_SLOTS];
    bool reserved[RIG_SLOTS], open;    /* open: reservations are disabled */
    int place[RIG_SLOTS], place_count; /* the last place found */
    struct hl_queues queues;
    struct hl_queue_gang gangs[RIG_GANGS];
    int units[RIG_GANGS];
    bool old[RIG_GANGS][RIG_SLOTS]; /* slots that it used to have */
    int count;
    int questions;
    double used[HL_QUEUES_MAX];
    struct hl_queue_input in;
    struct hl_queue_pass pass;
};

static inline bool rig_is_free(const struct rig *r, int slot)
{
    return slot < r->servers * RIG_PER && slot % RIG_PER < r->per && !r->away[slot / RIG_PER] &&
           (r->owner[slot] == RIG_NOBODY || r->lent[slot]) && (!r->reserved[slot] || r->open);
}

static inline hl_status rig_fit(void *ctx, int gang, bool *fits)
{
    struct rig *r = ctx;
    int unit = r->units[gang], left = r->gangs[gang].slots;
    r->questions++;
    r->place_count = 0;
    for (int s = 0; s < r->servers && left > 0; s++) {
        int list[RIG_PER], n = 0;
        for (int k = 0; k < RIG_PER; k++)
            if (rig_is_free(r, s * RIG_PER + k))
                list[n++] = s * RIG_PER + k;
        n = n / unit * unit;
        for (int k = 0; k < n && left > 0; k++, left--)
            r->place[r->place_count++] = list[k];
    }
    *fits = left == 0;
    return HL_OK;
}

static inline hl_status rig_take(void *ctx, int gang)
{
    struct rig *r = ctx;
    assert_int_equal(r->place_count, r->gangs[gang].slots);
    for (int i = 0; i < r->place_count; i++) {
        assert_int_equal(r->owner[r->place[i]], RIG_NOBODY); /* no slot is held twice */
        r->owner[r->place[i]] = gang;
    }
    return HL_OK;
}

static inline void rig_lend(void *ctx, int gang, bool lent)
{
    struct rig *r = ctx;
    for (int i = 0; i < RIG_SLOTS; i++)
        if (r->owner[i] == gang) {
            assert_int_equal(r->lent[i], !lent); /* never twice */
            r->lent[i] = lent;
        }
}

static inline hl_status rig_reserve(void *ctx, int gang, bool of_old)
{
    struct rig *r = ctx;
    for (int i = 0; of_old && i < RIG_SLOTS; i++)
        if (r->old[gang][i] && rig_is_free(r, i))
            r->reserved[i] = true;
    for (int i = 0; !of_old && i < r->place_count; i++)
        r->reserved[r->place[i]] = true;
    return HL_OK;
}

static inline void rig_reservations(void *ctx, bool on)
{
    struct rig *r = ctx;
    r->open = !on;
}

static inline void rig_init(struct rig *r, int servers, int per, const char *queues)
{
    hl_queue_pass_fini(&r->pass);
    *r = (struct rig){.servers = servers, .per = per};
    for (int i = 0; i < RIG_SLOTS; i++)
        r->owner[i] = RIG_NOBODY;
    assert_int_equal(hl_queues_parse(queues, &r->queues), HL_OK);
    r->in = (struct hl_queue_input){.queues = &r->queues,
                                    .gangs = r->gangs,
                                    .used = r->used,
                                    .now_ms = 1000000,
                                    .grace_ms = RIG_GRACE_MS,
                                    .preempt = true};
}

/* A pending gang; each has a shape of its own. */
static inline int rig_add(struct rig *r, int queue, int priority, int slots, int unit)
{
    int g = r->count++;
    assert_in_range(g, 0, RIG_GANGS - 1);
    r->units[g] = unit;
    r->gangs[g] = (struct hl_queue_gang){.queue = queue,
                                         .priority = priority,
                                         .slots = slots,
                                         .seq = g,
                                         .shape = g,
                                         .since_ms = r->in.now_ms,
                                         .preemptor = -1};
    return g;
}

/* A gang that has been running since the rig's time, on the first free slots from a server on. */
static inline int rig_add_running(struct rig *r, int queue, int priority, int slots, int server)
{
    int g = rig_add(r, queue, priority, slots, 1);
    r->gangs[g].phase = HL_QUEUE_RUNS;
    r->gangs[g].placed_ms = r->in.now_ms;
    for (int i = server * RIG_PER; i < RIG_SLOTS && slots > 0; i++)
        if (rig_is_free(r, i)) {
            r->owner[i] = g;
            slots--;
        }
    assert_int_equal(slots, 0);
    return g;
}

static inline void rig_pass(struct rig *r)
{
    const struct hl_queue_planner planner = {.ctx = r,
                                             .fit = rig_fit,
                                             .take = rig_take,
                                             .lend = rig_lend,
                                             .reserve = rig_reserve,
                                             .reservations = rig_reservations};
    hl_queue_pass_fini(&r->pass);
    r->in.count = r->in.shapes = r->count;
    r->in.free_slots = 0;
    for (int i = 0; i < RIG_SLOTS; i++)
        r->in.free_slots += rig_is_free(r, i);
    assert_int_equal(hl_queue_pass(&r->in, &planner, &r->pass), HL_OK);
}

/* Reservations last for one pass, which leaves nothing else behind. */
static inline void rig_settle(struct rig *r)
{
    assert_false(r->open);
    for (int i = 0; i < RIG_SLOTS; i++) {
        assert_false(r->lent[i]);
        r->reserved[i] = false;
    }
}

#endif
