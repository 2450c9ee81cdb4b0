/* --ckpt-format torch: one file per rank. A rank's dense tensors are those of (pp, tp), its experts
 * those of (pp, ep, tp % etp). Several files may hold the same tensor; they are then compared. */
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/model/naming.h"
#include "core/model/part.h"
#include "core/torch/megatron.h"
#include "core/torch/megatron_model.h"
#include "core/torch/megatron_optimizer.h"
#include "mem/import/megatron_private.h"

#define RANK          "mp_rank_"
#define LAYER_WISE    "layer_wise_optimizer_"
#define EMBEDDING     "embedding.word_embeddings.weight"
#define STEP          "step"
#define MISSING_NAMED 8
#define ROUNDED_MAX   4096 /* elements of a parameter compared with its FP32 copy */

struct rank_file {
    struct hl_megatron_place place;
    uint32_t file;
    struct hl_safetensors header; /* names under the naming `local`; offsets in the file */
    unsigned char *used;          /* per tensor */
    struct hl_safetensors state;  /* optimizer state: "exp_avg.NAME" */
};

struct ranks {
    struct hl_megatron_source *s;
    struct hl_megatron_sizes sizes; /* the first file's; all others must have the same */
    struct hl_partition_options split;
    struct hl_hf_config config;
    struct hl_megatron_kinds kinds;
    struct rank_file *list;
    size_t count;
    bool layer_wise; /* a layer-wise distributed optimizer has state */
};

static void ranks_fini(struct ranks *r)
{
    for (size_t i = 0; i < r->count; i++) {
        hl_safetensors_fini(&r->list[i].header);
        hl_safetensors_fini(&r->list[i].state);
        free(r->list[i].used);
    }
    free(r->list);
    hl_hf_config_fini(&r->config);
}

static uint64_t etp_of(const struct ranks *r)
{
    return (uint64_t)(r->split.etp > 0 ? r->split.etp : r->split.tp);
}

/* ---- files ----------------------------------------------------------------------------------- */

HL_CHECK static hl_status note_rest(struct ranks *r, const struct hl_pickle_value *root)
{
    static const struct {
        const char *key, *what;
        bool optimizer; /* --optimizer was given */
    } rest[] = {{"optimizer", "the optimizer state; with --optimizer it is imported", true},
                {"opt_param_scheduler", "the learning-rate scheduler", true},
                {"rng_state", "the state of random numbers", false}};

    for (size_t i = 0; i < HL_ARRAY_LEN(rest); i++) {
        const struct hl_pickle_value *v = hl_pickle_find(root, rest[i].key);
        if (v != NULL && v->kind != HL_PICKLE_NONE && !(rest[i].optimizer && r->s->optimizer))
            HL_TRY(hl_megatron_leave_out(r->s, json_string(rest[i].what)));
    }
    return r->s->optimizer ? hl_megatron_describe_optimizer(r->s, root) : HL_OK;
}

/* The first file defines what all files must agree on. */
HL_CHECK static hl_status read_first(struct ranks *r, const char *dir,
                                     const struct hl_pickle_value *root)
{
    const struct hl_pickle_value *iteration = hl_pickle_find(root, "iteration");
    HL_TRY(hl_megatron_sizes_read(root, &r->sizes));
    HL_TRY(hl_megatron_split(root, &r->split));
    HL_TRY(hl_megatron_read_model(dir, r->s, root, &r->config));
    if (iteration != NULL && iteration->kind == HL_PICKLE_INT)
        r->s->iteration = iteration->integer;
    return note_rest(r, root);
}

