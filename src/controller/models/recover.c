/* `helios recover`: L3 lists everything it has, the manifests among it are read, and the versions
 * that they name become visible in one batch of the store. The same batch makes this cluster the
 * owner of pool and archive; only after it are both claimed. So if the Controller is killed in
 * between, its successor finds the old claim refused and recovers again, or has everything
 * restored.
 *
 * If shards remain that no version holds, versions are restored but nothing is claimed, because the
 * claim would make those shards orphans, to be freed. The revision does not rise then, so that L3
 * keeps refusing.
 *
 * There is one recovery at a time (models->recovery). It goes from call to call on the loop's
 * thread. One call or one change is in flight at any moment, and its answer takes the next step:
 *
 *     ask_list      pool, then archive, then trash, page by page      --> objects
 *     read_next     the manifests among them                          --> candidates
 *        judge      which versions would come back
 *     untrash       shards of those that only the trash has           (not in a dry run)
 *     read_shards   what no list has told: CRCs, headers of strangers
 *        judge      again, by what was read
 *     decided       dry run, or nothing to restore: the answer
 *     change        records and owner in one batch                    --> durable
 *     claim_take    L3 keeps the new owner                            --> the answer
 *
 *     objects:     id -> where it is, size, CRC           shards and manifests
 *     candidates:  manifest -> its shards, and why it is skipped, if it is
 *
 * Until the change, the catalogue is not touched, but shards may be moved from L3's trash into its
 * archive; if the recovery fails after that, the next one starts with more of it archived. When the
 * Controller stops, outstanding answers notice that and touch nothing; recover_fini frees. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/copies/copies.h"
#include "controller/models/models_private.h"
#include "core/catalog/claim.h"
#include "core/catalog/recovery.h"

#define PAGE           4096
#define READ_SHARDS    256 /* per call */
#define READ_MANIFESTS 4

struct recovery {
    struct change change; /* must be first */
    struct hl_controller *c;
    struct hl_rpc_call *call;
    bool dry;
    bool take;               /* the last step claims pool and archive */
    struct hl_recovery what; /* what exists, and what is restored */
    uint64_t untrashed;
    uint64_t left; /* shards */
    struct hl_id cluster;
    uint64_t own_revision; /* its value before `revised` */
    bool revised;
};

static void recovery_free(struct recovery *r)
{
    hl_recovery_fini(&r->what);
    free(r);
}

void recover_fini(struct hl_controller *c)
{
    if (c->models->recovery != NULL)
        recovery_free(c->models->recovery);
    c->models->recovery = NULL;
}

/* The same report for a dry run and for a real one: what is restored is what is not skipped.
 * Borrows from `r`. */
static struct hl_api_recovery recovery_info(const struct recovery *r, struct hl_arena *arena)
{
    char why[sizeof(r->c->claim.why)] = "";
    (void)claim_ok(r->c, why, sizeof(why));
    struct hl_api_recovery info = {
        .claim = claim_state(r->c),
        .why = hl_arena_strdup(arena, why),
        .cluster = hl_id_print(r->cluster, arena),
        .known = r->what.known,
        .untrashed = r->untrashed,
        .left = hl_recovery_left(&r->what, arena),
        .versions = hl_recovery_versions(&r->what, arena),
    };
    for (size_t i = 0; i < info.versions.count; i++) {
        bool restored = info.versions.items[i].state == HL_API_RECOVERY_STATE_RESTORED;
        info.restored += restored;
        info.restored_shards += restored ? info.versions.items[i].shards : 0;
    }
    return info;
}

/* The only end: answers the call and frees everything. */
static void recovery_end(struct recovery *r, hl_status st, const char *text)
{
    r->c->models->recovery = NULL;
    if (st == HL_OK)
        hl_reply_controller_recover(r->call, &(struct hl_api_controller_recover_results){
                                                 recovery_info(r, hl_rpc_call_arena(r->call))});
    else
        hl_rpc_reject(r->call, st, text);
    recovery_free(r);
}

/* ---- what exists ----------------------------------------------------------------------------- */

static void read_next(struct recovery *r);

static void ask_list(struct recovery *r, enum hl_recovery_place place, uint64_t cursor);

/* An invalid id is skipped. */
static hl_status note_object(struct recovery *r, enum hl_recovery_place place, const char *text,
                             uint64_t size, uint32_t crc)
{
    struct hl_id id;
    if (hl_id_parse(text, &id) == HL_OK)
        return hl_recovery_note(&r->what, place, id, size, crc);
    hl_error_clear();
    return HL_OK;
}

