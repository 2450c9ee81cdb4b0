/* core/ledger/ledger.h - where the wall time of a job goes: ten parts that sum to it.
 *
 * A gang that loses a rank and comes together again, with a new generation, goes through lost and
 * start without leaving step.
 *
 * Time is put into a part when it is known what it was for: until then it is open. While ranks run
 * it is open from one report of a step to the next.
 *
 *     queue -> place -> image -> pull -> start --first report--> steps --failure--> lost -> queue
 * ...
 *                                                         '--end: over
 *
 * A report closes the time since the one before: so many steps of the usual length are step (or
 * replay, for steps that an attempt, or a generation, before had done). The first one of a gang
 * also tells of steps that nobody has looked at: what is left of the time was start, or lost. Of
 * what is more than twice the usual length the rest is save, as far as a save was going on, and
 * else stall. Ranks that report nothing step from when they run; what they did since the last
 * version that was saved is lost with a failure.
 *
 * Owns:    nothing.
 * Threads: one owner. Pure: the clock's value is an argument.
 * Errors:  none. A clock that goes back adds nothing.
 * Units:   ms of one steady clock.
 * Limits:  steps and tokens of one reporting rank.
 */
#ifndef HL_CORE_LEDGER_LEDGER_H
#define HL_CORE_LEDGER_LEDGER_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/arena.h"

enum hl_ledger_part {
    HL_LEDGER_QUEUE,
    HL_LEDGER_PLACE,
    HL_LEDGER_PULL,
    HL_LEDGER_START,
    HL_LEDGER_STEP,
    HL_LEDGER_SAVE,
    HL_LEDGER_STALL,
    HL_LEDGER_LOST,
    HL_LEDGER_REPLAY,
    HL_LEDGER_IMAGE, /* after place; records have the parts in this order */
    HL_LEDGER_PARTS,
};

/* Zero is a ledger that has not begun. */
struct hl_ledger {
    int64_t ms[HL_LEDGER_PARTS];
    enum hl_ledger_part part; /* what goes on; STEP: the ranks run */
    int64_t at_ms;            /* all time before is in a part or open */
    bool begun, over;
    int64_t open_ms;      /* STEP: since the last report, save, or begin */
    int64_t open_save_ms; /* the part of it in which a save was going on */
    bool saving;
    bool reported;     /* some attempt reports steps */
    bool stepping;     /* this attempt has */
    int64_t step;      /* the newest of this attempt; < 0 = none */
    int64_t best_step; /* the highest that an attempt has ended with; < 0 = none */
    int64_t usual_ms;  /* of a step; 0 = not known yet */
    int64_t steps, replayed;
    uint64_t tokens;
    uint64_t told_tokens; /* of the last report */
    uint32_t generation;  /* of the last report */
};

/* What a rank tells: `step` is done. */
struct hl_ledger_report {
    int64_t step;
    uint64_t tokens;     /* of its process, in all */
    int64_t usual_ms;    /* of a step, as it measures it; 0 = it doesn't */
    uint32_t generation; /* how often its gang has come together; 0 = it does not tell */
    int64_t steps;       /* that ended in this generation; 0 = it does not tell */
    int64_t done_before; /* lower steps had ended before this generation; 0 = none, or not told */
};

/* The job is submitted. */
void hl_ledger_begin(struct hl_ledger *l, int64_t now_ms);
/* From now on this goes on; STEP: all ranks run. LOST after STEP: they have failed. The same again
 * changes nothing. */
void hl_ledger_enter(struct hl_ledger *l, enum hl_ledger_part part, int64_t now_ms);
void hl_ledger_report(struct hl_ledger *l, const struct hl_ledger_report *report, int64_t now_ms);
/* Whether ranks are saving a version now. */
void hl_ledger_saving(struct hl_ledger *l, bool saving, int64_t now_ms);
/* A version that was saved is visible: what was done until now can't be lost. */
void hl_ledger_saved(struct hl_ledger *l, int64_t now_ms);
/* The job is over; `succeeded`: what is open was of use. */
void hl_ledger_end(struct hl_ledger *l, bool succeeded, int64_t now_ms);

/* As it is at now_ms. Open time counts as what it would be if the job ended well now. */
struct hl_api_job_ledger hl_ledger_show(const struct hl_ledger *l, int64_t now_ms);

/* ---- over a restart of who keeps it ---- */

/* Two clocks at once: the machine's since its boot, and the wall's. */
struct hl_ledger_clocks {
    const char *boot_id;
    int64_t boot_ms;
    int64_t wall_ms;
};

/* *l is as of now_ms; borrows boot_id. */
struct hl_api_job_ledger_record hl_ledger_record(struct hl_ledger *l, int64_t now_ms,
                                                 const struct hl_ledger_clocks *clocks,
                                                 struct hl_arena *arena);
/* The time since the record goes on as what went on then: by the clock of the boot where it is
 * the same boot, whatever was done to the wall clock, else by the wall clock. A record without
 * parts, of an older release, is a ledger that has not begun. */
void hl_ledger_restore(struct hl_ledger *l, const struct hl_api_job_ledger_record *r,
                       const struct hl_ledger_clocks *clocks, int64_t now_ms);

#endif
