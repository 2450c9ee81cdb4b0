/* Which versions are dropped automatically, and which ones a job reads. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "core/catalog/version_drop.h"

#define VERSIONS 6
#define GRACE    1000
#define NOW      50000

enum { NOBODY = -1 };

/* A model whose versions are numbered by position, newest first. */
struct world {
    struct hl_catalog catalog;
    struct hl_model_rec model;
    struct hl_version_rec v[VERSIONS];
    struct hl_shard_rec shard[VERSIONS], *list[VERSIONS];
    bool going[VERSIONS];
    const char *written; /* job that has not ended */
};

/* For each version its job, its state (v, o or f), and '-' if its shard is lost. */
static void world_make(struct world *w, const char *const rows[VERSIONS])
{
    memset(w, 0, sizeof(*w));
    w->written = "";
    w->catalog.models = &w->model;
    w->model.versions = rows[0] != NULL ? w->v : NULL;
    for (int i = 0; i < VERSIONS && rows[i] != NULL; i++) {
        struct hl_version_rec *v = &w->v[i];
        const char *state = strchr(rows[i], ' ') + 1;
        snprintf(v->job, sizeof(v->job), "%.*s", (int)(state - rows[i] - 1), rows[i]);
        v->state = *state == 'v'   ? HL_API_VERSION_STATE_VISIBLE
                   : *state == 'o' ? HL_API_VERSION_STATE_OPEN
                                   : HL_API_VERSION_STATE_FAILED;
        v->number = i;
        v->attempt = 1;
        v->world = v->job[0] != '\0'; /* an import has no ranks */
        v->model = &w->model;
        v->next = i + 1 < VERSIONS && rows[i + 1] != NULL ? v + 1 : NULL;
        w->shard[i].lost = state[1] == '-';
        w->list[i] = &w->shard[i];
        v->shards = &w->list[i];
        v->shard_count = 1;
    }
}

static bool is_going(void *arg, const struct hl_version_rec *v)
{
    return ((struct world *)arg)->going[v->number];
}

static bool is_written(void *arg, const struct hl_version_rec *v)
{
    return strcmp(((struct world *)arg)->written, v->job) == 0;
}

static struct hl_version_watch watch(struct world *w)
{
    return (struct hl_version_watch){is_going, is_written, w};
}

/* Returns its number and marks it as being dropped. */
static int64_t order(struct world *w, const struct hl_version_rec *v)
{
    if (v == NULL)
        return NOBODY;
    w->going[v->number] = true;
    return v->number;
}

TEST(old_versions_of_a_job_go_and_whole_ones_are_counted)
{
    static const struct {
        const char *versions[VERSIONS];
        int keep;
        int64_t gone[3]; /* in order */
    } rows[] = {
        {{"a v", "a v", "a v", "a v"}, 2, {2, 3, NOBODY}},
        {{"a v", "a v"}, 2, {NOBODY}},
        {{"a v", "a v", "a v"}, 0, {NOBODY}},
        /* a version that is not whole does not count as kept, and stays while it is newer */
        {{"a v-", "a v-", "a v", "a v"}, 1, {3, NOBODY}},
        {{"a v", "a v-", "a v", "a v-"}, 2, {3, NOBODY}},
        /* nor do imports, other jobs' versions, and invisible ones */
        {{"a v", " v", "b v", "a o", "a f", "a v"}, 1, {5, NOBODY}},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct world w;
        world_make(&w, rows[i].versions);
        const struct hl_version_watch at = watch(&w);
        for (int k = 0;; k++) {
            int64_t gone = order(&w, hl_version_surplus(&w.v[0], rows[i].keep, &at));
            assert_int_equal(gone, rows[i].gone[k]);
            if (gone == NOBODY)
                break;
        }
    }
}

TEST(a_version_whose_attempt_is_over_goes_unless_it_is_visible)
{
    struct world w;
    world_make(&w, (const char *const[VERSIONS]){"a o", "a f", "a v", "b o", "a o"});
    w.v[4].attempt = 2;
    const struct hl_version_watch at = watch(&w);
    assert_int_equal(order(&w, hl_version_incomplete(&w.catalog, "a", 1, &at)), NOBODY);
    assert_int_equal(order(&w, hl_version_incomplete(&w.catalog, "a", 2, &at)), 0);
    assert_int_equal(order(&w, hl_version_incomplete(&w.catalog, "a", 2, &at)), 1);
    assert_int_equal(order(&w, hl_version_incomplete(&w.catalog, "a", 2, &at)), NOBODY);
    assert_int_equal(order(&w, hl_version_incomplete(&w.catalog, "a", 3, &at)), 4);
}

