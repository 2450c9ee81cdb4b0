/* What the daemons have counted on the three networks, collected from their metrics. Since ranks
 * come and go, they report their transfers to the Controller, which shows them as "ranks". */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plane.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/prom.h"
#include "core/copies/route.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

/* ---- asking ---------------------------------------------------------------------------------- */

/* The metrics of an Agent. The text is in the arena. */
static hl_status ask_agent(struct cli *cli, const char *address, struct hl_arena *arena,
                           const char **text)
{
    struct hl_api_agent_metrics_results r;
    HL_TRY(
        CLI_CALL_AGENT(cli, address, metrics, &(struct hl_api_agent_metrics_params){0}, arena, &r));
    *text = r.text;
    return HL_OK;
}

static hl_status ask_l3(struct cli *cli, struct hl_arena *arena, const char **text)
{
    struct hl_api_l3_metrics_results r;
    HL_TRY(CLI_CALL_L3(cli, metrics, &(struct hl_api_l3_metrics_params){0}, arena, &r));
    *text = r.text;
    return HL_OK;
}

static hl_status ask_controller(struct cli *cli, struct hl_arena *arena, const char **text)
{
    struct hl_api_controller_metrics_results r;
    HL_TRY(CLI_CALL(cli, metrics, &(struct hl_api_controller_metrics_params){0}, arena, &r));
    *text = r.text;
    return HL_OK;
}

static hl_status ask_node(struct cli *cli, const char *name, struct hl_arena *arena,
                          const char **text)
{
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, arena, &r));
    for (size_t i = 0; i < r.nodes.count; i++)
        if (strcmp(r.nodes.items[i].node.name, name) == 0)
            return ask_agent(cli, r.nodes.items[i].node.agent_address, arena, text);
    return hl_fail(HL_ENOENT, "there is no node '%s'; `helios nodes` lists them", name);
}

/* Asks a daemon by the name that people use. */
static hl_status ask_daemon(struct cli *cli, const char *name, struct hl_arena *arena,
                            const char **text)
{
    if (strcmp(name, "controller") == 0)
        return ask_controller(cli, arena, text);
    return strcmp(name, "l3") == 0 ? ask_l3(cli, arena, text) : ask_node(cli, name, arena, text);
}

hl_status cmd_metrics(struct cli *cli, int argc, char **argv)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const char *text;
    HL_TRY(cli_no_args(cli, argc, argv, 1, 1));
    HL_TRY(ask_daemon(cli, argv[0], &arena, &text));
    if (cli->json)
        return cli_print_value(&hl_api_metrics_text_type,
                               &(struct hl_api_metrics_text){argv[0], text});
    fputs(text, stdout);
    return HL_OK;
}

/* ---- putting together ------------------------------------------------------------------------ */

/* Upper limit of the bucket that contains the q-quantile, in microseconds; 0 = nothing was
 * timed. */
static double latency_quantile(const struct prom *p, const char *name, const char *plane, double q)
{
    char bucket[96], count[96];
    snprintf(bucket, sizeof(bucket), "%s_latency_seconds_bucket", name);
    snprintf(count, sizeof(count), "%s_latency_seconds_count", name);
    double rank = ceil(q * prom_find(p, count, "plane", plane, NULL, NULL, 0)), last = 0;
    for (size_t i = 0; rank > 0 && i < p->count; i++) {
        const struct prom_sample *s = &p->samples[i];
        if (strcmp(s->name, bucket) != 0 || strcmp(prom_label(s, "plane"), plane) != 0)
            continue;
        double end = strtod(prom_label(s, "le"), NULL) * 1e6;
        last = isfinite(end) ? end : 2 * last;
        if (s->value >= rank)
            return last;
    }
    return 0;
}

static uint64_t counter_total(const struct prom *p, const char *prefix, const char *what,
                              const char *plane, const char *direction)
{
    char name[96];
    snprintf(name, sizeof(name), "%s_%s_total", prefix, what);
    return (uint64_t)prom_find(p, name, "plane", plane, direction ? "direction" : NULL, direction,
                               0);
}

/* What all daemons have reported. Texts belong to the arena. */
struct gathering {
    struct hl_arena arena;
    struct hl_api_net_use use;
};

/* Appends an item to a list of `use`; NULL: out of memory, which is reported at the end. */
#define ADD(g, list)                                                                               \
    ({                                                                                             \
        void *more_ =                                                                              \
            hl_arena_grow(&(g)->arena, (list)->items, (list)->count, sizeof(*(list)->items));      \
        if (more_ != NULL)                                                                         \
            (list)->items = more_;                                                                 \
        more_ != NULL ? &(list)->items[(list)->count++] : NULL;                                    \
    })

