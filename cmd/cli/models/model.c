/* model import, cancel, ls, show, rm. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/models/commands.h"

#define POLL_MS        100
#define CANCEL_WAIT_MS 60000
#define SILENCE_NS     (10 * HL_NS_PER_S) /* of the Controller during an import */

struct import_args {
    char *name;
    int64_t tp, pp, vocab_divisor, first, last, virtual_stages;
    char *pad, *naming;
    uint64_t timeout_ms;
};

#define AT(field) offsetof(struct import_args, field)

static const struct hl_option import_rows[] = {
    {"name", "--name", "", "Name of the new model.", HL_OPT_STRING, 0, 0, NULL, AT(name), 0},
    {"tp", "--tp", "1", "Tensor-parallel size.", HL_OPT_INT, 1, 4096, NULL, AT(tp), 0},
    {"pp", "--pp", "1", "Pipeline-parallel size.", HL_OPT_INT, 1, 4096, NULL, AT(pp), 0},
    {"vocab_divisor", "--vocab-divisor", "128",
     "The vocabulary is padded to a multiple of this times TP.", HL_OPT_INT, 1, 1 << 20, NULL,
     AT(vocab_divisor), 0},
    {"pad", "--pad", "repeat", "Rows of the padding: the last row again, or zeros.", HL_OPT_ENUM, 0,
     0, "repeat|zero", AT(pad), 0},
    {"naming", "--naming", "local", "Megatron-core's layer names: local or Transformer Engine.",
     HL_OPT_ENUM, 0, 0, "local|te", AT(naming), 0},
    {"first_stage_layers", "--first-stage-layers", "0", "Layers of the first stage; 0 for even.",
     HL_OPT_INT, 0, 1 << 20, NULL, AT(first), 0},
    {"last_stage_layers", "--last-stage-layers", "0", "Layers of the last stage; 0 for even.",
     HL_OPT_INT, 0, 1 << 20, NULL, AT(last), 0},
    {"virtual_stages", "--virtual-stages", "1", "Virtual stages (model chunks) per pipeline stage.",
     HL_OPT_INT, 1, 4096, NULL, AT(virtual_stages), 0},
    {"timeout", "--timeout", "2h", "How long the import may take.", HL_OPT_DURATION, 1, INT64_MAX,
     NULL, AT(timeout_ms), 0},
};

static hl_status start_import(struct cli *cli, const char *dir, const struct import_args *a,
                              json_t **out)
{
    char path[PATH_MAX];
    HL_TRY(cli_absolute(dir, path));
    json_t *request =
        json_pack("{s:{s:s s:s s:I s:I s:I s:s s:s s:I s:I s:I}}", "request", "dir", path, "name",
                  a->name, "tp", (json_int_t)a->tp, "pp", (json_int_t)a->pp, "vocabDivisor",
                  (json_int_t)a->vocab_divisor, "pad", a->pad, "naming", a->naming,
                  "firstStageLayers", (json_int_t)a->first, "lastStageLayers", (json_int_t)a->last,
                  "virtualStages", (json_int_t)a->virtual_stages);
    if (request == NULL)
        return hl_fail(HL_EINVAL, "the directory or the name is not UTF-8");
    return cli_call(cli, "importModel", request, out);
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
}

