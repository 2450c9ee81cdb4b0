/* The client sends one request at a time and holds a lock for the whole exchange: other threads of
 * the process queue up for the socket.
 *
 *     connected --a deadline, a closed socket, an answer of another protocol--> broken, for good
 *
 * A late answer would be taken for the answer to the next request. Therefore a client is broken
 * after a missed deadline: its user closes it and connects again. The view needs no lock
 * (pool/view.c).
 *
 * The lock guards fd and seq. `path`, `rpc_address` and `view` are constant once hl_l3_connect
 * returns. A thread waits for the lock as long as the exchanges before it take: its deadline starts
 * with its own exchange. That is bounded, because after the first missed deadline `broken` is set
 * before the lock is released, and all that wait for it fail at once.
 *
 * A pin that is given back rests (pool/rest.h): the server keeps it, and the next hl_l3_pin of that
 * shard takes it up again without a message, unless the server has recalled it meanwhile.
 *
 *     no entry --pin, answered with a word--> used --last unpin--> rests --pin--> used
 *        ^                                     | recalled            | recalled: shard freed,
 *        '------------ UNPIN ------------------'---------------------'  or its word is needed
 *
 * rests_lock guards the table and is never held during an exchange. So an entry, its word and the
 * server's count of pins change in separate steps, and another thread may come in between:
 *
 *     two threads pin a shard     the first answer has the word, the other pin is an ordinary one;
 *                                 unpins may come in any order: the table counts one of the two
 *     unpin finds RECALLED        the entry is gone when UNPIN is sent; a pin meanwhile asks again
 *     pin finds RECALLED          likewise; the server frees the word before the new pin asks
 *
 * The word is exchanged under rests_lock, but the server and the pool's owner don't have that lock:
 * hl_rest_begin and hl_rest_end tell who was first. */
#include "mem/socket/socket.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uthash.h>

#include "base/log.h"
#include "mem/socket/l3_proto.h"
#include "mem/socket/l3_rests.h"
#include "os/file.h"
#include "os/shm.h"
#include "os/socket.h"

/* A pin that may rest. */
struct pin {
    struct hl_id id;
    struct hl_pool_ref ref;
    uint32_t word;
    uint32_t users; /* hl_l3_pin calls less hl_l3_unpin calls; 0 = it rests */
    UT_hash_handle hh;
};

struct hl_l3_client {
    char *path;
    char rpc_address[256]; /* of the server's process */
    struct hl_pool_view *view;
    pthread_mutex_t lock; /* guards fd and seq */
    int fd;
    uint32_t seq;
    atomic_bool broken;         /* set with the lock held, never cleared */
    pthread_mutex_t rests_lock; /* guards pins; the words are atomic */
    struct pin *pins;           /* by id */
    struct l3_rests rests;
};

static hl_status fail_broken(const struct hl_l3_client *c)
{
    return hl_fail(HL_EUNAVAIL, "the connection to %s is lost; connect again", c->path);
}

/* With the lock held, so that the answer belongs to the request that was sent last. */
static hl_status exchange_messages(struct hl_l3_client *c, struct hl_l3_request *req, int pass,
                                   int timeout_ms, struct hl_l3_answer *answer, int *passed)
{
    req->magic = HL_L3_MAGIC;
    req->version = HL_L3_VERSION;
    req->seq = ++c->seq;
    HL_TRY(hl_socket_send(c->fd, req, sizeof(*req), pass, timeout_ms));
    HL_TRY(hl_socket_recv(c->fd, answer, sizeof(*answer), passed, timeout_ms));
    if (answer->magic == HL_L3_MAGIC && answer->version == HL_L3_VERSION &&
        answer->seq == req->seq && answer->type == req->type && answer->status <= 0)
        return HL_OK;
    return hl_fail(HL_EPROTO, "invalid answer; is this the socket of helios-l3d?");
}

