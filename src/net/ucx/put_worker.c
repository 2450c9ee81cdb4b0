/* net/ucx/put_worker.c - the thread that allocates, sums, seals and aborts the puts of clients, so
 * that a put handler does not delay reads.
 *
 * There is one thread and one queue in order, so the SUMs of a put are done before its COMMIT. It
 * polls for a moment before it sleeps, because a single small put waits for it. server.h has the
 * overview. A job goes through these states:
 *
 *     given --> todo --next_job--> executed --hand_back--> done --> taken by the progress thread
 *                                     '--a SUM--> forgotten: its memory is the put's
 *
 * Each side tells the other that there is work, and pays for a wake-up only if the other sleeps:
 *
 *     give        adds to todo, raises `waiting`; signals `wake` if `asleep`, all under the lock
 *     hand_back   adds to done, raises `finished`; writes wake_fd if the progress thread sleeps
 *
 * The worker polls `waiting` and the progress thread polls `finished`, both without the lock. Both
 * are changed under it, so the job behind a count that is seen is already in the queue. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/ucx/server.h"

static void jobs_add(struct hl_ucx_jobs *jobs, struct hl_ucx_job *job)
{
    job->next = NULL;
    *jobs->end = job;
    jobs->end = &job->next;
}

static struct hl_ucx_job *jobs_pop(struct hl_ucx_jobs *jobs)
{
    struct hl_ucx_job *job = jobs->first;
    if (job == NULL)
        return NULL;
    jobs->first = job->next;
    if (jobs->first == NULL)
        jobs->end = &jobs->first;
    return job;
}

/* Returns NULL when the put worker is closed and the queue is empty. While it spins it only loads
 * `waiting`; `asleep` is set under the lock, so the giver of a new job signals. A stop ends the
 * sleep; a stop while it spins is found after spin_ns, under the lock. */
static struct hl_ucx_job *next_job(struct hl_ucx_put_worker *d)
{
    uint64_t idle_since = hl_now_ns();
    while (atomic_load_explicit(&d->waiting, memory_order_acquire) == 0 &&
           hl_now_ns() - idle_since < d->spin_ns)
        sched_yield();
    pthread_mutex_lock(&d->lock);
    struct hl_ucx_job *job = jobs_pop(&d->todo);
    while (job == NULL && !d->stopping) {
        d->asleep = true;
        pthread_cond_wait(&d->wake, &d->lock);
        d->asleep = false;
        job = jobs_pop(&d->todo);
    }
    if (job != NULL)
        atomic_fetch_sub_explicit(&d->waiting, 1, memory_order_relaxed);
    pthread_mutex_unlock(&d->lock);
    return job;
}

/* `finished` is raised before `server_sleeps` is read: see sleep_on_worker. */
static void hand_back(struct hl_ucx_put_worker *d, struct hl_ucx_job *job)
{
    uint64_t one = 1;
    pthread_mutex_lock(&d->lock);
    jobs_add(&d->done, job);
    atomic_fetch_add(&d->finished, 1);
    pthread_mutex_unlock(&d->lock);
    /* Either we see that the progress thread is about to sleep, or it sees the job before it
     * does. */
    if (atomic_load(d->server_sleeps) && write(d->wake_fd, &one, sizeof(one)) < 0)
        hl_debug("net server: waking the thread: %m");
}

static void *put_worker_main(void *arg)
{
    struct hl_ucx_put_worker *d = arg;
    for (struct hl_ucx_job *job = next_job(d); job != NULL; job = next_job(d)) {
        /* Read before: once another job of its put is handed back, put and job may be freed. */
        bool silent = job->task == HL_UCX_SUM;
        hl_ucx_put_work(job);
        if (!silent)
            hand_back(d, job);
    }
    return NULL;
}

void hl_ucx_put_worker_init(struct hl_ucx_put_worker *d)
{
    d->todo.end = &d->todo.first;
    d->done.end = &d->done.first;
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->wake, NULL);
}

void hl_ucx_put_worker_fini(struct hl_ucx_put_worker *d)
{
    pthread_cond_destroy(&d->wake);
    pthread_mutex_destroy(&d->lock);
}

hl_status hl_ucx_put_worker_start(struct hl_ucx_put_worker *d)
{
    if (pthread_create(&d->thread, NULL, put_worker_main, d) != 0)
        return hl_fail(HL_ENOMEM, "net server: starting the thread for puts: %m");
    d->started = true;
    return HL_OK;
}

/* What it has executed and the server has not taken stays in `done`; hl_ucx_puts_free aborts those
 * of their puts that were begun and not committed. */
void hl_ucx_put_worker_stop(struct hl_ucx_put_worker *d)
{
    if (!d->started)
        return;
    pthread_mutex_lock(&d->lock);
    d->stopping = true;
    pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    d->started = false;
}

void hl_ucx_put_worker_give(struct hl_ucx_put_worker *d, struct hl_ucx_job *job)
{
    pthread_mutex_lock(&d->lock);
    jobs_add(&d->todo, job);
    atomic_fetch_add_explicit(&d->waiting, 1, memory_order_release);
    if (d->asleep)
        pthread_cond_signal(&d->wake);
    pthread_mutex_unlock(&d->lock);
}

struct hl_ucx_job *hl_ucx_put_worker_take(struct hl_ucx_put_worker *d)
{
    if (atomic_load(&d->finished) == 0)
        return NULL;
    pthread_mutex_lock(&d->lock);
    struct hl_ucx_job *job = jobs_pop(&d->done);
    if (job != NULL)
        atomic_fetch_sub(&d->finished, 1);
    pthread_mutex_unlock(&d->lock);
    return job;
}
