/* Orphans: shards in the pool or archive that no version holds. Ranks put shards before they commit
 * them, so an orphan waits for a whole grace period. Then it is freed, and its archived copy goes
 * to the trash. */
#include <stdlib.h>

#include "base/log.h"
#include "controller/copies/copies_private.h"

void orphan_note(struct hl_controller *c, struct hl_id id, bool archived)
{
    struct orphan *o;
    HASH_FIND(hh, c->copies->orphans, &id, sizeof(id), o);
    if (o == NULL) {
        o = calloc(1, sizeof(*o));
        if (o == NULL)
            return;
        o->id = id;
        HASH_ADD(hh, c->copies->orphans, id, sizeof(id), o);
    }
    const struct hl_sweep now = copies_sweep(c);
    hl_orphan_see(&o->seen, &now, archived);
}

static void orphan_freed(struct hl_controller *c, hl_status st, const char *text)
{
    if (!controller_stopped(c) && st != HL_OK)
        hl_warn("an orphan shard was not freed and waits for the next sweep error=\"%s\"", text);
}

static void on_orphan_freed(void *arg, hl_status st, const char *text,
                            const struct hl_api_l3_free_results *r)
{
    (void)r;
    orphan_freed(arg, st, text);
}

static void on_orphan_trashed(void *arg, hl_status st, const char *text,
                              const struct hl_api_l3_drop_archived_results *r)
{
    (void)r;
    orphan_freed(arg, st, text);
}

/* The archived copy goes to the trash first: otherwise nothing would be left of a shard that was
 * freed by mistake. */
static void free_orphan(struct hl_controller *c, const struct orphan *o)
{
    const struct hl_id_text id = hl_id_format(o->id), cluster = claim_cluster(c);
    const char *items[] = {id.s};
    struct hl_api_text_list ids = {items, 1};
    copies_remove(c, o->id);
    if (o->seen.archived) {
        hl_warn("orphan shard is moved to the archive's trash id=%s", id.s);
        controller_hold(c);
        hl_call_l3_drop_archived_async(
            c->l3, &(struct hl_api_l3_drop_archived_params){ids, cluster.s, .trash = true},
            c->opts.rpc_timeout_ms, c->opts.loop, on_orphan_trashed, c);
    } else {
        hl_info("orphan shard freed id=%s", id.s);
    }
    controller_hold(c);
    hl_call_l3_free_async(c->l3, &(struct hl_api_l3_free_params){ids, cluster.s},
                          c->opts.rpc_timeout_ms, c->opts.loop, on_orphan_freed, c);
}

void orphans_settle(struct hl_controller *c)
{
    const struct hl_sweep sweep = copies_sweep(c);
    struct orphan *o, *next;
    HASH_ITER (hh, c->copies->orphans, o, next) {
        /* a commit may have arrived after the page was read */
        bool is_known = hl_catalog_shard(&c->catalog, o->id) != NULL;
        enum hl_orphan_fate fate = hl_sweep_orphan(&o->seen, is_known, &sweep, &c->catalog);
        if (fate == HL_ORPHAN_WAITS)
            continue;
        if (fate == HL_ORPHAN_FREED)
            free_orphan(c, o);
        HASH_DEL(c->copies->orphans, o);
        free(o);
    }
}

void orphans_fini(struct hl_controller *c)
{
    struct orphan *o, *next;
    HASH_ITER (hh, c->copies->orphans, o, next) {
        HASH_DEL(c->copies->orphans, o);
        free(o);
    }
}
