/* --ckpt-format torch_dist: global tensors in pieces. Layers that are alike are one tensor with an
 * axis for the layer, experts one with an axis for the expert; each piece becomes a tensor of the
 * held plan. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/naming.h"
#include "core/partition_clip.h"
#include "core/torch/dcp.h"
#include "core/torch/megatron.h"
#include "core/torch/megatron_model.h"
#include "mem/import/megatron_private.h"

#define COMMON        "common.pt"
#define EMBEDDING     "embedding.word_embeddings.weight"
#define LAYERS        "decoder.layers."
#define EXPERTS       "mlp.experts.experts."
#define LOCAL_EXPERTS "mlp.experts.local_experts."

/* A piece of one logical Megatron tensor. */
struct piece {
    struct hl_clip_box box;
    uint32_t file;
    const uint8_t *bytes;
};

/* A global tensor by what its axes are. */
struct global {
    const struct hl_torch_dcp_tensor *tensor;
    uint32_t axes; /* in front of the matrix: layer, expert */
    bool layers, experts;
    int half;  /* of linear_fc1's rows: 1 = gate, 2 = up; 0 = it has all of them */
    char *key; /* the name under the naming local, of layer 0 and expert 0 where those are axes */
};

struct dist {
    struct hl_megatron_source *s;
    struct hl_partition_options split;
    struct hl_hf_config config;
    struct hl_torch_dcp dcp;
    struct global *globals; /* of the model, by key */
    size_t global_count;
    struct piece *pieces;
    size_t piece_count;
    size_t piece_cap;
};

static void dist_fini(struct dist *d)
{
    hl_hf_config_fini(&d->config);
    hl_torch_dcp_fini(&d->dcp);
    for (size_t i = 0; i < d->global_count; i++)
        free(d->globals[i].key);
    free(d->globals);
    free(d->pieces);
}

/* ---- names ----------------------------------------------------------------------------------- */

static bool is_number(const char *at, size_t *len)
{
    *len = strspn(at, "0123456789");
    return *len > 0 && at[*len] == '.';
}

/* "decoder.layers.mlp.linear_fc2.weight" has an axis for the layer, with a number in it none. */
static bool has_layer_axis(const char *name)
{
    size_t n;
    return strncmp(name, LAYERS, strlen(LAYERS)) == 0 && !is_number(name + strlen(LAYERS), &n);
}

/* "mlp.experts.experts.linear_fc1.weight" has one for the expert. */
static bool has_expert_axis(const char *name)
{
    size_t n;
    const char *at = strstr(name, EXPERTS);
    return at != NULL && !is_number(at + strlen(EXPERTS), &n);
}

/* "linear_fc1.weight_w" holds the gate's rows, "linear_fc1.weight_v" those of the up projection, in
 * checkpoints in which every tensor is of one layer and expert. */
static int half_of(const char *name)
{
    size_t n = strlen(name);
    if (strstr(name, "linear_fc1.") == NULL || name[n - 2] != '_')
        return 0;
    return name[n - 1] == 'w' ? 1 : name[n - 1] == 'v' ? 2 : 0;
}

/* The name under the naming local of one layer and expert. */
HL_CHECK static hl_status local_name(const struct global *g, uint64_t layer, uint64_t expert,
                                     char *out, size_t cap)
{
    char whole[HL_TENSOR_NAME_MAX + 1], name[HL_TENSOR_NAME_MAX + 1];
    const char *from = g->tensor->tensor.name;
    int len = (int)strlen(from) - (g->half != 0 ? 2 : 0);
    int n = g->layers ? snprintf(whole, sizeof(whole), LAYERS "%" PRIu64 ".%.*s", layer,
                                 len - (int)strlen(LAYERS), from + strlen(LAYERS))
                      : snprintf(whole, sizeof(whole), "%.*s", len, from);
    if (n < 0 || (size_t)n >= sizeof(whole))
        return hl_fail(HL_EINVAL, "tensor '%.80s' has too long a name", from);
    HL_TRY(hl_megatron_tensor_name(whole, name, sizeof(name)));
    char *at = strstr(name, EXPERTS);
    if (at == NULL)
        return hl_naming_rename(name, HL_API_LAYER_NAMING_LOCAL, false, out, cap);
    const char *rest = at + strlen(EXPERTS);
    n = g->experts ? snprintf(out, cap, "%.*s" LOCAL_EXPERTS "%" PRIu64 ".%s", (int)(at - name),
                              name, expert, rest)
                   : snprintf(out, cap, "%.*s" LOCAL_EXPERTS "%s", (int)(at - name), name, rest);
    return n >= 0 && (size_t)n < cap
               ? HL_OK
               : hl_fail(HL_EINVAL, "tensor '%.80s' has too long a name", from);
}

