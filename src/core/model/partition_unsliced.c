/* Plans a model of any family, known or not: whole tensors under their own names, one shard per
 * layer, and the rest in shards of limited size. Also writes the document that describes it. */
#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/partition.h"

#define LAYER_MAX 100000
#define NO_LAYER  UINT64_MAX

/* A tensor that is assigned to a shard. */
struct placed {
    uint32_t source;
    uint64_t layer;
};

/* The number after "layers.", "h." and the like, which must be whole components of the name. */
static uint64_t layer_of(const char *name)
{
    static const char *const words[] = {"layers.", "layer.", "h.", "blocks.", "block."};
    for (const char *at = name; at != NULL; at = strchr(at, '.'), at = at != NULL ? at + 1 : NULL)
        for (size_t i = 0; i < HL_ARRAY_LEN(words); i++) {
            const char *digits = at + strlen(words[i]);
            if (strncmp(at, words[i], strlen(words[i])) != 0 || !isdigit((unsigned char)*digits))
                continue;
            char *end;
            uint64_t n = strtoull(digits, &end, 10);
            if (*end == '.' && n < LAYER_MAX)
                return n;
        }
    return NO_LAYER;
}

bool hl_partition_layer_of(const char *name, uint64_t *layer)
{
    *layer = layer_of(name);
    return *layer != NO_LAYER;
}

