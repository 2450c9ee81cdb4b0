/* trace record: records the accesses of a live cluster as a trace, which is sorted at the end. */
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/sim/commands.h"
#include "whatif/recorder.h"

#define POLL_MS     250
#define PIECE       4096
#define SETTLE_MS   6000 /* processes report their reads every 5 s */
#define PATIENCE_MS 30000

struct record_args {
    char *out;
    uint64_t for_ms;
};

#define AT(field) HL_OPTION_FIELD(struct record_args, field)

static const struct hl_option rows[] = {
    {"out", "--out", "", "The trace, CSV; - is stdout. It is written when the recording ends.",
     HL_OPT_PATH, 0, 0, NULL, AT(out)},
    {"for", "--for", "0", "How long to record; 0: until Ctrl-C.", HL_OPT_DURATION, 0,
     HL_ACCESS_SECONDS_MAX *INT64_C(1000), NULL, AT(for_ms)},
};

#undef AT

struct recording {
    struct cli *cli;
    struct hl_recorder recorder;
    uint64_t id, cursor;
    int64_t now_ms; /* the Controller's clock */
    uint64_t lost;
    bool more; /* more than one answer could hold */
};

static volatile sig_atomic_t stops;

static void on_stop(int number)
{
    (void)number;
    stops = stops + 1;
}

/* A signal that was ignored stays ignored. */
static void stop_on(int number)
{
    struct sigaction now, on = {.sa_handler = on_stop};
    if (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
        sigaction(number, &on, NULL);
}

static hl_status take_access(struct recording *r, const struct hl_api_shard_access *a)
{
    return hl_recorder_add(&r->recorder, &(struct hl_told_access){.node = a->node,
                                                                  .shard = a->id,
                                                                  .size_bytes = a->size_bytes,
                                                                  .at_ms = a->at_ms,
                                                                  .span_ms = a->span_ms,
                                                                  .count = a->count,
                                                                  .is_write = a->write});
}

static hl_status recording_ask(struct recording *r)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_record_accesses_results got;
    const struct hl_api_controller_record_accesses_params p = {
        .recording = r->id, .cursor = r->cursor, .limit = PIECE};
    HL_TRY(CLI_CALL(r->cli, record_accesses, &p, &arena, &got));
    r->id = got.recording;
    r->cursor = got.next;
    r->now_ms = got.now_ms;
    r->lost += got.lost;
    r->more = got.accesses.count == PIECE;
    for (size_t i = 0; i < got.accesses.count; i++)
        HL_TRY(take_access(r, &got.accesses.items[i]));
    return HL_OK;
}

/* True: the recording is over. The first signal ends the recorded time; the next one ends the wait
 * for processes that have not reported yet. stop: a signal came before the Controller was asked
 * last, so that its time, r->now_ms, is not before the signal's. */
static bool recording_ended(struct recording *r, bool stop)
{
    struct hl_recorder *t = &r->recorder;
    if (r->now_ms >= t->end_ms)
        return stop || (!r->more && r->now_ms - t->end_ms >= SETTLE_MS);
    if (!stop)
        return false;
    t->end_ms = r->now_ms;
    fprintf(stderr,
            "helios: waiting %d s for processes that have not reported their reads yet; Ctrl-C "
            "again writes the trace at once\n",
            SETTLE_MS / 1000);
    return false;
}

/* After a failure the recording keeps what came before it. */
static hl_status recording_follow(struct recording *r)
{
    struct patience patience = {.limit_ms = PATIENCE_MS};
    int seen = 0, before;
    do {
        before = seen;
        if (!r->more && stops == seen)
            poll(NULL, 0, POLL_MS);
        seen = stops;
        hl_status st = recording_ask(r);
        if (st == HL_OK)
            patience_regain(&patience);
        else if (stops > before)
            return st;
        else
            HL_TRY(patience_lose(&patience, r->cli, st));
    } while (!recording_ended(r, seen > before));
    return HL_OK;
}

