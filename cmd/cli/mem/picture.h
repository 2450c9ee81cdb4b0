/* cmd/cli/mem/picture.h - draws device memory by moment and kind as an SVG picture.
 *
 * The upper part shows the device memory of each kind of chunk, the memory of others (from the
 * capacity down), and the free memory in between. The lower part shows the bytes moved at each
 * moment. Colours follow the reader's light or dark setting.
 *
 * Owns:    nothing; the text is appended to the caller's buffer.
 * Threads: any.
 * Errors:  HL_ENOMEM.
 * Units:   bytes.
 * Limits:  more than PICTURE_STEPS moments are drawn in groups, of which the fullest is shown.
 */
#ifndef HL_CMD_CLI_MEM_PICTURE_H
#define HL_CMD_CLI_MEM_PICTURE_H

#include "base/buf.h"
#include "hybridps/client/replay.h"

#define PICTURE_STEPS 1000

struct picture {
    const struct hl_trace *trace;
    const struct hl_replay_view *views; /* one per moment */
    uint64_t capacity;
    const char *title;
};

hl_status picture_draw(const struct picture *p, struct hl_buf *out) HL_CHECK;

#endif