/* The first Ctrl-C cancels the import, a second one leaves it at that. */
static void cancel_on_interrupt(void)
{
    struct sigaction sa = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    interrupted = 0;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

/* By import id or by the model's name; the id goes into `id`. */
static hl_status cancel_import(struct cli *cli, const char *which, char *id, size_t cap)
{
    json_t *result, *params = json_pack("{s:s}", "id", which);
    if (params == NULL)
        return cli_usage(cli, "the name is not UTF-8");
    HL_TRY(cli_call(cli, "cancelImport", params, &result));
    snprintf(id, cap, "%s", hl_json_str(result, "importId", ""));
    json_decref(result);
    return HL_OK;
}

/* Until the import has ended; *progress is its last report. */
static hl_status follow_import(struct cli *cli, const char *id, uint64_t timeout_ms,
                               json_t **progress)
{
    struct cli_progress bar;
    uint64_t start = hl_now_ns(), heard = start;
    hl_status st = HL_OK;
    char same[40];
    cli_progress_start(&bar, "importing");
    for (;;) {
        json_t *result;
        uint64_t now = hl_now_ns();
        if (interrupted)
            interrupted = cancel_import(cli, id, same, sizeof(same)) != HL_OK;
        st = cli_call(cli, "importProgress", json_pack("{s:s}", "importId", id), &result);
        if (st == HL_OK) {
            json_t *p = json_incref(json_object_get(result, "progress"));
            json_decref(result);
            heard = now;
            cli_progress_update(&bar, (uint64_t)hl_json_int(p, "doneBytes", 0),
                                (uint64_t)hl_json_int(p, "totalBytes", 0));
            if (strcmp(hl_json_str(p, "state", ""), "running") != 0) {
                *progress = p;
                break;
            }
            json_decref(p);
        } else if (!hl_status_retryable(st) || now - heard > SILENCE_NS) {
            break;
        }
        if (now - start > timeout_ms * HL_NS_PER_MS) {
            st = hl_fail(HL_ETIMEDOUT,
                         "the import did not end in %" PRIu64
                         " ms and goes on; `helios model ls` shows it when it is done, "
                         "`helios model cancel` ends it",
                         timeout_ms);
            break;
        }
        nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
    }
    cli_progress_end(&bar);
    return st;
}

static hl_status print_import(struct cli *cli, const struct import_args *a, int64_t version,
                              const json_t *p)
{
    size_t i, shards = json_array_size(hl_json_list(p, "shards"));
    json_t *s;
    uint64_t bytes = 0;
    char text[32], rate_text[32];
    json_array_foreach (hl_json_list(p, "shards"), i, s)
        bytes += (uint64_t)hl_json_int(s, "sizeBytes", 0);
    double seconds = hl_json_real(p, "seconds", 0);
    uint64_t rate = seconds > 0 ? (uint64_t)((double)bytes / seconds) : 0;
    if (cli->json)
        return cli_print_json(json_pack(
            "{s:s s:I s:I s:I s:I s:I s:f s:I}", "name", a->name, "version", (json_int_t)version,
            "tp", (json_int_t)a->tp, "pp", (json_int_t)a->pp, "shards", (json_int_t)shards, "bytes",
            (json_int_t)bytes, "seconds", seconds, "bytesPerSecond", (json_int_t)rate));
    cli_print(stdout,
              "imported %s@%" PRId64 " as TP%" PRId64 " x PP%" PRId64
              ": %zu shards, %s in %.2f s (%s/s)\n",
              a->name, version, a->tp, a->pp, shards, hl_format_bytes(bytes, text, sizeof(text)),
              seconds, hl_format_bytes(rate, rate_text, sizeof(rate_text)));
    return HL_OK;
}

/* What a report of an import that has not succeeded says. */
static hl_status import_failure(const json_t *progress)
{
    hl_status st = hl_status_by_name(hl_json_str(progress, "errorStatus", "EINTERNAL"));
    return hl_fail(st == HL_OK ? HL_EINTERNAL : st, "%s",
                   hl_json_str(progress, "error", "the import failed without a reason"));
}

static hl_status import(struct cli *cli, const char *dir, const struct import_args *a)
{
    json_t *started, *progress = NULL;
    if (a->name[0] == '\0')
        return cli_usage(cli, "--name is missing");
    cancel_on_interrupt();
    HL_TRY(start_import(cli, dir, a, &started));
    int64_t version = hl_json_int(started, "version", 1);
    hl_status st =
        follow_import(cli, hl_json_str(started, "importId", ""), a->timeout_ms, &progress);
    json_decref(started);
    HL_TRY(st);
    st = strcmp(hl_json_str(progress, "state", ""), "done") == 0
             ? print_import(cli, a, version, progress)
             : import_failure(progress);
    json_decref(progress);
    return st;
}

hl_status cmd_model_import(struct cli *cli, int argc, char **argv)
{
    struct import_args a = {0};
    HL_TRY(cli_args(cli, import_rows, HL_ARRAY_LEN(import_rows), argc, argv, &a, 1, 1));
    hl_status st = import(cli, argv[0], &a);
    hl_args_fini(import_rows, HL_ARRAY_LEN(import_rows), &a);
    return st;
}

hl_status cmd_model_cancel(struct cli *cli, int argc, char **argv)
{
    char id[40];
    json_t *progress = NULL;
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cancel_import(cli, argv[0], id, sizeof(id)));
    HL_TRY(follow_import(cli, id, CANCEL_WAIT_MS, &progress));
    hl_status st = import_failure(progress);
    json_decref(progress);
    if (st != HL_ECANCELED)
        return st; /* it had failed by itself */
    hl_error_clear();
    if (cli->json)
        return cli_print_json(json_pack("{s:s s:b}", "name", argv[0], "cancelled", 1));
    cli_print(stdout, "the import of %s is cancelled\n", argv[0]);
    return HL_OK;
}

