/* model import, cancel, ls, show, rm. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/utf8.h"
#include "cli/models/adapter.h"
#include "cli/models/commands.h"
#include "cli/models/model.h"
#include "core/model/model_config.h"
#include "core/torch/megatron.h"

#define POLL_MS        100
#define CANCEL_WAIT_MS 60000
#define SILENCE_NS     (10 * HL_NS_PER_S) /* limit without a response during an import */

struct import_args {
    char *name;
    int64_t tp, pp, ep, etp, vocab_divisor, first, last, virtual_stages;
    char *pad, *naming, *base, *iteration;
    bool optimizer, unsliced;
    uint64_t timeout_ms, wait_ms;
};

#define AT(field) HL_OPTION_FIELD(struct import_args, field)

static const struct hl_option import_rows[] = {
    {"name", "--name", "", "Name of the new model.", HL_OPT_STRING, 0, 0, NULL, AT(name)},
    {"tp", "--tp", "1", "Tensor-parallel size it is stored at.", HL_OPT_INT, 1, 4096, NULL, AT(tp)},
    {"pp", "--pp", "1", "Pipeline-parallel size it is stored at.", HL_OPT_INT, 1, 4096, NULL,
     AT(pp)},
    {"ep", "--ep", "1",
     "Expert-parallel size: ranks over which the experts of a layer are distributed.", HL_OPT_INT,
     1, 4096, NULL, AT(ep)},
    {"etp", "--etp", "0", "Expert-tensor-parallel size, a divisor of TP; 0 for TP.", HL_OPT_INT, 0,
     4096, NULL, AT(etp)},
    {"vocab_divisor", "--vocab-divisor", "128",
     "The vocabulary is padded to a multiple of this times TP.", HL_OPT_INT, 1, 1 << 20, NULL,
     AT(vocab_divisor)},
    {"pad", "--pad", "repeat", "Content of padding rows: the last row again, or zeros.",
     HL_OPT_ENUM, 0, 0, "repeat|zero", AT(pad)},
    {"naming", "--naming", "local", "Megatron-core's layer names: local or Transformer Engine.",
     HL_OPT_ENUM, 0, 0, "local|te", AT(naming)},
    {"first_stage_layers", "--first-stage-layers", "0", "Layers of the first stage; 0 for even.",
     HL_OPT_INT, 0, 1 << 20, NULL, AT(first)},
    {"last_stage_layers", "--last-stage-layers", "0", "Layers of the last stage; 0 for even.",
     HL_OPT_INT, 0, 1 << 20, NULL, AT(last)},
    {"virtual_stages", "--virtual-stages", "1", "Virtual stages (model chunks) per pipeline stage.",
     HL_OPT_INT, 1, 4096, NULL, AT(virtual_stages)},
    {"base", "--base", "",
     "For a LoRA adapter: the imported base model, whose split the adapter gets; empty for the "
     "name in adapter_config.json.",
     HL_OPT_STRING, 0, 0, NULL, AT(base)},
    {"iteration", "--iteration", "",
     "Of a Megatron checkpoint: this iteration, or release; without it the newest, which "
     "latest_checkpointed_iteration.txt names.",
     HL_OPT_STRING, 1, 0, NULL, AT(iteration)},
    {"optimizer", "--optimizer", "false",
     "Of a Megatron checkpoint: the optimizer state too (three times the memory and more).",
     HL_OPT_BOOL, 0, 0, NULL, AT(optimizer)},
    {"unsliced", "--unsliced", "false",
     "Store whole tensors under their own names, whatever the model: every rank reads all of it.",
     HL_OPT_BOOL, 0, 0, NULL, AT(unsliced)},
    {"wait", "--wait", "2h",
     "How long the import may wait for others to end before it begins; 0: not at all.",
     HL_OPT_DURATION, 0, INT64_MAX, NULL, AT(wait_ms)},
    {"timeout", "--timeout", "2h", "How long the import may take.", HL_OPT_DURATION, 1, INT64_MAX,
     NULL, AT(timeout_ms)},
};

