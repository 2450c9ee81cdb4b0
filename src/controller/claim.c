/* A claim is a call to L3, which decides it from what it has stored (l3d/claim.c). L3 is asked
 * whenever it was silent before, before each sweep, and after every change of the catalogue, so
 * that L3 learns the new revision before a Controller with an old catalogue can claim it.
 *
 * `seen` is sent along: L3 may not know a newer revision than we have told it. A revision whose
 * answer was lost counts as told.
 *
 *     catalogue      revision 7 ---- durable: 8 ------------------- durable: 9 ----> time
 *     told to L3         seen 7           | claim(8, seen 7) --> ok: seen 8
 *     L3 keeps                7           '--> 8
 *
 * States, all changed on the loop's thread, by L3's answer or by its silence:
 *
 *     UNKNOWN --CLAIMED-----------------------------> OK       pool and archive may be changed
 *        |----UNCLAIMED, the catalogue is empty-----> REFUSED  nothing is changed, reads go on
 *        |----UNCLAIMED, it has shards--> comparing --the sweep found none of ours--> REFUSED
 *        |                                   '--it found some: ADOPT--> asked again
 *        '----OTHER cluster, NEWER revision---------> REFUSED
 *     OK, REFUSED --L3 is silent or another one: claim_forget--> UNKNOWN
 *     REFUSED --helios recover: claim_become, claim_take--> UNKNOWN --> OK
 *
 * While a call is in progress (`asking`), another one only sets `again`. */
#include "controller/claim.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/core.h"
#include "core/catalog/claim.h"
#include "core/migration/epoch.h"
#include "store/store.h"

#define RECOVER                                                                                    \
    "`helios recover` restores what is missing here, `helios recover --discard` discards it"

/* A call in progress; one at a time. */
struct claim_call {
    struct hl_controller *c;
    uint64_t revision; /* the revision that it tells L3 */
    claim_done done;   /* NULL: an ordinary claim */
    void *arg;
};

/* ---- the store ------------------------------------------------------------------------------- */

static json_t *id_record(struct hl_id cluster)
{
    const struct hl_id_text text = hl_id_format(cluster);
    return hl_api_to_json(&hl_api_cluster_id_type, &(struct hl_api_cluster_id){text.s});
}

static json_t *revision_record(uint64_t revision)
{
    return hl_api_to_json(&hl_api_catalog_revision_type,
                          &(struct hl_api_catalog_revision){revision});
}

hl_status claim_add_id(struct hl_records *records, struct hl_id cluster)
{
    return hl_records_add(records, id_record(cluster), "%s", HL_CLAIM_ID_KEY);
}

hl_status claim_add_revision(struct hl_records *records, uint64_t revision)
{
    return hl_records_add(records, revision_record(revision), "%s", HL_CLAIM_REVISION_KEY);
}

/* The first start: makes a new cluster. Its id and revision are durable before any other process
 * learns of them. */
static hl_status cluster_make(struct hl_controller *c)
{
    struct hl_id id = hl_id_random();
    json_t *id_value = id_record(id);
    json_t *revision = revision_record(1);
    const struct hl_store_op ops[] = {{HL_STORE_PUT, HL_CLAIM_ID_KEY, id_value},
                                      {HL_STORE_PUT, HL_CLAIM_REVISION_KEY, revision}};
    hl_status st = id_value == NULL || revision == NULL
                       ? hl_fail(HL_ENOMEM, "out of memory for the cluster's id")
                       : hl_store_commit(c->store, ops, HL_ARRAY_LEN(ops));
    json_decref(id_value);
    json_decref(revision);
    HL_TRY(st);
    hl_info("cluster made id=%s", hl_id_format(id).s);
    c->claim.cluster = id;
    c->claim.revision = 1;
    return HL_OK;
}

/* Reads the record of that key; HL_ECORRUPT names what is wrong with it. */
static hl_status read_record(struct hl_controller *c, const char *key,
                             const struct hl_api_type *type, struct hl_arena *arena, void *out)
{
    json_t *value;
    HL_TRY(hl_store_get(c->store, key, &value));
    hl_status st = hl_api_from_json(type, value, arena, out);
    json_decref(value);
    if (st == HL_EINVAL)
        st = HL_ECORRUPT;
    return st == HL_OK ? st : hl_fail_prefix(st, "the record %s: ", key);
}