static const char *label_kept(struct gathering *g, const struct prom_sample *s, const char *key)
{
    return hl_arena_strdup(&g->arena, prom_label(s, key));
}

/* The daemon's location on that network, from helios_plane_info. */
static void add_place(struct gathering *g, const struct prom *p, struct hl_api_net_plane *row)
{
    for (size_t i = 0; i < p->count; i++) {
        const struct prom_sample *s = &p->samples[i];
        if (strcmp(s->name, "helios_plane_info") != 0 ||
            strcmp(prom_label(s, "plane"), row->plane) != 0)
            continue;
        row->address = label_kept(g, s, "address");
        row->interface = label_kept(g, s, "interface");
    }
}

/* A gauge of this daemon's own location, times `unit`; NaN if unknown. */
static double gauge_of(const struct prom *p, const char *name, const char *plane, double unit)
{
    double v = prom_find(p, name, "plane", plane, NULL, NULL, -1);
    return v >= 0 ? unit * v : NAN;
}

static void add_planes(struct gathering *g, const struct prom *p, const char *daemon,
                       const char *prefix)
{
    bool own = strcmp(prefix, "helios_plane") == 0;
    for (int i = 0; i < HL_PLANE_COUNT; i++) {
        const char *plane = hl_plane_name(i);
        struct hl_api_net_plane *row = ADD(g, &g->use.planes);
        if (row == NULL)
            return;
        *row = (struct hl_api_net_plane){
            .daemon = daemon,
            .plane = plane,
            .address = "",
            .interface = "",
            .received_ops = counter_total(p, prefix, "ops", plane, "received"),
            .sent_ops = counter_total(p, prefix, "ops", plane, "sent"),
            .received_bytes = counter_total(p, prefix, "bytes", plane, "received"),
            .sent_bytes = counter_total(p, prefix, "bytes", plane, "sent"),
            .failed = counter_total(p, prefix, "failed", plane, NULL),
            .p50_us = latency_quantile(p, prefix, plane, 0.5),
            .p99_us = latency_quantile(p, prefix, plane, 0.99),
            .rate_bits_per_second =
                own ? gauge_of(p, "helios_plane_line_rate_bits", plane, 1) : NAN,
            .busy_percent = own ? gauge_of(p, "helios_plane_busy_ratio", plane, 100) : NAN};
        if (own)
            add_place(g, p, row);
    }
}

static void add_path(struct gathering *g, const struct prom_sample *s, const char *daemon)
{
    enum hl_api_route_reason reason;
    struct hl_api_net_path *row = ADD(g, &g->use.paths);
    if (row == NULL)
        return;
    const char *word = label_kept(g, s, "reason");
    bool known = hl_api_route_reason_parse(word, &reason) == HL_OK;
    *row = (struct hl_api_net_path){.daemon = daemon,
                                    .operation = label_kept(g, s, "op"),
                                    .path = label_kept(g, s, "path"),
                                    .reason = word,
                                    .text = known ? hl_route_reason_text(reason) : word,
                                    .result = label_kept(g, s, "result"),
                                    .ops = (uint64_t)s->value};
}

static void add_fault(struct gathering *g, const struct prom_sample *s, const char *daemon)
{
    struct hl_api_net_fault *row = ADD(g, &g->use.faults);
    if (row != NULL)
        *row = (struct hl_api_net_fault){.daemon = daemon,
                                         .cause = label_kept(g, s, "cause"),
                                         .path = label_kept(g, s, "path"),
                                         .count = (uint64_t)s->value};
}

/* st: the status of the request for the text. An invalid report of one daemon does not hide the
 * others. */
static void add_daemon(struct gathering *g, const char *daemon, hl_status st, const char *text)
{
    struct prom p = {0};
    if (st == HL_OK)
        st = prom_read(text, &p);
    if (st != HL_OK) {
        struct hl_api_net_error *row = ADD(g, &g->use.errors);
        if (row != NULL)
            *row = (struct hl_api_net_error){daemon, hl_arena_strdup(&g->arena, hl_error_text())};
        return;
    }
    add_planes(g, &p, daemon, "helios_plane");
    if (strcmp(daemon, "controller") == 0)
        add_planes(g, &p, "ranks", "helios_ranks");
    for (size_t i = 0; i < p.count; i++) {
        if (strcmp(p.samples[i].name, "helios_fault_total") == 0)
            add_fault(g, &p.samples[i], daemon);
        else if (strcmp(p.samples[i].name, "helios_path_total") == 0)
            add_path(g, &p.samples[i], daemon);
    }
    prom_fini(&p);
}

