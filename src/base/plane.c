/* Counters are relaxed atomics: each is correct by itself, but a snapshot is not of one moment.
 * Counts by words (labels) are in an open-addressing table that only grows. A cell becomes visible
 * when its words are complete, so a look-up takes no lock.
 *
 *     cell[]   | words, ops, bytes; ready | free: not ready | ...     hash, then linear probing
 *
 *     free --find_cell, under the table's lock: words, then ready (release)--> ready, for good
 *
 * A reader loads `ready` (acquire) and then compares words that never change. If two threads add
 * the same words, the lock orders them and the second one finds the first one's cell. A full table
 * counts all new words under `other`. */
#include "base/plane.h"

#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/hash.h"
#include "base/plane_private.h"

struct hl_plane_table hl_plane_table = {
    .paths = {.lock = PTHREAD_MUTEX_INITIALIZER,
              .other = {.ready = true, .word = {"other", "other", "", "ok"}}},
    .faults = {.lock = PTHREAD_MUTEX_INITIALIZER,
               .other = {.ready = true, .word = {"other", "other"}}},
    .lock = PTHREAD_MUTEX_INITIALIZER,
};

const char *hl_plane_name(enum hl_plane plane)
{
    static const char *const names[] = {"inside", "backbone", "migration", "management"};
    return plane < HL_PLANE_COUNT ? names[plane] : "none";
}

static void plane_counter_add(atomic_uint_fast64_t *counter, uint64_t by)
{
    if (by)
        atomic_fetch_add_explicit(counter, by, memory_order_relaxed);
}

