/* Plans the tensors of a rank from the rows of the family's table. Megatron's whole tensor is a
 * sequence of blocks of rows of the source tensors; a rank's tensor is a window of that sequence.
 * The fused QKV weight has three blocks per query group: its q heads, its k head, its v head.
 *
 *     whole tensor:  | q q k v | q q k v | q q k v | q q k v |
 *     at TP 2:       |<----- rank 0 ---->|<----- rank 1 ---->|
 *
 * The scales of a quantized matrix are cut like the matrix, in units of their blocks. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/partition_format.h"

/* The row that is being planned. */
struct making {
    const struct hl_planner_at *at;
    const struct hl_family_tensor *row;
    struct hl_family_scope scope;
    struct hl_format format;
    const struct hl_format_part *part;
    size_t source_count;
    uint64_t rows, cols; /* of Megatron's whole tensor; for PAIRS, rows of one half */
    uint64_t ranks;      /* number of ranks that share it */
    uint64_t pitch;      /* elements per row of the part */
    struct hl_rows *blocks;
    size_t block_count;
};

static void making_fini(struct making *m)
{
    free(m->blocks);
}

/* A block of `count` rows of source k, starting at row `first`. */
static struct hl_rows block_of(const struct making *m, size_t k, uint64_t source_rows,
                               uint64_t first, uint64_t count)
{
    struct hl_rows b = {
        .source = m->part->source[k], .row = m->pitch, .col = 1, .first = first, .count = count};
    if (m->part->form & HL_FORM_STACKED)
        b.base = m->at->expert * source_rows * m->pitch;
    if ((m->part->form & HL_FORM_TRANSPOSED) && m->row->cols != NULL) {
        b.row = 1;
        b.col = source_rows;
    }
    return b;
}

HL_CHECK static hl_status reserve_blocks(struct making *m, uint64_t n)
{
    m->blocks = calloc(n, sizeof(*m->blocks));
    return m->blocks != NULL
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory allocating %" PRIu64 " blocks of rows", n);
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
        if (whole && (m->part->form & HL_FORM_INTERLEAVED)) {
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

/* Replaces the last "weight" of the name with the ending, if there is one. */
HL_CHECK static hl_status part_pattern(const char *name, const char *ending, char *out, size_t cap)
{
    static const char weight[] = ".weight";
    const char *at = NULL;
    for (const char *s = strstr(name, weight); s != NULL && ending != NULL;
         s = strstr(s + 1, weight))
        at = s + 1;
    int n = at == NULL ? snprintf(out, cap, "%s", name)
                       : snprintf(out, cap, "%.*s%s%s", (int)(at - name), name, ending,
                                  at + strlen(weight) - 1);
    if (n < 0 || (size_t)n >= cap || (ending != NULL && at == NULL))
        return hl_fail(HL_EINVAL, "tensor '%s' has no name for its '%s'", name,
                       ending != NULL ? ending : "");
    return HL_OK;
}

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
    char pattern[HL_PLANNER_NAME_MAX];
    HL_TRY(part_pattern(te ? row->te : row->name, m->part->ending, pattern, sizeof(pattern)));
    return hl_family_fill(pattern, expert, out + n, cap - (size_t)n);
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
                                                     enum hl_family_place place)
{
    const struct hl_family_tensor *row = p->config->family->tensors;
    for (; row->name != NULL; row++)
        if (row->place == place && row->split == HL_SPLIT_VOCABULARY)
            return row;
    return NULL;
}

/* ---- one row --------------------------------------------------------------------------------- */

/* Head and embedding of a tied model are one tensor, which the files have under one name or both.
 */
HL_CHECK static hl_status find_tied_row(const struct hl_planner *p,
                                        const struct hl_family_tensor **out)
{
    const struct hl_family_tensor *embedding = vocabulary_row(p, HL_PLACE_EMBEDDING);
    const struct hl_family_tensor *head = vocabulary_row(p, HL_PLACE_HEAD);
    char name[HL_PLANNER_NAME_MAX], other[HL_PLANNER_NAME_MAX];
    *out = embedding;
    if (embedding == NULL || head == NULL)
        return HL_OK;
    HL_TRY(hl_family_source_name(p->config->family, p->prefix, embedding, 0, 0, 0, name,
                                 sizeof(name)));
    HL_TRY(
        hl_family_source_name(p->config->family, p->prefix, head, 0, 0, 0, other, sizeof(other)));
    if (!hl_planner_has(p, name) && hl_planner_has(p, other))
        *out = head;
    return HL_OK;
}

HL_CHECK static hl_status find_sources(struct hl_planner *p, struct making *m)
{
    struct hl_format_ask ask = {.row = m->row};
    bool ends = m->row->place == HL_PLACE_HEAD || m->row->place == HL_PLACE_EMBEDDING;
    if (p->config->tied && ends && m->row->split == HL_SPLIT_VOCABULARY)
        HL_TRY(find_tied_row(p, &ask.row));
    m->source_count = ask.count = hl_family_source_count(ask.row);
    for (size_t k = 0; k < ask.count; k++) {
        HL_TRY(hl_family_source_name(p->config->family, p->prefix, ask.row, k, m->at->layer,
                                     m->at->expert, ask.names[k], sizeof(ask.names[k])));
        HL_TRY(hl_family_source_dims(&m->scope, ask.row, k, &ask.dims[k]));
    }
    return hl_planner_format(p, &ask, &m->format);
}

HL_CHECK static hl_status check_divides(const struct making *m, const char *name, uint64_t n)
{
    if (n % m->ranks == 0)
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s %" PRIu64 " does not divide the %" PRIu64 " %s of tensor '%s'",
                   m->at->place == HL_PLACE_EXPERT ? "etp" : "tp", m->ranks, n,
                   m->row->split == HL_SPLIT_COLUMNS ? "columns" : "rows", name);
}