static hl_status start_import(struct cli *cli, const char *dir, const struct import_args *a,
                              struct hl_arena *arena,
                              struct hl_api_controller_import_model_results *out)
{
    char path[PATH_MAX], base[HL_MODEL_NAME_MAX + 1];
    enum hl_api_vocab_padding pad;
    enum hl_api_layer_naming naming;
    HL_TRY(hl_api_vocab_padding_parse(a->pad, &pad));
    HL_TRY(hl_api_layer_naming_parse(a->naming, &naming));
    HL_TRY(cli_absolute(dir, path));
    HL_TRY(adapter_base(path, a->base, base));
    if (!hl_utf8_valid(path) || !hl_utf8_valid(a->name))
        return hl_fail(HL_EINVAL, "the directory or the name is not UTF-8");
    const struct hl_api_controller_import_model_params p = {
        .request = {.dir = path,
                    .name = a->name,
                    .base = base,
                    .base_config = "",
                    .iteration = a->iteration,
                    .optimizer = a->optimizer,
                    .unsliced = a->unsliced,
                    .wait_ms = a->wait_ms,
                    .tp = (int32_t)a->tp,
                    .pp = (int32_t)a->pp,
                    .ep = (int32_t)a->ep,
                    .etp = (int32_t)a->etp,
                    .vocab_divisor = (int32_t)a->vocab_divisor,
                    .pad = pad,
                    .naming = naming,
                    .first_stage_layers = (int32_t)a->first,
                    .last_stage_layers = (int32_t)a->last,
                    .virtual_stages = (int32_t)a->virtual_stages}};
    return CLI_CALL(cli, import_model, &p, arena, out);
}

static volatile sig_atomic_t interrupted;

static void on_interrupt(int number)
{
    (void)number;
    interrupted = 1;
    cli_progress_interrupted();
}

/* The first Ctrl-C cancels the import, a second one ends this program at once. The handler itself
 * cancels nothing: the loop of follow_import does, and continues until the import is over. */
static void cancel_on_interrupt(void)
{
    struct sigaction sa = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND};
    interrupted = 0;
    sigaction(SIGINT, &sa, NULL);
    sigaction(SIGTERM, &sa, NULL);
}

/* Cancels by import id or by the model's name; `id` receives the import's id. */
static hl_status cancel_import(struct cli *cli, const char *which, char *id, size_t cap)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_cancel_import_results r;
    if (!hl_utf8_valid(which))
        return cli_usage(cli, "the name is not UTF-8");
    HL_TRY(CLI_CALL(cli, cancel_import, &(struct hl_api_controller_cancel_import_params){which},
                    &arena, &r));
    snprintf(id, cap, "%s", r.import_id);
    return HL_OK;
}

/* An import that is polled. */
struct following {
    struct cli *cli;
    const char *id;
    uint64_t start_ns, heard_ns, timeout_ms;
    size_t behind; /* number of others in front, as last printed */
    struct cli_progress bar;
};

/* Prints once for each other import that has ended meanwhile. */
static void say_waiting(struct following *f, const struct hl_api_text_list *others)
{
    size_t n = others->count;
    char more[40] = "";
    if (n == f->behind)
        return;
    f->behind = n;
    f->bar.started_ns = hl_now_ns(); /* its rate counts from where it begins */
    if (n == 0)
        return;
    if (n > 1)
        snprintf(more, sizeof(more), " and %zu more", n - 1);
    cli_print(stderr, "waiting for %s%s to be imported or cut\n", others->items[0], more);
}

/* Polls once; *ended: the report, in the arena, is the last one. */
static hl_status import_look(struct following *f, struct hl_arena *arena,
                             struct hl_api_import_progress *out, bool *ended)
{
    struct hl_api_controller_import_progress_results r;
    uint64_t now = hl_now_ns();
    hl_status st = CLI_CALL(f->cli, import_progress,
                            &(struct hl_api_controller_import_progress_params){f->id}, arena, &r);
    if (st != HL_OK && (!hl_status_retryable(st) || now - f->heard_ns > SILENCE_NS))
        return st;
    if (st == HL_OK) {
        f->heard_ns = now;
        say_waiting(f, &r.progress.waits_for);
        cli_progress_update(&f->bar, r.progress.done_bytes, r.progress.total_bytes);
        *out = r.progress;
        *ended = r.progress.state != HL_API_IMPORT_STATE_RUNNING;
    }
    if (!*ended && now - f->start_ns > f->timeout_ms * HL_NS_PER_MS)
        return hl_fail(HL_ETIMEDOUT,
                       "the import did not end in %" PRIu64
                       " ms and continues; `helios model ls` shows it when it is done, `helios "
                       "model cancel` ends it",
                       f->timeout_ms);
    return HL_OK;
}

