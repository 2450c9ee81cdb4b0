/* Imports and cuts that run or have ended: which count as running, and which are forgotten. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "controller/models/models_private.h"

#define MOST 1000 /* that are kept */

static int failures;
static hl_status failed_with;

static void on_failed(struct import *im, hl_status st, const char *text)
{
    (void)im;
    (void)text;
    failures++;
    failed_with = st;
}

static const struct import_kind kind = {.what = "test", .failed = on_failed};

struct world {
    struct hl_controller c;
    struct models models;
};

static void world_start(struct world *w)
{
    *w = (struct world){.c.refs = 1};
    w->c.models = &w->models;
    failures = 0;
}

static struct import *add(struct world *w)
{
    struct import *im;
    assert_int_equal(import_new(&w->c, &kind, &im), HL_OK);
    im->cut.model = "tiny";
    return im;
}

TEST(an_import_that_l3_does_not_start_has_failed_with_its_words)
{
    struct world w;
    world_start(&w);
    struct import *im = add(&w), *other = add(&w);
    im->polling = true;
    import_started(other, HL_OK, "");
    import_started(im, HL_EBUSY, "too many imports");
    assert_true(imports_running(&w.c));
    assert_false(import_running(im));
    assert_false(im->polling);
    assert_string_equal(im->progress.error, "too many imports");
    assert_string_equal(im->progress.error_status, hl_status_name(HL_EBUSY));
    assert_int_equal(failures, 1);
    assert_int_equal(failed_with, HL_EBUSY);
    import_started(other, HL_EUNAVAIL, "away");
    assert_false(imports_running(&w.c)); /* orphans no longer have to wait for it */
    imports_fini(&w.c);
}

TEST(the_oldest_import_that_has_ended_is_forgotten_for_a_new_one)
{
    struct world w;
    world_start(&w);
    struct import *runs = add(&w), *asked = add(&w), *written = add(&w), *old = add(&w);
    char gone[sizeof(old->id)];
    memcpy(gone, old->id, sizeof(gone));
    for (int i = 4; i < MOST; i++)
        add(&w)->progress.state = HL_API_IMPORT_STATE_DONE;
    import_started(asked, HL_EIO, "ended");
    asked->polling = true; /* an answer about it is still outstanding */
    import_started(written, HL_EIO, "ended");
    written->finishing = true;
    import_started(old, HL_EIO, "ended");
    forget_old_imports(&w.c);
    forget_old_imports(&w.c); /* there is room for one now */
    assert_int_equal(HASH_COUNT(w.models.imports), MOST - 1);
    assert_ptr_equal(w.models.imports, runs);
    for (const struct import *im = w.models.imports; im != NULL; im = im->hh.next)
        assert_string_not_equal(im->id, gone);
    imports_fini(&w.c);
}

/* An import with so many bytes done, out of ten times as many. */
static struct import *add_at(struct world *w, uint64_t done_bytes)
{
    struct import *im = add(w);
    im->progress.done_bytes = done_bytes;
    im->progress.total_bytes = 10 * done_bytes;
    return im;
}

TEST(the_progress_of_a_cut_that_is_queued_is_that_of_what_l3_has_begun)
{
    struct world w;
    world_start(&w);
    add_at(&w, 100);
    add_at(&w, 20);
    struct import *ended = add_at(&w, 5000), *queued = add_at(&w, 0), *other = add_at(&w, 0);
    import_started(ended, HL_EIO, "ended");
    queued->queued = other->queued = true;
    struct hl_api_controller_request_shards_results r = {0};
    cut_progress(queued, &r);
    assert_true(r.queued);
    assert_int_equal(r.done_bytes, 120);
    assert_int_equal(r.total_bytes, 1200);
    queued->queued = false; /* only its own bytes from now on */
    queued->progress.done_bytes = 7;
    queued->progress.total_bytes = 9;
    cut_progress(queued, &r);
    assert_false(r.queued);
    assert_int_equal(r.done_bytes, 7);
    assert_int_equal(r.total_bytes, 9);
    imports_fini(&w.c);
}
