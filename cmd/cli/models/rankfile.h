/* cmd/cli/models/rankfile.h - writes everything that one (pp, tp) position loads, as one file.
 *
 * It reads through libhelios, as a rank does. Headers are read first; the data of a part is mapped
 * only while it is written, so that a remote reader never holds more than a copy of one shard.
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
    const helios_split *split; /* the split of pp and tp; NULL = the version's own */
    enum rankfile_kind kind;
    int dp;             /* selects the share of optimizer state that was saved in shares */
    const char *naming; /* "local", "te"; "model" = as the model was imported */
};

struct rankfile {
    helios_client *client; /* borrowed */
    int64_t version;
    bool unsliced;  /* stored whole */
    bool adapter;   /* LoRA: the base is a separate model */
    bool own_names; /* no family's table: names are not changed */
    enum hl_api_layer_naming
        naming; /* of the tensors in `headers`, whatever they were saved under */
    size_t count;
    helios_shard *parts;            /* chosen by kind */
    struct hl_safetensors *headers; /* one per part: the tensors that the position has */
    uint64_t **from; /* per part: where the bytes of each of its tensors are in the shard's data */
    helios_shard_list *list;
    helios_shard_list *first; /* the first stage's, from rankfile_add_embedding; NULL = none */
};

hl_status rankfile_open(helios_client *client, const struct rankfile_where *where,
                        struct rankfile *out) HL_CHECK;
void rankfile_fini(struct rankfile *r);
/* Appends the word embedding of the first stage, and its optimizer state if the kind includes it,
 * because Megatron's last stage has a copy of it for multi-token prediction layers. where: the last
 * stage, whose chunk `chunk` has these layers; -1 = it has no chunks. */
hl_status rankfile_add_embedding(struct rankfile *r, const struct rankfile_where *where,
                                 int chunk) HL_CHECK;
/* Writes one safetensors file with all parts. */
hl_status rankfile_write_safetensors(struct rankfile *r, struct outfile *to) HL_CHECK;
/* Writes Megatron's model_optim_rng.pt; args as in hl_torchzip_options. */
hl_status rankfile_write_torch(struct rankfile *r, int64_t iteration, const json_t *args,
                               struct outfile *to) HL_CHECK;
/* The dtype of the model's first weight matrix; F32 if there is none. */
enum hl_dtype rankfile_dtype(const struct rankfile *r);
/* The naming, for people: "local", "te", or that names are the model's own. */
const char *rankfile_naming(const struct rankfile *r);
/* Bytes of its tensors in the chosen parts. */
uint64_t rankfile_bytes(const struct rankfile *r);
/* Whether the rank has a part of that kind, chosen or not. */
bool rankfile_has(const struct rankfile *r, enum hl_part_kind kind);
/* The number of shares in which its optimizer state was saved; 1 = every data-parallel rank has the
 * same. */
int rankfile_shares(const struct rankfile *r);
/* Reads and checks the header of one shard. */
hl_status rankfile_header(helios_client *client, const helios_shard *shard,
                          struct hl_safetensors *out) HL_CHECK;

#endif
