/* Watches ranks through the reports of their nodes. If a gang makes no steps, the rank that blocks
 * it is named; a slow rank is named, too; and either is ended if the job's spec says so. Replaced
 * ranks become events and times. The state is in memory only: of an attempt that an earlier
 * Controller placed, what happened before the first look is not reported as news. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plane.h"
#include "base/text.h"
#include "controller/jobs/jobs_private.h"
#include "core/replace/recoveries.h"
#include "core/replace/slow.h"
#include "core/replace/stalls.h"

struct rank_seen {
    int container; /* its index in the attempt */
    struct hl_recovery_seen recovery;
    uint32_t troubles;
    int pid;            /* as last reported */
    int64_t stopped_at; /* steady clock: seen stopped since then; 0 = it runs */
    int64_t joining_at; /* seen re-forming the gang since then; 0 = it does something else */
    struct rank_end end;
};

struct rank_watch {
    int attempt, resizes; /* the attempt and size to which the ranks belong */
    size_t count;
    bool whole;                 /* it has missed nothing: every replacement is news */
    struct rank_seen *seen;     /* by rank */
    struct hl_stall_rank *said; /* reports of this round */
    const struct hl_api_rank_status **told;
    struct hl_stall stall;
    struct hl_slow_seen *slow_seen;
    struct hl_slow_rank *slow_said;
    int slow; /* rank that was named as slow; -1 = none */
};

void rank_watch_free(struct rank_watch *w)
{
    if (w == NULL)
        return;
    free(w->seen);
    free(w->said);
    free(w->told);
    free(w->slow_seen);
    free(w->slow_said);
    free(w);
}

/* The watch of the current attempt; NULL: out of memory, and the next round tries again. */
static struct rank_watch *watch_of(struct job *j)
{
    size_t count = (size_t)hl_rank_world(&j->spec.grid);
    if (j->watch != NULL && j->watch->attempt == j->run.attempt &&
        j->watch->resizes == j->run.resizes)
        return j->watch;
    bool whole = j->placed_here == j->run.attempt &&
                 (j->watch == NULL || j->watch->attempt != j->run.attempt);
    rank_watch_free(j->watch);
    j->watch = calloc(1, sizeof(*j->watch));
    if (j->watch == NULL)
        return NULL;
    *j->watch = (struct rank_watch){.attempt = j->run.attempt,
                                    .resizes = j->run.resizes,
                                    .count = count,
                                    .whole = whole,
                                    .seen = calloc(count, sizeof(struct rank_seen)),
                                    .said = calloc(count, sizeof(struct hl_stall_rank)),
                                    .told = calloc(count, sizeof(struct hl_api_rank_status *)),
                                    .slow_seen = calloc(count, sizeof(struct hl_slow_seen)),
                                    .slow_said = calloc(count, sizeof(struct hl_slow_rank)),
                                    .slow = -1};
    if (j->watch->seen == NULL || j->watch->said == NULL || j->watch->told == NULL ||
        j->watch->slow_seen == NULL || j->watch->slow_said == NULL) {
        rank_watch_free(j->watch);
        j->watch = NULL;
    }
    return j->watch;
}

bool rank_watch_ended(const struct job *j, int rank)
{
    const struct rank_watch *w = j->watch;
    if (w == NULL || w->attempt != j->run.containers_attempt || (size_t)rank >= w->count)
        return false;
    const struct rank_seen *seen = &w->seen[rank];
    return seen->end.pid > 0 && seen->end.pid == seen->pid;
}

/* ---- replaced ranks -------------------------------------------------------------------------- */

#define HANG_FACTOR   10  /* a merely slow step is not a hang */
#define SLOW_ENTER    2.0 /* times the own time that it should need */
#define SLOW_LEAVE    1.5
#define SLOW_FLOOR_MS 5.0
#define SLOW_SHARE    0.25 /* fraction of a step */
#define SLOW_HELD     10   /* number of steps in which it was slow */
#define SLOW_STEPS    16   /* before a rank's own time is judged */

static const double bounds_s[RECOVERY_BUCKETS] = {0.1, 0.25, 0.5, 1, 2, 4, 8, 20, 60};

