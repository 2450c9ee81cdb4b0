/* What the ranks of this node report about their steps. The Agent makes a file of pages for each
 * container, gives every rank its page, and reads the pages for each report. Only the files are
 * kept between two reports, so a restarted Agent continues with them. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/utf8.h"
#include "os/file.h"
#include "os/step_page.h"

static void steps_path(const struct hl_agent *a, const char *id, char *out, size_t size)
{
    snprintf(out, size, "%s/%s", a->steps_dir, id);
}

hl_status steps_open(struct hl_agent *a, const char *state_dir)
{
    if ((size_t)snprintf(a->steps_dir, sizeof(a->steps_dir), "%s/steps", state_dir) >=
        sizeof(a->steps_dir))
        return hl_fail(HL_EINVAL, "the path of the state directory is too long");
    return hl_dir_make(a->steps_dir, 0755);
}

hl_status steps_prepare(struct hl_agent *a, struct hl_container_spec *spec)
{
    char path[STEPS_PATH_MAX], text[STEPS_PATH_MAX + 24];
    if (spec->rank_count == 0)
        return HL_OK; /* they are set later */
    steps_path(a, spec->id, path, sizeof(path));
    HL_TRY(hl_step_pages_create(path, spec->rank_count));
    for (size_t i = 0; i < spec->rank_count; i++) {
        snprintf(text, sizeof(text), "%s:%zu", path, i);
        HL_TRY(hl_env_set(&spec->ranks[i].env, "HELIOS_STEPS", text));
    }
    return HL_OK;
}

void steps_forget(struct hl_agent *a, const char *id)
{
    char path[STEPS_PATH_MAX];
    if (strchr(id, '/') != NULL)
        return; /* an id that no container can have: the file would be another one */
    steps_path(a, id, path, sizeof(path));
    if (unlink(path) != 0 && errno != ENOENT)
        hl_warn("remove %s: %s", path, strerror(errno));
}

void steps_forget_refused(struct hl_agent *a, const char *id)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_container_status_list list;
    if (hl_executor_list(a->executor, &arena, &list) != HL_OK)
        return;
    for (size_t i = 0; i < list.count; i++)
        if (strcmp(list.items[i].id, id) == 0)
            return; /* it goes with the container */
    steps_forget(a, id);
}

/* ---- reading --------------------------------------------------------------------------------- */

/* Stopped by a signal, or held by a debugger. */
static bool process_is_stopped(int pid)
{
    char path[64];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(4096);
    snprintf(path, sizeof(path), "/proc/%d/stat", pid);
    if (pid <= 0 || hl_file_read(path, &text) != HL_OK || text.len == 0)
        return false;
    const char *name_end = strrchr(text.data, ')');
    return name_end != NULL && strlen(name_end) > 2 && (name_end[2] == 'T' || name_end[2] == 't');
}

static double seconds_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / (double)HL_NS_PER_S : 0;
}

/* When the rank's last process was lost. */
static uint64_t lost_ns_of(const struct hl_api_rank_status *rank, uint64_t now_ns, int64_t wall_ms)
{
    uint64_t ago_ns = (uint64_t)(wall_ms - rank->lost_ms) * HL_NS_PER_MS;
    return ago_ns < now_ns ? now_ns - ago_ns : 0;
}

/* True if the page is still that of the lost process, and its replacement has not reported yet. */
static bool is_of_lost(const struct hl_api_rank_status *rank, const struct hl_step_state *s,
                       uint64_t now_ns, int64_t wall_ms)
{
    return rank->replaced > 0 && rank->lost_ms <= wall_ms &&
           s->began_ns + HL_NS_PER_MS < /* the wall clock has a resolution of 1 ms */
               lost_ns_of(rank, now_ns, wall_ms);
}

