/* Two experts of one rank are swapped: detected only by what another rank holds of them
 * (docs/saving.md). */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/families/logical.h"
#include "core/model/layout.h"
#include "core/model/partition.h"
#include "core/reshard/proof.h"
#include "unit/core/model/plan_crc.h"

#define SIZES                                                                                      \
    "\"num_hidden_layers\": 2, \"hidden_size\": 8, \"num_attention_heads\": 4,"                    \
    "\"num_key_value_heads\": 2, \"head_dim\": 4, \"vocab_size\": 10,"                             \
    "\"max_position_embeddings\": 32, \"intermediate_size\": 16, \"num_local_experts\": 4"
#define SHARDS_MAX 64

/* A version as its ranks would save it. */
struct version {
    struct hl_arena arena;
    struct hl_proof_shard shards[SHARDS_MAX];
    size_t count;
    char *config;
};

static void add_shard(struct version *v, const struct hl_partition_plan *p, size_t shard)
{
    const struct hl_partition_shard *s = &p->shards[shard];
    char *layout, *crcs;
    uint32_t sums[256];
    assert_true(v->count < SHARDS_MAX && s->tensor_count <= HL_ARRAY_LEN(sums));
    for (uint32_t i = 0; i < s->tensor_count; i++)
        sums[i] = crc_of(p, s->tensor_first + i);
    assert_int_equal(hl_layout_text(&p->tensors[s->tensor_first], s->tensor_count, &layout), HL_OK);
    assert_int_equal(hl_layout_crcs(&p->tensors[s->tensor_first], sums, s->tensor_count, &crcs),
                     HL_OK);
    v->shards[v->count++] = (struct hl_proof_shard){.pp = s->pp,
                                                    .tp = s->tp,
                                                    .ep = s->ep,
                                                    .rank = s->ep * 2 + s->tp,
                                                    .part = hl_arena_strdup(&v->arena, s->part),
                                                    .layout = hl_arena_strdup(&v->arena, layout),
                                                    .crcs = hl_arena_strdup(&v->arena, crcs)};
    free(layout);
    free(crcs);
}

/* Two ranks share an expert; two groups of ranks divide the four experts. */
static void version_make(struct version *v, const char *family)
{
    static const struct hl_partition_options split = {
        .tp = 2, .pp = 1, .ep = 2, .etp = 2, .vocab_divisor = 1};
    struct hl_hf_config config;
    struct hl_logical logical;
    struct hl_partition_plan plan;
    *v = (struct version){0};
    assert_int_equal(hl_hf_config_parse(family, strlen(family), "config.json", &config), HL_OK);
    assert_int_equal(hl_family_logical(&config, &(struct hl_checkpoint){0}, &logical), HL_OK);
    for (size_t i = 0; i < logical.count; i++) {
        logical.tensors[i].dtype = HL_DTYPE_F32;
        assert_int_equal(hl_tensor_bytes(&logical.tensors[i], &logical.tensors[i].size), HL_OK);
    }
    assert_int_equal(hl_partition_plan(&config, logical.tensors, logical.count, &split, &plan),
                     HL_OK);
    assert_int_equal(hl_partition_config(&config, &split, &plan, &v->config), HL_OK);
    for (size_t i = 0; i < plan.shard_count; i++)
        add_shard(v, &plan, i);
    hl_partition_fini(&plan);
    hl_logical_fini(&logical);
    hl_hf_config_fini(&config);
}

static void version_fini(struct version *v)
{
    free(v->config);
    hl_arena_fini(&v->arena);
}

static hl_status prove(const struct version *v, bool *proved)
{
    struct hl_proof proof = {0};
    const struct hl_proof_input in = {.config = v->config, .shards = v->shards, .count = v->count};
    hl_status st = hl_proof_check(&in, &proof);
    *proved = proof.proved;
    return st;
}

/* Swaps the bytes of a rank's experts 0 and 1 in the first layer; returns how many tensors were
 * swapped. */
static size_t swap_experts(struct version *v)
{
    struct hl_proof_shard *s = NULL;
    struct hl_tensor *tensors;
    size_t count, swapped = 0;
    for (size_t i = 0; i < v->count && s == NULL; i++)
        if (strcmp(v->shards[i].part, "experts-0000") == 0)
            s = &v->shards[i];
    assert_non_null(s);
    char *crcs = hl_arena_strdup(&v->arena, s->crcs);
    assert_int_equal(hl_layout_read(s->layout, &v->arena, &tensors, &count), HL_OK);
    for (size_t i = 0; i < count; i++)
        for (size_t k = i + 1; k < count; k++)
            if (tensors[i].rank == tensors[k].rank && tensors[i].size == tensors[k].size &&
                memcmp(tensors[i].shape, tensors[k].shape, sizeof(tensors[i].shape)) == 0) {
                memcpy(crcs + 8 * i, s->crcs + 8 * k, 8);
                memcpy(crcs + 8 * k, s->crcs + 8 * i, 8);
                swapped++;
            }
    s->crcs = crcs;
    return swapped;
}

/* The bias of the second matrix is whole on every rank that has a part of the expert. */
TEST(swapped_experts_are_found_by_the_bias_that_another_rank_has_too)
{
    struct version v;
    bool proved;
    version_make(&v, "{\"model_type\": \"gpt_oss\", " SIZES "}");
    assert_int_equal(prove(&v, &proved), HL_OK);
    assert_true(proved);
    assert_int_equal(swap_experts(&v), 4);
    assert_int_equal(prove(&v, &proved), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "mlp.experts.down_proj_bias'"));
    assert_non_null(strstr(hl_error_text(), "of rank 0 (pp 0, tp 0)"));
    assert_non_null(strstr(hl_error_text(), "of rank 1 (pp 0, tp 1)"));
    version_fini(&v);
}

/* It is a correct model whose experts are numbered differently. */
TEST(swapped_experts_that_no_other_rank_has_anything_of_are_proved_as_they_are)
{
    struct version v;
    bool proved;
    version_make(&v, "{\"model_type\": \"mixtral\", " SIZES "}");
    assert_int_equal(swap_experts(&v), 2);
    assert_int_equal(prove(&v, &proved), HL_OK);
    assert_true(proved);
    version_fini(&v);
}
