#include "group/net/inbox.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "net/dispatch/put_queue.h"
#include "os/cond.h"

#define NUMBER_BITS 48
#define WAITING     6 /* messages per rank and kind that are not yet taken */

/* A message, and the thread that moves it on:
 *
 *    inbox_begin_put --> inbox_commit_put --> hl_inbox_take ------> free
 *    the server's        the server's         the group's
 *    not in the list     in the list          owned by the caller
 *
 * The network writes the bytes between begin and commit, without the lock: nothing else knows the
 * message yet. The commit links it under the lock, which orders the bytes before a take. `news`
 * counts the changes (commits and ends of sends); the group's thread sleeps while it equals the
 * count that the thread saw last.
 *
 * An outbox sends one message at a time: hl_outbox_send (the group's thread) sets `sending`;
 * on_sent (the put queue's thread) clears it under the inbox's lock, and stores status and text of
 * the end. */
struct hl_inbox {
    struct hl_net_server *server;
    void *page; /* the memory that a server must offer for reads */
    size_t page_len;
    pthread_mutex_t lock; /* guards everything below, and the ends of sends */
    pthread_cond_t cond;
    uint64_t news, seen;
    uint64_t group;
    int hellos, ranks;
    struct hl_inbox_message *first;
};

struct hl_outbox {
    struct hl_inbox *inbox;
    struct hl_put_queue *queue;
    atomic_bool cancel;
    bool sending;
    hl_status st;
    char words[HL_ERROR_TEXT_MAX];
};

/* With the lock held. */
static void inbox_notify(struct hl_inbox *b)
{
    b->news++;
    pthread_cond_broadcast(&b->cond);
}

/* ---- what others put ---- */

static struct hl_inbox_message **find_message(struct hl_inbox *b, uint64_t group, int from,
                                              uint64_t number)
{
    struct hl_inbox_message **at = &b->first;
    while (*at != NULL && ((*at)->group != group || (*at)->from != from || (*at)->number != number))
        at = &(*at)->next;
    return at;
}

/* With the lock held. Decides whether this message may begin. The put's id says which message it
 * is:
 *
 *     id.hi  group, or HL_INBOX_HELLO        id.lo  | from: 16 bits | number: NUMBER_BITS |
 *
 * A sender may be ahead, but not without limit: WAITING of each kind bounds what an inbox holds. */
static hl_status admit_message(struct hl_inbox *b, struct hl_id id, uint64_t size, int from)
{
    uint64_t number = id.lo & ((UINT64_C(1) << NUMBER_BITS) - 1);
    if (from >= b->ranks || size > HL_INBOX_BYTES)
        return hl_fail(
            HL_EINVAL,
            "rank %d sends %llu bytes, but there are %d ranks and messages have at most %zu bytes",
            from, (unsigned long long)size, b->ranks, HL_INBOX_BYTES);
    /* Another rank may know the group's number earlier than this one. */
    bool known = id.hi == HL_INBOX_HELLO ? b->hellos : id.hi == b->group || b->group == 0;
    if (!known)
        return hl_fail(HL_ECONFLICT, "a message of another group: this one is complete");
    if (*find_message(b, id.hi, from, number) != NULL)
        return hl_fail(HL_ECONFLICT, "rank %d has already joined", from);
    size_t waiting = 0;
    for (const struct hl_inbox_message *m = b->first; m != NULL; m = m->next)
        waiting += m->from == from && ((m->number ^ number) & HL_INBOX_AHEAD) == 0;
    if (waiting >= WAITING)
        return hl_fail(HL_EBUSY, "%zu messages have not been received yet", waiting);
    return HL_OK;
}

/* Called on the server's thread. The memory belongs to the message from the first byte on, so a
 * take copies nothing. */
