/* net/dispatch/put_queue.c - one thread gathers puts, sends them with hl_net_put_many, and hands
 * out the results.
 *
 *     callers' threads                           the queue's thread
 *     put: entry on its stack   --join_line-->   gather_batch:  line --> batch
 *     start: entry on the heap                   send_batch:    connection, hl_net_put_many
 *                               <----done-----   end_batch
 *
 *     line   | e7 | e6 | e5 |  bytes and count summed up        under the lock
 *     batch  | e4 | e3 | e2 |  and copies of their items        the thread's, without the lock
 *
 * An entry, which belongs to its owner all the time:
 *
 *     in line --gather_batch: taken--> in the batch --done--> ended
 *        '-----deadline (put alone)--> left the line; nothing was sent
 *
 * A caller must wait once its entry is taken: the batch points into the owner's memory until
 * `done`. `line`, its sums, `taken`, `ended`, `stopping` and `stats` are guarded by the lock. The
 * connection and the batch belong to the thread. `cancel` is the caller's flag and orders nothing.
 *
 * There are two conditions, both used with the lock. `work` wakes the queue's thread: join_line
 * signals it for each entry, the close once. Each waiter has its own `ready` on its stack, which
 * on_waited_done signals. Nothing signals that an entry was taken; its waiter finds that out at its
 * deadline. */
#include "net/dispatch/put_queue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/clock.h"
#include "net/conf.h"
#include "os/cond.h"

#define WORDS 256

struct entry {
    struct hl_net_item item;
    uint64_t deadline_ns;
    bool taken;
    const atomic_bool *stop; /* may be NULL */
    void (*done)(void *arg, hl_status st, const char *words);
    void *arg;
    struct entry *prev, *next;
    char words[WORDS];
};

/* A waiting caller; it is on the stack of hl_put_queue_put. */
struct waiter {
    struct entry entry;
    struct hl_put_queue *queue;
    bool ended;
    pthread_cond_t ready;
};

struct hl_put_queue {
    struct hl_net_connect_opts connect;
    char *address;
    uint64_t wait_ns;
    const atomic_bool *cancel;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct entry *line;
    size_t line_bytes, line_count;
    size_t expected; /* entries of the last batch: their callers will put again; a single one never
                        waits */
    bool stopping;
    struct hl_put_queue_stats stats;
    struct hl_net_client *client; /* owned by the queue's thread */
    struct hl_net_item items[HL_PUT_QUEUE_ITEMS];
    struct entry *batch[HL_PUT_QUEUE_ITEMS];
    pthread_t thread;
};

static hl_status cond_init(pthread_cond_t *cond)
{
    int err = hl_cond_init(cond);
    return err == 0 ? HL_OK : hl_fail(HL_ENOMEM, "put queue: %s", strerror(err));
}

/* With the lock held. The sums are kept with the list, so gather_batch need not walk it. */
static void leave_line(struct hl_put_queue *q, struct entry *e)
{
    DL_DELETE(q->line, e);
    q->line_bytes -= e->item.len;
    q->line_count--;
}

/* Gathers the next batch into q->batch; returns 0 when the queue ends. It waits without limit for
 * the first entry, then at most wait_ns until there are as many as in the last batch. At a stop,
 * what is still in line is sent first. */
static size_t gather_batch(struct hl_put_queue *q, uint64_t *deadline_ns)
{
    size_t count = 0, bytes = 0;
    while (q->line == NULL && !q->stopping)
        hl_cond_wait_until(&q->work, &q->lock, hl_now_ns() + HL_NS_PER_S);
    uint64_t until = hl_now_ns() + q->wait_ns;
    while (q->line != NULL && q->line_bytes < q->connect.batch_bytes &&
           q->line_count < q->expected && !q->stopping && hl_now_ns() < until)
        hl_cond_wait_until(&q->work, &q->lock, until);
    *deadline_ns = 0;
    while (q->line != NULL && count < HL_PUT_QUEUE_ITEMS) {
        struct entry *e = q->line;
        if (count > 0 && bytes + e->item.len > q->connect.batch_bytes)
            break;
        leave_line(q, e);
        bytes += e->item.len;
        e->taken = true;
        if (e->deadline_ns > *deadline_ns)
            *deadline_ns = e->deadline_ns;
        q->items[count] = e->item;
        q->batch[count++] = e;
    }
    q->expected = count;
    return count;
}

/* At least 1: a batch that was taken at its deadline is still sent once. */
static int left_ms(uint64_t deadline_ns)
{
    uint64_t now = hl_now_ns();
    return deadline_ns > now ? (int)((deadline_ns - now) / HL_NS_PER_MS) + 1 : 1;
}

/* Connects, or takes up a better connection than the current one. Only the queue's thread connects,
 * so the lock is held only for the counters. */