static hl_status note_extents(struct recovery *r, enum hl_recovery_place place,
                              const struct hl_api_extent_list *extents)
{
    for (size_t i = 0; i < extents->count; i++)
        HL_TRY(note_object(r, place, extents->items[i].id, extents->items[i].size_bytes,
                           extents->items[i].crc32));
    return HL_OK;
}

static hl_status note_trashed(struct recovery *r, const struct hl_api_trashed_list *trashed)
{
    for (size_t i = 0; i < trashed->count; i++)
        HL_TRY(note_object(r, HL_RECOVERY_TRASHED, trashed->items[i].id,
                           trashed->items[i].size_bytes, 0));
    return HL_OK;
}

/* Called when a page of the list was noted, or when there was no memory for it. */
static void next_page(struct recovery *r, enum hl_recovery_place place, hl_status st, uint64_t next)
{
    if (st != HL_OK)
        recovery_end(r, st, hl_error_text());
    else if (next != 0)
        ask_list(r, place, next);
    else if (place != HL_RECOVERY_TRASHED && pool_has_archive(r->c))
        ask_list(r, place + 1, 0);
    else
        read_next(r);
}

/* Every answer begins with this check. True: there is no recovery any more, or it has just ended.
 */
static bool page_failed(struct recovery *r, hl_status st, const char *text)
{
    if (controller_stopped(r->c))
        return true;
    if (st != HL_OK)
        recovery_end(r, st, text);
    return st != HL_OK;
}

static void on_pooled(void *arg, hl_status st, const char *text,
                      const struct hl_api_l3_inventory_results *page)
{
    if (page_failed(arg, st, text))
        return;
    next_page(arg, HL_RECOVERY_POOLED, note_extents(arg, HL_RECOVERY_POOLED, &page->extents),
              page->next);
}

static void on_archived(void *arg, hl_status st, const char *text,
                        const struct hl_api_l3_list_archived_results *page)
{
    if (page_failed(arg, st, text))
        return;
    next_page(arg, HL_RECOVERY_ARCHIVED, note_extents(arg, HL_RECOVERY_ARCHIVED, &page->extents),
              page->next);
}

static void on_trashed(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_list_trash_results *page)
{
    if (page_failed(arg, st, text))
        return;
    next_page(arg, HL_RECOVERY_TRASHED, note_trashed(arg, &page->trashed), page->next);
}

/* controller_hold keeps the Controller's memory until the answer has arrived, whatever happens. */
static void ask_list(struct recovery *r, enum hl_recovery_place place, uint64_t cursor)
{
    struct hl_controller *c = controller_hold(r->c);
    int timeout_ms = c->opts.rpc_timeout_ms;
    if (place == HL_RECOVERY_POOLED)
        hl_call_l3_inventory_async(c->l3, &(struct hl_api_l3_inventory_params){cursor, PAGE},
                                   timeout_ms, c->opts.loop, on_pooled, r);
    else if (place == HL_RECOVERY_ARCHIVED)
        hl_call_l3_list_archived_async(c->l3,
                                       &(struct hl_api_l3_list_archived_params){cursor, PAGE},
                                       timeout_ms, c->opts.loop, on_archived, r);
    else
        hl_call_l3_list_trash_async(c->l3, &(struct hl_api_l3_list_trash_params){cursor, PAGE},
                                    timeout_ms, c->opts.loop, on_trashed, r);
}

/* ---- what L3 reads --------------------------------------------------------------------------- */

/* Takes what L3 has read of one object; an error of that object does not fail the recovery. */
static void take_found(struct recovery *r, const struct hl_api_found *found)
{
    struct hl_recovery_object *o;
    if (hl_recovery_found(&r->what, found, &o) != HL_OK || !hl_manifest_is(o->id) ||
        (!o->pooled && !o->archived))
        return;
    if (hl_recovery_add_manifest(&r->what, o->id, found->manifest) != HL_OK)
        hl_error("a manifest is not read id=%s error=\"%s\"", found->id, hl_error_text());
}

/* `read` was set when the object was requested, so each object is requested once and this
 * terminates. */
static void on_read(void *arg, hl_status st, const char *text,
                    const struct hl_api_l3_describe_results *results)
{
    struct recovery *r = arg;
    if (page_failed(r, st, text))
        return;
    for (size_t i = 0; i < results->found.count; i++)
        take_found(r, &results->found.items[i]);
    read_next(r);
}