static hl_status inbox_begin_put(void *arg, struct hl_id id, uint64_t size, void **token,
                                 void **ptr)
{
    struct hl_inbox *b = arg;
    int from = (int)(id.lo >> NUMBER_BITS);
    pthread_mutex_lock(&b->lock);
    hl_status st = admit_message(b, id, size, from);
    pthread_mutex_unlock(&b->lock);
    HL_TRY(st);
    struct hl_inbox_message *m = NULL;
    if (posix_memalign((void **)&m, 64, sizeof(*m) + size) != 0)
        return hl_fail(HL_ENOMEM, "out of memory allocating a message of %llu bytes",
                       (unsigned long long)size);
    *m = (struct hl_inbox_message){.group = id.hi,
                                   .number = id.lo & ((UINT64_C(1) << NUMBER_BITS) - 1),
                                   .from = from,
                                   .size = size};
    *token = m;
    *ptr = m->data;
    return HL_OK;
}

static hl_status inbox_commit_put(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                                  size_t chunk_count, struct hl_id *id)
{
    struct hl_inbox *b = arg;
    struct hl_inbox_message *m = token;
    (void)crc, (void)chunk_crcs, (void)chunk_count;
    *id = (struct hl_id){m->group, (uint64_t)m->from << NUMBER_BITS | m->number};
    pthread_mutex_lock(&b->lock);
    m->next = b->first;
    b->first = m;
    inbox_notify(b);
    pthread_mutex_unlock(&b->lock);
    return HL_OK;
}

static void abort_put(void *arg, void *token)
{
    (void)arg;
    free(token);
}

/* ---- the inbox ---- */

