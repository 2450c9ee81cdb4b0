/* Placing the pool's memory on NUMA nodes.
 *
 * A region is a run of units. Its pages are bound before they are allocated: the file keeps the
 * policy of a shared mapping, so the policy holds for everything that allocates a page, including
 * fallocate. The superblock and the index, which precede the data, belong to the first region. */
#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "base/text.h"
#include "mem/pool/pool_private.h"
#include "os/numa.h"
#include "os/process.h"
#include "os/shm.h"

hl_status pool_regions_plan(struct hl_pool *pool, const struct hl_pool_options *o,
                            uint64_t capacity, uint64_t data_offset, uint64_t granule)
{
    uint64_t sum = 0, last = 0;
    if (o->region_count > HL_POOL_REGIONS_MAX)
        return hl_fail(HL_EINVAL, "pool %s: %zu regions, at most %d", pool->path, o->region_count,
                       HL_POOL_REGIONS_MAX);
    for (size_t i = 0; i < o->region_count; i++) {
        sum += o->regions[i].bytes;
        uint64_t end = (data_offset + sum + granule - 1) / granule * granule - data_offset;
        end = end < capacity && i + 1 < o->region_count ? end / HL_POOL_UNIT * HL_POOL_UNIT
                                                        : capacity;
        pool->regions[i] =
            (struct hl_pool_region){.numa_id = o->regions[i].numa_id, .bytes = end - last};
        pool->region_ends[i] = end / HL_POOL_UNIT;
        last = end;
    }
    pool->region_count = o->region_count;
    if (pool->region_count == 0) {
        pool->regions[0] = (struct hl_pool_region){.numa_id = -1, .bytes = capacity};
        pool->region_ends[0] = capacity / HL_POOL_UNIT;
        pool->region_count = 1;
    }
    return HL_OK;
}

/* Parses a list such as "0,2-3"; each node must be one of `have`. */
static hl_status parse_nodes(const char *text, const int *have, size_t have_count, int *out,
                             size_t *count)
{
    struct hl_cpuset wanted;
    size_t n = 0;
    HL_TRY(hl_cpuset_parse(text, &wanted));
    for (size_t i = 0; i < have_count; i++)
        if (hl_cpuset_has(&wanted, (unsigned)have[i]))
            out[n++] = have[i];
    if (n == 0 || n != hl_cpuset_count(&wanted))
        return hl_fail(HL_EINVAL,
                       "'%.64s': not all of these NUMA nodes have memory that may be used here",
                       text);
    *count = n;
    return HL_OK;
}

hl_status hl_pool_regions_parse(const char *text, uint64_t capacity,
                                struct hl_pool_region_options *out, size_t *count)
{
    int have[HL_POOL_REGIONS_MAX], nodes[HL_POOL_REGIONS_MAX];
    size_t n = strcmp(text, "off") == 0 ? 0 : hl_numa_nodes(have, HL_POOL_REGIONS_MAX);
    memcpy(nodes, have, n * sizeof(nodes[0]));
    if (strcmp(text, "off") != 0 && strcmp(text, "auto") != 0)
        HL_TRY(parse_nodes(text, have, n, nodes, &n));
    for (size_t i = 0; i < n; i++)
        out[i] = (struct hl_pool_region_options){nodes[i], capacity / n};
    *count = n;
    return HL_OK;
}

/* The bytes of region i in the mapping. The first region includes what precedes the data. */
static struct hl_shm_range range_of(const struct hl_pool *pool, uint64_t data_offset, size_t i)
{
    uint64_t from = i > 0 ? data_offset + pool->region_ends[i - 1] * HL_POOL_UNIT : 0;
    uint64_t to = data_offset + pool->region_ends[i] * HL_POOL_UNIT;
    if (i + 1 == pool->region_count)
        to = pool->file_size;
    return (struct hl_shm_range){pool->base + from, to - from, pool->regions[i].numa_id};
}

void pool_regions_bind(struct hl_pool *pool, uint64_t data_offset)
{
    for (size_t i = 0; i < pool->region_count; i++) {
        struct hl_pool_region *r = &pool->regions[i];
        struct hl_shm_range range = range_of(pool, data_offset, i);
        if (r->numa_id < 0 || range.size == 0)
            continue;
        r->bound = hl_numa_bind(range.ptr, range.size, r->numa_id) == HL_OK;
        if (!r->bound)
            hl_warn("region %zu of pool %s is not bound: %s", i, pool->path, hl_error_text());
    }
}

static void ranges_of(const struct hl_pool *pool, uint64_t data_offset, struct hl_shm_range *out)
{
    for (size_t i = 0; i < pool->region_count; i++)
        out[i] = range_of(pool, data_offset, i);
}

void pool_regions_collapse(struct hl_pool *pool, uint64_t data_offset)
{
    struct hl_shm_range ranges[HL_POOL_REGIONS_MAX];
    ranges_of(pool, data_offset, ranges);
    hl_shm_collapse_on(ranges, pool->region_count);
}

void pool_regions_prefault(struct hl_pool *pool, uint64_t data_offset)
{
    struct hl_shm_range ranges[HL_POOL_REGIONS_MAX];
    ranges_of(pool, data_offset, ranges);
    hl_shm_prefault_on(ranges, pool->region_count, true);
}