static uint64_t model_bytes(const json_t *model)
{
    size_t i;
    json_t *v;
    uint64_t bytes = 0;
    json_array_foreach (hl_json_list(model, "versions"), i, v)
        bytes += (uint64_t)hl_json_int(v, "bytes", 0);
    return bytes;
}

static void cell_latest(struct cli_table *t, const json_t *model)
{
    int64_t latest = hl_json_int(model, "latest", -1);
    if (latest < 0)
        cli_cell(t, "-");
    else
        cli_cell(t, "%" PRId64, latest);
}

/* Numbers for a person: 134.5M parameters. */
static void cell_count(struct cli_table *t, int64_t count)
{
    static const char units[] = " KMBT";
    double value = (double)count;
    size_t unit = 0;
    while (value >= 999.95 && unit + 2 < sizeof(units)) {
        value /= 1000;
        unit++;
    }
    if (unit == 0)
        cli_cell(t, "%" PRId64, count);
    else
        cli_cell(t, "%.1f%c", value, units[unit]);
}

static const char *model_state(const json_t *model)
{
    return hl_json_int(model, "latest", -1) >= 0 ? "ready" : "empty";
}

static void model_row(struct cli_table *t, const json_t *m)
{
    cli_cell(t, "%s", hl_json_str(m, "name", ""));
    cli_cell(t, "%s", model_state(m));
    cell_latest(t, m);
    cli_cell(t, "%s", hl_json_str(m, "architecture", ""));
    cli_cell(t, "%s", hl_json_str(m, "dtype", ""));
    cell_count(t, hl_json_int(m, "parameters", 0));
    cli_cell(t, "%" PRId64, hl_json_int(m, "tp", 0));
    cli_cell(t, "%" PRId64, hl_json_int(m, "pp", 0));
    cli_cell(t, "%zu", json_array_size(hl_json_list(m, "versions")));
    cli_cell_bytes(t, model_bytes(m));
    cli_cell_time(t, hl_json_int(m, "createdMs", 0));
}

static void import_row(struct cli_table *t, const json_t *im)
{
    int64_t done = hl_json_int(im, "doneBytes", 0), total = hl_json_int(im, "totalBytes", 0);
    cli_cell(t, "%s", hl_json_str(im, "name", ""));
    cli_cell(t, "importing %d%%", total > 0 ? (int)(100.0 * (double)done / (double)total) : 0);
    for (int k = 0; k < 4; k++)
        cli_cell(t, "-");
    cli_cell(t, "%" PRId64, hl_json_int(im, "tp", 0));
    cli_cell(t, "%" PRId64, hl_json_int(im, "pp", 0));
    cli_cell(t, "-");
    cli_cell_bytes(t, (uint64_t)total);
    cli_cell(t, "-");
}

/* JSON that the daemons carry as text becomes part of the document; no text, no member. */
static void unfold(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    json_t *value = text != NULL ? json_loads(text, JSON_DECODE_ANY, NULL) : NULL;
    if (value != NULL)
        json_object_set_new(object, key, value);
    else if (text != NULL && text[0] == '\0')
        json_object_del(object, key);
}

static void unfold_model(json_t *model)
{
    size_t i;
    json_t *v;
    unfold(model, "config");
    json_array_foreach (hl_json_list(model, "versions"), i, v)
        unfold(v, "meta");
    json_object_set_new(model, "state", json_string(model_state(model)));
}

static hl_status models_json(json_t *result)
{
    json_t *items = json_deep_copy(hl_json_list(result, "models")), *m;
    size_t i;
    json_array_foreach (items, i, m)
        unfold_model(m);
    json_array_foreach (hl_json_list(result, "imports"), i, m) {
        json_object_set_new(m, "state", json_string("importing"));
        json_array_append(items, m);
    }
    json_decref(result);
    return cli_print_items(items);
}

hl_status cmd_model_ls(struct cli *cli, int argc, char **argv)
{
    struct cli_table t;
    json_t *result, *m;
    size_t i;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    HL_TRY(cli_call(cli, "listModels", NULL, &result));
    if (cli->json)
        return models_json(result);
    cli_table_init(&t,
                   "NAME|!STATE|>LATEST|?ARCHITECTURE|?DTYPE|>PARAMETERS|>TP|>PP|?>VERSIONS|>SIZE"
                   "|?!CREATED");
    json_array_foreach (hl_json_list(result, "models"), i, m)
        model_row(&t, m);
    json_array_foreach (hl_json_list(result, "imports"), i, m)
        import_row(&t, m);
    json_decref(result);
    return cli_table_print(&t);
}

