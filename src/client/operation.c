/* The deadline of one libhelios operation, and the events that it met.
 *
 * An operation lives on the stack of one call and belongs to that thread alone. All its waits share
 * one deadline: retries, a daemon's restart, calls to the Controller. Events are counted twice: in
 * the operation, for the report of the shard that was read, and in the client's counters, which are
 * atomic and shared by all threads. */
#include <errno.h>

#include "client/client_private.h"

#define SOCKET_MS         5000
#define CONTROLLER_PAUSES 5 /* longer pauses, because many ranks ask the one Controller */

void operation_begin(struct operation *op, helios_client *client)
{
    *op = (struct operation){.client = client, .started_ns = hl_now_ns(), .timed = true};
    op->deadline_ns = op->started_ns + (uint64_t)client->read.timeout_ms * HL_NS_PER_MS;
}

void operation_extend(struct operation *op)
{
    op->deadline_ns = hl_now_ns() + (uint64_t)op->client->read.timeout_ms * HL_NS_PER_MS;
}

bool operation_expired(const struct operation *op)
{
    return hl_now_ns() >= op->deadline_ns;
}

/* At least 1, so that a call which begins at the deadline fails with a message of its own. */
int operation_left_ms(const struct operation *op)
{
    uint64_t now = hl_now_ns();
    if (now >= op->deadline_ns)
        return 1;
    return (int)((op->deadline_ns - now) / HL_NS_PER_MS) + 1;
}

/* A daemon on this host answers in milliseconds: if it takes SOCKET_MS it hangs, however much time
 * the operation has left. */
int operation_socket_ms(const struct operation *op)
{
    int left = operation_left_ms(op);
    return left < SOCKET_MS ? left : SOCKET_MS;
}

/* A sleep that would outlast the deadline is not started: the caller fails now, with what it knows.
 */
bool operation_pause(const struct operation *op, int ms)
{
    if (hl_now_ns() + (uint64_t)ms * HL_NS_PER_MS >= op->deadline_ns)
        return false;
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    while (nanosleep(&ts, &ts) != 0 && errno == EINTR)
        ;
    return true;
}

/* Sleeps, because nothing signals that a daemon has time, or is back. */
bool operation_pause_for_daemon(const struct operation *op)
{
    return operation_pause(op, op->client->read.daemon_pause_ms);
}

bool operation_pause_for_controller(const struct operation *op)
{
    return operation_pause(op, CONTROLLER_PAUSES * op->client->read.daemon_pause_ms);
}

hl_status controller_named(const struct operation *op, const char *method)
{
    if (op->client->controller != NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "%s needs the Controller, but none is set: set HELIOS_CONTROLLER or "
                   "helios_options.controller",
                   method);
}

/* Waits only for a Controller that has answered before: if none ever did, the address is wrong. */
bool controller_again(struct operation *op, hl_status st)
{
    atomic_bool *seen = &op->client->controller_seen;
    if (st == HL_OK)
        atomic_store_explicit(seen, true, memory_order_relaxed);
    return st == HL_EUNAVAIL && atomic_load_explicit(seen, memory_order_relaxed) &&
           operation_pause_for_controller(op);
}

void operation_failed_crc(struct operation *op, uint32_t pieces)
{
    op->crc_failures += pieces;
    atomic_fetch_add_explicit(&op->client->counters.crc_failures, pieces, memory_order_relaxed);
}

void operation_retried(struct operation *op)
{
    op->retries++;
    atomic_fetch_add_explicit(&op->client->counters.retries, 1, memory_order_relaxed);
}
