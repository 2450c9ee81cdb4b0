/* Which jobs a change concerns, and which it does not. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranktabled/cache.h"

static json_t *make_job(const char *name, const char *born)
{
    return json_pack("{s:{s:s s:s s:s s:s} s:{s:[{s:s s:i}]}}", "metadata", "name", name,
                     "namespace", "ns", "uid", name, "creationTimestamp", born, "spec", "tasks",
                     "name", "w", "replicas", 1);
}

static json_t *make_pod(const char *uid, const char *job)
{
    return json_pack("{s:{s:s s:s s:s s:{s:s}}}", "metadata", "name", uid, "namespace", "ns", "uid",
                     uid, "labels", "volcano.sh/job-name", job);
}

static json_t *make_map(const char *name, const char *version, const char *text)
{
    return json_pack("{s:{s:s s:s s:s} s:{s:s}}", "metadata", "name", name, "namespace", "ns",
                     "resourceVersion", version, "data", HL_RANKTABLE_KEY, text);
}

/* As a watch brings it. */
static json_t *make_partial(const char *name, const char *version)
{
    return json_pack("{s:s s:{s:s s:s s:s}}", "kind", "PartialObjectMetadata", "metadata", "name",
                     name, "namespace", "ns", "resourceVersion", version);
}

static void put(struct cache *c, enum cache_kind kind, json_t *object)
{
    assert_non_null(object);
    assert_int_equal(cache_put(c, kind, object), HL_OK);
    json_decref(object);
}

static void drop(struct cache *c, enum cache_kind kind, json_t *object)
{
    cache_drop(c, kind, object);
    json_decref(object);
}

static struct cached_job *job_of(struct cache *c, const char *key)
{
    return cache_job(c, CACHE_VCJOBS, key);
}

/* True: it was dirty; the call clears that. */
static bool was_dirty(struct cache *c, const char *key)
{
    struct cached_job *j = job_of(c, key);
    assert_non_null(j);
    bool dirty = j->dirty;
    j->dirty = false;
    return dirty;
}

static size_t pods_of(struct cache *c, const char *key)
{
    size_t n = 99;
    (void)cache_pods_of(c, job_of(c, key), &n);
    return n;
}

static struct cache two_jobs(void)
{
    struct cache c = {0};
    put(&c, CACHE_VCJOBS, make_job("a", "2026-01-01T00:00:00Z"));
    put(&c, CACHE_VCJOBS, make_job("b", "2026-01-01T00:00:01Z"));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    assert_true(was_dirty(&c, "vcjob ns/b"));
    return c;
}

TEST(a_pod_concerns_its_job)
{
    struct cache c = two_jobs();
    put(&c, CACHE_PODS, make_pod("p", "a"));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    assert_false(was_dirty(&c, "vcjob ns/b"));
    /* The change does not matter to a table. */
    json_t *pod = make_pod("p", "a");
    json_object_set_new(pod, "status", json_pack("{s:s}", "phase", "Running"));
    put(&c, CACHE_PODS, pod);
    assert_false(was_dirty(&c, "vcjob ns/a"));
    /* It moves to another job: both are dirty. */
    put(&c, CACHE_PODS, make_pod("p", "b"));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    assert_true(was_dirty(&c, "vcjob ns/b"));
    assert_int_equal(pods_of(&c, "vcjob ns/a"), 0);
    assert_int_equal(pods_of(&c, "vcjob ns/b"), 1);
    drop(&c, CACHE_PODS, make_pod("p", "b"));
    assert_true(was_dirty(&c, "vcjob ns/b"));
    drop(&c, CACHE_PODS, make_pod("p", "b"));
    assert_false(was_dirty(&c, "vcjob ns/b"));
    cache_fini(&c);
}

static size_t ready_of(struct cache *c, const char *key)
{
    return cache_ready_of(c, job_of(c, key));
}

static json_t *failed(json_t *pod)
{
    json_object_set_new(pod, "status", json_pack("{s:s}", "phase", "Failed"));
    return pod;
}

/* It wants a device and has none yet. */
static json_t *waiting(json_t *pod)
{
    json_object_set_new(pod, "spec",
                        json_pack("{s:[{s:{s:{s:s}}}]}", "containers", "resources", "limits",
                                  "huawei.com/Ascend910", "1"));
    return pod;
}

