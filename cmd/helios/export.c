/* model export: one file per (tp, pp), with the names Megatron gives its checkpoint folders. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "helios/commands.h"
#include "helios/rankfile.h"
#include "os/file.h"

struct export_args {
    char *format, *out, *path;
    uint64_t timeout_ms;
};

#define AT(field) offsetof(struct export_args, field)

static const struct hl_option export_rows[] = {
    {"format", "--format", "safetensors", "What the files are.", HL_OPT_ENUM, 0, 0,
     "safetensors|torch", AT(format), 0},
    {"out", "--out", "", "Directory to write into; made when it is missing.", HL_OPT_PATH, 0, 0,
     NULL, AT(out), 0},
    {"path", "--path", "auto", "How to read: the mapped pool, the network, or what fits.",
     HL_OPT_ENUM, 0, 0, "auto|shm|net", AT(path), 0},
    {"timeout", "--timeout", "30s", "Deadline of one read.", HL_OPT_DURATION, 1, 86400000, NULL,
     AT(timeout_ms), 0},
};

struct export
{
    helios_client *client;
    const char *out;
    int torch;
    int tp_size, pp_size;
    struct rankfile_where where;
    int64_t version;
    uint64_t bytes;
    unsigned files;
};

/* "mp_rank_01_003", or "mp_rank_01" without a pipeline. */
static void rank_name(const struct export *e, char *buf, size_t cap)
{
    if (e->pp_size > 1)
        snprintf(buf, cap, "mp_rank_%02d_%03d", e->where.tp, e->where.pp);
    else
        snprintf(buf, cap, "mp_rank_%02d", e->where.tp);
}

static hl_status export_path(const struct export *e, char *path, size_t cap)
{
    char rank[48];
    int n;
    rank_name(e, rank, sizeof(rank));
    if (e->torch) {
        n = snprintf(path, cap, "%s/release/%s", e->out, rank);
        if (n > 0 && (size_t)n < cap)
            HL_TRY(hl_dir_make(path, 0755));
        n = snprintf(path, cap, "%s/release/%s/model_optim_rng.pt", e->out, rank);
    } else {
        n = snprintf(path, cap, "%s/%s.safetensors", e->out, rank);
    }
    if (n < 0 || (size_t)n >= cap)
        return hl_fail(HL_EINVAL, "path '%.64s…' is too long", e->out);
    return HL_OK;
}

static hl_status export_rank(struct export *e)
{
    struct rankfile r;
    struct outfile file;
    char path[PATH_MAX];
    HL_TRY(export_path(e, path, sizeof(path)));
    HL_TRY(rankfile_open(e->client, &e->where, &r));
    /* All ranks of one version, also when a newer one appears meanwhile. */
    e->where.version = e->version = r.version;
    hl_status st = outfile_open(path, &file);
    if (st == HL_OK) {
        st = e->torch ? rankfile_write_torch(&r, &file) : rankfile_write_safetensors(&r, &file);
        e->bytes += file.written;
        if (st == HL_OK)
            st = outfile_commit(&file);
        outfile_abort(&file);
    }
    rankfile_fini(&r);
    e->files += st == HL_OK;
    return st;
}

static hl_status export_all(struct cli *cli, struct export *e, const char *model)
{
    char tracker[PATH_MAX], size[32];
    uint64_t start = hl_now_ns();
    HL_TRY(hl_dir_make(e->out, 0755));
    for (e->where.pp = 0; e->where.pp < e->pp_size; e->where.pp++)
        for (e->where.tp = 0; e->where.tp < e->tp_size; e->where.tp++)
            HL_TRY(export_rank(e));
    if (e->torch) {
        /* Last, so that a loader never finds it without all the files. */
        int n = snprintf(tracker, sizeof(tracker), "%s/latest_checkpointed_iteration.txt", e->out);
        if (n < 0 || (size_t)n >= sizeof(tracker))
            return hl_fail(HL_EINVAL, "path '%.64s…' is too long", e->out);
        HL_TRY(outfile_text(tracker, "release"));
    }
    double seconds = (double)(hl_now_ns() - start) / 1e9;
    if (cli->json)
        return cli_print_json(json_pack(
            "{s:s s:I s:s s:i s:I s:f}", "model", model, "version", (json_int_t)e->version, "out",
            e->out, "files", (int)e->files, "bytes", (json_int_t)e->bytes, "seconds", seconds));
    printf("exported %s@%" PRId64 " to %s: %u files, %s in %.2f s\n", model, e->version, e->out,
           e->files, hl_format_bytes(e->bytes, size, sizeof(size)), seconds);
    return HL_OK;
}

static hl_status export(struct cli *cli, const char *text, const struct export_args *a)
{
    struct export e = {.out = a->out, .torch = strcmp(a->format, "torch") == 0};
    char name[160];
    json_t *result;
    if (a->out[0] == '\0')
        return cli_usage(cli, "--out is missing");
    HL_TRY(cli_split_model(cli, text, name, sizeof(name), &e.where.version));
    json_t *params = json_pack("{s:s}", "name", name);
    if (params == NULL)
        return cli_usage(cli, "the name is not UTF-8");
    HL_TRY(cli_call(cli, "getModel", params, &result));
    const json_t *m = json_object_get(result, "model");
    e.tp_size = (int)hl_json_int(m, "tp", 1);
    e.pp_size = (int)hl_json_int(m, "pp", 1);
    json_decref(result);
    e.where.model = name;
    e.where.kind = RANKFILE_MODEL;
    HL_TRY(cli_client(cli, a->path, (int)a->timeout_ms, &e.client));
    hl_status st = export_all(cli, &e, name);
    helios_close(e.client);
    return st;
}

hl_status cmd_model_export(struct cli *cli, int argc, char **argv)
{
    struct export_args a = {0};
    HL_TRY(cli_args(cli, export_rows, HL_ARRAY_LEN(export_rows), argc, argv, &a, 1, 1));
    hl_status st = export(cli, argv[0], &a);
    hl_args_fini(export_rows, HL_ARRAY_LEN(export_rows), &a);
    return st;
}
