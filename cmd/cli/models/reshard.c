/* model reshard: makes another layout of a version before its first reader needs it. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cli/models/commands.h"
#include "cli/models/model.h"
#include "core/model/model_config.h"
#include "core/model/split.h"

struct reshard_args {
    int64_t tp_size, pp_size, ep_size, etp_size, virtual_stages;
    uint64_t timeout_ms;
};

#define AT(field) HL_OPTION_FIELD(struct reshard_args, field)

static const struct hl_option reshard_rows[] = {
    {"tp_size", "--tp-size", "0", "Tensor-parallel size; 0: the version's.", HL_OPT_INT, 0, 4096,
     NULL, AT(tp_size)},
    {"pp_size", "--pp-size", "0", "Pipeline stages; 0: the version's.", HL_OPT_INT, 0, 4096, NULL,
     AT(pp_size)},
    {"ep_size", "--ep-size", "0", "Expert-parallel size; 0: the version's.", HL_OPT_INT, 0, 4096,
     NULL, AT(ep_size)},
    {"etp_size", "--etp-size", "0", "Expert-tensor-parallel size; 0: the version's.", HL_OPT_INT, 0,
     4096, NULL, AT(etp_size)},
    {"virtual_stages", "--virtual-stages", "0",
     "Model chunks per stage, 1 for none; 0: the version's, if it has as many stages.", HL_OPT_INT,
     0, 4096, NULL, AT(virtual_stages)},
    {"timeout", "--timeout", "30s", "Longest time without any progress.", HL_OPT_DURATION, 1,
     86400000, NULL, AT(timeout_ms)},
};

static const struct hl_api_cut *find_cut(const struct hl_api_model_version *v,
                                         const struct hl_api_split *split)
{
    for (size_t i = 0; i < v->cuts.count; i++)
        if (hl_split_same_cut(&v->cuts.items[i].split, split))
            return &v->cuts.items[i];
    return NULL;
}

static hl_status print_layout(const struct hl_api_reshard_result *r, bool unsliced)
{
    char split[HL_SPLIT_TEXT_MAX], size[32];
    hl_split_text(&r->split, split);
    if (r->shards == 0) {
        cli_print(stdout, "%s@%" PRId64 " can be read as %s: %s\n", r->name, r->version, split,
                  unsliced ? "it is stored unsliced, every rank reads the whole model"
                           : "its shards serve it without changes");
        return HL_OK;
    }
    cli_print(stdout, "%s@%" PRId64 " can be read as %s: %" PRIu64 " derived shard%s, %s, %.3f s\n",
              r->name, r->version, split, r->shards, cli_plural(r->shards),
              hl_format_bytes(r->bytes, size, sizeof(size)), r->seconds);
    if (r->left_out[0] != '\0')
        cli_print(stdout, "without %s\n", r->left_out);
    return HL_OK;
}

static hl_status show_layout(struct cli *cli, const char *name, int64_t version,
                             const struct hl_api_split *want, double seconds)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_model model;
    const struct hl_api_model_version *v = NULL;
    HL_TRY(model_get(cli, name, &arena, &model));
    HL_TRY(model_find_version(&model, version, &v));
    struct hl_api_reshard_result result = {.name = name,
                                           .version = version,
                                           .split = hl_split_resolve(want, &v->split),
                                           .seconds = seconds,
                                           .left_out = ""};
    const struct hl_api_cut *cut =
        hl_split_same_cut(&result.split, &v->split) ? NULL : find_cut(v, &result.split);
    if (cut != NULL) {
        result.shards = cut->shards;
        result.bytes = cut->bytes;
        result.left_out = cut->left_out;
    }
    if (cli->json)
        return cli_print_value(&hl_api_reshard_result_type, &result);
    HL_AUTO(hl_model_config_fini) struct hl_model_config config = {0};
    HL_TRY(hl_model_config_read(model.config, &config));
    return print_layout(&result, config.own.unsliced);
}

/* A cut that the Controller is asked for repeatedly. */
struct awaiting {
    uint64_t timeout_ms; /* limit without any progress */
    uint64_t moved_ns;   /* time of the last progress */
    uint64_t seen;       /* bytes */
    struct cli_progress bar;
};

