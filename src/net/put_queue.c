/* net/put_queue.c - one thread gathers, sends with hl_net_put_many, and hands out the results. */
#include "net/put_queue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <utlist.h>

#include "base/clock.h"

#define DEFAULT_BATCH_MS    1
#define DEFAULT_BATCH_BYTES ((size_t)64 << 10)
#define WORDS               256

/* Lives on the stack of its caller. */
struct entry {
    struct hl_net_item *item;
    uint64_t deadline_ns;
    int taken, done;
    pthread_cond_t ready;
    struct entry *prev, *next;
};

struct hl_put_queue {
    struct hl_net_connect_opts connect;
    char *address;
    uint64_t wait_ns;
    pthread_mutex_t lock;
    pthread_cond_t work;
    struct entry *line;
    size_t line_bytes, line_count;
    size_t expected; /* who put the last batch will put again; so one alone never waits */
    int stopping;
    struct hl_put_queue_stats stats;
    struct hl_net_client *client; /* the thread's */
    struct hl_net_item items[HL_PUT_QUEUE_ITEMS];
    struct entry *batch[HL_PUT_QUEUE_ITEMS];
    pthread_t thread;
};

static void wait_until(pthread_cond_t *cond, pthread_mutex_t *lock, uint64_t until_ns)
{
    struct timespec t = {(time_t)(until_ns / HL_NS_PER_S), (long)(until_ns % HL_NS_PER_S)};
    pthread_cond_timedwait(cond, lock, &t);
}

static hl_status cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    int err = pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
    return err == 0 ? HL_OK : hl_fail(HL_ENOMEM, "put queue: %s", strerror(err));
}

/* The next batch, into q->batch; 0 when the queue ends. */
static size_t gather(struct hl_put_queue *q, uint64_t *deadline_ns)
{
    size_t count = 0, bytes = 0;
    while (q->line == NULL && !q->stopping)
        wait_until(&q->work, &q->lock, hl_now_ns() + HL_NS_PER_S);
    uint64_t until = hl_now_ns() + q->wait_ns;
    while (q->line != NULL && q->line_bytes < q->connect.batch_bytes &&
           q->line_count < q->expected && !q->stopping && hl_now_ns() < until)
        wait_until(&q->work, &q->lock, until);
    *deadline_ns = 0;
    while (q->line != NULL && count < HL_PUT_QUEUE_ITEMS) {
        struct entry *e = q->line;
        if (count > 0 && bytes + e->item->len > q->connect.batch_bytes)
            break;
        DL_DELETE(q->line, e);
        q->line_bytes -= e->item->len;
        q->line_count--;
        bytes += e->item->len;
        e->taken = 1;
        if (e->deadline_ns > *deadline_ns)
            *deadline_ns = e->deadline_ns;
        q->items[count] = *e->item;
        q->batch[count++] = e;
    }
    q->expected = count;
    return count;
}

static int left_ms(uint64_t deadline_ns)
{
    uint64_t now = hl_now_ns();
    return deadline_ns > now ? (int)((deadline_ns - now) / HL_NS_PER_MS) + 1 : 1;
}

/* Every item gets a status, also when nobody could be asked. 1: a connection was made. */
static int send_batch(struct hl_put_queue *q, size_t count, uint64_t deadline_ns)
{
    hl_status st = HL_OK;
    int connected = 0;
    if (q->client == NULL) {
        struct hl_net_connect_opts opts = q->connect;
        int left = left_ms(deadline_ns);
        if (opts.timeout_ms <= 0 || left < opts.timeout_ms)
            opts.timeout_ms = left;
        st = hl_net_connect_with(&opts, &q->client);
        connected = st == HL_OK;
    }
    if (st == HL_OK)
        st = hl_net_put_many(q->client, q->items, count, left_ms(deadline_ns));
    else
        for (size_t i = 0; i < count; i++) {
            q->items[i].status = st;
            snprintf(q->items[i].words, q->items[i].words_cap, "%s", hl_error_text());
        }
    if (st == HL_EUNAVAIL || st == HL_ETIMEDOUT || st == HL_EPROTO) {
        hl_net_close(q->client);
        q->client = NULL;
    }
    return connected;
}

