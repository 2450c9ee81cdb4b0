/* A program's options: the rows of its slices, filled from file, environment and flags. The origin
 * of every value is kept for `helios conf`. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/lists.h"
#include "conf/conf.h"
#include "conf/options_private.h"
#include "conf/yaml.h"
#include "os/file.h"

static const char *program_name(enum hl_program program)
{
    switch (program) {
    case HL_CONTROLLER:
        return "helios-controller";
    case HL_L3D:
        return "helios-l3d";
    case HL_AGENT:
        return "helios-agent";
    case HL_CLI:
        return "helios";
    }
    return "helios";
}

static hl_status set_origin(struct hl_conf *conf, const struct hl_option *row, const char *fmt, ...)
    HL_PRINTF(3, 4);

static hl_status set_origin(struct hl_conf *conf, const struct hl_option *row, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    int n = vasprintf(&text, fmt, ap);
    va_end(ap);
    if (n < 0)
        return hl_fail(HL_ENOMEM, "out of memory noting where an option comes from");
    free(conf->origin[row - conf->rows]);
    conf->origin[row - conf->rows] = text;
    return HL_OK;
}

static const struct hl_option *find_row(const struct hl_conf *conf, const char *name)
{
    for (size_t i = 0; i < conf->row_count; i++)
        if (strcmp(conf->rows[i].name, name) == 0)
            return &conf->rows[i];
    return NULL;
}

/* ---- the slices ----------------------------------------------------------------------------- */

static size_t count_rows(const struct hl_conf_schema *schema)
{
    size_t count = 0;
    for (size_t i = 0; i < schema->count; i++)
        count += schema->slices[i].options->count;
    return count;
}

