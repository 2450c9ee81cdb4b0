/* rpc/conf.h - the options for the Controller's address and for the duration of a call.
 *
 * Owns:    nothing; texts are the configuration's (conf/conf.h).
 * Threads: written once, before the daemon serves; read from any.
 * Errors:  none.
 * Units:   as the fields say; names, defaults and ranges are in conf.c.
 * Limits:  those of the rows.
 */
#ifndef HL_RPC_CONF_H
#define HL_RPC_CONF_H

#include "conf/options.h"

struct hl_rpc_conf {
    const char *controller; /* the one that the CLI and libhelios call; "" = agent_controller */
    const char *agent_controller; /* the one that the Agent reports to */
    int timeout_ms;
};

extern const struct hl_option_rows hl_rpc_controller_rows; /* .controller */
extern const struct hl_option_rows hl_rpc_agent_rows;      /* .agent_controller */
extern const struct hl_option_rows hl_rpc_rows;            /* .timeout_ms */

#endif
