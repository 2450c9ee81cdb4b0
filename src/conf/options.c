/* The engine of the option table: one function converts text to a field, wherever the text comes
 * from. */
#include "conf/options.h"

#include <ctype.h>
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "base/utf8.h"
#include "conf/conf.h"
#include "conf/options_private.h"

#define HELP_COLUMNS  80
#define HELP_INDENT   33 /* column of the help texts */
#define HELP_TEXT_MAX 1024

static void *option_field(void *target, const struct hl_option *row)
{
    return (char *)target + row->offset;
}

static bool is_text(enum hl_option_kind kind)
{
    return kind == HL_OPT_STRING || kind == HL_OPT_PATH || kind == HL_OPT_ENUM ||
           kind == HL_OPT_LISTEN;
}

static hl_status set_integer(const struct hl_option *row, void *target, uint64_t value,
                             const char *text)
{
    void *at = option_field(target, row);
    if (row->width != sizeof(int32_t)) {
        memcpy(at, &value, sizeof(value));
        return HL_OK;
    }
    int32_t narrow = (int32_t)value;
    if ((uint64_t)(int64_t)narrow != value)
        return hl_fail(HL_EINVAL, "'%.64s' is too %s", text,
                       row->kind == HL_OPT_INT && (int64_t)value < 0 ? "small" : "large");
    memcpy(at, &narrow, sizeof(narrow));
    return HL_OK;
}

static int64_t get_integer(const struct hl_option *row, const void *target)
{
    const void *at = (const char *)target + row->offset;
    int64_t wide;
    int32_t narrow;
    if (row->width == sizeof(int32_t)) {
        memcpy(&narrow, at, sizeof(narrow));
        return narrow;
    }
    memcpy(&wide, at, sizeof(wide));
    return wide;
}

static void set_bool(const struct hl_option *row, void *target, bool value)
{
    int64_t wide = value;
    if (row->width == sizeof(bool))
        memcpy(option_field(target, row), &value, sizeof(value));
    else
        memcpy(option_field(target, row), &wide, sizeof(wide));
}

static bool get_bool(const struct hl_option *row, const void *target)
{
    bool value;
    if (row->width != sizeof(bool))
        return get_integer(row, target) != 0;
    memcpy(&value, (const char *)target + row->offset, sizeof(value));
    return value;
}

static hl_status parse_bool(const char *text, bool *out)
{
    static const char *const yes[] = {"true", "1", "yes", "on"};
    static const char *const no[] = {"false", "0", "no", "off"};
    for (size_t i = 0; i < HL_ARRAY_LEN(yes); i++)
        if (strcmp(text, yes[i]) == 0 || strcmp(text, no[i]) == 0) {
            *out = strcmp(text, yes[i]) == 0;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL, "'%.64s' is neither true nor false", text);
}

static hl_status parse_int(const char *text, int64_t *out, bool *overflow)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *overflow = errno == ERANGE && *end == '\0'; /* v is then the largest or smallest number */
    if ((errno != 0 && !*overflow) || end == text || *end != '\0' ||
        isspace((unsigned char)text[0]))
        return hl_fail(HL_EINVAL, "'%.64s' is not a whole number", text);
    *out = v;
    return HL_OK;
}

/* Returns where a decimal number at the start of the text ends; NULL: there is none. strtod alone
 * would take "0x10", "inf" and "nan" too. */
static const char *scan_real(const char *text, double *out)
{
    char *end;
    size_t len = strspn(text, "0123456789.eE+-");
    errno = 0;
    *out = strtod(text, &end);
    return errno == 0 && end > text && end <= text + len ? end : NULL;
}

static hl_status parse_percent(const char *text, double *out)
{
    const char *end = scan_real(text, out);
    if (end == NULL || (*end != '\0' && strcmp(end, "%") != 0))
        return hl_fail(HL_EINVAL, "'%.64s' is not a percentage", text);
    return HL_OK;
}

static hl_status parse_number(const char *text, double *out)
{
    const char *end = scan_real(text, out);
    if (end == NULL || *end != '\0')
        return hl_fail(HL_EINVAL, "'%.64s' is not a number", text);
    return HL_OK;
}