static bool is_state(const char *name)
{
    static const char *const starts[] = {"optimizer.", "chained_", "rng_state", "rerun_state",
                                         "opt_param_scheduler"};
    for (size_t i = 0; i < HL_ARRAY_LEN(starts); i++)
        if (strncmp(name, starts[i], strlen(starts[i])) == 0)
            return true;
    return false;
}

static bool is_of_model(const char *name)
{
    return !is_state(name) && !hl_megatron_is_buffer(name);
}

/* ---- metadata -------------------------------------------------------------------------------- */

HL_CHECK static hl_status map_named(struct dist *d, const char *name, uint32_t *index)
{
    HL_AUTO(hl_freep) char *path = NULL;
    if (asprintf(&path, "%s/%s", d->s->folder, name) < 0)
        return hl_fail(HL_ENOMEM, "path of %s", name);
    for (uint32_t i = 0; i < d->s->file_count; i++)
        if (d->s->files[i].path != NULL && strcmp(d->s->files[i].path, path) == 0) {
            *index = i;
            return HL_OK;
        }
    return hl_megatron_map(d->s, path, index);
}

HL_CHECK static hl_status read_common(struct dist *d, const char *dir)
{
    uint32_t file;
    HL_AUTO(hl_torch_file_fini) struct hl_torch_file common = {0};
    HL_TRY(map_named(d, COMMON, &file));
    const struct hl_mapped_file *f = &d->s->files[file];
    hl_status st = hl_megatron_open_torch(f, 0, f->size, &common);
    if (st == HL_OK)
        st = hl_megatron_read_model(dir, d->s, common.pickle.root, &d->config);
    if (st != HL_OK)
        return hl_fail_prefix(st, COMMON ": ");
    const struct hl_pickle_value *iteration = hl_pickle_find(common.pickle.root, "iteration");
    if (iteration != NULL && iteration->kind == HL_PICKLE_INT)
        d->s->iteration = iteration->integer;
    if (hl_pickle_find(common.pickle.root, "opt_param_scheduler") != NULL)
        return hl_megatron_leave_out(d->s, json_string("the learning-rate scheduler"));
    return HL_OK;
}

HL_CHECK static hl_status read_metadata(struct dist *d)
{
    uint32_t file;
    struct hl_pickle pickle;
    HL_TRY(map_named(d, ".metadata", &file));
    const struct hl_mapped_file *f = &d->s->files[file];
    hl_status st = hl_pickle_parse(f->bytes, f->size, &pickle);
    if (st == HL_OK) {
        st = hl_torch_dcp_read(pickle.root, is_of_model, &d->dcp);
        hl_pickle_fini(&pickle);
    }
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", f->path);
}

static int by_key(const void *a, const void *b)
{
    const struct global *x = a, *y = b;
    return strcmp(x->key, y->key);
}

