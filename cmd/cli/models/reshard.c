/* model reshard: another layout of a version, made ahead of its first reader. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/clock.h"
#include "cli/models/commands.h"
#include "cli/models/model.h"
#include "cli/models/rankfile.h"
#include "core/split.h"

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

static hl_status print_layout(const struct hl_api_reshard_result *r)
{
    char split[HL_SPLIT_TEXT_MAX], size[32];
    hl_split_text(&r->split, split);
    if (r->shards == 0) {
        cli_print(stdout, "%s@%" PRId64 " can be read as %s: its shards serve that as they are\n",
                  r->name, r->version, split);
        return HL_OK;
    }
    cli_print(stdout, "%s@%" PRId64 " can be read as %s: %" PRIu64 " derived shards, %s, %.3f s\n",
              r->name, r->version, split, r->shards, hl_format_bytes(r->bytes, size, sizeof(size)),
              r->seconds);
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
    return cli->json ? cli_print_value(&hl_api_reshard_result_type, &result)
                     : print_layout(&result);
}

static hl_status reshard_model(struct cli *cli, const struct reshard_args *a, const char *text)
{
    const struct hl_api_split want = {.tp = (int)a->tp_size,
                                      .pp = (int)a->pp_size,
                                      .ep = (int)a->ep_size,
                                      .etp = (int)a->etp_size,
                                      .virtual_stages = (int)a->virtual_stages};
    const helios_split split = {HELIOS_SPLIT_INIT, .tp = want.tp,
                                .pp = want.pp,     .virtual_stages = want.virtual_stages,
                                .ep = want.ep,     .etp = want.etp};
    helios_client *client;
    helios_shard_list *list;
    char name[160];
    int64_t version;
    if (a->tp_size + a->pp_size + a->ep_size + a->etp_size + a->virtual_stages == 0)
        return cli_usage(cli, "say the layout: --tp-size, --pp-size, --ep-size, --etp-size or "
                              "--virtual-stages");
    HL_TRY(cli_split_model(cli, text, name, sizeof(name), &version));
    uint64_t start = hl_now_ns();
    HL_TRY(cli_client(cli, "auto", (int)a->timeout_ms, &client));
    hl_status st = (hl_status)helios_request_position(client, name, version, &split, 0, 0, &list);
    if (st == HL_OK) {
        version = list->version;
        helios_shard_list_free(list);
        st = show_layout(cli, name, version, &want, (double)(hl_now_ns() - start) / 1e9);
    }
    helios_close(client);
    return st;
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
