#include "support/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conf/conf.h"
#include "conf/planes.h"

/* Two modules with the same struct, and a program that has both. */
struct store {
    const char *listen;
    int keep;
};

#define AT(field) HL_OPTION_FIELD(struct store, field)
static const struct hl_option near_options[] = {
    {"near.listen", "--near", ":1", "Address.", HL_OPT_LISTEN, HL_PLANE_BACKBONE, 0, NULL,
     AT(listen)},
    {"near.keep", "--keep", "3", "Count.", HL_OPT_INT, 1, 9, NULL, AT(keep)},
};
static const struct hl_option far_options[] = {
    {"far.listen", "--far", ":2", "Address.", HL_OPT_LISTEN, HL_PLANE_MANAGEMENT, 0, NULL,
     AT(listen)},
    {"far.keep", "--keep", "4", "Count.", HL_OPT_INT, 1, 9, NULL, AT(keep)},
};
#undef AT

static const struct hl_option_rows near_rows = HL_OPTION_ROWS(near_options);
static const struct hl_option_rows far_rows = HL_OPTION_ROWS(far_options);

struct values {
    struct store near, far;
};

static const struct hl_conf_slice slices[] = {
    {&near_rows, offsetof(struct values, near), HL_L3D},
    {&far_rows, offsetof(struct values, far), HL_AGENT},
};
static const struct hl_conf_schema whole = {.slices = slices, .count = 2};
static const struct hl_conf_schema near_only = {.slices = slices, .count = 1, .partial = true};

static hl_status load_text(const struct hl_conf_schema *schema, const char *text, char *flag,
                           struct values *v, struct hl_conf *conf)
{
    char path[] = "/tmp/helios-conf-XXXXXX", name[] = "test", config[] = "--config";
    char *argv[] = {name, config, path, flag, NULL};
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), strlen(text));
    close(fd);
    hl_status st = hl_conf_load(schema, HL_L3D, flag != NULL ? 4 : 3, argv, v, conf, NULL);
    unlink(path);
    return st;
}

TEST(each_slice_fills_its_own_struct)
{
    struct values v = {0};
    struct hl_conf conf = {0};
    char flag[] = "--keep=7";
    assert_int_equal(load_text(&whole, "far: {keep: 5, listen: 'h:9'}\n", flag, &v, &conf), HL_OK);
    assert_int_equal(v.near.keep, 7); /* the flag is that of the program's own slice */
    assert_int_equal(v.far.keep, 5);
    assert_string_equal(v.near.listen, ":1");
    assert_string_equal(v.far.listen, "h:9");
    assert_string_equal(hl_conf_origin(&conf, "near.keep"), "flag --keep");
    assert_true(hl_conf_is_set(&conf, "far.keep"));
    assert_false(hl_conf_is_set(&conf, "near.listen"));
    assert_null(hl_conf_origin(&conf, "nowhere"));
    hl_conf_fini(&conf);
    assert_null(v.far.listen);
}

TEST(an_option_that_a_file_sets_in_two_ways_is_refused_with_both_lines)
{
    struct values v = {0};
    struct hl_conf conf = {0};
    assert_int_equal(
        load_text(&whole, "far.keep: 5\nnear: {keep: 5}\nfar: {keep: 6}\n", NULL, &v, &conf),
        HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), ":3:"));
    assert_non_null(strstr(hl_error_text(), "line 1"));
    assert_non_null(strstr(hl_error_text(), "far.keep"));
}

TEST(a_partial_program_passes_over_the_options_of_others)
{
    struct values v = {0};
    struct hl_conf conf = {0};
    const char *text = "near.keep: 2\nfar.keep: 99\nelse: {x: 1}\n";
    assert_int_equal(load_text(&near_only, text, NULL, &v, &conf), HL_OK);
    assert_int_equal(v.near.keep, 2);
    hl_conf_fini(&conf);
    assert_int_equal(load_text(&near_only, "near.keep: 99\n", NULL, &v, &conf), HL_EINVAL);
    assert_int_equal(load_text(&whole, text, NULL, &v, &conf), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "far.keep"));
}

TEST(only_the_programs_own_addresses_are_completed)
{
    struct values v = {0};
    struct hl_conf conf = {0};
    const struct hl_plane_conf planes = {
        .backbone = "127.0.0.2", .migration = "", .management = "127.0.0.3"};
    assert_int_equal(load_text(&whole, "", NULL, &v, &conf), HL_OK);
    assert_int_equal(hl_planes_apply(&conf, &planes), HL_OK);
    assert_string_equal(v.near.listen, "127.0.0.2:1");
    assert_string_equal(v.far.listen, ":2");
    hl_conf_fini(&conf);
}
