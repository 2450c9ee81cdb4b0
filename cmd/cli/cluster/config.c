/* `helios conf`: shows the options in force, and changes those of placement. Every daemon of the
 * cluster reports its own options; without a cluster, the values of the configuration files and the
 * environment are shown. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/lists.h"
#include "cli/cluster/commands.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

/* The collected options. Texts belong to the arena. */
struct gathering {
    struct hl_arena arena;
    struct hl_api_option_info_list table; /* every option, as this machine knows it */
    struct hl_api_option_info_list rows;  /* values of the running cluster */
};

static const struct hl_api_option_info *find_about(const struct gathering *g, const char *name)
{
    for (size_t i = 0; i < g->table.count; i++)
        if (strcmp(g->table.items[i].name, name) == 0)
            return &g->table.items[i];
    return NULL;
}

/* Finds the row with this value of this option, which lists the daemons that have it. */
static struct hl_api_option_info *find_row(const struct gathering *g,
                                           const struct hl_api_option_value *option)
{
    for (size_t i = 0; i < g->rows.count; i++) {
        struct hl_api_option_info *row = &g->rows.items[i];
        if (strcmp(row->name, option->name) == 0 && strcmp(row->value, option->value) == 0 &&
            strcmp(row->origin, option->origin) == 0)
            return row;
    }
    return NULL;
}

/* Appends a row with the texts about the option; NULL: out of memory, as the arena records. */
static struct hl_api_option_info *add_row(struct gathering *g, const struct hl_api_option_info *row)
{
    struct hl_api_option_info *items =
        hl_arena_grow(&g->arena, g->rows.items, g->rows.count, sizeof(*items));
    if (items == NULL)
        return NULL;
    g->rows.items = items;
    items[g->rows.count] = *row;
    return &items[g->rows.count++];
}

/* Adds what a daemon reports, which is in the arena. */
static void add_report(struct gathering *g, const struct hl_api_option_value_list *report,
                       const char *daemon)
{
    for (size_t i = 0; i < report->count; i++) {
        const struct hl_api_option_value *option = &report->items[i];
        struct hl_api_option_info *row = find_row(g, option);
        if (row == NULL) {
            const struct hl_api_option_info *about = find_about(g, option->name);
            struct hl_api_option_info more =
                about != NULL ? *about : (struct hl_api_option_info){0};
            more.name = option->name;
            more.value = option->value;
            more.origin = option->origin;
            row = add_row(g, &more);
        }
        if (row != NULL)
            hl_api_text_add(&g->arena, &row->daemons, daemon);
    }
}

static hl_status ask_l3(struct cli *cli, struct gathering *g)
{
    struct hl_api_l3_options_results r;
    HL_TRY(CLI_CALL_L3(cli, options, &(struct hl_api_l3_options_params){0}, &g->arena, &r));
    add_report(g, &r.options, "l3");
    return HL_OK;
}

static hl_status ask_agent(struct cli *cli, const struct hl_api_node_info *node,
                           struct gathering *g)
{
    struct hl_api_agent_options_results r;
    HL_TRY(CLI_CALL_AGENT(cli, node->agent_address, options,
                          &(struct hl_api_agent_options_params){0}, &g->arena, &r));
    add_report(g, &r.options, node->name);
    return HL_OK;
}

/* Names a daemon that does not respond; the others are shown. */
static void warn_silent(const char *daemon, hl_status st)
{
    if (st != HL_OK)
        fprintf(stderr, "helios: the options of %s are missing: %s\n", daemon, hl_error_text());
}

/* HL_EUNAVAIL: the Controller does not respond. */
static hl_status ask_cluster(struct cli *cli, struct gathering *g)
{
    struct hl_api_controller_options_results own;
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(CLI_CALL(cli, options, &(struct hl_api_controller_options_params){0}, &g->arena, &own));
    HL_TRY(
        CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, &g->arena, &r));
    add_report(g, &own.options, "controller");
    warn_silent("l3", ask_l3(cli, g));
    for (size_t i = 0; i < r.nodes.count; i++)
        if (r.nodes.items[i].state == HL_API_NODE_LIFE_READY)
            warn_silent(r.nodes.items[i].node.name, ask_agent(cli, &r.nodes.items[i].node, g));
    return HL_OK;
}

