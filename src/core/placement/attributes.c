#include "core/placement/attributes.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

/* Number of intervals in the mean and the variance; older ones fade. */
#define INTERVALS_MAX 64

/* Slices begin with the first access, and again with the first access after a pause, not at
 * multiples of their width. Otherwise a million shards that came together would lose a slice at the
 * same moment. */
static int64_t slice_width(int64_t window_ms)
{
    return (window_ms + HL_SLICES - 2) / (HL_SLICES - 1);
}

static uint16_t add_capped(uint16_t count, uint32_t more)
{
    return more > (uint32_t)(UINT16_MAX - count) ? UINT16_MAX : (uint16_t)(count + more);
}

void hl_attributes_init(struct hl_attributes *a, int64_t now_ms)
{
    memset(a, 0, sizeof(*a));
    a->last_ms = -1;
    a->last_reader = HL_READER_NONE;
    a->placed_ms = a->slice_ms = a->window_ms = now_ms;
    for (unsigned i = 0; i < HL_READERS; i++)
        a->readers[i].node = HL_READER_NONE;
}

/* ---- the window ------------------------------------------------------------------------------ */

/* Number of slices that have begun since slices[0]. */
static int64_t slices_since(const struct hl_attributes *a, int64_t width_ms, int64_t now_ms)
{
    return now_ms > a->slice_ms ? (now_ms - a->slice_ms) / width_ms : 0;
}

static void advance_slices(struct hl_attributes *a, int64_t width_ms, int64_t now_ms)
{
    int64_t begun = slices_since(a, width_ms, now_ms);
    if (begun >= HL_SLICES || a->last_ms < 0) {
        memset(a->slices, 0, sizeof(a->slices));
        a->slice_ms = now_ms;
        return;
    }
    if (begun == 0)
        return;
    memmove(a->slices + begun, a->slices, (HL_SLICES - (size_t)begun) * sizeof(a->slices[0]));
    memset(a->slices, 0, (size_t)begun * sizeof(a->slices[0]));
    a->slice_ms += begun * width_ms;
}

/* Call advance_slices first. */
static void count_at(struct hl_attributes *a, int64_t width_ms, int64_t at_ms, uint32_t count)
{
    int64_t slice = at_ms >= a->slice_ms ? 0 : 1 + (a->slice_ms - at_ms - 1) / width_ms;
    if (slice < HL_SLICES)
        a->slices[slice] = add_capped(a->slices[slice], count);
}

struct hl_count hl_attributes_counted(const struct hl_attributes *a,
                                      const struct hl_placement_params *params, int64_t now_ms)
{
    int64_t width = slice_width(params->window_ms);
    struct hl_count c = {.next_drop_ms = INT64_MAX};
    int64_t begun = slices_since(a, width, now_ms);
    for (int64_t i = 0; i + begun < HL_SLICES; i++) {
        c.count += a->slices[i];
        if (a->slices[i] != 0)
            c.next_drop_ms = a->slice_ms + (HL_SLICES - i) * width;
    }
    return c;
}

uint32_t hl_attributes_count(const struct hl_attributes *a,
                             const struct hl_placement_params *params, int64_t now_ms)
{
    return hl_attributes_counted(a, params, now_ms).count;
}

/* ---- the readers ----------------------------------------------------------------------------- */

static void advance_readers(struct hl_attributes *a, int64_t window_ms, int64_t now_ms)
{
    int64_t begun = now_ms > a->window_ms ? (now_ms - a->window_ms) / window_ms : 0;
    if (begun == 0)
        return;
    for (unsigned i = 0; i < HL_READERS; i++) {
        struct hl_reader *r = &a->readers[i];
        r->before = begun == 1 ? r->now : 0;
        r->now = 0;
        if (r->before == 0)
            r->node = HL_READER_NONE;
    }
    a->window_ms += begun * window_ms;
}

/* The reader's slot, a free one, or that of the least frequent reader, whose counts it takes
 * over. So many readers that alternate still show as several frequent ones (the space-saving
 * algorithm). */
static struct hl_reader *reader_slot(struct hl_attributes *a, uint16_t node)
{
    struct hl_reader *least = NULL;
    for (unsigned i = 0; i < HL_READERS; i++) {
        struct hl_reader *r = &a->readers[i];
        if (r->node == node)
            return r;
        if (least == NULL || (r->node == HL_READER_NONE && least->node != HL_READER_NONE) ||
            (least->node != HL_READER_NONE && r->now + r->before < least->now + least->before))
            least = r;
    }
    least->node = node;
    return least;
}