/* A file of another save would silently make a model that never existed. */
HL_CHECK static hl_status check_alike(const struct ranks *r, const struct hl_pickle_value *root)
{
    struct hl_megatron_sizes s;
    const struct hl_pickle_value *iteration = hl_pickle_find(root, "iteration");
    HL_TRY(hl_megatron_sizes_read(root, &s));
    if (s.tp != r->sizes.tp || s.pp != r->sizes.pp || s.ep != r->sizes.ep ||
        s.layers != r->sizes.layers || s.hidden != r->sizes.hidden)
        return hl_fail(HL_EINVAL, "its args describe another model or split than those of %s",
                       r->s->files[r->list[0].file].path);
    if (iteration != NULL && iteration->kind == HL_PICKLE_INT &&
        iteration->integer != r->s->iteration)
        return hl_fail(HL_EINVAL, "it is of iteration %" PRId64 ", %s is of %" PRId64,
                       iteration->integer, r->s->files[r->list[0].file].path, r->s->iteration);
    return HL_OK;
}

/* Renaming assigns offsets end to end, in the same order; here the tensors keep their offsets in
 * the file. */
HL_CHECK static hl_status rename_to_local(struct hl_safetensors *header)
{
    HL_AUTO(hl_freep) uint64_t *offsets = calloc(header->count + 1, sizeof(*offsets));
    if (offsets == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu tensors", header->count);
    for (size_t i = 0; i < header->count; i++)
        offsets[i] = header->tensors[i].offset;
    HL_TRY(hl_naming_apply(header, HL_API_LAYER_NAMING_LOCAL));
    for (size_t i = 0; i < header->count; i++)
        header->tensors[i].offset = offsets[i];
    return HL_OK;
}

/* Adds the state in one rank's file, under the names of its parameters in the naming `local`. */
HL_CHECK static hl_status add_state(struct ranks *r, const struct hl_tensor *params,
                                    const struct hl_megatron_optimizer *o,
                                    struct hl_torch_tensors *out)
{
    char name[HL_TENSOR_NAME_MAX + 1], whole[HL_TENSOR_NAME_MAX + HL_MEGATRON_KIND_MAX + 2];
    for (size_t i = 0; i < o->count; i++) {
        const struct hl_megatron_state *s = &o->states[i];
        const char *kind;
        HL_TRY(hl_megatron_add_kind(&r->kinds, s->kind, strlen(s->kind), &kind));
        HL_TRY(hl_naming_rename(params[s->param].name, HL_API_LAYER_NAMING_LOCAL, false, name,
                                sizeof(name)));
        snprintf(whole, sizeof(whole), "%s.%s", kind, name);
        HL_TRY(hl_torch_tensors_add(out, s->tensor, &(struct hl_torch_walk){.prefix = whole}));
    }
    if (o->step != NULL)
        HL_TRY(hl_torch_tensors_add(out, o->step, &(struct hl_torch_walk){.prefix = STEP}));
    return hl_torch_tensors_finish(out);
}

/* torch's own Adam stores its step count in a tensor. */
HL_CHECK static hl_status note_step(const struct ranks *r, const struct rank_file *rank)
{
    float step;
    const struct hl_tensor *t = hl_safetensors_find(&rank->state, STEP);
    if (t == NULL || t->dtype != HL_DTYPE_F32 || t->size != sizeof(step))
        return HL_OK;
    memcpy(&step, r->s->files[rank->file].bytes + t->offset, sizeof(step));
    if (!(step >= 0) || step > 1e15F)
        return hl_fail(HL_EINVAL, "the optimizer has made %g steps", (double)step);
    json_t *own = json_object_get(r->s->meta, "megatron");
    return json_object_set_new(own, STEP, json_integer((json_int_t)step)) == 0
               ? HL_OK
               : hl_fail(HL_ENOMEM, "a description of the optimizer");
}

HL_CHECK static hl_status read_state(struct ranks *r, const struct hl_torch_file *file,
                                     const struct hl_torch_tensors *params, struct rank_file *rank)
{
    hl_status st;
    struct hl_megatron_optimizer o;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_torch_tensors_fini) struct hl_torch_tensors state = {0};
    struct hl_tensor *list = hl_arena_array(&arena, params->count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "a table of %zu tensors", params->count);
    for (size_t i = 0; i < params->count; i++)
        list[i] = params->list[i].tensor;
    HL_TRY(hl_megatron_optimizer_read(file->pickle.root, list, params->count, &arena, &o));
    st = add_state(r, list, &o, &state);
    if (st == HL_OK)
        st = hl_torch_file_header(file, &state, r->s->files[rank->file].size, &rank->state);
    if (st == HL_OK && rank == r->list)
        st = note_step(r, rank);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "optimizer state: ");
}