/* On HL_OK the answer's own status is HL_OK too. */
static hl_status ask_server(struct hl_l3_client *c, struct hl_l3_request *req, int pass,
                            int timeout_ms, struct hl_l3_answer *answer, int *passed)
{
    HL_AUTO(hl_closep) int got = -1;
    pthread_mutex_lock(&c->lock);
    hl_status st =
        c->broken ? fail_broken(c)
                  : exchange_messages(c, req, pass, timeout_ms < 1 ? 1 : timeout_ms, answer, &got);
    if (st != HL_OK && !c->broken) {
        c->broken = true;
        st = hl_fail_prefix(st, "pool socket %s: ", c->path);
    }
    pthread_mutex_unlock(&c->lock);
    HL_TRY(st);
    answer->text[sizeof(answer->text) - 1] = '\0';
    if (answer->status != 0)
        return hl_fail((hl_status)answer->status, "%s", answer->text);
    if (passed != NULL) {
        *passed = got;
        got = -1;
    }
    return HL_OK;
}

/* Without words each pin takes a message, as with a server that doesn't have them. */
static hl_status share_rests(struct hl_l3_client *c, int timeout_ms)
{
    struct hl_l3_answer a;
    HL_AUTO(hl_closep) int fd = -1;
    hl_status st =
        ask_server(c, &(struct hl_l3_request){.type = HL_L3_REST}, -1, timeout_ms, &a, &fd);
    if (st == HL_OK)
        st = l3_rests_map(&c->rests, fd);
    if (st != HL_OK && !c->broken)
        hl_debug("pool socket %s: pins are not kept for reuse: %s", c->path, hl_error_text());
    return c->broken ? st : HL_OK;
}

static hl_status l3_greet_server(struct hl_l3_client *c, int timeout_ms)
{
    struct hl_l3_answer a;
    struct hl_pool_view_info info;
    HL_AUTO(hl_closep) int fd = -1;
    hl_status st =
        ask_server(c, &(struct hl_l3_request){.type = HL_L3_HELLO}, -1, timeout_ms, &a, &fd);
    if (st == HL_EUNAVAIL)
        return hl_fail(st,
                       "%s; the daemon refuses other users and too many connections of a process, "
                       "and its log says so: close sessions that are not needed",
                       hl_error_text());
    HL_TRY(st);
    if (fd < 0)
        return hl_fail(HL_EPROTO, "pool socket %s: the answer lacks the pool's descriptor",
                       c->path);
    snprintf(c->rpc_address, sizeof(c->rpc_address), "%s", a.text);
    HL_TRY(hl_pool_view_open(fd, &c->view));
    hl_pool_view_info(c->view, &info);
    if (info.uuid.hi != a.uuid_hi || info.uuid.lo != a.uuid_lo || info.incarnation != a.incarnation)
        return hl_fail(HL_ESTALE, "pool socket %s: the pool has a new owner; connect again",
                       c->path);
    return a.slot > 0 ? share_rests(c, timeout_ms) : HL_OK;
}

hl_status hl_l3_connect(const char *socket_path, int timeout_ms, struct hl_l3_client **out)
{
    struct hl_l3_client *c = calloc(1, sizeof(*c));
    if (c == NULL || (c->path = strdup(socket_path)) == NULL) {
        free(c);
        return hl_fail(HL_ENOMEM, "out of memory allocating a client of %s", socket_path);
    }
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->rests_lock, NULL);
    c->fd = -1;
    hl_status st = hl_socket_connect(socket_path, timeout_ms, &c->fd);
    if (st == HL_OK && (st = hl_socket_check_listener(c->fd)) != HL_OK)
        st = hl_fail_prefix(st, "pool socket %s: ", socket_path);
    if (st == HL_OK)
        st = l3_greet_server(c, timeout_ms);
    if (st != HL_OK) {
        hl_l3_close(c);
        return st;
    }
    *out = c;
    return HL_OK;
}

void hl_l3_close(struct hl_l3_client *c)
{
    if (c == NULL)
        return;
    struct pin *pin, *next;
    HASH_ITER (hh, c->pins, pin, next) {
        HASH_DEL(c->pins, pin);
        free(pin);
    }
    hl_closep(&c->fd);
    l3_rests_unmap(&c->rests);
    hl_pool_view_put(c->view);
    pthread_mutex_destroy(&c->rests_lock);
    pthread_mutex_destroy(&c->lock);
    free(c->path);
    free(c);
}

