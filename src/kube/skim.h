/* kube/skim.h - leaves members out of JSON text before it is parsed. What the API server keeps for
 * itself (managedFields) is most of an object, and a parser spends its time on what nobody reads.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_ENOMEM. What is no JSON stays none: the parser is the one to say so.
 * Units:   bytes.
 * Limits:  those of `out`.
 */
#ifndef HL_KUBE_SKIM_H
#define HL_KUBE_SKIM_H

#include "base/buf.h"

/* `names` ends with NULL; members of these names go, wherever they are. `out` is empty. */
hl_status hl_kube_skim(const char *text, size_t len, const char *const *names,
                       struct hl_buf *out) HL_CHECK;

#endif
