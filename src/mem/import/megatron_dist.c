/* --ckpt-format torch_dist: global tensors in pieces. Layers that are alike form one tensor with an
 * axis for the layer, experts one with an axis for the expert; each piece becomes a tensor of the
 * held plan.
 *
 * Optimizer state has the name of its parameter after "optimizer.state.exp_avg." and the same
 * shape. Before Megatron-core 0.16 it is flat: a [2, 8] parameter cut in 2 along its columns is a
 * tensor [1, 2, 8], in which each of the two blocks is a vector that the data ranks share. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/naming.h"
#include "core/model/partition_clip.h"
#include "core/torch/dcp.h"
#include "core/torch/megatron.h"
#include "core/torch/megatron_model.h"
#include "mem/import/megatron_private.h"

#define COMMON        "common.pt"
#define EMBEDDING     "embedding.word_embeddings.weight"
#define LAYERS        "decoder.layers."
#define EXPERTS       "mlp.experts.experts."
#define LOCAL_EXPERTS "mlp.experts.local_experts."
#define STATE         "optimizer.state."
#define BUFFERS       "optimizer.distributed."
#define CHAINED       "chained_"
#define RANDOM        "rng_state"

/* A piece of one logical Megatron tensor. */
struct piece {
    struct hl_clip_box box;
    uint32_t file;
    const uint8_t *bytes;
};

/* A global tensor, described by its axes. */
struct global {
    const struct hl_torch_dcp_tensor *tensor;
    const char *kind; /* kind of optimizer state, "" = a parameter */
    const char *name; /* the parameter's name in the checkpoint */
    bool flat;
    uint32_t rank; /* the parameter's */
    uint64_t shape[HL_TENSOR_RANK_MAX];
    uint32_t axes; /* axes before the matrix: layer, expert */
    bool layers, experts;
    int half;  /* rows of linear_fc1: 1 = gate, 2 = up; 0 = all */
    char *key; /* local name, of layer 0 and expert 0 where those are axes */
};

