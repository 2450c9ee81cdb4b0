/* Writes the table as Prometheus text, version 0.0.4: each family once, with all its samples. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/plane.h"
#include "base/plane_private.h"

void hl_metric_family(struct hl_buf *b, const char *name, const char *type, const char *help)
{
    (void)hl_buf_printf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

/* Escapes backslash, quote and newline. Other bytes that are not ASCII text become spaces; only a
 * caller's bug can bring them here. */
const char *hl_metric_label(const char *word, char *out, size_t cap)
{
    size_t at = 0;
    for (; *word && at + 3 < cap; word++) {
        unsigned char c = (unsigned char)*word;
        if (c == '\\' || c == '"' || c == '\n')
            out[at++] = '\\';
        out[at++] = c == '\n' ? 'n' : c < ' ' || c >= 127 ? ' ' : (char)c;
    }
    out[at] = '\0';
    return out;
}

static void latency_text(struct hl_buf *b, const char *name, const char *plane,
                         const struct hl_plane_stats *s)
{
    uint64_t seen = 0;
    for (unsigned i = 0; i < HL_PLANE_BUCKETS; i++) {
        seen += s->latency[i];
        if (i + 1 < HL_PLANE_BUCKETS) /* the last bucket has no upper bound */
            (void)hl_buf_printf(b, "%s_bucket{plane=\"%s\",le=\"%.10g\"} %" PRIu64 "\n", name,
                                plane, ldexp(0.25e-6, (int)i), seen);
    }
    (void)hl_buf_printf(b, "%s_bucket{plane=\"%s\",le=\"+Inf\"} %" PRIu64 "\n", name, plane, seen);
    (void)hl_buf_printf(b, "%s_sum{plane=\"%s\"} %.9f\n", name, plane, (double)s->latency_ns / 1e9);
    (void)hl_buf_printf(b, "%s_count{plane=\"%s\"} %" PRIu64 "\n", name, plane, seen);
}

static void both_ways(struct hl_buf *b, const char *name, const char *plane, const uint64_t n[2])
{
    for (int dir = 0; dir < 2; dir++)
        (void)hl_buf_printf(b, "%s{plane=\"%s\",direction=\"%s\"} %" PRIu64 "\n", name, plane,
                            dir ? "sent" : "received", n[dir]);
}

void hl_plane_families(struct hl_buf *b, const char *prefix,
                       const struct hl_plane_stats s[HL_PLANE_COUNT])
{
    char name[96];
    snprintf(name, sizeof(name), "%s_bytes_total", prefix);
    hl_metric_family(b, name, "counter", "Bytes of transfers that have ended.");
    for (int p = 0; p < HL_PLANE_COUNT; p++)
        both_ways(b, name, hl_plane_name(p), s[p].bytes);
    snprintf(name, sizeof(name), "%s_ops_total", prefix);
    hl_metric_family(b, name, "counter", "Transfers that have ended, well or not.");
    for (int p = 0; p < HL_PLANE_COUNT; p++)
        both_ways(b, name, hl_plane_name(p), s[p].ops);
    snprintf(name, sizeof(name), "%s_failed_total", prefix);
    hl_metric_family(b, name, "counter", "Transfers that have failed.");
    for (int p = 0; p < HL_PLANE_COUNT; p++)
        (void)hl_buf_printf(b, "%s{plane=\"%s\"} %" PRIu64 "\n", name, hl_plane_name(p),
                            s[p].failed);
    snprintf(name, sizeof(name), "%s_latency_seconds", prefix);
    hl_metric_family(b, name, "histogram", "Time of the transfers that ended well and were timed.");
    for (int p = 0; p < HL_PLANE_COUNT; p++)
        latency_text(b, name, hl_plane_name(p), &s[p]);
}