TEST(how_many_pods_are_ready)
{
    struct cache c = two_jobs();
    assert_int_equal(ready_of(&c, "vcjob ns/a"), 0);
    put(&c, CACHE_PODS, make_pod("p", "a"));
    put(&c, CACHE_PODS, waiting(make_pod("q", "a")));
    put(&c, CACHE_PODS, failed(make_pod("r", "a")));
    assert_int_equal(ready_of(&c, "vcjob ns/a"), 1);
    put(&c, CACHE_PODS, make_pod("q", "a"));
    assert_int_equal(ready_of(&c, "vcjob ns/a"), 2);
    put(&c, CACHE_PODS, failed(make_pod("q", "a")));
    assert_int_equal(ready_of(&c, "vcjob ns/a"), 1);
    put(&c, CACHE_PODS, make_pod("p", "b"));
    assert_int_equal(ready_of(&c, "vcjob ns/a"), 0);
    assert_int_equal(ready_of(&c, "vcjob ns/b"), 1);
    drop(&c, CACHE_PODS, make_pod("p", "b"));
    drop(&c, CACHE_PODS, make_pod("r", "a"));
    assert_int_equal(ready_of(&c, "vcjob ns/b"), 0);
    assert_int_equal(pods_of(&c, "vcjob ns/a"), 1);
    cache_fini(&c);
}

/* A job that changed is judged at once. */
TEST(a_job_that_changed_waits_for_no_look)
{
    struct cache c = two_jobs();
    job_of(&c, "vcjob ns/a")->look_ns = 7;
    put(&c, CACHE_VCJOBS, make_job("a", "2026-01-01T00:00:00Z"));
    assert_int_equal(job_of(&c, "vcjob ns/a")->look_ns, 7);
    json_t *job = make_job("a", "2026-01-01T00:00:00Z");
    json_object_set_new(json_object_get(job, "spec"), "minAvailable", json_integer(1));
    put(&c, CACHE_VCJOBS, job);
    assert_int_equal(job_of(&c, "vcjob ns/a")->look_ns, 0);
    cache_fini(&c);
}

/* "abc": the pods of job a, by their names. */
static void expect_pods(struct cache *c, const char *names)
{
    size_t n = 0;
    const struct hl_ranktable_pod *const *pods = cache_pods_of(c, job_of(c, "vcjob ns/a"), &n);
    assert_int_equal(n, strlen(names));
    for (size_t i = 0; i < n; i++)
        assert_int_equal(pods[i]->instance.name[0], names[i]);
}

static json_t *make_aged(const char *uid, const char *born)
{
    json_t *pod = make_pod(uid, "a");
    json_object_set_new(json_object_get(pod, "metadata"), "creationTimestamp", json_string(born));
    return pod;
}

TEST(pods_come_by_age)
{
    struct cache c = two_jobs();
    put(&c, CACHE_PODS, make_aged("d", "2026-01-01T00:00:02Z"));
    put(&c, CACHE_PODS, make_aged("c", "2026-01-01T00:00:02Z"));
    put(&c, CACHE_PODS, make_aged("e", "2026-01-01T00:00:01Z"));
    put(&c, CACHE_PODS, make_aged("a", "2026-01-01T00:00:03Z"));
    put(&c, CACHE_PODS, make_aged("b", "2026-01-01T00:00:01Z"));
    expect_pods(&c, "becda");
    /* A changed pod keeps its position. */
    json_t *gone = make_aged("c", "2026-01-01T00:00:02Z");
    json_object_set_new(json_object_get(gone, "metadata"), "deletionTimestamp", json_string("x"));
    put(&c, CACHE_PODS, gone);
    expect_pods(&c, "becda");
    drop(&c, CACHE_PODS, make_pod("b", "a"));
    drop(&c, CACHE_PODS, make_pod("a", "a"));
    expect_pods(&c, "ecd");
    put(&c, CACHE_PODS, make_pod("c", "b"));
    expect_pods(&c, "ed");
    put(&c, CACHE_PODS, make_pod("e", "b"));
    put(&c, CACHE_PODS, make_pod("d", "b"));
    expect_pods(&c, "");
    cache_fini(&c);
}

TEST(what_of_a_job_counts)
{
    struct cache c = two_jobs();
    json_t *job = make_job("a", "2026-01-01T00:00:00Z");
    json_object_set_new(job, "status", json_pack("{s:i}", "running", 7));
    put(&c, CACHE_VCJOBS, json_deep_copy(job));
    assert_false(was_dirty(&c, "vcjob ns/a"));
    json_object_set_new(json_object_get(job, "status"), "version", json_integer(1));
    put(&c, CACHE_VCJOBS, json_deep_copy(job));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    json_object_set_new(json_object_get(job, "metadata"), "uid", json_string("again"));
    put(&c, CACHE_VCJOBS, json_deep_copy(job));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    json_object_set_new(job, "spec", json_object());
    put(&c, CACHE_VCJOBS, job);
    assert_true(was_dirty(&c, "vcjob ns/a"));
    cache_fini(&c);
}