static hl_status check_range(const struct hl_option *row, double value, const char *text)
{
    if ((row->min == 0 && row->max == 0) ||
        (value >= (double)row->min && value <= (double)row->max))
        return HL_OK;
    char low[32], high[32];
    const char *how = value > (double)row->max ? "large" : "small";
    if (row->kind == HL_OPT_INT && row->max == INT64_MAX)
        return hl_fail(HL_EINVAL, "'%.64s' is too small: at least %lld", text, (long long)row->min);
    if (row->kind == HL_OPT_BYTES) {
        hl_format_bytes((uint64_t)row->min, low, sizeof(low));
        hl_format_bytes((uint64_t)row->max, high, sizeof(high));
    } else {
        const char *unit = row->kind == HL_OPT_DURATION ? " ms" : "";
        snprintf(low, sizeof(low), "%lld%s", (long long)row->min, unit);
        snprintf(high, sizeof(high), "%lld%s", (long long)row->max, unit);
    }
    return hl_fail(HL_EINVAL, "'%.64s' is too %s: %s to %s", text, how, low, high);
}

static hl_status check_choice(const struct hl_option *row, const char *text)
{
    size_t len = strlen(text);
    for (const char *p = row->choices; *p != '\0';) {
        size_t n = strcspn(p, "|");
        if (n == len && strncmp(p, text, n) == 0)
            return HL_OK;
        p += n + (p[n] == '|');
    }
    return hl_fail(HL_EINVAL, "'%.64s' is not one of %s", text, row->choices);
}

static hl_status set_text(const struct hl_option *row, void *target, const char *text)
{
    char **to = option_field(target, row);
    char *copy = NULL;
    if (row->kind == HL_OPT_ENUM)
        HL_TRY(check_choice(row, text));
    if (row->kind != HL_OPT_LISTEN && row->min > 0 && text[0] == '\0')
        return hl_fail(HL_EINVAL, "the value is empty");
    const char *home = getenv("HOME");
    if (row->kind == HL_OPT_PATH && strncmp(text, "~/", 2) == 0 && home != NULL) {
        if (asprintf(&copy, "%s%s", home, text + 1) < 0)
            copy = NULL;
    } else {
        copy = strdup(text);
    }
    if (copy == NULL)
        return hl_fail(HL_ENOMEM, "out of memory setting %s", row->name);
    free(*to);
    *to = copy;
    return HL_OK;
}

const char *hl_option_env(const struct hl_option *row, char *buf, size_t cap)
{
    snprintf(buf, cap, "HELIOS_%s", row->name);
    for (char *p = buf; *p != '\0'; p++)
        *p = *p == '.' ? '_' : (char)toupper((unsigned char)*p);
    return buf;
}

hl_status hl_option_set(const struct hl_option *row, void *target, const char *text)
{
    uint64_t size = 0;
    int64_t number = 0;
    double percent = 0;
    bool overflow = false, truth = false;
    switch (row->kind) {
    case HL_OPT_STRING:
    case HL_OPT_PATH:
    case HL_OPT_ENUM:
    case HL_OPT_LISTEN:
        return set_text(row, target, text);
    case HL_OPT_INT:
        HL_TRY(parse_int(text, &number, &overflow));
        HL_TRY(check_range(row, (double)number, text));
        if (overflow)
            return hl_fail(HL_EINVAL, "'%.64s' is too large", text);
        return set_integer(row, target, (uint64_t)number, text);
    case HL_OPT_BOOL:
        HL_TRY(parse_bool(text, &truth));
        set_bool(row, target, truth);
        return HL_OK;
    case HL_OPT_PERCENT:
        HL_TRY(parse_percent(text, &percent));
        HL_TRY(check_range(row, percent, text));
        *(double *)option_field(target, row) = percent;
        return HL_OK;
    case HL_OPT_NUMBER:
        HL_TRY(parse_number(text, &percent));
        HL_TRY(check_range(row, percent, text));
        *(double *)option_field(target, row) = percent;
        return HL_OK;
    case HL_OPT_BYTES:
        HL_TRY(hl_parse_bytes(text, &size));
        break;
    case HL_OPT_DURATION:
        HL_TRY(hl_parse_duration_ms(text, &size));
        break;
    case HL_OPT_RATE:
        HL_TRY(hl_parse_rate(text, &size));
        break;
    }
    HL_TRY(check_range(row, (double)size, text));
    return set_integer(row, target, size, text);
}

