/* How failures name a shard, and what the catalogue says of it. */
#include "support/test.h"

#include <string.h>

#include "client/client_private.h"

static const struct hl_id one = {1, 2}, two = {3, 4};

static int setup(void **state)
{
    static helios_client c;
    c = (helios_client){0};
    pthread_mutex_init(&c.names_lock, NULL);
    *state = &c;
    return 0;
}

static int teardown(void **state)
{
    helios_client *c = *state;
    names_fini(c);
    pthread_mutex_destroy(&c->names_lock);
    return 0;
}

TEST_IN(setup, teardown, a_shard_has_its_place_in_the_model_and_its_id)
{
    char text[400];
    names_add(*state, one, "gpt", 3, 1, 2, 0, "layer-0002");
    assert_string_equal(names_text(*state, one, text, sizeof(text)),
                        "shard gpt@3/pp1/tp2/layer-0002 (00000000000000010000000000000002)");
    assert_string_equal(names_text(*state, two, text, sizeof(text)),
                        "shard 00000000000000030000000000000004");
}

TEST_IN(setup, teardown, the_first_name_stays)
{
    char text[400];
    names_add(*state, one, "gpt", 3, 1, 2, 0, "head");
    names_add(*state, one, "other", 9, 0, 0, 0, "embedding");
    assert_non_null(strstr(names_text(*state, one, text, sizeof(text)), "gpt@3/pp1/tp2/head"));
}

TEST_IN(setup, teardown, a_short_buffer_has_the_beginning)
{
    char text[12];
    names_add(*state, one, "gpt", 3, 1, 2, 0, "head");
    assert_string_equal(names_text(*state, one, text, sizeof(text)), "shard gpt@3");
}

TEST_IN(setup, teardown, what_was_found_has_to_be_what_the_catalogue_says)
{
    names_add(*state, one, "gpt", 3, 1, 2, 0, "head");
    names_expect(*state, one, 4096, 0xcbf43926);
    assert_int_equal(names_check(*state, one, 4096, 0xcbf43926), HL_OK);
    assert_int_equal(names_check(*state, one, 4095, 0xcbf43926), HL_ECORRUPT);
    assert_int_equal(names_check(*state, one, 4096, 0xcbf43927), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "gpt@3/pp1/tp2/head"));
    assert_non_null(strstr(hl_error_text(), "cbf43927"));
    assert_non_null(strstr(hl_error_text(), "cbf43926"));
}

TEST_IN(setup, teardown, without_a_list_anything_may_be_found)
{
    names_add(*state, one, "gpt", 3, 1, 2, 0, "head");
    assert_int_equal(names_check(*state, one, 1, 2), HL_OK);
    names_expect(*state, two, 4096, 5); /* has no name: nothing is remembered of it */
    assert_int_equal(names_check(*state, two, 1, 2), HL_OK);
    names_expect(*state, one, 4096, 5);
    assert_int_equal(names_check(*state, two, 1, 2), HL_OK);
    assert_int_equal(names_check(*state, one, 1, 2), HL_ECORRUPT);
}

TEST_IN(setup, teardown, a_later_list_replaces_what_an_earlier_one_said)
{
    names_add(*state, one, "gpt", 3, 1, 2, 0, "head");
    names_expect(*state, one, 4096, 5);
    names_expect(*state, one, 8192, 6);
    assert_int_equal(names_check(*state, one, 8192, 6), HL_OK);
    assert_int_equal(names_check(*state, one, 4096, 5), HL_ECORRUPT);
}