/* Polls until the import has ended; *progress is its last report. */
static hl_status follow_import(struct cli *cli, const char *id, uint64_t timeout_ms,
                               struct hl_arena *arena, struct hl_api_import_progress *progress)
{
    uint64_t now = hl_now_ns();
    struct following f = {
        .cli = cli, .id = id, .start_ns = now, .heard_ns = now, .timeout_ms = timeout_ms};
    hl_status st = HL_OK;
    bool ended = false;
    char same[40];
    cli_progress_start(&f.bar, "importing");
    while (st == HL_OK && !ended) {
        HL_AUTO(hl_arena_fini) struct hl_arena one = {0};
        if (interrupted)
            interrupted = cancel_import(cli, id, same, sizeof(same)) != HL_OK;
        st = import_look(&f, &one, progress, &ended);
        if (ended)
            hl_arena_move(arena, &one);
        else if (st == HL_OK)
            nanosleep(&(struct timespec){.tv_nsec = POLL_MS * 1000000L}, NULL);
    }
    cli_progress_end(&f.bar);
    return st;
}

static hl_status print_import(struct cli *cli, const char *name, int64_t version,
                              const struct hl_api_import_progress *p)
{
    uint64_t bytes = 0;
    char text[32], rate_text[32];
    for (size_t i = 0; i < p->shards.count; i++)
        bytes += p->shards.items[i].size_bytes;
    uint64_t rate = p->seconds > 0 ? (uint64_t)((double)bytes / p->seconds) : 0;
    HL_AUTO(hl_model_config_fini) struct hl_model_config config = {0};
    HL_TRY(hl_model_config_read(p->config, &config));
    const struct hl_api_split *split = &config.split;
    const struct hl_api_text_list *left_out = &config.own.megatron.left_out;
    const char *why = config.own.unsliced_because;
    if (cli->json)
        return cli_print_value(&hl_api_import_result_type,
                               &(struct hl_api_import_result){.name = name,
                                                              .version = version,
                                                              .tp = split->tp,
                                                              .pp = split->pp,
                                                              .ep = hl_split_ep(split),
                                                              .etp = hl_split_etp(split),
                                                              .shards = p->shards.count,
                                                              .bytes = bytes,
                                                              .seconds = p->seconds,
                                                              .bytes_per_second = rate,
                                                              .unsliced = config.own.unsliced,
                                                              .unsliced_because = why,
                                                              .left_out = *left_out});
    char as[HL_SPLIT_TEXT_MAX];
    bool unsliced = config.own.unsliced;
    cli_print(stdout, "imported %s@%" PRId64 " %s%s: %zu shard%s, %s in %.2f s (%s/s)\n", name,
              version, unsliced ? "unsliced" : "as ", unsliced ? "" : hl_split_text(split, as),
              p->shards.count, cli_plural(p->shards.count),
              hl_format_bytes(bytes, text, sizeof(text)), p->seconds,
              hl_format_bytes(rate, rate_text, sizeof(rate_text)));
    if (why != NULL)
        cli_print(stdout, "every rank reads the whole model: %s\n", why);
    for (size_t i = 0; i < left_out->count; i++)
        cli_print(stdout, "left out: %s\n", left_out->items[i]);
    return HL_OK;
}

/* The error in the report of an import that has not succeeded. */
static hl_status import_failure(const struct hl_api_import_progress *p)
{
    hl_status st = hl_status_by_name(p->error_status);
    return hl_fail(st == HL_OK ? HL_EINTERNAL : st, "%s",
                   p->error[0] != '\0' ? p->error : "the import failed without a reason");
}

static hl_status run_import(struct cli *cli, const char *dir, const struct import_args *a)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_import_model_results started;
    struct hl_api_import_progress progress;
    cancel_on_interrupt();
    HL_TRY(start_import(cli, dir, a, &arena, &started));
    HL_TRY(follow_import(cli, started.import_id, a->timeout_ms, &arena, &progress));
    return progress.state == HL_API_IMPORT_STATE_DONE
               ? print_import(cli, a->name, started.version, &progress)
               : import_failure(&progress);
}

