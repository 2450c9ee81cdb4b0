/* net/zmq/line.c - two DEALER sockets to one receiver. */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/zmq/library.h"
#include "net/zmq/zmq_private.h"

#define PULSE_QUEUE 4
#define SETTLE_MS   100 /* payloads are returned by then, or when the sockets close */

hl_status hl_migrate_line_open(const char *address, int io_threads, struct hl_migrate_line **out)
{
    if (address == NULL || address[0] == '\0')
        return hl_fail(HL_EINVAL, "migration: no receiver's address given; use \"host:port\"");
    struct hl_migrate_line *line = calloc(1, sizeof(*line));
    if (line != NULL)
        line->address = strdup(address);
    if (line == NULL || line->address == NULL) {
        free(line);
        return hl_fail(HL_ENOMEM, "migration to %s: out of memory", address);
    }
    line->io_threads = io_threads;
    *out = line;
    return HL_OK;
}

void hl_migrate_line_close(struct hl_migrate_line *line)
{
    if (line == NULL)
        return;
    hl_mig_line_reset(line);
    free(line->address);
    free(line);
}

static hl_status connect_to(struct hl_migrate_line *line, int timeout_ms)
{
    char endpoint[HL_MIG_ENDPOINT_MAX];
    int v6, unlimited = 0, few = PULSE_QUEUE;
    HL_TRY(hl_mig_endpoint(line->address, timeout_ms, endpoint, &v6));
    HL_TRY(hl_mig_context(line->io_threads, &line->ctx));
    HL_TRY(hl_mig_socket(line->ctx, ZMQ_DEALER, v6, &line->bulk));
    HL_TRY(hl_mig_socket(line->ctx, ZMQ_DEALER, v6, &line->pulse));
    /* The credit bounds the bulk queue, so it needs no limit: a full queue would only separate
     * parts that belong together. */
    if (zmq_setsockopt(line->bulk, ZMQ_SNDHWM, &unlimited, sizeof(unlimited)) != 0 ||
        zmq_setsockopt(line->pulse, ZMQ_SNDHWM, &few, sizeof(few)) != 0 ||
        zmq_connect(line->bulk, endpoint) != 0 || zmq_connect(line->pulse, endpoint) != 0)
        return hl_fail(HL_EUNAVAIL, "migration to %s: connecting: %s", line->address,
                       zmq_strerror(errno));
    return HL_OK;
}

hl_status hl_mig_line_ready(struct hl_migrate_line *line, int timeout_ms)
{
    if (line->ctx != NULL)
        return HL_OK;
    hl_status st = connect_to(line, timeout_ms);
    if (st != HL_OK)
        hl_mig_line_reset(line);
    return st;
}

void hl_mig_line_reset(struct hl_migrate_line *line)
{
    if (line->bulk != NULL)
        zmq_close(line->bulk);
    if (line->pulse != NULL)
        zmq_close(line->pulse);
    hl_mig_context_term(line->ctx);
    line->bulk = line->pulse = line->ctx = NULL;
    while (atomic_load_explicit(&line->busy, memory_order_acquire) != 0)
        sched_yield(); /* libzmq is done with them; this only pairs with the release */
}

void hl_mig_line_settle(struct hl_migrate_line *line)
{
    uint64_t end = hl_now_ns() + SETTLE_MS * HL_NS_PER_MS;
    while (atomic_load_explicit(&line->busy, memory_order_acquire) != 0) {
        if (hl_now_ns() > end) {
            hl_mig_line_reset(line);
            return;
        }
        sched_yield();
    }
}
