/* Lists built step by step: pairs that are set and removed, texts that are added. */
#include "support/test.h"

#include "api/lists.h"

TEST(a_pair_is_set_found_replaced_and_removed)
{
    struct hl_arena arena = {0};
    struct hl_api_key_value decoded[] = {{"a", "1"}, {"b", "2"}};
    struct hl_api_key_value_list list = {decoded, 2};
    hl_api_pair_set(&arena, &list, "c", "3");
    hl_api_pair_set(&arena, &list, "a", "4");
    assert_int_equal(list.count, 3);
    assert_string_equal(hl_api_pair_find(&list, "a", NULL), "4");
    assert_string_equal(hl_api_pair_find(&list, "c", NULL), "3");
    assert_string_equal(decoded[0].value, "1"); /* the list was copied */
    hl_api_pair_remove(&list, "a");
    hl_api_pair_remove(&list, "z");
    assert_int_equal(list.count, 2);
    assert_string_equal(hl_api_pair_find(&list, "a", "absent"), "absent");
    assert_string_equal(list.items[0].key, "b");
    assert_string_equal(list.items[1].key, "c");
    hl_arena_fini(&arena);
}

TEST(what_is_merged_replaces)
{
    struct hl_arena arena = {0};
    struct hl_api_key_value more[] = {{"a", "2"}, {"b", "3"}};
    struct hl_api_key_value_list list = {0};
    hl_api_pair_set(&arena, &list, "a", "1");
    hl_api_pairs_merge(&arena, &list, &(struct hl_api_key_value_list){more, 2});
    assert_int_equal(list.count, 2);
    assert_string_equal(hl_api_pair_find(&list, "a", NULL), "2");
    assert_string_equal(hl_api_pair_find(&list, "b", NULL), "3");
    hl_arena_fini(&arena);
}

TEST(a_list_of_texts_keeps_all_it_was_given)
{
    struct hl_arena arena = {0};
    struct hl_api_text_list list = {0};
    char text[16];
    for (int i = 0; i < 100; i++) {
        snprintf(text, sizeof(text), "%d", i);
        hl_api_text_add(&arena, &list, text);
    }
    assert_int_equal(list.count, 100);
    for (int i = 0; i < 100; i++) {
        snprintf(text, sizeof(text), "%d", i);
        assert_string_equal(list.items[i], text);
    }
    assert_false(hl_arena_failed(&arena));
    hl_arena_fini(&arena);
}
