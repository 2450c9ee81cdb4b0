/* Derived shards are dropped as soon as room is needed. A cut that has lost a shard is useless, so
 * the whole cut goes. */
#include <stdlib.h>

#include "base/log.h"
#include "controller/commits.h"
#include "controller/copies/copies_private.h"
#include "core/catalog/catalog_cut.h"

struct drop {
    struct change change; /* must be first */
    struct hl_id *ids;
    size_t count;
};

static hl_status drop_make(struct change *ch)
{
    struct drop *d = (struct drop *)ch;
    free(d->ids);
    d->ids = NULL;
    return hl_catalog_drop_lost_cuts(&ch->c->catalog, commit_records, ch->c, &d->ids, &d->count);
}

static void drop_done(struct change *ch, hl_status st)
{
    struct drop *d = (struct drop *)ch;
    if (st == HL_OK)
        pool_free(ch->c, d->ids, d->count);
    else
        hl_debug("cuts that have lost shards stay until the next sweep: %s", hl_error_text());
    free(d->ids);
    free(d);
}

void cuts_drop_lost(struct hl_controller *c)
{
    if (!hl_catalog_has_lost_cuts(&c->catalog))
        return;
    struct drop *d = calloc(1, sizeof(*d));
    if (d == NULL)
        return; /* the next sweep does it */
    d->change.make = drop_make;
    d->change.done = drop_done;
    change_start(c, &d->change);
}

void cuts_drop_damaged(struct hl_controller *c, struct hl_id id)
{
    struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    if (s == NULL || s->cut == NULL)
        return;
    s->lost = s->unusable = true; /* the pool has it, as sweeps see */
    if (claim_ok(c, NULL, 0))
        cuts_drop_lost(c);
}
