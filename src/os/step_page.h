/* os/step_page.h - what a rank says of its training, in a page of memory that its node reads: no
 * call, no lock and no system call for a step.
 *
 * A file has one page for each rank of a container, in the order of its ranks. The Agent makes it,
 * HELIOS_STEPS=FILE:PAGE tells a rank which is its own, and the page outlives the rank's process,
 * so that a process in its place finds the generation that it was in.
 *
 * Owns:    hl_step_pages maps; end it with hl_step_pages_close. The file belongs to its maker.
 * Threads: one writer of a page at a time, any readers in any process: a reader sees a step whole.
 * Errors:  HL_EINVAL for a text that names no page, HL_ENOENT, HL_ENOSPC, HL_EIO with the path.
 * Units:   ns of CLOCK_MONOTONIC, which all processes of a host share.
 * Limits:  the last HL_STEP_WINDOW steps count for the median, HL_STEP_OWN for that of own times.
 */
#ifndef HL_OS_STEP_PAGE_H
#define HL_OS_STEP_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_STEP_WINDOW    63
#define HL_STEP_OWN       15
#define HL_STEP_TEXT      240  /* bytes, with the 0 behind */
#define HL_STEP_PAGE_SIZE 4096 /* also where pages of the system are larger */

/* What a rank is busy with; JOINING: its gang comes together. */
enum hl_step_activity {
    HL_STEP_UNSAID,
    HL_STEP_JOINING,
    HL_STEP_LOADING,
    HL_STEP_TRAINING,
    HL_STEP_SAVING,
    HL_STEP_ACTIVITIES
};

struct hl_step_page {
    _Atomic uint64_t turn; /* odd while it is being written */
    _Atomic uint64_t pid;
    _Atomic uint64_t generation;
    _Atomic uint64_t activity;
    _Atomic uint64_t began_ns;   /* this process took the rank's place */
    _Atomic uint64_t joined_ns;  /* this generation came together; 0 = not yet */
    _Atomic uint64_t loaded_ns;  /* first time it trained; 0 = not yet */
    _Atomic uint64_t stepped_ns; /* end of the first step of this generation; 0 = none yet */
    _Atomic uint64_t last_ns;    /* of the last step, or since when it trains; 0 = neither */
    _Atomic uint64_t step;       /* 1 more than the number of the last one; 0 = none yet */
    _Atomic uint64_t steps;      /* that ended in this generation */
    _Atomic uint64_t loss;       /* a double's bits */
    _Atomic uint64_t tokens;     /* in all, of this process */
    _Atomic uint64_t timed;      /* steps in the window since the generation began */
    _Atomic uint64_t window_ns[HL_STEP_WINDOW];
    _Atomic uint64_t reports;                  /* since the page was made */
    _Atomic uint64_t curve[HL_STEP_WINDOW][3]; /* generation, step, loss of the last ones */
    _Atomic uint64_t waited_ns;                /* for other ranks, since the last report */
    _Atomic uint64_t own_ns[HL_STEP_OWN];      /* of a step what was not waited for */
    _Atomic uint64_t held_at, held_size;       /* its largest parameter, in its process */
    _Atomic uint64_t troubles;                 /* since the page was made */
    _Atomic uint64_t trouble[HL_STEP_TEXT / sizeof(uint64_t)]; /* the last one */
    _Atomic uint64_t done;        /* 1 more than the highest step so far; 0 = none yet */
    _Atomic uint64_t done_before; /* the same, when this generation came together */
};

/* A step as it was reported. */
struct hl_step_point {
    uint64_t generation;
    int64_t step;
    double loss;
};

/* What a reader makes of it. */
struct hl_step_state {
    uint64_t pid, generation;
    enum hl_step_activity activity;
    uint64_t began_ns, joined_ns, loaded_ns, stepped_ns, last_ns;
    int64_t step; /* -1 = none yet */
    uint64_t steps;
    int64_t done_before; /* 1 more than the highest step of earlier generations; 0 = none */
    double loss;
    uint64_t tokens;
    uint64_t median_ns;          /* of the window; 0 = no step was timed */
    uint64_t own_ns;             /* median of own times; 0 = likewise */
    uint64_t held_at, held_size; /* size 0 = it does not tell */
    uint64_t troubles;
    char trouble[HL_STEP_TEXT];
};

/* ---- the writer's ---- */

/* A process takes the rank's place; the generation stays what it was. */
void hl_step_begin(struct hl_step_page *p, uint64_t pid, uint64_t now_ns);
/* The gang has come together: what was timed before counts no more. */
void hl_step_join(struct hl_step_page *p, uint64_t generation, uint64_t now_ns);
/* Time for anything but training is in no step. */
void hl_step_set_activity(struct hl_step_page *p, enum hl_step_activity activity, uint64_t now_ns);
/* It has waited so long for other ranks, since it said so last. */
void hl_step_waited(struct hl_step_page *p, uint64_t ns);
/* A step has ended; who says so trains. */
void hl_step_report(struct hl_step_page *p, int64_t step, double loss, uint64_t tokens,
                    uint64_t now_ns);

/* Where its largest parameter lies in its process, until the gang comes together again. */
void hl_step_held(struct hl_step_page *p, uint64_t address, uint64_t size);
/* Something is wrong with it; a longer text is cut. */
void hl_step_trouble(struct hl_step_page *p, const char *text);

/* ---- readers' ---- */

/* False: nobody has written there, or a writer died in the middle. */
bool hl_step_read(const struct hl_step_page *p, struct hl_step_state *out);

/* The reports from the from-th on, as many as there are; *next is the one after them, and more than
 * `from` plus their number when the others are overwritten. False as above. */
bool hl_step_curve(const struct hl_step_page *p, uint64_t from,
                   struct hl_step_point out[HL_STEP_WINDOW], size_t *count, uint64_t *next);

struct hl_step_pages {
    void *base;
    size_t count;
};

/* Make the file with room for so many pages, unless it is there. */
hl_status hl_step_pages_create(const char *path, size_t count) HL_CHECK;
hl_status hl_step_pages_open(const char *path, struct hl_step_pages *out) HL_CHECK;
void hl_step_pages_close(struct hl_step_pages *pages);
/* NULL: it has not so many. */
struct hl_step_page *hl_step_page_at(const struct hl_step_pages *pages, size_t index);
/* The page that FILE:PAGE names; *pages is the caller's. */
hl_status hl_step_page_find(const char *text, struct hl_step_pages *pages,
                            struct hl_step_page **out) HL_CHECK;

#endif
