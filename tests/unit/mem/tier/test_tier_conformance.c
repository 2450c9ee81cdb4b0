/* What every tier promises, tested with every back end. */
#include <pthread.h>
#include <time.h>

#include "base/clock.h"
#include "support/copy_count.h"
#include "support/test.h"
#include "unit/mem/tier/tier_backends.h"

static struct hl_tier_usage usage_of(struct tier_rig *r)
{
    struct hl_tier_usage u;
    hl_tier_usage(r->tier, &u);
    assert_true(u.writing <= u.used);
    assert_true(u.used + u.quarantined <= u.quota);
    return u;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 500000}, NULL);
}

/* Waits until nothing is in quarantine. */
static void wait_for_rest(struct tier_rig *r)
{
    uint64_t deadline = hl_now_ns() + TEST_PATIENCE_NS;
    while (usage_of(r).quarantined > 0 && hl_now_ns() < deadline)
        nap();
    assert_int_equal(usage_of(r).quarantined, 0);
}

static void assert_ok(hl_status st)
{
    if (st != HL_OK)
        fail_msg("%s", hl_error_text());
}

static void fill_slot(struct tier_rig *r, const struct hl_tier_slot *slot, const struct shard *s)
{
    for (uint64_t at = 0; at < s->size;) {
        uint64_t n = s->size - at < 300007 ? s->size - at : 300007;
        assert_ok(hl_tier_fill(r->tier, slot, at, s->bytes + at, n));
        at += n;
    }
}

static hl_status seal_slot(struct tier_rig *r, const struct hl_tier_slot *slot,
                           const struct shard *s, struct hl_tier_ref *ref)
{
    uint32_t *crcs = chunk_crcs_of(s);
    hl_status st = hl_tier_seal(r->tier, slot, s->crc, crcs, hl_chunk_count(s->size), ref);
    free(crcs);
    return st;
}

static hl_status store(struct tier_rig *r, const struct shard *s, struct hl_tier_ref *ref)
{
    struct hl_tier_slot slot;
    HL_TRY(hl_tier_reserve(r->tier, s->id, s->size, -1, &slot));
    fill_slot(r, &slot, s);
    return seal_slot(r, &slot, s, ref);
}

static void assert_reads(struct tier_rig *r, const struct hl_tier_ref *ref, const struct shard *s,
                         uint64_t offset, size_t len)
{
    char *back = malloc(len + 1);
    assert_non_null(back);
    assert_ok(hl_tier_read(r->tier, ref, offset, back, len));
    assert_memory_equal(back, s->bytes + offset, len);
    free(back);
}

static int tier_setup(void **state)
{
    struct tier_rig *r = calloc(1, sizeof(*r));
    if (r == NULL)
        return -1;
    r->backend = *state;
    hl_status st = r->backend->open(r);
    if (st != HL_OK)
        print_error("%s: %s\n", r->backend->name, hl_error_text());
    *state = r;
    return st;
}

static int tier_teardown(void **state)
{
    struct tier_rig *r = *state;
    hl_status st = r->tier != NULL ? hl_tier_audit(r->tier) : HL_OK;
    if (st != HL_OK)
        print_error("%s\n", hl_error_text());
    hl_tier_close(r->tier);
    r->backend->close(r);
    free(r);
    return st;
}

