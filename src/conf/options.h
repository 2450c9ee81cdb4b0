/* conf/options.h - one table of options: defaults < YAML file < environment < flags.
 *
 * A row of the table says everything about an option: its name ("l3.size"), flag ("--size"),
 * default as text, help, kind, range and where it lands in a struct. The same rows make the parser,
 * --help and `helios conf`. The daemons' rows are src/conf/table.c and land in
 * struct hl_conf; a subcommand of the CLI brings its own rows and struct (hl_args_parse).
 *
 * Owns:    the texts in the target struct and the origins; end with hl_conf_fini / hl_args_fini.
 * Threads: one at a time; afterwards the struct is read-only and may be read anywhere.
 * Errors:  HL_EINVAL with the flag, variable or FILE:LINE:COL, what is allowed, and "did you mean".
 *          A configuration file that exists and cannot be read is an error.
 *          HL_ECANCELED when --help or --version was answered on stdout: the program exits with 0.
 * Units:   bytes, milliseconds, bits per second, percent.
 * Limits:  HL_OPTIONS_MAX rows.
 */
#ifndef HL_CONF_OPTIONS_H
#define HL_CONF_OPTIONS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "api/types.h"
#include "base/buf.h"
#include "base/status.h"
#include "base/text.h"

#define HL_OPTIONS_MAX 128

enum hl_option_kind {
    HL_OPT_STRING,   /* char *, never NULL */
    HL_OPT_PATH,     /* char *, "~/" is the home directory */
    HL_OPT_ENUM,     /* char *, one of `choices` */
    HL_OPT_INT,      /* int64_t */
    HL_OPT_BYTES,    /* uint64_t; "512MiB", "2GB", "4096" */
    HL_OPT_DURATION, /* uint64_t, ms; "500ms", "10s", "5m", "2h", a plain number is ms */
    HL_OPT_RATE,     /* uint64_t, bits per second; "100Gbit", "2.5Gbit" */
    HL_OPT_PERCENT,  /* double; "85" or "85%" */
    HL_OPT_BOOL,     /* int64_t 0 or 1; a flag without value means 1, --no-FLAG means 0 */
};

/* Which programs know a row. */
enum hl_program {
    HL_CONTROLLER = 1 << 0,
    HL_L3D = 1 << 1,
    HL_AGENT = 1 << 2,
    HL_CLI = 1 << 3,
};

#define HL_DAEMONS (HL_CONTROLLER | HL_L3D | HL_AGENT)

struct hl_option {
    const char *name; /* "l3.size"; also HELIOS_L3_SIZE */
    const char *flag; /* "--size" */
    const char *text; /* default, parsed like any other value; "" = none where the help says so */
    const char *help; /* one sentence */
    enum hl_option_kind kind;
    int64_t min, max;    /* INT, BYTES, DURATION, PERCENT; both 0 = no check */
    const char *choices; /* ENUM: "a|b|c" */
    size_t offset;       /* of the field in the target struct */
    unsigned programs;   /* enum hl_program bits; ignored by hl_args_parse */
};

/* Every option of the daemons, and of libhelios in their ranks. Fields follow the table's order. */
struct hl_conf {
    enum hl_program program;
    char *log_level;
    char *log_file; /* "" = stderr */
    uint64_t log_max_size;
    int64_t log_keep;
    char *ready_file;

    char *plane_backbone; /* address, CIDR or interface; "" = loopback */
    uint64_t plane_backbone_rate;
    char *plane_migration;
    uint64_t plane_migration_rate;
    char *plane_management;
    uint64_t plane_management_rate;
    char *auth_secret_file; /* "" = none */
    char *metrics_listen;   /* "" = none */

    char *controller_listen;   /* RPC; see conf/planes.h for all that listen */
    char *controller_state;    /* directory of the metadata */
    char *controller_l3;       /* RPC address of helios-l3d */
    char *controller_executor; /* agents | kubernetes */
    char *controller_address;  /* that the CLI calls; "" = agent_controller */
    char *kube_config;         /* "" = as kubectl finds it */
    char *kube_master;         /* "" = the kubeconfig's */
    char *kube_namespace;      /* "" = the context's */
    char *kube_queue;
    char *kube_device; /* resource; "" = none */
    int64_t kube_slot_devices;
    char *kube_topology_policy;
    uint64_t kube_keep_ms;

