/* Every enum that a message of the schema can carry: to its words and back, and what is refused. */
#include "support/test.h"

#include <string.h>

#include "api/types.h"

#define ENUMS_MAX 64

struct enums {
    const struct hl_api_enum *seen[ENUMS_MAX];
    size_t count;
};

static void enums_add(struct enums *all, const struct hl_api_enum *e)
{
    for (size_t i = 0; i < all->count; i++)
        if (all->seen[i] == e)
            return;
    assert_true(all->count < ENUMS_MAX);
    all->seen[all->count++] = e;
}

static void type_collect(const struct hl_api_type *type, struct enums *all)
{
    for (size_t i = 0; i < type->field_count; i++) {
        if (type->fields[i].kind == HL_API_ENUM)
            enums_add(all, type->fields[i].words);
        if (type->fields[i].kind == HL_API_STRUCT)
            type_collect(type->fields[i].type, all);
    }
}

static void enums_collect(struct enums *all)
{
    static const struct hl_api_interface *const faces[] = {&hl_api_controller, &hl_api_agent,
                                                           &hl_api_l3};
    for (size_t f = 0; f < HL_ARRAY_LEN(faces); f++)
        for (size_t m = 0; m < faces[f]->method_count; m++) {
            type_collect(faces[f]->methods[m].params, all);
            type_collect(faces[f]->methods[m].results, all);
        }
}

TEST(words_of_every_enum_there_and_back)
{
    struct enums all = {0};
    enums_collect(&all);
    assert_true(all.count > 8);
    for (size_t i = 0; i < all.count; i++) {
        const struct hl_api_enum *e = all.seen[i];
        for (int value = 0; value < (int)e->count; value++) {
            int back = -1;
            assert_int_equal(hl_api_enum_parse(e, hl_api_enum_word(e, value), &back), HL_OK);
            assert_int_equal(back, value); /* no word occurs twice */
            assert_true(value == 0 || e->words[value][0] != '\0');
        }
        assert_string_equal(hl_api_enum_word(e, (int)e->count), "?");
        assert_string_equal(hl_api_enum_word(e, -1), "?");
    }
}

TEST(unknown_words_of_every_enum_are_refused)
{
    struct enums all = {0};
    enums_collect(&all);
    for (size_t i = 0; i < all.count; i++) {
        int value = 77;
        assert_int_equal(hl_api_enum_parse(all.seen[i], "no-such-word", &value), HL_EINVAL);
        assert_int_equal(value, 77);
        assert_non_null(strstr(hl_error_text(), all.seen[i]->name));
        assert_non_null(strstr(hl_error_text(), "'no-such-word'"));
        assert_non_null(strstr(hl_error_text(), all.seen[i]->words[all.seen[i]->count - 1]));
        assert_int_equal(hl_error_text()[strlen(hl_error_text()) - 1],
                         ')'); /* the text is complete */
    }
}

TEST(unknown_words_are_told_with_field_and_choice)
{
    struct hl_arena arena = {0};
    struct hl_api_container_status status;
    json_t *json = json_pack("{s: [{}, {s: s}]}", "ranks", "state", "asleep");
    assert_int_equal(hl_api_from_json(&hl_api_container_status_type, json, &arena, &status),
                     HL_EINVAL);
    assert_string_equal(hl_error_text(),
                        "field ranks[1].state: unknown container state 'asleep' (expected wanted, "
                        "starting, running, succeeded, failed, stopped or lost)");
    json_decref(json);
    hl_arena_fini(&arena);
}
