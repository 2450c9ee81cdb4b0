/* Where the units of a gang go.
 *
 * 1. Whole units. A server with f free slots holds w = f / unit of them. The stages of each replica
 * should be on different servers, so a server first takes at most q = min(w, apart) units. If units
 * are numbered server by server, neighbours belong to different replicas as long as no more than
 * `apart` of them are together. Servers whose free slots are used up without rest come first, then
 * the larger ones, so that few servers are opened and few are left half used. The last server is
 * the one with the smallest rest. If the sum of q is too small, servers take up to w, and every
 * unit above q is one pair of stages that shares a server: no placement of whole units has fewer.
 * 2. Units that fit no server whole are put together from pieces: the largest servers first, and
 * last the smallest one that holds what is missing. Taking whole units first never costs anything
 * (exchange the pieces). The leaves decide between equal servers: the leaf that provides most of
 * the unit wins, and of such leaves the fullest, as long as the gang as a whole does not need more
 * pieces.
 *
 * Servers with equally many free slots differ only in their leaf. So the cost grows with the gang,
 * the leaves and the number of different counts, but not with the servers. */
#include "core/planner/units.h"

#include <stdlib.h>
#include <string.h>

struct server_class {
    int free;
    int whole; /* w */
    int apart; /* q */
    int rest;  /* slots left over when it takes q units */
    long count;
};

/* A server of a class, and the units placed on it. */
struct taken {
    uint32_t pos;
    int units;
    int left; /* its unused slots; back in the view when all whole units are placed */
};

/* A unit made of pieces: full[f] servers with f slots each, and one of `last` slots that gives
 * `used`. */
struct pieces {
    int *full;
    int last, used; /* used 0 = there is no such server */
    int count;
};

struct placer {
    struct hl_place_view *view;
    const struct hl_units *units;
    struct hl_place_range in;
    uint32_t *where;
    int placed; /* units */
    struct server_class *classes;
    size_t class_count;
    struct taken *taken;
    int taken_count;
    long *scratch; /* servers by free slots */
    struct pieces whole, leaf;
};

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static const struct hl_place_domain *domains_of(const struct hl_place_index *x, enum hl_level level,
                                                const uint32_t **of)
{
    *of = level == HL_LEVEL_LEAF ? x->leaf_of : x->spine_of;
    return level == HL_LEVEL_LEAF ? x->leaves : x->spines;
}

struct hl_place_domains hl_place_domains_in(const struct hl_place_index *x, enum hl_level level,
                                            struct hl_place_range in)
{
    const uint32_t *of;
    const struct hl_place_domain *list = domains_of(x, level, &of);
    if (in.lo >= in.hi)
        return (struct hl_place_domains){list, 0, 0};
    return (struct hl_place_domains){list, of[in.lo], of[in.hi - 1] + 1};
}

struct hl_place_range hl_place_range_of(const struct hl_place_domain *d, struct hl_place_range in)
{
    return (struct hl_place_range){d->lo > in.lo ? d->lo : in.lo, d->hi < in.hi ? d->hi : in.hi};
}

/* ---- how many ------------------------------------------------------------------------------- */

static long whole_units(const struct hl_place_view *v, struct hl_place_range in, int unit)
{
    long n = 0;
    for (int k = unit; k <= v->most; k++)
        n += k / unit * hl_place_view_count(v, k, in);
    return n;
}

long hl_units_max(const struct hl_place_view *v, struct hl_place_range in, int unit,
                  enum hl_level within)
{
    long n = 0;
    if (within == HL_LEVEL_NUMA && unit > 1)
        return 0;
    if (within == HL_LEVEL_ANY || within == HL_LEVEL_NUMA || unit == 1)
        return hl_place_view_slots(v, in) / unit;
    if (within == HL_LEVEL_SERVER)
        return whole_units(v, in, unit);
    const struct hl_place_domains d = hl_place_domains_in(v->index, within, in);
    for (size_t i = d.first; i < d.end; i++) {
        const struct hl_place_range r = hl_place_range_of(&d.list[i], in);
        n += d.list[i].named ? hl_place_view_slots(v, r) / unit : whole_units(v, r, unit);
    }
    return n;
}

/* ---- units that a server holds whole -------------------------------------------------------- */

static int preferred_first(const void *x, const void *y)
{
    const struct server_class *a = x, *b = y;
    if (a->rest != b->rest)
        return a->rest - b->rest;
    if (a->apart != b->apart)
        return b->apart - a->apart;
    return a->free - b->free;
}

