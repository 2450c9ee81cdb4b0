/* Takes nodes out of use for new jobs, and puts them back. */
#include <stdio.h>
#include <string.h>

#include "cli/cluster/commands.h"

struct drain_args {
    char *reason;
};

static const struct hl_option drain_rows[] = {
    {"reason", "--reason", "", "The reason, as `helios nodes` shows it.", HL_OPT_STRING, 0, 0, NULL,
     HL_OPTION_FIELD(struct drain_args, reason)},
};

/* Appends the jobs that hold slots of the node, each one once, to those that are listed already. */
static size_t jobs_on(const struct hl_api_node_state *n, const char **out, size_t count)
{
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
    static const char *const said[2][2] = {{"was not drained", "is no longer drained"},
                                           {"is drained already", "is drained"}};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_nodes_results r;
    struct hl_api_node_drained result = {.name = name, .drained = drained, .changed = changed};
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, &arena, &r));
    for (size_t i = 0; i < r.nodes.count; i++) {
        const struct hl_api_node_state *n = &r.nodes.items[i];
        if (strcmp(n->node.name, name) != 0)
            continue;
        result.jobs.items = hl_arena_array(&arena, n->slots.count, sizeof(*result.jobs.items));
        result.jobs.count = result.jobs.items != NULL ? jobs_on(n, result.jobs.items, 0) : 0;
    }
    if (cli->json)
        return cli_print_value(&hl_api_node_drained_type, &result);
    cli_print(stdout, "%s %s\n", name, said[drained][changed]);
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

/* ---- reservations ---------------------------------------------------------------------------- */

struct reserve_args {
    int64_t in_ms, for_ms;
    char *reason;
};

static const struct hl_option reserve_rows[] = {
    {"in", "--in", "0s", "When the reservation begins, from now.", HL_OPT_DURATION, 0,
     3650 * HL_OPTION_DAY_MS, NULL, HL_OPTION_FIELD(struct reserve_args, in_ms)},
    {"for", "--for", "", "How long the reservation lasts; required.", HL_OPT_DURATION, 0,
     3650 * HL_OPTION_DAY_MS, NULL, HL_OPTION_FIELD(struct reserve_args, for_ms)},
    {"reason", "--reason", "", "The reason, as `helios nodes` shows it.", HL_OPT_STRING, 0, 0, NULL,
     HL_OPTION_FIELD(struct reserve_args, reason)},
};

static bool is_named(const struct hl_api_text_list *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->items[i], name) == 0)
            return true;
    return false;
}

static hl_status list_jobs(struct cli *cli, const struct hl_api_text_list *names,
                           struct hl_arena *arena, struct hl_api_text_list *out)
{
    struct hl_api_controller_list_nodes_results r;
    size_t most = 0;
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, arena, &r));
    for (size_t i = 0; i < r.nodes.count; i++)
        most += r.nodes.items[i].slots.count;
    out->items = hl_arena_array(arena, most, sizeof(*out->items));
    for (size_t i = 0; out->items != NULL && i < r.nodes.count; i++)
        if (is_named(names, r.nodes.items[i].node.name))
            out->count = jobs_on(&r.nodes.items[i], out->items, out->count);
    return HL_OK;
}

static hl_status reserve_nodes(struct cli *cli, const struct hl_api_text_list *names,
                               const struct reserve_args *a)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_reserve_nodes_results r;
    struct hl_api_nodes_reserved result = {.names = *names};
    const struct hl_api_controller_reserve_nodes_params p = {
        .names = *names, .in_ms = a->in_ms, .for_ms = a->for_ms, .reason = a->reason};
    HL_TRY(CLI_CALL(cli, reserve_nodes, &p, &arena, &r));
    result.from_ms = r.from_ms;
    result.until_ms = r.until_ms;
    HL_TRY(list_jobs(cli, names, &arena, &result.jobs));
    if (cli->json)
        return cli_print_value(&hl_api_nodes_reserved_type, &result);
    for (size_t i = 0; i < names->count; i++) {
        char from[32], until[32];
        cli_print(stdout, "%s is reserved from %s until %s\n", names->items[i],
                  cli_format_time(r.from_ms, from, sizeof(from)),
                  cli_format_time(r.until_ms, until, sizeof(until)));
    }
    for (size_t i = 0; i < result.jobs.count; i++)
        cli_print(stdout, "%s runs there and stays\n", result.jobs.items[i]);
    return HL_OK;
}

/* Lists which of the nodes have a reservation now. */
static hl_status list_reserved(struct cli *cli, const struct hl_api_text_list *names,
                               struct hl_arena *arena, struct hl_api_text_list *out)
{
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, arena, &r));
    out->items = hl_arena_array(arena, r.nodes.count, sizeof(*out->items));
    for (size_t i = 0; out->items != NULL && i < r.nodes.count; i++)
        if (r.nodes.items[i].reserved_until_ms > 0 && is_named(names, r.nodes.items[i].node.name))
            out->items[out->count++] = r.nodes.items[i].node.name;
    return HL_OK;
}

static hl_status unreserve_nodes(struct cli *cli, const struct hl_api_text_list *names)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list were = {0};
    struct hl_api_controller_reserve_nodes_results r;
    const struct hl_api_nodes_reserved result = {.names = *names};
    const struct hl_api_controller_reserve_nodes_params p = {.names = *names, .reason = ""};
    HL_TRY(list_reserved(cli, names, &arena, &were));
    HL_TRY(CLI_CALL(cli, reserve_nodes, &p, &arena, &r));
    if (cli->json)
        return cli_print_value(&hl_api_nodes_reserved_type, &result);
    for (size_t i = 0; i < names->count; i++)
        cli_print(stdout, "%s %s\n", names->items[i],
                  is_named(&were, names->items[i]) ? "is no longer reserved" : "was not reserved");
    return HL_OK;
}

/* "node-0,node-1", each once; for_ms = 0 ends their reservations. */
static hl_status reserve_listed(struct cli *cli, char *list, const struct reserve_args *a)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    char *rest = NULL;
    struct hl_api_text_list names = {
        .items = hl_arena_array(&arena, strlen(list) + 1, sizeof(*names.items))};
    if (names.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a list of nodes");
    for (char *name = strtok_r(list, ",", &rest); name != NULL; name = strtok_r(NULL, ",", &rest))
        if (!is_named(&names, name))
            names.items[names.count++] = name;
    if (names.count == 0)
        return cli_usage(cli, "name at least one node");
    return a->for_ms > 0 ? reserve_nodes(cli, &names, a) : unreserve_nodes(cli, &names);
}

hl_status cmd_node_reserve(struct cli *cli, int argc, char **argv)
{
    struct reserve_args a = {0};
    HL_TRY(cli_args(cli, reserve_rows, HL_ARRAY_LEN(reserve_rows), argc, argv, &a, 1, 1));
    hl_status st = a.for_ms > 0 ? reserve_listed(cli, argv[0], &a)
                                : cli_usage(cli, "give its duration, as in --for 4h");
    hl_args_fini(reserve_rows, HL_ARRAY_LEN(reserve_rows), &a);
    return st;
}

hl_status cmd_node_unreserve(struct cli *cli, int argc, char **argv)
{
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    return reserve_listed(cli, argv[0], &(struct reserve_args){0});
}
