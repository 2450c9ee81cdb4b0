/* shard ls, show, get, rm. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cli/models/commands.h"
#include "cli/models/rankfile.h"
#include "cli/models/shard_id.h"

struct shard_args {
    char *model, *out, *path;
    int64_t verify, force;
};

#define AT(field) offsetof(struct shard_args, field)

static const struct hl_option ls_rows[] = {
    {"model", "--model", "", "Only of this model, NAME or NAME@VERSION.", HL_OPT_STRING, 0, 0, NULL,
     AT(model), 0},
};

static const struct hl_option show_rows[] = {
    {"verify", "--verify", "false", "Have every holder read its copy and check every MiB.",
     HL_OPT_BOOL, 0, 0, NULL, AT(verify), 0},
};

static const struct hl_option get_rows[] = {
    {"out", "--out", "", "File to write; - for stdout.", HL_OPT_PATH, 0, 0, NULL, AT(out), 0},
    {"path", "--path", "auto", "How to read: the mapped pool, the network, or what fits.",
     HL_OPT_ENUM, 0, 0, "auto|shm|net", AT(path), 0},
};

static const struct hl_option rm_rows[] = {
    {"force", "--force", "false", "Also shards of a model, which is then incomplete.", HL_OPT_BOOL,
     0, 0, NULL, AT(force), 0},
};

/* Ids are cut to `digits`. */
static hl_status print_shards(const json_t *shards, size_t digits)
{
    struct cli_table t;
    size_t i;
    json_t *s;
    cli_table_init(&t, "ID|MODEL|>PP|>TP|PART|>SIZE|?CRC32|?>TENSORS|!STATE|?>READS");
    json_array_foreach (shards, i, s) {
        cli_cell(&t, "%.*s", (int)digits, hl_json_str(s, "id", ""));
        cli_cell(&t, "%s@%" PRId64, hl_json_str(s, "model", ""), hl_json_int(s, "version", 0));
        cli_cell(&t, "%" PRId64, hl_json_int(s, "pp", 0));
        cli_cell(&t, "%" PRId64, hl_json_int(s, "tp", 0));
        cli_cell(&t, "%s", hl_json_str(s, "part", ""));
        cli_cell_bytes(&t, (uint64_t)hl_json_int(s, "sizeBytes", 0));
        cli_cell(&t, "%08" PRIx32, (uint32_t)hl_json_int(s, "crc32", 0));
        cli_cell(&t, "%" PRId64, hl_json_int(s, "tensors", 0));
        cli_cell(&t, "%s", hl_json_str(s, "state", ""));
        cli_cell(&t, "%" PRId64, hl_json_int(s, "accesses", 0));
    }
    return cli_table_print(&t);
}

/* A name of which there is nothing is a slip, not an empty list. */
static hl_status check_model(struct cli *cli, const char *name, int64_t version)
{
    json_t *result, *v;
    size_t i;
    json_t *params = json_pack("{s:s}", "name", name);
    if (params == NULL)
        return cli_usage(cli, "the name is not UTF-8");
    HL_TRY(cli_call(cli, "getModel", params, &result));
    bool found = version < 0;
    json_array_foreach (hl_json_list(json_object_get(result, "model"), "versions"), i, v)
        found |= hl_json_int(v, "version", -1) == version;
    json_decref(result);
    if (!found)
        return hl_fail(HL_ENOENT,
                       "model '%s' has no version %" PRId64 "; `helios model show %s` lists them",
                       name, version, name);
    return HL_OK;
}

/* The digits tell a shard apart from those of all models, not only from the listed ones. */
static hl_status print_short(struct cli *cli, const json_t *shards, bool filtered)
{
    json_t *all = NULL;
    if (filtered)
        HL_TRY(shard_list(cli, "", -1, &all));
    hl_status st = print_shards(
        shards, cli->wide ? HL_ID_TEXT_LEN : shard_unique_digits(all != NULL ? all : shards));
    json_decref(all);
    return st;
}

