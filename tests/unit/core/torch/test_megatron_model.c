/* Which model the args of a Megatron checkpoint describe. Args are made here as values of a
 * pickle. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/hf.h"
#include "core/torch/megatron_model.h"

#define ARGS_MAX 40

struct arg {
    const char *name;
    struct hl_pickle_value value;
};

#define INT(n)                                                                                     \
    {                                                                                              \
        .kind = HL_PICKLE_INT, .integer = (n)                                                      \
    }
#define REAL(x)                                                                                    \
    {                                                                                              \
        .kind = HL_PICKLE_FLOAT, .real = (x)                                                       \
    }
#define YES                                                                                        \
    {                                                                                              \
        .kind = HL_PICKLE_BOOL, .integer = 1                                                       \
    }
#define NO                                                                                         \
    {                                                                                              \
        .kind = HL_PICKLE_BOOL                                                                     \
    }
#define NONE                                                                                       \
    {                                                                                              \
        .kind = HL_PICKLE_NONE                                                                     \
    }
#define WORD(s)                                                                                    \
    {                                                                                              \
        .kind = HL_PICKLE_TEXT, .text = {(s), sizeof(s) - 1 }                                      \
    }

static struct hl_pickle_value enum_class = {
    .kind = HL_PICKLE_CLASS,
    .text = {"megatron.core.enums.Kind", sizeof("megatron.core.enums.Kind") - 1}};
static struct hl_pickle_object enum_object = {.callable = &enum_class};

#define THING                                                                                      \
    {                                                                                              \
        .kind = HL_PICKLE_OBJECT, .object = &enum_object                                           \
    }

static const struct arg llama[] = {{"tensor_model_parallel_size", INT(2)},
                                   {"pipeline_model_parallel_size", INT(1)},
                                   {"num_layers", INT(2)},
                                   {"hidden_size", INT(16)},
                                   {"num_attention_heads", INT(4)},
                                   {"ffn_hidden_size", INT(32)},
                                   {"max_position_embeddings", INT(64)},
                                   {"padded_vocab_size", INT(64)},
                                   {"normalization", WORD("RMSNorm")},
                                   {"swiglu", YES},
                                   {"untie_embeddings_and_output_weights", YES},
                                   {"add_bias_linear", NO},
                                   {"position_embedding_type", WORD("rope")},
                                   {"rotary_percent", REAL(1)},
                                   {"rotary_base", INT(10000)},
                                   {"window_size", NONE},
                                   {"apply_layernorm_1p", NO},
                                   {"glu_linear_offset", REAL(0)},
                                   {"attention_backend", THING}};

/* A file's tree with these args, `more` among them; valid until the next call. */
static const struct hl_pickle_value *root_of(const struct arg *more)
{
    static struct arg list[ARGS_MAX];
    static struct hl_pickle_value names[ARGS_MAX], state, args, key, root;
    static const struct hl_pickle_value *pairs[2 * ARGS_MAX], *root_pairs[2];
    static struct hl_pickle_value space = {
        .kind = HL_PICKLE_CLASS, .text = {"argparse.Namespace", sizeof("argparse.Namespace") - 1}};
    static struct hl_pickle_object object;
    uint32_t n = HL_ARRAY_LEN(llama);
    memcpy(list, llama, sizeof(llama));
    if (more != NULL)
        list[n++] = *more; /* the last one of a name counts */
    for (uint32_t i = 0; i < n; i++) {
        names[i] = (struct hl_pickle_value){.kind = HL_PICKLE_TEXT,
                                            .text = {list[i].name, strlen(list[i].name)}};
        pairs[2 * (size_t)i] = &names[i];
        pairs[2 * (size_t)i + 1] = &list[i].value;
    }
    state = (struct hl_pickle_value){.kind = HL_PICKLE_DICT, .items = {pairs, 2 * n, 2 * n}};
    object = (struct hl_pickle_object){.callable = &space, .state = &state};
    args = (struct hl_pickle_value){.kind = HL_PICKLE_OBJECT, .object = &object};
    key = (struct hl_pickle_value){.kind = HL_PICKLE_TEXT, .text = {"args", 4}};
    root_pairs[0] = &key;
    root_pairs[1] = &args;
    root = (struct hl_pickle_value){.kind = HL_PICKLE_DICT, .items = {root_pairs, 2, 2}};
    return &root;
}

