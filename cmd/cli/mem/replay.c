/* mem replay: runs an access trace through the real pool of chunks, on an emulated device. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/text.h"
#include "cli/mem/commands.h"
#include "hybridps/client/replay.h"
#include "os/file.h"

#define TRACE_BYTES_MAX ((size_t)1 << 30)

struct replay_args {
    char *policy, *mode;
    int64_t scale, seed, ahead, window, tau;
    double alpha, beta;
};

#define AT(field) HL_OPTION_FIELD(struct replay_args, field)

static const struct hl_option rows[] = {
    {"policy", "--policy", "opt", "Which chunk is evicted when the device is full.", HL_OPT_ENUM, 0,
     0, "opt|lru|fifo|heat|random", AT(policy)},
    {"mode", "--mode", "copy",
     "Whether a chunk that moves to the device keeps its copy on the host.", HL_OPT_ENUM, 0, 0,
     "move|copy", AT(mode)},
    {"scale", "--scale", "1", "Divide sizes by this during the replay; results are scaled back.",
     HL_OPT_INT, 1, INT32_MAX, NULL, AT(scale)},
    {"ahead", "--ahead", "0",
     "Policy opt: plan for an endless run from this many iterations (3 or more), as training does; "
     "0: with the fewest moves up to the last recorded iteration.",
     HL_OPT_INT, 0, 1000, NULL, AT(ahead)},
    {"heat_alpha", "--heat-alpha", "70",
     "Policy heat: weight of the uses per moment in the window.", HL_OPT_PERCENT, 0, 100, NULL,
     AT(alpha)},
    {"heat_beta", "--heat-beta", "30", "Policy heat: weight of the last use.", HL_OPT_PERCENT, 0,
     100, NULL, AT(beta)},
    {"heat_window", "--heat-window", "300", "Policy heat: length of the window in moments.",
     HL_OPT_INT, 1, INT32_MAX, NULL, AT(window)},
    {"heat_tau", "--heat-tau", "60",
     "Policy heat: moments until the weight of the last use falls to a third.", HL_OPT_INT, 1,
     INT32_MAX, NULL, AT(tau)},
    {"seed", "--seed", "0", "Policy random: seed of its generator.", HL_OPT_INT, 0, INT32_MAX, NULL,
     AT(seed)},
};

static hl_status print_json(const struct replay_args *a, const struct hl_replay_result *r)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_memory_replay doc = {
        .mode = a->mode, .policy = a->policy, .peak_over_avail = r->peak_over_avail};
    doc.per_iter.items = hl_arena_array(&arena, r->count, sizeof(*doc.per_iter.items));
    if (doc.per_iter.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %" PRIu64 " iterations", r->count);
    for (uint64_t i = 0; i < r->count; i++)
        doc.per_iter.items[doc.per_iter.count++] =
            (struct hl_api_moved_bytes){r->iterations[i].h2d, r->iterations[i].d2h};
    return cli_print_value(&hl_api_memory_replay_type, &doc);
}

static hl_status print_text(const struct hl_replay_result *r)
{
    struct cli_table t;
    char over[32];
    cli_table_init(&t, ">ITERATION|>TO DEVICE|>TO HOST");
    for (uint64_t i = 0; i < r->count; i++) {
        cli_cell(&t, "%" PRIu64, i);
        cli_cell_bytes(&t, r->iterations[i].h2d);
        cli_cell_bytes(&t, r->iterations[i].d2h);
    }
    HL_TRY(cli_table_print(&t));
    if (r->peak_over_avail > 0)
        printf("more than was available, by up to %s\n",
               hl_format_bytes(r->peak_over_avail, over, sizeof(over)));
    return HL_OK;
}

static hl_status replay_trace(struct cli *cli, const struct replay_args *a, const char *path)
{
    struct hl_buf text = HL_BUF(TRACE_BYTES_MAX);
    struct hl_trace t = {0};
    struct hl_replay_result r = {0};
    struct hl_replay_options o = {.policy = a->policy,
                                  .copy = a->mode[0] == 'c',
                                  .scale = (uint64_t)a->scale,
                                  .policy_options = {.seed = (uint64_t)a->seed,
                                                     .alpha = a->alpha / 100,
                                                     .beta = a->beta / 100,
                                                     .window = (double)a->window,
                                                     .tau = (double)a->tau},
                                  .ahead = (uint64_t)a->ahead};
    hl_status st = hl_file_read(path, &text);
    if (st == HL_OK)
        st = hl_trace_parse(text.data, text.len, &t);
    hl_buf_fini(&text);
    if (st == HL_OK)
        st = hl_replay(&t, &o, &r);
    if (st != HL_OK)
        st = hl_fail_prefix(st, "%s: ", path);
    else
        st = cli->json ? print_json(a, &r) : print_text(&r);
    hl_replay_fini(&r);
    hl_trace_fini(&t);
    return st;
}

hl_status cmd_mem_replay(struct cli *cli, int argc, char **argv)
{
    struct replay_args a = {0};
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 1, 1);
    if (st == HL_OK)
        st = replay_trace(cli, &a, argv[0]);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
