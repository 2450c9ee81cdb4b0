/* model export: one file per (tp, pp), with the names Megatron gives its checkpoint folders. */
#include <dirent.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "cli/models/commands.h"
#include "cli/models/hf_export.h"
#include "cli/models/rankfile.h"
#include "core/megatron_args.h"
#include "core/split.h"
#include "core/torch/megatron.h"
#include "os/file.h"

struct export_args {
    char *format, *naming, *out, *path;
    bool optimizer, args;
    int64_t tp_size, pp_size, ep_size, etp_size, virtual_stages;
    uint64_t timeout_ms;
};

#define AT(field) HL_OPTION_FIELD(struct export_args, field)

static const struct hl_option export_rows[] = {
    {"format", "--format", "safetensors",
     "Per-rank files (safetensors, torch: Megatron's), or one Hugging Face checkpoint.",
     HL_OPT_ENUM, 0, 0, "safetensors|torch|hf", AT(format)},
    {"naming", "--naming", "model",
     "Names for Megatron's --transformer-impl local, for transformer_engine (te), or as imported.",
     HL_OPT_ENUM, 0, 0, "model|local|te", AT(naming)},
    {"out", "--out", "", "Directory to write into; made when it is missing.", HL_OPT_PATH, 0, 0,
     NULL, AT(out)},
    {"optimizer", "--optimizer", "false",
     "Write the optimizer state too; in torch files under a key that Megatron does not read.",
     HL_OPT_BOOL, 0, 0, NULL, AT(optimizer)},
    {"args", "--args", "true",
     "Write Megatron's args into torch files; --no-args for plain torch.load(weights_only=True).",
     HL_OPT_BOOL, 0, 0, NULL, AT(args)},
    {"tp_size", "--tp-size", "0", "Tensor-parallel size to export for; 0: the version's.",
     HL_OPT_INT, 0, 4096, NULL, AT(tp_size)},
    {"pp_size", "--pp-size", "0", "Pipeline stages to export for; 0: the version's.", HL_OPT_INT, 0,
     4096, NULL, AT(pp_size)},
    {"ep_size", "--ep-size", "0", "Expert-parallel size to export for; 0: the version's.",
     HL_OPT_INT, 0, 4096, NULL, AT(ep_size)},
    {"etp_size", "--etp-size", "0", "Expert-tensor-parallel size; 0: the version's.", HL_OPT_INT, 0,
     4096, NULL, AT(etp_size)},
    {"virtual_stages", "--virtual-stages", "0",
     "Model chunks per stage, 1 for none; 0: the version's with as many stages.", HL_OPT_INT, 0,
     4096, NULL, AT(virtual_stages)},
    {"path", "--path", "auto", "How to read: the mapped pool, the network, or whichever fits.",
     HL_OPT_ENUM, 0, 0, "auto|shm|net", AT(path)},
    {"timeout", "--timeout", "30s", "Deadline of one read.", HL_OPT_DURATION, 1, 86400000, NULL,
     AT(timeout_ms)},
};

struct export
{
    helios_client *client;
    const struct export_args *asked;
    bool torch;
    bool trained; /* a version that ranks wrote, with an iteration */
    int64_t iteration;
    char folder[40]; /* under --out: "release", "iter_0000020"; "" for safetensors */
    int tp_size, pp_size, ep_size;
    helios_split split; /* that was asked for */
    struct rankfile_where where;
    int64_t version;
    enum hl_api_layer_naming naming;
    bool has_optimizer; /* the version has; what is written is asked->optimizer */
    bool has_extra;     /* likewise, opaque blobs of modules, which are never written */
    bool has_args;      /* they were written */
    char *flags;        /* for Megatron's command line */
    json_t *warnings;   /* texts */
    bool noted;         /* those about the args are there; they are the same for every rank */
    uint64_t bytes;
    unsigned files;
};

static void export_fini(struct export *e)
{
    free(e->flags);
    json_decref(e->warnings);
    helios_close(e->client);
}

static struct hl_megatron_sizes sizes_of(const struct export *e)
{
    return (struct hl_megatron_sizes){
        .tp = (uint64_t)e->tp_size, .pp = (uint64_t)e->pp_size, .ep = (uint64_t)e->ep_size};
}