static void a_copy_is_invisible_until_it_is_sealed_and_then_reads_as_written(void **state)
{
    static const uint64_t data[] = {1, 4000, MIB - 500, MIB, 2 * MIB + 77};
    struct tier_rig *r = *state;
    for (size_t i = 0; i < HL_ARRAY_LEN(data); i++) {
        struct shard s = shard_make(id_of(i + 1), data[i], (unsigned)i, 1);
        struct hl_tier_slot slot;
        struct hl_tier_ref sealed, found;
        uint64_t cursor = 0;
        uint32_t *crcs = chunk_crcs_of(&s), *kept = calloc(hl_chunk_count(s.size), 4);
        struct hl_tier_usage before = usage_of(r);
        assert_ok(hl_tier_reserve(r->tier, s.id, s.size, -1, &slot));
        assert_true(usage_of(r).writing >= s.size);
        assert_int_equal(usage_of(r).used, before.used + usage_of(r).writing);
        fill_slot(r, &slot, &s);
        assert_int_equal(hl_tier_find(r->tier, s.id, &found), HL_ENOENT);
        assert_int_equal(hl_tier_pin(r->tier, s.id, &found), HL_ENOENT);
        assert_int_equal(hl_tier_drop(r->tier, s.id), HL_ENOENT);
        assert_int_equal(hl_tier_list(r->tier, &cursor, &found, 1), i > 0);
        assert_ok(seal_slot(r, &slot, &s, &sealed));
        assert_ok(hl_tier_find(r->tier, s.id, &found));
        assert_true(hl_id_equal(found.id, s.id) && hl_id_equal(sealed.id, s.id));
        assert_true(found.gen == sealed.gen && found.offset == sealed.offset);
        assert_int_equal(found.size, s.size);
        assert_int_equal(found.crc32, s.crc);
        assert_int_equal(usage_of(r).shards, i + 1);
        assert_int_equal(usage_of(r).writing, 0);
        assert_reads(r, &found, &s, 0, s.size);
        assert_reads(r, &found, &s, s.size, 0);
        for (int k = 0; k < 10; k++) {
            uint64_t at = (uint64_t)rand() % s.size;
            assert_reads(r, &found, &s, at, (uint64_t)rand() % (s.size - at + 1));
        }
        char byte;
        assert_int_equal(hl_tier_read(r->tier, &found, s.size, &byte, 1), HL_EINVAL);
        assert_int_equal(hl_tier_read(r->tier, &found, UINT64_MAX, &byte, 1), HL_EINVAL);
        assert_ok(hl_tier_chunk_crcs(r->tier, &found, kept));
        assert_memory_equal(kept, crcs, hl_chunk_count(s.size) * 4);
        free(crcs);
        free(kept);
        free(s.bytes);
    }
}

static void an_id_is_taken_while_it_is_written_and_while_it_is_sealed(void **state)
{
    struct tier_rig *r = *state;
    struct shard s = shard_make(id_of(1), 5000, 1, 1);
    struct hl_tier_slot slot, second;
    assert_ok(hl_tier_reserve(r->tier, s.id, s.size, -1, &slot));
    struct hl_tier_usage before = usage_of(r);
    assert_int_equal(hl_tier_reserve(r->tier, s.id, s.size, -1, &second), HL_EEXIST);
    fill_slot(r, &slot, &s);
    assert_ok(seal_slot(r, &slot, &s, NULL));
    assert_int_equal(hl_tier_reserve(r->tier, s.id, s.size, -1, &second), HL_EEXIST);
    assert_int_equal(hl_tier_reserve(r->tier, s.id, 9, -1, &second), HL_EEXIST);
    assert_int_equal(usage_of(r).used, before.used);
    assert_int_equal(usage_of(r).writing, 0);
    free(s.bytes);
}

static void what_can_not_be_stored_is_refused(void **state)
{
    struct tier_rig *r = *state;
    struct hl_tier_slot slot;
    assert_int_equal(hl_tier_reserve(r->tier, (struct hl_id){0, 0}, 10, -1, &slot), HL_EINVAL);
    assert_int_equal(hl_tier_reserve(r->tier, id_of(1), 0, -1, &slot), HL_EINVAL);
    assert_int_equal(hl_tier_reserve(r->tier, id_of(1), UINT64_MAX, -1, &slot), HL_EINVAL);
    assert_int_equal(hl_tier_reserve(r->tier, id_of(1), r->backend->quota + 1, -1, &slot),
                     HL_ENOSPC);
    assert_ok(hl_tier_reserve(r->tier, id_of(1), 1000, -1, &slot));
    assert_int_equal(hl_tier_fill(r->tier, &slot, 990, "0123456789a", 11), HL_EINVAL);
    assert_int_equal(hl_tier_fill(r->tier, &slot, UINT64_MAX, "0", 1), HL_EINVAL);
    hl_tier_abort(r->tier, &slot);
    assert_int_equal(usage_of(r).used, 0);
}

