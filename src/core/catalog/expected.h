/* core/catalog/expected.h - which parts a version must hold, with which tensors: the parameters of
 * its base, another version of the model, translated to the version's own split.
 *
 * If it is split differently from its base the model must be planned, which takes a second for one
 * with thousands of experts. So that can be done in another thread, on copies:
 *
 *     hl_expected_new --any thread--> hl_expected_plan --> hl_version_commit.expected
 *
 * Owns:    everything that the struct points to (hl_expected_free).
 * Threads: one at a time. Pure: no I/O, no clock.
 * Errors:  HL_ENOMEM; an error of the plan is stored in it and returned to every commit that uses
 *          it.
 * Units:   none.
 * Limits:  those of core/model/view.h and core/model/partition.h.
 */
#ifndef HL_CORE_CATALOG_EXPECTED_H
#define HL_CORE_CATALOG_EXPECTED_H

#include "base/arena.h"
#include "core/catalog/catalog.h"
#include "core/model/part.h"

struct hl_expected_part {
    int pp, tp, ep;
    const char *part;
    const char *layout; /* NULL = stored by an earlier release */
    uint32_t tensors;
};

struct hl_expected {
    char model[HL_MODEL_NAME_MAX + 1];
    int64_t base;
    struct hl_api_split split;
    struct hl_version_rec *copy; /* of the base, in the arena */
    struct hl_arena arena;
    struct hl_expected_part *list; /* sorted by position */
    size_t count;
    hl_status st; /* of the plan */
    char why[HL_ERROR_TEXT_MAX];
};

/* For a version that is split like its base; borrows the base's texts. The caller ends its
 * arena. */
hl_status hl_expected_same(const struct hl_version_rec *base, struct hl_expected *e) HL_CHECK;
/* For a version with another split: copies what the plan needs of the base. */
hl_status hl_expected_new(const struct hl_version_rec *base, const struct hl_api_split *split,
                          struct hl_expected **out) HL_CHECK;
/* Call it once, on any thread. */
void hl_expected_plan(struct hl_expected *e);
/* NULL is fine. */
void hl_expected_free(struct hl_expected *e);
/* It was made for a version like `v` with that base. */
bool hl_expected_serves(const struct hl_expected *e, const struct hl_version_rec *v,
                        const struct hl_version_rec *base);
/* NULL: there is no such part. */
const struct hl_expected_part *hl_expected_find(const struct hl_expected *e, struct hl_part_at at);

#endif
