/* kube/parse.h - parses JSON text to objects, without the members that are not read. Most of an
 * object is the API server's own data (managedFields), and a rank table is a text of 100 kB: both
 * are skipped in one pass, whereas jansson looks at every byte several times.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  HL_EPROTO, by jansson's rules, except that a skipped member only needs an end and must
 *          not contain a NUL; HL_ENOMEM.
 * Units:   bytes.
 * Limits:  2048 levels, as in jansson.
 */
#ifndef HL_KUBE_PARSE_H
#define HL_KUBE_PARSE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

/* Members with these names, at any depth. */
struct hl_kube_members {
    const char *const *names; /* NULL-terminated */
    bool only;                /* true: only these members are kept, and those that every answer has;
                               * a name that ends with '*' is kept with everything in it. false: all
                               * others are kept */
};

/* *out: a new reference. members: NULL = all. */
hl_status hl_kube_parse(const char *text, size_t len, const struct hl_kube_members *members,
                        json_t **out) HL_CHECK;

#endif
