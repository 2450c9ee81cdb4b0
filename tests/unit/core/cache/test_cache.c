/* Caches: each rule on a sequence worked out by hand, and compared with a model of arrays that
 * follows the papers line by line. */
#include <stdlib.h>
#include <string.h>

#include "core/cache/cache.h"
#include "core/cache/cache_queues.h"
#include "support/test.h"

static bool read_shard(struct hl_cache *c, uint32_t shard, uint64_t size)
{
    bool hit;
    assert_int_equal(hl_cache_access(c, shard, size, &hit), HL_OK);
    assert_true(c->used <= c->capacity);
    return hit;
}

/* "ABC": reads of objects of size 1. */
static void read_all(struct hl_cache *c, const char *text)
{
    for (; *text != '\0'; text++)
        read_shard(c, (uint32_t)*text, 1);
}

static void expect(const struct hl_cache *c, const char *in, const char *out)
{
    for (; *in != '\0'; in++)
        if (!hl_cache_has(c, (uint32_t)*in))
            fail_msg("%c is not in the cache", *in);
    for (; *out != '\0'; out++)
        if (hl_cache_has(c, (uint32_t)*out))
            fail_msg("%c is in the cache", *out);
}

static struct hl_cache make_cache(enum hl_cache_kind kind, uint64_t capacity)
{
    struct hl_cache c;
    assert_int_equal(hl_cache_init(&c, kind, capacity, 1), HL_OK);
    return c;
}

TEST(lru_evicts_what_was_read_longest_ago)
{
    struct hl_cache c = make_cache(HL_CACHE_LRU, 3);
    read_all(&c, "ABCAD");
    expect(&c, "ACD", "B");
    hl_cache_fini(&c);
}

TEST(lfu_evicts_what_was_read_least_and_of_equals_the_oldest)
{
    struct hl_cache c = make_cache(HL_CACHE_LFU, 3);
    read_all(&c, "AABCD");
    expect(&c, "ACD", "B");
    read_all(&c, "CE");
    expect(&c, "ACE", "D");
    hl_cache_fini(&c);
}

TEST(sieve_spares_what_was_read_since_the_hand_came_by)
{
    struct hl_cache c = make_cache(HL_CACHE_SIEVE, 3);
    read_all(&c, "ABCAD"); /* A is spared, B leaves, the hand stops at C */
    expect(&c, "ACD", "B");
    read_all(&c, "E"); /* C leaves although A is older */
    expect(&c, "ADE", "C");
    read_all(&c, "DEF"); /* D and E are spared; from the tail again: A */
    expect(&c, "DEF", "A");
    hl_cache_fini(&c);
}

TEST(s3fifo_keeps_in_main_what_was_read_twice_or_is_a_ghost)
{
    struct hl_cache c = make_cache(HL_CACHE_S3FIFO, 10);
    read_all(&c, "ABCDEFGHIJ"); /* all in the small queue */
    read_all(&c, "AAB");
    read_all(&c, "K"); /* A goes to the main queue, B leaves */
    expect(&c, "ACDEFGHIJK", "B");
    read_all(&c, "B"); /* a ghost: goes to the main queue; C leaves */
    expect(&c, "ABDEFGHIJK", "C");
    read_all(&c, "LMNOPQRS"); /* these pass through; the two in the main queue stay */
    expect(&c, "ABLMNOPQRS", "DEFGHIJK");
    hl_cache_fini(&c);
}

TEST(wtinylfu_admits_what_is_read_more_often_than_the_oldest)
{
    struct hl_cache c = make_cache(HL_CACHE_WTINYLFU, 100);
    for (uint32_t i = 0; i < 100; i++)
        read_shard(&c, i, 1);
    read_shard(&c, 100, 1); /* 99 leaves the window and has been read no more often than 0 */
    assert_true(hl_cache_has(&c, 0) && !hl_cache_has(&c, 99) && hl_cache_has(&c, 100));
    read_shard(&c, 100, 1);
    read_shard(&c, 100, 1);
    read_shard(&c, 101, 1); /* 100 is: 0 leaves */
    assert_true(!hl_cache_has(&c, 0) && hl_cache_has(&c, 100) && hl_cache_has(&c, 101));
    hl_cache_fini(&c);
}

