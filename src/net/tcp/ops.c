/* net/tcp/ops.c - the table of the back end for TCP. */
#include "net/tcp/client.h"
#include "net/tcp/server.h"

static hl_status start(const struct hl_net_server_opts *opts, struct hl_net_server **out)
{
    return hl_tcp_server_start(opts, NULL, hl_id_random(), out);
}

const struct hl_net_ops *hl_net_tcp(void)
{
    static const struct hl_net_ops ops = {
        .name = "tcp",
        .server_start = start,
        .server_address = hl_tcp_server_address,
        .server_stats = hl_tcp_server_stats,
        .server_stop = hl_tcp_server_stop,
        .connect = hl_tcp_connect,
        .close = hl_tcp_close,
        .info = hl_tcp_info,
        .fetch = hl_tcp_fetch,
        .put = hl_tcp_put,
    };
    return &ops;
}
