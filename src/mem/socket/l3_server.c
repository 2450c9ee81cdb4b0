/* Connections are polled on the loop. A message has 48 bytes and its answer 344, so no message is
 * ever read in part. A client that doesn't read its answers is disconnected.
 *
 * The loop owns every connection (struct l3_conn). Its states, by its members:
 *
 *     accepted --HELLO--> greeted --PUT, LEASE--> put != NULL: a worker copies (l3_put.c); only
 *                           |  ^                  |            a hang-up is watched for
 *                           |  '--on_put_done-----'
 *                           |--PIN of a shard that is not here--> loading --answered--> greeted
 *     any of them --hung up, refused--> closing: its pins and mappings are released; freed when the
 *                                       socket is closed and neither put nor load is left
 *
 * conn_close only begins the end: a function that has called it, or send_answer, may still use the
 * connection until it returns to the loop. What keeps a closing one are three parties, each of whom
 * calls conn_free_if_over when it lets go: libuv (fd), the worker (put), the loader (loading).
 *
 * While a put or a load is in progress, no request is read. So a connection has at most one of
 * them, and its answers keep the order of its requests.
 *
 * A connection shares only the put with a worker: `cancel` is atomic, the rest belongs to the
 * worker until on_put_done. libuv's queue orders both handovers. The worker uses the server's
 * options and the pool, which stay until `open` is 0: hl_l3_server_stop waits for that.
 *
 * A connection shares with its client the words of pins that may rest (l3_rests.h), one per shard:
 * one of the `count` pins has the word, and the pool may have taken that pin (hl_pool_rest_end). A
 * client can write anything into its words; that costs or keeps no pins but its own. */
#include "mem/socket/socket.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <utlist.h>

#include "base/clock.h"
#include "base/log.h"
#include "mem/socket/l3_server_private.h"
#include "os/file.h"
#include "os/socket.h"

#define DEFAULT_CLIENTS  1024
#define PROCESS_CLIENTS  256 /* of one process: a rank that leaks them must not use up all */
#define MESSAGES_AT_ONCE 16
#define ACCEPT_PAUSE_MS  100
#define LOAD_TRIES       4 /* for a shard that is evicted again before it is pinned */

static void on_conn(uv_poll_t *poll, int status, int events);

/* ---- the end of a connection ----------------------------------------------------------------- */

static void conn_free_if_over(struct l3_conn *c)
{
    if (c->fd >= 0 || c->put != NULL || c->loading)
        return;
    c->server->open--;
    l3_rests_unmap(&c->rests);
    free(c);
}

static void on_conn_closed(uv_handle_t *handle)
{
    struct l3_conn *c = handle->data;
    hl_closep(&c->fd);
    conn_free_if_over(c);
}

/* Makes the pin that may rest an ordinary one, unless the pool has taken it back. */
static void end_rest(struct l3_conn *c, struct l3_pin *pin)
{
    if (pin->word == 0)
        return;
    if (!hl_pool_rest_end(c->server->opts.pool, &pin->rest)) {
        pin->count--;
        c->server->stats.pins--;
    }
    l3_rests_give(&c->rests, pin->word);
    pin->word = 0;
}

static void drop_pins(struct l3_conn *c)
{
    struct l3_pin *pin, *next;
    HASH_ITER (hh, c->pins, pin, next) {
        HASH_DEL(c->pins, pin);
        end_rest(c, pin);
        for (; pin->count > 0; pin->count--) {
            /* If the server stops before the borrower ends, the borrower's leases wait for it in
             * the pool. */
            if (!c->server->stopping)
                hl_pool_unpin(c->server->opts.pool, &pin->ref);
            c->server->stats.pins--;
        }
        free(pin);
    }
}

static void unmap_shard(struct l3_conn *c, struct l3_mapped *m)
{
    HASH_DEL(c->mapped, m);
    c->server->opts.unmap(c->server->opts.arg, &m->mapping);
    c->server->stats.pins--;
    free(m);
}

static void drop_mapped(struct l3_conn *c)
{
    struct l3_mapped *m, *next;
    HASH_ITER (hh, c->mapped, m, next) {
        unmap_shard(c, m);
    }
}

static void conn_close(struct l3_conn *c)
{
    if (c->closing)
        return;
    c->closing = true;
    drop_pins(c);
    drop_mapped(c);
    if (c->put != NULL)
        atomic_store_explicit(&c->put->cancel, true, memory_order_relaxed);
    DL_DELETE(c->server->conns, c);
    c->server->stats.clients--;
    uv_poll_stop(&c->poll);
    uv_close((uv_handle_t *)&c->poll, on_conn_closed);
}