static hl_status inbox_init(struct hl_inbox *b)
{
    hl_cond_init(&b->cond);
    pthread_mutex_init(&b->lock, NULL);
    b->page_len = (size_t)sysconf(_SC_PAGESIZE);
    void *page =
        mmap(NULL, b->page_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        return hl_fail(HL_ENOMEM, "out of memory allocating a group");
    b->page = page;
    return HL_OK;
}

hl_status hl_inbox_open(const char *listen, int ranks, struct hl_inbox **out)
{
    struct hl_inbox *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a group");
    b->ranks = ranks;
    b->hellos = 1;
    hl_status st = inbox_init(b);
    struct hl_net_server_opts o = {
        .listen = listen,
        .pool = b->page,
        .pool_len = b->page_len,
        .put = {.begin = inbox_begin_put, .commit = inbox_commit_put, .abort = abort_put, .arg = b},
        .mode = HL_NET_ASK};
    if (st == HL_OK)
        st = hl_net_server_start(&o, &b->server);
    if (st != HL_OK)
        hl_inbox_close(b);
    else
        *out = b;
    return st;
}

/* The server is stopped first: after that no thread puts anything into the list. */
void hl_inbox_close(struct hl_inbox *b)
{
    if (b == NULL)
        return;
    hl_net_server_stop(b->server);
    while (b->first != NULL) {
        struct hl_inbox_message *m = b->first;
        b->first = m->next;
        free(m);
    }
    if (b->page != NULL)
        munmap(b->page, b->page_len);
    pthread_cond_destroy(&b->cond);
    pthread_mutex_destroy(&b->lock);
    free(b);
}

const char *hl_inbox_address(const struct hl_inbox *b)
{
    return hl_net_server_address(b->server);
}

/* Only messages that begin later are checked: one that is already in the list stays there. */
void hl_inbox_join(struct hl_inbox *b, uint64_t group, int hellos)
{
    pthread_mutex_lock(&b->lock);
    b->group = group;
    b->hellos = hellos;
    pthread_mutex_unlock(&b->lock);
}

/* Takes the message out of the list; from then on it belongs to the caller. */
struct hl_inbox_message *hl_inbox_take(struct hl_inbox *b, uint64_t group, int from,
                                       uint64_t number)
{
    pthread_mutex_lock(&b->lock);
    struct hl_inbox_message **at = find_message(b, group, from, number), *m = *at;
    if (m != NULL)
        *at = m->next;
    pthread_mutex_unlock(&b->lock);
    return m;
}

/* `seen` is what this thread saw at the end of its last wait. News since then ends the next wait at
 * once, so nothing is missed between a look and a wait. */
void hl_inbox_wait(struct hl_inbox *b, uint64_t until_ns)
{
    struct timespec ts = {.tv_sec = (time_t)(until_ns / 1000000000),
                          .tv_nsec = (long)(until_ns % 1000000000)};
    int err = 0;
    pthread_mutex_lock(&b->lock);
    while (b->news == b->seen && err == 0)
        err = pthread_cond_timedwait(&b->cond, &b->lock, &ts);
    b->seen = b->news;
    pthread_mutex_unlock(&b->lock);
}

void hl_inbox_wake(struct hl_inbox *b)
{
    pthread_mutex_lock(&b->lock);
    inbox_notify(b);
    pthread_mutex_unlock(&b->lock);
}

/* ---- outboxes ---- */

hl_status hl_outbox_open(struct hl_inbox *b, const char *address, int stall_ms,
                         struct hl_outbox **out)
{
    struct hl_outbox *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a group");
    l->inbox = b;
    struct hl_put_queue_opts o = {.connect = {.address = address,
                                              .stall_ms = stall_ms,
                                              .mode = HL_NET_ASK,
                                              .cancel = &l->cancel,
                                              .abandon = &l->cancel},
                                  .batch_ms = -1,
                                  .cancel = &l->cancel};
    hl_status st = hl_put_queue_open(&o, &l->queue);
    if (st != HL_OK)
        free(l);
    else
        *out = l;
    return st;
}

/* Called on the put queue's thread, once for each send. */
static void on_sent(void *arg, hl_status st, const char *words)
{
    struct hl_outbox *l = arg;
    pthread_mutex_lock(&l->inbox->lock);
    l->st = st;
    snprintf(l->words, sizeof(l->words), "%s", st != HL_OK && words != NULL ? words : "");
    l->sending = false;
    inbox_notify(l->inbox);
    pthread_mutex_unlock(&l->inbox->lock);
}

/* `sending` is set before the put is started, because the put may end at once. */
hl_status hl_outbox_send(struct hl_outbox *l, uint64_t group, int from, uint64_t number,
                         const void *data, size_t size, int timeout_ms)
{
    struct hl_put_queue_order o = {.data = data,
                                   .len = size,
                                   .crc = hl_crc32(0, data, size),
                                   .id = {group, (uint64_t)from << NUMBER_BITS | number},
                                   .timeout_ms = timeout_ms,
                                   .done = on_sent,
                                   .arg = l};
    l->sending = true;
    hl_status st = hl_put_queue_start(l->queue, &o);
    if (st != HL_OK)
        l->sending = false;
    return st;
}

/* *words stays valid until the next send of this outbox. */
bool hl_outbox_sending(struct hl_outbox *l, hl_status *st, const char **words)
{
    pthread_mutex_lock(&l->inbox->lock);
    bool sending = l->sending;
    *st = l->st;
    *words = l->words;
    pthread_mutex_unlock(&l->inbox->lock);
    return sending;
}

bool hl_outbox_is_tcp(struct hl_outbox *l)
{
    struct hl_put_queue_stats stats;
    hl_put_queue_stats(l->queue, &stats);
    return strcmp(stats.path, "tcp") == 0;
}

/* `cancel` makes the connection stop; the wait is for on_sent, which still uses the outbox. */
void hl_outbox_close(struct hl_outbox *l)
{
    hl_status st;
    const char *words;
    if (l == NULL)
        return;
    atomic_store(&l->cancel, true);
    while (hl_outbox_sending(l, &st, &words))
        hl_inbox_wait(l->inbox, hl_now_ns() + 100 * HL_NS_PER_MS);
    hl_put_queue_close(l->queue);
    free(l);
}
