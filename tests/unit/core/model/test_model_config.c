/* The config of a model, as catalogues store it and as it is written. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/model/model_config.h"

/* As written by the first releases, plus a member that only a newer one would know. */
#define HF                                                                                         \
    "\"hf\":{\"model_type\":\"mixtral\",\"hidden_size\":8,\"intermediate_size\":6,"                \
    "\"num_hidden_layers\":7,\"num_attention_heads\":2,\"num_key_value_heads\":1,"                 \
    "\"vocab_size\":10,\"max_position_embeddings\":16,\"num_local_experts\":4}"
#define IMPORTED                                                                                   \
    "{\"architecture\":\"mixtral\",\"dtype\":\"BF16\",\"parameters\":4321,\"layers\":7,"           \
    "\"hidden\":8,\"heads\":2,\"kvHeads\":1,\"headDim\":4,\"ffn\":6,\"vocab\":10,"                 \
    "\"paddedVocab\":16,\"maxPositions\":16,\"tied\":false,\"normEps\":0.5,\"ropeTheta\":0.0,"     \
    "\"tp\":2,\"pp\":2,\"virtualStages\":2,\"naming\":\"te\",\"pad\":\"zero\","                    \
    "\"vocabDivisor\":8," HF ",\"stages\":[[{\"first\":0,\"count\":1},{\"first\":3,\"count\":2}]," \
    "[{\"first\":1,\"count\":2},{\"first\":5,\"count\":2}]],\"ep\":2,\"etp\":1,\"later\":[1]}"
#define EVEN                                                                                       \
    "{\"architecture\":\"llama\",\"dtype\":\"F32\",\"parameters\":9,\"layers\":4,\"hidden\":8,"    \
    "\"heads\":2,\"kvHeads\":2,\"headDim\":4,\"ffn\":6,\"vocab\":10,\"paddedVocab\":256,"          \
    "\"maxPositions\":16,\"tied\":true,\"normEps\":1e-5,\"ropeTheta\":10000.0,\"tp\":2,\"pp\":2,"  \
    "\"virtualStages\":1,\"naming\":\"local\",\"pad\":\"repeat\",\"vocabDivisor\":128,"            \
    "\"hf\":{\"model_type\":\"llama\"},"                                                           \
    "\"stages\":[[{\"first\":0,\"count\":2}],[{\"first\":2,\"count\":2}]]}"
#define UNSLICED                                                                                   \
    "{\"architecture\":\"bert\",\"dtype\":\"F32\",\"parameters\":7,\"unsliced\":true,"             \
    "\"unslicedBecause\":\"no family is known for 'bert'\",\"tp\":1,\"pp\":1,"                     \
    "\"virtualStages\":1,\"hf\":{\"model_type\":\"bert\"}}"
#define AS_SAVED                                                                                   \
    "{\"architecture\":\"unknown\",\"tp\":2,\"pp\":3,\"virtualStages\":1,\"asSaved\":true}"

static struct hl_model_config config_read(const char *text)
{
    struct hl_model_config c;
    if (hl_model_config_read(text, &c) != HL_OK)
        fail_msg("%s", hl_error_text());
    return c;
}

/* Equal to `want` regardless of the order of members. */
static void is_written_as(const struct hl_model_config *c, const char *want)
{
    char *text;
    assert_int_equal(hl_model_config_write(c, &text), HL_OK);
    json_t *has = json_loads(text, 0, NULL), *wanted = json_loads(want, 0, NULL);
    assert_non_null(wanted);
    if (!json_equal(has, wanted))
        fail_msg("%s", text);
    json_decref(has);
    json_decref(wanted);
    free(text);
}

TEST(a_config_of_an_older_catalogue_is_read)
{
    struct hl_model_config c = config_read(IMPORTED);
    assert_string_equal(c.own.architecture, "mixtral");
    assert_string_equal(c.own.dtype, "BF16");
    assert_int_equal(c.own.parameters, 4321);
    assert_false(c.own.unsliced || c.own.as_saved);
    assert_null(c.own.unsliced_because);
    assert_int_equal(c.split.tp, 2);
    assert_int_equal(c.split.pp, 2);
    assert_int_equal(c.split.virtual_stages, 2);
    assert_int_equal(c.split.ep, 2);
    assert_int_equal(c.split.etp, 1);
    assert_int_equal(c.split.first_stage_layers, 3);
    assert_int_equal(c.split.last_stage_layers, 4);
    assert_int_equal(c.sizes.layers, 7);
    assert_int_equal(c.sizes.kv_heads, 1);
    assert_int_equal(c.sizes.padded_vocab, 16);
    assert_true(c.sizes.norm_eps == 0.5);
    struct hl_partition_options o = hl_model_config_options(&c);
    assert_int_equal(o.naming, HL_API_LAYER_NAMING_TE);
    assert_int_equal(o.pad, HL_API_VOCAB_PADDING_ZERO);
    assert_int_equal(o.vocab_divisor, 8);
    struct hl_hf_config hf;
    assert_int_equal(hl_model_config_hf(&c, &hf), HL_OK);
    assert_int_equal(hf.layers, 7);
    hl_hf_config_fini(&hf);
    hl_model_config_fini(&c);
}

