/* The index alone: a drop that waits for a call that has pinned the entry. */
#include "support/test.h"

#include <pthread.h>
#include <sched.h>

#include "mem/tier/index.h"

struct dropper {
    struct hl_tier_index *index;
    struct hl_id id;
    hl_status st;
};

static void *drop_main(void *arg)
{
    struct dropper *d = arg;
    struct hl_tier_entry *e;
    d->st = hl_tier_index_drop(d->index, d->id, &e);
    if (d->st == HL_OK)
        hl_tier_index_remove(d->index, e);
    return NULL;
}

/* Waits until the drop has made the entry DROPPING: from then on it is not found. */
static void await_dropping(struct hl_tier_index *x, struct hl_id id)
{
    struct hl_tier_entry *e;
    while (hl_tier_index_hold(x, id, &e) == HL_OK) {
        hl_tier_index_release(x, e);
        sched_yield();
    }
}

TEST(a_pin_may_come_and_go_while_a_drop_waits)
{
    struct hl_tier_index x;
    struct hl_tier_entry *e, *again;
    struct hl_tier_ref ref;
    struct dropper d = {.index = &x, .id = {7, 7}};
    pthread_t thread;
    hl_tier_index_init(&x, "test", -1);
    assert_int_equal(hl_tier_index_add(&x, d.id, 10, 10, &e), HL_OK);
    hl_tier_index_seal(&x, e, 1, NULL, &ref);
    assert_int_equal(hl_tier_index_hold(&x, d.id, &e), HL_OK);
    assert_int_equal(pthread_create(&thread, NULL, drop_main, &d), 0);
    await_dropping(&x, d.id);
    ref = hl_tier_index_pin(&x, e);
    assert_int_equal(hl_tier_index_hold_ref(&x, &ref, &again), HL_OK); /* pinned, so still there */
    hl_tier_index_release(&x, again);
    hl_tier_index_unpin(&x, &ref);
    assert_int_equal(hl_tier_index_hold_ref(&x, &ref, &again), HL_ESTALE);
    hl_tier_index_release(&x, e);
    pthread_join(thread, NULL);
    assert_int_equal(d.st, HL_OK);
    assert_int_equal(hl_tier_index_hold(&x, d.id, &e), HL_ENOENT);
    hl_tier_index_fini(&x);
}