static void count_times(struct recovery_times *t, double seconds)
{
    t->count++;
    t->sum_s += seconds;
    for (int i = 0; i < RECOVERY_BUCKETS; i++)
        t->bucket[i] += seconds <= bounds_s[i];
}

static void note_trouble(struct job *j, const char *node, const struct hl_api_rank_status *r)
{
    char text[HL_JOB_TEXT_MAX];
    snprintf(text, sizeof(text), "rank %d on %.60s: %.160s", r->rank, node, r->progress.trouble);
    job_note(j, "trouble", text);
}

static void note_recovered(struct job *j, const struct hl_api_rank_status *r)
{
    const struct hl_api_recovery_times *t = &r->progress.recovery;
    struct recovery_times *all = j->controller->jobs->recovery;
    char text[HL_JOB_TEXT_MAX];
    snprintf(text, sizeof(text),
             "rank %d made its next step, %lld, after %.2f s: start %.2f, join %.2f, load %.2f, "
             "step %.2f",
             r->rank, (long long)r->progress.step, t->total_seconds, t->start_seconds,
             t->join_seconds, t->load_seconds, t->step_seconds);
    count_times(&all[RECOVERY_START], t->start_seconds);
    count_times(&all[RECOVERY_JOIN], t->join_seconds);
    count_times(&all[RECOVERY_LOAD], t->load_seconds);
    count_times(&all[RECOVERY_STEP], t->step_seconds);
    count_times(&all[RECOVERY_TOTAL], t->total_seconds);
    job_note(j, "recovered", text);
}

/* The times belong to the last loss only. */
static void note_merged(struct job *j, const struct hl_api_rank_status *r, uint32_t count)
{
    char text[HL_JOB_TEXT_MAX];
    snprintf(text, sizeof(text),
             "rank %d was lost again before it reported a step, %u time%s: its next step counts as "
             "one recovery, measured from the last loss",
             r->rank, count, count == 1 ? "" : "s");
    j->controller->jobs->recovery_merged += count;
    job_note(j, "recovery-merged", text);
}

static void look_at_rank(struct job *j, struct rank_seen *seen, const char *node,
                         const struct hl_api_rank_status *r)
{
    bool stepped = r->progress.recovery.total_seconds > 0;
    if (!seen->recovery.known)
        *seen = (struct rank_seen){.recovery.known = j->watch->whole,
                                   .troubles = j->watch->whole ? 0 : r->progress.troubles};
    struct hl_recovery_news news = hl_recovery_look(&seen->recovery, r->replaced, stepped);
    if (r->progress.troubles > seen->troubles)
        note_trouble(j, node, r); /* logged before its possible consequences */
    seen->troubles = r->progress.troubles;
    if (news.lost > 0) {
        rank_lost_note(j, node, r, seen->pid);
        seen->stopped_at = seen->joining_at = 0;
    }
    seen->pid = r->pid;
    if (news.merged > 0)
        note_merged(j, r, news.merged);
    if (news.recovered)
        note_recovered(j, r);
}

/* ---- a gang without steps -------------------------------------------------------------------- */

static void stall_text(const struct job *j, const struct hl_stall *s, char *out, size_t cap)
{
    char since[32];
    static const char *const why[] = {
        [HL_STALL_STOPPED] = "its process is stopped",
        [HL_STALL_BEHIND] = "the others wait for it, a step ahead",
        [HL_STALL_LEFT] = "the others re-form the gang and wait for it",
    };
    const struct rank_seen *seen = s->rank >= 0 ? &j->watch->seen[s->rank] : NULL;
    hl_format_duration_ms((uint64_t)s->since_ms, since, sizeof(since));
    if (s->rank < 0)
        snprintf(out, cap,
                 "no rank has made a step for %s, and nothing shows which one holds up the others",
                 since);
    else
        snprintf(out, cap, "rank %d on %s has made no step for %s: %s", s->rank,
                 j->run.containers[seen->container].node, since, why[s->kind]);
}

/* A rank that blocks the others makes no progress itself, so nothing is lost by ending it. */
static void end_named(struct job *j, struct rank_watch *w, int rank)
{
    rank_end(j, w->seen[rank].container, w->told[rank], &w->seen[rank].end);
}