/* "1, 2, 4": the sizes that cut `n` into pieces of whole blocks. */
static const char *sizes_of_blocks(const struct hl_planner *p, const struct making *m, uint64_t n,
                                   uint64_t block, char *buf, size_t cap)
{
    enum hl_divided_by by = m->at->place == HL_PLACE_EXPERT ? HL_BY_ETP : HL_BY_TP;
    size_t at = 0;
    for (uint64_t size = 1; size <= n && at < cap; size++) {
        bool fits = size == 1 || (n % size == 0 && n / size % block == 0);
        if (fits && hl_planner_size_fits(p->config, by, size))
            at += (size_t)snprintf(buf + at, cap - at, "%s%" PRIu64, at > 0 ? ", " : "", size);
    }
    return buf;
}

/* Checks that a rank's piece of `n` rows or columns ends at the edge of a block. */
HL_CHECK static hl_status check_edges(const struct hl_planner *p, const struct making *m,
                                      const char *name, uint64_t n, uint64_t block)
{
    char sizes[128];
    bool expert = m->at->place == HL_PLACE_EXPERT;
    if (m->ranks == 1 || n / m->ranks % block == 0)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "%s %" PRIu64 " cuts the %" PRIu64 " %s of tensor '%s' into pieces of %" PRIu64
                   ", which do not end with its blocks of %" PRIu64 "; use %s %s",
                   expert ? "etp" : "tp", m->ranks, n,
                   m->row->split == HL_SPLIT_COLUMNS ? "columns" : "rows", name, n / m->ranks,
                   block, expert ? "etp" : "tp",
                   sizes_of_blocks(p, m, n, block, sizes, sizeof(sizes)));
}

static uint64_t blocks_in(uint64_t n, uint64_t block)
{
    return (n + block - 1) / block;
}

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* How many rows of the whole tensor share a scale: those of a block if every piece of the tensor
 * consists of whole blocks, otherwise the largest number that divides all pieces. If the matrix is
 * one piece, its last block can be incomplete. */
static uint64_t rows_of_scale(const struct making *m)
{
    uint64_t n = m->part->block_rows;
    size_t pieces = 0;
    for (size_t i = 0; i < m->block_count; i++)
        pieces += m->blocks[i].count > 0;
    for (size_t i = 0; i < m->block_count && pieces > 1; i++) {
        const struct hl_rows *b = &m->blocks[i];
        if (b->count > 0) /* padding repeats one row, whose position does not matter */
            n = common_divisor(common_divisor(n, b->count),
                               b->kind == HL_ROWS_PLAIN ? b->first : 0);
    }
    return n;
}

/* Converts the blocks from rows of the matrix to rows of the part. */
static void count_in_blocks(struct making *m, struct hl_format_part *part)
{
    uint64_t stored = part->block_rows, n = rows_of_scale(m);
    part->block_rows = n;
    for (size_t i = 0; i < m->block_count && stored > 1; i++) {
        struct hl_rows *b = &m->blocks[i];
        bool plain = b->kind == HL_ROWS_PLAIN;
        b->first /= plain ? n : stored;
        b->count = blocks_in(b->count, n);
        b->each = plain ? stored / n : 1;
    }
}

