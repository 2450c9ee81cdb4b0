/* Who owns the pool and the archive. Both store the id of a cluster and the newest revision of its
 * catalogue that they have heard of. They store it beside the shards and not in this process, so
 * a daemon that finds the shards also finds their owner. A call that destroys shards names its
 * cluster, and is refused unless that is the owner.
 *
 * The pool learns of a revision with each claim. Updating the archive's record costs a write to a
 * disk or an object store, so it is only done before the next shard is put there: the record is
 * never behind the archive's contents. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"
#include "core/catalog/claim.h"
#include "l3d/l4_private.h"

struct claiming {
    struct work work;
    struct hl_l3d *d;
    struct hl_rpc_call *call;
    struct hl_claimant who;
    uint64_t revision;
    struct hl_archive *archive;    /* NULL: there is none, or it is unreachable */
    struct hl_claimed pool, there; /* as found; there: in the archive */
    uint64_t archived, trashed;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

/* ---- a claim --------------------------------------------------------------------------------- */

static bool claims_anything(const struct claiming *c)
{
    return c->who.mode == HL_API_CLAIM_MODE_TAKE;
}

static void claiming_look(struct claiming *c)
{
    struct hl_pool_claim pool;
    struct hl_pool_info info;
    hl_pool_claimed(c->d->pool, &pool);
    hl_pool_info(c->d->pool, &info);
    c->pool = (struct hl_claimed){
        .cluster = pool.cluster, .revision = pool.revision, .shards = info.shards - info.manifests};
    c->archive = l4_archive(c->d);
    if (c->archive == NULL)
        return;
    struct hl_archive_claim claim;
    struct hl_archive_info there;
    hl_archive_claimed(c->archive, &claim);
    hl_archive_stat(c->archive, &there);
    c->archived = there.count - there.manifests;
    c->trashed = there.trashed;
    c->there = (struct hl_claimed){claim.cluster, claim.revision,
                                   c->archived + there.trashed + claim.taken, claim.damaged};
}

static void claiming_answer(struct claiming *c, enum hl_api_claim_result state)
{
    struct hl_arena *arena = hl_rpc_call_arena(c->call);
    const struct hl_api_l3_claim_results r = {
        .state = state,
        .cluster = hl_id_print(c->pool.cluster, arena),
        .revision = c->pool.revision,
        .shards = c->pool.shards,
        .archive_cluster = hl_id_print(c->there.cluster, arena),
        .archive_revision = c->there.revision,
        .archived = c->archived,
        .trashed = c->trashed,
        .archive_damaged = c->there.damaged,
    };
    hl_reply_l3_claim(c->call, &r);
    free(c);
}

/* The archive is ours, so the pool may become ours. */
static void take_pool(struct claiming *c)
{
    struct hl_pool_claim now = {c->who.cluster, hl_claim_revision(&c->pool, &c->who, c->revision)};
    if (!hl_id_equal(c->pool.cluster, c->who.cluster))
        hl_info("pool is claimed cluster=%s revision=%" PRIu64, hl_id_format(c->who.cluster).s,
                c->revision);
    hl_pool_claim(c->d->pool, &now);
    c->pool.cluster = now.cluster;
    c->pool.revision = now.revision;
    claiming_answer(c, HL_API_CLAIM_RESULT_CLAIMED);
}

static void write_archive(struct work *w)
{
    struct claiming *c = (struct claiming *)w;
    const struct hl_archive_claim now = {.cluster = c->who.cluster, .revision = c->revision};
    pthread_mutex_lock(&c->d->l4->sign_lock);
    c->st = hl_archive_claim(c->archive, &now);
    pthread_mutex_unlock(&c->d->l4->sign_lock);
    if (c->st != HL_OK)
        snprintf(c->text, sizeof(c->text), "%s", hl_error_text());
}

static void archive_written(struct work *w)
{
    struct claiming *c = (struct claiming *)w;
    c->d->claiming = false;
    if (c->st != HL_OK) {
        hl_rpc_reject(c->call, c->st, c->text);
        free(c);
        return;
    }
    hl_info("archive is claimed url=%s cluster=%s", c->d->l4->url, hl_id_format(c->who.cluster).s);
    c->there = (struct hl_claimed){
        .cluster = c->who.cluster, .revision = c->revision, .shards = c->there.shards};
    take_pool(c);
}

