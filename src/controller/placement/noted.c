/* The policy's last decision on each shard, kept for queries. */
#include <stdlib.h>

#include "base/clock.h"
#include "controller/placement/placement_private.h"

static struct noted_decision *noted_at(const struct hl_controller *c, struct hl_id id)
{
    struct noted_decision *n;
    HASH_FIND(hh, c->placement->noted, &id, sizeof(id), n);
    return n;
}

const struct noted_decision *noted_find(const struct hl_controller *c, struct hl_id id)
{
    return noted_at(c, id);
}

bool noted_add(struct hl_controller *c, const struct hl_decision *d, bool carried_out)
{
    struct placement *p = c->placement;
    struct noted_decision *n = noted_at(c, d->shard);
    bool is_new = n == NULL || n->decision.event != d->event ||
                  n->decision.goal.tier != d->goal.tier || n->decision.goal.node != d->goal.node ||
                  n->carried_out != carried_out;
    if (n == NULL) {
        if ((n = calloc(1, sizeof(*n))) == NULL)
            return false; /* then it is not shown */
        n->id = d->shard;
        HASH_ADD(hh, p->noted, id, sizeof(n->id), n);
    }
    if (is_new)
        n->at_ms = hl_wall_ms();
    n->decision = *d;
    n->busy_pct = d->event == HL_LIFE_ON_REMOTE ? p->busy_pct : -1;
    n->carried_out = carried_out;
    n->pass = p->policy.pass;
    return is_new;
}

void noted_rest(struct hl_controller *c, struct hl_id id, int64_t until_ms)
{
    struct noted_decision *n = noted_at(c, id);
    if (n != NULL)
        n->rests_ms = until_ms;
}

static void noted_remove(struct hl_controller *c, struct noted_decision *n)
{
    HASH_DEL(c->placement->noted, n);
    free(n);
}

void noted_forget(struct hl_controller *c, struct hl_id id)
{
    struct noted_decision *n = noted_at(c, id);
    if (n != NULL)
        noted_remove(c, n);
}

void noted_expire(struct hl_controller *c)
{
    struct noted_decision *n, *next;
    HASH_ITER (hh, c->placement->noted, n, next) {
        if (!n->carried_out && n->rests_ms < placement_now_ms() &&
            n->pass != c->placement->policy.pass)
            noted_remove(c, n);
    }
}

void noted_fini(struct hl_controller *c)
{
    struct noted_decision *n, *next;
    HASH_ITER (hh, c->placement->noted, n, next) {
        noted_remove(c, n);
    }
}
