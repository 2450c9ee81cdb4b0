/* Visible versions that are held in too few failure domains, because a holder was lost, or because
 * a different durability was wanted when they were saved. After each sweep they are counted, and
 * the missing copies are made, one batch at a time. Nothing has to be remembered: the next sweep
 * finds the rest.
 *
 * A node that has been silent for less than nodes.lost_after may come back with its copies. Until
 * then these are missing, but are not made elsewhere. */
#include <stdlib.h>

#include "base/log.h"
#include "controller/copies/copies_private.h"

#define BATCH       256
#define HOLDERS_MAX 64

static bool is_counted(const struct hl_version_rec *v)
{
    return v->state == HL_API_VERSION_STATE_VISIBLE && !v->damaged;
}

static bool shard_holds(struct hl_controller *c, const struct hl_shard_rec *s, int64_t awaited_ms)
{
    struct hl_holder list[HOLDERS_MAX];
    const struct holders_query q = {.awaited_ms = awaited_ms};
    size_t n = copies_holders(c, s, &q, list, HOLDERS_MAX);
    return hl_durability_holds(copies_durability(c), list, n);
}

size_t version_lacking(struct hl_controller *c, const struct hl_version_rec *v, char *text,
                       size_t cap)
{
    enum hl_durability durability = copies_durability(c);
    struct hl_holder list[HOLDERS_MAX];
    size_t lacking = 0;
    text[0] = '\0';
    if (durability == HL_DURABILITY_POOL || pool_info(c) == NULL || !is_counted(v))
        return 0;
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        char key[HL_CATALOG_KEY_MAX], places[64];
        if (s->damaged || shard_holds(c, s, 0) || lacking++ > 0)
            continue;
        size_t n = copies_holders(c, s, &(struct holders_query){0}, list, HOLDERS_MAX);
        holders_text(list, n, places, sizeof(places));
        snprintf(text, cap, "shard %s is in %s, and %s%s%s", hl_shard_key(s, key, sizeof(key)),
                 places, durability_wants(durability),
                 c->copies->restore_why[0] != '\0' ? ": " : "", c->copies->restore_why);
    }
    return lacking;
}

size_t durability_lacking(const struct hl_controller *c)
{
    return c->copies->lacking;
}

void durability_settle(struct hl_controller *c, const struct hl_version_rec *v)
{
    for (size_t i = 0; i < v->shard_count && pool_has_archive(c); i++)
        v->shards[i]->archived |= !shard_holds(c, v->shards[i], 0);
}

static bool is_demanding(const struct hl_controller *c, const struct hl_shard_rec *s)
{
    return copies_durability(c) != HL_DURABILITY_POOL && s != NULL && s->cut == NULL &&
           is_counted(s->version);
}

static struct hl_holder holder_at(const struct hl_controller *c, const struct place *p)
{
    return (struct hl_holder){.domain = copies_domain(c, p),
                              .tier = (uint8_t)p->tier,
                              .verified = true,
                              .reachable = true};
}

static hl_status fail_needed(const struct hl_controller *c, struct hl_id id, const struct place *p)
{
    enum hl_durability durability = copies_durability(c);
    char name[256];
    return hl_fail(HL_ECONFLICT,
                   "without its copy in %s shard %s would be in too few failure domains, and %s "
                   "(versions.durability=%s)",
                   place_name(p, name, sizeof(name)), hl_id_format(id).s,
                   durability_wants(durability), hl_durability_word(durability));
}

hl_status durability_lets_go(struct hl_controller *c, struct hl_id id, const struct place *goes,
                             const struct place *comes)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    struct hl_holder list[HOLDERS_MAX];
    if (!is_demanding(c, s) ||
        !shard_holds(c, s, 0)) /* missing copies are made after the next sweep */
        return HL_OK;
    const struct holders_query q = {.without = goes};
    size_t n = copies_holders(c, s, &q, list, HOLDERS_MAX - 1);
    if (comes != NULL)
        list[n++] = holder_at(c, comes);
    return hl_durability_holds(copies_durability(c), list, n) ? HL_OK : fail_needed(c, id, goes);
}

/* True once we know who holds what: all nodes are back since this start, and have listed their
 * copies. */
static bool holders_are_known(const struct hl_controller *c)
{
    if (nodes_expected(c))
        return false;
    for (const struct node *n = nodes_first(c); n != NULL; n = n->hh.next)
        if (node_ready(n) && !n->store.listed)
            return false;
    return true;
}

