/* core/copies/copy_attempt.h - a node carries out a step of a copy: which memory it reads, what a
 * failure speaks against, and what it tries next.
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

/* Where the bytes are, as the reading node sees it. */
struct hl_copy_source {
    enum hl_api_tier tier;
    bool own_node;
    bool mappable; /* of this host, behind a socket */
    bool has_data; /* it has an address for other hosts */
};

enum hl_copy_reading {
    HL_COPY_FROM_OWN,    /* a tier of the node */
    HL_COPY_FROM_MAPPED, /* another process's memory on this host */
    HL_COPY_FROM_NET,
    HL_COPY_FROM_NONE, /* device memory is read on its own node only */
};

enum hl_copy_reading hl_copy_reading(const struct hl_copy_source *source);
/* Mapped memory that failed so: the same bytes may come over the network. */
bool hl_copy_reads_by_net(const struct hl_copy_source *source, hl_status mapped);
/* The direct path into a device failed, not the shard, the order or we: it is not tried for a
 * while. */
bool hl_copy_blames_path(hl_status st);

/* The tier that refused a copy may take it soon: an extent leaves quarantine, or another thread
 * seals or aborts the same shard. */
struct hl_copy_room {
    uint64_t quota; /* 0 = no limit but the medium's */
    uint64_t used, quarantined;
    uint64_t size; /* of the copy */
};

bool hl_copy_room_may_come(hl_status refused, const struct hl_copy_room *room);

/* ---- sending ---- */

enum hl_copy_send {
    HL_COPY_SEND_ENDS,
    HL_COPY_SEND_BACKBONE, /* the migration network is down */
    HL_COPY_SEND_LATER,    /* by the migration network again, should it be back */
};

/* After an attempt by that path. As long as the receiver of a migration keeps what has arrived, it
 * refuses the shard from the backbone (HL_EEXIST): then it is alive, and the migration goes on. */
enum hl_copy_send hl_copy_send_after(enum hl_api_route_path path, hl_status st, bool has_backbone);

#endif
