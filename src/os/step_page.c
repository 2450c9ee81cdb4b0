/* A sequence lock: `turn` is odd while the writer works, and a reader starts again if it has
 * changed. All fields are atomics, so that no read is a data race; the fences order them. */
#include "os/step_page.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/text.h"
#include "base/utf8.h"
#include "os/file.h"
#include "os/map_guard.h"

#define READS_MAX 64 /* a write takes less than a microsecond */

static_assert(sizeof(struct hl_step_page) <= HL_STEP_PAGE_SIZE, "a rank's page");

static uint64_t word_get(const _Atomic uint64_t *from)
{
    return atomic_load_explicit(from, memory_order_relaxed);
}

static void word_put(_Atomic uint64_t *to, uint64_t value)
{
    atomic_store_explicit(to, value, memory_order_relaxed);
}

/* ---- writing ---- */

/* A writer that died in the middle left `turn` odd: the next one continues from there. */
static void page_enter(struct hl_step_page *p)
{
    word_put(&p->turn, word_get(&p->turn) | 1);
    atomic_thread_fence(memory_order_release);
}

static void page_leave(struct hl_step_page *p)
{
    atomic_store_explicit(&p->turn, word_get(&p->turn) + 1, memory_order_release);
}

/* Clears all timings: nothing is known yet of the steps to come. */
static void page_forget(struct hl_step_page *p)
{
    word_put(&p->joined_ns, 0);
    word_put(&p->loaded_ns, 0);
    word_put(&p->stepped_ns, 0);
    word_put(&p->last_ns, 0);
    word_put(&p->steps, 0);
    word_put(&p->timed, 0);
    word_put(&p->waited_ns, 0);
    word_put(&p->held_size, 0);
}

void hl_step_begin(struct hl_step_page *p, uint64_t pid, uint64_t now_ns)
{
    page_enter(p);
    word_put(&p->pid, pid);
    word_put(&p->began_ns, now_ns);
    word_put(&p->activity, HL_STEP_UNSAID);
    word_put(&p->tokens, 0);
    page_forget(p);
    page_leave(p);
}

void hl_step_join(struct hl_step_page *p, uint64_t generation, uint64_t now_ns)
{
    page_enter(p);
    page_forget(p);
    word_put(&p->generation, generation);
    word_put(&p->done_before, word_get(&p->done));
    word_put(&p->joined_ns, now_ns);
    word_put(&p->activity, HL_STEP_LOADING);
    page_leave(p);
}

/* Called between page_enter and page_leave. */
static void page_train(struct hl_step_page *p, uint64_t now_ns)
{
    word_put(&p->activity, HL_STEP_TRAINING);
    word_put(&p->last_ns, now_ns);
    if (word_get(&p->loaded_ns) == 0)
        word_put(&p->loaded_ns, now_ns);
}

void hl_step_set_activity(struct hl_step_page *p, enum hl_step_activity activity, uint64_t now_ns)
{
    if (word_get(&p->activity) == activity)
        return;
    page_enter(p);
    if (activity == HL_STEP_TRAINING)
        page_train(p, now_ns);
    else
        word_put(&p->activity, activity);
    page_leave(p);
}

/* Called between page_enter and page_leave. */
static void page_plot(struct hl_step_page *p, uint64_t step, uint64_t loss)
{
    uint64_t reports = word_get(&p->reports);
    _Atomic uint64_t *point = p->curve[reports % HL_STEP_WINDOW];
    word_put(&point[0], word_get(&p->generation));
    word_put(&point[1], step);
    word_put(&point[2], loss);
    word_put(&p->reports, reports + 1);
}

/* Called between page_enter and page_leave: records the duration of a step. */
static void page_time(struct hl_step_page *p, uint64_t ns)
{
    uint64_t timed = word_get(&p->timed), waited = word_get(&p->waited_ns);
    word_put(&p->window_ns[timed % HL_STEP_WINDOW], ns);
    word_put(&p->own_ns[timed % HL_STEP_OWN], waited < ns ? ns - waited : 0);
    word_put(&p->timed, timed + 1);
}

void hl_step_waited(struct hl_step_page *p, uint64_t ns)
{
    page_enter(p);
    word_put(&p->waited_ns, word_get(&p->waited_ns) + ns);
    page_leave(p);
}

