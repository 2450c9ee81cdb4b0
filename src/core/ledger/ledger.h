/* core/ledger/ledger.h - accounts for the wall time of a job: ten parts that add up to it.
 *
 * A gang that loses a rank and re-forms, with a new generation, has lost and start time without
 * leaving the state step.
 *
 * Time is added to a part once it is known what it was used for; until then it is open. While ranks
 * run, it is open from one report of a step to the next.
 *
 *     queue, place, image, pull, start --first report--> steps --failure--> lost, queue, ...
 *                                                          '--end: over
 *
 * A report closes the time since the previous one: the number of steps times the usual length
 * counts as step (or as replay, for steps that an earlier attempt or generation had already done).
 * The first report of a gang may cover steps that were not observed; the rest of that time
 * counts as start, or as lost. If steps took more than twice the usual length, the excess counts as
 * save while a save was in progress, and as stall otherwise. For ranks that report nothing, step
 * begins when they run; after a failure their time since the last saved version counts as lost.
 *
 * Owns:    nothing.
 * Threads: one owner. Pure: the clock's value is an argument.
 * Errors:  none. A clock that goes back adds nothing.
 * Units:   ms of one steady clock.
 * Limits:  steps and tokens are those of one reporting rank.
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

/* A zeroed ledger has not begun. */
struct hl_ledger {
    int64_t ms[HL_LEDGER_PARTS];
    enum hl_ledger_part part; /* the current part; STEP: the ranks run */
    int64_t at_ms;            /* all time before this is in a part or open */
    bool begun, over;
    int64_t open_ms;      /* STEP: time since the last report, save, or begin */
    int64_t open_save_ms; /* of this, the time in which a save was in progress */
    bool saving;
    bool reported;     /* some attempt reports steps */
    bool stepping;     /* this attempt has reported steps */
    int64_t step;      /* newest step of this attempt; < 0 = none */
    int64_t best_step; /* highest step with which an attempt ended; < 0 = none */
    int64_t usual_ms;  /* usual length of a step; 0 = not known yet */
    int64_t steps, replayed;
    uint64_t tokens;
    uint64_t told_tokens; /* of the last report */
    uint32_t generation;  /* of the last report */
};

/* A rank's report that `step` is done. */
struct hl_ledger_report {
    int64_t step;
    uint64_t tokens;     /* total of its process */
    int64_t usual_ms;    /* usual length of a step, as the rank measures it; 0 = it doesn't */
    uint32_t generation; /* how often its gang has formed; 0 = not reported */
    int64_t steps;       /* steps completed in this generation; 0 = not reported */
    /* steps below this were done before this generation; 0 = none, or not reported */
    int64_t done_before;
};

/* The job is submitted. */
void hl_ledger_begin(struct hl_ledger *l, int64_t now_ms);
/* Switches to that part. STEP: all ranks run. LOST after STEP: they have failed. Entering the same
 * part again changes nothing. */
void hl_ledger_enter(struct hl_ledger *l, enum hl_ledger_part part, int64_t now_ms);
void hl_ledger_report(struct hl_ledger *l, const struct hl_ledger_report *report, int64_t now_ms);
/* Tells whether ranks are saving a version now. */
void hl_ledger_saving(struct hl_ledger *l, bool saving, int64_t now_ms);
/* A saved version is visible: the work done until now can't be lost any more. */
void hl_ledger_saved(struct hl_ledger *l, int64_t now_ms);
/* The job is over. succeeded: the open time was useful. */
void hl_ledger_end(struct hl_ledger *l, bool succeeded, int64_t now_ms);

/* The ledger at now_ms. Open time is counted as if the job succeeded now. */
struct hl_api_job_ledger hl_ledger_show(const struct hl_ledger *l, int64_t now_ms);

/* ---- over a restart of who keeps it ---- */

/* Readings of two clocks at the same moment: time since boot, and wall time. */
struct hl_ledger_clocks {
    const char *boot_id;
    int64_t boot_ms;
    int64_t wall_ms;
};

/* Updates *l to now_ms and returns its record, which borrows boot_id. */
struct hl_api_job_ledger_record hl_ledger_record(struct hl_ledger *l, int64_t now_ms,
                                                 const struct hl_ledger_clocks *clocks,
                                                 struct hl_arena *arena);
/* Restores a ledger. The time since the record counts towards the part that was current then. It is
 * measured by the boot clock if the boot is the same, whatever happened to the wall clock, else by
 * the wall clock. A record without parts, from an older release, gives a ledger that has not
 * begun. */
void hl_ledger_restore(struct hl_ledger *l, const struct hl_api_job_ledger_record *r,
                       const struct hl_ledger_clocks *clocks, int64_t now_ms);

#endif
