/* The options declared in net/conf.h. */
#include "net/conf.h"

#include <pthread.h>
#include <stdlib.h>

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_net_conf, field)
#define OF_LIBHELIOS " libhelios reads the environment variable; a rank has its Agent's value."
static const struct hl_option net_server_options[] = {
    {"data.spin_us", "--data-spin-us", "60",
     "Microseconds that the data server's threads (for reads and for puts) poll for work before "
     "they sleep; 0 to sleep at once.",
     HL_OPT_INT, 0, 100000, NULL, AT(spin_us)},
    {"data.put_queue", "--data-put-queue", "64",
     "Puts over the network that can be open at the same time; others are queued.",
     HL_OPT_INT, 1, 100000, NULL, AT(put_queue)},
    {"data.put_timeout", "--data-put-timeout", "10s",
     "A put over the network that makes no progress for this long is aborted; a TCP client that "
     "does not read an answer for this long is disconnected.",
     HL_OPT_DURATION, 10, 3600000, NULL, AT(put_timeout_ms)},
};

static const struct hl_option net_connect_options[] = {
    {"data.connect_timeout", "--data-connect-timeout", "3s",
     "Deadline for connecting to another host's memory: two thirds for RDMA, then TCP is tried. "
     "Also the deadline for a client's first message." OF_LIBHELIOS,
     HL_OPT_DURATION, 100, 3600000, NULL, AT(connect_ms)},
};

static const struct hl_option net_client_options[] = {
    {"data.endpoints", "--data-endpoints", "2",
     "Connections over which the pieces of a large read are spread." OF_LIBHELIOS,
     HL_OPT_INT, 1, 8, NULL, AT(endpoints)},
    {"data.batch_bytes", "--data-batch-bytes", "64KiB",
     "Small writes over the network, and small copies that are sent, share messages of at most "
     "this many bytes." OF_LIBHELIOS,
     HL_OPT_BYTES, 1024, 64 << 10, NULL, AT(batch_bytes)},
    {"data.batch_ms", "--data-batch-ms", "1ms",
     "How long a small write waits for others that are expected; 0 for not at all." OF_LIBHELIOS,
     HL_OPT_DURATION, 0, 1000, NULL, AT(batch_ms)},
    {"data.stall", "--data-stall", "800ms",
     "A transfer over the network that moves no byte for this long has failed." OF_LIBHELIOS,
     HL_OPT_DURATION, 10, 60000, NULL, AT(stall_ms)},
    {"data.rdma_retry", "--data-rdma-retry", "60s",
     "A connection that fell back from RDMA to TCP tries RDMA again after this long, while reads "
     "go on; 0 for never." OF_LIBHELIOS,
     HL_OPT_DURATION, 0, HL_OPTION_DAY_MS, NULL, AT(rdma_retry_ms)},
};
/* clang-format on */

const struct hl_option_rows hl_net_server_rows = HL_OPTION_ROWS(net_server_options);
const struct hl_option_rows hl_net_connect_rows = HL_OPTION_ROWS(net_connect_options);
const struct hl_option_rows hl_net_client_rows = HL_OPTION_ROWS(net_client_options);

static struct hl_net_conf defaults;

static void fill_defaults(void)
{
    const struct hl_option_rows *all[] = {&hl_net_server_rows, &hl_net_connect_rows,
                                          &hl_net_client_rows};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        if (hl_options_defaults(all[i]->rows, all[i]->count, &defaults) != HL_OK)
            abort(); /* a default in this file does not parse */
}

const struct hl_net_conf *hl_net_conf_default(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, fill_defaults);
    return &defaults;
}