static hl_status gather_planes(struct cli *cli, struct gathering *g)
{
    static const char *const fixed[] = {"controller", "l3"};
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(
        CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, &g->arena, &r));
    for (size_t i = 0; i < HL_ARRAY_LEN(fixed); i++) {
        const char *text = NULL;
        hl_status st = ask_daemon(cli, fixed[i], &g->arena, &text);
        add_daemon(g, fixed[i], st, text);
    }
    for (size_t i = 0; i < r.nodes.count; i++) {
        const char *text = NULL;
        hl_status st = ask_agent(cli, r.nodes.items[i].node.agent_address, &g->arena, &text);
        add_daemon(g, r.nodes.items[i].node.name, st, text);
    }
    return hl_arena_failed(&g->arena)
               ? hl_fail(HL_ENOMEM, "out of memory putting the metrics together")
               : HL_OK;
}

/* ---- showing --------------------------------------------------------------------------------- */

static void cell_rate(struct cli_table *t, double bits)
{
    if (!isfinite(bits))
        cli_cell(t, "-");
    else if (bits >= 1e9)
        cli_cell(t, "%.4g Gbit/s", bits / 1e9);
    else
        cli_cell(t, "%.4g Mbit/s", bits / 1e6);
}

static void cell_us(struct cli_table *t, double us)
{
    if (us <= 0)
        cli_cell(t, "-");
    else if (us < 1000)
        cli_cell(t, "%.4g us", us);
    else if (us < 1e6)
        cli_cell(t, "%.4g ms", us / 1e3);
    else
        cli_cell(t, "%.4g s", us / 1e6);
}

static hl_status print_planes(const struct hl_api_net_plane_list *planes)
{
    struct cli_table t;
    cli_table_init(&t, "DAEMON|PLANE|?ADDRESS|?>RATE|>OPS|>IN|>OUT|?>FAILED|>P50|?>P99|?>BUSY");
    for (size_t i = 0; i < planes->count; i++) {
        const struct hl_api_net_plane *row = &planes->items[i];
        uint64_t ops = row->received_ops + row->sent_ops;
        if (ops == 0 && row->interface[0] == '\0')
            continue;
        cli_cell(&t, "%s", row->daemon);
        cli_cell(&t, "%s", row->plane);
        cli_cell(&t, "%s%s%s", row->address, row->interface[0] ? " " : "", row->interface);
        cell_rate(&t, row->rate_bits_per_second);
        cli_cell(&t, "%" PRIu64, ops);
        cli_cell_bytes(&t, row->received_bytes);
        cli_cell_bytes(&t, row->sent_bytes);
        cli_cell(&t, "%" PRIu64, row->failed);
        cell_us(&t, row->p50_us);
        cell_us(&t, row->p99_us);
        cli_cell(&t, isfinite(row->busy_percent) ? "%.1f %%" : "-", row->busy_percent);
    }
    return cli_table_print(&t);
}

static hl_status print_paths(const struct hl_api_net_path_list *paths)
{
    struct cli_table t;
    cli_table_init(&t, "DAEMON|OPERATION|PATH|RESULT|>OPS|WHY");
    for (size_t i = 0; i < paths->count; i++) {
        const struct hl_api_net_path *row = &paths->items[i];
        cli_cell(&t, "%s", row->daemon);
        cli_cell(&t, "%s", row->operation);
        cli_cell(&t, "%s", row->path);
        cli_cell(&t, "%s", row->result);
        cli_cell(&t, "%" PRIu64, row->ops);
        cli_cell(&t, "%s", row->text);
    }
    return cli_table_print(&t);
}

static hl_status print_faults(const struct hl_api_net_fault_list *faults)
{
    struct cli_table t;
    if (faults->count == 0)
        return HL_OK;
    printf("\n");
    cli_table_init(&t, "DAEMON|FAULT|PATH|>COUNT");
    for (size_t i = 0; i < faults->count; i++) {
        cli_cell(&t, "%s", faults->items[i].daemon);
        cli_cell(&t, "%s", faults->items[i].cause);
        cli_cell(&t, "%s", faults->items[i].path);
        cli_cell(&t, "%" PRIu64, faults->items[i].count);
    }
    return cli_table_print(&t);
}

static hl_status print_use(const struct hl_api_net_use *use)
{
    HL_TRY(print_planes(&use->planes));
    printf("\n");
    HL_TRY(print_paths(&use->paths));
    HL_TRY(print_faults(&use->faults));
    for (size_t i = 0; i < use->errors.count; i++)
        fprintf(stderr, "helios: %s: %s\n", use->errors.items[i].daemon,
                use->errors.items[i].error);
    return HL_OK;
}

hl_status cmd_net(struct cli *cli, int argc, char **argv)
{
    struct gathering g = {0};
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    hl_status st = gather_planes(cli, &g);
    if (st == HL_OK)
        st = cli->json ? cli_print_value(&hl_api_net_use_type, &g.use) : print_use(&g.use);
    hl_arena_fini(&g.arena);
    return st;
}
