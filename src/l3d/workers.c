/* A queue between the loop and its workers.
 *
 *     loop thread                                     workers
 *     workers_add: pending++                          worker_main
 *        '--> list: work - work  ------------------>  run, without the lock
 *     work_finish: pending--, done(w)  <--hl_loop_post--'
 *
 * Work: added --> in the list --> run in one worker --> posted --> done, its owner's again
 *
 * The list and `stop` are guarded by the lock. `wake` is signalled for each piece of work, and
 * broadcast once by a stop. `pending` belongs to the loop: it counts work until its `done`, so when
 * a stop sees 0, no callback is outstanding. The workers finish the list before they end. Their
 * `done` callbacks run on the loop, so a stop has to run the loop. */
#include "l3d/workers.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "os/background.h"
#include "os/loop.h"

struct workers {
    struct hl_loop *loop;
    pthread_t *threads;
    unsigned count;
    unsigned pending; /* added but not yet done; belongs to the loop */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    struct work *list;
    bool background; /* never changes */
    bool stop;
};

static void work_finish(void *arg)
{
    struct work *w = arg;
    w->owner->pending--;
    w->done(w);
}

static void *worker_main(void *arg)
{
    struct workers *ws = arg;
    if (ws->background)
        hl_background_enter();
    pthread_mutex_lock(&ws->lock);
    for (;;) {
        while (ws->list == NULL && !ws->stop)
            pthread_cond_wait(&ws->wake, &ws->lock);
        struct work *w = ws->list;
        if (w == NULL)
            break;
        DL_DELETE(ws->list, w);
        w->queued = false;
        pthread_mutex_unlock(&ws->lock);
        w->run(w);
        hl_loop_post(ws->loop, work_finish, w);
        pthread_mutex_lock(&ws->lock);
    }
    pthread_mutex_unlock(&ws->lock);
    return NULL;
}

hl_status workers_start(struct hl_loop *loop, unsigned threads, bool background,
                        struct workers **out)
{
    struct workers *ws = calloc(1, sizeof(*ws));
    if (ws == NULL || (ws->threads = calloc(threads, sizeof(*ws->threads))) == NULL) {
        free(ws);
        return hl_fail(HL_ENOMEM, "out of memory allocating %u worker threads", threads);
    }
    ws->loop = loop;
    ws->background = background;
    pthread_mutex_init(&ws->lock, NULL);
    pthread_cond_init(&ws->wake, NULL);
    for (; ws->count < threads; ws->count++) {
        int rc = pthread_create(&ws->threads[ws->count], NULL, worker_main, ws);
        if (rc != 0) {
            workers_stop(ws);
            return hl_fail(HL_ENOMEM, "worker thread: %s", strerror(rc));
        }
    }
    *out = ws;
    return HL_OK;
}

void workers_add(struct workers *ws, struct work *w)
{
    HL_ON_LOOP(ws->loop);
    w->owner = ws;
    ws->pending++;
    pthread_mutex_lock(&ws->lock);
    w->queued = true;
    DL_APPEND(ws->list, w);
    pthread_cond_signal(&ws->wake);
    pthread_mutex_unlock(&ws->lock);
}

void workers_move(struct workers *ws, struct work *w)
{
    struct workers *from = w->owner;
    HL_ON_LOOP(ws->loop);
    if (from == ws)
        return;
    pthread_mutex_lock(&from->lock);
    bool queued = w->queued;
    if (queued)
        DL_DELETE(from->list, w);
    pthread_mutex_unlock(&from->lock);
    if (!queued)
        return;
    from->pending--;
    workers_add(ws, w);
}

void workers_stop(struct workers *ws)
{
    if (ws == NULL)
        return;
    pthread_mutex_lock(&ws->lock);
    ws->stop = true;
    pthread_cond_broadcast(&ws->wake);
    pthread_mutex_unlock(&ws->lock);
    while (ws->pending > 0)
        uv_run(hl_loop_uv(ws->loop), UV_RUN_ONCE);
    for (unsigned i = 0; i < ws->count; i++)
        pthread_join(ws->threads[i], NULL);
    pthread_cond_destroy(&ws->wake);
    pthread_mutex_destroy(&ws->lock);
    free(ws->threads);
    free(ws);
}
