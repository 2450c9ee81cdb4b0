/* Where a copy is read from: a tier of this node, the mapped memory of another store on this host,
 * or the network. Every byte returned from here was checked against the CRC of its MiB. A bad one
 * is read again, and after the last retry the copy fails: the Controller, which ordered it, knows
 * other sources.
 *
 *     own       pinned in a tier of this node
 *     mapped    a leased connection to the other store's socket, and a pin of that connection
 *     network   a leased connection --lost, for the first time--> located and connected again
 *                     '--lost again, or the shard was replaced--> the copy fails
 *
 * A source belongs to one copy and its thread: the plank's helper delivers, and does not fetch. The
 * pin keeps the bytes in place until the source is closed. Over the network nothing is pinned: the
 * checksums from the locate tell if other bytes lie there by now. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/store_private.h"
#include "base/log.h"
#include "base/plane.h"
#include "core/copies/copy_attempt.h"

static hl_status alloc_crcs(struct source *src)
{
    src->crcs = calloc(hl_chunk_count(src->size) + 1, sizeof(*src->crcs));
    return src->crcs != NULL
               ? HL_OK
               : hl_fail(HL_ENOMEM,
                         "out of memory allocating the checksums of a shard of %" PRIu64 " bytes",
                         src->size);
}

/* ---- opening --------------------------------------------------------------------------------- */

static hl_status open_own(struct store *s, const struct store_request *r, struct source *src)
{
    struct store_tier *t = NULL;
    hl_status st = hl_fail(HL_ENOENT, "shard %s is not in %s of node %s", hl_id_format(r->id).s,
                           hl_api_tier_name(r->source_tier), s->node);
    for (size_t i = 0; i < s->tier_count && st != HL_OK; i++) {
        t = &s->tiers[i];
        if (t->tier != r->source_tier ||
            (r->source_device[0] != '\0' && strcmp(r->source_device, t->device) != 0))
            continue;
        src->own_in = t->t;
        st = r->keeps && t->kept == NULL ? store_keep_pin(s, r->id, &src->own_ref)
                                         : hl_tier_pin(t->t, r->id, &src->own_ref);
        if (st == HL_ENOENT && r->keeps && t->kept != NULL) {
            src->own_in = t->kept;
            st = hl_tier_pin(t->kept, r->id, &src->own_ref);
        }
    }
    HL_TRY(st);
    src->own = t;
    src->size = src->own_ref.size;
    src->crc32 = src->own_ref.crc32;
    src->link = HL_LINK_HERE;
    snprintf(src->transport, sizeof(src->transport), "shm");
    HL_TRY(alloc_crcs(src));
    return hl_tier_chunk_crcs(src->own_in, &src->own_ref, src->crcs);
}

/* An Agent either answers at once or is stuck, and there may be another copy. L3 may have to load
 * the shard from the archive first. */
static int locate_limit_ms(const struct store *s, const struct store_request *r, int ms)
{
    int most = s->opts.locate_timeout_ms;
    return r->source_tier != HL_API_TIER_L3 && most > 0 && ms > most ? most : ms;
}

static hl_status open_local(struct store *s, const struct store_request *r, struct source *src)
{
    int ms;
    HL_TRY(store_left(s, r, &ms));
    ms = locate_limit_ms(s, r, ms);
    HL_TRY(store_local_acquire(s, r->source_socket, ms, &src->local));
    hl_status st = hl_l3_pin(src->local, r->id, 0, ms, &src->local_ref);
    if (st != HL_OK) {
        store_local_release(s, r->source_socket, hl_steal(&src->local), st);
        return st;
    }
    src->size = src->local_ref.size;
    src->crc32 = src->local_ref.crc32;
    src->link = HL_LINK_HERE;
    snprintf(src->transport, sizeof(src->transport), "shm");
    HL_TRY(alloc_crcs(src));
    memcpy(src->crcs, hl_pool_view_chunk_crcs(hl_l3_view(src->local), &src->local_ref),
           hl_chunk_count(src->size) * sizeof(uint32_t));
    if (hl_chunk_count(src->size) == 1)
        src->crcs[0] = src->crc32;
    return HL_OK;
}

