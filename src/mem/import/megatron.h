/* mem/import/megatron.h - a Megatron checkpoint directory as the source of an import.
 *
 * The files are mapped, never read as a whole: the parts that are needed at a time lie in the page
 * cache, which the kernel can reclaim. Pickles and tables are parsed one file after the other and
 * stay in memory until the plan is made; they take about 64 times the size of a pickle.
 *
 * Owns:    hl_megatron_source owns mappings and plans (hl_megatron_source_close).
 * Threads: open and close from one thread; an open source is immutable.
 * Errors:  HL_EINVAL and HL_ENOENT name the file, the tensor and what to do; HL_EUNSUPPORTED.
 * Units:   bytes.
 * Limits:  4096 files; the limits of core/torch.
 */
#ifndef HL_MEM_IMPORT_MEGATRON_H
#define HL_MEM_IMPORT_MEGATRON_H

#include "core/reshard/reshard.h"
#include "core/reshard/reshard_state.h"
#include "core/reshard/whole.h"
#include "mem/import/file_mark.h"
#include "mem/import/import.h"

struct hl_mapped_file {
    char *path;
    int fd;
    int guard;
    uint64_t size;
    struct hl_file_mark mark;
    const uint8_t *bytes;
};

/* A second copy of a tensor, whose bytes must equal those of the first. */
struct hl_megatron_copy {
    uint32_t tensor; /* tensor of the plan that this copy is compared with */
    uint32_t file;
    const uint8_t *bytes;
};

/* What the checkpoint holds of the parameters, or of the optimizer, and how it maps to the
 * target. */
struct hl_megatron_held {
    const struct hl_partition_plan *plan;
    const uint8_t **bytes; /* of each tensor of the plan */
    uint32_t *file_of;     /* of each tensor of the plan */
    struct hl_megatron_copy *copies;
    size_t copy_count;
    size_t copy_cap;
    struct hl_partition_plan clip; /* torch_dist: the plan consists of these pieces */
    struct hl_reshard_plan moves;  /* from the plan to the target */
};

struct hl_megatron_source {
    const struct hl_partition_options *want; /* layout of the target; only set while opening */
    char *folder;                            /* the iteration's */
    bool dist;                               /* torch_dist, else one file per rank */
    int64_t iteration;
    struct hl_mapped_file *files;
    size_t file_count;
    struct hl_marked_texts texts;    /* config.json */
    struct hl_whole whole;           /* config, logical tensors, and what each rank holds */
    struct hl_partition_plan target; /* of the parameters */
    struct hl_megatron_held params;
    bool optimizer;                /* it is imported too */
    struct hl_reshard_state state; /* plans of the optimizer's state */
    struct hl_megatron_held optim;
    json_t *meta;                  /* object for the version: hyper-parameters and the like */
    enum hl_api_vocab_padding pad; /* of the held plan */
    json_t *left_out;              /* texts: what the checkpoint has but the import leaves out */
};

/* Whether the directory is a Megatron checkpoint, or one iteration of it. */
bool hl_megatron_is_source(const char *dir);

struct hl_megatron_wanted {
    const char *iteration; /* a number or "release"; NULL or "" = what the tracker file names */
    const struct hl_partition_options *target;
    bool optimizer; /* import its state too; HL_ENOENT or HL_EUNSUPPORTED if that is impossible */
};

/* out->target becomes a plan of wanted->target. `out` must not move while it is open. */
hl_status hl_megatron_source_open(const char *dir, const struct hl_megatron_wanted *wanted,
                                  struct hl_megatron_source *out) HL_CHECK;
/* Appends the shards of the optimizer state to a plan of the parameters. */
hl_status hl_megatron_add_state(const struct hl_megatron_source *s,
                                struct hl_partition_plan *plan) HL_CHECK;
void hl_megatron_source_close(struct hl_megatron_source *s);
/* HL_EINVAL names a tensor whose copies differ; HL_ECANCELED. */
hl_status hl_megatron_compare(const struct hl_megatron_source *s,
                              const atomic_bool *cancel) HL_CHECK;
/* HL_EIO names a file that was truncated, changed or replaced since it was opened. */
hl_status hl_megatron_check_files(const struct hl_megatron_source *s) HL_CHECK;

#endif