static void *run(void *arg)
{
    struct hl_put_queue *q = arg;
    uint64_t deadline_ns;
    pthread_mutex_lock(&q->lock);
    for (size_t count = gather(q, &deadline_ns); count > 0; count = gather(q, &deadline_ns)) {
        pthread_mutex_unlock(&q->lock);
        int connected = send_batch(q, count, deadline_ns);
        pthread_mutex_lock(&q->lock);
        q->stats.connects += (uint64_t)connected;
        q->stats.batches++;
        for (size_t i = 0; i < count; i++) {
            struct entry *e = q->batch[i];
            q->stats.puts += q->items[i].status == HL_OK;
            e->item->status = q->items[i].status;
            e->item->id = q->items[i].id;
            e->done = 1;
            pthread_cond_signal(&e->ready);
        }
    }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

hl_status hl_put_queue_open(const struct hl_put_queue_opts *opts, struct hl_put_queue **out)
{
    struct hl_put_queue *q = calloc(1, sizeof(*q));
    if (q != NULL)
        q->address = strdup(opts->connect.address);
    if (q == NULL || q->address == NULL) {
        free(q);
        return hl_fail(HL_ENOMEM, "put queue to %s: memory is short", opts->connect.address);
    }
    q->connect = opts->connect;
    q->connect.address = q->address;
    if (q->connect.batch_bytes == 0)
        q->connect.batch_bytes = DEFAULT_BATCH_BYTES;
    int ms = opts->batch_ms != 0 ? opts->batch_ms : DEFAULT_BATCH_MS;
    q->wait_ns = (uint64_t)(ms > 0 ? ms : 0) * HL_NS_PER_MS;
    pthread_mutex_init(&q->lock, NULL);
    hl_status st = cond_init(&q->work);
    if (st == HL_OK && pthread_create(&q->thread, NULL, run, q) != 0) {
        pthread_cond_destroy(&q->work);
        st = hl_fail(HL_ENOMEM, "put queue to %s: starting its thread: %m", q->address);
    }
    if (st != HL_OK) {
        free(q->address);
        free(q);
        return st;
    }
    *out = q;
    return HL_OK;
}

void hl_put_queue_close(struct hl_put_queue *q)
{
    if (q == NULL)
        return;
    pthread_mutex_lock(&q->lock);
    q->stopping = 1;
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

hl_status hl_put_queue_put(struct hl_put_queue *q, const void *data, size_t len, uint32_t crc,
                           int timeout_ms, struct hl_id *id)
{
    char words[WORDS] = "";
    struct hl_net_item item = {
        .data = data, .len = len, .crc = crc, .id = *id, .words = words, .words_cap = WORDS};
    struct entry e = {.item = &item,
                      .deadline_ns = hl_now_ns() + (uint64_t)timeout_ms * HL_NS_PER_MS};
    if (len == 0)
        return hl_fail(HL_EINVAL, "put of 0 bytes: an object has at least one byte");
    HL_TRY(cond_init(&e.ready));
    pthread_mutex_lock(&q->lock);
    DL_APPEND(q->line, &e);
    q->line_bytes += len;
    q->line_count++;
    pthread_cond_signal(&q->work);
    while (!e.done && (e.taken || hl_now_ns() < e.deadline_ns))
        wait_until(&e.ready, &q->lock, e.taken ? hl_now_ns() + HL_NS_PER_S : e.deadline_ns);
    if (!e.done) {
        DL_DELETE(q->line, &e);
        q->line_bytes -= len;
        q->line_count--;
    }
    pthread_mutex_unlock(&q->lock);
    pthread_cond_destroy(&e.ready);
    if (!e.done)
        return hl_fail(HL_ETIMEDOUT, "put of %zu bytes to %s: not sent within %d ms", len,
                       q->address, timeout_ms);
    if (item.status != HL_OK)
        return hl_fail(item.status, "%s", words);
    *id = item.id;
    return HL_OK;
}
