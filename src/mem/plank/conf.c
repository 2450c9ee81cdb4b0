/* The options of the plank. */
#include "conf/options.h"
#include "mem/plank/plank.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_plank_options, field)
static const struct hl_option plank_options[] = {
    {"plank.piece", "--plank-piece", "1MiB",
     "Size of one staging buffer of the plank (the path to devices that no NIC reaches); whole "
     "MiB, because each MiB has its own checksum.",
     HL_OPT_BYTES, 1 << 20, 64 << 20, NULL, AT(piece)},
    {"plank.buffers", "--plank-buffers", "4",
     "Staging buffers of one transfer over the plank, so that its two legs overlap.",
     HL_OPT_INT, 2, 64, NULL, AT(buffers)},
};
/* clang-format on */

const struct hl_option_rows hl_plank_rows = HL_OPTION_ROWS(plank_options);
