/* shard ls, show, get, rm. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "cli/models/commands.h"
#include "cli/models/model.h"
#include "cli/models/rankfile.h"
#include "cli/models/shard_id.h"
#include "cli/models/verify.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

struct shard_args {
    char *model, *out, *path;
    bool verify, force;
};

#define AT(field) HL_OPTION_FIELD(struct shard_args, field)

static const struct hl_option ls_rows[] = {
    {"model", "--model", "", "Only of this model, NAME or NAME@VERSION.", HL_OPT_STRING, 1, 0, NULL,
     AT(model)},
};

static const struct hl_option show_rows[] = {
    {"verify", "--verify", "false", "Have every holder read its copy and check every MiB.",
     HL_OPT_BOOL, 0, 0, NULL, AT(verify)},
};

static const struct hl_option get_rows[] = {
    {"out", "--out", "", "File to write; - for stdout.", HL_OPT_PATH, 0, 0, NULL, AT(out)},
    {"path", "--path", "auto", "How to read: the mapped pool, the network, or whichever fits.",
     HL_OPT_ENUM, 0, 0, "auto|shm|net", AT(path)},
};

static const struct hl_option rm_rows[] = {
    {"force", "--force", "false", "Free shards of a model too; the model is then incomplete.",
     HL_OPT_BOOL, 0, 0, NULL, AT(force)},
};

/* Ids are shortened to `digits`. */
static hl_status print_shards(const struct hl_api_shard_list *shards, size_t digits)
{
    struct cli_table t;
    cli_table_init(&t, "ID|MODEL|>PP|>TP|PART|DERIVED|>SIZE|?CRC32|?>TENSORS|!STATE|?>READS|"
                       "?LIFE|?>HEAT");
    for (size_t i = 0; i < shards->count; i++) {
        const struct hl_api_shard *s = &shards->items[i];
        cli_cell(&t, "%.*s", (int)digits, s->id);
        cli_cell(&t, "%s@%" PRId64, s->model, s->version);
        cli_cell(&t, "%d", s->pp);
        cli_cell(&t, "%d", s->tp);
        cli_cell(&t, "%s", s->part);
        cli_cell(&t, "%s", s->derived_split[0] != '\0' ? s->derived_split : "-");
        cli_cell_bytes(&t, s->size_bytes);
        cli_cell(&t, "%08" PRIx32, s->crc32);
        cli_cell(&t, "%" PRIu32, s->tensors);
        cli_cell(&t, "%s", hl_api_shard_state_name(s->state));
        cli_cell(&t, "%" PRIu64, s->accesses);
        cli_cell(&t, "%s", s->life[0] != '\0' ? s->life : "-");
        cli_cell(&t, "%.4f", s->heat);
    }
    return cli_table_print(&t);
}

/* A name that does not exist is a mistake, not an empty list. */
static hl_status check_model(struct cli *cli, const char *name, int64_t version)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_model model;
    const struct hl_api_model_version *found;
    HL_TRY(model_get(cli, name, &arena, &model));
    return version < 0 ? HL_OK : model_find_version(&model, version, &found);
}

/* The digits distinguish a shard from those of all models, not only from the listed ones. */
static hl_status print_short(struct cli *cli, const struct hl_api_shard_list *shards, bool filtered)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_shard_list all = *shards;
    if (filtered)
        HL_TRY(shard_list(cli, "", -1, &arena, &all));
    return print_shards(shards, cli->wide ? HL_ID_TEXT_LEN : shard_unique_digits(&all));
}

static hl_status shard_ls(struct cli *cli, const struct shard_args *a)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    char name[160] = "";
    int64_t version = -1;
    struct hl_api_shard_list shards;
    if (a->model[0] != '\0') {
        HL_TRY(cli_split_model(cli, a->model, name, sizeof(name), &version));
        HL_TRY(check_model(cli, name, version));
    }
    HL_TRY(shard_list(cli, name, version, &arena, &shards));
    if (!cli->json)
        return print_short(cli, &shards, name[0] != '\0');
    return cli_print_items(&hl_api_shard_type, shards.items, shards.count);
}

hl_status cmd_shard_ls(struct cli *cli, int argc, char **argv)
{
    struct shard_args a = {0};
    HL_TRY(cli_args(cli, ls_rows, HL_ARRAY_LEN(ls_rows), argc, argv, &a, 0, 0));
    hl_status st = shard_ls(cli, &a);
    hl_args_fini(ls_rows, HL_ARRAY_LEN(ls_rows), &a);
    return st;
}

