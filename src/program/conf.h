/* program/conf.h - all options of Helios's programs: the slices of all modules.
 *
 * A program passes each module its own slice (`&conf.data` to code that opens connections). The
 * rows of a slice, with defaults and ranges, are in the module's conf.c.
 *
 * Owns:    the texts; end with program_conf_fini.
 * Threads: one at a time while it is loaded; afterwards it is read-only and may be read anywhere.
 * Errors:  those of hl_conf_load.
 * Units:   those of the fields.
 * Limits:  must not be moved once it is loaded.
 */
#ifndef HL_PROGRAM_CONF_H
#define HL_PROGRAM_CONF_H

#include "agent/agent.h"
#include "auth/conf.h"
#include "conf/conf.h"
#include "conf/planes.h"
#include "controller/controller.h"
#include "fetch/conf.h"
#include "l3d/l3d.h"
#include "mem/archive/archive.h"
#include "mem/device/device.h"
#include "mem/plank/plank.h"
#include "mem/pool/pool.h"
#include "mem/tier/tier.h"
#include "net/conf.h"
#include "net/zmq/migrate.h"
#include "rpc/conf.h"

/* Options of a daemon, apart from its service. */
struct program_daemon_conf {
    const char *log_level;
    const char *log_file; /* "" = stderr */
    uint64_t log_max_size;
    int log_keep;
    const char *ready_file;     /* "" = none */
    const char *metrics_listen; /* "" = none */
};

struct program_conf {
    struct hl_conf conf; /* where each value comes from */
    struct program_daemon_conf daemon;
    struct hl_plane_conf planes;
    struct hl_auth_conf auth;
    struct hl_rpc_conf calls;
    struct hl_controller_opts controller;
    struct hl_kube_opts kube;
    struct hl_placement_conf placement;
    struct hl_l3d_opts l3d;
    struct hl_pool_options pool;
    struct hl_tier_limits tier;
    struct hl_archive_options archive;
    struct l4_opts l4;
    struct hl_agent_opts agent; /* with .store */
    struct hl_device_options device;
    struct hl_plank_options plank;
    struct hl_net_conf data;
    struct hl_migrate_tuning migrate;
    struct hl_read_conf read;
    int copy_nice;
};

extern const struct hl_conf_schema program_schema;

/* Calls hl_conf_load for *conf, which must be zeroed. */
hl_status program_conf_load(enum hl_program program, int argc, char **argv,
                            struct program_conf *conf, int *rest) HL_CHECK;
/* Zero-initialised is fine. */
void program_conf_fini(struct program_conf *conf);

#endif
