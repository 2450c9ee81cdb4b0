/* core/job/jobstate_private.h - shared by the files that implement jobstate.h.
 *
 * Threads: one at a time per run.
 */
#ifndef HL_CORE_JOB_JOBSTATE_PRIVATE_H
#define HL_CORE_JOB_JOBSTATE_PRIVATE_H

#include "core/job/jobstate.h"

/* Notes a failure of any kind; call it first. True: the attempt made a step that no attempt had
 * made, or, if the ranks report no steps, it ran for a long time. */
bool hl_jobrun_note_failure(struct hl_jobrun *run, const struct hl_job_event *ev,
                            enum hl_api_failure_kind kind);
/* Notes a failure that counts. True: another attempt follows, not before run->retry_ms. */
bool hl_jobrun_tries_again(struct hl_jobrun *run, const struct hl_job_event *ev,
                           enum hl_api_failure_kind kind, int code);

/* jobstate_resize.c: a running gang changes its size */
struct step;
/* Does everything that can fail for an event with a plan, before any state changes. */
hl_status hl_jobrun_check_resize(struct hl_jobrun *run, const struct hl_job_event *ev) HL_CHECK;
/* Continues after the loss of a node. */
void hl_jobrun_go_on(struct step *s);
void hl_jobrun_on_grow(struct step *s);
void hl_jobrun_on_resized(struct step *s);
void hl_jobrun_on_dismiss(struct step *s);
void hl_jobrun_on_freed(struct step *s);
/* The state of the event's container has changed, and the container is not a member. */
void hl_jobrun_judge_guest(struct step *s);
void hl_jobrun_resume_guest(const struct hl_jobrun *run, int position, struct hl_job_actions *out);

/* jobstate_spare.c */
/* The container was parked and now has the ranks of a lost one. */
bool hl_jobrun_took_place(const struct hl_jobrun *run, int index);
/* Parked containers take over from the containers that were lost with their node. False: there are
 * too few, so the gang must restart. */
bool hl_jobrun_spares_take_over(struct step *s);
/* The event's container has failed. True: it was only lost, and another one replaces it. */
bool hl_jobrun_replace_lost(struct step *s);

#endif