/* Accepts an id, a prefix or a key of a shard. */
static hl_status find_id(struct cli *cli, const char *text, helios_id *out)
{
    char whole[HL_ID_TEXT_LEN + 1];
    struct hl_id id;
    HL_TRY(shard_resolve(cli, text, whole));
    HL_TRY(hl_id_parse(whole, &id));
    *out = (helios_id){.hi = id.hi, .lo = id.lo};
    return HL_OK;
}

static struct hl_api_tensor_info describe_tensor(const struct hl_safetensors *h,
                                                 const struct hl_tensor *t, struct hl_arena *arena)
{
    uint32_t crc = 0;
    struct hl_api_tensor_info info = {
        .name = t->name, .dtype = hl_dtype_name(t->dtype), .offset = t->offset, .bytes = t->size};
    info.shape.items = hl_arena_array(arena, t->rank, sizeof(*info.shape.items));
    for (uint32_t d = 0; info.shape.items != NULL && d < t->rank; d++)
        info.shape.items[info.shape.count++] = t->shape[d];
    if (hl_safetensors_crc(h, t->name, &crc) == HL_OK)
        info.crc32 = hl_arena_printf(arena, "%08" PRIx32, crc);
    return info;
}

static hl_status describe_tensors(const struct hl_safetensors *h, struct hl_arena *arena,
                                  struct hl_api_tensor_info_list *out)
{
    struct hl_api_tensor_info_list list = {hl_arena_array(arena, h->count, sizeof(*list.items)), 0};
    for (size_t i = 0; list.items != NULL && i < h->count; i++)
        list.items[list.count++] = describe_tensor(h, &h->tensors[i], arena);
    *out = list;
    return hl_arena_failed(arena) ? hl_fail(HL_ENOMEM, "out of memory for %zu tensors", h->count)
                                  : HL_OK;
}

static hl_status print_tensors(const struct hl_safetensors *h)
{
    struct cli_table t;
    char shape[128];
    cli_table_init(&t, "TENSOR|DTYPE|SHAPE|>OFFSET|>BYTES|CRC32");
    for (size_t i = 0; i < h->count; i++) {
        const struct hl_tensor *x = &h->tensors[i];
        uint32_t crc = 0;
        cli_cell(&t, "%s", x->name);
        cli_cell(&t, "%s", hl_dtype_name(x->dtype));
        cli_cell(&t, "%s", hl_tensor_shape_text(x, shape, sizeof(shape)));
        cli_cell(&t, "%" PRIu64, x->offset);
        cli_cell(&t, "%" PRIu64, x->size);
        if (hl_safetensors_crc(h, x->name, &crc) == HL_OK)
            cli_cell(&t, "%08" PRIx32, crc);
        else
            cli_cell(&t, "-");
    }
    return cli_table_print(&t);
}

static const char *meta_or(const struct hl_safetensors *h, const char *key)
{
    const char *value = hl_safetensors_meta(h, key);
    return value != NULL ? value : "?";
}

/* What the pool, the Controller and the verifying daemons know about a shard. */
struct shard_known {
    const struct hl_api_extent *extent;                      /* NULL: the pool does not have it */
    const struct hl_api_controller_get_shard_results *known; /* NULL: no version has it */
    const struct hl_api_shard_placement *placement;          /* NULL: it is not placed */
    struct verified verified;
};

static hl_status print_copies(const struct shard_known *k)
{
    if (k->placement != NULL)
        HL_TRY(placement_print(k->placement));
    if (k->known == NULL)
        return HL_OK;
    puts("");
    HL_TRY(copies_print(&k->known->shard.copies));
    if (k->known->routes.count == 0)
        return HL_OK;
    puts("");
    return routes_print(&k->known->routes);
}

static hl_status print_shard(const struct hl_safetensors *h, const struct shard_known *k)
{
    char size[32];
    const struct hl_api_extent *x = k->extent;
    cli_print(stdout, "id          %s\nbelongs to  %s@%s/pp%s/tp%s/%s\n", x->id,
              meta_or(h, "helios.model"), meta_or(h, "helios.version"), meta_or(h, "helios.pp"),
              meta_or(h, "helios.tp"), meta_or(h, "helios.part"));
    cli_print(stdout, "size        %" PRIu64 " bytes (%s), header %" PRIu64 "\n", x->size_bytes,
              hl_format_bytes(x->size_bytes, size, sizeof(size)), h->data_offset);
    cli_print(stdout,
              "extent      offset %" PRIu64 ", generation %" PRIu32
              ", %zu chunk%s, CRC-32 %08" PRIx32 "\n",
              x->offset, x->generation, x->chunk_crcs.count, x->chunk_crcs.count == 1 ? "" : "s",
              x->crc32);
    verify_print(&k->verified);
    HL_TRY(print_copies(k));
    puts("");
    return print_tensors(h);
}

