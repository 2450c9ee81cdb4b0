/* The options of fetch/conf.h. */
#include "fetch/conf.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_read_conf, field)
static const struct hl_option read_retry_options[] = {
    {"read.retries", "--read-retries", "3",
     "How many times a chunk with a wrong checksum is fetched again. libhelios reads the "
     "environment variable; a rank has its Agent's value.",
     HL_OPT_INT, 0, 100, NULL, AT(retry.count)},
    {"read.retry_pause", "--read-retry-pause", "1ms",
     "Pause before a chunk with a wrong checksum is fetched again; ten times as long before the "
     "second retry, a hundred times before further ones. libhelios reads the environment "
     "variable; a rank has its Agent's value.",
     HL_OPT_DURATION, 0, 1000, NULL, AT(retry.pause_ms)},
};

static const struct hl_option read_timeout_options[] = {
    {"read.timeout", "--read-timeout", "30s",
     "Deadline of one operation of libhelios, such as the read of a shard. libhelios reads the "
     "environment variable; a rank has its Agent's value.",
     HL_OPT_DURATION, 10, 3600000, NULL, AT(timeout_ms)},
    {"read.daemon_pause", "--read-daemon-pause", "20ms",
     "Pause before libhelios calls a daemon again that is busy or being restarted; it calls the "
     "Controller again after five such pauses. libhelios reads the environment variable; a rank "
     "has its Agent's value.",
     HL_OPT_DURATION, 1, 60000, NULL, AT(daemon_pause_ms)},
};
/* clang-format on */

const struct hl_option_rows hl_read_retry_rows = HL_OPTION_ROWS(read_retry_options);
const struct hl_option_rows hl_read_timeout_rows = HL_OPTION_ROWS(read_timeout_options);
