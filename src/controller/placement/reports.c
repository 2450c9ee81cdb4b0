/* Reports of reads. A node runs many processes, each with a libhelios that numbers its own reports.
 * So a window of numbers is kept for each process, under the random incarnation that the process
 * has chosen. If the Agent merged the reports, they could be lost with it, and every rank would
 * have to wait for it. This way a rank depends on the Controller only, as it does for its shards.
 *
 * A process that was silent for REPORTER_SILENT_MS is forgotten. If it repeats a report after that,
 * because the Controller was away for so long, the report may be counted twice. */
#include <inttypes.h>
#include <stdlib.h>

#include "base/log.h"
#include "controller/placement/placement_private.h"

#define REPORTERS_MAX      65536u
#define REPORTER_SILENT_MS (30 * 60 * 1000)

static void reporter_remove(struct placement *p, struct reporter *r)
{
    HASH_DEL(p->reporters, r);
    free(r);
}

static void reporters_expire(struct placement *p, int64_t now_ms)
{
    while (p->reporters != NULL && (now_ms - p->reporters->seen_ms > REPORTER_SILENT_MS ||
                                    HASH_COUNT(p->reporters) >= REPORTERS_MAX))
        reporter_remove(p, p->reporters); /* the one that was silent for the longest time */
}

/* NULL: out of memory. *before_ms: the time of its previous report; -1 = none. */
static struct reporter *reporter_need(struct placement *p, uint64_t incarnation, int64_t now_ms,
                                      int64_t *before_ms)
{
    struct reporter *r;
    HASH_FIND(hh, p->reporters, &incarnation, sizeof(incarnation), r);
    *before_ms = r != NULL ? r->seen_ms : -1;
    if (r != NULL) {
        HASH_DEL(p->reporters, r); /* moves it to the end */
    } else {
        reporters_expire(p, now_ms);
        if ((r = calloc(1, sizeof(*r))) == NULL)
            return NULL;
        r->incarnation = incarnation;
        hl_report_window_start(&r->window, incarnation);
    }
    r->seen_ms = now_ms;
    HASH_ADD(hh, p->reporters, incarnation, sizeof(r->incarnation), r);
    return r;
}

void reporters_fini(struct hl_controller *c)
{
    while (c->placement->reporters != NULL)
        reporter_remove(c->placement, c->placement->reporters);
}

static size_t read_entries(const struct hl_api_access_report_list *reports,
                           struct hl_report_entry *out)
{
    size_t n = 0;
    for (size_t i = 0; i < reports->count; i++) {
        const struct hl_api_access_report *r = &reports->items[i];
        if (r->count == 0 || hl_id_parse(r->id, &out[n].shard) != HL_OK)
            continue;
        out[n].count = r->count < UINT32_MAX ? (uint32_t)r->count : UINT32_MAX;
        out[n++].age_ms = r->age_ms;
    }
    return n;
}

/* Reads that a process could no longer attribute to shards, because it reads more shards than it
 * has room for (client/access.c). */
static uint64_t unnamed_reads(const struct hl_api_access_report_list *reports)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < reports->count; i++)
        if (reports->items[i].id[0] == '\0')
            sum += reports->items[i].count;
    return sum;
}

static uint16_t reader_index(const struct hl_controller *c, const char *name)
{
    const struct placed_node *n;
    HASH_FIND_STR(c->placement->nodes, name, n);
    return n != NULL ? n->index : HL_READER_NONE;
}

/* A shard that no pass has placed yet, for example of a version that has just become visible, is
 * placed by its first read. */
static void place_entries(struct hl_controller *c, const struct hl_report *report)
{
    for (size_t i = 0; i < report->count; i++)
        (void)placement_find(c, report->entries[i].shard);
}

/* Once for each process, until its reads count again. Those of a process on no node never do. */
static void tell_refused(const struct reporter *r,
                         const struct hl_api_controller_report_access_params *p,
                         enum hl_report_fate fate)
{
    if (!r->refused && p->node[0] != '\0')
        hl_info("reads of a process move no shard, they are %s node=%s job=%s rank=%" PRId32,
                hl_report_fate_text(fate), p->node, p->job, p->rank);
}

bool placement_report(struct hl_controller *c,
                      const struct hl_api_controller_report_access_params *p)
{
    struct placement *x = c->placement;
    int64_t now = placement_now_ms(), before;
    if (p->sequence == 0)
        return true; /* an older client, whose reports can't be told apart */
    struct reporter *r = reporter_need(x, p->incarnation, now, &before);
    HL_AUTO(hl_freep)
    struct hl_report_entry *entries = calloc(p->reports.count + 1, sizeof(*entries));
    if (r == NULL || entries == NULL)
        return true; /* the metrics still count it */
    const struct hl_report report = {.incarnation = p->incarnation,
                                     .sequence = p->sequence,
                                     .entries = entries,
                                     .count = read_entries(&p->reports, entries)};
    place_entries(c, &report);
    enum hl_report_fate fate =
        hl_placement_report_of(&x->core, reader_index(c, p->node), &r->window, &report, now);
    bool refused = fate == HL_REPORT_UNKNOWN || fate == HL_REPORT_FENCED;
    if (refused) {
        tell_refused(r, p, fate);
        fate = hl_report_window_take(&r->window, &report);
    }
    r->refused = refused;
    if (fate == HL_REPORT_NEW) {
        x->unnamed_reads += unnamed_reads(&p->reports);
        record_report(c, p, before);
    }
    return fate == HL_REPORT_NEW;
}
