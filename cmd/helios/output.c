/* Tables, JSON and the progress line. */
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "base/clock.h"
#include "helios/cli.h"

#define PROGRESS_INTERVAL_NS (100 * HL_NS_PER_MS)
#define PROGRESS_BAR         28

static hl_status flush_stdout(void)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        return hl_fail(HL_EIO, "writing to stdout: %s", strerror(errno));
    return HL_OK;
}

hl_status cli_print_json(json_t *value)
{
    if (value == NULL)
        return hl_fail(HL_ENOMEM, "memory is short for the result");
    int rc = json_dumpf(value, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_ENCODE_ANY);
    json_decref(value);
    if (rc != 0)
        return hl_fail(HL_EIO, "writing JSON to stdout: %s", strerror(errno));
    fputc('\n', stdout);
    return flush_stdout();
}

/* Columns of a terminal; bytes that are not UTF-8 in this locale count one each. */
static size_t width_of(const char *text)
{
    size_t width = 0;
    mbstate_t state = {0};
    while (*text != '\0') {
        wchar_t wc;
        size_t n = mbrtowc(&wc, text, MB_LEN_MAX, &state);
        if (n == (size_t)-1 || n == (size_t)-2) {
            memset(&state, 0, sizeof(state));
            n = 1;
            width++;
        } else {
            int w = wcwidth(wc);
            width += w > 0 ? (size_t)w : 0;
        }
        text += n;
    }
    return width;
}

static void add_cell(struct cli_table *t, char *text)
{
    if (text == NULL || t->failed) {
        t->failed = 1;
        free(text);
        return;
    }
    if (t->count == t->cap) {
        size_t cap = t->cap == 0 ? 64 : t->cap * 2;
        char **grown = realloc(t->cells, cap * sizeof(*grown));
        if (grown == NULL) {
            t->failed = 1;
            free(text);
            return;
        }
        t->cells = grown;
        t->cap = cap;
    }
    /* A line break or a control character from outside must not break the table. */
    for (char *p = text; *p != '\0'; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = ' ';
    t->cells[t->count++] = text;
}

void cli_table_init(struct cli_table *t, const char *header)
{
    *t = (struct cli_table){0};
    while (t->columns < CLI_COLUMNS_MAX) {
        if (*header == '>') {
            t->right[t->columns] = 1;
            header++;
        }
        size_t len = strcspn(header, "|");
        add_cell(t, strndup(header, len));
        t->columns++;
        if (header[len] == '\0')
            return;
        header += len + 1;
    }
}

void cli_cell(struct cli_table *t, const char *fmt, ...)
{
    char *text = NULL;
    va_list ap;
    va_start(ap, fmt);
    if (vasprintf(&text, fmt, ap) < 0)
        text = NULL;
    va_end(ap);
    add_cell(t, text);
}

void cli_cell_bytes(struct cli_table *t, uint64_t bytes)
{
    char text[32];
    cli_cell(t, "%s", hl_format_bytes(bytes, text, sizeof(text)));
}

void cli_cell_time(struct cli_table *t, int64_t ms)
{
    char text[32] = "-";
    time_t at = (time_t)(ms / 1000);
    struct tm tm;
    if (ms > 0 && localtime_r(&at, &tm) != NULL)
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
    cli_cell(t, "%s", text);
}

static void print_row(const struct cli_table *t, size_t first, const size_t *widths)
{
    size_t end = t->columns;
    while (end > 0 && (first + end > t->count || t->cells[first + end - 1][0] == '\0'))
        end--; /* nothing but spaces would follow */
    for (size_t c = 0; c < end; c++) {
        const char *text = t->cells[first + c];
        int last = c + 1 == end;
        int pad = (int)(widths[c] - width_of(text));
        if (t->right[c])
            printf("%*s%s%s", pad, "", text, last ? "" : "  ");
        else
            printf("%s%*s%s", text, last ? 0 : pad, "", last ? "" : "  ");
    }
    fputc('\n', stdout);
}

hl_status cli_table_print(struct cli_table *t)
{
    size_t widths[CLI_COLUMNS_MAX] = {0};
    for (size_t i = 0; i < t->count; i++) {
        size_t w = width_of(t->cells[i]);
        if (w > widths[i % t->columns])
            widths[i % t->columns] = w;
    }
    for (size_t i = 0; i < t->count; i += t->columns)
        print_row(t, i, widths);
    for (size_t i = 0; i < t->count; i++)
        free(t->cells[i]);
    free(t->cells);
    int failed = t->failed;
    *t = (struct cli_table){0};
    if (failed)
        return hl_fail(HL_ENOMEM, "memory is short for the table");
    return flush_stdout();
}

void cli_progress_start(struct cli_progress *p, const char *title)
{
    *p = (struct cli_progress){
        .title = title, .started_ns = hl_now_ns(), .tty = isatty(STDERR_FILENO)};
}

void cli_progress_update(struct cli_progress *p, uint64_t done, uint64_t total)
{
    uint64_t now = hl_now_ns();
    if (!p->tty || (p->shown && now - p->drawn_ns < PROGRESS_INTERVAL_NS && done < total))
        return;
    p->drawn_ns = now;
    p->shown = 1;
    double share = total > 0 ? (double)done / (double)total : 0;
    double seconds = (double)(now - p->started_ns) / 1e9;
    char bar[PROGRESS_BAR + 1], a[32], b[32];
    int filled = (int)(share * PROGRESS_BAR);
    memset(bar, '-', PROGRESS_BAR);
    memset(bar, '#', (size_t)(filled > PROGRESS_BAR ? PROGRESS_BAR : filled));
    bar[PROGRESS_BAR] = '\0';
    fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %s of %s  %.2f GB/s", p->title, bar, share * 100,
            hl_format_bytes(done, a, sizeof(a)), hl_format_bytes(total, b, sizeof(b)),
            seconds > 0 ? (double)done / seconds / 1e9 : 0.0);
    fflush(stderr);
}

void cli_progress_end(struct cli_progress *p)
{
    if (p->shown)
        fputs("\r\033[K", stderr);
    p->shown = 0;
}
