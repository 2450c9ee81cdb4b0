/* helios drill: makes faults in a running job, and proves that it continues as if there had been
 * none.
 *
 * The ranks' pages are read in place (os/step_page.h), so every step is seen and all times are from
 * one clock. Which rank was named, and when, comes from what the Controller tells any user. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/jobs/commands.h"
#include "cli/jobs/drill_faults.h"
#include "cli/jobs/drill_report.h"
#include "cli/jobs/logs.h"
#include "core/replace/drill.h"
#include "os/step_page.h"

#define LOOK_MS    5
#define ASK_NS     (300 * HL_NS_PER_MS) /* between two requests to the Controller */
#define FAULTS_MAX 16

enum phase { PHASE_NAMED, PHASE_START, PHASE_JOIN, PHASE_LOAD, PHASE_STEP, PHASE_TOTAL, PHASES };

static const char *const phase_names[PHASES] = {"named", "start", "join", "load", "step", "total"};

struct drill_rank {
    struct drill_target target;
    struct hl_step_pages pages;
    struct hl_step_page *page;
    struct hl_drill_curve curve;
    uint64_t next; /* number of the next unseen report */
};

/* The outcome of one fault. */
struct drill_result {
    bool recovered;
    int named;  /* the rank that was named first; -1 = none */
    bool right; /* that was the right rank, with the right text */
    char said[256];
    double seconds[PHASES];
};

struct drill_row {
    const struct drill_fault *fault;
    struct drill_result *results;
    size_t count;
};

/* Steps during which no fault is made. */
struct drill_clean {
    uint64_t wanted, made;
    int64_t began_ms;
    uint64_t alarms;
    char first[256];
};

struct drill {
    struct cli *cli;
    char job[CLI_JOB_ID_MAX];
    int64_t times;
    uint64_t pause_ms, timeout_ms;
    struct drill_clean clean;
    struct drill_rank *ranks;
    size_t rank_count;
    struct hl_drill_sums sums;
    struct drill_row rows[FAULTS_MAX];
    size_t row_count;
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signum)
{
    (void)signum;
    interrupted = 1;
}

/* ---- the ranks ------------------------------------------------------------------------------- */

static hl_status rank_open(struct drill_rank *r, const struct hl_api_container_status *c, size_t k)
{
    struct hl_step_state s;
    int rank = c->ranks.items[k].rank;
    *r = (struct drill_rank){.target = {.rank = rank, .pid = c->ranks.items[k].pid}};
    if (c->steps_file[0] == '\0')
        return hl_fail(HL_ENOENT, "rank %d reports no steps: have it call helios.report", rank);
    if (hl_step_pages_open(c->steps_file, &r->pages) != HL_OK)
        return hl_fail_prefix(HL_ENOENT,
                              "rank %d is on another machine, or another user's; run helios drill "
                              "there: ",
                              rank);
    r->target.page = r->page = hl_step_page_at(&r->pages, k);
    if (r->page == NULL || !hl_step_read(r->page, &s) || s.generation == 0)
        return hl_fail(HL_EINVAL, "rank %d is not in a gang of helios.elastic, which a drill needs",
                       rank);
    return HL_OK;
}

/* Ignores what was reported before. */
static void rank_begin(struct drill_rank *r)
{
    struct hl_step_point points[HL_STEP_WINDOW];
    size_t count;
    if (!hl_step_curve(r->page, 0, points, &count, &r->next))
        r->next = 0;
}

