/* `helios conf`: the options in force. Every daemon of the cluster is asked for its own; without a
 * cluster, what the configuration files and the environment give is shown. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cluster/commands.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

/* One value of one option and the daemons that have it. */
static json_t *find_row(json_t *rows, const char *name, const char *value, const char *origin)
{
    size_t i;
    json_t *row;
    json_array_foreach (rows, i, row) {
        if (strcmp(hl_json_str(row, "name", ""), name) == 0 &&
            strcmp(hl_json_str(row, "value", ""), value) == 0 &&
            strcmp(hl_json_str(row, "origin", ""), origin) == 0)
            return row;
    }
    return NULL;
}

/* The texts about an option; new reference. */
static json_t *row_about(const json_t *table, const char *name)
{
    json_t *row = json_object(), *about;
    size_t i;
    json_array_foreach (table, i, about) {
        if (strcmp(hl_json_str(about, "name", ""), name) == 0)
            json_object_update(row, about);
    }
    return row;
}

/* Add what a daemon reports to `rows`; the texts about an option come from `table`. */
static void add_report(json_t *rows, const json_t *table,
                       const struct hl_api_option_value_list *report, const char *daemon)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct hl_api_option_value *option = &report->items[i];
        json_t *row = find_row(rows, option->name, option->value, option->origin);
        if (row == NULL) {
            row = row_about(table, option->name);
            json_object_update_new(row, hl_api_to_json(&hl_api_option_value_type, option));
            json_object_set_new(row, "daemons", json_array());
            json_array_append_new(rows, row);
        }
        json_array_append_new(json_object_get(row, "daemons"), json_string(daemon));
    }
}

static hl_status ask_l3(struct cli *cli, const json_t *table, json_t *rows)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_l3_options_results r;
    struct hl_rpc_peer *peer;
    int timeout_ms;
    HL_TRY(cli_timeout(cli, &timeout_ms));
    HL_TRY(cli_l3(cli, &peer));
    HL_TRY(hl_call_l3_options(peer, &(struct hl_api_l3_options_params){0}, timeout_ms, &arena, &r));
    add_report(rows, table, &r.options, "l3");
    return HL_OK;
}

static hl_status ask_agent(struct cli *cli, const struct hl_api_node_info *node,
                           const json_t *table, json_t *rows)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_agent_options_results r;
    struct hl_rpc *rpc;
    struct hl_rpc_peer *peer;
    int timeout_ms;
    HL_TRY(cli_timeout(cli, &timeout_ms));
    HL_TRY(cli_runtime(cli, &rpc));
    HL_TRY(hl_rpc_open(rpc, node->agent_address, "Agent", &peer));
    hl_status st = hl_call_agent_options(peer, &(struct hl_api_agent_options_params){0}, timeout_ms,
                                         &arena, &r);
    hl_rpc_peer_close(peer);
    HL_TRY(st);
    add_report(rows, table, &r.options, node->name);
    return HL_OK;
}

/* A daemon that does not answer is named; the others are shown. */
static void warn_silent(const char *daemon, hl_status st)
{
    if (st != HL_OK)
        fprintf(stderr, "helios: the options of %s are missing: %s\n", daemon, hl_error_text());
}

/* Rows of the running cluster, new reference. HL_EUNAVAIL: the Controller does not answer. */
static hl_status ask_cluster(struct cli *cli, const json_t *table, json_t **out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_options_results own;
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(CLI_CALL(cli, options, &(struct hl_api_controller_options_params){0}, &arena, &own));
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, &arena, &r));
    json_t *rows = json_array();
    add_report(rows, table, &own.options, "controller");
    warn_silent("l3", ask_l3(cli, table, rows));
    for (size_t i = 0; i < r.nodes.count; i++)
        if (r.nodes.items[i].state == HL_API_NODE_LIFE_READY)
            warn_silent(r.nodes.items[i].node.name,
                        ask_agent(cli, &r.nodes.items[i].node, table, rows));
    *out = rows;
    return HL_OK;
}

/* The command line's own options, which no daemon reports. */
static void add_own(json_t *rows, const json_t *table)
{
    size_t i;
    json_t *row;
    json_array_foreach (table, i, row) {
        const json_t *programs = json_object_get(row, "programs");
        if (json_array_size(programs) != 1 ||
            strcmp(json_string_value(json_array_get(programs, 0)), "helios") != 0)
            continue;
        json_object_set_new(row, "daemons", json_pack("[s]", "helios"));
        json_array_append(rows, row);
    }
}

/* ---- which rows, in which order -------------------------------------------------------------- */

/* "l3" names all of "l3.*". */
static bool is_named(const char *option, const char *name)
{
    size_t len = strlen(name);
    return strcmp(option, name) == 0 ||
           (strncmp(option, name, len) == 0 && len > 0 && option[len] == '.');
}

