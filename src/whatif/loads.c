#include "whatif/loads.h"

#include <inttypes.h>
#include <stdlib.h>

hl_status hl_loads_init(struct hl_loads *l, const struct hl_access_trace *trace,
                        const struct hl_whatif_world *world)
{
    *l = (struct hl_loads){.trace = trace};
    uint32_t nodes = trace->nodes.count;
    HL_TRY(hl_links_init(&l->links, nodes, world->rates));
    l->node_waits = malloc((nodes + 1) * sizeof(*l->node_waits));
    l->busy = malloc((nodes + 1) * sizeof(*l->busy));
    l->waits = malloc(((size_t)trace->count + 1) * sizeof(*l->waits)); /* at most one per row */
    l->again = malloc(((size_t)trace->count + 1) * sizeof(*l->again));
    l->seen = calloc(trace->shards.count + 1, sizeof(*l->seen));
    l->node_first = calloc(nodes + 1, sizeof(*l->node_first));
    if (l->node_waits == NULL || l->busy == NULL || l->waits == NULL || l->again == NULL ||
        l->seen == NULL || l->node_first == NULL) {
        hl_loads_fini(l);
        return hl_fail(HL_ENOMEM, "out of memory for the loads of %" PRIu32 " accesses",
                       trace->count);
    }
    for (uint32_t i = 0; i < nodes; i++)
        l->node_waits[i] = -1;
    return HL_OK;
}

void hl_loads_fini(struct hl_loads *l)
{
    hl_links_fini(&l->links);
    free(l->node_waits);
    free(l->busy);
    free(l->waits);
    free(l->again);
    free(l->seen);
    free(l->node_first);
    *l = (struct hl_loads){0};
}

double hl_loads_seconds(const struct hl_access_trace *trace, uint32_t row)
{
    return (double)(trace->rows[row].at_ns - trace->rows[0].at_ns) / 1e9;
}

static double take_link(struct hl_loads *l, enum hl_move_path path, uint16_t node, uint64_t bytes,
                        double now_s)
{
    l->result.read_bytes[path] += bytes;
    return hl_links_read(&l->links, hl_links_of(path, node), bytes, now_s);
}

/* Returns when the access has its bytes. */
static double serve_access(struct hl_loads *l, const struct hl_access_row *row, enum hl_found found,
                           double now_s)
{
    uint64_t bytes = l->trace->sizes[row->shard];
    if (row->is_write)
        return take_link(l, HL_MOVE_BACKBONE, row->node, bytes, now_s);
    if (found == HL_FOUND_L1)
        return now_s;
    if (found == HL_FOUND_L2)
        return take_link(l, HL_MOVE_INSIDE, row->node, bytes, now_s);
    double end = take_link(l, HL_MOVE_BACKBONE, row->node, bytes, now_s);
    if (found != HL_FOUND_L4)
        return end;
    double loaded = take_link(l, HL_MOVE_ARCHIVE, row->node, bytes, now_s);
    return loaded > end ? loaded : end;
}

static void add_wait(struct hl_loads *l, const struct hl_access_row *row, double wait)
{
    uint16_t node = row->node;
    l->node_first[node] |= !row->is_write && !l->seen[row->shard];
    l->seen[row->shard] = true;
    l->access_sum += wait;
    if (l->node_waits[node] < 0)
        l->busy[l->busy_count++] = node;
    if (wait > l->node_waits[node])
        l->node_waits[node] = wait;
}

/* Records the loads of this time, which are now complete. */
static void end_loads(struct hl_loads *l)
{
    for (uint32_t i = 0; i < l->busy_count; i++) {
        uint16_t node = l->busy[i];
        l->waits[l->result.loads++] = l->node_waits[node];
        if (!l->node_first[node])
            l->again[l->again_count++] = l->node_waits[node];
        l->node_waits[node] = -1;
        l->node_first[node] = false;
    }
    l->busy_count = 0;
}

static int compare_waits(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

double hl_loads_p99(double *waits, uint64_t count)
{
    qsort(waits, count, sizeof(*waits), compare_waits);
    return count > 0 ? waits[(count * 99 + 99) / 100 - 1] : 0;
}

static void sum_up(struct hl_loads *l)
{
    struct hl_whatif_result *r = &l->result;
    for (uint64_t i = 0; i < r->loads; i++)
        r->wait_s += l->waits[i];
    r->access_s = l->access_sum / (double)(r->reads + r->writes);
    r->wait_mean_s = r->wait_s / (double)r->loads;
    r->wait_p99_s = hl_loads_p99(l->waits, r->loads);
    r->again_p99_s = hl_loads_p99(l->again, l->again_count);
}

hl_status hl_loads_run(struct hl_loads *l, const struct hl_load_ops *ops, void *arg)
{
    const struct hl_access_trace *t = l->trace;
    for (uint32_t i = 0; i < t->count; i++) {
        const struct hl_access_row *row = &t->rows[i];
        double now_s = hl_loads_seconds(t, i);
        enum hl_found found = HL_FOUND_L4;
        if (i == 0 || row->at_ns != row[-1].at_ns) {
            end_loads(l);
            if (ops->advance != NULL)
                HL_TRY(ops->advance(arg, now_s));
        }
        HL_TRY(ops->access(arg, row, &found));
        if (row->is_write) {
            l->result.writes++;
        } else {
            l->result.reads++;
            l->result.hits[found]++;
        }
        add_wait(l, row, serve_access(l, row, found, now_s) - now_s);
    }
    end_loads(l);
    sum_up(l);
    return HL_OK;
}