static void sort_classes(struct placer *p)
{
    int unit = p->units->unit;
    p->class_count = 0;
    for (int f = unit; f <= p->view->most; f++) {
        int whole = f / unit, apart = min_int(whole, p->units->apart);
        long n = hl_place_view_count(p->view, f, p->in);
        if (n > 0)
            p->classes[p->class_count++] =
                (struct server_class){f, whole, apart, f - apart * unit, n};
    }
    qsort(p->classes, p->class_count, sizeof(*p->classes), preferred_first);
}

static void server_take(struct placer *p, int free, int units)
{
    uint32_t pos = hl_place_view_first(p->view, free, p->in);
    hl_place_view_move(p->view, pos, free, 0);
    p->taken[p->taken_count++] = (struct taken){pos, units, free - units * p->units->unit};
}

/* The smallest class with a free server that holds `slots`; it must exist. */
static struct server_class *class_that_holds(struct placer *p, int slots)
{
    struct server_class *best = NULL;
    for (size_t i = 0; i < p->class_count; i++) {
        struct server_class *c = &p->classes[i];
        if (c->count > 0 && c->free >= slots && (best == NULL || c->free < best->free))
            best = c;
    }
    return best;
}

/* Gives no server more than `apart` units. */
static void take_apart(struct placer *p, int need)
{
    for (size_t i = 0; i < p->class_count && need > 0; i++) {
        struct server_class *c = &p->classes[i];
        for (; c->count > 0 && need >= c->apart && need > 0; c->count--) {
            server_take(p, c->free, c->apart);
            need -= c->apart;
        }
        if (need > 0 && c->count > 0) {
            struct server_class *last = class_that_holds(p, need * p->units->unit);
            server_take(p, last->free, need);
            need = 0;
        }
    }
}

/* Fills every server to its limit q, and then beyond it. */
static void take_crowded(struct placer *p, int need)
{
    for (size_t i = 0; i < p->class_count; i++)
        need -= (int)(p->classes[i].count * p->classes[i].apart);
    for (size_t i = 0; i < p->class_count; i++)
        for (const struct server_class *c = &p->classes[i]; p->classes[i].count > 0;
             p->classes[i].count--) {
            int more = min_int(need, c->whole - c->apart);
            server_take(p, c->free, c->apart + more);
            need -= more;
        }
}

static int by_position(const void *x, const void *y)
{
    const struct taken *a = x, *b = y;
    return (a->pos > b->pos) - (a->pos < b->pos);
}

static uint32_t *next_unit(struct placer *p)
{
    int at = p->units->first + p->placed * p->units->stride;
    p->placed++;
    return p->where + (size_t)at * (size_t)p->units->unit;
}

static void lay_out(struct placer *p)
{
    qsort(p->taken, (size_t)p->taken_count, sizeof(*p->taken), by_position);
    for (int t = 0; t < p->taken_count; t++) {
        for (int u = 0; u < p->taken[t].units; u++) {
            uint32_t *to = next_unit(p);
            for (int i = 0; i < p->units->unit; i++)
                to[i] = p->taken[t].pos;
        }
        hl_place_view_move(p->view, p->taken[t].pos, 0, p->taken[t].left);
    }
}

static void place_whole(struct placer *p)
{
    long apart = 0, whole = 0;
    sort_classes(p);
    for (size_t i = 0; i < p->class_count; i++) {
        apart += p->classes[i].count * p->classes[i].apart;
        whole += p->classes[i].count * p->classes[i].whole;
    }
    int units = p->units->count < whole ? p->units->count : (int)whole;
    if (units <= apart)
        take_apart(p, units);
    else
        take_crowded(p, units);
    lay_out(p);
}

/* ---- units in pieces ------------------------------------------------------------------------ */

static void count_servers(const struct placer *p, struct hl_place_range in, long *counts)
{
    for (int k = 1; k <= p->view->most; k++)
        counts[k] = hl_place_view_count(p->view, k, in);
}

/* Takes `slots` from the fewest servers of `counts` and removes these from it. */
static void cut_pieces(const struct placer *p, long *counts, int slots, struct pieces *out)
{
    int most = p->view->most;
    memset(out->full, 0, ((size_t)most + 1) * sizeof(int));
    out->last = out->used = out->count = 0;
    while (slots > 0) {
        int f = min_int(slots, most);
        while (f < most && counts[f] == 0)
            f++;
        while (f > 0 && counts[f] == 0)
            f--;
        if (f == 0)
            return; /* the other ranges belong to later units */
        counts[f]--;
        out->count++;
        if (slots >= f) {
            out->full[f]++;
        } else {
            out->last = f;
            out->used = slots;
            counts[f - slots]++;
        }
        slots -= min_int(slots, f);
    }
}

