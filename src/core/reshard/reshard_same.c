/* Finds tensors and shards of B that A already has. Candidates are found by digest and then
 * compared in full. */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/digest.h"
#include "core/reshard/reshard_private.h"

#define LAYERS     "layers."
#define CHUNK      "model"
#define NUMBER_MAX 9 /* digits of a number */

/* A tensor or a shard of A. */
struct entry {
    struct hl_digest digest;
    int tp;
    uint32_t index;
};

struct same {
    const struct hl_partition_plan *a;
    const struct hl_partition_plan *b;
    struct entry *entries;
    size_t count;
};

static int by_digest(const struct hl_digest *x, const struct hl_digest *y)
{
    if (x->hi != y->hi)
        return x->hi < y->hi ? -1 : 1;
    return (x->lo > y->lo) - (x->lo < y->lo);
}

static int by_digest_and_tp(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = by_digest(&x->digest, &y->digest);
    c = c != 0 ? c : (x->tp > y->tp) - (x->tp < y->tp);
    return c != 0 ? c : (x->index > y->index) - (x->index < y->index);
}

/* The entry with that digest and tp; otherwise one with that digest, chosen by tp; NULL = none. */
static const struct entry *find_entry(const struct same *s, const struct hl_digest *digest, int tp)
{
    size_t low = 0, high = s->count, first, n = 0;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (by_digest(&s->entries[mid].digest, digest) < 0)
            low = mid + 1;
        else
            high = mid;
    }
    for (first = low; low < s->count && by_digest(&s->entries[low].digest, digest) == 0; low++) {
        if (s->entries[low].tp == tp)
            return &s->entries[low];
        n++;
    }
    return n == 0 ? NULL : &s->entries[first + (size_t)tp % n];
}

/* ---- tensors --------------------------------------------------------------------------------- */

static bool same_op(const struct hl_copy_op *x, const struct hl_copy_op *y)
{
    return x->kind == y->kind && x->source == y->source && x->elem == y->elem && x->src == y->src &&
           x->dst == y->dst && x->rows == y->rows && x->cols == y->cols && x->run == y->run &&
           x->stride == y->stride && x->step == y->step;
}

static bool same_tensor(const struct same *s, uint32_t a, uint32_t b)
{
    const struct hl_tensor *x = &s->a->tensors[a], *y = &s->b->tensors[b];
    uint32_t i = s->a->op_first[a], k = s->b->op_first[b];
    if (x->dtype != y->dtype || x->rank != y->rank || x->size != y->size ||
        memcmp(x->shape, y->shape, x->rank * sizeof(x->shape[0])) != 0 ||
        s->a->op_first[a + 1] - i != s->b->op_first[b + 1] - k)
        return false;
    for (; i < s->a->op_first[a + 1]; i++, k++)
        if (!same_op(&s->a->ops[i], &s->b->ops[k]))
            return false;
    return true;
}

/* Covers dtype, shape and operations, but not the name. */
static void digest_tensor(struct hl_digest *d, const struct hl_partition_plan *plan, size_t tensor)
{
    hl_digest_shape(d, &plan->tensors[tensor]);
    hl_digest_word(d, plan->op_first[tensor + 1] - plan->op_first[tensor]);
    for (uint32_t i = plan->op_first[tensor]; i < plan->op_first[tensor + 1]; i++) {
        const struct hl_copy_op *op = &plan->ops[i];
        const uint64_t words[] = {op->kind, op->source, op->elem, op->src,    op->dst,
                                  op->rows, op->cols,   op->run,  op->stride, op->step};
        for (size_t k = 0; k < HL_ARRAY_LEN(words); k++)
            hl_digest_word(d, words[k]);
    }
}

static struct hl_digest tensor_digest(const struct hl_partition_plan *plan, size_t tensor)
{
    struct hl_digest d = {0};
    digest_tensor(&d, plan, tensor);
    return d;
}

static void find_tensors(struct same *s, struct hl_reshard_plan *out)
{
    s->count = 0;
    for (size_t i = 0; i < s->a->shard_count; i++) {
        const struct hl_partition_shard *shard = &s->a->shards[i];
        for (uint32_t k = shard->tensor_first; k < shard->tensor_first + shard->tensor_count; k++)
            s->entries[s->count++] = (struct entry){tensor_digest(s->a, k), shard->tp, k};
    }
    qsort(s->entries, s->count, sizeof(*s->entries), by_digest_and_tp);
    for (size_t i = 0; i < s->b->shard_count; i++) {
        const struct hl_partition_shard *shard = &s->b->shards[i];
        for (uint32_t k = shard->tensor_first; k < shard->tensor_first + shard->tensor_count; k++) {
            struct hl_digest d = tensor_digest(s->b, k);
            const struct entry *e = find_entry(s, &d, shard->tp);
            out->same[k] = e != NULL && same_tensor(s, e->index, k) ? e->index : HL_RESHARD_NONE;
        }
    }
}

/* ---- names ----------------------------------------------------------------------------------- */

/* The number at `at`, or -1; a dot must follow. *end points behind it. */
static int number_at(const char *at, const char **end)
{
    int value = 0, digits = 0;
    for (; *at >= '0' && *at <= '9' && digits < NUMBER_MAX; at++, digits++)
        value = 10 * value + (*at - '0');
    *end = at;
    return digits > 0 && *at == '.' ? value : -1;
}

/* A name without its chunk, and with its first layer number kept apart. */
struct plain_name {
    char text[HL_TENSOR_NAME_MAX + 1];
    int chunk;
    int layer;
};