TEST(a_config_map_concerns_who_uses_it)
{
    struct cache c = two_jobs();
    put(&c, CACHE_MAPS, make_map("rings-config-a", "1", "x"));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    assert_false(was_dirty(&c, "vcjob ns/b"));
    put(&c, CACHE_MAPS, make_map("rings-config-a", "2", "x")); /* another key of it */
    assert_false(was_dirty(&c, "vcjob ns/a"));
    const struct cached_map *map = cache_map_of(&c, job_of(&c, "vcjob ns/a"));
    assert_string_equal(map->version, "2");
    assert_string_equal(map->text, "x");
    put(&c, CACHE_MAPS, make_map("rings-config-a", "3", "y"));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    drop(&c, CACHE_MAPS, make_map("rings-config-a", "4", "y"));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    assert_null(cache_map_of(&c, job_of(&c, "vcjob ns/a")));
    cache_fini(&c);
}

static struct cached_map *map_of_a(struct cache *c)
{
    return cache_map_of(c, job_of(c, "vcjob ns/a"));
}

static void see(struct cache *c, const char *version)
{
    put(c, CACHE_MAPS, make_partial("rings-config-a", version));
}

static void read_now(struct cache *c, const char *version, const char *text, const char *seen)
{
    json_t *object = make_map("rings-config-a", version, text);
    cache_was_read(map_of_a(c), object, seen);
    json_decref(object);
}

/* True: nothing happened in between. */
static bool wrote(struct cache *c, const char *before, const char *after, const char *text)
{
    char *table = strdup(text);
    bool alone = map_of_a(c) != NULL && cache_wrote(map_of_a(c), before, after, &table);
    free(table);
    return alone;
}

TEST(what_was_written_is_no_news)
{
    struct cache c = two_jobs();
    put(&c, CACHE_MAPS, make_map("rings-config-a", "1", "x"));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    /* The watch is later than the answer, */
    assert_true(wrote(&c, "1", "2", "y"));
    assert_string_equal(map_of_a(&c)->text, "y");
    see(&c, "2");
    assert_false(map_of_a(&c)->unread);
    assert_false(was_dirty(&c, "vcjob ns/a"));
    /* or before it. */
    job_of(&c, "vcjob ns/a")->writing = true;
    see(&c, "3");
    assert_false(was_dirty(&c, "vcjob ns/a"));
    assert_true(wrote(&c, "2", "3", "z"));
    job_of(&c, "vcjob ns/a")->writing = false;
    assert_false(map_of_a(&c)->unread);
    assert_string_equal(map_of_a(&c)->text, "z");
    cache_fini(&c);
}

TEST(what_others_write_is_to_be_read)
{
    struct cache c = two_jobs();
    see(&c, "1"); /* new, and never read */
    assert_true(was_dirty(&c, "vcjob ns/a"));
    assert_true(map_of_a(&c)->unread);
    read_now(&c, "1", "x", "1");
    assert_false(map_of_a(&c)->unread);
    /* After our write, before its answer. */
    job_of(&c, "vcjob ns/a")->writing = true;
    see(&c, "2");
    see(&c, "3");
    assert_false(wrote(&c, "1", "2", "y"));
    job_of(&c, "vcjob ns/a")->writing = false;
    assert_true(map_of_a(&c)->unread);
    /* Read newer than seen: what is seen later is known then. */
    read_now(&c, "5", "z", "3");
    assert_false(map_of_a(&c)->unread);
    (void)was_dirty(&c, "vcjob ns/a");
    see(&c, "4");
    assert_true(map_of_a(&c)->unread);
    assert_true(was_dirty(&c, "vcjob ns/a"));
    see(&c, "5");
    assert_false(map_of_a(&c)->unread);
    /* Read before the last change that was seen. */
    see(&c, "6");
    see(&c, "7");
    read_now(&c, "6", "w", "6");
    assert_true(map_of_a(&c)->unread);
    read_now(&c, "7", "v", "7");
    assert_false(map_of_a(&c)->unread);
    assert_string_equal(map_of_a(&c)->text, "v");
    cache_fini(&c);
}

/* Answers to a write of an object that was recreated meanwhile, and lists, which bring
 * everything. */
