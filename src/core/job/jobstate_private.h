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

#endif
