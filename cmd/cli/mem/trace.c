/* mem trace: shows a recorded iteration as table, CSV, JSON or picture. A replay finds out where
 * each chunk is in each moment. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "cli/mem/commands.h"
#include "cli/mem/picture.h"
#include "hybridps/client/replay.h"
#include "hybridps/layout/layout.h"
#include "os/file.h"

#define TRACE_BYTES_MAX  ((size_t)1 << 30)
#define RESULT_BYTES_MAX ((size_t)1 << 30)
#define REPLAY_BYTES     (1u << 20) /* really allocated; the rest is scaled away */

struct trace_args {
    char *policy, *mode, *csv, *json, *svg;
    int64_t iteration;
};

#define AT(field) HL_OPTION_FIELD(struct trace_args, field)

static const struct hl_option rows[] = {
    {"csv", "--csv", "", "Write the table as comma-separated values to a file; - is stdout.",
     HL_OPT_PATH, 1, 0, NULL, AT(csv)},
    {"json", "--json", "", "Write the trace as `helios mem replay` reads it to a file.",
     HL_OPT_PATH, 1, 0, NULL, AT(json)},
    {"svg", "--svg", "", "Write a picture of memory by moment and kind to a file.", HL_OPT_PATH, 1,
     0, NULL, AT(svg)},
    {"policy", "--policy", "opt", "Which chunk is evicted when the device is full.", HL_OPT_ENUM, 0,
     0, "opt|lru|fifo|heat|random", AT(policy)},
    {"mode", "--mode", "copy",
     "Whether a chunk that moves to the device keeps its copy on the host.", HL_OPT_ENUM, 0, 0,
     "move|copy", AT(mode)},
    {"iteration", "--iteration", "1",
     "Iteration to show, from 0; the first begins with all chunks on the host.", HL_OPT_INT, 0,
     HL_TRACE_ITERATIONS_MAX - 1, NULL, AT(iteration)},
};

struct shown {
    struct hl_trace t;
    uint64_t iteration;
    struct hl_replay_view *views;
    uint64_t capacity;
};

static void keep_view(void *arg, uint64_t iteration, size_t moment, const struct hl_replay_view *v)
{
    struct shown *s = arg;
    if (iteration == s->iteration)
        s->views[moment] = *v;
}

static uint64_t on_device(const struct hl_replay_view *v)
{
    uint64_t sum = 0;
    for (int k = 0; k < HYBRIDPS_KINDS; k++)
        sum += v->device_by_kind[k];
    return sum;
}

/* ---- loading ---- */

static hl_status run_replay(const struct trace_args *a, struct shown *s)
{
    struct hl_replay_result r = {0};
    struct hl_replay_options o = {
        .policy = a->policy, .copy = a->mode[0] == 'c', .watch = keep_view, .watch_arg = s};
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->t.chunk_count; i++)
        bytes += s->t.chunks[i].bytes;
    for (size_t i = 0; i < s->t.moment_count; i++)
        s->capacity = s->t.moments[i].avail > s->capacity ? s->t.moments[i].avail : s->capacity;
    s->capacity = s->t.capacity > s->capacity ? s->t.capacity : s->capacity;
    s->capacity = s->capacity > 0 ? s->capacity : 1;
    o.scale = bytes / REPLAY_BYTES + 1;
    uint64_t last = s->t.iterations > 2 ? s->t.iterations - 1 : 1; /* 1 repeats a single one */
    s->iteration = (uint64_t)a->iteration;
    if (s->iteration > last)
        return hl_fail(HL_EINVAL, "the trace has no iteration %" PRIu64 "; it has 0 to %" PRIu64,
                       s->iteration, last);
    struct hl_trace t = s->t; /* borrowed; a record only says how often it was planned for */
    t.iterations = t.iterations > s->iteration ? t.iterations : s->iteration + 1;
    s->views = calloc(s->t.moment_count, sizeof(*s->views));
    if (s->views == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %zu moments", s->t.moment_count);
    hl_status st = hl_replay(&t, &o, &r);
    hl_replay_fini(&r);
    return st;
}

