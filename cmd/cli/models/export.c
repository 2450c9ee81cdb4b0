/* model export: writes one file per (tp, pp), with the names of Megatron's checkpoint folders. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/lists.h"
#include "base/clock.h"
#include "cli/models/commands.h"
#include "cli/models/export_folder.h"
#include "cli/models/hf_export.h"
#include "cli/models/logical.h"
#include "cli/models/model.h"
#include "cli/models/rankfile.h"
#include "core/model/megatron_args.h"
#include "core/model/model_config.h"
#include "core/torch/megatron.h"
#include "os/file.h"

struct export_args {
    char *format, *naming, *out, *path;
    bool optimizer, args, replace;
    int64_t tp_size, pp_size, ep_size, etp_size, virtual_stages;
    int64_t pp, tp, ep;
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
    {"out", "--out", "", "Directory to write into; created if missing.", HL_OPT_PATH, 0, 0, NULL,
     AT(out)},
    {"replace", "--replace", "false",
     "Remove what an earlier export left in --out, which is refused otherwise; other files stay.",
     HL_OPT_BOOL, 0, 0, NULL, AT(replace)},
    {"optimizer", "--optimizer", "false",
     "Write the optimizer state too; in torch files under a key that Megatron does not read, with "
     "hf in the folder optimizer.",
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
     "Model chunks per stage, 1 for none; 0: the version's, if it has as many stages.", HL_OPT_INT,
     0, 4096, NULL, AT(virtual_stages)},
    {"pp", "--pp", "-1", "Write only the files of this pipeline stage; -1: of all.", HL_OPT_INT, -1,
     4095, NULL, AT(pp)},
    {"tp", "--tp", "-1", "Write only the files of this tensor-parallel rank; -1: of all.",
     HL_OPT_INT, -1, 4095, NULL, AT(tp)},
    {"ep", "--ep", "-1", "Write only the files of this expert-parallel rank; -1: of all.",
     HL_OPT_INT, -1, 4095, NULL, AT(ep)},
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
    helios_split split; /* the requested one */
    struct rankfile_where where;
    int64_t version;
    enum hl_api_layer_naming naming;
    const char *naming_text; /* for people */
    bool has_optimizer;      /* of the version; asked->optimizer decides what is written */
    bool has_extra;          /* likewise: opaque blobs of modules, never written */
    bool has_args;           /* args were written */
    bool has_mtp;            /* layers for multi-token prediction */
    char *flags;             /* for Megatron's command line */
    struct hl_arena arena;   /* memory of the texts */
    struct hl_api_text_list warnings;
    struct cli_progress bar;
    bool noted; /* notes about the args are done; they are equal on all ranks */
    uint64_t bytes;
    unsigned files;
};

static void export_fini(struct export *e)
{
    free(e->flags);
    hl_arena_fini(&e->arena);
    helios_close(e->client);
}

static struct hl_megatron_sizes sizes_of(const struct export *e)
{
    return (struct hl_megatron_sizes){
        .tp = (uint64_t)e->tp_size, .pp = (uint64_t)e->pp_size, .ep = (uint64_t)e->ep_size};
}

/* Joins OUT/FOLDER/NAME and so on, from all pieces that are not "". */
static hl_status join_export_path(const struct export *e, const char *name, const char *file,
                                  char path[PATH_MAX])
{
    return cli_path(path, "%s%s%s%s%s%s%s", e->asked->out, e->folder[0] ? "/" : "", e->folder,
                    name[0] ? "/" : "", name, file[0] ? "/" : "", file);
}

/* Describes the folder of this export's ranks; `dir` receives its path. */
HL_CHECK static hl_status ranks_folder_of(const struct export *e, char dir[PATH_MAX],
                                          struct ranks_folder *out)
{
    *out = (struct ranks_folder){.dir = dir,
                                 .torch = e->torch,
                                 .sizes = sizes_of(e),
                                 .pp = e->asked->pp,
                                 .tp = e->asked->tp,
                                 .ep = e->asked->ep};
    return join_export_path(e, "", "", dir);
}

