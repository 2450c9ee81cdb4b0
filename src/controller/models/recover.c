/* `helios recover`: L3 is asked for all it has, the manifests among it are read, and the versions
 * that they name become visible in one batch of the store; the same batch makes this cluster the
 * one that pool and archive belong to. Only then both are claimed. So whoever is killed in between
 * comes back with the old claim refused, and recovers again, or with everything restored.
 *
 * Where shards are left that no version holds, versions are restored and nothing is claimed: with
 * the claim those shards would go. The revision then does not rise, so that L3 goes on refusing. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/models/recover_private.h"

#define PAGE           4096
#define READ_SHARDS    256 /* in one call */
#define READ_MANIFESTS 4

static void recovery_free(struct recovery *r)
{
    struct object *o, *next;
    for (size_t i = 0; i < r->count; i++)
        hl_manifest_fini(&r->list[i].manifest);
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
    if (c->recovery != NULL)
        recovery_free(c->recovery);
    c->recovery = NULL;
}

static void end(struct recovery *r, hl_status st, const char *text)
{
    r->c->recovery = NULL;
    if (st == HL_OK)
        hl_rpc_reply(r->call, json_pack("{s:o}", "recovery", recover_json(r)));
    else
        hl_rpc_reject(r->call, st, text);
    recovery_free(r);
}

/* ---- what there is --------------------------------------------------------------------------- */

static void read_next(struct recovery *r);

struct list {
    const char *method, *member;
};

static const struct list lists[] = {
    {"inventory", "extents"}, {"listArchived", "extents"}, {"listTrash", "trashed"}};

struct page {
    struct recovery *r;
    size_t list;
};

static void ask_list(struct recovery *r, size_t list, int64_t cursor);

static void note(struct recovery *r, size_t list, const json_t *item)
{
    struct hl_id id;
    struct object *o =
        hl_id_parse(hl_json_str(item, "id", ""), &id) == HL_OK ? recover_object(r, id) : NULL;
    if (o == NULL)
        return;
    if (!o->pooled && !(list == 2 && o->archived))
        o->size = (uint64_t)hl_json_int(item, "sizeBytes", 0);
    if (list == 0)
        o->crc = (uint32_t)hl_json_int(item, "crc32", 0);
    *(list == 0 ? &o->pooled : list == 1 ? &o->archived : &o->trashed) = true;
}

static void on_list(void *arg, hl_status st, const char *text, json_t *result)
{
    struct page *p = arg;
    struct recovery *r = p->r;
    size_t i, list = p->list;
    const json_t *item;
    free(p);
    if (controller_landed(r->c))
        return;
    if (st != HL_OK) {
        end(r, st, text);
        return;
    }
    json_array_foreach (hl_json_list(result, lists[list].member), i, item) {
        note(r, list, item);
    }
    int64_t next = hl_json_int(result, "next", 0);
    if (next != 0)
        ask_list(r, list, next);
    else if (list + 1 < HL_ARRAY_LEN(lists) && pool_has_archive(r->c))
        ask_list(r, list + 1, 0);
    else
        read_next(r);
}

static void ask_list(struct recovery *r, size_t list, int64_t cursor)
{
    struct page *p = calloc(1, sizeof(*p));
    if (p == NULL) {
        end(r, HL_ENOMEM, "out of memory for a page of shards");
        return;
    }
    *p = (struct page){r, list};
    json_t *params = json_pack("{s:I s:i}", "cursor", (json_int_t)cursor, "limit", PAGE);
    controller_call(r->c, r->c->l3, lists[list].method, params, on_list, p);
    json_decref(params);
}

/* ---- what L3 reads of it --------------------------------------------------------------------- */

/* Manifests; archived shards, whose CRC no list says; and the headers of what nobody knows. */
static bool to_be_read(const struct recovery *r, const struct object *o)
{
    if (o->read || (!o->pooled && !o->archived))
        return false;
    if (hl_manifest_is(o->id))
        return true;
    return o->claimed != o->pooled && hl_catalog_shard(&r->c->catalog, o->id) == NULL;
}