static void conn_refuse(struct l3_conn *c, const char *why)
{
    hl_debug("pool socket: client dropped: %s", why);
    c->server->stats.refused++;
    conn_close(c);
}

/* ---- answers --------------------------------------------------------------------------------- */

static void put_ref(struct hl_l3_answer *a, const struct hl_pool_ref *r)
{
    a->id_hi = r->id.hi;
    a->id_lo = r->id.lo;
    a->offset = r->offset;
    a->size = r->size;
    a->crc32 = r->crc32;
    a->table_crc = r->table_crc;
    a->gen = r->gen;
    a->slot = r->slot;
}

static void send_answer(struct l3_conn *c, const struct hl_l3_request *req, hl_status st,
                        const char *text, struct hl_l3_answer *a, int pass)
{
    a->magic = HL_L3_MAGIC;
    a->version = HL_L3_VERSION;
    a->type = req->type;
    a->seq = req->seq;
    a->status = st;
    if (st != HL_OK)
        snprintf(a->text, sizeof(a->text), "%s", text);
    if (hl_socket_send(c->fd, a, sizeof(*a), pass, 0) != HL_OK)
        conn_close(c);
}

/* ---- requests -------------------------------------------------------------------------------- */

static void handle_hello(struct l3_conn *c, const struct hl_l3_request *req)
{
    struct hl_pool_info info;
    size_t file_size;
    hl_pool_info(c->server->opts.pool, &info);
    hl_pool_base(c->server->opts.pool, &file_size);
    c->greeted = true;
    struct hl_l3_answer a = {.uuid_hi = info.uuid.hi,
                             .uuid_lo = info.uuid.lo,
                             .incarnation = info.incarnation,
                             .offset = file_size,
                             .size = info.capacity,
                             .slot = HL_L3_RESTS};
    if (c->server->opts.rpc_address != NULL)
        snprintf(a.text, sizeof(a.text), "%s", c->server->opts.rpc_address);
    send_answer(c, req, HL_OK, NULL, &a, c->server->pool_fd);
}

static void handle_rest(struct l3_conn *c, const struct hl_l3_request *req)
{
    HL_AUTO(hl_closep) int fd = -1;
    hl_status st = c->rests.words != NULL ? hl_fail(HL_EEXIST, "the words are shared already")
                                          : l3_rests_create(&c->rests, &fd);
    send_answer(c, req, st, hl_error_text(), &(struct hl_l3_answer){0}, fd);
}

static struct l3_pin *find_pin(struct l3_conn *c, const struct l3_pin_key *key)
{
    struct l3_pin *pin;
    HASH_FIND(hh, c->pins, key, sizeof(*key), pin);
    return pin;
}

/* Takes over a pin of the pool; gives it back on failure. */
static hl_status keep_pin(struct l3_conn *c, const struct hl_pool_ref *ref)
{
    struct l3_pin *pin = find_pin(c, &(struct l3_pin_key){ref->id, ref->offset});
    if (pin == NULL) {
        pin = calloc(1, sizeof(*pin));
        if (pin == NULL) {
            hl_pool_unpin(c->server->opts.pool, ref);
            return hl_fail(HL_ENOMEM, "out of memory allocating a pin of shard %s",
                           hl_id_format(ref->id).s);
        }
        pin->key.id = ref->id;
        pin->key.offset = ref->offset;
        pin->ref = *ref;
        HASH_ADD(hh, c->pins, key, sizeof(pin->key), pin);
    }
    pin->count++;
    c->server->stats.pins++;
    return HL_OK;
}

static hl_status check_pins(const struct l3_conn *c)
{
    if (HASH_COUNT(c->pins) >= HL_L3_PINS_MAX)
        return hl_fail(HL_ENOSPC, "a client may pin %d shards; unpin some", HL_L3_PINS_MAX);
    return HL_OK;
}

static hl_status add_pin(struct l3_conn *c, const struct hl_l3_request *req,
                         struct hl_pool_ref *ref)
{
    HL_TRY(check_pins(c));
    HL_TRY(hl_pool_pin(c->server->opts.pool, (struct hl_id){req->id_hi, req->id_lo}, req->offset,
                       ref));
    return keep_pin(c, ref);
}

