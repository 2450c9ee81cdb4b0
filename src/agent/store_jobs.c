/* Orders: parsed on the loop, carried out in threads of their own, answered from the loop. Calls
 * for the same copy wait for the job that is in progress. store_private.h draws the states of a
 * job.
 *
 *     jobs     [j1]-[j2]-[j3]     all that are not answered; the loop's, without a lock
 *     queues             [j3]     those among them that no copy thread has taken; under queue_lock:
 *                                 one for orders, one for what readers wait for
 *     j1.waiters  call -> call    calls that get its result; the loop's
 *
 * A second call joins the job and adds no work: the copy is the same whichever source it names. It
 * shares the deadline and the rate limit of the first. A job that was stopped is not joined: the
 * new call's job may run beside it, and the tier gives the slot to one of them.
 *
 *     step                       thread                     the job is in
 *     job_submit, job_enqueue    loop                       jobs, queue
 *     next_job                   a copy thread              jobs
 *     run, or store_send_start   a copy thread, then the    jobs
 *                                put queue's for small ones
 *     job_end                    the one that ran it        jobs, the loop's mailbox
 *     on_done: answers, frees    loop                       (none)
 *
 * Only on_done frees a job, so the loop may look at `jobs` whenever it likes, and set `stop` of a
 * job that has just ended: that changes nothing any more. A thread that waits for a job misses no
 * signal, because it looks and goes to sleep under queue_lock, under which jobs are added. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "agent/store_private.h"
#include "base/log.h"
#include "os/background.h"
#include "os/loop.h"

#define TIMEOUT_DEFAULT_MS 60000
#define LOADS_WAIT_MAX     64 /* beyond this number, readers fetch by themselves */

/* The work: store_copy_run, store_keep_run or store_send_run. */
typedef hl_status (*run_fn)(struct store *s, const struct store_request *r,
                            struct store_result *out);

/* A call that waits for the job's result. */
struct waiter {
    struct hl_rpc_call *call;
    struct hl_id migration;
    bool stopped; /* it no longer needs the copy */
    struct waiter *next;
};

/* `request` is written before the job is queued; `result`, `st` and `text` are written by the
 * thread that ends the job, before it posts. Queue and mailbox establish the order: none of them
 * needs a lock. */
struct store_job {
    struct store *store;
    run_fn run;
    struct store_request request; /* its texts belong to the first call, which is answered last */
    struct waiter *waiters;       /* on the loop */
    atomic_bool stop;             /* set by the loop, read by the copying thread */
    struct store_result result;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
    struct store_job *prev, *next;             /* list of all jobs */
    struct store_job *queue_prev, *queue_next; /* list of waiting jobs */
};

struct hl_api_copy store_copy_info(const struct store *s, struct hl_id id,
                                   const struct store_result *r, struct hl_arena *arena)
{
    return (struct hl_api_copy){
        .id = hl_id_print(id, arena),
        .tier = r->tier,
        .node = r->tier == HL_API_TIER_L3 ? "" : s->node,
        .device = hl_arena_strdup(arena, r->device),
        .numa_id = r->numa,
        .size_bytes = r->size,
        .crc32 = r->crc32,
        .path = r->path,
        .reason = r->reason,
        .transport = hl_arena_strdup(arena, r->transport),
        .seconds = r->seconds,
        .created_ms = r->created_ms,
    };
}

/* ---- orders ---------------------------------------------------------------------------------- */