const char *hl_l3_rpc_address(const struct hl_l3_client *c)
{
    return c->rpc_address;
}

struct hl_pool_view *hl_l3_view(struct hl_l3_client *c)
{
    return c->view;
}

/* No lock is needed: a hang-up is a state of the socket, and fd does not change before the
 * close. */
hl_status hl_l3_alive(struct hl_l3_client *c)
{
    if (hl_socket_hung_up(c->fd))
        return fail_broken(c);
    return hl_pool_view_alive(c->view);
}

/* Needs no lock either: a thread that reads `broken` too early finds out in its next exchange. */
bool hl_l3_connected(struct hl_l3_client *c)
{
    return !c->broken && !hl_socket_hung_up(c->fd);
}

/* Reads the shard's location from the answer, and refuses one outside the mapping. */
static hl_status ref_from(const struct hl_l3_client *c, const struct hl_l3_answer *a,
                          struct hl_pool_ref *out)
{
    struct hl_pool_ref r = {
        .id = {a->id_hi, a->id_lo},
        .offset = a->offset,
        .size = a->size,
        .crc32 = a->crc32,
        .table_crc = a->table_crc,
        .gen = a->gen,
        .slot = a->slot,
    };
    hl_status st = hl_pool_view_bounds(c->view, &r);
    if (st != HL_OK)
        return hl_fail_prefix(st, "pool socket %s: ", c->path);
    *out = r;
    return HL_OK;
}

/* word: that of a pin that may rest, or 0. */
static hl_status give_back(struct hl_l3_client *c, const struct hl_pool_ref *ref, uint32_t word,
                           int timeout_ms)
{
    struct hl_l3_answer a;
    struct hl_l3_request req = {.type = HL_L3_UNPIN,
                                .id_hi = ref->id.hi,
                                .id_lo = ref->id.lo,
                                .offset = ref->offset,
                                .size = word};
    return ask_server(c, &req, -1, timeout_ms, &a, NULL);
}

/* *word: the word under which the pin may rest, or 0 if it may not. */
static hl_status ask_pin(struct hl_l3_client *c, struct hl_id id, uint64_t offset, bool may_rest,
                         int timeout_ms, struct hl_pool_ref *ref, uint32_t *word)
{
    struct hl_l3_answer a;
    struct hl_l3_request req = {
        .type = HL_L3_PIN, .id_hi = id.hi, .id_lo = id.lo, .offset = offset, .size = may_rest};
    HL_TRY(ask_server(c, &req, -1, timeout_ms, &a, NULL));
    HL_TRY(ref_from(c, &a, ref));
    if (may_rest && a.incarnation > HL_L3_RESTS)
        return hl_fail(HL_EPROTO, "pool socket %s: a pin has word %" PRIu64 " of %d", c->path,
                       a.incarnation, HL_L3_RESTS);
    *word = may_rest ? (uint32_t)a.incarnation : 0;
    return HL_OK;
}

/* ---- pins that rest; the lock of each function is its own -------------------------------------
 */

/* Takes up the pin of that shard. If it returns false, the caller asks the server, after giving
 * back *old (to be freed with free()) if that is not NULL. The generation is compared once the pin
 * is ours: a shard that was freed before is not returned, and one that is freed later keeps its
 * bytes. Clears *may_rest while a pin of the shard's bytes from before a heal is still in use,
 * because the table has one pin per shard. */
static bool take_up_pin(struct hl_l3_client *c, struct hl_id id, struct hl_pool_ref *ref,
                        struct pin **old, bool *may_rest)
{
    struct pin *pin = NULL;
    bool ours = false;
    pthread_mutex_lock(&c->rests_lock);
    HASH_FIND(hh, c->pins, &id, sizeof(id), pin);
    if (pin != NULL) {
        ours = (pin->users > 0 || hl_rest_end(l3_rests_word(&c->rests, pin->word))) &&
               hl_pool_view_check(c->view, &pin->ref) == HL_OK;
        if (ours) {
            pin->users++;
            *ref = pin->ref;
        } else if (pin->users == 0) {
            HASH_DEL(c->pins, pin);
            *old = pin;
        } else {
            *may_rest = false;
        }
    }
    pthread_mutex_unlock(&c->rests_lock);
    return ours;
}

