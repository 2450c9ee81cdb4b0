/* The node's table of HybridPS chunks: made here, found by ranks through their environment, and
 * reported as tiers of their own kind beside those of shards. A rank adds and removes its own
 * bytes. The bytes of a dead rank are given back when the table is next read, at the latest with
 * the next heartbeat.
 *
 *     heartbeat's thread, calls --c->lock--> table --its own locks, robust--> ranks' processes
 *
 * c->lock keeps this process from replacing the mapping (table_renew) while another thread reads
 * it. The locks in the table are shared with ranks, which may be stopped while they hold one: a
 * thread waits for one LOCK_MS at most, and holds c->lock meanwhile.
 *
 * What the ranks are asked for is in `asked`, under a lock of its own, so that the loop, which
 * hears it from the Controller, does not wait for c->lock. It is written to the table by the next
 * thread with c->lock, at the latest for the next heartbeat, and to each table that follows. */
#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/agent_private.h"
#include "base/crc32.h"
#include "base/log.h"
#include "core/copies/route.h"
#include "hybridps/manager/table.h"

#define LOCK_MS 1000
#define REAP_MS 200
/* A restarted Agent may still have ranks that are about to open the table. */
#define IDLE_MS 60000

_Static_assert(CHUNKS_TIERS_MAX == HL_MANAGER_DEVICES, "a tier for each device of the table");

struct chunks {
    pthread_mutex_t lock;          /* guards table: heartbeats and calls read it */
    struct hl_manager_table table; /* no mapping: it was truncated, and there is no other yet */
    char name[200];
    bool limited; /* the host's size was set by an option */
    uint64_t capacity[HL_MANAGER_DEVICES];
    uint32_t devices;
    pthread_mutex_t asked_lock;         /* guards asked; inside `lock` */
    uint64_t asked[HL_MANAGER_DEVICES]; /* of the ranks: hl_manager_ask */
};

uint32_t chunks_capacities(const struct hl_api_slot_list *slots, uint64_t host, uint64_t *out)
{
    uint32_t n = 0;
    out[n++] = host;
    for (size_t i = 0; i < slots->count; i++)
        for (size_t k = 0; k < slots->items[i].gpus.count && n < HL_MANAGER_DEVICES; k++) {
            uint64_t bytes = slots->items[i].gpus.items[k].memory_bytes;
            out[n++] = bytes > 0 ? bytes : HL_MANAGER_UNLIMITED;
        }
    if (n == 1)
        out[n++] = HL_MANAGER_UNLIMITED;
    return n;
}

/* The name is the same for every Agent that keeps its containers there, and for no other: nodes of
 * different clusters on one machine may have the same name. */
static void make_name(const char *node, const char *state_dir, char *out, size_t size)
{
    char path[PATH_MAX];
    if (realpath(state_dir, path) == NULL)
        snprintf(path, sizeof(path), "%s", state_dir);
    snprintf(out, size, "helios-%u-%.100s-%08x.chunks", (unsigned)getuid(), node,
             hl_crc32(0, path, strlen(path)));
}

/* Removes the tables of Agents that were killed and did not come back. */
static void table_sweep(void)
{
    char begin[32];
    snprintf(begin, sizeof(begin), "helios-%u-", (unsigned)getuid());
    size_t n = hl_manager_sweep(begin, ".chunks", IDLE_MS);
    if (n > 0)
        hl_info("removed %zu tables of chunks whose Agents and ranks are dead", n);
}

static hl_status open_table(struct chunks *c)
{
    struct hl_manager_options o = {.name = c->name,
                                   .capacity = c->capacity,
                                   .devices = c->devices,
                                   .lock_ms = LOCK_MS,
                                   .reap_ms = REAP_MS};
    hl_status st = hl_manager_table_open(&o, &c->table);
    if (st == HL_ECONFLICT) { /* ranks of an earlier Agent use it */
        hl_warn("chunks keep the limits they have until the ranks that use them end: %s",
                hl_error_text());
        o.capacity = NULL;
        st = hl_manager_table_open(&o, &c->table);
    }
    return st;
}

/* Called with the lock, for a whole table. */
static void write_requests(struct chunks *c)
{
    pthread_mutex_lock(&c->asked_lock);
    for (uint32_t i = 0, devices = hl_manager_devices(&c->table); i < devices; i++)
        hl_manager_ask(&c->table, i, c->asked[i]);
    pthread_mutex_unlock(&c->asked_lock);
}