/* OUT/FOLDER/NAME and so on, whatever of the pieces is not "". */
static hl_status join_export_path(const struct export *e, const char *name, const char *file,
                                  char path[PATH_MAX])
{
    int n = snprintf(path, PATH_MAX, "%s%s%s%s%s%s%s", e->asked->out, e->folder[0] ? "/" : "",
                     e->folder, name[0] ? "/" : "", name, file[0] ? "/" : "", file);
    if (n < 0 || n >= PATH_MAX)
        return hl_fail(HL_EINVAL, "path '%.64s…' is too long", e->asked->out);
    return HL_OK;
}

static hl_status export_path(const struct export *e, char path[PATH_MAX])
{
    char rank[96];
    const struct hl_megatron_sizes sizes = sizes_of(e);
    const struct hl_megatron_place place = {(uint64_t)e->where.tp, (uint64_t)e->where.pp,
                                            (uint64_t)e->where.ep};
    hl_megatron_rank_folder(&sizes, &place, rank, sizeof(rank));
    if (!e->torch) {
        snprintf(rank + strlen(rank), sizeof(rank) - strlen(rank), ".safetensors");
        HL_TRY(hl_dir_make(e->asked->out, 0755));
        return join_export_path(e, rank, "", path);
    }
    HL_TRY(join_export_path(e, rank, "", path));
    HL_TRY(hl_dir_make(path, 0755));
    return join_export_path(e, rank, "model_optim_rng.pt", path);
}

static bool is_rank_of(const struct export *e, const char *entry)
{
    const struct hl_megatron_sizes sizes = sizes_of(e);
    struct hl_megatron_place place;
    if (hl_megatron_place(entry, &sizes, &place) == HL_OK)
        return true;
    hl_error_clear();
    return false;
}

/* Megatron takes whichever mp_rank folder it finds first: none of another TP x PP x EP may be
 * there. */
static hl_status check_folder(const struct export *e)
{
    char path[PATH_MAX];
    HL_TRY(join_export_path(e, "", "", path));
    DIR *dir = opendir(path);
    if (dir == NULL)
        return HL_OK; /* it does not exist; what else is wrong with it is found when writing */
    hl_status st = HL_OK;
    for (const struct dirent *d = readdir(dir); d != NULL && st == HL_OK; d = readdir(dir))
        if (strncmp(d->d_name, "mp_rank_", 8) == 0 && !is_rank_of(e, d->d_name))
            st = hl_fail(
                HL_EEXIST,
                "%s has %s of an export with another TP, PP or EP, which Megatron would load; "
                "remove it or choose another --out",
                path, d->d_name);
    closedir(dir);
    return st;
}

/* The args of one rank's file; NULL when they are not wanted or cannot be known. */
static hl_status make_args(struct export *e, const struct rankfile *r, json_t **out)
{
    struct hl_megatron_args in = {.config = r->list->config_json,
                                  .naming = r->naming,
                                  .dtype = rankfile_dtype(r),
                                  .iteration = e->iteration};
    json_t *args = NULL, *notes = NULL;
    hl_status st = hl_megatron_args_make(&in, &args, &notes);
    if (st == HL_ENOENT || (st == HL_EUNSUPPORTED && !e->asked->args)) {
        hl_error_clear();
        return HL_OK;
    }
    HL_TRY(st);
    if (e->flags == NULL)
        st = hl_megatron_flags(args, &e->flags);
    if (!e->noted)
        json_array_extend(e->warnings, notes);
    e->noted = true;
    json_decref(notes);
    if (st == HL_OK && e->asked->args) {
        e->has_args = true;
        *out = json_incref(args);
    }
    json_decref(args);
    return st;
}

static hl_status write_rank(struct export *e, struct rankfile *r, struct outfile *file)
{
    if (!e->torch)
        return rankfile_write_safetensors(r, file);
    json_t *args = NULL;
    HL_TRY(make_args(e, r, &args));
    hl_status st = rankfile_write_torch(r, e->iteration, args, file);
    json_decref(args);
    return st;
}

static bool has_part(const struct rankfile *r, const char *part)
{
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->parts[i].part, part) == 0)
            return true;
    return false;
}