void hl_step_report(struct hl_step_page *p, int64_t step, double loss, uint64_t tokens,
                    uint64_t now_ns)
{
    uint64_t bits, last = word_get(&p->last_ns);
    bool trained = word_get(&p->activity) == HL_STEP_TRAINING;
    memcpy(&bits, &loss, sizeof(bits));
    page_enter(p);
    if (trained && last != 0 && now_ns >= last)
        page_time(p, now_ns - last);
    word_put(&p->waited_ns, 0);
    page_train(p, now_ns);
    if (word_get(&p->stepped_ns) == 0)
        word_put(&p->stepped_ns, now_ns);
    word_put(&p->step, (uint64_t)step + 1);
    if ((uint64_t)step + 1 > word_get(&p->done))
        word_put(&p->done, (uint64_t)step + 1);
    word_put(&p->steps, word_get(&p->steps) + 1);
    word_put(&p->loss, bits);
    word_put(&p->tokens, word_get(&p->tokens) + tokens);
    page_plot(p, (uint64_t)step, bits);
    page_leave(p);
}

void hl_step_held(struct hl_step_page *p, uint64_t address, uint64_t size)
{
    page_enter(p);
    word_put(&p->held_at, address);
    word_put(&p->held_size, size);
    page_leave(p);
}

void hl_step_trouble(struct hl_step_page *p, const char *text)
{
    uint64_t words[HL_STEP_TEXT / sizeof(uint64_t)] = {0};
    memcpy(words, text, hl_utf8_fit(text, sizeof(words) - 1));
    page_enter(p);
    for (size_t i = 0; i < HL_ARRAY_LEN(words); i++)
        word_put(&p->trouble[i], words[i]);
    word_put(&p->troubles, word_get(&p->troubles) + 1);
    page_leave(p);
}

/* ---- reading ---- */

static int by_size(const void *a, const void *b)
{
    uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;
    return (left > right) - (left < right);
}

static uint64_t median_of(uint64_t *values, size_t count)
{
    if (count == 0)
        return 0;
    qsort(values, count, sizeof(*values), by_size);
    return values[(count - 1) / 2];
}

/* Copies the ring's last `timed` values; returns how many. */
static size_t ring_copy(const _Atomic uint64_t *ring, size_t size, uint64_t timed, uint64_t *out)
{
    size_t count = timed < size ? (size_t)timed : size;
    for (size_t i = 0; i < count; i++)
        out[i] = word_get(&ring[i]);
    return count;
}

struct step_times {
    uint64_t window[HL_STEP_WINDOW], own[HL_STEP_OWN];
    size_t count, own_count;
};

/* Copies what is there between two reads of `turn`; valid if both are equal. */
static void page_copy(const struct hl_step_page *p, struct hl_step_state *s, struct step_times *t)
{
    uint64_t bits = word_get(&p->loss), timed = word_get(&p->timed),
             activity = word_get(&p->activity);
    *s = (struct hl_step_state){
        .pid = word_get(&p->pid),
        .generation = word_get(&p->generation),
        .activity =
            activity < HL_STEP_ACTIVITIES ? (enum hl_step_activity)activity : HL_STEP_UNSAID,
        .began_ns = word_get(&p->began_ns),
        .joined_ns = word_get(&p->joined_ns),
        .loaded_ns = word_get(&p->loaded_ns),
        .stepped_ns = word_get(&p->stepped_ns),
        .last_ns = word_get(&p->last_ns),
        .step = (int64_t)word_get(&p->step) - 1,
        .steps = word_get(&p->steps),
        .done_before = (int64_t)word_get(&p->done_before),
        .tokens = word_get(&p->tokens),
        .held_at = word_get(&p->held_at),
        .held_size = word_get(&p->held_size),
        .troubles = word_get(&p->troubles),
    };
    for (size_t i = 0; i < HL_STEP_TEXT / sizeof(uint64_t); i++) {
        uint64_t word = word_get(&p->trouble[i]);
        memcpy(s->trouble + i * sizeof(word), &word, sizeof(word));
    }
    s->trouble[HL_STEP_TEXT - 1] = '\0';
    memcpy(&s->loss, &bits, sizeof(bits));
    t->count = ring_copy(p->window_ns, HL_STEP_WINDOW, timed, t->window);
    t->own_count = ring_copy(p->own_ns, HL_STEP_OWN, timed, t->own);
}