static void checksums_that_do_not_add_up_are_not_sealed(void **state)
{
    struct tier_rig *r = *state;
    struct shard s = shard_make(id_of(1), MIB + 5000, 1, 1);
    struct hl_tier_slot slot;
    struct hl_tier_ref ref;
    uint32_t *crcs = chunk_crcs_of(&s);
    assert_ok(hl_tier_reserve(r->tier, s.id, s.size, -1, &slot));
    fill_slot(r, &slot, &s);
    struct hl_tier_usage before = usage_of(r);
    assert_int_equal(hl_tier_seal(r->tier, &slot, s.crc, crcs, 1, &ref), HL_EINVAL);
    assert_int_equal(hl_tier_seal(r->tier, &slot, s.crc ^ 1, crcs, 2, &ref), HL_ECORRUPT);
    crcs[1] ^= 1;
    assert_int_equal(hl_tier_seal(r->tier, &slot, s.crc, crcs, 2, &ref), HL_ECORRUPT);
    crcs[1] ^= 1;
    assert_int_equal(hl_tier_find(r->tier, s.id, &ref), HL_ENOENT);
    assert_int_equal(usage_of(r).writing, before.writing); /* still the caller's */
    assert_ok(hl_tier_seal(r->tier, &slot, s.crc, crcs, 2, &ref));
    assert_reads(r, &ref, &s, 0, s.size);
    free(crcs);
    free(s.bytes);
}

static void an_aborted_half_leaves_nothing(void **state)
{
    struct tier_rig *r = *state;
    struct shard s = shard_make(id_of(1), 2 * MIB, 1, 1);
    struct hl_tier_slot slot, again;
    struct hl_tier_ref ref;
    assert_ok(hl_tier_reserve(r->tier, s.id, s.size, -1, &slot));
    assert_ok(hl_tier_fill(r->tier, &slot, 0, s.bytes, MIB));
    hl_tier_abort(r->tier, &slot);
    assert_int_equal(usage_of(r).used + usage_of(r).quarantined, 0);
    hl_tier_abort(r->tier, &slot);
    assert_int_equal(hl_tier_fill(r->tier, &slot, 0, s.bytes, 10), HL_EINVAL);
    assert_int_equal(seal_slot(r, &slot, &s, &ref), HL_EINVAL);
    assert_ok(hl_tier_reserve(r->tier, s.id, s.size, -1, &again));
    fill_slot(r, &again, &s);
    assert_ok(seal_slot(r, &again, &s, &ref));
    hl_tier_abort(r->tier, &again); /* too late: it is sealed */
    assert_reads(r, &ref, &s, 0, s.size);
    free(s.bytes);
}

static void a_full_tier_says_so_and_loses_no_room(void **state)
{
    struct tier_rig *r = *state;
    struct shard s = shard_make(id_of(999), r->backend->quota / 9, 1, 1);
    struct hl_tier_slot slot[16];
    int n = 0;
    hl_status st = HL_OK;
    while (n < 16 &&
           (st = hl_tier_reserve(r->tier, id_of((uint64_t)n + 1), s.size, -1, &slot[n])) == HL_OK)
        n++;
    assert_int_equal(st, HL_ENOSPC);
    assert_error_has("free");
    struct hl_tier_usage full = usage_of(r);
    uint64_t room = full.used / (uint64_t)n; /* with what the medium's units take */
    assert_true(room >= s.size && room * (uint64_t)n == full.used);
    assert_int_equal(n, full.quota / room);
    assert_int_equal(full.writing, full.used);
    for (int i = 0; i < 50; i++)
        assert_int_equal(hl_tier_reserve(r->tier, id_of(100), s.size, -1, &slot[15]), HL_ENOSPC);
    assert_int_equal(usage_of(r).used, full.used);
    hl_tier_abort(r->tier, &slot[3]);
    assert_ok(hl_tier_reserve(r->tier, s.id, s.size, -1, &slot[3]));
    assert_int_equal(usage_of(r).used, full.used);
    fill_slot(r, &slot[3], &s);
    assert_ok(seal_slot(r, &slot[3], &s, NULL));
    for (int i = 0; i < n; i++)
        hl_tier_abort(r->tier, &slot[i]);
    assert_int_equal(usage_of(r).used, full.used / (uint64_t)n);
    assert_int_equal(usage_of(r).writing, 0);
    free(s.bytes);
}

