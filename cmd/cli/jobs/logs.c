/* The output of ranks. */
#include "cli/jobs/logs.h"

#include <inttypes.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cli/jobs/commands.h"
#include "conf/options.h"
#include "core/job/jobstate.h"
#include "os/file.h"

#define LOG_PIECE    262144
#define LOG_SKIP_MAX 65536 /* at most, of a line whose beginning is missing */
#define LOG_POLL_MS  200
#define LOG_LOST_MS  5000 /* wait for a log that no longer grows */

struct log_args {
    int64_t rank;    /* -1 = the one that failed first, otherwise 0 */
    int64_t attempt; /* 0 = the newest with output */
    bool all;
    bool follow;
    bool first_failure;
    int64_t offset;
    int64_t tail; /* lines; -1 = all */
    uint64_t retry_ms;
    bool patient; /* wait even if the first call fails: the cluster was up just now */
};

#define AT(field) HL_OPTION_FIELD(struct log_args, field)

/* clang-format off */
static const struct hl_option log_rows[] = {
    {"rank", "--rank", "-1", "Whose output; -1: the rank that failed first, else rank 0.",
     HL_OPT_INT, -1, INT32_MAX, NULL, AT(rank)},
    {"all", "--all", "false", "Every rank's output, each line with its rank in front.",
     HL_OPT_BOOL, 0, 0, NULL, AT(all)},
    {"attempt", "--attempt", "0", "Output of this attempt, counted from 1; 0 for the newest.",
     HL_OPT_INT, 0, INT32_MAX, NULL, AT(attempt)},
    {"first-failure", "--first-failure", "false",
     "Which rank of the attempt failed first, how, and its last 200 lines; the last failed "
     "attempt unless --attempt names another.",
     HL_OPT_BOOL, 0, 0, NULL, AT(first_failure)},
    {"follow", "-f", "false",
     "Follow the output across restarts until the job ends; the exit status is the job's.",
     HL_OPT_BOOL, 0, 0, NULL, AT(follow)},
    {"tail", "--tail", "-1", "Show only this many lines from the end, for each rank; -1 for all.",
     HL_OPT_INT, -1, INT64_MAX, NULL, AT(tail)},
    {"offset", "--offset", "0", "First byte to show.",
     HL_OPT_INT, 0, INT64_MAX, NULL, AT(offset)},
    {"retry", "--retry", LOG_RETRY, "With -f: how long to wait for a daemon that does not answer.",
     HL_OPT_DURATION, 0, 0, NULL, AT(retry_ms)},
};

/* clang-format on */

/* A slice of a log, and the job's state before it was read. */
struct log_piece {
    struct hl_buf text;
    int64_t offset; /* of the piece */
    int64_t size;   /* of the log */
    bool finished;
};

/* One rank's output as it is shown. */
struct log_stream {
    int64_t rank;
    int64_t at;         /* next byte */
    bool done;          /* the attempt is over and all output was shown */
    bool skipping;      /* to the next line: the beginning of this one is missing */
    int64_t dropped;    /* bytes that are gone and not reported yet */
    bool wrote;         /* something was shown */
    bool midline;       /* the last line has no end yet */
    struct hl_buf line; /* with a prefix: beginning of an unfinished line */
    uint64_t lost_ns;   /* since when the log can't be read; 0 = it can */
};

struct log_view {
    struct cli *cli;
    const struct log_args *args;
    char job[HL_JOB_ID_MAX + 1];
    int64_t attempt;             /* the shown one */
    int64_t last_attempt;        /* the job's last one */
    int64_t failed_rank;         /* of the shown attempt, once it is over; -1 = none */
    enum hl_api_job_state state; /* of the job */
    char reason[HL_JOB_TEXT_MAX];
    bool prefix;
    bool closed; /* the reader of our output is gone */
    struct log_stream *streams;
    size_t count;
    struct log_piece piece;
    struct patience patience;
};

/* ---- reading ----------------------------------------------------------------------------------
 */

static bool view_job_ended(const struct log_view *v)
{
    return hl_job_state_ended(v->state);
}

static bool view_attempt_over(const struct log_view *v)
{
    return v->last_attempt > v->attempt || view_job_ended(v);
}

static void view_take_state(struct log_view *v, enum hl_api_job_state state, const char *reason)
{
    v->state = state;
    snprintf(v->reason, sizeof(v->reason), "%s", reason);
}