bool hl_step_read(const struct hl_step_page *p, struct hl_step_state *out)
{
    struct step_times times;
    for (int i = 0; i < READS_MAX; i++) {
        uint64_t before = atomic_load_explicit(&p->turn, memory_order_acquire);
        if (before == 0)
            return false;
        page_copy(p, out, &times);
        atomic_thread_fence(memory_order_acquire);
        if (before % 2 == 0 && word_get(&p->turn) == before) {
            out->median_ns = median_of(times.window, times.count);
            out->own_ns = median_of(times.own, times.own_count);
            return true;
        }
    }
    return false;
}

/* Copies the last `count` points before `reports`. */
static void curve_copy(const struct hl_step_page *p, uint64_t reports, size_t count,
                       struct hl_step_point *out)
{
    for (size_t i = 0; i < count; i++) {
        const _Atomic uint64_t *from = p->curve[(reports - count + i) % HL_STEP_WINDOW];
        uint64_t bits = word_get(&from[2]);
        out[i].generation = word_get(&from[0]);
        out[i].step = (int64_t)word_get(&from[1]);
        memcpy(&out[i].loss, &bits, sizeof(bits));
    }
}

bool hl_step_curve(const struct hl_step_page *p, uint64_t from,
                   struct hl_step_point out[HL_STEP_WINDOW], size_t *count, uint64_t *next)
{
    for (int i = 0; i < READS_MAX; i++) {
        uint64_t before = atomic_load_explicit(&p->turn, memory_order_acquire);
        uint64_t reports = word_get(&p->reports);
        uint64_t there = reports > from ? reports - from : 0;
        *count = there < HL_STEP_WINDOW ? (size_t)there : HL_STEP_WINDOW;
        *next = reports;
        curve_copy(p, reports, *count, out);
        atomic_thread_fence(memory_order_acquire);
        if (before != 0 && before % 2 == 0 && word_get(&p->turn) == before)
            return true;
    }
    return false;
}

/* ---- the file ---- */

hl_status hl_step_pages_create(const char *path, size_t count)
{
    HL_AUTO(hl_closep) int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    int err = fd < 0 ? errno : posix_fallocate(fd, 0, (off_t)(count * HL_STEP_PAGE_SIZE));
    if (err != 0)
        return hl_fail(hl_status_of_errno(err), "make %s: %s", path, strerror(err));
    return HL_OK;
}

hl_status hl_step_pages_open(const char *path, struct hl_step_pages *out)
{
    struct stat sb;
    HL_AUTO(hl_closep) int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 || fstat(fd, &sb) != 0) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "open %s: %s", path, strerror(err));
    }
    size_t count = (size_t)sb.st_size / HL_STEP_PAGE_SIZE;
    if (count == 0)
        return hl_fail(HL_EINVAL, "%s has no room for a page", path);
    void *base = mmap(NULL, count * HL_STEP_PAGE_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED) {
        int err = errno;
        return hl_fail(hl_status_of_errno(err), "map %s: %s", path, strerror(err));
    }
    *out = (struct hl_step_pages){base, count,
                                  hl_map_guard_add(base, count * HL_STEP_PAGE_SIZE, -1, true)};
    return HL_OK;
}

void hl_step_pages_close(struct hl_step_pages *pages)
{
    if (pages->base != NULL) {
        hl_map_guard_remove(pages->guard);
        munmap(pages->base, pages->count * HL_STEP_PAGE_SIZE);
    }
    *pages = (struct hl_step_pages){0};
}

struct hl_step_page *hl_step_page_at(const struct hl_step_pages *pages, size_t index)
{
    if (index >= pages->count)
        return NULL;
    return (struct hl_step_page *)((char *)pages->base + index * HL_STEP_PAGE_SIZE);
}

hl_status hl_step_page_find(const char *text, struct hl_step_pages *pages,
                            struct hl_step_page **out)
{
    char path[PATH_MAX];
    uint64_t index = 0;
    const char *colon = strrchr(text, ':');
    const char *end = colon != NULL ? hl_scan_number(colon + 1, INT_MAX, &index) : NULL;
    if (end == NULL || *end != '\0' || (size_t)(colon - text) >= sizeof(path))
        return hl_fail(HL_EINVAL, "'%.200s' is not FILE:PAGE", text);
    memcpy(path, text, (size_t)(colon - text));
    path[colon - text] = '\0';
    HL_TRY(hl_step_pages_open(path, pages));
    *out = hl_step_page_at(pages, index);
    if (*out != NULL)
        return HL_OK;
    hl_step_pages_close(pages);
    return hl_fail(HL_EINVAL, "%s has no page %llu", path, (unsigned long long)index);
}
