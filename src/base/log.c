/* Any thread can write lines. Each line is one fwrite, which stdio makes atomic. Level and counts
 * are relaxed atomics. A flag instead of a lock guards the table of rates, because a line must
 * never wait: a thread that finds the flag set writes its line without a limit. */
#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/utf8.h"

#define LOG_LINES_PER_SECOND 50
#define LOG_SLOTS            64

/* How often a message was written recently. If the table or a slot is busy, a message loses its
 * limit, never its line. */
struct log_rate {
    const char *fmt;
    uint64_t second_began_ns;
    unsigned lines;
    unsigned dropped;
};

static struct log_rate log_rates[LOG_SLOTS];
static atomic_flag log_rates_busy = ATOMIC_FLAG_INIT;

static const char *const level_names[] = {"error", "warn", "info", "debug"};
static const char *log_program = "helios";
static _Atomic int log_level = HL_LOG_INFO;
static _Atomic unsigned log_counts[HL_ARRAY_LEN(level_names)];

void hl_log_init(const char *program, enum hl_log_level level)
{
    log_program = program;
    hl_log_set_level(level);
}

void hl_log_set_level(enum hl_log_level level)
{
    atomic_store_explicit(&log_level, (int)level, memory_order_relaxed);
}

bool hl_log_shows(enum hl_log_level level)
{
    return (int)level <= atomic_load_explicit(&log_level, memory_order_relaxed);
}

hl_status hl_log_level_parse(const char *text, enum hl_log_level *out)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (enum hl_log_level)i;
            return HL_OK;
        }
    }
    return hl_fail(HL_EINVAL, "log level '%s' is not one of error, warn, info, debug", text);
}

unsigned hl_log_count(enum hl_log_level level)
{
    return atomic_load_explicit(&log_counts[level], memory_order_relaxed);
}

/* Called by the thread that has set log_rates_busy. Two messages with the same slot replace each
 * other, which only makes their limit less exact. */
static bool log_rate_exceeded(struct log_rate *r, const char *fmt, uint64_t now, unsigned *dropped)
{
    if (r->fmt != fmt)
        *r = (struct log_rate){fmt, now, 0, 0};
    if (now - r->second_began_ns >= HL_NS_PER_S) {
        *dropped = r->dropped;
        *r = (struct log_rate){fmt, now, 0, 0};
    }
    if (r->lines >= LOG_LINES_PER_SECOND) {
        r->dropped++;
        return true;
    }
    r->lines++;
    return false;
}

/* Returns true if the line must be left out. `dropped`: how many lines of this message were left
 * out before it. */
static bool log_is_limited(const char *fmt, unsigned *dropped)
{
    *dropped = 0;
    /* Acquire and release make the flag a lock that is only tried: in between, one thread owns the
     * table. */
    if (atomic_flag_test_and_set_explicit(&log_rates_busy, memory_order_acquire))
        return false;
    struct log_rate *r = &log_rates[((uintptr_t)fmt >> 3) % LOG_SLOTS];
    bool limited = log_rate_exceeded(r, fmt, hl_now_ns(), dropped);
    atomic_flag_clear_explicit(&log_rates_busy, memory_order_release);
    return limited;
}

/* Untrusted text must not forge lines or change a terminal. */
static void make_printable(char *text, size_t len)
{
    for (size_t i = 0; i < len; i++)
        memset(text + i, ' ', hl_utf8_control(text + i, len - i));
}

void hl_log_write(enum hl_log_level level, const char *fmt, ...)
{
    unsigned dropped;
    atomic_fetch_add_explicit(&log_counts[level], 1, memory_order_relaxed);
    if (!hl_log_shows(level))
        return;
    if (log_is_limited(fmt, &dropped))
        return;

    char line[2048];
    struct timespec now;
    struct tm tm;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &tm);
    size_t n = strftime(line, sizeof(line), "%Y-%m-%dT%H:%M:%S", &tm);
    n += (size_t)snprintf(line + n, sizeof(line) - n, ".%03ldZ %-5s %s: ", now.tv_nsec / 1000000,
                          level_names[level], log_program);
    va_list ap;
    va_start(ap, fmt);
    int body = vsnprintf(line + n, sizeof(line) - n - 1, fmt, ap);
    va_end(ap);
    size_t end = n;
    if (body > 0)
        end += (size_t)body < sizeof(line) - n - 1 ? (size_t)body : sizeof(line) - n - 2;
    if (dropped > 0) {
        int more = snprintf(line + end, sizeof(line) - end - 1,
                            " (%u lines of this message left out)", dropped);
        if (more > 0 && (size_t)more < sizeof(line) - end - 1)
            end += (size_t)more;
    }
    make_printable(line + n, end - n);
    n = end;
    line[n++] = '\n';
    fwrite(line, 1, n, stderr);
}
