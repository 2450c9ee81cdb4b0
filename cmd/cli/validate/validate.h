/* cmd/cli/validate/validate.h - shared by the rows of `helios validate`: the state of the cluster,
 * a scratch model, orders for copies of its shards, ranks that read them, and deadlines.
 *
 * A row is a function that carries something out and reports what it found (struct found). It uses
 * only free room and removes what it makes; the scratch model is removed at the end in any case.
 *
 * Owns:    struct validation: its arena, the scratch model, its job.
 * Threads: one.
 * Errors:  a row's error means that the row has failed; HL_ECANCELED: the user has stopped it.
 * Units:   bytes; ns of the monotonic clock; per cent, microseconds and GB/s of figures.
 * Limits:  VALIDATE_NODES_MAX nodes are examined.
 */
#ifndef HL_CMD_CLI_VALIDATE_VALIDATE_H
#define HL_CMD_CLI_VALIDATE_VALIDATE_H

#include "base/clock.h"
#include "cli/cli/cli.h"
#include "core/validation/judge.h"
#include "helios/helios.h"
#include "hw/topology.h"

#define VALIDATE_NODES_MAX 64
#define VALIDATE_POLL_MS   50
#define VALIDATE_NAME      "helios-validate-" /* of models and jobs, followed by random digits */

struct validate_args {
    char *rows, *topology;
    uint64_t time_ms, row_ms, size;
    int64_t reads, copies;
    /* targets */
    double min_plank, min_direct, min_fallback, min_write, max_loss;
    double max_read_cx4, max_read_cx6, max_plank_us;
};

/* ---- the cluster ---- */

/* A node that is ready and has an L2. */
struct vnode {
    const char *name, *host, *agent, *data, *migrate;
    uint64_t l2_free;
    uint64_t l1_bytes, l1_used; /* of all its devices; including HybridPS's chunks */
    uint64_t l1_free;           /* of the device with the most */
    unsigned devices;
    bool emulated; /* one of its devices is emulated */
    enum hl_nic_class nic;
    bool nic_direct;
    const char *nic_from; /* "" = from its hardware, otherwise who said so */
};

struct facts {
    struct vnode nodes[VALIDATE_NODES_MAX];
    size_t count;
    bool kubernetes;
    const char *l3_address, *l3_host, *l3_data;
    uint64_t pool_free;
    /* the Controller's options */
    const char *policy;
    double high_pct, low_pct, fluidity_high;
    uint64_t residence_ms, interval_ms, grace_ms;
};

/* ---- the scratch model ---- */

enum scratch_kind {
    SCRATCH_HOT, /* two that ranks read often */
    SCRATCH_COLD = 2,
    SCRATCH_SMALL = SCRATCH_COLD + 24, /* for latency */
    SCRATCH_LARGE,                     /* for bandwidth */
    SCRATCH_KINDS
};

struct scratch_shard {
    char id[HL_ID_TEXT_LEN + 1];
    helios_id key;
    uint64_t size;
    uint32_t crc32;
};

/* ---- rows ---- */

/* The result of a row. Texts are in the arena. */
struct found {
    struct hl_api_validation_row row;
    struct hl_target target;
};

/* Measured once for two rows; see speed.c. */
struct speeds {
    bool read_known, plank_known;
    double read_us;
    char read_path[16];
    enum hl_nic_class nic; /* of this host */
    double plank_us, plank_loss_pct;
    const struct vnode *plank_node; /* NULL: there is none */
    char plank_transport[16];
};

/* The effect of the ranks' reads; see policy.c. */
struct localized {
    bool known;
    struct hl_tally hot, cold; /* go to the readers' L2; stay out of it */
    uint32_t accesses;         /* accesses of a hot shard that the Controller counted */
    bool placed;               /* hot shards are in that L2 */
    uint64_t placed_ns;
};

struct validation {
    struct cli *cli;
    const struct validate_args *args;
    struct hl_topo topology; /* of the file that args names; else empty */
    struct hl_arena arena;
    uint64_t begun_ns, end_ns, row_end_ns;
    struct facts facts;
    char model[64], job[CLI_JOB_ID_MAX];
    bool made; /* the model exists */
    struct scratch_shard shards[SCRATCH_KINDS];
    unsigned cold_count; /* 0: L1 is not filled, no_fill says why */
    const char *no_fill;
    uint64_t bytes;
    int reader; /* index of the node whose ranks read; -1: none did, and no_reader says why */
    const char *no_reader;
    enum hl_api_validation_result no_reader_result;
    struct localized local;
    struct speeds speeds;
};

/* row.c */
/* Formats a text in the arena; "" if out of memory, which shows at the end. */
const char *validate_text(struct validation *v, const char *fmt, ...) HL_PRINTF(2, 3);
void found_text(struct validation *v, struct found *f, const char *fmt, ...) HL_PRINTF(3, 4);
/* Records that the row is not carried out. */
hl_status found_missing(struct validation *v, struct found *f, enum hl_api_validation_result result,
                        const char *fmt, ...) HL_PRINTF(4, 5);
/* Compares the figure with the row's target. */
void found_judge(struct found *f, double figure);
/* Judges copies into devices of the node: the good ones of the tally took the path and arrived
 * intact. */
