/* unit/mem/archive/archive_conformance.h - what every back end of the archive must do.
 *
 * Owns:    nothing; the includer's setup and teardown make the rig.
 * Threads: the test's, and some of its own.
 * Errors:  cmocka assertions.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_TESTS_ARCHIVE_CONFORMANCE_H
#define HL_TESTS_ARCHIVE_CONFORMANCE_H

#include <pthread.h>

#include "unit/mem/archive/archive_rig.h"

static void what_was_put_is_got_also_after_a_reopen(void **state)
{
    struct rig *r = *state;
    static const uint64_t sizes[] = {0, 1, 100, 65536, (1 << 20) + 13, 3 << 20};
    struct shard s[HL_ARRAY_LEN(sizes)];
    uint64_t sum = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(sizes); i++) {
        s[i] = shard_make(id_of(i + 1), sizes[i], (unsigned)i, 1);
        assert_int_equal(put(r, &s[i]), HL_OK);
        assert_readable(r, &s[i]);
        sum += s[i].size;
    }
    assert_int_equal(info(r).used_bytes, sum);
    assert_int_equal(info(r).count, HL_ARRAY_LEN(sizes));
    rig_reopen(r, 0);
    assert_int_equal(info(r).used_bytes, sum);
    assert_int_equal(info(r).count, HL_ARRAY_LEN(sizes));
    assert_int_equal(info(r).discarded + info(r).foreign, 0);
    for (size_t i = 0; i < HL_ARRAY_LEN(sizes); i++) {
        assert_readable(r, &s[i]);
        free(s[i].bytes);
    }
}

static void an_absent_shard_is_not_found(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(7), 10, 1, 1);
    uint64_t size = 99;
    uint32_t crc = 99;
    assert_int_equal(get_status(r, &s), HL_ENOENT);
    assert_int_equal(hl_archive_size(r->archive, s.id, &size), HL_ENOENT);
    assert_int_equal(hl_archive_crc(r->archive, s.id, &crc), HL_ENOENT);
    assert_int_equal(hl_archive_remove(r->archive, s.id), HL_ENOENT);
    assert_error_has(hl_id_format(s.id).s);
    assert_int_equal(size, 99);
    assert_int_equal(crc, 99);
    free(s.bytes);
}

static void a_shard_is_immutable(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1), other = shard_make(id_of(1), 500, 2, 1);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(put(r, &other), HL_EEXIST);
    assert_readable(r, &s);
    assert_int_equal(info(r).used_bytes, s.size);
    free(s.bytes);
    free(other.bytes);
}

static void removed_bytes_are_free_again_and_the_id_may_return(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1), t = shard_make(id_of(2), 7, 1, 1);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(put(r, &t), HL_OK);
    assert_int_equal(hl_archive_remove(r->archive, s.id), HL_OK);
    assert_int_equal(get_status(r, &s), HL_ENOENT);
    assert_int_equal(info(r).used_bytes, t.size);
    assert_int_equal(info(r).count, 1);
    assert_readable(r, &t);
    assert_int_equal(put(r, &s), HL_OK);
    assert_readable(r, &s);
    free(s.bytes);
    free(t.bytes);
}

static void note_missed(void *arg, struct hl_id id, bool gone)
{
    (void)id;
    (void)gone;
    ++*(unsigned *)arg;
}

static void what_is_there_is_seen(void **state)
{
    struct rig *r = *state;
    bool gone = true;
    unsigned missed = 0;
    for (uint64_t i = 1; i < 6; i++) {
        struct shard s = shard_make(id_of(i), 1000 * i, 1, 1);
        assert_int_equal(put(r, &s), HL_OK);
        assert_int_equal(hl_archive_look(r->archive, s.id, &gone), HL_OK);
        assert_false(gone);
        free(s.bytes);
    }
    assert_int_equal(hl_archive_look(r->archive, id_of(9), &gone), HL_ENOENT);
    assert_false(gone); /* it was never there */
    rig_reopen(r, 0);
    assert_int_equal(hl_archive_check(r->archive, note_missed, &missed), HL_OK);
    assert_int_equal(missed, 0);
    assert_int_equal(info(r).count, 5);
}

