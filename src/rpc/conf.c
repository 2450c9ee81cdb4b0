/* The options of rpc/conf.h. */
#include "rpc/conf.h"

/* clang-format off */
#define AT(field) HL_OPTION_FIELD(struct hl_rpc_conf, field)
static const struct hl_option rpc_controller_options[] = {
    {"controller.address", "--controller", "",
     "RPC address of the Controller that the command line calls if there is no local cluster; "
     "empty for agent.controller. HELIOS_CONTROLLER takes precedence.",
     HL_OPT_STRING, 0, 0, NULL, AT(controller)},
};

static const struct hl_option rpc_agent_options[] = {
    {"agent.controller", "--controller", "127.0.0.1:7400",
     "RPC address of the Controller.",
     HL_OPT_STRING, 0, 0, NULL, AT(agent_controller)},
};

static const struct hl_option rpc_options[] = {
    {"rpc.timeout", "--rpc-timeout", "10s",
     "Deadline of one remote call.",
     HL_OPT_DURATION, 10, 3600000, NULL, AT(timeout_ms)},
};
/* clang-format on */

const struct hl_option_rows hl_rpc_controller_rows = HL_OPTION_ROWS(rpc_controller_options);
const struct hl_option_rows hl_rpc_agent_rows = HL_OPTION_ROWS(rpc_agent_options);
const struct hl_option_rows hl_rpc_rows = HL_OPTION_ROWS(rpc_options);
