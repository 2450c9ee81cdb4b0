#include "core/ledger/ledger.h"

#include <string.h>

/* A step that is late by less than this is not counted as stalled. */
#define SLACK_MS 100
/* Number of parts in the first release with a ledger. */
#define PARTS_FIRST 9

/* Adds the time until now_ms to the current part, or to the open time. */
static void ledger_advance(struct hl_ledger *l, int64_t now_ms)
{
    int64_t ms = now_ms - l->at_ms;
    if (!l->begun || l->over || ms <= 0)
        return;
    l->at_ms = now_ms;
    if (l->part != HL_LEDGER_STEP) {
        l->ms[l->part] += ms;
        return;
    }
    l->open_ms += ms;
    l->open_save_ms += l->saving ? ms : 0;
}

/* Adds the open time to a part, except the share that was a save. */
static void open_close(struct hl_ledger *l, enum hl_ledger_part part)
{
    int64_t save = part == HL_LEDGER_STEP && !l->reported ? l->open_save_ms : 0;
    l->ms[HL_LEDGER_SAVE] += save;
    l->ms[part] += l->open_ms - save;
    l->open_ms = l->open_save_ms = 0;
}

void hl_ledger_begin(struct hl_ledger *l, int64_t now_ms)
{
    *l = (struct hl_ledger){.begun = true, .at_ms = now_ms, .step = -1, .best_step = -1};
}

static void best_raise(struct hl_ledger *l, int64_t step)
{
    if (step > l->best_step)
        l->best_step = step;
}

/* This gang makes no further step: the open time belongs to `part`. */
static void steps_end(struct hl_ledger *l, enum hl_ledger_part part)
{
    open_close(l, part);
    best_raise(l, l->step);
    l->step = -1;
    l->stepping = false;
}

void hl_ledger_enter(struct hl_ledger *l, enum hl_ledger_part part, int64_t now_ms)
{
    ledger_advance(l, now_ms);
    if (!l->begun || l->over || part == l->part)
        return;
    if (l->part == HL_LEDGER_STEP) {
        steps_end(l, part == HL_LEDGER_LOST ? HL_LEDGER_LOST : HL_LEDGER_STEP);
        l->saving = false;
        l->told_tokens = 0;
    }
    l->part = part;
}

/* Learns the usual time of a step. It grows slowly, so that a stall does not become usual; a long
 * first step is soon forgotten. */
static void usual_learn(struct hl_ledger *l, int64_t each_ms, int64_t told_ms)
{
    if (told_ms > 0) {
        l->usual_ms = told_ms;
        return;
    }
    if (l->usual_ms == 0 || each_ms < l->usual_ms)
        l->usual_ms = l->usual_ms == 0 ? each_ms : (l->usual_ms + each_ms) / 2;
    else
        l->usual_ms += ((each_ms < 2 * l->usual_ms ? each_ms : 2 * l->usual_ms) - l->usual_ms) / 8;
    if (l->usual_ms == 0)
        l->usual_ms = 1;
}

/* How many of the steps after `from` up to `to` an earlier attempt had done already. */
static int64_t steps_again(const struct hl_ledger *l, int64_t from, int64_t to)
{
    int64_t end = to < l->best_step ? to : l->best_step;
    return end > from ? end - from : 0;
}

/* Divides the open time, in which `count` steps were done, `again` of them for the second time. */
static void open_share(struct hl_ledger *l, int64_t count, int64_t again, int64_t told_ms)
{
    int64_t open = l->open_ms, usual = l->usual_ms * count, work = open;
    bool late = l->usual_ms > 0 && open > 2 * usual + SLACK_MS;
    if (l->usual_ms > 0 && open > usual && (late || l->open_save_ms > 0))
        work = usual;
    int64_t rest = open - work;
    int64_t save = rest < l->open_save_ms ? rest : l->open_save_ms;
    if (!late) /* time that is neither work nor save is within the usual range */
        work = open - save;
    int64_t replay = work * again / count;
    l->ms[HL_LEDGER_REPLAY] += replay;
    l->ms[HL_LEDGER_STEP] += work - replay;
    l->ms[HL_LEDGER_SAVE] += save;
    l->ms[HL_LEDGER_STALL] += open - work - save;
    usual_learn(l, work / count, told_ms);
    l->open_ms = l->open_save_ms = 0;
}

/* Divides the open time at a gang's first report: the steps after the first took their share, and
 * before that the gang was starting. */
static void first_steps_share(struct hl_ledger *l, const struct hl_ledger_report *report)
{
    int64_t count = report->steps - 1, open = l->open_ms;
    if (count <= 0 || report->usual_ms <= 0)
        return;
    int64_t ms = count < open / report->usual_ms ? count * report->usual_ms : open;
    int64_t again = steps_again(l, report->step - count, report->step);
    int64_t replay = ms * again / count;
    l->ms[HL_LEDGER_REPLAY] += replay;
    l->ms[HL_LEDGER_STEP] += ms - replay;
    l->open_ms -= ms;
    l->open_save_ms = l->open_save_ms < l->open_ms ? l->open_save_ms : l->open_ms;
}

/* The first report of a gang. `part`: what the gang did before its first step. */
static void gang_begin(struct hl_ledger *l, const struct hl_ledger_report *report,
                       enum hl_ledger_part part)
{
    best_raise(l, l->step);
    best_raise(l, report->done_before - 1);
    first_steps_share(l, report);
    open_close(l, part);
}

