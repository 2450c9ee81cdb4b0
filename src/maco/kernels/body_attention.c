/* Attention by online softmax: blocks of rows times blocks of keys, with each row's maximum, sum
 * and output so far. The query heads of one key head are rows of one matrix. Key blocks always
 * start at the first key, so the bits of a row's result don't depend on its block. */
#include <math.h>

#include "maco/kernels/body_private.h"
#include "maco/kernels/gemm.h"

#define ROWS 96  /* a multiple of the rows of every tile */
#define KEYS 128 /* a multiple of the columns of every tile */

struct shape {
    size_t hq, hkv, sq, sk, d;
    int causal, dtype;
    float scale;
};

/* One key head: its query rows are [0, heads * sq), row r is query r % sq. */
struct head {
    struct hl_matrix q, k, v;
    const void *mask; /* [sq, sk] or NULL */
    void *out;
    float *lse; /* or NULL */
    size_t rows;
};

struct work {
    const struct shape *s;
    const struct hl_tile *tile;
    float *q, *kv, *p; /* packed */
    float *scores;     /* ROWS x KEYS */
    float *out;        /* ROWS x wide */
    size_t wide;       /* d rounded up to whole tiles */
    float most[ROWS], sum[ROWS];
};

static hl_status prepare_attention(struct work *w, struct hl_maco_scratch *s)
{
    size_t wide = hl_round_up(w->s->d, w->tile->nr > HL_LANES ? w->tile->nr : HL_LANES);
    void *data;
    HL_TRY(hl_scratch_reserve(s, (2 * ROWS * wide + KEYS * wide + 2 * ROWS * KEYS) * sizeof(float),
                              &data));
    w->wide = wide;
    w->q = data;
    w->out = w->q + ROWS * wide;
    w->kv = w->out + ROWS * wide;
    w->scores = w->kv + KEYS * wide;
    w->p = w->scores + ROWS * KEYS;
    return HL_OK;
}

/* How many keys a query may see. */
static size_t visible_keys(const struct shape *s, size_t query)
{
    if (!s->causal)
        return s->sk;
    size_t last = query + 1 + s->sk;
    return last <= s->sq ? 0 : last - s->sq > s->sk ? s->sk : last - s->sq;
}

/* Turns the scores of one row into exponentials, and scales the sums so far to the new maximum. */
static void softmax_row(struct work *w, const struct head *h, size_t row, size_t i, size_t key,
                        size_t keys)
{
    const struct shape *s = w->s;
    size_t query = row % s->sq, seen = visible_keys(s, query);
    size_t n = seen <= key ? 0 : seen - key < keys ? seen - key : keys;
    float *x = w->scores + i * KEYS, mask[KEYS];
    hl_vec_scale(x, hl_round_up(n, HL_LANES), s->scale);
    if (h->mask != NULL && n > 0) {
        hl_load(h->mask, s->dtype, query * s->sk + key, n, 0, mask);
        for (size_t j = 0; j < n; j++)
            x[j] += mask[j];
    }
    for (size_t j = n; j < KEYS; j++)
        x[j] = -INFINITY;
    float most = hl_vec_max(x, KEYS);
    most = most > w->most[i] ? most : w->most[i];
    if (most == -INFINITY && !isnan(hl_vec_sum(x, KEYS))) { /* no key visible so far */
        memset(x, 0, KEYS * sizeof(float));
        return;
    }
    float keep = w->most[i] == most ? 1.0f : expf(w->most[i] - most);
    w->sum[i] = w->sum[i] * keep + hl_vec_exp(x, KEYS, most);
    w->most[i] = most;
    if (keep != 1.0f)
        hl_vec_scale(w->out + i * w->wide, w->wide, keep);
}

/* The same for few rows, without packing. */
static void few_keys(struct work *w, const struct head *h, size_t row, size_t rows, size_t key,
                     size_t keys)
{
    size_t d = w->s->d, wide = w->wide;
    hl_few(&(struct hl_few){&h->k, key, keys, 0, d, rows, wide, KEYS, w->q, w->scores, 0});
    for (size_t i = 0; i < rows; i++)
        softmax_row(w, h, row + i, i, key, keys);
    hl_few(&(struct hl_few){&h->v, 0, d, key, keys, rows, KEYS, wide, w->scores, w->out, 1});
}