static void what_was_dropped_is_gone_and_its_room_comes_back(void **state)
{
    struct tier_rig *r = *state;
    struct shard s = shard_make(id_of(1), r->backend->quota / 4 * 3, 1, 1),
                 other = shard_make(id_of(2), 9, 2, 1);
    struct hl_tier_ref ref, again, rest;
    char byte;
    assert_ok(store(r, &s, &ref));
    assert_ok(store(r, &other, &rest));
    assert_int_equal(hl_tier_reserve(r->tier, id_of(3), s.size, -1, &(struct hl_tier_slot){0}),
                     HL_ENOSPC);
    assert_ok(hl_tier_drop(r->tier, s.id));
    assert_int_equal(hl_tier_find(r->tier, s.id, &again), HL_ENOENT);
    assert_int_equal(hl_tier_drop(r->tier, s.id), HL_ENOENT);
    wait_for_rest(r);
    assert_int_equal(usage_of(r).shards, 1);
    hl_status st = hl_tier_read(r->tier, &ref, 0, &byte, 1);
    assert_true(st == HL_ESTALE || st == HL_ENOENT);
    assert_ok(store(r, &s, &again)); /* the same id, once more */
    assert_int_not_equal(again.gen, ref.gen);
    assert_reads(r, &again, &s, 0, s.size);
    st = hl_tier_read(r->tier, &ref, 0, &byte, 1);
    assert_true(st == HL_ESTALE || st == HL_ENOENT);
    assert_reads(r, &rest, &other, 0, other.size);
    free(s.bytes);
    free(other.bytes);
}

static void pinned_bytes_stay_whatever_is_dropped(void **state)
{
    struct tier_rig *r = *state;
    struct shard s = shard_make(id_of(1), MIB + 99, 1, 1);
    struct hl_tier_ref ref, twice;
    assert_ok(store(r, &s, NULL));
    assert_ok(hl_tier_pin(r->tier, s.id, &ref));
    assert_ok(hl_tier_pin(r->tier, s.id, &twice));
    hl_tier_unpin(r->tier, &twice);
    hl_status st = hl_tier_drop(r->tier, s.id);
    assert_int_equal(st, r->backend->quarantines ? HL_OK : HL_EBUSY);
    for (int i = 0; i < 20; i++) {
        nap();
        assert_reads(r, &ref, &s, 0, s.size);
    }
    struct hl_tier_usage u = usage_of(r);
    assert_true(u.used + u.quarantined >= s.size);
    hl_tier_unpin(r->tier, &ref);
    if (!r->backend->quarantines)
        assert_ok(hl_tier_drop(r->tier, s.id));
    wait_for_rest(r);
    assert_int_equal(usage_of(r).used, 0);
    free(s.bytes);
}

/* ---- watermarks ---- */

struct heard {
    int count;
    enum hl_api_pressure last[8];
};

static void hear(void *arg, const struct hl_tier_usage *usage)
{
    struct heard *h = arg;
    if (h->count < 8)
        h->last[h->count] = usage->pressure;
    h->count++;
}

static void every_crossing_of_a_watermark_is_told_once(void **state)
{
    struct tier_rig *r = *state;
    struct heard h = {0};
    struct shard s[24];
    int n = 0;
    struct hl_tier_usage u = usage_of(r);
    assert_int_equal(u.quota, r->backend->quota);
    assert_int_equal(u.high, r->backend->high);
    assert_int_equal(u.low, r->backend->low);
    assert_int_equal(u.pressure, HL_API_PRESSURE_LOW);
    hl_tier_watch(r->tier, hear, &h);
    for (; n < 24 && usage_of(r).used <= u.high; n++) {
        s[n] = shard_make(id_of((uint64_t)n + 1), u.quota / 20, (unsigned)n, 1);
        assert_ok(store(r, &s[n], NULL));
        uint64_t used = usage_of(r).used;
        assert_int_equal(h.count, used > u.high ? 2 : used >= u.low ? 1 : 0);
    }
    assert_int_equal(usage_of(r).pressure, HL_API_PRESSURE_HIGH);
    assert_int_equal(h.last[0], HL_API_PRESSURE_NORMAL);
    assert_int_equal(h.last[1], HL_API_PRESSURE_HIGH);
    for (int i = 0; i < n; i++) {
        assert_ok(hl_tier_drop(r->tier, s[i].id));
        uint64_t used = usage_of(r).used;
        assert_int_equal(h.count, used > u.high ? 2 : used >= u.low ? 3 : 4);
        free(s[i].bytes);
    }
    assert_int_equal(h.last[3], HL_API_PRESSURE_LOW);
    assert_int_equal(h.last[3], HL_API_PRESSURE_LOW);
}

