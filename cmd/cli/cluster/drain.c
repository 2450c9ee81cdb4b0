/* Take nodes out of use for new jobs, and back. */
#include <stdio.h>
#include <string.h>

#include "cli/cluster/commands.h"

struct drain_args {
    char *reason;
};

static const struct hl_option drain_rows[] = {
    {"reason", "--reason", "", "Why, for `helios nodes`.", HL_OPT_STRING, 0, 0, NULL,
     HL_OPTION_FIELD(struct drain_args, reason)},
};

/* Jobs that hold slots of the node, each once. */
static size_t jobs_on(const struct hl_api_node_state *n, const char **out)
{
    size_t count = 0;
    for (size_t i = 0; i < n->slots.count; i++) {
        const char *job = n->slots.items[i].job;
        bool known = job[0] == '\0';
        for (size_t k = 0; k < count && !known; k++)
            known = strcmp(out[k], job) == 0;
        if (!known)
            out[count++] = job;
    }
    return count;
}

static hl_status print_jobs(struct cli *cli, const char *name, bool drained, bool changed)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_nodes_results r;
    struct hl_api_node_drained result = {.name = name, .drained = drained, .changed = changed};
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, &arena, &r));
    for (size_t i = 0; i < r.nodes.count; i++) {
        const struct hl_api_node_state *n = &r.nodes.items[i];
        if (strcmp(n->node.name, name) != 0)
            continue;
        result.jobs.items = hl_arena_array(&arena, n->slots.count, sizeof(*result.jobs.items));
        result.jobs.count = result.jobs.items != NULL ? jobs_on(n, result.jobs.items) : 0;
    }
    if (cli->json)
        return cli_print_value(&hl_api_node_drained_type, &result);
    cli_print(stdout, "%s %s%s\n", name, drained ? "is drained" : "is not drained",
              changed ? "" : ", as before");
    for (size_t i = 0; drained && i < result.jobs.count; i++)
        cli_print(stdout, "%s still runs there\n", result.jobs.items[i]);
    return HL_OK;
}

static hl_status drain_node(struct cli *cli, const char *name, bool drained, const char *reason)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_drain_node_results r;
    const struct hl_api_controller_drain_node_params p = {
        .name = name, .drained = drained, .reason = reason};
    HL_TRY(CLI_CALL(cli, drain_node, &p, &arena, &r));
    return print_jobs(cli, name, drained, r.changed);
}

hl_status cmd_node_drain(struct cli *cli, int argc, char **argv)
{
    struct drain_args a = {0};
    HL_TRY(cli_args(cli, drain_rows, HL_ARRAY_LEN(drain_rows), argc, argv, &a, 1, 1));
    hl_status st = drain_node(cli, argv[0], true, a.reason);
    hl_args_fini(drain_rows, HL_ARRAY_LEN(drain_rows), &a);
    return st;
}

hl_status cmd_node_undrain(struct cli *cli, int argc, char **argv)
{
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    return drain_node(cli, argv[0], false, "");
}
