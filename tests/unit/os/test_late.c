/* Libraries that are loaded late, shown with the C library's libm. */
#include "support/test.h"

#include <string.h>

#include "os/late.h"

static struct {
    double (*cosine)(double);
    double (*other)(double);
} calls;

static struct hl_late late_of(const char *library, const char *const *names, size_t count)
{
    memset(&calls, 0, sizeof(calls));
    return (struct hl_late){.library = library,
                            .names = names,
                            .calls = &calls,
                            .count = count,
                            .lock = PTHREAD_MUTEX_INITIALIZER};
}

TEST(functions_are_found_in_the_order_of_their_names)
{
    static const char *const names[] = {"cos", "sqrt"};
    struct hl_late late = late_of("libm.so.6", names, 2);
    assert_int_equal(hl_late_load(&late), HL_OK);
    assert_true(calls.cosine(0) == 1.0);
    assert_true(calls.other(81) == 9.0);
}

TEST(a_library_that_is_not_there_is_named_each_time)
{
    static const char *const names[] = {"cos"};
    struct hl_late late = late_of("libabsent.so.7", names, 1);
    for (int again = 0; again < 2; again++) {
        assert_int_equal(hl_late_load(&late), HL_EUNAVAIL);
        assert_non_null(strstr(hl_error_text(), "libabsent.so.7"));
    }
    late.library = "libm.so.6"; /* it was installed meanwhile */
    assert_int_equal(hl_late_load(&late), HL_OK);
}

TEST(a_function_that_is_missing_is_named)
{
    static const char *const names[] = {"cos", "cos_of_helios"};
    struct hl_late late = late_of("libm.so.6", names, 2);
    assert_int_equal(hl_late_load(&late), HL_EUNAVAIL);
    assert_non_null(strstr(hl_error_text(), "libm.so.6 has no cos_of_helios"));
}
