/* `helios recover`: L3 is asked for all it has, the manifests among it are read, and the versions
 * that they name become visible in one batch of the store; the same batch makes this cluster the
 * one that pool and archive belong to. Only then both are claimed. So a Controller that is
 * killed in between finds its old claim refused and recovers again, or has everything restored.
 *
 * Where shards are left that no version holds, versions are restored and nothing is claimed: with
 * the claim those shards would go. The revision then does not rise, so that L3 goes on refusing.
 *
 * One recovery at a time (models->recovery). It goes from call to call on the loop's thread; one
 * call or one change is under way at any moment, and its answer takes the next step:
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
 * Until the change nothing of the catalogue is touched, but L3's trash may be emptied into its
 * archive; a recovery that fails after that begins with more of it archived. When the Controller
 * stops, the answers that are still to come find it so and touch nothing; recover_fini frees. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/copies/copies.h"
#include "controller/models/recover_private.h"
#include "core/derived_id.h"

#define PAGE           4096
#define READ_SHARDS    256 /* in one call */
#define READ_MANIFESTS 4

static void recovery_free(struct recovery *r)
{
    struct object *o, *next;
    for (size_t i = 0; i < r->count; i++)
        candidate_fini(&r->list[i]);
    HASH_ITER (hh, r->objects, o, next) {
        HASH_DEL(r->objects, o);
        free(o->model);
        free(o);
    }
    free(r->list);
    free(r);
}

void recover_fini(struct hl_controller *c)
{
    if (c->models->recovery != NULL)
        recovery_free(c->models->recovery);
    c->models->recovery = NULL;
}

/* The one end: the call is answered and everything freed. */
static void recovery_end(struct recovery *r, hl_status st, const char *text)
{
    r->c->models->recovery = NULL;
    if (st == HL_OK)
        hl_reply_controller_recover(r->call, &(struct hl_api_controller_recover_results){
                                                 recover_info(r, hl_rpc_call_arena(r->call))});
    else
        hl_rpc_reject(r->call, st, text);
    recovery_free(r);
}

/* ---- what there is --------------------------------------------------------------------------- */

static void read_next(struct recovery *r);

enum list { POOLED, ARCHIVED, TRASHED };

static void ask_list(struct recovery *r, enum list list, uint64_t cursor);

/* An object may be in several lists. Its size is that of the best place: pool, archive, trash.
 * Derived shards are no objects: no manifest names them, and what they were cut from makes them
 * again. Those that the catalogue does not know go with the first sweep after the claim. */
static void list_note(struct recovery *r, enum list list, const char *text, uint64_t size,
                      uint32_t crc)
{
    struct hl_id id;
    if (hl_id_parse(text, &id) != HL_OK || hl_id_is_derived(id))
        return;
    struct object *o = recover_object(r, id);
    if (o == NULL)
        return;
    if (!o->pooled && !(list == TRASHED && o->archived))
        o->size = size;
    if (list == POOLED)
        o->crc = crc;
    *(list == POOLED ? &o->pooled : list == ARCHIVED ? &o->archived : &o->trashed) = true;
}

static void note_extents(struct recovery *r, enum list list,
                         const struct hl_api_extent_list *extents)
{
    for (size_t i = 0; i < extents->count; i++)
        list_note(r, list, extents->items[i].id, extents->items[i].size_bytes,
                  extents->items[i].crc32);
}

/* A page of the list was noted. */
static void next_page(struct recovery *r, enum list list, uint64_t next)
{
    if (next != 0)
        ask_list(r, list, next);
    else if (list != TRASHED && pool_has_archive(r->c))
        ask_list(r, list + 1, 0);
    else
        read_next(r);
}

/* Every answer begins with it. True: there is no recovery any more, or it just ended. */
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
    note_extents(arg, POOLED, &page->extents);
    next_page(arg, POOLED, page->next);
}

static void on_archived(void *arg, hl_status st, const char *text,
                        const struct hl_api_l3_list_archived_results *page)
{
    if (page_failed(arg, st, text))
        return;
    note_extents(arg, ARCHIVED, &page->extents);
    next_page(arg, ARCHIVED, page->next);
}

