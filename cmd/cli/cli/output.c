/* Tables, JSON and the progress line. */
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include "base/clock.h"
#include "base/text.h"
#include "cli/cli/cli.h"
#include "os/file.h"

#define PROGRESS_INTERVAL_NS (100 * HL_NS_PER_MS)
#define PROGRESS_BAR         16

#define COLUMNS_DEFAULT 80 /* for a terminal that does not report its width */
#define GAP             2  /* between columns */
#define TEXT_MIN        16 /* before a text gets narrower, an optional column is left out */
#define TEXT_LEAST      6  /* no text gets narrower */
#define ELLIPSIS        "…"
#define GREEN           "\033[32m"
#define YELLOW          "\033[33m"
#define RED             "\033[31m"
#define RESET           "\033[0m"

static struct {
    size_t columns; /* width of a line, 0 = no limit */
    bool color;
} terminal;

/* COLUMNS has priority, so that a script can ask for narrow tables; a pipe without it has no
 * limit. */
static size_t terminal_columns(void)
{
    struct winsize size;
    const char *wanted = getenv("COLUMNS");
    uint64_t columns;
    if (wanted != NULL && hl_parse_number(wanted, INT_MAX, &columns) && columns > 0)
        return (size_t)columns;
    if (!isatty(STDOUT_FILENO))
        return 0;
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col
                                                                           : COLUMNS_DEFAULT;
}

void cli_output_setup(bool wide)
{
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    terminal.columns = wide ? 0 : terminal_columns();
    terminal.color = isatty(STDOUT_FILENO) && (no_color == NULL || no_color[0] == '\0') &&
                     term != NULL && strcmp(term, "dumb") != 0;
}

/* One character as a terminal shows it: its bytes, its columns, and whether it may be shown at all,
 * which is not the case for controls and invalid UTF-8. */
struct glyph {
    size_t bytes, columns;
    bool printable;
};

static struct glyph next_glyph(const char *text)
{
    wchar_t wc;
    mbstate_t state = {0};
    size_t n = mbrtowc(&wc, text, MB_LEN_MAX, &state);
    if (n == (size_t)-1 || n == (size_t)-2 || n == 0)
        return (struct glyph){1, 1, false};
    int columns = wcwidth(wc);
    bool bidi = (wc >= 0x202a && wc <= 0x202e) || (wc >= 0x2066 && wc <= 0x2069);
    if (columns < 0 || bidi)
        return (struct glyph){n, 1, false};
    return (struct glyph){n, (size_t)columns, true};
}

static size_t width_of(const char *text)
{
    size_t width = 0;
    while (*text != '\0') {
        struct glyph g = next_glyph(text);
        width += g.columns;
        text += g.bytes;
    }
    return width;
}

void cli_make_printable(char *text, char keep)
{
    char *to = text;
    while (*text != '\0') {
        struct glyph g = next_glyph(text);
        if (g.printable || (keep != '\0' && *text == keep)) {
            memmove(to, text, g.bytes);
            to += g.bytes;
        } else {
            *to++ = strchr("\n\r\t", *text) != NULL ? ' ' : '?';
        }
        text += g.bytes;
    }
    *to = '\0';
}

/* NULL: out of memory. */
static char *format_text(const char *fmt, va_list ap)
{
    char *text;
    return vasprintf(&text, fmt, ap) < 0 ? NULL : text;
}

void cli_print(FILE *to, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *text = format_text(fmt, ap);
    va_end(ap);
    if (text == NULL)
        return;
    cli_make_printable(text, '\n');
    fputs(text, to);
    free(text);
}

/* ---- JSON ------------------------------------------------------------------------------------ */

/* jansson escapes the controls of ASCII, but DEL and those of Unicode can also change a terminal.
 * They occur only inside strings. */
static void print_json_text(const char *text)
{
    while (*text != '\0') {
        struct glyph g = next_glyph(text);
        wchar_t wc = 0;
        mbstate_t state = {0};
        if (g.printable || *text == '\n' || mbrtowc(&wc, text, g.bytes, &state) == (size_t)-1)
            fwrite(text, 1, g.bytes, stdout);
        else if (wc > 0xffff)
            fprintf(stdout, "\\u%04x\\u%04x", 0xd7c0u + ((unsigned)wc >> 10),
                    0xdc00u + ((unsigned)wc & 0x3ffu));
        else
            fprintf(stdout, "\\u%04x", (unsigned)wc);
        text += g.bytes;
    }
}