void chunks_close(struct chunks *c)
{
    if (c == NULL)
        return;
    chunks_ask(c, &(struct hl_api_chunk_request_list){0}); /* no other Agent would end it */
    hl_manager_table_close(&c->table);
    pthread_mutex_destroy(&c->asked_lock);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

hl_status chunks_open(const char *node, const char *state_dir, const struct hl_api_slot_list *slots,
                      uint64_t limit, struct chunks **out)
{
    struct chunks *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the table of chunks");
    pthread_mutex_init(&c->lock, NULL);
    pthread_mutex_init(&c->asked_lock, NULL);
    table_sweep();
    make_name(node, state_dir, c->name, sizeof(c->name));
    c->limited = limit > 0;
    uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    c->devices = chunks_capacities(slots, limit > 0 ? limit : memory, c->capacity);
    hl_status st = open_table(c);
    if (st != HL_OK) {
        chunks_close(c);
        return st;
    }
    write_requests(c); /* of an Agent that was killed: ended */
    *out = c;
    return HL_OK;
}

const char *chunks_name(const struct chunks *c)
{
    return c != NULL ? c->name : "";
}

#define NAME_MAX_CHUNKS 24

/* The name of the tier. */
static void print_name(uint32_t device, char out[NAME_MAX_CHUNKS])
{
    if (device == 0)
        snprintf(out, NAME_MAX_CHUNKS, "chunks");
    else
        snprintf(out, NAME_MAX_CHUNKS, "chunks:%u", (unsigned)device - 1);
}

static struct hl_api_tier_info chunks_tier(const struct chunks *c, uint32_t device,
                                           const struct hl_manager_use *uses, size_t count,
                                           struct hl_arena *arena)
{
    char name[NAME_MAX_CHUNKS];
    uint64_t used = 0, capacity = c->table.s->device[device].capacity;
    bool limited = device == 0 ? c->limited : capacity < HL_MANAGER_UNLIMITED;
    struct hl_api_process_bytes_list processes = {
        .items = hl_arena_array(arena, count, sizeof(*processes.items)), .count = count};
    for (size_t i = 0; i < count; i++) {
        used += uses[i].bytes;
        if (processes.items != NULL)
            processes.items[i] = (struct hl_api_process_bytes){.pid = (int32_t)uses[i].pid,
                                                               .used_bytes = uses[i].bytes};
    }
    print_name(device, name);
    return (struct hl_api_tier_info){
        .tier = device == 0 ? HL_API_TIER_L2 : HL_API_TIER_L1,
        .name = hl_arena_strdup(arena, name),
        .kind = "chunks",
        .quota_bytes = limited ? capacity : 0,
        .used_bytes = used,
        .numa_id = -1,
        .processes = processes,
        .asked_bytes = __atomic_load_n(&c->table.s->device[device].asked, __ATOMIC_RELAXED),
    };
}

/* Replaces a table that was truncated, for the sake of future ranks; those that use it are lost. */
static bool table_renew(struct chunks *c)
{
    if (c->table.s != NULL && hl_manager_check_whole(&c->table) == HL_OK)
        return true;
    if (c->table.s != NULL)
        hl_error("table of chunks is damaged and is recreated, ranks that use it fail: %s",
                 hl_error_text());
    hl_manager_table_close(&c->table);
    hl_status st = open_table(c);
    if (st != HL_OK)
        hl_warn("table of chunks can't be created: %s", hl_error_text());
    return st == HL_OK;
}

/* Called with the lock. */
static size_t table_tiers(struct chunks *c, struct hl_arena *arena, struct hl_api_tier_info *out)
{
    struct hl_manager_use uses[HL_MANAGER_PROCESSES];
    size_t count = 0;
    if (!table_renew(c))
        return 0;
    write_requests(c);
    if (hl_manager_reap_by_age(&c->table) != HL_OK)
        hl_debug("chunks: %s", hl_error_text());
    for (uint32_t i = 0, devices = hl_manager_devices(&c->table); i < devices; i++) {
        size_t n = hl_manager_usage(&c->table, i, uses, HL_MANAGER_PROCESSES);
        if (n > 0)
            out[count++] = chunks_tier(c, i, uses, n, arena);
    }
    return count;
}

size_t chunks_tiers(struct chunks *c, struct hl_arena *arena, struct hl_api_tier_info *out)
{
    if (c == NULL)
        return 0;
    pthread_mutex_lock(&c->lock);
    size_t count = table_tiers(c, arena, out);
    pthread_mutex_unlock(&c->lock);
    return count;
}

static uint64_t find_request(const struct hl_api_chunk_request_list *requests, uint32_t device)
{
    char name[NAME_MAX_CHUNKS];
    print_name(device, name);
    for (size_t i = 0; i < requests->count; i++)
        if (strcmp(requests->items[i].name, name) == 0)
            return requests->items[i].bytes;
    return 0;
}

static void set_request(struct chunks *c, uint32_t device, uint64_t bytes)
{
    char name[NAME_MAX_CHUNKS];
    print_name(device, name);
    if (bytes != 0 && c->asked[device] == 0)
        hl_info("HybridPS processes are asked to give memory back tier=%s keep=%" PRIu64, name,
                bytes);
    else if (bytes == 0 && c->asked[device] != 0)
        hl_info("HybridPS processes are no longer asked to give memory back tier=%s", name);
    c->asked[device] = bytes;
}

void chunks_ask(struct chunks *c, const struct hl_api_chunk_request_list *requests)
{
    if (c == NULL)
        return;
    pthread_mutex_lock(&c->asked_lock);
    for (uint32_t i = 0; i < HL_MANAGER_DEVICES; i++)
        set_request(c, i, find_request(requests, i));
    pthread_mutex_unlock(&c->asked_lock);
    if (pthread_mutex_trylock(&c->lock) != 0)
        return;
    if (c->table.s != NULL && hl_manager_check_whole(&c->table) == HL_OK)
        write_requests(c);
    pthread_mutex_unlock(&c->lock);
}
