/* The time ledger of a job. Its input is the job's state, its open version, and the progress that
 * its node reports for the first rank that reports steps. Its clock is the Controller's steady one,
 * which jumps of the wall clock do not affect. */
#include <time.h>

#include "base/clock.h"
#include "base/plane.h"
#include "controller/jobs/jobs_private.h"
#include "os/process.h"

static struct hl_ledger_clocks clocks_now(const struct hl_controller *c)
{
    struct timespec ts;
    clock_gettime(CLOCK_BOOTTIME, &ts);
    return (struct hl_ledger_clocks){.boot_id = c->jobs->boot_id,
                                     .boot_ms = (int64_t)ts.tv_sec * 1000 + ts.tv_nsec / 1000000,
                                     .wall_ms = hl_wall_ms()};
}

/* A gang that has its slots and does not run yet: its containers wait for prefetched data or for
 * their nodes, or are starting. */
static enum hl_ledger_part starting_part(struct job *j)
{
    for (int i = 0; i < j->run.container_count; i++)
        if (j->run.containers[i].state == HL_API_CONTAINER_STATE_WANTED &&
            hl_jobrun_has_ranks(&j->run, i)) {
            if (images_wait(j))
                return HL_LEDGER_IMAGE;
            return job_may_start(j) ? HL_LEDGER_PLACE : HL_LEDGER_PULL;
        }
    return HL_LEDGER_START;
}

static enum hl_ledger_part part_of(struct job *j)
{
    switch (j->run.state) {
    case HL_API_JOB_STATE_PENDING:
        return HL_LEDGER_QUEUE;
    case HL_API_JOB_STATE_STARTING:
        return starting_part(j);
    case HL_API_JOB_STATE_RUNNING:
        return HL_LEDGER_STEP;
    default:
        return HL_LEDGER_LOST;
    }
}

/* Progress of the first rank that reports steps; one rank is enough, because the gang makes its
 * steps together. NULL: no rank reports any. */
static const struct hl_api_rank_progress *progress_of(const struct job *j)
{
    for (int i = 0; i < j->run.container_count; i++) {
        if (!hl_jobrun_has_ranks(&j->run, i))
            continue;
        char id[HL_JOB_ID_MAX + 32];
        const struct node *n = node_find(j->controller, j->run.containers[i].node);
        hl_container_id(j->id, j->run.attempt, hl_jobrun_index(&j->run, i), id, sizeof(id));
        const struct hl_api_container_status *c = n != NULL ? node_reported(n, id) : NULL;
        for (size_t k = 0; c != NULL && k < c->ranks.count; k++)
            if (c->ranks.items[k].progress.activity != HL_API_RANK_ACTIVITY_UNSAID)
                return &c->ranks.items[k].progress;
    }
    return NULL;
}

static void take_progress(struct job *j, const struct hl_api_rank_progress *p, int64_t now)
{
    const struct hl_ledger_report report = {.step = p->step,
                                            .tokens = p->tokens,
                                            .usual_ms = (int64_t)(p->median_ms + 0.5),
                                            .generation = p->generation,
                                            .steps = (int64_t)p->steps,
                                            .done_before = p->done_before};
    bool is_old = p->generation > 0 && p->steps == 0; /* the step is of the previous generation */
    if (p->step >= 0 && !is_old)
        hl_ledger_report(&j->ledger, &report, now);
}

/* Looks for the newest version that the job wrote, and whether one is being written. */
static bool look_at_versions(struct job *j, int64_t now)
{
    struct hl_model_rec *m;
    bool saving = false;
    int64_t newest = j->ledger_version;
    if (j->spec.model[0] == '\0' ||
        hl_catalog_model(&j->controller->catalog, j->spec.model, &m) != HL_OK)
        return false;
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
        if (strcmp(v->job, j->id) != 0)
            continue;
        saving |= v->state == HL_API_VERSION_STATE_OPEN;
        if (v->state == HL_API_VERSION_STATE_VISIBLE && v->number > newest)
            newest = v->number;
    }
    if (newest > j->ledger_version)
        hl_ledger_saved(&j->ledger, now);
    j->ledger_version = newest;
    return saving;
}

