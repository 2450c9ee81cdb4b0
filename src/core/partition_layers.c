/* A row of the family's table becomes a tensor of the rank: the blocks of rows that Megatron's
 * whole tensor is made of, laid end to end, and the rank's window of them. The rows of the fused
 * QKV weight are grouped per query group: the group's q heads, its k head, its v head. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/partition_private.h"

/* A row while it is planned. */
struct making {
    const struct hl_planner_at *at;
    const struct hl_family_tensor *row;
    struct hl_family_scope scope;
    uint32_t source[HL_FAMILY_SOURCES_MAX];
    size_t source_count;
    uint64_t rows, cols; /* of Megatron's whole tensor; of PAIRS the rows of one half */
    uint64_t ranks;      /* that share it */
    struct hl_rows *blocks;
    size_t block_count;
};

static void making_fini(struct making *m)
{
    free(m->blocks);
}

/* A block of source k that begins with its row `first`. */
static struct hl_rows block_of(const struct making *m, size_t k, uint64_t source_rows,
                               uint64_t first, uint64_t count)
{
    struct hl_rows b = {
        .source = m->source[k], .row = m->cols, .col = 1, .first = first, .count = count};
    if (m->row->form & HL_FORM_STACKED)
        b.base = m->at->expert * source_rows * m->cols;
    if ((m->row->form & HL_FORM_TRANSPOSED) && m->row->cols != NULL) {
        b.row = 1;
        b.col = source_rows;
    }
    return b;
}

HL_CHECK static hl_status reserve_blocks(struct making *m, uint64_t n)
{
    m->blocks = calloc(n, sizeof(*m->blocks));
    return m->blocks != NULL ? HL_OK : hl_fail(HL_ENOMEM, "%" PRIu64 " blocks of rows", n);
}

HL_CHECK static hl_status qkv_blocks(const struct hl_planner *p, struct making *m)
{
    const struct hl_hf_config *c = p->config;
    uint64_t dim = c->head_dim, q = c->heads / c->kv_heads * dim;
    uint64_t rows[3] = {c->heads * dim, c->kv_heads * dim, c->kv_heads * dim};
    uint64_t base[3] = {0, rows[0], rows[0] + rows[1]};
    int whole = m->source_count == 1;
    m->rows = base[2] + rows[2];
    HL_TRY(reserve_blocks(m, 3 * c->kv_heads));
    for (uint64_t g = 0; g < c->kv_heads; g++)
        for (size_t i = 0; i < 3; i++) {
            uint64_t n = i == 0 ? q : dim;
            m->blocks[m->block_count++] = block_of(m, whole ? 0 : i, whole ? m->rows : rows[i],
                                                   (whole ? base[i] : 0) + g * n, n);
        }
    return HL_OK;
}

HL_CHECK static hl_status pair_blocks(struct making *m)
{
    int whole = m->source_count == 1;
    HL_TRY(reserve_blocks(m, 2));
    for (size_t i = 0; i < 2; i++) {
        struct hl_rows b =
            block_of(m, whole ? 0 : i, (whole ? 2 : 1) * m->rows, whole ? i * m->rows : 0, m->rows);
        if (whole && (m->row->form & HL_FORM_INTERLEAVED)) {
            b.base += i * b.row;
            b.row *= 2;
            b.first = 0;
        }
        m->blocks[m->block_count++] = b;
    }
    return HL_OK;
}

HL_CHECK static hl_status make_blocks(const struct hl_planner *p, struct making *m)
{
    if (m->row->split == HL_SPLIT_QKV)
        return qkv_blocks(p, m);
    if (m->row->split == HL_SPLIT_PAIRS)
        return pair_blocks(m);
    HL_TRY(reserve_blocks(m, 2));
    m->blocks[m->block_count++] = block_of(m, 0, m->rows, 0, m->rows);
    if (m->row->split != HL_SPLIT_VOCABULARY)
        return HL_OK;
    struct hl_rows pad = block_of(m, 0, m->rows, m->rows - 1, p->plan->padded_vocab - m->rows);
    pad.kind = p->o->pad == HL_API_VOCAB_PADDING_ZERO ? HL_ROWS_ZERO : HL_ROWS_REPEAT;
    m->blocks[m->block_count++] = pad;
    m->rows = p->plan->padded_vocab;
    return HL_OK;
}