HL_CHECK static hl_status read_rank(struct ranks *r, const char *dir, const char *folder,
                                    struct rank_file *rank)
{
    const struct hl_mapped_file *f = &r->s->files[rank->file];
    HL_AUTO(hl_torch_file_fini) struct hl_torch_file file = {0};
    HL_AUTO(hl_torch_tensors_fini) struct hl_torch_tensors tensors = {0};
    HL_TRY(hl_megatron_open_torch(f, 0, f->size, &file));
    if (rank == r->list)
        HL_TRY(read_first(r, dir, file.pickle.root));
    else
        HL_TRY(check_alike(r, file.pickle.root));
    HL_TRY(hl_megatron_place(folder, &r->sizes, &rank->place));
    HL_TRY(hl_megatron_tensors(file.pickle.root, &tensors));
    HL_TRY(hl_torch_file_header(&file, &tensors, f->size, &rank->header));
    if (r->s->optimizer)
        HL_TRY(read_state(r, &file, &tensors, rank));
    HL_TRY(rename_to_local(&rank->header));
    rank->used = calloc(rank->header.count + 1, 1);
    return rank->used != NULL ? HL_OK : hl_fail(HL_ENOMEM, "a table of tensors");
}

HL_CHECK static hl_status add_rank(struct ranks *r, const char *dir, const char *folder)
{
    HL_AUTO(hl_freep) char *path = NULL;
    struct rank_file *rank = &r->list[r->count++];
    if (asprintf(&path, "%s/%s/" HL_MEGATRON_FILE, r->s->folder, folder) < 0)
        return hl_fail(HL_ENOMEM, "path of %s", folder);
    HL_TRY(hl_megatron_map(r->s, path, &rank->file));
    hl_status st = read_rank(r, dir, folder, rank);
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "%s: ", path);
}

static int is_rank(const struct dirent *d)
{
    return strncmp(d->d_name, RANK, strlen(RANK)) == 0;
}

static int is_layer_wise(const struct dirent *d)
{
    return strncmp(d->d_name, LAYER_WISE, strlen(LAYER_WISE)) == 0;
}

/* With the layer-wise distributed optimizer (dist_muon), data-parallel rank N writes the state of
 * the parameters that it owns, beside the rank's file or above the iterations. Such a file has
 * numbers instead of names, in the order of its owner's share. */
HL_CHECK static hl_status find_layer_wise(struct ranks *r, const char *folder)
{
    struct dirent **list;
    hl_status st = HL_OK;
    int n = scandir(folder, &list, is_layer_wise, alphasort);
    if (n < 0)
        return errno == ENOENT ? HL_OK : hl_fail(HL_EIO, "list %s: %m", folder);
    if (n > 0 && r->s->optimizer)
        st = hl_fail(HL_EUNSUPPORTED,
                     "%s/%s has the state of a layer-wise distributed optimizer: each "
                     "data-parallel rank holds the state of its own parameters, without their "
                     "names; import it without --optimizer",
                     folder, list[0]->d_name);
    r->layer_wise |= n > 0;
    for (int i = 0; i < n; i++)
        free(list[i]);
    free(list);
    return st;
}

HL_CHECK static hl_status find_layer_wise_of(struct ranks *r, const char *folder)
{
    HL_AUTO(hl_freep) char *path = NULL;
    if (asprintf(&path, "%s/%s", r->s->folder, folder) < 0)
        return hl_fail(HL_ENOMEM, "path of %s", folder);
    return find_layer_wise(r, path);
}