/* Asks where the shard lies there now, and for its checksums. */
static hl_status source_locate(struct store *s, const struct store_request *r, struct source *src)
{
    bool in_l3 = r->source_tier == HL_API_TIER_L3;
    struct hl_rpc_peer *peer;
    struct hl_extent *extent;
    int ms;
    HL_TRY(store_left(s, r, &ms));
    HL_TRY(store_rpc(s, r->source_rpc, in_l3 ? "L3" : "Agent", &peer));
    HL_TRY(hl_extent_locate(peer, in_l3 ? HL_EXTENT_OF_L3 : HL_EXTENT_OF_AGENT, r->id,
                            locate_limit_ms(s, r, ms), &extent));
    free(src->extent);
    src->extent = extent;
    src->size = extent->size;
    src->crc32 = extent->crc32;
    return HL_OK;
}

static hl_status open_net(struct store *s, const struct store_request *r, struct source *src)
{
    int ms;
    if (r->source_data[0] == '\0')
        return hl_fail(HL_EUNAVAIL, "%s has no data address for other hosts",
                       r->source_node[0] != '\0' ? r->source_node : "L3");
    HL_TRY(source_locate(s, r, src));
    HL_TRY(store_left(s, r, &ms));
    src->far = true;
    HL_TRY(store_net_acquire(s, r->source_data, src->mode, ms, &src->net));
    const char *path = hl_net_path_name(src->net.client);
    src->link = strcmp(path, "rdma") == 0 ? HL_LINK_RDMA : HL_LINK_TCP;
    snprintf(src->transport, sizeof(src->transport), "%s", path);
    return HL_OK;
}

static hl_status source_check(const struct store_request *r, const struct source *src)
{
    if (r->size == 0 || (src->size == r->size && src->crc32 == r->crc32))
        return HL_OK;
    return hl_fail(HL_ECORRUPT,
                   "the source has %" PRIu64 " bytes with CRC %08x, but the order says %" PRIu64
                   " with %08x",
                   src->size, src->crc32, r->size, r->crc32);
}

static struct hl_copy_source source_seen(const struct store *s, const struct store_request *r)
{
    bool same_host = r->source_host[0] != '\0' && strcmp(r->source_host, s->host_id) == 0;
    return (struct hl_copy_source){.tier = r->source_tier,
                                   .own_node = strcmp(r->source_node, s->node) == 0,
                                   .mappable = same_host && r->source_socket[0] != '\0',
                                   .has_data = r->source_data[0] != '\0'};
}

static hl_status open_mapped(struct store *s, const struct store_request *r,
                             const struct hl_copy_source *seen, struct source *src)
{
    hl_status st = open_local(s, r, src);
    if (!hl_copy_reads_by_net(seen, st))
        return st;
    hl_warn("memory of %s can't be mapped, the shard is fetched instead error=\"%s\"",
            r->source_socket, hl_error_text());
    source_close(s, src);
    return open_net(s, r, src);
}

hl_status source_open(struct store *s, const struct store_request *r, struct source *out)
{
    struct source src = {.request = r};
    const struct hl_copy_source seen = source_seen(s, r);
    hl_status st = HL_EUNSUPPORTED;
    switch (hl_copy_reading(&seen)) {
    case HL_COPY_FROM_OWN:
        st = open_own(s, r, &src);
        break;
    case HL_COPY_FROM_MAPPED:
        st = open_mapped(s, r, &seen, &src);
        break;
    case HL_COPY_FROM_NET:
        st = open_net(s, r, &src);
        break;
    case HL_COPY_FROM_NONE:
        st = hl_fail(HL_EUNSUPPORTED, "an L1 is read on its own node only: copy it to an L2 first");
        break;
    }
    if (st == HL_OK)
        st = source_check(r, &src);
    if (st != HL_OK) {
        source_close(s, &src);
        return st;
    }
    *out = src;
    return HL_OK;
}

void source_close(struct store *s, struct source *src)
{
    if (src->own != NULL)
        hl_tier_unpin(src->own_in, &src->own_ref);
    if (src->local != NULL) {
        hl_status st = hl_l3_unpin(src->local, &src->local_ref, 1000);
        store_local_release(s, src->request->source_socket, src->local, st);
    }
    if (src->net.client != NULL)
        store_net_release(s, src->request->source_data, src->mode, &src->net, src->last);
    free(src->crcs);
    free(src->extent);
    *src = (struct source){.request = src->request};
}

/* ---- reading --------------------------------------------------------------------------------- */

