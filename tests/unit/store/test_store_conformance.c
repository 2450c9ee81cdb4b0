/* What every back end of the store must do, run with each of them. */
#include "unit/store/rig.h"

static void what_was_put_is_got(void **state)
{
    struct rig *r = *state;
    assert_absent(r, "job/1");
    assert_error_has("job/1");
    put(r, "job/1", "{\"a\": [1, -9223372036854775808, 0.1, true, null, \"\xC3\xA4 \\u0001\"]}");
    assert_value(r, "job/1",
                 "{\"a\": [1, -9223372036854775808, 0.1, true, null, \"\xC3\xA4 \\u0001\"]}");
    put(r, "job/1", "7");
    assert_value(r, "job/1", "7");
    put(r, "job/2", "\"text\"");
    assert_value(r, "job/2", "\"text\"");
}

static void a_value_is_a_copy(void **state)
{
    struct rig *r = *state;
    json_t *value = json_loads("{\"n\": 1}", 0, NULL);
    struct hl_store_op op = {HL_STORE_PUT, "k", value};
    assert_int_equal(hl_store_commit(r->store, &op, 1), HL_OK);
    json_object_set_new(value, "n", json_integer(2));
    json_decref(value);
    assert_value(r, "k", "{\"n\": 1}");
}

static void text_with_a_nul_survives(void **state)
{
    struct rig *r = *state;
    json_t *value = json_stringn("a\0b", 3), *back = NULL;
    struct hl_store_op op = {HL_STORE_PUT, "k", value};
    assert_int_equal(hl_store_commit(r->store, &op, 1), HL_OK);
    assert_int_equal(hl_store_get(r->store, "k", &back), HL_OK);
    assert_true(json_equal(value, back));
    json_decref(value);
    json_decref(back);
}

static void create_refuses_an_existing_key(void **state)
{
    struct rig *r = *state;
    assert_int_equal(write_one(r->store, HL_STORE_CREATE, "k", "1"), HL_OK);
    assert_int_equal(write_one(r->store, HL_STORE_CREATE, "k", "2"), HL_ECONFLICT);
    assert_error_has("key k is in the store already");
    assert_value(r, "k", "1");
}

static void delete_of_an_absent_key_is_fine(void **state)
{
    struct rig *r = *state;
    assert_int_equal(write_one(r->store, HL_STORE_DELETE, "k", NULL), HL_OK);
    put(r, "k", "1");
    assert_int_equal(write_one(r->store, HL_STORE_DELETE, "k", NULL), HL_OK);
    assert_absent(r, "k");
}

static void a_failed_batch_changes_nothing(void **state)
{
    struct rig *r = *state;
    put(r, "a", "1");
    put(r, "b", "2");
    json_t *nine = json_integer(9);
    struct hl_store_op ops[] = {{HL_STORE_PUT, "a", nine},    {HL_STORE_DELETE, "b", NULL},
                                {HL_STORE_CREATE, "c", nine}, {HL_STORE_PUT, "a", nine},
                                {HL_STORE_CREATE, "c", nine}, {HL_STORE_PUT, "d", nine}};
    assert_int_equal(hl_store_commit(r->store, ops, HL_ARRAY_LEN(ops)), HL_ECONFLICT);
    assert_value(r, "a", "1");
    assert_value(r, "b", "2");
    assert_absent(r, "c");
    assert_absent(r, "d");
    ops[4].kind = HL_STORE_PUT;
    assert_int_equal(hl_store_commit(r->store, ops, HL_ARRAY_LEN(ops)), HL_OK);
    assert_value(r, "a", "9");
    assert_absent(r, "b");
    assert_value(r, "c", "9");
    assert_value(r, "d", "9");
    json_decref(nine);
}

static void operations_of_a_batch_follow_each_other(void **state)
{
    struct rig *r = *state;
    json_t *one = json_integer(1), *two = json_integer(2);
    put(r, "k", "0");
    struct hl_store_op ops[] = {{HL_STORE_DELETE, "k", NULL},
                                {HL_STORE_CREATE, "k", one},
                                {HL_STORE_PUT, "n", one},
                                {HL_STORE_DELETE, "n", NULL},
                                {HL_STORE_PUT, "k", two}};
    assert_int_equal(hl_store_commit(r->store, ops, HL_ARRAY_LEN(ops)), HL_OK);
    assert_value(r, "k", "2");
    assert_absent(r, "n");
    assert_int_equal(hl_store_commit(r->store, NULL, 0), HL_OK);
    json_decref(one);
    json_decref(two);
}