static hl_status read_revision(struct hl_controller *c, uint64_t *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_catalog_revision r;
    HL_TRY(read_record(c, HL_CLAIM_REVISION_KEY, &hl_api_catalog_revision_type, &arena, &r));
    if (r.revision == 0)
        return hl_fail(HL_ECORRUPT, "the record " HL_CLAIM_REVISION_KEY " has revision 0");
    *out = r.revision;
    return HL_OK;
}

hl_status claim_load(struct hl_controller *c)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_cluster_id record;
    struct hl_id id = {0, 0};
    hl_status st = read_record(c, HL_CLAIM_ID_KEY, &hl_api_cluster_id_type, &arena, &record);
    if (st == HL_ENOENT) {
        hl_error_clear();
        HL_TRY(cluster_make(c));
    } else {
        HL_TRY(st);
        if (hl_id_parse(record.id, &id) != HL_OK || hl_id_is_none(id))
            return hl_fail(HL_ECORRUPT, "the record " HL_CLAIM_ID_KEY " holds no id");
        HL_TRY(read_revision(c, &c->claim.revision));
        c->claim.cluster = id;
    }
    c->claim.seen = c->claim.revision;
    return HL_OK;
}

/* Makes an id that every claimed pool and archive refuses, so this Controller changes nothing
 * there. */
void claim_load_none(struct hl_controller *c)
{
    c->claim.cluster = hl_id_random();
    c->claim.revision = c->claim.seen = 1;
}

/* An epoch that can't be read is replaced by one derived from the clock. */
hl_status claim_begin_epoch(struct hl_controller *c)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_epoch last = {0};
    hl_status st = read_record(c, HL_CLAIM_EPOCH_KEY, &hl_api_controller_epoch_type, &arena, &last);
    if (st == HL_ECORRUPT)
        hl_warn("the epoch is counted from the start again error=\"%s\"", hl_error_text());
    else if (st != HL_OK && st != HL_ENOENT)
        return st;
    const struct hl_api_controller_epoch next = {hl_epoch_next(last.epoch, hl_wall_ms() / 1000)};
    json_t *value = hl_api_to_json(&hl_api_controller_epoch_type, &next);
    const struct hl_store_op op = {HL_STORE_PUT, HL_CLAIM_EPOCH_KEY, value};
    st = value == NULL ? hl_fail(HL_ENOMEM, "out of memory for the epoch")
                       : hl_store_commit(c->store, &op, 1);
    json_decref(value);
    if (st != HL_OK) /* a full disk: reads continue */
        hl_warn("the epoch can't be stored, a later start is newer only by its clock error=\"%s\"",
                hl_error_text());
    hl_error_clear();
    c->claim.epoch = next.epoch;
    return HL_OK;
}

/* ---- what others ask ------------------------------------------------------------------------- */

struct hl_id_text claim_cluster(const struct hl_controller *c)
{
    return hl_id_format(c->claim.cluster);
}

bool claim_ok(const struct hl_controller *c, char *why, size_t cap)
{
    if (why != NULL && cap > 0)
        snprintf(why, cap, "%s",
                 c->claim.state == CLAIM_REFUSED ? c->claim.why
                 : c->claim.state == CLAIM_UNKNOWN
                     ? "L3 has not reported yet which cluster owns its pool"
                     : "");
    return c->claim.state == CLAIM_OK;
}

hl_status claim_check(const struct hl_controller *c)
{
    if (c->claim.state != CLAIM_REFUSED)
        return HL_OK;
    return hl_fail(HL_EPERM, "%s", c->claim.why);
}

enum hl_api_claim_state claim_state(const struct hl_controller *c)
{
    return (enum hl_api_claim_state)c->claim.state;
}