/* The servers needed for `slots` and then `units` whole units, ignoring leaves. */
static long count_pieces(const struct placer *p, const long *counts, int slots, int units,
                         struct pieces *use)
{
    memcpy(p->scratch, counts, ((size_t)p->view->most + 1) * sizeof(long));
    cut_pieces(p, p->scratch, slots, use);
    long n = use->count;
    for (int u = 0; u < units; u++) {
        cut_pieces(p, p->scratch, p->units->unit, use);
        n += use->count;
    }
    return n;
}

static uint32_t *give_slots(struct placer *p, struct hl_place_range in, int free, int used,
                            uint32_t *to)
{
    uint32_t pos = hl_place_view_first(p->view, free, in);
    hl_place_view_move(p->view, pos, free, free - used);
    for (int i = 0; i < used; i++)
        *to++ = pos;
    return to;
}

/* Takes what the range has of `want` and removes it from both. */
static uint32_t *take_pieces(struct placer *p, struct hl_place_range in, struct pieces *want,
                             uint32_t *to)
{
    for (int f = p->view->most; f > 0; f--)
        for (; want->full[f] > 0 && hl_place_view_first(p->view, f, in) != UINT32_MAX;
             want->full[f]--)
            to = give_slots(p, in, f, f, to);
    if (want->used > 0 && hl_place_view_first(p->view, want->last, in) != UINT32_MAX) {
        to = give_slots(p, in, want->last, want->used, to);
        want->used = 0;
    }
    return to;
}

static bool pieces_left(const struct placer *p, const struct pieces *want)
{
    bool left = want->used > 0;
    for (int f = 1; f <= p->view->most; f++)
        left |= want->full[f] > 0;
    return left;
}

/* The slots of `want` that a range with these servers provides. */
static long pieces_gain(const struct placer *p, const long *counts, const struct pieces *want)
{
    long gain = 0, used = 0;
    for (int f = 1; f <= p->view->most; f++) {
        long n = counts[f] < want->full[f] ? counts[f] : want->full[f];
        gain += n * f;
        if (f == want->last)
            used = n;
    }
    return want->used > 0 && counts[want->last] > used ? gain + want->used : gain;
}

struct domain_choice {
    long value, left; /* the main criterion, and the slots left over */
    int at;           /* -1 = none */
};

static void domain_offer(struct domain_choice *c, size_t at, long value, long left)
{
    if (c->at < 0 || value < c->value || (value == c->value && left < c->left))
        *c = (struct domain_choice){value, left, (int)at};
}

static long sum_slots(const struct placer *p, const long *counts)
{
    long n = 0;
    for (int f = 1; f <= p->view->most; f++)
        n += f * counts[f];
    return n;
}

/* The domain of a level that holds `slots` in the fewest pieces, and of such domains the fullest;
 * -1: none. */
static int find_domain(struct placer *p, int slots, enum hl_level level, struct hl_place_range in)
{
    struct domain_choice best = {.at = -1};
    const struct hl_place_domains d = hl_place_domains_in(p->view->index, level, in);
    for (size_t i = d.first; i < d.end; i++) {
        long counts[HL_TOPO_SLOTS_MAX + 1];
        count_servers(p, hl_place_range_of(&d.list[i], in), counts);
        long left = sum_slots(p, counts) - slots;
        if (left < 0 || !d.list[i].named)
            continue;
        cut_pieces(p, counts, slots, &p->leaf);
        domain_offer(&best, i, p->leaf.count, left);
    }
    return best.at;
}

/* What is still to be placed: servers of the range, slots of this unit, units after it, and the
 * servers for them. */
struct to_come {
    long all[HL_TOPO_SLOTS_MAX + 1];
    int need, rest;
    long total;
};

/* Servers of the leaf if it gives `slots` to the unit; 0 = the gang would need more servers in
 * total. `after`: what the range has then. */
static int try_leaf(struct placer *p, const struct to_come *t, struct hl_place_range leaf,
                    int slots, long *after)
{
    long counts[HL_TOPO_SLOTS_MAX + 1];
    count_servers(p, leaf, counts);
    for (int f = 1; f <= p->view->most; f++)
        after[f] = t->all[f] - counts[f];
    cut_pieces(p, counts, slots, &p->leaf);
    int pieces = p->leaf.count;
    for (int f = 1; f <= p->view->most; f++)
        after[f] += counts[f];
    return pieces + count_pieces(p, after, t->need - slots, t->rest, &p->leaf) <= t->total ? pieces
                                                                                           : 0;
}

/* The leaf that provides the most slots without costing the gang servers, and of such leaves the
 * fullest; -1 = none. */