static void on_trashed(void *arg, hl_status st, const char *text,
                       const struct hl_api_l3_list_trash_results *page)
{
    if (page_failed(arg, st, text))
        return;
    for (size_t i = 0; i < page->trashed.count; i++)
        list_note(arg, TRASHED, page->trashed.items[i].id, page->trashed.items[i].size_bytes, 0);
    next_page(arg, TRASHED, page->next);
}

/* controller_hold keeps the Controller's memory until the answer has come, whatever happens. */
static void ask_list(struct recovery *r, enum list list, uint64_t cursor)
{
    struct hl_controller *c = controller_hold(r->c);
    int timeout_ms = c->opts.rpc_timeout_ms;
    if (list == POOLED)
        hl_call_l3_inventory_async(c->l3, &(struct hl_api_l3_inventory_params){cursor, PAGE},
                                   timeout_ms, c->opts.loop, on_pooled, r);
    else if (list == ARCHIVED)
        hl_call_l3_list_archived_async(c->l3,
                                       &(struct hl_api_l3_list_archived_params){cursor, PAGE},
                                       timeout_ms, c->opts.loop, on_archived, r);
    else
        hl_call_l3_list_trash_async(c->l3, &(struct hl_api_l3_list_trash_params){cursor, PAGE},
                                    timeout_ms, c->opts.loop, on_trashed, r);
}

/* ---- what L3 reads of it --------------------------------------------------------------------- */

/* Manifests; archived shards, whose CRC no list says; and the headers of shards without a manifest.
 */
static bool to_be_read(const struct recovery *r, const struct object *o)
{
    if (o->read || (!o->pooled && !o->archived))
        return false;
    if (hl_manifest_is(o->id))
        return true;
    return o->claimed != o->pooled && hl_catalog_shard(&r->c->catalog, o->id) == NULL;
}

/* What L3 has read of one object; an error of its own is not a failure of the recovery. */
static void take_found(struct recovery *r, const struct hl_api_found *found)
{
    struct hl_id id;
    if (hl_id_parse(found->id, &id) != HL_OK)
        return;
    struct object *o = recover_object(r, id);
    if (o == NULL)
        return;
    snprintf(o->unreadable, sizeof(o->unreadable), "%s", found->error);
    if (found->tier == HL_API_TIER_UNSAID)
        o->pooled = o->archived = false; /* it went meanwhile */
    o->size = found->size_bytes;
    o->crc = found->crc32;
    if (found->model[0] != '\0' && o->model == NULL)
        o->model = strdup(found->model);
    o->version = found->version;
    if (hl_manifest_is(id) && (o->pooled || o->archived))
        recover_add_manifest(r, id, found->manifest);
}

/* `read` was set when it was asked for, so each object is asked for once and this comes to an end.
 */
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

/* Manifests come first: by them it is known what else has to be read. False: nothing has. */
static bool read_some(struct recovery *r, bool manifests)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    size_t max = manifests ? READ_MANIFESTS : READ_SHARDS;
    struct hl_api_text_list ids = {.items = hl_arena_array(&arena, max, sizeof(*ids.items))};
    for (struct object *o = r->objects; o != NULL && ids.items != NULL && ids.count < max;
         o = o->hh.next) {
        if (hl_manifest_is(o->id) != manifests || !to_be_read(r, o))
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
    recover_judge(r);
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
    for (struct object *o = r->objects; o != NULL; o = o->hh.next)
        if (o->claimed && !o->pooled && !o->archived && o->trashed)
            o->archived = true;
    read_shards(r);
}

/* Of versions that come back. */
static bool is_only_trashed(const struct recovery *r, const struct object *o)
{
    return o->claimed && !o->pooled && !o->archived && o->trashed &&
           hl_catalog_shard(&r->c->catalog, o->id) == NULL;
}

/* Shards of versions that come back leave the trash first: restored before that, they would be
 * lost if this process ended. The owner is named as L3 knows it, for nothing is ours yet. */
