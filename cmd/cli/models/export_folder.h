/* cmd/cli/models/export_folder.h - what is in a directory that an export shall write into.
 *
 * A loader takes what it finds, so files of two exports must not be there together. A file of an
 * earlier one is in the way until it is replaced on order; then all of them go before the first new
 * one has its name. What a loader could take too and such an export does not write is always in the
 * way: tensors of another form.
 * All else, as a tokenizer, stays.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  HL_EEXIST names the first file in the way; what can't be listed or removed, with the
 *          path.
 * Units:   none.
 * Limits:  exports into one directory at a time; ranks of one layout may be written by several.
 */
#ifndef HL_CMD_CLI_MODELS_EXPORT_FOLDER_H
#define HL_CMD_CLI_MODELS_EXPORT_FOLDER_H

#include <stdbool.h>

#include "base/status.h"
#include "core/torch/megatron.h"

/* A Hugging Face checkpoint, its optimizer state and adapters: all of them go with each other. */
hl_status hf_folder_check(const char *dir, bool replace) HL_CHECK;
/* config.json goes first: what is left of a checkpoint is none. */
hl_status hf_folder_clear(const char *dir) HL_CHECK;

/* Files of ranks, or Megatron's folders of them. */
struct ranks_folder {
    const char *dir;
    bool torch;
    struct hl_megatron_sizes sizes; /* tp, pp, ep of the export */
    int64_t pp, tp, ep;             /* the ranks it writes; -1 = any. Others of the layout stay. */
};

#define RANKS_FILE ".safetensors" /* behind the name of a rank's folder */

hl_status ranks_folder_check(const struct ranks_folder *f, bool replace) HL_CHECK;
hl_status ranks_folder_clear(const struct ranks_folder *f) HL_CHECK;

#endif
