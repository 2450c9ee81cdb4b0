#include "core/failure/failure.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "core/replace/exits.h"

/* The phrases that executors use when a memory limit was the reason. */
static bool says_memory(const char *message)
{
    return strstr(message, "out of memory: ") != NULL || strstr(message, "want of memory") != NULL;
}

/* saving: the rank was writing a version. */
static enum hl_api_failure_kind kind_of(const struct hl_api_container_status *status, int code,
                                        int signal, bool saving)
{
    const struct hl_exit end = {.code = code, .signal = signal, .saving = saving};
    enum hl_api_failure_kind kind = hl_exit_kind_of(&end);
    if (status->lost)
        return HL_API_FAILURE_KIND_LOST;
    if (says_memory(status->message))
        return HL_API_FAILURE_KIND_MEMORY;
    return kind != HL_API_FAILURE_KIND_UNSAID ? kind : HL_API_FAILURE_KIND_EXIT;
}

static void take_earlier(struct hl_api_job_failure *first, const struct hl_api_job_failure *one)
{
    int later = first->later_ranks;
    bool known = first->time_ms != 0;
    if (!known || one->time_ms < first->time_ms) {
        int32_t attempt = first->attempt;
        *first = *one;
        first->attempt = attempt;
    }
    first->later_ranks = later + known;
}

void hl_failure_consider(struct hl_api_job_failure *first,
                         const struct hl_api_container_status *status, const char *node,
                         int64_t ahead_ms)
{
    struct hl_api_job_failure one = {.rank = -1,
                                     .node = node,
                                     .container = status->id,
                                     .exit_code = status->exit_code,
                                     .signal = status->signal,
                                     .message = status->message,
                                     .evidence = "",
                                     .log = "",
                                     .log_missing = "",
                                     .time_ms = status->finished_ms - ahead_ms};
    bool ranks = false;
    for (size_t i = 0; i < status->ranks.count; i++) {
        const struct hl_api_rank_status *r = &status->ranks.items[i];
        if (r->state != HL_API_CONTAINER_STATE_FAILED)
            continue;
        ranks = true;
        one.rank = r->rank;
        one.exit_code = r->exit_code;
        one.signal = r->signal;
        one.time_ms = r->finished_ms - ahead_ms;
        one.kind = kind_of(status, r->exit_code, r->signal,
                           r->progress.activity == HL_API_RANK_ACTIVITY_SAVING);
        take_earlier(first, &one);
    }
    if (ranks || (status->state != HL_API_CONTAINER_STATE_FAILED &&
                  status->state != HL_API_CONTAINER_STATE_LOST))
        return;
    int rank;
    one.kind = status->state == HL_API_CONTAINER_STATE_LOST || status->lost
                   ? HL_API_FAILURE_KIND_LOST
               : sscanf(status->message, "rank %d ", &rank) != 1
                   ? HL_API_FAILURE_KIND_LAUNCH
                   : kind_of(status, status->exit_code, status->signal, false);
    if (one.kind != HL_API_FAILURE_KIND_LAUNCH && one.kind != HL_API_FAILURE_KIND_LOST)
        one.rank = rank; /* a container whose node no longer reports its ranks */
    take_earlier(first, &one);
}

enum hl_api_failure_kind hl_failure_kind(const struct hl_api_container_status *status, int *rank)
{
    struct hl_api_job_failure first = {.rank = -1};
    hl_failure_consider(&first, status, "", 0);
    *rank = first.rank;
    return first.kind;
}

void hl_failure_sentence(const struct hl_api_job_failure *f, char *out, size_t cap)
{
    char who[64];
    if (f->rank >= 0)
        snprintf(who, sizeof(who), "rank %d", f->rank);
    else
        snprintf(who, sizeof(who), "container %.50s", f->container);
    switch (f->kind) {
    case HL_API_FAILURE_KIND_MEMORY:
        snprintf(out, cap, "%s on %s was killed for want of memory (signal %d)", who, f->node,
                 f->signal);
        break;
    case HL_API_FAILURE_KIND_SIGNAL:
        snprintf(out, cap, "%s on %s was killed by signal %d", who, f->node, f->signal);
        break;
    case HL_API_FAILURE_KIND_EXIT:
        snprintf(out, cap, "%s on %s exited with code %d", who, f->node, f->exit_code);
        break;
    case HL_API_FAILURE_KIND_MISTAKE:
        snprintf(out, cap, "%s on %s exited with code %d, which means that it was started wrongly",
                 who, f->node, f->exit_code);
        break;
    case HL_API_FAILURE_KIND_SAVE:
        snprintf(out, cap, "%s on %s exited with code %d while it saved a version", who, f->node,
                 f->exit_code);
        break;
    case HL_API_FAILURE_KIND_STALL:
        snprintf(out, cap, "%s on %s was ended because it hung or was slow", who, f->node);
        break;
    case HL_API_FAILURE_KIND_LOST:
        if (f->message[0] == '\0')
            snprintf(out, cap, "%s was lost with node %s", who, f->node);
        else
            snprintf(out, cap, "%s on %s was lost: %s", who, f->node, f->message);
        break;
    default:
        snprintf(out, cap, "%s on %s did not start: %s", who, f->node, f->message);
    }
}

size_t hl_failure_tail(const char *text, size_t len)
{
    size_t least = len > HL_FAILURE_LOG_MAX ? len - HL_FAILURE_LOG_MAX : 0, at = len;
    int lines = 0;
    if (at > least && text[at - 1] == '\n')
        at--; /* the end of the last line */
    while (at > least) {
        if (text[at - 1] == '\n' && ++lines == HL_FAILURE_LINES)
            return at;
        at--;
    }
    if (least == 0)
        return 0;
    const char *nl = memchr(text + least, '\n', len - least); /* begin with a whole line */
    return nl != NULL && nl + 1 < text + len ? (size_t)(nl + 1 - text) : least;
}