static void handle_pin(struct l3_conn *c, const struct hl_l3_request *req);

static void on_loaded(void *arg, hl_status st, const char *text)
{
    struct l3_conn *c = arg;
    c->loading = false;
    if (c->closing) {
        conn_free_if_over(c);
        return;
    }
    uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_conn);
    if (st == HL_OK)
        handle_pin(c, &c->load);
    if (st == HL_OK)
        return;
    c->load_tries = 0;
    send_answer(c, &c->load, st, text, &(struct hl_l3_answer){0}, -1);
}

/* A PIN with an offset means that the client has the shard mapped. It is not loaded from elsewhere,
 * because its bytes must stay where they are. */
static bool load_first(struct l3_conn *c, const struct hl_l3_request *req, hl_status st)
{
    const struct hl_l3_server_opts *o = &c->server->opts;
    if (st != HL_ENOENT || req->offset != 0 || o->load == NULL || c->load_tries >= LOAD_TRIES)
        return false;
    c->load = *req;
    c->loading = true;
    c->load_tries++;
    uv_poll_start(&c->poll, UV_DISCONNECT, on_conn);
    o->load(o->arg, (struct hl_id){req->id_hi, req->id_lo}, on_loaded, c);
    return true;
}

/* Returns the number of the word under which the client may let the pin rest, or 0 if another pin
 * of the shard already has one. */
static uint32_t let_rest(struct l3_conn *c, const struct hl_pool_ref *ref)
{
    struct l3_pin *pin = find_pin(c, &(struct l3_pin_key){ref->id, ref->offset});
    if (pin->word != 0 || (pin->word = l3_rests_take(&c->rests)) == 0)
        return 0;
    hl_pool_rest_add(c->server->opts.pool, ref, &pin->rest, l3_rests_word(&c->rests, pin->word));
    return pin->word;
}

static void handle_pin(struct l3_conn *c, const struct hl_l3_request *req)
{
    struct hl_pool_ref ref;
    struct hl_l3_answer a = {0};
    hl_status st = add_pin(c, req, &ref);
    if (load_first(c, req, st))
        return;
    c->load_tries = 0;
    if (st == HL_OK)
        put_ref(&a, &ref);
    if (st == HL_OK && req->size == 1 && req->offset == 0)
        a.incarnation = let_rest(c, &ref);
    send_answer(c, req, st, hl_error_text(), &a, -1);
}

static void give_pin(struct l3_conn *c, struct l3_pin *pin, bool rested)
{
    uint64_t had = pin->count;
    if (rested)
        end_rest(c, pin);
    if (pin->count == had) {
        hl_pool_unpin(c->server->opts.pool, &pin->ref);
        c->server->stats.pins--;
        pin->count--;
    }
    if (pin->count > 0)
        return;
    HASH_DEL(c->pins, pin);
    free(pin);
}

static void handle_unpin(struct l3_conn *c, const struct hl_l3_request *req)
{
    struct l3_pin_key key = {{req->id_hi, req->id_lo}, req->offset};
    struct l3_pin *pin = find_pin(c, &key);
    hl_status st = HL_OK;
    if (pin == NULL || (req->size == 0 ? pin->count == (pin->word != 0) : req->size != pin->word))
        st = hl_fail(HL_ENOENT, "shard %s is not pinned by this client", hl_id_format(key.id).s);
    else
        give_pin(c, pin, req->size != 0);
    send_answer(c, req, st, hl_error_text(), &(struct hl_l3_answer){0}, -1);
}

static hl_status add_mapped(struct l3_conn *c, struct hl_id id, struct l3_mapped **out)
{
    const struct hl_l3_server_opts *o = &c->server->opts;
    if (o->map == NULL)
        return hl_fail(HL_EUNSUPPORTED, "this store has no device memory");
    if (HASH_COUNT(c->mapped) >= HL_L3_PINS_MAX)
        return hl_fail(HL_ENOSPC, "a client may map %d shards; unmap some", HL_L3_PINS_MAX);
    struct l3_mapped *m = calloc(1, sizeof(*m));
    if (m == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a mapping of shard %s",
                       hl_id_format(id).s);
    hl_status st = o->map(o->arg, id, &m->mapping);
    if (st != HL_OK) {
        free(m);
        return st;
    }
    m->token = ++c->last_token;
    HASH_ADD(hh, c->mapped, token, sizeof(m->token), m);
    c->server->stats.pins++;
    *out = m;
    return HL_OK;
}