/* Tensors without a layer first, then by layer, each in the order of the files. */
static int by_place(const void *a, const void *b)
{
    const struct placed *x = a, *y = b;
    uint64_t p = x->layer + 1, q = y->layer + 1; /* NO_LAYER becomes 0 */
    if (p != q)
        return p < q ? -1 : 1;
    return x->source < y->source ? -1 : x->source > y->source;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

HL_CHECK static hl_status check_names(const struct hl_tensor *sources, size_t count)
{
    HL_AUTO(hl_freep) const char **names = calloc(count + 1, sizeof(*names));
    if (names == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the names of %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        names[i] = sources[i].name;
    qsort(names, count, sizeof(*names), by_name);
    for (size_t i = 1; i < count; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return hl_fail(HL_EINVAL, "tensor '%s' is in two files: remove one of them", names[i]);
    return HL_OK;
}

static void add_tensor(struct hl_partition_plan *plan, const struct placed *at,
                       const struct hl_tensor *from, const char *name)
{
    size_t i = plan->tensor_count++;
    struct hl_partition_shard *s = &plan->shards[plan->shard_count - 1];
    plan->tensors[i] = *from;
    plan->tensors[i].name = name;
    plan->tensors[i].offset = s->data_size;
    plan->op_first[i] = (uint32_t)plan->op_count;
    if (from->size > 0)
        plan->ops[plan->op_count++] = (struct hl_copy_op){.kind = HL_COPY_RUNS,
                                                          .source = at->source,
                                                          .elem = hl_dtype_size(from->dtype),
                                                          .rows = 1,
                                                          .run = from->size,
                                                          .stride = from->size};
    plan->op_first[i + 1] = (uint32_t)plan->op_count;
    plan->parameters += from->size / hl_dtype_size(from->dtype);
    plan->data_bytes += from->size;
    s->tensor_count++;
    s->data_size += from->size;
}

static void add_shard(struct hl_partition_plan *plan, uint64_t layer, uint64_t number)
{
    struct hl_partition_shard *s = &plan->shards[plan->shard_count++];
    *s = (struct hl_partition_shard){.tensor_first = (uint32_t)plan->tensor_count};
    snprintf(s->part, sizeof(s->part), layer == NO_LAYER ? "model-%04" PRIu64 : "layer-%04" PRIu64,
             layer == NO_LAYER ? number : layer);
}

/* Allocates room for `count` tensors; the plan owns it even after a failure. */
HL_CHECK static hl_status make_room(struct hl_partition_plan *plan, const struct hl_tensor *sources,
                                    size_t count)
{
    size_t text = 1;
    for (size_t i = 0; i < count; i++)
        text += strlen(sources[i].name) + 1;
    plan->shards = calloc(count, sizeof(*plan->shards));
    plan->tensors = calloc(count, sizeof(*plan->tensors));
    plan->op_first = calloc(count + 1, sizeof(*plan->op_first));
    plan->ops = calloc(count, sizeof(*plan->ops));
    plan->names = malloc(text);
    if (plan->shards == NULL || plan->tensors == NULL || plan->op_first == NULL ||
        plan->ops == NULL || plan->names == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan of %zu tensors", count);
    return HL_OK;
}

static void fill_plan(struct hl_partition_plan *plan, const struct hl_tensor *sources,
                      const struct placed *list, size_t count, uint64_t part_bytes)
{
    char *name = plan->names;
    for (size_t i = 0; i < count; i++) {
        const struct hl_tensor *t = &sources[list[i].source];
        uint64_t have = i > 0 ? plan->shards[plan->shard_count - 1].data_size : 0;
        bool full = list[i].layer == NO_LAYER && have > 0 &&
                    (have >= part_bytes || t->size > part_bytes - have);
        if (i == 0 || list[i].layer != list[i - 1].layer || full)
            add_shard(plan, list[i].layer, plan->shard_count);
        size_t len = strlen(t->name) + 1;
        memcpy(name, t->name, len);
        add_tensor(plan, &list[i], t, name);
        name += len;
    }
}

hl_status hl_partition_unsliced(const struct hl_tensor *sources, size_t count, uint64_t part_bytes,
                                struct hl_partition_plan *out)
{
    struct hl_partition_plan plan = {0};
    HL_AUTO(hl_freep) struct placed *list = calloc(count + 1, sizeof(*list));
    if (count == 0)
        return hl_fail(HL_EINVAL, "its files hold no tensors: nothing to store");
    if (part_bytes == 0)
        return hl_fail(HL_EINVAL, "parts of 0 bytes: give their size");
    HL_TRY(check_names(sources, count));
    hl_status st =
        list != NULL ? make_room(&plan, sources, count)
                     : hl_fail(HL_ENOMEM, "out of memory allocating a plan of %zu tensors", count);
    if (st != HL_OK) {
        hl_partition_fini(&plan);
        return st;
    }
    for (size_t i = 0; i < count; i++)
        list[i] = (struct placed){.source = (uint32_t)i, .layer = layer_of(sources[i].name)};
    qsort(list, count, sizeof(*list), by_place);
    fill_plan(&plan, sources, list, count, part_bytes);
    plan.dtype = plan.tensors[0].dtype;
    *out = plan;
    return HL_OK;
}

hl_status hl_partition_as_stored(const struct hl_tensor *sources, const char *const *parts,
                                 size_t count, struct hl_partition_plan *out)
{
    struct hl_partition_plan plan = {0};
    if (count == 0)
        return hl_fail(HL_EINVAL, "there are no tensors to store");
    HL_TRY(check_names(sources, count));
    hl_status st = make_room(&plan, sources, count);
    if (st != HL_OK) {
        hl_partition_fini(&plan);
        return st;
    }
    char *name = plan.names;
    for (size_t i = 0; i < count; i++) {
        size_t len = strlen(sources[i].name) + 1;
        if (i == 0 || strcmp(parts[i], parts[i - 1]) != 0) {
            struct hl_partition_shard *s = &plan.shards[plan.shard_count++];
            *s = (struct hl_partition_shard){.tensor_first = (uint32_t)i};
            if (snprintf(s->part, sizeof(s->part), "%s", parts[i]) >= (int)sizeof(s->part)) {
                hl_partition_fini(&plan);
                return hl_fail(HL_EUNSUPPORTED, "part '%s': its name has more than %zu bytes",
                               parts[i], sizeof(s->part) - 1);
            }
        }
        memcpy(name, sources[i].name, len);
        add_tensor(&plan, &(struct placed){.source = (uint32_t)i}, &sources[i], name);
        name += len;
    }
    plan.dtype = plan.tensors[0].dtype;
    *out = plan;
    return HL_OK;
}
