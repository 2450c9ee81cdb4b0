/* What `helios up` shows while it waits, how it notices that a daemon makes progress, and the
 * signals that end it. */
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/local/local_private.h"

#define DRAW_NS  (100 * HL_NS_PER_MS)
#define FIRST_NS (3 * HL_NS_PER_S)
#define LINE_NS  (5 * HL_NS_PER_S)

static volatile sig_atomic_t interrupted;
static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
static struct sigaction before[HL_ARRAY_LEN(ending)];

static void note_signal(int number)
{
    interrupted = number;
}

void local_signals_begin(void)
{
    struct sigaction on = {.sa_handler = note_signal};
    interrupted = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(ending); i++)
        if (sigaction(ending[i], NULL, &before[i]) == 0 && before[i].sa_handler != SIG_IGN)
            sigaction(ending[i], &on, NULL);
}

void local_signals_end(void)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(ending); i++)
        sigaction(ending[i], &before[i], NULL);
}

bool local_interrupted(void)
{
    return interrupted != 0;
}

void local_progress_start(struct local_progress *p)
{
    *p = (struct local_progress){.started_ns = hl_now_ns(), .terminal = isatty(STDERR_FILENO)};
    p->next_ns = p->started_ns + (p->terminal ? DRAW_NS : FIRST_NS);
}

void local_progress_show(struct local_progress *p, const char *fmt, ...)
{
    uint64_t now = hl_now_ns();
    if (now < p->next_ns)
        return;
    p->next_ns = now + (p->terminal ? DRAW_NS : LINE_NS);
    p->shown = true;
    va_list ap;
    va_start(ap, fmt);
    fputs(p->terminal ? "\r\033[K" : "helios: ", stderr);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, ", %u s%s", (unsigned)((now - p->started_ns) / HL_NS_PER_S),
            p->terminal ? "" : "\n");
    fflush(stderr);
    va_end(ap);
}

void local_progress_end(struct local_progress *p)
{
    if (p->terminal && p->shown)
        fputs("\r\033[K", stderr);
    p->shown = false;
}

static uint64_t resident_of(pid_t pid)
{
    char path[64];
    unsigned long long total, resident = 0;
    snprintf(path, sizeof(path), "/proc/%d/statm", (int)pid);
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return 0;
    if (fscanf(f, "%llu %llu", &total, &resident) != 2)
        resident = 0;
    fclose(f);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

bool local_watch_look(struct local_watch *w)
{
    struct stat sb;
    bool further = false;
    if (w->path[0] != '\0' && stat(w->path, &sb) == 0) {
        uint64_t filled = (uint64_t)sb.st_blocks * 512;
        further = filled > w->filled || (uint64_t)sb.st_size != w->size;
        w->filled = filled;
        w->size = (uint64_t)sb.st_size;
    }
    uint64_t resident = resident_of(w->pid);
    if (resident > w->resident) { /* pages of an existing pool are only mapped */
        w->resident = resident;
        further = true;
    }
    return further;
}