static void recovery_judged(struct recovery *r)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct claim_found *f = claim_found(r->c);
    recover_judge(r);
    struct hl_api_text_list ids = {
        .items = hl_arena_array(&arena, HASH_COUNT(r->objects), sizeof(*ids.items))};
    for (struct object *o = r->objects; o != NULL && !r->dry && ids.items != NULL; o = o->hh.next)
        if (is_only_trashed(r, o))
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
        hl_id_format(hl_id_is_none(f->cluster) ? f->archive_cluster : f->cluster);
    controller_hold(r->c);
    hl_call_l3_untrash_async(r->c->l3, &(struct hl_api_l3_untrash_params){ids, owner.s},
                             r->c->opts.copy_timeout_ms, r->c->opts.loop, on_untrashed, r);
}

/* ---- the change ------------------------------------------------------------------------------ */

/* HL_OK says that L3 keeps the new owner durably. */
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

/* The records of a recovery, with the cluster's id from now on: one commit, so that no crash
 * leaves a catalogue that is restored under the old id, or the new id with nothing restored. */
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

/* Made twice (commits.c), so the revision is set only once. With a claim it becomes newer than all
 * that L3 has heard of; without one the commit brings it back to what it was. */
static hl_status recover_make(struct change *ch)
{
    struct recovery *r = (struct recovery *)ch;
    struct claim *cl = &r->c->claim;
    size_t count;
    const struct hl_manifest **list = recover_list(r, &count);
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a list of versions");
    if (!r->revised) {
        uint64_t newest = cl->revision;
        if (newest < cl->found.revision)
            newest = cl->found.revision;
        if (newest < cl->found.archive_revision)
            newest = cl->found.archive_revision;
        r->own_revision = cl->revision;
        cl->revision = r->take ? newest : cl->revision - 1;
        r->revised = true;
    }
    hl_status st = hl_catalog_restore(&r->c->catalog, list, count, commit_recovery, r);
    free(list);
    return st;
}

/* The records are durable, or nothing is. Only now L3 is told. */
static void recover_done(struct change *ch, hl_status st)
{
    struct recovery *r = (struct recovery *)ch;
    struct hl_controller *c = r->c;
    char text[HL_ERROR_TEXT_MAX];
    if (c->closing)
        return; /* recover_fini */
    if (st != HL_OK) {
        snprintf(text, sizeof(text), "%s", hl_error_text());
        c->claim.revision = r->own_revision;
        recovery_end(r, st, text);
        return;
    }
    for (size_t i = 0; i < r->count; i++)
        if (!r->list[i].skipped)
            hl_info("version restored model=%s version=%" PRId64 " shards=%zu",
                    r->list[i].manifest.model, r->list[i].manifest.number, r->list[i].shard_count);
    if (!r->take) {
        hl_warn("shards are left that no version holds, so nothing is claimed count=%" PRIu64,
                r->left);
        recovery_end(r, HL_OK, NULL);
        return;
    }
    claim_become(c, r->cluster, c->claim.revision);
    claim_take(c, on_taken, r);
}

/* Everything is read: do it, or say it. */
static void recovery_decided(struct recovery *r)
{
    size_t restored = 0;
    recover_judge(r);
    for (size_t i = 0; i < r->count; i++)
        restored += !r->list[i].skipped;
    r->left = recover_left(r);
    r->take = r->discard || r->left == 0;
    if (r->dry || (!r->take && restored == 0)) {
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

/* The owner that pool and archive know is kept, so that all that names it stays right. */
static struct hl_id choose_cluster(const struct hl_controller *c)
{
    const struct claim_found *f = claim_found(c);
    if (!hl_id_is_none(f->cluster))
        return f->cluster;
    return hl_id_is_none(f->archive_cluster) ? c->claim.cluster : f->archive_cluster;
}

/* A dry run changes nothing, so it is allowed whatever the claim says. */
static hl_status recovery_check(const struct hl_controller *c, bool dry)
{
    char why[sizeof(c->claim.why)];
    if (c->models->recovery != NULL)
        return hl_fail(HL_EBUSY, "a recovery is running; try again when it has ended");
    if (pool_info(c) == NULL)
        return hl_fail(HL_EUNAVAIL, "nothing can be recovered while L3 is silent: %.200s",
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
    r->discard = p->discard;
    r->cluster = choose_cluster(c);
    c->models->recovery = r;
    ask_list(r, POOLED, 0);
}
