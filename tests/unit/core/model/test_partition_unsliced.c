/* A model of no known family: which shard each tensor is in, by hand. */
#include "support/test.h"

#include <string.h>

#include "core/model/partition.h"

#define T(name_, dtype_, n)                                                                        \
    {                                                                                              \
        .name = name_, .dtype = HL_DTYPE_##dtype_, .rank = 1, .shape = {n}, .size = (n)            \
    }

static const struct hl_tensor sources[] = {
    T("net.layers.1.a", U8, 5),    T("embed", U8, 60),     T("net.layers.0.a", F8_E4M3, 7),
    T("transformer.h.1.b", U8, 3), T("norm", U8, 41),      T("big", I8, 300),
    T("players.3.c", U8, 1),       T("layers.x.d", U8, 0),
};

static const struct {
    const char *part, *name;
    uint32_t source;
    uint64_t offset;
} want[] = {
    {"model-0000", "embed", 1, 0},
    {"model-0001", "norm", 4, 0},
    {"model-0002", "big", 5, 0},
    {"model-0003", "players.3.c", 6, 0},
    {"model-0003", "layers.x.d", 7, 1},
    {"layer-0000", "net.layers.0.a", 2, 0},
    {"layer-0001", "net.layers.1.a", 0, 0},
    {"layer-0001", "transformer.h.1.b", 3, 5},
};

TEST(an_unknown_model_is_stored_whole_layer_by_layer)
{
    struct hl_partition_plan plan;
    size_t i = 0;
    assert_int_equal(hl_partition_unsliced(sources, HL_ARRAY_LEN(sources), 100, &plan), HL_OK);
    assert_int_equal(plan.tensor_count, HL_ARRAY_LEN(want));
    assert_int_equal(plan.data_bytes, 417);
    for (size_t k = 0; k < plan.shard_count; k++) {
        const struct hl_partition_shard *s = &plan.shards[k];
        uint64_t bytes = 0;
        assert_int_equal(s->tensor_first, i);
        for (uint32_t n = 0; n < s->tensor_count; n++, i++) {
            const struct hl_tensor *t = &plan.tensors[i];
            uint32_t ops = plan.op_first[i + 1] - plan.op_first[i];
            const struct hl_copy_op *op = &plan.ops[plan.op_first[i]];
            assert_string_equal(s->part, want[i].part);
            assert_string_equal(t->name, want[i].name);
            assert_int_equal(t->offset, want[i].offset);
            assert_int_equal(ops, t->size > 0);
            if (ops > 0)
                assert_true(op->source == want[i].source && op->src == 0 && op->dst == 0 &&
                            hl_copy_bytes(op) == sources[want[i].source].size);
            bytes += t->size;
        }
        assert_int_equal(s->data_size, bytes);
    }
    assert_int_equal(i, HL_ARRAY_LEN(want));
    hl_partition_fini(&plan);
}

TEST(parts_that_are_said_are_kept_and_the_config_says_why)
{
    static const char *const parts[] = {"layer-0001", "layer-0001", "x", "x",
                                        "head",       "head",       "y", "y"};
    struct hl_partition_plan plan;
    char *text;
    assert_int_equal(hl_partition_as_stored(sources, parts, HL_ARRAY_LEN(sources), &plan), HL_OK);
    assert_int_equal(plan.shard_count, 4);
    for (size_t i = 0; i < plan.tensor_count; i++) {
        const struct hl_partition_shard *s = &plan.shards[i / 2];
        assert_string_equal(plan.tensors[i].name, sources[i].name);
        assert_string_equal(s->part, parts[i]);
        assert_int_equal(s->tensor_first, i / 2 * 2);
        assert_int_equal(plan.tensors[i].offset, i % 2 == 0 ? 0 : sources[i - 1].size);
    }
    assert_int_equal(hl_partition_unsliced_config(NULL, "of a reason", &plan, &text), HL_OK);
    json_t *doc = json_loads(text, 0, NULL);
    assert_true(json_is_true(json_object_get(doc, "unsliced")));
    assert_string_equal(json_string_value(json_object_get(doc, "unslicedBecause")), "of a reason");
    assert_string_equal(json_string_value(json_object_get(doc, "architecture")), "unknown");
    assert_null(json_object_get(doc, "hf"));
    json_decref(doc);
    free(text);
    hl_partition_fini(&plan);
    static const char *const too_long[] = {"a-part-whose-name-has-more-bytes-than-one-may"};
    assert_int_equal(hl_partition_as_stored(sources, too_long, 1, &plan), HL_EUNSUPPORTED);
}

TEST(a_tensor_in_two_files_and_an_empty_model_are_refused)
{
    const struct hl_tensor twice[] = {T("a", U8, 1), T("b", U8, 1), T("a", U8, 1)};
    struct hl_partition_plan plan;
    assert_int_equal(hl_partition_unsliced(twice, 3, 100, &plan), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "'a' is in two files"));
    assert_int_equal(hl_partition_unsliced(twice, 0, 100, &plan), HL_EINVAL);
    assert_int_equal(hl_partition_unsliced(twice, 2, 0, &plan), HL_EINVAL);
}
