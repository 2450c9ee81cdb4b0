#include "core/placement/reports.h"

#include <string.h>

#define WORDS (HL_REPORT_WINDOW / 64)

const char *hl_report_fate_text(enum hl_report_fate fate)
{
    static const char *const texts[] = {
#define X(name, text) [HL_REPORT_##name] = (text),
        HL_REPORT_FATE_MAP(X)
#undef X
    };
    return texts[fate];
}

void hl_report_window_start(struct hl_report_window *w, uint64_t incarnation)
{
    *w = (struct hl_report_window){.incarnation = incarnation};
}

/* Shifts the window: the newest number is `by` higher than before. */
static void shift_seen(struct hl_report_window *w, uint64_t by)
{
    if (by >= HL_REPORT_WINDOW) {
        memset(w->seen, 0, sizeof(w->seen));
        return;
    }
    unsigned words = (unsigned)by / 64, bits = (unsigned)by % 64;
    for (unsigned i = WORDS; i-- > 0;) {
        uint64_t low = i >= words ? w->seen[i - words] : 0;
        uint64_t lower = i > words ? w->seen[i - words - 1] : 0;
        w->seen[i] = bits == 0 ? low : low << bits | lower >> (64 - bits);
    }
}

enum hl_report_fate hl_report_window_take(struct hl_report_window *w,
                                          const struct hl_report *report)
{
    uint64_t sequence = report->sequence;
    if (report->incarnation != w->incarnation)
        return HL_REPORT_STALE;
    if (sequence == 0) /* numbers begin with 1 */
        return HL_REPORT_LATE;
    if (sequence > w->highest) {
        if (w->highest == 0)
            w->first = sequence;
        shift_seen(w, sequence - w->highest);
        w->highest = sequence;
    }
    uint64_t back = w->highest - sequence;
    if (back >= HL_REPORT_WINDOW)
        return HL_REPORT_LATE;
    uint64_t bit = UINT64_C(1) << back % 64;
    if ((w->seen[back / 64] & bit) != 0)
        return HL_REPORT_DOUBLED;
    w->seen[back / 64] |= bit;
    if (sequence >= w->first)
        w->taken++;
    return HL_REPORT_NEW;
}

uint64_t hl_report_window_missing(const struct hl_report_window *w)
{
    return w->highest == 0 ? 0 : w->highest - w->first + 1 - w->taken;
}
