#include "os/numa.h"

#include <errno.h>
#include <linux/mempolicy.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/buf.h"
#include "os/file.h"
#include "os/process.h"

#define NODES_DIR  "/sys/devices/system/node"
#define NODES_MAX  1024
#define WORD_BITS  (8 * sizeof(unsigned long))
#define SAMPLES    64
#define FILE_BYTES ((size_t)64 << 10)

/* Parses a list of /sys, such as "0-3,8". */
static bool read_list(const char *path, struct hl_cpuset *out)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(FILE_BYTES);
    return hl_file_read(path, &text) == HL_OK && text.len > 0 &&
           hl_cpuset_parse(text.data, out) == HL_OK;
}

size_t hl_numa_nodes(int *out, size_t max)
{
    struct hl_cpuset nodes, mems;
    size_t n = 0;
    if (!read_list(NODES_DIR "/has_memory", &nodes) && !read_list(NODES_DIR "/online", &nodes))
        return 0;
    bool limited = hl_process_allowed(getpid(), NULL, &mems) == HL_OK && hl_cpuset_count(&mems) > 0;
    for (unsigned i = 0; i < NODES_MAX && n < max; i++)
        if (hl_cpuset_has(&nodes, i) && (!limited || hl_cpuset_has(&mems, i)))
            out[n++] = (int)i;
    return n;
}

static uint64_t meminfo_kib(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    return at != NULL ? strtoull(at + strlen(key), NULL, 10) : 0;
}

uint64_t hl_numa_available(int node)
{
    char path[96];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(FILE_BYTES);
    snprintf(path, sizeof(path), NODES_DIR "/node%d/meminfo", node);
    if (hl_file_read(path, &text) != HL_OK || text.len == 0)
        return 0;
    const char *t = text.data;
    /* Shared memory is counted as file pages, but is not a cache. */
    uint64_t files = meminfo_kib(t, "FilePages:"), shared = meminfo_kib(t, "Shmem:");
    return (meminfo_kib(t, "MemFree:") + (files > shared ? files - shared : 0)) * 1024;
}

static bool cpus_of(int node, struct hl_cpuset *out)
{
    char path[96];
    struct hl_cpuset all, mine;
    snprintf(path, sizeof(path), NODES_DIR "/node%d/cpulist", node);
    if (node < 0 || !read_list(path, &all) || hl_process_allowed(getpid(), &mine, NULL) != HL_OK)
        return false;
    hl_cpuset_and(&all, &mine, out);
    return hl_cpuset_count(out) > 0;
}

unsigned hl_numa_cpus(int node)
{
    struct hl_cpuset cpus;
    return cpus_of(node, &cpus) ? hl_cpuset_count(&cpus) : 0;
}

hl_status hl_numa_bind(void *ptr, uint64_t len, int node)
{
    unsigned long mask[NODES_MAX / WORD_BITS] = {0};
    if (node < 0 || node >= NODES_MAX)
        return hl_fail(HL_EINVAL, "this machine has no NUMA node %d", node);
    mask[(unsigned)node / WORD_BITS] |= 1UL << ((unsigned)node % WORD_BITS);
    /* Bound strictly, because a node full of file caches frees memory only for a strict policy. If
     * the node can't hold all of it, the policy is not strict, so that no process is killed for
     * lack of memory. */
    int mode = hl_numa_available(node) >= len ? MPOL_BIND : MPOL_PREFERRED;
    if (syscall(SYS_mbind, ptr, (unsigned long)len, mode, mask, (unsigned long)NODES_MAX + 1, 0) ==
        0)
        return HL_OK;
    int err = errno;
    hl_status st = err == ENOSYS ? HL_EUNSUPPORTED : err == EPERM ? HL_EPERM : HL_EINVAL;
    return hl_fail(st, "bind memory to NUMA node %d: %s", node, strerror(err));
}

int hl_numa_placed(const void *ptr, uint64_t len, int node)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), pages = len / page;
    void *at[SAMPLES];
    int where[SAMPLES];
    size_t n = pages < SAMPLES ? pages : SAMPLES;
    if (n == 0)
        return -1;
    for (size_t i = 0; i < n; i++) {
        const uint8_t *p = (const uint8_t *)ptr + pages / n * i * page;
        (void)*(const volatile uint8_t *)p;
        at[i] = (void *)p;
        where[i] = -1;
    }
    if (syscall(SYS_move_pages, 0, (unsigned long)n, at, NULL, where, 0) != 0)
        return -1;
    for (size_t i = 0; i < n; i++)
        if (where[i] != node)
            return where[i] < 0 ? -1 : 0;
    return 1;
}

bool hl_numa_run_on(int node)
{
    struct hl_cpuset cpus;
    cpu_set_t set;
    if (!cpus_of(node, &cpus))
        return false;
    CPU_ZERO(&set);
    for (unsigned i = 0; i < CPU_SETSIZE; i++)
        if (hl_cpuset_has(&cpus, i))
            CPU_SET(i, &set);
    return sched_setaffinity(0, sizeof(set), &set) == 0;
}
