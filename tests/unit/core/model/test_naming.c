/* The names of both namings by hand, as in Megatron-core's gpt_layer_specs.py. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/model/naming.h"

static const struct {
    const char *local;
    const char *te;
} pairs[] = {
    {"decoder.layers.0.input_layernorm.weight",
     "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"},
    {"decoder.layers.0.input_layernorm.bias",
     "decoder.layers.0.self_attention.linear_qkv.layer_norm_bias"},
    {"decoder.layers.11.pre_mlp_layernorm.weight",
     "decoder.layers.11.mlp.linear_fc1.layer_norm_weight"},
    {"model1.decoder.layers.2.pre_mlp_layernorm.bias",
     "model1.decoder.layers.2.mlp.linear_fc1.layer_norm_bias"},
    {"exp_avg.model0.decoder.layers.2.input_layernorm.weight",
     "exp_avg.model0.decoder.layers.2.self_attention.linear_qkv.layer_norm_weight"},
    {"decoder.layers.2.input_layernorm.weight.exp_avg",
     "decoder.layers.2.self_attention.linear_qkv.layer_norm_weight.exp_avg"},
    {"decoder.layers.0.mlp.experts.local_experts.3.linear_fc1.weight",
     "decoder.layers.0.mlp.experts.linear_fc1.weight3"},
    {"exp_avg.model1.decoder.layers.0.mlp.experts.local_experts.12.linear_fc2.bias",
     "exp_avg.model1.decoder.layers.0.mlp.experts.linear_fc2.bias12"},
    {"mtp.layers.0.mtp_model_layer.mlp.experts.local_experts.0.linear_fc2.weight",
     "mtp.layers.0.mtp_model_layer.mlp.experts.linear_fc2.weight0"},
    /* The same in both. */
    {"decoder.layers.0.mlp.experts.local_experts.0.linear_fc1._extra_state",
     "decoder.layers.0.mlp.experts.local_experts.0.linear_fc1._extra_state"},
    {"decoder.layers.0.mlp.experts.linear_fc1.weight",
     "decoder.layers.0.mlp.experts.linear_fc1.weight"},
    {"decoder.layers.0.mlp.experts.linear_fc1.weight3x",
     "decoder.layers.0.mlp.experts.linear_fc1.weight3x"},
    {"decoder.layers.0.self_attention.linear_qkv.weight",
     "decoder.layers.0.self_attention.linear_qkv.weight"},
    {"decoder.layers.0.mlp.linear_fc1.bias", "decoder.layers.0.mlp.linear_fc1.bias"},
    {"decoder.layers.0.self_attention.q_layernorm.weight",
     "decoder.layers.0.self_attention.q_layernorm.weight"},
    {"decoder.layers.0.input_layernorm._extra_state",
     "decoder.layers.0.input_layernorm._extra_state"},
    {"decoder.layers.0.my_input_layernorm.weight", "decoder.layers.0.my_input_layernorm.weight"},
    {"decoder.layers.0.input_layernorm.weights", "decoder.layers.0.input_layernorm.weights"},
    {"decoder.final_layernorm.weight", "decoder.final_layernorm.weight"},
    {"embedding.word_embeddings.weight", "embedding.word_embeddings.weight"},
    {"", ""},
};

static const char *renamed(const char *name, enum hl_api_layer_naming to, bool experts)
{
    static char out[HL_TENSOR_NAME_MAX + 1];
    assert_int_equal(hl_naming_rename(name, to, experts, out, sizeof(out)), HL_OK);
    return out;
}

TEST(each_name_becomes_the_others_and_back_and_its_own_stays)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(pairs); i++) {
        assert_string_equal(renamed(pairs[i].local, HL_API_LAYER_NAMING_TE, false), pairs[i].te);
        assert_string_equal(renamed(pairs[i].te, HL_API_LAYER_NAMING_LOCAL, false), pairs[i].local);
        assert_string_equal(renamed(pairs[i].te, HL_API_LAYER_NAMING_TE, false), pairs[i].te);
        assert_string_equal(renamed(pairs[i].local, HL_API_LAYER_NAMING_LOCAL, false),
                            pairs[i].local);
    }
}

TEST(a_layer_with_experts_keeps_the_norm_before_its_mlp)
{
    const char *norm = "decoder.layers.3.pre_mlp_layernorm.weight";
    assert_string_equal(renamed(norm, HL_API_LAYER_NAMING_TE, true), norm);
    assert_string_equal(
        renamed("decoder.layers.3.input_layernorm.weight", HL_API_LAYER_NAMING_TE, true),
        "decoder.layers.3.self_attention.linear_qkv.layer_norm_weight");
}

TEST(norms_of_a_vision_part_keep_their_names)
{
    static const char name[] = "exp_avg.vision_model.model.layers.0.input_layernorm.weight";
    char out[HL_TENSOR_NAME_MAX + 1];
    assert_int_equal(hl_naming_rename(name, HL_API_LAYER_NAMING_TE, false, out, sizeof(out)), 0);
    assert_string_equal(out, name);
}

TEST(a_name_that_gets_too_long_is_refused)
{
    char out[48];
    assert_int_equal(hl_naming_rename("decoder.layers.0.input_layernorm.weight",
                                      HL_API_LAYER_NAMING_TE, false, out, sizeof(out)),
                     HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "decoder.layers.0"));
}

TEST(namings_say_their_flag)
{
    assert_string_equal(hl_naming_transformer_impl(HL_API_LAYER_NAMING_TE), "transformer_engine");
    assert_string_equal(hl_naming_transformer_impl(HL_API_LAYER_NAMING_LOCAL), "local");
}

