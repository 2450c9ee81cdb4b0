/* Tests memory and arithmetic of each slot, by a thread that is bound to its processors: the memory
 * that it touches first belongs to the slot. The speed is measured in the thread's CPU time, so
 * other load on the machine has little effect. */
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "base/text.h"
#include "hw/health/health_private.h"
#include "os/process.h"

#define BLOCK     ((size_t)1 << 20)
#define BLOCK_CRC 0x8c66c638u         /* of block_fill, computed with zlib */
#define BLOCKS    32                  /* more than a cache can hold */
#define SLOT_NS   (80 * HL_NS_PER_MS) /* for a slot's two rows */
#define ALL_NS    (2 * HL_NS_PER_S)   /* for all slots together */

struct slot_test {
    const struct hl_health_opts *opts;
    const struct hl_api_slot *slot;
    uint64_t budget_ns, deadline_ns;
    uint64_t bytes_per_second; /* 0 = not measured */
    bool pinned;
    char trouble[160]; /* about the checksum; "" = none */
};

static void block_fill(unsigned char *block)
{
    for (size_t i = 0; i < BLOCK; i++)
        block[i] = (unsigned char)((i * 31 + 7) ^ ((i >> 8) * 13));
}

static bool slot_pin(const struct slot_test *t)
{
    struct hl_cpuset cpus;
    cpu_set_t set;
    CPU_ZERO(&set);
    if (t->opts->foreign_topology || hl_cpuset_parse(t->slot->cpus, &cpus) != HL_OK)
        return false;
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (hl_cpuset_has(&cpus, i))
            CPU_SET(i, &set);
    return CPU_COUNT(&set) > 0 && pthread_setaffinity_np(pthread_self(), sizeof(set), &set) == 0;
}

/* Copies one half to the other until the time budget is used; copies every block at least once. */
static void measure_copies(struct slot_test *t, unsigned char *from, unsigned char *to)
{
    uint64_t began = hl_thread_ns(), copied = 0;
    do {
        for (size_t i = 0; i < BLOCKS; i++)
            memcpy(to + i * BLOCK, from + i * BLOCK, BLOCK);
        copied += BLOCKS * BLOCK;
    } while (hl_thread_ns() - began < t->budget_ns / 2 && hl_now_ns() < t->deadline_ns);
    uint64_t ns = hl_thread_ns() - began;
    t->bytes_per_second = (uint64_t)((double)copied * 1e9 / (double)(ns > 0 ? ns : 1));
}

static void check_sums(struct slot_test *t, const unsigned char *memory)
{
    uint64_t began = hl_thread_ns();
    size_t i = 0;
    do {
        uint32_t crc = hl_crc32(0, memory + i % BLOCKS * BLOCK, BLOCK);
        if (crc != BLOCK_CRC) {
            snprintf(t->trouble, sizeof(t->trouble),
                     "slot %d: MiB %zu of the test memory has checksum %08x, not %08x: its memory "
                     "or a processor is faulty",
                     t->slot->numa_id, i % BLOCKS, crc, BLOCK_CRC);
            return;
        }
        i++;
    } while ((i < BLOCKS || hl_thread_ns() - began < t->budget_ns / 2) &&
             hl_now_ns() < t->deadline_ns);
}

static void *slot_run(void *arg)
{
    struct slot_test *t = arg;
    t->pinned = slot_pin(t);
    unsigned char *memory = malloc(2 * BLOCKS * BLOCK);
    if (memory == NULL) {
        snprintf(t->trouble, sizeof(t->trouble), "slot %d: out of memory testing it",
                 t->slot->numa_id);
        return NULL;
    }
    block_fill(memory);
    for (size_t i = 1; i < BLOCKS; i++)
        memcpy(memory + i * BLOCK, memory, BLOCK);
    memset(memory + BLOCKS * BLOCK, 0, BLOCKS * BLOCK);
    measure_copies(t, memory, memory + BLOCKS * BLOCK);
    check_sums(t, memory + BLOCKS * BLOCK); /* the copies are right only if both halves are */
    free(memory);
    return NULL;
}

static void speed_row(struct hl_health_run *r, const struct slot_test *worst, size_t slots)
{
    char speed[32], least[32], value[96], text[160] = "";
    hl_format_bytes(worst->bytes_per_second, speed, sizeof(speed));
    snprintf(value, sizeof(value), "%s/s copied%s%s", speed, slots > 1 ? ", the slowest slot" : "",
             worst->pinned ? "" : "; not bound");
    if (worst->bytes_per_second < r->opts->memory_least)
        snprintf(text, sizeof(text),
                 "slot %d copies %s per second, %s are required (agent.health_memory)",
                 worst->slot->numa_id, speed,
                 hl_format_bytes(r->opts->memory_least, least, sizeof(least)));
    hl_health_row(r, "memory",
                  text[0] != '\0' ? HL_API_HEALTH_STATE_FAILED : HL_API_HEALTH_STATE_PASSED, value,
                  text);
}

static void late_rows(struct hl_health_run *r, size_t done, size_t slots)
{
    char text[96];
    snprintf(text, sizeof(text), "only %zu of %zu slots were tested in time", done, slots);
    hl_health_row(r, "memory", HL_API_HEALTH_STATE_FAILED, "", text);
}

void hl_health_processors(struct hl_health_run *r)
{
    static const char running[] = "left out, for ranks run here";
    const struct hl_api_slot_list *slots = r->opts->slots;
    struct slot_test worst = {.bytes_per_second = UINT64_MAX};
    char trouble[160] = "", value[64];
    size_t done = 0;
    if (r->opts->busy) {
        hl_health_row(r, "memory", HL_API_HEALTH_STATE_SKIPPED, "", running);
        hl_health_row(r, "checksum", HL_API_HEALTH_STATE_SKIPPED, "", running);
        return;
    }
    uint64_t budget = slots->count > 0 ? ALL_NS / slots->count : 0;
    for (; done < slots->count && hl_now_ns() < r->deadline_ns; done++) {
        struct slot_test t = {.opts = r->opts,
                              .slot = &slots->items[done],
                              .budget_ns = budget < SLOT_NS ? budget : SLOT_NS,
                              .deadline_ns = r->deadline_ns};
        pthread_t thread;
        if (pthread_create(&thread, NULL, slot_run, &t) != 0)
            break;
        pthread_join(thread, NULL);
        if (t.trouble[0] != '\0' && trouble[0] == '\0')
            memcpy(trouble, t.trouble, sizeof(trouble));
        if (t.bytes_per_second > 0 && t.bytes_per_second < worst.bytes_per_second)
            worst = t;
    }
    if (done < slots->count)
        late_rows(r, done, slots->count);
    else if (worst.slot != NULL)
        speed_row(r, &worst, slots->count);
    snprintf(value, sizeof(value), "%zu slot%s, %d MiB each", done, done == 1 ? "" : "s", BLOCKS);
    hl_health_row(r, "checksum",
                  trouble[0] != '\0' ? HL_API_HEALTH_STATE_FAILED : HL_API_HEALTH_STATE_PASSED,
                  value, trouble);
}
