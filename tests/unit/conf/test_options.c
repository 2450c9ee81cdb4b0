#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "conf/options.h"
#include "conf/options_private.h"
#include "conf/table_private.h"

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
            (char *)(uintptr_t)words[n]; /* argv of main() isn't const, and nobody writes to it */
    argv[n] = NULL;
    return n;
}

static hl_status load(enum hl_program program, const char *const *words, struct hl_conf *conf,
                      int *rest)
{
    char *argv[16];
    int argc = copy_words(words, argv);
    return hl_conf_load(program, argc, argv, conf, rest);
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
    for (size_t i = 0; i < hl_conf_table_count; i++)
        if (strcmp(hl_conf_table[i].name, name) == 0)
            return conf->origin[i];
    return "no such option";
}

TEST(defaults_stand_when_nothing_is_said)
{
    struct hl_conf conf = {0};
    assert_int_equal(load(HL_L3D, WORDS(), &conf, NULL), HL_OK);
    assert_int_equal(conf.l3_size, 1ull << 30);
    assert_int_equal(conf.heartbeat_ms, 1000);
    assert_int_equal(conf.node_lost_ms, 5000);
    assert_int_equal(conf.read_retries, 3);
    assert_int_equal(conf.l3_quarantine_ms, 2000);
    assert_string_equal(conf.l3_pool, "");
    assert_string_equal(origin_of(&conf, "l3.size"), "default");
    hl_conf_fini(&conf);
}

TEST(the_later_source_wins_and_is_named)
{
    struct hl_conf conf = {0};
    put("l3:\n  size: 2GiB\n  name: fromfile\nnode_lost: 7s\n");
    setenv("HELIOS_L3_SIZE", "3GiB", 1);
    setenv("HELIOS_LOG_LEVEL", "debug", 1);
    assert_int_equal(load(HL_L3D, WORDS("--config", file, "--size=4GiB"), &conf, NULL), HL_OK);
    unsetenv("HELIOS_L3_SIZE");
    unsetenv("HELIOS_LOG_LEVEL");
    assert_int_equal(conf.l3_size, 4ull << 30);
    assert_string_equal(conf.log_level, "debug");
    assert_string_equal(conf.l3_name, "fromfile");
    assert_int_equal(conf.node_lost_ms, 7000);
    assert_string_equal(origin_of(&conf, "l3.size"), "flag --size");
    assert_string_equal(origin_of(&conf, "log.level"), "environment HELIOS_LOG_LEVEL");
    char want[64];
    snprintf(want, sizeof(want), "file %s:3", file);
    assert_string_equal(origin_of(&conf, "l3.name"), want);
    hl_conf_fini(&conf);
}

TEST(mistakes_are_told_with_place_and_guess)
{
    struct hl_conf conf = {0};
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
    assert_null(conf.log_level); /* nothing is left behind */
}

TEST(arguments_after_the_flags_are_left_to_the_caller)
{
    struct hl_conf conf = {0};
    int rest = 0;
    assert_int_equal(load(HL_AGENT, WORDS("--controller", "h:1", "submit", "--follow", "job.yaml"),
                          &conf, &rest),
                     HL_OK);
    assert_int_equal(rest, 3);
    assert_string_equal(conf.agent_controller, "h:1");
    hl_conf_fini(&conf);
}

TEST(every_row_is_in_order)
{
    for (size_t i = 0; i < hl_conf_table_count; i++) {
        const struct hl_option *a = &hl_conf_table[i];
        assert_true(strncmp(a->flag, "--", 2) == 0);
        assert_true(a->programs != 0 && a->help[strlen(a->help) - 1] == '.');
        for (size_t k = 0; k < i; k++) {
            const struct hl_option *b = &hl_conf_table[k];
            assert_string_not_equal(a->name, b->name);
            assert_int_not_equal(a->offset, b->offset);
            if (a->programs & b->programs)
                assert_string_not_equal(a->flag, b->flag);
        }
    }
    struct hl_conf conf = {0};
    assert_int_equal(load(HL_CLI, WORDS(), &conf, NULL), HL_OK);
    json_t *rows = hl_conf_dump(&conf);
    assert_int_equal(json_array_size(rows), hl_conf_table_count);
    const json_t *row = json_array_get(rows, 0);
    assert_string_equal(json_string_value(json_object_get(row, "name")), "log.level");
    assert_string_equal(json_string_value(json_object_get(row, "env")), "HELIOS_LOG_LEVEL");
    json_decref(rows);
    hl_conf_fini(&conf);
    char *help = hl_conf_help(HL_L3D);
    assert_non_null(strstr(help, "--size SIZE"));
    assert_null(strstr(help, "--node-lost"));
    free(help);
}