static hl_status recording_begin(struct recording *r, const struct record_args *a)
{
    stop_on(SIGINT);
    stop_on(SIGTERM);
    HL_TRY(recording_ask(r));
    r->recorder.begin_ms = r->now_ms;
    r->recorder.end_ms = a->for_ms > 0 ? r->now_ms + (int64_t)a->for_ms : INT64_MAX;
    fprintf(stderr, "helios: recording accesses%s\n", a->for_ms > 0 ? "" : "; Ctrl-C ends it");
    return HL_OK;
}

/* ---- what is said ---------------------------------------------------------------------------- */

static hl_status recording_tell(const struct recording *r, const char *out)
{
    const struct hl_recorder *t = &r->recorder;
    int64_t end_ms = t->end_ms < r->now_ms ? t->end_ms : r->now_ms;
    const struct hl_api_trace_recording doc = {.out = out,
                                               .seconds = (double)(end_ms - t->begin_ms) / 1e3,
                                               .accesses = t->trace.count,
                                               .shards = t->trace.shards.count,
                                               .nodes = t->trace.nodes.count,
                                               .before = t->before,
                                               .unknown = t->unknown,
                                               .lost = r->lost};
    if (r->cli->json)
        return cli_print_beside(&hl_api_trace_recording_type, &doc, out);
    fprintf(stderr,
            "helios: recorded %" PRIu64 " accesses of %" PRIu64 " shards by %" PRIu64
            " nodes in %.1f s",
            doc.accesses, doc.shards, doc.nodes, doc.seconds);
    if (t->before > 0)
        fprintf(stderr, "; left out %" PRIu64 " from before it, which were reported late",
                t->before);
    fputc('\n', stderr);
    return HL_OK;
}

static hl_status check_whole(const struct recording *r)
{
    if (r->lost == 0 && r->recorder.unknown == 0)
        return HL_OK;
    return hl_fail(HL_EIO,
                   "the trace is incomplete: at least %" PRIu64
                   " accesses were reported faster than they could be fetched, and %" PRIu64
                   " were of shards that the Controller does "
                   "not know",
                   r->lost, r->recorder.unknown);
}

static hl_status write_recording(struct recording *r, const struct record_args *a,
                                 struct outfile *file)
{
    hl_recorder_finish(&r->recorder);
    if (r->recorder.trace.count == 0) {
        HL_TRY(check_whole(r));
        return hl_fail(HL_ENOENT, "no process has reported an access; nothing is written");
    }
    HL_TRY(trace_print(&r->recorder.trace, file));
    HL_TRY(outfile_commit(file));
    HL_TRY(recording_tell(r, a->out));
    return check_whole(r);
}

/* Writes what was recorded before a failure, and reports the failure. */
static hl_status recording_run(struct cli *cli, const struct record_args *a, struct outfile *file)
{
    char failure[HL_ERROR_TEXT_MAX] = "";
    struct recording r = {.cli = cli};
    hl_status st = recording_begin(&r, a);
    if (st == HL_OK) {
        hl_status followed = recording_follow(&r);
        if (followed != HL_OK)
            snprintf(failure, sizeof(failure), "%s", hl_error_text());
        st = write_recording(&r, a, file);
        if (followed != HL_OK && st == HL_OK)
            st = hl_fail(followed,
                         "the recording ended too early, and %s has what came before: %.700s",
                         a->out, failure);
        else if (followed != HL_OK)
            st = hl_fail_prefix(st, "the recording ended too early: %.700s; ", failure);
    }
    hl_recorder_fini(&r.recorder);
    return st;
}

hl_status cmd_trace_record(struct cli *cli, int argc, char **argv)
{
    struct record_args a = {0};
    struct outfile file = {.fd = -1};
    hl_status st = cli_args(cli, rows, HL_ARRAY_LEN(rows), argc, argv, &a, 0, 0);
    if (st == HL_OK && a.out[0] == '\0')
        st = cli_usage(cli, "name a file with --out, or - for stdout");
    if (st == HL_OK)
        st = outfile_open(a.out, &file);
    if (st == HL_OK)
        st = recording_run(cli, &a, &file);
    outfile_abort(&file);
    hl_args_fini(rows, HL_ARRAY_LEN(rows), &a);
    return st;
}
