/* Reads the parts of a Megatron checkpoint that its layout depends on: the tracker file, sizes in
 * args, folder names of ranks, and the tensors of all chunks of a virtual pipeline. */
#include "core/torch/megatron.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

#define SIZE_LIMIT ((uint64_t)1 << 20)
#define CHUNKS_MAX 1024
#define RANK       "mp_rank_"
#define MTP        "mtp.layers."

hl_status hl_megatron_folder(const char *tracker, size_t len, char *buf, size_t cap)
{
    char text[32];
    uint64_t iteration;
    while (len > 0 &&
           (tracker[len - 1] == '\n' || tracker[len - 1] == '\r' || tracker[len - 1] == ' '))
        len--;
    snprintf(text, sizeof(text), "%.*s", (int)(len < sizeof(text) ? len : sizeof(text)), tracker);
    if (len < sizeof(text) && strcmp(text, "release") == 0)
        snprintf(buf, cap, "release");
    else if (len < sizeof(text) && hl_parse_number(text, INT64_MAX, &iteration))
        snprintf(buf, cap, "iter_%07" PRIu64, iteration);
    else
        return hl_fail(HL_EINVAL, "'%s' is neither the number of an iteration nor 'release'", text);
    return HL_OK;
}

/* ---- args ------------------------------------------------------------------------------------ */

hl_status hl_megatron_args(const struct hl_pickle_value *root, const struct hl_pickle_value **out)
{
    char what[256];
    const struct hl_pickle_value *args = hl_pickle_find(root, "args");
    if (args == NULL)
        return hl_fail(HL_EINVAL,
                       "it has no 'args': it is not a checkpoint of Megatron's training");
    if (!hl_pickle_is(args, "argparse.Namespace") || hl_pickle_pairs(args->object->state) == NULL)
        return hl_fail(HL_EINVAL, "'args' is %s, not an argparse.Namespace",
                       hl_pickle_what(args, what, sizeof(what)));
    *out = args;
    return HL_OK;
}

hl_status hl_megatron_arg_size(const struct hl_pickle_value *args, const char *name,
                               uint64_t absent, uint64_t *out)
{
    const struct hl_pickle_value *v = hl_pickle_attribute(args, name);
    uint64_t n = absent;
    if (v != NULL && v->kind != HL_PICKLE_NONE) {
        if (hl_pickle_size(v, &n) != HL_OK)
            return hl_fail_prefix(HL_EINVAL, "args.%s: ", name);
        if (n > SIZE_LIMIT)
            return hl_fail(HL_EINVAL, "args.%s is %" PRIu64 ", at most %" PRIu64, name, n,
                           SIZE_LIMIT);
    }
    *out = n;
    return HL_OK;
}

/* Reads an argument that every model must have. */
HL_CHECK static hl_status read_needed(const struct hl_pickle_value *args, const char *name,
                                      uint64_t *out)
{
    HL_TRY(hl_megatron_arg_size(args, name, 0, out));
    return *out > 0 ? HL_OK : hl_fail(HL_EINVAL, "args.%s is missing or 0", name);
}

/* Checks that every argument read as a flag is a bool or None. Any other value, such as a number,
 * would count as False. */
HL_CHECK static hl_status check_flags(const struct hl_pickle_value *args)
{
    static const char *const names[] = {"group_query_attention",
                                        "untie_embeddings_and_output_weights",
                                        "swiglu",
                                        "bf16",
                                        "fp16",
                                        "qk_layernorm",
                                        "add_bias_linear",
                                        "add_qkv_bias",
                                        "use_rope_scaling",
                                        "multi_latent_attention",
                                        "moe_shared_expert_gate",
                                        "moe_router_enable_expert_bias",
                                        "moe_router_pre_softmax",
                                        "mtp_use_repeated_layer"};
    char what[256];
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++) {
        const struct hl_pickle_value *v = hl_pickle_attribute(args, names[i]);
        if (v != NULL && v->kind != HL_PICKLE_NONE && v->kind != HL_PICKLE_BOOL)
            return hl_fail(HL_EINVAL, "args.%s is %s, not True or False", names[i],
                           hl_pickle_what(v, what, sizeof(what)));
    }
    return HL_OK;
}

bool hl_megatron_arg_flag(const struct hl_pickle_value *args, const char *name)
{
    const struct hl_pickle_value *v = hl_pickle_attribute(args, name);
    return v != NULL && v->kind == HL_PICKLE_BOOL && v->integer == 1;
}

hl_status hl_megatron_sizes_read(const struct hl_pickle_value *root, struct hl_megatron_sizes *out)
{
    struct hl_megatron_sizes s = {0};
    const struct hl_pickle_value *args = NULL;
    HL_TRY(hl_megatron_args(root, &args));
    HL_TRY(check_flags(args));
    HL_TRY(read_needed(args, "tensor_model_parallel_size", &s.tp));
    HL_TRY(read_needed(args, "pipeline_model_parallel_size", &s.pp));
    HL_TRY(hl_megatron_arg_size(args, "expert_model_parallel_size", 1, &s.ep));
    HL_TRY(read_needed(args, "num_layers", &s.layers));
    HL_TRY(read_needed(args, "hidden_size", &s.hidden));
    HL_TRY(read_needed(args, "num_attention_heads", &s.heads));
    HL_TRY(hl_megatron_arg_size(args, "ffn_hidden_size", 4 * s.hidden, &s.ffn));
    HL_TRY(hl_megatron_arg_size(args, "max_position_embeddings", 0, &s.positions));
    HL_TRY(hl_megatron_arg_size(args, "padded_vocab_size", 0, &s.padded_vocab));
    HL_TRY(hl_megatron_arg_size(args, "num_experts", 0, &s.experts));
    s.kv_heads = s.heads;
    if (hl_megatron_arg_flag(args, "group_query_attention"))
        HL_TRY(read_needed(args, "num_query_groups", &s.kv_heads));
    s.untied = hl_megatron_arg_flag(args, "untie_embeddings_and_output_weights");
    s.gated = hl_megatron_arg_flag(args, "swiglu");
    if (s.ep == 0)
        return hl_fail(HL_EINVAL, "args.expert_model_parallel_size is 0");
    *out = s;
    return HL_OK;
}

