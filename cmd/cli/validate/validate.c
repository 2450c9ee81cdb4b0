/* validate: carries out the rows of the specification's section 6 on the running daemons.
 *
 *     facts --> scratch model --> rows, in the order of `turns` --> model removed --> the table
 *
 * A row that fails or lacks hardware does not stop the others. After a signal no further row
 * begins. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/validate/commands.h"
#include "cli/validate/validate.h"

#define AT(field) HL_OPTION_FIELD(struct validate_args, field)

static const struct hl_option arg_rows[] = {
    {"rows", "--rows", "",
     "Only these rows, or rows that begin with these words: plank,data.local.", HL_OPT_STRING, 1, 0,
     NULL, AT(rows)},
    {"time", "--time", "60s", "How long the whole validation may take.", HL_OPT_DURATION, 1000,
     HL_OPTION_DAY_MS, NULL, AT(time_ms)},
    {"row_time", "--row-time", "15s",
     "How long a row may take, not counting waits that options ask for.", HL_OPT_DURATION, 100,
     HL_OPTION_DAY_MS, NULL, AT(row_ms)},
    {"size", "--size", "256MiB", "Most bytes of the scratch model.", HL_OPT_BYTES, 1 << 20,
     HL_OPTION_TIB, NULL, AT(size)},
    {"reads", "--reads", "12", "How often ranks load the shards that are to become hot.",
     HL_OPT_INT, 2, 10000, NULL, AT(reads)},
    {"copies", "--copies", "8", "Number of copies from which a share of paths is determined.",
     HL_OPT_INT, 1, 10000, NULL, AT(copies)},
    {"topology", "--topology", "",
     "hwloc XML file: where no copy can be made, paths are decided for its NICs.", HL_OPT_PATH, 1,
     0, NULL, AT(topology)},
    {"min_plank", "--min-plank", "100", "Target: share of copies over the plank with a ConnectX-4.",
     HL_OPT_PERCENT, 0, 100, NULL, AT(min_plank)},
    {"min_direct", "--min-direct", "95",
     "Target: share of copies over the direct path with a ConnectX-6.", HL_OPT_PERCENT, 0, 100,
     NULL, AT(min_direct)},
    {"min_fallback", "--min-fallback", "100",
     "Target: share of copies that arrive after their first path has failed.", HL_OPT_PERCENT, 0,
     100, NULL, AT(min_fallback)},
    {"max_read_cx4", "--max-read-cx4", "2.2", "Target: microseconds of a read by a ConnectX-4.",
     HL_OPT_NUMBER, 0, 1000000, NULL, AT(max_read_cx4)},
    {"max_read_cx6", "--max-read-cx6", "1.2", "Target: microseconds of a read by a ConnectX-6.",
     HL_OPT_NUMBER, 0, 1000000, NULL, AT(max_read_cx6)},
    {"min_write", "--min-write", "80",
     "Target: share of the migration network's line rate that a write reaches.", HL_OPT_PERCENT, 0,
     100, NULL, AT(min_write)},
    {"max_plank", "--max-plank", "0.8", "Target: microseconds that the plank adds to a copy.",
     HL_OPT_NUMBER, 0, 1000000, NULL, AT(max_plank_us)},
    {"max_loss", "--max-loss", "15", "Target: share of the bandwidth that the plank may cost.",
     HL_OPT_PERCENT, 0, 100, NULL, AT(max_loss)},
};

#undef AT

/* What the specification says of a row, in its order. */
struct row {
    const char *id, *asks;
    hl_status (*run)(struct validation *v, struct found *f);
    unsigned turn; /* rows with the same turn run in the order of this table */
    size_t target; /* offset in struct validate_args; NO_TARGET: all of them */
    enum hl_target_side side;
    const char *unit;
};

#define NO_TARGET    SIZE_MAX
#define TARGET(name) offsetof(struct validate_args, name)
#define LEAST        HL_TARGET_AT_LEAST
#define MOST         HL_TARGET_AT_MOST

