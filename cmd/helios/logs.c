/* The output of ranks. */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/base64.h"
#include "conf/options.h"
#include "helios/commands.h"

#define LOG_PIECE   262144
#define LOG_POLL_MS 200

struct log_args {
    int64_t rank;
    int64_t follow;
    int64_t offset;
    int64_t tail;
};

#define AT(field) offsetof(struct log_args, field)

/* clang-format off */
static const struct hl_option log_rows[] = {
    {"rank", "--rank", "0", "Whose output.", HL_OPT_INT, 0, INT32_MAX, NULL, AT(rank), 0},
    {"follow", "-f", "false", "Go on until the job ends; over restarts too.",
     HL_OPT_BOOL, 0, 0, NULL, AT(follow), 0},
    {"offset", "--offset", "0", "First byte to show.",
     HL_OPT_INT, 0, INT64_MAX, NULL, AT(offset), 0},
    {"tail", "--tail", "0", "Show only so many bytes at the end; 0 for all.",
     HL_OPT_INT, 0, INT64_MAX, NULL, AT(tail), 0},
};

/* clang-format on */

struct log_piece {
    struct hl_buf text;
    int64_t offset; /* of the piece */
    int64_t size;   /* of the log */
    int finished;
};

static hl_status read_piece(struct cli *cli, const char *job, int64_t rank, int64_t offset,
                            struct log_piece *out)
{
    json_t *result;
    hl_buf_clear(&out->text);
    HL_TRY(cli_call(cli, "readLog",
                    json_pack("{s:s s:I s:I s:i}", "id", job, "rank", (json_int_t)rank, "offset",
                              (json_int_t)offset, "maxBytes", LOG_PIECE),
                    &result));
    out->offset = hl_json_int(result, "offset", 0);
    out->size = hl_json_int(result, "size", 0);
    out->finished = hl_json_bool(result, "finished", 0);
    hl_status st = hl_base64_decode(hl_json_str(result, "data", ""), &out->text);
    json_decref(result);
    return st;
}

static int job_ended(struct cli *cli, const char *id)
{
    json_t *job;
    if (cli_job(cli, id, &job) != HL_OK)
        return 1;
    int ended = cli_job_ended(job);
    json_decref(job);
    return ended;
}

/* Write what comes until the log (or, following, the job) ends. A log that shrank is that of a new
 * attempt. */
static hl_status stream_log(struct cli *cli, const char *job, const struct log_args *a,
                            struct log_piece *p)
{
    int64_t at = a->tail > 0 ? -a->tail : a->offset;
    int begun = 0;
    for (;;) {
        int ended =
            a->follow ? job_ended(cli, job) : 1; /* asked before the read: nothing is missed */
        HL_TRY(read_piece(cli, job, a->rank, at, p));
        if (begun && at > p->size) {
            at = 0;
            continue;
        }
        fwrite(p->text.data != NULL ? p->text.data : "", 1, p->text.len, stdout);
        fflush(stdout);
        begun |= p->text.len > 0;
        if (begun || at < 0)
            at = p->offset + (int64_t)p->text.len;
        if (at < p->size && p->text.len > 0)
            continue;
        if (ended)
            return HL_OK;
        poll(NULL, 0, LOG_POLL_MS);
    }
}

/* One piece as JSON: {"text", "offset", "size", "finished"}. Bytes that are not UTF-8 become '?'.
 */
static hl_status log_json(struct cli *cli, const char *job, const struct log_args *a,
                          struct log_piece *p)
{
    HL_TRY(read_piece(cli, job, a->rank, a->tail > 0 ? -a->tail : a->offset, p));
    char *text = p->text.data != NULL ? p->text.data : (char[]){0};
    json_t *value = json_stringn(text, p->text.len);
    if (value == NULL) {
        for (size_t i = 0; i < p->text.len; i++)
            if ((unsigned char)text[i] >= 0x80)
                text[i] = '?';
        value = json_stringn(text, p->text.len);
    }
    return cli_print_json(json_pack("{s:o s:I s:I s:b}", "text", value, "offset",
                                    (json_int_t)p->offset, "size", (json_int_t)p->size, "finished",
                                    p->finished));
}

hl_status cmd_logs(struct cli *cli, int argc, char **argv)
{
    struct log_args a = {0};
    struct log_piece p = {.text = HL_BUF(LOG_PIECE * 2)};
    hl_status st = cli_args(cli, log_rows, HL_ARRAY_LEN(log_rows), argc, argv, &a, 1, 1);
    if (st == HL_OK)
        st = cli->json ? log_json(cli, argv[0], &a, &p) : stream_log(cli, argv[0], &a, &p);
    hl_buf_fini(&p.text);
    hl_args_fini(log_rows, HL_ARRAY_LEN(log_rows), &a);
    return st;
}