static int find_share(struct placer *p, const struct to_come *t, struct hl_place_range in)
{
    long counts[HL_TOPO_SLOTS_MAX + 1], after[HL_TOPO_SLOTS_MAX + 1];
    const struct hl_place_domains d = hl_place_domains_in(p->view->index, HL_LEVEL_LEAF, in);
    struct domain_choice best = {.at = -1}, offered;
    for (size_t i = d.first; i < d.end; i++) {
        const struct hl_place_range leaf = hl_place_range_of(&d.list[i], in);
        count_servers(p, leaf, counts);
        long slots = sum_slots(p, counts), gives = slots < t->need ? slots : t->need;
        offered = best;
        domain_offer(&offered, i, -gives, slots - gives);
        if (gives > 0 && offered.at != best.at && try_leaf(p, t, leaf, (int)gives, after) > 0)
            best = offered;
    }
    return best.at;
}

/* Places the pieces as they are cut, regardless of leaves. */
static void place_rest(struct placer *p, int slots, struct hl_place_range in, uint32_t *to)
{
    long counts[HL_TOPO_SLOTS_MAX + 1];
    const struct hl_place_domains d = hl_place_domains_in(p->view->index, HL_LEVEL_LEAF, in);
    count_servers(p, in, counts);
    cut_pieces(p, counts, slots, &p->whole);
    while (pieces_left(p, &p->whole)) {
        struct domain_choice best = {.at = -1};
        for (size_t i = d.first; i < d.end; i++) {
            count_servers(p, hl_place_range_of(&d.list[i], in), counts);
            long gain = pieces_gain(p, counts, &p->whole);
            if (gain > 0)
                domain_offer(&best, i, -gain, sum_slots(p, counts));
        }
        to = take_pieces(p, hl_place_range_of(&d.list[best.at], in), &p->whole, to);
    }
}

/* Places the next unit over the fewest leaves. */
static void place_across(struct placer *p, int slots, struct hl_place_range in, uint32_t *to)
{
    struct to_come t = {.need = slots, .rest = p->units->count - p->placed};
    long counts[HL_TOPO_SLOTS_MAX + 1];
    t.rest = t.rest > 0 ? t.rest : 0;
    while (t.need > 0) {
        count_servers(p, in, t.all);
        t.total = count_pieces(p, t.all, t.need, t.rest, &p->leaf);
        int at = find_share(p, &t, in);
        if (at < 0)
            break;
        const struct hl_place_range leaf = hl_place_range_of(&p->view->index->leaves[at], in);
        count_servers(p, leaf, counts);
        long slots_there = sum_slots(p, counts);
        int gives = slots_there < t.need ? (int)slots_there : t.need;
        cut_pieces(p, counts, gives, &p->whole);
        to = take_pieces(p, leaf, &p->whole, to);
        t.need -= gives;
    }
    place_rest(p, t.need, in, to);
}

/* Places the next `slots` containers on more than one server. */
static hl_status place_pieces(struct placer *p, int slots)
{
    struct hl_place_range in = p->in;
    enum hl_level within = p->units->within;
    if (within == HL_LEVEL_LEAF || within == HL_LEVEL_SPINE) {
        int at = find_domain(p, slots, within, in);
        if (at < 0)
            return hl_fail(HL_EINTERNAL, "no %s holds %d containers", hl_level_name(within), slots);
        in = hl_place_range_of(&hl_place_domains_in(p->view->index, within, in).list[at], in);
    }
    if (hl_place_view_slots(p->view, in) < slots)
        return hl_fail(HL_EINTERNAL, "the range has fewer than %d slots", slots);
    place_across(p, slots, in, next_unit(p));
    return HL_OK;
}

/* ---- both ----------------------------------------------------------------------------------- */

static hl_status placer_init(struct placer *p)
{
    size_t most = (size_t)p->view->most + 1;
    p->classes = calloc(most, sizeof(*p->classes));
    p->taken = calloc((size_t)p->units->count + 1, sizeof(*p->taken));
    p->scratch = calloc(most, sizeof(long));
    p->whole.full = calloc(most, sizeof(int));
    p->leaf.full = calloc(most, sizeof(int));
    if (p->classes == NULL || p->taken == NULL || p->scratch == NULL || p->whole.full == NULL ||
        p->leaf.full == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    return HL_OK;
}

static void placer_fini(struct placer *p)
{
    free(p->classes);
    free(p->taken);
    free(p->scratch);
    free(p->whole.full);
    free(p->leaf.full);
}

hl_status hl_units_place(struct hl_place_view *v, struct hl_place_range in,
                         const struct hl_units *units, uint32_t *where)
{
    struct placer p = {.view = v, .units = units, .in = in, .where = where};
    hl_status st = placer_init(&p);
    if (st == HL_OK)
        place_whole(&p);
    while (st == HL_OK && p.placed < units->count)
        st = place_pieces(&p, units->unit);
    if (st == HL_OK && units->tail > 0)
        st = place_pieces(&p, units->tail);
    placer_fini(&p);
    return st;
}