HL_CHECK static hl_status add_ranks(struct ranks *r, const char *dir)
{
    struct dirent **list;
    bool distributed = false;
    hl_status st = find_layer_wise(r, dir);
    int n = scandir(r->s->folder, &list, is_rank, alphasort);
    if (n < 0)
        return hl_fail(HL_EIO, "list %s: %m", r->s->folder);
    r->list = calloc((size_t)n + 1, sizeof(*r->list));
    if (r->list == NULL)
        st = hl_fail(HL_ENOMEM, "a table of %d ranks", n);
    for (int i = 0; i < n; i++) {
        HL_AUTO(hl_freep) char *optim = NULL;
        if (asprintf(&optim, "%s/%s/distrib_optim.pt", r->s->folder, list[i]->d_name) > 0)
            distributed = distributed || access(optim, F_OK) == 0;
        if (st == HL_OK)
            st = find_layer_wise_of(r, list[i]->d_name);
        if (st == HL_OK)
            st = add_rank(r, dir, list[i]->d_name);
        free(list[i]);
    }
    free(list);
    if (st == HL_OK && distributed) /* --optimizer was given, but there is no state to read */
        st = hl_megatron_leave_out(
            r->s, json_string("the state of the distributed optimizer (distrib_optim.pt)"));
    if (st == HL_OK && r->layer_wise)
        st = hl_megatron_leave_out(
            r->s,
            json_string("the state of the layer-wise distributed optimizer (" LAYER_WISE "*.pt)"));
    return st;
}

/* ---- who holds what -------------------------------------------------------------------------- */

static bool rank_holds(const struct ranks *r, const struct rank_file *rank,
                       const struct hl_partition_shard *shard)
{
    if (rank->place.pp != (uint64_t)shard->pp)
        return false;
    if (hl_part_has_experts(shard->part))
        return rank->place.ep == (uint64_t)shard->ep &&
               rank->place.tp % etp_of(r) == (uint64_t)shard->tp;
    return rank->place.tp == (uint64_t)shard->tp;
}

static bool has_rank(const struct ranks *r, int pp, int tp, int ep, const char *part)
{
    struct hl_partition_shard shard = {.pp = pp, .tp = tp, .ep = ep};
    snprintf(shard.part, sizeof(shard.part), "%s", part);
    for (size_t i = 0; i < r->count; i++)
        if (rank_holds(r, &r->list[i], &shard))
            return true;
    return false;
}

struct missing {
    char text[512];
    size_t at;
    size_t count;
};

static void note_missing(const struct ranks *r, struct missing *m, int pp, int tp, int ep)
{
    char folder[96];
    const struct hl_megatron_place place = {(uint64_t)tp, (uint64_t)pp, (uint64_t)ep};
    hl_megatron_rank_folder(&r->sizes, &place, folder, sizeof(folder));
    if (m->count++ >= MISSING_NAMED || strstr(m->text, folder) != NULL)
        return;
    m->at += (size_t)snprintf(m->text + m->at, sizeof(m->text) - m->at, "%s%s",
                              m->at > 0 ? ", " : "", folder);
}

/* Returns the tensor rank that has slice `slice` of the experts of `ep`. Ranks count tp first, then
 * dp. */
static int rank_of_experts(const struct ranks *r, int ep, int slice)
{
    int etp = (int)etp_of(r), group = r->split.tp / etp;
    return ep % group * etp + slice;
}

/* Checks that every (pp, tp) has a file, and every slice of every rank's experts too. */
HL_CHECK static hl_status check_complete(const struct ranks *r)
{
    struct missing m = {0};
    int etp = (int)etp_of(r), eps = r->split.ep > 0 ? r->split.ep : 1;
    for (int pp = 0; pp < r->split.pp; pp++) {
        for (int tp = 0; tp < r->split.tp; tp++)
            if (!has_rank(r, pp, tp, 0, "head"))
                note_missing(r, &m, pp, tp, tp / etp % eps);
        for (int ep = 0; ep < eps && r->sizes.experts > 0; ep++)
            for (int slice = 0; slice < etp; slice++)
                if (!has_rank(r, pp, slice, ep, "experts-0000"))
                    note_missing(r, &m, pp, rank_of_experts(r, ep, slice), ep);
    }
    if (m.count == 0)
        return HL_OK;
    return hl_fail(
        HL_ENOENT,
        "%s lacks %s%s: the checkpoint is of TP %d, PP %d, EP %d; copy the folders of all "
        "ranks into it",
        r->s->folder, m.text, m.count > MISSING_NAMED ? " and more" : "", r->split.tp, r->split.pp,
        eps);
}