const struct claim_found *claim_found(const struct hl_controller *c)
{
    return &c->claim.found;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

/* L3 has this cluster and no newer catalogue: the only way to CLAIM_OK. */
static void claim_is_ours(struct hl_controller *c)
{
    struct claim *cl = &c->claim;
    if (cl->state != CLAIM_OK)
        hl_info("pool is this cluster's cluster=%s revision=%" PRIu64 " shards=%" PRIu64
                " archived=%" PRIu64,
                claim_cluster(c).s, cl->revision, cl->found.shards, cl->found.archived);
    cl->state = CLAIM_OK;
    cl->comparing = false;
    cl->why[0] = '\0';
}

/* Logs the reason once, and again only if it changes. */
HL_PRINTF(2, 3) static void claim_refuse(struct hl_controller *c, const char *fmt, ...)
{
    struct claim *cl = &c->claim;
    char why[sizeof(cl->why)];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    if (cl->state != CLAIM_REFUSED || strcmp(cl->why, why) != 0)
        hl_error("this Controller changes nothing in pool and archive: %s", why);
    cl->state = CLAIM_REFUSED;
    cl->comparing = false;
    memcpy(cl->why, why, sizeof(cl->why));
}

/* The pool or the archive belongs to another cluster; if both do, the pool is named. */
static void claim_refuse_other(struct hl_controller *c)
{
    const struct claim_found *f = &c->claim.found;
    bool pool = !hl_id_is_none(f->cluster) && !hl_id_equal(f->cluster, c->claim.cluster);
    if (!pool && f->archive_damaged)
        claim_refuse(c, "the archive's helios-cluster.json is damaged, so it may be another "
                        "cluster's; " RECOVER);
    else
        claim_refuse(
            c,
            "the %s belongs to cluster %s, this is cluster %s: the Controller's state was lost, "
            "or L3 serves another one; " RECOVER,
            pool ? "pool" : "archive", hl_id_format(pool ? f->cluster : f->archive_cluster).s,
            claim_cluster(c).s);
}

/* Our cluster, but L3 knows of changes that this catalogue does not have. Freeing unknown shards
 * would free what those changes have made. */
static void claim_refuse_newer(struct hl_controller *c)
{
    const struct claim *cl = &c->claim;
    const struct claim_found *f = &cl->found;
    bool pool = f->revision > cl->seen;
    claim_refuse(c,
                 "the %s knows revision %" PRIu64
                 " of the catalogue, but this catalogue is at %" PRIu64
                 ": it is an old copy, or a second Controller runs on another copy; " RECOVER,
                 pool ? "pool" : "archive", pool ? f->revision : f->archive_revision, cl->seen);
}

/* Unclaimed shards are ours if the catalogue knows them. */
static void claim_compare(struct hl_controller *c)
{
    struct claim *cl = &c->claim;
    if (HASH_COUNT(c->catalog.shards) == 0) {
        claim_refuse(
            c,
            "the pool holds %" PRIu64 " shards and the archive %" PRIu64
            " that were never claimed, and the catalogue is empty: the Controller's state was "
            "lost; " RECOVER,
            cl->found.shards, cl->found.archived);
        return;
    }
    cl->comparing = true; /* the sweep that begins with this claim compares them */
    cl->known_pooled = cl->known_archived = 0;
}

/* Judges by L3's answer alone; earlier states do not count. */
static void claim_judge(struct hl_controller *c)
{
    switch (c->claim.found.state) {
    case HL_API_CLAIM_RESULT_CLAIMED:
        claim_is_ours(c);
        break;
    case HL_API_CLAIM_RESULT_UNCLAIMED:
        claim_compare(c);
        break;
    case HL_API_CLAIM_RESULT_OTHER:
        claim_refuse_other(c);
        break;
    case HL_API_CLAIM_RESULT_NEWER:
        claim_refuse_newer(c);
        break;
    }
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* Returns no id if the text is not an id. */
static struct hl_id read_id(const char *text)
{
    struct hl_id id = {0, 0};
    if (hl_id_parse(text, &id) != HL_OK)
        hl_error_clear();
    return id;
}

static void read_answer(struct claim_found *f, const struct hl_api_l3_claim_results *r)
{
    *f = (struct claim_found){
        .state = r->state,
        .cluster = read_id(r->cluster),
        .archive_cluster = read_id(r->archive_cluster),
        .revision = r->revision,
        .archive_revision = r->archive_revision,
        .shards = r->shards,
        .archived = r->archived,
        .trashed = r->trashed,
        .archive_damaged = r->archive_damaged,
    };
}

static void on_claim(void *arg, hl_status st, const char *text,
                     const struct hl_api_l3_claim_results *r)
{
    struct claim_call *k = arg;
    struct hl_controller *c = k->c;
    struct claim *cl = &c->claim;
    if (controller_stopped(c)) { /* the caller of claim_take has ended as well */
        free(k);
        return;
    }
    cl->asking = false;
    if (st == HL_EUNSUPPORTED) {
        claim_refuse(c, "helios-l3d is older than the Controller and can't report which cluster "
                        "owns its pool; upgrade it");
    } else if (st == HL_OK) {
        read_answer(&cl->found, r);
        claim_judge(c);
    }
    if (hl_claim_is_told(st, cl->state == CLAIM_OK) && k->revision > cl->seen)
        cl->seen = k->revision;
    if (cl->answered != NULL)
        cl->answered(c, st);
    if (k->done != NULL)
        k->done(k->arg, st, text);
    free(k);
    if (cl->again && !cl->asking) {
        cl->again = false;
        claim_ask(c);
    }
}

/* mode: OWN asks; ADOPT makes unclaimed shards ours; TAKE also takes those of another cluster. */
static void claim_send(struct hl_controller *c, enum hl_api_claim_mode mode, claim_done done,
                       void *arg)
{
    struct claim_call *k = calloc(1, sizeof(*k));
    if (k == NULL) {
        if (done != NULL)
            done(arg, HL_ENOMEM, "out of memory for a claim");
        return; /* the next sweep asks again */
    }
    *k = (struct claim_call){.c = c, .revision = c->claim.revision, .done = done, .arg = arg};
    const struct hl_id_text cluster = claim_cluster(c);
    const struct hl_api_l3_claim_params p = {cluster.s, c->claim.revision, c->claim.seen, mode};
    c->claim.asking = true;
    controller_hold(c);
    hl_call_l3_claim_async(c->l3, &p, c->opts.rpc_timeout_ms, c->opts.loop, on_claim, k);
}

/* `again` is a flag, not a counter: one more call tells the newest revision, whatever happened
 * meanwhile. */
void claim_ask(struct hl_controller *c)
{
    if (c->claim.asking)
        c->claim.again = true;
    else
        claim_send(c, HL_API_CLAIM_MODE_OWN, NULL, NULL);
}

void claim_take(struct hl_controller *c, claim_done done, void *arg)
{
    claim_send(c, HL_API_CLAIM_MODE_TAKE, done, arg);
}

/* If L3 refuses us, it would refuse this revision too; if L3 is silent, the next sweep asks. */
void claim_changed(struct hl_controller *c)
{
    c->claim.revision++;
    if (c->claim.state == CLAIM_OK)
        claim_ask(c);
}

void claim_forget(struct hl_controller *c)
{
    c->claim.state = CLAIM_UNKNOWN;
    c->claim.comparing = false;
    memset(&c->claim.found, 0, sizeof(c->claim.found));
}

/* The caller has chosen a revision newer than any that L3 knows (recover_make). */
void claim_become(struct hl_controller *c, struct hl_id cluster, uint64_t revision)
{
    c->claim.cluster = cluster;
    c->claim.revision = c->claim.seen = revision;
    claim_forget(c);
}

void claim_compared(struct hl_controller *c)
{
    struct claim *cl = &c->claim;
    const struct claim_found *f = &cl->found;
    const struct hl_claimed in_pool = {.cluster = f->cluster, .shards = f->shards},
                            archived = {.cluster = f->archive_cluster, .shards = f->archived};
    bool pool = hl_claim_is_strange(&in_pool, cl->known_pooled);
    cl->comparing = false;
    if (pool || hl_claim_is_strange(&archived, cl->known_archived))
        claim_refuse(
            c,
            "the %s holds %" PRIu64
            " shards that were never claimed, and the catalogue knows none of them; " RECOVER,
            pool ? "pool" : "archive", pool ? f->shards : f->archived);
    else
        claim_send(c, HL_API_CLAIM_MODE_ADOPT, NULL, NULL);
}
