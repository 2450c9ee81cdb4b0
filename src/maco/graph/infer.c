/* Walks through the tasks in order with a map of memory: segments, each with its last writer and
 * the tasks that have read it since. A write merges everything that it covers into one segment. So
 * each segment is created and dropped once, and the time grows with the number of tasks and
 * dependencies, not with their square. The places where segments can begin are known in advance, so
 * the map is an array; a tree of bits over it finds neighbours. Lists of readers share tails, so
 * splitting a segment copies nothing. */
#include "maco/graph/graph.h"

#include <stdlib.h>
#include <string.h>

#include "maco/graph/pieces.h"

#define LEVELS 6 /* 64^6 places */

struct segment_reader {
    uint32_t task, next, seen; /* seen: the last task that walked over it */
};

struct walk {
    struct hl_maco_pieces pieces;
    uint32_t *lo, *hi; /* places where each piece begins and ends */
    size_t places;
    uint64_t *bits[LEVELS];
    uint32_t *writer, *readers; /* of the segment that begins at a place, or MACO_NONE */
    struct segment_reader *reader;
    size_t n_readers, reader_cap;
    uint32_t *linked; /* the last task that was linked to this one */
    hl_maco_conflict_fn found;
    void *arg;
};

/* ---- where segments begin ---- */

static void bit_set(struct walk *w, size_t at)
{
    for (int l = 0; l < LEVELS; l++, at /= 64)
        w->bits[l][at / 64] |= 1ull << (at % 64);
}

static void bit_clear(struct walk *w, size_t at)
{
    for (int l = 0; l < LEVELS; l++, at /= 64)
        if ((w->bits[l][at / 64] &= ~(1ull << (at % 64))) != 0)
            return;
}

/* The last segment start at or before `at`; there always is one. */
static size_t bit_before(const struct walk *w, size_t at)
{
    int l = 0;
    uint64_t word = w->bits[0][at / 64] & (UINT64_MAX >> (63 - at % 64));
    while (word == 0) {
        at /= 64;
        l++;
        word = at % 64 == 0 ? 0 : w->bits[l][at / 64] & (UINT64_MAX >> (64 - at % 64));
    }
    at = at / 64 * 64 + 63 - (size_t)__builtin_clzll(word);
    while (l-- > 0)
        at = at * 64 + 63 - (size_t)__builtin_clzll(w->bits[l][at]);
    return at;
}

/* The first segment start after `at`; SIZE_MAX: none. */
static size_t bit_after(const struct walk *w, size_t at)
{
    int l = 0;
    uint64_t word = 0;
    for (; l < LEVELS; l++, at /= 64) {
        word = at % 64 == 63 ? 0 : w->bits[l][at / 64] & (UINT64_MAX << (at % 64 + 1));
        if (word != 0)
            break;
    }
    if (l == LEVELS)
        return SIZE_MAX;
    at = at / 64 * 64 + (size_t)__builtin_ctzll(word);
    while (l-- > 0)
        at = at * 64 + (size_t)__builtin_ctzll(w->bits[l][at]);
    return at;
}

static void split_segment(struct walk *w, size_t at)
{
    size_t begin = bit_before(w, at);
    if (begin == at)
        return;
    bit_set(w, at);
    w->writer[at] = w->writer[begin];
    w->readers[at] = w->readers[begin];
}

/* ---- conflicts of a task ---- */

static hl_status tell_conflict(struct walk *w, uint32_t task, uint32_t on,
                               enum hl_maco_conflict how)
{
    if (on == MACO_NONE || on == task || w->linked[on] == task)
        return HL_OK;
    w->linked[on] = task;
    return w->found(w->arg, task, on, how);
}

static hl_status meet_read(struct walk *w, uint32_t task, size_t at)
{
    uint32_t head = w->readers[at];
    HL_TRY(tell_conflict(w, task, w->writer[at], HL_MACO_RAW));
    if (head != MACO_NONE && w->reader[head].task == task)
        return HL_OK;
    if (w->n_readers >= MACO_NONE)
        return hl_fail(HL_EINVAL, "tasks read too many pieces of memory. Hint: use fewer ranges");
    HL_TRY(hl_maco_grow(&w->reader, &w->reader_cap, w->n_readers, 1, sizeof(*w->reader)));
    w->reader[w->n_readers] =
        (struct segment_reader){.task = task, .next = head, .seen = MACO_NONE};
    w->readers[at] = (uint32_t)w->n_readers++;
    return HL_OK;
}