/* ---- damage, lists, threads ---- */

static void a_wrong_byte_in_the_medium_is_found_by_the_read_that_touches_it(void **state)
{
    struct tier_rig *r = *state;
    struct shard s = shard_make(id_of(1), 3 * MIB, 1, 1);
    struct hl_tier_ref ref;
    char *back = malloc(s.size);
    assert_ok(store(r, &s, &ref));
    assert_reads(r, &ref, &s, 0, s.size);
    if (r->backend->damage == NULL) {
        free(back);
        free(s.bytes);
        TEST_SKIP("nothing here can be damaged from outside");
    }
    r->backend->damage(r, &ref, MIB + 17);
    assert_reads(r, &ref, &s, 5, MIB - 5);
    assert_reads(r, &ref, &s, 2 * MIB, s.size - 2 * MIB);
    assert_int_equal(hl_tier_read(r->tier, &ref, 0, back, s.size), HL_ECORRUPT);
    /* Any byte of the same MiB shows the damage. */
    assert_int_equal(hl_tier_read(r->tier, &ref, MIB + 500000, back, 1), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "chunk 1 of 4"));
    r->backend->damage(r, &ref, MIB + 17);
    assert_reads(r, &ref, &s, 0, s.size);
    free(back);
    free(s.bytes);
}

static void a_list_shows_what_stays_once_while_others_come_and_go(void **state)
{
    struct tier_rig *r = *state;
    struct hl_tier_ref page[3];
    int seen[20] = {0};
    for (uint64_t i = 0; i < 20; i++) {
        struct shard s = shard_make(id_of(i + 1), 100 + i, (unsigned)i, 1);
        assert_ok(store(r, &s, NULL));
        free(s.bytes);
    }
    uint64_t cursor = 0, extra = 100, pages = 0;
    do {
        size_t n = hl_tier_list(r->tier, &cursor, page, 3);
        assert_true(n <= 3);
        for (size_t i = 0; i < n; i++)
            for (uint64_t k = 0; k < 20; k++)
                seen[k] += hl_id_equal(page[i].id, id_of(k + 1));
        struct shard s = shard_make(id_of(extra), 50, 9, 1);
        assert_ok(store(r, &s, NULL));
        if (extra > 101)
            assert_ok(hl_tier_drop(r->tier, id_of(extra - 2)));
        free(s.bytes);
        extra++;
        assert_true(++pages < 200);
    } while (cursor != 0);
    for (int k = 0; k < 20; k++)
        assert_int_equal(seen[k], 1);
}

#define USERS  4
#define ROUNDS 40

struct user {
    struct tier_rig *rig;
    uint64_t number;
    uint64_t random;
    int stored;
    const char *wrong; /* not asserted in the thread: cmocka jumps */
};

static uint64_t next_random(uint64_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 7;
    *x ^= *x << 17;
    return *x;
}

static const char *read_and_drop(struct user *u, const struct shard *s)
{
    struct hl_tier_store *t = u->rig->tier;
    struct hl_tier_ref ref;
    const char *wrong = NULL;
    char *back = malloc(s->size);
    if (hl_tier_pin(t, s->id, &ref) != HL_OK)
        wrong = "a sealed copy can't be pinned";
    else if (hl_tier_read(t, &ref, 0, back, s->size) != HL_OK)
        wrong = "a pinned copy can't be read";
    else if (memcmp(back, s->bytes, s->size) != 0)
        wrong = "other bytes were read than written";
    if (wrong == NULL)
        hl_tier_unpin(t, &ref);
    if (wrong == NULL && hl_tier_drop(t, s->id) != HL_OK)
        wrong = "a copy can't be dropped";
    free(back);
    return wrong;
}