struct dist {
    struct hl_megatron_source *s;
    struct hl_partition_options split;
    struct hl_hf_config config;
    struct hl_torch_dcp dcp;
    struct global *globals; /* sorted by kind and key */
    size_t global_count;
    struct hl_megatron_kinds kinds;
    struct piece *pieces; /* those of the parameters, then of their state */
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

/* "decoder.layers.mlp.linear_fc2.weight" has a layer axis; with a number in it, none. */
static bool has_layer_axis(const char *name)
{
    size_t n;
    return strncmp(name, LAYERS, strlen(LAYERS)) == 0 && !is_number(name + strlen(LAYERS), &n);
}

/* "mlp.experts.experts.linear_fc1.weight" has an axis for the expert. */
static bool has_expert_axis(const char *name)
{
    size_t n;
    const char *at = strstr(name, EXPERTS);
    return at != NULL && !is_number(at + strlen(EXPERTS), &n);
}

/* In checkpoints whose tensors are each of one layer and expert, "linear_fc1.weight_w" holds the
 * gate's rows and "linear_fc1.weight_v" those of the up projection. */
static int half_of(const char *name)
{
    size_t n = strlen(name);
    if (strstr(name, "linear_fc1.") == NULL || name[n - 2] != '_')
        return 0;
    return name[n - 1] == 'w' ? 1 : name[n - 1] == 'v' ? 2 : 0;
}

/* The name of one layer and expert under the naming `local`. */
HL_CHECK static hl_status local_name(const struct global *g, uint64_t layer, uint64_t expert,
                                     char *out, size_t cap)
{
    char whole[HL_TENSOR_NAME_MAX + 1], name[HL_TENSOR_NAME_MAX + 1];
    const char *from = g->name;
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

/* Returns what follows "optimizer.state.", or NULL for other names. Megatron with several
 * optimizers added the prefix "chained_1.". */
static const char *after_state(const char *name)
{
    size_t n;
    if (strncmp(name, CHAINED, strlen(CHAINED)) == 0 && is_number(name + strlen(CHAINED), &n))
        name += strlen(CHAINED) + n + 1;
    return strncmp(name, STATE, strlen(STATE)) == 0 ? name + strlen(STATE) : NULL;
}

static bool is_of_model_or_state(const char *name)
{
    return is_of_model(name) || (after_state(name) != NULL && !hl_megatron_is_buffer(name));
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
    HL_TRY(hl_megatron_check_file(d->s, COMMON, 1));
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
    if (d->s->optimizer)
        return hl_megatron_describe_optimizer(d->s, common.pickle.root);
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
        st = hl_torch_dcp_read(pickle.root, d->s->optimizer ? is_of_model_or_state : is_of_model,
                               &d->dcp);
        hl_pickle_fini(&pickle);
    }
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s: ", f->path);
    for (size_t i = 0; i < d->dcp.file_count; i++)
        HL_TRY(hl_megatron_check_file(d->s, d->dcp.files[i].name, d->dcp.files[i].size));
    return HL_OK;
}

static int by_key(const void *a, const void *b)
{
    const struct global *x = a, *y = b;
    int order = strcmp(x->kind, y->kind);
    return order != 0 ? order : strcmp(x->key, y->key);
}

/* Appends a global tensor to the table, with what its name says of it. */
HL_CHECK static hl_status add_global(struct dist *d, const struct hl_torch_dcp_tensor *tensor,
                                     const char *kind, const char *name, struct global **out)
{
    char key[HL_TENSOR_NAME_MAX + 1];
    struct global *g = &d->globals[d->global_count];
    *g = (struct global){.tensor = tensor,
                         .kind = kind,
                         .name = name,
                         .rank = tensor->tensor.rank,
                         .layers = has_layer_axis(name),
                         .experts = has_expert_axis(name),
                         .half = half_of(name)};
    memcpy(g->shape, tensor->tensor.shape, sizeof(g->shape));
    g->axes = (uint32_t)g->layers + (uint32_t)g->experts;
    HL_TRY(local_name(g, 0, 0, key, sizeof(key)));
    g->key = strdup(key);
    if (g->key == NULL)
        return hl_fail(HL_ENOMEM, "the name of a tensor");
    d->global_count++;
    *out = g;
    return HL_OK;
}

HL_CHECK static hl_status note_random(struct dist *d)
{
    for (size_t i = 0; i < d->dcp.bytes_count; i++)
        if (strncmp(d->dcp.bytes[i].name, RANDOM, strlen(RANDOM)) == 0)
            return hl_megatron_leave_out(d->s, json_string("the state of random numbers"));
    return HL_OK;
}

HL_CHECK static hl_status sort_out_model(struct dist *d)
{
    uint64_t state = 0, state_bytes = 0;
    struct global *g;
    for (size_t i = 0; i < d->dcp.count; i++) {
        const struct hl_tensor *t = &d->dcp.tensors[i].tensor;
        if (is_state(t->name)) {
            state++;
            state_bytes += t->size;
            continue;
        }
        if (hl_megatron_is_buffer(t->name))
            continue;
        HL_TRY(add_global(d, &d->dcp.tensors[i], "", t->name, &g));
        if (g->rank <= g->axes || g->rank > g->axes + 2)
            return hl_fail(HL_EINVAL, "tensor '%s' of %s has %u dimensions", t->name, d->s->folder,
                           g->rank);
    }
    qsort(d->globals, d->global_count, sizeof(*d->globals), by_key);
    HL_TRY(note_random(d));
    if (state == 0 || d->s->optimizer)
        return HL_OK;
    return hl_megatron_leave_out(d->s,
                                 json_sprintf("the optimizer state (%" PRIu64 " tensors, %" PRIu64
                                              " bytes); with --optimizer it is imported",
                                              state, state_bytes));
}

/* ---- optimizer state ------------------------------------------------------------------------- */

/* In a flat tensor, each dimension of the parameter is cut into as many parts as the tensor's
 * dimension says, and the last dimension is the elements of one such block. */
static bool is_flat(const struct hl_tensor *t, const struct global *param)
{
    uint64_t block = 1;
    if (t->rank != param->rank + 1)
        return false;
    for (uint32_t i = 0; i < param->rank; i++) {
        if (t->shape[i] == 0 || param->shape[i] % t->shape[i] != 0)
            return false;
        block *= param->shape[i] / t->shape[i];
        if (i < param->axes && t->shape[i] != param->shape[i])
            return false;
    }
    return t->shape[param->rank] == block;
}

/* Checks that the tensor is the state of that parameter. */
HL_CHECK static hl_status fit_state(struct global *g, const struct global *param)
{
    char has[192], want[192];
    const struct hl_tensor *t = &g->tensor->tensor;
    struct hl_tensor of = {.rank = param->rank};
    memcpy(of.shape, param->shape, sizeof(of.shape));
    g->flat = is_flat(t, param);
    if (!g->flat && (t->rank != of.rank || memcmp(t->shape, of.shape, of.rank * sizeof(*of.shape))))
        return hl_fail(HL_EINVAL, "optimizer state '%s' has shape %s, its parameter %s", t->name,
                       hl_tensor_shape_text(t, has, sizeof(has)),
                       hl_tensor_shape_text(&of, want, sizeof(want)));
    g->rank = of.rank;
    memcpy(g->shape, of.shape, sizeof(g->shape));
    return HL_OK;
}

HL_CHECK static hl_status add_state(struct dist *d, const struct hl_torch_dcp_tensor *tensor,
                                    size_t params)
{
    const char *kind, *name = after_state(tensor->tensor.name);
    const char *dot = name != NULL ? strchr(name, '.') : NULL;
    struct global *g;
    if (dot == NULL || hl_megatron_is_buffer(name))
        return HL_OK;
    HL_TRY(hl_megatron_add_kind(&d->kinds, name, (size_t)(dot - name), &kind));
    HL_TRY(add_global(d, tensor, kind, dot + 1, &g));
    const struct global want = {.kind = "", .key = g->key};
    const struct global *param =
        params > 0 ? bsearch(&want, d->globals, params, sizeof(want), by_key) : NULL;
    if (param == NULL || param->layers != g->layers || param->experts != g->experts)
        return hl_fail(HL_EINVAL, "optimizer state '%s' is of a parameter that is not in .metadata",
                       tensor->tensor.name);
    return fit_state(g, param);
}

/* Megatron's memory layout of an optimizer can only be split by the ranks that wrote it. */
HL_CHECK static hl_status check_buffers(const struct dist *d)
{
    const char *found = NULL;
    for (size_t i = 0; i < d->dcp.count && found == NULL; i++)
        if (strstr(d->dcp.tensors[i].tensor.name, BUFFERS) != NULL)
            found = d->dcp.tensors[i].tensor.name;
    for (size_t i = 0; i < d->dcp.bytes_count && found == NULL; i++)
        if (strstr(d->dcp.bytes[i].name, BUFFERS) != NULL)
            found = d->dcp.bytes[i].name;
    if (found == NULL)
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED,
                   "'%.120s': the optimizer was saved as the buffers of Megatron's ranks "
                   "(dp_reshardable, fully_sharded_bucket_space or dp_zero_gather_scatter), which "
                   "say nothing of parameters: save with --dist-ckpt-optim-fully-reshardable "
                   "(Megatron-core before 0.14: --ckpt-fully-parallel-save), or import it without "
                   "--optimizer",
                   found);
}

