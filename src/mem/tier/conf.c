/* The options of a tier. */
#include "conf/options.h"
#include "mem/tier/tier.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_tier_limits, field)
static const struct hl_option tier_options[] = {
    {"tier.high", "--tier-high", "85",
     "Above this share of its quota a tier is under high pressure.",
     HL_OPT_PERCENT, 1, 100, NULL, AT(high_pct)},
    {"tier.low", "--tier-low", "70",
     "Below this share of its quota a tier is under low pressure; a full pool evicts archived "
     "shards down to it.",
     HL_OPT_PERCENT, 1, 100, NULL, AT(low_pct)},
};
/* clang-format on */

const struct hl_option_rows hl_tier_rows = HL_OPTION_ROWS(tier_options);
