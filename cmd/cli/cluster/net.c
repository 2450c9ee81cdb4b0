/* What the daemons have counted on the three networks, put together from their metrics. Ranks come
 * and go: what they have transferred they tell the Controller, which shows it as "ranks". */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/plane.h"
#include "cli/cluster/commands.h"
#include "cli/cluster/prom.h"
#include "core/route.h"
#include "rpc/agent_calls.h"
#include "rpc/l3_calls.h"

/* ---- asking ---------------------------------------------------------------------------------- */

/* The metrics of an Agent. Texts lie in the arena. */
static hl_status ask_agent(struct cli *cli, const char *address, struct hl_arena *arena,
                           const char **text)
{
    struct hl_api_agent_metrics_results r;
    struct hl_rpc *rpc;
    struct hl_rpc_peer *peer;
    int timeout_ms;
    HL_TRY(cli_timeout(cli, &timeout_ms));
    HL_TRY(cli_runtime(cli, &rpc));
    HL_TRY(hl_rpc_open(rpc, address, "Agent", &peer));
    hl_status st = hl_call_agent_metrics(peer, &(struct hl_api_agent_metrics_params){0}, timeout_ms,
                                         arena, &r);
    hl_rpc_peer_close(peer);
    HL_TRY(st);
    *text = r.text;
    return HL_OK;
}

static hl_status ask_l3(struct cli *cli, struct hl_arena *arena, const char **text)
{
    struct hl_api_l3_metrics_results r;
    struct hl_rpc_peer *peer;
    int timeout_ms;
    HL_TRY(cli_timeout(cli, &timeout_ms));
    HL_TRY(cli_l3(cli, &peer));
    HL_TRY(hl_call_l3_metrics(peer, &(struct hl_api_l3_metrics_params){0}, timeout_ms, arena, &r));
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

/* A daemon by the name that people use. */
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
        return cli_print_json(json_pack("{s:s s:s}", "daemon", argv[0], "text", text));
    fputs(text, stdout);
    return HL_OK;
}

/* ---- putting together ------------------------------------------------------------------------ */

/* Upper end of the bucket with the q-quantile, in microseconds; 0 = nothing was timed. */
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

static json_int_t counter_total(const struct prom *p, const char *prefix, const char *what,
                                const char *plane, const char *direction)
{
    char name[96];
    snprintf(name, sizeof(name), "%s_%s_total", prefix, what);
    return (json_int_t)prom_find(p, name, "plane", plane, direction ? "direction" : NULL, direction,
                                 0);
}

static json_t *real_or_null(double v)
{
    return v >= 0 ? json_real(v) : json_null();
}

/* Where the daemon is on that network, from helios_plane_info. */
static void add_place(const struct prom *p, const char *plane, json_t *row)
{
    for (size_t i = 0; i < p->count; i++) {
        const struct prom_sample *s = &p->samples[i];
        if (strcmp(s->name, "helios_plane_info") != 0 || strcmp(prom_label(s, "plane"), plane) != 0)
            continue;
        json_object_set_new(row, "address", json_string(prom_label(s, "address")));
        json_object_set_new(row, "interface", json_string(prom_label(s, "interface")));
    }
}

static void add_planes(const struct prom *p, const char *daemon, const char *prefix, json_t *out)
{
    int own = strcmp(prefix, "helios_plane") == 0;
    for (int i = 0; i < HL_PLANE_COUNT; i++) {
        const char *plane = hl_plane_name(i);
        double rate = prom_find(p, "helios_plane_line_rate_bits", "plane", plane, NULL, NULL, -1);
        double busy = prom_find(p, "helios_plane_busy_ratio", "plane", plane, NULL, NULL, -1);
        json_t *row =
            json_pack("{s:s s:s s:s s:s s:I s:I s:I s:I s:I s:f s:f s:o s:o}", "daemon", daemon,
                      "plane", plane, "address", "", "interface", "", "receivedOps",
                      counter_total(p, prefix, "ops", plane, "received"), "sentOps",
                      counter_total(p, prefix, "ops", plane, "sent"), "receivedBytes",
                      counter_total(p, prefix, "bytes", plane, "received"), "sentBytes",
                      counter_total(p, prefix, "bytes", plane, "sent"), "failed",
                      counter_total(p, prefix, "failed", plane, NULL), "p50Us",
                      latency_quantile(p, prefix, plane, 0.5), "p99Us",
                      latency_quantile(p, prefix, plane, 0.99), "rateBitsPerSecond",
                      own ? real_or_null(rate) : json_null(), "busyPercent",
                      own ? real_or_null(busy < 0 ? busy : 100 * busy) : json_null());
        if (own)
            add_place(p, plane, row);
        json_array_append_new(out, row);
    }
}