hl_status cli_print_json(json_t *value)
{
    if (value == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the result");
    HL_AUTO(hl_freep)
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_ENCODE_ANY |
                                       JSON_REAL_PRECISION(9));
    json_decref(value);
    if (text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the result");
    print_json_text(text);
    fputc('\n', stdout);
    return hl_stdout_flush();
}

hl_status cli_print_value(const struct hl_api_type *type, const void *value)
{
    return cli_print_json(hl_api_show(type, value));
}

hl_status cli_print_beside(const struct hl_api_type *type, const void *value, const char *out)
{
    if (strcmp(out, "-") != 0)
        return cli_print_value(type, value);
    json_t *doc = hl_api_show(type, value);
    if (doc == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the result as JSON");
    json_dumpf(doc, stderr, JSON_COMPACT);
    fputc('\n', stderr);
    json_decref(doc);
    return HL_OK;
}

hl_status cli_print_items(const struct hl_api_type *type, const void *items, size_t count)
{
    const struct hl_api_list list = {(void *)items, count};
    const struct hl_api_field field = {
        .name = "items", .kind = HL_API_STRUCT, .type = type, .list = true};
    const struct hl_api_type document = {"items", sizeof(list), &field, 1};
    return cli_print_value(&document, &list);
}

void cli_type_without(const struct hl_api_type *type, const size_t *offsets, size_t count,
                      struct cli_type *out)
{
    out->type = *type;
    out->type.fields = out->fields;
    out->type.field_count = 0;
    for (size_t i = 0; i < type->field_count; i++) {
        bool out_of_it = false;
        for (size_t k = 0; k < count; k++)
            out_of_it |= offsets[k] == type->fields[i].offset;
        if (!out_of_it && out->type.field_count < CLI_FIELDS_MAX)
            out->fields[out->type.field_count++] = type->fields[i];
    }
}

/* ---- tables ---------------------------------------------------------------------------------- */

static void add_cell(struct cli_table *t, char *text)
{
    if (text == NULL || t->failed) {
        t->failed = true;
        free(text);
        return;
    }
    if (t->count == t->cap) {
        size_t cap = t->cap == 0 ? 64 : t->cap * 2;
        char **grown = realloc(t->cells, cap * sizeof(*grown));
        if (grown == NULL) {
            t->failed = true;
            free(text);
            return;
        }
        t->cells = grown;
        t->cap = cap;
    }
    cli_make_printable(text, 0); /* texts from outside must not break the table */
    t->cells[t->count++] = text;
}

void cli_table_init(struct cli_table *t, const char *header)
{
    *t = (struct cli_table){0};
    while (t->columns < CLI_COLUMNS_MAX) {
        if (*header == '?') {
            t->optional[t->columns] = 1;
            header++;
        }
        if (*header == '!' || *header == '>') {
            t->fixed[t->columns] = 1;
            t->right[t->columns] = *header == '>';
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
    va_list ap;
    va_start(ap, fmt);
    char *text = format_text(fmt, ap);
    va_end(ap);
    add_cell(t, text);
}

void cli_cell_bytes(struct cli_table *t, uint64_t bytes)
{
    char text[32];
    cli_cell(t, "%s", hl_format_bytes(bytes, text, sizeof(text)));
}

const char *cli_format_time(int64_t ms, char *out, size_t cap)
{
    time_t at = (time_t)(ms / 1000);
    struct tm tm;
    if (ms <= 0 || localtime_r(&at, &tm) == NULL ||
        strftime(out, cap, "%Y-%m-%d %H:%M:%S", &tm) == 0)
        snprintf(out, cap, "-");
    return out;
}

void cli_format_end(const struct hl_api_local_end *end, char *out, size_t cap)
{
    char at[32];
    cli_format_time(end->end.at, at, sizeof(at));
    snprintf(out, cap, "%s at %s, %d restart%s%s", end->end.how, at, end->restarts,
             end->restarts == 1 ? "" : "s", end->runs ? "" : "; not running");
}

void cli_cell_time(struct cli_table *t, int64_t ms)
{
    char text[32];
    cli_format_time(ms, text, sizeof(text));
    cli_cell(t, "%s", text);
}

void cli_cell_duration(struct cli_table *t, int64_t ms)
{
    int64_t s = ms / 1000;
    if (ms < 0)
        cli_cell(t, "-");
    else if (s < 60)
        cli_cell(t, "%d.%ds", (int)s, (int)(ms % 1000 / 100)); /* 59.96 s must not read as 60.0 */
    else if (s < 3600)
        cli_cell(t, "%dm%02ds", (int)(s / 60), (int)(s % 60));
    else if (s < 86400)
        cli_cell(t, "%dh%02dm", (int)(s / 3600), (int)(s / 60 % 60));
    else
        cli_cell(t, "%lldd%02dh", (long long)(s / 86400), (int)(s / 3600 % 24));
}

/* Only states have colours: green is healthy, yellow is temporary or needs attention, red is
 * lost. */
static const char *color_of(const char *header, const char *text)
{
    static const struct {
        const char *word, *color;
    } words[] = {
        {"ready", GREEN},     {"running", GREEN},  {"succeeded", GREEN},  {"sealed", GREEN},
        {"visible", GREEN},   {"ok", GREEN},       {"pending", YELLOW},   {"starting", YELLOW},
        {"stopping", YELLOW}, {"stopped", YELLOW}, {"cancelled", YELLOW}, {"restarting", YELLOW},
        {"writing", YELLOW},  {"high", YELLOW},    {"failed", RED},       {"lost", RED},
        {"bad", RED},
    };

    if (!terminal.color || (strcmp(header, "STATE") != 0 && strcmp(header, "PRESSURE") != 0 &&
                            strcmp(header, "RESULT") != 0))
        return NULL;
    if (strncmp(text, "importing", 9) == 0)
        return YELLOW;
    for (size_t i = 0; i < HL_ARRAY_LEN(words); i++)
        if (strcmp(words[i].word, text) == 0)
            return words[i].color;
    return NULL;
}

/* Prints at most `width` columns of the text; if it is longer, the last one is "…". Returns the
 * columns used. */
static size_t print_cut(const char *text, size_t width)
{
    size_t used = 0;
    if (width_of(text) <= width) {
        fputs(text, stdout);
        return width_of(text);
    }
    while (width > 0) {
        struct glyph g = next_glyph(text);
        if (used + g.columns > width - 1) {
            fputs(ELLIPSIS, stdout);
            return used + 1;
        }
        fwrite(text, 1, g.bytes, stdout);
        used += g.columns;
        text += g.bytes;
    }
    return used;
}

/* The layout of a table on the terminal. */
struct layout {
    size_t widths[CLI_COLUMNS_MAX];
    bool hidden[CLI_COLUMNS_MAX];
    bool incomplete; /* a column is hidden */
};

static size_t min_width(const struct cli_table *t, const struct layout *l, size_t c, size_t floor)
{
    size_t width = l->widths[c], header = width_of(t->cells[c]);
    size_t least = header > floor ? header : floor;
    return c == 0 || t->fixed[c] || width < least ? width : least;
}

/* Width of the whole table if every text were cut to `floor`; SIZE_MAX: not cut at all. */
static size_t table_width(const struct cli_table *t, const struct layout *l, size_t floor)
{
    size_t width = l->incomplete ? GAP + 1 : 0, shown = 0;
    for (size_t c = 0; c < t->columns; c++) {
        if (l->hidden[c])
            continue;
        width += floor == SIZE_MAX ? l->widths[c] : min_width(t, l, c, floor);
        shown++;
    }
    return width + (shown > 0 ? (shown - 1) * GAP : 0);
}

/* First hides optional columns, beginning with the last one; then cuts the longest texts. The first
 * column, by which people identify a row, numbers and fixed columns stay whole. */
static void fit_table(const struct cli_table *t, struct layout *l)
{
    if (terminal.columns == 0)
        return;
    for (size_t c = t->columns; c-- > 0 && table_width(t, l, TEXT_MIN) > terminal.columns;)
        if (t->optional[c])
            l->incomplete = l->hidden[c] = true;
    while (table_width(t, l, SIZE_MAX) > terminal.columns) {
        size_t widest = t->columns;
        for (size_t c = 1; c < t->columns; c++)
            if (!l->hidden[c] && l->widths[c] > min_width(t, l, c, TEXT_LEAST) &&
                (widest == t->columns || l->widths[c] > l->widths[widest]))
                widest = c;
        if (widest == t->columns)
            return; /* any narrower would be useless */
        l->widths[widest]--;
    }
}

static void print_row(const struct cli_table *t, size_t first, const struct layout *l)
{
    size_t end = t->columns, gap = 0;
    while (end > 0 &&
           (l->hidden[end - 1] || first + end > t->count || t->cells[first + end - 1][0] == '\0'))
        end--; /* only spaces would follow */
    for (size_t c = 0; c < end; c++) {
        if (l->hidden[c])
            continue;
        const char *text = t->cells[first + c];
        const char *color = first > 0 ? color_of(t->cells[c], text) : NULL;
        size_t width = width_of(text) < l->widths[c] ? width_of(text) : l->widths[c];
        printf("%*s", (int)(gap + (t->right[c] ? l->widths[c] - width : 0)), "");
        if (color != NULL)
            fputs(color, stdout);
        width = print_cut(text, l->widths[c]);
        if (color != NULL)
            fputs(RESET, stdout);
        gap = GAP + (t->right[c] ? 0 : l->widths[c] - width);
    }
    if (first == 0 && l->incomplete)
        printf("%*s%s", (int)gap, "", ELLIPSIS);
    fputc('\n', stdout);
}

hl_status cli_table_print(struct cli_table *t)
{
    struct layout l = {0};
    for (size_t i = 0; i < t->count; i++) {
        size_t w = width_of(t->cells[i]);
        if (w > l.widths[i % t->columns])
            l.widths[i % t->columns] = w;
    }
    fit_table(t, &l);
    for (size_t i = 0; i < t->count; i += t->columns)
        print_row(t, i, &l);
    for (size_t i = 0; i < t->count; i++)
        free(t->cells[i]);
    free(t->cells);
    bool failed = t->failed;
    *t = (struct cli_table){0};
    if (failed)
        return hl_fail(HL_ENOMEM, "out of memory for the table");
    return hl_stdout_flush();
}

const char *cli_plural(uint64_t count)
{
    return count == 1 ? "" : "s";
}

/* If the program is interrupted while a line is drawn, the line stays and is ended. */
static volatile sig_atomic_t line_drawn;
static const int ending[] = {SIGINT, SIGTERM, SIGHUP};

static void end_line(int number)
{
    if (line_drawn && write(STDERR_FILENO, "\n", 1) < 0)
        line_drawn = 0; /* its reader is gone */
    raise(number);      /* SA_RESETHAND: acts as if there were no handler */
}

/* Leaves signals alone that have another handler. */
static void end_line_on_signals(bool on)
{
    struct sigaction now, end = {.sa_handler = end_line, .sa_flags = (int)SA_RESETHAND};
    for (size_t i = 0; i < HL_ARRAY_LEN(ending); i++)
        if (sigaction(ending[i], NULL, &now) == 0 && now.sa_handler == (on ? SIG_DFL : end_line))
            sigaction(ending[i], on ? &end : &(struct sigaction){.sa_handler = SIG_DFL}, NULL);
}

void cli_progress_interrupted(void)
{
    end_line_on_signals(true);
}

void cli_progress_start(struct cli_progress *p, const char *title)
{
    *p = (struct cli_progress){
        .title = title, .started_ns = hl_now_ns(), .tty = isatty(STDERR_FILENO)};
}

/* "12 s left"; nothing if there is no rate yet to compute it. */
static void time_left(double seconds, uint64_t done, uint64_t total, char *buf, size_t cap)
{
    buf[0] = '\0';
    if (done == 0 || done >= total || seconds <= 0)
        return;
    double left = seconds * (double)(total - done) / (double)done;
    if (left < 60)
        snprintf(buf, cap, "  %.0f s left", left + 0.5);
    else
        snprintf(buf, cap, "  %.0f min left", left / 60 + 0.5);
}

void cli_progress_update(struct cli_progress *p, uint64_t done, uint64_t total)
{
    uint64_t now = hl_now_ns();
    if (!p->tty || total == 0 || /* nothing is known yet */
        (p->shown && now - p->drawn_ns < PROGRESS_INTERVAL_NS && done < total))
        return;
    if (!p->shown) /* the first time, or after an end: a lost connection ends the line too */
        end_line_on_signals(true);
    p->drawn_ns = now;
    p->shown = true;
    line_drawn = 1;
    double share = (double)done / (double)total;
    double seconds = (double)(now - p->started_ns) / 1e9;
    uint64_t rate = seconds > 0 ? (uint64_t)((double)done / seconds) : 0;
    char bar[PROGRESS_BAR + 1], a[32], b[32], c[32], left[32];
    int filled = (int)(share * PROGRESS_BAR);
    memset(bar, '-', PROGRESS_BAR);
    memset(bar, '#', (size_t)(filled > PROGRESS_BAR ? PROGRESS_BAR : filled));
    bar[PROGRESS_BAR] = '\0';
    time_left(seconds, done, total, left, sizeof(left));
    fprintf(stderr, "\r\033[K%s [%s] %3.0f%%  %s of %s  %s/s%s", p->title, bar, share * 100,
            hl_format_bytes(done, a, sizeof(a)), hl_format_bytes(total, b, sizeof(b)),
            hl_format_bytes(rate, c, sizeof(c)), left);
    fflush(stderr);
}

void cli_progress_end(struct cli_progress *p)
{
    if (p->shown)
        fputs("\r\033[K", stderr);
    p->shown = false;
    line_drawn = 0;
    end_line_on_signals(false);
}
