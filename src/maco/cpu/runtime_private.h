/* maco/cpu/runtime_private.h - what the files of the CPU runtime share.
 *
 * A run has a number, `run`, which is odd while the run is in progress. It is the one word that
 * every loop reads: a thread leaves when it sees a number other than the one it entered with,
 * whether the graph is done, has failed, is late or was cancelled. Threads count themselves in
 * `active`; a sleeping thread is not active. So the run is over when the number is even and no
 * thread is active, and until then the plan must exist.
 *
 * A thread that wants to sleep sets `parked`, checks for work once more, and sleeps. A thread that
 * creates work makes it visible, then checks for sleepers. Both are sequentially consistent, so at
 * least one of them sees the other.
 *
 * Threads: as above: workers, proxies, and one caller at a time (`busy`).
 */
#ifndef HL_MACO_CPU_RUNTIME_PRIVATE_H
#define HL_MACO_CPU_RUNTIME_PRIVATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "maco/cpu/ring.h"
#include "maco/cpu/runtime.h"
#include "maco/cpu/tick.h"
#include "maco/graph/graph.h"
#include "maco/kernels/bodies.h"

#define HL_MACO_OWN_SERIALS (UINT64_C(1) << 63) /* serials of plans are below this */
#define HL_MACO_PLANS       8                   /* number of plans kept ready to run */
#define HL_MACO_GRACE_NS    2000000000u /* time that bodies get to end after a run was given up */

#define HL_LIKELY(x)   __builtin_expect(!!(x), 1)
#define HL_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* Flags in maco_event.reserved of the runtime's own copy. Joins come first among the tasks that an
 * event launches. The thread that fires the event counts them at once; [first, last) is the
 * rest. */
#define HL_MACO_WAITED 1u /* a thread may sleep on its count */
#define HL_MACO_JOINS  2u /* reserved2[0] <= i < reserved2[1] are joins */
/* one task launches one other, and nothing else reads the event: see hot.next */
#define HL_MACO_LINK 4u

/* reserved2[2] is the duration of a task of a range, in ticks (policy_direct.c). */

/* What a worker reads of a task that is a call: half a cache line instead of two. Along a chain it
 * reads nothing else and writes no event, because the cache lines of events would bounce between
 * processors in every run. The events inside a chain are therefore not counted. */
struct hl_maco_hot {
    maco_function call; /* NULL: a body, a collective, or nothing */
    void *arg;
    uint32_t trigger;
    uint32_t affinity; /* a worker, MACO_NONE */
    uint32_t next;     /* MACO_DIRECT: the task that its trigger, a link, launches; MACO_NONE */
    uint16_t type;
};

_Static_assert(sizeof(struct hl_maco_hot) == 32, "half a cache line");

/* A plan that is ready to run. Its events are copies, because runs write to them. */
struct hl_maco_state {
    uint64_t serial;
    maco_plan_view view;
    maco_event *events; /* the plan's, plus one that launches the roots */
    struct hl_maco_hot *hot;
    uint64_t iteration;                     /* counters reach needed * iteration */
    bool has_bodies;                        /* tasks with built-in bodies, which may use BLAS */
    bool has_priority;                      /* tasks differ in priority */
    bool has_affinity;                      /* some tasks belong to one worker, or to a proxy */
    uint32_t *next_task, *next_event;       /* links of the lists that tasks and events are in */
    uint32_t *list, *list_first;            /* MACO_STATIC: tasks by worker */
    uint32_t *comm, *comm_first, n_proxies; /* tasks by group */
    bool dirty;                             /* the last run failed, so counters are arbitrary */
    uint64_t used;                          /* time of the last use; the oldest is evicted */
};

enum hl_maco_role { HL_MACO_WORKER, HL_MACO_PROXY, HL_MACO_SCHEDULER };

struct hl_maco_thread;

/* How the threads of a runtime implement a policy of enum maco_policy. */
struct hl_maco_policy_ops {
    /* Hands the roots to the workers, before a run, while no other thread is active. NULL: the
     * workers find them. */
    void (*start)(maco_runtime *rt);
    /* A worker's part of a run, until it leaves the run or sleeps. */
    void (*work)(struct hl_maco_thread *w);
    /* Called by a proxy: one more trigger of `event` has arrived. */
    void (*offer)(struct hl_maco_thread *w, uint32_t event);
};

