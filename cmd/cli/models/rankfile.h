/* cmd/cli/models/rankfile.h - everything one (pp, tp) position loads, as one file.
 *
 * Goes through libhelios as a rank does. Headers are read first; the data of one part is mapped
 * only while it is written, so that a copy of one shard is the most that a remote reader holds.
 *
 * Owns:    struct rankfile owns the list and the headers (rankfile_fini).
 * Threads: one.
 * Errors:  those of libhelios, as hl_status with the same text.
 * Units:   bytes.
 * Limits:  headers of HL_SAFETENSORS_HEADER_MAX.
 */
#ifndef HL_CMD_CLI_MODELS_RANKFILE_H
#define HL_CMD_CLI_MODELS_RANKFILE_H

#include <jansson.h>

#include "cli/cli/cli.h"
#include "core/model/naming.h"
#include "core/model/part.h"
#include "helios/helios.h"

enum rankfile_kind {
    RANKFILE_MODEL,       /* parameters */
    RANKFILE_OPTIM,       /* optimizer state */
    RANKFILE_MODEL_OPTIM, /* both */
    RANKFILE_ALL,         /* and opaque blobs of modules */
};

struct rankfile_where {
    const char *model;
    int64_t version;
    int pp, tp, ep;
    const helios_split *split; /* of which pp and tp are a position; NULL = the version's own */
    enum rankfile_kind kind;
    int dp;             /* whose share of optimizer state that was saved in shares */
    const char *naming; /* "local", "te"; "model" = as the model was imported */
};

struct rankfile {
    helios_client *client; /* borrowed */
    int64_t version;
    bool unsliced;  /* stored whole */
    bool adapter;   /* LoRA: its base is another model */
    bool own_names; /* no family's: they are not renamed */
    enum hl_api_layer_naming
        naming; /* of the tensors in `headers`, whatever they were saved under */
    size_t count;
    helios_shard *parts;            /* chosen by kind */
    struct hl_safetensors *headers; /* one per part: the tensors that the position has */
    uint64_t **from; /* per part: where the bytes of each of its tensors are in the shard's data */
    helios_shard_list *list;
    helios_shard_list *first; /* of the first stage, by rankfile_add_embedding; NULL = none */
};

hl_status rankfile_open(helios_client *client, const struct rankfile_where *where,
                        struct rankfile *out) HL_CHECK;
void rankfile_fini(struct rankfile *r);
/* Appends the words' embedding of the first stage, and its optimizer state where the kind has it:
 * the last stage of Megatron has a copy for layers that predict more tokens. `where` is that of
 * the last stage, whose chunk `chunk` has those layers; -1 = it has no chunks. */
hl_status rankfile_add_embedding(struct rankfile *r, const struct rankfile_where *where,
                                 int chunk) HL_CHECK;
/* One safetensors file of all parts. */
hl_status rankfile_write_safetensors(struct rankfile *r, struct outfile *to) HL_CHECK;
/* Megatron's model_optim_rng.pt; args as in hl_torchzip_options. */
hl_status rankfile_write_torch(struct rankfile *r, int64_t iteration, const json_t *args,
                               struct outfile *to) HL_CHECK;
/* Dtype of the first weight matrix of the model; F32 if there is none. */
enum hl_dtype rankfile_dtype(const struct rankfile *r);
/* "local", "te", or that they have names of their own: for people. */
const char *rankfile_naming(const struct rankfile *r);
/* Of its tensors, chosen parts only. */
uint64_t rankfile_bytes(const struct rankfile *r);
/* Among all parts of the rank, chosen or not: is there one of that kind? */
bool rankfile_has(const struct rankfile *r, enum hl_part_kind kind);
/* In how many shares its optimizer state was saved; 1 = every data-parallel rank has the same. */
int rankfile_shares(const struct rankfile *r);
/* Header of one shard, checked. */
hl_status rankfile_header(helios_client *client, const helios_shard *shard,
                          struct hl_safetensors *out) HL_CHECK;

#endif