    char *l3_name;
    char *l3_listen;      /* RPC */
    char *l3_data_listen; /* port 0 = any, "" = none */
    uint64_t l3_size;
    char *l3_pool;             /* file; "" = /dev/shm/helios-UID-NAME.pool */
    char *l3_numa;             /* auto, off or nodes */
    char *l3_socket;           /* "" = pool path + ".sock" */
    int64_t l3_import_threads; /* 0 = one per CPU */
    int64_t l3_prefault;
    uint64_t l3_quarantine_ms;
    uint64_t l3_lease_ms;
    uint64_t l3_beat_ms;
    int64_t l3_remove_pool;

    double tier_high, tier_low; /* percent */

    char *archive_url;      /* "" = none */
    uint64_t archive_quota; /* 0 = none */
    char *archive_mode;     /* manual | write-behind */
    int64_t archive_threads;
    uint64_t archive_load_timeout_ms;
    uint64_t archive_hold_ms;
    uint64_t archive_retry_ms;
    uint64_t archive_trash_keep_ms;
    char *archive_s3_endpoint; /* "" = AWS's */
    char *archive_s3_region;
    char *archive_s3_credentials; /* file; "" = environment */
    uint64_t archive_s3_part;
    uint64_t archive_s3_timeout_ms;

    char *agent_name;   /* "" = host name */
    char *agent_listen; /* RPC */
    char *agent_controller;
    char *agent_state;    /* directory of container records and logs */
    char *agent_executor; /* process */
    char *agent_topology; /* hwloc XML; "" = this machine */
    char *agent_share;    /* "I/N[xM]": share I of N of this machine, M slots; "" = the machine */
    char *agent_rank_address; /* "" = address of the interface that reaches the Controller */
    char *agent_python;       /* directory put on the ranks' PYTHONPATH; "" = beside the program */
    uint64_t agent_log_max;   /* bytes kept of one rank's output */
    int64_t agent_stop_containers; /* when the agent ends */

    uint64_t agent_l2_size;   /* 0 = none */
    char *agent_l2_pool;      /* file; "" = /dev/shm/helios-UID-NAME.l2 */
    char *agent_devices;      /* "emu:512MiB,cuda:0" */
    char *device_cuda_driver; /* "" = libcuda.so.1 */
    uint64_t plank_piece;
    int64_t plank_buffers;
    char *agent_data_listen;    /* "" = none */
    char *agent_migrate_listen; /* ZeroMQ; "" = none */
    char *agent_nic_class;
    char *agent_host_id; /* "" = the system's */
    int64_t agent_copies;
    uint64_t agent_chunk_memory;

    uint64_t migrate_chunk;
    uint64_t migrate_window;
    uint64_t migrate_keep_ms;
    uint64_t migrate_dead_ms;
    int64_t migrate_io_threads;
    char *migrate_zstd; /* as hl_migrate_zstd_parse takes it */

    uint64_t heartbeat_ms;
    uint64_t node_lost_ms;
    uint64_t nodes_lost_after_ms;
    uint64_t rpc_timeout_ms;
    int64_t read_retries;
    int64_t read_retry_pause_ms;
    uint64_t read_timeout_ms;
    uint64_t copy_timeout_ms;
    uint64_t copy_locate_timeout_ms;
    uint64_t route_retry_first_ms;
    uint64_t route_retry_max_ms;

    int64_t data_spin_us;
    int64_t data_put_queue;
    uint64_t data_put_timeout_ms;
    uint64_t data_connect_timeout_ms;
    int64_t data_endpoints;
    uint64_t data_batch_bytes;
    uint64_t data_batch_ms;
    uint64_t data_stall_ms;
    uint64_t data_rdma_retry_ms;