/* A thread of the runtime. */
struct hl_maco_thread {
    _Alignas(HL_LINE) uint32_t parked; /* a futex: 1 = asleep, or about to be */
    uint32_t task;                     /* the task it is running, MACO_NONE */
    uint32_t waits;                    /* the event it is waiting for, MACO_NONE */
    uint32_t inbox; /* tasks that only this thread may run: a stack linked by next_task */
    _Alignas(HL_LINE) struct hl_maco_share ready; /* events that have fired */
    struct hl_maco_spsc queue;                    /* from the scheduler */
    _Alignas(HL_LINE) maco_runtime *rt;
    uint64_t run;                           /* the number it entered with */
    uint64_t last;                          /* the run in which it has nothing left to do */
    uint64_t at_run;                        /* the run that `at` belongs to */
    uint32_t at;                            /* position in its list */
    uint32_t index, role;                   /* worker; group of a proxy */
    void (*work)(struct hl_maco_thread *w); /* its part of a run, by role and policy */
    uint32_t given;                         /* tasks taken out of the inbox, in order */
    /* events that did not fit in `ready`: a list linked by next_event */
    uint32_t spill, spill_last;
    uint64_t spent; /* scheduler: cost queued so far */
    /* What the end of a task writes; in one cache line. */
    _Alignas(HL_LINE) uint64_t finished; /* worker: cost done so far, read by the scheduler */
    uint32_t *log, log_room;             /* log of the tasks done in this run */
    uint32_t done;                       /* of them */
    struct hl_maco_record *records;
    size_t n_records, record_room;
    uint64_t tick; /* end of the last record */
    int unrecorded;
    struct hl_maco_scratch scratch;
    pthread_t thread;
    bool started;
};

/* What the waiting caller last saw of a thread. */
struct hl_maco_sample {
    uint32_t task, waits, done;
    int parked;
    uint64_t since_ns;
};

/* What the ranks of a group compare before a plan's first run. */
struct hl_maco_question {
    const maco_runtime *rt;
    const maco_plan *plan;
    hybridps_group *group;
    uint32_t index;
};

struct maco_runtime {
    _Alignas(HL_LINE) uint64_t run; /* odd: a run is in progress */
    struct hl_maco_state *state;
    const maco_plan *plan;                /* the plan of the last run; NULL */
    const struct hl_maco_policy_ops *ops; /* of `policy` */
    int tracing, policy, balance;
    uint32_t workers, n_threads; /* workers, the scheduler if there is one, then proxies */
    uint32_t spins;              /* checks before a thread sleeps */
    uint32_t spins_between;      /* the same while no run is in progress; atomic */
    uint64_t handoff_ticks; /* work shorter than this is not worth moving to another processor */
    struct hl_maco_thread *threads;
    _Alignas(HL_LINE) uint32_t n_parked;
    _Alignas(HL_LINE) uint32_t active;
    uint32_t ended; /* a futex: changes when the caller has to check */
    int quit;
    _Alignas(HL_LINE) struct hl_maco_mpsc events; /* to the scheduler */
    /* events that it has not handed out yet, linked by next_event */
    uint32_t pending, pending_last;
    uint32_t turn; /* round-robin */
    struct hl_maco_state plans[HL_MACO_PLANS];
    pthread_mutex_t verdict_lock;
    hl_status verdict;
    char why[HL_ERROR_TEXT_MAX];
    uint64_t timeout_ns;
    uint32_t ring, cpus;
    hybridps_group *const *groups;
    uint32_t n_groups;
    uint64_t *agreed; /* serials of the plans whose order the groups have compared */
    size_t n_agreed;
    /* kept here because a thread may return to them late */
    struct hl_maco_question questions[HL_MACO_GROUPS];
    struct hl_maco_function question_functions[HL_MACO_GROUPS];
    maco_task question_tasks[HL_MACO_GROUPS];
    uint64_t runs;
    struct hl_maco_sample *samples;
    struct hl_tick_span clock;
    pid_t pid;
    int busy; /* a caller is inside maco_run */
    int (*poll)(void *arg);
    void *poll_arg;
};

#define scheduler_thread(rt) (&(rt)->threads[(rt)->workers])
#define proxy_thread(rt, g)  (&(rt)->threads[(rt)->n_threads - HL_MACO_GROUPS + (g)])

/* The number of threads that take part in this run. The proxies behind them serve groups that its
 * plan does not use. */
static inline uint32_t hl_maco_threads(const maco_runtime *rt)
{
    return rt->n_threads - HL_MACO_GROUPS + rt->state->n_proxies;
}

/* ---- load.c ---- */
hl_status hl_maco_load(maco_runtime *rt, const struct hl_maco_source *source,
                       struct hl_maco_state **out) HL_CHECK;
void hl_maco_unload(struct hl_maco_state *s);
/* Drops a prepared plan; its next run prepares it again. */
void hl_maco_forget(maco_runtime *rt, uint64_t serial);
/* Sets the counters to where the next run begins. */
void hl_maco_rewind(struct hl_maco_state *s);

/* ---- thread.c: entering, leaving, sleeping, waking ---- */
bool hl_maco_enter(struct hl_maco_thread *w);
void hl_maco_leave(struct hl_maco_thread *w);
/* Sleeps until woken, and is not active meanwhile; returns at once if ready() is true. The caller
 * is active before, and has to enter again afterwards. */
void hl_maco_park(struct hl_maco_thread *w, bool (*ready)(struct hl_maco_thread *w));
void hl_maco_unpark(struct hl_maco_thread *w);
/* Wakes one sleeping worker. */
void hl_maco_unpark_worker(maco_runtime *rt);
/* Call after the kth unsuccessful check of at most `spins`. false: it is time to sleep. */
bool hl_maco_relax(uint32_t spins, uint32_t k);
/* Ends the run with number `run`; the first caller decides the result. `why` is a text like
 * hl_error_text's. */