/* The weights of the counts of this window and of the previous one. */
struct shares {
    double now, before;
};

static struct shares shares_at(const struct hl_attributes *a,
                               const struct hl_placement_params *params, int64_t now_ms)
{
    int64_t since = now_ms > a->window_ms ? now_ms - a->window_ms : 0;
    if (since >= 2 * params->window_ms)
        return (struct shares){0};
    bool begun = since >= params->window_ms; /* the next window has begun */
    int64_t into = begun ? since - params->window_ms : since;
    double left = 1 - (double)into / (double)params->window_ms;
    return begun ? (struct shares){.now = left} : (struct shares){.now = 1, .before = left};
}

unsigned hl_attributes_readers(const struct hl_attributes *a,
                               const struct hl_placement_params *params, int64_t now_ms,
                               struct hl_reader_count out[HL_READERS])
{
    struct shares share = shares_at(a, params, now_ms);
    unsigned n = 0;
    for (unsigned i = 0; i < HL_READERS; i++) {
        const struct hl_reader *r = &a->readers[i];
        double count = r->now * share.now + r->before * share.before;
        if (r->node == HL_READER_NONE || !(count > 0))
            continue;
        unsigned at = n++;
        for (; at > 0 && (out[at - 1].count < count ||
                          (out[at - 1].count == count && out[at - 1].node > r->node));
             at--)
            out[at] = out[at - 1];
        out[at] = (struct hl_reader_count){.node = r->node, .count = count};
    }
    return n;
}

void hl_attributes_own(const struct hl_attributes *a, const struct hl_placement_params *params,
                       int64_t now_ms, uint16_t node, uint32_t least, double *own, double *others)
{
    uint32_t now[2] = {0}, before[2] = {0}; /* [0] the node's accesses, [1] those of all others */
    for (unsigned i = 0; i < HL_READERS; i++) {
        const struct hl_reader *r = &a->readers[i];
        bool counts = r->node != HL_READER_NONE;
        now[r->node != node] += counts ? r->now : 0;
        before[r->node != node] += counts ? r->before : 0;
    }
    *own = *others = 0;
    if (now[0] + before[0] <= least) /* never more than now: `before` fades */
        return;
    struct shares share = shares_at(a, params, now_ms);
    *own = now[0] * share.now + before[0] * share.before;
    *others = now[1] * share.now + before[1] * share.before;
}

int64_t hl_attributes_own_exceeds(const struct hl_attributes *a,
                                  const struct hl_placement_params *params, int64_t now_ms,
                                  uint16_t node, double by)
{
    struct shares share = shares_at(a, params, now_ms);
    double now = 0, before = 0;
    for (unsigned i = 0; i < HL_READERS; i++) {
        const struct hl_reader *r = &a->readers[i];
        if (r->node == HL_READER_NONE)
            continue;
        now += r->node == node ? r->now : -(double)r->now;
        before += r->node == node ? r->before : -(double)r->before;
    }
    if (now * share.now + before * share.before > by)
        return now_ms;
    if (!(now > by) || share.now < 1) /* from here on all counts only fade */
        return INT64_MAX;
    double left = (now - by) / -before; /* before < 0: otherwise the value would exceed `by` now */
    return a->window_ms + (int64_t)((1 - left) * (double)params->window_ms) - 1;
}

/* ---- the intervals --------------------------------------------------------------------------- */

/* Adds `count` intervals of the same length: Welford's update, with a memory of INTERVALS_MAX. */
static void add_intervals(struct hl_attributes *a, double interval_ms, uint32_t count)
{
    double n = a->intervals, k = count, d = interval_ms - (double)a->interval_ms;
    a->interval_ms = (float)((double)a->interval_ms + d * k / (n + k));
    a->interval_m2 = (float)((double)a->interval_m2 + d * d * n * k / (n + k));
    if (n + k > INTERVALS_MAX) {
        a->interval_m2 = (float)((double)a->interval_m2 * INTERVALS_MAX / (n + k));
        a->intervals = INTERVALS_MAX;
    } else {
        a->intervals = (uint8_t)(n + k);
    }
}

/* Coefficient of variation. Fewer than two intervals say nothing about the pattern; the result is
 * then 1, that of accesses at random times. */
