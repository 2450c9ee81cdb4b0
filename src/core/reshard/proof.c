#include "core/reshard/proof.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/layout.h"
#include "core/model/model_config.h"
#include "core/model/part.h"
#include "core/reshard/coverage.h"
#include "core/reshard/reshard_state.h"
#include "core/reshard/whole.h"

#define CRC_DIGITS 8

/* A shard and the tensors of its layout, sorted by name. */
struct held {
    const struct hl_proof_shard *shard;
    struct hl_part part;
    struct hl_tensor *tensors;
    size_t count;
};

struct prover {
    struct hl_arena arena;
    struct held *model; /* sorted by place */
    size_t model_count;
    struct held *state; /* shared by every data-parallel rank; sorted by place */
    size_t state_count;
    struct hl_whole whole;
    bool planned;
    bool crcs;   /* every shard has checksums */
    bool shares; /* some state could not be compared */
    struct hl_proof proof;
};

/* Keeps only the first reason. */
static void leave_unproved(struct prover *p, const char *what, const char *why)
{
    if (p->proof.unproved[0] == '\0')
        snprintf(p->proof.unproved, sizeof(p->proof.unproved), "%s: %s", what, why);
    p->proof.proved = false;
}

/* ---- what is held ---------------------------------------------------------------------------- */

struct place {
    int pp, tp, ep;
    const char *of;
};

static struct place place_of(const struct held *h)
{
    return (struct place){h->shard->pp, h->shard->tp, h->shard->ep, h->part.of};
}

static int place_order(const struct held *x, const struct place *y)
{
    if (x->shard->pp != y->pp)
        return x->shard->pp < y->pp ? -1 : 1;
    int c = strcmp(x->part.of, y->of);
    if (c != 0)
        return c;
    if (x->shard->ep != y->ep)
        return x->shard->ep < y->ep ? -1 : 1;
    return (x->shard->tp > y->tp) - (x->shard->tp < y->tp);
}

/* By stage, part, expert rank and tensor rank, so that the ranks sharing a part are adjacent. */
static int held_order(const void *a, const void *b)
{
    const struct place y = place_of(b);
    return place_order(a, &y);
}