TEST(what_a_gang_left_unfinished_goes_when_it_has_come_together_again)
{
    struct world w;
    world_make(&w, (const char *const[VERSIONS]){"a o", "a f", "a v", "b o", "a o", "a o"});
    static const uint32_t generations[VERSIONS] = {3, 2, 1, 1, 1, 3};
    for (int i = 0; i < VERSIONS; i++)
        w.v[i].generation = generations[i];
    w.v[4].attempt = 0; /* dropped with its attempt */
    const struct hl_version_watch at = watch(&w);
    assert_int_equal(order(&w, hl_version_overtaken(&w.v[1], &at)), NOBODY);
    assert_int_equal(order(&w, hl_version_overtaken(&w.v[0], &at)), 1);
    assert_int_equal(order(&w, hl_version_overtaken(&w.v[0], &at)), NOBODY);
}

TEST(an_incomplete_version_without_a_writer_goes_after_its_grace)
{
    static const struct {
        const char *version, *written;
        int64_t touched_ms;
        bool goes;
    } rows[] = {
        {"a o", "", NOW - GRACE - 1, true},   {"a f", "", NOW - GRACE - 1, true},
        {"a o", "", NOW - GRACE, false},      {"a v", "", NOW - GRACE - 1, false},
        {"a o", "a", NOW - GRACE - 1, false}, {"a o", "", 0, false}, /* there before the start */
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct world w;
        world_make(&w, (const char *const[VERSIONS]){rows[i].version});
        w.written = rows[i].written;
        w.v[0].touched_ms = rows[i].touched_ms;
        const struct hl_version_watch at = watch(&w);
        assert_int_equal(hl_version_stale(&w.model, NOW, GRACE, &at) != NULL, rows[i].goes);
    }
}

TEST(a_version_that_was_there_before_the_start_gets_a_whole_grace)
{
    struct world w;
    world_make(&w, (const char *const[VERSIONS]){"a o", "a o"});
    const struct hl_version_watch at = watch(&w);
    assert_null(hl_version_stale(&w.model, NOW, GRACE, &at));
    assert_null(hl_version_stale(&w.model, NOW + GRACE, GRACE, &at));
    assert_int_equal(order(&w, hl_version_stale(&w.model, NOW + GRACE + 1, GRACE, &at)), 0);
    assert_int_equal(order(&w, hl_version_stale(&w.model, NOW + GRACE + 1, GRACE, &at)), 1);
    assert_null(hl_version_stale(&w.model, NOW + GRACE + 1, GRACE, &at));
}

TEST(a_job_reads_what_it_has_loaded_what_its_file_names_and_the_newest)
{
    static const struct {
        const char *model;
        int64_t named, loaded;
        bool over;
        const char *read; /* numbers of versions */
    } rows[] = {
        {"tiny", -1, -1, false, "1"}, {"tiny", -1, 3, false, "13"}, {"tiny", 2, 2, false, "12"},
        {"tiny", 2, 3, false, "123"}, {"other", 2, 3, false, ""},   {"tiny", 2, 3, true, ""},
        {"", -1, -1, false, ""},
    };

    /* the newest one is open: it cannot be loaded yet */
    static const char *const versions[VERSIONS] = {"a o", "a v", "a v", "a v"};

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        struct world w;
        char read[VERSIONS + 1] = "";
        const struct hl_version_reader reader = {rows[i].model, rows[i].named, rows[i].loaded,
                                                 rows[i].over};
        world_make(&w, versions);
        snprintf(w.model.name, sizeof(w.model.name), "tiny");
        for (int v = 0, n = 0; v < 4; v++)
            if (hl_version_is_read(&w.v[v], &reader))
                read[n++] = (char)('0' + v);
        assert_string_equal(read, rows[i].read);
    }
}

TEST(a_version_names_the_job_that_wrote_it)
{
    struct world w;
    static const char *const versions[VERSIONS] = {"a o", "b v", " v"};
    world_make(&w, versions);
    assert_true(hl_catalog_names_job(&w.catalog, "a"));
    assert_true(hl_catalog_names_job(&w.catalog, "b"));
    assert_false(hl_catalog_names_job(&w.catalog, "c"));
}