static hl_status model_import(struct cli *cli, const char *dir, const struct import_args *a)
{
    char folder[40];
    if (a->name[0] == '\0')
        return cli_usage(cli, "--name is missing");
    if (a->iteration[0] != '\0' &&
        hl_megatron_folder(a->iteration, strlen(a->iteration), folder, sizeof(folder)) != HL_OK)
        return cli_usage(cli, "--iteration: %s", hl_error_text());
    hl_status st = run_import(cli, dir, a);
    if (st == HL_OK)
        return HL_OK;
    signal(SIGINT, SIG_DFL); /* there is nothing to cancel */
    signal(SIGTERM, SIG_DFL);
    HL_TRY(cli_await_l3(cli, st));
    return run_import(cli, dir, a);
}

hl_status cmd_model_import(struct cli *cli, int argc, char **argv)
{
    struct import_args a = {0};
    HL_TRY(cli_args(cli, import_rows, HL_ARRAY_LEN(import_rows), argc, argv, &a, 1, 1));
    hl_status st = model_import(cli, argv[0], &a);
    hl_args_fini(import_rows, HL_ARRAY_LEN(import_rows), &a);
    return st;
}

hl_status cmd_model_cancel(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    char id[40];
    struct hl_api_import_progress progress;
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cancel_import(cli, argv[0], id, sizeof(id)));
    HL_TRY(follow_import(cli, id, CANCEL_WAIT_MS, &arena, &progress));
    hl_status st = import_failure(&progress);
    if (st != HL_ECANCELED)
        return st; /* it had failed by itself */
    hl_error_clear();
    if (cli->json)
        return cli_print_value(&hl_api_import_cancelled_type,
                               &(struct hl_api_import_cancelled){argv[0], true});
    cli_print(stdout, "the import of %s is cancelled\n", argv[0]);
    return HL_OK;
}

static uint64_t model_bytes(const struct hl_api_model *model)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < model->versions.count; i++)
        bytes += model->versions.items[i].bytes;
    return bytes;
}

static void cell_latest(struct cli_table *t, const struct hl_api_model *model)
{
    if (model->latest < 0)
        cli_cell(t, "-");
    else
        cli_cell(t, "%" PRId64, model->latest);
}

/* Formats a number for people: 134.5M parameters. */
static void cell_count(struct cli_table *t, uint64_t count)
{
    static const char units[] = " KMBT";
    double value = (double)count;
    size_t unit = 0;
    while (value >= 999.95 && unit + 2 < sizeof(units)) {
        value /= 1000;
        unit++;
    }
    if (unit == 0)
        cli_cell(t, "%" PRIu64, count);
    else
        cli_cell(t, "%.1f%c", value, units[unit]);
}

static const char *model_state(const struct hl_api_model *model)
{
    return model->latest >= 0 ? "ready" : "empty";
}

static void model_row(struct cli_table *t, const struct hl_api_model *m)
{
    cli_cell(t, "%s", m->name);
    cli_cell(t, "%s", model_state(m));
    cell_latest(t, m);
    cli_cell(t, "%s", m->architecture);
    cli_cell(t, "%s", m->dtype);
    cell_count(t, m->parameters);
    cli_cell(t, "%d", m->tp);
    cli_cell(t, "%d", m->pp);
    cli_cell(t, "%zu", m->versions.count);
    cli_cell_bytes(t, model_bytes(m));
    cli_cell_time(t, m->created_ms);
}

static void import_row(struct cli_table *t, const struct hl_api_import_summary *im)
{
    double done = (double)im->done_bytes, total = (double)im->total_bytes;
    cli_cell(t, "%s", im->name);
    if (im->queued)
        cli_cell(t, "waiting");
    else
        cli_cell(t, "importing %d%%", total > 0 ? (int)(100.0 * done / total) : 0);
    for (int k = 0; k < 4; k++)
        cli_cell(t, "-");
    cli_cell(t, "%d", im->tp);
    cli_cell(t, "%d", im->pp);
    cli_cell(t, "-");
    cli_cell_bytes(t, im->total_bytes);
    cli_cell(t, "-");
}