static void said(const struct arg *more, const char *part)
{
    char *config;
    if (hl_megatron_config(root_of(more), &config) != HL_OK)
        fail_msg("%s: %s", more != NULL ? more->name : "", hl_error_text());
    if (strstr(config, part) == NULL)
        fail_msg("'%s' does not say '%s'", config, part);
    free(config);
}

TEST(args_describe_a_model_and_objects_among_them_do_no_harm)
{
    static const struct arg rows[] = {{"rotary_base", REAL(5e5)},
                                      {"rotary_interleaved", NONE},
                                      {"no_rope_freq", INT(0)},
                                      {"rotary_seq_len_interpolation_factor", INT(1)},
                                      {"exit_signal", THING}};
    said(NULL, "\"model_type\":\"llama\"");
    said(&rows[0], "\"rope_theta\":500000.0");
    for (size_t i = 1; i < HL_ARRAY_LEN(rows); i++)
        said(&rows[i], "\"model_type\":\"llama\"");
}

TEST(args_that_a_config_can_not_say_are_refused_by_name)
{
    static const struct {
        struct arg arg;
        const char *says;
    } rows[] = {
        {{"apply_layernorm_1p", YES}, "norm weights are stored minus 1"},
        {{"rotary_interleaved", YES}, "pairs neighbours"},
        {{"rotary_percent", REAL(0.5)}, "a part of each head"},
        {{"rotary_seq_len_interpolation_factor", REAL(4)}, "positions are interpolated"},
        {{"no_rope_freq", INT(4)}, "some layers have no rotary embedding"},
        {{"window_size", THING}, "attention has a window"},
        {{"qk_l2_norm", YES}, "without weights"},
        {{"glu_linear_offset", REAL(1)}, "have an offset"},
        {{"activation_func_clamp_value", REAL(7)}, "are clamped"},
        {{"use_mup", YES}, "muP"},
        {{"position_embedding_type", WORD("none")}, "args.position_embedding_type is 'none'"},
        {{"position_embedding_type", THING}, "is an object of class megatron.core.enums.Kind"},
        {{"normalization", THING}, "args.normalization is an object"},
        {{"rotary_base", THING}, "args.rotary_base is an object of class megatron.core.enums.Kind"},
        {{"norm_epsilon", WORD("1e-6")}, "args.norm_epsilon is a str, not a number"},
        {{"swiglu", INT(1)}, "args.swiglu is an int, not True or False"},
        {{"add_qkv_bias", THING}, "args.add_qkv_bias is an object"},
        {{"hidden_size", THING}, "args.hidden_size"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        char *config;
        if (hl_megatron_config(root_of(&rows[i].arg), &config) == HL_OK)
            fail_msg("%s is taken: %s", rows[i].arg.name, config);
        if (strstr(hl_error_text(), rows[i].arg.name) == NULL ||
            strstr(hl_error_text(), rows[i].says) == NULL)
            fail_msg("'%s' does not say '%s'", hl_error_text(), rows[i].says);
    }
}

static hl_status check(const char *type, const struct arg *more)
{
    struct hl_hf_config c;
    char text[512];
    snprintf(text, sizeof(text),
             "{\"model_type\": \"%s\", \"num_hidden_layers\": 2, \"hidden_size\": 16,"
             "\"num_attention_heads\": 4, \"num_key_value_heads\": 4, \"intermediate_size\": 32,"
             "\"head_dim\": 4, \"vocab_size\": 50, \"tie_word_embeddings\": false}",
             type);
    assert_int_equal(hl_hf_config_parse(text, strlen(text), "config.json", &c), HL_OK);
    hl_status st = hl_megatron_check_config(root_of(more), &c);
    hl_hf_config_fini(&c);
    return st;
}

TEST(a_config_beside_the_checkpoint_must_keep_norms_and_rotation_as_the_args_do)
{
    static const struct arg less_one = {"apply_layernorm_1p", YES},
                            turns = {"rotary_interleaved", YES};
    assert_int_equal(check("llama", NULL), HL_OK);
    assert_int_equal(check("gemma2", &less_one), HL_OK);
    assert_int_equal(check("llama", &less_one), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "a llama model of Hugging Face doesn't have"));
    assert_int_equal(check("llama", &turns), HL_EUNSUPPORTED);
}
