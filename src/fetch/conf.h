/* fetch/conf.h - the options read.*.
 *
 * Owns:    nothing; texts are the configuration's (conf/conf.h).
 * Threads: written once, before the daemon serves; read from any.
 * Errors:  none.
 * Units:   as the fields say; names, defaults and ranges are in conf.c.
 * Limits:  those of the rows.
 */
#ifndef HL_FETCH_CONF_H
#define HL_FETCH_CONF_H

#include "conf/options.h"
#include "fetch/remote.h"

struct hl_read_conf {
    struct hl_retry retry; /* of a chunk with a wrong checksum */
    int timeout_ms;        /* of one operation of libhelios */
    int daemon_pause_ms;   /* pause before a busy or unreachable daemon is asked again */
};

extern const struct hl_option_rows hl_read_retry_rows;   /* .retry */
extern const struct hl_option_rows hl_read_timeout_rows; /* the others */

#endif