/* Adds a list with one number per source, the same on every rank. If a source has a number for each
 * of its experts, the expert's is taken. */
HL_CHECK static hl_status emit_numbers(struct hl_planner *p, struct making *m, const char *name)
{
    struct hl_dims dims = {.rank = m->part->rank, .shape = {1}};
    struct hl_rows numbers[HL_FAMILY_SOURCES_MAX];
    uint64_t n = m->part->count;
    uint64_t expert = (m->part->form & HL_FORM_STACKED) ? m->at->expert : 0;
    if (n > 1)
        dims = (struct hl_dims){.rank = m->part->rank + 1, .shape = {n, 1}};
    for (size_t k = 0; k < n; k++)
        numbers[k] = (struct hl_rows){
            .source = m->part->source[k], .base = expert, .row = 1, .col = 1, .count = 1};
    HL_TRY(hl_planner_tensor(p, m->part->source[0], &dims, name));
    return hl_planner_rows(p, numbers, n, 0, n, 0, 1);
}

HL_CHECK static hl_status emit_part(struct hl_planner *p, struct making *m, const char *name)
{
    const struct hl_format_part *part = m->part;
    enum hl_split split = m->row->split;
    bool whole_rows = part->grain == HL_GRAIN_ROW;
    uint64_t halves = split == HL_SPLIT_PAIRS ? 2 : 1, t = (uint64_t)p->tp;
    uint64_t rows = m->rows, cols = m->cols;
    HL_TRY(check_divides(m, name, split == HL_SPLIT_COLUMNS ? cols : rows));
    if (split != HL_SPLIT_COLUMNS)
        HL_TRY(check_edges(p, m, name, rows, part->block_rows));
    else if (!whole_rows)
        HL_TRY(check_edges(p, m, name, cols, part->block_cols));
    if (split == HL_SPLIT_COLUMNS)
        cols /= m->ranks;
    else if (split != HL_SPLIT_WHOLE)
        rows /= m->ranks;
    rows = blocks_in(rows, part->block_rows);
    cols = whole_rows ? 1 : blocks_in(cols, part->block_cols);
    struct hl_dims dims = {.rank = m->row->cols != NULL ? part->rank : 1,
                           .shape = {halves * rows, cols}};
    if (dims.rank == 1)
        dims.shape[1] = 0;
    HL_TRY(hl_planner_tensor(p, part->source[0], &dims, name));
    uint64_t first = split == HL_SPLIT_COLUMNS || split == HL_SPLIT_WHOLE ? 0 : t * rows;
    uint64_t col = split == HL_SPLIT_COLUMNS && !whole_rows ? t * cols : 0;
    if (split != HL_SPLIT_PAIRS)
        return hl_planner_rows(p, m->blocks, m->block_count, first, rows, col, cols);
    for (size_t i = 0; i < m->block_count; i++)
        HL_TRY(hl_planner_rows(p, &m->blocks[i], 1, first, rows, col, cols));
    return HL_OK;
}

/* Plans one tensor of the rank: the elements of the row's matrix, or their scales. */
HL_CHECK static hl_status plan_part(struct hl_planner *p, const struct making *row,
                                    const struct hl_format_part *part)
{
    char name[HL_PLANNER_NAME_MAX];
    struct hl_format_part own = *part;
    HL_AUTO(making_fini) struct making m = *row;
    m.part = &own;
    m.pitch = part->grain == HL_GRAIN_ROW ? 1 : blocks_in(m.cols, part->block_cols);
    HL_TRY(target_name(p, &m, name, sizeof(name)));
    if (part->grain == HL_GRAIN_ONE)
        return emit_numbers(p, &m, name);
    HL_TRY(make_blocks(p, &m));
    count_in_blocks(&m, &own);
    return emit_part(p, &m, name);
}

/* A multi-token prediction layer can contain copies of the embedding and the head. They are not
 * planned, but they must equal the originals. */
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
    for (size_t i = 0; i < m.format.count; i++)
        HL_TRY(plan_part(p, &m, &m.format.parts[i]));
    return HL_OK;
}

#define CACHE_SCALE(what)                                                                          \
    {                                                                                              \
        .place = HL_PLACE_LAYER, .name = "self_attention." what, .hf = { "self_attn." what }       \
    }