static hl_status meet_write(struct walk *w, uint32_t task, size_t at)
{
    uint32_t r = w->readers[at];
    int others = 0;
    for (; r != MACO_NONE && w->reader[r].seen != task; r = w->reader[r].next) {
        w->reader[r].seen = task;
        others |= w->reader[r].task != task;
        HL_TRY(tell_conflict(w, task, w->reader[r].task, HL_MACO_WAR));
    }
    /* If there are readers since the last write, they wait for that writer. */
    return others || r != MACO_NONE ? HL_OK : tell_conflict(w, task, w->writer[at], HL_MACO_WAW);
}

static hl_status visit_piece(struct walk *w, size_t i)
{
    const struct hl_maco_access *a = &w->pieces.access[w->pieces.piece[i].access];
    size_t lo = w->lo[i], hi = w->hi[i];
    split_segment(w, lo);
    split_segment(w, hi);
    for (size_t at = lo; at < hi;) {
        size_t next = bit_after(w, at);
        HL_TRY(a->write ? meet_write(w, a->task, at) : meet_read(w, a->task, at));
        if (a->write && at != lo)
            bit_clear(w, at);
        at = next;
    }
    if (a->write) {
        w->writer[lo] = a->task;
        w->readers[lo] = MACO_NONE;
    }
    return HL_OK;
}

/* ---- places ---- */

/* Numbers the ends of all pieces by strip, then coordinate. */
static hl_status number_ends(struct walk *w, uint64_t *key, uint32_t *end)
{
    const struct hl_maco_piece *p = w->pieces.piece;
    size_t n = w->pieces.n * 2, place = 0;
    for (size_t i = 0; i < n; i++) {
        key[i] = i % 2 == 0 ? p[i / 2].lo : p[i / 2].hi;
        end[i] = (uint32_t)i;
    }
    HL_TRY(hl_maco_sort(key, end, n));
    for (size_t i = 0; i < n; i++)
        key[i] = p[end[i] / 2].strip;
    HL_TRY(hl_maco_sort(key, end, n));
    uint64_t last = 0;
    for (size_t i = 0; i < n; i++) {
        uint64_t at = end[i] % 2 == 0 ? p[end[i] / 2].lo : p[end[i] / 2].hi;
        place += i > 0 && (key[i] != key[i - 1] || at != last);
        last = at;
        (end[i] % 2 == 0 ? w->lo : w->hi)[end[i] / 2] = (uint32_t)place;
        if (i == 0 || key[i] != key[i - 1])
            bit_set(w, place);
    }
    w->places = place + 1;
    return HL_OK;
}

static hl_status walk_alloc(struct walk *w, size_t tasks)
{
    size_t most = w->pieces.n * 2 + 1, bits = most;
    bool ok = true;
    for (int l = 0; l < LEVELS; l++) {
        bits = bits / 64 + 1;
        ok &= (w->bits[l] = calloc(bits, 8)) != NULL;
    }
    w->lo = malloc(most * sizeof(*w->lo));
    w->hi = malloc(most * sizeof(*w->hi));
    w->writer = malloc(most * sizeof(*w->writer));
    w->readers = malloc(most * sizeof(*w->readers));
    w->linked = malloc((tasks + 1) * sizeof(*w->linked));
    if (!ok || w->lo == NULL || w->hi == NULL || w->writer == NULL || w->readers == NULL ||
        w->linked == NULL)
        return hl_fail(HL_ENOMEM, "out of memory comparing what tasks write");
    memset(w->writer, 0xff, most * sizeof(*w->writer));
    memset(w->readers, 0xff, most * sizeof(*w->readers));
    memset(w->linked, 0xff, (tasks + 1) * sizeof(*w->linked));
    return HL_OK;
}

static hl_status walk_all(struct walk *w, size_t tasks)
{
    HL_TRY(walk_alloc(w, tasks));
    uint64_t *key = malloc((w->pieces.n * 2 + 1) * sizeof(*key));
    uint32_t *end = malloc((w->pieces.n * 2 + 1) * sizeof(*end));
    hl_status st = key == NULL || end == NULL
                       ? hl_fail(HL_ENOMEM, "out of memory comparing what tasks write")
                       : number_ends(w, key, end);
    free(key);
    free(end);
    for (size_t i = 0; i < w->pieces.n && st == HL_OK; i++)
        st = visit_piece(w, i);
    return st;
}

hl_status hl_maco_conflicts(const maco_graph *g, const uint32_t *order, hl_maco_conflict_fn found,
                            void *arg)
{
    struct walk w = {.found = found, .arg = arg};
    hl_status st = hl_maco_pieces_make(g, order, &w.pieces);
    if (st == HL_OK && w.pieces.n > 0)
        st = walk_all(&w, g->n);
    for (int l = 0; l < LEVELS; l++)
        free(w.bits[l]);
    free(w.lo);
    free(w.hi);
    free(w.writer);
    free(w.readers);
    free(w.reader);
    free(w.linked);
    hl_maco_pieces_fini(&w.pieces);
    return st;
}