static struct hl_api_model_info model_info(const struct hl_api_model *m)
{
    return (struct hl_api_model_info){.model = *m, .state = model_state(m)};
}

#define VERSION_FIELD(name) offsetof(struct hl_api_model_version, name)

static void exchange_type(struct cli_type *in, const struct hl_api_type *old,
                          const struct hl_api_type *now)
{
    for (size_t i = 0; i < in->type.field_count; i++)
        if (in->fields[i].type == old)
            in->fields[i].type = now;
}

/* Omits fields of versions that only `model show` has; empty ones would read as "not pinned". */
static hl_status print_model_items(const struct hl_api_model_info *items, size_t count)
{
    static const size_t unasked[] = {VERSION_FIELD(durability), VERSION_FIELD(lacking_shards),
                                     VERSION_FIELD(lacking),    VERSION_FIELD(heat),
                                     VERSION_FIELD(pinned),     VERSION_FIELD(in_memory)};
    struct cli_type version, model, info;
    cli_type_without(&hl_api_model_version_type, unasked, HL_ARRAY_LEN(unasked), &version);
    cli_type_without(&hl_api_model_type, NULL, 0, &model);
    cli_type_without(&hl_api_model_info_type, NULL, 0, &info);
    exchange_type(&model, &hl_api_model_version_type, &version.type);
    exchange_type(&info, &hl_api_model_type, &model.type);
    return cli_print_items(&info.type, items, count);
}

static hl_status print_models_json(const struct hl_api_controller_list_models_results *r)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_model_info *items =
        hl_arena_array(&arena, r->models.count + r->imports.count, sizeof(*items));
    size_t n = 0;
    if (items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing the models");
    for (size_t i = 0; i < r->models.count; i++)
        items[n++] = model_info(&r->models.items[i]);
    for (size_t i = 0; i < r->imports.count; i++)
        items[n++] = (struct hl_api_model_info){.import = r->imports.items[i],
                                                .state = r->imports.items[i].queued ? "waiting"
                                                                                    : "importing"};
    return print_model_items(items, n);
}

hl_status cmd_model_ls(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_models_results r;
    struct cli_table t;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    HL_TRY(
        CLI_CALL(cli, list_models, &(struct hl_api_controller_list_models_params){0}, &arena, &r));
    if (cli->json)
        return print_models_json(&r);
    cli_table_init(&t,
                   "NAME|!STATE|>LATEST|?ARCHITECTURE|?DTYPE|>PARAMETERS|>TP|>PP|?>VERSIONS|>SIZE"
                   "|?!CREATED");
    for (size_t i = 0; i < r.models.count; i++)
        model_row(&t, &r.models.items[i]);
    for (size_t i = 0; i < r.imports.count; i++)
        import_row(&t, &r.imports.items[i]);
    return cli_table_print(&t);
}

/* A visible version with missing parts is not served by default. */
static const char *version_state(const struct hl_api_model_version *v)
{
    return v->state == HL_API_VERSION_STATE_VISIBLE && v->error[0] != '\0'
               ? "damaged"
               : hl_api_version_state_name(v->state);
}

static const char *proof_text(const struct hl_api_model_version *v)
{
    return v->proved ? "proved" : v->unproved[0] == '\0' ? "-" : "not proved";
}

/* Prints what is not proved, and why, which is too long for a column. */
static void print_unproved(const struct hl_api_model_version_list *versions)
{
    bool first = true;
    for (size_t i = 0; i < versions->count; i++) {
        const struct hl_api_model_version *v = &versions->items[i];
        if (v->proved || v->unproved[0] == '\0')
            continue;
        cli_print(stdout, "%sversion %" PRId64 " is not proved: %s\n", first ? "\n" : "",
                  v->version, v->unproved);
        first = false;
    }
}

/* Printed while copies are missing. */
static void print_lacking(const struct hl_api_model_version_list *versions)
{
    for (size_t i = 0; i < versions->count; i++) {
        const struct hl_api_model_version *v = &versions->items[i];
        if (v->lacking_shards > 0)
            cli_print(stdout,
                      "\nversion %" PRId64 " has %" PRIu32
                      " of its shards in too few failure domains (versions.durability=%s): %s\n",
                      v->version, v->lacking_shards, v->durability, v->lacking);
    }
}