static hl_status unknown_option(struct cli *cli, const json_t *table, const char *name)
{
    const char *names[HL_OPTIONS_MAX];
    size_t i, count = 0;
    const json_t *row;
    json_array_foreach (table, i, row) {
        if (is_named(hl_json_str(row, "name", ""), name))
            return hl_fail(HL_ENOENT, "no daemon of this cluster takes the option %s", name);
        names[count++] = hl_json_str(row, "name", "");
    }
    const char *near = hl_did_you_mean(name, names, count);
    return cli_usage(cli,
                     near != NULL ? "there is no option '%s'; did you mean '%s'?"
                                  : "there is no option '%s'; `helios conf` lists them",
                     name, near);
}

/* The rows that are asked for in the order of the table, new reference. */
static json_t *select_rows(const json_t *rows, const json_t *table, const char *name)
{
    json_t *chosen = json_array(), *row;
    size_t i, k;
    const json_t *about;
    json_array_foreach (table, i, about) {
        const char *option = hl_json_str(about, "name", "");
        if (name != NULL && !is_named(option, name))
            continue;
        json_array_foreach (rows, k, row) {
            if (strcmp(hl_json_str(row, "name", ""), option) == 0)
                json_array_append(chosen, row);
        }
    }
    return chosen;
}

static void cell_names(struct cli_table *t, const json_t *names)
{
    char text[256] = "";
    size_t i, at = 0;
    const json_t *name;
    json_array_foreach (names, i, name) {
        if (at < sizeof(text))
            at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", i > 0 ? "," : "",
                                   json_string_value(name));
    }
    cli_cell(t, "%s", text);
}

/* The sentence about an option is shown where one was named. */
static bool is_one_option(const json_t *rows)
{
    size_t i;
    const json_t *row;
    const char *first = hl_json_str(json_array_get(rows, 0), "name", "");
    json_array_foreach (rows, i, row) {
        if (strcmp(hl_json_str(row, "name", ""), first) != 0)
            return false;
    }
    return true;
}

static hl_status print_rows(const json_t *rows, bool live)
{
    bool help = is_one_option(rows);
    struct cli_table t;
    size_t i;
    const json_t *row;
    char header[64];
    snprintf(header, sizeof(header), "NAME|VALUE|FROM%s%s", live ? "|DAEMONS" : "",
             help ? "|WHAT" : "");
    cli_table_init(&t, header);
    json_array_foreach (rows, i, row) {
        const char *name = hl_json_str(row, "name", ""), *value = hl_json_str(row, "value", "");
        HL_AUTO(hl_freep) char *text = hl_conf_text(&program_schema, name, value);
        cli_cell(&t, "%s", name);
        cli_cell(&t, "%s", text != NULL ? text : value);
        cli_cell(&t, "%s", hl_json_str(row, "origin", ""));
        if (live)
            cell_names(&t, json_object_get(row, "daemons"));
        if (help)
            cli_cell(&t, "%s", hl_json_str(row, "help", ""));
    }
    return cli_table_print(&t);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* What this machine's files and environment give: every option, new reference. */
static hl_status load_table(struct cli *cli, const char *file, json_t **out)
{
    const struct program_conf *conf;
    char path[PATH_MAX];
    if (file[0] != '\0') {
        HL_TRY(cli_absolute(file, path));
        if (setenv("HELIOS_CONFIG", path, 1) != 0)
            return hl_fail(HL_ENOMEM, "out of memory");
    }
    HL_TRY(cli_conf(cli, &conf));
    *out = hl_conf_dump(&conf->conf);
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory listing the options");
}

/* Rows of the cluster, or NULL where none is up and none was named. */
static hl_status find_live(struct cli *cli, const json_t *table, json_t **out)
{
    const char *address;
    hl_status st = cli_controller_address(cli, &address);
    if (st == HL_OK)
        st = ask_cluster(cli, table, out);
    if (st == HL_OK) {
        add_own(*out, table);
        return HL_OK;
    }
    if (cli->controller_from == CLI_GIVEN || (st != HL_EUNAVAIL && st != HL_ETIMEDOUT))
        return st;
    fprintf(stderr, "helios: %s. These are the values of files and environment\n", hl_error_text());
    return HL_OK;
}

static hl_status show_options(struct cli *cli, const char *file, const char *name)
{
    json_t *table = NULL, *live = NULL;
    HL_TRY(load_table(cli, file, &table));
    hl_status st = file[0] != '\0' ? HL_OK : find_live(cli, table, &live);
    if (st == HL_OK) {
        json_t *rows = select_rows(live != NULL ? live : table, table, name);
        if (json_array_size(rows) == 0)
            st = unknown_option(cli, table, name != NULL ? name : "");
        else if (cli->json)
            st = cli_print_items(json_incref(rows));
        else
            st = print_rows(rows, live != NULL);
        json_decref(rows);
    }
    json_decref(live);
    json_decref(table);
    return st;
}

hl_status cmd_conf(struct cli *cli, int argc, char **argv)
{
    static const struct hl_option rows[] = {
        {"config", "--config", "",
         "Show what this YAML file and the environment give, and ask no daemon.", HL_OPT_PATH, 0, 0,
         NULL, 0, 0, 0},
    };

    struct {
        char *config;
    } a = {0};

    HL_TRY(cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 1));
    const char *name = argc > 0 && argv[0] != NULL && argv[0][0] != '-' ? argv[0] : NULL;
    hl_status st = show_options(cli, a.config, name);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
