/* ABI structs that have grown between the caller's header and the library, in both directions. */
#include "base/abi.h"

#include <string.h>

#include "support/test.h"

struct plain {
    size_t size;
    uint64_t first;
};

struct grown {
    size_t size;
    uint64_t first, second;
};

TEST(an_older_caller_gets_zeros_for_the_members_that_it_lacks)
{
    struct {
        struct plain given;
        uint64_t foreign; /* after the caller's struct: must not be read */
    } caller = {{sizeof(struct plain), 7}, 99};
    struct grown known;
    memset(&known, 0xff, sizeof(known));
    assert_int_equal(HL_ABI_READ(struct grown, &caller.given, &known), HL_OK);
    assert_int_equal(known.size, sizeof(struct grown));
    assert_int_equal(known.first, 7);
    assert_int_equal(known.second, 0);
}

TEST(a_newer_caller_is_served_while_its_new_members_are_0)
{
    struct grown caller = {sizeof(struct grown), 7, 0};
    struct plain known;
    assert_int_equal(HL_ABI_READ(struct plain, &caller, &known), HL_OK);
    assert_int_equal(known.size, sizeof(struct plain));
    assert_int_equal(known.first, 7);
}

TEST(a_newer_caller_is_refused_when_the_library_would_ignore_a_member)
{
    struct grown caller = {sizeof(struct grown), 7, (uint64_t)1 << 56}; /* its last byte only */
    struct plain known = {1, 2};
    assert_int_equal(HL_ABI_READ(struct plain, &caller, &known), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "struct plain.size is 24"));
    assert_non_null(strstr(hl_error_text(), "16 bytes"));
    assert_int_equal(known.size, 1);
    assert_int_equal(known.first, 2);
}

TEST(a_size_that_was_not_set_is_refused_and_the_message_says_what_to_set)
{
    const size_t bad[] = {0, 1, sizeof(size_t) - 1, HL_ABI_MAX + 1, SIZE_MAX};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++) {
        struct plain caller = {bad[i], 7}, known = {1, 2};
        assert_int_equal(HL_ABI_READ(struct plain, &caller, &known), HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "set it to sizeof(struct plain)"));
        assert_int_equal(known.first, 2);
        assert_int_equal(HL_ABI_CHECK(struct plain, &caller), HL_EINVAL);
        assert_int_equal(HL_ABI_WRITE(struct plain, &known, &caller), HL_EINVAL);
        assert_int_equal(caller.size, bad[i]);
        assert_int_equal(caller.first, 7);
    }
}

TEST(an_older_caller_gets_no_byte_behind_its_struct)
{
    struct {
        struct plain out;
        uint64_t foreign;
    } caller = {{sizeof(struct plain), 0}, 99};
    struct grown known = {0, 7, 8};
    assert_int_equal(HL_ABI_WRITE(struct grown, &known, &caller.out), HL_OK);
    assert_int_equal(caller.out.size, sizeof(struct plain));
    assert_int_equal(caller.out.first, 7);
    assert_int_equal(caller.foreign, 99);
}

TEST(a_newer_caller_finds_0_in_what_the_library_cannot_fill)
{
    struct grown caller = {sizeof(struct grown), 1, 2};
    struct plain known = {0, 7};
    assert_int_equal(HL_ABI_WRITE(struct plain, &known, &caller), HL_OK);
    assert_int_equal(caller.size, sizeof(struct grown));
    assert_int_equal(caller.first, 7);
    assert_int_equal(caller.second, 0);
}