/* ---- folders of ranks ------------------------------------------------------------------------ */

const char *hl_megatron_rank_folder(const struct hl_megatron_sizes *sizes,
                                    const struct hl_megatron_place *place, char *buf, size_t cap)
{
    int n = snprintf(buf, cap, RANK "%02" PRIu64, place->tp);
    if (sizes->pp > 1 && (size_t)n < cap)
        n += snprintf(buf + n, cap - (size_t)n, "_%03" PRIu64, place->pp);
    if (sizes->ep > 1 && (size_t)n < cap)
        snprintf(buf + n, cap - (size_t)n, "_%03" PRIu64, place->ep);
    return buf;
}

hl_status hl_megatron_place(const char *folder, const struct hl_megatron_sizes *sizes,
                            struct hl_megatron_place *out)
{
    struct hl_megatron_place p = {0};
    char again[96];
    const char *at = strncmp(folder, RANK, strlen(RANK)) == 0 ? folder + strlen(RANK) : NULL;
    uint64_t *const fields[] = {&p.tp, sizes->pp > 1 ? &p.pp : NULL, sizes->ep > 1 ? &p.ep : NULL};
    for (size_t i = 0; i < HL_ARRAY_LEN(fields) && at != NULL; i++) {
        if (fields[i] == NULL)
            continue;
        if (i > 0)
            at = *at == '_' ? at + 1 : NULL;
        if (at != NULL)
            at = hl_scan_number(at, SIZE_LIMIT, fields[i]);
    }
    if (at == NULL || strcmp(hl_megatron_rank_folder(sizes, &p, again, sizeof(again)), folder) != 0)
        return hl_fail(
            HL_EINVAL,
            "'%.80s' is not the folder of a rank at TP %" PRIu64 ", PP %" PRIu64 ", EP %" PRIu64
            ", which is like %s",
            folder, sizes->tp, sizes->pp, sizes->ep,
            hl_megatron_rank_folder(sizes, &(struct hl_megatron_place){0}, again, sizeof(again)));
    if (p.tp >= sizes->tp || p.pp >= sizes->pp || p.ep >= sizes->ep)
        return hl_fail(HL_EINVAL,
                       "'%.80s' is beyond TP %" PRIu64 ", PP %" PRIu64 ", EP %" PRIu64
                       ": remove it",
                       folder, sizes->tp, sizes->pp, sizes->ep);
    *out = p;
    return HL_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

hl_status hl_megatron_tensor_name(const char *name, char *out, size_t cap)
{
    static const char before[] = ".transformer_layer.";
    const char *at = strncmp(name, MTP, strlen(MTP)) == 0 ? name : strstr(name, "." MTP);
    const char *old = at != NULL ? strstr(at, before) : NULL;
    int n = old != NULL ? snprintf(out, cap, "%.*s.mtp_model_layer.%s", (int)(old - name), name,
                                   old + sizeof(before) - 1)
                        : snprintf(out, cap, "%s", name);
    return n >= 0 && (size_t)n < cap
               ? HL_OK
               : hl_fail(HL_EINVAL, "tensor '%.80s' has too long a name", name);
}

HL_CHECK static hl_status rename_tensors(struct hl_torch_tensors *tensors)
{
    char name[HL_TENSOR_NAME_MAX + 1];
    for (size_t i = 0; i < tensors->count; i++) {
        struct hl_tensor *t = &tensors->list[i].tensor;
        HL_TRY(hl_megatron_tensor_name(t->name, name, sizeof(name)));
        if (strcmp(name, t->name) == 0)
            continue;
        t->name = hl_arena_text(&tensors->arena, name, strlen(name));
        if (t->name == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating the name of a tensor");
    }
    return HL_OK;
}

HL_CHECK static hl_status add_tensors(const struct hl_pickle_value *root,
                                      struct hl_torch_tensors *out)
{
    const struct hl_pickle_value *model = hl_pickle_find(root, "model");
    if (model != NULL)
        return hl_torch_tensors_add(out, model, &(struct hl_torch_walk){0});
    int chunk = 0;
    for (; chunk < CHUNKS_MAX; chunk++) {
        char key[24];
        snprintf(key, sizeof(key), "model%d", chunk);
        model = hl_pickle_find(root, key);
        if (model == NULL)
            break;
        HL_TRY(hl_torch_tensors_add(out, model, &(struct hl_torch_walk){.prefix = key}));
    }
    return chunk > 0 ? HL_OK : hl_fail(HL_EINVAL, "it has neither 'model' nor 'model0'");
}

hl_status hl_megatron_tensors(const struct hl_pickle_value *root, struct hl_torch_tensors *out)
{
    struct hl_torch_tensors tensors = {0};
    hl_status st = add_tensors(root, &tensors);
    if (st == HL_OK)
        st = rename_tensors(&tensors);
    if (st == HL_OK)
        st = hl_torch_tensors_finish(&tensors);
    if (st != HL_OK) {
        hl_torch_tensors_fini(&tensors);
        return st;
    }
    *out = tensors;
    return HL_OK;
}