TEST(gdsf_weighs_reads_by_size_and_ages)
{
    struct hl_cache c = make_cache(HL_CACHE_GDSF, 10);
    read_shard(&c, 'A', 4); /* 1/4 */
    read_shard(&c, 'B', 2); /* 1/2 */
    read_shard(&c, 'C', 4); /* 1/4 */
    read_shard(&c, 'D', 1); /* A leaves, L = 1/4, D = 5/4 */
    expect(&c, "BCD", "A");
    read_shard(&c, 'A', 4); /* C leaves, A = 1/2 */
    read_shard(&c, 'E', 4); /* B leaves: 1/2, and older than A */
    expect(&c, "ADE", "BC");
    hl_cache_fini(&c);
}

TEST(static_keeps_what_came_first)
{
    struct hl_cache c = make_cache(HL_CACHE_STATIC, 2);
    read_all(&c, "ABCC");
    expect(&c, "AB", "C");
    hl_cache_fini(&c);
}

TEST(the_sketch_counts_to_15_and_halves)
{
    struct hl_cache_sketch k;
    assert_int_equal(hl_sketch_init(&k, 10), HL_OK);
    assert_int_equal(hl_sketch_count(&k, 7), 0);
    for (int i = 0; i < 40; i++)
        hl_sketch_add(&k, 7);
    assert_int_equal(hl_sketch_count(&k, 7), 15); /* 15 were counted */
    for (uint32_t i = 0; i < 85; i++)
        hl_sketch_add(&k, 1000 + i);
    assert_int_equal(hl_sketch_count(&k, 7), 7); /* 100 additions are the sample of 10 objects */
    free(k.table);
}

TEST(evicting_takes_what_a_new_object_would_push_out)
{
    for (int kind = 0; kind < HL_CACHE_KINDS; kind++) {
        struct hl_cache a = make_cache((enum hl_cache_kind)kind, 10);
        struct hl_cache b = make_cache((enum hl_cache_kind)kind, 10);
        read_all(&a, "ABCDEFGHIJAABCD");
        read_all(&b, "ABCDEFGHIJAABCD");
        if (kind == HL_CACHE_STATIC) {
            assert_false(hl_cache_evict(&a));
        } else if (kind != HL_CACHE_WTINYLFU) { /* there the new one is itself a candidate */
            assert_true(hl_cache_evict(&a));
            assert_int_equal(a.used, 9);
            read_all(&b, "Z");
            for (const char *p = "ABCDEFGHIJ"; *p != '\0'; p++)
                assert_int_equal(hl_cache_has(&a, (uint32_t)*p), hl_cache_has(&b, (uint32_t)*p));
        }
        for (int i = 0; kind != HL_CACHE_STATIC && a.used > 0; i++)
            assert_true(i < 10 && hl_cache_evict(&a));
        hl_cache_fini(&a);
        hl_cache_fini(&b);
    }
}

/* ---- a model --------------------------------------------------------------------------------- */

#define MODEL_MAX 4096

struct model_item {
    uint32_t shard;
    uint64_t size, frequency, used_at;
    double score;
};

/* Oldest first. */
struct model_queue {
    struct model_item items[MODEL_MAX];
    int count;
};

struct model {
    enum hl_cache_kind kind;
    uint64_t capacity, now;
    struct model_queue q[3];
    uint32_t hand; /* shard + 1; 0: at the oldest one */
    double inflation;
    struct hl_cache_sketch sketch;
};

static int place_in(const struct model_queue *q, uint32_t shard)
{
    for (int i = 0; i < q->count; i++)
        if (q->items[i].shard == shard)
            return i;
    return -1;
}

static struct model_item take_at(struct model_queue *q, int at)
{
    struct model_item item = q->items[at];
    memmove(&q->items[at], &q->items[at + 1], (size_t)(--q->count - at) * sizeof(item));
    return item;
}

static void push_item(struct model_queue *q, struct model_item item)
{
    assert_true(q->count < MODEL_MAX);
    q->items[q->count++] = item;
}

static uint64_t bytes_in(const struct model_queue *q)
{
    uint64_t sum = 0;
    for (int i = 0; i < q->count; i++)
        sum += q->items[i].size;
    return sum;
}

