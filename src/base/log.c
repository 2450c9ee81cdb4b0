#include "base/log.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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

hl_status hl_log_level_parse(const char *text, enum hl_log_level *out)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(level_names); i++) {
        if (strcmp(text, level_names[i]) == 0) {
            *out = (enum hl_log_level)i;
            return HL_OK;
        }
    }
    return hl_fail(HL_EINVAL, "log level '%s' is none of error, warn, info, debug", text);
}

unsigned hl_log_count(enum hl_log_level level)
{
    return atomic_load_explicit(&log_counts[level], memory_order_relaxed);
}

void hl_log_write(enum hl_log_level level, const char *fmt, ...)
{
    atomic_fetch_add_explicit(&log_counts[level], 1, memory_order_relaxed);
    if ((int)level > atomic_load_explicit(&log_level, memory_order_relaxed))
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
    /* What others said stays in its line. */
    for (; n < end; n++)
        if ((unsigned char)line[n] < 0x20 || line[n] == 0x7f)
            line[n] = ' ';
    line[n++] = '\n';
    fwrite(line, 1, n, stderr);
}
