/* Reading: first from the mapped pool, without lock or allocation; after that come the network,
 * restarts of the daemon and bad checksums.
 *
 *     read_memory    mapped pool --not there, bad--> the node's store (L2)
 *         |          nothing mapped: the node's store, which may load it (keep.c), then the network
 *         v
 *     read_once      HL_ENOENT of a mapped pool: the daemon loads it from its archive; again
 *         v
 *     read_hard      in this order: connect again (the daemon was restarted), have the pool's copy
 *                    healed and read it, read another node's copy; all of it again until the
 *                    deadline while a daemon that may help is away (read_retry)
 *         v
 *     read_again     a derived shard that is gone or damaged: its layout is listed again, and cut
 *
 * Threads: any number may read at a time. Between attach_enter and attach_leave a thread may use
 * the mapped pool without a reference; attach.c closes a replaced pool when no reader is in
 * between. */
#include "base/copy.h"
#include "base/log.h"
#include "client/client_private.h"
#include "core/catalog/derived_id.h"
#include "core/copies/copyplan.h"
#include "os/copy_measure.h"

/* A small read takes little longer than reading the clock, so only one in so many is timed. */
#define TIMED_ONE_OF 16u
/* How long the Controller's information about a shard may be out of date: it learns from the nodes
 * what they have, and a shard may move between its answer and the read. */
#define SETTLE_NS (5 * HL_NS_PER_S)

void read_account(struct operation *op, struct hl_id id, uint64_t bytes, int net, hl_status st)
{
    helios_client *c = op->client;
    struct counters *n = &c->counters;
    net |= op->elsewhere != NULL;
    planes_count(c, TALLY_READ, net, bytes, st);
    if (st == HL_OK) {
        unsigned weight = net || bytes > SMALL_READ ? 1 : TIMED_ONE_OF;
        if (op->timed) {
            uint64_t ns = hl_now_ns() - op->started_ns;
            atomic_fetch_add_explicit(&n->read_ns, weight * ns, memory_order_relaxed);
            planes_time(c, TALLY_READ, net, ns);
        }
        const char *path = op->elsewhere ? op->elsewhere : net ? net_path(c->attach.net) : "shm";
        if (atomic_load_explicit(&n->path, memory_order_relaxed) != path)
            atomic_store_explicit(&n->path, path, memory_order_relaxed);
        access_count(c->access, id, bytes,
                     net              ? ACCESS_NET
                     : op->from_store ? ACCESS_STORE
                                      : ACCESS_POOL);
        if (op->from_kept)
            access_kept(c->access, id, false);
    }
    if (op->crc_failures > 0)
        access_trouble(c->access, id, op->crc_failures, op->retries, st == HL_ECORRUPT);
}

/* After a restart (HL_ESTALE) there is nothing to wait for; a daemon that is away needs a moment.
 */
bool read_recover(struct operation *op, hl_status *st)
{
    if (*st != HL_ESTALE && *st != HL_EUNAVAIL)
        return false;
    if (*st == HL_ESTALE ? operation_expired(op) : !operation_pause_for_daemon(op))
        return false;
    hl_status again = attach_renew(op, RENEW_WAIT);
    if (again != HL_OK) {
        *st = again;
        return false;
    }
    return true;
}

/* Whether another holder may still get the shard, or be read. A daemon that is away is waited for;
 * any other failure may be that of a copy which moves, or of a daemon that ends, and has SETTLE_NS
 * to pass. A derived shard is not waited for: it is cut again. If the Controller never answered,
 * its address is wrong. */
static bool copies_may_come(struct operation *op, struct hl_id id, hl_status elsewhere)
{
    uint64_t now = hl_now_ns();
    bool away = elsewhere == HL_EUNAVAIL || elsewhere == HL_ETIMEDOUT;
    bool final = elsewhere == HL_ENOENT || elsewhere == HL_EINVAL || elsewhere == HL_ENOMEM;
    if (away)
        op->unsure_ns = 0;
    else if (op->unsure_ns == 0)
        op->unsure_ns = now;
    if (op->client->controller == NULL || hl_id_is_derived(id) ||
        !atomic_load_explicit(&op->client->controller_seen, memory_order_relaxed))
        return false;
    return away || (!final && now - op->unsure_ns < SETTLE_NS);
}

bool read_retry(struct operation *op, struct hl_id id, hl_status elsewhere, hl_status *st)
{
    bool away = *st == HL_ESTALE || *st == HL_EUNAVAIL;
    if ((!away && *st != HL_ENOENT) || !copies_may_come(op, id, elsewhere))
        return read_recover(op, st); /* wait for the daemon only */
    if (!operation_pause_for_controller(op))
        return false;
    hl_status again = away ? attach_renew(op, RENEW_QUICK) : HL_OK;
    if (again != HL_OK && !hl_status_retryable(again))
        *st = again;
    return again == HL_OK || hl_status_retryable(again);
}