static hl_status drill_open(struct drill *d, const struct hl_api_job *job)
{
    d->ranks = calloc((size_t)job->world_size + 1, sizeof(*d->ranks));
    if (d->ranks == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the ranks of job %s", job->id);
    for (size_t i = 0; i < job->containers.count; i++) {
        const struct hl_api_container_status *c = &job->containers.items[i];
        for (size_t k = 0; k < c->ranks.count && d->rank_count < (size_t)job->world_size; k++) {
            HL_TRY(rank_open(&d->ranks[d->rank_count++], c, k));
            rank_begin(&d->ranks[d->rank_count - 1]);
        }
    }
    return d->rank_count > 0 ? HL_OK : hl_fail(HL_ENOENT, "job %s has no ranks yet", job->id);
}

static void drill_close(struct drill *d)
{
    for (size_t i = 0; i < d->rank_count; i++) {
        hl_step_pages_close(&d->ranks[i].pages);
        hl_drill_curve_fini(&d->ranks[i].curve);
    }
    for (size_t i = 0; i < d->row_count; i++)
        free(d->rows[i].results);
    free(d->ranks);
}

static hl_status rank_take(struct drill *d, struct drill_rank *r)
{
    struct hl_step_point points[HL_STEP_WINDOW];
    size_t count;
    uint64_t next;
    if (!hl_step_curve(r->page, r->next, points, &count, &next))
        return HL_OK;
    hl_drill_gap(&r->curve, next > r->next ? next - r->next - count : 0, &d->sums);
    for (size_t i = 0; i < count; i++)
        HL_TRY(hl_drill_point(&r->curve, points[i].generation, points[i].step, points[i].loss,
                              &d->sums));
    r->next = next;
    return HL_OK;
}

/* Takes what has been reported, and waits a little. */
static hl_status drill_look(struct drill *d)
{
    if (interrupted)
        return hl_fail(HL_ECANCELED, "interrupted");
    for (size_t i = 0; i < d->rank_count; i++)
        HL_TRY(rank_take(d, &d->ranks[i]));
    poll(NULL, 0, LOOK_MS);
    return HL_OK;
}

/* Whether all ranks have made that many steps in a generation after `generation`. *newest is this
 * generation; *end_ns is when the last rank made its first step. */
static bool gang_trains(const struct drill *d, uint64_t generation, uint64_t steps,
                        uint64_t *newest, uint64_t *end_ns)
{
    *newest = 0;
    *end_ns = 0;
    for (size_t i = 0; i < d->rank_count; i++) {
        struct hl_step_state s;
        if (!hl_step_read(d->ranks[i].page, &s) || s.generation <= generation || s.steps < steps ||
            (i > 0 && s.generation != *newest))
            return false;
        *newest = s.generation;
        *end_ns = s.stepped_ns > *end_ns ? s.stepped_ns : *end_ns;
    }
    return true;
}

/* ---- who was named --------------------------------------------------------------------------- */

/* Whether the warning says that output of this rank is dropped. */
static bool warns_of(const char *warning, int rank)
{
    int whose;
    return hl_drill_names("", warning, &whose) && whose == rank;
}

/* Finds the first event since then that names a rank, otherwise a container's warning that is
 * new. */
static void find_named(const struct drill *d, const struct hl_api_job *job, int64_t since_ms,
                       struct drill_result *out)
{
    for (size_t i = 0; i < job->events.count && out->named < 0; i++) {
        const struct hl_api_job_event *e = &job->events.items[i];
        if (e->time_ms >= since_ms && hl_drill_names(e->kind, e->text, &out->named))
            snprintf(out->said, sizeof(out->said), "%s", e->text);
    }
    for (size_t i = 0; i < job->containers.count; i++)
        for (size_t k = 0; k < d->rank_count && out->named < 0; k++) {
            const struct drill_target *t = &d->ranks[k].target;
            if (t->warned || !warns_of(job->containers.items[i].warning, t->rank))
                continue;
            out->named = t->rank;
            snprintf(out->said, sizeof(out->said), "%s", job->containers.items[i].warning);
        }
}

static void take_rank(struct drill_target *t, const struct hl_api_job *job)
{
    t->warned = t->nudged = false;
    for (size_t k = 0; k < job->containers.count; k++) {
        const struct hl_api_container_status *c = &job->containers.items[k];
        t->warned |= warns_of(c->warning, t->rank);
        for (size_t n = 0; n < c->ranks.count; n++)
            if (c->ranks.items[n].rank == t->rank)
                t->pid = c->ranks.items[n].pid;
    }
}

/* Takes the ranks' processes, and whether there are warnings about their logs already. */
static void take_ranks(struct drill *d, const struct hl_api_job *job)
{
    for (size_t i = 0; i < d->rank_count; i++)
        take_rank(&d->ranks[i].target, job);
}

/* Counts the alarms since the clean steps began. */
static void take_alarms(struct drill_clean *clean, const struct hl_api_job *job)
{
    clean->alarms = 0;
    for (size_t i = 0; i < job->events.count; i++) {
        const struct hl_api_job_event *e = &job->events.items[i];
        if (e->time_ms < clean->began_ms || !hl_drill_alarms(e->kind))
            continue;
        if (clean->alarms++ == 0)
            snprintf(clean->first, sizeof(clean->first), "%s: %s", e->kind, e->text);
    }
}

/* With `out`, finds whom the Controller has named since then; otherwise takes the ranks' present
 * state. If the Controller is being restarted, the next call asks again. */
static hl_status ask_job(struct drill *d, int64_t since_ms, struct drill_result *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job job;
    hl_status st = cli_job(d->cli, d->job, &arena, &job);
    if (st != HL_OK)
        return failure_may_pass(st) ? HL_OK : st;
    if (cli_job_ended(&job))
        return hl_fail(HL_ECONFLICT, "job %s is %s before the drill was over: give it more steps",
                       d->job, hl_api_job_state_name(job.state));
    if (d->clean.began_ms != 0)
        take_alarms(&d->clean, &job);
    if (out != NULL)
        find_named(d, &job, since_ms, out);
    else
        take_ranks(d, &job);
    return HL_OK;
}

/* ---- one fault ------------------------------------------------------------------------------- */

static double seconds_since(uint64_t then_ns, uint64_t now_ns)
{
    return now_ns > then_ns ? (double)(now_ns - then_ns) / (double)HL_NS_PER_S : 0;
}

static void take_times(const struct drill_rank *r, uint64_t lost_ns, uint64_t end_ns,
                       struct drill_result *out)
{
    struct hl_step_state s;
    if (!hl_step_read(r->page, &s))
        return;
    out->seconds[PHASE_START] = seconds_since(lost_ns, s.began_ns);
    out->seconds[PHASE_JOIN] =
        seconds_since(s.began_ns > lost_ns ? s.began_ns : lost_ns, s.joined_ns);
    out->seconds[PHASE_LOAD] = seconds_since(s.joined_ns, s.loaded_ns);
    out->seconds[PHASE_STEP] = seconds_since(s.loaded_ns, s.stepped_ns);
    out->seconds[PHASE_TOTAL] = seconds_since(lost_ns, end_ns);
}

static bool is_right(const struct drill_fault *fault, int rank, const struct drill_result *r)
{
    bool says = false;
    for (size_t i = 0; i < DRILL_SAYS_MAX && fault->says[i] != NULL; i++)
        says |= strstr(r->said, fault->says[i]) != NULL;
    return says && r->named == rank;
}

/* A fault in progress. */
struct drill_course {
    const struct drill_fault *fault;
    struct drill_rank *rank;
    struct drill_result *out;
    uint64_t generation; /* before the fault */
    uint64_t made_ns, asked_ns, ended_ns;
    int64_t made_ms;
};

static bool is_to_be_named(const struct drill_course *c)
{
    return c->fault->says[0] != NULL && c->out->named < 0;
}

static hl_status course_ask(struct drill *d, struct drill_course *c)
{
    if (!is_to_be_named(c) || hl_now_ns() - c->asked_ns < ASK_NS)
        return HL_OK;
    HL_TRY(ask_job(d, c->made_ms, c->out));
    c->asked_ns = hl_now_ns();
    c->out->seconds[PHASE_NAMED] = seconds_since(c->made_ns, c->asked_ns);
    c->out->right = is_right(c->fault, c->rank->target.rank, c->out);
    return HL_OK;
}

/* Whether all ranks have made a step since then. */
static bool gang_went_on(const struct drill *d, uint64_t since_ns)
{
    for (size_t i = 0; i < d->rank_count; i++) {
        struct hl_step_state s;
        if (!hl_step_read(d->ranks[i].page, &s) || s.steps == 0 || s.last_ns <= since_ns)
            return false;
    }
    return true;
}

static void course_look(struct drill *d, struct drill_course *c)
{
    uint64_t newest, end_ns = 0;
    if (c->out->recovered)
        return;
    if (!c->fault->stays) {
        c->out->recovered = gang_trains(d, c->generation, 1, &newest, &end_ns);
        if (c->out->recovered)
            take_times(c->rank, c->made_ns, end_ns, c->out);
    } else if (c->ended_ns != 0 && gang_went_on(d, c->ended_ns)) {
        c->out->recovered = true;
        c->out->seconds[PHASE_TOTAL] = seconds_since(c->made_ns, hl_now_ns());
    }
}

static void course_end(struct drill_course *c)
{
    if (c->ended_ns == 0 && c->fault->end != NULL)
        c->fault->end(&c->rank->target);
    c->ended_ns = hl_now_ns();
}

/* Follows a fault until a rank is named, if one should be, and the gang trains again. If no rank is
 * named in time, a permanent fault is ended, and the gang gets the same time again to continue
 * without it. */
static hl_status course_follow(struct drill *d, struct drill_course *c)
{
    uint64_t now = hl_now_ns(), patience = d->timeout_ms * HL_NS_PER_MS;
    uint64_t named_by = c->made_ns + patience;
    uint64_t deadline = named_by + (c->fault->stays ? patience : 0);
    while (now < deadline && (!c->out->recovered || (is_to_be_named(c) && now < named_by))) {
        HL_TRY(drill_look(d));
        if (c->ended_ns == 0 && c->fault->go_on != NULL &&
            c->fault->go_on(&c->rank->target, now) != HL_OK)
            course_end(c); /* its process is gone; which rank is named shows the rest */
        if (now < named_by)
            HL_TRY(course_ask(d, c));
        if (c->ended_ns == 0 && (!is_to_be_named(c) || now >= named_by))
            course_end(c);
        course_look(d, c);
        now = hl_now_ns();
    }
    return HL_OK;
}

static bool is_ready(const struct drill *d, const struct drill_fault *fault, struct drill_target *t,
                     uint64_t *generation)
{
    uint64_t end_ns;
    return gang_trains(d, 0, 2, generation, &end_ns) &&
           (fault->is_ready == NULL || fault->is_ready(t));
}

/* Waits until the gang has made steps and spares have had time to be parked again. */
static hl_status await_calm(struct drill *d, const struct drill_fault *fault,
                            struct drill_target *t, uint64_t *generation)
{
    uint64_t now = hl_now_ns(), calm = now + d->pause_ms * HL_NS_PER_MS, asked_ns = 0;
    uint64_t deadline = calm + d->timeout_ms * HL_NS_PER_MS;
    while (now < calm || !is_ready(d, fault, t, generation)) {
        HL_TRY(drill_look(d));
        now = hl_now_ns();
        if (now > deadline)
            return hl_fail(HL_ETIMEDOUT, "job %s %s", d->job,
                           fault->is_ready == NULL
                               ? "makes no steps"
                               : "makes no steps or no saves, or one of its logs still has a gap");
        if (now - asked_ns > HL_NS_PER_S) {
            HL_TRY(ask_job(d, 0, NULL)); /* it may have ended, or its logs may be complete again */
            asked_ns = now;
        }
    }
    return ask_job(d, 0, NULL); /* gets the present pids */
}

/* The fewest steps that any rank has made since `from`. */
static uint64_t steps_made(const struct drill *d, const uint64_t *from)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < d->rank_count; i++)
        if (d->ranks[i].next - from[i] < least)
            least = d->ranks[i].next - from[i];
    return least;
}