/* A version may have been saved without all of the model; Megatron would not complain either. */
static void warn_of_missing(struct export *e, const struct rankfile *r)
{
    size_t i;
    const json_t *run;
    char part[32], first[32] = "";
    int pp = e->where.pp, missing = 0;
    json_t *config = json_loads(r->list->config_json, 0, NULL);
    if (pp == 0 && !has_part(r, "embedding") && missing++ == 0)
        snprintf(first, sizeof(first), "embedding");
    json_array_foreach (json_array_get(hl_json_list(config, "stages"), (size_t)pp), i, run) {
        int64_t from = hl_json_int(run, "first", 0), count = hl_json_int(run, "count", 0);
        for (int64_t n = from; n < from + count; n++) {
            snprintf(part, sizeof(part), "layer-%04" PRId64, n);
            if (!has_part(r, part) && missing++ == 0)
                snprintf(first, sizeof(first), "%s", part);
        }
    }
    if (pp == e->pp_size - 1 && !has_part(r, "head") && missing++ == 0)
        snprintf(first, sizeof(first), "head");
    if (missing > 0)
        json_array_append_new(e->warnings,
                              json_sprintf("%s@%" PRId64
                                           " is incomplete: at pp %d, tp %d it has no %s%s",
                                           e->where.model, r->version, pp, e->where.tp, first,
                                           missing > 1 ? " and other parts" : ""));
    json_decref(config);
}

/* Can all of the optimizer state be written, and is there any? */
static hl_status check_optimizer(const struct export *e, const struct rankfile *r)
{
    if (!rankfile_has(r, HL_PART_OPTIM))
        return hl_fail(HL_ENOENT,
                       "%s@%" PRId64 " has no optimizer state at pp %d, tp %d; export it without "
                       "--optimizer",
                       e->where.model, r->version, e->where.pp, e->where.tp);
    if (rankfile_shares(r) > 1)
        return hl_fail(HL_EUNSUPPORTED,
                       "the optimizer state of %s@%" PRId64 " was saved in %d shares of "
                       "data-parallel ranks, which one file cannot hold; take each with `helios "
                       "pull --kind optim --dp N`",
                       e->where.model, r->version, rankfile_shares(r));
    return HL_OK;
}

/* The file that says which folder Megatron loads. It is written last, and `write` false takes it
 * away if it names this folder: a loader never finds it without all the files. */
static hl_status set_tracker(const struct export *e, bool write)
{
    char path[PATH_MAX], text[32] = "release";
    int n = snprintf(path, sizeof(path), "%s/latest_checkpointed_iteration.txt", e->asked->out);
    if (n < 0 || (size_t)n >= sizeof(path))
        return hl_fail(HL_EINVAL, "path '%.64s…' is too long", e->asked->out);
    if (e->trained)
        snprintf(text, sizeof(text), "%" PRId64, e->iteration);
    if (write)
        return outfile_text(path, text);
    HL_AUTO(hl_buf_fini) struct hl_buf old = HL_BUF(4096);
    if (hl_file_read(path, &old) != HL_OK) {
        hl_error_clear();
        return HL_OK;
    }
    size_t len = old.len > 0 ? strcspn(old.data, " \t\r\n") : 0;
    if (len == strlen(text) && strncmp(old.data, text, len) == 0)
        unlink(path);
    return HL_OK;
}

static hl_status export_rank(struct export *e)
{
    struct rankfile r;
    struct outfile file;
    char path[PATH_MAX];
    HL_TRY(rankfile_open(e->client, &e->where, &r));
    e->version = r.version;
    e->naming = r.naming;
    e->has_optimizer |= rankfile_has(&r, HL_PART_OPTIM);
    e->has_extra |= rankfile_has(&r, HL_PART_EXTRA);
    hl_status st = e->asked->optimizer ? check_optimizer(e, &r) : HL_OK;
    if (st == HL_OK)
        st = export_path(e, path);
    if (st == HL_OK && e->torch && e->files == 0)
        st = set_tracker(e, false);
    if (st == HL_OK)
        st = outfile_open(path, &file);
    if (st == HL_OK) {
        st = write_rank(e, &r, &file);
        e->bytes += file.written;
        if (st == HL_OK)
            st = outfile_commit(&file);
        outfile_abort(&file);
        warn_of_missing(e, &r);
    }
    rankfile_fini(&r);
    e->files += st == HL_OK;
    return st;
}

/* ---- what is said ---------------------------------------------------------------------------- */

/* New array of texts: what a user may expect in the files and does not get. */
static json_t *left_out(const struct export *e)
{
    json_t *list = json_array();
    if (e->has_optimizer && !e->asked->optimizer)
        json_array_append_new(list, json_string("optimizer state (--optimizer writes it)"));
    if (e->has_extra)
        json_array_append_new(list, json_string("extra state of modules (`helios pull` has it)"));
    if (e->torch && e->trained) {
        json_array_append_new(list, json_string("learning-rate scheduler"));
        json_array_append_new(list, json_string("random number state"));
    }
    if (e->torch && !e->has_args)
        json_array_append_new(list, json_string(e->asked->args
                                                    ? "args (the model has no Hugging Face config)"
                                                    : "args (--no-args)"));
    return list;
}

