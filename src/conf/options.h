/* conf/options.h - what an option is: one row of a table.
 *
 * A row defines an option completely: its name ("l3.size"), flag ("--size"), default as text, help,
 * kind, range and its field in a struct. A module's rows are next to its struct (MODULE/conf.h).
 * conf/conf.h combines the rows of many modules into a program's configuration. A subcommand of the
 * CLI has rows and a struct of its own (hl_args_parse).
 *
 * Owns:    the texts in the target struct; released by hl_args_fini.
 * Threads: one at a time; afterwards the struct is read-only and any thread can read it.
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
    const char *text; /* default, parsed like any other value; "" = none if the help says so */
    const char *help; /* one sentence */
    enum hl_option_kind kind;
    int64_t min, max;    /* INT, BYTES, DURATION, PERCENT, NUMBER; both 0 = no check. STRING, PATH:
                          * min 1 = must not be empty if it is given */
    const char *choices; /* ENUM: "a|b|c" */
    size_t offset;       /* of the field in the target struct */
    size_t width;        /* of the field; 0 = 8 bytes. An integer has 4 bytes (and is then at most
                          * INT32_MAX) or 8, a bool 1 */
    unsigned programs;   /* bits of enum hl_program, see conf/conf.h; ignored by hl_args_parse */
};

/* The last columns of a row. */
#define HL_OPTION_FIELD(type, field) offsetof(type, field), sizeof(((type *)0)->field), 0

/* Rows for the same programs and the same struct. */
struct hl_option_rows {
    const struct hl_option *rows;
    size_t count;
};

#define HL_OPTION_ROWS(array)                                                                      \
    {                                                                                              \
        (array), sizeof(array) / sizeof((array)[0])                                                \
    }

/* hl_options_defaults sets the fields of `rows` in *target, which must be zeroed, to their
 * defaults. hl_options_environment then overrides each field whose variable is set (HELIOS_L3_SIZE
 * for l3.size; an empty number counts as unset). The caller owns the texts: hl_args_fini. */
hl_status hl_options_defaults(const struct hl_option *rows, size_t count, void *target) HL_CHECK;
hl_status hl_options_environment(const struct hl_option *rows, size_t count, void *target) HL_CHECK;
/* Parses the text into the field. The error names the text; the caller prepends its position. */
hl_status hl_option_set(const struct hl_option *row, void *target, const char *text) HL_CHECK;
/* "l3.size" -> "HELIOS_L3_SIZE" in buf; returns buf. */
const char *hl_option_env(const struct hl_option *row, char *buf, size_t cap);
/* The field as text that parses to the same value; caller frees, NULL when out of memory. */
char *hl_option_show(const struct hl_option *row, const void *target);

/* Parses a subcommand's flags (`rows`) and positional arguments, in any order, into *target, which
 * the caller has zeroed. Positional arguments are moved to the front of argv; *rest_count is their
 * number, and argv is NULL after them if there were options too. `usage` is the first line of
 * --help ("helios submit FILE [options]"). argv[0] is the first argument, not the program's name.
 */
hl_status hl_args_parse(const struct hl_option *rows, size_t count, const char *usage, int argc,
                        char **argv, void *target, int *rest_count) HL_CHECK;
/* Like hl_args_parse; *given also gets the options that were given: "l3_size" is "1073741824", a
 * text that parses to the same value. It is in the arena. */
hl_status hl_args_parse_given(const struct hl_option *rows, size_t count, const char *usage,
                              int argc, char **argv, void *target, int *rest_count,
                              struct hl_arena *arena, struct hl_api_key_value_list *given) HL_CHECK;
void hl_args_fini(const struct hl_option *rows, size_t count, void *target);
/* Appends the lines of --help for `rows`, one per option. */
void hl_args_help(const struct hl_option *rows, size_t count, struct hl_buf *out);
/* The placeholder of the option's value in --help: "N", "PATH", "a|b"; "" for a switch. */
const char *hl_option_value_word(const struct hl_option *row);

#endif
