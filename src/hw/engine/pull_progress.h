/* hw/engine/pull_progress.h - how far a pull is, from what docker and podman print.
 *
 * On a terminal docker prints a layer's line again and again, with bytes; else it prints each state
 * of a layer once. What is given may be the whole output so far or its newest part: each layer is
 * as its last line says.
 *
 * Owns:    nothing. Zero-initialised is right.
 * Threads: one owner. Pure.
 * Errors:  none: a line that says nothing is passed over.
 * Units:   bytes.
 * Limits:  HL_PULL_LAYERS_MAX layers, as docker has.
 */
#ifndef HL_HW_ENGINE_PULL_PROGRESS_H
#define HL_HW_ENGINE_PULL_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HL_PULL_LAYERS_MAX 128
/* Of the output so much is looked at. */
#define HL_PULL_WINDOW ((size_t)64 << 10)

struct hl_pull_layer {
    char id[72];
    bool begun, here;
    uint64_t done, total; /* total 0: its size is not known */
};

struct hl_pull_progress {
    struct hl_pull_layer layers[HL_PULL_LAYERS_MAX];
    size_t count;
    bool taken; /* a part came before: the next one may begin inside a line */
};

void hl_pull_progress_take(struct hl_pull_progress *p, const char *printed);
/* "pulling IMAGE: 3 of 7 layers, 310.0 MiB of 1.2 GiB, 2 not begun"; sizes are of the layers that
 * have begun, where docker says them. */
void hl_pull_progress_tell(const struct hl_pull_progress *p, const char *image, char *out,
                           size_t size);

#endif
