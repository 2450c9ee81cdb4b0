/* volcano/template.h - for job.c: adds to pods what a job file says (core/job/podspec.h).
 *
 * Owns:    nothing. Documents are changed in place.
 * Threads: any. Pure.
 * Errors:  false: out of memory; the document is then partly changed.
 * Units:   none.
 * Limits:  none of its own.
 */
#ifndef HL_VOLCANO_TEMPLATE_H
#define HL_VOLCANO_TEMPLATE_H

#include <jansson.h>
#include <stdbool.h>

#include "core/job/job.h"

/* Extends one of the pod's containers. */
bool hl_volcano_extend_rank(json_t *container, const struct hl_job *job);
/* Extends the pod's template, after its containers. */
bool hl_volcano_extend_pod(json_t *template, const struct hl_job *job);
/* Extends the spec of the Volcano Job. */
bool hl_volcano_extend_job(json_t *spec, const struct hl_job *job);

#endif