/* The archive is not asked, as a drop from it is rare: what is known of it counts. */
static size_t confirmed_holders(const struct hl_controller *c, const struct hl_shard_rec *s,
                                const struct place *without, const struct confirmed_copy *copies,
                                size_t count, struct hl_holder *out)
{
    size_t n = 0;
    if (hl_shard_is_archived(s) && without->tier != HL_API_TIER_L4)
        out[n++] = holder_at(c, &(struct place){.tier = HL_API_TIER_L4});
    for (size_t i = 0; i < count && n < HOLDERS_MAX; i++) {
        const struct place *p = &copies[i].place;
        bool right = copies[i].size_bytes == s->size_bytes && copies[i].crc32 == s->crc32;
        bool counts = p->tier == HL_API_TIER_L2 || p->tier == HL_API_TIER_L3;
        if (right && counts && (p->tier != without->tier || p->node != without->node))
            out[n++] = holder_at(c, p);
    }
    return n;
}

hl_status durability_spares(struct hl_controller *c, struct hl_id id, const struct place *surplus,
                            const struct confirmed_copy *copies, size_t count)
{
    const struct hl_shard_rec *s = hl_catalog_shard(&c->catalog, id);
    enum hl_durability durability = copies_durability(c);
    struct hl_holder list[HOLDERS_MAX + 1];
    if (!is_demanding(c, s) || surplus->tier == HL_API_TIER_L1)
        return HL_OK;
    size_t n = confirmed_holders(c, s, surplus, copies, count, list);
    if (hl_durability_holds(durability, list, n))
        return HL_OK;
    list[n++] = holder_at(c, surplus);
    if (!hl_durability_holds(durability, list, n)) /* it would not help */
        return HL_OK;
    return holders_are_known(c)
               ? fail_needed(c, id, surplus)
               : hl_fail(HL_EUNAVAIL, "not all nodes have reported their copies of shard %s yet",
                         hl_id_format(id).s);
}

/* ---- after a sweep --------------------------------------------------------------------------- */

static void on_restored(void *arg, hl_status st, const char *text)
{
    struct hl_controller *c = arg;
    if (st == HL_ECANCELED) /* the Controller was stopped */
        return;
    c->copies->restoring = NULL;
    snprintf(c->copies->restore_why, sizeof(c->copies->restore_why), "%s", text);
    if (st == HL_OK)
        sweep_soon(c); /* there may be more */
    if (trouble_is_new(&c->copies->restore_trouble, st))
        hl_warn("shards stay in too few failure domains, each sweep tries again error=\"%s\"",
                text);
}

static void restore_batch(struct hl_controller *c, const struct securable *list, size_t count)
{
    hl_status st = securing_start(c, list, count, on_restored, c, &c->copies->restoring);
    if (st != HL_OK)
        hl_debug("copies of shards are not made again yet: %s", hl_error_text());
    else
        hl_info("missing copies of shards are being replaced count=%zu durability=%s", count,
                hl_durability_word(copies_durability(c)));
}

/* Finds the shards of the version that lack a copy which will not come back with its node. */
static size_t find_lacking(struct hl_controller *c, const struct hl_version_rec *v,
                           struct securable *list, size_t count)
{
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        if (s->damaged || s->lost || shard_holds(c, s, 0))
            continue;
        c->copies->lacking++;
        if (count < BATCH && !shard_holds(c, s, c->opts.lost_after_ms))
            list[count++] = (struct securable){.id = s->id,
                                               .size_bytes = s->size_bytes,
                                               .crc32 = s->crc32,
                                               .node = "",
                                               .name = ""};
    }
    return count;
}

void durability_restore(struct hl_controller *c)
{
    size_t before = c->copies->lacking, count = 0;
    if (copies_durability(c) == HL_DURABILITY_POOL || !holders_are_known(c))
        return;
    struct securable *list = calloc(BATCH, sizeof(*list));
    c->copies->lacking = 0;
    for (const struct hl_model_rec *m = c->catalog.models; m != NULL && list != NULL;
         m = m->hh.next)
        for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            if (is_counted(v))
                count = find_lacking(c, v, list, count);
    if (c->copies->lacking > 0 && before == 0)
        hl_warn(
            "shards are in too few failure domains count=%zu durability=%s; `helios model show` "
            "says which",
            c->copies->lacking, hl_durability_word(copies_durability(c)));
    if (c->copies->lacking == 0)
        c->copies->restore_why[0] = '\0';
    if (count > 0 && c->copies->restoring == NULL)
        restore_batch(c, list, count);
    free(list);
}
