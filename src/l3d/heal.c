/* A suspected shard is read through; if it is bad or missing it is replaced from the archive, or
 * from the store of a node that has a copy. The new bytes lie beside the old ones until they are
 * verified, so readers see either the old shard or the new one, and a failed replacement changes
 * nothing.
 *
 *     loop:    method_heal --> d->heals (hash, by id): a heal with its askers --> l4_run
 *     worker:  heal_now: verify --good----------------> GOOD
 *                bad: pin the old copy, take room beside it (l4_alloc),
 *                bytes from the archive, else from each node in turn
 *                  right CRC --replace or seal--------> HEALED
 *                  no source has them ---------------> LOST
 *                  a source could not be asked ------> that error: the bytes may be there
 *     loop:    heal_done: all askers hear the same
 *
 * d->heals and the askers belong to the loop. Everything else of a heal belongs to its worker until
 * heal_done; `sources` is memory of the first asker's call, which lasts until then. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <uthash.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "core/catalog/derived_id.h"
#include "core/copies/repair.h"
#include "fetch/remote.h"
#include "l3d/l4_private.h"
#include "mem/chunks.h"
#include "net/net.h"

struct asker {
    struct hl_rpc_call *call;
    struct asker *next;
};

struct heal {
    struct work work;
    struct hl_l3d *d;
    struct hl_id id;
    struct hl_api_copy_request_list sources; /* memory of the first asker's call */
    struct asker *askers;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
    enum hl_api_heal_state state;
    char source[160];
    UT_hash_handle hh;
};

/* The copy to be replaced, and what the new bytes must be. */
struct repair {
    struct hl_pool_ref old; /* pinned; size 0 = the pool has none */
    struct hl_pool_extent x;
    uint32_t *crcs;
    struct hl_repair_want want;
};

/* ---- sources, in a worker -------------------------------------------------------------------- */

/* A fetch from a node's store: what its callbacks need. */
struct fetching {
    struct hl_l3d *d;
    struct hl_rpc_peer *agent;
    struct hl_extent *extent;
    uint64_t deadline_ns;
};

static hl_status fetching_left_ms(void *arg, int *ms)
{
    struct fetching *f = arg;
    uint64_t now = hl_now_ns();
    if (f->d->stopping)
        return hl_fail(HL_ECANCELED, "the L3 daemon is shutting down");
    if (now >= f->deadline_ns)
        return hl_fail(HL_ETIMEDOUT, "the deadline passed");
    uint64_t left = (f->deadline_ns - now) / HL_NS_PER_MS;
    *ms = left < 1 ? 1 : left > INT_MAX ? INT_MAX : (int)left;
    return HL_OK;
}

static hl_status fetching_locate(void *arg, const struct hl_extent **extent)
{
    struct fetching *f = arg;
    struct hl_extent *now;
    int ms;
    HL_TRY(fetching_left_ms(f, &ms));
    HL_TRY(hl_extent_locate(f->agent, HL_EXTENT_OF_AGENT, f->extent->id, ms, &now));
    free(f->extent);
    f->extent = now;
    *extent = now;
    return HL_OK;
}

static hl_status fetch_extent(struct fetching *f, const char *address, struct repair *p)
{
    static const struct hl_remote_ops ops = {.left_ms = fetching_left_ms,
                                             .locate = fetching_locate};
    struct hl_net_client *net = NULL;
    int ms;
    HL_TRY(fetching_left_ms(f, &ms));
    HL_TRY(hl_net_connect(address, ms < f->d->connect_ms ? ms : f->d->connect_ms, &net));
    struct hl_remote remote = {
        .net = net, .extent = f->extent, .retry = f->d->read_retry, .ops = &ops, .arg = f};
    hl_status st = hl_remote_read(&remote, 0, p->x.ptr, p->x.size);
    hl_net_close(net);
    return st;
}

static hl_status fetch_from_node(struct hl_l3d *d, const struct hl_api_copy_request *source,
                                 struct repair *p, uint32_t *crc)
{
    uint64_t ms = source->timeout_ms > 0 ? source->timeout_ms : d->l4->opts.load_timeout_ms;
    struct fetching f = {.d = d, .deadline_ns = hl_now_ns() + ms * HL_NS_PER_MS};
    int left;
    HL_TRY(fetching_left_ms(&f, &left));
    HL_TRY(hl_rpc_open(d->rpc, source->source_address, "Agent", &f.agent));
    hl_status st = hl_extent_locate(f.agent, HL_EXTENT_OF_AGENT, p->x.id, left, &f.extent);
    if (st == HL_OK && f.extent->size != p->x.size)
        st = hl_fail(HL_ECORRUPT, "the copy there has a wrong size");
    if (st == HL_OK)
        st = fetch_extent(&f, source->source_data_address, p);
    if (st == HL_OK) {
        *crc = f.extent->crc32;
        memcpy(p->crcs, f.extent->crcs, hl_chunk_count(p->x.size) * sizeof(*p->crcs));
    }
    free(f.extent);
    hl_rpc_peer_close(f.agent);
    return st;
}

