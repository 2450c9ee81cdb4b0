/* Calls into the back end of an open server or connection. Both handles start with a pointer to
 * their table (struct hl_net_head), so callers need not know which back end it is. */
#include "net/net.h"

static const struct hl_net_ops *ops_of(const void *handle)
{
    return *(const struct hl_net_ops *const *)handle;
}

const char *hl_net_server_address(const struct hl_net_server *server)
{
    return ops_of(server)->server_address(server);
}

void hl_net_server_stats(const struct hl_net_server *server, struct hl_net_server_stats *out)
{
    ops_of(server)->server_stats(server, out);
}

void hl_net_server_stop(struct hl_net_server *server)
{
    if (server != NULL)
        ops_of(server)->server_stop(server);
}

void hl_net_client_info(const struct hl_net_client *client, struct hl_net_client_info *out)
{
    ops_of(client)->info(client, out);
}

const char *hl_net_path_name(const struct hl_net_client *client)
{
    struct hl_net_client_info info;
    hl_net_client_info(client, &info);
    return info.path;
}

void hl_net_stop_with(struct hl_net_client *client, const atomic_bool *stop)
{
    ((struct hl_net_head *)(void *)client)->stop = stop;
}

void hl_net_pace_with(struct hl_net_client *client, struct hl_pace *pace)
{
    ((struct hl_net_head *)(void *)client)->pace = pace;
}

hl_status hl_net_fetch(struct hl_net_client *client, uint64_t offset, void *dst, size_t len,
                       int timeout_ms)
{
    struct hl_net_bad bad;
    return ops_of(client)->fetch(client, offset, dst, len, NULL, timeout_ms, &bad);
}

hl_status hl_net_fetch_verified(struct hl_net_client *client, uint64_t offset, void *dst,
                                size_t len, const uint32_t *chunk_crcs, int timeout_ms,
                                struct hl_net_bad *bad)
{
    struct hl_net_bad own;
    if (bad == NULL)
        bad = &own;
    bad->count = 0;
    if (chunk_crcs == NULL && len > 0)
        return hl_fail(HL_EINVAL, "verified fetch of %zu bytes: no chunk checksums given", len);
    return ops_of(client)->fetch(client, offset, dst, len, chunk_crcs, timeout_ms, bad);
}

hl_status hl_net_put_many(struct hl_net_client *client, struct hl_net_item *items, size_t count,
                          int timeout_ms)
{
    for (size_t i = 0; i < count; i++)
        if (items[i].len == 0)
            return hl_fail(HL_EINVAL, "put of 0 bytes: an object has at least one byte");
    return count > 0 ? ops_of(client)->put(client, items, count, timeout_ms) : HL_OK;
}

static hl_status put_one(struct hl_net_client *client, const void *data, size_t len, uint32_t crc,
                         int timeout_ms, struct hl_id *id)
{
    struct hl_net_item item = {.data = data, .len = len, .crc = crc, .id = *id};
    HL_TRY(hl_net_put_many(client, &item, 1, timeout_ms));
    *id = item.id;
    return HL_OK;
}

hl_status hl_net_put(struct hl_net_client *client, const void *data, size_t len, uint32_t crc,
                     int timeout_ms, struct hl_id *id)
{
    struct hl_id any = {0, 0};
    HL_TRY(put_one(client, data, len, crc, timeout_ms, &any));
    *id = any;
    return HL_OK;
}

hl_status hl_net_put_as(struct hl_net_client *client, struct hl_id id, const void *data, size_t len,
                        uint32_t crc, int timeout_ms)
{
    struct hl_id got = id;
    HL_TRY(put_one(client, data, len, crc, timeout_ms, &got));
    if (!hl_id_equal(got, id))
        return hl_fail(HL_EPROTO, "put of %s was stored as %s", hl_id_format(id).s,
                       hl_id_format(got).s);
    return HL_OK;
}
