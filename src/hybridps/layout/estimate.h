/* hybridps/layout/estimate.h - what a model needs in chunks, before it is trained.
 *
 * Model data are parameters, gradients and Adam's states: in 16 bits p 2, g 2, p32 4, m 4, v 4
 * bytes per parameter (reuse: the gradient lies over the parameter), in float32 p 4, g 4, m 4, v 4.
 * They lie on the host once; of several processes each has all parameters and gradients, and its
 * share of p32, m and v. The device needs at least the chunks that one module pins in the backward
 * pass. Activations and the framework's own memory come on top.
 *
 * Owns:    an estimate its lists (hl_estimate_fini).
 * Threads: any; pure.
 * Errors:  HL_EINVAL, HL_ENOMEM.
 * Units:   bytes, elements.
 * Limits:  2^24 tensors.
 */
#ifndef HL_HYBRIDPS_LAYOUT_ESTIMATE_H
#define HL_HYBRIDPS_LAYOUT_ESTIMATE_H

#include "core/hf.h"
#include "helios/hybridps.h"
#include "hybridps/layout/layout.h"

struct hl_estimate_tensor {
    uint64_t elements;
    uint32_t module;
};

struct hl_estimate_options {
    uint64_t element_bytes; /* of parameters: 2 or 4 */
    int reuse;              /* gradients over the parameters */
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