static void bytes_with_another_checksum_are_not_stored(void **state)
{
    struct rig *r = *state;
    for (int with_crc = 0; with_crc < 2; with_crc++) {
        struct shard s = shard_make(id_of(1), 2 << 20, 1, with_crc);
        s.bytes[s.size - 1] ^= 1; /* after the checksums were made */
        assert_int_equal(put(r, &s), HL_ECORRUPT);
        assert_error_has("not stored");
        if (with_crc) { /* the shard's own checksum is right, those in its header are not */
            s.crc = hl_crc32(0, s.bytes, s.size);
            assert_int_equal(put(r, &s), HL_ECORRUPT);
            assert_error_has("header");
        }
        assert_int_equal(info(r).used_bytes, 0);
        assert_int_equal(info(r).count, 0);
        free(s.bytes);
    }
    rig_reopen(r, 0);
    assert_int_equal(info(r).count + info(r).discarded + info(r).foreign, 0);
}

static void what_is_not_a_shard_is_not_stored(void **state)
{
    struct rig *r = *state;
    char text[] = "no safetensors file";
    struct shard s = {.id = id_of(1), .bytes = text, .size = 19};
    s.crc = hl_crc32(0, s.bytes, s.size);
    assert_int_equal(put(r, &s), HL_EINVAL);
    assert_error_has(hl_id_format(s.id).s);
    s.size = 0;
    assert_int_equal(put(r, &s), HL_EINVAL);
    struct shard none = shard_make((struct hl_id){0, 0}, 10, 1, 1);
    assert_int_equal(put(r, &none), HL_EINVAL);
    assert_int_equal(info(r).count, 0);
    free(none.bytes);
}

static void a_get_with_other_expectations_is_refused(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    assert_int_equal(put(r, &s), HL_OK);
    struct shard wrong = s;
    wrong.crc ^= 1;
    assert_int_equal(get_status(r, &wrong), HL_ECORRUPT);
    wrong = s;
    wrong.size++;
    assert_int_equal(get_status(r, &wrong), HL_ECORRUPT);
    wrong.size = s.size - 1;
    assert_int_equal(get_status(r, &wrong), HL_ECORRUPT);
    assert_readable(r, &s);
    free(s.bytes);
}

static void the_checksum_is_found_in_the_shard_itself(void **state)
{
    struct rig *r = *state;
    struct shard with = shard_make(id_of(1), 100001, 1, 1);
    struct shard without = shard_make(id_of(2), 100001, 1, 0);
    uint32_t crc = 0;
    assert_int_equal(put(r, &with), HL_OK);
    assert_int_equal(put(r, &without), HL_OK);
    rig_reopen(r, 0);
    assert_int_equal(hl_archive_crc(r->archive, with.id, &crc), HL_OK);
    assert_int_equal(crc, with.crc); /* made over the whole file, not from the header */
    crc = 0;
    assert_int_equal(hl_archive_crc(r->archive, without.id, &crc),
                     r->keeps_crc ? HL_OK : HL_ENOENT);
    assert_int_equal(crc, r->keeps_crc ? without.crc : 0);
    assert_readable(r, &without);
    assert_int_equal(hl_archive_verify(r->archive, with.id), HL_OK);
    assert_int_equal(hl_archive_verify(r->archive, without.id), r->keeps_crc ? HL_OK : HL_ENOENT);
    assert_int_equal(hl_archive_verify(r->archive, id_of(3)), HL_ENOENT);
    free(with.bytes);
    free(without.bytes);
}

static void the_quota_holds_to_the_byte(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1), t = shard_make(id_of(2), 1000, 2, 1);
    rig_reopen(r, s.size + t.size - 1);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(put(r, &t), HL_ENOSPC);
    assert_error_has("quota");
    assert_int_equal(info(r).used_bytes, s.size);
    assert_int_equal(get_status(r, &t), HL_ENOENT);
    rig_reopen(r, s.size + t.size);
    assert_int_equal(put(r, &t), HL_OK);
    assert_int_equal(info(r).used_bytes, r->quota);
    rig_reopen(r, 10); /* a quota below the use: nothing is lost, and nothing is accepted */
    assert_readable(r, &s);
    assert_readable(r, &t);
    struct shard u = shard_make(id_of(3), 0, 3, 1);
    assert_int_equal(put(r, &u), HL_ENOSPC);
    assert_int_equal(hl_archive_remove(r->archive, s.id), HL_OK);
    assert_int_equal(info(r).used_bytes, t.size);
    free(s.bytes);
    free(t.bytes);
    free(u.bytes);
}

