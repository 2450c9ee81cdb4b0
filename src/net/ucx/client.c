/* net/ucx/client.c - waiting with a deadline, and ending cleanly.
 *
 * A client that missed a deadline is not reused: UCX can't take back a running rendezvous, whose
 * bytes would land later in a buffer that the caller has already released. Nothing is written only
 * after the endpoint and the worker are torn down. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "net/ucx/client.h"

#define CLOSE_MAX_NS (HL_NS_PER_S / 2)

static void close_endpoint(struct hl_net_client *c, ucp_ep_h ep)
{
    uint64_t limit = hl_now_ns() + CLOSE_MAX_NS;
    void *request = hl_ucx_ep_close(ep);
    while (!hl_ucx_request_done(request)) {
        if (hl_now_ns() > limit) {
            ucp_request_free(request);
            break;
        }
        ucp_worker_progress(c->ucx.worker);
    }
}

static void tear_down(struct hl_net_client *c)
{
    if (c->ep != NULL)
        close_endpoint(c, c->ep);
    c->ep = NULL;
    for (size_t i = 0; i < c->more_count; i++)
        close_endpoint(c, c->more[i].ep);
    /* Reads in flight used the keys until here. */
    for (size_t i = 0; i < c->more_count; i++)
        if (c->more[i].key != NULL)
            ucp_rkey_destroy(c->more[i].key);
    c->more_count = 0;
    if (c->key != NULL)
        ucp_rkey_destroy(c->key);
    c->key = NULL;
    hl_ucx_fini(&c->ucx);
}

hl_status hl_ucx_client_kill(struct hl_net_client *c, hl_status st, const char *fmt, ...)
{
    va_list ap;
    bool first = c->death.status == HL_OK;
    va_start(ap, fmt);
    hl_net_death_note(&c->death, &c->call, c->address, c->path, st, fmt, ap);
    va_end(ap);
    if (first)
        tear_down(c);
    return hl_fail(st, "%s", c->death.words);
}

hl_status hl_ucx_client_usable(const struct hl_net_client *c)
{
    return hl_net_death_check(&c->death, c->address);
}

/* Checked in this order to name the nearest cause: a peer that has gone also stalls. */
static hl_status look_for_trouble(struct hl_net_client *c, uint64_t now, uint64_t deadline_ns)
{
    if (hl_net_is_cancelled(&c->head, c->cancel))
        return hl_ucx_client_kill(c, HL_ECANCELED, "it was cancelled");
    if (c->broke == UCS_ERR_INVALID_PARAM)
        return hl_ucx_client_kill(c, HL_EPROTO, "the server's answer is not of this protocol");
    if (c->broke != UCS_OK)
        return hl_ucx_client_kill(c, HL_EUNAVAIL, "the connection to the server was lost (%s)",
                                  ucs_status_string(c->broke));
    if (now > deadline_ns)
        return hl_ucx_client_kill(c, HL_ETIMEDOUT, "no answer before the deadline");
    if (now > c->moved_ns + c->stall_ns)
        return hl_ucx_client_kill(c, HL_ETIMEDOUT, "nothing arrived for %llu ms",
                                  (unsigned long long)(c->stall_ns / HL_NS_PER_MS));
    return HL_OK;
}

/* Spins for spin_us after the last event, then sleeps on the worker's descriptor. Two timers run:
 * the caller's deadline, and stall_ns since the last byte or answer. A server that works on a put
 * sends WAIT, which counts as an answer. */
hl_status hl_ucx_client_wait(struct hl_net_client *c, bool (*done)(void *arg), void *arg,
                             uint64_t deadline_ns)
{
    uint64_t idle_since = 0; /* set by the first idle look, so a quick answer costs no clock read */
    c->moved = true;
    while (!done(arg)) {
        unsigned events = ucp_worker_progress(c->ucx.worker);
        if (events > 0 && c->broke == UCS_OK && done(arg))
            break;
        uint64_t now = hl_now_ns();
        if (c->moved)
            c->moved_ns = now;
        c->moved = false;
        HL_TRY(look_for_trouble(c, now, deadline_ns));
        if (events > 0 || idle_since == 0) {
            idle_since = now;
        } else if (now - idle_since > c->ucx.spin_ns) {
            uint64_t stalled_ns = c->moved_ns + c->stall_ns;
            uint64_t until_ns = deadline_ns < stalled_ns ? deadline_ns : stalled_ns;
            uint64_t left = until_ns > now ? until_ns - now : 0;
            uint64_t paced = hl_net_pace_wait_ns(&c->head, now);
            left = paced > 0 && paced < left ? paced : left;
            hl_ucx_nap(&c->ucx, -1, left < HL_UCX_NAP_NS ? left : HL_UCX_NAP_NS);
        } else {
            sched_yield(); /* the server may be waiting for this CPU */
        }
    }
    return HL_OK;
}

hl_status hl_ucx_send_control(struct hl_net_client *c, size_t lane, const struct hl_wire *wire)
{
    ucp_ep_h ep = lane == 0 ? c->ep : c->more[lane - 1].ep;
    hl_status st = hl_ucx_send(ep, &(struct hl_ucx_send){.wire = *wire});
    if (st != HL_OK)
        return hl_ucx_client_kill(c, HL_EUNAVAIL, "%s", hl_error_text());
    return HL_OK;
}

void hl_ucx_close(struct hl_net_client *c)
{
    tear_down(c);
    for (size_t i = 0; i < HL_UCX_BATCHES; i++)
        free(c->batch[i]);
    free(c);
}

void hl_ucx_info(const struct hl_net_client *c, struct hl_net_client_info *out)
{
    *out =
        (struct hl_net_client_info){.path = c->path, .pool_len = c->pool_len, .server = c->server};
}
