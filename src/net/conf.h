/* net/conf.h - the options data.*.
 *
 * Owns:    nothing; texts are the configuration's (conf/conf.h).
 * Threads: written once, before the daemon serves; read from any.
 * Errors:  none.
 * Units:   as the fields say; names, defaults and ranges are in conf.c.
 * Limits:  those of the rows.
 */
#ifndef HL_NET_CONF_H
#define HL_NET_CONF_H

#include <stddef.h>

#include "conf/options.h"

struct hl_net_conf {
    int spin_us;        /* a thread spins this long before it sleeps; 0 = not at all */
    int put_queue;      /* puts open at the same time; further ones wait */
    int put_timeout_ms; /* a put without progress for this long is given up */
    int connect_ms;     /* deadline of a connect, and of a client's first message */
    int endpoints;      /* connections over which the pieces of a large read are spread */
    int batch_ms;       /* a small put waits this long for others; 0 = not at all */
    size_t batch_bytes; /* size limit of the message that small puts share */
    int stall_ms;       /* a transfer that moves no byte for this long fails */
    int rdma_retry_ms;  /* time before RDMA is tried again; 0 = never */
};

/* The rows' defaults. */
const struct hl_net_conf *hl_net_conf_default(void);

extern const struct hl_option_rows hl_net_server_rows;  /* spin_us, put_queue, put_timeout_ms */
extern const struct hl_option_rows hl_net_connect_rows; /* connect_ms */
extern const struct hl_option_rows hl_net_client_rows;  /* the others */

#endif