static hl_status shard_ls(struct cli *cli, const struct shard_args *a)
{
    char name[160] = "";
    int64_t version = -1;
    json_t *shards;
    if (a->model[0] != '\0') {
        HL_TRY(cli_split_model(cli, a->model, name, sizeof(name), &version));
        HL_TRY(check_model(cli, name, version));
    }
    HL_TRY(shard_list(cli, name, version, &shards));
    cli_hex_checksums(cli->json ? shards : NULL);
    if (cli->json)
        return cli_print_items(shards);
    hl_status st = print_short(cli, shards, name[0] != '\0');
    json_decref(shards);
    return st;
}

hl_status cmd_shard_ls(struct cli *cli, int argc, char **argv)
{
    struct shard_args a = {0};
    HL_TRY(cli_args(cli, ls_rows, HL_ARRAY_LEN(ls_rows), argc, argv, &a, 0, 0));
    hl_status st = shard_ls(cli, &a);
    hl_args_fini(ls_rows, HL_ARRAY_LEN(ls_rows), &a);
    return st;
}

/* An id, a prefix or a key of a shard. */
static hl_status find_id(struct cli *cli, const char *text, helios_id *out)
{
    char whole[HL_ID_TEXT_LEN + 1];
    struct hl_id id;
    HL_TRY(shard_resolve(cli, text, whole));
    HL_TRY(hl_id_parse(whole, &id));
    *out = (helios_id){.hi = id.hi, .lo = id.lo};
    return HL_OK;
}