HL_CHECK static hl_status sort_out(struct dist *d)
{
    uint64_t state = 0, state_bytes = 0;
    char key[HL_TENSOR_NAME_MAX + 1];
    d->globals = calloc(d->dcp.count + 1, sizeof(*d->globals));
    if (d->globals == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu tensors", d->dcp.count);
    for (size_t i = 0; i < d->dcp.count; i++) {
        const char *name = d->dcp.tensors[i].tensor.name;
        if (is_state(name)) {
            state++;
            state_bytes += d->dcp.tensors[i].tensor.size;
            continue;
        }
        if (hl_megatron_is_buffer(name))
            continue;
        struct global g = {.tensor = &d->dcp.tensors[i],
                           .layers = has_layer_axis(name),
                           .experts = has_expert_axis(name),
                           .half = half_of(name)};
        g.axes = (uint32_t)g.layers + (uint32_t)g.experts;
        if (g.tensor->tensor.rank <= g.axes || g.tensor->tensor.rank > g.axes + 2)
            return hl_fail(HL_EINVAL, "tensor '%s' of %s has %u dimensions", name, d->s->folder,
                           g.tensor->tensor.rank);
        HL_TRY(local_name(&g, 0, 0, key, sizeof(key)));
        g.key = strdup(key);
        if (g.key == NULL)
            return hl_fail(HL_ENOMEM, "the name of a tensor");
        d->globals[d->global_count++] = g;
    }
    qsort(d->globals, d->global_count, sizeof(*d->globals), by_key);
    if (state == 0)
        return HL_OK;
    return hl_megatron_leave_out(d->s, json_sprintf("the optimizer state (%" PRIu64
                                                    " tensors, %" PRIu64 " bytes)",
                                                    state, state_bytes));
}

/* ---- whole tensors --------------------------------------------------------------------------- */

/* Copies the name with a 0 in place of the number at `at`, which stands in it. */
static size_t zero_number(const char *name, const char *at, char *out, size_t cap)
{
    const char *rest = at + strspn(at, "0123456789");
    int n = snprintf(out, cap, "%.*s0%s", (int)(at - name), name, rest);
    return n >= 0 && (size_t)n < cap ? (size_t)n : 0;
}

/* The global tensor that has the one of that name under the naming local: its own, or one with an
 * axis in place of a number. NULL = none. */
static const struct global *find_global(const struct dist *d, const char *name)
{
    for (int axes = 0; axes < 4; axes++) {
        bool layers = axes & 1, experts = axes & 2;
        char made[2][HL_TENSOR_NAME_MAX + 1];
        const char *key = name, *number = strstr(name, LOCAL_EXPERTS);
        uint64_t expert = number != NULL ? strtoull(number + strlen(LOCAL_EXPERTS), NULL, 10) : 0;
        uint64_t layer = 0;
        if (experts && (number == NULL || zero_number(name, number + strlen(LOCAL_EXPERTS), made[0],
                                                      sizeof(made[0])) == 0))
            continue;
        key = experts ? made[0] : key;
        if (layers && (strncmp(name, LAYERS, strlen(LAYERS)) != 0 ||
                       zero_number(key, key + strlen(LAYERS), made[1], sizeof(made[1])) == 0))
            continue;
        if (layers)
            layer = strtoull(name + strlen(LAYERS), NULL, 10);
        key = layers ? made[1] : key;
        const struct global want = {.key = (char *)(uintptr_t)key};
        const struct global *g = d->global_count == 0 ? NULL
                                                      : bsearch(&want, d->globals, d->global_count,
                                                                sizeof(want), by_key);
        if (g == NULL || g->layers != layers || g->experts != experts)
            continue;
        const uint64_t *shape = g->tensor->tensor.shape;
        if ((!layers || layer < shape[0]) && (!experts || expert < shape[g->axes - 1]))
            return g;
    }
    return NULL;
}

struct finder {
    const struct dist *d;
    struct hl_tensor tensor; /* what was found last */
};

static hl_status find_tensor(void *arg, const struct hl_partition_shard *shard, const char *name,
                             const struct hl_tensor **out)
{
    struct finder *f = arg;
    const struct global *g = find_global(f->d, name);
    (void)shard;
    if (g == NULL)
        return hl_fail(HL_ENOENT,
                       "tensor '%s', which a model of these args has, is not in .metadata; look "
                       "whether config.json and args are of this checkpoint",
                       name);
    f->tensor = g->tensor->tensor;
    f->tensor.rank -= g->axes;
    memmove(f->tensor.shape, f->tensor.shape + g->axes, f->tensor.rank * sizeof(uint64_t));
    if (g->half != 0)
        f->tensor.shape[0] *= 2;
    *out = &f->tensor;
    return HL_OK;
}

HL_CHECK static hl_status plan_whole(struct dist *d)
{
    struct finder f = {.d = d};
    const struct hl_tensor *t = NULL;
    HL_TRY(find_tensor(&f, NULL, EMBEDDING, &t));
    d->split = (struct hl_partition_options){.tp = 1, .pp = 1, .pad = d->s->pad};
    if (t->rank != 2 || t->shape[0] > UINT32_MAX)
        return hl_fail(HL_EINVAL, "'" EMBEDDING "' has not two dimensions");
    HL_TRY(hl_megatron_divisor(d->config.vocab, t->shape[0], 1, &d->split.vocab_divisor));
    return hl_whole_held(&d->config, &d->split, find_tensor, &f, &d->s->whole);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

HL_CHECK static hl_status add_piece(struct dist *d, const struct piece *p)
{
    if (d->piece_count == d->piece_cap) {
        size_t cap = d->piece_cap == 0 ? 256 : 2 * d->piece_cap;
        struct piece *more = realloc(d->pieces, cap * sizeof(*more));
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "a table of %zu pieces", cap);
        d->pieces = more;
        d->piece_cap = cap;
    }
    d->pieces[d->piece_count++] = *p;
    return HL_OK;
}

/* The file of torch.save that a chunk is: where its elements lie. */
HL_CHECK static hl_status open_chunk(struct dist *d, const struct hl_tensor *t,
                                     const struct hl_torch_dcp_chunk *c, struct piece *out)
{
    HL_AUTO(hl_torch_file_fini) struct hl_torch_file file = {0};
    HL_AUTO(hl_torch_tensors_fini) struct hl_torch_tensors tensors = {0};
    HL_AUTO(hl_safetensors_fini) struct hl_safetensors header = {0};
    HL_TRY(map_named(d, c->file, &out->file));
    const struct hl_mapped_file *f = &d->s->files[out->file];
    HL_TRY(hl_megatron_open_torch(f, c->offset, c->size, &file));
    HL_TRY(
        hl_torch_tensors_add(&tensors, file.pickle.root, &(struct hl_torch_walk){.prefix = "it"}));
    HL_TRY(hl_torch_tensors_finish(&tensors));
    HL_TRY(hl_torch_file_header(&file, &tensors, c->size, &header));
    const struct hl_tensor *has = header.tensors;
    if (header.count != 1 || has->dtype != t->dtype || has->rank != t->rank ||
        memcmp(has->shape, c->shape, t->rank * sizeof(*c->shape)) != 0)
        return hl_fail(HL_EINVAL, "what lies there is not the chunk that .metadata describes");
    out->bytes = f->bytes + c->offset + has->offset;
    return HL_OK;
}

/* The tensor of the held plan by its name. */
HL_CHECK static hl_status find_held(const struct dist *d, const struct hl_safetensors *index,
                                    const char *name, uint32_t *out)
{
    const struct hl_tensor *t = hl_safetensors_find(index, name);
    if (t == NULL)
        return hl_fail(
            HL_EINVAL,
            "tensor '%s' has no place in a %s model; if the model is another one, put its "
            "config.json beside " HL_MEGATRON_TRACKER,
            name, d->s->whole.config.architecture);
    *out = (uint32_t)(t - index->tensors);
    return HL_OK;
}

/* One piece for each layer and expert of the chunk. */
HL_CHECK static hl_status split_chunk(struct dist *d, const struct global *g,
                                      const struct hl_torch_dcp_chunk *c, const struct piece *at,
                                      const struct hl_safetensors *index)
{
    const struct hl_tensor *t = &g->tensor->tensor;
    uint32_t a = g->axes;
    bool matrix = t->rank > a + 1;
    uint64_t layers = g->layers ? c->shape[0] : 1, experts = g->experts ? c->shape[a - 1] : 1;
    uint64_t rows = c->shape[a], cols = matrix ? c->shape[a + 1] : 1;
    uint64_t row = c->begin[a] + (g->half == 2 ? t->shape[a] : 0);
    uint64_t size = rows * cols * hl_dtype_size(t->dtype);
    char name[HL_TENSOR_NAME_MAX + 1];
    for (uint64_t i = 0; i < layers * experts; i++) {
        struct piece p = *at;
        uint64_t layer = g->layers ? c->begin[0] + i / experts : 0;
        uint64_t expert = g->experts ? c->begin[a - 1] + i % experts : 0;
        HL_TRY(local_name(g, layer, expert, name, sizeof(name)));
        p.box = (struct hl_clip_box){
            .row = row, .rows = rows, .col = matrix ? c->begin[a + 1] : 0, .cols = cols};
        HL_TRY(find_held(d, index, name, &p.box.tensor));
        p.bytes = at->bytes + i * size;
        HL_TRY(add_piece(d, &p));
    }
    return HL_OK;
}

HL_CHECK static hl_status add_chunk(struct dist *d, const struct global *g,
                                    const struct hl_torch_dcp_chunk *c,
                                    const struct hl_safetensors *index)
{
    struct piece at = {0};
    if (c->file == NULL) /* empty */
        return HL_OK;
    hl_status st = open_chunk(d, &g->tensor->tensor, c, &at);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s/%s, %" PRIu64 " bytes at %" PRIu64 ", a chunk of '%s': ",
                              d->s->folder, c->file, c->size, c->offset, g->tensor->tensor.name);
    return split_chunk(d, g, c, &at, index);
}

