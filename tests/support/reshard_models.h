/* support/reshard_models.h - tiny models at many layouts, and resharding operations executed one
 * element at a time.
 *
 * Owns:    rs_layout owns its slices (rs_layouts_free).
 * Threads: one at a time.
 * Errors:  aborts: a test that can't make its input has no result; rs_check_pair fails the test.
 * Units:   bytes.
 * Limits:  RS_LAYOUTS layouts of a model.
 */
#ifndef HL_TESTS_RESHARD_MODELS_H
#define HL_TESTS_RESHARD_MODELS_H

#include "support/test.h"

#include <inttypes.h>

#include "core/reshard/reshard.h"
#include "support/hf_slices.h"

#define RS_LAYOUTS 32

/* 4 layers; 2 or 4 query groups, so that tp 4 splits a group; no vocabulary is divisible. */
static const struct hf_fixture rs_models[] = {
    {.arch = "llama",
     .layers = 4,
     .hidden = 16,
     .heads = 4,
     .kv_heads = 2,
     .head_dim = 8,
     .ffn = 24,
     .vocab = 37,
     .dtype = HL_DTYPE_BF16},
    {.arch = "qwen2",
     .layers = 4,
     .hidden = 16,
     .heads = 4,
     .kv_heads = 4,
     .ffn = 32,
     .vocab = 50,
     .tied = 1,
     .dtype = HL_DTYPE_F32},
    {.arch = "gpt2",
     .layers = 4,
     .hidden = 16,
     .heads = 4,
     .ffn = 64,
     .vocab = 41,
     .positions = 8,
     .tied = 1,
     .dtype = HL_DTYPE_F16},
    {.arch = "llama",
     .layers = 4,
     .hidden = 24,
     .heads = 12,
     .kv_heads = 12,
     .ffn = 36,
     .vocab = 19,
     .tied = 1,
     .head_anyway = 1,
     .dtype = HL_DTYPE_F64},
};

struct rs_layout {
    char name[64];
    struct hf_slices s;
};

/* Every tensor unchanged, in a shard of its own. */
static inline void rs_whole(const struct hf_model *m, struct rs_layout *out)
{
    struct hl_partition_plan p = {
        .shard_count = m->count, .tensor_count = m->count, .op_count = m->count};
    p.shards = calloc(m->count, sizeof(*p.shards));
    p.tensors = calloc(m->count, sizeof(*p.tensors));
    p.op_first = calloc(m->count + 1, sizeof(*p.op_first));
    p.ops = calloc(m->count, sizeof(*p.ops));
    *out = (struct rs_layout){.name = "unsliced"};
    out->s.list = calloc(m->count, sizeof(*out->s.list));
    out->s.count = m->count;
    for (size_t i = 0; i < m->count; i++) {
        uint64_t size = m->tensors[i].size;
        p.shards[i] = (struct hl_partition_shard){
            .part = "whole", .tensor_first = (uint32_t)i, .tensor_count = 1, .data_size = size};
        p.tensors[i] = m->tensors[i];
        p.tensors[i].offset = 0;
        p.op_first[i + 1] = (uint32_t)i + 1;
        p.ops[i] = (struct hl_copy_op){.kind = HL_COPY_RUNS,
                                       .source = (uint32_t)i,
                                       .elem = hl_dtype_size(m->tensors[i].dtype),
                                       .rows = 1,
                                       .run = size,
                                       .stride = size};
        out->s.list[i].tensor = p.tensors[i];
        out->s.list[i].data = malloc(size + 1);
        memcpy(out->s.list[i].data, m->data[i], size);
        snprintf(out->s.list[i].name, sizeof(out->s.list[i].name), "%s", m->names[i]);
        snprintf(out->s.list[i].part, sizeof(out->s.list[i].part), "whole");
    }
    out->s.plan = p;
}

/* The model unsliced and at every tp x pp x virtual stages that fits it; returns their number. */
static inline size_t rs_layouts(const struct hf_model *m, struct rs_layout list[RS_LAYOUTS])
{
    static const int tps[] = {1, 2, 3, 4}, pps[] = {1, 2, 4}, chunks[] = {1, 2};
    size_t n = 0;
    rs_whole(m, &list[n++]);
    for (size_t t = 0; t < HL_ARRAY_LEN(tps); t++)
        for (size_t p = 0; p < HL_ARRAY_LEN(pps); p++)
            for (size_t v = 0; v < HL_ARRAY_LEN(chunks); v++) {
                struct hl_partition_options o = {.tp = tps[t],
                                                 .pp = pps[p],
                                                 .virtual_stages = chunks[v],
                                                 .vocab_divisor = 8,
                                                 .pad = t == 2 ? HL_API_VOCAB_PADDING_ZERO
                                                               : HL_API_VOCAB_PADDING_REPEAT};
                struct rs_layout *l = &list[n];
                hf_require(n < RS_LAYOUTS, "too many layouts");
                if (hf_slice(m, &o, &l->s) != HL_OK)
                    continue;
                snprintf(l->name, sizeof(l->name), "tp %d pp %d vp %d", o.tp, o.pp,
                         o.virtual_stages);
                n++;
            }
    return n;
}

