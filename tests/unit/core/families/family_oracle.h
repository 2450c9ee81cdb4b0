/* core/families/family_oracle.h - the expected tensors of a rank, by concatenation and indexing of
 * whole matrices.
 *
 * Written from Megatron's rules, not from the tables of src/core/families: a test builds every
 * whole matrix of Megatron-core by hand, and the functions below cut it as Megatron does and
 * compare the result with what the plan's operations produce.
 *
 * Owns:    everything lives until the process ends.
 * Threads: one at a time.
 * Errors:  fail the test.
 * Units:   elements of 4 bytes; every element of every source has a value of its own.
 * Limits:  W_SOURCES sources.
 */
#ifndef HL_TESTS_FAMILY_ORACLE_H
#define HL_TESTS_FAMILY_ORACLE_H

#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "core/model/partition.h"

#define W_SOURCES 512

struct mx {
    uint64_t r, c; /* c 0 = a vector */
    const uint32_t *v;
};

/* Everything that a test makes; free_oracle() after the last one. */
static struct hl_arena oracle_memory;

static inline void *oracle_alloc(size_t size)
{
    return hl_arena_alloc(&oracle_memory, size);
}

static inline int free_oracle(void **state)
{
    (void)state;
    hl_arena_fini(&oracle_memory);
    return 0;
}

struct world {
    const char *config;
    struct hl_tensor sources[W_SOURCES];
    uint32_t *data[W_SOURCES];
    size_t count;
    struct hl_partition_options o;
    struct hl_partition_plan plan;
    char *seen;
    int pp; /* stage and rank being checked */
    char part[32], at[64];
    uint64_t experts;
};

static inline void w_add(struct world *w, const char *name, uint32_t rank, uint64_t d0, uint64_t d1,
                         uint64_t d2)
{
    size_t i = w->count++;
    assert_in_range(i, 0, W_SOURCES - 1);
    uint64_t n = d0 * (rank > 1 ? d1 : 1) * (rank > 2 ? d2 : 1);
    w->sources[i] = (struct hl_tensor){.name = hl_arena_strdup(&oracle_memory, name),
                                       .dtype = HL_DTYPE_F32,
                                       .rank = rank,
                                       .size = 4 * n};
    memcpy(w->sources[i].shape, (uint64_t[]){d0, d1, d2}, sizeof(uint64_t) * rank);
    w->data[i] = oracle_alloc(4 * n + 1);
    for (uint64_t k = 0; k < n; k++)
        w->data[i][k] = (uint32_t)(i << 16 | k);
}

__attribute__((format(printf, 1, 2))) static inline const char *w_text(const char *fmt, ...)
{
    static char text[16][160];
    static int next;
    char *out = text[next++ % 16];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out, sizeof(text[0]), fmt, ap);
    va_end(ap);
    return out;
}

/* ---- matrices -------------------------------------------------------------------------------- */

static inline struct mx mx_source(const struct world *w, const char *name)
{
    for (size_t i = 0; i < w->count; i++)
        if (strcmp(w->sources[i].name, name) == 0)
            return (struct mx){w->sources[i].shape[0],
                               w->sources[i].rank == 1 ? 0 : w->sources[i].shape[1], w->data[i]};
    fail_msg("no source %s", name);
    return (struct mx){0};
}

/* Plane e of a source of rank 3, or row e of rank 2 as a vector. */
static inline struct mx mx_plane(const struct world *w, const char *name, uint64_t e)
{
    for (size_t i = 0; i < w->count; i++)
        if (strcmp(w->sources[i].name, name) == 0) {
            const uint64_t *d = w->sources[i].shape;
            int rank3 = w->sources[i].rank == 3;
            return (struct mx){d[1], rank3 ? d[2] : 0, w->data[i] + e * d[1] * (rank3 ? d[2] : 1)};
        }
    fail_msg("no source %s", name);
    return (struct mx){0};
}

/* Rows first, first + step, ... */
static inline struct mx mx_rows(struct mx m, uint64_t first, uint64_t n, uint64_t step)
{
    uint64_t c = m.c > 0 ? m.c : 1;
    uint32_t *v = oracle_alloc(4 * n * c + 1);
    for (uint64_t i = 0; i < n; i++)
        memcpy(v + i * c, m.v + (first + i * step) * c, 4 * c);
    return (struct mx){n, m.c, v};
}

static inline struct mx mx_cols(struct mx m, uint64_t first, uint64_t n)
{
    uint32_t *v = oracle_alloc(4 * m.r * n + 1);
    for (uint64_t i = 0; i < m.r; i++)
        memcpy(v + i * n, m.v + i * m.c + first, 4 * n);
    return (struct mx){m.r, n, v};
}

static inline struct mx mx_turn(struct mx m)
{
    uint32_t *v = oracle_alloc(4 * m.r * m.c + 1);
    for (uint64_t i = 0; i < m.r; i++)
        for (uint64_t j = 0; j < m.c; j++)
            v[j * m.r + i] = m.v[i * m.c + j];
    return (struct mx){m.c, m.r, v};
}

static inline struct mx mx_join(struct mx a, struct mx b)
{
    uint64_t c = b.c > 0 ? b.c : 1;
    uint32_t *v = oracle_alloc(4 * (a.r + b.r) * c + 1);
    if (a.r > 0)
        memcpy(v, a.v, 4 * a.r * c);
    memcpy(v + a.r * c, b.v, 4 * b.r * c);
    return (struct mx){a.r + b.r, b.c, v};
}