static json_t *megatron_command(const struct export *e)
{
    return json_sprintf("--load %s --ckpt-format torch%s%s%s", e->asked->out,
                        e->has_args ? " --use-checkpoint-args" : "",
                        e->flags != NULL ? e->flags : "",
                        e->trained ? " --no-load-optim --no-load-rng" : "");
}

static void print_list(const char *title, const json_t *list)
{
    size_t i;
    const json_t *text;
    json_array_foreach (list, i, text)
        printf("%s%s", i == 0 ? title : ", ", json_string_value(text));
    if (json_array_size(list) > 0)
        printf("\n");
}

static void print_result(const struct export *e, double seconds)
{
    char size[32];
    size_t i;
    const json_t *text;
    printf("exported %s@%" PRId64 " to %s: %u file%s, %s in %.2f s, naming %s", e->where.model,
           e->version, e->asked->out, e->files, e->files == 1 ? "" : "s",
           hl_format_bytes(e->bytes, size, sizeof(size)), seconds,
           hl_api_layer_naming_name(e->naming));
    if (e->torch && e->trained)
        printf(", iteration %" PRId64, e->iteration);
    printf("\n");
    json_t *out = left_out(e), *command = e->torch ? megatron_command(e) : NULL;
    print_list("left out: ", out);
    if (e->torch && e->asked->optimizer)
        printf("optimizer state is under 'helios_optimizer', which Megatron does not read "
               "(docs/megatron.md)\n");
    json_array_foreach (e->warnings, i, text)
        printf("warning: %s\n", json_string_value(text));
    if (command != NULL)
        printf("Megatron: %s\n", json_string_value(command));
    json_decref(command);
    json_decref(out);
}

static hl_status report_export(struct cli *cli, const struct export *e, double seconds)
{
    if (!cli->json) {
        print_result(e, seconds);
        return HL_OK;
    }
    json_t *doc = json_pack("{s:s s:I s:s s:i s:I s:f s:s s:b s:o s:o}", "model", e->where.model,
                            "version", (json_int_t)e->version, "out", e->asked->out, "files",
                            (int)e->files, "bytes", (json_int_t)e->bytes, "seconds", seconds,
                            "naming", hl_api_layer_naming_name(e->naming), "optimizer",
                            (int)e->asked->optimizer, "leftOut", left_out(e), "warnings",
                            e->warnings != NULL ? json_incref(e->warnings) : json_array());
    if (e->torch) {
        json_object_set_new(doc, "iteration",
                            e->trained ? json_integer((json_int_t)e->iteration) : json_null());
        json_object_set_new(doc, "args", json_boolean(e->has_args));
        json_object_set_new(doc, "megatron", megatron_command(e));
    }
    return cli_print_json(doc);
}

/* ---- the export ------------------------------------------------------------------------------ */

static hl_status export_all(struct cli *cli, struct export *e)
{
    uint64_t start = hl_now_ns();
    if (e->torch)
        HL_TRY(check_folder(e));
    for (e->where.pp = 0; e->where.pp < e->pp_size; e->where.pp++)
        for (e->where.tp = 0; e->where.tp < e->tp_size; e->where.tp++)
            for (e->where.ep = 0; e->where.ep < e->ep_size; e->where.ep++)
                HL_TRY(export_rank(e));
    if (e->torch)
        HL_TRY(set_tracker(e, true));
    return report_export(cli, e, (double)(hl_now_ns() - start) / 1e9);
}

/* The sizes of the version, or those that were asked for; which version, so that all ranks are of
 * one; and whether it was trained. */
static hl_status read_model(struct cli *cli, struct export *e)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_get_model_results r;
    if (!hl_utf8_valid(e->where.model))
        return cli_usage(cli, "the name is not UTF-8");
    HL_TRY(CLI_CALL(cli, get_model, &(struct hl_api_controller_get_model_params){e->where.model},
                    &arena, &r));
    if (e->where.version < 0)
        e->where.version = r.model.latest;
    for (size_t i = 0; i < r.model.versions.count; i++) {
        const struct hl_api_model_version *v = &r.model.versions.items[i];
        if (v->version != e->where.version)
            continue;
        e->tp_size = e->split.tp > 0 ? e->split.tp : v->split.tp;
        e->pp_size = e->split.pp > 0 ? e->split.pp : v->split.pp;
        e->ep_size =
            hl_split_ep(e->split.ep > 0 ? &(struct hl_api_split){.ep = e->split.ep} : &v->split);
        e->trained = v->world > 0; /* an import has no ranks */
        e->iteration = e->trained ? v->step : 0;
    }
    if (e->tp_size < 1 || e->pp_size < 1)
        return hl_fail(HL_ENOENT,
                       "'%s' has no version %" PRId64 "; `helios model show %s` lists them",
                       e->where.model, e->where.version, e->where.model);
    if (e->torch && e->trained)
        snprintf(e->folder, sizeof(e->folder), "iter_%07" PRId64, e->iteration);
    else if (e->torch)
        snprintf(e->folder, sizeof(e->folder), "release");
    return HL_OK;
}