static double interval_cv(const struct hl_attributes *a)
{
    if (a->intervals < 2 || !(a->interval_ms > 0))
        return 1;
    return sqrt((double)a->interval_m2 / a->intervals) / (double)a->interval_ms;
}

/* ---- events ---------------------------------------------------------------------------------- */

void hl_attributes_access(struct hl_attributes *a, const struct hl_placement_params *params,
                          const struct hl_access *access, int64_t now_ms)
{
    if (access->count == 0)
        return;
    int64_t age = access->age_ms < 0 ? 0 : access->age_ms;
    int64_t at = now_ms - (age > params->window_ms ? params->window_ms : age);
    int64_t width = slice_width(params->window_ms);
    at = at < 0 ? 0 : at;
    advance_slices(a, width, now_ms);
    count_at(a, width, at, access->count);
    if (access->node != HL_READER_NONE) {
        advance_readers(a, params->window_ms, now_ms);
        struct hl_reader *r = reader_slot(a, access->node);
        r->now = add_capped(r->now, access->count);
    }
    if (a->last_ms >= 0 && at >= a->last_ms)
        add_intervals(a, (double)(at - a->last_ms) / access->count, access->count);
    if (at > a->last_ms) {
        a->last_ms = at;
        a->last_reader = access->node;
    }
}

static double decay_of(int64_t since_ms, int64_t tau_ms)
{
    return since_ms <= 0 ? 1 : exp(-(double)since_ms / (double)tau_ms);
}

void hl_attributes_moved(struct hl_attributes *a, const struct hl_placement_params *params,
                         int64_t now_ms)
{
    a->recent_moves = (float)(hl_attributes_fluidity(a, params, now_ms) + 1);
    a->moves = add_capped(a->moves, 1);
    a->placed_ms = now_ms;
}

void hl_attributes_rewindow(struct hl_attributes *a, const struct hl_placement_params *params,
                            int64_t old_ms, int64_t now_ms)
{
    int64_t old_width = slice_width(old_ms), width = slice_width(params->window_ms);
    struct hl_attributes old = *a;
    memset(a->slices, 0, sizeof(a->slices));
    a->slice_ms = now_ms;
    for (unsigned i = 0; i < HL_SLICES; i++) {
        int64_t begin = old.slice_ms - (int64_t)i * old_width;
        int64_t end = begin + old_width < now_ms ? begin + old_width : now_ms;
        count_at(a, width, begin + (end - begin) / 2, old.slices[i]);
    }
    /* Keeps the readers' current counts and begins the new window now. */
    struct hl_reader_count readers[HL_READERS];
    struct hl_placement_params before = *params;
    before.window_ms = old_ms;
    unsigned n = hl_attributes_readers(&old, &before, now_ms, readers);
    for (unsigned i = 0; i < HL_READERS; i++)
        a->readers[i] =
            i < n ? (struct hl_reader){.node = readers[i].node,
                                       .before = (uint16_t)fmin(readers[i].count, UINT16_MAX)}
                  : (struct hl_reader){.node = HL_READER_NONE};
    a->window_ms = now_ms;
}

/* ---- scores ---------------------------------------------------------------------------------- */

double hl_attributes_heat(const struct hl_attributes *a, const struct hl_placement_params *params,
                          int64_t now_ms)
{
    double rate = (double)hl_attributes_count(a, params, now_ms) * 1e3 / (double)params->window_ms;
    double fresh = a->last_ms < 0 ? 0 : decay_of(now_ms - a->last_ms, params->tau_ms);
    return params->alpha * rate + params->beta * fresh;
}

double hl_attributes_stability(const struct hl_attributes *a,
                               const struct hl_placement_params *params, int64_t now_ms)
{
    double n = hl_attributes_count(a, params, now_ms);
    double frequency = n / (n + params->stability_half);
    double regularity = 1 / (1 + interval_cv(a));
    double age = 1 - decay_of(now_ms - a->placed_ms, params->stability_tau_ms);
    return frequency * regularity * age;
}

double hl_attributes_fluidity(const struct hl_attributes *a,
                              const struct hl_placement_params *params, int64_t now_ms)
{
    return a->moves == 0
               ? 0
               : (double)a->recent_moves * decay_of(now_ms - a->placed_ms, params->fluidity_tau_ms);
}