/* For a rank that was replaced and has made a step since. */
static struct hl_api_recovery_times recovery_of(const struct hl_api_rank_status *rank,
                                                const struct hl_step_state *s, uint64_t now_ns,
                                                int64_t wall_ms)
{
    uint64_t lost_ns = lost_ns_of(rank, now_ns, wall_ms);
    if (rank->replaced == 0 || rank->lost_ms > wall_ms || s->stepped_ns < lost_ns ||
        is_of_lost(rank, s, now_ns, wall_ms))
        return (struct hl_api_recovery_times){0};
    return (struct hl_api_recovery_times){
        .start_seconds = seconds_between(lost_ns, s->began_ns),
        .join_seconds = seconds_between(s->began_ns, s->joined_ns),
        .load_seconds = seconds_between(s->joined_ns, s->loaded_ns),
        .step_seconds = seconds_between(s->loaded_ns, s->stepped_ns),
        .total_seconds = seconds_between(lost_ns, s->stepped_ns),
    };
}

static enum hl_api_rank_activity activity_of(enum hl_step_activity a)
{
    static const enum hl_api_rank_activity said[] = {
        [HL_STEP_UNSAID] = HL_API_RANK_ACTIVITY_UNSAID,
        [HL_STEP_JOINING] = HL_API_RANK_ACTIVITY_JOINING,
        [HL_STEP_LOADING] = HL_API_RANK_ACTIVITY_LOADING,
        [HL_STEP_TRAINING] = HL_API_RANK_ACTIVITY_TRAINING,
        [HL_STEP_SAVING] = HL_API_RANK_ACTIVITY_SAVING,
    };

    return said[a];
}

static void tell_rank(const struct hl_step_page *page, uint64_t now_ns, int64_t wall_ms,
                      struct hl_arena *arena, struct hl_api_rank_status *rank)
{
    struct hl_step_state s;
    if (page == NULL || !hl_step_read(page, &s))
        return;
    rank->progress = (struct hl_api_rank_progress){
        .activity = is_of_lost(rank, &s, now_ns, wall_ms) ? HL_API_RANK_ACTIVITY_UNSAID
                                                          : activity_of(s.activity),
        .step = s.step,
        .steps = s.steps,
        .done_before = s.done_before,
        .since_ms = s.last_ns == 0       ? -1
                    : s.last_ns < now_ns ? (int64_t)((now_ns - s.last_ns) / HL_NS_PER_MS)
                                         : 0,
        .median_ms = (double)s.median_ns / (double)HL_NS_PER_MS,
        .own_ms = (double)s.own_ns / (double)HL_NS_PER_MS,
        .loss = isfinite(s.loss) ? s.loss : 0, /* other values can't be sent in a message */
        .no_loss = !isfinite(s.loss),
        .tokens = s.tokens,
        .generation = (uint32_t)s.generation,
        .stopped = process_is_stopped(rank->pid),
        .recovery = recovery_of(rank, &s, now_ns, wall_ms),
        /* A text that is not UTF-8 would make the whole heartbeat invalid. */
        .trouble = s.troubles > 0 ? hl_utf8_clean(arena, s.trouble, strlen(s.trouble)) : "",
        .troubles = (uint32_t)s.troubles,
    };
}

void steps_tell(struct hl_agent *a, struct hl_arena *arena,
                struct hl_api_container_status_list *containers)
{
    for (size_t i = 0; i < containers->count; i++) {
        struct hl_api_container_status *c = &containers->items[i];
        char path[STEPS_PATH_MAX];
        struct hl_step_pages pages = {0};
        steps_path(a, c->id, path, sizeof(path));
        bool tells = c->state == HL_API_CONTAINER_STATE_RUNNING ||
                     c->state == HL_API_CONTAINER_STATE_FAILED; /* what it was busy with */
        if (!tells || hl_step_pages_open(path, &pages) != HL_OK)
            continue; /* started by an Agent before this release */
        c->steps_file = hl_arena_strdup(arena, path);
        for (size_t k = 0; k < c->ranks.count; k++)
            tell_rank(hl_step_page_at(&pages, k), hl_now_ns(), hl_wall_ms(), arena,
                      &c->ranks.items[k]);
        hl_step_pages_close(&pages);
    }
}