static void recovery_decided(struct recovery *r);
static void recovery_judged(struct recovery *r);

/* Manifests come first: they tell what else has to be read. False: nothing is left to read. */
static bool read_some(struct recovery *r, bool manifests)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    size_t max = manifests ? READ_MANIFESTS : READ_SHARDS;
    struct hl_api_text_list ids = {.items = hl_arena_array(&arena, max, sizeof(*ids.items))};
    for (struct hl_recovery_object *o = r->what.objects;
         o != NULL && ids.items != NULL && ids.count < max; o = o->hh.next) {
        if (hl_manifest_is(o->id) != manifests || !hl_recovery_reads(o, &r->c->catalog))
            continue;
        o->read = true;
        ids.items[ids.count++] = hl_id_print(o->id, &arena);
    }
    if (hl_arena_failed(&arena)) {
        recovery_end(r, HL_ENOMEM, "out of memory for the ids of a recovery");
        return true;
    }
    if (ids.count == 0)
        return false;
    controller_hold(r->c);
    hl_call_l3_describe_async(r->c->l3, &(struct hl_api_l3_describe_params){ids},
                              r->c->opts.copy_timeout_ms, r->c->opts.loop, on_read, r);
    return true;
}

static void read_next(struct recovery *r)
{
    if (!read_some(r, true))
        recovery_judged(r);
}

/* ---- the trash ------------------------------------------------------------------------------- */

static void read_shards(struct recovery *r)
{
    hl_recovery_judge(&r->what, &r->c->catalog);
    if (!read_some(r, false))
        recovery_decided(r);
}

static void on_untrashed(void *arg, hl_status st, const char *text,
                         const struct hl_api_l3_untrash_results *results)
{
    struct recovery *r = arg;
    if (page_failed(r, st, text))
        return;
    r->untrashed += results->restored;
    hl_recovery_untrashed(&r->what);
    read_shards(r);
}

/* Shards of versions that are to be restored leave the trash first: otherwise they would be lost if
 * this process ended after the restore. The call names the owner that L3 knows, because nothing is
 * ours yet. */
static void recovery_judged(struct recovery *r)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct claim_found *f = claim_found(r->c);
    hl_recovery_judge(&r->what, &r->c->catalog);
    struct hl_api_text_list ids = {
        .items = hl_arena_array(&arena, HASH_COUNT(r->what.objects), sizeof(*ids.items))};
    for (struct hl_recovery_object *o = r->what.objects; o != NULL && !r->dry && ids.items != NULL;
         o = o->hh.next)
        if (hl_recovery_untrashes(o, &r->c->catalog))
            ids.items[ids.count++] = hl_id_print(o->id, &arena);
    if (hl_arena_failed(&arena)) {
        recovery_end(r, HL_ENOMEM, "out of memory for the ids of a recovery");
        return;
    }
    if (ids.count == 0) {
        read_shards(r);
        return;
    }
    const struct hl_id_text owner =
        hl_id_format(hl_claim_heir(f->cluster, f->archive_cluster, (struct hl_id){0}));
    controller_hold(r->c);
    hl_call_l3_untrash_async(r->c->l3, &(struct hl_api_l3_untrash_params){ids, owner.s},
                             r->c->opts.copy_timeout_ms, r->c->opts.loop, on_untrashed, r);
}

/* ---- the change ------------------------------------------------------------------------------ */

/* HL_OK means that L3 has stored the new owner durably. */
static void on_taken(void *arg, hl_status st, const char *text)
{
    struct recovery *r = arg;
    struct hl_controller *c = r->c;
    char why[sizeof(c->claim.why)];
    if (st != HL_OK) {
        recovery_end(r, st, text);
    } else if (!claim_ok(c, why, sizeof(why))) {
        recovery_end(r, HL_EPERM, why);
    } else {
        hl_info("state recovered cluster=%s revision=%" PRIu64, claim_cluster(c).s,
                c->claim.revision);
        sweep_soon(c);
        recovery_end(r, HL_OK, NULL);
    }
}

/* The records of a recovery, together with the cluster's new id, in one commit. So no crash leaves
 * a catalogue that is restored under the old id, or the new id with nothing restored. */
static hl_status commit_recovery(void *arg, const struct hl_records *records)
{
    struct recovery *r = arg;
    struct hl_records all = {0};
    hl_status st = HL_OK;
    for (size_t i = 0; i < records->count && st == HL_OK; i++)
        st = hl_records_add(&all, json_incref(records->list[i].value), "%s", records->list[i].key);
    if (st == HL_OK && r->take)
        st = claim_add_id(&all, r->cluster);
    if (st == HL_OK)
        st = commit_records(r->c, &all);
    hl_records_fini(&all);
    return st;
}