HL_CHECK static hl_status fail_missing(const struct ranks *r, const struct rank_file *rank,
                                       const char *name)
{
    const char *path = r->s->files[rank->file].path;
    for (size_t i = 0; i < rank->header.count; i++)
        if (strstr(rank->header.tensors[i].name, ".mlp.experts.weight1") != NULL)
            return hl_fail(HL_EUNSUPPORTED,
                           "%s: '%s' is a weight of the grouped GEMM without Transformer Engine, "
                           "which is not read; save the checkpoint as torch_dist",
                           path, rank->header.tensors[i].name);
    return hl_fail(HL_ENOENT,
                   "%s lacks tensor '%s', which a model of these args has; check that config.json "
                   "and args belong to this checkpoint",
                   path, name);
}

static hl_status find_tensor(void *arg, const struct hl_partition_shard *shard, const char *name,
                             const struct hl_tensor **out)
{
    const struct ranks *r = arg;
    for (size_t i = 0; i < r->count; i++) {
        if (!rank_holds(r, &r->list[i], shard))
            continue;
        *out = hl_safetensors_find(&r->list[i].header, name);
        return *out != NULL ? HL_OK : fail_missing(r, &r->list[i], name);
    }
    return hl_fail(HL_ENOENT, "%s has no file for pp %d, tp %d, ep %d", r->s->folder, shard->pp,
                   shard->tp, shard->ep);
}

/* Places a tensor of the plan in every file that holds it. */
HL_CHECK static hl_status place_tensor(struct ranks *r, struct hl_megatron_held *h,
                                       const struct hl_partition_shard *shard, uint32_t tensor)
{
    struct hl_megatron_source *s = r->s;
    bool state = h == &s->optim;
    const struct hl_tensor *t = &h->plan->tensors[tensor];
    for (size_t i = 0; i < r->count; i++) {
        struct rank_file *rank = &r->list[i];
        if (!rank_holds(r, rank, shard))
            continue;
        const struct hl_tensor *found =
            hl_safetensors_find(state ? &rank->state : &rank->header, t->name);
        if (found == NULL)
            return fail_missing(r, rank, t->name);
        if (found->dtype != t->dtype || found->rank != t->rank ||
            memcmp(found->shape, t->shape, t->rank * sizeof(*t->shape)) != 0)
            return hl_fail(HL_EINVAL, "%s: tensor '%s' has another type or shape than in %s",
                           s->files[rank->file].path, t->name, s->files[h->file_of[tensor]].path);
        if (!state)
            rank->used[found - rank->header.tensors] = 1;
        const uint8_t *bytes = s->files[rank->file].bytes + found->offset;
        if (h->bytes[tensor] != NULL) {
            HL_TRY(hl_megatron_add_copy(h, &(struct hl_megatron_copy){tensor, rank->file, bytes}));
            continue;
        }
        h->bytes[tensor] = bytes;
        h->file_of[tensor] = rank->file;
    }
    return HL_OK;
}

/* Finds the held embedding of that tensor rank; SIZE_MAX if there is none. */
static size_t find_embedding(const struct hl_megatron_source *s, uint64_t tp)
{
    for (size_t i = 0; i < s->params.plan->shard_count; i++) {
        const struct hl_partition_shard *shard = &s->params.plan->shards[i];
        if (strcmp(shard->part, "embedding") != 0 || (uint64_t)shard->tp != tp)
            continue;
        for (uint32_t k = 0; k < shard->tensor_count; k++)
            if (strstr(s->params.plan->tensors[shard->tensor_first + k].name, EMBEDDING) != NULL)
                return shard->tensor_first + k;
    }
    return SIZE_MAX;
}