static void take_found(struct recovery *r, const json_t *found)
{
    struct hl_id id;
    if (hl_id_parse(hl_json_str(found, "id", ""), &id) != HL_OK)
        return;
    struct object *o = recover_object(r, id);
    const char *model = hl_json_str(found, "model", "");
    if (o == NULL)
        return;
    snprintf(o->unreadable, sizeof(o->unreadable), "%s", hl_json_str(found, "error", ""));
    if (hl_json_str(found, "tier", "")[0] == '\0')
        o->pooled = o->archived = false; /* it went meanwhile */
    o->size = (uint64_t)hl_json_int(found, "sizeBytes", (int64_t)o->size);
    o->crc = (uint32_t)hl_json_int(found, "crc32", o->crc);
    if (model[0] != '\0' && o->model == NULL)
        o->model = strdup(model);
    o->version = hl_json_int(found, "version", 0);
    if (hl_manifest_is(id) && (o->pooled || o->archived))
        recover_add_manifest(r, id, hl_json_str(found, "manifest", ""));
}

static void on_read(void *arg, hl_status st, const char *text, json_t *result)
{
    struct recovery *r = arg;
    size_t i;
    const json_t *found;
    if (controller_landed(r->c))
        return;
    if (st != HL_OK) {
        end(r, st, text);
        return;
    }
    json_array_foreach (hl_json_list(result, "found"), i, found) {
        take_found(r, found);
    }
    read_next(r);
}

static void decided(struct recovery *r);
static void judged(struct recovery *r);

/* Manifests come first: by them it is known what else has to be read. */
static json_t *next_ids(struct recovery *r, bool manifests)
{
    json_t *ids = json_array();
    size_t max = manifests ? READ_MANIFESTS : READ_SHARDS;
    for (struct object *o = r->objects; o != NULL && json_array_size(ids) < max; o = o->hh.next) {
        if (hl_manifest_is(o->id) != manifests || !to_be_read(r, o))
            continue;
        o->read = true;
        json_array_append_new(ids, json_string(hl_id_format(o->id).s));
    }
    return ids;
}

static void read_ids(struct recovery *r, json_t *ids)
{
    json_t *params = json_pack("{s:o}", "ids", ids);
    controller_call_for(r->c, r->c->l3, "describe", params, r->c->opts.copy_timeout_ms, on_read, r);
    json_decref(params);
}

static void read_next(struct recovery *r)
{
    json_t *ids = next_ids(r, true);
    if (json_array_size(ids) > 0) {
        read_ids(r, ids);
        return;
    }
    json_decref(ids);
    judged(r);
}

/* ---- the trash ------------------------------------------------------------------------------- */

static void read_shards(struct recovery *r)
{
    recover_judge(r);
    json_t *ids = next_ids(r, false);
    if (json_array_size(ids) > 0) {
        read_ids(r, ids);
        return;
    }
    json_decref(ids);
    decided(r);
}

static void on_untrashed(void *arg, hl_status st, const char *text, json_t *result)
{
    struct recovery *r = arg;
    if (controller_landed(r->c))
        return;
    if (st != HL_OK) {
        end(r, st, text);
        return;
    }
    r->untrashed += (uint64_t)hl_json_int(result, "restored", 0);
    for (struct object *o = r->objects; o != NULL; o = o->hh.next)
        if (o->claimed && !o->pooled && !o->archived && o->trashed)
            o->archived = true;
    read_shards(r);
}

/* Shards of versions that come back leave the trash first: restored before that, they would be
 * lost if this process ended. The owner is named as L3 knows it, for nothing is ours yet. */