/* Whether readers wait for the archive, and whether it stays where it is. */
static const char *where_text(const struct hl_api_model_version *v)
{
    if (v->state != HL_API_VERSION_STATE_VISIBLE)
        return "-";
    if (v->pinned)
        return v->in_memory ? "in memory, pinned" : "not in memory, pinned";
    return v->in_memory ? "in memory" : "not in memory";
}

static hl_status print_versions(const struct hl_api_model_version_list *versions)
{
    struct cli_table t;
    bool failed = false; /* otherwise a column without texts would hide others */
    for (size_t i = 0; i < versions->count; i++)
        failed |= versions->items[i].error[0] != '\0';
    cli_table_init(
        &t,
        failed
            ? ">VERSION|!STATE|>STEP|JOB|?SPLIT|?>COMMITTED|?>SHARDS|>SIZE|!CREATED|?PROOF|?>HEAT|?"
              "WHERE|ERROR"
            : ">VERSION|!STATE|>STEP|JOB|?SPLIT|?>COMMITTED|?>SHARDS|>SIZE|!CREATED|?PROOF|?>HEAT|"
              "?WHERE");
    for (size_t i = 0; i < versions->count; i++) {
        const struct hl_api_model_version *v = &versions->items[i];
        char split[HL_SPLIT_TEXT_MAX];
        cli_cell(&t, "%" PRId64, v->version);
        cli_cell(&t, "%s", version_state(v));
        cli_cell(&t, "%" PRId64, v->step);
        cli_cell(&t, "%s", v->job[0] != '\0' ? v->job : "-");
        cli_cell(&t, "%s", hl_split_text(&v->split, split));
        if (v->world > 0)
            cli_cell(&t, "%" PRIu32 "/%" PRIu32, v->committed_ranks, v->world);
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%" PRIu32, v->shards);
        cli_cell_bytes(&t, v->bytes);
        cli_cell_time(&t, v->created_ms);
        cli_cell(&t, "%s", proof_text(v));
        if (v->state == HL_API_VERSION_STATE_VISIBLE)
            cli_cell(&t, "%.4f", v->heat);
        else
            cli_cell(&t, "-");
        cli_cell(&t, "%s", where_text(v));
        if (failed)
            cli_cell(&t, "%s", v->error);
    }
    return cli_table_print(&t);
}

hl_status model_get(struct cli *cli, const char *name, struct hl_arena *arena,
                    struct hl_api_model *out)
{
    struct hl_api_controller_get_model_results r;
    if (!hl_utf8_valid(name))
        return cli_usage(cli, "the name is not UTF-8");
    HL_TRY(CLI_CALL(cli, get_model, &(struct hl_api_controller_get_model_params){name}, arena, &r));
    *out = r.model;
    return HL_OK;
}

hl_status model_find_version(const struct hl_api_model *model, int64_t version,
                             const struct hl_api_model_version **out)
{
    int64_t wanted = version < 0 ? model->latest : version;
    for (size_t i = 0; i < model->versions.count; i++)
        if (model->versions.items[i].version == wanted) {
            *out = &model->versions.items[i];
            return HL_OK;
        }
    if (version < 0)
        return hl_fail(HL_ENOENT, "model '%s' has no visible version", model->name);
    return hl_fail(HL_ENOENT,
                   "model '%s' has no version %" PRId64 "; `helios model show %s` lists them",
                   model->name, version, model->name);
}

static hl_status print_cuts(const struct hl_api_model_version_list *versions)
{
    struct cli_table t;
    size_t cuts = 0;
    for (size_t i = 0; i < versions->count; i++)
        cuts += versions->items[i].cuts.count;
    if (cuts == 0)
        return HL_OK;
    cli_print(stdout, "\nderived layouts, the first to be evicted:\n");
    cli_table_init(&t, ">VERSION|SPLIT|>SHARDS|>SIZE|LEFT OUT");
    for (size_t i = 0; i < versions->count; i++) {
        const struct hl_api_model_version *v = &versions->items[i];
        for (size_t k = 0; k < v->cuts.count; k++) {
            const struct hl_api_cut *cut = &v->cuts.items[k];
            char split[HL_SPLIT_TEXT_MAX];
            cli_cell(&t, "%" PRId64, v->version);
            cli_cell(&t, "%s", hl_split_cut_text(&cut->split, split));
            cli_cell(&t, "%" PRIu32, cut->shards);
            cli_cell_bytes(&t, cut->bytes);
            cli_cell(&t, "%s", cut->left_out[0] != '\0' ? cut->left_out : "-");
        }
    }
    return cli_table_print(&t);
}