/* A reader has exclusive use of the source: a leased connection, a pin, or both. `last` records how
 * the connection fared, and decides whether store_net_release keeps it. */

static hl_status pause_for(struct store *s, const struct store_request *r, int tried)
{
    int left;
    HL_TRY(store_left(s, r, &left));
    hl_retry_pause(&s->opts.retry, tried, left);
    return HL_OK;
}

/* Reads memory that is mapped here, until the bytes are good or the retries are used up. */
static hl_status read_memory(struct store *s, struct source *src, uint64_t offset, void *dst,
                             size_t len)
{
    const struct store_request *r = src->request;
    for (int tried = 0;; tried++) {
        hl_status st = src->own != NULL ? hl_tier_read(src->own_in, &src->own_ref, offset, dst, len)
                                        : hl_pool_view_read(hl_l3_view(src->local), &src->local_ref,
                                                            offset, dst, len);
        if (st != HL_ECORRUPT)
            return st;
        hl_fault_count("crc", "mapped");
        if (tried >= s->opts.retry.count)
            return st;
        HL_TRY(pause_for(s, r, tried));
    }
}

/* A broken connection is replaced once per copy: it may have been an old one to a restarted peer.
 */
static hl_status source_reconnect(struct store *s, struct source *src, hl_status why)
{
    const struct store_request *r = src->request;
    uint32_t crc32 = src->crc32;
    uint64_t size = src->size;
    bool lost = src->net.client != NULL;
    int ms;
    if (lost)
        store_net_release(s, r->source_data, src->mode, &src->net, why);
    HL_TRY(store_left(s, r, &ms));
    HL_TRY(source_locate(s, r, src));
    if (src->crc32 != crc32 || src->size != size)
        return hl_fail(HL_ESTALE, "shard %s was replaced at its source", hl_id_format(r->id).s);
    HL_TRY((lost ? store_net_connect : store_net_acquire)(s, r->source_data, src->mode, ms,
                                                          &src->net));
    snprintf(src->transport, sizeof(src->transport), "%s", hl_net_path_name(src->net.client));
    return HL_OK;
}

void source_ask(struct store *s, struct source *src)
{
    if (src->net.client != NULL)
        store_net_release(s, src->request->source_data, src->mode, &src->net, HL_EUNAVAIL);
    src->mode = HL_NET_ASK;
    source_revive(src);
}

void source_revive(struct source *src)
{
    src->reconnected = false;
    src->last = HL_OK;
}

/* A read in progress: what its callbacks need. */
struct reading {
    struct store *s;
    struct source *src;
};

static hl_status reading_left_ms(void *arg, int *ms)
{
    struct reading *r = arg;
    return store_left(r->s, r->src->request, ms);
}

static hl_status reading_locate(void *arg, const struct hl_extent **extent)
{
    struct reading *r = arg;
    HL_TRY(source_locate(r->s, r->src->request, r->src));
    *extent = r->src->extent;
    return HL_OK;
}

static void reading_failed(void *arg, size_t chunks)
{
    struct reading *r = arg;
    for (size_t i = 0; i < chunks; i++)
        hl_fault_count("crc", r->src->transport);
}

static hl_status source_fetch(struct store *s, struct source *src, uint64_t offset, void *dst,
                              size_t len)
{
    static const struct hl_remote_ops ops = {
        .left_ms = reading_left_ms, .locate = reading_locate, .failed = reading_failed};
    struct reading reading = {s, src};
    struct hl_remote remote = {.net = src->net.client,
                               .extent = src->extent,
                               .retry = s->opts.retry,
                               .ops = &ops,
                               .arg = &reading};
    return hl_remote_read(&remote, offset, dst, len);
}

hl_status source_read(struct store *s, struct source *src, uint64_t offset, void *dst, size_t len)
{
    int ms;
    HL_TRY(store_left(s, src->request, &ms));
    if (!src->far)
        return read_memory(s, src, offset, dst, len);
    hl_status st = src->net.client != NULL ? source_fetch(s, src, offset, dst, len)
                                           : hl_fail(HL_EUNAVAIL, "the connection was lost");
    if (st == HL_EUNAVAIL && !src->reconnected) {
        src->reconnected = true;
        st = source_reconnect(s, src, st);
        if (st == HL_OK)
            st = source_fetch(s, src, offset, dst, len);
    }
    src->last = st;
    return st;
}
