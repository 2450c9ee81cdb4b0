/* ranktable/products.h - the servers with NPUs that MindCluster knows, and how many devices a pod
 * can request on each. Source: MindCluster's parameters of a job (docs/ranktable.md).
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

/* In `alone` and `beside`, bit n means that a pod can have n devices. */
struct hl_ranktable_product {
    enum hl_ranktable_chip chip;
    const char *type;       /* value of a node's label accelerator-type */
    uint32_t alone, beside; /* for a job of one pod, of several pods */
};

/* NULL: unknown. */
const struct hl_ranktable_product *hl_ranktable_product_find(const char *type);
bool hl_ranktable_product_gives(const struct hl_ranktable_product *p, uint64_t devices, bool alone);
/* Writes the types of a chip, separated by commas. */
void hl_ranktable_product_list(enum hl_ranktable_chip chip, char *out, size_t cap);

#endif
