/* conf/options_private.h - parts of the option parser that subcommands (options.c) and daemons
 * (conf.c) share.
 *
 * Threads: any; each parse has its own values.
 */
#ifndef HL_CONF_OPTIONS_PRIVATE_H
#define HL_CONF_OPTIONS_PRIVATE_H

#include <stdbool.h>

#include "base/buf.h"
#include "conf/options.h"

struct hl_flags {
    const struct hl_option *rows;
    size_t count;
    unsigned programs;
    void *target;
    bool apply;          /* false: only look for --config and --help */
    bool permute;        /* positional arguments move to the front instead of ending the scan */
    const char **config; /* NULL: --config is not accepted */
    bool *version;       /* set if --version was found; NULL: it is not accepted */
    hl_status (*seen)(void *arg, const struct hl_option *row);
    void *seen_arg;
};

const char *hl_option_long_flag(const struct hl_option *row);
void hl_options_free(const struct hl_option *rows, size_t count, void *target);
void hl_options_help(const struct hl_option *rows, size_t count, unsigned programs, bool with_env,
                     struct hl_buf *out);
/* HL_ECANCELED at --help and --version. *rest: number of positional arguments (permute) or index of
 * the first. */
hl_status hl_flags_scan(const struct hl_flags *f, int argc, char **argv, int *rest) HL_CHECK;

#endif
