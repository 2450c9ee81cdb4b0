/* core/model/megatron_args.h - the arguments Megatron-LM would have been started with to train a
 * model.
 *
 * Megatron keeps them in a checkpoint as 'args'. It compares them at load (check_checkpoint_args),
 * takes them over with --use-checkpoint-args (load_args_from_checkpoint), and its converter
 * (tools/checkpoint/convert.py) needs them. Names and types are those of megatron/training/
 * arguments.py. What a model's config does not tell is not there: Megatron then uses its command
 * line or its default.
 *
 * Owns:    the caller owns the results (json_decref).
 * Threads: any; pure.
 * Errors:  HL_EINVAL for a config that is not one of an imported model; HL_ENOMEM.
 * Units:   none.
 * Limits:  those of core/model/hf.h.
 */
#ifndef HL_CORE_MODEL_MEGATRON_ARGS_H
#define HL_CORE_MODEL_MEGATRON_ARGS_H

#include <jansson.h>

#include "core/model/naming.h"

struct hl_megatron_args {
    const char *config; /* JSON of hl_partition_config */
    enum hl_api_layer_naming naming;
    enum hl_dtype dtype; /* of the weights */
    bool mtp;            /* the version has the layers that predict more tokens */
    int64_t iteration;
};

/* args: as hl_torchzip_options.args. notes: an array of sentences, one for each property of the
 * model that Megatron's arguments cannot express. HL_ENOENT: the config has no Hugging Face
 * config. */
hl_status hl_megatron_args_make(const struct hl_megatron_args *in, json_t **args,
                                json_t **notes) HL_CHECK;
/* The command-line flags without which Megatron, given --use-checkpoint-args, would build another
 * model than that of the args: those that it does not take over from a checkpoint. free(). */
hl_status hl_megatron_flags(const json_t *args, char **out) HL_CHECK;

#endif