static hl_status connect_queue(struct hl_put_queue *q, uint64_t deadline_ns)
{
    struct hl_net_connect_opts opts = q->connect;
    struct hl_net_client *before = q->client;
    int left = left_ms(deadline_ns);
    if (opts.timeout_ms <= 0 || left < opts.timeout_ms)
        opts.timeout_ms = left;
    if (before == NULL)
        HL_TRY(hl_net_connect_with(&opts, &q->client));
    else
        hl_net_renew(&q->client);
    if (q->client == before)
        return HL_OK;
    pthread_mutex_lock(&q->lock);
    q->stats.connects++;
    snprintf(q->stats.path, sizeof(q->stats.path), "%s", hl_net_path_name(q->client));
    pthread_mutex_unlock(&q->lock);
    return HL_OK;
}

static hl_status check_cancelled(const struct hl_put_queue *q)
{
    if (q->cancel != NULL && atomic_load_explicit(q->cancel, memory_order_relaxed))
        return hl_fail(HL_ECANCELED, "put to %s: cancelled, nothing more is sent", q->address);
    return HL_OK;
}

static bool entry_is_stopped(const struct entry *e)
{
    return e->stop != NULL && atomic_load_explicit(e->stop, memory_order_relaxed);
}

/* Removes cancelled entries from the batch; returns how many are left. */
static size_t drop_stopped(struct hl_put_queue *q, size_t count)
{
    size_t left = 0;
    for (size_t i = 0; i < count; i++) {
        struct entry *e = q->batch[i];
        if (entry_is_stopped(e)) {
            snprintf(e->words, sizeof(e->words), "put to %s: it was stopped before it was sent",
                     q->address);
            e->done(e->arg, HL_ECANCELED, e->words); /* the entry no longer exists */
            continue;
        }
        q->items[left] = q->items[i];
        q->batch[left++] = e;
    }
    return left;
}

/* `stop` is passed on only for a batch of one put: it would abort the other puts too. */
static hl_status put_batch(struct hl_put_queue *q, size_t count, uint64_t deadline_ns)
{
    if (count == 1)
        hl_net_stop_with(q->client, q->batch[0]->stop);
    hl_status st = hl_net_put_many(q->client, q->items, count, left_ms(deadline_ns));
    hl_net_stop_with(q->client, NULL);
    return st;
}

/* Every item gets a status, even if there is no connection. */
static void send_batch(struct hl_put_queue *q, size_t count, uint64_t deadline_ns)
{
    hl_status st = check_cancelled(q);
    if (st == HL_OK)
        st = connect_queue(q, deadline_ns);
    if (st == HL_OK)
        st = put_batch(q, count, deadline_ns);
    else
        for (size_t i = 0; i < count; i++) {
            q->items[i].status = st;
            snprintf(q->items[i].words, q->items[i].words_cap, "%s", hl_error_text());
        }
    /* An answer may still arrive over this connection, so the next batch needs a new one. */
    if (st == HL_EUNAVAIL || st == HL_ETIMEDOUT || st == HL_EPROTO || st == HL_ECANCELED) {
        hl_net_close(q->client);
        q->client = NULL;
    }
}

/* Called without the lock: `done` takes it if a caller waits, and may start another put. */
static void end_batch(struct hl_put_queue *q, size_t count)
{
    pthread_mutex_lock(&q->lock);
    q->stats.batches++;
    for (size_t i = 0; i < count; i++)
        q->stats.puts += q->items[i].status == HL_OK;
    pthread_mutex_unlock(&q->lock);
    for (size_t i = 0; i < count; i++) {
        struct entry *e = q->batch[i];
        e->item.id = q->items[i].id;
        e->done(e->arg, q->items[i].status, e->words); /* the entry no longer exists */
    }
}

/* The lock is held only while a batch is gathered, so callers can join the line during a
 * transfer. */
static void *put_queue_main(void *arg)
{
    struct hl_put_queue *q = arg;
    uint64_t deadline_ns;
    for (;;) {
        pthread_mutex_lock(&q->lock);
        size_t count = gather_batch(q, &deadline_ns);
        pthread_mutex_unlock(&q->lock);
        if (count == 0)
            return NULL;
        count = drop_stopped(q, count);
        if (count == 0)
            continue;
        send_batch(q, count, deadline_ns);
        end_batch(q, count);
    }
}

