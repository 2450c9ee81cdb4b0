/* The options of the L3 daemon and of its archive. */
#include "base/plane.h"
#include "conf/options.h"
#include "l3d/l3d.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_l3d_opts, field)
static const struct hl_option l3d_options[] = {
    {"l3.name", "--name", "default",
     "Name of the pool; part of its default file name.",
     HL_OPT_STRING, 0, 0, NULL, AT(name)},
    {"l3.listen", "--listen", ":7402",
     "Address where helios-l3d serves RPC; no host: on its network; port 0: a free one.",
     HL_OPT_LISTEN, HL_PLANE_MANAGEMENT, 0, NULL, AT(listen)},
    {"l3.data_listen", "--data-listen", ":0",
     "Address where ranks of other hosts read and write shards; empty for none.",
     HL_OPT_LISTEN, HL_PLANE_BACKBONE, 0, NULL, AT(data_listen)},
    {"l3.size", "--size", "1GiB",
     "Capacity of the L3 pool.",
     HL_OPT_BYTES, HL_OPTION_MIB, 64 * HL_OPTION_TIB, NULL, AT(size)},
    {"l3.pool", "--pool", "",
     "File of the pool, on tmpfs or hugetlbfs; empty for /dev/shm/helios-UID-NAME.pool.",
     HL_OPT_PATH, 0, 0, NULL, AT(pool_path)},
    {"l3.numa", "--numa", "auto",
     "NUMA nodes that the pool's memory is spread over: auto (all), off, or a list such as 0,1.",
     HL_OPT_STRING, 0, 0, NULL, AT(numa)},
    {"l3.socket", "--socket", "",
     "Unix socket for ranks on this host; empty for the pool's file name and .sock.",
     HL_OPT_PATH, 0, 0, NULL, AT(socket_path)},
    {"l3.import_threads", "--import-threads", "0",
     "Threads that slice a checkpoint; 0 for one per CPU.",
     HL_OPT_INT, 0, 1024, NULL, AT(import_threads)},
    {"l3.cut_plans", "--cut-plans", "16MiB",
     "Memory for plans of cuts, which serve the next version of the same model; 0 for none.",
     HL_OPT_BYTES, 0, HL_OPTION_TIB, NULL, AT(cut_plans)},
    {"l3.remove_pool", "--remove-pool-on-exit", "false",
     "Remove the pool with all its shards when helios-l3d ends cleanly.",
     HL_OPT_BOOL, 0, 0, NULL, AT(remove_pool)},
};
#undef AT

#define AT(field) HL_OPTION_FIELD(struct l4_opts, field)
static const struct hl_option l4_options[] = {
    {"archive.mode", "--archive-mode", "write-behind",
     "write-behind archives every visible version automatically; manual archives only shards that "
     "are copied to l4.",
     HL_OPT_ENUM, 0, 0, "manual|write-behind", AT(mode)},
    {"archive.threads", "--archive-threads", "4",
     "Shards loaded from the archive at the same time; half as many are stored.",
     HL_OPT_INT, 1, 256, NULL, AT(threads)},
    {"archive.load_timeout", "--archive-load-timeout", "30s",
     "How long a reader waits for a shard from the archive, or a writer for room.",
     HL_OPT_DURATION, 10, HL_OPTION_DAY_MS, NULL, AT(load_timeout_ms)},
    {"archive.hold", "--archive-hold", "200ms",
     "Shards used more recently than this are not evicted, so that a reader still finds the shard "
     "that was loaded for it.",
     HL_OPT_DURATION, 0, HL_OPTION_DAY_MS, NULL, AT(hold_ms)},
    {"archive.retry", "--archive-retry", "30s",
     "Longest pause between two attempts to reach an archive that was unreachable when the daemon "
     "started; the first is half a second.",
     HL_OPT_DURATION, 100, HL_OPTION_DAY_MS, NULL, AT(retry_ms)},
    {"archive.trash_keep", "--archive-trash-keep", "7d",
     "How long orphaned shards stay in the archive's trash; 0 to keep them forever.",
     HL_OPT_DURATION, 0, 3650 * HL_OPTION_DAY_MS, NULL, AT(trash_keep_ms)},
};
/* clang-format on */

const struct hl_option_rows hl_l3d_rows = HL_OPTION_ROWS(l3d_options);
const struct hl_option_rows hl_l4_rows = HL_OPTION_ROWS(l4_options);
