/* A queue of batches and the thread that commits them.
 *
 *     loop's thread                           writer's thread
 *     hl_store_writer_put: ops --> batch
 *         item --> head ... tail --lock-->    take_group: the first ones, up to GROUP_MAX
 *                                             write_group: one commit; if it fails, each alone
 *     tell_written <---- hl_loop_post ----    each item, in order
 *         done(st, text), free
 *
 * An item belongs to one thread at a time: to the loop's until it is in the queue, to the writer's
 * until it is posted, and to the loop's again after that. So the lock only guards the queue, and is
 * never held during a commit.
 *
 *     queued --taken--> committed with others, or refused alone --posted--> told, freed
 *        '--no batch could be made: `st` is already set, and it takes the same path
 *
 * An item without a batch also goes through the queue, because its `done` must not run inside put
 * nor before the `done` of items that were put earlier.
 *
 *     stopping   no --stop, on the loop--> yes --queue empty--> thread ends --> joined, freed
 *
 * Nothing is put after the stop, so an empty queue is the end. Each signal is given under the lock
 * that guards what it announces: take_group looks and goes to sleep under that lock, and misses
 * none. One thread waits, so one signal is enough. */
#include "store/writer.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"

#define GROUP_MAX      64
#define GROUP_ROWS_MAX 100000u

struct item {
    struct item *next;
    struct hl_store_batch *batch; /* NULL: it could not be made, `st` says why */
    hl_store_written done;
    void *arg;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
};

struct hl_store_writer {
    struct hl_store *store;
    struct hl_loop *loop;
    pthread_t thread;
    pthread_mutex_t lock; /* guards head, tail, stopping */
    pthread_cond_t more;
    struct item *head;
    struct item **tail;
    bool stopping;
};

static void tell_written(void *arg)
{
    struct item *item = arg;
    item->done(item->arg, item->st, item->text);
    free(item);
}

static void item_failed(struct item *item, hl_status st)
{
    item->st = st;
    snprintf(item->text, sizeof(item->text), "%s", hl_error_text());
}

/* Takes the first items of the queue, as many as fit into one commit; 0 = stopped, and nothing is
 * left. `tail` points into the last item, which is about to be posted and freed: an empty queue
 * gets its tail back before the lock is released. */
static size_t take_group(struct hl_store_writer *w, struct item **group)
{
    size_t n = 0, rows = 0;
    pthread_mutex_lock(&w->lock);
    while (w->head == NULL && !w->stopping)
        pthread_cond_wait(&w->more, &w->lock);
    while (w->head != NULL && n < GROUP_MAX) {
        struct item *item = w->head;
        rows += item->batch != NULL ? hl_store_batch_size(item->batch) : 0;
        if (n > 0 && rows > GROUP_ROWS_MAX)
            break; /* the first item always goes, however large: else it never would */
        group[n++] = item;
        w->head = item->next;
    }
    if (w->head == NULL)
        w->tail = &w->head;
    pthread_mutex_unlock(&w->lock);
    return n;
}

static hl_status write_items(struct hl_store_writer *w, struct item *const *group, size_t n)
{
    struct hl_store_batch *batches[GROUP_MAX];
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        if (group[i]->batch != NULL)
            batches[count++] = group[i]->batch;
    return hl_store_write(w->store, batches, count);
}

/* A commit is all or nothing, so after a failed one each batch is tried alone. A batch that can't
 * be written then fails by itself; a full disk fails all of them. */
static void write_group(struct hl_store_writer *w, struct item *const *group, size_t n)
{
    uint64_t begun = hl_now_ns();
    hl_status st = write_items(w, group, n);
    for (size_t i = 0; i < n && st != HL_OK; i++) {
        hl_status alone = n == 1 ? st : write_items(w, &group[i], 1);
        if (alone != HL_OK && group[i]->batch != NULL)
            item_failed(group[i], alone);
    }
    uint64_t ms = (hl_now_ns() - begun) / HL_NS_PER_MS;
    if (ms > HL_STORE_SLOW_MS)
        hl_warn("the disk of the state directory is slow, answers wait for it commit_ms=%" PRIu64,
                ms);
}

static void *writer_main(void *arg)
{
    struct hl_store_writer *w = arg;
    struct item *group[GROUP_MAX];
    size_t n;
    while ((n = take_group(w, group)) > 0) {
        write_group(w, group, n);
        for (size_t i = 0; i < n; i++) {
            hl_store_batch_destroy(group[i]->batch);
            group[i]->batch = NULL;
            hl_loop_post(w->loop, tell_written, group[i]); /* from here on it may be freed */
        }
    }
    return NULL;
}

static void writer_free(struct hl_store_writer *w)
{
    pthread_mutex_destroy(&w->lock);
    pthread_cond_destroy(&w->more);
    free(w);
}

hl_status hl_store_writer_start(struct hl_store *store, struct hl_loop *loop,
                                struct hl_store_writer **out)
{
    struct hl_store_writer *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the store's writer");
    w->store = store;
    w->loop = loop;
    w->tail = &w->head;
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->more, NULL);
    if (pthread_create(&w->thread, NULL, writer_main, w) != 0) {
        writer_free(w);
        return hl_fail(HL_ENOMEM, "the thread of the store's writer can't be started");
    }
    *out = w;
    return HL_OK;
}

/* The thread ends when it was told to stop and the queue is empty. Items that it has posted are
 * still on their way to the loop, which frees them and needs nothing of the writer for that. */
void hl_store_writer_stop(struct hl_store_writer *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stopping = true;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    writer_free(w);
}

void hl_store_writer_put(struct hl_store_writer *w, const struct hl_store_op *ops, size_t n,
                         hl_store_written done, void *arg)
{
    struct item *item = calloc(1, sizeof(*item));
    if (item == NULL)
        abort(); /* as in hl_loop_post(): out of memory here, nothing can continue */
    item->done = done;
    item->arg = arg;
    hl_status st = hl_store_batch_create(ops, n, &item->batch);
    if (st != HL_OK)
        item_failed(item, st);
    pthread_mutex_lock(&w->lock); /* moments, also while the disk is slow: see write_group */
    *w->tail = item;
    w->tail = &item->next;
    pthread_cond_signal(&w->more);
    pthread_mutex_unlock(&w->lock);
}
