/* conf/options.h - what an option is: one row of a table.
 *
 * A row says everything about an option: its name ("l3.size"), flag ("--size"), default as text,
 * help, kind, range and where it lands in a struct. A module's rows stand beside its struct
 * (MODULE/conf.h); conf/conf.h makes a program's configuration of the rows of many modules. A
 * subcommand of the CLI brings its own rows and struct (hl_args_parse).
 *
 * Owns:    the texts in the target struct; end with hl_args_fini.
 * Threads: one at a time; afterwards the struct is read-only and may be read anywhere.
 * Errors:  HL_EINVAL with the flag or variable, what is allowed, and "did you mean".
 *          HL_ECANCELED when --help was answered on stdout: the program exits with 0.
 * Units:   bytes, milliseconds, bits per second, percent.
 * Limits:  HL_OPTIONS_MAX rows.
 */
#ifndef HL_CONF_OPTIONS_H
#define HL_CONF_OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/buf.h"
#include "base/status.h"
#include "base/text.h"

#define HL_OPTIONS_MAX 192

/* For ranges. */
#define HL_OPTION_MIB    (1ll << 20)
#define HL_OPTION_TIB    (1ll << 40)
#define HL_OPTION_DAY_MS (86400ll * 1000)

enum hl_option_kind {
    HL_OPT_STRING,   /* const char *, never NULL */
    HL_OPT_PATH,     /* const char *, "~/" is the home directory */
    HL_OPT_ENUM,     /* const char *, one of `choices` */
    HL_OPT_LISTEN,   /* const char *, an address to listen on; `min` is its enum hl_plane */
    HL_OPT_INT,      /* integer */
    HL_OPT_BYTES,    /* integer; "512MiB", "2GB", "4096" */
    HL_OPT_DURATION, /* integer, ms; "500ms", "10s", "5m", "2h", a plain number is ms */
    HL_OPT_RATE,     /* integer, bits per second; "100Gbit", "2.5Gbit" */
    HL_OPT_PERCENT,  /* double; "85" or "85%" */
    HL_OPT_NUMBER,   /* double */
    HL_OPT_BOOL,     /* bool, or an int64_t 0 or 1; a flag without value means 1, --no-FLAG 0 */
};

struct hl_option {
    const char *name; /* "l3.size"; also HELIOS_L3_SIZE */
    const char *flag; /* "--size" */
    const char *text; /* default, parsed like any other value; "" = none where the help says so */
    const char *help; /* one sentence */
    enum hl_option_kind kind;
    int64_t min, max;    /* INT, BYTES, DURATION, PERCENT, NUMBER; both 0 = no check */
    const char *choices; /* ENUM: "a|b|c" */
    size_t offset;       /* of the field in the target struct */
    size_t width;        /* of the field; 0 = 8 bytes. An integer has 4 (and is then at most
                            INT32_MAX) or 8, a bool 1 */
    unsigned programs;   /* enum hl_program bits, by conf/conf.h; ignored by hl_args_parse */
};

/* The last columns of a row. */
#define HL_OPTION_FIELD(type, field) offsetof(type, field), sizeof(((type *)0)->field), 0

/* Rows that go together: to the same programs, into the same struct. */
struct hl_option_rows {
    const struct hl_option *rows;
    size_t count;
};

#define HL_OPTION_ROWS(array)                                                                      \
    {                                                                                              \
        (array), sizeof(array) / sizeof((array)[0])                                                \
    }

/* The fields of `rows` in *target, which is zero before: their defaults; then, where the
 * environment has a row's variable, that (HELIOS_L3_SIZE of l3.size; an empty number is none).
 * Texts are the caller's: hl_args_fini. */
hl_status hl_options_defaults(const struct hl_option *rows, size_t count, void *target) HL_CHECK;
hl_status hl_options_environment(const struct hl_option *rows, size_t count, void *target) HL_CHECK;
/* Text into the field; the failure names the text, the caller puts its place in front. */
hl_status hl_option_set(const struct hl_option *row, void *target, const char *text) HL_CHECK;
/* "l3.size" -> "HELIOS_L3_SIZE" in buf; returns buf. */
const char *hl_option_env(const struct hl_option *row, char *buf, size_t cap);
/* The field as text that parses to the same value; caller frees, NULL when out of memory. */
char *hl_option_show(const struct hl_option *row, const void *target);

/* For a subcommand: flags of `rows` and positional arguments, in any order, into *target (zeroed by
 * the caller). Positional arguments are moved to the front of argv; *rest_count says how many.
 * `usage` is the first line of --help ("helios submit FILE [options]"). argv[0] is the first
 * argument, not the name. */
hl_status hl_args_parse(const struct hl_option *rows, size_t count, const char *usage, int argc,
                        char **argv, void *target, int *rest_count) HL_CHECK;
/* The same, and *given has what was given: "l3_size" is "1073741824", a text that parses to the
 * same value. In the arena. */
hl_status hl_args_parse_given(const struct hl_option *rows, size_t count, const char *usage,
                              int argc, char **argv, void *target, int *rest_count,
                              struct hl_arena *arena, struct hl_api_key_value_list *given) HL_CHECK;
void hl_args_fini(const struct hl_option *rows, size_t count, void *target);
/* The lines of --help about `rows`, one option each. */
void hl_args_help(const struct hl_option *rows, size_t count, struct hl_buf *out);
/* What stands for the option's value in --help: "N", "PATH", "a|b"; "" for a switch. */
const char *hl_option_value_word(const struct hl_option *row);

#endif
