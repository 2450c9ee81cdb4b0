/* A server's counters, for metrics. Each is atomic and relaxed: the gate, the connections and the
 * put workers add to it, and it orders nothing. A snapshot is not of one moment: bytes may be ahead
 * of their operations. */
#include "net/counts.h"

#include "api/types.h"
#include "base/plane.h"

static uint64_t read_count(const _Atomic uint64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

void hl_net_counts_read(const struct hl_net_counts *c, struct hl_net_server_stats *out)
{
    *out = (struct hl_net_server_stats){
        .peers_now = read_count(&c->peers),
        .gets = read_count(&c->gets),
        .get_bytes = read_count(&c->get_bytes),
        .puts = read_count(&c->puts),
        .put_bytes = read_count(&c->put_bytes),
        .puts_aborted = read_count(&c->aborted),
        .puts_expired = read_count(&c->expired),
        .batches = read_count(&c->batches),
        .refused = read_count(&c->refused),
    };
}

void hl_net_plane_served(uint64_t bytes)
{
    hl_plane_count(
        &(struct hl_transfer){.plane = HL_PLANE_BACKBONE,
                              .op = hl_api_operation_name(HL_API_OPERATION_READ),
                              .path = hl_api_route_path_name(HL_API_ROUTE_PATH_TCP),
                              .reason = hl_api_route_reason_name(HL_API_ROUTE_REASON_NO_RDMA),
                              .sent = 1,
                              .bytes = bytes});
}
