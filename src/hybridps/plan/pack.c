/* Which spans to keep. A flow answers that for spans that save on their own. A bonus that several
 * spans earn together (one write-back) is shared out among them, which can only make the answer
 * look better than it is; shares move to where they are missing, and an epoch that stays split is
 * decided both ways: all its spans are kept, or the write-back is paid. So is a span that a flow
 * cuts in two, which happens where sizes differ: it is kept, or it is not. */
#include <stdlib.h>
#include <string.h>

#include "hybridps/plan/plan_private.h"

#define WORK        300000000
#define ROUNDS_ROOT 8
#define ROUNDS      3

enum decision { OPEN, KEEP, LEAVE }; /* of an epoch: all its spans, or not all */

/* What is decided both ways: an epoch, or a span. */
struct choice {
    int32_t epoch; /* -1 = a span */
    uint32_t item;
};

struct pack {
    struct plan_model *m;
    uint32_t *slot_of; /* [end + 1]: tight moments before a moment */
    uint32_t slots;
    int64_t unit;
    int equal; /* all of one size */
    int64_t *cap, *left;
    struct flow_item *flow;
    uint32_t *which;    /* flow item -> item */
    int64_t *share;     /* per item, of its epoch's bonus */
    uint8_t *decided;   /* per epoch */
    uint8_t *fixed;     /* per item: decided by itself */
    uint32_t *kept;     /* per epoch: items */
    uint32_t *left_out; /* per epoch: items decided to leave */
    int64_t cut;        /* the item of most worth that the last flow cut in two; -1 = none */
    uint8_t *best;
    int64_t best_value;
    int64_t work;
};

static int64_t size_of(const struct pack *p, const struct plan_item *it)
{
    return (int64_t)p->m->t->chunks[it->chunk].bytes / p->unit;
}

/* An epoch whose bonus is still to be earned. */
static int earns(const struct pack *p, int32_t epoch)
{
    return epoch >= 0 && !p->m->epochs[epoch].owed && p->decided[epoch] != LEAVE &&
           p->left_out[epoch] == 0;
}

static void pack_fini(struct pack *p)
{
    free(p->slot_of);
    free(p->cap);
    free(p->left);
    free(p->flow);
    free(p->which);
    free(p->share);
    free(p->decided);
    free(p->fixed);
    free(p->kept);
    free(p->left_out);
    free(p->best);
}

static hl_status pack_init(struct pack *p)
{
    size_t n = p->m->item_count + 1, e = p->m->epoch_count + 1, end = (size_t)p->m->end + 2;
    p->slot_of = calloc(end, sizeof(*p->slot_of));
    p->cap = calloc(end, sizeof(*p->cap));
    p->left = calloc(end, sizeof(*p->left));
    p->flow = calloc(n, sizeof(*p->flow));
    p->which = calloc(n, sizeof(*p->which));
    p->share = calloc(n, sizeof(*p->share));
    p->decided = calloc(e, 1);
    p->fixed = calloc(n, 1);
    p->kept = calloc(e, sizeof(*p->kept));
    p->left_out = calloc(e, sizeof(*p->left_out));
    p->best = calloc(n, 1);
    if (p->slot_of == NULL || p->cap == NULL || p->left == NULL || p->flow == NULL ||
        p->which == NULL || p->share == NULL || p->decided == NULL || p->fixed == NULL ||
        p->kept == NULL || p->left_out == NULL || p->best == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    return HL_OK;
}

static int64_t gcd(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t r = a % b;
        a = b;
        b = r;
    }
    return a;
}

/* Moments where not all that would like to stay can: the slots. */
static void find_slots(struct pack *p)
{
    const struct plan_model *m = p->m;
    int64_t active = 0, largest = 0;
    p->unit = 0;
    for (size_t i = 0; i < m->item_count; i++) {
        int64_t size = (int64_t)m->t->chunks[m->items[i].chunk].bytes;
        p->left[m->items[i].first] += size;
        p->left[m->items[i].end] -= size;
        p->unit = gcd(size, p->unit);
        largest = size > largest ? size : largest;
    }
    p->equal = p->unit == largest;
    p->unit = p->unit > 0 ? p->unit : 1;
    for (int64_t t = 0; t < m->end; t++) {
        int64_t room = (int64_t)m->room[(size_t)t % m->t->moment_count];
        active += p->left[t];
        p->slot_of[t] = p->slots;
        if (active > room)
            p->cap[p->slots++] = room / p->unit;
    }
    p->slot_of[m->end] = p->slots;
}

