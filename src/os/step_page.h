/* os/step_page.h - a rank's report of its training, in a page of memory that its node reads: a step
 * costs no RPC, no lock and no system call.
 *
 * A file has one page for each rank of a container, in the order of its ranks. The Agent creates
 * it, and HELIOS_STEPS=FILE:PAGE tells each rank which page is its own. The page outlives the
 * rank's process, so that a replacement finds the generation that the rank was in.
 *
 * Owns:    hl_step_pages maps; end it with hl_step_pages_close. The file belongs to its maker.
 * Threads: one writer per page at a time, any number of readers in any process; a reader sees each
 *          step consistently.
 * Errors:  HL_EINVAL for a text that does not name a page, HL_ENOENT, HL_ENOSPC, HL_EIO with the
 *          path.
 * Units:   ns of CLOCK_MONOTONIC, which all processes of a host share.
 * Limits:  the median is over the last HL_STEP_WINDOW steps, that of own times over the last
 *          HL_STEP_OWN.
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
#define HL_STEP_TEXT      240  /* bytes, including the NUL */
#define HL_STEP_PAGE_SIZE 4096 /* even if the system's pages are larger */

/* What a rank is doing; JOINING: its gang is forming. */
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
    _Atomic uint64_t began_ns;   /* when this process became the rank */
    _Atomic uint64_t joined_ns;  /* when this generation formed; 0 = not yet */
    _Atomic uint64_t loaded_ns;  /* when it first trained; 0 = not yet */
    _Atomic uint64_t stepped_ns; /* end of the first step of this generation; 0 = none yet */
    _Atomic uint64_t last_ns;    /* end of the last step, or start of training; 0 = neither */
    _Atomic uint64_t step;       /* number of the last step plus 1; 0 = none yet */
    _Atomic uint64_t steps;      /* steps completed in this generation */
    _Atomic uint64_t loss;       /* a double's bits */
    _Atomic uint64_t tokens;     /* total of this process */
    _Atomic uint64_t timed;      /* steps in the window since the generation began */
    _Atomic uint64_t window_ns[HL_STEP_WINDOW];
    _Atomic uint64_t reports;                  /* since the page was made */
    _Atomic uint64_t curve[HL_STEP_WINDOW][3]; /* generation, step, loss of the last reports */
    _Atomic uint64_t waited_ns;           /* time waited for other ranks since the last report */
    _Atomic uint64_t own_ns[HL_STEP_OWN]; /* per step, the time not spent waiting */
    _Atomic uint64_t held_at, held_size;  /* its largest parameter, in its process */
    _Atomic uint64_t troubles;            /* since the page was made */
    _Atomic uint64_t trouble[HL_STEP_TEXT / sizeof(uint64_t)]; /* the last one */
    _Atomic uint64_t done;        /* highest step so far plus 1; 0 = none yet */
    _Atomic uint64_t done_before; /* the same, at the time when this generation formed */
};

/* A step as it was reported. */
struct hl_step_point {
    uint64_t generation;
    int64_t step;
    double loss;
};

/* A page as a reader sees it. */
struct hl_step_state {
    uint64_t pid, generation;
    enum hl_step_activity activity;
    uint64_t began_ns, joined_ns, loaded_ns, stepped_ns, last_ns;
    int64_t step; /* -1 = none yet */
    uint64_t steps;
    int64_t done_before; /* highest step of earlier generations plus 1; 0 = none */
    double loss;
    uint64_t tokens;
    uint64_t median_ns;          /* of the window; 0 = no step was timed */
    uint64_t own_ns;             /* median of own times; 0 = likewise */
    uint64_t held_at, held_size; /* size 0 = not reported */
    uint64_t troubles;
    char trouble[HL_STEP_TEXT];
};

/* ---- the writer's ---- */

/* A process becomes the rank; the generation is unchanged. */
void hl_step_begin(struct hl_step_page *p, uint64_t pid, uint64_t now_ns);
/* The gang has formed: earlier timings no longer count. */
void hl_step_join(struct hl_step_page *p, uint64_t generation, uint64_t now_ns);
/* Time spent on anything but training does not count towards a step. */
void hl_step_set_activity(struct hl_step_page *p, enum hl_step_activity activity, uint64_t now_ns);
/* Adds time waited for other ranks since the last call. */
void hl_step_waited(struct hl_step_page *p, uint64_t ns);
/* A step has ended; this also sets the activity to training. */
void hl_step_report(struct hl_step_page *p, int64_t step, double loss, uint64_t tokens,
                    uint64_t now_ns);

/* The address of its largest parameter in its process, valid until the gang re-forms. */
void hl_step_held(struct hl_step_page *p, uint64_t address, uint64_t size);
/* Reports that something is wrong with the rank; a longer text is truncated. */
void hl_step_trouble(struct hl_step_page *p, const char *text);

/* ---- readers' ---- */

/* False: no process has written to the page, or a writer died in the middle. */
bool hl_step_read(const struct hl_step_page *p, struct hl_step_state *out);

/* Reads all reports from number `from` on; *next is the number after them. If some were
 * overwritten, *next is greater than `from` plus their count. False as above. */
bool hl_step_curve(const struct hl_step_page *p, uint64_t from,
                   struct hl_step_point out[HL_STEP_WINDOW], size_t *count, uint64_t *next);

struct hl_step_pages {
    void *base;
    size_t count;
    int guard; /* a rank can truncate the file: an Agent then reads zeros (os/map_guard.h) */
};

/* Creates the file with room for that many pages, unless it exists. */
hl_status hl_step_pages_create(const char *path, size_t count) HL_CHECK;
hl_status hl_step_pages_open(const char *path, struct hl_step_pages *out) HL_CHECK;
void hl_step_pages_close(struct hl_step_pages *pages);
/* NULL: the file has fewer pages. */
struct hl_step_page *hl_step_page_at(const struct hl_step_pages *pages, size_t index);
/* Opens the page that FILE:PAGE names; the caller owns *pages. */
hl_status hl_step_page_find(const char *text, struct hl_step_pages *pages,
                            struct hl_step_page **out) HL_CHECK;

#endif
