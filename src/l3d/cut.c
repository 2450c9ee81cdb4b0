/* A cut: the shards of a version as another tensor parallel size has them, made from those in the
 * pool. Shards that are only archived are loaded first. The sources stay pinned until the end, so
 * the pool needs room for both the version and the cut. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "core/catalog/derived_id.h"
#include "core/model/layout.h"
#include "core/model/part.h"
#include "l3d/cut_plans.h"
#include "l3d/imports_private.h"
#include "l3d/l4.h"
#include "mem/pool/pool.h"
#include "mem/reshard/reshard.h"

#define LOAD_TRIES 4 /* a load may evict what was loaded before and is not pinned yet */

struct source {
    const struct hl_api_shard *shard; /* part of the request */
    struct hl_pool_ref ref;
    bool pinned;
    uint32_t *crcs;
    struct hl_safetensors header;
};

struct cut {
    struct import *im;
    struct source *sources; /* sorted by pp, tp, ep, part */
    size_t count;
    const struct cut_plan *plan;
    size_t made; /* number of shards in im->shards */
    uint64_t done_before, total;
};

/* ---- the sources ----------------------------------------------------------------------------- */

static struct hl_part_at at_of(const struct hl_api_shard *s)
{
    return (struct hl_part_at){s->pp, s->tp, s->ep, s->part};
}

static int source_order(const void *a, const void *b)
{
    const struct hl_part_at x = at_of(((const struct source *)a)->shard);
    const struct hl_part_at y = at_of(((const struct source *)b)->shard);
    return hl_part_at_order(&x, &y);
}

static int find_order(const void *key, const void *element)
{
    const struct hl_part_at at = at_of(((const struct source *)element)->shard);
    return hl_part_at_order(key, &at);
}

static struct source *find_source(const struct cut *c, const struct hl_partition_shard *p)
{
    const struct hl_part_at at = {p->pp, p->tp, p->ep, p->part};
    return c->count > 0 ? bsearch(&at, c->sources, c->count, sizeof(*c->sources), find_order)
                        : NULL;
}

static hl_status pin_source(struct hl_l3d *d, struct source *s)
{
    struct hl_id id;
    HL_TRY(hl_id_parse(s->shard->id, &id));
    for (int i = 0; i < LOAD_TRIES; i++) {
        hl_status st = hl_pool_pin(d->pool, id, 0, &s->ref);
        if (st == HL_OK)
            s->pinned = true;
        if (st != HL_ENOENT)
            return st;
        HL_TRY(l4_load_now(d, id));
    }
    return hl_fail(HL_EBUSY,
                   "shard %s was evicted from the pool as soon as it was loaded; try again",
                   s->shard->id);
}

static const void *source_bytes(const struct cut *c, const struct source *s)
{
    size_t len;
    return (const char *)hl_pool_base(c->im->daemon->pool, &len) + s->ref.offset;
}

/* The header is checked against its checksums when it is used for a shard; here it only has to
 * parse. */