static hl_status print_pooled_json(const struct hl_safetensors *h, const struct shard_known *k)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_pooled_shard doc = {.extent = *k->extent, .verify = k->verified.found};
    struct cli_type shown;
    size_t unasked[3], count = 0;
    HL_TRY(describe_tensors(h, &arena, &doc.tensors));
    if (!k->verified.asked)
        unasked[count++] = offsetof(struct hl_api_pooled_shard, verify);
    if (k->known != NULL)
        doc.places = (struct hl_api_shard_places){k->known->shard.copies, k->known->routes,
                                                  k->known->shard.state};
    else
        unasked[count++] = offsetof(struct hl_api_pooled_shard, places);
    if (k->placement != NULL)
        doc.placement = *k->placement;
    else
        unasked[count++] = offsetof(struct hl_api_pooled_shard, placement);
    cli_type_without(&hl_api_pooled_shard_type, unasked, count, &shown);
    return cli_print_value(&shown.type, &doc);
}

static hl_status print_absent_json(const struct shard_known *k)
{
    struct hl_api_absent_shard doc = {
        .shard = k->known->shard, .routes = k->known->routes, .verify = k->verified.found};
    struct cli_type shown;
    size_t unasked[2], count = 0;
    if (!k->verified.asked)
        unasked[count++] = offsetof(struct hl_api_absent_shard, verify);
    if (k->placement != NULL)
        doc.placement = *k->placement;
    else
        unasked[count++] = offsetof(struct hl_api_absent_shard, placement);
    cli_type_without(&hl_api_absent_shard_type, unasked, count, &shown);
    return cli_print_value(&shown.type, &doc);
}

static hl_status show_header(struct cli *cli, helios_id id, const struct shard_known *k)
{
    helios_client *client;
    struct hl_safetensors h;
    helios_shard shard = {.id = id, .size = k->extent->size_bytes};
    HL_TRY(cli_client(cli, NULL, 0, &client));
    hl_status st = rankfile_header(client, &shard, &h);
    helios_close(client);
    HL_TRY(st);
    st = cli->json ? print_pooled_json(&h, k) : print_shard(&h, k);
    hl_safetensors_fini(&h);
    return st;
}

/* The shard is not in the pool: shows what is known without its bytes. */
static hl_status show_absent(struct cli *cli, const char *id, const struct shard_known *k)
{
    const struct hl_api_shard *s = &k->known->shard;
    char place[HL_PART_PLACE_MAX];
    if (cli->json)
        return print_absent_json(k);
    cli_print(stdout,
              "id          %s\nbelongs to  %s@%" PRId64 "/%s\n"
              "state       %s, not in the pool\n",
              id, s->model, s->version, hl_part_place(s->pp, s->tp, s->ep, s->part, place),
              hl_api_shard_state_name(s->state));
    verify_print(&k->verified);
    return print_copies(k);
}

static hl_status show_known(struct cli *cli, const char *text, bool verify, struct hl_arena *arena,
                            struct shard_known *k)
{
    helios_id id = {0};
    HL_TRY(find_id(cli, text, &id));
    if (verify)
        HL_TRY(verify_copies(cli, text, k->known != NULL ? &k->known->shard : NULL, k->extent,
                             arena, &k->verified));
    hl_status st = k->extent != NULL ? show_header(cli, id, k) : show_absent(cli, text, k);
    /* Bad chunks explain a header that can't be read. */
    if (st == HL_OK || st == HL_ECORRUPT) {
        hl_status bad = verify_verdict(text, &k->verified);
        st = bad != HL_OK ? bad : st;
    }
    return st;
}

/* *out NULL: the pool does not have the shard. A shard that is only archived is not located,
 * because that would load it. */
static hl_status locate_pooled(struct cli *cli, const char *id, struct hl_arena *arena,
                               const struct hl_api_extent **out)
{
    const struct hl_api_text_list ids = {&id, 1};
    struct hl_api_l3_look_results looked;
    struct hl_api_l3_locate_results located;
    *out = NULL;
    HL_TRY(CLI_CALL_L3(cli, look, &(struct hl_api_l3_look_params){ids}, arena, &looked));
    if (looked.shards.count == 0)
        return hl_fail(HL_ENOENT, "neither pool nor archive has shard %s", id);
    if (looked.shards.items[0].tier != HL_API_TIER_L3)
        return hl_fail(HL_ENOENT, "shard %s belongs to no version, and is in the archive only", id);
    HL_TRY(
        CLI_CALL_L3(cli, locate, &(struct hl_api_l3_locate_params){.ids = ids}, arena, &located));
    if (located.extents.count > 0)
        *out = &located.extents.items[0];
    return HL_OK;
}