/* Called twice (commits.c), so the revision is set only once. With a claim it becomes newer than
 * any that L3 has heard of; without one the commit restores its old value. */
static hl_status recover_make(struct change *ch)
{
    struct recovery *r = (struct recovery *)ch;
    struct claim *cl = &r->c->claim;
    size_t count;
    const struct hl_manifest **list = hl_recovery_list(&r->what, &count);
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a list of versions");
    if (!r->revised) {
        r->own_revision = cl->revision;
        cl->revision = hl_claim_recovered(cl->revision, cl->found.revision,
                                          cl->found.archive_revision, r->take);
        r->revised = true;
    }
    hl_status st = hl_catalog_restore(&r->c->catalog, list, count, commit_recovery, r);
    free(list);
    return st;
}

/* The records are durable, or nothing is. L3 is told only now. */
static void recover_done(struct change *ch, hl_status st)
{
    struct recovery *r = (struct recovery *)ch;
    struct hl_controller *c = r->c;
    char text[HL_ERROR_TEXT_MAX];
    if (c->closing)
        return; /* recover_fini frees it */
    if (st != HL_OK) {
        snprintf(text, sizeof(text), "%s", hl_error_text());
        c->claim.revision = r->own_revision;
        recovery_end(r, st, text);
        return;
    }
    for (size_t i = 0; i < r->what.count; i++) {
        const struct hl_recovery_candidate *x = &r->what.list[i];
        if (!x->skipped)
            hl_info("version restored model=%s version=%" PRId64 " shards=%zu", x->manifest.model,
                    x->manifest.number, x->shard_count);
    }
    if (!r->take) {
        hl_warn("there are shards that no version holds, so nothing is claimed count=%" PRIu64,
                r->left);
        recovery_end(r, HL_OK, NULL);
        return;
    }
    claim_become(c, r->cluster, c->claim.revision);
    claim_take(c, on_taken, r);
}

/* Everything has been read: carry it out, or report it. */
static void recovery_decided(struct recovery *r)
{
    hl_recovery_judge(&r->what, &r->c->catalog);
    const struct hl_recovery_decision d = hl_recovery_decide(&r->what, r->dry);
    r->left = d.left;
    r->take = d.takes;
    if (!d.changes) {
        recovery_end(r, HL_OK, NULL);
        return;
    }
    if (r->c->claim.state != CLAIM_REFUSED) {
        recovery_end(r, HL_ECONFLICT, "the claim is no longer refused: nothing was changed");
        return;
    }
    r->change.make = recover_make;
    r->change.done = recover_done;
    change_start(r->c, &r->change);
}

/* ---- the call -------------------------------------------------------------------------------- */

/* A dry run changes nothing, so it is allowed whatever the claim's state. */
static hl_status recovery_check(const struct hl_controller *c, bool dry)
{
    char why[sizeof(c->claim.why)];
    if (c->models->recovery != NULL)
        return hl_fail(HL_EBUSY, "a recovery is running; try again when it has ended");
    if (pool_info(c) == NULL)
        return hl_fail(HL_EUNAVAIL, "nothing can be recovered while L3 does not answer: %.200s",
                       pool_state(c));
    if (dry)
        return HL_OK;
    if (claim_ok(c, why, sizeof(why)))
        return hl_fail(HL_ECONFLICT, "there is nothing to recover: pool and archive are this "
                                     "cluster's, and its catalogue is the newest");
    if (c->claim.state == CLAIM_UNKNOWN)
        return hl_fail(HL_EUNAVAIL, "%s; try again", why);
    return HL_OK;
}

void method_recover(void *arg, struct hl_rpc_call *call,
                    const struct hl_api_controller_recover_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    hl_status st = recovery_check(c, p->dry_run);
    struct recovery *r = st == HL_OK ? calloc(1, sizeof(*r)) : NULL;
    if (st == HL_OK && r == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for a recovery");
    if (st != HL_OK) {
        call_reject(call, st);
        return;
    }
    r->c = c;
    r->call = call;
    r->dry = p->dry_run;
    r->what.discard = p->discard;
    r->cluster =
        hl_claim_heir(claim_found(c)->cluster, claim_found(c)->archive_cluster, c->claim.cluster);
    c->models->recovery = r;
    ask_list(r, HL_RECOVERY_POOLED, 0);
}
