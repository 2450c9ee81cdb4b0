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
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Members of these names, wherever they are. */
struct hl_kube_members {
    const char *const *names; /* ends with NULL */
    bool only;                /* they are all that is taken, but for what every answer has; a name
                                with a '*' behind it with all that is in it. false: all but they */
};

/* *out: new reference. `members` NULL: all. */
hl_status hl_kube_parse(const char *text, size_t len, const struct hl_kube_members *members,
                        json_t **out) HL_CHECK;

#endif