static void judge_gang(struct job *j, struct rank_watch *w)
{
    const struct hl_stall_rule rule = {j->controller->opts.hang_after_ms, HANG_FACTOR};
    struct hl_stall found = hl_stall_find(w->said, w->count, &rule);
    bool news = found.kind != w->stall.kind || found.rank != w->stall.rank;
    char text[HL_JOB_TEXT_MAX];
    bool was = w->stall.kind != HL_STALL_NONE;
    w->stall = found;
    bool sure = found.kind == HL_STALL_STOPPED || found.since_ms > 2 * found.limit_ms;
    if (found.rank >= 0 && sure && hl_job_ends_hung(&j->spec))
        end_named(j, w, found.rank);
    if (!news)
        return;
    if (found.kind != HL_STALL_NONE) {
        stall_text(j, &found, text, sizeof(text));
        job_note(j, "stalled", text);
    } else if (was) {
        job_note(j, "goes-on", "its ranks make steps again, or were replaced");
    }
}

/* ---- a slow rank ----------------------------------------------------------------------------- */

static void slow_text(const struct job *j, const struct rank_watch *w, int rank, char *out,
                      size_t cap)
{
    snprintf(out, cap,
             "rank %d on %s is slow: it needs %.1f ms of a step for itself, %.1f times what is "
             "usual for its stage or was usual for it",
             rank, j->run.containers[w->seen[rank].container].node, w->slow_said[rank].own_ms,
             w->slow_seen[rank].factor);
}

static void judge_speed(struct job *j, struct rank_watch *w)
{
    const struct hl_slow_rule rule = {.enter = SLOW_ENTER,
                                      .leave = SLOW_LEAVE,
                                      .floor_ms = SLOW_FLOOR_MS,
                                      .floor_share = SLOW_SHARE,
                                      .hold_ms = j->controller->opts.slow_after_ms,
                                      .hold_steps = SLOW_HELD};
    char text[HL_JOB_TEXT_MAX];
    int worst = -1, before = w->slow;
    if (hl_slow_look(w->slow_seen, w->slow_said, w->count, &rule,
                     controller_steady_ms(j->controller), &worst) != HL_OK)
        return; /* the next round tries again */
    w->slow = worst;
    if (worst >= 0 && hl_job_ends_slow(&j->spec))
        end_named(j, w, worst);
    if (worst == before)
        return;
    if (worst >= 0) {
        slow_text(j, w, worst, text, sizeof(text));
        job_note(j, "slow", text);
    } else {
        snprintf(text, sizeof(text), "rank %d is as fast as the others again, or replaced", before);
        job_note(j, "slow-over", text);
    }
}

void rank_watch_tell(const struct job *j, char *out, size_t cap)
{
    const struct rank_watch *w = j->watch;
    if (w == NULL || w->attempt != j->run.attempt)
        return;
    if (w->stall.kind != HL_STALL_NONE)
        stall_text(j, &w->stall, out, cap);
    else if (w->slow >= 0)
        slow_text(j, w, w->slow, out, cap);
}

/* ---- a round --------------------------------------------------------------------------------- */

/* For how long every look has seen it, now included. */
static int64_t seen_for(int64_t *since, bool is, int64_t now)
{
    if (!is)
        *since = 0;
    else if (*since == 0)
        *since = now;
    return is ? now - *since : 0;
}

static struct hl_stall_rank stall_rank_of(const struct hl_api_rank_status *r,
                                          struct rank_seen *seen, int64_t now)
{
    bool joining = r->progress.activity == HL_API_RANK_ACTIVITY_JOINING;
    return (struct hl_stall_rank){.rank = r->rank,
                                  .activity = r->progress.activity,
                                  .stopped = r->progress.stopped,
                                  .stopped_ms =
                                      seen_for(&seen->stopped_at, r->progress.stopped, now),
                                  .joining_ms = seen_for(&seen->joining_at, joining, now),
                                  .step = r->progress.step,
                                  .steps = r->progress.steps,
                                  .since_ms = r->progress.since_ms,
                                  .median_ms = (int64_t)r->progress.median_ms};
}

