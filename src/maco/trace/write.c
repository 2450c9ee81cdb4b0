/* Chrome's trace format, which Perfetto reads: a slice for each record, on a line for each worker,
 * link and scheduler, and an arrow for each dependency.
 *
 *     pid    the rank: traces of several ranks can be put into one file
 *     tid    0 ..            workers
 *            LINKS ..        links of groups: their transfers overlap with the workers' tasks
 *            SCHEDULERS ..   schedulers
 *
 *     "M" a line's name, once     "X" a slice     "s" -> "f" an arrow between slices, by its id */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "maco/graph/graph.h"
#include "maco/trace/trace_private.h"

#define LINKS      100000 /* first line of a group, after those of workers */
#define SCHEDULERS 200000

static const char *const kinds[] = {[HL_MACO_COMPUTE] = "compute",
                                    [HL_MACO_COMM] = "comm",
                                    [HL_MACO_WAIT] = "wait",
                                    [HL_MACO_SCHED] = "sched"};

static uint32_t line_of(const struct hl_maco_record *r)
{
    return r->worker + (r->kind == HL_MACO_COMM    ? LINKS
                        : r->kind == HL_MACO_SCHED ? SCHEDULERS
                                                   : 0);
}

/* Names are UTF-8 without control characters, so only two characters need escaping. */
static void put_name(FILE *f, const char *name)
{
    for (; *name != '\0'; name++) {
        if (*name == '"' || *name == '\\')
            putc('\\', f);
        putc(*name, f);
    }
}

/* Writes nanoseconds as microseconds, without loss. */
static void put_time(FILE *f, const char *key, uint64_t ns)
{
    fprintf(f, "\"%s\":%" PRIu64 ".%03u,", key, ns / 1000, (unsigned)(ns % 1000));
}

/* Writes one record as a slice on its thread's line. */
static void put_slice(FILE *f, const maco_trace *t, int rank, const struct hl_maco_record *r)
{
    bool known = r->task < t->n_tasks;
    const struct hl_maco_traced *task = known ? &t->tasks[r->task] : NULL;
    fprintf(f, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%u,", rank, line_of(r));
    put_time(f, "ts", r->start_ns);
    put_time(f, "dur", r->end_ns - r->start_ns);
    fprintf(f, "\"cat\":\"%s\",\"name\":\"", kinds[r->kind]);
    if (r->kind == HL_MACO_WAIT)
        fputs(known ? "wait for " : "wait", f);
    if (known)
        put_name(f, t->names + task->name);
    else if (r->kind != HL_MACO_WAIT)
        fputs(kinds[r->kind], f);
    fputs("\",\"args\":{", f);
    if (r->kind == HL_MACO_WAIT)
        fprintf(f, "\"have\":%u,\"need\":%u", r->have, r->need);
    if (known) {
        fprintf(f, "%s\"task\":%u,\"type\":\"%s\"", r->kind == HL_MACO_WAIT ? "," : "", r->task,
                hl_maco_type_name(task->type));
        if (task->event != MACO_NONE)
            fprintf(f, ",\"event\":%u", task->event);
        if (task->bytes > 0)
            fprintf(f, ",\"bytes\":%" PRIu64, task->bytes);
    }
    fputs("}}", f);
}

/* Writes one end of an arrow. It belongs to the slice that its line shows at that time; the target
 * needs "bp":"e" for that, because otherwise it would be bound to the next slice. */
static void put_end(FILE *f, const char *ph, int rank, const struct hl_maco_record *r, uint64_t ns,
                    uint64_t id)
{
    fprintf(f, ",\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%u,", ph, rank, line_of(r));
    put_time(f, "ts", ns);
    fprintf(f, "%s\"cat\":\"dependency\",\"name\":\"dependency\",\"id\":%" PRIu64 "}",
            ph[0] == 'f' ? "\"bp\":\"e\"," : "", id);
}

/* From the last nanosecond of each parent, which is still inside its slice, to the task's start. */
static void put_arrows(FILE *f, const maco_trace *t, int rank, uint32_t task, uint64_t *arrows)
{
    if (t->ran[task] == MACO_NONE)
        return;
    const struct hl_maco_record *to = &t->records[t->ran[task]];
    for (uint32_t k = t->tasks[task].first_parent; k < t->tasks[task + 1].first_parent; k++) {
        uint32_t r = t->ran[t->parents[k]];
        if (r == MACO_NONE)
            continue;
        const struct hl_maco_record *from = &t->records[r];
        put_end(f, "s", rank, from, from->end_ns - (from->end_ns > from->start_ns), *arrows);
        put_end(f, "f", rank, to, to->start_ns, (*arrows)++);
    }
}

/* Writes the name of a line, and its position: by number, not by which came first. */
static void put_line(FILE *f, int rank, uint32_t line, const char *what, uint32_t number)
{
    fprintf(f, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"name\":\"thread_name\",", rank, line);
    fprintf(f, "\"args\":{\"name\":\"%s %u\"}}", what, number);
    fprintf(f, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%u,\"name\":\"thread_sort_index\",", rank,
            line);
    fprintf(f, "\"args\":{\"sort_index\":%u}}", line);
}

/* Writes only lines that have a slice. `seen` has a byte per number of each of the three kinds. */
static void put_lines(FILE *f, const maco_trace *t, int rank, uint8_t *seen)
{
    static const char *const words[] = {"worker", "link of group", "scheduler"};
    for (size_t i = 0; i < t->n; i++) {
        uint32_t line = line_of(&t->records[i]), what = line / LINKS;
        uint8_t *once = &seen[what * (UINT16_MAX + 1) + line % LINKS];
        if (!*once)
            put_line(f, rank, line, words[what], line % LINKS);
        *once = 1;
    }
}

/* The stream remembers errors, so they are checked once, at the end. */
int maco_trace_write(const maco_trace *t, int rank, const char *path)
{
    if (t == NULL || path == NULL)
        return hl_fail(HL_EINVAL, "maco_trace_write: the trace or the path is NULL");
    uint8_t *seen = calloc(3, UINT16_MAX + 1);
    if (seen == NULL)
        return hl_fail(HL_ENOMEM, "out of memory writing a trace");
    FILE *f = fopen(path, "we");
    uint64_t arrows = 0;
    if (f == NULL) {
        free(seen);
        return hl_fail(HL_EIO, "trace %s: %m", path);
    }
    fprintf(f, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n");
    fprintf(f, "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",", rank);
    fprintf(f, "\"args\":{\"name\":\"rank %d\"}}", rank);
    put_lines(f, t, rank, seen);
    free(seen);
    for (size_t i = 0; i < t->n; i++)
        put_slice(f, t, rank, &t->records[i]);
    for (uint32_t i = 0; i < t->n_tasks; i++)
        put_arrows(f, t, rank, i, &arrows);
    fputs("\n]}\n", f);
    int bad = ferror(f);
    bad |= fclose(f);
    return bad ? hl_fail(HL_EIO, "trace %s: %m. Hint: is the disk full?", path) : HL_OK;
}