static const char *one_round(struct user *u, uint64_t round)
{
    struct hl_tier_store *t = u->rig->tier;
    struct hl_tier_slot slot;
    uint64_t data = 1 + next_random(&u->random) % (3 * MIB);
    struct shard s = shard_make(id_of(u->number * 1000 + round + 1), data, (unsigned)round, 1);
    uint32_t *crcs = chunk_crcs_of(&s);
    const char *wrong = NULL;
    hl_status st = hl_tier_reserve(t, s.id, s.size, -1, &slot);
    if (st != HL_OK) {
        wrong = st == HL_ENOSPC ? NULL : "reserve failed otherwise than for lack of room";
    } else if (hl_tier_fill(t, &slot, 0, s.bytes, s.size) != HL_OK) {
        wrong = "fill failed";
    } else if (next_random(&u->random) % 4 == 0) {
        hl_tier_abort(t, &slot);
    } else if (hl_tier_seal(t, &slot, s.crc, crcs, hl_chunk_count(s.size), NULL) != HL_OK) {
        wrong = "seal failed";
    } else {
        u->stored++;
        wrong = read_and_drop(u, &s);
    }
    free(crcs);
    free(s.bytes);
    return wrong;
}

static void *use(void *arg)
{
    struct user *u = arg;
    for (uint64_t i = 0; i < ROUNDS && u->wrong == NULL; i++) {
        struct hl_tier_usage now;
        u->wrong = one_round(u, i);
        hl_tier_usage(u->rig->tier, &now);
        if (now.used + now.quarantined > now.quota || now.writing > now.used)
            u->wrong = "more is used than there is";
        else if (hl_tier_audit(u->rig->tier) != HL_OK)
            u->wrong = "the audit failed";
    }
    return NULL;
}

static void many_users_never_exceed_the_quota_and_the_accounts_come_out_even(void **state)
{
    struct tier_rig *r = *state;
    struct user users[USERS];
    pthread_t threads[USERS];
    int stored = 0;
    for (uint64_t i = 0; i < USERS; i++) {
        users[i] = (struct user){.rig = r, .number = i, .random = 88172645463325252u + i};
        assert_int_equal(pthread_create(&threads[i], NULL, use, &users[i]), 0);
    }
    for (int i = 0; i < USERS; i++) {
        pthread_join(threads[i], NULL);
        if (users[i].wrong != NULL)
            fail_msg("user %d: %s", i, users[i].wrong);
        stored += users[i].stored;
    }
    assert_true(stored > 0);
    wait_for_rest(r);
    assert_int_equal(usage_of(r).used, 0);
    assert_int_equal(usage_of(r).shards, 0);
    assert_ok(hl_tier_audit(r->tier));
    struct shard s =
        shard_make(id_of(1), r->backend->quota / 8 * 7, 1, 1); /* all of it is one piece again */
    assert_ok(store(r, &s, NULL));
    free(s.bytes);
}

static void closing_drops_what_is_open_and_keeps_what_is_sealed(void **state)
{
    struct tier_rig *r = *state;
    struct shard s = shard_make(id_of(1), MIB + 9, 1, 1);
    struct hl_tier_slot slot;
    struct hl_tier_ref ref;
    assert_ok(store(r, &s, NULL));
    uint64_t used = usage_of(r).used;
    assert_ok(hl_tier_reserve(r->tier, id_of(2), 5000, -1, &slot));
    assert_ok(hl_tier_reserve(r->tier, id_of(3), MIB, -1, &slot));
    hl_tier_close(r->tier);
    r->tier = NULL;
    assert_ok(r->backend->open(r));
    assert_int_equal(usage_of(r).writing, 0);
    assert_int_equal(usage_of(r).used, r->backend->persists ? used : 0);
    assert_int_equal(hl_tier_find(r->tier, id_of(2), &ref), HL_ENOENT);
    if (r->backend->persists) {
        assert_ok(hl_tier_find(r->tier, s.id, &ref));
        assert_int_equal(ref.crc32, s.crc);
        assert_reads(r, &ref, &s, MIB - 3, 10);
        assert_reads(r, &ref, &s, 0, s.size);
    }
    free(s.bytes);
}