/* Plans the scales of a quantized KV cache if the files have them: uncut, on every rank of the
 * layer. */
HL_CHECK static hl_status plan_cache_scales(struct hl_planner *p, const struct hl_planner_at *at)
{
    static const struct hl_family_tensor rows[] = {CACHE_SCALE("q_scale"), CACHE_SCALE("k_scale"),
                                                   CACHE_SCALE("v_scale"), CACHE_SCALE("kv_scale"),
                                                   CACHE_SCALE("prob_scale")};
    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        const struct making m = {
            .at = at, .row = &rows[i], .scope = hl_hf_scope(p->config, at->layer)};
        struct hl_format_part part;
        char name[HL_PLANNER_NAME_MAX];
        HL_TRY(hl_family_source_name(p->config->family, p->prefix, &rows[i], 0, at->layer, 0, name,
                                     sizeof(name)));
        if (!hl_planner_has(p, name))
            continue;
        HL_TRY(hl_planner_number(p, name, &part));
        HL_TRY(plan_part(p, &m, &part));
    }
    return HL_OK;
}

/* *out: the files have one tensor per expert for the row's matrix, instead of one tensor for all
 * experts. */
HL_CHECK static hl_status has_separate(const struct hl_planner *p, const struct hl_planner_at *at,
                                       const struct hl_family_tensor *row, bool *out)
{
    char name[HL_PLANNER_NAME_MAX];
    HL_TRY(hl_family_source_name(p->config->family, p->prefix, row, 0, at->layer, at->expert, name,
                                 sizeof(name)));
    *out = hl_planner_has(p, name) || hl_planner_has_packed(p, name);
    return HL_OK;
}

/* *out: the row applies to this checkpoint. Two rows can describe the same tensor, with and without
 * HL_FORM_SEPARATE; only the one that matches the files applies. */
HL_CHECK static hl_status row_counts(const struct hl_planner *p, const struct hl_planner_at *at,
                                     const struct hl_family_tensor *row, bool *out)
{
    *out = true;
    if (row->form & HL_FORM_SEPARATE)
        return has_separate(p, at, row, out);
    for (const struct hl_family_tensor *o = p->config->family->tensors;
         (row->form & HL_FORM_STACKED) && o->name != NULL; o++) {
        if (!(o->form & HL_FORM_SEPARATE) || strcmp(o->name, row->name) != 0)
            continue;
        HL_TRY(has_separate(p, at, o, out));
        *out = !*out;
    }
    return HL_OK;
}

hl_status hl_planner_place(struct hl_planner *p, const struct hl_planner_at *at)
{
    const struct hl_family_tensor *row = p->config->family->tensors;
    for (; row->name != NULL; row++) {
        bool head = row->place == HL_PLACE_HEAD && row->split == HL_SPLIT_VOCABULARY, counts;
        if (row->place != at->place || (head && p->config->tied && p->o->pp == 1))
            continue;
        HL_TRY(row_counts(p, at, row, &counts));
        if (counts)
            HL_TRY(plan_row(p, at, row));
        p->listed = p->listed || (counts && (row->form & HL_FORM_SEPARATE));
    }
    return at->place == HL_PLACE_LAYER ? plan_cache_scales(p, at) : HL_OK;
}

/* A tied model can store its head beside the embedding. It must then equal the embedding. */
hl_status hl_planner_find_tied_head(struct hl_planner *p)
{
    const struct hl_family_tensor *row = vocabulary_row(p, HL_PLACE_HEAD);
    const struct hl_planner_at at = {.place = HL_PLACE_HEAD};
    struct hl_family_scope scope = hl_hf_scope(p->config, 0);
    char name[HL_PLANNER_NAME_MAX];
    uint32_t head, embedding;
    const struct hl_family_tensor *read;
    if (!p->config->tied || row == NULL)
        return HL_OK;
    HL_TRY(find_tied_row(p, &read));
    if (read == row)
        return HL_OK;
    HL_TRY(hl_family_source_name(p->config->family, p->prefix, row, 0, 0, 0, name, sizeof(name)));
    if (!hl_planner_has(p, name))
        return HL_OK;
    HL_TRY(source_of(p, &scope, row, 0, &at, &head));
    HL_TRY(source_of(p, &scope, vocabulary_row(p, HL_PLACE_EMBEDDING), 0, &at, &embedding));
    return hl_planner_equal(p, embedding, head);
}