/* ---- names ----------------------------------------------------------------------------------- */

HL_CHECK static hl_status target_name(const struct hl_planner *p, const struct making *m, char *out,
                                      size_t cap)
{
    const struct hl_planner_at *at = m->at;
    const struct hl_family_tensor *row = m->row;
    uint64_t layers = p->config->layers, expert = at->expert;
    int te = p->o->naming == HL_API_LAYER_NAMING_TE && row->te != NULL, n = 0;
    if (row->place == HL_PLACE_EXPERT) { /* numbered from 0 on every rank */
        uint64_t experts;
        HL_TRY(hl_family_size(&m->scope, "experts", 1, &experts));
        expert %= experts / (uint64_t)(p->o->ep > 0 ? p->o->ep : 1);
    }
    if (row->place == HL_PLACE_MTP)
        n = snprintf(out, cap, "mtp.layers.%" PRIu64 ".", at->layer - layers);
    else if (row->place != HL_PLACE_EMBEDDING && row->place != HL_PLACE_HEAD)
        n = at->layer >= layers
                ? snprintf(out, cap, "mtp.layers.%" PRIu64 ".mtp_model_layer.", at->layer - layers)
                : snprintf(out, cap, "decoder.layers.%" PRIu64 ".", at->local);
    return hl_family_fill(te ? row->te : row->name, expert, out + n, cap - (size_t)n);
}

HL_CHECK static hl_status source_of(struct hl_planner *p, const struct hl_family_scope *scope,
                                    const struct hl_family_tensor *row, size_t k,
                                    const struct hl_planner_at *at, uint32_t *out)
{
    char name[HL_PLANNER_NAME_MAX];
    struct hl_dims dims;
    HL_TRY(hl_family_source_name(p->config->family, p->prefix, row, k, at->layer, at->expert, name,
                                 sizeof(name)));
    HL_TRY(hl_family_source_dims(scope, row, k, &dims));
    return hl_planner_source(p, name, &dims, out);
}

static const struct hl_family_tensor *vocabulary_row(const struct hl_planner *p,
                                                     enum hl_place place)
{
    const struct hl_family_tensor *row = p->config->family->tensors;
    for (; row->name != NULL; row++)
        if (row->place == place && row->split == HL_SPLIT_VOCABULARY)
            return row;
    return NULL;
}

/* ---- one row --------------------------------------------------------------------------------- */

HL_CHECK static hl_status find_sources(struct hl_planner *p, struct making *m)
{
    const struct hl_family_tensor *from = m->row;
    /* A tied head is the embedding. */
    if (p->config->tied && from->place == HL_PLACE_HEAD && from->split == HL_SPLIT_VOCABULARY)
        from = vocabulary_row(p, HL_PLACE_EMBEDDING);
    m->source_count = hl_family_source_count(from);
    for (size_t k = 0; k < m->source_count; k++)
        HL_TRY(source_of(p, &m->scope, from, k, m->at, &m->source[k]));
    return HL_OK;
}

HL_CHECK static hl_status check_divides(const struct making *m, const char *name, uint64_t n)
{
    if (n % m->ranks == 0)
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s %" PRIu64 " does not divide the %" PRIu64 " %s of tensor '%s'",
                   m->at->place == HL_PLACE_EXPERT ? "etp" : "tp", m->ranks, n,
                   m->row->split == HL_SPLIT_COLUMNS ? "columns" : "rows", name);
}

HL_CHECK static hl_status emit_tensor(struct hl_planner *p, struct making *m)
{
    char name[HL_PLANNER_NAME_MAX];
    enum hl_split split = m->row->split;
    uint64_t halves = split == HL_SPLIT_PAIRS ? 2 : 1, t = (uint64_t)p->tp;
    uint64_t rows = m->rows, cols = m->cols;
    HL_TRY(target_name(p, m, name, sizeof(name)));
    HL_TRY(check_divides(m, name, split == HL_SPLIT_COLUMNS ? cols : rows));
    if (split == HL_SPLIT_COLUMNS)
        cols /= m->ranks;
    else if (split != HL_SPLIT_WHOLE)
        rows /= m->ranks;
    struct hl_dims dims = {.rank = m->row->cols != NULL ? 2 : 1, .shape = {halves * rows, cols}};
    if (dims.rank == 1)
        dims.shape[1] = 0;
    HL_TRY(hl_planner_tensor(p, m->source[0], &dims, name));
    uint64_t first = split == HL_SPLIT_COLUMNS || split == HL_SPLIT_WHOLE ? 0 : t * rows;
    uint64_t col = split == HL_SPLIT_COLUMNS ? t * cols : 0;
    if (split != HL_SPLIT_PAIRS)
        return hl_planner_rows(p, m->blocks, m->block_count, first, rows, col, cols);
    for (size_t i = 0; i < m->block_count; i++)
        HL_TRY(hl_planner_rows(p, &m->blocks[i], 1, first, rows, col, cols));
    return HL_OK;
}

