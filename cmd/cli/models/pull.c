/* pull: writes what one rank loads as one safetensors file. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/models/commands.h"
#include "cli/models/rankfile.h"

struct pull_args {
    char *model, *out, *path, *kind, *naming;
    int64_t tp, pp, ep, dp, tp_size, pp_size, ep_size, etp_size, virtual_stages;
    uint64_t timeout_ms;
};

#define AT(field) HL_OPTION_FIELD(struct pull_args, field)

static const struct hl_option pull_rows[] = {
    {"model", "--model", "", "Model, NAME or NAME@VERSION.", HL_OPT_STRING, 0, 0, NULL, AT(model)},
    {"pp", "--pp", "0", "Pipeline stage, from 0.", HL_OPT_INT, 0, 4095, NULL, AT(pp)},
    {"tp", "--tp", "0", "Tensor-parallel rank, from 0.", HL_OPT_INT, 0, 4095, NULL, AT(tp)},
    {"tp_size", "--tp-size", "0", "Tensor-parallel size that --tp refers to; 0: the version's.",
     HL_OPT_INT, 0, 4096, NULL, AT(tp_size)},
    {"pp_size", "--pp-size", "0", "Stages that --pp refers to; 0: the version's.", HL_OPT_INT, 0,
     4096, NULL, AT(pp_size)},
    {"ep", "--ep", "0", "Expert-parallel rank, from 0.", HL_OPT_INT, 0, 4095, NULL, AT(ep)},
    {"ep_size", "--ep-size", "0", "Expert-parallel size that --ep refers to; 0: the version's.",
     HL_OPT_INT, 0, 4096, NULL, AT(ep_size)},
    {"etp_size", "--etp-size", "0", "Expert-tensor-parallel size; 0: the version's.", HL_OPT_INT, 0,
     4096, NULL, AT(etp_size)},
    {"virtual_stages", "--virtual-stages", "0",
     "Model chunks per stage, 1 for none; 0: the version's, if it has as many stages.", HL_OPT_INT,
     0, 4096, NULL, AT(virtual_stages)},
    {"out", "--out", "", "File to write; - for stdout.", HL_OPT_PATH, 0, 0, NULL, AT(out)},
    {"dp", "--dp", "0",
     "Data-parallel rank, from 0, for optimizer state that was saved in shares; otherwise refused.",
     HL_OPT_INT, 0, 1000000, NULL, AT(dp)},
    {"kind", "--kind", "all", "Tensors of the model, of the optimizer, or both.", HL_OPT_ENUM, 0, 0,
     "all|model|optim", AT(kind)},
    {"naming", "--naming", "model",
     "Names for Megatron's --transformer-impl local, for transformer_engine (te), or as imported.",
     HL_OPT_ENUM, 0, 0, "model|local|te", AT(naming)},
    {"path", "--path", "auto", "How to read: the mapped pool, the network, or whichever fits.",
     HL_OPT_ENUM, 0, 0, "auto|shm|net", AT(path)},
    {"timeout", "--timeout", "30s", "Deadline of one read.", HL_OPT_DURATION, 1, 86400000, NULL,
     AT(timeout_ms)},
};

static enum rankfile_kind kind_of(const char *text)
{
    return strcmp(text, "model") == 0   ? RANKFILE_MODEL
           : strcmp(text, "optim") == 0 ? RANKFILE_OPTIM
                                        : RANKFILE_ALL;
}

static hl_status print_pulled(struct cli *cli, const struct pull_args *a, const char *name,
                              const struct rankfile *r, helios_client *client, uint64_t bytes,
                              double seconds)
{
    helios_stats s = {HELIOS_STATS_INIT};
    char size[32], rate_text[32];
    HL_TRY((hl_status)helios_get_stats(client, &s));
    double read_s = (double)s.read_ns / 1e9;
    uint64_t rate = read_s > 0 ? (uint64_t)((double)s.read_bytes / read_s) : 0;
    if (cli->json) {
        const struct hl_api_pull_result pulled = {.model = name,
                                                  .version = r->version,
                                                  .pp = a->pp,
                                                  .tp = a->tp,
                                                  .ep = a->ep,
                                                  .parts = r->count,
                                                  .naming = r->naming,
                                                  .path = s.path,
                                                  .bytes = bytes,
                                                  .seconds = seconds,
                                                  .bytes_per_second = rate,
                                                  .crc_failures = s.crc_failures,
                                                  .retries = s.retries,
                                                  .skipped = r->list->skipped};
        return cli_print_beside(&hl_api_pull_result_type, &pulled, a->out);
    }
    char ep[32] = "";
    if (a->ep > 0)
        snprintf(ep, sizeof(ep), " ep%" PRId64, a->ep);
    fprintf(stderr,
            "pulled %s@%" PRId64 " pp%" PRId64 " tp%" PRId64
            "%s%s: path %s, %zu part%s, naming %s, %s in %.3f s, read at %s/s, %" PRIu64
            " checksum failures, %" PRIu64 " retries\n",
            name, r->version, a->pp, a->tp, ep, r->unsliced ? ", the whole model" : "", s.path,
            r->count, cli_plural(r->count), rankfile_naming(r),
            hl_format_bytes(bytes, size, sizeof(size)), seconds,
            hl_format_bytes(rate, rate_text, sizeof(rate_text)), s.crc_failures, s.retries);
    return HL_OK;
}

static hl_status pull_to(struct cli *cli, const struct pull_args *a,
                         const struct rankfile_where *where, helios_client *client,
                         struct outfile *file)
{
    struct rankfile r;
    struct cli_progress bar;
    uint64_t start = hl_now_ns();
    HL_TRY(rankfile_open(client, where, &r));
    cli_progress_start(&bar, "pulling");
    file->bar = &bar;
    file->total = rankfile_bytes(&r);
    hl_status st = rankfile_write_safetensors(&r, file);
    cli_progress_end(&bar);
    uint64_t bytes = file->written;
    if (st == HL_OK)
        st = outfile_commit(file);
    if (st == HL_OK)
        st = print_pulled(cli, a, where->model, &r, client, bytes,
                          (double)(hl_now_ns() - start) / 1e9);
    rankfile_fini(&r);
    return st;
}

static hl_status pull_rank(struct cli *cli, const struct pull_args *a)
{
    const helios_split split = {HELIOS_SPLIT_INIT,     .tp = (int)a->tp_size,
                                .pp = (int)a->pp_size, .virtual_stages = (int)a->virtual_stages,
                                .ep = (int)a->ep_size, .etp = (int)a->etp_size};
    struct rankfile_where where = {.pp = (int)a->pp,
                                   .split = &split,
                                   .tp = (int)a->tp,
                                   .ep = (int)a->ep,
                                   .dp = (int)a->dp,
                                   .kind = kind_of(a->kind),
                                   .naming = a->naming};
    struct outfile file;
    helios_client *client;
    char name[160];
    if (a->model[0] == '\0' || a->out[0] == '\0')
        return cli_usage(cli, "%s is missing", a->model[0] == '\0' ? "--model" : "--out");
    if (where.dp > 0 && where.kind == RANKFILE_MODEL)
        return cli_usage(cli, "--dp chooses optimizer state, which --kind model leaves out");
    HL_TRY(cli_split_model(cli, a->model, name, sizeof(name), &where.version));
    where.model = name;
    HL_TRY(outfile_open(a->out, &file));
    hl_status st = cli_client(cli, a->path, (int)a->timeout_ms, &client);
    if (st == HL_OK) {
        st = pull_to(cli, a, &where, client, &file);
        helios_close(client);
    }
    outfile_abort(&file);
    return st;
}

hl_status cmd_pull(struct cli *cli, int argc, char **argv)
{
    struct pull_args a = {0};
    HL_TRY(cli_args(cli, pull_rows, HL_ARRAY_LEN(pull_rows), argc, argv, &a, 0, 0));
    hl_status st = pull_rank(cli, &a);
    hl_args_fini(pull_rows, HL_ARRAY_LEN(pull_rows), &a);
    return st;
}