void hl_ledger_report(struct hl_ledger *l, const struct hl_ledger_report *report, int64_t now_ms)
{
    ledger_advance(l, now_ms);
    if (!l->begun || l->over || l->part != HL_LEDGER_STEP || report->step < 0)
        return;
    bool anew = report->generation != l->generation && l->stepping, first = anew || !l->stepping;
    int64_t from = l->step, done = report->steps > 0 ? report->steps : 1;
    if (first)
        from = done <= report->step ? report->step - done : -1;
    else if (report->step <= from) /* a late or repeated report */
        return;
    if (first)
        gang_begin(l, report, anew ? HL_LEDGER_LOST : HL_LEDGER_START);
    int64_t count = report->step - from, again = steps_again(l, from, report->step);
    l->generation = report->generation;
    l->reported = l->stepping = true;
    if (!first)
        open_share(l, count, again, report->usual_ms);
    l->step = report->step;
    l->steps += count - again;
    l->replayed += again;
    l->tokens += report->tokens - (report->tokens >= l->told_tokens ? l->told_tokens : 0);
    l->told_tokens = report->tokens;
}

void hl_ledger_saving(struct hl_ledger *l, bool saving, int64_t now_ms)
{
    ledger_advance(l, now_ms);
    l->saving = saving && l->part == HL_LEDGER_STEP;
}

void hl_ledger_saved(struct hl_ledger *l, int64_t now_ms)
{
    ledger_advance(l, now_ms);
    if (l->begun && !l->over && l->part == HL_LEDGER_STEP && !l->reported)
        open_close(l, HL_LEDGER_STEP);
}

void hl_ledger_end(struct hl_ledger *l, bool succeeded, int64_t now_ms)
{
    ledger_advance(l, now_ms);
    if (!l->begun || l->over)
        return;
    open_close(l, succeeded ? HL_LEDGER_STEP : HL_LEDGER_LOST);
    l->over = true;
}

struct hl_api_job_ledger hl_ledger_show(const struct hl_ledger *l, int64_t now_ms)
{
    struct hl_ledger x = *l;
    hl_ledger_end(&x, true, now_ms);
    struct hl_api_job_ledger r = {
        .queue_ms = x.ms[HL_LEDGER_QUEUE],
        .place_ms = x.ms[HL_LEDGER_PLACE],
        .pull_ms = x.ms[HL_LEDGER_PULL],
        .start_ms = x.ms[HL_LEDGER_START],
        .step_ms = x.ms[HL_LEDGER_STEP],
        .save_ms = x.ms[HL_LEDGER_SAVE],
        .stall_ms = x.ms[HL_LEDGER_STALL],
        .lost_ms = x.ms[HL_LEDGER_LOST],
        .replay_ms = x.ms[HL_LEDGER_REPLAY],
        .image_ms = x.ms[HL_LEDGER_IMAGE],
        .steps = x.steps,
        .replayed = x.replayed,
        .tokens = x.tokens,
        .reported = x.reported,
    };
    for (int i = 0; i < HL_LEDGER_PARTS; i++)
        r.wall_ms += x.ms[i];
    r.goodput = r.wall_ms > 0 ? (double)r.step_ms / (double)r.wall_ms : 0;
    return r;
}

struct hl_api_job_ledger_record hl_ledger_record(struct hl_ledger *l, int64_t now_ms,
                                                 const struct hl_ledger_clocks *clocks,
                                                 struct hl_arena *arena)
{
    ledger_advance(l, now_ms);
    struct hl_api_job_ledger_record r = {
        .part = (int32_t)l->part,
        .open_ms = l->open_ms,
        .open_save_ms = l->open_save_ms,
        .boot_id = clocks->boot_id,
        .boot_ms = clocks->boot_ms,
        .wall_ms = clocks->wall_ms,
        .step = l->stepping ? l->step : -1,
        .best_step = l->best_step,
        .usual_ms = l->usual_ms,
        .steps = l->steps,
        .replayed = l->replayed,
        .tokens = l->tokens,
        .reported = l->reported,
        .over = l->over,
        .told_tokens = l->told_tokens,
        .generation = l->generation,
    };
    r.parts.items = hl_arena_array(arena, HL_LEDGER_PARTS, sizeof(*r.parts.items));
    for (int i = 0; l->begun && r.parts.items != NULL && i < HL_LEDGER_PARTS; i++)
        r.parts.items[r.parts.count++] = (uint64_t)l->ms[i];
    return r;
}

static int64_t time_since(const struct hl_api_job_ledger_record *r,
                          const struct hl_ledger_clocks *clocks)
{
    bool same = r->boot_id != NULL && clocks->boot_id[0] != '\0' &&
                strcmp(r->boot_id, clocks->boot_id) == 0;
    int64_t ms = same ? clocks->boot_ms - r->boot_ms : clocks->wall_ms - r->wall_ms;
    return ms > 0 ? ms : 0;
}

void hl_ledger_restore(struct hl_ledger *l, const struct hl_api_job_ledger_record *r,
                       const struct hl_ledger_clocks *clocks, int64_t now_ms)
{
    *l = (struct hl_ledger){0};
    size_t count = r->parts.count;
    if (count < PARTS_FIRST || count > HL_LEDGER_PARTS || r->part < 0 || r->part >= HL_LEDGER_PARTS)
        return;
    for (size_t i = 0; i < count; i++)
        l->ms[i] = (int64_t)r->parts.items[i];
    l->begun = true;
    l->part = (enum hl_ledger_part)r->part;
    l->at_ms = now_ms - time_since(r, clocks);
    l->open_ms = r->open_ms;
    l->open_save_ms = r->open_save_ms;
    l->step = r->step;
    l->stepping = r->step >= 0;
    l->best_step = r->best_step;
    l->usual_ms = r->usual_ms;
    l->steps = r->steps;
    l->replayed = r->replayed;
    l->tokens = r->tokens;
    l->reported = r->reported;
    l->over = r->over;
    l->told_tokens = r->told_tokens;
    l->generation = r->generation;
}
