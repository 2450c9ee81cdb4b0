/* cmd/cli/models/export_folder.h - checks and clears the directory that an export writes into.
 *
 * A loader takes whatever it finds, so a directory must not contain files of two exports. A file of
 * an earlier export is refused unless the user asks to replace it; then all such files are removed
 * before the first new one gets its name. Files that a loader could also take, but that this kind
 * of export does not write (tensors in another form), are always refused. Anything else, such as a
 * tokenizer, stays.
 *
 * Owns:    nothing.
 * Threads: one.
 * Errors:  HL_EEXIST names the first refused file; other errors name the path that can't be listed
 *          or removed.
 * Units:   none.
 * Limits:  one export per directory at a time; several can write different ranks of one layout.
 */
#ifndef HL_CMD_CLI_MODELS_EXPORT_FOLDER_H
#define HL_CMD_CLI_MODELS_EXPORT_FOLDER_H

#include <stdbool.h>

#include "base/status.h"
#include "core/torch/megatron.h"

/* For a Hugging Face checkpoint, its optimizer state and adapters: these belong together. */
hl_status hf_folder_check(const char *dir, bool replace) HL_CHECK;
/* Removes config.json first, so that what is left is never taken for a checkpoint. */
hl_status hf_folder_clear(const char *dir) HL_CHECK;

/* A directory with files of ranks, or with Megatron's folders of them. */
struct ranks_folder {
    const char *dir;
    bool torch;
    struct hl_megatron_sizes sizes; /* tp, pp, ep of the export */
    int64_t pp, tp, ep;             /* the ranks that it writes; -1 = any. Others stay. */
};

#define RANKS_FILE ".safetensors" /* follows the name of a rank's folder */

hl_status ranks_folder_check(const struct ranks_folder *f, bool replace) HL_CHECK;
hl_status ranks_folder_clear(const struct ranks_folder *f) HL_CHECK;

#endif
