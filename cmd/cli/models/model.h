/* cmd/cli/models/model.h - a model of the catalogue, for the commands that work on its versions.
 *
 * Owns:    nothing; what is read lives in the caller's arena.
 * Threads: one.
 * Errors:  a name that is not UTF-8 is a usage error; HL_ENOENT: no such model or version.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CMD_CLI_MODELS_MODEL_H
#define HL_CMD_CLI_MODELS_MODEL_H

#include "cli/cli/cli.h"

hl_status model_get(struct cli *cli, const char *name, struct hl_arena *arena,
                    struct hl_api_model *out) HL_CHECK;
/* Finds a version; borrowed from the model. version -1: the newest visible one. */
hl_status model_find_version(const struct hl_api_model *model, int64_t version,
                             const struct hl_api_model_version **out) HL_CHECK;

#endif