static hl_status export_path(const struct export *e, char path[PATH_MAX])
{
    char rank[96];
    const struct hl_megatron_sizes sizes = sizes_of(e);
    const struct hl_megatron_place place = {(uint64_t)e->where.tp, (uint64_t)e->where.pp,
                                            (uint64_t)e->where.ep};
    hl_megatron_rank_folder(&sizes, &place, rank, sizeof(rank));
    if (!e->torch) {
        snprintf(rank + strlen(rank), sizeof(rank) - strlen(rank), RANKS_FILE);
        HL_TRY(hl_dir_make(e->asked->out, 0755));
        return join_export_path(e, rank, "", path);
    }
    HL_TRY(join_export_path(e, rank, "", path));
    HL_TRY(hl_dir_make(path, 0755));
    return join_export_path(e, rank, "model_optim_rng.pt", path);
}

/* Makes the args of one rank's file; NULL if they are not wanted or can't be determined. */
static hl_status make_args(struct export *e, const struct rankfile *r, json_t **out)
{
    struct hl_megatron_args in = {.config = r->list->config_json,
                                  .naming = r->naming,
                                  .dtype = rankfile_dtype(r),
                                  .mtp = e->has_mtp,
                                  .iteration = e->iteration};
    json_t *args = NULL, *notes = NULL;
    const json_t *note;
    size_t i;
    hl_status st = hl_megatron_args_make(&in, &args, &notes);
    if (st == HL_ENOENT || (st == HL_EUNSUPPORTED && !e->asked->args)) {
        hl_error_clear();
        return HL_OK;
    }
    HL_TRY(st);
    if (e->flags == NULL)
        st = hl_megatron_flags(args, &e->flags);
    json_array_foreach (notes, i, note)
        if (!e->noted)
            hl_api_text_add(&e->arena, &e->warnings, json_string_value(note));
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

/* Whether the part is missing. *first: the first part that is. */
static bool miss_part(const struct rankfile *r, const char *part, char first[HL_PARTITION_PART_MAX])
{
    if (has_part(r, part))
        return false;
    if (first[0] == '\0')
        snprintf(first, HL_PARTITION_PART_MAX, "%s", part);
    return true;
}

/* Counts the missing layers of this stage, by the model's config; 0 without a config. */
static int miss_layers(const struct export *e, const struct rankfile *r,
                       char missing[HL_PARTITION_PART_MAX])
{
    struct hl_model_shape shape;
    char part[HL_PARTITION_PART_MAX];
    int count = 0;
    if (hl_model_shape_read(r->list->config_json, &shape) != HL_OK ||
        hl_split_check(&shape.split, shape.layers) != HL_OK || e->where.pp >= shape.split.pp) {
        hl_error_clear();
        return 0;
    }
    const struct hl_partition_options o = hl_split_options(&shape.split);
    for (int k = 0; k < hl_split_chunks(&shape.split); k++) {
        uint64_t from, layers;
        hl_partition_stage(&o, shape.layers, e->where.pp, k, &from, &layers);
        for (uint64_t n = from; n < from + layers; n++) {
            snprintf(part, sizeof(part), "layer-%04" PRIu64, n);
            count += miss_part(r, part, missing);
        }
    }
    return count;
}

/* A version may have been saved without parts of the model, and Megatron would not complain
 * either. */
static void warn_of_missing(struct export *e, const struct rankfile *r)
{
    char first[HL_PARTITION_PART_MAX] = "";
    int pp = e->where.pp, missing = 0;
    if (pp == 0)
        missing += miss_part(r, "embedding", first);
    missing += miss_layers(e, r, first);
    if (pp == e->pp_size - 1)
        missing += miss_part(r, "head", first);
    if (missing == 0)
        return;
    const char *text = hl_arena_printf(
        &e->arena, "%s@%" PRId64 " is incomplete: at pp %d, tp %d it has no %s%s", e->where.model,
        r->version, pp, e->where.tp, first, missing > 1 ? " and other parts" : "");
    if (text != NULL)
        hl_api_text_add(&e->arena, &e->warnings, text);
}

/* What is written of optimizer state is what any reader would get: one of several equal copies. */
HL_CHECK static hl_status prove_state(struct cli *cli, struct export *e)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct logical_version v;
    char why[HL_PROOF_WHY_MAX];
    bool proved = true;
    hl_status st = logical_open(&v, cli, e->client, e->where.model, e->where.version, &arena);
    if (st == HL_OK)
        st = logical_prove_state(&v, &proved, why);
    if (st == HL_OK && !proved) {
        const char *text = hl_arena_printf(&e->arena, "optimizer state is not proved: %s", why);
        if (text != NULL)
            hl_api_text_add(&e->arena, &e->warnings, text);
    }
    logical_close(&v);
    return st;
}

