/* model verify: reads every copy of every shard where it is. Then the version is proved by the
 * bytes of its tensors, as the Controller proves it at the commit by their checksums. Shards that
 * only the archive or a node has stay there, so the pool is not changed. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"
#include "cli/models/commands.h"
#include "cli/models/rankfile.h"
#include "cli/models/shard_id.h"
#include "cli/models/stored.h"
#include "cli/models/verify.h"
#include "core/model/layout.h"
#include "core/model/split.h"
#include "core/reshard/proof.h"
#include "rpc/l3_calls.h"

#define KEY_MAX 320

struct verifying {
    struct cli *cli;
    helios_client *client;
    struct hl_arena arena;
    char model[STORED_MODEL_MAX + 1];
    struct stored_version stored;
    bool imported;
    struct hl_api_shard *apart; /* per shard: the catalogue's record of one that is in no pool */
    struct hl_proof_shard *held;
    size_t held_count;
    struct cli_progress bar;
    uint64_t done, total; /* each shard is read twice: its copies, and its tensors */
    struct hl_api_model_verification found;
};

/* Adds the recorded failure, of a shard or of the whole. */
HL_CHECK static hl_status add_trouble(struct verifying *v, const char *what)
{
    struct hl_api_text_list *list = &v->found.troubles;
    const char **more = hl_arena_array(&v->arena, list->count + 1, sizeof(*more));
    const char *text = what != NULL ? hl_arena_printf(&v->arena, "%s: %s", what, hl_error_text())
                                    : hl_arena_strdup(&v->arena, hl_error_text());
    if (more == NULL || text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for what was found");
    if (list->count > 0)
        memcpy(more, list->items, list->count * sizeof(*more));
    more[list->count++] = text;
    list->items = more;
    hl_error_clear();
    return HL_OK;
}

HL_CHECK static hl_status list_version(struct verifying *v, int64_t version)
{
    struct hl_api_controller_get_model_results known;
    HL_TRY(stored_list(v->cli, v->model, version, &v->arena, &v->stored));
    v->found.version = v->stored.version;
    HL_TRY(CLI_CALL(v->cli, get_model, &(struct hl_api_controller_get_model_params){v->model},
                    &v->arena, &known));
    for (size_t i = 0; i < known.model.versions.count; i++)
        v->imported |= known.model.versions.items[i].version == v->stored.version &&
                       known.model.versions.items[i].world == 0; /* no rank has saved it */
    v->held = hl_arena_array(&v->arena, v->stored.shards.count + 1, sizeof(*v->held));
    v->apart = hl_arena_array(&v->arena, v->stored.shards.count + 1, sizeof(*v->apart));
    if (v->held == NULL || v->apart == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", v->stored.shards.count);
    return HL_OK;
}

/* Places are numbered like ranks. */
static int rank_of(const struct hl_api_split *split, const struct hl_api_shard *s)
{
    int tp_size = split->tp > 0 ? split->tp : 1;
    return (s->pp * tp_size + s->tp) * hl_split_ep(split) + s->ep;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Whether the pool has the shard. It only looks: `locate` would load what only the archive has, and
 * might evict others for it. */
HL_CHECK static hl_status look_in_pool(struct verifying *v, const char *id,
                                       struct hl_api_extent *extent, bool *there)
{
    const struct hl_api_l3_look_params p = {.ids = {&id, 1}};
    struct hl_api_l3_look_results found;
    HL_TRY(CLI_CALL_L3(v->cli, look, &p, &v->arena, &found));
    const struct hl_api_found_shard *f = found.shards.count == 1 ? &found.shards.items[0] : NULL;
    *there = f != NULL && f->tier == HL_API_TIER_L3;
    if (*there)
        *extent = (struct hl_api_extent){.id = id, .size_bytes = f->size_bytes};
    return HL_OK;
}

HL_CHECK static hl_status verify_shard(struct verifying *v, size_t i)
{
    const char *id = v->stored.shards.items[i].id;
    const struct hl_api_controller_get_shard_params p = {.id = id, .tensors = true};
    struct hl_api_controller_get_shard_results known;
    struct hl_api_extent extent;
    struct verified verified = {0};
    bool there;
    HL_TRY(CLI_CALL(v->cli, get_shard, &p, &v->arena, &known));
    HL_TRY(look_in_pool(v, id, &extent, &there));
    HL_TRY(verify_copies(v->cli, id, &known.shard, there ? &extent : NULL, &v->arena, &verified));
    for (size_t k = 0; k < verified.found.copies.count; k++) {
        v->found.copies++;
        v->found.bytes += verified.found.copies.items[k].size_bytes;
    }
    HL_TRY(verify_verdict(id, &verified));
    if (!there && known.shard.tensor_crcs[0] != '\0')
        v->apart[i] = known.shard;
    return HL_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

/* Computes the CRC of every tensor from its bytes, and checks it against the header. */
HL_CHECK static hl_status sum_tensors(const struct hl_safetensors *h, const void *data,
                                      uint32_t *crcs)
{
    for (size_t i = 0; i < h->count; i++) {
        const struct hl_tensor *t = &h->tensors[i];
        uint32_t said;
        crcs[i] = hl_crc32(0, (const unsigned char *)data + h->data_offset + t->offset, t->size);
        HL_TRY(hl_safetensors_crc(h, t->name, &said));
        if (said != crcs[i])
            return hl_fail(HL_ECORRUPT, "tensor '%s' has CRC-32 %08x, its header says %08x",
                           t->name, crcs[i], said);
    }
    return HL_OK;
}

/* The texts belong to the arena. */
static void hold_shard(struct verifying *v, const struct hl_api_shard *s, const char *layout,
                       const char *crcs)
{
    v->held[v->held_count++] = (struct hl_proof_shard){.pp = s->pp,
                                                       .tp = s->tp,
                                                       .ep = s->ep,
                                                       .rank = rank_of(&v->stored.split, s),
                                                       .part = s->part,
                                                       .layout = layout,
                                                       .crcs = crcs};
    v->found.shards++;
}

HL_CHECK static hl_status take_tensors(struct verifying *v, const struct hl_api_shard *s,
                                       const struct hl_safetensors *h, const void *data)
{
    HL_AUTO(hl_freep) uint32_t *crcs = calloc(h->count + 1, sizeof(*crcs));
    HL_AUTO(hl_freep) char *layout = NULL;
    HL_AUTO(hl_freep) char *text = NULL;
    if (crcs == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu tensors", h->count);
    HL_TRY(sum_tensors(h, data, crcs));
    HL_TRY(hl_layout_text(h->tensors, h->count, &layout));
    HL_TRY(hl_layout_crcs(h->tensors, crcs, h->count, &text));
    hold_shard(v, s, hl_arena_strdup(&v->arena, layout), hl_arena_strdup(&v->arena, text));
    v->found.tensors += h->count;
    return HL_OK;
}

static bool is_archived(const struct hl_api_shard *known)
{
    for (size_t i = 0; i < known->copies.count; i++)
        if (known->copies.items[i].tier == HL_API_TIER_L4)
            return true;
    return false;
}

/* All bytes are those that were committed, and so are the tensors. */
HL_CHECK static hl_status take_apart(struct verifying *v, const struct hl_api_shard *s,
                                     const struct hl_api_shard *known)
{
    HL_TRY(hl_layout_verify(known->layout));
    HL_TRY(hl_layout_verify_crcs(known->layout, known->tensor_crcs));
    hold_shard(v, s, known->layout, known->tensor_crcs);
    v->found.tensors += hl_layout_count(known->layout);
    *(is_archived(known) ? &v->found.archived : &v->found.on_nodes) += 1;
    return HL_OK;
}

HL_CHECK static hl_status read_shard(struct verifying *v, size_t i)
{
    const struct hl_api_shard *s = &v->stored.shards.items[i];
    struct hl_safetensors header;
    const void *data;
    if (v->apart[i].id != NULL)
        return take_apart(v, s, &v->apart[i]);
    HL_TRY(stored_map(v->client, s, &data));
    hl_status st = stored_header(v->client, s, &header);
    if (st == HL_OK) {
        st = take_tensors(v, s, &header, data);
        hl_safetensors_fini(&header);
    }
    (void)helios_unmap(v->client, data);
    return st;
}

HL_CHECK static hl_status end_shard(struct verifying *v, const struct hl_api_shard *s, hl_status st)
{
    char key[KEY_MAX];
    v->done += s->size_bytes;
    cli_progress_update(&v->bar, v->done, v->total);
    return st == HL_OK ? HL_OK : add_trouble(v, shard_key(s, key, sizeof(key)));
}

/* Copies first, because reading through libhelios would heal bad ones. */
HL_CHECK static hl_status verify_all(struct verifying *v)
{
    const struct hl_api_shard_list *shards = &v->stored.shards;
    for (size_t i = 0; i < shards->count; i++)
        v->total += 2 * shards->items[i].size_bytes;
    cli_progress_update(&v->bar, 0, v->total);
    for (size_t i = 0; i < shards->count; i++)
        HL_TRY(end_shard(v, &shards->items[i], verify_shard(v, i)));
    for (size_t i = 0; i < shards->count; i++)
        HL_TRY(end_shard(v, &shards->items[i], read_shard(v, i)));
    return HL_OK;
}

HL_CHECK static hl_status prove_version(struct verifying *v)
{
    struct hl_proof proof = {0};
    const struct hl_proof_input in = {.config = v->stored.config,
                                      .shards = v->held,
                                      .count = v->held_count,
                                      .imported = v->imported};
    if (v->found.troubles.count > 0) {
        v->found.unproved = "shards are bad or can't be read";
        return HL_OK;
    }
    if (hl_proof_check(&in, &proof) != HL_OK) {
        v->found.unproved = "it is refuted";
        return add_trouble(v, NULL);
    }
    v->found.proved = proof.proved;
    v->found.unproved = hl_arena_strdup(&v->arena, proof.unproved);
    return HL_OK;
}

/* ---- what is said ---------------------------------------------------------------------------- */

static void print_found(const struct hl_api_model_verification *f)
{
    char size[32];
    cli_print(stdout,
              "version     %s@%" PRId64 "\nread        %" PRIu64 " shard%s with %" PRIu64
              " tensor%s; %" PRIu64 " cop%s, %s\n",
              f->model, f->version, f->shards, cli_plural(f->shards), f->tensors,
              cli_plural(f->tensors), f->copies, f->copies == 1 ? "y" : "ies",
              hl_format_bytes(f->bytes, size, sizeof(size)));
    if (f->archived > 0)
        cli_print(stdout,
                  "archived    %" PRIu64
                  " of them only in the archive: read there as a whole, not loaded into the pool\n",
                  f->archived);
    if (f->on_nodes > 0)
        cli_print(stdout, "on nodes    %" PRIu64 " of them in no pool or archive: read there\n",
                  f->on_nodes);
    if (f->proved)
        puts("proved      every element is held once, and replicas are equal");
    else
        cli_print(stdout, "not proved  %s\n", f->unproved);
    for (size_t i = 0; i < f->troubles.count; i++)
        cli_print(stdout, "trouble     %s\n", f->troubles.items[i]);
}

HL_CHECK static hl_status verify_version(struct verifying *v, int64_t version)
{
    HL_TRY(list_version(v, version));
    cli_progress_start(&v->bar, "verifying");
    hl_status st = verify_all(v);
    cli_progress_end(&v->bar);
    HL_TRY(st);
    HL_TRY(prove_version(v));
    v->found.model = v->model;
    v->found.ok = v->found.troubles.count == 0;
    if (hl_arena_failed(&v->arena))
        return hl_fail(HL_ENOMEM, "out of memory for what was found");
    if (v->cli->json)
        HL_TRY(cli_print_value(&hl_api_model_verification_type, &v->found));
    else
        print_found(&v->found);
    if (v->found.ok)
        return HL_OK;
    return hl_fail(HL_ECORRUPT, "%s@%" PRId64 " is not whole: %s%s", v->model, v->found.version,
                   v->found.troubles.items[0], v->found.troubles.count > 1 ? ", and more" : "");
}

hl_status cmd_model_verify(struct cli *cli, int argc, char **argv)
{
    struct verifying v = {.cli = cli};
    int64_t version;
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cli_split_model(cli, argv[0], v.model, sizeof(v.model), &version));
    HL_TRY(cli_client(cli, NULL, 0, &v.client));
    hl_status st = verify_version(&v, version);
    helios_close(v.client);
    hl_arena_fini(&v.arena);
    return st;
}
