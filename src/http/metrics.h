/* http/metrics.h - GET /metrics (Prometheus text 0.0.4) and GET /healthz of a daemon.
 *
 * /metrics is the table of planes and, when the loop answers in time, what `gauges` adds; without
 * them it still comes, and helios_up is 0. /healthz is 200 while the loop answers, else 503; what
 * `health` says follows the "ok".
 *
 * Owns:    a listening socket and a thread per connection.
 * Threads: start and stop on the loop's thread; `gauges` and `health` run there, and nothing of
 *          the daemon is touched from the connections' threads.
 * Errors:  HL_EINVAL (no host:port), HL_EBUSY (the port is in use), HL_EIO.
 * Units:   milliseconds.
 * Limits:  HL_METRICS_CONNECTIONS at a time, HL_METRICS_IDLE_S each without a byte; of those that
 *          ask nothing HL_METRICS_SILENT, then the oldest one is closed;
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
    const char *listen; /* "host:port"; port 0 takes a free one, "" = nothing is served */
    struct hl_loop *loop;
    int deadline_ms; /* of the loop's answer; 0 = 1000 */
    /* Families of the daemon's own, appended; NULL = none. */
    hl_status (*gauges)(void *arg, struct hl_buf *out);
    /* Lines about what is amiss, appended; NULL = none. */
    hl_status (*health)(void *arg, struct hl_buf *out);
    void *arg;
};

/* *out is NULL when nothing is to be served. */
hl_status hl_metrics_start(const struct hl_metrics_opts *opts, struct hl_metrics **out) HL_CHECK;
/* With the real port, "" of NULL. Borrowed. */
const char *hl_metrics_address(const struct hl_metrics *m);
/* Before the daemon that `gauges` asks. NULL is fine. */
void hl_metrics_stop(struct hl_metrics *m);

#endif