static void add_paths(const struct prom *p, const char *daemon, json_t *paths, json_t *faults)
{
    for (size_t i = 0; i < p->count; i++) {
        const struct prom_sample *s = &p->samples[i];
        const char *path = prom_label(s, "path"), *word = prom_label(s, "reason");
        if (strcmp(s->name, "helios_fault_total") == 0)
            json_array_append_new(faults, json_pack("{s:s s:s s:s s:I}", "daemon", daemon, "cause",
                                                    prom_label(s, "cause"), "path", path, "count",
                                                    (json_int_t)s->value));
        if (strcmp(s->name, "helios_path_total") != 0)
            continue;
        enum hl_api_route_reason reason;
        bool known = hl_api_route_reason_parse(word, &reason) == HL_OK;
        json_array_append_new(
            paths, json_pack("{s:s s:s s:s s:s s:s s:s s:I}", "daemon", daemon, "operation",
                             prom_label(s, "op"), "path", path, "reason", word, "text",
                             known ? hl_route_reason_text(reason) : word, "result",
                             prom_label(s, "result"), "ops", (json_int_t)s->value));
    }
}

static void add_error(json_t *all, const char *daemon)
{
    json_array_append_new(json_object_get(all, "errors"),
                          json_pack("{s:s s:s}", "daemon", daemon, "error", hl_error_text()));
}

/* st: of the question for the text. What one daemon tells wrongly hides no other. */
static void add_daemon(json_t *all, const char *daemon, hl_status st, const char *text)
{
    struct prom p = {0};
    if (st == HL_OK)
        st = prom_read(text, &p);
    if (st != HL_OK) {
        add_error(all, daemon);
        return;
    }
    json_t *planes = json_object_get(all, "planes");
    add_planes(&p, daemon, "helios_plane", planes);
    if (strcmp(daemon, "controller") == 0)
        add_planes(&p, "ranks", "helios_ranks", planes);
    add_paths(&p, daemon, json_object_get(all, "paths"), json_object_get(all, "faults"));
    prom_fini(&p);
}

static hl_status gather_planes(struct cli *cli, json_t **out)
{
    static const char *const fixed[] = {"controller", "l3"};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_list_nodes_results r;
    HL_TRY(CLI_CALL(cli, list_nodes, &(struct hl_api_controller_list_nodes_params){0}, &arena, &r));
    json_t *all = json_pack("{s:[] s:[] s:[] s:[]}", "planes", "paths", "faults", "errors");
    for (size_t i = 0; i < HL_ARRAY_LEN(fixed); i++) {
        const char *text = NULL;
        hl_status st = ask_daemon(cli, fixed[i], &arena, &text);
        add_daemon(all, fixed[i], st, text);
    }
    for (size_t i = 0; i < r.nodes.count; i++) {
        const char *text = NULL;
        hl_status st = ask_agent(cli, r.nodes.items[i].node.agent_address, &arena, &text);
        add_daemon(all, r.nodes.items[i].node.name, st, text);
    }
    *out = all;
    return HL_OK;
}

/* ---- showing --------------------------------------------------------------------------------- */