/* Checks that there is optimizer state, and that all of it can be written. */
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

/* Writes the file that says which folder Megatron loads, as the last file. `write` false removes it
 * if it names this folder. So a loader that finds it also finds all other files. */
static hl_status set_tracker(const struct export *e, bool write)
{
    char path[PATH_MAX], text[32] = "release";
    HL_TRY(cli_path(path, "%s/latest_checkpointed_iteration.txt", e->asked->out));
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

static bool is_of_one_rank(const struct export_args *a)
{
    return a->pp >= 0 || a->tp >= 0 || a->ep >= 0;
}

/* Removes everything of an earlier export before the first file of this one gets its name. If ranks
 * are written one by one, each can be loaded as soon as it exists, so the tracker stays. */
HL_CHECK static hl_status clear_folder(const struct export *e)
{
    struct ranks_folder folder;
    char dir[PATH_MAX];
    if (e->torch && !is_of_one_rank(e->asked))
        HL_TRY(set_tracker(e, false));
    HL_TRY(ranks_folder_of(e, dir, &folder));
    return ranks_folder_clear(&folder);
}

/* Megatron only loads whole models that it can cut. */
static hl_status check_loadable(const struct export *e, const struct rankfile *r)
{
    const char *what = !e->torch     ? NULL
                       : r->unsliced ? "is stored unsliced"
                       : r->adapter  ? "is a LoRA adapter without its base"
                                     : NULL;
    return what == NULL
               ? HL_OK
               : hl_fail(HL_EUNSUPPORTED,
                         "'%s' %s, which Megatron can't load: export it with --format hf or "
                         "safetensors",
                         e->where.model, what);
}

/* Finds layers for multi-token prediction: the last stage has them, and the args of every file need
 * to know. */
static hl_status find_mtp(struct export *e)
{
    struct rankfile r;
    e->where.pp = e->pp_size - 1;
    HL_TRY(rankfile_open(e->client, &e->where, &r));
    e->has_mtp = has_part(&r, "mtp-0000");
    rankfile_fini(&r);
    return HL_OK;
}

/* Estimates the total size of all ranks from this one and those that are written already. */
static void watch_file(struct export *e, const struct rankfile *r, struct outfile *file)
{
    uint64_t ranks = (uint64_t)e->pp_size * (uint64_t)e->tp_size * (uint64_t)e->ep_size;
    file->bar = &e->bar;
    file->before = e->bytes;
    file->total = (e->bytes + rankfile_bytes(r)) / (e->files + 1) * ranks;
}

/* On the last of several stages, Megatron has a copy of the embedding for those layers. */
static hl_status add_mtp_embedding(const struct export *e, struct rankfile *r)
{
    int chunk = -1;
    if (!e->torch || !e->has_mtp || e->pp_size == 1 || e->where.pp < e->pp_size - 1)
        return HL_OK;
    for (size_t i = 0; i < r->count; i++)
        if (strcmp(r->parts[i].part, "mtp-0000") == 0 && r->headers[i].count > 0)
            (void)sscanf(r->headers[i].tensors[0].name, "model%d.", &chunk);
    return rankfile_add_embedding(r, &e->where, chunk);
}

static hl_status export_rank(struct export *e)
{
    struct rankfile r;
    struct outfile file;
    char path[PATH_MAX];
    HL_TRY(rankfile_open(e->client, &e->where, &r));
    hl_status st = check_loadable(e, &r);
    if (st != HL_OK) {
        rankfile_fini(&r);
        return st;
    }
    e->version = r.version;
    e->naming = r.naming;
    e->naming_text = rankfile_naming(&r);
    e->has_optimizer |= rankfile_has(&r, HL_PART_OPTIM);
    e->has_extra |= rankfile_has(&r, HL_PART_EXTRA);
    if (e->asked->optimizer)
        st = check_optimizer(e, &r);
    if (st == HL_OK)
        st = add_mtp_embedding(e, &r);
    if (st == HL_OK && e->files == 0)
        st = clear_folder(e);
    if (st == HL_OK)
        st = export_path(e, path);
    if (st == HL_OK)
        st = outfile_open(path, &file);
    if (st == HL_OK) {
        watch_file(e, &r, &file);
        st = write_rank(e, &r, &file);
        e->bytes += file.written;
        if (st == HL_OK)
            st = outfile_commit(&file);
        outfile_abort(&file);
        if (!r.own_names)
            warn_of_missing(e, &r);
    }
    rankfile_fini(&r);
    e->files += st == HL_OK;
    return st;
}

/* ---- what is said ---------------------------------------------------------------------------- */

/* What a user may expect in the files, but is not written. */
static struct hl_api_text_list left_out(struct export *e)
{
    struct hl_api_text_list list = {0};
    if (e->has_optimizer && !e->asked->optimizer)
        hl_api_text_add(&e->arena, &list, "optimizer state (--optimizer writes it)");
    if (e->has_extra)
        hl_api_text_add(&e->arena, &list, "extra state of modules (`helios pull` has it)");
    if (e->torch && e->trained) {
        hl_api_text_add(&e->arena, &list, "learning-rate scheduler");
        hl_api_text_add(&e->arena, &list, "random number state");
    }
    if (e->torch && !e->has_args)
        hl_api_text_add(&e->arena, &list,
                        e->asked->args ? "args (the model has no Hugging Face config)"
                                       : "args (--no-args)");
    return list;
}

static const char *megatron_command(struct export *e)
{
    return hl_arena_printf(&e->arena, "--load %s --ckpt-format torch%s%s%s", e->asked->out,
                           e->has_args ? " --use-checkpoint-args" : "",
                           e->flags != NULL ? e->flags : "",
                           e->trained ? " --no-load-optim --no-load-rng" : "");
}

static void print_left_out(const struct hl_api_text_list *list)
{
    for (size_t i = 0; i < list->count; i++)
        printf("%s%s%s", i == 0 ? "left out: " : ", ", list->items[i],
               i + 1 == list->count ? "\n" : "");
}

static void print_result(const struct export *e, const struct hl_api_export_result *r)
{
    char size[32];
    printf("exported %s@%" PRId64 " to %s: %u file%s, %s in %.2f s, naming %s", r->files.model,
           r->files.version, r->files.out, r->files.files, r->files.files == 1 ? "" : "s",
           hl_format_bytes(r->files.bytes, size, sizeof(size)), r->files.seconds, e->naming_text);
    if (e->torch && e->trained)
        printf(", iteration %" PRId64, e->iteration);
    printf("\n");
    print_left_out(&r->left_out);
    if (e->torch && e->asked->optimizer)
        printf("optimizer state is under 'helios_optimizer', which Megatron does not read "
               "(docs/megatron.md)\n");
    for (size_t i = 0; i < r->warnings.count; i++)
        printf("warning: %s\n", r->warnings.items[i]);
    if (e->torch)
        printf("Megatron: %s\n", r->torch.megatron);
}

static hl_status report_export(struct cli *cli, struct export *e, double seconds)
{
    struct hl_api_export_result r = {
        .files = {e->where.model, e->version, e->asked->out, e->files, e->bytes, seconds},
        .naming = e->naming,
        .optimizer = e->asked->optimizer,
        .left_out = left_out(e),
        .warnings = e->warnings,
        .torch = {.iteration = -1},
    };
    if (e->torch)
        r.torch = (struct hl_api_torch_export){e->trained ? e->iteration : -1, e->has_args,
                                               megatron_command(e)};
    if (hl_arena_failed(&e->arena))
        return hl_fail(HL_ENOMEM, "out of memory for the result");
    if (cli->json)
        return cli_print_value(&hl_api_export_result_type, &r);
    print_result(e, &r);
    return HL_OK;
}

/* ---- the export ------------------------------------------------------------------------------ */

/* Whether this rank was requested. */
static bool is_chosen(const struct export *e)
{
    const struct export_args *a = e->asked;
    return (a->pp < 0 || a->pp == e->where.pp) && (a->tp < 0 || a->tp == e->where.tp) &&
           (a->ep < 0 || a->ep == e->where.ep);
}

static hl_status export_ranks(struct export *e)
{
    for (e->where.pp = 0; e->where.pp < e->pp_size; e->where.pp++)
        for (e->where.tp = 0; e->where.tp < e->tp_size; e->where.tp++)
            for (e->where.ep = 0; e->where.ep < e->ep_size; e->where.ep++)
                if (is_chosen(e))
                    HL_TRY(export_rank(e));
    if (e->files > 0)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "there is no rank at pp %" PRId64 ", tp %" PRId64 ", ep %" PRId64
                   " (-1: any); %s@%" PRId64 " has pp %d, tp %d, ep %d of them",
                   e->asked->pp, e->asked->tp, e->asked->ep, e->where.model, e->where.version,
                   e->pp_size, e->tp_size, e->ep_size);
}