/* False: the table has a pin of that shard already (two threads asked, or a healed shard), or there
 * is no memory. */
static bool keep_pin(struct hl_l3_client *c, const struct hl_pool_ref *ref, uint32_t word)
{
    struct pin *pin = NULL, *other = NULL;
    pthread_mutex_lock(&c->rests_lock);
    HASH_FIND(hh, c->pins, &ref->id, sizeof(ref->id), other);
    if (other == NULL && (pin = calloc(1, sizeof(*pin))) != NULL) {
        *pin = (struct pin){.id = ref->id, .ref = *ref, .word = word, .users = 1};
        HASH_ADD(hh, c->pins, id, sizeof(pin->id), pin);
    }
    pthread_mutex_unlock(&c->rests_lock);
    return pin != NULL;
}

/* Returns true if the pin now rests or is still in use. If false, the caller must give it back to
 * the server, with *word. */
static bool lay_down_pin(struct hl_l3_client *c, const struct hl_pool_ref *ref, uint32_t *word)
{
    struct pin *pin = NULL;
    pthread_mutex_lock(&c->rests_lock);
    HASH_FIND(hh, c->pins, &ref->id, sizeof(ref->id), pin);
    bool found = pin != NULL && pin->users > 0 && pin->ref.offset == ref->offset;
    bool kept = found && (--pin->users > 0 || hl_rest_begin(l3_rests_word(&c->rests, pin->word)));
    if (found && !kept) {
        *word = pin->word;
        HASH_DEL(c->pins, pin);
        free(pin);
    }
    pthread_mutex_unlock(&c->rests_lock);
    return kept;
}

/* If all words are in use, gives back the oldest pin at rest, so that the next pin gets its
 * word. */
static void free_word(struct hl_l3_client *c, int timeout_ms)
{
    pthread_mutex_lock(&c->rests_lock);
    HL_AUTO(hl_freep) struct pin *pin = HASH_COUNT(c->pins) < HL_L3_RESTS ? NULL : c->pins;
    while (pin != NULL && pin->users > 0)
        pin = pin->hh.next;
    if (pin != NULL)
        HASH_DEL(c->pins, pin);
    pthread_mutex_unlock(&c->rests_lock);
    if (pin != NULL && give_back(c, &pin->ref, pin->word, timeout_ms) != HL_OK)
        hl_debug("a pin that was kept for reuse was not released: %s", hl_error_text());
}

hl_status hl_l3_pin(struct hl_l3_client *c, struct hl_id id, uint64_t offset, int timeout_ms,
                    struct hl_pool_ref *ref)
{
    HL_AUTO(hl_freep) struct pin *old = NULL;
    bool may_rest = offset == 0 && c->rests.words != NULL;
    uint32_t word;
    if (may_rest && take_up_pin(c, id, ref, &old, &may_rest))
        return hl_l3_connected(c) ? HL_OK : fail_broken(c);
    if (old != NULL)
        HL_TRY(give_back(c, &old->ref, old->word, timeout_ms));
    HL_TRY(ask_pin(c, id, offset, may_rest, timeout_ms, ref, &word));
    if (word == 0 && may_rest)
        free_word(c, timeout_ms);
    if (word == 0 || keep_pin(c, ref, word))
        return HL_OK;
    hl_status st = give_back(c, ref, word, timeout_ms); /* a pin that never rests replaces it */
    return st == HL_OK ? ask_pin(c, id, offset, false, timeout_ms, ref, &word) : st;
}

hl_status hl_l3_unpin(struct hl_l3_client *c, const struct hl_pool_ref *ref, int timeout_ms)
{
    uint32_t word = 0;
    if (c->rests.words != NULL && lay_down_pin(c, ref, &word))
        return HL_OK;
    return give_back(c, ref, word, timeout_ms);
}

