/* mem/import/import.h - a checkpoint directory of Hugging Face or Megatron becomes sealed shards.
 * A single .safetensors or .bin file may be given instead; the config.json next to it is then used.
 *
 * A model without config.json, or of a type that no family's table describes, is stored unsliced:
 * as whole tensors, the way the *.safetensors files of the directory hold them. Its config says so,
 * and why. Any model can also be imported unsliced on request.
 *
 * The directory holds config.json and model.safetensors, or model.safetensors.index.json and the
 * files it names; without either, pytorch_model.bin or pytorch_model.bin.index.json and its files,
 * whose pickles are parsed but never executed. With a base it holds adapter_config.json and
 * adapter_model.safetensors instead. A Megatron checkpoint has latest_checkpointed_iteration.txt,
 * mp_rank_* folders or .metadata (megatron.h); config.json may lie next to these. Bytes go from the
 * page cache straight to where the sink wants the shard. Every byte is copied once, and checksummed
 * while it is in the cache. Hugging Face files are read with pread, so that a file truncated
 * meanwhile is an error instead of a SIGBUS, and its pages never count as this process's memory.
 *
 * Owns:    an hl_import owns its files, plan and config text until hl_import_close.
 * Threads: open and close from one thread; hl_import_run works in the calling thread and in
 *          threads of its own, which call sink and progress concurrently; it returns when they have
 *          ended. The cancel flag may be set from anywhere.
 * Errors:  one sentence with the file and the tensor or field. After a failed run, every shard it
 *          made has been aborted or discarded. HL_ECANCELED after cancel.
 * Units:   bytes; chunk CRCs are of every started MiB of a shard.
 * Limits:  10,000 files; 1..64 threads; headers take about twice their size in memory.
 */
#ifndef HL_MEM_IMPORT_H
#define HL_MEM_IMPORT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "core/model/partition.h"
#include "mem/sink.h"

struct hl_import_options {
    const char *dir;
    const char *model; /* recorded in the shards */
    int64_t version;
    struct hl_partition_options partition;
    const char *base; /* LoRA adapter: name of its base model; NULL or "" = the directory holds no
                         adapter */
    const char *iteration;   /* of a Megatron checkpoint; NULL or "" = the newest */
    bool optimizer;          /* Megatron checkpoint: import the optimizer's state too */
    bool unsliced;           /* keep tensors whole, whatever the model's family */
    const char *base_config; /* ImportProgress.config of it; it gives the split */
};

struct hl_import_run {
    const struct hl_import_sink *sink;
    int threads;               /* 0 = 2 */
    const atomic_bool *cancel; /* true = stop soon; NULL = never */
    void (*progress)(void *arg, uint64_t done_bytes,
                     uint64_t total_bytes); /* NULL = none; any worker */
    void *progress_arg;
    uint32_t *tensor_crcs; /* receives the CRC of every tensor of the plan, of its bytes as read;
                              NULL = none */
};

struct hl_import;

hl_status hl_import_open(const struct hl_import_options *options, struct hl_import **out) HL_CHECK;
void hl_import_close(struct hl_import *im);
/* Bytes of all shards, headers included. The sink must have room for them. */
uint64_t hl_import_total_bytes(const struct hl_import *im);
size_t hl_import_shard_count(const struct hl_import *im);
/* ImportProgress.config; borrowed. */
const char *hl_import_config(const struct hl_import *im);
/* JSON object for the version: what a Megatron checkpoint says of its optimizer; "" = nothing. */
const char *hl_import_meta(const struct hl_import *im);
const struct hl_partition_plan *hl_import_plan(const struct hl_import *im);
/* On success *shards has hl_import_shard_count() entries in the plan's order; free() it. */
hl_status hl_import_run(struct hl_import *im, const struct hl_import_run *run,
                        struct hl_import_shard **shards) HL_CHECK;

#endif