/* A layer that predicts one more token may carry copies of the embedding and the head. */
HL_CHECK static hl_status plan_copy(struct hl_planner *p, const struct hl_planner_at *at,
                                    const struct hl_family_tensor *row)
{
    struct hl_family_scope scope = hl_hf_scope(p->config, at->layer);
    struct hl_family_tensor original = *row;
    char name[HL_PLANNER_NAME_MAX];
    uint32_t copy, of;
    HL_TRY(hl_family_source_name(p->config->family, p->prefix, row, 0, at->layer, 0, name,
                                 sizeof(name)));
    if (!hl_planner_has(p, name))
        return HL_OK;
    original.place = HL_PLACE_EMBEDDING;
    original.hf[0] = row->hf[1];
    original.hf[1] = NULL;
    HL_TRY(source_of(p, &scope, row, 0, at, &copy));
    HL_TRY(source_of(p, &scope, &original, 0, at, &of));
    return p->tp == 0 ? hl_planner_equal(p, of, copy) : HL_OK;
}

HL_CHECK static hl_status plan_row(struct hl_planner *p, const struct hl_planner_at *at,
                                   const struct hl_family_tensor *row)
{
    uint64_t wanted;
    HL_AUTO(making_fini)
    struct making m = {.at = at, .row = row, .scope = hl_hf_scope(p->config, at->layer)};
    HL_TRY(hl_family_size(&m.scope, row->when, 1, &wanted));
    if (wanted == 0)
        return HL_OK;
    int etp = p->o->etp > 0 ? p->o->etp : p->o->tp;
    m.ranks = row->split == HL_SPLIT_WHOLE    ? 1
              : row->place == HL_PLACE_EXPERT ? (uint64_t)etp
                                              : (uint64_t)p->o->tp;
    if (row->place == HL_PLACE_MTP_COPY)
        return plan_copy(p, at, row);
    HL_TRY(hl_family_size(&m.scope, row->rows, 1, &m.rows));
    HL_TRY(hl_family_size(&m.scope, row->cols, 1, &m.cols));
    HL_TRY(find_sources(p, &m));
    HL_TRY(make_blocks(p, &m));
    return emit_tensor(p, &m);
}

hl_status hl_planner_place(struct hl_planner *p, const struct hl_planner_at *at)
{
    const struct hl_family_tensor *row = p->config->family->tensors;
    for (; row->name != NULL; row++) {
        int head = row->place == HL_PLACE_HEAD && row->split == HL_SPLIT_VOCABULARY;
        if (row->place != at->place || (head && p->config->tied && p->o->pp == 1))
            continue;
        HL_TRY(plan_row(p, at, row));
    }
    return HL_OK;
}

/* A tied model may carry its head all the same: it must then equal the embedding. */
hl_status hl_planner_find_tied_head(struct hl_planner *p)
{
    const struct hl_family_tensor *row = vocabulary_row(p, HL_PLACE_HEAD);
    const struct hl_planner_at at = {.place = HL_PLACE_HEAD};
    struct hl_family_scope scope = hl_hf_scope(p->config, 0);
    char name[HL_PLANNER_NAME_MAX];
    uint32_t head, embedding;
    if (!p->config->tied || row == NULL)
        return HL_OK;
    HL_TRY(hl_family_source_name(p->config->family, p->prefix, row, 0, 0, 0, name, sizeof(name)));
    if (!hl_planner_has(p, name))
        return HL_OK;
    HL_TRY(source_of(p, &scope, row, 0, &at, &head));
    HL_TRY(source_of(p, &scope, vocabulary_row(p, HL_PLACE_EMBEDDING), 0, &at, &embedding));
    return hl_planner_equal(p, embedding, head);
}
