/* Combines the slices of all modules. */
#include "program/conf.h"

#include "base/plane.h"
#include "os/background.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct program_daemon_conf, field)
static const struct hl_option daemon_options[] = {
    {"log.level", "--log-level", "info",
     "How much the daemons log.",
     HL_OPT_ENUM, 0, 0, "error|warn|info|debug", AT(log_level)},
    {"log.file", "--log-file", "",
     "File for what the daemon logs; empty for stderr. `helios up` gives each daemon its own.",
     HL_OPT_PATH, 0, 0, NULL, AT(log_file)},
    {"log.max_size", "--log-max-size", "64MiB",
     "Size at which log.file is rotated: it becomes FILE.1, and a new file is started; 0 for "
     "never.",
     HL_OPT_BYTES, 0, HL_OPTION_TIB, NULL, AT(log_max_size)},
    {"log.keep", "--log-keep", "2",
     "How many rotated log files are kept: FILE.1 is the newest.",
     HL_OPT_INT, 0, 100, NULL, AT(log_keep)},
    {"ready_file", "--ready-file", "",
     "File written once the daemon serves: JSON with its real addresses and pid; empty for none.",
     HL_OPT_PATH, 0, 0, NULL, AT(ready_file)},
    {"metrics.listen", "--metrics-listen", "",
     "Address where the daemon serves GET /metrics (Prometheus) and /healthz; empty for none.",
     HL_OPT_LISTEN, HL_PLANE_MANAGEMENT, 0, NULL, AT(metrics_listen)},
};
#undef AT
/* clang-format on */

static const struct hl_option_rows daemon_rows = HL_OPTION_ROWS(daemon_options);

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct program_conf, field)
static const struct hl_option background_options[] = {
    {"copy.nice", "--copy-nice", HL_BACKGROUND_NICE,
     "Nice value of the threads that make ordered copies, fetch and archive, so that they give "
     "way to readers; 0 for equal priority.",
     HL_OPT_INT, 0, 19, NULL, AT(copy_nice)},
};
#undef AT
/* clang-format on */

static const struct hl_option_rows background_rows = HL_OPTION_ROWS(background_options);

#define SLICE(rows, field, programs)                                                               \
    {                                                                                              \
        &(rows), offsetof(struct program_conf, field), (programs)                                  \
    }
#define L3D_AGENT (HL_L3D | HL_AGENT)

static const struct hl_conf_slice slices[] = {
    SLICE(daemon_rows, daemon, HL_DAEMONS),
    SLICE(hl_plane_rows, planes, HL_DAEMONS),
    SLICE(hl_auth_rows, auth, HL_DAEMONS | HL_CLI),
    SLICE(hl_controller_rows, controller, HL_CONTROLLER),
    SLICE(hl_kube_rows, kube, HL_CONTROLLER),
    SLICE(hl_placement_rows, placement, HL_CONTROLLER),
    SLICE(hl_policy_rows, placement.params, HL_CONTROLLER),
    SLICE(hl_rpc_controller_rows, calls, HL_CLI),
    SLICE(hl_rpc_agent_rows, calls, HL_AGENT),
    SLICE(hl_rpc_rows, calls, HL_CONTROLLER | HL_AGENT | HL_CLI),
    SLICE(hl_l3d_rows, l3d, HL_L3D),
    SLICE(hl_pool_rows, pool, L3D_AGENT),
    SLICE(hl_tier_rows, tier, L3D_AGENT),
    SLICE(hl_archive_rows, archive, HL_L3D),
    SLICE(hl_l4_rows, l4, HL_L3D),
    SLICE(hl_agent_rows, agent, HL_AGENT),
    SLICE(store_rows, agent.store, HL_AGENT),
    SLICE(hl_device_rows, device, HL_AGENT),
    SLICE(hl_plank_rows, plank, HL_AGENT),
    SLICE(hl_net_server_rows, data, L3D_AGENT),
    SLICE(hl_net_connect_rows, data, L3D_AGENT),
    SLICE(hl_net_client_rows, data, HL_AGENT),
    SLICE(hl_migrate_rows, migrate, HL_AGENT),
    SLICE(hl_read_retry_rows, read, L3D_AGENT),
    SLICE(hl_read_timeout_rows, read, HL_AGENT),
    {&background_rows, 0, L3D_AGENT},
};

const struct hl_conf_schema program_schema = {.slices = slices, .count = HL_ARRAY_LEN(slices)};

hl_status program_conf_load(enum hl_program program, int argc, char **argv,
                            struct program_conf *conf, int *rest)
{
    return hl_conf_load(&program_schema, program, argc, argv, conf, &conf->conf, rest);
}

void program_conf_fini(struct program_conf *conf)
{
    hl_conf_fini(&conf->conf);
}
