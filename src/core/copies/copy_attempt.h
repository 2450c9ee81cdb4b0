/* core/copies/copy_attempt.h - how a node carries out one step of a copy: which memory it reads,
 * what a failure is blamed on, and what it tries next.
 *
 * Owns:    nothing.
 * Threads: any. Pure.
 * Errors:  none.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_CORE_COPIES_COPY_ATTEMPT_H
#define HL_CORE_COPIES_COPY_ATTEMPT_H

#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

/* ---- reading ---- */

/* Where the bytes are, from the reading node's point of view. */
struct hl_copy_source {
    enum hl_api_tier tier;
    bool own_node;
    bool mappable; /* on this host: its owner hands out the memory over a socket */
    bool has_data; /* it has a data address for other hosts */
};

enum hl_copy_reading {
    HL_COPY_FROM_OWN,    /* from a tier of the node itself */
    HL_COPY_FROM_MAPPED, /* another process's memory on this host */
    HL_COPY_FROM_NET,
    HL_COPY_FROM_NONE, /* not readable: device memory can only be read on its own node */
};

enum hl_copy_reading hl_copy_reading(const struct hl_copy_source *source);
/* After this failure of mapped memory, the same bytes may be read over the network. */
bool hl_copy_reads_by_net(const struct hl_copy_source *source, hl_status mapped);
/* The failure is due to the direct path into a device, not to the shard, the order or ourselves:
 * the path is not used for a while. */
bool hl_copy_blames_path(hl_status st);

/* The tier that refused a copy may accept it soon, because an extent leaves quarantine, or another
 * thread seals or aborts the same shard. */
struct hl_copy_room {
    uint64_t quota; /* 0 = limited only by the medium */
    uint64_t used, quarantined;
    uint64_t size; /* of the copy */
};

bool hl_copy_room_may_come(hl_status refused, const struct hl_copy_room *room);

/* ---- sending ---- */

enum hl_copy_send {
    HL_COPY_SEND_ENDS,
    HL_COPY_SEND_BACKBONE, /* use the backbone, because the migration network is down */
    HL_COPY_SEND_LATER,    /* retry later over the migration network, in case it comes back */
};

/* What to do after an attempt over that path. While the receiver of a migration still holds partial
 * data, it refuses the shard over the backbone (HL_EEXIST): that shows that it is alive, so the
 * migration continues. */
enum hl_copy_send hl_copy_send_after(enum hl_api_route_path path, hl_status st, bool has_backbone);

#endif