/* Appends the copies that a node has kept to the known ones. A node that does not respond does not
 * hide the others. */
static hl_status kept_add(struct cli *cli, const char *id, const struct hl_api_node_state *n,
                          struct hl_arena *arena, struct hl_api_copy_list *copies)
{
    struct hl_api_agent_store_kept_results r;
    const struct hl_api_agent_store_kept_params p = {id};
    if (CLI_CALL_AGENT(cli, n->node.agent_address, store_kept, &p, arena, &r) != HL_OK) {
        fprintf(stderr, "helios: what node %s has kept is not shown: %s\n", n->node.name,
                hl_error_text());
        hl_error_clear();
        return HL_OK;
    }
    struct hl_api_copy *more =
        hl_arena_array(arena, copies->count + r.copies.count + 1, sizeof(*more));
    if (more == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the copies of shard %s", id);
    if (copies->count > 0)
        memcpy(more, copies->items, copies->count * sizeof(*more));
    if (r.copies.count > 0)
        memcpy(more + copies->count, r.copies.items, r.copies.count * sizeof(*more));
    *copies = (struct hl_api_copy_list){more, copies->count + r.copies.count};
    return HL_OK;
}

static bool node_keeps(const struct hl_api_node_state *n)
{
    for (size_t i = 0; i < n->node.tiers.count; i++)
        if (n->node.tiers.items[i].kept_shards > 0)
            return n->state == HL_API_NODE_LIFE_READY;
    return false;
}

/* The catalogue does not know kept copies, so the nodes that have any are asked. */
static hl_status kept_find(struct cli *cli, const char *id, struct hl_arena *arena,
                           struct hl_api_copy_list *copies)
{
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, arena, &r));
    for (size_t i = 0; i < r.nodes.count; i++)
        if (node_keeps(&r.nodes.items[i]))
            HL_TRY(kept_add(cli, id, &r.nodes.items[i], arena, copies));
    return HL_OK;
}

static hl_status shard_show(struct cli *cli, const char *text, bool verify)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    char id[HL_ID_TEXT_LEN + 1];
    struct hl_api_controller_get_shard_results known;
    struct hl_api_shard_placement placement;
    struct shard_known k = {0};
    bool placed;
    HL_TRY(shard_resolve(cli, text, id));
    hl_status st = CLI_CALL(cli, get_shard, &(struct hl_api_controller_get_shard_params){.id = id},
                            &arena, &known);
    if (st != HL_OK && st != HL_ENOENT) /* ENOENT: it belongs to no version */
        return st;
    k.known = st == HL_OK ? &known : NULL;
    if (k.known != NULL)
        HL_TRY(kept_find(cli, id, &arena, &known.shard.copies));
    HL_TRY(placement_get(cli, id, &arena, &placement, &placed));
    k.placement = placed ? &placement : NULL;
    st = locate_pooled(cli, id, &arena, &k.extent);
    if (st != HL_OK && k.known == NULL)
        return st;
    if (k.extent == NULL && k.known == NULL)
        return hl_fail(HL_ENOENT, "neither the pool nor the Controller knows shard %s", id);
    return show_known(cli, id, verify, &arena, &k);
}

hl_status cmd_shard_show(struct cli *cli, int argc, char **argv)
{
    struct shard_args a = {0};
    HL_TRY(cli_args(cli, show_rows, HL_ARRAY_LEN(show_rows), argc, argv, &a, 1, 1));
    hl_status st = shard_show(cli, argv[0], a.verify != 0);
    hl_args_fini(show_rows, HL_ARRAY_LEN(show_rows), &a);
    return st;
}

static hl_status write_shard(helios_client *client, helios_id id, struct outfile *file)
{
    const void *data;
    size_t size;
    HL_TRY((hl_status)helios_map(client, id, &data, &size));
    hl_status st = outfile_write(file, data, size);
    (void)helios_unmap(client, data);
    return st == HL_OK ? outfile_commit(file) : st;
}

