/* net/tcp/ops.c - the function table of the TCP back end. */
#include "net/tcp/client.h"
#include "net/tcp/server.h"

hl_status hl_tcp_server_start(const struct hl_net_server_opts *opts, const struct hl_tcp_rdma *rdma,
                              struct hl_id id, struct hl_net_server **out)
{
    HL_TRY(hl_tcp_server_new(opts, rdma, id, out));
    (*out)->ops = hl_net_tcp();
    return HL_OK;
}

static hl_status tcp_server_start(const struct hl_net_server_opts *opts, struct hl_net_server **out)
{
    return hl_tcp_server_start(opts, NULL, hl_id_random(), out);
}

static hl_status tcp_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out)
{
    HL_TRY(hl_tcp_connect(opts, out));
    (*out)->head.ops = hl_net_tcp();
    return HL_OK;
}

const struct hl_net_ops *hl_net_tcp(void)
{
    static const struct hl_net_ops ops = {
        .name = "tcp",
        .server_start = tcp_server_start,
        .server_address = hl_tcp_server_address,
        .server_stats = hl_tcp_server_stats,
        .server_stop = hl_tcp_server_stop,
        .connect = tcp_connect,
        .close = hl_tcp_close,
        .info = hl_tcp_info,
        .fetch = hl_tcp_fetch,
        .put = hl_tcp_put,
    };
    return &ops;
}