/* Reads into v->piece. *rank may be -1; afterwards it is the rank that was read. */
static hl_status view_read(struct log_view *v, int64_t *rank, int64_t offset, int64_t max)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_read_log_results r;
    struct log_piece *p = &v->piece;
    const struct hl_api_controller_read_log_params params = {.id = v->job,
                                                             .rank = (int32_t)*rank,
                                                             .attempt = (int32_t)v->attempt,
                                                             .offset = offset,
                                                             .max_bytes = (uint32_t)max};
    hl_buf_clear(&p->text);
    HL_TRY(CLI_CALL(v->cli, read_log, &params, &arena, &r));
    p->offset = r.offset;
    p->size = r.size;
    p->finished = r.finished;
    *rank = r.rank;
    v->attempt = r.attempt;
    v->last_attempt = r.last_attempt;
    v->failed_rank = r.failed_rank;
    snprintf(v->job, sizeof(v->job), "%s", r.job);
    view_take_state(v, r.job_state, r.job_reason);
    return hl_buf_append(&p->text, r.data.bytes, r.data.size);
}

/* Finds where the last `lines` lines of a text begin; *lines is then how many more are before
 * it. */
static size_t lines_from_end(const char *text, size_t len, bool at_end, int64_t *lines)
{
    size_t i = len;
    if (at_end && i > 0 && text[i - 1] == '\n')
        i--; /* this line break ends the last line */
    for (; i > 0; i--)
        if (text[i - 1] == '\n' && --*lines == 0)
            return i;
    return 0;
}

/* Finds the offset at which the last args->tail lines begin. Reads backwards. */
static hl_status stream_tail(struct log_view *v, struct log_stream *s)
{
    int64_t lines = v->args->tail;
    HL_TRY(view_read(v, &s->rank, -1, 1));
    int64_t end = v->piece.size, pos = end;
    while (lines > 0 && pos > 0) {
        int64_t want = pos < LOG_PIECE ? pos : LOG_PIECE;
        HL_TRY(view_read(v, &s->rank, pos - want, want));
        int64_t from = v->piece.offset;
        if (from >= pos) /* everything before was dropped */
            break;
        size_t len =
            v->piece.text.len < (size_t)(pos - from) ? v->piece.text.len : (size_t)(pos - from);
        size_t begin = lines_from_end(v->piece.text.data, len, pos == end, &lines);
        if (lines == 0)
            pos = from + (int64_t)begin;
        else if (from > pos - want)
            break; /* the rest has fewer lines; it is shown with its gap */
        else
            pos -= want;
    }
    s->at = lines > 0 ? 0 : pos;
    return HL_OK;
}

/* ---- showing ----------------------------------------------------------------------------------
 */

/* A reader that has seen enough closes the pipe: that is not a failure, and nothing is printed. */
static hl_status view_flush(struct log_view *v)
{
    hl_status st = hl_stdout_flush();
    v->closed |= st != HL_OK;
    return st;
}

static void HL_PRINTF(1, 2) print_note(const char *fmt, ...)
{
    va_list ap;
    fflush(stdout);
    fputs("helios: ", stderr);
    va_start(ap, fmt);
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    fputc('\n', stderr);
}

static void stream_put_line(const struct log_stream *s, const char *text, size_t len)
{
    printf("[rank %" PRId64 "] ", s->rank);
    if (s->line.len > 0)
        fwrite(s->line.data, 1, s->line.len, stdout);
    fwrite(text, 1, len, stdout);
    fputc('\n', stdout);
}

/* Writes whole lines, each with its rank; keeps the unfinished rest. */
static hl_status stream_put_lines(struct log_stream *s, const char *text, size_t len)
{
    const char *nl;
    while ((nl = memchr(text, '\n', len)) != NULL) {
        stream_put_line(s, text, (size_t)(nl - text));
        hl_buf_clear(&s->line);
        len -= (size_t)(nl - text) + 1;
        text = nl + 1;
    }
    while (s->line.len + len >= LOG_LINE_MAX) {
        size_t part = LOG_LINE_MAX - s->line.len;
        stream_put_line(s, text, part);
        hl_buf_clear(&s->line);
        text += part;
        len -= part;
    }
    return hl_buf_append(&s->line, text, len) == HL_OK
               ? HL_OK
               : hl_fail(HL_ENOMEM, "out of memory for a line of rank %" PRId64, s->rank);
}

static hl_status stream_put(const struct log_view *v, struct log_stream *s, const char *text,
                            size_t len)
{
    if (len == 0)
        return HL_OK;
    s->wrote = true;
    s->midline = text[len - 1] != '\n';
    if (v->prefix)
        return stream_put_lines(s, text, len);
    fwrite(text, 1, len, stdout);
    return HL_OK;
}

