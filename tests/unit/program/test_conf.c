#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conf/conf.h"
#include "program/conf.h"

static char file[] = "/tmp/helios-conf-XXXXXX";

static int write_file(void **state)
{
    (void)state;
    int fd = mkstemp(file);
    return fd >= 0 ? close(fd) : -1;
}

static int remove_file(void **state)
{
    (void)state;
    return unlink(file);
}

#define WORDS(...)                                                                                 \
    (const char *const[])                                                                          \
    {                                                                                              \
        "helios-test", ##__VA_ARGS__, NULL                                                         \
    }

static int copy_words(const char *const *words, char **argv)
{
    int n = 0;
    for (; words[n] != NULL; n++)
        argv[n] =
            (char *)(uintptr_t)words[n]; /* argv of main() isn't const, and is not written to */
    argv[n] = NULL;
    return n;
}

static hl_status load(enum hl_program program, const char *const *words, struct program_conf *conf,
                      int *rest)
{
    char *argv[16];
    int argc = copy_words(words, argv);
    return program_conf_load(program, argc, argv, conf, rest);
}

static void put(const char *text)
{
    FILE *f = fopen(file, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void fails(hl_status st, const char *with)
{
    assert_int_equal(st, HL_EINVAL);
    if (strstr(hl_error_text(), with) == NULL)
        fail_msg("'%s' should hold '%s'", hl_error_text(), with);
}

static const char *origin_of(const struct hl_conf *conf, const char *name)
{
    const char *origin = hl_conf_origin(conf, name);
    return origin != NULL ? origin : "no such option";
}

TEST(defaults_stand_when_nothing_is_said)
{
    struct program_conf conf = {0};
    assert_int_equal(load(HL_L3D, WORDS(), &conf, NULL), HL_OK);
    assert_int_equal(conf.l3d.size, 1ull << 30);
    assert_int_equal(conf.controller.heartbeat_ms, 1000);
    assert_int_equal(conf.controller.node_lost_ms, 5000);
    assert_int_equal(conf.read.retry.count, 3);
    assert_int_equal(conf.pool.quarantine_ms, 2000);
    assert_string_equal(conf.l3d.pool_path, "");
    assert_string_equal(origin_of(&conf.conf, "l3.size"), "default");
    program_conf_fini(&conf);
}

TEST(the_later_source_wins_and_is_named)
{
    struct program_conf conf = {0};
    put("l3:\n  size: 2GiB\n  name: fromfile\nnode_lost: 7s\n");
    setenv("HELIOS_L3_SIZE", "3GiB", 1);
    setenv("HELIOS_LOG_LEVEL", "debug", 1);
    assert_int_equal(load(HL_L3D, WORDS("--config", file, "--size=4GiB"), &conf, NULL), HL_OK);
    unsetenv("HELIOS_L3_SIZE");
    unsetenv("HELIOS_LOG_LEVEL");
    assert_int_equal(conf.l3d.size, 4ull << 30);
    assert_string_equal(conf.daemon.log_level, "debug");
    assert_string_equal(conf.l3d.name, "fromfile");
    assert_int_equal(conf.controller.node_lost_ms, 7000);
    assert_string_equal(origin_of(&conf.conf, "l3.size"), "flag --size");
    assert_string_equal(origin_of(&conf.conf, "log.level"), "environment HELIOS_LOG_LEVEL");
    char want[64];
    snprintf(want, sizeof(want), "file %s:3", file);
    assert_string_equal(origin_of(&conf.conf, "l3.name"), want);
    program_conf_fini(&conf);
}

TEST(mistakes_are_told_with_place_and_guess)
{
    struct program_conf conf = {0};
    char want[96];
    fails(load(HL_L3D, WORDS("--sise", "1"), &conf, NULL),
          "unknown flag --sise; did you mean --size?");
    fails(load(HL_L3D, WORDS("--size"), &conf, NULL), "--size needs a value");
    fails(load(HL_L3D, WORDS("--size=big"), &conf, NULL), "--size: 'big' is not a size");
    fails(load(HL_L3D, WORDS("--size=1KiB"), &conf, NULL), "too small: 1.0 MiB to");
    fails(load(HL_L3D, WORDS("--log-level=loud"), &conf, NULL),
          "'loud' is not one of error|warn|info|debug");
    fails(load(HL_L3D, WORDS("now"), &conf, NULL), "unexpected argument 'now'");
    put("l3:\n  sise: 2GiB\n");
    snprintf(want, sizeof(want), "%s:2:3: unknown option 'l3.sise'; did you mean 'l3.size'?", file);
    fails(load(HL_L3D, WORDS("--config", file), &conf, NULL), want);
    put("l3:\n  size: -2\n");
    snprintf(want, sizeof(want), "%s:2:9: l3.size: '-2' is not a size", file);
    fails(load(HL_L3D, WORDS("--config", file), &conf, NULL), want);
    put("l3:\n  size: [1, 2]\n");
    fails(load(HL_L3D, WORDS("--config", file), &conf, NULL), "takes one value");
    setenv("HELIOS_HEARTBEAT", "soon", 1);
    fails(load(HL_L3D, WORDS(), &conf, NULL), "environment variable HELIOS_HEARTBEAT: ");
    unsetenv("HELIOS_HEARTBEAT");
    assert_null(conf.daemon.log_level); /* nothing is left behind */
}

TEST(arguments_after_the_flags_are_left_to_the_caller)
{
    struct program_conf conf = {0};
    int rest = 0;
    assert_int_equal(load(HL_AGENT, WORDS("--controller", "h:1", "submit", "--follow", "job.yaml"),
                          &conf, &rest),
                     HL_OK);
    assert_int_equal(rest, 3);
    assert_string_equal(conf.calls.agent_controller, "h:1");
    program_conf_fini(&conf);
}

TEST(every_row_is_in_order)
{
    struct program_conf conf = {0};
    assert_int_equal(load(HL_CLI, WORDS(), &conf, NULL), HL_OK);
    for (size_t i = 0; i < conf.conf.row_count; i++) {
        const struct hl_option *a = &conf.conf.rows[i];
        assert_true(strncmp(a->flag, "--", 2) == 0);
        assert_true(a->programs != 0 && a->help[strlen(a->help) - 1] == '.');
        assert_true(a->width == 4 || a->width == 8 || (a->kind == HL_OPT_BOOL && a->width == 1));
        assert_true(a->offset >= sizeof(conf.conf) && a->offset + a->width <= sizeof(conf));
        for (size_t k = 0; k < i; k++) {
            const struct hl_option *b = &conf.conf.rows[k];
            assert_string_not_equal(a->name, b->name);
            assert_int_not_equal(a->offset, b->offset);
            if (a->programs & b->programs)
                assert_string_not_equal(a->flag, b->flag);
        }
    }
    struct hl_arena arena = {0};
    struct hl_api_option_info_list rows;
    assert_int_equal(hl_conf_dump(&conf.conf, &arena, &rows), HL_OK);
    assert_int_equal(rows.count, conf.conf.row_count);
    assert_string_equal(rows.items[0].name, "log.level");
    assert_string_equal(rows.items[0].env, "HELIOS_LOG_LEVEL");
    hl_arena_fini(&arena);
    program_conf_fini(&conf);
    assert_int_equal(load(HL_L3D, WORDS(), &conf, NULL), HL_OK);
    char *help = hl_conf_help(&conf.conf);
    assert_non_null(strstr(help, "--size SIZE"));
    assert_null(strstr(help, "--node-lost"));
    free(help);
    program_conf_fini(&conf);
}

struct places {
    char root[64], system[128], user[128];
};

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void make_places(struct places *p)
{
    char dir[96];
    snprintf(p->root, sizeof(p->root), "/tmp/helios-places-XXXXXX");
    assert_non_null(mkdtemp(p->root));
    snprintf(p->system, sizeof(p->system), "%s/system.yaml", p->root);
    snprintf(dir, sizeof(dir), "%s/helios", p->root);
    assert_int_equal(mkdir(dir, 0755), 0);
    snprintf(p->user, sizeof(p->user), "%s/helios.yaml", dir);
    hl_conf_system_file = p->system;
    setenv("XDG_CONFIG_HOME", p->root, 1);
    unsetenv("HELIOS_CONFIG");
}

static void remove_places(struct places *p)
{
    char dir[96];
    unlink(p->system);
    unlink(p->user);
    snprintf(dir, sizeof(dir), "%s/helios", p->root);
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(rmdir(p->root), 0);
    unsetenv("XDG_CONFIG_HOME");
    setenv("HELIOS_CONFIG", "", 1);
}

TEST(the_files_of_the_system_and_of_the_user_are_found)
{
    struct places p;
    struct program_conf conf = {0};
    char want[160];
    make_places(&p);
    assert_int_equal(load(HL_L3D, WORDS(), &conf, NULL), HL_OK); /* neither is there */
    assert_string_equal(origin_of(&conf.conf, "l3.size"), "default");
    program_conf_fini(&conf);

    write_text(p.system, "l3: {size: 2GiB, name: ofsystem}\n");
    write_text(p.user, "l3.size: 3GiB\n");
    assert_int_equal(load(HL_L3D, WORDS(), &conf, NULL), HL_OK);
    assert_int_equal(conf.l3d.size, 3ull << 30); /* the user's comes after the system's */
    assert_string_equal(conf.l3d.name, "ofsystem");
    snprintf(want, sizeof(want), "file %s:1", p.user);
    assert_string_equal(origin_of(&conf.conf, "l3.size"), want);
    program_conf_fini(&conf);

    write_text(p.user, "l3.sise: 3GiB\n");
    fails(load(HL_L3D, WORDS(), &conf, NULL), p.user); /* a mistake in it is reported */
    remove_places(&p);
}

TEST(a_file_that_is_given_is_the_only_one)
{
    struct places p;
    struct program_conf conf = {0};
    make_places(&p);
    write_text(p.system, "l3.size: 2GiB\n");
    write_text(p.user, "l3.size: 3GiB\n");
    put("l3.name: given\n");
    assert_int_equal(load(HL_L3D, WORDS("--config", file), &conf, NULL), HL_OK);
    assert_int_equal(conf.l3d.size, 1ull << 30);
    assert_string_equal(conf.l3d.name, "given");
    program_conf_fini(&conf);
    setenv("HELIOS_CONFIG", "", 1); /* no file at all */
    assert_int_equal(load(HL_L3D, WORDS(), &conf, NULL), HL_OK);
    assert_int_equal(conf.l3d.size, 1ull << 30);
    program_conf_fini(&conf);
    remove_places(&p);
}

TEST(what_is_shown_holds_no_password)
{
    static const char *const urls[][2] = {
        {"s3://key:secret@host/b", "s3://key:***@host/b"},
        {"s3://key@host/b", "s3://key@host/b"},
        {"dir:/a:b@c", "dir:/a:b@c"},
        {"http://host/p:q@r", "http://host/p:q@r"},
        {"http://u:x@h", "http://u:*@h"},
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(urls); i++) {
        struct program_conf conf = {0};
        assert_int_equal(load(HL_L3D, WORDS("--archive", urls[i][0]), &conf, NULL), HL_OK);
        struct hl_arena arena = {0};
        struct hl_api_option_info_list rows;
        size_t seen = 0;
        assert_int_equal(hl_conf_dump(&conf.conf, &arena, &rows), HL_OK);
        for (size_t k = 0; k < rows.count; k++) {
            if (strcmp(rows.items[k].name, "archive.url") != 0)
                continue;
            seen++;
            assert_string_equal(rows.items[k].value, urls[i][1]);
        }
        assert_int_equal(seen, 1);
        assert_int_equal(hl_conf_has_password(urls[i][0]), strcmp(urls[i][0], urls[i][1]) != 0);
        assert_string_equal(conf.archive.url, urls[i][0]); /* the daemon has it whole */
        hl_arena_fini(&arena);
        program_conf_fini(&conf);
    }
}

TEST(values_are_shown_as_people_write_them)
{
    static const char *const texts[][3] = {
        {"l3.size", "1073741824", "1GiB"},
        {"l3.size", "100663296", "96MiB"},
        {"l3.size", "1048577", "1048577"},
        {"node_lost", "5000ms", "5s"},
        {"node_lost", "1500ms", "1500ms"},
        {"jobs.keep_age", "2592000000ms", "30d"},
        {"archive.quota", "0", "0"},
        {"plane.backbone_rate", "25000000000", "25Gbit"},
        {"l3.name", "1073741824", "1073741824"},
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(texts); i++) {
        char *text = hl_conf_text(&program_schema, texts[i][0], texts[i][1]);
        assert_string_equal(text, texts[i][2]);
        free(text);
    }
}

TESTS_IN(write_file, remove_file)

int main(int argc, char **argv)
{
    setenv("HELIOS_CONFIG", "", 1); /* whatever lies on the machine that runs this */
    return tests_run(argc, argv);
}