static hl_status load_trace(const char *path, const struct trace_args *a, struct shown *s)
{
    struct hl_buf text = HL_BUF(TRACE_BYTES_MAX);
    hl_status st = hl_file_read(path, &text);
    if (st == HL_OK)
        st = hl_trace_parse(text.data, text.len, &s->t);
    hl_buf_fini(&text);
    if (st == HL_OK)
        st = run_replay(a, s);
    return st == HL_OK ? st : hl_fail_prefix(st, "%s: ", path);
}

/* ---- telling ---- */

static void csv_text(struct hl_buf *out, const char *text)
{
    hl_buf_printf(out, "\"");
    for (; *text != '\0'; text++)
        hl_buf_printf(out, *text == '"' ? "\"\"" : "%c", *text);
    hl_buf_printf(out, "\"");
}

static hl_status make_csv(const struct shown *s, struct hl_buf *out)
{
    hl_buf_printf(out, "moment,stage,op,capacity,others,available,chunks");
    for (int place = 0; place < 2; place++)
        for (int k = 0; k < HYBRIDPS_KINDS; k++)
            hl_buf_printf(out, ",%s_%s", place ? "host" : "device", hl_tensor_kind_name(k));
    hl_buf_printf(out, ",h2d,d2h\n");
    for (size_t i = 0; i < s->t.moment_count; i++) {
        const struct hl_replay_view *v = &s->views[i];
        hl_buf_printf(out, "%zu,", i);
        csv_text(out, s->t.moments[i].stage);
        hl_buf_printf(out, ",");
        csv_text(out, s->t.moments[i].op);
        hl_buf_printf(out, ",%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%" PRIu64, s->capacity,
                      s->capacity - v->avail, v->avail, on_device(v));
        for (int k = 0; k < 2 * HYBRIDPS_KINDS; k++)
            hl_buf_printf(out, ",%" PRIu64,
                          k < HYBRIDPS_KINDS ? v->device_by_kind[k]
                                             : v->host_by_kind[k - HYBRIDPS_KINDS]);
        hl_buf_printf(out, ",%" PRIu64 ",%" PRIu64 "\n", v->h2d, v->d2h);
    }
    return out->failed ? hl_fail(HL_ENOMEM, "out of memory allocating a table") : HL_OK;
}

static struct hl_api_kind_bytes_list by_kind(const uint64_t *bytes, struct hl_arena *arena)
{
    struct hl_api_kind_bytes_list list = {
        hl_arena_array(arena, HYBRIDPS_KINDS, sizeof(*list.items)), 0};
    for (int k = 0; list.items != NULL && k < HYBRIDPS_KINDS; k++)
        list.items[list.count++] = (struct hl_api_kind_bytes){hl_tensor_kind_name(k), bytes[k]};
    return list;
}

static hl_status print_json(const struct trace_args *a, const struct shown *s)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_memory_trace doc = {
        .policy = a->policy, .mode = a->mode, .iteration = s->iteration, .capacity = s->capacity};
    doc.moments.items = hl_arena_array(&arena, s->t.moment_count, sizeof(*doc.moments.items));
    for (size_t i = 0; doc.moments.items != NULL && i < s->t.moment_count; i++) {
        const struct hl_replay_view *v = &s->views[i];
        doc.moments.items[doc.moments.count++] =
            (struct hl_api_memory_moment){.stage = s->t.moments[i].stage,
                                          .op = s->t.moments[i].op,
                                          .available = v->avail,
                                          .chunks = on_device(v),
                                          .device = by_kind(v->device_by_kind, &arena),
                                          .host = by_kind(v->host_by_kind, &arena),
                                          .h2d = v->h2d,
                                          .d2h = v->d2h};
    }
    if (hl_arena_failed(&arena))
        return hl_fail(HL_ENOMEM, "out of memory for %zu moments", s->t.moment_count);
    return cli_print_value(&hl_api_memory_trace_type, &doc);
}