static json_t *tensors_json(const struct hl_safetensors *h)
{
    json_t *list = json_array();
    for (size_t i = 0; i < h->count; i++) {
        const struct hl_tensor *t = &h->tensors[i];
        uint32_t crc = 0;
        json_t *shape = json_array();
        for (uint32_t d = 0; d < t->rank; d++)
            json_array_append_new(shape, json_integer((json_int_t)t->shape[d]));
        json_t *row = json_pack("{s:s s:s s:o s:I s:I}", "name", t->name, "dtype",
                                hl_dtype_name(t->dtype), "shape", shape, "offset",
                                (json_int_t)t->offset, "bytes", (json_int_t)t->size);
        if (hl_safetensors_crc(h, t->name, &crc) == HL_OK)
            json_object_set_new(row, "crc32", json_integer(crc));
        json_array_append_new(list, row);
    }
    return list;
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

static hl_status print_copies(const json_t *known)
{
    if (known == NULL)
        return HL_OK;
    puts("");
    HL_TRY(copies_print(json_object_get(known, "shard")));
    const json_t *routes = json_object_get(known, "routes");
    if (json_array_size(routes) == 0)
        return HL_OK;
    puts("");
    return routes_print(routes);
}

static hl_status print_shard(const struct hl_safetensors *h, const json_t *extent,
                             const json_t *verified, const json_t *known)
{
    char size[32];
    uint64_t bytes = (uint64_t)hl_json_int(extent, "sizeBytes", 0);
    size_t chunks = json_array_size(hl_json_list(extent, "chunkCrcs"));
    cli_print(stdout, "id          %s\nbelongs to  %s@%s/pp%s/tp%s/%s\n",
              hl_json_str(extent, "id", ""), meta_or(h, "helios.model"),
              meta_or(h, "helios.version"), meta_or(h, "helios.pp"), meta_or(h, "helios.tp"),
              meta_or(h, "helios.part"));
    cli_print(stdout, "size        %" PRIu64 " bytes (%s), header %" PRIu64 "\n", bytes,
              hl_format_bytes(bytes, size, sizeof(size)), h->data_offset);
    cli_print(stdout,
              "extent      offset %" PRId64 ", generation %" PRId64
              ", %zu chunk%s, CRC-32 %08" PRIx32 "\n",
              hl_json_int(extent, "offset", 0), hl_json_int(extent, "generation", 0), chunks,
              chunks == 1 ? "" : "s", (uint32_t)hl_json_int(extent, "crc32", 0));
    verify_print(verified);
    HL_TRY(print_copies(known));
    puts("");
    return print_tensors(h);
}

static void add_copies(json_t *doc, const json_t *known)
{
    const json_t *shard = json_object_get(known, "shard");
    if (known == NULL)
        return;
    json_object_set_new(doc, "copies", json_deep_copy(json_object_get(shard, "copies")));
    json_object_set(doc, "routes", json_object_get(known, "routes"));
    json_object_set(doc, "state", json_object_get(shard, "state"));
}

static hl_status show_header(struct cli *cli, helios_id id, const json_t *extent,
                             const json_t *verified, const json_t *known)
{
    helios_client *client;
    struct hl_safetensors h;
    helios_shard shard = {.id = id, .size = (uint64_t)hl_json_int(extent, "sizeBytes", 0)};
    HL_TRY(cli_client(cli, NULL, 0, &client));
    hl_status st = rankfile_header(client, &shard, &h);
    helios_close(client);
    HL_TRY(st);
    if (cli->json) {
        json_t *doc = json_deep_copy(extent);
        json_object_set_new(doc, "tensors", tensors_json(&h));
        if (verified != NULL)
            json_object_set_new(doc, "verify", json_deep_copy(verified));
        add_copies(doc, known);
        cli_hex_checksums(doc);
        st = cli_print_json(doc);
    } else {
        st = print_shard(&h, extent, verified, known);
    }
    hl_safetensors_fini(&h);
    return st;
}

/* What the Controller knows of it; NULL for a shard that belongs to no version. */
static hl_status ask_controller(struct cli *cli, const char *id, json_t **out)
{
    *out = NULL;
    hl_status st = cli_call(cli, "getShard", json_pack("{s:s}", "id", id), out);
    return st == HL_ENOENT ? HL_OK : st;
}

/* It is not in the pool: what is known of it without its bytes. */
static hl_status show_absent(struct cli *cli, const char *id, const json_t *verified,
                             const json_t *known)
{
    const json_t *shard = json_object_get(known, "shard");
    if (cli->json) {
        json_t *doc = json_deep_copy(shard);
        json_object_set(doc, "routes", json_object_get(known, "routes"));
        if (verified != NULL)
            json_object_set_new(doc, "verify", json_deep_copy(verified));
        cli_hex_checksums(doc);
        return cli_print_json(doc);
    }
    cli_print(stdout,
              "id          %s\nbelongs to  %s@%" PRId64 "/pp%" PRId64 "/tp%" PRId64 "/%s\n"
              "state       %s, not in the pool\n",
              id, hl_json_str(shard, "model", ""), hl_json_int(shard, "version", 0),
              hl_json_int(shard, "pp", 0), hl_json_int(shard, "tp", 0),
              hl_json_str(shard, "part", ""), hl_json_str(shard, "state", ""));
    verify_print(verified);
    return print_copies(known);
}

/* `extent` is NULL when the pool has not got it, `known` when no version has it. */
static hl_status show(struct cli *cli, const char *text, int verify, const json_t *extent,
                      const json_t *known)
{
    helios_id id = {0};
    json_t *verified = NULL;
    HL_TRY(find_id(cli, text, &id));
    if (verify)
        HL_TRY(verify_copies(cli, text, json_object_get(known, "shard"), extent, &verified));
    hl_status st = extent != NULL ? show_header(cli, id, extent, verified, known)
                                  : show_absent(cli, text, verified, known);
    /* A header that can't be read is explained by the chunks that are bad. */
    if (st == HL_OK || st == HL_ECORRUPT) {
        hl_status bad = verify_verdict(text, verified);
        st = bad != HL_OK ? bad : st;
    }
    json_decref(verified);
    return st;
}

static hl_status shard_show(struct cli *cli, const char *text, int verify)
{
    char id[HL_ID_TEXT_LEN + 1];
    json_t *located = NULL, *known = NULL;
    HL_TRY(shard_resolve(cli, text, id));
    HL_TRY(ask_controller(cli, id, &known));
    hl_status st = cli_call_l3(cli, "locate", json_pack("{s:[s]}", "ids", id), &located);
    if (st == HL_OK || known != NULL)
        st = show(cli, id, verify, json_array_get(hl_json_list(located, "extents"), 0), known);
    json_decref(located);
    json_decref(known);
    return st;
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

/* Shards of a model are named: who frees them should mean it. */
static hl_status refuse_owned(struct cli *cli, const json_t *ids)
{
    json_t *shards, *s, *id;
    size_t i, k;
    hl_status st = HL_OK;
    HL_TRY(shard_list(cli, "", -1, &shards));
    json_array_foreach (shards, i, s)
        json_array_foreach (ids, k, id)
            if (st == HL_OK && strcmp(hl_json_str(s, "id", ""), json_string_value(id)) == 0)
                st = hl_fail(HL_EBUSY,
                             "shard %s belongs to %s@%" PRId64
                             "; remove the version with `helios model rm`, or add --force",
                             json_string_value(id), hl_json_str(s, "model", ""),
                             hl_json_int(s, "version", 0));
    json_decref(shards);
    return st;
}

/* For calls that take shards out of the pool: which cluster the Controller is of. */
static hl_status own_cluster(struct cli *cli, char out[HL_ID_TEXT_LEN + 1])
{
    json_t *result;
    HL_TRY(cli_call(cli, "clusterInfo", NULL, &result));
    const json_t *info = json_object_get(result, "info");
    const char *state = hl_json_str(info, "l3State", "");
    hl_status st = HL_OK;
    if (strcmp(hl_json_str(info, "claim", ""), "refused") == 0)
        st = hl_fail(HL_EPERM, "nothing was freed: %s", state);
    else
        snprintf(out, HL_ID_TEXT_LEN + 1, "%s", hl_json_str(info, "cluster", ""));
    json_decref(result);
    return st;
}

static hl_status free_shards(struct cli *cli, json_t *ids)
{
    json_t *result;
    char cluster[HL_ID_TEXT_LEN + 1];
    int64_t count = (int64_t)json_array_size(ids);
    HL_TRY(own_cluster(cli, cluster));
    HL_TRY(
        cli_call_l3(cli, "free", json_pack("{s:O s:s}", "ids", ids, "cluster", cluster), &result));
    int64_t freed = hl_json_int(result, "freed", 0);
    if (cli->json)
        HL_TRY(cli_print_json(result));
    else
        json_decref(result);
    if (freed == 0)
        return hl_fail(HL_ENOENT, count == 1 ? "the pool has no shard of this id; nothing was freed"
                                             : "the pool has no shard of these ids; nothing was "
                                               "freed");
    if (freed != count)
        return hl_fail(HL_ENOENT,
                       "freed %" PRId64 " shards; the pool has no shard of the other %" PRId64
                       " ids",
                       freed, count - freed);
    if (!cli->json)
        printf("freed %" PRId64 " shard%s\n", freed, freed == 1 ? "" : "s");
    return HL_OK;
}

static hl_status shard_rm(struct cli *cli, char **names, int count, int force)
{
    hl_status st = HL_OK;
    json_t *ids = json_array();
    char id[HL_ID_TEXT_LEN + 1];
    for (int i = 0; i < count && st == HL_OK; i++)
        if ((st = shard_resolve(cli, names[i], id)) == HL_OK)
            json_array_append_new(ids, json_string(id));
    if (st == HL_OK && !force)
        st = refuse_owned(cli, ids);
    if (st == HL_OK)
        st = free_shards(cli, ids);
    json_decref(ids);
    return st;
}

hl_status cmd_shard_rm(struct cli *cli, int argc, char **argv)
{
    struct shard_args a = {0};
    HL_TRY(cli_args(cli, rm_rows, HL_ARRAY_LEN(rm_rows), argc, argv, &a, 1, argc));
    int count = 0;
    while (count < argc && argv[count] != NULL && argv[count][0] != '-')
        count++;
    hl_status st = shard_rm(cli, argv, count, a.force != 0);
    hl_args_fini(rm_rows, HL_ARRAY_LEN(rm_rows), &a);
    return st;
}