static void look_at_ranks(struct job *j, int64_t now)
{
    const struct hl_api_rank_progress *p = progress_of(j);
    bool saving = look_at_versions(j, now);
    if (p != NULL)
        take_progress(j, p, now);
    saving |= p != NULL && p->activity == HL_API_RANK_ACTIVITY_SAVING;
    hl_ledger_saving(&j->ledger, saving, now);
}

void ledger_follow(struct job *j)
{
    int64_t now = controller_steady_ms(j->controller);
    if (j->ledger.over)
        return;
    if (!j->ledger.begun)
        hl_ledger_begin(&j->ledger, now);
    if (hl_job_state_ended(j->run.state)) {
        hl_ledger_end(&j->ledger, j->run.state == HL_API_JOB_STATE_SUCCEEDED, now);
        return;
    }
    hl_ledger_enter(&j->ledger, part_of(j), now);
    if (j->run.state == HL_API_JOB_STATE_RUNNING)
        look_at_ranks(j, now);
}

int64_t ledger_reached(const struct job *j)
{
    const struct hl_ledger *l = &j->ledger;
    int64_t best = l->step > l->best_step ? l->step : l->best_step;
    return l->reported && best >= 0 ? best + 1 : 0;
}

struct hl_api_job_ledger_record ledger_record(const struct job *j, struct hl_arena *arena)
{
    const struct hl_ledger_clocks clocks = clocks_now(j->controller);
    struct hl_ledger now = j->ledger;
    return hl_ledger_record(&now, controller_steady_ms(j->controller), &clocks, arena);
}

void ledger_restore(struct job *j, const struct hl_api_job_ledger_record *r)
{
    const struct hl_ledger_clocks clocks = clocks_now(j->controller);
    hl_ledger_restore(&j->ledger, r, &clocks, controller_steady_ms(j->controller));
}

struct hl_api_job_ledger ledger_show(const struct job *j)
{
    return hl_ledger_show(&j->ledger, controller_steady_ms(j->controller));
}

void jobs_ledger_gauges(const struct hl_controller *c, struct hl_buf *out)
{
    struct hl_api_job_ledger sum = {0};
    for (const struct job *j = c->jobs->table; j != NULL; j = j->hh.next) {
        struct hl_api_job_ledger l = ledger_show(j);
        sum.queue_ms += l.queue_ms;
        sum.place_ms += l.place_ms;
        sum.image_ms += l.image_ms;
        sum.pull_ms += l.pull_ms;
        sum.start_ms += l.start_ms;
        sum.step_ms += l.step_ms;
        sum.save_ms += l.save_ms;
        sum.stall_ms += l.stall_ms;
        sum.lost_ms += l.lost_ms;
        sum.replay_ms += l.replay_ms;
        sum.wall_ms += l.wall_ms;
    }

    const struct {
        const char *part;
        int64_t ms;
    } parts[] = {{"queue", sum.queue_ms},  {"place", sum.place_ms}, {"image", sum.image_ms},
                 {"pull", sum.pull_ms},    {"start", sum.start_ms}, {"step", sum.step_ms},
                 {"save", sum.save_ms},    {"stall", sum.stall_ms}, {"lost", sum.lost_ms},
                 {"replay", sum.replay_ms}};

    hl_metric_family(out, "helios_job_time_seconds", "gauge",
                     "Wall time of all jobs that the Controller knows, by what it was for.");
    for (size_t i = 0; i < HL_ARRAY_LEN(parts); i++)
        (void)!hl_buf_printf(out, "helios_job_time_seconds{part=\"%s\"} %.3f\n", parts[i].part,
                             (double)parts[i].ms / 1000);
    hl_metric_family(out, "helios_jobs_goodput_ratio", "gauge",
                     "Share of that time in which steps were done for the first time.");
    (void)!hl_buf_printf(out, "helios_jobs_goodput_ratio %.4f\n",
                         sum.wall_ms > 0 ? (double)sum.step_ms / (double)sum.wall_ms : 0);
}