static void a_scan_shows_the_prefix_in_byte_order(void **state)
{
    struct rig *r = *state;
    static const char *const keys[] = {"job/2",  "job/10",       "job/",    "job",
                                       "jobs/1", "job0",         "model/",  "A",
                                       "job/a",  "job/\xC3\xA4", "\xFF\xFF"};
    assert_scan(r, "", "");
    for (size_t i = 0; i < HL_ARRAY_LEN(keys); i++)
        put(r, keys[i], "0");
    assert_scan(r, "job/", "job/ job/10 job/2 job/a job/\xC3\xA4 ");
    assert_scan(r, "job", "job job/ job/10 job/2 job/a job/\xC3\xA4 job0 jobs/1 ");
    assert_scan(r, "job/1", "job/10 ");
    assert_scan(r, "nothing", "");
    assert_scan(r, "\xFF", "\xFF\xFF ");
    assert_scan(r, "", "A job job/ job/10 job/2 job/a job/\xC3\xA4 job0 jobs/1 model/ \xFF\xFF ");
}

static hl_status stop_at_second(void *arg, const char *key, json_t *value)
{
    (void)key;
    (void)value;
    return ++*(int *)arg == 2 ? hl_fail(HL_ECANCELED, "enough") : HL_OK;
}

static hl_status touch_the_store(void *arg, const char *key, json_t *value)
{
    struct rig *r = arg;
    json_t *out = NULL;
    struct hl_store_op op = {HL_STORE_PUT, key, value};
    assert_int_equal(hl_store_get(r->store, key, &out), HL_EBUSY);
    assert_int_equal(hl_store_scan(r->store, "", touch_the_store, r), HL_EBUSY);
    return hl_store_commit(r->store, &op, 1);
}

static void the_callback_ends_a_scan_and_may_not_use_the_store(void **state)
{
    struct rig *r = *state;
    put(r, "a", "1");
    put(r, "b", "1");
    put(r, "c", "1");
    int count = 0;
    assert_int_equal(hl_store_scan(r->store, "", stop_at_second, &count), HL_ECANCELED);
    assert_string_equal(hl_error_text(), "enough");
    assert_int_equal(count, 2);
    assert_int_equal(hl_store_scan(r->store, "", touch_the_store, r), HL_EBUSY);
    assert_scan(r, "", "a b c ");
}

static void limits_are_kept(void **state)
{
    struct rig *r = *state;
    char key[600];
    memset(key, 'k', sizeof(key));
    key[512] = '\0';
    put(r, key, "1");
    assert_value(r, key, "1");
    assert_scan(r, "x", "");
    memset(key, 'k', sizeof(key));
    key[513] = '\0';
    json_t *out = NULL;
    assert_int_equal(write_one(r->store, HL_STORE_PUT, key, "1"), HL_EINVAL);
    assert_int_equal(hl_store_get(r->store, key, &out), HL_EINVAL);
    assert_int_equal(hl_store_scan(r->store, key, append_key, NULL), HL_EINVAL);
    assert_int_equal(write_one(r->store, HL_STORE_PUT, "", "1"), HL_EINVAL);
    assert_int_equal(write_one(r->store, HL_STORE_PUT, "k", NULL), HL_EINVAL);
    size_t size = 16u << 20;
    char *text = malloc(size + 1);
    memset(text, 'x', size);
    json_t *large = json_stringn(text, size - 2); /* and its two quotes */
    struct hl_store_op op = {HL_STORE_PUT, "large", large};
    assert_int_equal(hl_store_commit(r->store, &op, 1), HL_OK);
    assert_int_equal(hl_store_get(r->store, "large", &out), HL_OK);
    assert_true(json_equal(out, large));
    json_decref(out);
    json_decref(large);
    op.value = large = json_stringn(text, size - 1);
    assert_int_equal(hl_store_commit(r->store, &op, 1), HL_EINVAL);
    assert_error_has("key large: a value of 16777217 bytes is above the limit of 16777216");
    json_decref(large);
    free(text);
    assert_int_equal(hl_store_commit(r->store, &op, 100001), HL_EINVAL);
}

static hl_status count_keys(void *arg, const char *key, json_t *value)
{
    (void)key;
    *(json_int_t *)arg += json_integer_value(value);
    return HL_OK;
}