TEST(answers_that_are_overtaken)
{
    struct cache c = two_jobs();
    put(&c, CACHE_MAPS, make_map("rings-config-a", "1", "x"));
    drop(&c, CACHE_MAPS, make_partial("rings-config-a", "3"));
    assert_true(was_dirty(&c, "vcjob ns/a"));
    assert_false(wrote(&c, "1", "2", "y"));
    see(&c, "4");
    assert_false(wrote(&c, "1", "2", "y"));
    assert_true(map_of_a(&c)->unread);
    assert_null(map_of_a(&c)->text);
    put(&c, CACHE_MAPS, make_map("rings-config-a", "5", "z"));
    assert_false(map_of_a(&c)->unread);
    assert_false(wrote(&c, "4", "6", "y"));
    assert_false(wrote(&c, "5", "", "y")); /* not an answer that says what it did */
    assert_string_equal(map_of_a(&c)->text, "z");
    json_t *odd = make_map("rings-config-a", "", "z");
    assert_int_equal(cache_put(&c, CACHE_MAPS, odd), HL_EPROTO);
    assert_string_equal(map_of_a(&c)->version, "5");
    json_decref(odd);
    cache_fini(&c);
}

/* Pods and ConfigMaps in the same loop: objects missing from a new list are dropped at its end. */
TEST(a_list_of_several_pages)
{
    struct cache c = two_jobs();
    put(&c, CACHE_PODS, make_pod("old", "a"));
    put(&c, CACHE_PODS, make_pod("stays", "a"));
    put(&c, CACHE_MAPS, make_map("rings-config-a", "1", "x"));
    put(&c, CACHE_MAPS, make_map("rings-config-b", "1", "x"));
    (void)was_dirty(&c, "vcjob ns/a");
    (void)was_dirty(&c, "vcjob ns/b");
    for (int again = 0; again < 2; again++) { /* the first is not brought to its end */
        cache_list_begin(&c, CACHE_PODS);
        put(&c, CACHE_PODS, make_pod("stays", "a"));
        put(&c, CACHE_PODS, make_pod("new", "b"));
        assert_int_equal(pods_of(&c, "vcjob ns/a"), 2);
    }
    cache_list_end(&c, CACHE_PODS);
    assert_int_equal(pods_of(&c, "vcjob ns/a"), 1);
    assert_int_equal(pods_of(&c, "vcjob ns/b"), 1);
    assert_true(was_dirty(&c, "vcjob ns/a"));
    cache_list_begin(&c, CACHE_MAPS);
    put(&c, CACHE_MAPS, make_map("rings-config-b", "1", "x"));
    cache_list_end(&c, CACHE_MAPS);
    assert_null(cache_map_of(&c, job_of(&c, "vcjob ns/a")));
    assert_non_null(cache_map_of(&c, job_of(&c, "vcjob ns/b")));
    cache_list_begin(&c, CACHE_VCJOBS);
    put(&c, CACHE_VCJOBS, make_job("b", "2026-01-01T00:00:01Z"));
    cache_list_end(&c, CACHE_VCJOBS);
    assert_null(job_of(&c, "vcjob ns/a"));
    assert_non_null(job_of(&c, "vcjob ns/b"));
    cache_fini(&c);
}

static void use_map_of_a(json_t *job)
{
    json_t *task = json_array_get(json_object_get(json_object_get(job, "spec"), "tasks"), 0);
    json_object_set_new(task, "template",
                        json_pack("{s:{s:[{s:s s:{s:s}}]}}", "spec", "volumes", "name",
                                  HL_RANKTABLE_VOLUME, "configMap", "name", "rings-config-a"));
}

TEST(the_older_of_two_has_the_map)
{
    struct cache c = two_jobs();
    json_t *b = make_job("b", "2026-01-01T00:00:01Z");
    use_map_of_a(b);
    put(&c, CACHE_VCJOBS, b);
    struct cached_job *first = job_of(&c, "vcjob ns/a");
    assert_ptr_equal(cache_rival(&c, job_of(&c, "vcjob ns/b")), first);
    assert_null(cache_rival(&c, first));
    (void)was_dirty(&c, "vcjob ns/b");
    /* Dropped while it is being written: it competes with no other, and stays until the answer. */
    first->writing = true;
    drop(&c, CACHE_VCJOBS, make_job("a", ""));
    assert_true(was_dirty(&c, "vcjob ns/b"));
    assert_null(cache_rival(&c, job_of(&c, "vcjob ns/b")));
    assert_true(job_of(&c, "vcjob ns/a")->gone);
    cache_forget(&c, first);
    assert_null(job_of(&c, "vcjob ns/a"));
    cache_fini(&c);
}
