#include "cli/mem/picture.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"

#define WIDTH  1200
#define LEFT   96
#define RIGHT  (WIDTH - 24)
#define TOP    84
#define BOTTOM 470 /* of the memory chart */
#define MOVES  600 /* zero line of the transfers */
#define REACH  70  /* of their longest bar */
#define HEIGHT 740
#define AREAS  4 /* areas of chunks */

static const struct area {
    const char *css, *name;
    uint32_t kinds; /* bits */
} areas[AREAS] = {
    {"param", "parameters", 1u << HYBRIDPS_PARAM},
    {"grad", "gradients", 1u << HYBRIDPS_GRAD},
    {"state", "optimizer state",
     1u << HYBRIDPS_P32 | 1u << HYBRIDPS_MOMENTUM | 1u << HYBRIDPS_VARIANCE},
    {"other", "other chunks", 1u << HYBRIDPS_OTHER},
};

/* One moment, or several drawn as one. */
struct step {
    uint64_t area[AREAS], avail, h2d, d2h;
};

struct canvas {
    const struct picture *p;
    struct hl_buf *out;
    struct step steps[PICTURE_STEPS];
    size_t count;
    uint64_t most_moved;
};

static const char style[] =
    "<style>\n"
    "text{font:13px system-ui,sans-serif;fill:#24292f}.title{font-size:17px;font-weight:600}\n"
    ".back{fill:#fff}.axis,.tick{stroke:#57606a;fill:none}.grid{stroke:#d0d7de}\n"
    ".param{fill:#4269d0}.grad{fill:#efb118}.state{fill:#3ca951}.other{fill:#a463f2}\n"
    ".reserved{fill:#9aa4af}.limit{stroke:#cf222e;stroke-width:2;stroke-dasharray:7 4}\n"
    ".h2d{fill:#00a3a3}.d2h{fill:#ff725c}.mid{text-anchor:middle}.end{text-anchor:end}\n"
    "@media (prefers-color-scheme:dark){text{fill:#e6edf3}.back{fill:#0d1117}.grid{stroke:#30363d}"
    ".axis,.tick{stroke:#8b949e}.reserved{fill:#57606a}.param{fill:#6c8cff}.limit{stroke:#ff7b72}}"
    "\n</style>\n";

static uint64_t area_sum(const struct step *s)
{
    uint64_t all = 0;
    for (int a = 0; a < AREAS; a++)
        all += s->area[a];
    return all;
}

/* Among the moments drawn as one, the fullest counts: chunks and others' bytes together. */
static uint64_t step_fullness(const struct canvas *c, const struct step *s)
{
    return area_sum(s) + (c->p->capacity - (s->avail < c->p->capacity ? s->avail : c->p->capacity));
}

static void gather_steps(struct canvas *c)
{
    size_t moments = c->p->trace->moment_count, group = (moments - 1) / PICTURE_STEPS + 1;
    for (size_t i = 0; i < moments; i++) {
        const struct hl_replay_view *v = &c->p->views[i];
        struct step one = {.avail = v->avail}, *s = &c->steps[i / group];
        for (int k = 0; k < HYBRIDPS_KINDS; k++)
            for (int a = 0; a < AREAS; a++)
                one.area[a] += areas[a].kinds >> k & 1 ? v->device_by_kind[k] : 0;
        one.h2d = s->h2d + v->h2d;
        one.d2h = s->d2h + v->d2h;
        if (i % group > 0 && step_fullness(c, &one) < step_fullness(c, s)) {
            memcpy(one.area, s->area, sizeof(one.area));
            one.avail = s->avail;
        }
        *s = one;
        c->count = i / group + 1;
    }
    for (size_t i = 0; i < c->count; i++) {
        uint64_t most = c->steps[i].h2d > c->steps[i].d2h ? c->steps[i].h2d : c->steps[i].d2h;
        c->most_moved = most > c->most_moved ? most : c->most_moved;
    }
}

/* ---- places ---- */

static double x_of(const struct canvas *c, size_t step)
{
    return LEFT + (double)(RIGHT - LEFT) * (double)step / (double)c->count;
}

static double y_of(const struct canvas *c, uint64_t bytes)
{
    return BOTTOM - (double)(BOTTOM - TOP) * (double)bytes / (double)c->p->capacity;
}

/* Adds text with XML's own characters escaped and forbidden ones replaced. */
static void add_text(struct hl_buf *out, const char *text)
{
    for (; *text != '\0'; text++) {
        const char *as = *text == '<'   ? "&lt;"
                         : *text == '&' ? "&amp;"
                         : *text == '>' ? "&gt;"
                                        : "";
        if (*as != '\0')
            hl_buf_printf(out, "%s", as);
        else
            hl_buf_printf(out, "%c", (unsigned char)*text < 32 ? ' ' : *text);
    }
}

