/* Objects under a key that their owner computes. */
#include "support/test.h"

#include <string.h>

#include "core/json.h"
#include "kube/table.h"
#include "kube/watcher.h"

static const char *key_of(const json_t *object)
{
    return hl_json_str(object, "of", NULL);
}

static json_t *make(const char *of, int value)
{
    return of != NULL ? json_pack("{s:s s:i}", "of", of, "value", value)
                      : json_pack("{s:i}", "value", value);
}

static void change(struct hl_kube_table *t, enum hl_kube_event type, const char *of, int value)
{
    json_t *o = make(of, value);
    assert_int_equal(hl_kube_table_change(t, type, o), HL_OK);
    json_decref(o);
}

static void list(struct hl_kube_table *t, unsigned page, const char *of)
{
    json_t *all = json_array();
    json_array_append_new(all, make(of, 1));
    assert_int_equal(hl_kube_table_list(t, all, page), HL_OK);
    json_decref(all);
}

static int64_t value(const struct hl_kube_table *t, const char *of)
{
    return hl_json_int(hl_kube_table_find(t, of), "value", 0);
}

TEST(a_change_replaces_and_a_deletion_ends_it)
{
    struct hl_kube_table t;
    assert_int_equal(hl_kube_table_init(&t, key_of), HL_OK);
    change(&t, HL_KUBE_ADDED, "a", 2);
    change(&t, HL_KUBE_ADDED, "b", 3);
    change(&t, HL_KUBE_MODIFIED, "a", 4);
    assert_int_equal(value(&t, "a"), 4);
    change(&t, HL_KUBE_DELETED, "a", 4);
    assert_null(hl_kube_table_find(&t, "a"));
    assert_int_equal(value(&t, "b"), 3);
    hl_kube_table_fini(&t);
}

TEST(what_has_no_key_is_left_out)
{
    struct hl_kube_table t;
    assert_int_equal(hl_kube_table_init(&t, key_of), HL_OK);
    change(&t, HL_KUBE_ADDED, "a", 2);
    change(&t, HL_KUBE_ADDED, NULL, 3);
    change(&t, HL_KUBE_DELETED, NULL, 3);
    assert_int_equal(json_object_size(t.now), 1);
    list(&t, HL_KUBE_FIRST | HL_KUBE_LAST, NULL);
    assert_int_equal(json_object_size(t.now), 0);
    assert_true(t.synced);
    hl_kube_table_fini(&t);
}

TEST(a_list_counts_with_its_last_page)
{
    struct hl_kube_table t;
    assert_int_equal(hl_kube_table_init(&t, key_of), HL_OK);
    change(&t, HL_KUBE_ADDED, "old", 2);
    list(&t, HL_KUBE_FIRST, "never"); /* that list was broken off */
    list(&t, HL_KUBE_FIRST, "a");
    list(&t, 0, "b");
    assert_false(t.synced);
    assert_int_equal(value(&t, "old"), 2);
    assert_null(hl_kube_table_find(&t, "a"));
    list(&t, HL_KUBE_LAST, "c");
    assert_true(t.synced);
    assert_null(hl_kube_table_find(&t, "old"));
    assert_null(hl_kube_table_find(&t, "never"));
    assert_int_equal(value(&t, "a") + value(&t, "b") + value(&t, "c"), 3);
    hl_kube_table_fini(&t);
}