static void read_name(const char *name, struct plain_name *out)
{
    size_t n = 0;
    out->chunk = out->layer = -1;
    for (const char *at = name; *at != '\0' && n < sizeof(out->text) - 1;) {
        bool begins = at == name || at[-1] == '.';
        const char *end;
        if (begins && out->chunk < 0 && strncmp(at, CHUNK, strlen(CHUNK)) == 0 &&
            (out->chunk = number_at(at + strlen(CHUNK), &end)) >= 0) {
            at = end + 1;
        } else if (out->layer < 0 && at - name >= (ptrdiff_t)strlen(LAYERS) &&
                   strncmp(at - strlen(LAYERS), LAYERS, strlen(LAYERS)) == 0 &&
                   (out->layer = number_at(at, &end)) >= 0) {
            at = end;
        } else {
            out->text[n++] = *at++;
        }
    }
    out->text[n] = '\0';
}

/* ---- shards ---------------------------------------------------------------------------------- */

static struct hl_digest shard_digest(const struct hl_partition_plan *plan, size_t shard)
{
    const struct hl_partition_shard *s = &plan->shards[shard];
    struct plain_name name;
    struct hl_digest d = {.lo = s->tensor_count};
    for (uint32_t k = s->tensor_first; k < s->tensor_first + s->tensor_count; k++) {
        digest_tensor(&d, plan, k);
        read_name(plan->tensors[k].name, &name);
        hl_digest_text(&d, name.text);
    }
    return d;
}

/* Both shards have the same data, and one change of numbers turns A's names into B's. */
static bool same_shard(const struct same *s, uint32_t a, uint32_t b, struct hl_reshard_names *out)
{
    const struct hl_partition_shard *x = &s->a->shards[a], *y = &s->b->shards[b];
    struct plain_name from, to;
    struct hl_reshard_names first = {-1, -1, -1, -1};
    if (x->tensor_count != y->tensor_count || x->data_size != y->data_size || x->tensor_count == 0)
        return false;
    for (uint32_t k = 0; k < x->tensor_count; k++) {
        uint32_t i = x->tensor_first + k, j = y->tensor_first + k;
        read_name(s->a->tensors[i].name, &from);
        read_name(s->b->tensors[j].name, &to);
        struct hl_reshard_names n = {from.chunk, to.chunk, from.layer, to.layer};
        first = k == 0 ? n : first;
        if (!same_tensor(s, i, j) || s->a->tensors[i].offset != s->b->tensors[j].offset ||
            strcmp(from.text, to.text) != 0 || memcmp(&n, &first, sizeof(n)) != 0)
            return false;
    }
    *out = first;
    return true;
}

static void find_shards(struct same *s, struct hl_reshard_plan *out)
{
    for (s->count = 0; s->count < s->a->shard_count; s->count++)
        s->entries[s->count] = (struct entry){.digest = shard_digest(s->a, s->count),
                                              .tp = s->a->shards[s->count].tp,
                                              .index = (uint32_t)s->count};
    qsort(s->entries, s->count, sizeof(*s->entries), by_digest_and_tp);
    for (uint32_t i = 0; i < s->b->shard_count; i++) {
        const struct hl_partition_shard *shard = &s->b->shards[i];
        struct hl_reshard_shard *to = &out->shards[i];
        struct hl_digest d = shard_digest(s->b, i);
        const struct entry *e = find_entry(s, &d, shard->tp);
        *to = (struct hl_reshard_shard){.alias = HL_RESHARD_NONE, .names = {-1, -1, -1, -1}};
        if (e == NULL || !same_shard(s, e->index, i, &to->names))
            continue;
        to->alias = e->index;
        for (uint32_t k = 0; k < shard->tensor_count; k++)
            out->same[shard->tensor_first + k] = s->a->shards[e->index].tensor_first + k;
    }
}

hl_status hl_reshard_find_same(const struct hl_partition_plan *a, const struct hl_partition_plan *b,
                               struct hl_reshard_plan *out)
{
    size_t most = a->tensor_count > a->shard_count ? a->tensor_count : a->shard_count;
    struct same s = {.a = a, .b = b, .entries = calloc(most + 1, sizeof(*s.entries))};
    if (s.entries == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an index of %zu tensors", most);
    find_tensors(&s, out);
    find_shards(&s, out);
    free(s.entries);
    return HL_OK;
}

static int by_digest_and_index(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    int c = by_digest(&x->digest, &y->digest);
    return c != 0 ? c : (x->index > y->index) - (x->index < y->index);
}

hl_status hl_reshard_replicas(const struct hl_partition_plan *plan, struct hl_partition_equal **out,
                              size_t *count)
{
    struct same s = {
        .a = plan, .b = plan, .entries = calloc(plan->tensor_count + 1, sizeof(*s.entries))};
    struct hl_partition_equal *list = calloc(plan->tensor_count + 1, sizeof(*list));
    size_t n = 0, first = 0;
    if (s.entries == NULL || list == NULL) {
        free(s.entries);
        free(list);
        return hl_fail(HL_ENOMEM, "index of %zu tensors", plan->tensor_count);
    }
    for (uint32_t i = 0; i < plan->tensor_count; i++)
        s.entries[i] = (struct entry){tensor_digest(plan, i), 0, i};
    qsort(s.entries, plan->tensor_count, sizeof(*s.entries), by_digest_and_index);
    for (size_t i = 1; i < plan->tensor_count; i++) {
        uint32_t a = s.entries[first].index, b = s.entries[i].index;
        if (by_digest(&s.entries[first].digest, &s.entries[i].digest) == 0 && same_tensor(&s, a, b))
            list[n++] = (struct hl_partition_equal){a, b};
        else
            first = i;
    }
    free(s.entries);
    *out = list;
    *count = n;
    return HL_OK;
}
