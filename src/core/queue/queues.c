/* The option's list of queues, and what their jobs have used. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "core/queue/queue.h"

#define HOW "; write them as \"prod weight=4, dev quota=16 preempt=off\""

static hl_status queue_set_name(struct hl_queue *q, const char *word, size_t len)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz0123456789-._";
    if (len > HL_QUEUE_NAME_MAX)
        return hl_fail(HL_EINVAL, "a queue's name has %zu characters, at most %d are allowed", len,
                       HL_QUEUE_NAME_MAX);
    if (strspn(word, letters) < len || strchr("-._", word[0]) != NULL)
        return hl_fail(HL_EINVAL,
                       "'%.*s' can't name a queue: lower-case letters, digits and - . _" HOW,
                       (int)len, word);
    memcpy(q->name, word, len);
    return HL_OK;
}

/* "weight=4": reads the number after the '='. */
static hl_status queue_set_number(const struct hl_queue *q, const char *word, size_t len, int max,
                                  int *out)
{
    char *end;
    const char *digits = (const char *)memchr(word, '=', len) + 1;
    long n = strtol(digits, &end, 10);
    if (end != word + len || end == digits || n < 1 || n > max)
        return hl_fail(HL_EINVAL, "queue '%s': %.*s: give a number from 1 to %d", q->name, (int)len,
                       word, max);
    *out = (int)n;
    return HL_OK;
}

static hl_status queue_set(struct hl_queue *q, const char *word, size_t len)
{
    if (q->name[0] == '\0')
        return queue_set_name(q, word, len);
    if (strncmp(word, "weight=", 7) == 0)
        return queue_set_number(q, word, len, HL_QUEUE_WEIGHT_MAX, &q->weight);
    if (strncmp(word, "quota=", 6) == 0)
        return queue_set_number(q, word, len, HL_QUEUE_QUOTA_MAX, &q->quota);
    bool on = len == 10 && strncmp(word, "preempt=on", len) == 0;
    if (!on && (len != 11 || strncmp(word, "preempt=off", len) != 0))
        return hl_fail(HL_EINVAL,
                       "queue '%s': '%.*s' is not one of weight=N, quota=SLOTS, preempt=on|off" HOW,
                       q->name, (int)len, word);
    q->preempts = on;
    return HL_OK;
}

/* Reads one queue of the list, up to the comma or the end. */
static hl_status queue_read(const char *text, size_t len, struct hl_queue *out)
{
    struct hl_queue q = {.weight = 1, .preempts = true};
    for (size_t at = 0; at < len;) {
        size_t word = 0;
        while (at + word < len && text[at + word] != ' ')
            word++;
        if (word > 0)
            HL_TRY(queue_set(&q, text + at, word));
        at += word + 1;
    }
    if (q.name[0] == '\0')
        return hl_fail(HL_EINVAL, "a queue has no name" HOW);
    *out = q;
    return HL_OK;
}

hl_status hl_queues_parse(const char *text, struct hl_queues *out)
{
    struct hl_queues queues = {.count = 0};
    for (const char *at = text; at != NULL;) {
        const char *comma = strchr(at, ',');
        if (queues.count == HL_QUEUES_MAX)
            return hl_fail(HL_EINVAL, "more than %d queues", HL_QUEUES_MAX);
        struct hl_queue *q = &queues.list[queues.count];
        HL_TRY(queue_read(at, comma != NULL ? (size_t)(comma - at) : strlen(at), q));
        if (hl_queues_find(&queues, q->name) >= 0)
            return hl_fail(HL_EINVAL, "queue '%s' appears twice", q->name);
        queues.count++;
        at = comma != NULL ? comma + 1 : NULL;
    }
    *out = queues;
    return HL_OK;
}

int hl_queues_find(const struct hl_queues *queues, const char *name)
{
    for (int i = 0; i < queues->count; i++)
        if (name[0] == '\0' || strcmp(queues->list[i].name, name) == 0)
            return i;
    return -1;
}

/* The share of slots that were held from `from` to `to`, that long ago, in units of a slot held for
 * ever, which counts 1. */
static double share_of_time(int64_t held_ms, int64_t ago_ms, int64_t half_life_ms)
{
    double h = (double)half_life_ms;
    return exp2(-(double)ago_ms / h) - exp2(-(double)(ago_ms + held_ms) / h);
}

double hl_queue_used(const struct hl_queue_use *use, int64_t now_ms, int64_t half_life_ms)
{
    if (half_life_ms <= 0 || use->placed_ms <= 0)
        return 0;
    int64_t to = use->released_ms > 0 ? use->released_ms : now_ms;
    int64_t held = to > use->placed_ms ? to - use->placed_ms : 0;
    int64_t ago = now_ms > to ? now_ms - to : 0;
    /* earlier attempts count as if they had used their slots directly before this one */
    double before = (double)use->before * M_LN2 / (double)half_life_ms *
                    exp2(-(double)(ago + held) / (double)half_life_ms);
    return use->slots * share_of_time(held, ago, half_life_ms) + before;
}

double hl_queue_faded(double used, int64_t ago_ms, int64_t half_life_ms)
{
    if (half_life_ms <= 0)
        return 0;
    return used * exp2(-(double)(ago_ms > 0 ? ago_ms : 0) / (double)half_life_ms);
}
