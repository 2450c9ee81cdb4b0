/* The plain values of a pickle, as JSON; everything else is left out. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "core/torch/pickle.h"
#include "core/torch/plain.h"

/* `pickle`, without protocol and end, must become that JSON; NULL = nothing. */
static void assert_json(const char *pickle, size_t len, const char *want)
{
    char bytes[256] = "\x80\x02";
    struct hl_pickle p;
    memcpy(bytes + 2, pickle, len);
    bytes[len + 2] = '.';
    assert_int_equal(hl_pickle_parse(bytes, len + 3, &p), HL_OK);
    json_t *json = hl_pickle_json(p.root);
    char *text = json != NULL ? json_dumps(json, JSON_COMPACT | JSON_ENCODE_ANY) : NULL;
    if (want == NULL)
        assert_null(text);
    else
        assert_string_equal(text, want);
    free(text);
    json_decref(json);
    hl_pickle_fini(&p);
}

#define ASSERT_JSON(pickle, want) assert_json(pickle, sizeof(pickle) - 1, want)

TEST(plain_values_keep_their_kind)
{
    ASSERT_JSON("N", "null");
    ASSERT_JSON("\x88", "true");
    ASSERT_JSON("K\x13", "19");
    ASSERT_JSON("G\x3f\xe0\0\0\0\0\0\0", "0.5");
    ASSERT_JSON("X\x02\0\0\0lr", "\"lr\"");
    ASSERT_JSON("K\x01K\x02\x86", "[1,2]");
    ASSERT_JSON("}K\x07K\x01s", "{\"7\":1}");
}

TEST(what_is_not_plain_stays_out)
{
    ASSERT_JSON("ccollections\nCounter\n)R", NULL);
    ASSERT_JSON("}(X\x01\0\0\0aK\x01X\x01\0\0\0bccollections\nCounter\n)Ru", "{\"a\":1}");
    ASSERT_JSON("](K\x01"
                "ccollections\nCounter\n)Re",
                "[1,null]");
    ASSERT_JSON("G\x7f\xf0\0\0\0\0\0\0", NULL); /* infinity */
    ASSERT_JSON("}G\x3f\xe0\0\0\0\0\0\0K\x01s", "{}");
}

TEST(a_list_in_itself_ends)
{
    /* []; memo 0; append itself: sixteen levels, then nothing. */
    ASSERT_JSON("]q\0h\0a", "[[[[[[[[[[[[[[[[null]]]]]]]]]]]]]]]]");
}