HL_CHECK static hl_status print_slices(const struct hl_api_model *m)
{
    HL_AUTO(hl_model_config_fini) struct hl_model_config config = {0};
    if (m->config[0] != '\0') /* otherwise its record was damaged */
        HL_TRY(hl_model_config_read(m->config, &config));
    const char *why = config.own.unsliced_because, *base = config.own.adapter.base;
    struct hl_api_split split = config.split;
    char text[HL_SPLIT_TEXT_MAX];
    if (m->config[0] == '\0')
        split =
            (struct hl_api_split){.tp = m->tp, .pp = m->pp, .virtual_stages = m->virtual_stages};
    cli_print(stdout, "name          %s\nsource        %s\narchitecture  %s", m->name,
              m->source[0] != '\0' ? m->source : "saved by a client, not imported",
              m->architecture);
    if (m->dtype[0] != '\0')
        cli_print(stdout, ", %s", m->dtype);
    if (m->parameters > 0)
        cli_print(stdout, ", %" PRIu64 " parameters", m->parameters);
    cli_print(stdout, "\n");
    if (base != NULL && base[0] != '\0')
        cli_print(stdout, "adapter       LoRA, of the base model %s\n", base);
    if (why != NULL)
        cli_print(stdout, "slices        none, every rank reads the whole model: %s\n\n", why);
    else
        cli_print(stdout, "slices        %s%s\n\n", hl_split_text(&split, text),
                  config.own.as_saved ? "; only so, as it was saved without a config" : "");
    return HL_OK;
}

/* Of NAME@VERSION only that version is shown. */
static hl_status keep_version(struct hl_api_model *model, int64_t version)
{
    const struct hl_api_model_version *one;
    HL_TRY(model_find_version(model, version, &one));
    model->versions.items[0] = *one;
    model->versions.count = 1;
    return HL_OK;
}

hl_status cmd_model_show(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_model model;
    const struct hl_api_model *m = &model;
    char name[160];
    int64_t version;
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(cli_split_model(cli, argv[0], name, sizeof(name), &version));
    HL_TRY(model_get(cli, name, &arena, &model));
    if (version >= 0)
        HL_TRY(keep_version(&model, version));
    const struct hl_api_model_info info = model_info(m);
    if (cli->json)
        return cli_print_value(&hl_api_model_info_type, &info);
    HL_TRY(print_slices(m));
    HL_TRY(print_versions(&m->versions));
    print_unproved(&m->versions);
    print_lacking(&m->versions);
    return print_cuts(&m->versions);
}

struct rm_args {
    bool force;
};

static const struct hl_option rm_rows[] = {
    {"force", "--force", "false", "Remove it even while a job uses or writes it.", HL_OPT_BOOL, 0,
     0, NULL, HL_OPTION_FIELD(struct rm_args, force)},
};

static hl_status model_remove(struct cli *cli, const char *which, bool force)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_remove_model_results r;
    char name[160], text[32];
    int64_t version;
    HL_TRY(cli_split_model(cli, which, name, sizeof(name), &version));
    const struct hl_api_controller_remove_model_params p = {
        .name = name, .version = version, .force = force};
    HL_TRY(CLI_CALL(cli, remove_model, &p, &arena, &r));
    if (cli->json)
        return cli_print_value(
            &hl_api_model_removed_type,
            &(struct hl_api_model_removed){
                .name = name, .version = version, .shards = r.shards, .bytes = r.bytes});
    printf("removed %s: %" PRIu32 " shard%s, %s\n", which, r.shards, cli_plural(r.shards),
           hl_format_bytes(r.bytes, text, sizeof(text)));
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