hl_status hl_put_queue_open(const struct hl_put_queue_opts *opts, struct hl_put_queue **out)
{
    struct hl_put_queue *q = calloc(1, sizeof(*q));
    if (q != NULL)
        q->address = strdup(opts->connect.address);
    if (q == NULL || q->address == NULL) {
        free(q);
        return hl_fail(HL_ENOMEM, "put queue to %s: out of memory", opts->connect.address);
    }
    q->connect = opts->connect;
    q->connect.address = q->address;
    const struct hl_net_conf *conf =
        opts->connect.conf != NULL ? opts->connect.conf : hl_net_conf_default();
    if (q->connect.batch_bytes == 0)
        q->connect.batch_bytes = conf->batch_bytes;
    int ms = opts->batch_ms != 0 ? opts->batch_ms : conf->batch_ms;
    q->wait_ns = (uint64_t)(ms > 0 ? ms : 0) * HL_NS_PER_MS;
    q->cancel = opts->cancel;
    pthread_mutex_init(&q->lock, NULL);
    hl_status st = cond_init(&q->work);
    if (st == HL_OK && pthread_create(&q->thread, NULL, put_queue_main, q) != 0) {
        pthread_cond_destroy(&q->work);
        st = hl_fail(HL_ENOMEM, "put queue to %s: starting its thread: %m", q->address);
    }
    if (st != HL_OK) {
        pthread_mutex_destroy(&q->lock);
        free(q->address);
        free(q);
        return st;
    }
    *out = q;
    return HL_OK;
}

/* What is in line is sent first, so every entry gets its `done` before this returns. */
void hl_put_queue_close(struct hl_put_queue *q)
{
    if (q == NULL)
        return;
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
    pthread_join(q->thread, NULL);
    hl_net_close(q->client);
    pthread_cond_destroy(&q->work);
    pthread_mutex_destroy(&q->lock);
    free(q->address);
    free(q);
}

void hl_put_queue_stats(struct hl_put_queue *q, struct hl_put_queue_stats *out)
{
    pthread_mutex_lock(&q->lock);
    *out = q->stats;
    pthread_mutex_unlock(&q->lock);
}

/* The entry's item must be filled in, except for its text. */
static void join_line(struct hl_put_queue *q, struct entry *e, int timeout_ms)
{
    e->item.words = e->words;
    e->item.words_cap = WORDS;
    e->deadline_ns = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS;
    pthread_mutex_lock(&q->lock);
    DL_APPEND(q->line, e);
    q->line_bytes += e->item.len;
    q->line_count++;
    pthread_cond_signal(&q->work);
    pthread_mutex_unlock(&q->lock);
}

static hl_status check_len(size_t len)
{
    return len > 0 ? HL_OK : hl_fail(HL_EINVAL, "put of 0 bytes: an object has at least one byte");
}

/* A put without a waiting caller. Its `done` frees it, on the queue's thread. */
struct started {
    struct entry entry;
    struct hl_put_queue_order order;
};

static void on_started_done(void *arg, hl_status st, const char *words)
{
    struct started *s = arg;
    s->order.done(s->order.arg, st, words);
    free(s);
}

hl_status hl_put_queue_start(struct hl_put_queue *q, const struct hl_put_queue_order *order)
{
    HL_TRY(check_len(order->len));
    struct started *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hl_fail(HL_ENOMEM, "put to %s: out of memory", q->address);
    s->order = *order;
    s->entry = (struct entry){
        .item = {.data = order->data, .len = order->len, .crc = order->crc, .id = order->id},
        .stop = order->stop,
        .done = on_started_done,
        .arg = s};
    join_line(q, &s->entry, order->timeout_ms);
    return HL_OK;
}

/* The last use of the waiter by the queue's thread: it may be freed once the lock is released. */
static void on_waited_done(void *arg, hl_status st, const char *words)
{
    struct waiter *w = arg;
    (void)words;
    pthread_mutex_lock(&w->queue->lock);
    w->entry.item.status = st;
    w->ended = true;
    pthread_cond_signal(&w->ready);
    pthread_mutex_unlock(&w->queue->lock);
}

/* Waits until the entry has ended; returns 0 if its deadline passed while it was in line. */
static bool wait_end(struct waiter *w)
{
    struct hl_put_queue *q = w->queue;
    struct entry *e = &w->entry;
    pthread_mutex_lock(&q->lock);
    while (!w->ended && (e->taken || hl_now_ns() < e->deadline_ns))
        hl_cond_wait_until(&w->ready, &q->lock,
                           e->taken ? hl_now_ns() + HL_NS_PER_S : e->deadline_ns);
    if (!w->ended)
        leave_line(q, e);
    pthread_mutex_unlock(&q->lock);
    return w->ended;
}

hl_status hl_put_queue_put(struct hl_put_queue *q, const void *data, size_t len, uint32_t crc,
                           int timeout_ms, struct hl_id *id)
{
    struct waiter w = {.queue = q,
                       .entry = {.item = {.data = data, .len = len, .crc = crc, .id = *id},
                                 .done = on_waited_done,
                                 .arg = &w}};
    HL_TRY(check_len(len));
    HL_TRY(cond_init(&w.ready));
    join_line(q, &w.entry, timeout_ms);
    bool ended = wait_end(&w);
    pthread_cond_destroy(&w.ready);
    if (!ended)
        return hl_fail(HL_ETIMEDOUT, "put of %zu bytes to %s: not sent within %d ms", len,
                       q->address, timeout_ms);
    if (w.entry.item.status != HL_OK)
        return hl_fail(w.entry.item.status, "%s", w.entry.words);
    *id = w.entry.item.id;
    return HL_OK;
}
