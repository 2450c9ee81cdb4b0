#include "core/replace/drill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"

void hl_drill_curve_fini(struct hl_drill_curve *c)
{
    free(c->losses);
    free(c->seen);
    *c = (struct hl_drill_curve){0};
}

static hl_status curve_reserve(struct hl_drill_curve *c, size_t count)
{
    if (count <= c->cap)
        return HL_OK;
    size_t cap = count * 2;
    uint64_t *losses = realloc(c->losses, cap * sizeof(*losses));
    if (losses != NULL)
        c->losses = losses;
    bool *seen = losses != NULL ? realloc(c->seen, cap * sizeof(*seen)) : NULL;
    if (seen == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the losses of a rank");
    memset(seen + c->cap, 0, (cap - c->cap) * sizeof(*seen));
    c->seen = seen;
    c->cap = cap;
    return HL_OK;
}

/* Within a generation steps go up by one. A new generation begins at a step that the gang has
 * reached, or at the next one. */
static bool point_follows(const struct hl_drill_curve *c, uint64_t generation, int64_t step)
{
    if (c->last == 0)
        return true;
    if (generation == c->generation)
        return step == c->last;
    return generation > c->generation && step <= c->highest;
}

hl_status hl_drill_point(struct hl_drill_curve *c, uint64_t generation, int64_t step, double loss,
                         struct hl_drill_sums *io)
{
    uint64_t bits;
    memcpy(&bits, &loss, sizeof(bits));
    if (step < 0 || step >= HL_DRILL_STEPS_MAX) {
        hl_drill_gap(c, 1, io);
        return HL_OK;
    }
    HL_TRY(curve_reserve(c, (size_t)step + 1));
    io->steps++;
    io->jumps += !point_follows(c, generation, step);
    bool doubted = c->doubted != 0 && generation == c->doubted;
    io->doubted += doubted;
    if (!doubted) {
        io->repeated += c->seen[step];
        io->differing += c->seen[step] && c->losses[step] != bits;
        if (!c->seen[step])
            c->losses[step] = bits;
        c->seen[step] = true;
    }
    c->generation = generation;
    c->last = step + 1;
    if (c->last > c->highest)
        c->highest = c->last;
    return HL_OK;
}

void hl_drill_doubt(struct hl_drill_curve *c)
{
    c->doubted = c->generation;
}

void hl_drill_gap(struct hl_drill_curve *c, uint64_t points, struct hl_drill_sums *io)
{
    if (points == 0)
        return;
    io->missed += points;
    c->last = 0;
}

static bool is_one_of(const char *kind, const char *const *kinds, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(kind, kinds[i]) == 0)
            return true;
    return false;
}

bool hl_drill_alarms(const char *kind)
{
    static const char *const kinds[] = {
        "rank-replaced", "stalled", "slow",    "trouble",   "recovery-merged", "container-failed",
        "node-silent",   "timeout", "waiting", "node-lost", "restarting"};
    return is_one_of(kind, kinds, HL_ARRAY_LEN(kinds));
}

bool hl_drill_names(const char *kind, const char *text, int *rank)
{
    static const char *const kinds[] = {"rank-replaced", "stalled", "slow", "trouble"};
    bool tells = kind[0] == '\0' ? strstr(text, "output is dropped") != NULL
                                 : is_one_of(kind, kinds, HL_ARRAY_LEN(kinds));
    return tells &&
           (sscanf(text, "rank %d on", rank) == 1 || sscanf(text, "log of rank %d:", rank) == 1);
}

static int by_value(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return (left > right) - (left < right);
}

double hl_drill_quantile(double *values, size_t count, double q)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof(*values), by_value);
    size_t at = (size_t)(q * (double)count);
    return values[at < count ? at : count - 1];
}