/* clang-format off */
static const struct row rows[] = {
    {"paths.device", "copies into devices go the way that topology and data ask for",
     row_paths_device, 1, NO_TARGET, LEAST, "%"},
    {"paths.operations", "UCX or ZMQ is chosen by read, write and size",
     row_paths_operations, 1, NO_TARGET, LEAST, "%"},
    {"data.local", "what is read often moves to its reader's NUMA node",
     row_localize, 0, NO_TARGET, LEAST, "%"},
    {"data.fluid", "what moves often stays in L2 and out of L1",
     row_fluidity, 3, NO_TARGET, LEAST, "%"},
    {"data.evict", "above the high watermark L1 evicts the least stable shards",
     row_high_water, 2, NO_TARGET, LEAST, "%"},
    {"data.prefetch", "below the low watermark hot shards are loaded into L1",
     row_low_water, 1, NO_TARGET, LEAST, "%"},
    {"plank.cx4", "beside a ConnectX-4 the plank is always taken",
     row_plank_cx4, 1, TARGET(min_plank), LEAST, "%"},
    {"plank.cx6", "beside a ConnectX-6 the direct path is taken",
     row_plank_cx6, 1, TARGET(min_direct), LEAST, "%"},
    {"plank.fallback", "after a failure another path is taken automatically",
     row_plank_fallback, 1, TARGET(min_fallback), LEAST, "%"},
    {"speed.read.cx4", "latency of the read path (UCX), ConnectX-4",
     row_read_cx4, 1, TARGET(max_read_cx4), MOST, " us"},
    {"speed.read.cx6", "latency of the read path (UCX), ConnectX-6",
     row_read_cx6, 1, TARGET(max_read_cx6), MOST, " us"},
    {"speed.write", "bandwidth of the write path (ZMQ), of the line rate",
     row_write, 1, TARGET(min_write), LEAST, "%"},
    {"speed.plank.latency", "latency that the plank adds",
     row_plank_latency, 1, TARGET(max_plank_us), MOST, " us"},
    {"speed.plank.bandwidth", "bandwidth that the plank costs",
     row_plank_bandwidth, 1, TARGET(max_loss), MOST, "%"},
};
/* clang-format on */

#define ROWS  HL_ARRAY_LEN(rows)
#define TURNS 4

/* ---- carrying out ---------------------------------------------------------------------------- */

static void found_begin(struct validation *v, const struct row *row, struct found *f)
{
    double limit = 100;
    if (row->target != NO_TARGET)
        memcpy(&limit, (const char *)v->args + row->target, sizeof(limit));
    *f = (struct found){.target = {row->side, limit},
                        .row = {.id = row->id,
                                .asks = row->asks,
                                .result = HL_API_VALIDATION_RESULT_FAIL,
                                .found = "",
                                .value = NAN,
                                .missing = "",
                                .limit = limit}};
    f->row.target = validate_text(v, "%s %.4g%s", row->side == LEAST ? ">=" : "<=", limit,
                                  row->unit[0] == '%' ? " %" : row->unit);
}

/* Whether the list contains the id, or a part of it before a dot. "" selects all. */
static bool row_is_asked_for(const char *id, const char *list)
{
    for (const char *word = list; *word != '\0';) {
        size_t n = strcspn(word, ",");
        if (n > 0 && strncmp(id, word, n) == 0 && (id[n] == '\0' || id[n] == '.'))
            return true;
        word += n + (word[n] == ',');
    }
    return list[0] == '\0';
}

static hl_status check_asked(struct cli *cli, const char *list)
{
    for (const char *word = list; *word != '\0';) {
        char name[64];
        size_t n = strcspn(word, ",");
        bool known = false;
        snprintf(name, sizeof(name), "%.*s", (int)n, word);
        for (size_t k = 0; n > 0 && k < ROWS; k++)
            known |= row_is_asked_for(rows[k].id, name);
        if (!known)
            return cli_usage(cli, "--rows: there is no row '%s'; `helios validate` shows them all",
                             name);
        word += n + (word[n] == ',');
    }
    return HL_OK;
}

