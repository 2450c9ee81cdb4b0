/* conf/conf.h - a program's configuration: defaults < YAML file < environment < flags.
 *
 * Each module owns its options: a struct and the rows that fill it. A schema combines the modules'
 * slices for a family of programs. Every program reads the values of all slices, so that one file
 * serves all programs, but accepts only its own flags.
 *
 *     struct hl_conf_schema   slices -> rows of a module, where its struct lies, whose flags
 *     values                  the struct of structs that the slices' offsets lie in
 *     struct hl_conf          the rows put together, and where each value comes from
 *
 * Owns:    the texts in the values and the origins; end with hl_conf_fini.
 * Threads: one at a time; afterwards values and struct are read-only and may be read anywhere.
 * Errors:  HL_EINVAL with the flag, variable or FILE:LINE:COL, what is allowed, and "did you mean".
 *          A configuration file that exists and cannot be read is an error.
 *          HL_ECANCELED when --help or --version was answered on stdout: the program exits with 0.
 * Units:   those of the rows.
 * Limits:  HL_OPTIONS_MAX rows.
 */
#ifndef HL_CONF_CONF_H
#define HL_CONF_CONF_H

#include <stdbool.h>

#include "api/types.h"
#include "conf/options.h"

/* The programs that accept a slice's flags. */
enum hl_program {
    HL_CONTROLLER = 1 << 0,
    HL_L3D = 1 << 1,
    HL_AGENT = 1 << 2,
    HL_CLI = 1 << 3,
};

#define HL_DAEMONS (HL_CONTROLLER | HL_L3D | HL_AGENT)

struct hl_conf_slice {
    const struct hl_option_rows *options;
    size_t offset;     /* of the module's struct in the values */
    unsigned programs; /* enum hl_program bits */
};

struct hl_conf_schema {
    const struct hl_conf_slice *slices;
    size_t count;
    /* The file may contain other programs' options, which are skipped; otherwise an unknown option
     * is an error. */
    bool partial;
};

struct hl_conf {
    enum hl_program program;
    bool partial;
    void *values;
    struct hl_option *rows; /* of all slices, with their offsets in the values */
    size_t row_count;
    char **origin; /* per row */
};

/* Zero-initialise `conf` and `values` before. Reads defaults, configuration files, environment and
 * flags of the program, in this order. The file is --config FILE, else HELIOS_CONFIG (empty: no
 * file at all); without either /etc/helios/helios.yaml and then the user's, where they exist.
 * Parsing of flags stops at the first argument that is not one, or after "--": *rest is its index
 * in argv (argc when there is none). rest NULL: further arguments are an error. */
hl_status hl_conf_load(const struct hl_conf_schema *schema, enum hl_program program, int argc,
                       char **argv, void *values, struct hl_conf *conf, int *rest) HL_CHECK;
/* Sets the strings in the values to NULL. A zero-initialised struct is fine. */
void hl_conf_fini(struct hl_conf *conf);
/* The --help text; caller frees. NULL when out of memory. */
char *hl_conf_help(const struct hl_conf *conf);
/* The file that every program reads unless another is given; only tests set it. */
extern const char *hl_conf_system_file;
/* Path of the user's configuration file, which need not exist: $XDG_CONFIG_HOME/helios/helios.yaml,
 * else ~/.config/helios/helios.yaml. False when neither directory is known. */
bool hl_conf_user_file(char *out, size_t cap);
/* "default", "file PATH:LINE", "environment NAME" or "flag --NAME"; NULL: no such option. Borrowed.
 */
const char *hl_conf_origin(const struct hl_conf *conf, const char *name);
/* The option was set explicitly: its origin is not "default". */
bool hl_conf_is_set(const struct hl_conf *conf, const char *name);
/* Tells the process that started the daemon that it is serving: writes `ready` to the file `path`.
 * "" = writes nothing. */
hl_status hl_conf_announce(const char *path, const struct hl_api_daemon_ready *ready) HL_CHECK;
/* The rows of conf's program (all rows for HL_CLI), without `daemons`. Passwords in URLs are
 * masked. Everything is in the arena. */
hl_status hl_conf_dump(const struct hl_conf *conf, struct hl_arena *arena,
                       struct hl_api_option_info_list *out) HL_CHECK;
/* Names of the environment variables of all options. The arena remembers when it is out of memory.
 */
struct hl_api_text_list hl_conf_variables(const struct hl_conf_schema *schema,
                                          struct hl_arena *arena);
/* A value of hl_conf_dump as people write it, "1GiB" for 1073741824; caller frees, NULL when out of
 * memory. A name that is not in the schema counts as text. */
char *hl_conf_text(const struct hl_conf_schema *schema, const char *name, const char *value);
/* The value is a URL with a password in it. */
bool hl_conf_has_password(const char *value);
/* A daemon makes its options known to callers of its RPC; once, before it serves. */
hl_status hl_conf_publish(const struct hl_conf *conf) HL_CHECK;
/* A published value has changed while the daemon runs; the origin is borrowed for the process's
 * lifetime. */
hl_status hl_conf_publish_change(const char *name, const char *value, const char *origin) HL_CHECK;
/* The published options as a list for an answer, which borrows from them; empty before
 * publishing. */
struct hl_api_option_value_list hl_conf_in_force(struct hl_arena *arena);

#endif