/* A power of two that divides `most` into 3 to 8 intervals. */
static uint64_t tick_of(uint64_t most)
{
    uint64_t tick = 1;
    while (most / tick > 8)
        tick *= 2;
    return tick;
}

/* ---- parts ---- */

static void draw_frame(struct canvas *c)
{
    char bytes[32];
    hl_buf_printf(c->out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\" role=\"img\">\n<title>",
                  WIDTH, HEIGHT, WIDTH, HEIGHT);
    add_text(c->out, c->p->title);
    hl_buf_printf(c->out, "</title>\n%s", style);
    hl_buf_printf(c->out, "<rect class=\"back\" width=\"%d\" height=\"%d\"/>\n", WIDTH, HEIGHT);
    hl_buf_printf(c->out, "<text class=\"title\" x=\"%d\" y=\"28\">", LEFT);
    add_text(c->out, c->p->title);
    hl_buf_printf(c->out, "</text>\n");
    uint64_t tick = tick_of(c->p->capacity);
    for (uint64_t b = 0; b < c->p->capacity - tick / 4; b += tick)
        hl_buf_printf(c->out,
                      "<path class=\"grid\" d=\"M%d %.1fH%d\"/>"
                      "<text class=\"end\" x=\"%d\" y=\"%.1f\">%s</text>\n",
                      LEFT, y_of(c, b), RIGHT, LEFT - 8, y_of(c, b) + 4,
                      hl_format_bytes(b, bytes, sizeof(bytes)));
    hl_buf_printf(c->out,
                  "<text class=\"mid\" transform=\"translate(18 %d) rotate(-90)\">bytes on the "
                  "device</text>\n",
                  (TOP + BOTTOM) / 2);
}

/* The outline of the area below a height, step by step. */
static void draw_area(struct canvas *c, const char *css, int area)
{
    hl_buf_printf(c->out, "<path class=\"%s\" d=\"M%d %d", css, LEFT, BOTTOM);
    for (size_t i = 0; i < c->count; i++) {
        uint64_t high = 0;
        for (int a = 0; a <= area; a++)
            high += c->steps[i].area[a];
        hl_buf_printf(c->out, "L%.1f %.1fH%.1f", x_of(c, i), y_of(c, high), x_of(c, i + 1));
    }
    hl_buf_printf(c->out, "V%dZ\"/>\n", BOTTOM);
}

static void draw_tide(struct canvas *c)
{
    double top = y_of(c, c->p->capacity);
    hl_buf_printf(c->out, "<path class=\"reserved\" d=\"M%d %.1f", LEFT, top);
    for (size_t i = 0; i < c->count; i++) {
        uint64_t avail = c->steps[i].avail;
        avail = avail < c->p->capacity ? avail : c->p->capacity;
        hl_buf_printf(c->out, "L%.1f %.1fH%.1f", x_of(c, i), y_of(c, avail), x_of(c, i + 1));
    }
    hl_buf_printf(c->out, "V%.1fZ\"/>\n", top);
}

static void draw_memory(struct canvas *c)
{
    char bytes[32];
    for (int a = AREAS; a-- > 0;) /* each one is drawn over those above it */
        draw_area(c, areas[a].css, a);
    draw_tide(c);
    hl_buf_printf(c->out, "<path class=\"limit\" d=\"M%d %.1fH%d\"/>\n", LEFT,
                  y_of(c, c->p->capacity), RIGHT);
    hl_buf_printf(c->out, "<text class=\"end\" x=\"%d\" y=\"%.1f\">capacity %s</text>\n", RIGHT,
                  y_of(c, c->p->capacity) - 6,
                  hl_format_bytes(c->p->capacity, bytes, sizeof(bytes)));
    hl_buf_printf(c->out, "<path class=\"axis\" d=\"M%d %dV%dH%d\"/>\n", LEFT, TOP, BOTTOM, RIGHT);
}

/* Groups consecutive moments of one stage; a group is named if there is room. */
static void draw_stages(struct canvas *c)
{
    const struct hl_trace *t = c->p->trace;
    double scale = (double)(RIGHT - LEFT) / (double)t->moment_count;
    for (size_t i = 0, end; i < t->moment_count; i = end) {
        for (end = i;
             end < t->moment_count && strcmp(t->moments[end].stage, t->moments[i].stage) == 0;)
            end++;
        double from = LEFT + scale * (double)i, to = LEFT + scale * (double)end;
        if (to - from < 8.0 * (double)strlen(t->moments[i].stage))
            continue;
        hl_buf_printf(c->out, "<path class=\"tick\" d=\"M%.1f %dv8\"/>", to, BOTTOM);
        hl_buf_printf(c->out, "<text class=\"mid\" x=\"%.1f\" y=\"%d\">", (from + to) / 2,
                      BOTTOM + 18);
        add_text(c->out, t->moments[i].stage);
        hl_buf_printf(c->out, "</text>\n");
    }
}