/* Collects every row with its offset in the values and the programs of its slice. */
static hl_status join_slices(const struct hl_conf_schema *schema, struct hl_conf *conf)
{
    size_t n = 0, count = count_rows(schema);
    if (count > HL_OPTIONS_MAX)
        return hl_fail(HL_EINVAL, "%zu options are more than %d", count, HL_OPTIONS_MAX);
    conf->rows = calloc(count + 1, sizeof(*conf->rows));
    conf->origin = calloc(count + 1, sizeof(*conf->origin));
    if (conf->rows == NULL || conf->origin == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the option table");
    for (size_t i = 0; i < schema->count; i++) {
        const struct hl_conf_slice *slice = &schema->slices[i];
        for (size_t k = 0; k < slice->options->count; k++, n++) {
            conf->rows[n] = slice->options->rows[k];
            conf->rows[n].offset += slice->offset;
            conf->rows[n].programs = slice->programs;
        }
    }
    conf->row_count = count;
    conf->partial = schema->partial;
    return HL_OK;
}

/* ---- the file ------------------------------------------------------------------------------- */

static hl_status unknown_key(const struct hl_conf *conf, const struct hl_yaml *doc,
                             const char *pointer, const char *name)
{
    const char *names[HL_OPTIONS_MAX];
    for (size_t i = 0; i < conf->row_count; i++)
        names[i] = conf->rows[i].name;
    struct hl_yaml_pos pos = hl_yaml_where_key(doc, pointer);
    const char *near = hl_did_you_mean(name, names, conf->row_count);
    if (near != NULL)
        return hl_fail(HL_EINVAL, "%s:%d:%d: unknown option '%s'; did you mean '%s'?",
                       hl_yaml_name(doc), pos.line, pos.column, name, near);
    return hl_fail(HL_EINVAL, "%s:%d:%d: unknown option '%s'; `helios conf` lists them",
                   hl_yaml_name(doc), pos.line, pos.column, name);
}

/* A file can write an option in two ways, "l3.size: 1GiB" and "l3: {size: 1GiB}". */
static hl_status check_set_once(const struct hl_conf *conf, const struct hl_option *row,
                                const struct hl_yaml *doc, struct hl_yaml_pos pos)
{
    char here[PATH_MAX + 16];
    const char *origin = conf->origin[row - conf->rows];
    int len = snprintf(here, sizeof(here), "file %s:", hl_yaml_name(doc));
    if (strncmp(origin, here, (size_t)len) != 0)
        return HL_OK;
    return hl_fail(HL_EINVAL, "%s:%d:%d: line %s sets %s already", hl_yaml_name(doc), pos.line,
                   pos.column, origin + len, row->name);
}

static hl_status set_from_file(struct hl_conf *conf, const struct hl_yaml *doc, const char *pointer,
                               const char *name, const json_t *value)
{
    char number[64];
    const char *text = json_string_value(value);
    const struct hl_option *row = find_row(conf, name);
    if (row == NULL)
        return conf->partial ? HL_OK : unknown_key(conf, doc, pointer, name);
    struct hl_yaml_pos pos = hl_yaml_where(doc, pointer);
    if (json_is_null(value))
        return HL_OK;
    if (json_is_array(value))
        return hl_fail(HL_EINVAL, "%s:%d:%d: %s takes one value, not a list", hl_yaml_name(doc),
                       pos.line, pos.column, name);
    HL_TRY(check_set_once(conf, row, doc, pos));
    if (json_is_boolean(value))
        text = json_is_true(value) ? "true" : "false";
    if (json_is_integer(value))
        snprintf(number, sizeof(number), "%lld", (long long)json_integer_value(value));
    else if (json_is_real(value))
        snprintf(number, sizeof(number), "%.15g", json_real_value(value));
    hl_status st = hl_option_set(row, conf->values, text != NULL ? text : number);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%s:%d:%d: %s: ", hl_yaml_name(doc), pos.line, pos.column, name);
    return set_origin(conf, row, "file %s:%d", hl_yaml_name(doc), pos.line);
}

/* Descends into objects, so that "l3: {size: 1GiB}" sets l3.size. */
static hl_status walk_file(struct hl_conf *conf, const struct hl_yaml *doc, const json_t *object,
                           const char *pointer, const char *prefix)
{
    const char *key;
    json_t *value;
    json_object_foreach ((json_t *)object, key, value) {
        char at[512], name[256];
        if (strlen(prefix) + strlen(key) + 2 > sizeof(name) || strpbrk(key, "/~") != NULL)
            return hl_fail(HL_EINVAL, "%s: unknown option '%.64s'", hl_yaml_name(doc), key);
        snprintf(at, sizeof(at), "%s/%s", pointer, key);
        snprintf(name, sizeof(name), "%s%s%s", prefix, *prefix != '\0' ? "." : "", key);
        if (json_is_object(value))
            HL_TRY(walk_file(conf, doc, value, at, name));
        else
            HL_TRY(set_from_file(conf, doc, at, name, value));
    }
    return HL_OK;
}

static hl_status load_file(struct hl_conf *conf, const char *path)
{
    HL_AUTO(hl_yaml_freep) struct hl_yaml *doc = NULL;
    HL_TRY(hl_yaml_load(path, &doc));
    const json_t *root = hl_yaml_root(doc);
    if (json_is_null(root))
        return HL_OK;
    if (!json_is_object(root))
        return hl_fail(HL_EINVAL, "%s: options are written as KEY: VALUE", path);
    return walk_file(conf, doc, root, "", "");
}

/* ---- which file ----------------------------------------------------------------------------- */

const char *hl_conf_system_file = "/etc/helios/helios.yaml";

bool hl_conf_user_file(char *out, size_t cap)
{
    const char *base = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    int n = -1;
    if (base != NULL && base[0] == '/') /* the XDG specification says to ignore relative paths */
        n = snprintf(out, cap, "%s/helios/helios.yaml", base);
    else if (home != NULL && home[0] == '/')
        n = snprintf(out, cap, "%s/.config/helios/helios.yaml", home);
    return n > 0 && (size_t)n < cap;
}

static hl_status load_if_there(struct hl_conf *conf, const char *path)
{
    if (access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return HL_OK;
    return load_file(conf, path);
}

/* `given`: from --config or HELIOS_CONFIG; "" = no file, NULL = the usual places. */
static hl_status load_files(struct hl_conf *conf, const char *given)
{
    char path[PATH_MAX];
    if (given != NULL)
        return given[0] != '\0' ? load_file(conf, given) : HL_OK;
    HL_TRY(load_if_there(conf, hl_conf_system_file));
    if (!hl_conf_user_file(path, sizeof(path)) || strcmp(path, hl_conf_system_file) == 0)
        return HL_OK;
    return load_if_there(conf, path);
}

/* ---- environment, flags --------------------------------------------------------------------- */

static hl_status load_env(struct hl_conf *conf)
{
    for (size_t i = 0; i < conf->row_count; i++) {
        char name[80];
        const struct hl_option *row = &conf->rows[i];
        const char *value = getenv(hl_option_env(row, name, sizeof(name)));
        if (value == NULL)
            continue;
        hl_status st = hl_option_set(row, conf->values, value);
        if (st != HL_OK)
            return hl_fail_prefix(st, "environment variable %s: ", name);
        HL_TRY(set_origin(conf, row, "environment %s", name));
    }
    return HL_OK;
}

static hl_status from_flag(void *arg, const struct hl_option *row)
{
    return set_origin(arg, row, "flag %s", hl_option_long_flag(row));
}

static hl_status load_all(struct hl_conf *conf, int argc, char **argv, bool *version, int *rest)
{
    const char *file = getenv("HELIOS_CONFIG");
    struct hl_flags f = {.rows = conf->rows,
                         .count = conf->row_count,
                         .programs = conf->program,
                         .target = conf->values,
                         .config = &file,
                         .version = version,
                         .seen = from_flag,
                         .seen_arg = conf};
    HL_TRY(hl_flags_scan(&f, argc, argv, rest));
    HL_TRY(hl_options_defaults(conf->rows, conf->row_count, conf->values));
    for (size_t i = 0; i < conf->row_count; i++)
        HL_TRY(set_origin(conf, &conf->rows[i], "default"));
    HL_TRY(load_files(conf, file));
    HL_TRY(load_env(conf));
    f.apply = true;
    return hl_flags_scan(&f, argc, argv, rest);
}

hl_status hl_conf_load(const struct hl_conf_schema *schema, enum hl_program program, int argc,
                       char **argv, void *values, struct hl_conf *conf, int *rest)
{
    int at = 0;
    bool version = false;
    conf->program = program;
    conf->values = values;
    hl_status st = join_slices(schema, conf);
    if (st == HL_OK)
        st = argc > 0 ? load_all(conf, argc - 1, argv + 1, &version, &at)
                      : load_all(conf, 0, argv, &version, &at);
    if (version) {
        printf("%s %s\n", program_name(program), HELIOS_VERSION);
    } else if (st == HL_ECANCELED) {
        HL_AUTO(hl_freep) char *help = hl_conf_help(conf);
        fputs(help != NULL ? help : "", stdout);
    } else if (st == HL_OK && rest == NULL && at + 1 < argc) {
        st = hl_fail(HL_EINVAL, "unexpected argument '%s'; options begin with --", argv[at + 1]);
    }
    if (st != HL_OK) {
        hl_conf_fini(conf);
        return st;
    }
    if (rest != NULL)
        *rest = at + 1;
    return HL_OK;
}

void hl_conf_fini(struct hl_conf *conf)
{
    hl_options_free(conf->rows, conf->row_count, conf->values);
    for (size_t i = 0; i < conf->row_count; i++)
        free(conf->origin[i]);
    free(conf->origin);
    free(conf->rows);
    *conf = (struct hl_conf){0};
}

const char *hl_conf_origin(const struct hl_conf *conf, const char *name)
{
    const struct hl_option *row = find_row(conf, name);
    if (row == NULL)
        return NULL;
    const char *origin = conf->origin[row - conf->rows];
    return origin != NULL ? origin : "default";
}

bool hl_conf_is_set(const struct hl_conf *conf, const char *name)
{
    const char *origin = hl_conf_origin(conf, name);
    return origin != NULL && strcmp(origin, "default") != 0;
}

/* ---- showing it ----------------------------------------------------------------------------- */

char *hl_conf_help(const struct hl_conf *conf)
{
    struct hl_buf text = HL_BUF(1 << 16);
    (void)hl_buf_printf(&text, "usage: %s [options]%s\n\n", program_name(conf->program),
                        conf->program == HL_CLI ? " COMMAND [arguments]" : "");
    hl_options_help(conf->rows, conf->row_count, conf->program, 1, &text);
    (void)hl_buf_printf(&text, "  %-30s %s\n  %-30s %s\n", "--config PATH",
                        "YAML file of options, as HELIOS_CONFIG; without either "
                        "/etc/helios/helios.yaml, then ~/.config/helios/helios.yaml.",
                        "--help, --version", "Print this text or the version.");
    return hl_buf_take(&text);
}

static struct hl_api_text_list program_list(unsigned programs, struct hl_arena *arena)
{
    static const enum hl_program all[] = {HL_CONTROLLER, HL_L3D, HL_AGENT, HL_CLI};

    struct hl_api_text_list list = {0};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        if (programs & all[i])
            hl_api_text_add(arena, &list, program_name(all[i]));
    return list;
}

/* Finds the password in "s3://key:secret@host/x" and its length; NULL: there is none. */
static const char *find_password(const char *text, size_t *len)
{
    const char *from = strstr(text, "://");
    if (from == NULL)
        return NULL;
    from += 3;
    const char *at = memrchr(from, '@', strcspn(from, "/?#"));
    const char *colon = at != NULL ? memchr(from, ':', (size_t)(at - from)) : NULL;
    if (colon == NULL || at - colon < 2)
        return NULL;
    *len = (size_t)(at - colon) - 1;
    return colon + 1;
}

bool hl_conf_has_password(const char *value)
{
    size_t len;
    return find_password(value, &len) != NULL;
}

/* Changes the text in place to "s3://key:***@host/x". */
static void mask_password(char *text)
{
    size_t len, stars;
    const char *password = find_password(text, &len);
    if (password == NULL)
        return;
    char *at = text + (password - text);
    stars = len < 3 ? len : 3;
    memset(at, '*', stars);
    memmove(at + stars, at + len, strlen(at + len) + 1);
}

static struct hl_api_option_info describe_row(const struct hl_conf *conf,
                                              const struct hl_option *row, struct hl_arena *arena)
{
    char env[80];
    HL_AUTO(hl_freep) char *value = hl_option_show(row, conf->values);
    if (value == NULL)
        arena->failed = true;
    else
        mask_password(value);
    return (struct hl_api_option_info){
        .name = hl_arena_strdup(arena, row->name),
        .value = hl_arena_strdup(arena, value),
        .origin = hl_arena_strdup(arena, conf->origin[row - conf->rows]),
        .default_ = hl_arena_strdup(arena, row->text),
        .help = hl_arena_strdup(arena, row->help),
        .flag = hl_arena_strdup(arena, row->flag),
        .argument = hl_arena_strdup(arena, hl_option_value_word(row)),
        .env = hl_arena_strdup(arena, hl_option_env(row, env, sizeof(env))),
        .programs = program_list(row->programs, arena)};
}

hl_status hl_conf_dump(const struct hl_conf *conf, struct hl_arena *arena,
                       struct hl_api_option_info_list *out)
{
    struct hl_api_option_info_list list = {
        .items = hl_arena_array(arena, conf->row_count, sizeof(*list.items))};
    for (size_t i = 0; list.items != NULL && i < conf->row_count; i++) {
        const struct hl_option *row = &conf->rows[i];
        if (conf->program == HL_CLI || (row->programs & conf->program))
            list.items[list.count++] = describe_row(conf, row, arena);
    }
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing the options");
    *out = list;
    return HL_OK;
}

struct hl_api_text_list hl_conf_variables(const struct hl_conf_schema *schema,
                                          struct hl_arena *arena)
{
    struct hl_api_text_list names = {0};
    for (size_t i = 0; i < schema->count; i++)
        for (size_t k = 0; k < schema->slices[i].options->count; k++) {
            char name[80];
            const struct hl_option *row = &schema->slices[i].options->rows[k];
            hl_api_text_add(arena, &names, hl_option_env(row, name, sizeof(name)));
        }
    return names;
}

/* Formats 1073741824 as "1GiB": in the largest unit of which the number is a whole multiple. */
static char *in_units(uint64_t n, const char *const *names, const uint64_t *sizes, size_t count)
{
    char *out = NULL;
    for (size_t i = 0; i < count; i++)
        if (n != 0 && n % sizes[i] == 0)
            return asprintf(&out, "%llu%s", (unsigned long long)(n / sizes[i]), names[i]) >= 0
                       ? out
                       : NULL;
    return asprintf(&out, "%llu", (unsigned long long)n) >= 0 ? out : NULL;
}

static enum hl_option_kind kind_of(const struct hl_conf_schema *schema, const char *name)
{
    for (size_t i = 0; i < schema->count; i++)
        for (size_t k = 0; k < schema->slices[i].options->count; k++)
            if (strcmp(schema->slices[i].options->rows[k].name, name) == 0)
                return schema->slices[i].options->rows[k].kind;
    return HL_OPT_STRING;
}

char *hl_conf_text(const struct hl_conf_schema *schema, const char *name, const char *value)
{
    static const char *const bytes[] = {"TiB", "GiB", "MiB", "KiB"};
    static const uint64_t byte_sizes[] = {1ull << 40, 1ull << 30, 1ull << 20, 1ull << 10};
    static const char *const times[] = {"d", "h", "m", "s", "ms"};
    static const uint64_t time_sizes[] = {86400000, 3600000, 60000, 1000, 1};
    static const char *const rates[] = {"Gbit", "Mbit", "Kbit"};
    static const uint64_t rate_sizes[] = {1000000000, 1000000, 1000};
    enum hl_option_kind kind = kind_of(schema, name);
    char *rest;
    uint64_t n = strtoull(value, &rest, 10);
    if (rest == value) /* not a number although the option is numeric, as in an edited file */
        return strdup(value);
    if (kind == HL_OPT_BYTES)
        return in_units(n, bytes, byte_sizes, HL_ARRAY_LEN(bytes));
    if (kind == HL_OPT_DURATION)
        return in_units(n, times, time_sizes, HL_ARRAY_LEN(times));
    if (kind == HL_OPT_RATE)
        return in_units(n, rates, rate_sizes, HL_ARRAY_LEN(rates));
    return strdup(value);
}

/* Written before the daemon starts to serve, and later only by changes on its loop, which also
 * reads it. */
static struct hl_arena in_force_arena;
static struct hl_api_option_info_list in_force;

hl_status hl_conf_publish(const struct hl_conf *conf)
{
    hl_arena_fini(&in_force_arena);
    in_force = (struct hl_api_option_info_list){0};
    return hl_conf_dump(conf, &in_force_arena, &in_force);
}

hl_status hl_conf_publish_change(const char *name, const char *value, const char *origin)
{
    for (size_t i = 0; i < in_force.count; i++) {
        struct hl_api_option_info *row = &in_force.items[i];
        if (strcmp(row->name, name) != 0)
            continue;
        const char *text = hl_arena_strdup(&in_force_arena, value);
        if (text == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for the value of %s", name);
        row->value = text;
        row->origin = origin;
        break; /* in tests a Controller may have published nothing */
    }
    return HL_OK;
}

struct hl_api_option_value_list hl_conf_in_force(struct hl_arena *arena)
{
    struct hl_api_option_value_list list = {.count = in_force.count};
    list.items = hl_arena_array(arena, list.count, sizeof(*list.items));
    for (size_t i = 0; list.items != NULL && i < list.count; i++) {
        const struct hl_api_option_info *row = &in_force.items[i];
        list.items[i] = (struct hl_api_option_value){row->name, row->value, row->origin};
    }
    return list;
}

hl_status hl_conf_announce(const char *path, const struct hl_api_daemon_ready *ready)
{
    if (path[0] == '\0')
        return HL_OK;
    json_t *doc = hl_api_to_json(&hl_api_daemon_ready_type, ready);
    HL_AUTO(hl_freep) char *text = doc != NULL ? json_dumps(doc, JSON_COMPACT) : NULL;
    json_decref(doc);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory writing %s", path);
    return hl_file_write_atomic(path, text, strlen(text));
}