char *hl_option_show(const struct hl_option *row, const void *target)
{
    const void *at = (const char *)target + row->offset;
    char *out = NULL;
    int n = -1;
    if (is_text(row->kind))
        return strdup(*(char *const *)at);
    if (row->kind == HL_OPT_BOOL)
        return strdup(get_bool(row, target) ? "true" : "false");
    if (row->kind == HL_OPT_INT)
        n = asprintf(&out, "%lld", (long long)get_integer(row, target));
    else if (row->kind == HL_OPT_PERCENT)
        n = asprintf(&out, "%g", *(const double *)at);
    else if (row->kind == HL_OPT_NUMBER)
        n = asprintf(&out, "%.15g", *(const double *)at);
    else if (row->kind == HL_OPT_DURATION)
        n = asprintf(&out, "%llums", (unsigned long long)get_integer(row, target));
    else
        n = asprintf(&out, "%llu", (unsigned long long)get_integer(row, target));
    return n >= 0 ? out : NULL;
}

hl_status hl_options_defaults(const struct hl_option *rows, size_t count, void *target)
{
    for (size_t i = 0; i < count; i++)
        if (rows[i].text[0] != '\0' || is_text(rows[i].kind)) {
            hl_status st =
                rows[i].text[0] != '\0'
                    ? hl_option_set(&rows[i], target, rows[i].text)
                    : set_text(&(struct hl_option){.kind = HL_OPT_STRING, .offset = rows[i].offset},
                               target, "");
            if (st != HL_OK)
                return hl_fail_prefix(st, "default of %s: ", rows[i].name);
        }
    return HL_OK;
}

hl_status hl_options_environment(const struct hl_option *rows, size_t count, void *target)
{
    for (size_t i = 0; i < count; i++) {
        char name[80];
        const char *value = getenv(hl_option_env(&rows[i], name, sizeof(name)));
        if (value == NULL || (value[0] == '\0' && !is_text(rows[i].kind)))
            continue;
        hl_status st = hl_option_set(&rows[i], target, value);
        if (st != HL_OK)
            return hl_fail_prefix(st, "environment variable %s: ", name);
    }
    return HL_OK;
}

void hl_options_free(const struct hl_option *rows, size_t count, void *target)
{
    for (size_t i = 0; i < count; i++)
        if (is_text(rows[i].kind)) {
            char **at = option_field(target, &rows[i]);
            free(*at);
            *at = NULL;
        }
}

/* Whether `arg`, up to `len`, is one of the spellings in "-o,--output". */
static bool flag_is_spelled(const char *flags, const char *arg, size_t len)
{
    for (const char *p = flags; *p != '\0';) {
        size_t n = strcspn(p, ",");
        if (n == len && strncmp(p, arg, n) == 0)
            return true;
        p += n + (p[n] == ',');
    }
    return false;
}

/* The last spelling, which is the long one. */
const char *hl_option_long_flag(const struct hl_option *row)
{
    const char *comma = strrchr(row->flag, ',');
    return comma != NULL ? comma + 1 : row->flag;
}

static hl_status unknown_flag(const struct hl_flags *f, const char *arg)
{
    const char *names[HL_OPTIONS_MAX + 3] = {"--help", "--version", "--config"};
    size_t n = f->config != NULL ? 3 : 1;
    for (size_t i = 0; i < f->count && n < HL_ARRAY_LEN(names); i++)
        if (f->rows[i].programs & f->programs)
            names[n++] = hl_option_long_flag(&f->rows[i]);
    char word[80];
    snprintf(word, sizeof(word), "%.*s", (int)strcspn(arg, "="), arg);
    const char *near = hl_did_you_mean(word, names, n);
    if (near != NULL)
        return hl_fail(HL_EINVAL, "unknown flag %s; did you mean %s?", word, near);
    return hl_fail(HL_EINVAL, "unknown flag %s; --help lists them", word);
}