static hl_status request_parse(const struct hl_api_copy_request *p, struct store_request *out)
{
    uint64_t ms = p->timeout_ms > 0 ? p->timeout_ms : TIMEOUT_DEFAULT_MS;
    *out = (struct store_request){
        .size = p->size_bytes,
        .crc32 = p->crc32,
        .device = p->device,
        .source_device = p->source_device,
        .numa = p->numa_id,
        .source_node = p->source_node,
        .source_host = p->source_host_id,
        .source_rpc = p->source_address,
        .source_data = p->source_data_address,
        .source_socket = p->source_socket,
        .target_host = p->target_host_id,
        .target_address = p->target_address,
        .target_socket = p->target_socket,
        .target_data = p->target_data_address,
        .op = p->operation,
        .tier = p->tier,
        .source_tier = p->source_tier != HL_API_TIER_UNSAID ? p->source_tier : HL_API_TIER_L3,
        .deadline_ns = hl_now_ns() + ms * HL_NS_PER_MS,
        .migration = hl_id_random(),
        .bytes_per_s = p->bytes_per_s,
    };
    HL_TRY(hl_id_parse(p->id, &out->id));
    if (p->tier == HL_API_TIER_UNSAID) /* the sources of a repair have no tier */
        return hl_fail(HL_EINVAL, "field request.tier: missing");
    if (p->migration_id[0] != '\0')
        HL_TRY(hl_id_parse(p->migration_id, &out->migration));
    return HL_OK;
}

/* True if both produce the same result: the shard in that tier, or at that target. It reads texts
 * of the first call, which stay until its answer, the last one of the job. */
static bool same_work(const struct store_job *a, const struct store_job *b)
{
    return a->run == b->run && hl_id_equal(a->request.id, b->request.id) &&
           a->request.tier == b->request.tier &&
           strcmp(a->request.device, b->request.device) == 0 &&
           strcmp(a->request.target_address, b->request.target_address) == 0;
}

static struct store_job *find_same(struct store *s, const struct store_job *job)
{
    struct store_job *j;
    DL_FOREACH (s->jobs, j) {
        if (same_work(j, job) && !atomic_load_explicit(&j->stop, memory_order_relaxed))
            return j;
    }
    return NULL;
}

static struct store_queue *queue_of(struct store *s, const struct store_job *j)
{
    return &s->queues[j->request.keeps ? STORE_LOADS : STORE_COPIES];
}

/* Takes over the waiter. `jobs` belongs to the loop, so looking for the same copy and joining it
 * needs no lock: the job can't end in between, because on_done runs here, too. */
static void job_enqueue(struct store *s, struct store_job *j, struct waiter *w)
{
    struct store_job *same = find_same(s, j);
    if (same != NULL) {
        LL_PREPEND(same->waiters, w);
        free(j);
        return;
    }
    LL_PREPEND(j->waiters, w);
    DL_APPEND(s->jobs, j);
    struct store_queue *q = queue_of(s, j);
    pthread_mutex_lock(&s->queue_lock);
    DL_APPEND2(q->jobs, j, queue_prev, queue_next);
    pthread_cond_signal(&q->cond);
    pthread_mutex_unlock(&s->queue_lock);
}

/* A glance: the number may change right after, which only makes the limit a little less exact. */
static bool loads_are_many(struct store *s)
{
    const struct store_job *j;
    unsigned n = 0;
    pthread_mutex_lock(&s->queue_lock);
    DL_COUNT2(s->queues[STORE_LOADS].jobs, j, n, queue_next);
    pthread_mutex_unlock(&s->queue_lock);
    return n >= LOADS_WAIT_MAX;
}

