/* The text of a row, and how long it may take. */
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>

#include "cli/validate/validate.h"

#define ROW_TEXT 512

/* ---- deadlines and signals ------------------------------------------------------------------- */

static volatile sig_atomic_t stops;

static void on_stop(int number)
{
    (void)number;
    stops = 1;
}

/* A signal that was ignored stays ignored. */
static void stop_on(int number)
{
    struct sigaction now, on = {.sa_handler = on_stop};
    if (sigaction(number, NULL, &now) == 0 && now.sa_handler != SIG_IGN)
        sigaction(number, &on, NULL);
}

void validate_stop_on_signals(void)
{
    stop_on(SIGINT);
    stop_on(SIGTERM);
    stop_on(SIGHUP);
}

bool validate_is_stopped(void)
{
    return stops != 0;
}

hl_status validate_check(const struct validation *v)
{
    if (stops)
        return hl_fail(HL_ECANCELED, "stopped by a signal");
    if (hl_now_ns() >= v->row_end_ns)
        return hl_fail(HL_ETIMEDOUT, "it ran out of time (--row-time, --time)");
    return HL_OK;
}

int validate_left_ms(const struct validation *v)
{
    uint64_t now = hl_now_ns();
    return now >= v->row_end_ns ? 1 : (int)((v->row_end_ns - now) / HL_NS_PER_MS) + 1;
}

hl_status validate_pause(const struct validation *v)
{
    poll(NULL, 0, VALIDATE_POLL_MS);
    return validate_check(v);
}

/* ---- what a row says ------------------------------------------------------------------------- */

static const char *text_of(struct validation *v, const char *fmt, va_list ap)
{
    char text[ROW_TEXT];
    vsnprintf(text, sizeof(text), fmt, ap);
    const char *kept = hl_arena_strdup(&v->arena, text);
    return kept != NULL ? kept : "";
}

const char *validate_text(struct validation *v, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    const char *text = text_of(v, fmt, ap);
    va_end(ap);
    return text;
}

void found_text(struct validation *v, struct found *f, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    f->row.found = text_of(v, fmt, ap);
    va_end(ap);
}

hl_status found_missing(struct validation *v, struct found *f, enum hl_api_validation_result result,
                        const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    f->row.missing = text_of(v, fmt, ap);
    va_end(ap);
    f->row.result = result;
    return HL_OK;
}

void found_judge(struct found *f, double figure)
{
    f->row.value = figure;
    f->row.result = hl_target_is_met(&f->target, figure) ? HL_API_VALIDATION_RESULT_PASS
                                                         : HL_API_VALIDATION_RESULT_FAIL;
}