hl_status hl_l3_staging_open(uint64_t size, struct hl_l3_staging *out)
{
    void *ptr = NULL;
    HL_AUTO(hl_closep) int fd = -1;
    if (size == 0)
        return hl_fail(HL_EINVAL, "a shard of 0 bytes can't be stored");
    HL_TRY(hl_memfd_create("helios-put", size, &fd));
    HL_TRY(hl_shm_map(fd, size, 1, &ptr));
    *out = (struct hl_l3_staging){.fd = fd, .ptr = ptr, .size = size};
    fd = -1;
    return HL_OK;
}

void hl_l3_staging_close(struct hl_l3_staging *s)
{
    if (s->ptr == NULL)
        return;
    hl_shm_unmap(s->ptr, s->size);
    hl_closep(&s->fd);
    *s = (struct hl_l3_staging){.fd = -1};
}

hl_status hl_l3_put(struct hl_l3_client *c, const struct hl_l3_staging *s, uint64_t size,
                    int timeout_ms, struct hl_pool_ref *ref)
{
    return hl_l3_put_as(c, (struct hl_id){0, 0}, s, size, timeout_ms, ref);
}

static hl_status send_staging(struct hl_l3_client *c, struct hl_l3_request req,
                              const struct hl_l3_staging *s, uint64_t size, int timeout_ms,
                              struct hl_pool_ref *ref)
{
    struct hl_l3_answer a;
    if (size > s->size)
        return hl_fail(HL_EINVAL, "put of %" PRIu64 " bytes from staging of %" PRIu64, size,
                       s->size);
    req.size = size;
    HL_TRY(ask_server(c, &req, s->fd, timeout_ms, &a, NULL));
    return ref_from(c, &a, ref);
}

hl_status hl_l3_put_as(struct hl_l3_client *c, struct hl_id id, const struct hl_l3_staging *s,
                       uint64_t size, int timeout_ms, struct hl_pool_ref *ref)
{
    struct hl_l3_request req = {.type = HL_L3_PUT, .id_hi = id.hi, .id_lo = id.lo};
    return send_staging(c, req, s, size, timeout_ms, ref);
}

hl_status hl_l3_lease(struct hl_l3_client *c, const struct hl_l3_staging *s, uint64_t size,
                      int timeout_ms, struct hl_pool_ref *ref)
{
    return send_staging(c, (struct hl_l3_request){.type = HL_L3_LEASE}, s, size, timeout_ms, ref);
}

hl_status hl_l3_drop(struct hl_l3_client *c, struct hl_id id, int timeout_ms)
{
    struct hl_l3_answer a;
    struct hl_l3_request req = {.type = HL_L3_DROP, .id_hi = id.hi, .id_lo = id.lo};
    return ask_server(c, &req, -1, timeout_ms, &a, NULL);
}

hl_status hl_l3_map(struct hl_l3_client *c, struct hl_id id, int timeout_ms,
                    struct hl_l3_device_copy *out)
{
    struct hl_l3_answer a;
    int fd = -1;
    struct hl_l3_request req = {.type = HL_L3_MAP, .id_hi = id.hi, .id_lo = id.lo};
    HL_TRY(ask_server(c, &req, -1, timeout_ms, &a, &fd));
    if (fd < 0)
        return hl_fail(HL_EPROTO,
                       "pool socket %s: the answer lacks the descriptor of device memory", c->path);
    *out = (struct hl_l3_device_copy){.fd = fd,
                                      .offset = a.offset,
                                      .length = a.incarnation,
                                      .size = a.size,
                                      .crc32 = a.crc32,
                                      .token = a.slot};
    size_t name = strcspn(a.text, " ");
    snprintf(out->device, sizeof(out->device), "%.*s", (int)(name < 95 ? name : 95), a.text);
    snprintf(out->pci, sizeof(out->pci), "%.15s", a.text[name] == ' ' ? a.text + name + 1 : "");
    return HL_OK;
}

hl_status hl_l3_unmap(struct hl_l3_client *c, uint32_t token, int timeout_ms)
{
    struct hl_l3_answer a;
    return ask_server(c, &(struct hl_l3_request){.type = HL_L3_UNMAP, .offset = token}, -1,
                      timeout_ms, &a, NULL);
}