static hl_status export_all(struct cli *cli, struct export *e)
{
    uint64_t start = hl_now_ns();
    struct ranks_folder folder;
    char dir[PATH_MAX];
    HL_TRY(ranks_folder_of(e, dir, &folder));
    HL_TRY(ranks_folder_check(&folder, e->asked->replace));
    if (e->torch)
        HL_TRY(find_mtp(e));
    if (e->asked->optimizer)
        HL_TRY(prove_state(cli, e));
    cli_progress_start(&e->bar, "exporting");
    hl_status st = export_ranks(e);
    cli_progress_end(&e->bar);
    HL_TRY(st);
    if (e->torch)
        HL_TRY(set_tracker(e, true));
    return report_export(cli, e, (double)(hl_now_ns() - start) / 1e9);
}

/* Determines the sizes, either the version's or those requested; which version it is, so that all
 * ranks are from the same one; and whether it was trained. */
static hl_status read_model(struct cli *cli, struct export *e)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_model model;
    const struct hl_api_model_version *v;
    HL_TRY(model_get(cli, e->where.model, &arena, &model));
    HL_TRY(model_find_version(&model, e->where.version, &v));
    e->where.version = v->version;
    e->tp_size = e->split.tp > 0 ? e->split.tp : v->split.tp;
    e->pp_size = e->split.pp > 0 ? e->split.pp : v->split.pp;
    e->ep_size =
        hl_split_ep(e->split.ep > 0 ? &(struct hl_api_split){.ep = e->split.ep} : &v->split);
    e->trained = v->world > 0; /* an import has no ranks */
    e->iteration = e->trained ? v->step : 0;
    if (e->tp_size < 1 || e->pp_size < 1)
        return hl_fail(HL_EPROTO, "the Controller does not say how %s@%" PRId64 " is split",
                       e->where.model, v->version);
    if (e->torch && e->trained)
        snprintf(e->folder, sizeof(e->folder), "iter_%07" PRId64, e->iteration);
    else if (e->torch)
        snprintf(e->folder, sizeof(e->folder), "release");
    return HL_OK;
}

