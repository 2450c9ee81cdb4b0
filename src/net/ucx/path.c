/* net/ucx/path.c - how reads really travel: inspected and tested, never guessed.
 *
 * UCX silently emulates a get by messages. A read is called "rdma" only if (a) the endpoint has a
 * read lane on a verbs transport and (b) a get of 64 bytes completed while the server's thread
 * stood still. Everything else is "tcp" (requests over TCP) or "emulated". The duration of a get
 * would be no third proof: a busy host makes a true one slow, and an emulated one never passes (b).
 * A restarted server has another random id, and no connection outlives it, so a stale pool isn't
 * read. The CRCs of every chunk show whether a location in it still has the same content. */
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/ucx/client.h"

#define PROBE_BYTES 64
#define PROBE_TRIES 10

struct probe {
    bool done;
    ucs_status_t status;
    uint64_t at_ns;
};

static bool probe_is_done(void *arg)
{
    return ((const struct probe *)arg)->done;
}

static bool pause_is_answered(void *arg)
{
    return ((const struct hl_net_client *)arg)->paused != 0;
}

/* Waits for a point in time. A single sleep would not do: the worker's events end it early, and all
 * tries would fall into the server's pause. */
static bool is_over(void *until_ns)
{
    return hl_now_ns() >= *(const uint64_t *)until_ns;
}

static void on_probe(void *request, ucs_status_t status, void *user_data)
{
    struct probe *p = user_data;
    p->done = true;
    p->status = status;
    p->at_ns = hl_now_ns();
    ucp_request_free(request);
}

static hl_status get_once(struct hl_net_client *c, uint64_t deadline_ns, bool *ok, uint64_t *at_ns)
{
    struct probe p = {.status = UCS_OK};
    char buf[PROBE_BYTES];
    ucp_request_param_t param = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.send = on_probe,
        .user_data = &p,
    };
    size_t len = c->pool_len < sizeof(buf) ? (size_t)c->pool_len : sizeof(buf);
    void *request = ucp_get_nbx(c->ep, buf, len, c->key_base, c->key, &param);
    *ok = !UCS_PTR_IS_ERR(request);
    *at_ns = hl_now_ns();
    if (request == NULL || UCS_PTR_IS_ERR(request))
        return HL_OK;
    HL_TRY(hl_ucx_client_wait(c, probe_is_done, &p, deadline_ns));
    *ok = p.status == UCS_OK;
    *at_ns = p.at_ns;
    return HL_OK;
}

/* The server answers PAUSED and then stands still for HL_UCX_PAUSE_MS, from some moment before we
 * read its answer. A get that completes within half of that did not need the server's thread. */
static hl_status read_past_a_sleeper(struct hl_net_client *c, uint64_t deadline_ns, bool *one_sided)
{
    bool ok;
    uint64_t at_ns;
    *one_sided = false;
    HL_TRY(get_once(c, deadline_ns, &ok, &at_ns)); /* sets up the lane */
    for (int i = 0; ok && i < PROBE_TRIES && hl_now_ns() < deadline_ns; i++) {
        c->paused = 0;
        HL_TRY(hl_ucx_send_control(c, 0, &(struct hl_wire){.type = HL_WIRE_PAUSE}));
        HL_TRY(hl_ucx_client_wait(c, pause_is_answered, c, deadline_ns));
        uint64_t begin = hl_now_ns();
        HL_TRY(get_once(c, deadline_ns, &ok, &at_ns));
        *one_sided = c->paused == 1 && ok && at_ns - begin < HL_UCX_PAUSE_MS * HL_NS_PER_MS / 2;
        if (*one_sided)
            break;
        /* Another client is testing, or this host is busy: try again later. */
        uint64_t later_ns = hl_now_ns() + HL_UCX_PAUSE_GAP_NS / 2;
        if (later_ns >= deadline_ns)
            break;
        HL_TRY(hl_ucx_client_wait(c, is_over, &later_ns, deadline_ns));
    }
    return HL_OK;
}

hl_status hl_ucx_client_find_path(struct hl_net_client *c, enum hl_net_mode mode,
                                  uint64_t deadline_ns)
{
    char lanes[1024];
    bool one_sided = false;
    c->lanes = hl_ucx_lanes(c->ep, lanes, sizeof(lanes));
    bool verbs_read = (c->lanes & HL_UCX_LANE_READ) != 0;
    if (mode == HL_NET_GET && c->key == NULL)
        return hl_ucx_client_kill(c, HL_EUNSUPPORTED,
                                  "the server offers no key for one-sided reads");
    if (mode != HL_NET_ASK && c->key != NULL && (verbs_read || mode == HL_NET_GET))
        HL_TRY(read_past_a_sleeper(c, deadline_ns, &one_sided));
    c->one_sided = mode == HL_NET_GET || (mode == HL_NET_AUTO && one_sided && verbs_read);
    if (c->one_sided)
        c->path = one_sided && verbs_read ? "rdma" : "emulated";
    else
        c->path = (c->lanes & HL_UCX_LANE_VERBS) != 0 ? "emulated" : "tcp";
    hl_debug("net: reads from %s path=%s %s", c->address, c->path, lanes);
    return HL_OK;
}