static const struct held *find_held(const struct held *list, size_t n, struct place place)
{
    size_t low = 0, high = n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = place_order(&list[mid], &place);
        if (c == 0)
            return &list[mid];
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

HL_CHECK static hl_status read_shard(struct prover *p, const struct hl_proof_shard *s,
                                     struct hl_part part)
{
    char place[HL_PART_PLACE_MAX], what[HL_PART_PLACE_MAX + 8];
    struct held *h =
        part.kind == HL_PART_MODEL ? &p->model[p->model_count++] : &p->state[p->state_count++];
    *h = (struct held){.shard = s, .part = part};
    snprintf(what, sizeof(what), "part %s", hl_part_place(s->pp, s->tp, s->ep, s->part, place));
    if (s->layout == NULL) {
        leave_unproved(p, what, "an earlier release wrote it, without a list of its tensors");
        return HL_OK;
    }
    hl_status st = hl_layout_read(s->layout, &p->arena, &h->tensors, &h->count);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s: ", what);
    if (s->crcs != NULL && strlen(s->crcs) != CRC_DIGITS * h->count)
        return hl_fail(HL_EINVAL, "%s has %zu tensors and checksums of %zu digits", what, h->count,
                       strlen(s->crcs));
    if (s->crcs == NULL && h->count > 0) {
        leave_unproved(p, what,
                       "it came without the checksums of its tensors, so its replicas are "
                       "not compared");
        p->crcs = false;
    }
    return HL_OK;
}

HL_CHECK static hl_status read_shards(struct prover *p, const struct hl_proof_input *in)
{
    struct hl_proof_shard *shards;
    size_t count;
    HL_TRY(hl_proof_join_pieces(in->shards, in->count, &p->arena, &shards, &count));
    p->model = hl_arena_array(&p->arena, count + 1, sizeof(*p->model));
    p->state = hl_arena_array(&p->arena, count + 1, sizeof(*p->state));
    if (p->model == NULL || p->state == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", count);
    for (size_t i = 0; i < count; i++) {
        struct hl_part part = hl_part_of(shards[i].part);
        if (part.kind == HL_PART_OPTIM && part.dp_size > 1) {
            leave_unproved(p, shards[i].part,
                           "shares of optimizer state of data-parallel ranks are not compared");
            p->shares = true;
        } else if (part.kind != HL_PART_EXTRA)
            HL_TRY(read_shard(p, &shards[i], part));
    }
    qsort(p->model, p->model_count, sizeof(*p->model), held_order);
    qsort(p->state, p->state_count, sizeof(*p->state), held_order);
    return HL_OK;
}

static const struct hl_tensor *find_tensor(const struct held *h, const char *name)
{
    size_t low = 0, high = h != NULL ? h->count : 0;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        int c = strcmp(h->tensors[mid].name, name);
        if (c == 0)
            return &h->tensors[mid];
        if (c < 0)
            low = mid + 1;
        else
            high = mid;
    }
    return NULL;
}

static hl_status find_planned(void *arg, const struct hl_partition_shard *shard, const char *name,
                              const struct hl_tensor **out)
{
    const struct prover *p = arg;
    const struct place at = {shard->pp, shard->tp, shard->ep, shard->part};
    char place[HL_PART_PLACE_MAX];
    *out = find_tensor(find_held(p->model, p->model_count, at), name);
    if (*out != NULL)
        return HL_OK;
    return hl_fail(HL_ENOENT, "there is no tensor '%s' in part %s", name,
                   hl_part_place(at.pp, at.tp, at.ep, at.of, place));
}

/* ---- coverage -------------------------------------------------------------------------------- */

static uint32_t crc_of(const struct held *h, const struct hl_tensor *t)
{
    return hl_layout_crc(h->shard->crcs, (size_t)(t - h->tensors));
}

/* Checks the coverage of a plan by the tensors of the listed shards. */
HL_CHECK static hl_status cover(const struct prover *p, const struct hl_tensor *logical,
                                size_t logical_count, const struct hl_partition_plan *plan,
                                const struct held *list, size_t list_count)
{
    size_t n = 0;
    HL_AUTO(hl_freep)
    struct hl_coverage_tensor *held = calloc(plan->tensor_count + 1, sizeof(*held));
    if (held == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", plan->tensor_count);
    for (size_t s = 0; s < plan->shard_count; s++) {
        const struct hl_partition_shard *shard = &plan->shards[s];
        const struct place at = {shard->pp, shard->tp, shard->ep, hl_part_of(shard->part).of};
        const struct held *h = find_held(list, list_count, at);
        for (uint32_t i = shard->tensor_first; i < shard->tensor_first + shard->tensor_count; i++) {
            const struct hl_tensor *t = find_tensor(h, plan->tensors[i].name);
            if (t == NULL)
                return hl_fail(HL_EINTERNAL, "tensor '%s' was planned but no rank holds it",
                               plan->tensors[i].name);
            held[n++] =
                (struct hl_coverage_tensor){.name = t->name,
                                            .rank = h->shard->rank,
                                            .pp = shard->pp,
                                            .tp = shard->tp,
                                            .ep = shard->ep,
                                            .size = t->size,
                                            .crc32 = p->crcs ? crc_of(h, t) : 0,
                                            .ops = &plan->ops[plan->op_first[i]],
                                            .op_count = plan->op_first[i + 1] - plan->op_first[i]};
        }
    }
    return hl_coverage_check(&(struct hl_coverage){.logical = logical,
                                                   .logical_count = logical_count,
                                                   .equal = plan->equal,
                                                   .equal_count = plan->equal_count,
                                                   .held = held,
                                                   .held_count = n});
}

/* Counts tensors that the config does not name; they belong to no logical tensor. */
static void count_unplanned(struct prover *p)
{
    const struct hl_partition_plan *plan = &p->whole.ranks;
    size_t stored = 0;
    for (size_t i = 0; i < p->model_count; i++)
        stored += p->model[i].count;
    if (stored == plan->tensor_count)
        return;
    char why[96];
    snprintf(why, sizeof(why), "%zu of %zu tensors are not of the model's config",
             stored - plan->tensor_count, stored);
    leave_unproved(p, "parameters", why);
}

/* Checks that the ranks hold what is planned. A plan with gaps is a fault of the planner, not of
 * the save. */
HL_CHECK static hl_status prove_parameters(struct prover *p, const char *config)
{
    hl_status st = hl_whole_ranks(config, find_planned, p, &p->whole);
    if (st == HL_ENOMEM || st == HL_ECONFLICT)
        return st;
    if (st != HL_OK) {
        leave_unproved(p, "parameters", hl_error_text());
        hl_error_clear();
        return HL_OK;
    }
    count_unplanned(p);
    st = cover(p, p->whole.logical.tensors, p->whole.logical.count, &p->whole.ranks, p->model,
               p->model_count);
    p->planned = st == HL_OK;
    if (st != HL_EINVAL)
        return st;
    leave_unproved(p, "parameters", hl_error_text());
    hl_error_clear();
    return HL_OK;
}

/* ---- optimizer state ------------------------------------------------------------------------- */

static const char *place_text(const struct hl_proof_shard *s, char buf[HL_PART_PLACE_MAX])
{
    return hl_part_place(s->pp, s->tp, s->ep, s->part, buf);
}

/* Two ranks of a part must have state of the same names: a rank could not resume without the state
 * it lacks. */
HL_CHECK static hl_status compare_names(const struct held *x, const struct held *y)
{
    char here[HL_PART_PLACE_MAX], there[HL_PART_PLACE_MAX];
    for (size_t i = 0; i < x->count || i < y->count; i++) {
        const char *a = i < x->count ? x->tensors[i].name : NULL;
        const char *b = i < y->count ? y->tensors[i].name : NULL;
        int c = a == NULL ? 1 : b == NULL ? -1 : strcmp(a, b);
        if (c == 0)
            continue;
        const struct held *has = c < 0 ? x : y, *lacks = c < 0 ? y : x;
        return hl_fail(HL_EINVAL,
                       "optimizer tensor '%s' is held by rank %d (%s) and not by rank %d (%s)",
                       c < 0 ? a : b, has->shard->rank, place_text(has->shard, here),
                       lacks->shard->rank, place_text(lacks->shard, there));
    }
    return HL_OK;
}

/* Experts on other ranks can have other names. */
static bool same_names(const struct held *x, const struct held *y)
{
    for (size_t i = 0; i < x->count && i < y->count; i++)
        if (strcmp(x->tensors[i].name, y->tensors[i].name) != 0)
            return false;
    return x->count == y->count;
}

/* If one rank of a part has state, all ranks with parameters of the same names must have it. */
HL_CHECK static hl_status compare_state(const struct prover *p)
{
    char here[HL_PART_PLACE_MAX], there[HL_PART_PLACE_MAX];
    for (size_t i = 0; i < p->model_count; i++) {
        const struct held *m = &p->model[i], *before = i > 0 ? m - 1 : NULL;
        if (before == NULL || before->shard->pp != m->shard->pp ||
            strcmp(before->part.of, m->part.of) != 0 || !same_names(before, m))
            continue;
        const struct held *x = find_held(p->state, p->state_count, place_of(before));
        const struct held *y = find_held(p->state, p->state_count, place_of(m));
        if (x != NULL && y != NULL) {
            HL_TRY(compare_names(x, y));
        } else if (x != NULL || y != NULL) {
            const struct held *has = x != NULL ? x : y, *lacks = x != NULL ? m : before;
            return hl_fail(HL_EINVAL, "rank %d holds %s, and rank %d has no state of %s",
                           has->shard->rank, place_text(has->shard, here), lacks->shard->rank,
                           place_text(lacks->shard, there));
        }
    }
    return HL_OK;
}

HL_CHECK static hl_status plan_state(struct prover *p, struct hl_reshard_state *out)
{
    const struct hl_partition_plan none = {0};
    struct hl_reshard_state_part *parts =
        hl_arena_array(&p->arena, p->state_count + 1, sizeof(*parts));
    if (parts == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the optimizer state of %zu parts",
                       p->state_count);
    for (size_t i = 0; i < p->state_count; i++) {
        const struct held *h = &p->state[i];
        parts[i] = (struct hl_reshard_state_part){.pp = h->shard->pp,
                                                  .tp = h->shard->tp,
                                                  .ep = h->shard->ep,
                                                  .of = h->part.of,
                                                  .tensors = h->tensors,
                                                  .count = h->count};
    }
    return hl_reshard_state(p->whole.logical.tensors, &p->whole.ranks, &none, parts, p->state_count,
                            out);
}

HL_CHECK static hl_status prove_state(struct prover *p)
{
    struct hl_reshard_state state;
    p->proof.state_proved = p->state_count == 0 && !p->shares;
    if (p->state_count == 0 || !p->planned)
        return HL_OK;
    HL_TRY(compare_state(p));
    hl_status st = plan_state(p, &state);
    if (st == HL_ENOMEM)
        return st;
    if (st != HL_OK) {
        leave_unproved(p, "optimizer state", hl_error_text());
        hl_error_clear();
        return HL_OK;
    }
    st = cover(p, state.logical, state.logical_count, &state.a, p->state, p->state_count);
    hl_reshard_state_fini(&state);
    p->proof.state_proved = p->crcs && !p->shares;
    return st;
}

/* ---- unsliced models ------------------------------------------------------------------------- */

/* A tensor and the shard that holds it. */
struct owned {
    const struct hl_tensor *tensor;
    const struct held *by;
};

static int owned_order(const void *a, const void *b)
{
    return strcmp(((const struct owned *)a)->tensor->name, ((const struct owned *)b)->tensor->name);
}

static uint64_t elements_of(const struct hl_tensor *t)
{
    return t->size / hl_dtype_size(t->dtype);
}

/* Checks that no tensor is in two parts; *elements is the total. */
HL_CHECK static hl_status own_once(const struct held *list, size_t n, uint64_t *elements)
{
    char here[HL_PART_PLACE_MAX], there[HL_PART_PLACE_MAX];
    size_t total = 0, at = 0;
    for (size_t i = 0; i < n; i++)
        total += list[i].count;
    HL_AUTO(hl_freep) struct owned *all = calloc(total + 1, sizeof(*all));
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", total);
    *elements = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < list[i].count; k++) {
            all[at++] = (struct owned){&list[i].tensors[k], &list[i]};
            *elements += elements_of(&list[i].tensors[k]);
        }
    qsort(all, total, sizeof(*all), owned_order);
    for (size_t i = 1; i < total; i++)
        if (strcmp(all[i - 1].tensor->name, all[i].tensor->name) == 0)
            return hl_fail(HL_EINVAL, "tensor '%s' is held by part %s and by part %s",
                           all[i].tensor->name, place_text(all[i - 1].by->shard, here),
                           place_text(all[i].by->shard, there));
    return HL_OK;
}

/* An unsliced model consists of its tensors: each must be held once, and together they must have
 * all its elements. */
HL_CHECK static hl_status prove_unsliced(struct prover *p, uint64_t parameters, bool imported)
{
    uint64_t elements, of_state;
    char why[96];
    HL_TRY(own_once(p->model, p->model_count, &elements));
    HL_TRY(own_once(p->state, p->state_count, &of_state));
    if (elements == parameters)
        return HL_OK;
    if (imported)
        return hl_fail(HL_EINVAL,
                       "its tensors have %" PRIu64 " elements, and the files of its import had "
                       "%" PRIu64 ": tensors are missing, or too many",
                       elements, parameters);
    snprintf(why, sizeof(why), "%" PRIu64 " elements are held, and the import had %" PRIu64,
             elements, parameters);
    leave_unproved(p, "parameters", why);
    return HL_OK;
}

HL_CHECK static hl_status prove_model(struct prover *p, const char *text, bool imported)
{
    HL_AUTO(hl_model_config_fini) struct hl_model_config c = {0};
    HL_TRY(hl_model_config_read(text, &c));
    if (c.own.unsliced)
        return prove_unsliced(p, c.own.parameters, imported);
    HL_TRY(prove_parameters(p, text));
    if (p->whole.ranks.repeated && !imported)
        leave_unproved(p, "parameters",
                       "rows of scales that a fused matrix has more than once are not compared");
    return prove_state(p);
}

static bool has_layouts(const struct prover *p)
{
    for (size_t i = 0; i < p->model_count; i++)
        if (p->model[i].shard->layout == NULL)
            return false;
    for (size_t i = 0; i < p->state_count; i++)
        if (p->state[i].shard->layout == NULL)
            return false;
    return true;
}

hl_status hl_proof_check(const struct hl_proof_input *in, struct hl_proof *out)
{
    struct prover p = {.crcs = true, .proof = {.proved = true}};
    if (in->skip != NULL) {
        *out = (struct hl_proof){0};
        snprintf(out->unproved, sizeof(out->unproved), "%s", in->skip);
        return HL_OK;
    }
    hl_status st = read_shards(&p, in);
    if (st == HL_OK && has_layouts(&p))
        st = prove_model(&p, in->config, in->imported);
    hl_whole_fini(&p.whole);
    hl_arena_fini(&p.arena);
    if (st == HL_OK)
        *out = p.proof;
    return st;
}