static void planes_text(struct hl_buf *b)
{
    struct hl_plane_stats s[HL_PLANE_COUNT];
    for (int p = 0; p < HL_PLANE_COUNT; p++)
        hl_plane_stats(p, &s[p]);
    hl_plane_families(b, "helios_plane", s);
    hl_metric_family(b, "helios_plane_line_rate_bits", "gauge",
                     "Line rate, bits per second; absent where it is unknown.");
    for (int p = 0; p < HL_PLANE_COUNT; p++)
        if (s[p].rate)
            (void)hl_buf_printf(b, "helios_plane_line_rate_bits{plane=\"%s\"} %" PRIu64 "\n",
                                hl_plane_name(p), s[p].rate);
    hl_metric_family(b, "helios_plane_busy_ratio", "gauge",
                     "Part of the line rate used in the last whole second, the busier direction.");
    for (int p = 0; p < HL_PLANE_COUNT; p++)
        if (s[p].busy_pct >= 0)
            (void)hl_buf_printf(b, "helios_plane_busy_ratio{plane=\"%s\"} %.6f\n", hl_plane_name(p),
                                s[p].busy_pct / 100.0);
}

static void places_text(struct hl_buf *b)
{
    char place[HL_PLANE_COUNT][2][HL_PLANE_PLACE];
    pthread_mutex_lock(&hl_plane_table.lock);
    memcpy(place, hl_plane_table.place, sizeof(place));
    pthread_mutex_unlock(&hl_plane_table.lock);
    hl_metric_family(b, "helios_plane_info", "gauge", "Where this process is on each network.");
    for (int p = 0; p < HL_PLANE_COUNT; p++) {
        char address[2 * HL_PLANE_PLACE], interface[2 * HL_PLANE_PLACE];
        if (place[p][0][0])
            (void)hl_buf_printf(
                b, "helios_plane_info{plane=\"%s\",address=\"%s\",interface=\"%s\"} 1\n",
                hl_plane_name(p), hl_metric_label(place[p][0], address, sizeof(address)),
                hl_metric_label(place[p][1], interface, sizeof(interface)));
    }
}

static uint64_t counter_value(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* Writes one sample for each cell with a count. */
static void cells_text(struct hl_buf *b, const struct hl_plane_cells *t, const char *name,
                       const char *const label[4], bool bytes)
{
    for (unsigned i = 0; i <= HL_PLANE_PATHS_MAX; i++) {
        const struct hl_plane_cell *c = i < HL_PLANE_PATHS_MAX ? &t->cell[i] : &t->other;
        if (!atomic_load_explicit(&c->ready, memory_order_acquire) || !counter_value(&c->ops))
            continue;
        char word[2 * HL_PLANE_WORD];
        (void)hl_buf_printf(b, "%s{", name);
        for (int w = 0; w < 4 && label[w]; w++)
            (void)hl_buf_printf(b, "%s%s=\"%s\"", w ? "," : "", label[w],
                                hl_metric_label(c->word[w], word, sizeof(word)));
        (void)hl_buf_printf(b, "} %" PRIu64 "\n", counter_value(bytes ? &c->bytes : &c->ops));
    }
}

hl_status hl_plane_metrics(struct hl_buf *out)
{
    static const char *const path[4] = {"op", "path", "reason", "result"};
    static const char *const fault[4] = {"cause", "path"};
    const struct hl_plane_cells *paths = &hl_plane_table.paths;
    planes_text(out);
    places_text(out);
    hl_metric_family(out, "helios_path_total", "counter",
                     "Transfers by the path that was taken, and why.");
    cells_text(out, paths, "helios_path_total", path, 0);
    hl_metric_family(out, "helios_path_bytes_total", "counter", "Their bytes.");
    cells_text(out, paths, "helios_path_bytes_total", path, 1);
    hl_metric_family(out, "helios_fault_total", "counter",
                     "What was healed, refused or given up, and why.");
    cells_text(out, &hl_plane_table.faults, "helios_fault_total", fault, 0);
    if (out->failed)
        return hl_fail(HL_ENOMEM, "metrics: the text is longer than %zu bytes", out->max);
    return HL_OK;
}