    uint64_t job_start_timeout_ms;
    uint64_t job_stop_grace_ms;
    uint64_t job_stop_resend_ms;
    int64_t versions_keep;
    int64_t jobs_keep;
    uint64_t jobs_keep_age_ms;
    int64_t nodes_keep;
    uint64_t nodes_keep_age_ms;
    uint64_t gc_interval_ms;
    uint64_t gc_grace_ms;

    char *origin[HL_OPTIONS_MAX]; /* per row of the table, in its order */
};

/* Zero-initialise `conf` before. Reads defaults, configuration files, environment and flags of the
 * program, in this order. The file is --config FILE, else HELIOS_CONFIG (empty: no file at all);
 * without either /etc/helios/helios.yaml and then the user's, where they exist. Parsing of flags
 * stops at the first argument that is not one, or after
 * "--": *rest is its index in argv (argc when there is none). rest NULL: further arguments are an
 * error. */
hl_status hl_conf_load(enum hl_program program, int argc, char **argv, struct hl_conf *conf,
                       int *rest) HL_CHECK;
void hl_conf_fini(struct hl_conf *conf);
/* Path of the user's configuration file, which need not exist: $XDG_CONFIG_HOME/helios/helios.yaml,
 * else ~/.config/helios/helios.yaml. False when neither directory is known. */
bool hl_conf_user_file(char *out, size_t cap);
/* "default", "file PATH:LINE", "environment NAME" or "flag --NAME"; NULL: no such option. Borrowed.
 */
const char *hl_conf_origin(const struct hl_conf *conf, const char *name);
/* The option has been given: its origin is not "default". */
bool hl_conf_is_set(const struct hl_conf *conf, const char *name);
/* Tell whoever started the daemon that it serves: `doc` (its reference is taken) and the pid go to
 * ready_file. Nothing happens without one. */
hl_status hl_conf_announce(const struct hl_conf *conf, json_t *doc) HL_CHECK;
/* New reference: [{"name", "value", "origin", "default", "help", "flag", "argument", "env",
 * "programs"}] of the rows of conf's program (all rows for HL_CLI). Passwords in URLs are masked.
 */
json_t *hl_conf_dump(const struct hl_conf *conf);
/* New reference: names of the environment variables of all options. */
json_t *hl_conf_variables(void);
/* A value of hl_conf_dump as people write it, "1GiB" for 1073741824; caller frees, NULL when out of
 * memory. */
char *hl_conf_text(const char *name, const char *value);
/* The value is a URL with a password in it. */
bool hl_conf_has_password(const char *value);
/* A daemon makes its options known to whoever asks it by RPC; once, before it serves. */
hl_status hl_conf_publish(const struct hl_conf *conf) HL_CHECK;
/* What was published, as an answer's list that borrows from it; empty before. */
struct hl_api_option_value_list hl_conf_in_force(struct hl_arena *arena);
/* The --help text of a program; caller frees. NULL when out of memory. */
char *hl_conf_help(enum hl_program program);

/* For a subcommand: flags of `rows` and positional arguments, in any order, into *target (zeroed by
 * the caller). Positional arguments are moved to the front of argv; *rest_count says how many.
 * `usage` is the first line of --help ("helios submit FILE [options]"). argv[0] is the first
 * argument, not the name. */
hl_status hl_args_parse(const struct hl_option *rows, size_t count, const char *usage, int argc,
                        char **argv, void *target, int *rest_count) HL_CHECK;
/* The same, and *given (new reference) has what was given: {"l3_size": "1073741824"}, texts that
 * parse to the same value. */
hl_status hl_args_parse_given(const struct hl_option *rows, size_t count, const char *usage,
                              int argc, char **argv, void *target, int *rest_count,
                              json_t **given) HL_CHECK;
void hl_args_fini(const struct hl_option *rows, size_t count, void *target);
/* The lines of --help about `rows`, one option each. */
void hl_args_help(const struct hl_option *rows, size_t count, struct hl_buf *out);
/* What stands for the option's value in --help: "N", "PATH", "a|b"; "" for a switch. */
const char *hl_option_value_word(const struct hl_option *row);

#endif
