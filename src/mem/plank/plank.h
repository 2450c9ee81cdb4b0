/* mem/plank/plank.h - the plank: a copy through host memory whose two legs overlap.
 *
 * When a NIC can't reach a device's memory, bytes go net -> staging -> device, or the other way
 * round. Leg 1 (fetch) brings one piece after the other into staging buffers, on the caller's
 * thread; leg 2 (deliver) moves them on, on a helper thread. With at least two buffers both legs
 * run at the same time. A transfer that fits in one piece is fetched and delivered by the caller's
 * thread alone.
 *
 * Owns:    lanes: staging buffers (pinned for the device, near its NUMA node) with their helper
 *          thread, created when first needed, then reused.
 * Threads: any; each copy has a lane to itself, and waits when all lanes are taken.
 * Errors:  those of the leg that failed, prefixed with the leg and the offset; a failure stops both
 *          legs. HL_ECORRUPT: everything was delivered, and `bad` names the chunks whose bytes do
 *          not match their CRC; copy these again. HL_ETIMEDOUT. When a copy returns both legs have
 *          returned, so the caller's memory is no longer touched.
 * Units:   bytes, milliseconds; a chunk is a MiB counted from the first byte, the last is shorter.
 * Limits:  a piece is 4 KiB or more and either divides a MiB or is whole MiB; 2 to
 *          HL_PLANK_BUFFERS_MAX buffers, 1 to HL_PLANK_LANES_MAX lanes.
 */
#ifndef HL_MEM_PLANK_PLANK_H
#define HL_MEM_PLANK_PLANK_H

#include <stdbool.h>

#include "mem/device/device.h"

#define HL_PLANK_BUFFERS_MAX 64
#define HL_PLANK_LANES_MAX   64
#define HL_PLANK_BAD_MAX     64

struct hl_plank;

struct hl_plank_options {
    uint64_t piece;           /* 0 = 1 MiB */
    unsigned buffers;         /* per lane; 0 = 4: with 2, each leg waits for the other's wake-up */
    unsigned lanes;           /* copies at a time; 0 = 4 */
    struct hl_device *device; /* staging is pinned for it and placed near it; NULL = neither */
};

extern const struct hl_option_rows hl_plank_rows; /* plank.*: piece, buffers */

/* Move `len` bytes at `offset` of the transfer into (fetch) or out of (deliver) `staging`, within
 * timeout_ms. */
typedef hl_status (*hl_plank_fn)(void *arg, uint64_t offset, void *staging, size_t len,
                                 int timeout_ms);

struct hl_plank_leg {
    hl_plank_fn move;
    void *arg;
    bool lingers; /* after HL_ETIMEDOUT it may still use the staging memory, which is then abandoned
                   */
};

struct hl_plank_job {
    uint64_t size;
    struct hl_plank_leg fetch, deliver;
    const uint32_t *chunk_crcs; /* checked as bytes arrive in staging; NULL = not checked */
    int timeout_ms;             /* of the whole copy */
};

struct hl_plank_bad {
    size_t count; /* may be larger than HL_PLANK_BAD_MAX */
    uint32_t chunk[HL_PLANK_BAD_MAX];
};

struct hl_plank_info {
    uint64_t piece;
    unsigned buffers, lanes; /* lanes: the maximum */
    unsigned made, busy;
    bool pinned; /* staging is pinned; false also if the driver refused */
};

hl_status hl_plank_create(const struct hl_plank_options *options, struct hl_plank **out) HL_CHECK;
/* No copy may be in flight. NULL is fine. */
void hl_plank_destroy(struct hl_plank *p);
void hl_plank_info(struct hl_plank *p, struct hl_plank_info *out);

/* `bad` may be NULL. */
hl_status hl_plank_copy(struct hl_plank *p, const struct hl_plank_job *job,
                        struct hl_plank_bad *bad) HL_CHECK;

/* Legs that begin or end in a device; their arg is one of these. Set `lingers` for them. */
struct hl_plank_device {
    struct hl_device *device;
    const struct hl_device_block *block;
    uint64_t offset; /* where the transfer begins in the block */
};

hl_status hl_plank_to_device(void *arg, uint64_t offset, void *staging, size_t len, int timeout_ms);
hl_status hl_plank_from_device(void *arg, uint64_t offset, void *staging, size_t len,
                               int timeout_ms);

#endif