static hl_status print_text(const struct shown *s)
{
    struct cli_table t;
    cli_table_init(&t, ">MOMENT|STAGE|OP|>OTHERS|>PARAMETERS|>GRADIENTS|>OPTIMIZER|>TO DEVICE|>TO "
                       "HOST");
    for (size_t i = 0; i < s->t.moment_count; i++) {
        const struct hl_replay_view *v = &s->views[i];
        const uint64_t *d = v->device_by_kind;
        cli_cell(&t, "%zu", i);
        cli_cell(&t, "%s", s->t.moments[i].stage);
        cli_cell(&t, "%s", s->t.moments[i].op);
        cli_cell_bytes(&t, s->capacity - v->avail);
        cli_cell_bytes(&t, d[HYBRIDPS_PARAM]);
        cli_cell_bytes(&t, d[HYBRIDPS_GRAD]);
        cli_cell_bytes(&t, d[HYBRIDPS_P32] + d[HYBRIDPS_MOMENTUM] + d[HYBRIDPS_VARIANCE]);
        cli_cell_bytes(&t, v->h2d);
        cli_cell_bytes(&t, v->d2h);
    }
    return cli_table_print(&t);
}

static hl_status make_svg(const struct trace_args *a, const struct shown *s, struct hl_buf *out)
{
    char title[160];
    uint64_t moved = 0;
    char bytes[32];
    for (size_t i = 0; i < s->t.moment_count; i++)
        moved += s->views[i].h2d + s->views[i].d2h;
    snprintf(title, sizeof(title),
             "Device memory by moment: iteration %" PRIu64 ", policy %s, mode %s, %s moved",
             s->iteration, a->policy, a->mode, hl_format_bytes(moved, bytes, sizeof(bytes)));
    struct picture p = {.trace = &s->t, .views = s->views, .capacity = s->capacity, .title = title};
    return picture_draw(&p, out);
}

static hl_status write_file(const char *path, const struct trace_args *a, const struct shown *s,
                            char what)
{
    struct hl_buf out = HL_BUF(RESULT_BYTES_MAX);
    char *json = NULL;
    hl_status st = what == 'c'   ? make_csv(s, &out)
                   : what == 's' ? make_svg(a, s, &out)
                                 : hl_trace_print(&s->t, &json);
    if (st == HL_OK)
        st = outfile_text(path, json != NULL ? json : out.data);
    if (st == HL_OK && strcmp(path, "-") != 0)
        cli_print(stderr, "wrote %s\n", path);
    free(json);
    hl_buf_fini(&out);
    return st;
}

static hl_status write_outputs(struct cli *cli, const struct trace_args *a, const struct shown *s)
{
    if (a->csv[0] != '\0')
        HL_TRY(write_file(a->csv, a, s, 'c'));
    if (a->json[0] != '\0')
        HL_TRY(write_file(a->json, a, s, 'j'));
    if (a->svg[0] != '\0')
        HL_TRY(write_file(a->svg, a, s, 's'));
    if (cli->json)
        return print_json(a, s);
    return a->csv[0] == '\0' && a->json[0] == '\0' && a->svg[0] == '\0' ? print_text(s) : HL_OK;
}

/* Two results on stdout would be neither the one nor the other. */
static hl_status check_outputs(struct cli *cli, const struct trace_args *a)
{
    const char *paths[] = {a->csv, a->json, a->svg};
    int to_stdout = cli->json;
    for (size_t i = 0; i < HL_ARRAY_LEN(paths); i++)
        to_stdout += strcmp(paths[i], "-") == 0;
    return to_stdout > 1 ? cli_usage(cli, "only one result can go to stdout") : HL_OK;
}

hl_status cmd_mem_trace(struct cli *cli, int argc, char **argv)
{
    struct trace_args a = {0};
    struct shown s = {.capacity = 0};
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 1, 1);
    if (st == HL_OK)
        st = check_outputs(cli, &a);
    if (st == HL_OK)
        st = load_trace(argv[0], &a, &s);
    if (st == HL_OK)
        st = write_outputs(cli, &a, &s);
    hl_trace_fini(&s.t);
    free(s.views);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
