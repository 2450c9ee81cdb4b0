#include "whatif/links.h"

#include <stdlib.h>

enum { ARCHIVE, NODE_LINKS = 3 };

hl_status hl_links_init(struct hl_links *l, uint32_t nodes, const double rates[HL_MOVE_PATHS])
{
    *l = (struct hl_links){.count = 1 + nodes * NODE_LINKS};
    l->items = calloc(l->count, sizeof(*l->items));
    if (l->items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for links of %u nodes", nodes);
    for (uint32_t node = 0; node < nodes; node++)
        for (unsigned path = 0; path < HL_MOVE_PATHS; path++)
            l->items[hl_links_of((enum hl_move_path)path, node)].rate = rates[path];
    return HL_OK;
}

void hl_links_fini(struct hl_links *l)
{
    for (uint32_t i = 0; l->items != NULL && i < l->count; i++)
        while (l->items[i].first != NULL) {
            struct hl_link_move *m = l->items[i].first;
            l->items[i].first = m->next;
            free(m);
        }
    free(l->items);
    *l = (struct hl_links){0};
}

uint32_t hl_links_of(enum hl_move_path path, uint32_t node)
{
    return path == HL_MOVE_ARCHIVE ? ARCHIVE : 1 + node * NODE_LINKS + (uint32_t)path;
}

double hl_links_read(struct hl_links *l, uint32_t link, uint64_t bytes, double now_s)
{
    struct hl_link *k = &l->items[link];
    double begin = k->reads_until > now_s ? k->reads_until : now_s;
    k->reads_until = begin + (double)bytes / k->rate;
    return k->reads_until;
}

static void queue_move(struct hl_links *l, struct hl_link_move *m)
{
    struct hl_link *k = &l->items[m->stages[m->stage]];
    m->left = (double)m->size_bytes;
    m->next = NULL;
    if (k->last != NULL)
        k->last->next = m;
    else
        k->first = m;
    k->last = m;
}

hl_status hl_links_move(struct hl_links *l, const struct hl_link_move *move)
{
    struct hl_link_move *m = malloc(sizeof(*m));
    if (m == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a move");
    *m = *move;
    queue_move(l, m);
    l->moves++;
    return HL_OK;
}

/* Ends the current stage of the link's first move. */
static hl_status end_first(struct hl_links *l, struct hl_link *k, double at_s, hl_link_done_fn done,
                           void *arg)
{
    struct hl_link_move *m = k->first;
    k->first = m->next;
    if (k->first == NULL)
        k->last = NULL;
    if (++m->stage < m->stage_count) {
        m->ready_s = at_s;
        queue_move(l, m);
        return HL_OK;
    }
    l->moves--;
    hl_status st = done(arg, m, at_s);
    free(m);
    return st;
}

static hl_status advance_link(struct hl_links *l, struct hl_link *k, double now_s,
                              hl_link_done_fn done, void *arg)
{
    double at = k->moves_at > k->reads_until ? k->moves_at : k->reads_until;
    k->moves_at = now_s;
    while (k->first != NULL) {
        at = k->first->ready_s > at ? k->first->ready_s : at;
        if (at >= now_s)
            return HL_OK;
        double needs = k->first->left / k->rate;
        if (at + needs > now_s) {
            k->first->left -= (now_s - at) * k->rate;
            return HL_OK;
        }
        at += needs;
        HL_TRY(end_first(l, k, at, done, arg));
    }
    return HL_OK;
}

hl_status hl_links_advance(struct hl_links *l, double now_s, hl_link_done_fn done, void *arg)
{
    for (uint32_t i = 0; i < l->count; i++) {
        if (l->moves == 0)
            l->items[i].moves_at = now_s;
        else
            HL_TRY(advance_link(l, &l->items[i], now_s, done, arg));
    }
    return HL_OK;
}

double hl_links_backlog(const struct hl_links *l, uint32_t link)
{
    double bytes = 0;
    for (const struct hl_link_move *m = l->items[link].first; m != NULL; m = m->next)
        bytes += m->left;
    return bytes;
}