static void claiming_decide(struct claiming *c)
{
    enum hl_api_claim_result pool = hl_claim_judge(&c->pool, &c->who, false);
    enum hl_api_claim_result there =
        c->archive != NULL ? hl_claim_judge(&c->there, &c->who, true) : HL_API_CLAIM_RESULT_CLAIMED;
    /* the values are ordered from bad to good */
    enum hl_api_claim_result worst = pool < there ? pool : there;
    if (worst != HL_API_CLAIM_RESULT_CLAIMED) {
        claiming_answer(c, worst);
        return;
    }
    if (c->archive == NULL || hl_claim_stands(&c->there, &c->who, c->revision)) {
        take_pool(c);
        return;
    }
    c->work = (struct work){.run = write_archive, .done = archive_written};
    c->d->claiming = true;
    workers_add(c->d->l4->stores, &c->work);
}

static hl_status claiming_parse(struct hl_l3d *d, const struct hl_api_l3_claim_params *params,
                                struct claiming *c)
{
    struct hl_archive *a;
    HL_TRY(hl_id_parse(params->cluster, &c->who.cluster));
    c->revision = params->revision;
    c->who.seen = params->seen;
    c->who.mode = params->mode;
    if (hl_id_is_none(c->who.cluster))
        return hl_fail(HL_EINVAL, "claim: the cluster's id must not be 0");
    if (d->claiming)
        return hl_fail(HL_EBUSY, "another claim is being written; try again");
    if (claims_anything(c) && l4_is_unreachable(d))
        return l4_need(d, &a);
    return HL_OK;
}

void method_claim(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_claim_params *params)
{
    struct hl_l3d *d = arg;
    struct claiming *c = calloc(1, sizeof(*c));
    hl_status st = c != NULL ? claiming_parse(d, params, c)
                             : hl_fail(HL_ENOMEM, "out of memory allocating a claim");
    if (st != HL_OK) {
        free(c);
        hl_rpc_reject(call, st, NULL);
        return;
    }
    c->d = d;
    c->call = call;
    claiming_look(c);
    claiming_decide(c);
}

/* ---- permission ------------------------------------------------------------------------------ */

hl_status claim_allows(struct hl_l3d *d, const char *cluster)
{
    struct hl_pool_claim pool;
    hl_pool_claimed(d->pool, &pool);
    return hl_claim_permit("pool", pool.cluster, cluster);
}

hl_status claim_allows_import(struct hl_l3d *d, const char *cluster)
{
    return cluster[0] == '\0' ? HL_OK : claim_allows(d, cluster);
}

hl_status claim_allows_archive(struct hl_l3d *d, const char *cluster)
{
    struct hl_archive_claim claim;
    HL_TRY(claim_allows(d, cluster));
    if (l4_archive(d) == NULL)
        return HL_OK;
    hl_archive_claimed(l4_archive(d), &claim);
    if (claim.damaged)
        return hl_fail(HL_EPERM, "the archive's helios-cluster.json is damaged, so nothing is "
                                 "removed from it; `helios recover` rewrites it");
    return hl_claim_permit("archive", claim.cluster, cluster);
}

/* ---- before a shard is archived -------------------------------------------------------------- */

static hl_status sign_archive(struct hl_l3d *d, struct hl_archive *a)
{
    struct hl_pool_claim pool;
    struct hl_archive_claim have;
    struct hl_archive_info info;
    hl_pool_claimed(d->pool, &pool);
    hl_archive_claimed(a, &have);
    hl_archive_stat(a, &info);
    const struct hl_claimed ours = {.cluster = pool.cluster, .revision = pool.revision};
    const struct hl_claimed there = {.cluster = have.cluster,
                                     .revision = have.revision,
                                     .shards = info.count + info.trashed + info.writing_bytes +
                                               have.taken,
                                     .damaged = have.damaged};
    enum hl_claim_sign sign = hl_claim_sign(&ours, &there);
    if (sign == HL_CLAIM_SIGNED)
        return HL_OK;
    if (sign == HL_CLAIM_FOREIGN)
        return hl_fail(HL_EPERM,
                       "the archive %s belongs to cluster %s, the pool to %s: nothing is stored "
                       "there until the Controller has claimed it",
                       d->l4->url,
                       hl_id_is_none(have.cluster) ? "no" : hl_id_format(have.cluster).s,
                       hl_id_format(pool.cluster).s);
    return hl_archive_claim(
        a, &(struct hl_archive_claim){.cluster = pool.cluster, .revision = pool.revision});
}

hl_status claim_sign(struct hl_l3d *d, struct hl_archive *a)
{
    pthread_mutex_lock(&d->l4->sign_lock);
    hl_status st = sign_archive(d, a);
    pthread_mutex_unlock(&d->l4->sign_lock);
    return st;
}
