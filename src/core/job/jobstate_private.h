/* What the files of a job's life share. */
#ifndef HL_CORE_JOB_JOBSTATE_PRIVATE_H
#define HL_CORE_JOB_JOBSTATE_PRIVATE_H

#include "core/job/jobstate.h"

/* A failure of whatever kind, before anything else is made of it. True: the attempt has made a step
 * that none had made, or, where ranks tell no steps, has run long. */
bool hl_jobrun_note_failure(struct hl_jobrun *run, const struct hl_job_event *ev,
                            enum hl_api_failure_kind kind);
/* The same of one that counts; true: another attempt follows, not before run->retry_ms. */
bool hl_jobrun_tries_again(struct hl_jobrun *run, const struct hl_job_event *ev,
                           enum hl_api_failure_kind kind, int code);

/* jobstate_resize.c: a gang that runs and changes its size */
struct step;
/* Everything of an event with a plan that can fail, before anything is changed. */
hl_status hl_jobrun_check_resize(struct hl_jobrun *run, const struct hl_job_event *ev) HL_CHECK;
/* After the loss of a node. */
void hl_jobrun_go_on(struct step *s);
void hl_jobrun_on_grow(struct step *s);
void hl_jobrun_on_resized(struct step *s);
void hl_jobrun_on_dismiss(struct step *s);
void hl_jobrun_on_freed(struct step *s);
/* The container of the event is no member, and has another state. */
void hl_jobrun_judge_guest(struct step *s);
void hl_jobrun_resume_guest(const struct hl_jobrun *run, int position, struct hl_job_actions *out);

/* jobstate_spare.c */
/* It was parked, and has the ranks of a lost container. */
bool hl_jobrun_took_place(const struct hl_jobrun *run, int index);
/* Parked containers take the places of what was lost with its node. False: there are too few, and
 * the gang begins again. */
bool hl_jobrun_spares_take_over(struct step *s);
/* The container of the event has failed. True: it was only lost, and another one takes its place.
 */
bool hl_jobrun_replace_lost(struct step *s);

#endif