void hl_maco_abort_run(maco_runtime *rt, uint64_t run, hl_status st, const char *why);
void hl_maco_finish(struct hl_maco_thread *w);
void *hl_maco_thread_main(void *thread);
/* Starts the thread unless it is running. */
hl_status hl_maco_thread_start(maco_runtime *rt, struct hl_maco_thread *w) HL_CHECK;

static inline bool hl_maco_over(const struct hl_maco_thread *w)
{
    return __atomic_load_n(&w->rt->run, __ATOMIC_ACQUIRE) != w->run;
}

/* ---- policy_*.c ---- */
extern const struct hl_maco_policy_ops hl_maco_direct_policy, hl_maco_scheduler_policy,
    hl_maco_static_policy;
/* The scheduler's part of a run, and a proxy's under every policy. */
void hl_maco_schedule(struct hl_maco_thread *w);
void hl_maco_proxy(struct hl_maco_thread *w);

/* ---- task.c ---- */
/* Runs a task that is not a call: a body or a collective. */
int hl_maco_body_of(struct hl_maco_thread *w, uint32_t task);
/* The rarer ends of a task: it failed, or it has to be recorded. */
void hl_maco_failed(struct hl_maco_thread *w, uint32_t task, int st);
void hl_maco_record_task(struct hl_maco_thread *w, uint32_t task);

/* Runs a task; false: the run is over and nothing may be counted. */
static inline bool hl_maco_execute(struct hl_maco_thread *w, const struct hl_maco_hot *hot,
                                   uint32_t task)
{
    maco_runtime *rt = w->rt;
    int st = 0;
    __atomic_store_n(&w->task, task, __ATOMIC_RELAXED);
    if (HL_LIKELY(hot->call != NULL))
        st = hot->call(hot->arg, &rt->state->view.tasks[task]);
    else if (hot->type != MACO_TASK_NOP)
        st = hl_maco_body_of(w, task);
    if (HL_UNLIKELY(st != 0)) {
        hl_maco_failed(w, task, st);
        return false;
    }
    w->log[w->done] = task;
    __atomic_store_n(&w->done, w->done + 1, __ATOMIC_RELEASE);
    if (HL_UNLIKELY(rt->tracing))
        hl_maco_record_task(w, task);
    return !hl_maco_over(w);
}

/* Handles fired events, a list linked by next_event: wakes sleepers, counts joins, announces the
 * end. Removes and returns the next event that launches tasks; MACO_NONE. */
uint32_t hl_maco_launch(struct hl_maco_thread *w, uint32_t *fired);

/* Adds n to an event's count; true: it has fired. */
static inline bool hl_maco_event_add(struct hl_maco_state *s, uint32_t event, uint32_t n)
{
    maco_event *e = &s->events[event];
    uint64_t goal = e->needed * s->iteration;
    if (HL_UNLIKELY(e->reserved & HL_MACO_WAITED))
        return __atomic_add_fetch(&e->count, n, __ATOMIC_SEQ_CST) == goal;
    if (e->needed == n) { /* no other task adds to it or waits for it in this run */
        __atomic_store_n(&e->count, goal, __ATOMIC_RELAXED); /* the queues order what follows */
        return true;
    }
    return __atomic_add_fetch(&e->count, n, HL_MACO_ACQ_REL) == goal;
}

static inline bool hl_maco_fired(const struct hl_maco_state *s, uint32_t event)
{
    const maco_event *e = &s->events[event];
    return __atomic_load_n(&e->count, __ATOMIC_SEQ_CST) >= e->needed * s->iteration;
}

/* Consecutive tasks with the same trigger are counted at once. */
struct hl_maco_held {
    uint32_t event, n;
};

/* ---- report.c ---- */
void hl_maco_sample(maco_runtime *rt, uint64_t now);
/* "2 of 5 tasks wait: ..." */
void hl_maco_report(maco_runtime *rt, char *out, size_t room);
const char *hl_maco_task_name(const struct hl_maco_state *s, uint32_t task);

/* ---- collective_check.c ---- */
hl_status hl_maco_agree(maco_runtime *rt, const struct hl_maco_source *source,
                        uint64_t deadline) HL_CHECK;
/* ---- run_once.c ---- */
#define HL_MACO_LOOK_MAX (250 * HL_NS_PER_MS) /* between two samples of what the workers do */
/* Whether no run is in progress and no thread is in one. */
bool hl_maco_quiet(const maco_runtime *rt);
/* Fails with st and names the workers still in a task. */
hl_status hl_maco_report_busy(maco_runtime *rt, hl_status st, const char *why);
hl_status hl_maco_run_once(maco_runtime *rt, const struct hl_maco_source *source,
                           uint64_t deadline) HL_CHECK;

/* ---- record.c ---- */
void hl_maco_record(struct hl_maco_thread *w, uint32_t task, uint16_t kind, uint64_t from,
                    uint64_t to);

#endif