static void judged(struct recovery *r)
{
    const struct claim_found *f = claim_found(r->c);
    recover_judge(r);
    json_t *ids = json_array();
    for (struct object *o = r->objects; o != NULL && !r->dry; o = o->hh.next)
        if (o->claimed && !o->pooled && !o->archived && o->trashed &&
            hl_catalog_shard(&r->c->catalog, o->id) == NULL)
            json_array_append_new(ids, json_string(hl_id_format(o->id).s));
    if (json_array_size(ids) == 0) {
        json_decref(ids);
        read_shards(r);
        return;
    }
    struct hl_id owner = hl_id_is_none(f->cluster) ? f->archive_cluster : f->cluster;
    json_t *params = json_pack("{s:o s:s}", "ids", ids, "cluster", hl_id_format(owner).s);
    controller_call_for(r->c, r->c->l3, "untrash", params, r->c->opts.copy_timeout_ms, on_untrashed,
                        r);
    json_decref(params);
}

/* ---- the change ------------------------------------------------------------------------------ */

static void on_taken(void *arg, hl_status st, const char *text)
{
    struct recovery *r = arg;
    struct hl_controller *c = r->c;
    char why[sizeof(c->claim.why)];
    if (st != HL_OK) {
        end(r, st, text);
    } else if (!claim_ok(c, why, sizeof(why))) {
        end(r, HL_EPERM, why);
    } else {
        hl_info("state recovered cluster=%s revision=%" PRIu64, claim_cluster(c).s,
                c->claim.revision);
        c->sweep_ns = 0;
        end(r, HL_OK, NULL);
    }
}

/* The records of a recovery, with who the cluster is from now on. */
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
        end(r, st, text);
        return;
    }
    for (size_t i = 0; i < r->count; i++)
        if (!r->list[i].skipped)
            hl_info("version restored model=%s version=%" PRId64 " shards=%zu",
                    r->list[i].manifest.model, r->list[i].manifest.number,
                    json_array_size(r->list[i].manifest.shards));
    if (!r->take) {
        hl_warn("shards are left that no version holds, so nothing is claimed count=%" PRIu64,
                r->left);
        end(r, HL_OK, NULL);
        return;
    }
    claim_become(c, r->cluster, c->claim.revision);
    claim_take(c, on_taken, r);
}

/* Everything is read: do it, or say it. */
static void decided(struct recovery *r)
{
    size_t restored = 0;
    recover_judge(r);
    for (size_t i = 0; i < r->count; i++)
        restored += !r->list[i].skipped;
    r->left = recover_left(r);
    r->take = r->discard || r->left == 0;
    if (r->dry || (!r->take && restored == 0)) {
        end(r, HL_OK, NULL);
        return;
    }
    if (r->c->claim.state != CLAIM_REFUSED) {
        end(r, HL_ECONFLICT, "the claim is no longer refused: nothing was changed");
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

static hl_status check(const struct hl_controller *c, bool dry)
{
    char why[sizeof(c->claim.why)];
    if (c->recovery != NULL)
        return hl_fail(HL_EBUSY, "a recovery is under way; try again when it has ended");
    if (c->pool == NULL)
        return hl_fail(HL_EUNAVAIL, "nothing can be recovered while L3 is silent: %.200s",
                       c->l3_state);
    if (dry)
        return HL_OK;
    if (claim_ok(c, why, sizeof(why)))
        return hl_fail(HL_ECONFLICT, "there is nothing to recover: pool and archive are this "
                                     "cluster's, and its catalogue is the newest");
    if (c->claim.state == CLAIM_UNKNOWN)
        return hl_fail(HL_EUNAVAIL, "%s; try again", why);
    return HL_OK;
}

void method_recover(struct hl_controller *c, struct hl_rpc_call *call, const json_t *params)
{
    bool dry = hl_json_bool(params, "dryRun", 0);
    hl_status st = check(c, dry);
    struct recovery *r = st == HL_OK ? calloc(1, sizeof(*r)) : NULL;
    if (st == HL_OK && r == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for a recovery");
    if (st != HL_OK) {
        reject(call, st);
        return;
    }
    r->c = c;
    r->call = call;
    r->dry = dry;
    r->discard = hl_json_bool(params, "discard", 0);
    r->cluster = choose_cluster(c);
    c->recovery = r;
    ask_list(r, 0, 0);
}