struct seen {
    uint64_t sum, n;
    struct rig *rig;
};

static hl_status see(void *arg, struct hl_id id, uint64_t size)
{
    struct seen *s = arg;
    assert_true(hl_id_equal(id, id_of(id.lo)));
    s->sum += id.lo;
    s->n++;
    assert_true(size > 0);
    return s->rig == NULL ? HL_OK : hl_archive_remove(s->rig->archive, id);
}

static hl_status refuse(void *arg, struct hl_id id, uint64_t size)
{
    (void)id, (void)size;
    ++*(int *)arg;
    return HL_ECANCELED;
}

static void the_list_has_every_shard_once_and_may_be_left(void **state)
{
    struct rig *r = *state;
    for (uint64_t i = 1; i <= 40; i++) {
        struct shard s = shard_make(id_of(i), i, 1, 1);
        assert_int_equal(put(r, &s), HL_OK);
        free(s.bytes);
    }
    struct seen seen = {0};
    int visits = 0;
    assert_int_equal(hl_archive_list(r->archive, see, &seen), HL_OK);
    assert_int_equal(seen.n, 40);
    assert_int_equal(seen.sum, 40 * 41 / 2);
    assert_int_equal(hl_archive_list(r->archive, refuse, &visits), HL_ECANCELED);
    assert_int_equal(visits, 1);
    seen = (struct seen){.rig = r}; /* the visit may remove */
    assert_int_equal(hl_archive_list(r->archive, see, &seen), HL_OK);
    assert_int_equal(info(r).count, 0);
    assert_int_equal(info(r).used_bytes, 0);
}

/* Readers, writers of their own shards, and all threads on one shard at the same time. */
#define THREADS 4

struct worker {
    struct rig *rig;
    struct shard shared, own, contended;
    unsigned won, failures;
};

static void *work(void *arg)
{
    struct worker *w = arg;
    char *back = malloc(w->shared.size);
    for (unsigned i = 0; i < w->rig->rounds; i++) {
        struct hl_archive *a = w->rig->archive;
        w->failures +=
            hl_archive_get(a, w->shared.id, back, w->shared.size, w->shared.crc) != HL_OK;
        w->failures += memcmp(back, w->shared.bytes, w->shared.size) != 0;
        w->failures += put(w->rig, &w->own) != HL_OK;
        w->failures += hl_archive_get(a, w->own.id, back, w->own.size, w->own.crc) != HL_OK;
        w->failures += hl_archive_remove(a, w->own.id) != HL_OK;
        hl_status st = put(w->rig, &w->contended);
        w->won += st == HL_OK;
        w->failures += st != HL_OK && st != HL_EEXIST && st != HL_EBUSY;
        st = hl_archive_get(a, w->contended.id, back, w->contended.size, w->contended.crc);
        w->failures += st != HL_OK && st != HL_ENOENT;
    }
    free(back);
    return NULL;
}

