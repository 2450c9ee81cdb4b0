/* Where the units of a gang go, given how many slots each server has free.
 *
 * 1. Whole units. A server with f free slots holds w = f / unit of them. Each replica wants its
 * stages on different servers, so a server first takes at most q = min(w, per_stage) units: laid
 * out server by server and numbered through, neighbours differ in their replica as long as no more
 * than per_stage of them stand together. Servers whose free slots are used up without rest come
 * first, then the larger: few servers are opened and few are left half used. The last server is the
 * one with the least left over. When the sum of q is too small, servers take up to w, and every
 * unit above q is one pair of stages that shares a server: no placement of whole units has fewer.
 * 2. Units that fit no server whole are put together from pieces: the smallest server that holds
 * what is missing, else the largest there is. Taking whole units first never costs anything
 * (exchange the pieces); the rest is bin packing, where best fit is exact for units of up to three
 * slots and in all the small cases that the tests enumerate.
 *
 * Servers with equally many free slots are alike, so classes are sorted, not servers: the cost is
 * O(servers + containers x distinct counts). */
#include <stdlib.h>
#include <string.h>

#include "core/place/units.h"

struct server_class {
    int free;
    int whole; /* w */
    int apart; /* q */
    int rest;  /* slots left over when it takes q units */
    int count;
    int head; /* first server not yet used, -1 = none; the others by next[], ascending */
};

struct placer {
    const struct hl_place_request *req;
    struct server_class *classes; /* by free slots, 0..most */
    struct server_class **order;
    size_t order_count;
    int most;
    int *next;
    int *left;  /* free slots */
    int *units; /* whole units */
    int *where;
    int placed; /* units in where[] */
};

static int min_int(int a, int b)
{
    return a < b ? a : b;
}

static int preferred_first(const void *x, const void *y)
{
    const struct server_class *a = *(struct server_class *const *)x;
    const struct server_class *b = *(struct server_class *const *)y;
    if (a->rest != b->rest)
        return a->rest - b->rest;
    if (a->apart != b->apart)
        return b->apart - a->apart;
    return a->free - b->free;
}

static hl_status placer_init(struct placer *p, const struct hl_place_request *req, int *where)
{
    *p = (struct placer){.req = req, .where = where};
    for (size_t s = 0; s < req->servers; s++)
        p->most = req->free[s] > p->most ? req->free[s] : p->most;
    p->classes = calloc((size_t)p->most + 1, sizeof(*p->classes));
    p->order = calloc((size_t)p->most + 1, sizeof(struct server_class *));
    p->next = calloc(req->servers + 1, sizeof(int));
    p->left = calloc(req->servers + 1, sizeof(int));
    p->units = calloc(req->servers + 1, sizeof(int));
    if (p->classes == NULL || p->order == NULL || p->next == NULL || p->left == NULL ||
        p->units == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan over %zu servers", req->servers);
    if (req->servers > 0)
        memcpy(p->left, req->free, req->servers * sizeof(int));
    return HL_OK;
}

static void placer_fini(struct placer *p)
{
    free(p->classes);
    free(p->order);
    free(p->next);
    free(p->left);
    free(p->units);
}

/* Lists of servers by what is left on them. */
static void sort_into_classes(struct placer *p)
{
    for (int f = 0; f <= p->most; f++) {
        struct server_class *c = &p->classes[f];
        int whole = f / p->req->unit;
        int apart = min_int(whole, p->req->per_stage);
        *c = (struct server_class){f, whole, apart, f - apart * p->req->unit, 0, -1};
    }
    for (size_t s = p->req->servers; s-- > 0;) {
        struct server_class *c = &p->classes[p->left[s]];
        p->next[s] = c->head;
        c->head = (int)s;
        c->count++;
    }
    p->order_count = 0;
    for (int f = p->req->unit; f <= p->most; f++)
        if (p->classes[f].count > 0)
            p->order[p->order_count++] = &p->classes[f];
    qsort(p->order, p->order_count, sizeof(struct server_class *), preferred_first);
}

static int class_pop(struct placer *p, struct server_class *c)
{
    int s = c->head;
    c->head = p->next[s];
    return s;
}

/* The smallest unused server that holds `slots`; there is one. */
static int best_fit(struct placer *p, int slots)
{
    int f = slots;
    while (p->classes[f].head < 0)
        f++;
    return class_pop(p, &p->classes[f]);
}

/* No server takes more than per_stage units. */
static void take_apart(struct placer *p, int need)
{
    for (size_t i = 0; i < p->order_count && need > 0; i++) {
        struct server_class *c = p->order[i];
        while (c->head >= 0 && need >= c->apart && need > 0) {
            p->units[class_pop(p, c)] = c->apart;
            need -= c->apart;
        }
        if (need > 0 && c->head >= 0) {
            p->units[best_fit(p, need * p->req->unit)] = need;
            need = 0;
        }
    }
}

/* Every server takes what it may, and then more. */
static void take_crowded(struct placer *p, int need)
{
    for (size_t i = 0; i < p->order_count; i++)
        for (int s = p->order[i]->head; s >= 0; s = p->next[s]) {
            p->units[s] = p->order[i]->apart;
            need -= p->order[i]->apart;
        }
    for (size_t i = 0; i < p->order_count; i++)
        for (int s = p->order[i]->head; s >= 0 && need > 0; s = p->next[s]) {
            int more = min_int(need, p->order[i]->whole - p->order[i]->apart);
            p->units[s] += more;
            need -= more;
        }
}

static void place_whole(struct placer *p, int units)
{
    long apart = 0, whole = 0;
    sort_into_classes(p);
    for (size_t i = 0; i < p->order_count; i++) {
        apart += (long)p->order[i]->count * p->order[i]->apart;
        whole += (long)p->order[i]->count * p->order[i]->whole;
    }
    if (units > whole)
        units = (int)whole;
    if (units <= apart)
        take_apart(p, units);
    else
        take_crowded(p, units);
    for (size_t s = 0; s < p->req->servers; s++)
        for (int u = 0; u < p->units[s]; u++) {
            for (int i = 0; i < p->req->unit; i++)
                p->where[p->placed * p->req->unit + i] = (int)s;
            p->left[s] -= p->req->unit;
            p->placed++;
        }
}

/* The next `slots` containers, from the fewest pieces at hand. */
static void place_pieces(struct placer *p, int slots)
{
    int *to = p->where + (size_t)p->placed * (size_t)p->req->unit;
    while (slots > 0) {
        int f = min_int(slots, p->most);
        while (f < p->most && p->classes[f].head < 0)
            f++;
        while (p->classes[f].head < 0)
            f--;
        int s = class_pop(p, &p->classes[f]);
        int n = min_int(slots, f);
        for (int i = 0; i < n; i++)
            *to++ = s;
        slots -= n;
        p->left[s] = f - n;
        p->next[s] = p->classes[f - n].head;
        p->classes[f - n].head = s;
    }
    p->placed++;
}

hl_status hl_place(const struct hl_place_request *req, int *where)
{
    struct placer p;
    hl_status st = placer_init(&p, req, where);
    if (st == HL_OK) {
        int units = req->containers / req->unit;
        place_whole(&p, units);
        sort_into_classes(&p);
        while (p.placed < units)
            place_pieces(&p, req->unit);
        if (req->containers % req->unit > 0)
            place_pieces(&p, req->containers % req->unit);
    }
    placer_fini(&p);
    return st;
}