static hl_status open_source(const struct cut *c, struct source *s)
{
    const void *bytes = source_bytes(c, s);
    uint64_t n, first = s->ref.size < 8 ? s->ref.size : 8;
    s->crcs = calloc(hl_chunk_count(s->ref.size) + 1, sizeof(*s->crcs));
    if (s->crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing the checksums of shard %s", s->shard->id);
    HL_TRY(hl_pool_chunk_crcs(c->im->daemon->pool, &s->ref, s->crcs));
    HL_TRY(hl_safetensors_header_len(bytes, first, s->ref.size, &n));
    return hl_safetensors_parse(bytes, n + 8, s->ref.size, &s->header);
}

static hl_status open_sources(struct cut *c)
{
    const struct hl_api_shard_list *shards = &c->im->cut.shards;
    c->sources = calloc(shards->count + 1, sizeof(*c->sources));
    if (c->sources == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", shards->count);
    for (size_t i = 0; i < shards->count; i++)
        c->sources[c->count++].shard = &shards->items[i];
    qsort(c->sources, c->count, sizeof(*c->sources), source_order);
    for (size_t i = 0; i < c->count; i++) {
        if (atomic_load_explicit(&c->im->cancel, memory_order_relaxed))
            return hl_fail(HL_ECANCELED, "the cut was cancelled");
        hl_status st = pin_source(c->im->daemon, &c->sources[i]);
        if (st == HL_OK)
            st = open_source(c, &c->sources[i]);
        if (st != HL_OK)
            return hl_fail_prefix(st, "shard %s (pp %d, tp %d, %s): ", c->sources[i].shard->id,
                                  c->sources[i].shard->pp, c->sources[i].shard->tp,
                                  c->sources[i].shard->part);
    }
    return HL_OK;
}

static void close_sources(struct cut *c)
{
    for (size_t i = 0; c->sources != NULL && i < c->count; i++) {
        hl_safetensors_fini(&c->sources[i].header);
        free(c->sources[i].crcs);
        if (c->sources[i].pinned)
            hl_pool_unpin(c->im->daemon->pool, &c->sources[i].ref);
    }
    free(c->sources);
}

/* ---- the plans ------------------------------------------------------------------------------- */

static hl_status find_tensor(void *arg, const struct hl_partition_shard *shard, const char *name,
                             const struct hl_tensor **out)
{
    const struct source *s = find_source(arg, shard);
    if (s == NULL)
        return hl_fail(HL_EINVAL, "the version has no part %s at pp %d, tp %d", shard->part,
                       shard->pp, shard->tp);
    *out = hl_safetensors_find(&s->header, name);
    if (*out == NULL)
        return hl_fail(HL_EINVAL, "part %s at pp %d, tp %d lacks the tensor '%.200s'", shard->part,
                       shard->pp, shard->tp, name);
    return HL_OK;
}

static hl_status list_tensors(void *arg, const struct hl_partition_shard *shard,
                              const struct hl_tensor **out, size_t *count)
{
    const struct source *s = find_source(arg, shard);
    *out = s != NULL ? s->header.tensors : NULL;
    *count = s != NULL ? s->header.count : 0;
    return HL_OK;
}

/* The CRC as the header states it, which the header's own checksum protects; the bytes are read
 * when they are cut. */
static hl_status tensor_crc(void *arg, const struct hl_partition_shard *shard, const char *name,
                            uint32_t *out)
{
    const struct source *s = find_source(arg, shard);
    if (s == NULL)
        return hl_fail(HL_EINTERNAL, "part %s was listed but does not exist", shard->part);
    return hl_safetensors_crc(&s->header, name, out);
}

/* True if another stage has the same part, and that stage's parameters are planned: the Controller
 * has checked that both are equal. */
static bool is_repeated(const struct cut *c, const struct hl_partition_plan *ranks,
                        const struct source *s)
{
    const char *of = hl_part_of(s->shard->part).of;
    bool repeated = false;
    if (strncmp(of, "layer-", strlen("layer-")) == 0 || hl_part_has_experts(of))
        return false; /* only one stage has it */
    for (size_t i = 0; i < ranks->shard_count; i++) {
        const struct hl_partition_shard *p = &ranks->shards[i];
        struct hl_partition_shard twin = {.pp = p->pp, .tp = p->tp, .ep = p->ep};
        if (p->tp != s->shard->tp || p->ep != s->shard->ep || strcmp(p->part, of) != 0)
            continue;
        if (p->pp == s->shard->pp)
            return false;
        snprintf(twin.part, sizeof(twin.part), "%s", s->shard->part);
        repeated = repeated || find_source(c, &twin) != NULL;
    }
    return repeated;
}

static hl_status plan_state(const struct cut *c, struct cut_plan *plan)
{
    HL_AUTO(hl_freep) struct hl_reshard_state_part *parts = calloc(c->count + 1, sizeof(*parts));
    size_t n = 0;
    if (parts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", c->count);
    for (size_t i = 0; i < c->count; i++) {
        const struct source *s = &c->sources[i];
        struct hl_part part = hl_part_of(s->shard->part);
        if (part.kind == HL_PART_OPTIM && !is_repeated(c, &plan->whole.ranks, s))
            parts[n++] = (struct hl_reshard_state_part){.pp = s->shard->pp,
                                                        .tp = s->shard->tp,
                                                        .ep = s->shard->ep,
                                                        .of = part.of,
                                                        .part = s->shard->part,
                                                        .tensors = s->header.tensors,
                                                        .count = s->header.count};
    }
    if (n == 0)
        return HL_OK;
    HL_TRY(hl_reshard_state(plan->whole.logical.tensors, &plan->whole.ranks, &plan->whole.whole,
                            parts, n, &plan->state));
    plan->has_state = true;
    return hl_reshard_plan(plan->state.logical, plan->state.logical_count, &plan->state.a,
                           &plan->state.b, &plan->state_plan);
}

static hl_status make_plan(void *arg, struct cut_plan *plan)
{
    struct cut *c = arg;
    const struct hl_whole_stored stored = {find_tensor, list_tensors, tensor_crc, c};
    HL_TRY(hl_whole_recut(c->im->cut.config, &c->im->cut.split, &stored, &plan->whole));
    return plan_state(c, plan);
}

/* Covers everything that make_plan reads. */
static struct hl_digest plan_key(const struct cut *c)
{
    const struct hl_api_split *want = &c->im->cut.split;
    const int sizes[] = {
        want->tp, want->pp, want->virtual_stages, want->first_stage_layers, want->last_stage_layers,
        want->ep, want->etp};
    struct hl_digest d = {.hi = 0x9E3779B97F4A7C15ull, .lo = 0xE7037ED1A0B428DBull};
    hl_digest_text(&d, c->im->cut.config);
    for (size_t i = 0; i < HL_ARRAY_LEN(sizes); i++)
        hl_digest_word(&d, (uint64_t)sizes[i]);
    hl_digest_word(&d, c->count);
    for (size_t i = 0; i < c->count; i++) {
        const struct source *s = &c->sources[i];
        hl_digest_word(&d, (uint64_t)s->shard->pp);
        hl_digest_word(&d, (uint64_t)s->shard->tp);
        hl_digest_word(&d, (uint64_t)s->shard->ep);
        hl_digest_text(&d, s->shard->part);
        hl_digest_word(&d, s->header.count);
        for (size_t k = 0; k < s->header.count; k++) {
            hl_digest_text(&d, s->header.tensors[k].name);
            hl_digest_shape(&d, &s->header.tensors[k]);
        }
    }
    return d;
}

/* ---- the run --------------------------------------------------------------------------------- */

/* Reports the progress of all runs together. */
static void note_progress(void *arg, uint64_t done, uint64_t total)
{
    struct cut *c = arg;
    (void)total;
    import_note_progress(c->im, c->done_before + done, c->total);
}

static hl_status sources_of(const struct cut *c, const struct hl_partition_plan *a,
                            struct hl_reshard_source **out)
{
    *out = calloc(a->shard_count + 1, sizeof(**out));
    if (*out == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", a->shard_count);
    for (size_t i = 0; i < a->shard_count; i++) {
        const struct hl_partition_shard *p = &a->shards[i];
        const struct source *s = find_source(c, p);
        if (s == NULL && p->tensor_count == 0) /* a part of an adapter, which no save contains */
            continue;
        if (s == NULL)
            return hl_fail(HL_EINVAL, "the version has no part %s at pp %d, tp %d", p->part, p->pp,
                           p->tp);
        (*out)[i] = (struct hl_reshard_source){.id = s->ref.id,
                                               .bytes = source_bytes(c, s),
                                               .chunks = {s->ref.size, s->ref.crc32, s->crcs}};
    }
    return HL_OK;
}

static hl_status take_shards(struct cut *c, const struct hl_partition_plan *b,
                             const struct hl_import_shard *shards)
{
    struct import *im = c->im;
    for (size_t i = 0; i < b->shard_count; i++) {
        const struct hl_partition_shard *s = &b->shards[i];
        im->shards[c->made] = shards[i];
        HL_TRY(
            hl_layout_text(&b->tensors[s->tensor_first], s->tensor_count, &im->layouts[c->made]));
        c->made++;
    }
    return HL_OK;
}

/* Frees the shards that are made already; the failure keeps its text. */
static void fail_made(struct cut *c, const struct hl_import_shard *shards, size_t count,
                      hl_status st)
{
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", hl_error_text());
    for (size_t i = 0; i < count; i++)
        l4_discard(c->im->daemon, shards[i].id);
    (void)hl_fail(st, "%s", why);
}

/* Makes every shard of b, including those that equal one of a: so the cut does not depend on the
 * version's shards. */
static hl_status run_plan(struct cut *c, const struct hl_partition_plan *a,
                          const struct hl_partition_plan *b, const struct hl_reshard_plan *plan)
{
    const struct hl_import_sink sink = import_sink(c->im);
    HL_AUTO(hl_freep) struct hl_reshard_source *sources = NULL;
    HL_AUTO(hl_freep) unsigned char *wanted = malloc(b->shard_count + 1);
    struct hl_reshard_done done;
    if (wanted == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", b->shard_count);
    memset(wanted, 1, b->shard_count);
    HL_TRY(sources_of(c, a, &sources));
    HL_TRY(hl_reshard_run(&(struct hl_reshard_run){.model = c->im->model,
                                                   .version = c->im->version,
                                                   .a = a,
                                                   .b = b,
                                                   .plan = plan,
                                                   .sources = sources,
                                                   .wanted = wanted,
                                                   .sink = &sink,
                                                   .threads = c->im->daemon->import_threads,
                                                   .cancel = &c->im->cancel,
                                                   .progress = note_progress,
                                                   .progress_arg = c},
                          &done));
    hl_status st = take_shards(c, b, done.shards);
    if (st != HL_OK)
        fail_made(c, done.shards, b->shard_count, st);
    free(done.shards);
    c->done_before += done.copied_bytes;
    return st;
}

static hl_status run_all(struct cut *c)
{
    struct import *im = c->im;
    const struct cut_plan *p = c->plan;
    size_t n = p->whole.whole.shard_count + p->state.b.shard_count;
    im->shards = calloc(n + 1, sizeof(*im->shards));
    im->layouts = calloc(n + 1, sizeof(*im->layouts));
    if (im->shards == NULL || im->layouts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", n);
    im->shard_count = n; /* number of layouts, which import_free() frees */
    c->total = p->whole.whole.data_bytes + p->state.b.data_bytes;
    import_note_progress(im, 0, c->total);
    HL_TRY(import_check_room(im, c->total));
    HL_TRY(run_plan(c, &p->whole.ranks, &p->whole.whole, &p->whole.plan));
    size_t first = c->made;
    hl_status st = p->has_state ? run_plan(c, &p->state.a, &p->state.b, &p->state_plan) : HL_OK;
    if (st != HL_OK)
        fail_made(c, im->shards, first, st);
    return st;
}

/* Marks the cut as just used, so that it is not evicted before the Controller has told the first
 * reader about it. */
static void touch_shards(const struct cut *c)
{
    struct hl_pool *pool = c->im->daemon->pool;
    struct hl_pool_ref ref;
    for (size_t i = 0; i < c->made; i++)
        if (hl_pool_find(pool, c->im->shards[i].id, &ref) == HL_OK)
            hl_pool_touch(pool, &ref);
    hl_error_clear();
}

static _Atomic uint64_t *begin_cut(struct import *im)
{
    struct hl_l3d *d = im->daemon;
    im->cut_number = hl_cut_random();
    for (size_t i = 0; i < HL_ARRAY_LEN(d->running_cuts); i++) {
        uint64_t free_place = 0;
        if (atomic_compare_exchange_strong(&d->running_cuts[i], &free_place, im->cut_number))
            return &d->running_cuts[i];
    }
    return NULL;
}

hl_status import_cut(struct import *im)
{
    struct cut c = {.im = im};
    struct cut_plans *plans = im->daemon->cut_plans;
    _Atomic uint64_t *place = begin_cut(im);
    hl_status st = place != NULL ? open_sources(&c)
                                 : hl_fail(HL_EBUSY,
                                           "%d cuts are running; try again when one has "
                                           "ended",
                                           HL_IMPORT_PLACES);
    if (st == HL_OK)
        st = cut_plans_get(plans, plan_key(&c), make_plan, &c, &c.plan);
    if (st == HL_OK)
        st = run_all(&c);
    cut_plans_put(plans, c.plan);
    if (st == HL_OK)
        touch_shards(&c);
    if (place != NULL)
        atomic_store(place, 0);
    close_sources(&c);
    return st;
}