/* Adds the command line's own options, which no daemon reports. */
static void add_own(struct gathering *g)
{
    for (size_t i = 0; i < g->table.count; i++) {
        const struct hl_api_option_info *about = &g->table.items[i];
        if (about->programs.count != 1 || strcmp(about->programs.items[0], "helios") != 0)
            continue;
        struct hl_api_option_info *row = add_row(g, about);
        if (row != NULL)
            hl_api_text_add(&g->arena, &row->daemons, "helios");
    }
}

/* ---- which rows, in which order -------------------------------------------------------------- */

/* "l3" matches all of "l3.*". */
static bool is_named(const char *option, const char *name)
{
    size_t len = strlen(name);
    return strcmp(option, name) == 0 ||
           (strncmp(option, name, len) == 0 && len > 0 && option[len] == '.');
}

static hl_status unknown_option(struct cli *cli, const struct hl_api_option_info_list *table,
                                const char *name)
{
    const char *names[HL_OPTIONS_MAX];
    size_t count = 0;
    for (size_t i = 0; i < table->count; i++) {
        if (is_named(table->items[i].name, name))
            return hl_fail(HL_ENOENT, "no daemon of this cluster has the option %s", name);
        names[count++] = table->items[i].name;
    }
    const char *near = hl_did_you_mean(name, names, count);
    return cli_usage(cli,
                     near != NULL ? "there is no option '%s'; did you mean '%s'?"
                                  : "there is no option '%s'; `helios conf` lists them",
                     name, near);
}

/* Selects the requested rows, in the order of the table. */
static struct hl_api_option_infos
select_rows(struct gathering *g, const struct hl_api_option_info_list *rows, const char *name)
{
    struct hl_api_option_infos chosen = {
        {hl_arena_array(&g->arena, rows->count, sizeof(*rows->items)), 0}};
    for (size_t i = 0; i < g->table.count && chosen.items.items != NULL; i++) {
        const char *option = g->table.items[i].name;
        if (name != NULL && !is_named(option, name))
            continue;
        for (size_t k = 0; k < rows->count; k++)
            if (strcmp(rows->items[k].name, option) == 0)
                chosen.items.items[chosen.items.count++] = rows->items[k];
    }
    return chosen;
}

static void cell_names(struct cli_table *t, const struct hl_api_text_list *names)
{
    char text[256] = "";
    size_t at = 0;
    for (size_t i = 0; i < names->count && at < sizeof(text); i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", i > 0 ? "," : "",
                               names->items[i]);
    cli_cell(t, "%s", text);
}

/* The help text of an option is only shown if a single option was named. */
static bool is_one_option(const struct hl_api_option_info_list *rows)
{
    for (size_t i = 1; i < rows->count; i++)
        if (strcmp(rows->items[i].name, rows->items[0].name) != 0)
            return false;
    return true;
}

static hl_status print_rows(const struct hl_api_option_info_list *rows, bool live)
{
    bool help = is_one_option(rows);
    struct cli_table t;
    char header[64];
    snprintf(header, sizeof(header), "NAME|VALUE|FROM%s%s", live ? "|DAEMONS" : "",
             help ? "|WHAT" : "");
    cli_table_init(&t, header);
    for (size_t i = 0; i < rows->count; i++) {
        const struct hl_api_option_info *row = &rows->items[i];
        HL_AUTO(hl_freep) char *text = hl_conf_text(&program_schema, row->name, row->value);
        cli_cell(&t, "%s", row->name);
        cli_cell(&t, "%s", text != NULL ? text : row->value);
        cli_cell(&t, "%s", row->origin);
        if (live)
            cell_names(&t, &row->daemons);
        if (help)
            cli_cell(&t, "%s", row->help != NULL ? row->help : "");
    }
    return cli_table_print(&t);
}

/* ---- the command ----------------------------------------------------------------------------- */

/* Loads every option with the value that this machine's files and environment give. */
static hl_status load_table(struct cli *cli, const char *file, struct gathering *g)
{
    const struct program_conf *conf;
    char path[PATH_MAX];
    if (file[0] != '\0') {
        HL_TRY(cli_absolute(file, path));
        if (setenv("HELIOS_CONFIG", path, 1) != 0)
            return hl_fail(HL_ENOMEM, "out of memory setting HELIOS_CONFIG");
    }
    HL_TRY(cli_conf(cli, &conf));
    return hl_conf_dump(&conf->conf, &g->arena, &g->table);
}