static const struct hl_option *find_flag(const struct hl_flags *f, const char *arg, size_t len,
                                         bool *negated)
{
    for (size_t i = 0; i < f->count; i++) {
        const struct hl_option *row = &f->rows[i];
        if (!(row->programs & f->programs))
            continue;
        *negated = false;
        if (flag_is_spelled(row->flag, arg, len))
            return row;
        const char *name = hl_option_long_flag(row);
        *negated = true;
        if (row->kind == HL_OPT_BOOL && strncmp(arg, "--no-", 5) == 0 && len - 3 == strlen(name) &&
            strncmp(arg + 5, name + 2, len - 5) == 0)
            return row;
    }
    return NULL;
}

/* Takes argv[*i] and, if it needs one, its value. */
static hl_status take_flag(const struct hl_flags *f, int argc, char **argv, int *i)
{
    const char *arg = argv[*i];
    size_t len = strcspn(arg, "=");
    bool negated = false;
    bool is_config = f->config != NULL && len == 8 && strncmp(arg, "--config", 8) == 0;
    const struct hl_option *row = is_config ? NULL : find_flag(f, arg, len, &negated);
    if (row == NULL && !is_config)
        return unknown_flag(f, arg);
    const char *value = arg[len] == '=' ? arg + len + 1 : NULL;
    if (value != NULL && negated)
        return hl_fail(HL_EINVAL, "%.*s takes no value", (int)len, arg);
    if (value == NULL && row != NULL && row->kind == HL_OPT_BOOL)
        value = negated ? "false" : "true";
    if (value == NULL) {
        if (*i + 1 >= argc)
            return hl_fail(HL_EINVAL, "%s needs a value", arg);
        value = argv[++*i];
    }
    if (is_config) {
        *f->config = value;
        return HL_OK;
    }
    if (!f->apply)
        return HL_OK;
    hl_status st = hl_option_set(row, f->target, value);
    if (st != HL_OK)
        return hl_fail_prefix(st, "%.*s: ", (int)len, arg);
    return f->seen != NULL ? f->seen(f->seen_arg, row) : HL_OK;
}

hl_status hl_flags_scan(const struct hl_flags *f, int argc, char **argv, int *rest)
{
    int kept = 0, i = 0;
    for (; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            i++;
            break;
        }
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            if (!f->permute)
                break;
            char *positional = argv[i];
            argv[i] = argv[kept]; /* the flag that was there has been read */
            argv[kept++] = positional;
            continue;
        }
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return HL_ECANCELED;
        if (f->version != NULL && strcmp(argv[i], "--version") == 0) {
            *f->version = true;
            return HL_ECANCELED;
        }
        HL_TRY(take_flag(f, argc, argv, &i));
    }
    if (f->permute)
        for (; i < argc; i++)
            argv[kept++] = argv[i];
    if (f->permute && kept < argc)
        argv[kept] = NULL;
    *rest = f->permute ? kept : i;
    return HL_OK;
}

const char *hl_option_value_word(const struct hl_option *row)
{
    static const char *const words[] = {
        [HL_OPT_STRING] = "TEXT",   [HL_OPT_PATH] = "PATH",       [HL_OPT_ENUM] = "",
        [HL_OPT_LISTEN] = "TEXT",   [HL_OPT_INT] = "N",           [HL_OPT_BYTES] = "SIZE",
        [HL_OPT_DURATION] = "TIME", [HL_OPT_PERCENT] = "PERCENT", [HL_OPT_BOOL] = "",
        [HL_OPT_NUMBER] = "NUMBER", [HL_OPT_RATE] = "RATE",
    };
    return row->kind == HL_OPT_ENUM ? row->choices : words[row->kind];
}