/* For the layers that predict more tokens the last stage has its own embedding: a copy of the first
 * stage's. */
HL_CHECK static hl_status take_embedding(struct ranks *r, const struct rank_file *rank,
                                         const struct hl_tensor *t, bool *taken)
{
    struct hl_megatron_source *s = r->s;
    size_t n = strlen(t->name), len = strlen(EMBEDDING);
    size_t tensor = find_embedding(s, rank->place.tp);
    *taken = rank->place.pp > 0 && n >= len && strcmp(t->name + n - len, EMBEDDING) == 0 &&
             tensor != SIZE_MAX && s->params.plan->tensors[tensor].size == t->size;
    if (!*taken)
        return HL_OK;
    const uint8_t *bytes = s->files[rank->file].bytes + t->offset;
    return hl_megatron_add_copy(&s->params,
                                &(struct hl_megatron_copy){(uint32_t)tensor, rank->file, bytes});
}

/* Checks that every tensor of a file has a place. */
HL_CHECK static hl_status check_rest(struct ranks *r, const struct rank_file *rank)
{
    for (size_t k = 0; k < rank->header.count; k++) {
        const struct hl_tensor *t = &rank->header.tensors[k];
        bool taken = rank->used[k] != 0 || hl_megatron_is_buffer(t->name);
        if (!taken)
            HL_TRY(take_embedding(r, rank, t, &taken));
        if (!taken)
            return hl_fail(HL_EINVAL,
                           "%s: tensor '%s' has no place in a %s model; if the model is another "
                           "one, put its config.json beside " HL_MEGATRON_TRACKER,
                           r->s->files[rank->file].path, t->name, r->s->whole.config.architecture);
    }
    return HL_OK;
}

HL_CHECK static hl_status place_tensors(struct ranks *r, struct hl_megatron_held *h,
                                        const struct hl_partition_plan *plan)
{
    HL_TRY(hl_megatron_hold(h, plan));
    for (size_t i = 0; i < plan->shard_count; i++) {
        const struct hl_partition_shard *shard = &plan->shards[i];
        for (uint32_t k = 0; k < shard->tensor_count; k++)
            HL_TRY(place_tensor(r, h, shard, shard->tensor_first + k));
    }
    return HL_OK;
}

static hl_status find_state(void *arg, const struct hl_partition_shard *shard, const char *kind,
                            const struct hl_tensor *param, const struct hl_tensor **out)
{
    const struct ranks *r = arg;
    char name[HL_TENSOR_NAME_MAX + HL_MEGATRON_KIND_MAX + 2];
    snprintf(name, sizeof(name), "%s.%s", kind, param->name);
    for (size_t i = 0; i < r->count && *out == NULL; i++)
        if (rank_holds(r, &r->list[i], shard))
            *out = hl_safetensors_find(&r->list[i].state, name);
    return HL_OK;
}