static void handle_map(struct l3_conn *c, const struct hl_l3_request *req)
{
    struct l3_mapped *m = NULL;
    struct hl_l3_answer a = {0};
    HL_AUTO(hl_closep) int fd = -1;
    hl_status st = add_mapped(c, (struct hl_id){req->id_hi, req->id_lo}, &m);
    if (st == HL_OK) {
        const struct hl_l3_mapping *x = &m->mapping;
        fd = x->fd;
        a = (struct hl_l3_answer){.id_hi = x->id.hi,
                                  .id_lo = x->id.lo,
                                  .incarnation = x->length,
                                  .offset = x->offset,
                                  .size = x->size,
                                  .crc32 = x->crc32,
                                  .gen = x->gen,
                                  .slot = m->token};
        snprintf(a.text, sizeof(a.text), "%s%s%s", x->device, x->pci[0] != '\0' ? " " : "", x->pci);
    }
    send_answer(c, req, st, hl_error_text(), &a, fd);
}

static void handle_unmap(struct l3_conn *c, const struct hl_l3_request *req)
{
    struct l3_mapped *m = NULL;
    uint32_t token = (uint32_t)req->offset;
    hl_status st = HL_OK;
    HASH_FIND(hh, c->mapped, &token, sizeof(token), m);
    if (m == NULL)
        st = hl_fail(HL_ENOENT, "this client has no mapping %u", token);
    else
        unmap_shard(c, m);
    send_answer(c, req, st, hl_error_text(), &(struct hl_l3_answer){0}, -1);
}

static void handle_drop(struct l3_conn *c, const struct hl_l3_request *req)
{
    struct hl_id id = {req->id_hi, req->id_lo};
    hl_status st;
    if (hl_id_is_none(id) || !hl_id_equal(id, c->last_put))
        st = hl_fail(HL_EPERM, "shard %s is not the last one that this client has put",
                     hl_id_format(id).s);
    else
        st = hl_pool_free(c->server->opts.pool, id);
    send_answer(c, req, st, hl_error_text(), &(struct hl_l3_answer){0}, -1);
}

/* ---- puts ------------------------------------------------------------------------------------ */

static void on_put_work(uv_work_t *work)
{
    l3_put_run(work->data);
}

/* No client ever learns the id, so the shard is freed. */
static void take_back(struct hl_l3_server *s, const struct l3_put *put)
{
    if (put->req.type == HL_L3_LEASE)
        hl_pool_unpin(s->opts.pool, &put->ref);
    else if (hl_pool_free(s->opts.pool, put->ref.id) != HL_OK)
        return;
    hl_debug("pool socket: freed the unfinished shard of a client that disconnected");
}

static void on_put_done(uv_work_t *work, int status)
{
    struct l3_put *put = work->data;
    struct l3_conn *c = put->conn;
    struct hl_l3_server *s = c->server;
    c->put = NULL;
    close(put->memfd);
    if (status != 0)
        put->st = HL_ECANCELED;
    if (c->closing) { /* the copy may have been sealed before it saw `cancel` */
        if (put->st == HL_OK)
            take_back(s, put);
        s->stats.puts_aborted++;
        free(put);
        conn_free_if_over(c);
        return;
    }
    struct hl_l3_answer a = {0};
    bool leased = put->req.type == HL_L3_LEASE;
    if (put->st == HL_OK && leased) {
        put->st = keep_pin(c, &put->ref); /* belongs to the connection from now on */
        if (put->st != HL_OK)
            snprintf(put->text, sizeof(put->text), "%s", hl_error_text());
    }
    if (put->st == HL_OK) {
        c->last_put = leased ? (struct hl_id){0, 0} : put->ref.id;
        put_ref(&a, &put->ref);
    }
    uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_conn);
    send_answer(c, &put->req, put->st, put->text, &a, -1);
    if (c->closing && put->st == HL_OK) { /* the answer did not reach the client */
        put->st = HL_EUNAVAIL;
        if (!leased)
            take_back(s, put);
    }
    s->stats.puts += put->st == HL_OK;
    s->stats.puts_aborted += put->st != HL_OK;
    s->stats.put_bytes += put->st == HL_OK ? put->ref.size : 0;
    free(put);
}

