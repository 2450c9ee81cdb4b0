/* hybridps/layout/layout.h - how tensors fill chunks of one size, which size wastes least, and an
 * estimate of what a model will need in chunks.
 *
 * The rule: tensors of a kind are placed in order, each at a multiple of 64 bytes in the first
 * chunk of its kind with room, else in a new one. A tensor longer than the chunk size gets a chunk
 * of its own length. That chunk is not shared, because a small tensor in it would keep the huge one
 * on the device.
 *
 * Model data are parameters, gradients and Adam's states: with 16 bits p 2, g 2, p32 4, m 4, v 4
 * bytes per parameter (reuse: the gradient overwrites the parameter), with float32 p 4, g 4, m 4, v
 * 4. The host holds all of them once. With several processes each has all parameters and gradients,
 * and its share of p32, m and v. The device needs at least the chunks that one module pins in the
 * backward pass. Activations and the framework's own memory come on top.
 *
 * Owns:    an estimate owns its lists (hl_estimate_fini); the rest owns nothing.
 * Threads: any; pure.
 * Errors:  HL_EINVAL (no items, sizes that overflow), HL_ENOMEM.
 * Units:   bytes, elements.
 * Limits:  2^32 - 1 items, 2^24 tensors in an estimate; at most HL_LAYOUT_TRIES sizes are tried.
 */
#ifndef HL_HYBRIDPS_LAYOUT_LAYOUT_H
#define HL_HYBRIDPS_LAYOUT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "helios/hybridps.h"

#define HL_LAYOUT_TRIES 1024
#define HL_LAYOUT_GOOD  0.99 /* a good layout uses this share of the chunks' bytes */
#define HL_LAYOUT_NEAR  0.03 /* near: at most this far below the best */

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
    bool largest;     /* choose the largest good size instead of the smallest; requires `most` */
    uint64_t granule; /* chunks are multiples of it; 0 = 64 */
};

static inline double hl_layout_utilisation(const struct hl_layout *l)
{
    return l->allocated > 0 ? (double)l->used / (double)l->allocated : 0;
}

/* chunk_of (may be NULL): n numbers, the chunk of each item. */
hl_status hl_layout_fill(const struct hl_layout_item *items, size_t n, uint64_t chunk_bytes,
                         uint64_t granule, uint32_t *chunk_of, struct hl_layout *out) HL_CHECK;
/* The smallest size in [least, most] with a good utilisation; if there is none, the smallest one
 * near the best. It tries `least` (`most` if the largest is wanted) and the sizes that a run of
 * items of one kind fills exactly. */
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
    bool reuse;             /* gradients overwrite the parameters */
    uint64_t granule;       /* of the device */
    uint64_t chunk_bytes;   /* 0 = search for it */
};

struct hl_estimate {
    struct hl_estimate_tensor *tensors; /* in order; the tensors of a module are consecutive */
    size_t count, cap;
    char (*modules)[48];
    size_t module_count, module_cap;
    uint64_t parameters;
    uint64_t layers, hidden; /* of the assumed shape; 0 = nothing assumed */

    /* set by hl_estimate_run */
    struct hl_layout layout; /* of all kinds */
    uint64_t per_parameter[HYBRIDPS_KINDS], bytes[HYBRIDPS_KINDS];
    uint64_t allocated[HYBRIDPS_KINDS]; /* including what chunks leave unused */
    uint64_t total;                     /* bytes of all kinds */
    uint64_t smallest;                  /* minimum for the device: the most that one module pins */
    uint32_t widest;                    /* that module */
};

/* Lists the tensors of a model; the caller zeroes `out`. */
hl_status hl_estimate_of_config(const struct hl_hf_config *c, struct hl_estimate *out) HL_CHECK;
/* The same for a number of parameters: assumes a GPT whose width is 64 times its depth. */
hl_status hl_estimate_of_count(uint64_t parameters, struct hl_estimate *out) HL_CHECK;
hl_status hl_estimate_run(struct hl_estimate *e, const struct hl_estimate_options *o) HL_CHECK;
/* What each of `world` processes has of `bytes` of a kind. */
uint64_t hl_estimate_share(uint64_t bytes, int kind, uint64_t world);
void hl_estimate_fini(struct hl_estimate *e);

#endif
