/* kube/parse.h - JSON text to objects, without the members that nobody reads. What the API server
 * keeps for itself (managedFields) is most of an object, and a table is one text of 100 kB: both
 * are passed in one go, where jansson looks at every byte several times.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_EPROTO, as jansson has it, but that a member that is left out need only come to its
 *          end, and that there is no byte 0; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  2048 levels, as jansson's.
 */
#ifndef HL_KUBE_PARSE_H
#define HL_KUBE_PARSE_H

#include <jansson.h>
#include <stddef.h>

#include "base/status.h"

/* *out: new reference. Members of the names in `skip` (ends with NULL; NULL = none) are left out,
 * wherever they are. */
hl_status hl_kube_parse(const char *text, size_t len, const char *const *skip,
                        json_t **out) HL_CHECK;

#endif
