/* Opening and closing servers and connections: defaults, the choice of the back end, and the return
 * to RDMA of a connection that fell back to TCP. */
#include <assert.h>
#include <string.h>

#include "auth/secret.h"
#include "base/plane.h"
#include "net/conf.h"
#include "net/net.h"

#include "net/dispatch/retry.h"

#define BATCH_MAX ((size_t)64 << 10)
#define BATCH_MIN ((size_t)1 << 10)

static struct hl_net_head *head_of(struct hl_net_client *client)
{
    return (struct hl_net_head *)(void *)client;
}

/* The key of a cluster with a secret, for callers that give no key. */
static void secret_key(uint8_t key[HL_NET_KEY])
{
    static const uint8_t none[HL_NET_KEY];
    static_assert(HL_NET_KEY == HL_AUTH_LEN, "a derived key is a key of the data port");
    if (hl_auth_is_set() && memcmp(key, none, sizeof(none)) == 0)
        hl_auth_derive("helios data port", key);
}

hl_status hl_net_server_start(const struct hl_net_server_opts *opts, struct hl_net_server **out)
{
    if (opts->listen == NULL || opts->listen[0] == '\0')
        return hl_fail(HL_EINVAL, "net server: no listen address given; use \"host:port\"");
    if (opts->pool == NULL || opts->pool_len == 0)
        return hl_fail(HL_EINVAL, "net server on %s: no pool memory given", opts->listen);
    if (opts->put.begin != NULL && (opts->put.commit == NULL || opts->put.abort == NULL))
        return hl_fail(HL_EINVAL, "net server on %s: put handler without commit or abort",
                       opts->listen);
    struct hl_net_server_opts full = *opts;
    const struct hl_net_conf *conf = opts->conf != NULL ? opts->conf : hl_net_conf_default();
    if (full.put_queue <= 0)
        full.put_queue = conf->put_queue;
    if (full.put_timeout_ms <= 0)
        full.put_timeout_ms = conf->put_timeout_ms;
    if (full.connect_ms <= 0)
        full.connect_ms = conf->connect_ms;
    if (full.spin_us == 0)
        full.spin_us = conf->spin_us;
    if (full.ops == NULL)
        full.ops = hl_net_auto();
    secret_key(full.key);
    return full.ops->server_start(&full, out);
}

hl_status hl_net_connect(const char *address, int timeout_ms, struct hl_net_client **out)
{
    struct hl_net_connect_opts opts = {.address = address, .timeout_ms = timeout_ms};
    return hl_net_connect_with(&opts, out);
}

/* Starts retries for a connection that fell back to TCP, or was made before its adapter was
 * there. */
static hl_status connect_and_watch(const struct hl_net_connect_opts *opts,
                                   struct hl_net_client **out)
{
    struct hl_net_client *c;
    struct hl_net_client_info info;
    HL_TRY(opts->ops->connect(opts, &c));
    hl_net_client_info(c, &info);
    if (info.fell_back)
        hl_fault_count("rdma-failed", info.path);
    if ((info.fell_back || info.lacks) && opts->rdma_retry_ms > 0)
        head_of(c)->retry = hl_net_retry_new(opts, info.fell_back);
    *out = c;
    return HL_OK;
}

static void fill_connect(struct hl_net_connect_opts *full, const struct hl_net_conf *conf)
{
    if (full->timeout_ms <= 0)
        full->timeout_ms = conf->connect_ms;
    if (full->stall_ms <= 0)
        full->stall_ms = conf->stall_ms;
    if (full->spin_us == 0)
        full->spin_us = conf->spin_us;
    if (full->endpoints <= 0)
        full->endpoints = conf->endpoints;
    if (full->endpoints > HL_NET_ENDPOINTS_MAX)
        full->endpoints = HL_NET_ENDPOINTS_MAX;
    if (full->batch_bytes == 0)
        full->batch_bytes = conf->batch_bytes;
    if (full->batch_bytes > BATCH_MAX)
        full->batch_bytes = BATCH_MAX;
    if (full->batch_bytes < BATCH_MIN)
        full->batch_bytes = BATCH_MIN;
    if (full->rdma_retry_ms == 0)
        full->rdma_retry_ms = conf->rdma_retry_ms;
    if (full->ops == NULL)
        full->ops = hl_net_auto();
}

hl_status hl_net_connect_with(const struct hl_net_connect_opts *opts, struct hl_net_client **out)
{
    struct hl_net_connect_opts full = *opts;
    if (full.address == NULL)
        return hl_fail(HL_EINVAL, "net connect: no address given; use \"host:port\"");
    const char *scheme = strstr(full.address, "://");
    if (scheme != NULL)
        full.address = scheme + 3;
    secret_key(full.key);
    fill_connect(&full, opts->conf != NULL ? opts->conf : hl_net_conf_default());
    return connect_and_watch(&full, out);
}

void hl_net_renew(struct hl_net_client **client)
{
    struct hl_net_retry *retry = head_of(*client)->retry;
    struct hl_net_client *better = retry != NULL ? hl_net_retry_poll(retry) : NULL;
    if (better == NULL)
        return;
    hl_net_close(*client);
    *client = better;
}

void hl_net_close(struct hl_net_client *client)
{
    if (client == NULL)
        return;
    hl_net_retry_free(head_of(client)->retry);
    head_of(client)->ops->close(client);
}
