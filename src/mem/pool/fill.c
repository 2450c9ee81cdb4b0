/* Touching the memory of a new pool, which may take minutes:
 *
 *     filling thread                               logging thread
 *     SIGTERM, SIGINT: remove the file, exit       every LINE_S: log the progress, from fstat
 *     at the end: set `stop`, signal `wake`, join
 *
 * The threads share only `stop`, which is guarded by the lock. The logging thread blocks all
 * signals, so the handler runs in the filling thread. `unfinished` belongs to the handler: it is
 * written only while no handler is installed. */
#include "mem/pool/fill.h"

#include <inttypes.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "os/cond.h"

#define LINE_S 3

/* For the signal handler. One set is enough, since a process creates one pool, at its start. */
static char unfinished[PATH_MAX]; /* "" = nothing to remove */
static atomic_flag taken = ATOMIC_FLAG_INIT;
static const int ending[] = {SIGTERM, SIGINT};
static struct sigaction before[HL_ARRAY_LEN(ending)];

/* The signal then ends the process, as it would without a handler. */
static void remove_and_die(int number)
{
    if (unfinished[0] != '\0')
        unlink(unfinished);
    signal(number, SIG_DFL);
    raise(number);
}

static void take_signals(struct hl_pool_fill *f, bool fresh)
{
    struct sigaction on = {.sa_handler = remove_and_die};
    if (atomic_flag_test_and_set(&taken))
        return;
    f->handling = true;
    snprintf(unfinished, sizeof(unfinished), "%s", fresh ? f->path : "");
    for (size_t i = 0; i < HL_ARRAY_LEN(ending); i++)
        sigaction(ending[i], &on, &before[i]);
}

static void give_signals_back(struct hl_pool_fill *f)
{
    if (!f->handling)
        return;
    for (size_t i = 0; i < HL_ARRAY_LEN(ending); i++)
        sigaction(ending[i], &before[i], NULL);
    unfinished[0] = '\0';
    f->handling = false;
    atomic_flag_clear(&taken);
}

static void *log_main(void *arg)
{
    struct hl_pool_fill *f = arg;
    struct timespec next;
    struct stat sb;
    clock_gettime(CLOCK_MONOTONIC, &next);
    pthread_mutex_lock(&f->lock);
    while (!f->stop) {
        next.tv_sec += LINE_S;
        while (!f->stop && pthread_cond_timedwait(&f->wake, &f->lock, &next) == 0)
            ;
        if (!f->stop && fstat(f->fd, &sb) == 0)
            hl_info("the pool is being filled path=%s bytes=%" PRIu64 " of=%" PRIu64, f->path,
                    (uint64_t)sb.st_blocks * 512, f->size);
    }
    pthread_mutex_unlock(&f->lock);
    return NULL;
}

void hl_pool_fill_begin(struct hl_pool_fill *f, const char *path, int fd, uint64_t size, bool fresh)
{
    sigset_t all, old;
    *f = (struct hl_pool_fill){.path = path, .fd = fd, .size = size};
    hl_cond_init(&f->wake);
    pthread_mutex_init(&f->lock, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old); /* signals go to the filling thread */
    f->running = pthread_create(&f->thread, NULL, log_main, f) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    take_signals(f, fresh);
}

void hl_pool_fill_end(struct hl_pool_fill *f)
{
    give_signals_back(f);
    if (f->running) {
        pthread_mutex_lock(&f->lock);
        f->stop = true;
        pthread_cond_signal(&f->wake);
        pthread_mutex_unlock(&f->lock);
        pthread_join(f->thread, NULL);
    }
    pthread_cond_destroy(&f->wake);
    pthread_mutex_destroy(&f->lock);
}
