/* Nodes that stay away are forgotten, by number and by age, the oldest first: they are removed from
 * memory, store and plan, unless a job still needs them. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/nodes/nodes_private.h"
#include "core/catalog/retention.h"

#define ROUND_MAX 256 /* per batch: the loop has other work too */

struct forgetting {
    struct hl_controller *c;
    char name[sizeof(((struct node *)0)->name)];
};

static void log_trouble(struct node *n, hl_status st, const char *text)
{
    if (trouble_is_new(&n->controller->nodes->forget_trouble, st))
        hl_error("lost node was not forgotten, each round tries again node=%s error=\"%s\"",
                 n->name, text);
}

static void on_node_deleted(void *arg, hl_status st, const char *text)
{
    struct forgetting f = *(struct forgetting *)arg;
    free(arg);
    if (controller_stopped(f.c))
        return;
    struct node *n = node_find(f.c, f.name);
    if (n == NULL)
        return;
    bool stays = !n->lost || !n->forgetting; /* its record was written after this call */
    n->forgetting = false;
    log_trouble(n, st, text);
    if (st != HL_OK || stays)
        return;
    hl_info("lost node is forgotten node=%s", n->name);
    hl_cluster_remove(&f.c->nodes->cluster, n->name);
    f.c->nodes->events->forgotten(f.c, n);
    HASH_DEL(f.c->nodes->table, n);
    n->gone = true;
    n->next_gone = f.c->nodes->gone;
    f.c->nodes->gone = n;
}

/* Removes a lost node from store, plan and copies. */
static void node_forget(struct hl_controller *c, struct node *n)
{
    struct forgetting *f = n->forgetting ? NULL : calloc(1, sizeof(*f));
    if (f == NULL)
        return; /* the next round tries again */
    f->c = c;
    snprintf(f->name, sizeof(f->name), "%s", n->name);
    hl_status st = node_write(n, NULL, on_node_deleted, f);
    if (st == HL_OK)
        return;
    log_trouble(n, st, hl_error_text());
    free(f);
}

static bool node_is_needed(void *arg, const void *item)
{
    const struct hl_controller *c = arg;
    return c->nodes->events->needed(c, item);
}

void nodes_retain(struct hl_controller *c)
{
    struct hl_ended *lost = calloc(HASH_COUNT(c->nodes->table) + 1, sizeof(*lost));
    const struct hl_retention rule = {.keep = (size_t)c->opts.nodes_keep,
                                      .age_ms = c->opts.nodes_keep_age_ms,
                                      .round = ROUND_MAX};
    size_t count = 0;
    if (lost == NULL)
        return;
    for (struct node *n = c->nodes->table; n != NULL; n = n->hh.next)
        if (n->lost) {
            lost[count] =
                (struct hl_ended){.item = n, .since_ms = n->lost_steady_ms, .order = count};
            count++;
        }
    size_t n = hl_retention_choose(lost, count, &rule, controller_steady_ms(c), node_is_needed, c);
    for (size_t i = 0; i < n; i++)
        node_forget(c, lost[i].item);
    free(lost);
}