/* ---- headers --------------------------------------------------------------------------------- */

/* A header of F32 tensors of two elements each, with a checksum field for each. */
static struct hl_safetensors header(const char *const *names, size_t count)
{
    char text[4096], file[4096 + 8];
    size_t n = (size_t)snprintf(text, sizeof(text), "{\"__metadata__\":{\"helios.part\":\"layer\"");
    for (size_t i = 0; i < count; i++)
        n += (size_t)snprintf(text + n, sizeof(text) - n, ",\"crc32.%s\":\"0000000%zu\"", names[i],
                              i);
    n += (size_t)snprintf(text + n, sizeof(text) - n, "}");
    for (size_t i = 0; i < count; i++)
        n +=
            (size_t)snprintf(text + n, sizeof(text) - n,
                             ",\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[%zu,%zu]}",
                             names[i], 8 * i, 8 * i + 8);
    n += (size_t)snprintf(text + n, sizeof(text) - n, "}");
    uint64_t len = n;
    memcpy(file, &len, 8);
    memcpy(file + 8, text, n);
    struct hl_safetensors st;
    assert_int_equal(hl_safetensors_parse(file, 8 + n, 8 + n + 8 * count, &st), HL_OK);
    return st;
}

TEST(a_header_is_renamed_with_its_checksums)
{
    static const char *const names[] = {"decoder.layers.0.pre_mlp_layernorm.weight",
                                        "decoder.layers.0.mlp.linear_fc1.weight",
                                        "decoder.layers.0.input_layernorm.weight"};
    struct hl_safetensors st = header(names, 3);
    uint32_t crc;
    assert_int_equal(hl_naming_apply(&st, HL_API_LAYER_NAMING_TE), HL_OK);
    assert_int_equal(st.count, 3);
    assert_string_equal(st.tensors[0].name, "decoder.layers.0.mlp.linear_fc1.layer_norm_weight");
    assert_int_equal(st.tensors[2].offset, 16);
    assert_int_equal(hl_safetensors_crc(
                         &st, "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight", &crc),
                     HL_OK);
    assert_int_equal(crc, 2);
    assert_ptr_equal(hl_safetensors_find(&st, "decoder.layers.0.mlp.linear_fc1.layer_norm_weight"),
                     &st.tensors[0]);
    assert_null(hl_safetensors_find(&st, names[0]));
    assert_string_equal(hl_safetensors_meta(&st, HL_NAMING_KEY), "te");
    assert_string_equal(hl_safetensors_meta(&st, "helios.part"), "layer");
    assert_int_equal(hl_naming_apply(&st, HL_API_LAYER_NAMING_LOCAL), HL_OK);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(st.tensors[i].name, names[i]);
        assert_int_equal(hl_safetensors_crc(&st, names[i], &crc), HL_OK);
        assert_int_equal(crc, i);
    }
    assert_string_equal(hl_safetensors_meta(&st, HL_NAMING_KEY), "local");
    assert_int_equal(st.meta_count, 5);
    hl_safetensors_fini(&st);
}

TEST(experts_are_known_by_their_layers_names)
{
    static const char *const names[] = {"decoder.layers.1.pre_mlp_layernorm.weight",
                                        "decoder.layers.1.mlp.router.weight",
                                        "decoder.layers.0.pre_mlp_layernorm.weight",
                                        "decoder.layers.10.mlp.experts.linear_fc1.weight0"};
    struct hl_safetensors st = header(names, 4);
    assert_int_equal(hl_naming_apply(&st, HL_API_LAYER_NAMING_TE), HL_OK);
    assert_string_equal(st.tensors[0].name, names[0]);
    assert_string_equal(st.tensors[2].name, "decoder.layers.0.mlp.linear_fc1.layer_norm_weight");
    hl_safetensors_fini(&st);
}

TEST(latent_attention_keeps_the_norm_before_it_and_fuses_its_own)
{
    static const char *const local[] = {
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.self_attention.q_layernorm.weight",
        "decoder.layers.0.self_attention.kv_layernorm.weight",
        "decoder.layers.0.self_attention.linear_kv_down_proj.weight",
        "decoder.layers.1.self_attention.q_layernorm.weight"};
    static const char *const te[] = {
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.self_attention.linear_q_up_proj.layer_norm_weight",
        "decoder.layers.0.self_attention.linear_kv_up_proj.layer_norm_weight",
        "decoder.layers.0.self_attention.linear_kv_down_proj.weight",
        "decoder.layers.1.self_attention.q_layernorm.weight"};
    struct hl_safetensors st = header(local, 5);
    for (int round = 0; round < 2; round++) { /* applying its own naming changes nothing */
        assert_int_equal(hl_naming_apply(&st, HL_API_LAYER_NAMING_TE), HL_OK);
        for (size_t i = 0; i < 5; i++)
            assert_string_equal(st.tensors[i].name, te[i]);
    }
    assert_int_equal(hl_naming_apply(&st, HL_API_LAYER_NAMING_LOCAL), HL_OK);
    for (size_t i = 0; i < 5; i++)
        assert_string_equal(st.tensors[i].name, local[i]);
    hl_safetensors_fini(&st);
}

TEST(a_norm_under_both_names_is_refused_and_the_header_stays)
{
    static const char *const names[] = {
        "decoder.layers.0.input_layernorm.weight",
        "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight"};
    struct hl_safetensors st = header(names, 2);
    assert_int_equal(hl_naming_apply(&st, HL_API_LAYER_NAMING_LOCAL), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), names[0]));
    assert_string_equal(st.tensors[1].name, names[1]);
    assert_non_null(hl_safetensors_find(&st, names[1]));
    hl_safetensors_fini(&st);
}