HL_CHECK static hl_status sort_out(struct dist *d)
{
    d->globals = calloc(d->dcp.count + 1, sizeof(*d->globals));
    if (d->globals == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu tensors", d->dcp.count);
    HL_TRY(sort_out_model(d));
    if (!d->s->optimizer)
        return HL_OK;
    HL_TRY(check_buffers(d));
    size_t params = d->global_count;
    for (size_t i = 0; i < d->dcp.count; i++)
        HL_TRY(add_state(d, &d->dcp.tensors[i], params));
    qsort(d->globals, d->global_count, sizeof(*d->globals), by_key);
    for (size_t i = 1; i < d->global_count; i++)
        if (by_key(&d->globals[i - 1], &d->globals[i]) == 0 &&
            d->globals[i].half == d->globals[i - 1].half)
            return hl_fail(HL_EINVAL, "'%s' and '%s' are the same",
                           d->globals[i - 1].tensor->tensor.name,
                           d->globals[i].tensor->tensor.name);
    return HL_OK;
}

/* ---- whole tensors --------------------------------------------------------------------------- */

/* Copies the name with a 0 in place of the number at `at`, a pointer into it. */
static size_t zero_number(const char *name, const char *at, char *out, size_t cap)
{
    const char *rest = at + strspn(at, "0123456789");
    int n = snprintf(out, cap, "%.*s0%s", (int)(at - name), name, rest);
    return n >= 0 && (size_t)n < cap ? (size_t)n : 0;
}

/* Finds the global tensor that contains the tensor with this local name: either the same one, or
 * one with an axis in place of a number. NULL if there is none. */
static const struct global *find_global(const struct dist *d, const char *kind, const char *name)
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
        const struct global want = {.kind = kind, .key = (char *)(uintptr_t)key};
        const struct global *g = d->global_count == 0 ? NULL
                                                      : bsearch(&want, d->globals, d->global_count,
                                                                sizeof(want), by_key);
        if (g == NULL || g->layers != layers || g->experts != experts)
            continue;
        if ((!layers || layer < g->shape[0]) && (!experts || expert < g->shape[g->axes - 1]))
            return g;
    }
    return NULL;
}

