/* One libuv loop and its mailbox.
 *
 *     any thread      hl_loop_post --> head: task -> task -> ... <- tail    under `lock`
 *                          '--- uv_async_send ---> wakeup
 *     loop's thread   on_wakeup takes the whole list as `due` and runs it without the lock
 *
 * libuv merges wakeups: several sends may cause one on_wakeup, so each takes all tasks there are. A
 * task that is posted by a task goes to a new list, whose own wakeup runs it in a later turn:
 * timers and sockets come in between, and no task runs inside another.
 *
 *     created --hl_loop_run--> running --`stopping` found by on_wakeup, or a signal--> returned
 *                                                                 hl_loop_destroy --> destroyed
 *
 * `stopping` is read together with the list, so tasks posted before hl_loop_stop still run. Until
 * hl_loop_run, `thread` is the thread that made the loop, so set-up code passes HL_ON_LOOP. */
#include "os/loop.h"

#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

struct task {
    struct task *next;
    hl_loop_fn fn;
    void *arg;
};

struct hl_loop {
    uv_loop_t uv;
    uv_async_t wakeup;
    uv_signal_t signals[2];
    int signals_on;
    pthread_t thread;
    pthread_mutex_t lock; /* guards head, tail, stopping */
    struct task *head;
    struct task **tail;
    bool stopping;
    struct task *due; /* used only by the loop's thread: what this turn still runs */
};

/* On the heap and not in its owner: libuv uses the handle until it is closed, one turn after
 * hl_timer_destroy, when the owner may no longer exist. */
struct hl_timer {
    uv_timer_t uv;
    hl_loop_fn fn;
    void *arg;
};

/* Posting takes memory; a daemon that can't allocate 24 bytes has lost its mailbox and can't
 * continue. */
static struct task *task_new(hl_loop_fn fn, void *arg)
{
    struct task *t = malloc(sizeof(*t));
    if (t == NULL)
        abort();
    *t = (struct task){NULL, fn, arg};
    return t;
}

static void on_wakeup(uv_async_t *async)
{
    struct hl_loop *loop = async->data;
    pthread_mutex_lock(&loop->lock);
    struct task **end = &loop->due; /* not empty if a task runs the loop */
    while (*end != NULL)
        end = &(*end)->next;
    *end = loop->head;
    loop->head = NULL;
    loop->tail = &loop->head;
    bool stopping = loop->stopping;
    pthread_mutex_unlock(&loop->lock);
    while (loop->due != NULL) {
        struct task *t = loop->due;
        loop->due = t->next;
        t->fn(t->arg);
        free(t);
    }
    if (stopping)
        uv_stop(&loop->uv);
}