/* Loads the cluster's rows; *live is false if no cluster is up and none was named. */
static hl_status find_live(struct cli *cli, struct gathering *g, bool *live)
{
    const char *address;
    hl_status st = cli_controller_address(cli, &address);
    if (st == HL_OK)
        st = ask_cluster(cli, g);
    *live = st == HL_OK;
    if (st == HL_OK) {
        add_own(g);
        return HL_OK;
    }
    if (cli->controller_from == CLI_GIVEN || (st != HL_EUNAVAIL && st != HL_ETIMEDOUT))
        return st;
    fprintf(stderr, "helios: %s. Showing the values from files and the environment instead\n",
            hl_error_text());
    return HL_OK;
}

static hl_status show_options(struct cli *cli, struct gathering *g, const char *file,
                              const char *name)
{
    bool live = false;
    HL_TRY(load_table(cli, file, g));
    if (file[0] == '\0')
        HL_TRY(find_live(cli, g, &live));
    struct hl_api_option_infos chosen = select_rows(g, live ? &g->rows : &g->table, name);
    if (hl_arena_failed(&g->arena))
        return hl_fail(HL_ENOMEM, "out of memory listing the options");
    if (chosen.items.count == 0)
        return unknown_option(cli, &g->table, name != NULL ? name : "");
    return cli->json ? cli_print_value(&hl_api_option_infos_type, &chosen)
                     : print_rows(&chosen.items, live);
}

/* The Controller says of a name that no daemon has only that it can't change it. */
static hl_status explain_refusal(struct cli *cli, struct gathering *g, const char *name,
                                 hl_status st)
{
    char text[HL_ERROR_TEXT_MAX];
    if (st != HL_EINVAL)
        return st;
    snprintf(text, sizeof(text), "%s", hl_error_text());
    HL_TRY(load_table(cli, "", g));
    for (size_t i = 0; i < g->table.count; i++)
        if (is_named(g->table.items[i].name, name))
            return hl_fail(st, "%s", text);
    return unknown_option(cli, &g->table, name);
}

/* Sets NAME=VALUE in the running Controller. */
static hl_status set_option(struct cli *cli, struct gathering *g, const char *text)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_set_option_results r;
    const char *value = strchr(text, '=') + 1;
    const struct hl_api_controller_set_option_params p = {
        .name = hl_arena_text(&arena, text, (size_t)(value - 1 - text)), .value = value};
    if (p.name == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for an option");
    hl_status st = CLI_CALL(cli, set_option, &p, &arena, &r);
    if (st != HL_OK)
        return explain_refusal(cli, g, p.name, st);
    if (r.note[0] != '\0')
        fprintf(stderr, "helios: warning: %s\n", r.note);
    if (cli->json)
        return cli_print_value(&hl_api_option_value_type, &r.option);
    HL_AUTO(hl_freep) char *shown = hl_conf_text(&program_schema, r.option.name, r.option.value);
    cli_print(stdout,
              "%s is %s until the Controller ends; to keep the value, set it in the Controller's "
              "configuration\n",
              r.option.name, shown != NULL ? shown : r.option.value);
    return HL_OK;
}

hl_status cmd_conf(struct cli *cli, int argc, char **argv)
{
    static const struct hl_option rows[] = {
        {"config", "--config", "",
         "Show the values from this YAML file and the environment; no daemon is called.",
         HL_OPT_PATH, 1, 0, NULL, 0, 0, 0},
    };

    struct {
        char *config;
    } a = {0};

    HL_TRY(cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 1));
    const char *name = argv[0];
    struct gathering g = {0};
    hl_status st = HL_OK;
    if (name != NULL && strchr(name, '=') != NULL)
        st = a.config[0] != '\0' ? cli_usage(cli, "--config and NAME=VALUE exclude each other")
                                 : set_option(cli, &g, name);
    else
        st = show_options(cli, &g, a.config, name);
    hl_arena_fini(&g.arena);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