static void threads_do_not_hurt_each_other(void **state)
{
    struct rig *r = *state;
    struct shard shared = shard_make(id_of(100), 700000, 1, 1);
    struct shard contended = shard_make(id_of(101), 300000, 2, 1);
    struct worker w[THREADS];
    pthread_t thread[THREADS];
    unsigned won = 0;
    assert_int_equal(put(r, &shared), HL_OK);
    for (unsigned i = 0; i < THREADS; i++) {
        w[i] = (struct worker){r, shared, shard_make(id_of(i + 1), 50000, i, 1), contended, 0, 0};
        assert_int_equal(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    }
    for (unsigned i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(w[i].failures, 0);
        won += w[i].won;
        free(w[i].own.bytes);
    }
    assert_int_equal(won, 1);
    assert_int_equal(info(r).used_bytes, shared.size + contended.size);
    assert_int_equal(info(r).count, 2);
    assert_readable(r, &contended);
    free(shared.bytes);
    free(contended.bytes);
}

static struct hl_archive_claim claimed(struct rig *r)
{
    struct hl_archive_claim c;
    hl_archive_claimed(r->archive, &c);
    return c;
}

static void it_says_whose_it_is_also_after_a_reopen(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    struct hl_archive_claim first = {.cluster = id_of(77), .revision = 3};
    struct hl_archive_claim second = {.cluster = id_of(78), .revision = UINT64_C(1) << 40};
    assert_true(hl_id_is_none(claimed(r).cluster));
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(hl_archive_claim(r->archive, &first), HL_OK);
    assert_true(hl_id_equal(claimed(r).cluster, first.cluster));
    assert_int_equal(hl_archive_claim(r->archive, &second), HL_OK);
    rig_reopen(r, 0);
    assert_true(hl_id_equal(claimed(r).cluster, second.cluster));
    assert_int_equal(claimed(r).revision, second.revision);
    assert_false(claimed(r).damaged);
    assert_int_equal(info(r).foreign, 0);
    assert_int_equal(info(r).count, 1);
    free(s.bytes);
}

static unsigned trash_list(struct rig *r, struct hl_archive_trashed *out, unsigned max)
{
    uint64_t cursor = 0;
    unsigned n = 0;
    do /* one at a time: the next page continues where the last one ended */
        n += (unsigned)hl_archive_trash_page(r->archive, &cursor, out + n, 1);
    while (cursor != 0 && n < max);
    return n;
}

static void what_is_trashed_is_gone_and_can_come_back(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1), t = shard_make(id_of(2), 5000, 2, 1);
    struct hl_archive_trashed list[4];
    assert_int_equal(hl_archive_trash(r->archive, s.id, 1000, NULL), HL_ENOENT);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(put(r, &t), HL_OK);
    assert_int_equal(hl_archive_trash(r->archive, s.id, 1000, &list[0]), HL_OK);
    assert_true(hl_id_equal(list[0].id, s.id));
    assert_int_equal(get_status(r, &s), HL_ENOENT);
    assert_int_equal(hl_archive_trash(r->archive, t.id, 2000, NULL), HL_OK);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(info(r).count + info(r).used_bytes + info(r).foreign, 0);
        assert_int_equal(info(r).trashed, 2);
        assert_int_equal(info(r).trashed_bytes, s.size + t.size);
        assert_int_equal(trash_list(r, list, 4), 2);
        const struct hl_archive_trashed *of_t = &list[hl_id_equal(list[1].id, t.id)];
        assert_int_equal(of_t->size, t.size);
        assert_int_equal(of_t->ms, 2000);
        rig_reopen(r, 0);
    }
    assert_int_equal(hl_archive_untrash(r->archive, id_of(3)), HL_ENOENT);
    assert_int_equal(hl_archive_untrash(r->archive, s.id), HL_OK);
    assert_readable(r, &s);
    assert_int_equal(hl_archive_verify(r->archive, s.id), HL_OK);
    assert_int_equal(hl_archive_untrash(r->archive, s.id), HL_ENOENT);
    rig_reopen(r, 0);
    assert_readable(r, &s);
    assert_int_equal(info(r).trashed, 1);
    assert_int_equal(info(r).used_bytes, s.size);
    free(s.bytes);
    free(t.bytes);
}

static void the_trash_is_emptied_by_age(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 100, 1, 1), t = shard_make(id_of(2), 200, 2, 1);
    struct hl_archive_trashed gone;
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(put(r, &t), HL_OK);
    assert_int_equal(hl_archive_trash(r->archive, t.id, 2000, NULL), HL_OK);
    assert_int_equal(hl_archive_trash(r->archive, s.id, 1000, NULL), HL_OK);
    assert_false(hl_archive_trash_old(r->archive, 1000));
    assert_int_equal(hl_archive_trash_empty(r->archive, 1000, &gone), HL_ENOENT);
    assert_true(hl_archive_trash_old(r->archive, 1001));
    assert_int_equal(hl_archive_trash_empty(r->archive, 1001, &gone), HL_OK);
    assert_true(hl_id_equal(gone.id, s.id));
    assert_int_equal(hl_archive_trash_empty(r->archive, 1001, &gone), HL_ENOENT);
    rig_reopen(r, 0);
    assert_int_equal(info(r).trashed, 1);
    assert_int_equal(hl_archive_untrash(r->archive, s.id), HL_ENOENT);
    assert_int_equal(hl_archive_untrash(r->archive, t.id), HL_OK);
    assert_readable(r, &t);
    free(s.bytes);
    free(t.bytes);
}