/* Refuses options that only apply to per-rank files. */
static hl_status check_hf(struct cli *cli, const struct export_args *a)
{
    const char *what = strcmp(a->naming, "model") != 0 ? "--naming"
                       : a->tp_size > 0                ? "--tp-size"
                       : a->pp_size > 0                ? "--pp-size"
                       : a->ep_size > 0                ? "--ep-size"
                       : a->etp_size > 0               ? "--etp-size"
                       : a->virtual_stages > 0         ? "--virtual-stages"
                       : a->pp >= 0                    ? "--pp"
                       : a->tp >= 0                    ? "--tp"
                       : a->ep >= 0                    ? "--ep"
                                                       : NULL;
    if (what != NULL)
        return cli_usage(cli, "%s does not apply to --format hf, which writes one whole model",
                         what);
    return HL_OK;
}

/* What other exports have, or the original checkpoint had. */
static struct hl_api_text_list left_out_of_hf(struct export *e, const struct hf_export *h)
{
    struct hl_api_text_list list = {0};
    if (h->has_optimizer && !h->optimizer)
        hl_api_text_add(&e->arena, &list, "optimizer state (with --optimizer it is written)");
    if (h->has_extra)
        hl_api_text_add(&e->arena, &list, "extra state of modules (`helios pull` has it)");
    if (!h->adapter)
        hl_api_text_add(&e->arena, &list,
                        "tokenizer files (copy those of the original checkpoint)");
    return list;
}