/* One read as it was requested, and how its bytes were obtained. */
struct read {
    struct hl_id id;
    uint64_t off, len;
    void *buf;
    bool whole;
    bool net;
};

/* Reads from the node's own store, if that has the shard, or loads it. Call between enter and
 * leave. */
static hl_status read_store(struct operation *op, struct read *r, bool may_load)
{
    struct hl_pool_ref ref = {0};
    struct shm *store = attach_node_store(op->client, op->started_ns);
    if (store == NULL)
        return HL_ENOENT;
    bool had = hl_pool_view_find(store->view, r->id, &ref) == HL_OK;
    if (!had && (!may_load || !r->whole || !keep_load(op, store, r->id, HL_API_TIER_L2) ||
                 hl_pool_view_find(store->view, r->id, &ref) != HL_OK))
        return HL_ENOENT;
    hl_status st = shm_read(op, store, r->id, r->off, r->buf, r->len, r->whole);
    if (st == HL_ECORRUPT)
        keep_suspect(op->client, &ref);
    op->from_store = st == HL_OK;
    op->from_kept = st == HL_OK && had && ref.kept;
    return st;
}

/* Tries the mapped pool, then the node's store, then the network. */
static hl_status read_memory(struct operation *op, struct read *r, int *mapped)
{
    helios_client *c = op->client;
    struct shm *shm = attach_enter(c);
    hl_status st = HL_OK;
    if (shm != NULL) {
        st = shm_check(shm, op->started_ns);
        if (__builtin_expect(st == HL_OK, 1))
            st = shm_read(op, shm, r->id, r->off, r->buf, r->len, r->whole);
    }
    r->net = false;
    if (shm == NULL || (st != HL_OK && st != HL_EINVAL)) {
        hl_status found = read_store(op, r, shm == NULL);
        if (found == HL_OK || shm == NULL)
            st = found;
    }
    attach_leave(c);
    *mapped = shm != NULL;
    if (shm != NULL || st == HL_OK)
        return st;
    r->net = true;
    return net_read(op, c->attach.net, r->id, r->off, r->buf, r->len, r->whole);
}

/* Also loads from the archive what the mapped pool does not have. Over the network the daemon does
 * that as part of a locate. */
static hl_status read_once(struct operation *op, struct read *r)
{
    int mapped;
    hl_status st = read_memory(op, r, &mapped);
    /* If the pool is small, a loaded shard may be evicted again before it is read. */
    while (__builtin_expect(st == HL_ENOENT && mapped, 0)) {
        HL_TRY(shm_load(op, r->id));
        st = read_memory(op, r, &mapped);
        if (operation_expired(op))
            break;
    }
    return st;
}

/* The pool failed; a good copy elsewhere is used at once. */
static hl_status read_elsewhere(struct operation *op, struct read *r, hl_status here)
{
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", hl_error_text());
    if (here == HL_ECORRUPT && copies_heal(op, r->id) == HL_OK && read_once(op, r) == HL_OK)
        return HL_OK;
    hl_status st = copies_read(op, r->id, r->off, r->buf, r->len, r->whole, &op->elsewhere);
    if (st == HL_OK || (st == HL_ENOENT && here == HL_ENOENT)) /* the Controller knows better */
        return st;
    hl_debug("no other copy helped: %s", hl_error_text());
    (void)copies_failed(op, here, text, st); /* the failure that the caller gets */
    return st;
}

static hl_status read_hard(struct operation *op, struct read *r, hl_status st)
{
    /* The daemon may have been restarted: check that before asking others. */
    if ((st == HL_ESTALE || st == HL_EUNAVAIL) && attach_renew(op, RENEW_QUICK) == HL_OK)
        st = read_once(op, r);
    while (st != HL_OK) {
        hl_status elsewhere = hl_copy_may_help(st) ? read_elsewhere(op, r, st) : HL_ENOENT;
        if (elsewhere == HL_OK)
            st = HL_OK;
        else if (!read_retry(op, r->id, elsewhere, &st))
            return st;
        else
            st = read_once(op, r);
    }
    hl_error_clear();
    return HL_OK;
}

/* Reads a derived shard that is gone or damaged from a fresh listing; once. */
static hl_status read_again(struct operation *op, struct read *r, hl_status st)
{
    HL_TRY(list_again(op, r->id, st, &r->id));
    st = read_once(op, r);
    return st == HL_OK ? st : read_hard(op, r, st);
}