struct args {
    char *output;
    int64_t follow;
    int64_t color;
    int64_t nodes;
    double high;
};

static const struct hl_option arg_rows[] = {
    {"output", "-o,--output", "table", "Form.", HL_OPT_ENUM, 0, 0, "table|json",
     offsetof(struct args, output), 0},
    {"follow", "-f,--follow", "false", "Follow.", HL_OPT_BOOL, 0, 0, NULL,
     offsetof(struct args, follow), 0},
    {"color", "--color", "true", "Colour.", HL_OPT_BOOL, 0, 0, NULL, offsetof(struct args, color),
     0},
    {"nodes", "--nodes", "1", "Nodes.", HL_OPT_INT, 1, 64, NULL, offsetof(struct args, nodes), 0},
    {"high", "--high", "85", "Mark.", HL_OPT_PERCENT, 0, 100, NULL, offsetof(struct args, high), 0},
};

static hl_status args(const char *const *words, struct args *a)
{
    char *argv[16];
    int rest;
    int argc = copy_words(words + 1, argv);
    return hl_args_parse(arg_rows, 5, "helios x", argc, argv, a, &rest);
}

TEST(a_subcommand_takes_flags_and_arguments_in_any_order)
{
    struct args a = {0};
    int rest = -1;
    char *argv[16];
    const char *const words[] = {"--nodes", "3",       "job.yaml",   "-o",     "json",
                                 "second",  "-f",      "--no-color", "--high", "70.5%",
                                 "--",      "--third", NULL};
    int argc = copy_words(words, argv);
    assert_int_equal(hl_args_parse(arg_rows, 5, "helios x", argc, argv, &a, &rest), HL_OK);
    assert_int_equal(rest, 3);
    assert_string_equal(argv[0], "job.yaml");
    assert_string_equal(argv[1], "second");
    assert_string_equal(argv[2], "--third");
    assert_string_equal(a.output, "json");
    assert_int_equal(a.follow, 1);
    assert_int_equal(a.color, 0);
    assert_int_equal(a.nodes, 3);
    assert_true(a.high == 70.5);
    hl_args_fini(arg_rows, 5, &a);
    fails(args(WORDS("--nodes", "65"), &a), "--nodes: '65' is too large: 1 to 64");
    fails(args(WORDS("--nodes", "99999999999999999999"), &a), "99999' is too large: 1 to 64");
    fails(args(WORDS("--nodes", "-99999999999999999999"), &a), "99999' is too small: 1 to 64");
    fails(args(WORDS("--folow"), &a), "did you mean --follow?");
    fails(args(WORDS("--no-color=1"), &a), "takes no value");
    fails(args(WORDS("--follow=maybe"), &a), "neither true nor false");
    assert_null(a.output);
}

TEST(sizes_and_durations_are_read_as_people_write_them)
{

    static const struct {
        const char *text;
        uint64_t value;
    } sizes[] = {
        {"0", 0},
        {"4096", 4096},
        {"1k", 1024},
        {"512MiB", 512u << 20},
        {"2GB", 2000000000u},
        {"1.5GiB", 1610612736u},
        {"256g", 256ull << 30},
        {"3 MiB", 3u << 20},
        {"0.1KB", 100},
    };

    uint64_t v = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        assert_int_equal(hl_parse_bytes(sizes[i].text, &v), HL_OK);
        assert_int_equal(v, sizes[i].value);
    }
    static const char *const bad[] = {"",
                                      "x",
                                      "-1",
                                      "1.",
                                      "1.5.5",
                                      "1XB",
                                      "9e3",
                                      "1GiBs",
                                      " 1",
                                      "99999999999999999999",
                                      "9999999999TiB"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(hl_parse_bytes(bad[i], &v), HL_EINVAL);
    assert_int_equal(hl_parse_duration_ms("1.5s", &v), HL_OK);
    assert_int_equal(v, 1500);
    assert_int_equal(hl_parse_duration_ms("2h", &v), HL_OK);
    assert_int_equal(v, 7200000);
    assert_int_equal(hl_parse_duration_ms("250", &v), HL_OK);
    assert_int_equal(v, 250);
    assert_int_equal(hl_parse_duration_ms("5 weeks", &v), HL_EINVAL);
}

TEST(a_slip_of_the_hand_is_guessed_and_nonsense_is_not)
{
    static const char *const names[] = {"jobName", "model", "tensor_parallel_size", "env"};
    assert_string_equal(hl_did_you_mean("jobname", names, 4), "jobName");
    assert_string_equal(hl_did_you_mean("job_name", names, 4), "jobName");
    assert_string_equal(hl_did_you_mean("modle", names, 4), "model");
    assert_string_equal(hl_did_you_mean("tensorParallelSize", names, 4), "tensor_parallel_size");
    assert_string_equal(hl_did_you_mean("tensor_paralel_sizes", names, 4), "tensor_parallel_size");
    assert_null(hl_did_you_mean("kubernetes", names, 4));
    assert_null(hl_did_you_mean("xyz", names, 4));
    assert_null(hl_did_you_mean("model", names, 0));
}