static void row_carry_out(struct validation *v, const struct row *row, struct found *f)
{
    uint64_t begun = hl_now_ns(), end = begun + v->args->row_ms * HL_NS_PER_MS;
    v->row_end_ns = end < v->end_ns ? end : v->end_ns;
    hl_status st =
        begun >= v->end_ns
            ? found_missing(v, f, HL_API_VALIDATION_RESULT_NO_TIME,
                            "the time for all rows ran out before this one; raise --time")
            : row->run(v, f);
    if (st != HL_OK) {
        f->row.result = HL_API_VALIDATION_RESULT_FAIL;
        found_text(v, f, "%s%s%s", f->row.found, f->row.found[0] != '\0' ? "; " : "",
                   hl_error_text());
    }
    f->row.seconds = (double)(hl_now_ns() - begun) / 1e9;
}

static hl_status rows_carry_out(struct validation *v, struct found *found)
{
    for (unsigned turn = 0; turn < TURNS; turn++)
        for (size_t i = 0; i < ROWS; i++) {
            if (rows[i].turn != turn || !row_is_asked_for(rows[i].id, v->args->rows))
                continue;
            if (isatty(STDERR_FILENO))
                fprintf(stderr, "helios: %s\n", rows[i].id);
            row_carry_out(v, &rows[i], &found[i]);
            if (validate_is_stopped())
                return hl_fail(HL_ECANCELED, "stopped by a signal in row %s", rows[i].id);
        }
    return HL_OK;
}

/* The scratch model does not fit into the room that is left. */
static hl_status leave_room(struct validation *v, struct found *found)
{
    for (size_t i = 0; i < ROWS; i++)
        (void)!found_missing(v, &found[i], HL_API_VALIDATION_RESULT_NO_ROOM, "%s", hl_error_text());
    return HL_OK;
}

#define AWAIT_MS 30000 /* as other commands do */

/* Waits for a Controller that is being restarted, within the time of all rows. */
static hl_status controller_await(struct validation *v)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_cluster_info_results r;
    struct patience patience = {.limit_ms =
                                    v->args->time_ms < AWAIT_MS ? v->args->time_ms : AWAIT_MS,
                                .what_goes_on = "and nothing was made"};
    hl_status st;
    while ((st = CLI_CALL(v->cli, cluster_info, &(struct hl_api_controller_cluster_info_params){0},
                          &arena, &r)) != HL_OK) {
        HL_TRY(patience_lose(&patience, v->cli, st));
        if (validate_is_stopped())
            return hl_fail(HL_ECANCELED, "stopped by a signal before the first row");
    }
    patience_regain(&patience);
    return HL_OK;
}

/* Whatever happens, everything that was created is removed. */
static hl_status validation_run(struct validation *v, struct found *found)
{
    validate_stop_on_signals();
    for (size_t i = 0; i < ROWS; i++)
        found_begin(v, &rows[i], &found[i]);
    HL_TRY(controller_await(v));
    HL_TRY(facts_gather(v));
    HL_TRY(readers_plan(v));
    hl_status st = scratch_make(v);
    if (st == HL_ENOSPC)
        st = leave_room(v, found);
    else if (st == HL_OK)
        st = rows_carry_out(v, found);
    char text[HL_ERROR_TEXT_MAX];
    snprintf(text, sizeof(text), "%s", st != HL_OK ? hl_error_text() : "");
    hl_status removed = scratch_remove(v);
    if (st != HL_OK && removed != HL_OK)
        return hl_fail(st, "%.400s; and %.400s", text, hl_error_text());
    return st != HL_OK ? hl_fail(st, "%s", text) : removed;
}

/* ---- showing --------------------------------------------------------------------------------- */