struct finder {
    const struct dist *d;
    struct hl_tensor tensor; /* the last one found */
};

static hl_status find_tensor(void *arg, const struct hl_partition_shard *shard, const char *name,
                             const struct hl_tensor **out)
{
    struct finder *f = arg;
    const struct global *g = find_global(f->d, "", name);
    (void)shard;
    if (g == NULL)
        return hl_fail(HL_ENOENT,
                       "tensor '%s', which a model of these args has, is not in .metadata; check "
                       "that config.json and args belong to this checkpoint",
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
        return hl_fail(HL_EINVAL, "'" EMBEDDING "' must have two dimensions");
    HL_TRY(hl_megatron_divisor(d->config.vocab, t->shape[0], 1, &d->split.vocab_divisor));
    return hl_megatron_plan(d->s, &d->config, &d->split, find_tensor, &f);
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

/* Opens the torch.save file of a chunk and finds where its elements are. */
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
        return hl_fail(HL_EINVAL, "the data there is not the chunk that .metadata describes");
    out->bytes = f->bytes + c->offset + has->offset;
    return HL_OK;
}

/* Finds the tensor of the held plan for one layer and expert of a global tensor. */
HL_CHECK static hl_status find_held(const struct dist *d, const struct hl_safetensors *index,
                                    const struct global *g, uint64_t layer, uint64_t expert,
                                    uint32_t *out)
{
    char name[HL_TENSOR_NAME_MAX + 1], whole[HL_TENSOR_NAME_MAX + HL_MEGATRON_KIND_MAX + 2];
    HL_TRY(local_name(g, layer, expert, name, sizeof(name)));
    snprintf(whole, sizeof(whole), "%s%s%s", g->kind, g->kind[0] != '\0' ? "." : "", name);
    const struct hl_tensor *t = hl_safetensors_find(index, whole);
    if (t == NULL)
        return hl_fail(
            HL_EINVAL,
            "tensor '%s' has no place in a %s model; if the model is another one, put its "
            "config.json beside " HL_MEGATRON_TRACKER,
            whole, d->s->whole.config.architecture);
    *out = (uint32_t)(t - index->tensors);
    return HL_OK;
}

/* Adds one piece for each layer and expert of the chunk. */
HL_CHECK static hl_status split_chunk(struct dist *d, const struct global *g,
                                      const struct hl_torch_dcp_chunk *c, const struct piece *at,
                                      const struct hl_safetensors *index)
{
    uint32_t a = g->axes;
    bool matrix = g->rank > a + 1;
    uint64_t layers = g->layers ? c->shape[0] : 1, experts = g->experts ? c->shape[a - 1] : 1;
    uint64_t rows = c->shape[a], cols = matrix ? c->shape[a + 1] : 1;
    uint64_t row = c->begin[a] + (g->half == 2 ? g->shape[a] : 0);
    uint64_t size = rows * cols * hl_dtype_size(g->tensor->tensor.dtype);
    for (uint64_t i = 0; i < layers * experts; i++) {
        struct piece p = *at;
        uint64_t layer = g->layers ? c->begin[0] + i / experts : 0;
        uint64_t expert = g->experts ? c->begin[a - 1] + i % experts : 0;
        p.box = (struct hl_clip_box){
            .row = row, .rows = rows, .col = matrix ? c->begin[a + 1] : 0, .cols = cols};
        HL_TRY(find_held(d, index, g, layer, expert, &p.box.tensor));
        p.bytes = at->bytes + i * size;
        HL_TRY(add_piece(d, &p));
    }
    return HL_OK;
}

/* Adds the elements [from, to) of a block with `cols` columns that starts at `p`, as up to three
 * pieces: the end of a row, whole rows, the beginning of a row. */
HL_CHECK static hl_status split_range(struct dist *d, struct piece p, uint64_t cols, uint64_t from,
                                      uint64_t to, uint32_t elem)
{
    const struct hl_clip_box block = p.box;
    while (from < to) {
        uint64_t left = cols - from % cols, rows = 1;
        left = left < to - from ? left : to - from;
        if (left == cols)
            rows = (to - from) / cols;
        p.box.row = block.row + from / cols;
        p.box.rows = rows;
        p.box.col = block.col + from % cols;
        p.box.cols = left;
        HL_TRY(add_piece(d, &p));
        p.bytes += rows * left * elem;
        from += rows * left;
    }
    return HL_OK;
}

/* A chunk of a flat tensor is a range of one block. */
HL_CHECK static hl_status split_flat(struct dist *d, const struct global *g,
                                     const struct hl_torch_dcp_chunk *c, const struct piece *at,
                                     const struct hl_safetensors *index)
{
    const struct hl_tensor *t = &g->tensor->tensor;
    uint32_t a = g->axes;
    bool matrix = g->rank > a + 1;
    uint64_t rows = g->shape[a] / t->shape[a];
    uint64_t cols = matrix ? g->shape[a + 1] / t->shape[a + 1] : 1;
    struct piece p = *at;
    for (uint32_t i = 0; i < g->rank; i++)
        if (c->shape[i] != 1)
            return hl_fail(HL_EUNSUPPORTED, "it spans several blocks of a flat tensor");
    HL_TRY(find_held(d, index, g, g->layers ? c->begin[0] : 0, g->experts ? c->begin[a - 1] : 0,
                     &p.box.tensor));
    p.box.row = c->begin[a] * rows + (g->half == 2 ? g->shape[a] : 0);
    p.box.col = matrix ? c->begin[a + 1] * cols : 0;
    return split_range(d, p, cols, c->begin[g->rank], c->begin[g->rank] + c->shape[g->rank],
                       hl_dtype_size(t->dtype));
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
    return (g->flat ? split_flat : split_chunk)(d, g, c, &at, index);
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

/* Collects the pieces of the plan's tensors: those of the parameters, or those of their state. */
HL_CHECK static hl_status collect_pieces(struct dist *d, const struct hl_partition_plan *plan,
                                         bool state)
{
    HL_AUTO(hl_freep) uint32_t *order = calloc(plan->tensor_count + 1, sizeof(*order));
    if (order == NULL)
        return hl_fail(HL_ENOMEM, "an index of %zu tensors", plan->tensor_count);
    for (uint32_t i = 0; i < plan->tensor_count; i++)
        order[i] = i;
    qsort_r(order, plan->tensor_count, sizeof(*order), by_name, plan->tensors);
    const struct hl_safetensors index = {
        .tensors = plan->tensors, .count = plan->tensor_count, .by_name = order};
    d->piece_count = 0;
    for (size_t i = 0; i < d->global_count; i++)
        for (size_t k = 0;
             (d->globals[i].kind[0] != '\0') == state && k < d->globals[i].tensor->chunk_count; k++)
            HL_TRY(add_chunk(d, &d->globals[i], &d->globals[i].tensor->chunks[k], &index));
    if (d->piece_count > 1)
        qsort(d->pieces, d->piece_count, sizeof(*d->pieces), by_tensor);
    return HL_OK;
}

HL_CHECK static hl_status hold_pieces(struct dist *d, const struct hl_partition_plan *plan,
                                      bool state)
{
    HL_TRY(collect_pieces(d, plan, state));
    HL_AUTO(hl_freep) struct hl_clip_box *boxes = calloc(d->piece_count + 1, sizeof(*boxes));
    if (boxes == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu pieces", d->piece_count);
    for (size_t i = 0; i < d->piece_count; i++)
        boxes[i] = d->pieces[i].box;
    struct hl_megatron_held *h = state ? &d->s->optim : &d->s->params;
    HL_TRY(hl_partition_clip(plan, boxes, d->piece_count, &h->clip));
    HL_TRY(hl_megatron_hold(h, &h->clip));
    for (size_t i = 0; i < d->piece_count; i++) {
        h->bytes[i] = d->pieces[i].bytes;
        h->file_of[i] = d->pieces[i].file;
    }
    return HL_OK;
}

static hl_status find_state(void *arg, const struct hl_partition_shard *shard, const char *kind,
                            const struct hl_tensor *param, const struct hl_tensor **out)
{
    struct finder *f = arg;
    const struct global *g = find_global(f->d, kind, param->name);
    (void)shard;
    if (g == NULL)
        return HL_OK;
    f->tensor = *param;
    f->tensor.dtype = g->tensor->tensor.dtype;
    *out = &f->tensor;
    return HL_OK;
}

HL_CHECK static hl_status hold_state(struct dist *d)
{
    struct finder f = {.d = d};
    if (!d->s->optimizer)
        return HL_OK;
    HL_TRY(hl_megatron_plan_state(d->s, &d->kinds, find_state, &f));
    return hold_pieces(d, &d->s->state.a, true);
}

HL_CHECK static hl_status open_dist(struct dist *d, const char *dir)
{
    HL_TRY(read_common(d, dir));
    HL_TRY(read_metadata(d));
    HL_TRY(sort_out(d));
    hl_status st = plan_whole(d);
    if (st == HL_OK)
        st = hold_pieces(d, &d->s->whole.ranks, false);
    if (st == HL_OK)
        st = hold_state(d);
    if (st != HL_OK && strncmp(hl_error_text(), d->s->folder, strlen(d->s->folder)) != 0)
        return hl_fail_prefix(st, "%s: ", d->s->folder);
    return st;
}

hl_status hl_megatron_open_dist(const char *dir, struct hl_megatron_source *s)
{
    HL_AUTO(dist_fini) struct dist d = {.s = s};
    return open_dist(&d, dir);
}
