/* Which part a tensor is saved in, by its name. Expected parts are worked out by hand. */
#include "support/test.h"

#include <string.h>

#include "core/parts/rule.h"

/* 12 layers in 2 stages of 3 chunks: stage 0 has 0 1, 4 5, 8 9, stage 1 has 2 3, 6 7, 10 11. */
static const char chunks[] = "{\"architecture\": \"LlamaForCausalLM\", \"layers\": 12, \"tp\": 2, "
                             "\"pp\": 2, \"virtualStages\": 3}";
/* 5 layers: 1, 2, 2. */
static const char uneven[] =
    "{\"architecture\": \"LlamaForCausalLM\", \"layers\": 5, \"tp\": 1, \"pp\": 3, \"stages\": ["
    "[{\"first\": 0, \"count\": 1}], [{\"first\": 1, \"count\": 2}], [{\"first\": 3, \"count\": "
    "2}]]}";
static const char unsliced[] = "{\"architecture\": \"unknown\", \"unsliced\": true}";
static const char as_saved[] = "{\"asSaved\": true}";
static const char infinite[] =
    "{\"asSaved\": true, \"limit\": -Infinity}"; /* as Python writes it */
static const char hugging_face[] =
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 4, \"hidden_size\": 16,"
    "\"num_attention_heads\": 4, \"intermediate_size\": 16, \"vocab_size\": 10}";

static void is_part(const char *config, const struct hl_api_split *split, int pp, const char *name,
                    const char *want)
{
    struct hl_part_rule rule;
    char part[HL_PARTITION_PART_MAX];
    if (hl_part_rule_read(config, split, &rule) != HL_OK ||
        hl_part_of_tensor(&rule, pp, name, part) != HL_OK)
        fail_msg("%s: %s", name, hl_error_text());
    if (strcmp(part, want) != 0)
        fail_msg("%s of stage %d is in %s, not %s", name, pp, part, want);
}

TEST(a_name_says_which_part_a_tensor_is_saved_in)
{
    static const struct {
        const char *config;
        int pp;
        const char *name, *part;
    } rows[] = {
        {chunks, 0, "model2.decoder.layers.1.mlp.linear_fc1.weight", "layer-0009"},
        {chunks, 1, "model2.decoder.layers.1.mlp.linear_fc1.weight", "layer-0011"},
        {chunks, 1, "decoder.layers.0.input_layernorm.weight", "layer-0002"},
        {chunks, 0, "exp_avg.model1.decoder.layers.0.mlp.experts.local_experts.7.linear_fc1.weight",
         "experts-0004"},
        {chunks, 1, "model0.mtp.layers.0.mtp_model_layer.mlp.experts.linear_fc2.weight1",
         "experts-0012"},
        {chunks, 1, "mtp.layers.1.eh_proj.weight", "mtp-0001"},
        {chunks, 1, "model2.decoder.final_layernorm.weight", "head"},
        {chunks, 1, "output_layer.weight", "head"},
        {chunks, 0, "exp_avg_sq.embedding.position_embeddings.weight", "embedding"},
        {chunks, 0, "an.embedding", "head"}, /* a component of the name, not its end */
        {chunks, 0, "my_decoder.layers.0.weight", "head"},
        {chunks, 0, "model1.vision_tower.decoder.layers.0.weight", "vision"},
        {uneven, 0, "decoder.layers.0.weight", "layer-0000"},
        {uneven, 1, "decoder.layers.1.weight", "layer-0002"},
        {uneven, 2, "decoder.layers.0.weight", "layer-0003"},
        {unsliced, 0, "exp_avg.transformer.h.11.attn.weight", "layer-0011"},
        {unsliced, 3, "transformer.wte.weight", "model-0000"},
        {unsliced, 0, "decoder.blocks.2x.weight", "model-0000"},
        {as_saved, 1, "encoder.block.2.weight", "layer-0002"},
        {infinite, 1, "encoder.block.2.weight", "layer-0002"},
        {hugging_face, 0, "decoder.layers.3.weight", "layer-0003"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++)
        is_part(rows[i].config, NULL, rows[i].pp, rows[i].name, rows[i].part);
}

TEST(the_sizes_that_are_asked_for_take_the_place_of_the_configs)
{
    static const struct hl_api_split two = {.pp = 2, .virtual_stages = 2}, one = {.pp = 1};
    is_part(hugging_face, &two, 1, "model1.decoder.layers.0.weight", "layer-0003");
    is_part(chunks, &one, 0, "decoder.layers.11.weight", "layer-0011");
    is_part(unsliced, &two, 1, "layers.3.weight", "layer-0003");
}

static void refused(const char *config, const struct hl_api_split *split, int pp, const char *name,
                    const char *says)
{
    struct hl_part_rule rule;
    char part[HL_PARTITION_PART_MAX];
    hl_status st = hl_part_rule_read(config, split, &rule);
    if (st == HL_OK)
        st = hl_part_of_tensor(&rule, pp, name, part);
    assert_int_not_equal(st, HL_OK);
    if (strstr(hl_error_text(), says) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), says);
}

TEST(a_layer_or_a_stage_that_is_not_there_is_refused)
{
    static const struct hl_api_split three = {.pp = 3};
    refused(chunks, NULL, 0, "model1.decoder.layers.2.weight", "no layer 2 in chunk 1");
    refused(chunks, NULL, 0, "model3.decoder.layers.0.weight", "no layer 0 in chunk 3");
    refused(chunks, NULL, 2, "decoder.layers.0.weight", "stage 2 is out of range");
    refused(chunks, NULL, -1, "decoder.layers.0.weight", "stage -1 is out of range");
    refused(hugging_face, &three, 0, "x", "4 layers over 3 stages leave 1");
    refused("{}", NULL, 0, "x", "model_type");
    refused("{\"tp\": 1, \"pp\": 1}", NULL, 0, "x", "does not say how it was split");
}
