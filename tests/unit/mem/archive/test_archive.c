/* The archive in a directory does what every archive must do; its own properties are in
 * test_archive_dir.
 */
#include "unit/mem/archive/archive_conformance.h"

static void an_unknown_kind_is_refused(void **state)
{
    (void)state;
    struct hl_archive *a = NULL;
    assert_int_equal(hl_archive_open(&(struct hl_archive_options){.url = "tape:/dev/st0"}, &a),
                     HL_EINVAL);
    assert_error_has("tape:/dev/st0");
    assert_null(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        ARCHIVE_CONFORMANCE(rig_setup, rig_teardown),
        cmocka_unit_test(an_unknown_kind_is_refused),
    };
    return cmocka_run_group_tests_name("archive dir", tests, NULL, NULL);
}