static void a_shard_that_is_stored_again_stays_when_its_trashed_copy_is_called_back(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(hl_archive_trash(r->archive, s.id, 1000, NULL), HL_OK);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(hl_archive_untrash(r->archive, s.id), HL_EEXIST);
    assert_readable(r, &s);
    assert_int_equal(info(r).trashed, 1);
    assert_int_equal(hl_archive_trash(r->archive, s.id, 2000, NULL), HL_OK);
    assert_int_equal(info(r).trashed, 2);
    rig_reopen(r, 0);
    assert_int_equal(info(r).trashed, 2);
    assert_int_equal(hl_archive_untrash(r->archive, s.id), HL_OK);
    assert_readable(r, &s);
    free(s.bytes);
}

static void what_comes_back_from_the_trash_keeps_the_quota(void **state)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1), t = shard_make(id_of(2), 1000, 2, 1);
    rig_reopen(r, s.size + 10);
    assert_int_equal(put(r, &s), HL_OK);
    assert_int_equal(hl_archive_trash(r->archive, s.id, 1000, NULL), HL_OK);
    assert_int_equal(put(r, &t), HL_OK);
    assert_int_equal(hl_archive_untrash(r->archive, s.id), HL_ENOSPC);
    assert_int_equal(info(r).trashed, 1);
    assert_int_equal(hl_archive_remove(r->archive, t.id), HL_OK);
    assert_int_equal(hl_archive_untrash(r->archive, s.id), HL_OK);
    assert_readable(r, &s);
    free(s.bytes);
    free(t.bytes);
}

#define ARCHIVE_CONFORMANCE(setup, teardown)                                                       \
    cmocka_unit_test_setup_teardown(what_was_put_is_got_also_after_a_reopen, setup, teardown),     \
        cmocka_unit_test_setup_teardown(an_absent_shard_is_not_found, setup, teardown),            \
        cmocka_unit_test_setup_teardown(what_is_there_is_seen, setup, teardown),                   \
        cmocka_unit_test_setup_teardown(a_shard_is_immutable, setup, teardown),                    \
        cmocka_unit_test_setup_teardown(removed_bytes_are_free_again_and_the_id_may_return, setup, \
                                        teardown),                                                 \
        cmocka_unit_test_setup_teardown(bytes_with_another_checksum_are_not_stored, setup,         \
                                        teardown),                                                 \
        cmocka_unit_test_setup_teardown(what_is_not_a_shard_is_not_stored, setup, teardown),       \
        cmocka_unit_test_setup_teardown(a_get_with_other_expectations_is_refused, setup,           \
                                        teardown),                                                 \
        cmocka_unit_test_setup_teardown(the_checksum_is_found_in_the_shard_itself, setup,          \
                                        teardown),                                                 \
        cmocka_unit_test_setup_teardown(the_quota_holds_to_the_byte, setup, teardown),             \
        cmocka_unit_test_setup_teardown(the_list_has_every_shard_once_and_may_be_left, setup,      \
                                        teardown),                                                 \
        cmocka_unit_test_setup_teardown(it_says_whose_it_is_also_after_a_reopen, setup, teardown), \
        cmocka_unit_test_setup_teardown(what_is_trashed_is_gone_and_can_come_back, setup,          \
                                        teardown),                                                 \
        cmocka_unit_test_setup_teardown(the_trash_is_emptied_by_age, setup, teardown),             \
        cmocka_unit_test_setup_teardown(                                                           \
            a_shard_that_is_stored_again_stays_when_its_trashed_copy_is_called_back, setup,        \
            teardown),                                                                             \
        cmocka_unit_test_setup_teardown(what_comes_back_from_the_trash_keeps_the_quota, setup,     \
                                        teardown),                                                 \
        cmocka_unit_test_setup_teardown(threads_do_not_hurt_each_other, setup, teardown)

#endif