static int by_tensor(const void *a, const void *b)
{
    const struct piece *x = a, *y = b;
    if (x->box.tensor != y->box.tensor)
        return x->box.tensor < y->box.tensor ? -1 : 1;
    if (x->box.row != y->box.row)
        return x->box.row < y->box.row ? -1 : 1;
    return (x->box.col > y->box.col) - (x->box.col < y->box.col);
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct hl_tensor *list = tensors;
    return strcmp(list[*(const uint32_t *)a].name, list[*(const uint32_t *)b].name);
}

HL_CHECK static hl_status collect_pieces(struct dist *d)
{
    const struct hl_partition_plan *ranks = &d->s->whole.ranks;
    HL_AUTO(hl_freep) uint32_t *order = calloc(ranks->tensor_count + 1, sizeof(*order));
    if (order == NULL)
        return hl_fail(HL_ENOMEM, "an index of %zu tensors", ranks->tensor_count);
    for (uint32_t i = 0; i < ranks->tensor_count; i++)
        order[i] = i;
    qsort_r(order, ranks->tensor_count, sizeof(*order), by_name, ranks->tensors);
    const struct hl_safetensors index = {
        .tensors = ranks->tensors, .count = ranks->tensor_count, .by_name = order};
    for (size_t i = 0; i < d->global_count; i++)
        for (size_t k = 0; k < d->globals[i].tensor->chunk_count; k++)
            HL_TRY(add_chunk(d, &d->globals[i], &d->globals[i].tensor->chunks[k], &index));
    if (d->piece_count > 1)
        qsort(d->pieces, d->piece_count, sizeof(*d->pieces), by_tensor);
    return HL_OK;
}