static void a_batch_may_have_100000_operations(void **state)
{
    struct rig *r = *state;

    enum { COUNT = 100000 };
    struct hl_store_op *ops = calloc(COUNT, sizeof(*ops));
    char(*keys)[16] = calloc(COUNT, sizeof(*keys));
    json_t *one = json_integer(1);
    for (int i = 0; i < COUNT; i++) {
        snprintf(keys[i], sizeof(keys[i]), "s/%d", (int)((unsigned)i * 7919u % COUNT));
        ops[i] = (struct hl_store_op){HL_STORE_CREATE, keys[i], one};
    }
    assert_int_equal(hl_store_commit(r->store, ops, COUNT), HL_OK);
    json_int_t sum = 0;
    assert_int_equal(hl_store_scan(r->store, "s/", count_keys, &sum), HL_OK);
    assert_int_equal(sum, COUNT);
    json_decref(one);
    free(keys);
    free(ops);
}

/* The store compared with the simplest correct model: an array indexed by the key's number. */
#define MODEL_KEYS 40

struct model {
    int present[MODEL_KEYS];
    json_int_t value[MODEL_KEYS];
};

static uint32_t next_random(uint32_t *x)
{
    *x ^= *x << 13;
    *x ^= *x >> 17;
    return *x ^= *x << 5;
}

struct walk {
    const struct model *model;
    int next;
};

static hl_status compare(void *arg, const char *key, json_t *value)
{
    struct walk *w = arg;
    while (w->next < MODEL_KEYS && !w->model->present[w->next])
        w->next++;
    assert_int_equal(atoi(key + 1), w->next);
    assert_int_equal(json_integer_value(value), w->model->value[w->next]);
    w->next++;
    return HL_OK;
}

static void random_batches_agree_with_a_plain_array(void **state)
{
    struct rig *r = *state;
    struct model model = {{0}, {0}};
    uint32_t x = 2463534242u;
    for (int round = 0; round < 150; round++) {
        struct model next = model;
        struct hl_store_op ops[12];
        char keys[12][16];
        size_t n = 1 + next_random(&x) % 12;
        hl_status want = HL_OK;
        for (size_t i = 0; i < n; i++) {
            int k = (int)(next_random(&x) % MODEL_KEYS);
            uint32_t dice = next_random(&x) % 8;
            enum hl_store_op_kind op = dice == 0  ? HL_STORE_CREATE
                                       : dice < 4 ? HL_STORE_DELETE
                                                  : HL_STORE_PUT;
            snprintf(keys[i], sizeof(keys[i]), "k%03d", k);
            ops[i] = (struct hl_store_op){op, keys[i], json_integer(round)};
            if (op == HL_STORE_CREATE && next.present[k])
                want = HL_ECONFLICT;
            next.present[k] = op != HL_STORE_DELETE;
            next.value[k] = round;
        }
        assert_int_equal(hl_store_commit(r->store, ops, n), want);
        for (size_t i = 0; i < n; i++)
            json_decref((json_t *)ops[i].value);
        if (want == HL_OK)
            model = next;
        struct walk w = {&model, 0};
        assert_int_equal(hl_store_scan(r->store, "k", compare, &w), HL_OK);
        while (w.next < MODEL_KEYS)
            assert_int_equal(model.present[w.next++], 0);
    }
}

int main(void)
{
    const struct CMUnitTest every[] = {
        WITH_STORE(what_was_put_is_got),
        WITH_STORE(a_value_is_a_copy),
        WITH_STORE(text_with_a_nul_survives),
        WITH_STORE(create_refuses_an_existing_key),
        WITH_STORE(delete_of_an_absent_key_is_fine),
        WITH_STORE(a_failed_batch_changes_nothing),
        WITH_STORE(operations_of_a_batch_follow_each_other),
        WITH_STORE(a_scan_shows_the_prefix_in_byte_order),
        WITH_STORE(the_callback_ends_a_scan_and_may_not_use_the_store),
        WITH_STORE(limits_are_kept),
        WITH_STORE(a_batch_may_have_100000_operations),
        WITH_STORE(random_batches_agree_with_a_plain_array),
    };
    int failed = cmocka_run_group_tests_name("mem", every, NULL, NULL);
    rig_kind = "sqlite";
    return failed + cmocka_run_group_tests_name("sqlite", every, NULL, NULL) != 0;
}