void found_paths(struct validation *v, struct found *f, const struct vnode *n,
                 enum hl_api_route_path path, struct hl_tally tally);

/* From now on SIGINT, SIGTERM and SIGHUP end the validation between two steps. */
void validate_stop_on_signals(void);
bool validate_is_stopped(void);
/* HL_ECANCELED after a signal, HL_ETIMEDOUT after the row's end. */
hl_status validate_check(const struct validation *v) HL_CHECK;
/* Time until the row's end, at least 1. */
int validate_left_ms(const struct validation *v);
/* Pauses between two checks, then calls validate_check. */
hl_status validate_pause(const struct validation *v) HL_CHECK;

/* facts.c */
hl_status facts_gather(struct validation *v) HL_CHECK;
/* How much of its L1 is used now, according to its Agent. */
hl_status facts_l1_used(struct validation *v, const struct vnode *n, uint64_t *out) HL_CHECK;
bool facts_same_host(const struct vnode *a, const struct vnode *b);
/* Whether the node is on the pool's host. */
bool facts_is_pools(const struct validation *v, const struct vnode *n);

/* scratch.c */
/* Makes a scratch model that fits the free room. HL_ENOSPC: not even the smallest one fits. */
hl_status scratch_make(struct validation *v) HL_CHECK;
/* Removes the scratch model, also after a signal or a failure. */
hl_status scratch_remove(struct validation *v) HL_CHECK;
hl_status scratch_client(struct validation *v, const char *path, helios_client **out) HL_CHECK;

/* orders.c */
/* Has the Controller make a copy; node NULL: on the L3 host. */
hl_status order_copy(struct validation *v, const struct scratch_shard *s, const struct vnode *node,
                     enum hl_api_tier tier, enum hl_api_operation op,
                     struct hl_api_copy *out) HL_CHECK;
hl_status order_drop(struct validation *v, const struct scratch_shard *s, const struct vnode *node,
                     enum hl_api_tier tier) HL_CHECK;
/* Has the copy's holder read it completely. */
hl_status order_verify(struct validation *v, const struct scratch_shard *s,
                       const struct vnode *node, enum hl_api_tier tier, bool *good) HL_CHECK;
/* Sends the order directly to the Agent, without the Controller. */
hl_status order_agent_copy(struct validation *v, const struct vnode *at,
                           const struct hl_api_copy_request *request,
                           struct hl_api_copy *out) HL_CHECK;
hl_status order_agent_send(struct validation *v, const struct vnode *at,
                           const struct hl_api_copy_request *request,
                           struct hl_api_copy *out) HL_CHECK;
hl_status order_agent_drop(struct validation *v, const struct vnode *at,
                           const struct scratch_shard *s, enum hl_api_tier tier) HL_CHECK;

/* readers.c */
/* Chooses the node for the ranks; says why there is none. */
hl_status readers_plan(struct validation *v) HL_CHECK;
/* Runs a job whose ranks read the hot shards often and the cold ones once. */
hl_status readers_run(struct validation *v) HL_CHECK;
/* Ends the job if it still runs. */
hl_status readers_stop(struct validation *v) HL_CHECK;

/* The rows. */
hl_status row_paths_device(struct validation *v, struct found *f);     /* paths.c */
hl_status row_paths_operations(struct validation *v, struct found *f); /* paths.c */
hl_status row_plank_cx4(struct validation *v, struct found *f);        /* plank.c */
hl_status row_plank_cx6(struct validation *v, struct found *f);
hl_status row_plank_fallback(struct validation *v, struct found *f);
hl_status row_localize(struct validation *v, struct found *f); /* policy.c */
hl_status row_low_water(struct validation *v, struct found *f);
hl_status row_high_water(struct validation *v, struct found *f);
hl_status row_fluidity(struct validation *v, struct found *f); /* fluidity.c */
hl_status row_read_cx4(struct validation *v, struct found *f); /* speed.c */
hl_status row_read_cx6(struct validation *v, struct found *f);
hl_status row_write(struct validation *v, struct found *f);
hl_status row_plank_latency(struct validation *v, struct found *f);
hl_status row_plank_bandwidth(struct validation *v, struct found *f);

/* policy.c, for the other rows about L1 of the readers' node */
hl_status policy_look(struct validation *v, const struct scratch_shard *s, struct hl_arena *arena,
                      struct hl_api_shard_placement *out) HL_CHECK;
bool policy_is_on(const struct validation *v);
/* False: `f` says what is missing. */
bool policy_may_run(struct validation *v, struct found *f);
bool policy_has_l1(struct validation *v, struct found *f);
/* Brings the hot shards to L2 of the readers' node by reading them, and waits for it; only done
 * once. */
hl_status policy_place(struct validation *v) HL_CHECK;
/* Whether the row has this much time left; false: `f` says how much is needed. */
bool policy_has_time(struct validation *v, struct found *f, uint64_t wait_ms);
/* Removes all copies of cold and hot shards from L1. */
hl_status policy_empty_l1(struct validation *v) HL_CHECK;
/* The used share of that L1. */
double policy_l1_pct(const struct validation *v, uint64_t used);

#endif
