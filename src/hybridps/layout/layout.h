/* hybridps/layout/layout.h - how tensors fill chunks of one size, which size fills them best, and
 * what a model needs in chunks before it is trained.
 *
 * The rule: tensors of a kind lie in their order, each at a multiple of 64 bytes in the first chunk
 * of its kind with room, else in a new one; a longer tensor gets a chunk of its own length, which
 * is not shared: a small tensor would keep a huge one on the device.
 *
 * Model data are parameters, gradients and Adam's states: in 16 bits p 2, g 2, p32 4, m 4, v 4
 * bytes per parameter (reuse: the gradient lies over the parameter), in float32 p 4, g 4, m 4, v 4.
 * They lie on the host once; of several processes each has all parameters and gradients, and its
 * share of p32, m and v. The device needs at least the chunks that one module pins in the backward
 * pass. Activations and the framework's own memory come on top.
 *
 * Owns:    an estimate its lists (hl_estimate_fini); the rest owns nothing.
 * Threads: any; pure.
 * Errors:  HL_EINVAL (no items, sizes that overflow), HL_ENOMEM.
 * Units:   bytes, elements.
 * Limits:  2^32 - 1 items, 2^24 tensors of an estimate; the sizes tried are at most
 *          HL_LAYOUT_TRIES.
 */
#ifndef HL_HYBRIDPS_LAYOUT_LAYOUT_H
#define HL_HYBRIDPS_LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "helios/hybridps.h"

#define HL_LAYOUT_TRIES 1024
#define HL_LAYOUT_GOOD  0.99 /* of the chunks' bytes are in use */
#define HL_LAYOUT_NEAR  0.03 /* below the best there is */

struct hl_layout_item {
    uint64_t bytes;
    uint32_t kind; /* below HL_LAYOUT_KINDS */
};

#define HL_LAYOUT_KINDS 8

struct hl_layout {
    uint64_t chunk_bytes;
    uint64_t chunks;
    uint64_t used, allocated; /* bytes of items; of chunks */
    uint64_t longest;         /* chunk */
};

struct hl_layout_options {
    uint64_t least, most; /* of a chunk; least 0 = the longest item, most 0 = no limit */
    bool largest;         /* the largest good size, not the smallest; `most` must be given */
    uint64_t granule;     /* chunks are multiples of it; 0 = 64 */
};

static inline double hl_layout_utilisation(const struct hl_layout *l)
{
    return l->allocated > 0 ? (double)l->used / (double)l->allocated : 0;
}

/* chunk_of (may be NULL): n numbers, the chunk of each item. */
hl_status hl_layout_fill(const struct hl_layout_item *items, size_t n, uint64_t chunk_bytes,
                         uint64_t granule, uint32_t *chunk_of, struct hl_layout *out) HL_CHECK;
/* The smallest size in [least, most] with a good utilisation; where there is none, the smallest
 * near the best. It tries `least` (`most` for the largest) and the sizes that a run of items
 * of a kind fills exactly. */
hl_status hl_layout_search(const struct hl_layout_item *items, size_t n,
                           const struct hl_layout_options *o, struct hl_layout *out) HL_CHECK;

/* "param" for HYBRIDPS_PARAM; "?" for an unknown kind. */
const char *hl_tensor_kind_name(int kind);
/* HYBRIDPS_OTHER for an unknown name. */
int hl_tensor_kind(const char *name);

/* ---- estimates ---- */

struct hl_hf_config;

struct hl_estimate_tensor {
    uint64_t elements;
    uint32_t module;
};

struct hl_estimate_options {
    uint64_t element_bytes; /* of parameters: 2 or 4 */
    bool reuse;             /* gradients over the parameters */
    uint64_t granule;       /* of the device */
    uint64_t chunk_bytes;   /* 0 = searched for */
};

struct hl_estimate {
    struct hl_estimate_tensor *tensors; /* in order; those of a module follow each other */
    size_t count, cap;
    char (*modules)[48];
    size_t module_count, module_cap;
    uint64_t parameters;
    uint64_t layers, hidden; /* of the shape that was assumed; 0 = not assumed */

    /* by hl_estimate_run */
    struct hl_layout layout; /* of all kinds */
    uint64_t per_parameter[HYBRIDPS_KINDS], bytes[HYBRIDPS_KINDS];
    uint64_t allocated[HYBRIDPS_KINDS]; /* with what chunks leave unused */
    uint64_t total;                     /* bytes of all kinds */
    uint64_t smallest;                  /* device: the most that a module pins */
    uint32_t widest;                    /* that module */
};

/* The tensors of a model; `out` is zeroed before. */
hl_status hl_estimate_of_config(const struct hl_hf_config *c, struct hl_estimate *out) HL_CHECK;
/* Of so many parameters: a GPT whose width is 64 times its depth. */
hl_status hl_estimate_of_count(uint64_t parameters, struct hl_estimate *out) HL_CHECK;
hl_status hl_estimate_run(struct hl_estimate *e, const struct hl_estimate_options *o) HL_CHECK;
/* What one of `world` processes has of `bytes` of a kind. */
uint64_t hl_estimate_share(uint64_t bytes, int kind, uint64_t world);
void hl_estimate_fini(struct hl_estimate *e);

#endif
