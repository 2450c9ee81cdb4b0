/* Walks over all shards or all copies: each turn of the loop takes some of them, because others
 * wait for the loop. */
#include "base/log.h"
#include "controller/copies/copies_private.h"
#include "os/loop.h"

#define TURN_MS 1 /* between two turns, for the other users of the loop */

static void turns_end(struct turns *t)
{
    turns_stop(t);
    t->done(t->c);
}

static void on_turn(void *arg)
{
    struct turns *t = arg;
    controller_check_clocks(t->c);
    if (t->turn(t->c))
        turns_end(t);
}

void turns_begin(struct turns *t)
{
    if (t->timer != NULL)
        return;
    bool over = t->turn(t->c);
    if (!over && hl_timer_create(t->c->opts.loop, TURN_MS, TURN_MS, on_turn, t, &t->timer) == HL_OK)
        return;
    while (!over) /* without a timer, all at once */
        over = t->turn(t->c);
    turns_end(t);
}

void turns_stop(struct turns *t)
{
    hl_timer_destroy(t->timer);
    t->timer = NULL;
}