/* h->st and h->text keep the error of the first source that could not be asked. */
static enum hl_repair_answer note_answer(struct heal *h, const struct repair *p, const char *where,
                                         hl_status st, uint32_t crc)
{
    enum hl_repair_answer answer = hl_repair_judge(&p->want, st, crc);
    if (answer == HL_REPAIR_GOOD)
        return answer;
    if (answer == HL_REPAIR_UNASKED && h->st == HL_OK) {
        h->st = st;
        snprintf(h->text, sizeof(h->text), "%s", hl_error_text());
    }
    hl_warn("shard not healed from %s id=%s error=\"%s\"", where, hl_id_format(h->id).s,
            st != HL_OK ? hl_error_text() : "another checksum");
    hl_fault_count(answer == HL_REPAIR_BAD ? "corrupt" : "unavailable", where);
    return answer;
}

static hl_status none_left(struct heal *h)
{
    HL_TRY(l4_knows(h->d, h->id));
    return h->st == HL_OK ? HL_ENOENT : hl_fail(h->st, "%s", h->text);
}

/* Reads good bytes into p->x, and sets *crc and where they came from. HL_ENOENT: no source has
 * them. */
static hl_status find_bytes(struct heal *h, struct repair *p, uint32_t *crc, bool *archive_bad)
{
    enum hl_repair_answer answer;
    uint64_t size;
    *archive_bad = false;
    h->st = HL_OK;
    if (l4_has(h->d, h->id, &size) && size == p->x.size) {
        hl_status st = l4_fetch(h->d, &p->x, crc, p->crcs);
        snprintf(h->source, sizeof(h->source), "L4");
        answer = note_answer(h, p, "archive", st, *crc);
        if (answer == HL_REPAIR_GOOD)
            return HL_OK;
        *archive_bad = answer == HL_REPAIR_BAD;
    }
    for (size_t i = 0; i < h->sources.count; i++) {
        const struct hl_api_copy_request *source = &h->sources.items[i];
        hl_status st = fetch_from_node(h->d, source, p, crc);
        snprintf(h->source, sizeof(h->source), "%s", source->source_node);
        if (note_answer(h, p, "node", st, *crc) == HL_REPAIR_GOOD)
            return HL_OK;
    }
    h->source[0] = '\0';
    return none_left(h);
}

/* ---- one shard, in a worker ------------------------------------------------------------------ */

static struct hl_repair_want want_of(const struct heal *h, const struct hl_pool_ref *old)
{
    struct hl_repair_known known = {.pool_size = old->size, .pool_crc = old->crc32};
    if (!l4_has(h->d, h->id, &known.archive_size))
        known.archive_size = 0;
    if (h->sources.count > 0) {
        known.stated_size = h->sources.items[0].size_bytes;
        known.stated_crc = h->sources.items[0].crc32;
    }
    return hl_repair_want(&known);
}

static hl_status replace_shard(struct heal *h, struct repair *p)
{
    uint32_t crc = 0;
    bool archive_bad = false;
    size_t chunks = hl_chunk_count(p->x.size);
    HL_TRY(find_bytes(h, p, &crc, &archive_bad));
    if (p->old.size > 0)
        HL_TRY(hl_pool_replace(h->d->pool, &p->old, &p->x, p->crcs, chunks, NULL));
    else
        HL_TRY(hl_pool_seal(h->d->pool, &p->x, crc, p->crcs, chunks, NULL));
    /* The archived copy is bad, so it must not be used for healing again. */
    if (archive_bad &&
        (hl_archive_remove(l4_archive(h->d), h->id) != HL_OK || l4_store_now(h->d, h->id) != HL_OK))
        hl_warn("the archive's bad copy stays id=%s error=\"%s\"", hl_id_format(h->id).s,
                hl_error_text());
    return HL_OK;
}