static struct hl_slow_rank slow_rank_of(const struct job *j, const struct hl_api_rank_status *r)
{
    bool settled = r->progress.steps >= SLOW_STEPS; /* whatever it is busy with at the moment */
    return (struct hl_slow_rank){.stage = hl_rank_of(&j->spec.grid, r->rank).pp,
                                 .process = (uint32_t)r->pid,
                                 .reported = r->progress.steps,
                                 .own_ms = settled ? r->progress.own_ms : 0,
                                 .step_ms = r->progress.median_ms};
}

/* False: not all of the gang reported recently, so it can't be judged. */
static bool take_reports(struct job *j, struct rank_watch *w)
{
    size_t taken = 0;
    bool fresh = true;
    int64_t now = controller_steady_ms(j->controller);
    for (int i = 0; i < j->run.container_count; i++) {
        if (!hl_jobrun_has_ranks(&j->run, i))
            continue;
        char id[HL_JOB_ID_MAX + 32];
        const struct node *n = node_find(j->controller, j->run.containers[i].node);
        hl_container_id(j->id, j->run.attempt, hl_jobrun_index(&j->run, i), id, sizeof(id));
        const struct hl_api_container_status *c = n != NULL ? node_reported(n, id) : NULL;
        fresh &= n != NULL && !n->lost;
        for (size_t k = 0; c != NULL && k < c->ranks.count; k++) {
            struct hl_api_rank_status r = c->ranks.items[k];
            r.rank = elastic_rank_of(&j->run.plan->containers[i], r.rank);
            if (r.rank < 0 || (size_t)r.rank >= w->count)
                continue;
            look_at_rank(j, &w->seen[r.rank], n->name, &r);
            w->seen[r.rank].container = i;
            w->said[r.rank] = stall_rank_of(&r, &w->seen[r.rank], now);
            w->slow_said[r.rank] = slow_rank_of(j, &r);
            w->told[r.rank] = &c->ranks.items[k];
            taken++;
        }
    }
    return fresh && taken == w->count;
}

void rank_watch_round(struct job *j)
{
    struct rank_watch *w = NULL;
    if (j->run.state == HL_API_JOB_STATE_RUNNING)
        w = watch_of(j);
    if (w == NULL || !take_reports(j, w))
        return;
    judge_gang(j, w);
    judge_speed(j, w);
}

void jobs_recovery_metrics(const struct hl_controller *c, struct hl_buf *out)
{
    static const char *const phases[RECOVERY_PHASES] = {
        [RECOVERY_START] = "start", [RECOVERY_JOIN] = "join",   [RECOVERY_LOAD] = "load",
        [RECOVERY_STEP] = "step",   [RECOVERY_TOTAL] = "total",
    };
    const char *name = "helios_recovery_seconds";
    hl_metric_family(out, name, "histogram",
                     "From a rank's loss to the next step of the process in its place, by phase.");
    for (int p = 0; p < RECOVERY_PHASES; p++) {
        const struct recovery_times *t = &c->jobs->recovery[p];
        for (int i = 0; i < RECOVERY_BUCKETS; i++)
            (void)hl_buf_printf(out, "%s_bucket{phase=\"%s\",le=\"%g\"} %llu\n", name, phases[p],
                                bounds_s[i], (unsigned long long)t->bucket[i]);
        (void)hl_buf_printf(out,
                            "%s_bucket{phase=\"%s\",le=\"+Inf\"} %llu\n%s_sum{phase=\"%s\"} %.6f\n"
                            "%s_count{phase=\"%s\"} %llu\n",
                            name, phases[p], (unsigned long long)t->count, name, phases[p],
                            t->sum_s, name, phases[p], (unsigned long long)t->count);
    }
    hl_metric_family(out, "helios_recoveries_merged_total", "counter",
                     "Replaced ranks that were lost again before they reported a step: they count "
                     "as one recovery with the next.");
    (void)hl_buf_printf(out, "helios_recoveries_merged_total %llu\n",
                        (unsigned long long)c->jobs->recovery_merged);
}
