/* The options of a migration. */
#include "conf/options.h"
#include "net/zmq/migrate.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_migrate_tuning, field)
static const struct hl_option migrate_options[] = {
    {"migrate.chunk", "--migrate-chunk", "1MiB",
     "Size of the pieces of a migration, each with its own checksum; rounded down to a power of "
     "two.",
     HL_OPT_BYTES, 256 << 10, 8 << 20, NULL, AT(chunk_size)},
    {"migrate.window", "--migrate-window", "16MiB",
     "Bytes that all senders together can have in flight to a node.",
     HL_OPT_BYTES, HL_OPTION_MIB, 16ll << 30, NULL, AT(window_bytes)},
    {"migrate.keep", "--migrate-keep", "3s",
     "How long a node keeps the memory of a migration whose sender is silent; more than "
     "migrate.dead.",
     HL_OPT_DURATION, 100, HL_OPTION_DAY_MS, NULL, AT(keep_ms)},
    {"migrate.dead", "--migrate-dead", "1s",
     "Silence after which the other end of a migration counts as dead.",
     HL_OPT_DURATION, 100, 600000, NULL, AT(dead_ms)},
    {"migrate.io_threads", "--migrate-io-threads", "1",
     "Threads that move the bytes of migrations, at either end; 2 pay off above 25 Gbit/s.",
     HL_OPT_INT, 1, 16, NULL, AT(io_threads)},
    {"migrate.zstd", "--migrate-zstd", "off",
     "Compression of migrations: off, auto (if a sample shows that it makes the transfer faster), "
     "or a level from 1 to 19.",
     HL_OPT_STRING, 0, 0, NULL, AT(zstd)},
};
/* clang-format on */

const struct hl_option_rows hl_migrate_rows = HL_OPTION_ROWS(migrate_options);