/* The best of this round's answer, if it is. */
static void judge(struct pack *p)
{
    const struct plan_model *m = p->m;
    int64_t value = 0;
    memset(p->kept, 0, m->epoch_count * sizeof(*p->kept));
    for (size_t i = 0; i < m->item_count; i++)
        if (m->items[i].keep) {
            value += size_of(p, &m->items[i]) * m->items[i].weight;
            if (m->items[i].epoch >= 0)
                p->kept[m->items[i].epoch]++;
        }
    for (size_t i = 0; i < m->item_count; i++) {
        int32_t e = m->items[i].epoch;
        /* Counted with an epoch's first item. */
        if (e < 0 || m->epochs[e].owed || (i > 0 && m->items[i - 1].epoch == e))
            continue;
        if (p->kept[e] == m->epochs[e].items)
            value += size_of(p, &m->items[i]) * PLAN_SCALE;
    }
    if (value <= p->best_value)
        return;
    p->best_value = value;
    for (size_t i = 0; i < m->item_count; i++)
        p->best[i] = m->items[i].keep;
}

static int fits(struct pack *p, const struct plan_item *it, int64_t size)
{
    uint32_t a = p->slot_of[it->first], b = p->slot_of[it->end];
    p->work -= b - a;
    for (uint32_t s = a; s < b; s++)
        if (p->left[s] < size)
            return 0;
    return 1;
}

static void take(struct pack *p, const struct plan_item *it, int64_t size)
{
    uint32_t a = p->slot_of[it->first], b = p->slot_of[it->end];
    p->work -= b - a;
    for (uint32_t s = a; s < b; s++)
        p->left[s] -= size;
}

/* What the flow cut in two is kept where there is still room, from the shortest on. */
static int by_length(const void *x, const void *y)
{
    const struct flow_item *a = x, *b = y;
    uint32_t la = a->b - a->a, lb = b->b - b->a;
    if (la != lb)
        return la < lb ? -1 : 1;
    if (a->weight * a->size != b->weight * b->size)
        return a->weight * a->size > b->weight * b->size ? -1 : 1;
    return a->got < b->got ? -1 : a->got > b->got;
}

static void round_up(struct pack *p, size_t count)
{
    size_t loose = 0;
    for (size_t k = 0; k < count; k++) {
        struct plan_item *it = &p->m->items[p->which[k]];
        if (it->keep) {
            take(p, it, p->flow[k].size);
        } else {
            p->flow[loose] = p->flow[k];
            p->flow[loose++].got = p->which[k];
        }
    }
    qsort(p->flow, loose, sizeof(*p->flow), by_length);
    for (size_t k = 0; k < loose && p->work > 0; k++) {
        struct plan_item *it = &p->m->items[p->flow[k].got];
        if (fits(p, it, p->flow[k].size)) {
            take(p, it, p->flow[k].size);
            it->keep = 1;
        }
    }
}

/* What is decided, and what needs no slot; the rest are items of the flow. HL_ENOSPC: what is
 * decided doesn't fit. */
static hl_status take_decided(struct pack *p, size_t *count, int64_t *value)
{
    struct plan_model *m = p->m;
    for (size_t i = 0; i < m->item_count; i++) {
        struct plan_item *it = &m->items[i];
        uint32_t a = p->slot_of[it->first], b = p->slot_of[it->end];
        int all = p->fixed[i] == KEEP || (it->epoch >= 0 && p->decided[it->epoch] == KEEP);
        int64_t w = it->weight + (earns(p, it->epoch) ? p->share[i] : 0), size = size_of(p, it);
        it->keep = p->fixed[i] != LEAVE && (all || a == b);
        if (it->keep) {
            *value += size * w;
            if (a < b && !fits(p, it, size))
                return HL_ENOSPC;
            take(p, it, size);
        } else if (w > 0 && p->fixed[i] != LEAVE) {
            p->flow[*count] = (struct flow_item){.a = a, .b = b, .size = size, .weight = w};
            p->which[(*count)++] = (uint32_t)i;
        }
    }
    return HL_OK;
}

static void look_at_flow(struct pack *p, size_t count)
{
    int64_t most = 0;
    p->cut = -1;
    for (size_t k = 0; k < count; k++) {
        const struct flow_item *f = &p->flow[k];
        p->m->items[p->which[k]].keep = f->got == f->size;
        if (f->got > 0 && f->got < f->size && f->size * f->weight > most) {
            most = f->size * f->weight;
            p->cut = p->which[k];
        }
    }
}

/* The flow of what is undecided beside what is decided; bound: no answer of this node is better.
 * HL_ENOSPC: what is decided doesn't fit. */
static hl_status relax(struct pack *p, int64_t *bound)
{
    size_t n = 0;
    int64_t value = 0, flow = 0;
    p->work -= (int64_t)p->m->item_count;
    memcpy(p->left, p->cap, p->slots * sizeof(*p->left));
    HL_TRY(take_decided(p, &n, &value));
    HL_TRY(flow_solve(p->left, p->slots, p->flow, n, &flow, &p->work));
    look_at_flow(p, n);
    if (!p->equal)
        round_up(p, n);
    judge(p);
    *bound = value + flow;
    return HL_OK;
}

/* An epoch that is open and neither kept nor left as a whole. */
static int is_split(const struct pack *p, int32_t e)
{
    return earns(p, e) && p->decided[e] == OPEN && p->kept[e] > 0 &&
           p->kept[e] < p->m->epochs[e].items;
}

