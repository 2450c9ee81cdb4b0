/* core/model/part.h - what a part of a rank's shards contains, according to its name.
 *
 * "embedding", "vision", "layer-0003", "experts-0003", "mtp-0000" and "head" hold parameters,
 * "optim-PART" optimizer state of PART that is the same on all data-parallel ranks,
 * "optim-dp1of2-PART" the share of data-parallel rank 1 of 2, and "extra-PART" opaque blobs of
 * modules.
 *
 * Owns:    nothing; `of` is borrowed from the name.
 * Threads: any; pure.
 * Errors:  HL_EINVAL for an invalid name; any other name counts as parameters.
 * Units:   none.
 * Limits:  data-parallel ranks below 10^9; names of 1 to 63 letters, digits, '.', '_', '-', ':',
 *          the first of them not '.'.
 */
#ifndef HL_CORE_MODEL_PART_H
#define HL_CORE_MODEL_PART_H

#include <stdbool.h>

#include "base/status.h"

enum hl_part_kind { HL_PART_MODEL, HL_PART_OPTIM, HL_PART_EXTRA };

struct hl_part {
    enum hl_part_kind kind;
    int dp;      /* OPTIM: the rank whose share it is; 0 for replicated state */
    int dp_size; /* 1 for replicated state */
    /* "layer-0003": the part whose state or blobs it has, or itself; points into the name */
    const char *of;
};

struct hl_part hl_part_of(const char *name);
hl_status hl_part_name_check(const char *name) HL_CHECK;
/* The part has experts, or their state or blobs; only such parts are cut by ep and etp. */
bool hl_part_has_experts(const char *name);
/* The part has parameters, not optimizer state or opaque blobs. */
bool hl_part_has_parameters(const char *name);

/* A part at a position of a split; ep matters only for experts. */
struct hl_part_at {
    int pp, tp, ep;
    const char *part;
};

/* The order in which a version lists its shards: by pp, tp, ep and the part's name. */
int hl_part_at_order(const struct hl_part_at *a, const struct hl_part_at *b);

#define HL_PART_PLACE_MAX 112
/* Writes "pp0/tp1/layer-0002", for experts "pp0/tp1/ep2/experts-0003", into buf. */
const char *hl_part_place(int pp, int tp, int ep, const char *part, char buf[HL_PART_PLACE_MAX]);

#endif