TEST(every_form_of_an_older_catalogue_is_written_as_it_was)
{
    static const char *const texts[] = {EVEN, UNSLICED, AS_SAVED};
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++) {
        struct hl_model_config c = config_read(texts[i]);
        is_written_as(&c, texts[i]);
        hl_model_config_fini(&c);
    }
}

TEST(an_adapter_keeps_its_base_and_what_peft_says)
{
    const char *text = "{\"architecture\":\"llama\",\"tp\":2,\"pp\":1,\"virtualStages\":1,"
                       "\"adapter\":{\"base\":\"tiny\",\"peft\":{\"r\":4}}}";
    struct hl_model_config c = config_read(text);
    assert_string_equal(c.own.adapter.base, "tiny");
    assert_int_equal(json_integer_value(json_object_get(c.peft, "r")), 4);
    is_written_as(&c, text);
    hl_model_config_fini(&c);
}

TEST(another_split_changes_only_sizes_and_stages)
{
    const struct hl_api_split split = {.tp = 4, .pp = 4};
    char *text;
    assert_int_equal(hl_split_config(EVEN, &split, 4, &text), HL_OK);
    struct hl_model_config c = config_read(text), own = config_read(EVEN);
    assert_int_equal(c.split.tp, 4);
    assert_int_equal(c.split.pp, 4);
    assert_int_equal(c.split.ep, 0);
    assert_int_equal(c.split.first_stage_layers, 0);
    assert_int_equal(c.sizes.padded_vocab, 512); /* 10 rows, a multiple of 128 * 4 */
    assert_true(json_equal(c.hf, own.hf));
    assert_int_equal(json_array_size(json_object_get(c.doc, "stages")), 4);
    free(text);
    hl_model_config_fini(&c);
    assert_int_equal(hl_split_config(IMPORTED, &(struct hl_api_split){.tp = 2, .pp = 1}, 7, &text),
                     HL_OK);
    c = config_read(text);
    assert_int_equal(c.split.ep, 1); /* always present in a family with experts */
    assert_int_equal(c.split.etp, 2);
    assert_non_null(json_object_get(c.doc, "later"));
    free(text);
    hl_model_config_fini(&c);
    hl_model_config_fini(&own);
}

/* Is refused if this member of EVEN is replaced. */
static void is_refused(const char *member, const char *value, const char *named)
{
    struct hl_model_config c;
    json_t *doc = json_loads(EVEN, 0, NULL);
    json_object_set_new(doc, member, json_loads(value, JSON_DECODE_ANY, NULL));
    char *text = json_dumps(doc, 0);
    assert_int_equal(hl_model_config_read(text, &c), HL_EINVAL);
    if (strstr(hl_error_text(), named) == NULL)
        fail_msg("%s is not named: %s", named, hl_error_text());
    free(text);
    json_decref(doc);
}

TEST(a_member_of_another_type_is_an_error_with_its_name)
{
    static const char *const numbers[] = {
        "parameters",  "tp",           "pp",      "virtualStages", "ep",          "etp",   "layers",
        "ffn",         "heads",        "hidden",  "kvHeads",       "headDim",     "vocab", "tied",
        "paddedVocab", "maxPositions", "normEps", "ropeTheta",     "vocabDivisor"};
    for (size_t i = 0; i < HL_ARRAY_LEN(numbers); i++)
        is_refused(numbers[i], "\"2\"", numbers[i]);
    static const char *const texts[] = {"architecture", "dtype",    "unslicedBecause", "naming",
                                        "pad",          "unsliced", "asSaved"};
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++)
        is_refused(texts[i], "2", texts[i]);
    is_refused("tp", "4294967296", "tp");
    is_refused("naming", "\"megatron\"", "naming");
    is_refused("hf", "[]", "hf");
    is_refused("tensors", "{}", "tensors");
    is_refused("adapter", "\"tiny\"", "adapter");
    is_refused("adapter", "{\"base\": 2}", "adapter.base");
    is_refused("adapter", "{\"base\": \"tiny\"}", "adapter.peft");
    is_refused("stages", "2", "stages");
    is_refused("stages", "[2]", "stages[0]");
    is_refused("stages", "[[{\"first\": 0, \"count\": \"4\"}]]", "stages[0][0]: field count");
    is_refused("stages", "[[{\"first\": 0, \"count\": 4}], [{\"first\": 4}]]", "stages[1][0]");
}

TEST(a_text_that_is_no_object_is_an_error)
{
    struct hl_model_config c;
    assert_int_equal(hl_model_config_read("not JSON", &c), HL_EINVAL);
    assert_int_equal(hl_model_config_read("[]", &c), HL_EINVAL);
}

TEST(a_config_that_says_no_split_has_no_shape)
{
    struct hl_model_shape s;
    assert_int_equal(hl_model_shape_read("{\"architecture\": \"llama\"}", &s), HL_EUNSUPPORTED);
    assert_int_equal(hl_model_shape_read(UNSLICED, &s), HL_OK);
    assert_true(s.unsliced);
    assert_int_equal(hl_model_shape_read(AS_SAVED, &s), HL_OK);
    assert_true(s.as_saved);
    assert_int_equal(s.split.pp, 3);
}
