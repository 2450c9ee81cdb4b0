/* The layouts that a model can be cut into, from the list in the family's table. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>

#include "core/model/partition_private.h"

#define PARALLEL_MAX 4096
#define SIZES_NAMED  16 /* at most, in a message */
#define DIVISOR_MAX  65536

static const char *const names[] = {[HL_BY_TP] = "tp", [HL_BY_ETP] = "etp", [HL_BY_EP] = "ep"};

static bool kv_heads_fit(const struct hl_hf_config *c, uint64_t tp)
{
    return c->family->mla || c->kv_heads % tp == 0 || tp % c->kv_heads == 0;
}

static uint64_t qkv_rows(const struct hl_hf_config *c)
{
    return c->family->mla ? 0 : (c->heads + 2 * c->kv_heads) * c->head_dim;
}

/* The row of the table that `size` does not divide, with its value in *n. NULL = it divides all. */
static const struct hl_family_divided *
find_undivided(const struct hl_hf_config *c, enum hl_divided_by by, uint64_t size, uint64_t *n)
{
    struct hl_family_scope scope = hl_hf_scope(c, 0);
    for (const struct hl_family_divided *d = c->family->divided; d->value != NULL; d++)
        if (d->by == by && hl_family_size(&scope, d->value, 0, n) == HL_OK && *n % size != 0)
            return d;
    return NULL;
}

int hl_planner_size_fits(const struct hl_hf_config *c, enum hl_divided_by by, uint64_t size)
{
    uint64_t n;
    if (find_undivided(c, by, size, &n) != NULL)
        return false;
    return by != HL_BY_TP || (kv_heads_fit(c, size) && qkv_rows(c) % size == 0);
}

static const char *sizes_text(const uint64_t *sizes, size_t count, char *buf, size_t cap)
{
    size_t at = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < count && at < cap; i++)
        at += (size_t)snprintf(buf + at, cap - at, "%s%" PRIu64,
                               i == 0           ? ""
                               : i + 1 == count ? " or "
                                                : ", ",
                               sizes[i]);
    return buf;
}

/* An upper bound of the sizes that fit: the smallest of the values. */
static uint64_t size_bound(const struct hl_hf_config *c, enum hl_divided_by by)
{
    struct hl_family_scope scope = hl_hf_scope(c, 0);
    uint64_t bound = PARALLEL_MAX, n;
    for (const struct hl_family_divided *d = c->family->divided; d->value != NULL; d++)
        if (d->by == by && hl_family_size(&scope, d->value, 0, &n) == HL_OK && n > 0 && n < bound)
            bound = n;
    return bound;
}

const char *hl_planner_divisors(uint64_t n, char *buf, size_t cap)
{
    uint64_t fit[SIZES_NAMED];
    size_t count = 0;
    for (uint64_t d = 1; d <= n && d <= PARALLEL_MAX && count < SIZES_NAMED; d++)
        if (n % d == 0)
            fit[count++] = d;
    return sizes_text(fit, count, buf, cap);
}

/* "1, 2 or 4": every size that the model can be cut by. */
static const char *fitting_sizes(const struct hl_hf_config *c, enum hl_divided_by by, char *buf,
                                 size_t cap)
{
    uint64_t fit[SIZES_NAMED], bound = size_bound(c, by);
    size_t count = 0;
    for (uint64_t n = 1; n <= bound && count < SIZES_NAMED; n++)
        if (hl_planner_size_fits(c, by, n))
            fit[count++] = n;
    return sizes_text(fit, count, buf, cap);
}

HL_CHECK static hl_status check_size(const struct hl_hf_config *c, enum hl_divided_by by, int size)
{
    uint64_t n;
    char fit[HL_PLANNER_SIZES_TEXT];
    if (size < 1 || size > PARALLEL_MAX)
        return hl_fail(HL_EINVAL, "%s %d is not 1..%d", names[by], size, PARALLEL_MAX);
    const struct hl_family_divided *d = find_undivided(c, by, (uint64_t)size, &n);
    if (d == NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s %d does not divide the %" PRIu64 " %s of this model; use %s %s",
                   names[by], size, n, d->what, names[by], fitting_sizes(c, by, fit, sizeof(fit)));
}

hl_status hl_planner_check_options(const struct hl_planner *p)
{
    const struct hl_hf_config *c = p->config;
    const struct hl_partition_options *o = p->o;
    char fit[HL_PLANNER_SIZES_TEXT];
    if (o->tp < 1 || o->tp > PARALLEL_MAX)
        return hl_fail(HL_EINVAL, "tp %d is not 1..%d", o->tp, PARALLEL_MAX);
    if (o->vocab_divisor < 0 || o->vocab_divisor > DIVISOR_MAX)
        return hl_fail(HL_EINVAL, "vocabulary divisor %d is not 0..%d", o->vocab_divisor,
                       DIVISOR_MAX);
    HL_TRY(check_size(c, HL_BY_TP, o->tp));
    if (!kv_heads_fit(c, (uint64_t)o->tp))
        return hl_fail(HL_EINVAL,
                       "tp %d is neither a divisor nor a multiple of the %" PRIu64
                       " query groups; use tp %s",
                       o->tp, c->kv_heads, fitting_sizes(c, HL_BY_TP, fit, sizeof(fit)));
    if (qkv_rows(c) % (uint64_t)o->tp != 0)
        return hl_fail(HL_EINVAL,
                       "tp %d does not divide the %" PRIu64
                       " fused QKV rows of this model; use tp %s",
                       o->tp, qkv_rows(c), fitting_sizes(c, HL_BY_TP, fit, sizeof(fit)));
    bool experts = hl_family_symbol_index(c->family, "experts", 7) >= 0;
    if (!experts && (o->ep > 1 || (o->etp > 0 && o->etp != o->tp)))
        return hl_fail(HL_EINVAL, "a %s model has no experts: leave out ep and etp",
                       c->architecture);
    HL_TRY(check_size(c, HL_BY_EP, o->ep != 0 ? o->ep : 1));
    return check_size(c, HL_BY_ETP, o->etp != 0 ? o->etp : o->tp);
}
