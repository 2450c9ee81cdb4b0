/* Ranks as their nodes report them: a gang that makes no steps is named with the rank that keeps it
 * from that, and replaced ranks become events and times. It is remembered in memory only: what was
 * before this Controller's start is no news to it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plane.h"
#include "base/text.h"
#include "controller/jobs/jobs_private.h"
#include "core/replace/stalls.h"

struct rank_seen {
    bool known;
    int container;      /* of the attempt */
    uint32_t replaced;  /* as it was told */
    uint32_t recovered; /* the replacement whose times were counted */
};

struct rank_watch {
    int attempt;
    size_t count;
    struct rank_seen *seen;     /* by rank */
    struct hl_stall_rank *said; /* of this round */
    struct hl_stall stall;
};

void rank_watch_free(struct rank_watch *w)
{
    if (w == NULL)
        return;
    free(w->seen);
    free(w->said);
    free(w);
}

/* That of the attempt; NULL: out of memory, the next round tries again. */
static struct rank_watch *watch_of(struct job *j)
{
    size_t count = (size_t)hl_rank_world(&j->spec.grid);
    if (j->watch != NULL && j->watch->attempt == j->run.attempt)
        return j->watch;
    rank_watch_free(j->watch);
    j->watch = calloc(1, sizeof(*j->watch));
    if (j->watch == NULL)
        return NULL;
    *j->watch = (struct rank_watch){.attempt = j->run.attempt,
                                    .count = count,
                                    .seen = calloc(count, sizeof(struct rank_seen)),
                                    .said = calloc(count, sizeof(struct hl_stall_rank))};
    if (j->watch->seen == NULL || j->watch->said == NULL) {
        rank_watch_free(j->watch);
        j->watch = NULL;
    }
    return j->watch;
}

/* ---- replaced ranks -------------------------------------------------------------------------- */

#define HANG_FACTOR 10 /* a slow step is no hang */

static const double bounds_s[RECOVERY_BUCKETS] = {0.1, 0.25, 0.5, 1, 2, 4, 8, 20, 60};

static void count_times(struct recovery_times *t, double seconds)
{
    t->count++;
    t->sum_s += seconds;
    for (int i = 0; i < RECOVERY_BUCKETS; i++)
        t->bucket[i] += seconds <= bounds_s[i];
}

static void note_replaced(struct job *j, const char *node, const struct hl_api_rank_status *r)
{
    char text[HL_JOB_TEXT_MAX], how[64];
    if (r->lost_signal != 0)
        snprintf(how, sizeof(how), "killed by signal %d (%s)", r->lost_signal,
                 strsignal(r->lost_signal));
    else
        snprintf(how, sizeof(how), "exit code %d", r->lost_code);
    snprintf(text, sizeof(text), "rank %d on %s was lost, %s; it is replaced, the others stay",
             r->rank, node, how);
    job_note(j, "rank-replaced", text);
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

static void look_at_rank(struct job *j, struct rank_seen *seen, const char *node,
                         const struct hl_api_rank_status *r)
{
    bool recovered = r->progress.recovery.total_seconds > 0;
    if (!seen->known)
        *seen = (struct rank_seen){
            .known = true, .replaced = r->replaced, .recovered = recovered ? r->replaced : 0};
    if (r->replaced > seen->replaced) {
        seen->replaced = r->replaced;
        note_replaced(j, node, r);
    }
    if (recovered && seen->recovered < r->replaced) {
        seen->recovered = r->replaced;
        note_recovered(j, r);
    }
}

/* ---- a gang without steps -------------------------------------------------------------------- */

static void stall_text(const struct job *j, const struct hl_stall *s, char *out, size_t cap)
{
    char since[32];
    const struct rank_seen *seen = s->rank >= 0 ? &j->watch->seen[s->rank] : NULL;
    hl_format_duration_ms((uint64_t)s->since_ms, since, sizeof(since));
    if (s->rank < 0)
        snprintf(out, cap,
                 "no rank has made a step for %s, and nothing tells which keeps the others", since);
    else
        snprintf(out, cap, "rank %d on %s has made no step for %s: %s", s->rank,
                 j->run.containers[seen->container].node, since,
                 s->kind == HL_STALL_STOPPED ? "its process is stopped"
                                             : "the others wait for it, a step ahead");
}

static void judge_gang(struct job *j, struct rank_watch *w)
{
    const struct hl_stall_rule rule = {j->controller->opts.hang_after_ms, HANG_FACTOR};
    struct hl_stall found = hl_stall_find(w->said, w->count, &rule);
    bool news = found.kind != w->stall.kind || found.rank != w->stall.rank;
    char text[HL_JOB_TEXT_MAX];
    bool was = w->stall.kind != HL_STALL_NONE;
    w->stall = found;
    if (!news)
        return;
    if (found.kind != HL_STALL_NONE) {
        stall_text(j, &found, text, sizeof(text));
        job_note(j, "stalled", text);
    } else if (was) {
        job_note(j, "goes-on", "its ranks make steps again, or were replaced");
    }
}

void rank_watch_tell(const struct job *j, char *out, size_t cap)
{
    if (j->watch != NULL && j->watch->attempt == j->run.attempt &&
        j->watch->stall.kind != HL_STALL_NONE)
        stall_text(j, &j->watch->stall, out, cap);
}

/* ---- a round --------------------------------------------------------------------------------- */

static struct hl_stall_rank stall_rank_of(const struct hl_api_rank_status *r)
{
    return (struct hl_stall_rank){.rank = r->rank,
                                  .activity = r->progress.activity,
                                  .stopped = r->progress.stopped,
                                  .step = r->progress.step,
                                  .steps = r->progress.steps,
                                  .since_ms = r->progress.since_ms,
                                  .median_ms = (int64_t)r->progress.median_ms};
}

/* False: not all of the gang was reported lately, so that it can't be judged. */
static bool take_reports(struct job *j, struct rank_watch *w)
{
    size_t taken = 0;
    bool fresh = true;
    for (int i = 0; i < j->run.container_count; i++) {
        char id[HL_JOB_ID_MAX + 32];
        const struct node *n = node_find(j->controller, j->run.containers[i].node);
        hl_container_id(j->id, j->run.attempt, i, id, sizeof(id));
        const struct hl_api_container_status *c = n != NULL ? node_reported(n, id) : NULL;
        fresh &= n != NULL && !n->lost;
        for (size_t k = 0; c != NULL && k < c->ranks.count; k++) {
            const struct hl_api_rank_status *r = &c->ranks.items[k];
            if (r->rank < 0 || (size_t)r->rank >= w->count)
                continue;
            look_at_rank(j, &w->seen[r->rank], n->name, r);
            w->seen[r->rank].container = i;
            w->said[r->rank] = stall_rank_of(r);
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
    if (w != NULL && take_reports(j, w))
        judge_gang(j, w);
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
}