static uint64_t model_used(const struct model *m)
{
    return bytes_in(&m->q[0]) + bytes_in(&m->q[1]) +
           (m->kind == HL_CACHE_WTINYLFU ? bytes_in(&m->q[2]) : 0);
}

/* lru, lfu, gdsf: the lowest score leaves; among equals the least recently used. */
static void evict_least(struct model *m)
{
    int least = 0;
    for (int i = 1; i < m->q[0].count; i++) {
        const struct model_item *a = &m->q[0].items[i], *b = &m->q[0].items[least];
        if (a->score < b->score || (a->score <= b->score && a->used_at < b->used_at))
            least = i;
    }
    double score = take_at(&m->q[0], least).score;
    m->inflation = m->kind == HL_CACHE_GDSF ? score : 0;
}

static void model_score(struct model *m, struct model_item *item)
{
    item->frequency++;
    item->used_at = m->now;
    item->score = m->kind == HL_CACHE_LFU ? (double)item->frequency
                  : m->kind == HL_CACHE_GDSF
                      ? m->inflation + (double)item->frequency / (double)item->size
                      : 0;
}

static void evict_sieve(struct model *m)
{
    struct model_queue *q = &m->q[0];
    int at = m->hand == 0 ? 0 : place_in(q, m->hand - 1);
    while (q->items[at].frequency > 0) {
        q->items[at].frequency = 0;
        at = (at + 1) % q->count;
    }
    m->hand = at + 1 < q->count ? q->items[at + 1].shard + 1 : 0;
    take_at(q, at);
}

/* Algorithm 1 of the S3-FIFO paper. */
static void evict_s3fifo(struct model *m)
{
    struct model_queue *small = &m->q[0], *main_queue = &m->q[1], *ghost = &m->q[2];
    if ((bytes_in(small) >= m->capacity / 10 && small->count > 0) || main_queue->count == 0) {
        while (small->count > 0) {
            struct model_item t = take_at(small, 0);
            bool frequent = t.frequency > 1;
            t.frequency = 0;
            push_item(frequent ? main_queue : ghost, t);
            if (frequent)
                continue;
            while (bytes_in(ghost) > m->capacity * 9 / 10)
                take_at(ghost, 0);
            return;
        }
        return;
    }
    for (;;) {
        struct model_item t = take_at(main_queue, 0);
        if (t.frequency == 0)
            return;
        t.frequency--;
        push_item(main_queue, t);
    }
}

static void hit_wtinylfu(struct model *m, int queue, int at)
{
    uint64_t room = (m->capacity * 99 / 100) * 80 / 100;
    struct model_item item = take_at(&m->q[queue], at);
    push_item(&m->q[queue == 1 && item.size <= room ? 2 : queue], item);
    while (bytes_in(&m->q[2]) > room)
        push_item(&m->q[1], take_at(&m->q[2], 0));
}

/* The oldest of the main queues, or of the window if they are empty. */
static void evict_victim(struct model *m)
{
    static const int order[] = {1, 2, 0};
    for (int i = 0; i < 3; i++)
        if (m->q[order[i]].count > 0) {
            take_at(&m->q[order[i]], 0);
            return;
        }
}

/* Caffeine's evictFromMain: candidates are the last ones of probation, then those of the window,
 * oldest first; the victim is the oldest of probation. */
static void evict_wtinylfu(struct model *m, int candidates)
{
    struct model_queue *window = &m->q[0], *probation = &m->q[1];
    int at = 0; /* of the window */
    while (model_used(m) > m->capacity) {
        bool of_probation = candidates > 0;
        struct model_queue *from = of_probation ? probation : window;
        int candidate = of_probation ? probation->count - candidates : at;
        if (candidate >= from->count) {
            evict_victim(m);
        } else if (probation->count == 0) {
            take_at(from, candidate);
        } else if (of_probation &&
                   candidate == 0) { /* victim and candidate: the rest are victims */
            take_at(probation, 0);
            candidates = 0;
        } else if (hl_sketch_count(&m->sketch, from->items[candidate].shard) >
                   hl_sketch_count(&m->sketch, probation->items[0].shard)) {
            take_at(probation, 0);
            candidates -= of_probation;
            at += !of_probation;
        } else {
            take_at(from, candidate);
            candidates -= of_probation;
        }
    }
}

