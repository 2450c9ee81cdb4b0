/* Sets of CPUs and memory nodes: text such as 0-3,8, and what a process may use. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "os/file.h"
#include "os/process.h"

#define NODES_DIR "/sys/devices/system/node"

static const char *skip_space(const char *p)
{
    while (isspace((unsigned char)*p))
        p++;
    return p;
}

static const char *parse_number(const char *p, unsigned *out)
{
    unsigned v = 0;
    if (!isdigit((unsigned char)*p))
        return NULL;
    for (; isdigit((unsigned char)*p); p++) {
        v = v * 10 + (unsigned)(*p - '0');
        if (v >= HL_CPUSET_MAX)
            return NULL;
    }
    *out = v;
    return p;
}

hl_status hl_cpuset_parse(const char *text, struct hl_cpuset *out)
{
    struct hl_cpuset set = {{0}};
    const char *p = skip_space(text);
    while (*p != '\0') {
        unsigned first = 0, last = 0;
        const char *q = parse_number(p, &first);
        last = first;
        if (q != NULL && *q == '-')
            q = parse_number(q + 1, &last);
        if (q == NULL || last < first)
            return hl_fail(HL_EINVAL, "'%.64s' is not a list of CPUs such as 0-3,8 (at '%.16s')",
                           text, p);
        for (unsigned i = first; i <= last; i++)
            hl_cpuset_add(&set, i);
        p = skip_space(q);
        if (*p == ',' && *skip_space(p + 1) != '\0')
            p = skip_space(p + 1);
        else if (*p != '\0')
            return hl_fail(HL_EINVAL, "'%.64s' is not a list of CPUs such as 0-3,8 (at '%.16s')",
                           text, p);
    }
    *out = set;
    return HL_OK;
}

void hl_cpuset_format(const struct hl_cpuset *set, char *text, size_t size)
{
    size_t n = 0;
    if (size > 0)
        text[0] = '\0';
    for (unsigned i = 0; i < HL_CPUSET_MAX; i++) {
        if (!hl_cpuset_has(set, i))
            continue;
        unsigned last = i;
        while (last + 1 < HL_CPUSET_MAX && hl_cpuset_has(set, last + 1))
            last++;
        char range[32];
        int len = last > i ? snprintf(range, sizeof(range), "%s%u-%u", n > 0 ? "," : "", i, last)
                           : snprintf(range, sizeof(range), "%s%u", n > 0 ? "," : "", i);
        if (n + (size_t)len + 5 > size) {
            snprintf(text + n, size - n, ",...");
            return;
        }
        memcpy(text + n, range, (size_t)len + 1);
        n += (size_t)len;
        i = last;
    }
}

unsigned hl_cpuset_count(const struct hl_cpuset *set)
{
    unsigned n = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(set->bits); i++)
        n += (unsigned)__builtin_popcountll(set->bits[i]);
    return n;
}

bool hl_cpuset_equal(const struct hl_cpuset *a, const struct hl_cpuset *b)
{
    return memcmp(a->bits, b->bits, sizeof(a->bits)) == 0;
}

bool hl_cpuset_has(const struct hl_cpuset *set, unsigned cpu)
{
    return cpu < HL_CPUSET_MAX && (set->bits[cpu / 64] >> (cpu % 64) & 1) != 0;
}

void hl_cpuset_add(struct hl_cpuset *set, unsigned cpu)
{
    if (cpu < HL_CPUSET_MAX)
        set->bits[cpu / 64] |= 1ull << (cpu % 64);
}

void hl_cpuset_and(const struct hl_cpuset *a, const struct hl_cpuset *b, struct hl_cpuset *out)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(a->bits); i++)
        out->bits[i] = a->bits[i] & b->bits[i];
}

static hl_status allowed_line(const char *text, const char *key, struct hl_cpuset *out)
{
    const char *at = strstr(text, key);
    if (at == NULL)
        return hl_fail(HL_EIO, "the process status has no line '%s'", key);
    at += strlen(key);
    char line[HL_CPUSET_TEXT_MAX * 4];
    snprintf(line, sizeof(line), "%.*s", (int)strcspn(at, "\n"), at);
    return hl_cpuset_parse(line, out);
}

hl_status hl_process_allowed(pid_t pid, struct hl_cpuset *cpus, struct hl_cpuset *mems)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(64 << 10);
    HL_TRY(hl_file_read(path, &text));
    if (text.len == 0)
        return hl_fail(HL_ENOENT, "there is no process %d", (int)pid);
    if (cpus != NULL)
        HL_TRY(allowed_line(text.data, "\nCpus_allowed_list:", cpus));
    if (mems != NULL)
        HL_TRY(allowed_line(text.data, "\nMems_allowed_list:", mems));
    return HL_OK;
}

void hl_cpuset_mems(const struct hl_cpuset *cpus, struct hl_cpuset *mems)
{
    struct hl_cpuset allowed = {{0}};
    struct hl_cpuset found = {{0}};
    if (hl_process_allowed(getpid(), NULL, &allowed) != HL_OK)
        hl_cpuset_add(&allowed, 0);
    DIR *dir = opendir(NODES_DIR);
    struct dirent *e;
    while (dir != NULL && (e = readdir(dir)) != NULL) {
        unsigned node;
        char path[512];
        struct hl_cpuset local;
        if (strncmp(e->d_name, "node", 4) != 0 || parse_number(e->d_name + 4, &node) == NULL)
            continue;
        snprintf(path, sizeof(path), NODES_DIR "/%s/cpulist", e->d_name);
        HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(16 << 10);
        if (hl_file_read(path, &text) != HL_OK || text.len == 0 ||
            hl_cpuset_parse(text.data, &local) != HL_OK)
            continue;
        hl_cpuset_and(&local, cpus, &local);
        if (hl_cpuset_count(&local) > 0)
            hl_cpuset_add(&found, node);
    }
    if (dir != NULL)
        closedir(dir);
    hl_cpuset_and(&found, &allowed, &found);
    *mems = hl_cpuset_count(&found) > 0 ? found : allowed;
}
