/* net/ucx/ops.c - the function table of the UCX back end. */
#include "net/ucx/client.h"
#include "net/ucx/server.h"

static hl_status ucx_server_start(const struct hl_net_server_opts *opts, struct hl_net_server **out)
{
    HL_TRY(hl_ucx_server_new(opts, out));
    (*out)->ops = hl_net_ucx();
    return HL_OK;
}

hl_status hl_ucx_server_start_rdma(const struct hl_net_server_opts *opts, const char *device,
                                   const char *devices, struct hl_id id, struct hl_net_server **out)
{
    HL_TRY(hl_ucx_server_new_rdma(opts, device, devices, id, out));
    (*out)->ops = hl_net_ucx();
    return HL_OK;
}

static hl_status ucx_connect(const struct hl_net_connect_opts *opts, struct hl_net_client **out)
{
    HL_TRY(hl_ucx_connect(opts, out));
    (*out)->head.ops = hl_net_ucx();
    return HL_OK;
}

hl_status hl_ucx_connect_rdma(const struct hl_net_connect_opts *opts,
                              const struct hl_ucx_meeting *meeting, struct hl_net_client **out)
{
    HL_TRY(hl_ucx_client_meet(opts, meeting, out));
    (*out)->head.ops = hl_net_ucx();
    return HL_OK;
}

const struct hl_net_ops *hl_net_ucx(void)
{
    static const struct hl_net_ops ops = {
        .name = "ucx",
        .server_start = ucx_server_start,
        .server_address = hl_ucx_server_address,
        .server_stats = hl_ucx_server_stats,
        .server_stop = hl_ucx_server_stop,
        .connect = ucx_connect,
        .close = hl_ucx_close,
        .info = hl_ucx_info,
        .fetch = hl_ucx_fetch,
        .put = hl_ucx_put,
    };
    return &ops;
}
