/* http/metrics.h - GET /metrics (Prometheus text 0.0.4) and GET /healthz of a daemon.
 *
 * /metrics returns the table of planes and, if the loop answers in time, the text of `gauges`;
 * otherwise helios_up is 0. /healthz returns 200 while the loop answers, otherwise 503; the text of
 * `health` follows the "ok".
 *
 * Owns:    a listening socket and a thread per connection.
 * Threads: start and stop on the loop's thread; `gauges` and `health` run there, and the
 *          connections' threads touch nothing of the daemon.
 * Errors:  HL_EINVAL (no host:port), HL_EBUSY (the port is in use), HL_EIO.
 * Units:   milliseconds.
 * Limits:  HL_METRICS_CONNECTIONS at a time, each at most HL_METRICS_IDLE_S without a byte; at most
 *          HL_METRICS_SILENT without a request, or the oldest of these is closed;
 *          HL_METRICS_TEXT bytes of text; other paths and methods are refused.
 */
#ifndef HL_HTTP_METRICS_H
#define HL_HTTP_METRICS_H

#include "base/buf.h"
#include "base/status.h"

#define HL_METRICS_CONNECTIONS 32
#define HL_METRICS_SILENT      16
#define HL_METRICS_IDLE_S      5
#define HL_METRICS_TEXT        ((size_t)4 << 20)

struct hl_loop;
struct hl_metrics;

struct hl_metrics_opts {
    const char *listen; /* "host:port"; port 0 = any free one, "" = nothing is served */
    struct hl_loop *loop;
    int deadline_ms; /* for the loop's answer; 0 = 1000 */
    /* Appends the daemon's own families; NULL = none. */
    hl_status (*gauges)(void *arg, struct hl_buf *out);
    /* Appends a line for each problem; NULL = none. */
    hl_status (*health)(void *arg, struct hl_buf *out);
    void *arg;
};

/* *out is NULL if nothing is served. */
hl_status hl_metrics_start(const struct hl_metrics_opts *opts, struct hl_metrics **out) HL_CHECK;
/* The address with the actual port; "" if m is NULL. Borrowed. */
const char *hl_metrics_address(const struct hl_metrics *m);
/* Call it before the daemon that `gauges` reads is freed. NULL is allowed. */
void hl_metrics_stop(struct hl_metrics *m);

#endif