/* A visible one that lacks something is not served by default. */
static const char *version_state(const json_t *version)
{
    const char *state = hl_json_str(version, "state", "");
    bool whole = hl_json_str(version, "error", "")[0] == '\0';
    return strcmp(state, "visible") != 0 || whole ? state : "damaged";
}

static hl_status print_versions(const json_t *model)
{
    struct cli_table t;
    size_t i;
    json_t *v;
    cli_table_init(&t, ">VERSION|!STATE|>STEP|JOB|?>COMMITTED|?>SHARDS|>SIZE|!CREATED|ERROR");
    json_array_foreach (hl_json_list(model, "versions"), i, v) {
        int64_t world = hl_json_int(v, "world", 0);
        const char *job = hl_json_str(v, "job", "");
        cli_cell(&t, "%" PRId64, hl_json_int(v, "version", 0));
        cli_cell(&t, "%s", version_state(v));
        cli_cell(&t, "%" PRId64, hl_json_int(v, "step", 0));
        cli_cell(&t, "%s", job[0] != '\0' ? job : "-");
        if (world > 0)
            cli_cell(&t, "%" PRId64 "/%" PRId64, hl_json_int(v, "committedRanks", 0), world);
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%" PRId64, hl_json_int(v, "shards", 0));
        cli_cell_bytes(&t, (uint64_t)hl_json_int(v, "bytes", 0));
        cli_cell_time(&t, hl_json_int(v, "createdMs", 0));
        cli_cell(&t, "%s", hl_json_str(v, "error", ""));
    }
    return cli_table_print(&t);
}

hl_status cmd_model_show(struct cli *cli, int argc, char **argv)
{
    json_t *result;
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    json_t *params = json_pack("{s:s}", "name", argv[0]);
    if (params == NULL)
        return cli_usage(cli, "the name is not UTF-8");
    HL_TRY(cli_call(cli, "getModel", params, &result));
    json_t *m = json_incref(json_object_get(result, "model"));
    json_decref(result);
    if (cli->json) {
        unfold_model(m);
        return cli_print_json(m);
    }
    int64_t stages =
        hl_json_int(m, "virtualStages", 1) > 0 ? hl_json_int(m, "virtualStages", 1) : 1;
    cli_print(stdout,
              "name          %s\nsource        %s\narchitecture  %s, %s, %" PRId64 " parameters\n"
              "slices        TP%" PRId64 " x PP%" PRId64 ", %" PRId64 " virtual stage%s each\n\n",
              hl_json_str(m, "name", ""), hl_json_str(m, "source", ""),
              hl_json_str(m, "architecture", "?"), hl_json_str(m, "dtype", "?"),
              hl_json_int(m, "parameters", 0), hl_json_int(m, "tp", 0), hl_json_int(m, "pp", 0),
              stages, stages == 1 ? "" : "s");
    hl_status st = print_versions(m);
    json_decref(m);
    return st;
}

struct rm_args {
    int force;
};

static const struct hl_option rm_rows[] = {
    {"force", "--force", "false", "Remove it also while a job uses or writes it.", HL_OPT_BOOL, 0,
     0, NULL, offsetof(struct rm_args, force), 0},
};

static hl_status model_remove(struct cli *cli, const char *which, int force)
{
    char name[160], text[32];
    int64_t version;
    json_t *result;
    HL_TRY(cli_split_model(cli, which, name, sizeof(name), &version));
    json_t *params =
        json_pack("{s:s s:I s:b}", "name", name, "version", (json_int_t)version, "force", force);
    if (params == NULL)
        return cli_usage(cli, "the name is not UTF-8");
    HL_TRY(cli_call(cli, "removeModel", params, &result));
    if (cli->json)
        return cli_print_json(result);
    printf("removed %s: %" PRId64 " shards, %s\n", which, hl_json_int(result, "shards", 0),
           hl_format_bytes((uint64_t)hl_json_int(result, "bytes", 0), text, sizeof(text)));
    json_decref(result);
    return HL_OK;
}

hl_status cmd_model_rm(struct cli *cli, int argc, char **argv)
{
    struct rm_args a = {0};
    HL_TRY(cli_args(cli, rm_rows, HL_ARRAY_LEN(rm_rows), argc, argv, &a, 1, 1));
    hl_status st = model_remove(cli, argv[0], a.force);
    hl_args_fini(rm_rows, HL_ARRAY_LEN(rm_rows), &a);
    return st;
}
