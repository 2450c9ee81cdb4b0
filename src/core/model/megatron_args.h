/* core/model/megatron_args.h - the arguments with which Megatron-LM would have been started to
 * train a model.
 *
 * Megatron keeps them in a checkpoint as 'args'. It compares them at load (check_checkpoint_args),
 * takes them over with --use-checkpoint-args (load_args_from_checkpoint), and its converter
 * (tools/checkpoint/convert.py) needs them. Names and types are those of megatron/training/
 * arguments.py. An argument that does not follow from the model's config is left out: Megatron then
 * uses its command line or its default.
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
    enum hl_dtype dtype; /* dtype of the weights */
    bool mtp;            /* the version has multi-token prediction layers */
    int64_t iteration;
};

/* args: in the form of hl_torchzip_options.args. notes: an array of sentences, one for each
 * property of the model that Megatron's arguments cannot express. HL_ENOENT: there is no Hugging
 * Face config. */
hl_status hl_megatron_args_make(const struct hl_megatron_args *in, json_t **args,
                                json_t **notes) HL_CHECK;
/* The command-line flags that Megatron needs in addition to --use-checkpoint-args to build the
 * model of the args, because it does not take them over from a checkpoint. free(). */
hl_status hl_megatron_flags(const json_t *args, char **out) HL_CHECK;

#endif
