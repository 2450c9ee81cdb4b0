/* maco/cuda/device/body_attention.cuh - ATTENTION by online softmax: a tile of queries against
 * tiles of keys. Registers hold each query's maximum, sum and output so far. The CTA processes all
 * (batch, head, tile of queries) of its task. All types are computed in float32.
 *
 * The 256 threads are R queries times 256 / R threads, with R = 32 for heads of up to 128 elements,
 * and 16 for up to 256. The threads of a query are lanes of one warp.
 */
#ifndef HL_MACO_CUDA_DEVICE_BODY_ATTENTION_CUH
#define HL_MACO_CUDA_DEVICE_BODY_ATTENTION_CUH

#include "helios/maco.h"
#include "maco/cuda/device/element.cuh"

namespace gpu
{

struct hl_attention {
    const void *q, *k, *v, *mask;
    void *o;
    float *lse;
    uint32_t batch, hq, hkv, sq, sk, d, dtype;
    int causal;
    float scale;
};

template <uint32_t R> struct hl_attention_tiles {
    static const uint32_t wide = 4096 / R; /* largest number of elements of a head */
    static const uint32_t row = wide + 4;  /* so that rows are in different banks */
    static const uint32_t each = 256 / R;  /* threads per query */
    alignas(16) float q[R][row];
    alignas(16) float kv[R][row];
    float p[R][R + 1];
};

template <typename T, uint32_t R>
HL_DEV void attention_load_as(const T *from, uint32_t n, uint32_t d,
                              float (*to)[hl_attention_tiles<R>::row])
{
    const uint32_t wide = hl_attention_tiles<R>::wide;
    for (uint32_t at = thread_id() * 4; at < R * wide; at += thread_count() * 4) {
        uint32_t r = at / wide, c = at % wide;
        float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        const T *p = from + (uint64_t)r * d + c;
        if (r < n && c + 4 <= d && aligned4(p))
            load4(p, x);
        else
            for (uint32_t i = 0; i < 4; i++)
                if (r < n && c + i < d)
                    x[i] = to_float(p[i]);
        store4(&to[r][c], x);
    }
}

/* Loads `n` rows of d elements, from row `first`; rows beyond the end are 0. */
template <uint32_t R>
HL_BODY void attention_load(const hl_attention *a, const void *from, uint64_t first, uint32_t n,
                            float (*to)[hl_attention_tiles<R>::row])
{
    uint64_t at = first * a->d;
    if (a->dtype == MACO_F32)
        attention_load_as<float, R>((const float *)from + at, n, a->d, to);
    else if (a->dtype == MACO_F16)
        attention_load_as<f16, R>((const f16 *)from + at, n, a->d, to);
    else
        attention_load_as<bf16, R>((const bf16 *)from + at, n, a->d, to);
}

HL_DEV float attention_get(const hl_attention *a, const void *from, uint64_t at)
{
    if (a->dtype == MACO_F32)
        return ((const float *)from)[at];
    return a->dtype == MACO_F16 ? to_float(((const f16 *)from)[at])
                                : to_float(((const bf16 *)from)[at]);
}

HL_DEV void attention_put(const hl_attention *a, uint64_t at, float x)
{
    if (a->dtype == MACO_F32)
        ((float *)a->o)[at] = x;
    else if (a->dtype == MACO_F16)
        from_float(x, (f16 *)a->o + at);
    else
        from_float(x, (bf16 *)a->o + at);
}

/* The number of keys that a query sees; the last query sees the last key. */
HL_DEV uint32_t visible(const hl_attention *a, uint32_t query)
{
    uint64_t end = (uint64_t)query + 1 + a->sk;
    if (!a->causal)
        return a->sk;
    if (end <= a->sq)
        return 0;
    return end - a->sq < a->sk ? (uint32_t)(end - a->sq) : a->sk;
}

/* The state of one query, the same in all its threads; each thread has its own elements of
 * `out`. */
struct hl_attention_row {
    float most, sum, out[16];
};

/* Computes the thread's scores for this tile of keys, from q and kv = K. */
template <uint32_t R>
HL_DEV void attention_scores(const hl_attention *a, const hl_attention_tiles<R> &t, uint32_t query,
                             uint32_t key0, float *s)
{
    const uint32_t each = hl_attention_tiles<R>::each;
    uint32_t r = thread_id() / each, me = thread_id() % each, seen = visible(a, query);
    uint32_t end = (a->d + 3) / 4 * 4;
    for (uint32_t j = 0; j < R / each; j++)
        s[j] = 0.0f;
    for (uint32_t c = 0; c < end; c += 4) {
        float x[4], y[4];
        load4(&t.q[r][c], x);
        for (uint32_t j = 0; j < R / each; j++) {
            load4(&t.kv[me + j * each][c], y);
            for (int i = 0; i < 4; i++)
                s[j] = fmaf(x[i], y[i], s[j]);
        }
    }
    for (uint32_t j = 0; j < R / each; j++) {
        uint32_t key = key0 + me + j * each;
        s[j] *= a->scale;
        if (query >= a->sq || key >= seen)
            s[j] = -INFINITY;
        else if (a->mask != nullptr)
            s[j] += attention_get(a, a->mask, (uint64_t)query * a->sk + key);
    }
}

/* Converts scores to weights in t.p, and updates the row's state to its new maximum. */
template <uint32_t R>
HL_DEV void attention_soften(hl_attention_tiles<R> &t, hl_attention_row *row, const float *s)
{
    const uint32_t each = hl_attention_tiles<R>::each;
    uint32_t r = thread_id() / each, me = thread_id() % each;
    float most = row->most, sum = 0.0f;
    for (uint32_t j = 0; j < R / each; j++)
        most = s[j] > most || s[j] != s[j] ? s[j] : most;
    for (uint32_t mask = each / 2; mask > 0; mask /= 2) {
        float other = across(most, mask);
        most = other > most || other != other ? other : most;
    }
    float keep = most == row->most ? 1.0f : expf(row->most - most);
    for (uint32_t j = 0; j < R / each; j++) {
        float p = most == -INFINITY ? 0.0f : expf(s[j] - most);
        t.p[r][me + j * each] = p;
        sum += p;
    }
    for (uint32_t mask = each / 2; mask > 0; mask /= 2)
        sum += across(sum, mask);
    row->sum = row->sum * keep + sum;
    row->most = most;
    for (int i = 0; i < 16; i++)
        row->out[i] *= keep;
}

/* out += p V, with kv = V */
template <uint32_t R>
HL_DEV void attention_add(const hl_attention_tiles<R> &t, hl_attention_row *row)
{
    const uint32_t each = hl_attention_tiles<R>::each;
    uint32_t r = thread_id() / each, me = thread_id() % each;
    for (uint32_t key = 0; key < R; key++) {
        float p = t.p[r][key], v[4];
        HL_UNROLL
        for (uint32_t i = 0; i < 4; i++) {
            load4(&t.kv[key][me * 4 + i * each * 4], v);
            HL_UNROLL
            for (uint32_t e = 0; e < 4; e++)
                row->out[4 * i + e] = fmaf(p, v[e], row->out[4 * i + e]);
        }
    }
}

template <uint32_t R>
HL_DEV void attention_store(const hl_attention *a, const hl_attention_row *row, uint64_t head,
                            uint32_t query)
{
    const uint32_t each = hl_attention_tiles<R>::each;
    uint32_t me = thread_id() % each;
    if (query >= a->sq)
        return;
    float by = row->sum != 0.0f ? 1.0f / row->sum : 0.0f;
    HL_UNROLL
    for (uint32_t i = 0; i < 16; i++) {
        uint32_t c = me * 4 + i / 4 * each * 4 + i % 4;
        if (c < a->d)
            attention_put(a, (head * a->sq + query) * a->d + c, row->out[i] * by);
    }
    if (a->lse != nullptr && me == 0)
        a->lse[head * a->sq + query] = row->sum != 0.0f ? row->most + logf(row->sum) : -INFINITY;
}

/* Processes R queries of one head, from query0. */
template <uint32_t R>
HL_DEV void attention_tile(const hl_attention *a, uint64_t head, uint64_t kv_head, uint32_t query0,
                           hl_attention_tiles<R> &t)
{
    const uint32_t each = hl_attention_tiles<R>::each;
    uint32_t queries = a->sq - query0 < R ? a->sq - query0 : R;
    uint32_t query = query0 + thread_id() / each, last = visible(a, query0 + queries - 1);
    hl_attention_row row = {};
    row.most = -INFINITY;
    block_sync(); /* the previous tile has been read */
    attention_load<R>(a, a->q, head * a->sq + query0, queries, t.q);
    for (uint32_t key = 0; key < last; key += R) {
        uint32_t keys = a->sk - key < R ? a->sk - key : R;
        float s[R / each];
        attention_load<R>(a, a->k, kv_head * a->sk + key, keys, t.kv);
        block_sync();
        attention_scores<R>(a, t, query, key, s);
        attention_soften<R>(t, &row, s);
        block_sync(); /* K has been read, p is complete */
        attention_load<R>(a, a->v, kv_head * a->sk + key, keys, t.kv);
        block_sync();
        attention_add<R>(t, &row);
        block_sync(); /* V and p have been read */
    }
    attention_store<R>(a, &row, head, query);
}

template <uint32_t R> HL_BODY void attention(const hl_attention *a, hl_attention_tiles<R> &t)
{
    for (uint64_t head = 0; head < (uint64_t)a->batch * a->hq; head++) {
        uint64_t kv_head = head / a->hq * a->hkv + head % a->hq / (a->hq / a->hkv);
        for (uint32_t query = 0; query < a->sq; query += R)
            attention_tile<R>(a, head, kv_head, query, t);
    }
}

union hl_attention_space {
    hl_attention_tiles<32> narrow;
    hl_attention_tiles<16> wide;
};

HL_DEV int body_attention(const maco_task *t, hl_attention_space &space)
{
    hl_attention a = {};
    a.q = (const void *)t->inputs[0];
    a.k = (const void *)t->inputs[1];
    a.v = (const void *)t->inputs[2];
    a.mask = (const void *)t->inputs[3];
    a.o = (void *)t->outputs[0];
    a.lse = (float *)t->outputs[1];
    a.batch = (uint32_t)t->dims[0];
    a.hq = (uint32_t)t->dims[1];
    a.hkv = (uint32_t)t->dims[2];
    a.sq = (uint32_t)t->dims[3];
    a.sk = (uint32_t)t->dims[4];
    a.d = (uint32_t)t->dims[5];
    a.causal = t->dims[6];
    a.scale = t->aux[0];
    a.dtype = t->flags & MACO_FLAG_DTYPE;
    if (a.dtype > MACO_BF16 || a.d > hl_attention_tiles<16>::wide)
        return 0;
    if (a.d <= hl_attention_tiles<32>::wide)
        attention<32>(&a, space.narrow);
    else
        attention<16>(&a, space.wide);
    return 1;
}

} // namespace gpu

#endif
