/* Expressions compared with values worked out by hand, and the tables with their own rules. */
#include "support/test.h"

#include <string.h>

#include "core/families/family.h"

static const struct hl_family_symbol symbols[] = {
    {"heads", HL_SYMBOL_SIZE, "heads", NULL},
    {"head_dim", HL_SYMBOL_SIZE, "head_dim", NULL},
    {"moe", HL_SYMBOL_VALUE, NULL, "layer >= 1 && layer % 2 == 1"},
    {"listed", HL_SYMBOL_LAYERS, "list", "moe"},
    {"endless", HL_SYMBOL_VALUE, NULL, "endless + 1"},
    {NULL, HL_SYMBOL_SIZE, NULL, NULL},
};

static const struct hl_family family = {.name = "toy", .symbols = symbols};
static const int64_t values[] = {6, 4, 0, 0, 0};

static hl_status eval(const char *text, int64_t layer, const json_t *config, int64_t *out)
{
    struct hl_family_scope scope = {
        .family = &family, .config = config, .values = values, .layer = layer};
    return hl_family_eval(&scope, text, out);
}

TEST(expressions_bind_as_in_c)
{
    static const struct {
        const char *text;
        int64_t layer, want;
    } rows[] = {
        {"2 + 3 * 4", 0, 14},    {"(2 + 3) * 4", 0, 20},
        {"20 - 3 - 4", 0, 13},   {"60 / 3 / 4", 0, 5},
        {"17 % 5 * 2", 0, 4},    {"heads * head_dim", 0, 24},
        {"layer >= 3", 3, 1},    {"layer >= 3", 2, 0},
        {"1 < 2 == 1", 0, 1},    {"!heads", 0, 0},
        {"!(heads == 5)", 0, 1}, {"0 || 1 && 0", 0, 0},
        {"1 || 1 && 0", 0, 1},   {"moe", 3, 1},
        {"moe * heads", 2, 0},   {"heads<=6&&layer!=1", 0, 1},
        {"heads > 6", 0, 0},     {" ( ( 7 ) ) ", 0, 7},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        int64_t got = -1;
        assert_int_equal(eval(rows[i].text, rows[i].layer, NULL, &got), HL_OK);
        if (got != rows[i].want)
            fail_msg("%s is %lld", rows[i].text, (long long)got);
    }
}

TEST(a_list_of_layers_is_asked_for_the_layer)
{
    json_t *config = json_loads("{\"list\": [0, 2]}", 0, NULL);
    int64_t got;
    assert_int_equal(eval("listed", 2, config, &got), HL_OK);
    assert_int_equal(got, 1);
    assert_int_equal(eval("listed", 1, config, &got), HL_OK);
    assert_int_equal(got, 0);
    json_decref(config);
    assert_int_equal(eval("listed", 1, NULL, &got), HL_OK); /* without the list: moe */
    assert_int_equal(got, 1);
}

TEST(bad_expressions_are_named_with_their_family)
{
    static const struct {
        const char *text, *want;
    } rows[] = {
        {"heads * width", "family toy: expression 'heads * width' at 'width': no such symbol"},
        {"2 +", "a number or a symbol was expected"},
        {"(2", "')' was expected"},
        {"2 3", "an operator was expected"},
        {"heads / (layer - 1)", "division by zero"},
        {"heads % 0", "division by zero"},
        {"9223372036854775807 + 1", "beyond 2^63"},
        {"4294967296 * 4294967296", "beyond 2^63"},
        {"endless", "nested too deep"},
        {"((((((((((((((((((((((((((((((((((1))))))))))))))))))))))))))))))))))", "too deep"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        int64_t got = 7;
        assert_int_equal(eval(rows[i].text, 1, NULL, &got), HL_EINVAL);
        assert_int_equal(got, 7);
        if (strstr(hl_error_text(), rows[i].want) == NULL)
            fail_msg("'%s' does not say '%s'", hl_error_text(), rows[i].want);
    }
}

TEST(families_are_found_by_type_and_by_class)
{
    assert_string_equal(hl_family_find("mistral", NULL)->name, "mistral");
    assert_string_equal(hl_family_find(NULL, "LlamaForCausalLM")->name, "llama");
    assert_string_equal(hl_family_find(NULL, "GPT2LMHeadModel")->name, "gpt2");
    assert_null(hl_family_find("bert", "LlamaForCausalLM"));
    assert_null(hl_family_find(NULL, NULL));
}

static void check_expression(const struct hl_family *f, const int64_t *ones, const char *text)
{
    struct hl_family_scope scope = {.family = f, .values = ones, .layer = 0};
    int64_t out;
    if (text != NULL && hl_family_eval(&scope, text, &out) != HL_OK)
        fail_msg("%s", hl_error_text());
}

TEST(every_expression_of_every_table_can_be_worked_out)
{
    for (size_t k = 0; hl_families[k] != NULL; k++) {
        const struct hl_family *f = hl_families[k];
        int64_t ones[HL_FAMILY_SYMBOLS_MAX];
        int n = 0;
        for (; f->symbols[n].name != NULL; n++) {
            assert_in_range(n, 0, HL_FAMILY_SYMBOLS_MAX - 2);
            ones[n] = 1;
            assert_int_equal(
                hl_family_symbol_index(f, f->symbols[n].name, strlen(f->symbols[n].name)), n);
        }
        for (int i = 0; i < n; i++)
            check_expression(f, ones, f->symbols[i].absent);
        for (const struct hl_family_divided *d = f->divided; d->value != NULL; d++)
            check_expression(f, ones, d->value);
        for (const struct hl_family_tensor *t = f->tensors; t->name != NULL; t++) {
            check_expression(f, ones, t->rows);
            check_expression(f, ones, t->cols);
            check_expression(f, ones, t->when);
        }
    }
}