/* Like operation_begin, but a small read that is not timed uses the cheap clock. */
static void begin_read(struct operation *op, helios_client *client, uint64_t len)
{
    const struct tally *t = &client->counters.tally[TALLY_READ][0][0];
    uint64_t seen = atomic_load_explicit(&t->ops, memory_order_relaxed);
    *op = (struct operation){.client = client};
    op->timed = len > SMALL_READ || seen % TIMED_ONE_OF == 0 ||
                atomic_load_explicit(&client->attach.shm, memory_order_relaxed) == NULL;
    op->started_ns = op->timed ? hl_now_ns() : hl_now_coarse_ns();
    op->deadline_ns = op->started_ns + (uint64_t)client->read.timeout_ms * HL_NS_PER_MS;
}

static hl_status read_verified(helios_client *client, struct hl_id id, uint64_t off, void *buf,
                               uint64_t len, bool whole)
{
    struct operation op;
    struct read r = {.id = id, .off = off, .len = len, .buf = buf, .whole = whole};
    begin_read(&op, client, len);
    if (len >= HL_COPY_BULK)
        hl_copy_measure();
    hl_status st = read_once(&op, &r);
    if (__builtin_expect(st != HL_OK, 0))
        st = read_hard(&op, &r, st);
    if (__builtin_expect(st != HL_OK, 0))
        st = read_again(&op, &r, st);
    read_account(&op, id, len, r.net, st);
    return st;
}

int helios_get(helios_client *client, helios_id id, void *buf, size_t size)
{
    if (client == NULL || buf == NULL)
        return hl_fail(HL_EINVAL, "helios_get: client and buf must not be NULL");
    return read_verified(client, id_of(id), 0, buf, size, true);
}

int helios_get_range(helios_client *client, helios_id id, uint64_t offset, void *buf, size_t size)
{
    if (client == NULL || (buf == NULL && size > 0))
        return hl_fail(HL_EINVAL, "helios_get_range: client and buf must not be NULL");
    return read_verified(client, id_of(id), offset, buf, size, false);
}

/* Looks in a mapped pool; HL_ENOENT without a text when `shm` is NULL. */
static hl_status find_mapped(struct operation *op, struct shm *shm, struct hl_id id, uint64_t *size,
                             uint32_t *crc32)
{
    struct hl_pool_ref ref;
    if (shm == NULL)
        return HL_ENOENT;
    HL_TRY(shm_check(shm, op->started_ns));
    HL_TRY(shm_find(op, shm, id, &ref));
    *size = ref.size;
    *crc32 = ref.crc32;
    return HL_OK;
}

/* Like read_once, but without the bytes: the index has all that is needed. The pool stays entered
 * while the daemon loads, so a replaced one waits that long. */
static hl_status find_once(struct operation *op, struct hl_id id, uint64_t *size, uint32_t *crc32)
{
    helios_client *c = op->client;
    struct shm *shm = attach_enter(c);
    hl_status st = find_mapped(op, shm, id, size, crc32);
    if (st != HL_OK &&
        find_mapped(op, attach_node_store(c, op->started_ns), id, size, crc32) == HL_OK)
        st = HL_OK;
    while (st == HL_ENOENT && shm != NULL && (st = shm_load(op, id)) == HL_OK) {
        st = find_mapped(op, shm, id, size, crc32);
        if (operation_expired(op))
            break;
    }
    attach_leave(c);
    return shm != NULL || st == HL_OK ? st : net_find(op, c->attach.net, id, size, crc32);
}

int helios_find(helios_client *client, helios_id id, uint64_t *size, uint32_t *crc32)
{
    struct operation op;
    struct hl_id fresh;
    uint64_t found_size;
    uint32_t found_crc;
    if (client == NULL)
        return hl_fail(HL_EINVAL, "helios_find: client must not be NULL");
    operation_begin(&op, client);
    hl_status st = find_once(&op, id_of(id), &found_size, &found_crc);
    while (st != HL_OK) {
        hl_status elsewhere =
            hl_copy_may_help(st) ? copies_find(&op, id_of(id), &found_size, &found_crc) : HL_ENOENT;
        if (elsewhere != HL_OK && !read_retry(&op, id_of(id), elsewhere, &st))
            break;
        st = elsewhere == HL_OK ? HL_OK : find_once(&op, id_of(id), &found_size, &found_crc);
    }
    if (st != HL_OK && (st = list_again(&op, id_of(id), st, &fresh)) == HL_OK)
        st = find_once(&op, fresh, &found_size, &found_crc);
    if (st != HL_OK)
        return st;
    hl_error_clear();
    if (size != NULL)
        *size = found_size;
    if (crc32 != NULL)
        *crc32 = found_crc;
    return HL_OK;
}
