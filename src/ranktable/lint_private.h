/* ranktable/lint_private.h - what the linters of the formats share.
 *
 * A place is written as a path, "server_list[1].device[0]". A `wanted` member must exist.
 *
 * Owns:    a lint owns its text until the report takes it.
 * Threads: one at a time. Pure.
 * Errors:  out of memory sets text.failed.
 * Units:   none.
 * Limits:  HL_RANKTABLE_FAULTS_MAX sentences of LINT_SENTENCE_MAX.
 */
#ifndef HL_RANKTABLE_LINT_PRIVATE_H
#define HL_RANKTABLE_LINT_PRIVATE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/buf.h"
#include "ranktable/lint.h"

#define LINT_SENTENCE_MAX 512
#define LINT_PLACE_MAX    128
#define LINT_PORT_MAX     65535

struct lint {
    enum hl_ranktable_chip chip;
    struct hl_buf text;
    size_t faults, servers, devices;
};

/* Adds a sentence. place "": it is about the whole document. */
void lint_say(struct lint *l, const char *place, const char *fmt, ...) HL_PRINTF(3, 4);
/* The member; NULL: it is missing, or not text, empty or too long. The latter three are reported,
 * and a missing one if it is wanted. */
const char *lint_text(struct lint *l, const char *place, const json_t *obj, const char *key,
                      bool wanted, size_t max);
/* Reads a number that is written as text, as in formats 1.0 and 1.2. */
bool lint_digits(struct lint *l, const char *place, const json_t *obj, const char *key, bool wanted,
                 uint64_t min, uint64_t max, uint64_t *out);
/* Reads a number without quotes, as in format 2.0. */
bool lint_integer(struct lint *l, const char *place, const json_t *obj, const char *key,
                  bool wanted, int64_t min, int64_t max, int64_t *out);
/* A list with at least one member; otherwise NULL and a sentence. */
const json_t *lint_list(struct lint *l, const char *place, const json_t *obj, const char *key);
/* Reports `value` if it was used before. `seen` is an object that records which place used it. */
bool lint_once(struct lint *l, json_t *seen, const char *place, const char *what,
               const char *value);
bool lint_is_address(const char *text, bool may_be_6);

/* lint_servers.c, formats 1.0 and 1.2; lint_ranks.c, 2.0. */
void lint_servers(struct lint *l, const json_t *doc, bool in_super_pods);
void lint_ranks(struct lint *l, const json_t *doc);
/* lint_job.c: checks the objects of a manifest. */
void lint_objects(struct lint *l, const json_t *const *objects, size_t count);

#endif