/* Two directories with a configuration file each, as /etc and ~/.config are. */
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
    struct hl_conf conf = {0};
    char want[160];
    make_places(&p);
    assert_int_equal(load(HL_L3D, WORDS(), &conf, NULL), HL_OK); /* neither is there */
    assert_string_equal(origin_of(&conf, "l3.size"), "default");
    hl_conf_fini(&conf);

    write_text(p.system, "l3: {size: 2GiB, name: ofsystem}\n");
    write_text(p.user, "l3.size: 3GiB\n");
    assert_int_equal(load(HL_L3D, WORDS(), &conf, NULL), HL_OK);
    assert_int_equal(conf.l3_size, 3ull << 30); /* the user's comes after the system's */
    assert_string_equal(conf.l3_name, "ofsystem");
    snprintf(want, sizeof(want), "file %s:1", p.user);
    assert_string_equal(origin_of(&conf, "l3.size"), want);
    hl_conf_fini(&conf);

    write_text(p.user, "l3.sise: 3GiB\n");
    fails(load(HL_L3D, WORDS(), &conf, NULL), p.user); /* a mistake in it is told */
    remove_places(&p);
}

TEST(a_file_that_is_given_is_the_only_one)
{
    struct places p;
    struct hl_conf conf = {0};
    make_places(&p);
    write_text(p.system, "l3.size: 2GiB\n");
    write_text(p.user, "l3.size: 3GiB\n");
    put("l3.name: given\n");
    assert_int_equal(load(HL_L3D, WORDS("--config", file), &conf, NULL), HL_OK);
    assert_int_equal(conf.l3_size, 1ull << 30);
    assert_string_equal(conf.l3_name, "given");
    hl_conf_fini(&conf);
    setenv("HELIOS_CONFIG", "", 1); /* no file at all */
    assert_int_equal(load(HL_L3D, WORDS(), &conf, NULL), HL_OK);
    assert_int_equal(conf.l3_size, 1ull << 30);
    hl_conf_fini(&conf);
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
        struct hl_conf conf = {0};
        assert_int_equal(load(HL_L3D, WORDS("--archive", urls[i][0]), &conf, NULL), HL_OK);
        json_t *rows = hl_conf_dump(&conf), *row;
        size_t k, seen = 0;
        json_array_foreach (rows, k, row) {
            if (strcmp(json_string_value(json_object_get(row, "name")), "archive.url") != 0)
                continue;
            seen++;
            assert_string_equal(json_string_value(json_object_get(row, "value")), urls[i][1]);
        }
        assert_int_equal(seen, 1);
        assert_int_equal(hl_conf_has_password(urls[i][0]), strcmp(urls[i][0], urls[i][1]) != 0);
        assert_string_equal(conf.archive_url, urls[i][0]); /* the daemon has it whole */
        json_decref(rows);
        hl_conf_fini(&conf);
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
        char *text = hl_conf_text(texts[i][0], texts[i][1]);
        assert_string_equal(text, texts[i][2]);
        free(text);
    }
}

TEST(only_what_was_typed_counts_as_given)
{
    static const struct hl_option rows[] = {
        {"size", "--size", "1MiB", "", HL_OPT_BYTES, 0, 0, NULL, 0, 0},
        {"count", "--count", "2", "", HL_OPT_INT, 0, 9, NULL, 8, 0},
        {"keep", "--keep", "false", "", HL_OPT_BOOL, 0, 0, NULL, 16, 0},
    };
    uint64_t target[3] = {0};
    char *argv[8];
    int rest = 0, argc = copy_words((const char *const[]){"--size", "1MiB", "--keep", NULL}, argv);
    json_t *given = NULL;
    assert_int_equal(hl_args_parse_given(rows, 3, "x", argc, argv, target, &rest, &given), HL_OK);
    assert_int_equal(json_object_size(given), 2); /* the default, typed, is given */
    assert_string_equal(json_string_value(json_object_get(given, "size")), "1048576");
    assert_string_equal(json_string_value(json_object_get(given, "keep")), "true");
    assert_int_equal(target[1], 2);
    json_decref(given);
}

TESTS_IN(write_file, remove_file)

int main(int argc, char **argv)
{
    setenv("HELIOS_CONFIG", "", 1); /* whatever lies on the machine that runs this */
    return tests_run(argc, argv);
}
