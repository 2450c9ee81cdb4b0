/* Imports are proved by the checksums that came with their shards. */
#include "support/test.h"

#include "base/crc32.h"
#include "core/catalog/catalog.h"
#include "core/families/logical.h"
#include "core/model/partition.h"

#define LLAMA                                                                                      \
    "{\"model_type\": \"llama\", \"num_hidden_layers\": 4, \"hidden_size\": 8,"                    \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"head_dim\": 4, \"vocab_size\": 10," \
    "\"max_position_embeddings\": 32, \"intermediate_size\": 16}"
#define SHARDS_MAX  64
#define TENSORS_MAX 64

struct imported {
    struct hl_arena arena;
    char *config;
    struct hl_api_shard shards[SHARDS_MAX];
    size_t count;
};

/* A function of the bytes' sources: equal for replicas, different for all else. */
static uint32_t sum_of(const struct hl_partition_plan *p, uint32_t tensor)
{
    uint32_t crc = 0;
    for (uint32_t i = p->op_first[tensor]; i < p->op_first[tensor + 1]; i++) {
        const struct hl_copy_op *op = &p->ops[i];
        const uint64_t words[] = {op->kind, op->source, op->src, op->rows, op->run, op->stride};
        crc = hl_crc32(crc, words, sizeof(words));
    }
    return crc;
}

static void describe(struct imported *m, const struct hl_partition_plan *p, size_t shard)
{
    const struct hl_partition_shard *s = &p->shards[shard];
    const struct hl_tensor *tensors = &p->tensors[s->tensor_first];
    uint32_t sums[TENSORS_MAX];
    char *layout, *crcs;
    assert_true(s->tensor_count <= TENSORS_MAX && shard < SHARDS_MAX);
    for (uint32_t i = 0; i < s->tensor_count; i++)
        sums[i] = sum_of(p, s->tensor_first + i);
    assert_int_equal(hl_layout_text(tensors, s->tensor_count, &layout), HL_OK);
    assert_int_equal(hl_layout_crcs(tensors, sums, s->tensor_count, &crcs), HL_OK);
    m->shards[m->count++] = (struct hl_api_shard){.pp = s->pp,
                                                  .tp = s->tp,
                                                  .part = hl_arena_strdup(&m->arena, s->part),
                                                  .tensors = s->tensor_count,
                                                  .layout = hl_arena_strdup(&m->arena, layout),
                                                  .tensor_crcs = hl_arena_strdup(&m->arena, crcs)};
    free(layout);
    free(crcs);
}

static void import_llama(struct imported *m)
{
    const struct hl_partition_options o = {.tp = 2, .pp = 2, .vocab_divisor = 1};
    struct hl_hf_config config;
    struct hl_logical logical;
    struct hl_partition_plan plan;
    *m = (struct imported){0};
    assert_int_equal(hl_hf_config_parse(LLAMA, strlen(LLAMA), "config.json", &config), HL_OK);
    assert_int_equal(hl_family_logical(&config, &(struct hl_checkpoint){0}, &logical), HL_OK);
    for (size_t i = 0; i < logical.count; i++) {
        logical.tensors[i].dtype = HL_DTYPE_BF16;
        assert_int_equal(hl_tensor_bytes(&logical.tensors[i], &logical.tensors[i].size), HL_OK);
    }
    assert_int_equal(hl_partition_plan(&config, logical.tensors, logical.count, &o, &plan), HL_OK);
    assert_int_equal(hl_partition_config(&config, &o, &plan, &m->config), HL_OK);
    for (size_t i = 0; i < plan.shard_count; i++)
        describe(m, &plan, i);
    hl_partition_fini(&plan);
    hl_logical_fini(&logical);
    hl_hf_config_fini(&config);
}

static void imported_fini(struct imported *m)
{
    free(m->config);
    hl_arena_fini(&m->arena);
}

static hl_status prove(const char *config, struct hl_api_shard *shards, size_t count,
                       struct hl_proof *proof)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_version_proof in;
    const struct hl_api_shard_list list = {shards, count};
    assert_int_equal(hl_import_proof_input(config, &list, &arena, &in), HL_OK);
    return hl_proof_check(&in.input, proof);
}

TEST(a_sliced_import_is_proved)
{
    struct imported m;
    struct hl_proof proof;
    import_llama(&m);
    assert_int_equal(prove(m.config, m.shards, m.count, &proof), HL_OK);
    assert_true(proof.proved);
    imported_fini(&m);
}

TEST(an_import_without_sums_or_a_shard_is_not_proved)
{
    struct imported m;
    struct hl_proof proof;
    import_llama(&m);
    assert_int_equal(prove(m.config, m.shards, m.count - 1, &proof), HL_OK);
    assert_false(proof.proved);
    m.shards[0].tensor_crcs = "";
    assert_int_equal(prove(m.config, m.shards, m.count, &proof), HL_OK);
    assert_false(proof.proved);
    assert_non_null(strstr(proof.unproved, "without the checksums of its tensors"));
    imported_fini(&m);
}

TEST(an_import_whose_replicas_differ_is_refuted)
{
    struct imported m;
    struct hl_proof proof;
    import_llama(&m);
    for (size_t i = 0; i < m.count; i++)
        if (strncmp(m.shards[i].layout, "decoder.final_layernorm.weight", 30) == 0 &&
            m.shards[i].tp == 1)
            m.shards[i].tensor_crcs =
                hl_arena_printf(&m.arena, "00000000%s", m.shards[i].tensor_crcs + 8);
    assert_int_equal(prove(m.config, m.shards, m.count, &proof), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "tensor 'model.norm.weight'"));
    imported_fini(&m);
}

TEST(an_unsliced_model_is_proved_to_hold_each_tensor_once)
{
    static const char config[] = "{\"unsliced\": true, \"tp\": 1, \"pp\": 1, \"parameters\": 14}";
    struct hl_api_shard shards[] = {
        {.part = "model-0000",
         .tensors = 2,
         .layout = "a\tF32\t2,3\nb\tF32\t4\n",
         .tensor_crcs = "0000000100000002"},
        {.part = "layer-0000", .tensors = 1, .layout = "c\tF32\t4\n", .tensor_crcs = "00000003"}};
    struct hl_proof proof;
    assert_int_equal(prove(config, shards, 2, &proof), HL_OK);
    assert_true(proof.proved);
    assert_int_equal(prove(config, shards, 1, &proof), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "its tensors have 10 elements, and the files of its "
                                            "import had 14"));
    const struct hl_proof_shard saved = {.part = "model-0000", .layout = shards[0].layout};
    const struct hl_proof_input later = {.config = config, .shards = &saved, .count = 1};
    assert_int_equal(hl_proof_check(&later, &proof), HL_OK); /* something else was saved */
    assert_false(proof.proved);
    assert_non_null(strstr(proof.unproved, "without the checksums of its tensors"));
    shards[1].tensor_crcs = "";
    assert_int_equal(prove(config, shards, 2, &proof), HL_OK);
    assert_false(proof.proved);
    shards[1].layout = "b\tF32\t4\n";
    assert_int_equal(prove(config, shards, 2, &proof), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "tensor 'b' is held by part pp0/tp0/"));
}
