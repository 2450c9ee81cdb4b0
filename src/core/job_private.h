/* What the files of core/job share. */
#ifndef HL_CORE_JOB_PRIVATE_H
#define HL_CORE_JOB_PRIVATE_H

#include "core/job.h"

void hl_job_list_free(char **list, size_t count);
/* What the file does not say: texts are "" then, numbers their default. */
hl_status hl_job_fill(struct hl_job *job) HL_CHECK;

#endif