void hl_options_help(const struct hl_option *rows, size_t count, unsigned programs, bool with_env,
                     struct hl_buf *out)
{
    for (size_t i = 0; i < count; i++) {
        const struct hl_option *row = &rows[i];
        char head[128], env[80];
        if (!(row->programs & programs))
            continue;
        const char *word = hl_option_value_word(row);
        snprintf(head, sizeof(head), "%s%s%s", row->flag, *word != '\0' ? " " : "", word);
        char help[HELP_TEXT_MAX];
        bool shown =
            row->text[0] != '\0' && !(row->kind == HL_OPT_BOOL && strcmp(row->text, "false") == 0);
        snprintf(help, sizeof(help), "%s%s%s%s", row->help, shown ? " [" : "",
                 shown ? row->text : "", shown ? "]" : "");
        (void)hl_buf_printf(out, "  %-30s ", head);
        if (strlen(head) > HELP_INDENT - 3)
            (void)hl_buf_printf(out, "\n%*s", HELP_INDENT, "");
        hl_text_wrap(out, help, HELP_INDENT, HELP_COLUMNS);
        if (with_env)
            (void)hl_buf_printf(out, "\n  %-30s %s, %s", "", row->name,
                                hl_option_env(row, env, sizeof(env)));
        (void)hl_buf_printf(out, "\n");
    }
}

void hl_args_help(const struct hl_option *rows, size_t count, struct hl_buf *out)
{
    for (size_t i = 0; i < count; i++) {
        struct hl_option row = rows[i];
        row.programs = HL_CLI;
        hl_options_help(&row, 1, HL_CLI, 0, out);
    }
}

struct given {
    const void *target;
    struct hl_arena *arena;
    struct hl_api_key_value_list texts;
};

static hl_status note_given(void *arg, const struct hl_option *row)
{
    struct given *g = arg;
    HL_AUTO(hl_freep) char *text = hl_option_show(row, g->target);
    if (text != NULL && !hl_utf8_valid(text)) /* it is stored as JSON */
        return hl_fail(HL_EINVAL, "%s: not valid UTF-8", hl_option_long_flag(row));
    if (text != NULL)
        hl_api_pair_set(g->arena, &g->texts, row->name, text);
    return text != NULL && !hl_arena_failed(g->arena)
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory noting %s", hl_option_long_flag(row));
}

static hl_status args_parse(const struct hl_option *rows, size_t count, const char *usage, int argc,
                            char **argv, void *target, int *rest_count, struct given *given)
{
    HL_AUTO(hl_freep) struct hl_option *own = calloc(count + 1, sizeof(*own));
    if (own == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading the arguments");
    for (size_t i = 0; i < count; i++) {
        own[i] = rows[i];
        own[i].programs = HL_CLI;
    }
    HL_TRY(hl_options_defaults(own, count, target));
    struct hl_flags f = {.rows = own,
                         .count = count,
                         .programs = HL_CLI,
                         .target = target,
                         .apply = true,
                         .permute = true,
                         .seen = given != NULL ? note_given : NULL,
                         .seen_arg = given};
    hl_status st = hl_flags_scan(&f, argc, argv, rest_count);
    if (st == HL_ECANCELED) {
        struct hl_buf text = HL_BUF(1 << 16);
        (void)hl_buf_printf(&text, "usage: %s\n\n", usage);
        hl_options_help(own, count, HL_CLI, 0, &text);
        fputs(text.data != NULL ? text.data : "", stdout);
        hl_buf_fini(&text);
    }
    if (st != HL_OK)
        hl_args_fini(rows, count, target);
    return st;
}

hl_status hl_args_parse(const struct hl_option *rows, size_t count, const char *usage, int argc,
                        char **argv, void *target, int *rest_count)
{
    return args_parse(rows, count, usage, argc, argv, target, rest_count, NULL);
}

hl_status hl_args_parse_given(const struct hl_option *rows, size_t count, const char *usage,
                              int argc, char **argv, void *target, int *rest_count,
                              struct hl_arena *arena, struct hl_api_key_value_list *given)
{
    struct given g = {.target = target, .arena = arena};
    HL_TRY(args_parse(rows, count, usage, argc, argv, target, rest_count, &g));
    *given = g.texts;
    return HL_OK;
}

void hl_args_fini(const struct hl_option *rows, size_t count, void *target)
{
    hl_options_free(rows, count, target);
}