/* Group by group: its q heads, its k head, its v head. */
static inline struct mx mx_qkv(struct mx q, struct mx k, struct mx v, uint64_t heads,
                               uint64_t groups, uint64_t dim)
{
    struct mx out = {0};
    uint64_t per = heads / groups * dim;
    for (uint64_t g = 0; g < groups; g++) {
        out = mx_join(out, mx_rows(q, g * per, per, 1));
        out = mx_join(out, mx_rows(k, g * dim, dim, 1));
        out = mx_join(out, mx_rows(v, g * dim, dim, 1));
    }
    return out;
}

static inline struct mx mx_chunk(struct mx m, uint64_t of, uint64_t t)
{
    return mx_rows(m, t * (m.r / of), m.r / of, 1);
}

/* ---- comparison ------------------------------------------------------------------------------ */

static inline void w_execute(const struct world *w, size_t tensor, uint8_t *out)
{
    for (uint32_t q = w->plan.op_first[tensor]; q < w->plan.op_first[tensor + 1]; q++) {
        const struct hl_copy_op *op = &w->plan.ops[q];
        const uint8_t *src = (const uint8_t *)w->data[op->source];
        uint64_t at = op->dst;
        if (op->kind == HL_COPY_ZERO)
            memset(out + at, 0, op->run);
        for (uint64_t i = 0; op->kind == HL_COPY_RUNS && i < op->rows; i++, at += op->run)
            memcpy(out + at, src + op->src + i * op->stride, op->run);
        for (uint64_t i = 0; op->kind == HL_COPY_TRANSPOSE && i < op->rows; i++)
            for (uint64_t j = 0; j < op->cols; j++, at += op->elem)
                memcpy(out + at, src + op->src + j * op->stride + i * op->step, op->elem);
    }
}

static inline void w_expect(struct world *w, int tp, int ep, const char *part, const char *name,
                            struct mx want)
{
    for (size_t k = 0; k < w->plan.shard_count; k++) {
        const struct hl_partition_shard *s = &w->plan.shards[k];
        if (s->pp != w->pp || s->tp != tp || s->ep != ep || strcmp(s->part, part) != 0)
            continue;
        for (uint32_t i = s->tensor_first; i < s->tensor_first + s->tensor_count; i++) {
            const struct hl_tensor *t = &w->plan.tensors[i];
            if (strcmp(t->name, name) != 0)
                continue;
            assert_int_equal(t->rank, want.c > 0 ? 2 : 1);
            assert_int_equal(t->shape[0], want.r);
            if (want.c > 0)
                assert_int_equal(t->shape[1], want.c);
            uint8_t *got = malloc(t->size + 1);
            w_execute(w, i, got);
            if (memcmp(got, want.v, t->size) != 0)
                fail_msg("%s of %s pp %d tp %d ep %d has other bytes", name, part, w->pp, tp, ep);
            free(got);
            w->seen[i] = 1;
            return;
        }
    }
    fail_msg("%s of %s pp %d tp %d ep %d is not there", name, part, w->pp, tp, ep);
}

static inline const char *w_name(const struct world *w, const char *local, const char *te)
{
    return w_text("%s%s", w->at, te != NULL && w->o.naming == HL_API_LAYER_NAMING_TE ? te : local);
}

/* The same on every rank; te NULL = as local. */
static inline void whole(struct world *w, const char *local, const char *te, struct mx m)
{
    for (int t = 0; t < w->o.tp; t++)
        w_expect(w, t, 0, w->part, w_name(w, local, te), m);
}

static inline void by_rows(struct world *w, const char *name, struct mx m)
{
    for (int t = 0; t < w->o.tp; t++)
        w_expect(w, t, 0, w->part, w_name(w, name, NULL),
                 mx_chunk(m, (uint64_t)w->o.tp, (uint64_t)t));
}

static inline void by_cols(struct world *w, const char *name, struct mx m)
{
    uint64_t n = m.c / (uint64_t)w->o.tp;
    for (int t = 0; t < w->o.tp; t++)
        w_expect(w, t, 0, w->part, w_name(w, name, NULL), mx_cols(m, (uint64_t)t * n, n));
}

static inline void by_pairs(struct world *w, const char *name, struct mx gate, struct mx up)
{
    uint64_t T = (uint64_t)w->o.tp;
    for (int t = 0; t < w->o.tp; t++)
        w_expect(w, t, 0, w->part, w_name(w, name, NULL),
                 mx_join(mx_chunk(gate, T, (uint64_t)t), mx_chunk(up, T, (uint64_t)t)));
}

/* Expert e of all, under its number on its rank. With `up` of no rows the columns of `m` are split;
 * with `is_whole` nothing is. */
static inline void expert(struct world *w, uint64_t e, uint64_t layer, const char *linear,
                          const char *kind, struct mx m, struct mx up, int is_whole)
{
    uint64_t ep = w->o.ep > 0 ? (uint64_t)w->o.ep : 1, per = w->experts / ep;
    uint64_t T = (uint64_t)(w->o.etp > 0 ? w->o.etp : w->o.tp);
    const char *name =
        w->o.naming == HL_API_LAYER_NAMING_TE
            ? w_text("%smlp.experts.%s.%s%d", w->at, linear, kind, (int)(e % per))
            : w_text("%smlp.experts.local_experts.%d.%s.%s", w->at, (int)(e % per), linear, kind);
    for (uint64_t t = 0; t < T; t++)
        w_expect(w, (int)t, (int)(e / per), w_text("experts-%04d", (int)layer), name,
                 is_whole   ? m
                 : up.r > 0 ? mx_join(mx_chunk(m, T, t), mx_chunk(up, T, t))
                            : mx_cols(m, t * (m.c / T), m.c / T));
}

#endif