/* What only per-rank files have. */
static hl_status check_hf(struct cli *cli, const struct export_args *a)
{
    const char *what = a->optimizer                      ? "--optimizer"
                       : strcmp(a->naming, "model") != 0 ? "--naming"
                       : a->tp_size > 0                  ? "--tp-size"
                       : a->pp_size > 0                  ? "--pp-size"
                       : a->ep_size > 0                  ? "--ep-size"
                       : a->etp_size > 0                 ? "--etp-size"
                       : a->virtual_stages > 0           ? "--virtual-stages"
                                                         : NULL;
    if (what != NULL)
        return cli_usage(cli, "%s has no meaning with --format hf, which is one whole model", what);
    return HL_OK;
}

static hl_status print_hf(struct cli *cli, const struct hf_export *h, double seconds)
{
    char size[32];
    if (cli->json)
        return cli_print_json(json_pack("{s:s s:I s:s s:i s:I s:f}", "model", h->model, "version",
                                        (json_int_t)h->version, "out", h->out, "files",
                                        (int)h->files, "bytes", (json_int_t)h->bytes, "seconds",
                                        seconds));
    printf("exported %s@%" PRId64 " to %s: %u file%s of tensors, %s in %.2f s, and config.json\n"
           "left out: optimizer state, tokenizer files (copy those of the original checkpoint)\n",
           h->model, h->version, h->out, h->files, h->files == 1 ? "" : "s",
           hl_format_bytes(h->bytes, size, sizeof(size)), seconds);
    return HL_OK;
}

static hl_status export_hf(struct cli *cli, struct export *e)
{
    uint64_t start = hl_now_ns();
    struct hf_export h = {.client = e->client,
                          .model = e->where.model,
                          .version = e->where.version,
                          .tp_size = e->tp_size,
                          .pp_size = e->pp_size,
                          .ep_size = e->ep_size,
                          .out = e->asked->out};
    HL_TRY(hf_export_write(&h));
    return print_hf(cli, &h, (double)(hl_now_ns() - start) / 1e9);
}

static hl_status export_model(struct cli *cli, const char *text, const struct export_args *a)
{
    HL_AUTO(export_fini)
    struct export e = {
        .asked = a, .torch = strcmp(a->format, "torch") == 0, .warnings = json_array()};
    char name[160];
    if (a->out[0] == '\0')
        return cli_usage(cli, "--out is missing");
    bool hf = strcmp(a->format, "hf") == 0;
    if (hf)
        HL_TRY(check_hf(cli, a));
    HL_TRY(cli_split_model(cli, text, name, sizeof(name), &e.where.version));
    e.where.model = name;
    e.where.naming = a->naming;
    e.split = (helios_split){HELIOS_SPLIT_INIT,     .tp = (int)a->tp_size,
                             .pp = (int)a->pp_size, .virtual_stages = (int)a->virtual_stages,
                             .ep = (int)a->ep_size, .etp = (int)a->etp_size};
    e.where.split = &e.split;
    e.where.kind = a->optimizer ? RANKFILE_MODEL_OPTIM : RANKFILE_MODEL;
    HL_TRY(read_model(cli, &e));
    HL_TRY(cli_client(cli, a->path, (int)a->timeout_ms, &e.client));
    return hf ? export_hf(cli, &e) : export_all(cli, &e);
}

hl_status cmd_model_export(struct cli *cli, int argc, char **argv)
{
    struct export_args a = {0};
    HL_TRY(cli_args(cli, export_rows, HL_ARRAY_LEN(export_rows), argc, argv, &a, 1, 1));
    hl_status st = export_model(cli, argv[0], &a);
    hl_args_fini(export_rows, HL_ARRAY_LEN(export_rows), &a);
    return st;
}