static inline void rs_layouts_free(struct rs_layout *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hf_slices_free(&list[i].s);
}

/* One operation, element by element; `hits` counts every byte that it writes. */
static inline void rs_apply(const struct hl_reshard_op *op, const struct hf_slices *from,
                            uint8_t *dst, uint8_t *hits, uint64_t size)
{
    uint64_t step = op->kind == HL_RESHARD_ZERO ? op->run : op->elem;
    uint64_t cols = op->kind == HL_RESHARD_TRANSPOSE ? op->cols : op->run / step;
    uint64_t rows = op->kind == HL_RESHARD_ZERO ? 1 : op->rows;
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t j = 0; j < cols; j++) {
            uint64_t to = op->dst + i * op->dst_stride + j * step;
            hf_require(to + step <= size, "a write outside the target tensor");
            for (uint64_t k = 0; k < step; k++)
                hits[to + k]++;
            if (op->kind == HL_RESHARD_ZERO) {
                memset(dst + to, 0, step);
                continue;
            }
            uint64_t at = op->kind == HL_RESHARD_TRANSPOSE
                              ? op->src + j * op->src_stride + i * op->elem
                              : op->src + i * op->src_stride + j * op->elem;
            hf_require(op->tensor < from->count, "no such tensor");
            hf_require(at + step <= from->list[op->tensor].tensor.size, "a read outside");
            const struct hl_partition_shard *s = &from->plan.shards[op->shard];
            hf_require(op->tensor >= s->tensor_first &&
                           op->tensor < s->tensor_first + s->tensor_count,
                       "the tensor is in another shard");
            memcpy(dst + to, from->list[op->tensor].data + at, step);
        }
}

static inline void rs_same_bytes(const struct rs_layout *a, const struct rs_layout *b,
                                 const struct hl_reshard_plan *plan, size_t tensor)
{
    const struct hf_slice *want = &b->s.list[tensor];
    uint64_t size = want->tensor.size;
    uint8_t *got = malloc(size + 1), *hits = calloc(size + 1, 1);
    for (uint32_t i = plan->op_first[tensor]; i < plan->op_first[tensor + 1]; i++)
        rs_apply(&plan->ops[i], &a->s, got, hits, size);
    for (uint64_t i = 0; i < size; i++)
        if (hits[i] != 1 || got[i] != want->data[i])
            fail_msg("%s -> %s: byte %" PRIu64 " of %s (tp %d) is %02x, expected %02x, written %d "
                     "times",
                     a->name, b->name, i, want->name, want->tp, got[i], want->data[i], hits[i]);
    free(got);
    free(hits);
}

/* Applies the plan from A to B to A's slices and compares with B's. */
static inline void rs_check_pair(const struct hf_model *m, const struct rs_layout *a,
                                 const struct rs_layout *b)
{
    struct hl_reshard_plan plan;
    hl_status st = hl_reshard_plan(m->tensors, m->count, &a->s.plan, &b->s.plan, &plan);
    if (st != HL_OK)
        fail_msg("%s -> %s: %s", a->name, b->name, hl_error_text());
    for (size_t i = 0; i < b->s.count; i++)
        rs_same_bytes(a, b, &plan, i);
    for (size_t i = 0; i < plan.shard_count; i++) {
        uint32_t alias = plan.shards[i].alias;
        const struct hl_partition_shard *to = &b->s.plan.shards[i];
        if (alias == HL_RESHARD_NONE)
            continue;
        const struct hl_partition_shard *from = &a->s.plan.shards[alias];
        assert_int_equal(from->data_size, to->data_size);
        for (uint32_t k = 0; k < to->tensor_count; k++)
            assert_memory_equal(a->s.list[from->tensor_first + k].data,
                                b->s.list[to->tensor_first + k].data,
                                b->s.list[to->tensor_first + k].tensor.size);
    }
    hl_reshard_fini(&plan);
}

#endif