HL_CHECK static hl_status clip_pieces(struct dist *d)
{
    HL_AUTO(hl_freep) struct hl_clip_box *boxes = calloc(d->piece_count + 1, sizeof(*boxes));
    if (boxes == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu pieces", d->piece_count);
    for (size_t i = 0; i < d->piece_count; i++)
        boxes[i] = d->pieces[i].box;
    HL_TRY(hl_partition_clip(&d->s->whole.ranks, boxes, d->piece_count, &d->s->clip));
    HL_TRY(hl_megatron_hold(d->s, &d->s->clip));
    for (size_t i = 0; i < d->piece_count; i++) {
        d->s->bytes[i] = d->pieces[i].bytes;
        d->s->file_of[i] = d->pieces[i].file;
    }
    return HL_OK;
}

HL_CHECK static hl_status open_dist(struct dist *d, const char *dir)
{
    HL_TRY(read_common(d, dir));
    HL_TRY(read_metadata(d));
    HL_TRY(sort_out(d));
    hl_status st = plan_whole(d);
    if (st == HL_OK)
        st = collect_pieces(d);
    if (st == HL_OK)
        st = clip_pieces(d);
    if (st != HL_OK && strncmp(hl_error_text(), d->s->folder, strlen(d->s->folder)) != 0)
        return hl_fail_prefix(st, "%s: ", d->s->folder);
    return st;
}

hl_status hl_megatron_open_dist(const char *dir, struct hl_megatron_source *s)
{
    HL_AUTO(dist_fini) struct dist d = {.s = s};
    return open_dist(&d, dir);
}