/* Shares go from the items that are kept to those of the same epoch that are not. */
static int move_shares(struct pack *p, int64_t most)
{
    struct plan_model *m = p->m;
    int moved = 0;
    for (size_t i = 0; i < m->item_count;) {
        size_t end = i + 1;
        int32_t e = m->items[i].epoch;
        while (end < m->item_count && m->items[end].epoch == e)
            end++;
        int64_t pot = 0, poor = 0;
        for (size_t k = i; k < end && is_split(p, e); k++) {
            int64_t give = p->share[k] < most ? p->share[k] : most;
            if (m->items[k].keep) {
                p->share[k] -= give;
                pot += give;
            } else {
                poor++;
            }
        }
        for (size_t k = i; k < end && pot > 0; k++)
            if (!m->items[k].keep) {
                int64_t get = pot / poor;
                p->share[k] += get;
                pot -= get;
                poor--;
                moved = 1;
            }
        i = end;
    }
    return moved;
}

static void share_evenly(struct pack *p)
{
    const struct plan_model *m = p->m;
    memset(p->kept, 0, m->epoch_count * sizeof(*p->kept));
    for (size_t i = 0; i < m->item_count; i++) {
        int32_t e = m->items[i].epoch;
        if (e < 0 || m->epochs[e].owed)
            continue;
        int64_t n = m->epochs[e].items, k = p->kept[e]++;
        p->share[i] = PLAN_SCALE * (k + 1) / n - PLAN_SCALE * k / n;
    }
}

/* What is saved is so many bytes copied: a bound that is not a whole one better is none. */
static int promises(const struct pack *p, int64_t bound)
{
    return bound >= p->best_value + PLAN_SCALE;
}

/* Rounds at a node; 1 with what is to be decided there, 0 when the node is done. */
static hl_status bound_node(struct pack *p, int rounds, struct choice *next, int *more)
{
    int64_t bound = 0;
    *more = 0;
    for (int round = 0; round < rounds; round++) {
        hl_status st = relax(p, &bound);
        if (st == HL_ENOSPC)
            return HL_OK;
        HL_TRY(st);
        if (!promises(p, bound) || !move_shares(p, PLAN_SCALE >> (round / 2 + 1)))
            break;
    }
    if (!promises(p, bound))
        return HL_OK;
    *more = p->cut >= 0;
    *next = (struct choice){.epoch = -1, .item = (uint32_t)p->cut};
    for (size_t i = 0; i < p->m->item_count && !*more; i++)
        if (is_split(p, p->m->items[i].epoch)) {
            next->epoch = p->m->items[i].epoch;
            *more = 1;
        }
    return HL_OK;
}

static uint8_t *decision_of(struct pack *p, const struct choice *c)
{
    return c->epoch >= 0 ? &p->decided[c->epoch] : &p->fixed[c->item];
}

static void decide(struct pack *p, const struct choice *c, enum decision d)
{
    int32_t epoch = c->epoch >= 0 ? -1 : p->m->items[c->item].epoch;
    if (epoch >= 0)
        p->left_out[epoch] += (d == LEAVE) - (*decision_of(p, c) == LEAVE);
    *decision_of(p, c) = (uint8_t)d;
}

/* Depth first, without recursion: the stack is what is decided, in its order. */
static hl_status search(struct pack *p)
{
    struct choice *stack = calloc(p->m->epoch_count + p->m->item_count + 1, sizeof(*stack)), next;
    size_t depth = 0;
    int rounds = ROUNDS_ROOT, more = 0;
    hl_status st = stack != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    while (st == HL_OK) {
        st = bound_node(p, rounds, &next, &more);
        rounds = ROUNDS;
        if (st != HL_OK)
            break;
        /* Where sizes differ the bounds are loose, and a proof is for the small. */
        if (depth == 0 && more && !p->equal)
            p->work /= 10;
        if (more) {
            decide(p, &next, KEEP);
            stack[depth++] = next;
            continue;
        }
        while (depth > 0 && *decision_of(p, &stack[depth - 1]) == LEAVE)
            decide(p, &stack[--depth], OPEN);
        if (depth == 0)
            break;
        decide(p, &stack[depth - 1], LEAVE);
    }
    free(stack);
    return st;
}

hl_status plan_pack(struct plan_model *m)
{
    struct pack p = {.m = m, .best_value = -1};
    p.work = m->o.work > 0 && m->o.work < INT64_MAX ? (int64_t)m->o.work : WORK;
    hl_status st = pack_init(&p);
    if (st == HL_OK) {
        find_slots(&p);
        share_evenly(&p);
        st = search(&p);
    }
    m->exact = st == HL_OK;
    if (st == HL_ETIMEDOUT) {
        hl_error_clear(); /* what was found so far will do */
        st = HL_OK;
    }
    for (size_t i = 0; i < m->item_count && st == HL_OK; i++)
        m->items[i].keep = p.best[i];
    pack_fini(&p);
    return st;
}