/* Everything that may fail is checked before the job exists; once it exists it ends in job_end. */
static void job_submit(struct store *s, struct hl_rpc_call *call,
                       const struct hl_api_copy_request *request, run_fn run, bool keeps)
{
    HL_ON_LOOP(s->opts.loop);
    struct store_job *j = calloc(1, sizeof(*j));
    struct waiter *w = calloc(1, sizeof(*w));
    hl_status st;
    if (j == NULL || w == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory for the request of a copy");
    else if (atomic_load_explicit(&s->stopping, memory_order_relaxed))
        st = hl_fail(HL_EUNAVAIL, "the Agent of node %s is shutting down", s->node);
    else if (store_busy(s) >= STORE_JOBS_MAX)
        st = hl_fail(HL_EBUSY, "%d copies are already waiting at node %s; try again later",
                     STORE_JOBS_MAX, s->node);
    else if (keeps && loads_are_many(s))
        st = hl_fail(HL_EBUSY, "%d shards for readers are already waiting at node %s",
                     LOADS_WAIT_MAX, s->node);
    else
        st = request_parse(request, &j->request);
    if (st != HL_OK) {
        hl_rpc_reject(call, st, NULL);
        free(j);
        free(w);
        return;
    }
    j->store = s;
    j->run = run;
    j->request.keeps = keeps;
    j->request.stop = &j->stop;
    w->call = call;
    w->migration = j->request.migration;
    job_enqueue(s, j, w);
}

void store_copy(struct store *s, struct hl_rpc_call *call,
                const struct hl_api_copy_request *request)
{
    job_submit(s, call, request, store_copy_run, false);
}

void store_keep(struct store *s, struct hl_rpc_call *call,
                const struct hl_api_copy_request *request)
{
    bool in_device = request->tier == HL_API_TIER_L1 && store_keeps_in_devices(s);
    if (store_keeps(s) && (in_device || request->tier == HL_API_TIER_L2))
        job_submit(s, call, request, store_keep_run, true);
    else
        hl_rpc_reject(call, HL_EUNSUPPORTED,
                      "this node keeps no copies of the shards that are read on it");
}

void store_send(struct store *s, struct hl_rpc_call *call,
                const struct hl_api_copy_request *request)
{
    job_submit(s, call, request, store_send_run, false);
}

/* True: no call needs the job any more. */
static bool job_is_unwanted(const struct store_job *j)
{
    const struct waiter *w;
    LL_FOREACH (j->waiters, w) {
        if (!w->stopped)
            return false;
    }
    return true;
}

unsigned store_stop_copies(struct store *s, struct hl_id migration)
{
    struct store_job *j;
    struct waiter *w;
    unsigned stopped = 0;
    HL_ON_LOOP(s->opts.loop);
    DL_FOREACH (s->jobs, j) {
        if (atomic_load_explicit(&j->stop, memory_order_relaxed))
            continue;
        LL_FOREACH (j->waiters, w) {
            w->stopped |= hl_id_equal(w->migration, migration);
        }
        if (!job_is_unwanted(j))
            continue;
        atomic_store_explicit(&j->stop, true, memory_order_relaxed);
        stopped++;
        hl_info("copy is stopped id=%s migration=%s", hl_id_format(j->request.id).s,
                hl_id_format(migration).s);
    }
    return stopped;
}

unsigned store_busy(const struct store *s)
{
    const struct store_job *j;
    unsigned n = 0;
    DL_COUNT(s->jobs, j, n);
    return n;
}

/* ---- work and answers ------------------------------------------------------------------------ */

/* storeCopy, storeKeep and storeSend share this answer. */
static void job_reply(const struct store_job *j, struct hl_rpc_call *call)
{
    struct hl_api_copy copy =
        store_copy_info(j->store, j->request.id, &j->result, hl_rpc_call_arena(call));
    if (j->request.keeps)
        hl_reply_agent_store_keep(call, &(struct hl_api_agent_store_keep_results){.copy = copy});
    else if (j->run == store_copy_run)
        hl_reply_agent_store_copy(call, &(struct hl_api_agent_store_copy_results){.copy = copy});
    else
        hl_reply_agent_store_send(call, &(struct hl_api_agent_store_send_results){.copy = copy});
}

/* The end of a job, on the loop: all calls that joined it get the same answer. No call can join any
 * more when it is out of `jobs`, nor between that and the answers: the loop is here. */
static void on_done(void *arg)
{
    struct store_job *j = arg;
    struct store *s = j->store;
    struct waiter *w, *next;
    DL_DELETE(s->jobs, j);
    LL_FOREACH_SAFE(j->waiters, w, next)
    {
        if (j->st == HL_OK)
            job_reply(j, w->call);
        else
            hl_rpc_reject(w->call, j->st, j->text);
        free(w);
    }
    free(j);
}

/* When the store is stopping, queued jobs are still taken; each finds that no time is left, and so
 * gets its answer. NULL: the thread ends. */
static struct store_job *next_job(struct store *s, struct store_queue *q)
{
    struct store_job *j;
    pthread_mutex_lock(&s->queue_lock);
    while (q->jobs == NULL && !atomic_load_explicit(&s->stopping, memory_order_relaxed))
        pthread_cond_wait(&q->cond, &s->queue_lock);
    j = q->jobs;
    if (j != NULL)
        DL_DELETE2(q->jobs, j, queue_prev, queue_next);
    pthread_mutex_unlock(&s->queue_lock);
    return j;
}

/* Called from any thread, with a failure's text in hl_error_text. */
static void job_end(void *arg, hl_status st)
{
    struct store_job *j = arg;
    j->st = st;
    if (st != HL_OK) {
        snprintf(j->text, sizeof(j->text), "%s", hl_error_text());
        hl_log_write(j->request.keeps ? HL_LOG_DEBUG : HL_LOG_WARN, "%s", j->text);
    }
    hl_loop_post(j->store->opts.loop, on_done, j);
}

/* A small copy to another host is handed to a put queue, which ends the job from its own thread.
 * This thread takes the next job, so that many small copies share messages. */
static void copy_jobs(struct store *s, struct store_queue *q)
{
    struct store_job *j;
    while ((j = next_job(s, q)) != NULL) {
        int ms;
        hl_status st = store_left(s, &j->request, &ms);
        if (st == HL_OK && j->run == store_send_run &&
            store_send_start(s, &j->request, &j->result, job_end, j))
            continue;
        if (st == HL_OK)
            st = j->run(s, &j->request, &j->result);
        if (st != HL_OK && atomic_load_explicit(&j->stop, memory_order_relaxed))
            st = hl_fail_prefix(HL_ECANCELED, "it was stopped: "); /* whatever other error it met */
        job_end(j, st);
    }
}

static void *copy_thread(void *arg)
{
    struct store *s = arg;
    hl_background_enter(); /* readers have priority */
    copy_jobs(s, &s->queues[STORE_COPIES]);
    return NULL;
}

static void *load_thread(void *arg)
{
    struct store *s = arg;
    copy_jobs(s, &s->queues[STORE_LOADS]);
    return NULL;
}

/* If a thread can't be started, opening the store fails; its close joins the threads before it. */
static hl_status start_threads(struct store *s, struct store_queue *q, int n, void *(*run)(void *))
{
    q->threads = calloc((size_t)n, sizeof(*q->threads));
    if (q->threads == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the copy threads");
    for (; q->thread_count < n; q->thread_count++) {
        int rc = pthread_create(&q->threads[q->thread_count], NULL, run, s);
        if (rc != 0)
            return hl_fail(HL_ENOMEM, "thread that copies: %s", strerror(rc));
    }
    return HL_OK;
}

hl_status store_jobs_start(struct store *s)
{
    int copies = s->opts.copies > 0 ? s->opts.copies : 1;
    HL_TRY(start_threads(s, &s->queues[STORE_COPIES], copies, copy_thread));
    if (!store_keeps(s))
        return HL_OK;
    return start_threads(s, &s->queues[STORE_LOADS], s->opts.loads, load_thread);
}

/* Waiting orders are taken and fail at once; running ones fail at their next check of the clock.
 * `stopping` is set already; a job's `stop` ends code that only checks that. The lock is needed for
 * a thread that has just checked: once we get the lock, that thread sleeps and receives the
 * broadcast. */
void store_jobs_cancel(struct store *s)
{
    struct store_job *j;
    DL_FOREACH (s->jobs, j) {
        atomic_store_explicit(&j->stop, true, memory_order_relaxed);
    }
    pthread_mutex_lock(&s->queue_lock);
    for (int i = 0; i < STORE_WORKS; i++)
        pthread_cond_broadcast(&s->queues[i].cond);
    pthread_mutex_unlock(&s->queue_lock);
}

void store_jobs_join(struct store *s)
{
    for (int w = 0; w < STORE_WORKS; w++) {
        struct store_queue *q = &s->queues[w];
        for (int i = 0; i < q->thread_count; i++)
            pthread_join(q->threads[i], NULL);
        q->thread_count = 0;
        free(q->threads);
        q->threads = NULL;
    }
}
