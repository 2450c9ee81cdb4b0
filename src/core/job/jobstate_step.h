/* core/job/jobstate_step.h - helpers for one step of a job's state machine: copy texts and append
 * actions. Only for the files of jobstate_private.h.
 *
 * Owns:    nothing; actions are appended to the caller's.
 * Threads: as jobstate.h.
 * Errors:  HL_ENOMEM only when reserving room for actions; adding them afterwards can't fail.
 * Units:   none.
 * Limits:  a text keeps HL_JOB_TEXT_MAX - 1 bytes.
 */
#ifndef HL_CORE_JOB_JOBSTATE_STEP_H
#define HL_CORE_JOB_JOBSTATE_STEP_H

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/jobstate.h"

struct step {
    struct hl_jobrun *run;
    const struct hl_job_event *ev;
    struct hl_job_actions *out;
};

/* Truncates at a character boundary, because JSON rejects incomplete UTF-8 sequences. */
static inline void copy_text(char *to, size_t cap, const char *from)
{
    size_t n = strlen(from);
    n = n < cap ? n : cap - 1;
    memmove(to, from, n);
    to[n] = '\0';
    size_t lead = n;
    while (lead > 0 && ((unsigned char)to[lead - 1] & 0xc0) == 0x80)
        lead--;
    if (lead == 0 || (unsigned char)to[lead - 1] < 0xc0)
        return;
    unsigned char c = (unsigned char)to[lead - 1];
    size_t want = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (n - (lead - 1) < want)
        to[lead - 1] = '\0';
}

HL_CHECK static inline hl_status actions_reserve(struct hl_job_actions *a, size_t more)
{
    if (a->cap - a->count >= more)
        return HL_OK;
    struct hl_job_action *list = realloc(a->list, (a->count + more) * sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the actions of a job");
    a->list = list;
    a->cap = a->count + more;
    return HL_OK;
}

static inline struct hl_job_action *actions_add(struct hl_job_actions *out,
                                                enum hl_job_action_kind kind, int attempt)
{
    assert(out->count < out->cap);
    struct hl_job_action *a = &out->list[out->count++];
    *a = (struct hl_job_action){.kind = kind, .attempt = attempt};
    return a;
}

static inline void act_on(struct hl_job_actions *out, enum hl_job_action_kind kind, int attempt,
                          int index, const char *node)
{
    struct hl_job_action *a = actions_add(out, kind, attempt);
    a->index = index;
    snprintf(a->node, sizeof(a->node), "%s", node);
}

/* Adds an action for the container at that position of the placed attempt. */
static inline void act_at(struct step *s, enum hl_job_action_kind kind, int position)
{
    act_on(s->out, kind, s->run->attempt, s->run->plan->containers[position].index,
           s->run->containers[position].node);
}

static inline void HL_PRINTF(3, 4) record(struct step *s, const char *word, const char *fmt, ...)
{
    struct hl_job_action *a = actions_add(s->out, HL_JOB_DO_RECORD, s->run->attempt);
    char text[2 * HL_JOB_TEXT_MAX];
    va_list ap;
    a->word = word;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    copy_text(a->text, sizeof(a->text), text);
}

static inline void HL_PRINTF(2, 3) set_reason(struct hl_jobrun *run, const char *fmt, ...)
{
    char text[2 * HL_JOB_TEXT_MAX]; /* the arguments may point into the old one */
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    copy_text(run->reason, sizeof(run->reason), text);
}

#endif
