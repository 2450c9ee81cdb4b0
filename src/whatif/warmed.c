#include "whatif/warmed.h"

#include <stdlib.h>
#include <string.h>

#include "core/placement/warm.h"

/* A shard that is in the archive from the start. */
struct archived {
    const char *name;
    uint32_t shard;
};

static int compare_names(const void *left, const void *right)
{
    const struct archived *a = left, *b = right;
    return strcmp(a->name, b->name);
}

static size_t version_length(const char *name)
{
    const char *slash = strrchr(name, '/');
    return slash != NULL ? (size_t)(slash - name) : strlen(name);
}

static bool is_of_version(const char *version, const char *name)
{
    size_t length = version_length(version);
    return version_length(name) == length && memcmp(version, name, length) == 0;
}

/* Lists them by name. Shards that the trace writes are not in the archive yet. */
static uint32_t list_archived(const struct hl_access_trace *t, struct archived *list)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < t->shards.count; i++)
        if (!t->written[i])
            list[count++] = (struct archived){hl_access_shard_name(t, i), i};
    if (count > 0)
        qsort(list, count, sizeof(*list), compare_names);
    return count;
}

/* Lists the versions; `version` is the first shard of each. Equally used ones keep the order of the
 * list. */
static size_t list_versions(const struct hl_access_trace *t, const struct archived *list,
                            uint32_t count, struct hl_warm_version *out)
{
    size_t versions = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (i == 0 || !is_of_version(list[i - 1].name, list[i].name))
            out[versions++] = (struct hl_warm_version){
                .version = {.version = &list[i], .sequence = count - i, .is_newest = true}};
        out[versions - 1].bytes += t->sizes[list[i].shard];
    }
    return versions;
}

static void take_versions(struct hl_warmed *x, const struct archived *list, uint32_t count,
                          const struct hl_warm_version *versions, size_t chosen)
{
    for (size_t v = 0; v < chosen; v++) {
        const struct archived *first = versions[v].version.version;
        for (const struct archived *a = first;
             a < list + count && is_of_version(first->name, a->name); a++)
            x->shards[x->count++] = a->shard;
    }
}

hl_status hl_warmed_init(struct hl_warmed *x, const struct hl_access_trace *trace,
                         uint64_t low_bytes)
{
    const uint32_t shards = trace->shards.count;
    HL_AUTO(hl_freep) struct archived *list = calloc(shards + 1, sizeof(*list));
    HL_AUTO(hl_freep) struct hl_warm_version *versions = calloc(shards + 1, sizeof(*versions));
    *x = (struct hl_warmed){.trace = trace, .low_bytes = low_bytes};
    x->shards = calloc(shards + 1, sizeof(*x->shards));
    if (list == NULL || versions == NULL || x->shards == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for what is loaded ahead of %u shards", shards);
    uint32_t count = list_archived(trace, list);
    size_t known = list_versions(trace, list, count, versions);
    size_t chosen = hl_warm_choose(versions, known, hl_warm_room(low_bytes, 0));
    take_versions(x, list, count, versions, chosen);
    return HL_OK;
}

void hl_warmed_fini(struct hl_warmed *x)
{
    free(x->shards);
    *x = (struct hl_warmed){0};
}

bool hl_warmed_next(struct hl_warmed *x, uint64_t used_bytes, uint32_t *shard)
{
    if (x->next == x->count)
        return false;
    uint64_t bytes = x->trace->sizes[x->shards[x->next]];
    if (bytes > hl_warm_room(x->low_bytes, used_bytes + x->coming_bytes)) {
        x->next = x->count;
        return false;
    }
    x->coming_bytes += bytes;
    *shard = x->shards[x->next++];
    return true;
}

void hl_warmed_landed(struct hl_warmed *x, uint32_t shard)
{
    x->coming_bytes -= x->trace->sizes[shard];
}
