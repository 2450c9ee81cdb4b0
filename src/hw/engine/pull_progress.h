/* hw/engine/pull_progress.h - the progress of a pull, from the output of docker and podman.
 *
 * On a terminal docker prints a layer's line repeatedly, with bytes; otherwise it prints each state
 * of a layer once. The input may be the whole output so far or its newest part: the last line of a
 * layer counts.
 *
 * Owns:    nothing. Zero-initialise.
 * Threads: one owner. Pure.
 * Errors:  none: a meaningless line is skipped.
 * Units:   bytes.
 * Limits:  HL_PULL_LAYERS_MAX layers, as docker has.
 */
#ifndef HL_HW_ENGINE_PULL_PROGRESS_H
#define HL_HW_ENGINE_PULL_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HL_PULL_LAYERS_MAX 128
/* This much of the output is examined. */
#define HL_PULL_WINDOW ((size_t)64 << 10)

struct hl_pull_layer {
    char id[72];
    bool begun, here;
    uint64_t done, total; /* total 0: size unknown */
};

struct hl_pull_progress {
    struct hl_pull_layer layers[HL_PULL_LAYERS_MAX];
    size_t count;
    bool taken; /* a part was taken before, so the next one may begin inside a line */
};

void hl_pull_progress_take(struct hl_pull_progress *p, const char *printed);
/* "pulling IMAGE: 3 of 7 layers, 310.0 MiB of 1.2 GiB, 2 not begun"; sizes cover the layers that
 * have begun, if docker reports them. */
void hl_pull_progress_tell(const struct hl_pull_progress *p, const char *image, char *out,
                           size_t size);

#endif