/* Called after an answer that the layout does not exist yet. */
static hl_status note_cutting(struct awaiting *w, const char *name,
                              const struct hl_api_controller_request_shards_results *r)
{
    uint64_t now = hl_now_ns();
    w->bar.title = r->queued ? "waiting for others" : "cutting";
    cli_progress_update(&w->bar, r->done_bytes, r->total_bytes);
    if (r->done_bytes != w->seen)
        w->moved_ns = now;
    w->seen = r->done_bytes;
    if (now - w->moved_ns <= w->timeout_ms * HL_NS_PER_MS)
        return HL_OK;
    return hl_fail(HL_ETIMEDOUT,
                   "%s@%" PRId64 " %s, without progress for %" PRIu64 " s at %" PRIu64
                   " of %" PRIu64 " bytes; it continues, and the log of the L3 daemon may say why",
                   name, r->version,
                   r->queued ? "waits to be cut behind other imports and cuts" : "is being cut",
                   w->timeout_ms / 1000, r->done_bytes, r->total_bytes);
}

/* Waits until the version has shards for that split; p->version tells which version it is. */
static hl_status await_layout(struct cli *cli, struct hl_api_controller_request_shards_params *p,
                              uint64_t timeout_ms)
{
    struct patience patience = {.limit_ms = timeout_ms};
    struct awaiting w = {.timeout_ms = timeout_ms, .moved_ns = hl_now_ns()};
    hl_status st = HL_OK;
    bool cutting = true, heard = false;
    int call_ms;
    HL_TRY(cli_timeout(cli, &call_ms)); /* an answer itself takes a while */
    call_ms = timeout_ms > (uint64_t)call_ms ? (int)timeout_ms : call_ms;
    cli_progress_start(&w.bar, "cutting");
    while (st == HL_OK && cutting) {
        HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
        struct hl_api_controller_request_shards_results r;
        st = CLI_CALL_FOR(cli, request_shards, p, call_ms, &arena, &r);
        if (st != HL_OK) {
            cli_progress_end(&w.bar);
            st = heard ? patience_lose(&patience, cli, st) : cli_await_l3(cli, st);
            continue;
        }
        patience_regain(&patience);
        heard = true;
        p->version = r.version;
        cutting = r.cutting;
        if (cutting)
            st = note_cutting(&w, p->model, &r);
    }
    cli_progress_end(&w.bar);
    return st;
}

static hl_status reshard_model(struct cli *cli, const struct reshard_args *a, const char *text)
{
    const struct hl_api_split want = {.tp = (int)a->tp_size,
                                      .pp = (int)a->pp_size,
                                      .ep = (int)a->ep_size,
                                      .etp = (int)a->etp_size,
                                      .virtual_stages = (int)a->virtual_stages};
    char name[160];
    struct hl_api_controller_request_shards_params p = {.model = name, .split = want};
    if (!hl_split_said(&want))
        return cli_usage(
            cli,
            "give the layout: --tp-size, --pp-size, --ep-size, --etp-size or --virtual-stages");
    HL_TRY(cli_split_model(cli, text, name, sizeof(name), &p.version));
    uint64_t start = hl_now_ns();
    HL_TRY(await_layout(cli, &p, a->timeout_ms));
    return show_layout(cli, name, p.version, &want, (double)(hl_now_ns() - start) / 1e9);
}

hl_status cmd_model_reshard(struct cli *cli, int argc, char **argv)
{
    struct reshard_args a = {0};
    int at = 0;
    HL_TRY(cli_args(cli, reshard_rows, HL_ARRAY_LEN(reshard_rows), argc, argv, &a, 1, 1));
    hl_status st = reshard_model(cli, &a, argv[at]);
    hl_args_fini(reshard_rows, HL_ARRAY_LEN(reshard_rows), &a);
    return st;
}