static bool model_hit(struct model *m, uint32_t shard)
{
    int queues = m->kind == HL_CACHE_WTINYLFU ? 3 : 2;
    for (int i = 0; i < queues; i++) {
        int at = place_in(&m->q[i], shard);
        if (at < 0)
            continue;
        struct model_item *item = &m->q[i].items[at];
        if (m->kind == HL_CACHE_WTINYLFU)
            hit_wtinylfu(m, i, at);
        else if (m->kind == HL_CACHE_S3FIFO)
            item->frequency = item->frequency < 3 ? item->frequency + 1 : 3;
        else
            model_score(m, item);
        return true;
    }
    return false;
}

static bool model_read(struct model *m, uint32_t shard, uint64_t size)
{
    m->now++;
    if (m->kind == HL_CACHE_WTINYLFU)
        hl_sketch_add(&m->sketch, shard);
    if (model_hit(m, shard))
        return true;
    if (size > m->capacity || (m->kind == HL_CACHE_STATIC && model_used(m) + size > m->capacity))
        return false;
    struct model_item item = {.shard = shard, .size = size};
    int at = m->kind == HL_CACHE_S3FIFO ? place_in(&m->q[2], shard) : -1, candidates = 0;
    if (at >= 0)
        take_at(&m->q[2], at);
    if (m->kind != HL_CACHE_SIEVE && m->kind != HL_CACHE_S3FIFO)
        model_score(m, &item);
    while (m->kind != HL_CACHE_WTINYLFU && model_used(m) + size > m->capacity) {
        if (m->kind == HL_CACHE_SIEVE)
            evict_sieve(m);
        else if (m->kind == HL_CACHE_S3FIFO)
            evict_s3fifo(m);
        else
            evict_least(m);
    }
    if (m->kind == HL_CACHE_GDSF) /* L has grown */
        item.score = m->inflation + 1 / (double)size;
    push_item(&m->q[at >= 0 ? 1 : 0], item);
    if (m->kind != HL_CACHE_WTINYLFU)
        return false;
    uint64_t window = m->capacity - m->capacity * 99 / 100;
    if (size > window) { /* leaves the window first */
        struct model_item last = take_at(&m->q[0], m->q[0].count - 1);
        memmove(&m->q[0].items[1], &m->q[0].items[0], (size_t)m->q[0].count++ * sizeof(last));
        m->q[0].items[0] = last;
    }
    for (; bytes_in(&m->q[0]) > window; candidates++)
        push_item(&m->q[1], take_at(&m->q[0], 0));
    evict_wtinylfu(m, candidates);
    return false;
}

static void compare_with_model(enum hl_cache_kind kind, uint64_t capacity, unsigned seed)
{
    static struct model m;
    struct hl_cache c = make_cache(kind, capacity);
    memset(&m, 0, sizeof(m));
    m.kind = kind;
    m.capacity = capacity;
    assert_int_equal(hl_sketch_init(&m.sketch, capacity), HL_OK);
    uint64_t state = seed;
    for (int i = 0; i < 3000; i++) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uint32_t a = (uint32_t)(state >> 33) % 60, b = (uint32_t)(state >> 45) % 60;
        uint32_t shard = a < b ? a : b; /* low numbers more often */
        uint64_t size = 1 + shard * 7 % 20;
        bool expected = model_read(&m, shard, size);
        if (read_shard(&c, shard, size) != expected || c.used != model_used(&m))
            fail_msg("%s, capacity %d, seed %u: access %d differs", hl_cache_name(kind),
                     (int)capacity, seed, i);
    }
    free(m.sketch.table);
    hl_cache_fini(&c);
}

TEST(every_rule_does_what_its_model_does)
{
    for (int kind = 0; kind < HL_CACHE_KINDS; kind++)
        for (unsigned seed = 1; seed <= 12; seed++) {
            compare_with_model((enum hl_cache_kind)kind, 15, seed); /* some do not fit */
            compare_with_model((enum hl_cache_kind)kind, 100, seed);
            compare_with_model((enum hl_cache_kind)kind, 300, seed);
        }
}
