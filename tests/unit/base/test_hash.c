/* Hashes of texts, compared with values published by the authors of FNV-1a. */
#include "support/test.h"

#include <string.h>

#include "base/hash.h"

TEST(texts_have_the_hashes_that_fnv_1a_says)
{
    assert_true(hl_hash_text("") == UINT64_C(0xcbf29ce484222325));
    assert_true(hl_hash_text("a") == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(hl_hash_text("foobar") == UINT64_C(0x85944171f73967e8));
    assert_true(hl_hash_text("\xff") == UINT64_C(0xaf64724c8602eb6e)); /* bytes are unsigned */
}

TEST(what_is_hashed_in_pieces_has_the_hash_of_the_whole)
{
    uint64_t hash = hl_hash_add(HL_HASH_START, "foo", 3);
    assert_true(hl_hash_add(hash, "bar", 3) == hl_hash_text("foobar"));
    assert_true(hl_hash_add(hash, "", 0) == hl_hash_text("foo"));
    assert_true(hl_hash_add(HL_HASH_START, "foo\0bar", 7) != hl_hash_text("foo"));
}