/* ---- the table ------------------------------------------------------------------------------- */

static struct hl_pool_region_entry *table_of(const struct hl_pool_super *s)
{
    return (struct hl_pool_region_entry *)((uint8_t *)s + HL_POOL_REGIONS_AT);
}

static uint32_t table_crc(const struct hl_pool_super *s, uint32_t count)
{
    return hl_crc32(0, table_of(s), count * sizeof(struct hl_pool_region_entry));
}

void pool_regions_store(const struct hl_pool *pool, struct hl_pool_super *s)
{
    struct hl_pool_region_entry *table = table_of(s);
    for (size_t i = 0; i < pool->region_count; i++)
        table[i] = (struct hl_pool_region_entry){.numa_id = pool->regions[i].numa_id,
                                                 .end = pool->region_ends[i] * HL_POOL_UNIT};
    s->region_crc = table_crc(s, (uint32_t)pool->region_count);
    s->region_count = (uint32_t)pool->region_count;
}

static bool table_is_good(const struct hl_pool_super *s)
{
    const struct hl_pool_region_entry *table = table_of(s);
    uint32_t n = s->region_count;
    if (n == 0 || n > HL_POOL_REGIONS_MAX || table_crc(s, n) != s->region_crc ||
        table[n - 1].end != s->capacity)
        return false;
    for (uint32_t i = 0; i < n; i++)
        if (table[i].end % HL_POOL_UNIT != 0 || table[i].end < (i > 0 ? table[i - 1].end : 0))
            return false;
    return true;
}

/* Regions only affect speed: a pool without a valid table is used as one region. */
void pool_regions_load(struct hl_pool *pool, const struct hl_pool_super *s)
{
    struct hl_pool_region_entry one = {.numa_id = -1, .end = s->capacity};
    const struct hl_pool_region_entry *table = table_is_good(s) ? table_of(s) : &one;
    uint64_t last = 0;
    pool->region_count = table == &one ? 1 : s->region_count;
    for (size_t i = 0; i < pool->region_count; i++) {
        pool->regions[i] =
            (struct hl_pool_region){.numa_id = table[i].numa_id, .bytes = table[i].end - last};
        pool->region_ends[i] = table[i].end / HL_POOL_UNIT;
        last = table[i].end;
    }
}

/* ---- what was got ---------------------------------------------------------------------------- */

static void log_regions(struct hl_pool *pool, bool touched)
{
    char page[32];
    uint64_t granule = hl_shm_granule(pool->fd), huge = 0;
    if (granule == (uint64_t)sysconf(_SC_PAGESIZE) && touched)
        huge = hl_shm_huge_bytes(pool->base, pool->file_size);
    hl_format_bytes(granule, page, sizeof(page));
    if (huge > 0)
        snprintf(pool->backing, sizeof(pool->backing), "%s pages, %u %% in huge ones", page,
                 (unsigned)(huge * 100 / pool->file_size));
    else
        snprintf(pool->backing, sizeof(pool->backing), "%s pages", page);
}

void pool_regions_look(struct hl_pool *pool, uint64_t data_offset, bool touched)
{
    log_regions(pool, touched);
    for (size_t i = 0; i < pool->region_count; i++) {
        struct hl_pool_region *r = &pool->regions[i];
        struct hl_shm_range range = range_of(pool, data_offset, i);
        int placed = r->numa_id >= 0 && range.size > 0
                         ? hl_numa_placed(range.ptr, range.size, r->numa_id)
                         : 0;
        r->bound = placed == 1 || (placed < 0 && r->bound);
    }
}

uint32_t pool_regions_preferred(const struct hl_pool *pool, int numa_id)
{
    uint32_t mask = 0;
    size_t emptiest = 0;
    for (size_t i = 0; i < pool->region_count; i++) {
        if (numa_id >= 0 && pool->regions[i].numa_id == numa_id)
            mask |= UINT32_C(1) << i;
        if (hl_extents_free_in(pool->extents, i) > hl_extents_free_in(pool->extents, emptiest))
            emptiest = i;
    }
    return mask != 0 ? mask : UINT32_C(1) << emptiest;
}

static size_t region_at(const struct hl_pool *pool, uint64_t unit)
{
    size_t i = 0;
    while (i + 1 < pool->region_count && unit >= pool->region_ends[i])
        i++;
    return i;
}

int hl_pool_numa_of(const struct hl_pool *pool, uint64_t offset)
{
    uint64_t data = pool->super->data_offset;
    return pool->regions[region_at(pool, offset < data ? 0 : (offset - data) / HL_POOL_UNIT)]
        .numa_id;
}

size_t hl_pool_regions(struct hl_pool *pool, struct hl_pool_region *out, size_t max)
{
    size_t n = pool->region_count < max ? pool->region_count : max;
    pthread_mutex_lock(&pool->lock);
    for (size_t i = 0; i < n; i++) {
        out[i] = pool->regions[i];
        out[i].used = out[i].bytes - hl_extents_free_in(pool->extents, i) * HL_POOL_UNIT;
    }
    pthread_mutex_unlock(&pool->lock);
    return pool->region_count;
}
