/* mem/import/megatron.h - a Megatron checkpoint directory as the source of an import.
 *
 * The files are mapped, never read as a whole: what is needed of them at a time is in the page
 * cache, which the kernel takes back. Their pickles and tables stay in memory until the plan is
 * made, about 64 times a pickle's bytes, one file after the other.
 *
 * Owns:    hl_megatron_source owns mappings and plans (hl_megatron_source_close).
 * Threads: open and close from one thread; an open source is immutable.
 * Errors:  HL_EINVAL and HL_ENOENT name the file, the tensor and what to do; HL_EUNSUPPORTED.
 * Units:   bytes.
 * Limits:  4096 files; those of core/torch.
 */
#ifndef HL_MEM_IMPORT_MEGATRON_H
#define HL_MEM_IMPORT_MEGATRON_H

#include "core/reshard/reshard.h"
#include "core/reshard/reshard_state.h"
#include "core/reshard/whole.h"
#include "mem/import/import.h"

struct hl_mapped_file {
    char *path;
    int fd;
    int guard;
    uint64_t size;
    const uint8_t *bytes;
};

/* Bytes of a tensor that must be those of another one. */
struct hl_megatron_copy {
    uint32_t tensor; /* of the plan, which is compared with these */
    uint32_t file;
    const uint8_t *bytes;
};

/* What the checkpoint holds, of the parameters or of the optimizer, and what becomes of it. */
struct hl_megatron_held {
    const struct hl_partition_plan *plan;
    const uint8_t **bytes; /* of each tensor of the plan */
    uint32_t *file_of;     /* of each tensor of the plan */
    struct hl_megatron_copy *copies;
    size_t copy_count;
    size_t copy_cap;
    struct hl_partition_plan clip; /* torch_dist: pieces, which are the plan then */
    struct hl_reshard_plan moves;  /* from the plan to the target */
};

struct hl_megatron_source {
    const struct hl_partition_options *want; /* what the target is to be; while it is opened */
    char *folder;                            /* the iteration's */
    bool dist;                               /* torch_dist, else one file per rank */
    int64_t iteration;
    struct hl_mapped_file *files;
    size_t file_count;
    struct hl_whole whole;           /* config, logical tensors, and what the ranks hold */
    struct hl_partition_plan target; /* of the parameters */
    struct hl_megatron_held params;
    bool optimizer;                /* it is imported too */
    struct hl_reshard_state state; /* plans of the optimizer's state */
    struct hl_megatron_held optim;
    json_t *meta;                  /* object: hyper-parameters and the like, for the version */
    enum hl_api_vocab_padding pad; /* of the held plan */
    json_t *left_out;              /* texts: what the checkpoint has and the import has not */
};

/* Whether the directory is a Megatron checkpoint, or one iteration of it. */
bool hl_megatron_is_source(const char *dir);

struct hl_megatron_wanted {
    const char *iteration; /* a number or "release"; NULL or "" = what the tracker file names */
    const struct hl_partition_options *target;
    bool optimizer; /* its state too; HL_ENOENT, HL_EUNSUPPORTED where it can't be had */
};

/* out->target is a plan of wanted->target; `out` stays where it is. */
hl_status hl_megatron_source_open(const char *dir, const struct hl_megatron_wanted *wanted,
                                  struct hl_megatron_source *out) HL_CHECK;
/* Appends the shards of the optimizer's state to a plan of the parameters. */
hl_status hl_megatron_add_state(const struct hl_megatron_source *s,
                                struct hl_partition_plan *plan) HL_CHECK;
void hl_megatron_source_close(struct hl_megatron_source *s);
/* HL_EINVAL names a tensor whose copies differ; HL_ECANCELED. */
hl_status hl_megatron_compare(const struct hl_megatron_source *s,
                              const atomic_bool *cancel) HL_CHECK;
/* HL_EIO names a file that was cut short since it was opened. */
hl_status hl_megatron_check_files(const struct hl_megatron_source *s) HL_CHECK;

#endif