static uint64_t counter_value(const atomic_uint_fast64_t *counter)
{
    return atomic_load_explicit(counter, memory_order_relaxed);
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Words are hashed and compared up to the length that a cell keeps. */
static uint32_t hash_words(const char *const word[4])
{
    uint64_t hash = HL_HASH_START;
    for (int w = 0; w < 4; w++) {
        hash = hl_hash_add(hash, word[w], strnlen(word[w], HL_PLANE_WORD - 1));
        hash = hl_hash_add(hash, "", 1); /* so that "ab" and "c" differ from "a" and "bc" */
    }
    return (uint32_t)hash;
}

static bool same_words(const struct hl_plane_cell *c, const char *const word[4])
{
    for (int w = 0; w < 4; w++)
        if (strncmp(c->word[w], word[w], HL_PLANE_WORD - 1))
            return false;
    return true;
}

/* Returns the cell of these words, or the first free one of its probe sequence; NULL if there is
 * neither. */
static struct hl_plane_cell *probe_cell(struct hl_plane_cells *t, uint32_t hash,
                                        const char *const word[4], bool *found)
{
    for (uint32_t i = 0; i < HL_PLANE_PATHS_MAX; i++) {
        struct hl_plane_cell *c = &t->cell[(hash + i) % HL_PLANE_PATHS_MAX];
        *found = atomic_load_explicit(&c->ready, memory_order_acquire);
        if (!*found || same_words(c, word))
            return c;
    }
    *found = false;
    return NULL;
}

static struct hl_plane_cell *find_cell(struct hl_plane_cells *t, const char *const word[4])
{
    bool found;
    uint32_t hash = hash_words(word);
    struct hl_plane_cell *c = probe_cell(t, hash, word, &found);
    if (found)
        return c;
    /* A full table needs no lock: cells are never removed. */
    if (!c)
        return &t->other;
    pthread_mutex_lock(&t->lock);
    c = probe_cell(t, hash, word, &found); /* another thread may have added it meanwhile */
    if (c && !found) {
        for (int w = 0; w < 4; w++)
            memcpy(c->word[w], word[w], strnlen(word[w], HL_PLANE_WORD - 1));
        atomic_store_explicit(&c->ready, true, memory_order_release);
    }
    pthread_mutex_unlock(&t->lock);
    return c ? c : &t->other;
}

static const char *word_or_none(const char *s)
{
    return s ? s : "";
}

void hl_path_add(const char *op, const char *path, const char *reason, bool failed, uint64_t ops,
                 uint64_t bytes)
{
    const char *const word[4] = {word_or_none(op), word_or_none(path), word_or_none(reason),
                                 failed ? "failed" : "ok"};
    struct hl_plane_cell *c = find_cell(&hl_plane_table.paths, word);
    plane_counter_add(&c->ops, ops);
    plane_counter_add(&c->bytes, bytes);
}

void hl_fault_add(const char *cause, const char *path, uint64_t count)
{
    const char *const word[4] = {word_or_none(cause), word_or_none(path), "", ""};
    if (count)
        plane_counter_add(&find_cell(&hl_plane_table.faults, word)->ops, count);
}

void hl_fault_count(const char *cause, const char *path)
{
    hl_fault_add(cause, path, 1);
}

/* With the lock held, because two calls must not report the same counts. Counting continues
 * meanwhile: what is added after `now` was read is left for the next take. */
size_t hl_fault_take(struct hl_fault *out, size_t max)
{
    struct hl_plane_cells *t = &hl_plane_table.faults;
    size_t n = 0;
    pthread_mutex_lock(&t->lock);
    for (size_t i = 0; i < HL_PLANE_PATHS_MAX && n < max; i++) {
        struct hl_plane_cell *c = &t->cell[i];
        uint64_t now = counter_value(&c->ops);
        if (!atomic_load_explicit(&c->ready, memory_order_acquire) || now == c->reported)
            continue;
        out[n].count = now - c->reported;
        memcpy(out[n].cause, c->word[0], sizeof(out[n].cause));
        memcpy(out[n++].path, c->word[1], sizeof(out[0].path));
        c->reported = now;
    }
    pthread_mutex_unlock(&t->lock);
    return n;
}

/* ---- the last second ------------------------------------------------------------------------- */

/* One word holds which second it is (the low 20 bits of it, on top) and how many bytes (44 bits: 16
 * TiB), so the first transfer of a second restarts the count without a lock. */
#define SECOND_SHIFT 44
#define SECOND_MASK  ((UINT64_C(1) << (64 - SECOND_SHIFT)) - 1)
#define BYTES_MASK   ((UINT64_C(1) << SECOND_SHIFT) - 1)

static void second_add(struct hl_plane_line *line, int dir, uint64_t second, uint64_t bytes)
{
    atomic_uint_fast64_t *slot = &line->seconds[second % HL_PLANE_SECONDS][dir];
    uint_fast64_t old = atomic_load_explicit(slot, memory_order_relaxed), new;
    do {
        uint64_t held = (old >> SECOND_SHIFT) == (second & SECOND_MASK) ? old & BYTES_MASK : 0;
        held = bytes > BYTES_MASK - held ? BYTES_MASK : held + bytes;
        new = (second & SECOND_MASK) << SECOND_SHIFT | held;
    } while (!atomic_compare_exchange_weak_explicit(slot, &old, new, memory_order_relaxed,
                                                    memory_order_relaxed));
}

static uint64_t second_bytes(const struct hl_plane_line *line, int dir, uint64_t second)
{
    uint64_t word = counter_value(&line->seconds[second % HL_PLANE_SECONDS][dir]);
    return (word >> SECOND_SHIFT) == (second & SECOND_MASK) ? word & BYTES_MASK : 0;
}

/* A long transfer used the line in each second of its duration; only the last two seconds are
 * kept. */
static void seconds_add(struct hl_plane_line *line, const struct hl_transfer *t, uint64_t now_ns)
{
    uint64_t second = now_ns / HL_NS_PER_S, in_this = now_ns % HL_NS_PER_S;
    int dir = t->sent != 0;
    if (t->ns <= in_this) {
        second_add(line, dir, second, t->bytes);
        return;
    }
    uint64_t before = t->ns - in_this < HL_NS_PER_S ? t->ns - in_this : HL_NS_PER_S;
    double per_ns = (double)t->bytes / (double)t->ns;
    second_add(line, dir, second, (uint64_t)(per_ns * (double)in_this));
    if (second)
        second_add(line, dir, second - 1, (uint64_t)(per_ns * (double)before));
}

/* ---- planes ---------------------------------------------------------------------------------- */

unsigned hl_plane_bucket(uint64_t ns)
{
    unsigned i = 0;
    while (i + 1 < HL_PLANE_BUCKETS && ns > UINT64_C(250) << i)
        i++;
    return i;
}

double hl_plane_quantile_us(const uint64_t latency[HL_PLANE_BUCKETS], double q)
{
    uint64_t all = 0, seen = 0;
    for (unsigned i = 0; i < HL_PLANE_BUCKETS; i++)
        all += latency[i];
    if (all == 0)
        return 0;
    double rank = ceil(q * (double)all);
    for (unsigned i = 0; i < HL_PLANE_BUCKETS; i++) {
        seen += latency[i];
        if (seen && (double)seen >= rank)
            return ldexp(0.25, (int)i);
    }
    return ldexp(0.25, HL_PLANE_BUCKETS - 1);
}

static struct hl_plane_line *line_of(const struct hl_transfer *t)
{
    return t->plane < HL_PLANE_COUNT ? &hl_plane_table.line[t->plane] : NULL;
}

static void count_transfer(struct hl_plane_line *line, const struct hl_transfer *t, uint64_t ops)
{
    int dir = t->sent != 0;
    plane_counter_add(&line->ops[dir], ops);
    plane_counter_add(&line->bytes[dir], t->bytes);
    plane_counter_add(&line->failed, t->status != HL_OK ? ops : 0);
    hl_path_add(t->op, t->path, t->reason, t->status != HL_OK, ops, t->bytes);
}

void hl_plane_count_at(const struct hl_transfer *t, uint64_t now_ns)
{
    struct hl_plane_line *line = line_of(t);
    if (!line)
        return;
    count_transfer(line, t, 1);
    seconds_add(line, t, now_ns);
    if (t->status == HL_OK && t->ns) {
        plane_counter_add(&line->latency[hl_plane_bucket(t->ns)], 1);
        plane_counter_add(&line->latency_ns, t->ns);
    }
}

void hl_plane_count(const struct hl_transfer *t)
{
    hl_plane_count_at(t, hl_now_ns());
}

void hl_plane_add(const struct hl_transfer *t, uint64_t ops,
                  const uint64_t latency[HL_PLANE_BUCKETS])
{
    struct hl_plane_line *line = line_of(t);
    if (!line || !ops)
        return;
    count_transfer(line, t, ops);
    second_add(line, t->sent != 0, hl_now_ns() / HL_NS_PER_S, t->bytes);
    for (unsigned i = 0; latency && i < HL_PLANE_BUCKETS; i++)
        plane_counter_add(&line->latency[i], latency[i]);
    plane_counter_add(&line->latency_ns, latency ? t->ns : 0);
}

void hl_plane_set_rate(enum hl_plane plane, uint64_t bits_per_second)
{
    if (plane < HL_PLANE_COUNT)
        atomic_store_explicit(&hl_plane_table.line[plane].rate, bits_per_second,
                              memory_order_relaxed);
}

void hl_plane_set_place(enum hl_plane plane, const char *address, const char *interface)
{
    if (plane >= HL_PLANE_COUNT)
        return;
    char(*place)[HL_PLANE_PLACE] = hl_plane_table.place[plane];
    pthread_mutex_lock(&hl_plane_table.lock);
    memset(place, 0, sizeof(hl_plane_table.place[plane]));
    memcpy(place[0], address, strnlen(address, HL_PLANE_PLACE - 1));
    memcpy(place[1], interface, strnlen(interface, HL_PLANE_PLACE - 1));
    pthread_mutex_unlock(&hl_plane_table.lock);
}

uint64_t hl_plane_line(enum hl_plane plane, char interface[HL_PLANE_PLACE])
{
    pthread_mutex_lock(&hl_plane_table.lock);
    memcpy(interface, hl_plane_table.place[plane][1], HL_PLANE_PLACE);
    pthread_mutex_unlock(&hl_plane_table.lock);
    return counter_value(&hl_plane_table.line[plane].rate);
}

void hl_plane_stats_at(enum hl_plane plane, uint64_t now_ns, struct hl_plane_stats *out)
{
    const struct hl_plane_line *line = &hl_plane_table.line[plane];
    struct hl_plane_stats s = {.busy_pct = -1};
    for (int dir = 0; dir < 2; dir++) {
        s.ops[dir] = counter_value(&line->ops[dir]);
        s.bytes[dir] = counter_value(&line->bytes[dir]);
    }
    s.failed = counter_value(&line->failed);
    s.rate = counter_value(&line->rate);
    s.latency_ns = counter_value(&line->latency_ns);
    for (unsigned i = 0; i < HL_PLANE_BUCKETS; i++)
        s.latency[i] = counter_value(&line->latency[i]);
    s.p50_us = hl_plane_quantile_us(s.latency, 0.50);
    s.p99_us = hl_plane_quantile_us(s.latency, 0.99);
    uint64_t second = now_ns / HL_NS_PER_S;
    if (s.rate && second) {
        uint64_t in = second_bytes(line, 0, second - 1), out_ = second_bytes(line, 1, second - 1);
        s.busy_pct = 100.0 * 8.0 * (double)(in > out_ ? in : out_) / (double)s.rate;
    }
    *out = s;
}

void hl_plane_stats(enum hl_plane plane, struct hl_plane_stats *out)
{
    hl_plane_stats_at(plane, hl_now_ns(), out);
}