static void cell_rate(struct cli_table *t, const json_t *rate)
{
    double bits = json_number_value(rate);
    if (!json_is_number(rate))
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

static hl_status print_planes(const json_t *planes)
{
    struct cli_table t;
    size_t i;
    const json_t *row;
    cli_table_init(&t, "DAEMON|PLANE|?ADDRESS|?>RATE|>OPS|>IN|>OUT|?>FAILED|>P50|?>P99|?>BUSY");
    json_array_foreach (planes, i, row) {
        json_int_t ops = hl_json_int(row, "receivedOps", 0) + hl_json_int(row, "sentOps", 0);
        const char *interface = hl_json_str(row, "interface", "");
        if (ops == 0 && interface[0] == '\0')
            continue;
        cli_cell(&t, "%s", hl_json_str(row, "daemon", ""));
        cli_cell(&t, "%s", hl_json_str(row, "plane", ""));
        cli_cell(&t, "%s%s%s", hl_json_str(row, "address", ""), interface[0] ? " " : "", interface);
        cell_rate(&t, json_object_get(row, "rateBitsPerSecond"));
        cli_cell(&t, "%" PRId64, (int64_t)ops);
        cli_cell_bytes(&t, (uint64_t)hl_json_int(row, "receivedBytes", 0));
        cli_cell_bytes(&t, (uint64_t)hl_json_int(row, "sentBytes", 0));
        cli_cell(&t, "%" PRId64, hl_json_int(row, "failed", 0));
        cell_us(&t, hl_json_real(row, "p50Us", 0));
        cell_us(&t, hl_json_real(row, "p99Us", 0));
        const json_t *busy = json_object_get(row, "busyPercent");
        cli_cell(&t, json_is_number(busy) ? "%.1f %%" : "-", json_number_value(busy));
    }
    return cli_table_print(&t);
}

static hl_status print_paths(const json_t *paths)
{
    struct cli_table t;
    size_t i;
    const json_t *row;
    cli_table_init(&t, "DAEMON|OPERATION|PATH|RESULT|>OPS|WHY");
    json_array_foreach (paths, i, row) {
        cli_cell(&t, "%s", hl_json_str(row, "daemon", ""));
        cli_cell(&t, "%s", hl_json_str(row, "operation", ""));
        cli_cell(&t, "%s", hl_json_str(row, "path", ""));
        cli_cell(&t, "%s", hl_json_str(row, "result", ""));
        cli_cell(&t, "%" PRId64, hl_json_int(row, "ops", 0));
        cli_cell(&t, "%s", hl_json_str(row, "text", ""));
    }
    return cli_table_print(&t);
}

static hl_status print_faults(const json_t *faults)
{
    struct cli_table t;
    size_t i;
    const json_t *row;
    if (json_array_size(faults) == 0)
        return HL_OK;
    printf("\n");
    cli_table_init(&t, "DAEMON|FAULT|PATH|>COUNT");
    json_array_foreach (faults, i, row) {
        cli_cell(&t, "%s", hl_json_str(row, "daemon", ""));
        cli_cell(&t, "%s", hl_json_str(row, "cause", ""));
        cli_cell(&t, "%s", hl_json_str(row, "path", ""));
        cli_cell(&t, "%" PRId64, hl_json_int(row, "count", 0));
    }
    return cli_table_print(&t);
}

hl_status cmd_net(struct cli *cli, int argc, char **argv)
{
    json_t *all, *error;
    size_t i;
    HL_TRY(cli_no_args(cli, argc, argv, 0, 0));
    HL_TRY(gather_planes(cli, &all));
    if (cli->json)
        return cli_print_json(all);
    hl_status st = print_planes(json_object_get(all, "planes"));
    printf("\n");
    if (st == HL_OK)
        st = print_paths(json_object_get(all, "paths"));
    if (st == HL_OK)
        st = print_faults(json_object_get(all, "faults"));
    json_array_foreach (json_object_get(all, "errors"), i, error)
        fprintf(stderr, "helios: %s: %s\n", hl_json_str(error, "daemon", ""),
                hl_json_str(error, "error", ""));
    json_decref(all);
    return st;
}