static void key_block(struct work *w, const struct head *h, size_t row, size_t rows, size_t key)
{
    const struct shape *s = w->s;
    size_t keys = s->sk - key < KEYS ? s->sk - key : KEYS;
    struct hl_matrix p = {w->scores, MACO_F32, KEYS, 0};
    if (rows <= HL_FEW) {
        few_keys(w, h, row, rows, key, keys);
        return;
    }
    hl_pack(&h->k, key, keys, 0, s->d, w->tile->nr, w->kv);
    hl_multiply(w->tile, rows, keys, s->d, w->q, w->kv, w->scores, KEYS, 0);
    for (size_t i = 0; i < rows; i++)
        softmax_row(w, h, row + i, i, key, keys);
    hl_pack(&p, 0, rows, 0, keys, w->tile->mr, w->p);
    hl_pack(&h->v, 0, s->d, key, keys, w->tile->nr, w->kv);
    hl_multiply(w->tile, rows, s->d, keys, w->p, w->kv, w->out, w->wide, 1);
}

/* A row that sees no key gets output 0 and lse -infinity. */
static void finish_rows(struct work *w, const struct head *h, size_t row, size_t rows)
{
    for (size_t i = 0; i < rows; i++) {
        float *x = w->out + i * w->wide, sum = w->sum[i];
        if (sum != 0)
            hl_vec_scale(x, w->wide, 1.0f / sum);
        hl_store(x, w->s->d, h->out, w->s->dtype, (row + i) * w->s->d);
        if (h->lse != NULL)
            h->lse[row + i] = sum != 0 ? w->most[i] + logf(sum) : -INFINITY;
    }
}

static void one_head(struct work *w, const struct head *h)
{
    const struct shape *s = w->s;
    for (size_t row = 0; row < h->rows; row += ROWS) {
        size_t rows = h->rows - row < ROWS ? h->rows - row : ROWS, last = 0;
        for (size_t i = 0; i < rows; i++) {
            size_t seen = visible_keys(s, (row + i) % s->sq);
            last = seen > last ? seen : last;
            w->most[i] = -INFINITY;
            w->sum[i] = 0;
        }
        if (rows > HL_FEW)
            hl_pack(&h->q, row, rows, 0, s->d, w->tile->mr, w->q);
        for (size_t i = 0; rows <= HL_FEW && i < rows; i++)
            hl_half_load(h->q.data, s->dtype, (row + i) * s->d, s->d, w->q + i * w->wide);
        memset(w->out, 0, ROWS * w->wide * sizeof(float));
        for (size_t key = 0; key < last; key += KEYS)
            key_block(w, h, row, rows, key);
        finish_rows(w, h, row, rows);
    }
}

hl_status hl_body_attention(const maco_task *t, struct hl_maco_scratch *scratch)
{
    struct shape s = {.hq = (size_t)t->dims[1],
                      .hkv = (size_t)t->dims[2],
                      .sq = (size_t)t->dims[3],
                      .sk = (size_t)t->dims[4],
                      .d = (size_t)t->dims[5],
                      .causal = t->dims[6],
                      .dtype = hl_maco_dtype(t),
                      .scale = t->aux[0]};
    struct work w = {.s = &s, .tile = hl_tile()};
    int type = s.dtype;
    HL_TRY(prepare_attention(&w, scratch));
    size_t heads = (size_t)t->dims[0] * s.hkv, rows = s.hq / s.hkv * s.sq;
    for (size_t b = 0; b < heads; b++) {
        struct head h = {.q = {hl_at(t->inputs[0], type, b * rows * s.d), type, s.d, 0},
                         .k = {hl_at(t->inputs[1], type, b * s.sk * s.d), type, s.d, 0},
                         .v = {hl_at(t->inputs[2], type, b * s.sk * s.d), type, s.d, 1},
                         .mask = hl_at(t->inputs[3], type, 0),
                         .out = hl_at(t->outputs[0], type, b * rows * s.d),
                         .lse = t->outputs[1] != 0 ? (float *)(uintptr_t)t->outputs[1] + b * rows
                                                   : NULL,
                         .rows = rows};
        one_head(&w, &h);
    }
    return HL_OK;
}
