/* ranktable/products.h - the servers with NPUs that MindCluster knows, and how many devices a pod
 * on each may ask for. Source: its parameters of a job (docs/ranktable.md).
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   none.
 * Limits:  31 devices of a pod.
 */
#ifndef HL_RANKTABLE_PRODUCTS_H
#define HL_RANKTABLE_PRODUCTS_H

#include <stdbool.h>
#include <stdint.h>

#include "ranktable/lint.h"

/* Bit n: n devices in a pod. */
struct hl_ranktable_product {
    enum hl_ranktable_chip chip;
    const char *type;       /* value of a node's label accelerator-type */
    uint32_t alone, beside; /* the job has one pod, several */
};

/* NULL: unknown. */
const struct hl_ranktable_product *hl_ranktable_product_find(const char *type);
bool hl_ranktable_product_gives(const struct hl_ranktable_product *p, uint64_t devices, bool alone);
/* Types of a chip, with commas. */
void hl_ranktable_product_list(enum hl_ranktable_chip chip, char *out, size_t cap);

#endif
