/* auth/conf.h - the options auth.*.
 *
 * Owns:    nothing; texts are the configuration's (conf/conf.h).
 * Threads: written once, before the daemon serves; read from any.
 * Errors:  none.
 * Units:   as the fields say; names, defaults and ranges are in conf.c.
 * Limits:  those of the rows.
 */
#ifndef HL_AUTH_CONF_H
#define HL_AUTH_CONF_H

#include "conf/options.h"

struct hl_auth_conf {
    const char *secret_file; /* "" = none */
};

extern const struct hl_option_rows hl_auth_rows;

#endif