/* Makes the output so far end with a whole line. */
static void stream_end_line(const struct log_view *v, struct log_stream *s)
{
    if (s->midline && v->prefix)
        stream_put_line(s, "", 0);
    else if (s->midline)
        fputc('\n', stdout);
    hl_buf_clear(&s->line);
    s->midline = false;
}

static hl_status stream_put_gap(const struct log_view *v, struct log_stream *s)
{
    char text[96], size[32];
    if (s->dropped == 0)
        return HL_OK;
    stream_end_line(v, s);
    snprintf(text, sizeof(text), "[%s dropped: only the newest output is kept]\n",
             hl_format_bytes((uint64_t)s->dropped, size, sizeof(size)));
    s->dropped = 0;
    return stream_put(v, s, text, strlen(text));
}

/* Shows the piece in v; after a gap it begins with a whole line. */
static hl_status stream_take(struct log_view *v, struct log_stream *s)
{
    const struct log_piece *p = &v->piece;
    const char *text = p->text.data != NULL ? p->text.data : "";
    size_t len = p->text.len;
    if (p->offset < s->at) /* the log is shorter than that */
        return HL_OK;
    if (p->offset > s->at) {
        s->dropped += p->offset - s->at;
        s->skipping = true;
    }
    s->at = p->offset + (int64_t)len;
    if (s->skipping && len > 0) {
        size_t most = len < LOG_SKIP_MAX ? len : LOG_SKIP_MAX;
        const char *nl = memchr(text, '\n', most);
        size_t skip = nl != NULL ? (size_t)(nl - text) + 1 : 0;
        s->skipping = false;
        s->dropped += (int64_t)skip;
        text += skip;
        len -= skip;
        HL_TRY(stream_put_gap(v, s));
    }
    return stream_put(v, s, text, len);
}

/* Shows everything that is there now. */
static hl_status stream_advance(struct log_view *v, struct log_stream *s)
{
    int64_t bound = INT64_MAX;
    do {
        HL_TRY(view_read(v, &s->rank, s->at, LOG_PIECE));
        HL_TRY(stream_take(v, s));
        HL_TRY(view_flush(v));
        if (bound == INT64_MAX)
            bound = v->piece.size; /* a rank that continues to write must not keep us here */
    } while (s->at < bound && v->piece.text.len > 0);
    return HL_OK;
}

/* ---- a view -----------------------------------------------------------------------------------
 */

static void view_fini(struct log_view *v)
{
    for (size_t i = 0; i < v->count; i++)
        hl_buf_fini(&v->streams[i].line);
    free(v->streams);
    hl_buf_fini(&v->piece.text);
}

static hl_status view_add_streams(struct log_view *v, int64_t first, size_t count)
{
    v->streams = calloc(count, sizeof(*v->streams));
    if (v->streams == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu ranks", count);
    v->count = count;
    for (size_t i = 0; i < count; i++)
        v->streams[i] = (struct log_stream){
            .rank = first + (int64_t)i, .at = v->args->offset, .line = HL_BUF(2 * LOG_LINE_MAX)};
    return HL_OK;
}

/* Finds the job, attempt and ranks that are meant. */
static hl_status view_open(struct log_view *v, struct cli *cli, const char *job,
                           const struct log_args *args)
{
    int64_t rank = args->all ? 0 : args->rank;
    *v = (struct log_view){.cli = cli,
                           .args = args,
                           .attempt = args->attempt,
                           .prefix = args->all,
                           .piece.text = HL_BUF(LOG_PIECE * 2),
                           .patience = {.limit_ms = args->retry_ms, .what_goes_on = JOB_GOES_ON}};
    if (strlen(job) > HL_JOB_ID_MAX)
        return hl_fail(HL_ENOENT, "job '%.100s' does not exist", job);
    snprintf(v->job, sizeof(v->job), "%s", job);
    hl_status st;
    while ((st = view_read(v, &rank, 0, 1)) != HL_OK) {
        if (!args->patient)
            return st;
        HL_TRY(patience_lose(&v->patience, cli, st));
    }
    if (!args->all) {
        if (args->rank == -1 && v->failed_rank == rank)
            print_note("rank %" PRId64 " failed first in attempt %" PRId64 ": its output follows",
                       rank, v->attempt);
        return view_add_streams(v, rank, 1);
    }
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job doc;
    HL_TRY(cli_job(cli, v->job, &arena, &doc));
    return view_add_streams(v, 0, (size_t)(doc.world_size > 0 ? doc.world_size : 1));
}

static hl_status view_tail(struct log_view *v)
{
    for (size_t i = 0; i < v->count && v->args->tail >= 0; i++)
        HL_TRY(stream_tail(v, &v->streams[i]));
    return HL_OK;
}

/* ---- what is there ----------------------------------------------------------------------------
 */

/* Output that could not be kept is not the same as none. */
static hl_status view_print_warning(const struct log_view *v)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job doc;
    HL_TRY(cli_job(v->cli, v->job, &arena, &doc));
    if (doc.warning[0] != '\0')
        print_note("warning: %s", doc.warning);
    return HL_OK;
}