static hl_status print_hf(struct cli *cli, struct export *e, const struct hf_export *h,
                          double seconds)
{
    char size[32];
    const struct hl_api_hf_export_result r = {
        .files = {h->model, h->version, h->out, h->files, h->bytes, seconds},
        .config = h->config,
        .optimizer = h->states,
        .left_out = left_out_of_hf(e, h)};
    if (hl_arena_failed(&e->arena))
        return hl_fail(HL_ENOMEM, "out of memory for the result");
    if (cli->json)
        return cli_print_value(&hl_api_hf_export_result_type, &r);
    printf("exported %s@%" PRId64 " to %s: %u file%s of tensors, %s in %.2f s%s%s\n", h->model,
           h->version, h->out, h->files, h->files == 1 ? "" : "s",
           hl_format_bytes(h->bytes, size, sizeof(size)), seconds,
           h->config != NULL ? ", and " : "; the model has no config.json",
           h->config != NULL ? h->config : "");
    if (h->optimizer)
        cli_print(stdout, "optimizer state: %" PRIu64 " tensor%s in %s/optimizer\n", h->states,
                  cli_plural(h->states), h->out);
    print_left_out(&r.left_out);
    return HL_OK;
}

static hl_status export_hf(struct cli *cli, struct export *e)
{
    uint64_t start = hl_now_ns();
    struct hf_export h = {.cli = cli,
                          .client = e->client,
                          .model = e->where.model,
                          .version = e->where.version,
                          .out = e->asked->out,
                          .optimizer = e->asked->optimizer,
                          .replace = e->asked->replace};
    HL_TRY(hf_export_write(&h));
    return print_hf(cli, e, &h, (double)(hl_now_ns() - start) / 1e9);
}

static hl_status export_model(struct cli *cli, const char *text, const struct export_args *a)
{
    HL_AUTO(export_fini)
    struct export e = {.asked = a, .torch = strcmp(a->format, "torch") == 0};
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
