/* volcano/template.h - for job.c: what a job file adds to pods (core/job/podspec.h).
 *
 * Owns:    nothing. Documents are changed in place.
 * Threads: any. Pure.
 * Errors:  false: out of memory, and the document is half changed.
 * Units:   none.
 * Limits:  none of its own.
 */
#ifndef HL_VOLCANO_TEMPLATE_H
#define HL_VOLCANO_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>

#include "core/job/job.h"

/* Into one of the pod's containers. */
bool hl_volcano_extend_rank(json_t *container, const struct hl_job *job);
/* Into the pod's template, whose containers are extended already. */
bool hl_volcano_extend_pod(json_t *template, const struct hl_job *job);
/* Into the spec of the Volcano Job. */
bool hl_volcano_extend_job(json_t *spec, const struct hl_job *job);

#endif
