/* The options of a pool. */
#include "conf/options.h"
#include "mem/pool/pool.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_pool_options, field)
static const struct hl_option pool_options[] = {
    {"l3.prefault", "--prefault", "true",
     "Touch every page of the pool at start, so that a lack of memory shows then; uses huge pages "
     "where the kernel can.",
     HL_OPT_BOOL, 0, 0, NULL, AT(prefault)},
    {"l3.quarantine", "--quarantine", "2s",
     "How long a freed extent stays in quarantine before it is used again.",
     HL_OPT_DURATION, 100, HL_OPTION_DAY_MS, NULL, AT(quarantine_ms)},
    {"l3.lease", "--lease", "10m",
     "How long spilled data is kept after a restart for a rank that has not reconnected; after "
     "the first 10 s only while there is room.",
     HL_OPT_DURATION, 1000, HL_OPTION_DAY_MS, NULL, AT(lease_ms)},
    {"l3.beat", "--beat", "10ms",
     "Interval of the heartbeat in the pool's superblock.",
     HL_OPT_DURATION, 1, 250, NULL, AT(beat_ms)},
};
/* clang-format on */

const struct hl_option_rows hl_pool_rows = HL_OPTION_ROWS(pool_options);