/* If a job failed before its ranks wrote anything, its reason is shown instead. */
static hl_status view_explain_silence(const struct log_view *v)
{
    char whose[32] = "no rank";
    if (v->last_attempt == v->attempt)
        HL_TRY(view_print_warning(v));
    if (!v->prefix)
        snprintf(whose, sizeof(whose), "rank %" PRId64, v->streams[0].rank);
    if (view_job_ended(v) && v->last_attempt == v->attempt &&
        v->state != HL_API_JOB_STATE_SUCCEEDED)
        return hl_fail(HL_ENOENT, "%s of job %s wrote %s, and the job %s%s: %s", whose, v->job,
                       v->prefix ? "anything" : "nothing",
                       v->state == HL_API_JOB_STATE_CANCELLED ? "was " : "",
                       hl_api_job_state_name(v->state), v->reason);
    if (!view_attempt_over(v))
        print_note("%s of job %s has written %s yet; the job is %s%s%s", whose, v->job,
                   v->prefix ? "anything" : "nothing", hl_api_job_state_name(v->state),
                   v->reason[0] != '\0' ? ": " : "", v->reason);
    return HL_OK;
}

static hl_status view_show(struct log_view *v)
{
    bool wrote = false;
    hl_status failed = HL_OK;
    for (size_t i = 0; i < v->count; i++) {
        struct log_stream *s = &v->streams[i];
        hl_status st = stream_advance(v, s);
        if (st != HL_OK && (!v->prefix || v->closed))
            return st;
        if (st != HL_OK) {
            print_note("rank %" PRId64 ": %s", s->rank, hl_error_text());
            failed = st;
        }
        if (v->prefix)
            stream_end_line(v, s);
        wrote |= s->wrote || s->at > 0;
    }
    HL_TRY(view_flush(v));
    if (failed != HL_OK)
        return hl_fail(failed, "not every rank's output could be read");
    return wrote ? HL_OK : view_explain_silence(v);
}

/* ---- what comes -------------------------------------------------------------------------------
 */

/* The log can't be read: waits for it, or gives up if it no longer grows. */
static hl_status stream_lose(struct log_view *v, struct log_stream *s, hl_status st)
{
    char text[HL_ERROR_TEXT_MAX];
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job doc;
    uint64_t now = hl_now_ns();
    if (st != HL_ENOENT && !failure_may_pass(st))
        return st;
    snprintf(text, sizeof(text), "%.900s", hl_error_text());
    if (s->lost_ns == 0)
        s->lost_ns = now;
    if (cli_job(v->cli, v->job, &arena, &doc) == HL_OK) {
        v->last_attempt = doc.attempt;
        view_take_state(v, doc.state, doc.reason);
        if (view_attempt_over(v) &&
            (st == HL_ENOENT || now - s->lost_ns > LOG_LOST_MS * HL_NS_PER_MS)) {
            print_note("output of rank %" PRId64 " in attempt %" PRId64
                       " is missing from here on: %s",
                       s->rank, v->attempt, text);
            s->done = true;
            return HL_OK;
        }
    }
    (void)hl_fail(st, "%s", text);
    return patience_lose(&v->patience, v->cli, st);
}

static hl_status stream_follow(struct log_view *v, struct log_stream *s)
{
    hl_status st = stream_advance(v, s);
    if (st != HL_OK)
        return v->closed ? st : stream_lose(v, s, st);
    s->lost_ns = 0;
    s->done = view_attempt_over(v) && s->at >= v->piece.size;
    return HL_OK;
}

static bool view_is_done(const struct log_view *v)
{
    for (size_t i = 0; i < v->count; i++)
        if (!v->streams[i].done)
            return false;
    return true;
}

static bool view_is_whole(const struct log_view *v)
{
    for (size_t i = 0; i < v->count; i++)
        if (v->streams[i].lost_ns != 0 && !v->streams[i].done)
            return false;
    return true;
}