static hl_status shard_get(struct cli *cli, const char *text, const struct shard_args *a)
{
    helios_id id;
    helios_client *client;
    struct outfile file;
    if (a->out[0] == '\0')
        return cli_usage(cli, "--out is missing");
    HL_TRY(find_id(cli, text, &id));
    HL_TRY(outfile_open(a->out, &file));
    hl_status st = cli_client(cli, a->path, 0, &client);
    if (st == HL_OK) {
        st = write_shard(client, id, &file);
        helios_close(client);
    }
    outfile_abort(&file);
    return st;
}

hl_status cmd_shard_get(struct cli *cli, int argc, char **argv)
{
    struct shard_args a = {0};
    HL_TRY(cli_args(cli, get_rows, HL_ARRAY_LEN(get_rows), argc, argv, &a, 1, 1));
    hl_status st = shard_get(cli, argv[0], &a);
    hl_args_fini(get_rows, HL_ARRAY_LEN(get_rows), &a);
    return st;
}

/* Names the shards of a model: freeing them needs --force. */
static hl_status refuse_owned(struct cli *cli, const struct hl_api_text_list *ids)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_shard_list shards;
    HL_TRY(shard_list(cli, "", -1, &arena, &shards));
    for (size_t i = 0; i < shards.count; i++)
        for (size_t k = 0; k < ids->count; k++)
            if (strcmp(shards.items[i].id, ids->items[k]) == 0)
                return hl_fail(HL_EBUSY,
                               "shard %s belongs to %s@%" PRId64
                               "; remove the version with `helios model rm`, or add --force",
                               ids->items[k], shards.items[i].model, shards.items[i].version);
    return HL_OK;
}

/* The Controller's cluster, for calls that take shards out of the pool. */
static hl_status own_cluster(struct cli *cli, struct hl_arena *arena, const char **out)
{
    struct hl_api_controller_cluster_info_results r;
    HL_TRY(
        CLI_CALL(cli, cluster_info, &(struct hl_api_controller_cluster_info_params){0}, arena, &r));
    if (r.info.claim == HL_API_CLAIM_STATE_REFUSED)
        return hl_fail(HL_EPERM, "nothing was freed: %s", r.info.l3_state);
    *out = r.info.cluster;
    return HL_OK;
}

static hl_status free_shards(struct cli *cli, const struct hl_api_text_list *ids,
                             struct hl_arena *arena)
{
    struct hl_api_l3_free_params p = {.ids = *ids};
    struct hl_api_l3_free_results r;
    HL_TRY(own_cluster(cli, arena, &p.cluster));
    HL_TRY(CLI_CALL_L3(cli, free, &p, arena, &r));
    if (cli->json)
        HL_TRY(cli_print_value(&hl_api_l3_free_results_type, &r));
    if (r.freed == 0)
        return hl_fail(HL_ENOENT, ids->count == 1
                                      ? "the pool has no shard of this id; nothing was freed"
                                      : "the pool has no shard of these ids; nothing was freed");
    if (r.freed != ids->count)
        return hl_fail(HL_ENOENT,
                       "freed %" PRIu32 " shards; the pool has no shard of the other %zu ids",
                       r.freed, ids->count - r.freed);
    if (!cli->json)
        printf("freed %" PRIu32 " shard%s\n", r.freed, r.freed == 1 ? "" : "s");
    return HL_OK;
}

static bool is_listed(const struct hl_api_text_list *ids, const char *id)
{
    for (size_t i = 0; i < ids->count; i++)
        if (strcmp(ids->items[i], id) == 0)
            return true;
    return false;
}

/* `names` end with NULL. */
static hl_status shard_rm(struct cli *cli, char **names, bool force)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids = {0};
    for (; *names != NULL; names++) {
        char *id = hl_arena_alloc(&arena, HL_ID_TEXT_LEN + 1);
        if (id == NULL)
            return hl_fail(HL_ENOMEM, "out of memory for the ids");
        HL_TRY(shard_resolve(cli, *names, id));
        if (!is_listed(&ids, id))
            hl_api_text_add(&arena, &ids, id);
    }
    if (hl_arena_failed(&arena))
        return hl_fail(HL_ENOMEM, "out of memory for the ids");
    if (!force)
        HL_TRY(refuse_owned(cli, &ids));
    return free_shards(cli, &ids, &arena);
}

hl_status cmd_shard_rm(struct cli *cli, int argc, char **argv)
{
    struct shard_args a = {0};
    HL_TRY(cli_args(cli, rm_rows, HL_ARRAY_LEN(rm_rows), argc, argv, &a, 1, argc));
    hl_status st = shard_rm(cli, argv, a.force);
    hl_args_fini(rm_rows, HL_ARRAY_LEN(rm_rows), &a);
    return st;
}