static void draw_bar(struct canvas *c, const char *css, size_t i, uint64_t bytes, bool up)
{
    double length = REACH * (double)bytes / (double)c->most_moved, x = x_of(c, i);
    double width = x_of(c, i + 1) - x;
    if (bytes > 0)
        hl_buf_printf(
            c->out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"/>\n",
            css, x, up ? MOVES - length : (double)MOVES, width > 2 ? width - 0.5 : width, length);
}

static void draw_moves(struct canvas *c)
{
    char bytes[32];
    hl_format_bytes(c->most_moved, bytes, sizeof(bytes));
    for (size_t i = 0; i < c->count && c->most_moved > 0; i++) {
        draw_bar(c, "h2d", i, c->steps[i].h2d, 1);
        draw_bar(c, "d2h", i, c->steps[i].d2h, 0);
    }
    for (int up = -1; up <= 1; up += 2)
        hl_buf_printf(c->out,
                      "<path class=\"grid\" d=\"M%d %dH%d\"/><text class=\"end\" x=\"%d\" y=\"%d\">"
                      "%s</text>\n",
                      LEFT, MOVES - up * REACH, RIGHT, LEFT - 8, MOVES - up * REACH + 4, bytes);
    hl_buf_printf(c->out, "<text class=\"end\" x=\"%d\" y=\"%d\">0 B</text>\n", LEFT - 8,
                  MOVES + 4);
    hl_buf_printf(c->out, "<path class=\"axis\" d=\"M%d %dV%dM%d %dH%d\"/>\n", LEFT, MOVES - REACH,
                  MOVES + REACH, LEFT, MOVES, RIGHT);
    hl_buf_printf(c->out,
                  "<text class=\"mid\" transform=\"translate(18 %d) rotate(-90)\">bytes moved"
                  "</text>\n",
                  MOVES);
}

static void draw_moment_axis(struct canvas *c)
{
    size_t moments = c->p->trace->moment_count, tick = 1;
    while (moments / tick > 12)
        tick *= tick % 9 == 2 || tick == 1 ? 2 : 5;
    for (size_t i = 0; i <= moments; i += tick) {
        double x = LEFT + (double)(RIGHT - LEFT) * (double)i / (double)moments;
        hl_buf_printf(c->out,
                      "<path class=\"tick\" d=\"M%.1f %dv6\"/><text class=\"mid\" x=\"%.1f\" "
                      "y=\"%d\">%zu</text>\n",
                      x, MOVES + REACH, x, MOVES + REACH + 20, i);
    }
    hl_buf_printf(c->out, "<text class=\"mid\" x=\"%d\" y=\"%d\">moment of the iteration</text>\n",
                  (LEFT + RIGHT) / 2, MOVES + REACH + 44);
}

static int draw_legend(struct canvas *c, int x, int y, const char *css, const char *name)
{
    hl_buf_printf(c->out,
                  "<rect class=\"%s\" x=\"%d\" y=\"%d\" width=\"13\" height=\"13\"/>"
                  "<text x=\"%d\" y=\"%d\">%s</text>\n",
                  css, x, y - 11, x + 18, y, name);
    return x + 40 + 7 * (int)strlen(name);
}

static void draw_legends(struct canvas *c)
{
    int x = LEFT;
    for (int a = 0; a < AREAS; a++) {
        uint64_t any = 0;
        for (size_t i = 0; i < c->count; i++)
            any |= c->steps[i].area[a];
        if (any > 0)
            x = draw_legend(c, x, 54, areas[a].css, areas[a].name);
    }
    draw_legend(c, x, 54, "reserved", "activations and others");
    x = draw_legend(c, LEFT, MOVES - REACH - 12, "h2d", "host to device (up)");
    draw_legend(c, x, MOVES - REACH - 12, "d2h", "device to host (down)");
}

hl_status picture_draw(const struct picture *p, struct hl_buf *out)
{
    static struct canvas c;
    c = (struct canvas){.p = p, .out = out};
    gather_steps(&c);
    draw_frame(&c);
    draw_memory(&c);
    draw_stages(&c);
    draw_moves(&c);
    draw_moment_axis(&c);
    draw_legends(&c);
    hl_buf_printf(out, "</svg>\n");
    return out->failed ? hl_fail(HL_ENOMEM, "out of memory allocating a picture") : HL_OK;
}
