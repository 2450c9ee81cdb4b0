/* cmd/cli/models/logical.h - a version as its logical tensors, whatever layout it is stored in.
 *
 * The headers of all shards are read at once, the data on demand: a shard is mapped when the first
 * of its tensors is read, until logical_unmap.
 *
 * Owns:    struct logical_version owns headers, plans and mapped shards (logical_close); its client
 *          and the arena of its texts are borrowed.
 * Threads: one.
 * Errors:  those of the Controller, of libhelios and of core/reshard/whole.h.
 * Units:   bytes.
 * Limits:  needs memory for the mapped shards if they come from another host.
 */
#ifndef HL_CMD_CLI_MODELS_LOGICAL_H
#define HL_CMD_CLI_MODELS_LOGICAL_H

#include "cli/models/stored.h"
#include "core/reshard/proof.h"
#include "core/reshard/reshard_state.h"
#include "core/reshard/whole.h"

/* A stored tensor that is part of logical ones. */
struct logical_source {
    size_t shard;
    const struct hl_tensor *t;
    uint32_t crc32;
    bool has_crc;
};

struct logical_tensor {
    const char *name;
    const struct hl_tensor *t; /* dtype, shape and size; its name can differ */
    size_t part;               /* tensors with the same part come from the same shards */
    const struct hl_reshard_op *ops;
    uint32_t op_count;
    const struct logical_source *sources; /* by the operations' `tensor` */
};

/* A shard, its header and its mapping. */
struct logical_shard {
    const struct hl_api_shard *shard;
    struct hl_safetensors header;
    bool opened;
    unsigned char *planned; /* per tensor: a logical tensor uses it */
    const void *data;       /* NULL = not mapped */
};

struct logical_version {
    struct cli *cli;
    helios_client *client;
    struct hl_arena *arena;
    struct stored_version stored;
    struct logical_shard *shards; /* by place */
    size_t shard_count;
    struct hl_whole whole;
    struct logical_source *held; /* by the tensors of whole.ranks; in the arena */
    struct hl_reshard_state state;
    struct hl_reshard_plan state_plan;
    struct logical_tensor *tensors;
    size_t count, cap;
    size_t parts;
};

/* Lists the shards and reads their headers; call logical_close, also after a failure. */
hl_status logical_open(struct logical_version *v, struct cli *cli, helios_client *client,
                       const char *model, int64_t version, struct hl_arena *arena) HL_CHECK;
/* Plans the tensors under their global names; with `all` also those of optimizer state. After a
 * failure there are none: nothing says how the version is cut, or it does not match its config. */
hl_status logical_plan(struct logical_version *v, bool all) HL_CHECK;
/* Adds every stored tensor that none of them uses, under its place: "pp0/tp1/layer-0003: NAME".
 * These are tensors of parameters; with `all` also of state and blobs of modules. */
hl_status logical_add_rest(struct logical_version *v, bool all) HL_CHECK;
/* How many tensors that would add. */
uint64_t logical_count_rest(const struct logical_version *v, bool all);
/* Forgets the tensors; the version is again as after logical_open. */
void logical_forget(struct logical_version *v);
/* Reads bytes [begin, end) of a tensor, whole elements. */
hl_status logical_read(struct logical_version *v, const struct logical_tensor *t, uint64_t begin,
                       uint64_t end, void *out) HL_CHECK;
/* Proves from the checksums in the headers that the ranks hold every element of the optimizer state
 * once, and that replicas are equal. A refutation names tensor, range and ranks. *proved false: it
 * can't be decided, and `why` says why. */
hl_status logical_prove_state(const struct logical_version *v, bool *proved,
                              char why[HL_PROOF_WHY_MAX]) HL_CHECK;
void logical_unmap(struct logical_version *v);
void logical_close(struct logical_version *v);

#endif