/* Rounds an FP32 value to BF16. */
static uint16_t round_to_bf16(const uint8_t *f32)
{
    uint32_t bits;
    memcpy(&bits, f32, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* Compares the first elements of an FP32 copy with those of the parameter; NaNs are ignored. */
static bool rounds_to(const uint8_t *f32, const uint8_t *bf16, uint64_t count)
{
    for (uint64_t i = 0; i < count && i < ROUNDED_MAX; i++) {
        uint16_t has;
        memcpy(&has, bf16 + 2 * i, sizeof(has));
        if ((has & 0x7fff) <= 0x7f80 && round_to_bf16(f32 + 4 * i) != has)
            return false;
    }
    return true;
}

/* State has numbers instead of names; its FP32 copy shows whether it was assigned to the right
 * parameter. */
HL_CHECK static hl_status check_main(const struct ranks *r, const struct hl_partition_shard *shard,
                                     uint32_t tensor)
{
    static const char prefix[] = "param.";
    const struct hl_megatron_held *h = &r->s->optim;
    const struct hl_tensor *main = &h->plan->tensors[tensor];
    if (strncmp(main->name, prefix, strlen(prefix)) != 0 || main->dtype != HL_DTYPE_F32)
        return HL_OK;
    const char *name = main->name + strlen(prefix);
    for (size_t i = 0; i < r->count; i++) {
        const struct rank_file *rank = &r->list[i];
        if (rank->file != h->file_of[tensor] || !rank_holds(r, rank, shard))
            continue;
        const struct hl_tensor *param = hl_safetensors_find(&rank->header, name);
        if (param != NULL && param->dtype == HL_DTYPE_BF16 &&
            !rounds_to(h->bytes[tensor], r->s->files[rank->file].bytes + param->offset,
                       param->size / 2))
            return hl_fail(HL_EINVAL,
                           "%s: the FP32 copy of '%s' is that of another parameter: the "
                           "optimizer's order is not Megatron's; save as torch_dist, or import it "
                           "without --optimizer",
                           r->s->files[rank->file].path, name);
    }
    return HL_OK;
}

HL_CHECK static hl_status place_state(struct ranks *r)
{
    struct hl_megatron_source *s = r->s;
    HL_TRY(hl_megatron_plan_state(s, &r->kinds, find_state, r));
    HL_TRY(place_tensors(r, &s->optim, &s->state.a));
    for (size_t i = 0; i < s->state.a.shard_count; i++) {
        const struct hl_partition_shard *shard = &s->state.a.shards[i];
        for (uint32_t k = 0; k < shard->tensor_count; k++)
            HL_TRY(check_main(r, shard, shard->tensor_first + k));
    }
    return HL_OK;
}

HL_CHECK static hl_status place_all(struct ranks *r)
{
    struct hl_megatron_source *s = r->s;
    HL_TRY(place_tensors(r, &s->params, &s->whole.ranks));
    if (s->optimizer)
        HL_TRY(place_state(r));
    for (size_t i = 0; i < r->count; i++)
        HL_TRY(check_rest(r, &r->list[i]));
    return HL_OK;
}

/* Finds out how the embedding's rows were padded. */
HL_CHECK static hl_status read_padding(struct ranks *r)
{
    const struct hl_tensor *t = NULL;
    const struct hl_partition_shard first = {.part = "embedding"};
    for (size_t i = 0; i < r->count && t == NULL; i++)
        if (rank_holds(r, &r->list[i], &first)) {
            t = hl_safetensors_find(&r->list[i].header, EMBEDDING);
            if (t == NULL)
                t = hl_safetensors_find(&r->list[i].header, "model0." EMBEDDING);
            if (t == NULL)
                return fail_missing(r, &r->list[i], EMBEDDING);
        }
    if (t == NULL || t->rank != 2 || t->shape[0] > UINT32_MAX)
        return hl_fail(HL_EINVAL, "%s: '" EMBEDDING "' must have two dimensions", r->s->folder);
    r->split.pad = r->s->pad;
    r->split.naming = HL_API_LAYER_NAMING_LOCAL;
    return hl_megatron_divisor(r->config.vocab, t->shape[0] * (uint64_t)r->split.tp,
                               (uint64_t)r->split.tp, &r->split.vocab_divisor);
}

HL_CHECK static hl_status open_ranks(struct ranks *r, const char *dir)
{
    HL_TRY(add_ranks(r, dir));
    if (r->count == 0)
        return hl_fail(HL_ENOENT, "%s has no mp_rank_* folder", r->s->folder);
    HL_TRY(check_complete(r));
    HL_TRY(read_padding(r));
    hl_status st = hl_megatron_plan(r->s, &r->config, &r->split, find_tensor, r);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s: ", r->s->folder);
    return place_all(r);
}

hl_status hl_megatron_open_ranks(const char *dir, struct hl_megatron_source *s)
{
    HL_AUTO(ranks_fini) struct ranks r = {.s = s};
    return open_ranks(&r, dir);
}