static void a_quota_below_the_medium_holds(void **state)
{
    struct tier_rig *r = *state;
    struct hl_tier_slot slot;
    hl_tier_close(r->tier);
    r->tier = NULL;
    r->limits = (struct hl_tier_limits){.quota = 2 * MIB, .high_pct = 50, .low_pct = 25};
    assert_ok(r->backend->open(r));
    assert_int_equal(usage_of(r).quota, 2 * MIB);
    assert_int_equal(usage_of(r).high, MIB);
    assert_int_equal(usage_of(r).low, MIB / 2);
    assert_int_equal(hl_tier_reserve(r->tier, id_of(1), 2 * MIB + 1, -1, &slot), HL_ENOSPC);
    assert_ok(hl_tier_reserve(r->tier, id_of(1), MIB, -1, &slot));
    assert_int_equal(hl_tier_reserve(r->tier, id_of(2), MIB + 1, -1, &slot), HL_ENOSPC);
    hl_tier_close(r->tier);
    r->tier = NULL;
    r->limits = (struct hl_tier_limits){.high_pct = 20, .low_pct = 60};
    assert_int_equal(r->backend->open(r), HL_EINVAL);
    r->limits = (struct hl_tier_limits){0};
}

/* A device copies in ways of its own. */
static void a_pool_is_filled_and_read_by_the_copy_that_was_chosen_for_the_host(void **state)
{
    struct tier_rig *r = *state;
    struct hl_tier_ref ref;
    if (r->pool == NULL)
        TEST_SKIP("not a pool");
    struct shard s = shard_make(id_of(1), 2 * MIB + 77, 1, 1);
    struct hl_copy_choice before = copy_count_begin();
    assert_ok(store(r, &s, &ref));
    assert_int_equal(copy_count_take(false), s.size);
    assert_reads(r, &ref, &s, 0, s.size);
    assert_int_equal(copy_count_take(true), s.size);
    hl_copy_choose(&before);
    free(s.bytes);
}

/* ---- the suite over every back end ---- */

#define CASE(f)                                                                                    \
    {                                                                                              \
#f, f                                                                                      \
    }

static const struct {
    const char *name;
    CMUnitTestFunction run;
} cases[] = {
    CASE(a_copy_is_invisible_until_it_is_sealed_and_then_reads_as_written),
    CASE(an_id_is_taken_while_it_is_written_and_while_it_is_sealed),
    CASE(what_can_not_be_stored_is_refused),
    CASE(checksums_that_do_not_add_up_are_not_sealed),
    CASE(an_aborted_half_leaves_nothing),
    CASE(a_full_tier_says_so_and_loses_no_room),
    CASE(what_was_dropped_is_gone_and_its_room_comes_back),
    CASE(pinned_bytes_stay_whatever_is_dropped),
    CASE(every_crossing_of_a_watermark_is_told_once),
    CASE(a_wrong_byte_in_the_medium_is_found_by_the_read_that_touches_it),
    CASE(a_list_shows_what_stays_once_while_others_come_and_go),
    CASE(many_users_never_exceed_the_quota_and_the_accounts_come_out_even),
    CASE(closing_drops_what_is_open_and_keeps_what_is_sealed),
    CASE(a_quota_below_the_medium_holds),
    CASE(a_pool_is_filled_and_read_by_the_copy_that_was_chosen_for_the_host),
};

int main(void)
{
    int failed = 0;
    for (size_t b = 0; b < HL_ARRAY_LEN(backends); b++) {
        struct CMUnitTest tests[HL_ARRAY_LEN(cases)];
        char names[HL_ARRAY_LEN(cases)][160];
        const char *missing = backends[b].missing != NULL ? backends[b].missing() : NULL;
        if (missing != NULL) {
            print_message("[  SKIPPED ] %s: %s\n", backends[b].name, missing);
            continue;
        }
        for (size_t i = 0; i < HL_ARRAY_LEN(cases); i++) {
            snprintf(names[i], sizeof(names[i]), "%s: %s", backends[b].name, cases[i].name);
            tests[i] = (struct CMUnitTest){names[i], cases[i].run, tier_setup, tier_teardown,
                                           (void *)&backends[b]};
        }
        failed += _cmocka_run_group_tests(backends[b].name, tests, HL_ARRAY_LEN(tests), NULL, NULL);
    }
    return failed;
}
