/* Measures the kernels for small and for large transfers. Small ones use one buffer repeatedly, as
 * a core's own caches hold it. Large ones use windows that walk through more memory than most
 * caches hold, so lines come from memory and written lines go back to it. The kernels take turns
 * and the fastest turn of each counts, because noise only adds time. */
#include "os/copy_measure.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/cpu.h"
#include "base/log.h"
#include "os/file.h"

#define HALF        ((size_t)32 << 20) /* bytes of sources, and of destinations */
#define WINDOW      ((size_t)2 << 20)
#define SMALL       ((size_t)128 << 10)
#define TURNS       3
#define SMALL_TURNS 4
#define KEPT_MAX    512

struct measure {
    const struct hl_copy_kernel *kernels[HL_COPY_KERNELS_MAX];
    size_t count;
    uint64_t best[2][HL_COPY_KERNELS_MAX]; /* [large] */
    uint8_t *memory;
    size_t at; /* window of the next turn with large transfers */
};

static volatile uint32_t result; /* keeps the CRCs from being optimised away */

static uint64_t kernel_time(const struct hl_copy_kernel *k, uint8_t *dst, const uint8_t *src,
                            size_t len)
{
    uint64_t start = hl_now_ns();
    result = k->copy(0, dst, src, len);
    return hl_now_ns() - start;
}

static void measure_turn(struct measure *m, size_t i, bool large)
{
    size_t len = large ? WINDOW : SMALL, at = large ? m->at : 0;
    uint64_t ns = kernel_time(m->kernels[i], m->memory + HALF + at, m->memory + at, len);
    if (ns < m->best[large][i])
        m->best[large][i] = ns;
    if (large)
        m->at = (m->at + WINDOW) % HALF;
}

static const struct hl_copy_kernel *measure_fastest(const struct measure *m, bool large, bool sums)
{
    const struct hl_copy_kernel *best = NULL;
    uint64_t ns = UINT64_MAX;
    for (size_t i = 0; i < m->count; i++)
        if (m->kernels[i]->sums == sums && (best == NULL || m->best[large][i] < ns)) {
            best = m->kernels[i];
            ns = m->best[large][i];
        }
    return best;
}

bool hl_copy_measure_now(struct hl_copy_choice *out)
{
    struct measure m = {.count = hl_copy_kernels(m.kernels)};
    void *memory = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return false;
    (void)madvise(memory, 2 * HALF, MADV_HUGEPAGE); /* for fewer faults; works without it too */
    m.memory = memory;
    memset(m.best, 0xff, sizeof(m.best));
    memset(memory, 1, 2 * HALF);
    for (int turn = 0; turn < TURNS; turn++)
        for (size_t i = 0; i < m.count; i++)
            measure_turn(&m, i, true);
    for (size_t i = 0; i < m.count; i++) /* after the first turn the buffers are in the cache */
        for (int turn = 0; turn < SMALL_TURNS; turn++)
            measure_turn(&m, i, false);
    munmap(memory, 2 * HALF);
    for (int sums = 0; sums < 2; sums++) {
        out->small[sums] = measure_fastest(&m, false, sums);
        out->large[sums] = measure_fastest(&m, true, sums);
    }
    return true;
}

/* ---- the kept choice: "helios-copy 1 BOOT CPU\n" and four names ---- */

static hl_status host_format(struct hl_buf *out)
{
    HL_AUTO(hl_buf_fini) struct hl_buf boot = HL_BUF(64);
    HL_TRY(hl_file_read("/proc/sys/kernel/random/boot_id", &boot));
    const struct hl_copy_kernel *kernels[HL_COPY_KERNELS_MAX];
    return hl_buf_printf(out, "helios-copy 1 %.36s %d %zu\n", (const char *)boot.data,
                         (int)hl_cpu(), hl_copy_kernels(kernels));
}

hl_status hl_copy_choice_format(const struct hl_copy_choice *choice, struct hl_buf *out)
{
    HL_TRY(host_format(out));
    return hl_buf_printf(out, "%s %s %s %s\n", choice->small[0]->name, choice->small[1]->name,
                         choice->large[0]->name, choice->large[1]->name);
}

static const struct hl_copy_kernel *kernel_named(const char *name, bool sums)
{
    const struct hl_copy_kernel *kernels[HL_COPY_KERNELS_MAX];
    size_t n = hl_copy_kernels(kernels);
    for (size_t i = 0; i < n; i++)
        if (kernels[i]->sums == sums && strcmp(kernels[i]->name, name) == 0)
            return kernels[i];
    return NULL;
}

hl_status hl_copy_choice_parse(const char *text, struct hl_copy_choice *out)
{
    HL_AUTO(hl_buf_fini) struct hl_buf host = HL_BUF(KEPT_MAX);
    HL_TRY(host_format(&host));
    if (strncmp(text, (const char *)host.data, host.len) != 0)
        return hl_fail(HL_EINVAL, "the stored choice of copy kernels is from another host");
    char names[4][32];
    int end = 0; /* a truncated name may be another process's */
    text += host.len;
    if (sscanf(text, "%31s %31s %31s %31s%n", names[0], names[1], names[2], names[3], &end) != 4 ||
        strcmp(text + end, "\n") != 0)
        return hl_fail(HL_EINVAL, "the stored choice of copy kernels is not a line of four names");
    struct hl_copy_choice c;
    for (int sums = 0; sums < 2; sums++) {
        c.small[sums] = kernel_named(names[sums], sums);
        c.large[sums] = kernel_named(names[2 + sums], sums);
        if (c.small[sums] == NULL || c.large[sums] == NULL)
            return hl_fail(HL_EINVAL, "the stored choice of copy kernels names an unknown one");
    }
    *out = c;
    return HL_OK;
}

static bool kept_path(char *path, size_t size)
{
    const char *dir = getenv("XDG_RUNTIME_DIR");
    int n = snprintf(path, size, "%s/.helios-copy-%u",
                     dir != NULL && dir[0] == '/' ? dir : "/dev/shm", (unsigned)geteuid());
    return n > 0 && (size_t)n < size;
}

static bool kept_load(const char *path, struct hl_copy_choice *out)
{
    HL_AUTO(hl_closep) int fd = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    char text[KEPT_MAX];
    if (fd < 0 || hl_file_check_private(fd, path) != HL_OK)
        return false;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    if (n < 0)
        return false;
    text[n] = '\0';
    return hl_copy_choice_parse(text, out) == HL_OK;
}

static void kept_store(const char *path, const struct hl_copy_choice *choice)
{
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(KEPT_MAX);
    if (hl_copy_choice_format(choice, &text) == HL_OK &&
        hl_file_write_durable(path, text.data, text.len, 0600) != HL_OK)
        hl_debug("the choice of copy kernels is not kept: %s", hl_error_text());
}

static void measure_once(void)
{
    struct hl_copy_choice choice;
    char path[PATH_MAX];
    bool keep = kept_path(path, sizeof(path));
    if (keep && kept_load(path, &choice)) {
        hl_copy_choose(&choice);
    } else if (hl_copy_measure_now(&choice)) {
        hl_copy_choose(&choice);
        if (keep)
            kept_store(path, &choice);
    }
}

void hl_copy_measure(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, measure_once);
}