static hl_status clean_follow(struct drill *d, const uint64_t *from)
{
    struct drill_clean *clean = &d->clean;
    uint64_t asked_ns = 0, moved_ns = hl_now_ns();
    while (clean->made < clean->wanted) {
        uint64_t now = hl_now_ns(), made;
        HL_TRY(drill_look(d));
        made = steps_made(d, from);
        if (made > clean->made)
            moved_ns = now;
        clean->made = made;
        if (now - moved_ns > d->timeout_ms * HL_NS_PER_MS)
            return hl_fail(HL_ETIMEDOUT, "job %s makes no steps", d->job);
        if (now - asked_ns > HL_NS_PER_S) {
            HL_TRY(ask_job(d, 0, NULL));
            asked_ns = now;
        }
    }
    return ask_job(d, 0, NULL);
}

/* Watches steps during which the Controller should name no rank, and the gang should not
 * re-form. */
static hl_status clean_watch(struct drill *d)
{
    uint64_t before, after, end_ns;
    HL_TRY(await_calm(d, drill_fault_find("kill"), NULL, &before));
    uint64_t *from = calloc(d->rank_count + 1, sizeof(*from));
    if (from == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the ranks of job %s", d->job);
    for (size_t i = 0; i < d->rank_count; i++)
        from[i] = d->ranks[i].next;
    d->clean.began_ms = hl_wall_ms();
    hl_status st = clean_follow(d, from);
    free(from);
    d->clean.began_ms = 0; /* alarms from now on are about faults */
    if (st == HL_OK && d->clean.alarms == 0 &&
        (!gang_trains(d, 0, 1, &after, &end_ns) || after != before)) {
        d->clean.alarms++;
        snprintf(d->clean.first, sizeof(d->clean.first), "the gang was formed again");
    }
    return st;
}

static hl_status fault_make(struct drill *d, struct drill_row *row, size_t turn)
{
    struct drill_result *out = &row->results[row->count];
    struct drill_course c = {
        .fault = row->fault, .rank = &d->ranks[turn % d->rank_count], .out = out};
    int rank = c.rank->target.rank;
    *out = (struct drill_result){.named = -1};
    HL_TRY(await_calm(d, row->fault, &c.rank->target, &c.generation));
    c.made_ns = hl_now_ns();
    c.made_ms = hl_wall_ms();
    for (size_t i = 0; row->fault->spoils && i < d->rank_count; i++)
        hl_drill_doubt(&d->ranks[i].curve);
    HL_TRY(row->fault->make(&c.rank->target));
    hl_status st = course_follow(d, &c);
    course_end(&c);
    HL_TRY(st);
    row->count++;
    if (!out->recovered)
        return hl_fail(HL_ETIMEDOUT, "rank %d, %s: the gang has not made a step since", rank,
                       row->fault->name);
    if (!d->cli->json)
        cli_print(stderr, "%s of rank %d: next step after %.2f s%s%s\n", row->fault->name, rank,
                  out->seconds[PHASE_TOTAL], out->said[0] != '\0' ? "; named: " : "", out->said);
    return HL_OK;
}

/* ---- the report ------------------------------------------------------------------------------ */

static struct hl_api_drill_phase phase_of(const struct drill_row *row, enum phase p,
                                          struct hl_arena *arena)
{
    double *values = hl_arena_array(arena, row->count, sizeof(*values));
    size_t n = 0;
    for (size_t i = 0; values != NULL && i < row->count; i++)
        if (row->results[i].recovered)
            values[n++] = row->results[i].seconds[p];
    return (struct hl_api_drill_phase){.phase = phase_names[p],
                                       .p50_seconds = hl_drill_quantile(values, n, 0.5),
                                       .p99_seconds = hl_drill_quantile(values, n, 0.99),
                                       .max_seconds = n > 0 ? values[n - 1] : 0};
}

static struct hl_api_drill_fault fault_report(const struct drill_row *row, struct hl_arena *arena)
{
    bool named = row->fault->says[0] != NULL;
    struct hl_api_drill_fault out = {.fault = row->fault->name,
                                     .made = (uint32_t)row->count,
                                     .wrong = "",
                                     .phases.items =
                                         hl_arena_array(arena, PHASES, sizeof(*out.phases.items))};
    for (size_t i = 0; i < row->count; i++) {
        out.recovered += row->results[i].recovered;
        out.named += named && row->results[i].right;
        if (named && !row->results[i].right && out.unnamed++ == 0)
            out.wrong = row->results[i].said[0] != '\0' ? row->results[i].said : "nothing";
    }
    for (int p = 0; p < PHASES && out.phases.items != NULL; p++)
        if (p == PHASE_NAMED ? named : p == PHASE_TOTAL || !row->fault->stays)
            out.phases.items[out.phases.count++] = phase_of(row, (enum phase)p, arena);
    return out;
}

static hl_status drill_report(struct drill *d, struct hl_api_drill_refusal_list refused,
                              struct hl_arena *arena, struct hl_api_drill_report *out)
{
    *out = (struct hl_api_drill_report){
        .job = d->job,
        .faults.items = hl_arena_array(arena, d->row_count, sizeof(*out->faults.items)),
        .refused = refused,
        .steps = d->sums.steps,
        .repeated = d->sums.repeated,
        .differing = d->sums.differing,
        .jumps = d->sums.jumps,
        .missed = d->sums.missed,
        .doubted = d->sums.doubted,
        .clean_steps = d->clean.made,
        .false_alarms = d->clean.alarms,
        .false_alarm = d->clean.first};
    for (size_t i = 0; i < d->row_count && out->faults.items != NULL; i++)
        out->faults.items[out->faults.count++] = fault_report(&d->rows[i], arena);
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory for the report of a drill");
    return d->cli->json ? cli_print_value(&hl_api_drill_report_type, out) : drill_report_print(out);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Adds a row for each fault that can be made; the others are refused by name. */
static hl_status take_faults(struct drill *d, char *list, const struct hl_api_job *job,
                             struct hl_arena *arena, struct hl_api_drill_refusal_list *refused)
{
    char *rest = NULL;
    refused->items = hl_arena_array(arena, FAULTS_MAX, sizeof(*refused->items));
    for (char *name = strtok_r(list, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest)) {
        const struct drill_fault *fault = drill_fault_find(name);
        if (fault == NULL)
            return cli_usage(d->cli, "--faults: '%s' is not one of %s", name, DRILL_FAULTS);
        if (refused->items == NULL || d->row_count + refused->count >= FAULTS_MAX)
            return cli_usage(d->cli, "--faults: at most %d faults are allowed", FAULTS_MAX);
        const char *why = fault->refusal != NULL ? fault->refusal(job) : NULL;
        if (why != NULL) {
            refused->items[refused->count++] = (struct hl_api_drill_refusal){fault->name, why};
            continue;
        }
        struct drill_row *row = &d->rows[d->row_count++];
        *row = (struct drill_row){.fault = fault,
                                  .results = calloc((size_t)d->times, sizeof(*row->results))};
        if (row->results == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for %lld faults", (long long)d->times);
    }
    if (d->row_count == 0 && refused->count > 0 && d->clean.wanted == 0)
        return hl_fail(HL_EUNSUPPORTED, "fault %s can't be injected here: %s",
                       refused->items[0].fault, refused->items[0].reason);
    return d->row_count > 0 || d->clean.wanted > 0
               ? HL_OK
               : cli_usage(d->cli, "--faults is empty and --clean is 0: nothing to do; name a "
                                   "fault or give a number of steps");
}

static hl_status drill_carry_out(struct drill *d)
{
    size_t turn = 0;
    uint64_t generation;
    if (d->clean.wanted > 0)
        HL_TRY(clean_watch(d));
    for (int64_t n = 0; n < d->times;
         n++) /* in turns, so that spares are parked during faults that use none */
        for (size_t i = 0; i < d->row_count; i++)
            HL_TRY(fault_make(d, &d->rows[i], turn++));
    if (d->row_count == 0)
        return HL_OK;
    return await_calm(d, drill_fault_find("kill"), NULL,
                      &generation); /* also counts what happens after the last fault */
}

static hl_status drill_run(struct drill *d, const char *job, char *list)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_drill_refusal_list refused = {0};
    struct hl_api_job doc;
    HL_TRY(cli_job(d->cli, job, &arena, &doc));
    if (doc.state != HL_API_JOB_STATE_RUNNING)
        return hl_fail(HL_ECONFLICT, "job %s is %s: a drill needs a running job", doc.id,
                       hl_api_job_state_name(doc.state));
    HL_TRY(take_faults(d, list, &doc, &arena, &refused));
    snprintf(d->job, sizeof(d->job), "%s", doc.id);
    if (strcmp(doc.launch.recovery, "replace") != 0)
        return hl_fail(HL_EINVAL,
                       "job %s is restarted as a whole after a fault: submit it with recovery: "
                       "{mode: replace}",
                       doc.id);
    HL_TRY(drill_open(d, &doc));
    signal(SIGINT, on_interrupt);
    signal(SIGTERM, on_interrupt);
    struct hl_api_drill_report r;
    hl_status made = drill_carry_out(d), told = HL_OK;
    if (made == HL_OK || d->clean.made > 0 || d->rows[0].count > 0)
        told = drill_report(d, refused, &arena, &r);
    if (made != HL_OK)
        return made;
    return told == HL_OK ? drill_report_verdict(&r) : told;
}

hl_status cmd_drill(struct cli *cli, int argc, char **argv)
{
    struct drill_args {
        char *job, *faults;
        int64_t times, clean;
        uint64_t pause_ms, timeout_ms;
    } a = {0};

    /* clang-format off */
    static const struct hl_option rows[] = {
        {"job", "--job", "", "The job, by id or name.", HL_OPT_STRING, 0, 0, NULL,
         HL_OPTION_FIELD(struct drill_args, job)},
        {"faults", "--faults", "kill,stop,exit,link",
         "Which faults to inject into a rank, separated by commas: kill, stop (SIGSTOP), oom (a "
         "memory limit), exit (SIGTERM), link (its TCP connections are cut), slow (it gets a "
         "fifth of the CPU time), disk (no room for its log), bitflip (in its parameters; needs "
         "at least three data ranks). A fault that the job does not allow is refused by name.",
         HL_OPT_STRING, 0, 0, NULL, HL_OPTION_FIELD(struct drill_args, faults)},
        {"clean", "--clean", "0",
         "Fault-free steps before the first fault, in which any alarm counts as false; with "
         "--faults '' the drill consists of these alone.",
         HL_OPT_INT, 0, 10000000, NULL, HL_OPTION_FIELD(struct drill_args, clean)},
        {"times", "--times", "1",
         "How often each fault is injected: each fault once, in one rank after the other, then "
         "the next round.", HL_OPT_INT,
         1, 100000, NULL, HL_OPTION_FIELD(struct drill_args, times)},
        {"pause", "--pause", "10s", "Time between two faults, for new spares to be parked.",
         HL_OPT_DURATION, 0, 3600000, NULL, HL_OPTION_FIELD(struct drill_args, pause_ms)},
        {"timeout", "--timeout", "60s",
         "How long the gang may take to make steps again after a fault.",
         HL_OPT_DURATION, 1000, 3600000, NULL, HL_OPTION_FIELD(struct drill_args, timeout_ms)},
    };
    /* clang-format on */

    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0);
    struct drill d = {.cli = cli,
                      .times = a.times,
                      .pause_ms = a.pause_ms,
                      .timeout_ms = a.timeout_ms,
                      .clean.wanted = (uint64_t)a.clean};
    if (st == HL_OK && a.job[0] == '\0')
        st = cli_usage(cli, "--job is missing");
    if (st == HL_OK)
        st = drill_run(&d, a.job, a.faults);
    drill_close(&d);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