/* Tells if another rank than the one shown has failed first. */
static void view_name_culprit(const struct log_view *v)
{
    if (v->prefix || v->failed_rank < 0 || v->failed_rank == v->streams[0].rank)
        return;
    print_note("rank %" PRId64 " failed first in attempt %" PRId64
               ": `helios logs %s --attempt %" PRId64 " --rank %" PRId64 "` shows its output",
               v->failed_rank, v->attempt, v->job, v->attempt, v->failed_rank);
}

static void view_next_attempt(struct log_view *v)
{
    v->attempt++;
    print_note("attempt %" PRId64 " of job %s begins", v->attempt, v->job);
    for (size_t i = 0; i < v->count; i++) {
        struct log_stream *s = &v->streams[i];
        s->at = s->dropped = 0;
        s->lost_ns = 0;
        s->done = s->skipping = false;
    }
}

static hl_status view_follow(struct log_view *v)
{
    for (;;) {
        for (size_t i = 0; i < v->count; i++)
            if (!v->streams[i].done)
                HL_TRY(stream_follow(v, &v->streams[i]));
        if (view_is_whole(v))
            patience_regain(&v->patience);
        if (!view_is_done(v)) {
            poll(NULL, 0, LOG_POLL_MS);
            continue;
        }
        for (size_t i = 0; i < v->count; i++)
            stream_end_line(v, &v->streams[i]);
        HL_TRY(view_flush(v));
        view_name_culprit(v);
        if (v->last_attempt == v->attempt)
            return job_verdict(v->job, v->state, v->reason);
        view_next_attempt(v);
    }
}

/* ---- commands ---------------------------------------------------------------------------------
 */

static json_t *stream_to_json(const struct log_view *v, const struct log_stream *s)
{
    const struct log_piece *p = &v->piece;
    return hl_api_show(&hl_api_log_piece_type,
                       &(struct hl_api_log_piece){.job = v->job,
                                                  .attempt = v->attempt,
                                                  .rank = s->rank,
                                                  .text = {p->text.data, p->text.len},
                                                  .offset = p->offset,
                                                  .size = p->size,
                                                  .finished = p->finished});
}

/* Prints JSON; with --all, a list. */
static hl_status view_print_json(struct log_view *v)
{
    json_t *list = json_array();
    hl_status st = HL_OK;
    for (size_t i = 0; i < v->count && st == HL_OK; i++) {
        st = view_read(v, &v->streams[i].rank, v->streams[i].at, LOG_PIECE);
        if (st == HL_OK)
            json_array_append_new(list, stream_to_json(v, &v->streams[i]));
    }
    if (st == HL_OK)
        st = cli_print_json(v->prefix ? json_incref(list) : json_incref(json_array_get(list, 0)));
    json_decref(list);
    return st;
}

static hl_status show_logs(struct cli *cli, const char *job, const struct log_args *a)
{
    struct log_view v = {0};
    hl_status st = view_open(&v, cli, job, a);
    if (st == HL_OK)
        st = view_tail(&v);
    if (st == HL_OK && cli->json)
        st = view_print_json(&v);
    else if (st == HL_OK)
        st = a->follow ? view_follow(&v) : view_show(&v);
    view_fini(&v);
    return st;
}

hl_status logs_follow(struct cli *cli, const char *job, uint64_t retry_ms)
{
    struct log_args a = {.rank = -1,
                         .tail = -1,
                         .follow = true,
                         .attempt = 1,
                         .retry_ms = retry_ms,
                         .patient = true};
    return show_logs(cli, job, &a);
}

hl_status cmd_logs(struct cli *cli, int argc, char **argv)
{
    struct log_args a = {0};
    char job[CLI_JOB_ID_MAX];
    HL_TRY(cli_args(cli, log_rows, HL_ARRAY_LEN(log_rows), argc, argv, &a, 1, 1));
    hl_status st;
    if (a.all && a.rank >= 0)
        st = cli_usage(cli, "--all shows every rank: leave out --rank");
    else if (a.tail >= 0 && a.offset > 0)
        st = cli_usage(cli, "--tail and --offset exclude each other");
    else if (a.follow && cli->json)
        st = cli_usage(cli, "-f shows text only: leave out -o json, or read on with --offset");
    else if (a.first_failure && (a.all || a.rank >= 0 || a.follow || a.tail >= 0 || a.offset > 0))
        st = cli_usage(cli, "--first-failure takes --attempt and no other option");
    else if ((st = cli_job_id(cli, argv[0], job)) == HL_OK)
        st = a.first_failure ? show_first_failure(cli, job, a.attempt) : show_logs(cli, job, &a);
    hl_args_fini(log_rows, HL_ARRAY_LEN(log_rows), &a);
    return st;
}