/* Takes ownership of the descriptor. */
static void handle_put(struct l3_conn *c, const struct hl_l3_request *req, int memfd)
{
    struct hl_l3_answer none = {0};
    struct l3_put *put = memfd < 0 ? NULL : calloc(1, sizeof(*put));
    if (put == NULL) {
        hl_closep(&memfd);
        send_answer(c, req, HL_EINVAL, "a put must carry the descriptor of a memfd", &none, -1);
        return;
    }
    hl_status st = req->type == HL_L3_LEASE ? check_pins(c) : HL_OK;
    if (st != HL_OK) {
        hl_closep(&memfd);
        free(put);
        send_answer(c, req, st, hl_error_text(), &none, -1);
        return;
    }
    *put = (struct l3_put){
        .conn = c, .opts = &c->server->opts, .memfd = memfd, .req = *req, .work = {.data = put}};
    c->put = put;
    uv_poll_start(&c->poll, UV_DISCONNECT, on_conn);
    uv_queue_work(hl_loop_uv(c->server->opts.loop), &put->work, on_put_work, on_put_done);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Takes ownership of the descriptor. */
static void handle_request(struct l3_conn *c, const struct hl_l3_request *req, int passed)
{
    if (req->magic != HL_L3_MAGIC || req->version != HL_L3_VERSION) {
        hl_closep(&passed);
        conn_refuse(c, "a message of another protocol");
        return;
    }
    if ((req->type == HL_L3_PUT || req->type == HL_L3_LEASE) && c->greeted) {
        handle_put(c, req, passed);
        return;
    }
    hl_closep(&passed);
    if (req->type == HL_L3_HELLO)
        handle_hello(c, req);
    else if (!c->greeted)
        conn_refuse(c, "a request before hello");
    else if (req->type == HL_L3_PIN)
        handle_pin(c, req);
    else if (req->type == HL_L3_UNPIN)
        handle_unpin(c, req);
    else if (req->type == HL_L3_REST)
        handle_rest(c, req);
    else if (req->type == HL_L3_DROP)
        handle_drop(c, req);
    else if (req->type == HL_L3_MAP)
        handle_map(c, req);
    else if (req->type == HL_L3_UNMAP)
        handle_unmap(c, req);
    else
        conn_refuse(c, "a request of unknown type");
}

static void on_conn(uv_poll_t *poll, int status, int events)
{
    struct l3_conn *c = poll->data;
    for (int i = 0; i < MESSAGES_AT_ONCE && !c->closing && c->put == NULL && !c->loading; i++) {
        struct hl_l3_request req;
        int passed = -1;
        hl_status st = hl_socket_recv(c->fd, &req, sizeof(req), &passed, 0);
        if (st == HL_EBUSY)
            break;
        if (st == HL_OK)
            handle_request(c, &req, passed);
        else if (st == HL_EUNAVAIL)
            conn_close(c);
        else
            conn_refuse(c, hl_error_text());
    }
    if (!c->closing && (status < 0 || (events & UV_DISCONNECT) != 0))
        conn_close(c);
}

/* ---- accepting ------------------------------------------------------------------------------- */

static hl_status check_room(const struct hl_l3_server *s, int pid)
{
    const struct l3_conn *c;
    unsigned same = 0;
    if (s->stats.clients >= s->opts.max_clients)
        return hl_fail(HL_EBUSY, "there are %" PRIu64 " already", s->stats.clients);
    DL_FOREACH (s->conns, c) {
        same += pid != 0 && c->pid == pid;
    }
    if (same >= PROCESS_CLIENTS)
        return hl_fail(HL_EBUSY, "process %d has %u already", pid, same);
    return HL_OK;
}

static void refuse_client(struct hl_l3_server *s, int fd, const char *why)
{
    uint64_t others;
    s->stats.refused++;
    if (hl_log_limit_passes(&s->refusals, hl_now_ns(), &others))
        hl_warn("pool socket: client refused: %s others=%" PRIu64, why, others);
    close(fd);
}

static void conn_open(struct hl_l3_server *s, int fd)
{
    int pid = hl_socket_peer_pid(fd);
    hl_status st = hl_socket_check_peer(fd);
    if (st == HL_OK)
        st = check_room(s, pid);
    struct l3_conn *c = st == HL_OK ? calloc(1, sizeof(*c)) : NULL;
    if (c == NULL) {
        refuse_client(s, fd, st == HL_OK ? "no memory" : hl_error_text());
        return;
    }
    c->server = s;
    c->fd = fd;
    c->pid = pid;
    if (uv_poll_init(hl_loop_uv(s->opts.loop), &c->poll, fd) != 0) {
        close(fd);
        free(c);
        return;
    }
    c->poll.data = c;
    s->open++;
    s->stats.clients++;
    DL_APPEND(s->conns, c);
    uv_poll_start(&c->poll, UV_READABLE | UV_DISCONNECT, on_conn);
}

static void on_listener(uv_poll_t *poll, int status, int events);

static void on_pause_over(void *arg)
{
    struct hl_l3_server *s = arg;
    hl_timer_destroy(s->pause);
    s->pause = NULL;
    uv_poll_start(&s->poll, UV_READABLE, on_listener);
}

/* Out of descriptors: the waiting client would wake us again and again, so polling pauses. */
static void pause_accepting(struct hl_l3_server *s)
{
    uint64_t others;
    if (hl_log_limit_passes(&s->shortages, hl_now_ns(), &others))
        hl_warn("pool socket: %s", hl_error_text());
    uv_poll_stop(&s->poll);
    if (hl_timer_create(s->opts.loop, ACCEPT_PAUSE_MS, 0, on_pause_over, s, &s->pause) != HL_OK)
        uv_poll_start(&s->poll, UV_READABLE, on_listener);
}

static void on_listener(uv_poll_t *poll, int status, int events)
{
    struct hl_l3_server *s = poll->data;
    (void)status;
    (void)events;
    for (;;) {
        int fd;
        hl_status st = hl_socket_accept(s->listener, &fd);
        if (st == HL_EBUSY)
            return;
        if (st != HL_OK) {
            pause_accepting(s);
            return;
        }
        conn_open(s, fd);
    }
}

hl_status hl_l3_server_start(const struct hl_l3_server_opts *opts, struct hl_l3_server **out)
{
    struct hl_l3_server *s = calloc(1, sizeof(*s));
    if (s == NULL || (s->path = strdup(opts->socket_path)) == NULL) {
        free(s);
        return hl_fail(HL_ENOMEM, "out of memory allocating the pool socket");
    }
    s->opts = *opts;
    s->opts.socket_path = s->path;
    s->listener = -1;
    s->pool_fd = -1;
    if (s->opts.max_clients == 0)
        s->opts.max_clients = DEFAULT_CLIENTS;
    hl_status st = hl_pool_reopen(opts->pool, &s->pool_fd);
    if (st == HL_OK)
        st = hl_socket_listen(s->path, &s->listener);
    if (st == HL_OK) {
        int rc = uv_poll_init(hl_loop_uv(opts->loop), &s->poll, s->listener);
        if (rc != 0)
            st = hl_fail(HL_EIO, "watch %s: %s", s->path, uv_strerror(rc));
    }
    if (st != HL_OK) {
        hl_l3_server_stop(s);
        return st;
    }
    s->poll.data = s;
    s->poll_open = true;
    uv_poll_start(&s->poll, UV_READABLE, on_listener);
    *out = s;
    return HL_OK;
}

/* Pins at rest are not counted. */
void hl_l3_server_stats(const struct hl_l3_server *s, struct hl_l3_server_stats *out)
{
    struct l3_conn *c;
    *out = s->stats;
    DL_FOREACH (s->conns, c)
        for (struct l3_pin *pin = c->pins; pin != NULL; pin = pin->hh.next)
            out->pins -= pin->word != 0 && !hl_pool_rest_used(s->opts.pool, &pin->rest);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct hl_l3_server *s = handle->data;
    s->poll_open = false;
}

/* The loop does not run, so it is turned here until libuv, the workers and the loader have let go
 * of every connection. Workers see `cancel`; an `alloc` that waits must end by itself when its
 * owner stops, and a `load` must be answered. */
void hl_l3_server_stop(struct hl_l3_server *s)
{
    if (s == NULL)
        return;
    s->stopping = true;
    if (s->poll_open) {
        uv_poll_stop(&s->poll);
        uv_close((uv_handle_t *)&s->poll, on_listener_closed);
    }
    hl_timer_destroy(s->pause);
    while (s->conns != NULL)
        conn_close(s->conns);
    while (s->poll_open || s->open > 0)
        uv_run(hl_loop_uv(s->opts.loop), UV_RUN_ONCE);
    if (s->listener >= 0)
        unlink(s->path);
    hl_closep(&s->listener);
    hl_closep(&s->pool_fd);
    free(s->path);
    free(s);
}