static hl_status validation_report(struct validation *v, const struct found *found,
                                   struct hl_api_validation *out)
{
    struct hl_api_validation r = {.model = v->model, .bytes = v->bytes, .node = ""};
    if (v->reader >= 0)
        r.node = v->facts.nodes[v->reader].name;
    r.rows.items = hl_arena_array(&v->arena, ROWS, sizeof(*r.rows.items));
    if (r.rows.items == NULL || hl_arena_failed(&v->arena))
        return hl_fail(HL_ENOMEM, "out of memory for the rows");
    for (size_t i = 0; i < ROWS; i++) {
        if (!row_is_asked_for(rows[i].id, v->args->rows))
            continue;
        const struct hl_api_validation_row *row = &found[i].row;
        r.passed += row->result == HL_API_VALIDATION_RESULT_PASS;
        r.failed += row->result == HL_API_VALIDATION_RESULT_FAIL;
        r.rows.items[r.rows.count++] = *row;
    }
    r.not_run = (uint32_t)r.rows.count - r.passed - r.failed;
    r.seconds = (double)(hl_now_ns() - v->begun_ns) / 1e9;
    *out = r;
    return HL_OK;
}

static hl_status report_print(const struct hl_api_validation *r)
{
    struct cli_table t;
    char size[32];
    cli_table_init(&t, "ROW|!RESULT|TARGET|FOUND|?>SECONDS|?ASKS FOR");
    for (size_t i = 0; i < r->rows.count; i++) {
        const struct hl_api_validation_row *row = &r->rows.items[i];
        bool both = row->missing[0] != '\0' && row->found[0] != '\0';
        cli_cell(&t, "%s", row->id);
        cli_cell(&t, "%s", hl_api_validation_result_name(row->result));
        cli_cell(&t, "%s", row->target);
        cli_cell(&t, "%s%s%s%s", row->result == HL_API_VALIDATION_RESULT_ABSENT ? "missing: " : "",
                 row->missing, both ? "; " : "", row->found);
        cli_cell(&t, "%.1f", row->seconds);
        cli_cell(&t, "%s", row->asks);
    }
    HL_TRY(cli_table_print(&t));
    cli_print(stdout, "%u passed, %u failed, %u not carried out in %.1f s; ", r->passed, r->failed,
              r->not_run, r->seconds);
    if (r->bytes == 0)
        cli_print(stdout, "no scratch model was made\n");
    else
        cli_print(stdout, "a scratch model of %s%s%s was made and removed\n",
                  hl_format_bytes(r->bytes, size, sizeof(size)),
                  r->node[0] != '\0' ? ", read on " : "", r->node);
    return HL_OK;
}

static hl_status validation_tell(struct validation *v, const struct found *found)
{
    struct hl_api_validation r;
    HL_TRY(validation_report(v, found, &r));
    HL_TRY(v->cli->json ? cli_print_value(&hl_api_validation_type, &r) : report_print(&r));
    return r.failed == 0 ? HL_OK
                         : hl_fail(HL_EIO, "%u row%s of the validation failed", r.failed,
                                   cli_plural(r.failed));
}

hl_status cmd_validate(struct cli *cli, int argc, char **argv)
{
    struct validate_args a = {0};
    struct found found[ROWS];
    HL_TRY(cli_args(cli, arg_rows, HL_ARRAY_LEN(arg_rows), argc, argv, &a, 0, 0));
    struct validation v = {.cli = cli, .args = &a, .begun_ns = hl_now_ns(), .reader = -1};
    v.end_ns = v.row_end_ns = v.begun_ns + a.time_ms * HL_NS_PER_MS;
    hl_status st = check_asked(cli, a.rows);
    if (st == HL_OK && a.topology[0] != '\0') /* before anything is made */
        st = hl_topology_load_xml(a.topology, &v.topology);
    if (st == HL_OK)
        st = validation_run(&v, found);
    if (st == HL_OK)
        st = validation_tell(&v, found);
    hl_topo_fini(&v.topology);
    hl_arena_fini(&v.arena);
    hl_args_fini(arg_rows, HL_ARRAY_LEN(arg_rows), &a);
    return st;
}