static hl_status repair_shard(struct heal *h, struct repair *p)
{
    p->want = want_of(h, &p->old);
    struct l4_want want = {
        .id = h->id, .size = p->want.size, .near = -1, .beside = p->old.size > 0 ? &p->old : NULL};
    if (want.size == 0 || (hl_id_is_derived(h->id) && h->sources.count == 0)) {
        h->state = HL_API_HEAL_STATE_LOST;
        return l4_knows(h->d, h->id);
    }
    struct hl_pool_info pool;
    hl_pool_info(h->d->pool, &pool);
    if (want.size > pool.capacity)
        return hl_fail(HL_EINVAL, "shard %s: its size of %" PRIu64 " bytes exceeds the pool",
                       hl_id_format(h->id).s, want.size);
    p->crcs = calloc(hl_chunk_count(want.size), sizeof(*p->crcs));
    if (p->crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the checksums of shard %s",
                       hl_id_format(h->id).s);
    hl_status st = l4_alloc(h->d, &want, &p->x);
    if (st == HL_EEXIST)
        return hl_fail(HL_EBUSY, "shard %s is being loaded; try again", hl_id_format(h->id).s);
    HL_TRY(st);
    st = replace_shard(h, p);
    if (st != HL_OK)
        hl_pool_abort(h->d->pool, &p->x);
    h->state = st == HL_OK ? HL_API_HEAL_STATE_HEALED : HL_API_HEAL_STATE_LOST;
    return st == HL_ENOENT ? HL_OK : st;
}

static hl_status heal_now(struct heal *h)
{
    struct repair p = {0};
    HL_AUTO(hl_freep) uint32_t *bad = NULL;
    size_t bad_count = 0;
    hl_status st = hl_pool_verify(h->d->pool, h->id, &h->d->stopping, &bad, &bad_count);
    if (st == HL_OK) {
        h->state = HL_API_HEAL_STATE_GOOD;
        return HL_OK;
    }
    if (st != HL_ECORRUPT && st != HL_ENOENT)
        return st;
    if (st == HL_ECORRUPT)
        HL_TRY(hl_pool_pin(h->d->pool, h->id, 0, &p.old));
    hl_fault_count(st == HL_ECORRUPT ? "corrupt" : "missing", "pool");
    st = repair_shard(h, &p);
    if (p.old.size > 0)
        hl_pool_unpin(h->d->pool, &p.old);
    free(p.crcs);
    if (st == HL_OK) {
        hl_fault_count(hl_api_heal_state_name(h->state), h->source[0] == '\0'           ? "none"
                                                         : strcmp(h->source, "L4") == 0 ? "archive"
                                                                                        : "node");
        hl_warn("shard was bad in the pool id=%s state=%s source=%s bad_chunks=%zu",
                hl_id_format(h->id).s, hl_api_heal_state_name(h->state), h->source, bad_count);
    }
    return st;
}

static void heal_run(struct work *w)
{
    struct heal *h = (struct heal *)w;
    h->st = atomic_load_explicit(&h->d->stopping, memory_order_relaxed)
                ? hl_fail(HL_ECANCELED, "the L3 daemon is shutting down")
                : heal_now(h);
    if (h->st != HL_OK)
        snprintf(h->text, sizeof(h->text), "%s", hl_error_text());
}

/* ---- the method ------------------------------------------------------------------------------ */

static void heal_done(struct work *w)
{
    struct heal *h = (struct heal *)w;
    struct asker *a, *next;
    HASH_DEL(h->d->heals, h);
    LL_FOREACH_SAFE(h->askers, a, next)
    {
        if (h->st == HL_OK)
            hl_reply_l3_heal(
                a->call, &(struct hl_api_l3_heal_results){.state = h->state, .source = h->source});
        else
            hl_rpc_reject(a->call, h->st, h->text);
        free(a);
    }
    free(h);
}

/* A call for a shard that is being healed already gets the result of that repair. */
void method_heal(void *arg, struct hl_rpc_call *call, const struct hl_api_l3_heal_params *params)
{
    struct hl_l3d *d = arg;
    struct hl_id id;
    struct heal *h = NULL;
    hl_status st = hl_id_parse(params->id, &id);
    if (st != HL_OK) {
        hl_rpc_reject(call, st, NULL);
        return;
    }
    HASH_FIND(hh, d->heals, &id, sizeof(id), h);
    bool fresh = h == NULL;
    struct asker *a = calloc(1, sizeof(*a));
    if (fresh)
        h = calloc(1, sizeof(*h));
    if (a == NULL || h == NULL) {
        free(a);
        if (fresh)
            free(h);
        hl_rpc_reject(call, hl_fail(HL_ENOMEM, "out of memory healing a shard"), NULL);
        return;
    }
    a->call = call;
    LL_APPEND(h->askers, a);
    if (!fresh)
        return;
    h->d = d;
    h->id = id;
    h->sources = params->sources;
    h->work = (struct work){.run = heal_run, .done = heal_done};
    HASH_ADD(hh, d->heals, id, sizeof(h->id), h);
    l4_run(d, &h->work);
}
