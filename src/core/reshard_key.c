#include <string.h>

#include "core/reshard_private.h"

/* Two lanes of multiply and shift; the constants are those of splitmix64 and of wyhash. */
void hl_digest_word(struct hl_digest *d, uint64_t word)
{
    d->hi = (d->hi ^ word) * 0xBF58476D1CE4E5B9ull;
    d->hi ^= d->hi >> 31;
    d->lo = (d->lo + word) * 0xA0761D6478BD642Full;
    d->lo ^= d->lo >> 29;
}

void hl_digest_text(struct hl_digest *d, const char *text)
{
    size_t len = strlen(text);
    hl_digest_word(d, len);
    for (size_t at = 0; at < len; at += 8) {
        uint64_t word = 0;
        for (size_t i = at; i < at + 8 && i < len; i++)
            word |= (uint64_t)(unsigned char)text[i] << 8 * (i - at);
        hl_digest_word(d, word);
    }
}

static void digest_shape(struct hl_digest *d, const struct hl_tensor *t)
{
    hl_digest_text(d, hl_dtype_name(t->dtype));
    hl_digest_word(d, t->rank);
    for (uint32_t i = 0; i < t->rank; i++)
        hl_digest_word(d, t->shape[i]);
}

void hl_digest_tensor(struct hl_digest *d, const struct hl_partition_plan *plan, size_t tensor)
{
    digest_shape(d, &plan->tensors[tensor]);
    hl_digest_word(d, plan->op_first[tensor + 1] - plan->op_first[tensor]);
    for (uint32_t i = plan->op_first[tensor]; i < plan->op_first[tensor + 1]; i++) {
        const struct hl_copy_op *op = &plan->ops[i];
        const uint64_t words[] = {op->kind, op->source, op->elem, op->src,    op->dst,
                                  op->rows, op->cols,   op->run,  op->stride, op->step};
        for (size_t k = 0; k < HL_ARRAY_LEN(words); k++)
            hl_digest_word(d, words[k]);
    }
}

static void digest_plan(struct hl_digest *d, const struct hl_partition_plan *plan)
{
    hl_digest_word(d, plan->shard_count);
    for (size_t i = 0; i < plan->shard_count; i++) {
        const struct hl_partition_shard *s = &plan->shards[i];
        hl_digest_word(d, (uint64_t)s->pp);
        hl_digest_word(d, (uint64_t)s->tp);
        hl_digest_text(d, s->part);
        hl_digest_word(d, s->tensor_count);
        for (uint32_t k = s->tensor_first; k < s->tensor_first + s->tensor_count; k++) {
            hl_digest_text(d, plan->tensors[k].name);
            hl_digest_tensor(d, plan, k);
        }
    }
    hl_digest_word(d, plan->equal_count);
    for (size_t i = 0; i < plan->equal_count; i++) {
        hl_digest_word(d, plan->equal[i].a);
        hl_digest_word(d, plan->equal[i].b);
    }
}

struct hl_reshard_key hl_reshard_key(const struct hl_tensor *logical, size_t logical_count,
                                     const struct hl_partition_plan *a,
                                     const struct hl_partition_plan *b)
{
    struct hl_digest d = {.hi = 0x9E3779B97F4A7C15ull, .lo = 0xE7037ED1A0B428DBull};
    hl_digest_word(&d, logical_count);
    for (size_t i = 0; i < logical_count; i++) {
        hl_digest_text(&d, logical[i].name);
        digest_shape(&d, &logical[i]);
    }
    digest_plan(&d, a);
    digest_plan(&d, b);
    return (struct hl_reshard_key){.hi = d.hi, .lo = d.lo};
}