hl_status hl_loop_create(struct hl_loop **out)
{
    struct hl_loop *loop = calloc(1, sizeof(*loop));
    if (loop == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an event loop");
    int rc = uv_loop_init(&loop->uv);
    if (rc != 0) {
        free(loop);
        return hl_fail(HL_EIO, "event loop: %s", uv_strerror(rc));
    }
    rc = uv_async_init(&loop->uv, &loop->wakeup, on_wakeup);
    if (rc != 0) {
        uv_loop_close(&loop->uv);
        free(loop);
        return hl_fail(HL_EIO, "event loop wakeup: %s", uv_strerror(rc));
    }
    loop->wakeup.data = loop;
    loop->tail = &loop->head;
    loop->thread = pthread_self();
    pthread_mutex_init(&loop->lock, NULL);
    *out = loop;
    return HL_OK;
}

/* Closes handles that others left on the loop. Their close callbacks are not called, because they
 * would use freed memory. */
static void close_walk(uv_handle_t *handle, void *arg)
{
    (void)arg;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* Tasks posted before still run, because each may own memory that only it frees. Tasks that these
 * post are freed without running: nothing would be left for them to work on. */
void hl_loop_destroy(struct hl_loop *loop)
{
    if (loop == NULL)
        return;
    on_wakeup(&loop->wakeup); /* runs the tasks that were posted last */
    uv_walk(&loop->uv, close_walk, NULL);
    while (uv_run(&loop->uv, UV_RUN_DEFAULT) != 0)
        continue; /* a pending stop ends the first round before handles are closed */
    uv_loop_close(&loop->uv);
    while (loop->head != NULL) {
        struct task *t = loop->head;
        loop->head = t->next;
        free(t);
    }
    pthread_mutex_destroy(&loop->lock);
    free(loop);
}

uv_loop_t *hl_loop_uv(struct hl_loop *loop)
{
    return &loop->uv;
}

hl_status hl_loop_run(struct hl_loop *loop)
{
    loop->thread = pthread_self();
    uv_run(&loop->uv, UV_RUN_DEFAULT);
    return HL_OK;
}

void hl_loop_stop(struct hl_loop *loop)
{
    pthread_mutex_lock(&loop->lock);
    loop->stopping = true;
    pthread_mutex_unlock(&loop->lock);
    uv_async_send(&loop->wakeup);
}

void hl_loop_post(struct hl_loop *loop, hl_loop_fn fn, void *arg)
{
    struct task *t = task_new(fn, arg);
    pthread_mutex_lock(&loop->lock);
    *loop->tail = t;
    loop->tail = &t->next;
    pthread_mutex_unlock(&loop->lock);
    uv_async_send(&loop->wakeup);
}

/* Drops the tasks with this argument; returns the link where the next task would be appended. */
static struct task **tasks_drop(struct task **list, const void *arg)
{
    while (*list != NULL) {
        struct task *t = *list;
        if (t->arg == arg) {
            *list = t->next;
            free(t);
        } else {
            list = &t->next;
        }
    }
    return list;
}

void hl_loop_cancel(struct hl_loop *loop, const void *arg)
{
    HL_ON_LOOP(loop);
    tasks_drop(&loop->due, arg);
    pthread_mutex_lock(&loop->lock);
    loop->tail = tasks_drop(&loop->head, arg);
    pthread_mutex_unlock(&loop->lock);
}

bool hl_loop_is_current(const struct hl_loop *loop)
{
    return pthread_equal(loop->thread, pthread_self()) != 0;
}

static void on_timer(uv_timer_t *uv)
{
    struct hl_timer *t = uv->data;
    t->fn(t->arg);
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

/* libuv's time is that of the beginning of the turn: after a long callback, a delay that starts
 * there would be too short. */
hl_status hl_timer_create(struct hl_loop *loop, uint64_t delay_ms, uint64_t repeat_ms,
                          hl_loop_fn fn, void *arg, struct hl_timer **out)
{
    struct hl_timer *t = calloc(1, sizeof(*t));
    if (t == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a timer");
    t->fn = fn;
    t->arg = arg;
    uv_timer_init(&loop->uv, &t->uv);
    t->uv.data = t;
    uv_update_time(&loop->uv);
    uv_timer_start(&t->uv, on_timer, delay_ms, repeat_ms);
    if (out != NULL)
        *out = t;
    return HL_OK;
}

void hl_timer_destroy(struct hl_timer *t)
{
    if (t == NULL)
        return;
    uv_timer_stop(&t->uv);
    uv_close((uv_handle_t *)&t->uv, on_timer_closed);
}

/* Called on the loop's thread, like all libuv callbacks, so it stops the loop without the
 * mailbox. */
static void on_signal(uv_signal_t *handle, int signum)
{
    (void)signum;
    uv_stop(handle->loop);
}

hl_status hl_loop_stop_on_signals(struct hl_loop *loop)
{
    static const int numbers[2] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        uv_signal_init(&loop->uv, &loop->signals[i]);
        int rc = uv_signal_start(&loop->signals[i], on_signal, numbers[i]);
        if (rc != 0)
            return hl_fail(HL_EIO, "watch signal %d: %s", numbers[i], uv_strerror(rc));
        uv_unref((uv_handle_t *)&loop->signals[i]);
    }
    return HL_OK;
}
