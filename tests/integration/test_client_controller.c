/* What libhelios tells a Controller, and how it handles the answers. The Controller is a stand-in
 * that records its calls; the pool is that of a real helios-l3d. */
#include "support/test.h"

#include "client_world.h"

#include <pthread.h>

#include "core/catalog/derived_id.h"
#include "mem/socket/socket.h"
#include "os/loop.h"
#include "rpc/rpc.h"
#include "support/rpc_json.h"

static struct world world;

static struct {
    pthread_mutex_t lock;
    struct hl_loop *loop;
    struct hl_rpc *rpc;
    struct hl_rpc_server *server;
    pthread_t thread;
    int thread_runs;
    char address[64];
    json_t *shards; /* what requestShards answers */
    const char *skipped;
    json_t *commits;    /* parameters of every commitPart */
    json_t *begins;     /* of every beginVersion */
    json_t *gaveup;     /* of every abandonVersion */
    json_t *reports;    /* every AccessReport */
    bool refuses;       /* reports are not answered */
    json_t *refused;    /* parameters of every reportAccess that was not answered */
    json_t *taken;      /* and of those that were */
    json_t *copies;     /* what getShard answers */
    int heals_refused;  /* so many calls of reportBadCopy fail (L3 busy), then the shard is lost */
    json_t *after_heal; /* what requestShards answers after a heal; NULL = as before */
    int heals;          /* calls of reportBadCopy */
    json_t *nodes;      /* what listNodes answers */
    int nodes_asked;    /* calls of it */
} boss = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* Returns a copy of the configured answer: it is encoded without the lock. */
static json_t *answer(const char *method, const json_t *params)
{
    size_t i;
    json_t *r;
    if (strcmp(method, "requestShards") == 0)
        return json_pack("{s:o s:i s:s s:s s:s s:s}", "shards", json_deep_copy(boss.shards),
                         "version", 3, "meta", "{\"step\": 5}", "config", "", "l3Address",
                         world.address, "skipped", boss.skipped != NULL ? boss.skipped : "");
    if (strcmp(method, "reportBadCopy") == 0) {
        if (boss.after_heal != NULL)
            json_decref(boss.shards);
        boss.shards = boss.after_heal != NULL ? boss.after_heal : boss.shards;
        boss.after_heal = NULL;
        return json_pack("{s:s}", "state", "lost");
    }
    if (strcmp(method, "abandonVersion") == 0)
        json_array_append_new(boss.gaveup, json_deep_copy(params));
    if (strcmp(method, "beginVersion") == 0)
        json_array_append_new(boss.begins, json_deep_copy(params));
    if (strcmp(method, "beginVersion") == 0)
        return json_pack("{s:i s:s}", "version", 4, "state", "open");
    if (strcmp(method, "commitPart") == 0) {
        json_array_append_new(boss.commits, json_deep_copy(params));
        return json_pack("{s:b s:i}", "visible", 1, "committed", 1);
    }
    if (strcmp(method, "getShard") == 0)
        return json_pack("{s:{s:o}}", "shard", "copies", json_deep_copy(boss.copies));
    boss.nodes_asked += strcmp(method, "listNodes") == 0;
    if (strcmp(method, "listNodes") == 0)
        return json_pack("{s:o}", "nodes", json_deep_copy(boss.nodes));
    if (strcmp(method, "clusterInfo") == 0)
        return json_pack("{s:{s:s}}", "info", "l3Address", world.address);
    json_array_foreach (json_object_get(params, "reports"), i, r) {
        json_array_append_new(boss.reports, json_deep_copy(r));
    }
    return json_object();
}

static void handle(void *arg, struct hl_rpc_call *call, const char *method, const json_t *params)
{
    (void)arg;
    pthread_mutex_lock(&boss.lock);
    bool is_report = strcmp(method, "reportAccess") == 0, refuses = is_report && boss.refuses;
    if (strcmp(method, "reportBadCopy") == 0)
        refuses = ++boss.heals <= boss.heals_refused;
    if (is_report)
        json_array_append_new(refuses ? boss.refused : boss.taken, json_deep_copy(params));
    json_t *result = refuses ? NULL : answer(method, params);
    pthread_mutex_unlock(&boss.lock);
    if (refuses)
        hl_rpc_reject(call, HL_EUNAVAIL, "the Controller is being started");
    else
        rpc_json_reply(call, result);
}

/* Borrowed. The lock makes visible what the loop's thread wrote before the last answer. */
static json_t *told(json_t *list)
{
    pthread_mutex_lock(&boss.lock);
    pthread_mutex_unlock(&boss.lock);
    return list;
}

static void forget(json_t *const *list)
{
    pthread_mutex_lock(&boss.lock);
    json_array_clear(*list);
    pthread_mutex_unlock(&boss.lock);
}

static int heals_told(void)
{
    pthread_mutex_lock(&boss.lock);
    int heals = boss.heals;
    pthread_mutex_unlock(&boss.lock);
    return heals;
}

static void *run_loop(void *arg)
{
    (void)arg;
    return hl_loop_run(boss.loop) == HL_OK ? NULL : boss.loop;
}

static int setup(void **state)
{
    (void)state;
    world_start(&world, "32MiB");
    boss.shards = json_array();
    boss.commits = json_array();
    boss.begins = json_array();
    boss.gaveup = json_array();
    boss.reports = json_array();
    boss.refused = json_array();
    boss.taken = json_array();
    boss.copies = json_array();
    boss.nodes = json_array();
    assert_int_equal(hl_loop_create(&boss.loop), HL_OK);
    assert_int_equal(hl_rpc_create(&boss.rpc), HL_OK);
    assert_int_equal(
        rpc_json_serve(boss.rpc, "Controller",
                       &(struct hl_rpc_serve_opts){.address = "127.0.0.1:0", .loop = boss.loop},
                       handle, &boss.server),
        HL_OK);
    snprintf(boss.address, sizeof(boss.address), "%s", hl_rpc_server_address(boss.server));
    boss.thread_runs = pthread_create(&boss.thread, NULL, run_loop, NULL) == 0;
    return !boss.thread_runs;
}

static int teardown(void **state)
{
    (void)state;
    if (boss.thread_runs) {
        hl_loop_stop(boss.loop);
        pthread_join(boss.thread, NULL);
    }
    if (boss.server != NULL)
        hl_rpc_server_close(boss.server);
    hl_rpc_destroy(boss.rpc);
    hl_loop_destroy(boss.loop);
    json_decref(boss.shards);
    json_decref(boss.commits);
    json_decref(boss.begins);
    json_decref(boss.gaveup);
    json_decref(boss.reports);
    json_decref(boss.refused);
    json_decref(boss.taken);
    json_decref(boss.copies);
    json_decref(boss.nodes);
    world_end(&world);
    return 0;
}

static helios_client *open_client(const char *path)
{
    helios_client *c = NULL;
    /* The address of l3 comes from the Controller. */
    unsetenv("CONTROLLER_L3_CACHE_ADDRESS");
    helios_options o = {HELIOS_OPTIONS_INIT, .controller = boss.address, .path = path};
    if (helios_open(&o, &c) != HELIOS_OK)
        fail_msg("helios_open: %s", helios_last_error());
    return c;
}

static helios_shard put(helios_client *c, int64_t version, const char *part)
{
    static const int64_t shape[] = {100};
    static const unsigned char data[100] = {7};
    const helios_tensor t = {.name = part, .dtype = "U8", .shape = shape, .rank = 1, .data = data};
    helios_shard s;
    if (helios_version_put(c, "toy", version, 1, 0, part, &t, 1, &s) != HELIOS_OK)
        fail_msg("helios_version_put: %s", helios_last_error());
    return s;
}

static void serve_shard(const helios_shard *s)
{
    char id[33];
    snprintf(id, sizeof(id), "%016llx%016llx", (unsigned long long)s->id.hi,
             (unsigned long long)s->id.lo);
    pthread_mutex_lock(&boss.lock);
    json_array_append_new(boss.shards, json_pack("{s:s s:s s:i s:i s:i s:s s:I s:I s:i}", "id", id,
                                                 "model", "toy", "version", 3, "pp", 1, "tp", 0,
                                                 "part", s->part, "sizeBytes", (json_int_t)s->size,
                                                 "crc32", (json_int_t)s->crc32, "tensors", 1));
    pthread_mutex_unlock(&boss.lock);
}

TEST(a_commit_names_every_shard_once_and_only_of_its_version)
{
    int64_t version;
    int visible = 0;
    helios_client *c = open_client("auto");
    (void)put(c, 2, "head"); /* belongs to a version that was abandoned */
    const helios_version_spec spec = {HELIOS_VERSION_SPEC_INIT,
                                      .model = "toy",
                                      .job = "job-1",
                                      .attempt = 1,
                                      .step = 50,
                                      .rank = 1,
                                      .world = 2};
    assert_int_equal(helios_version_open(c, &spec, &version), HELIOS_OK);
    assert_int_equal(version, 4);
    helios_shard a = put(c, version, "layer-0001"), b = put(c, version, "optim-layer-0001");
    assert_int_equal(helios_version_commit(c, "toy", version, 3, "{\"loss\": 1}", &visible),
                     HELIOS_OK);
    assert_int_equal(visible, 1);
    assert_int_equal(helios_version_commit(c, "toy", version, 3, NULL, NULL), HELIOS_OK);
    assert_int_equal(json_array_size(told(boss.commits)), 2);

    json_t *first = json_array_get(boss.commits, 0), *shards = json_object_get(first, "shards");
    assert_int_equal(json_integer_value(json_object_get(first, "rank")), 3);
    assert_string_equal(json_string_value(json_object_get(first, "meta")), "{\"loss\": 1}");
    assert_int_equal(json_array_size(shards), 2);
    json_t *s = json_array_get(shards, 0);
    assert_string_equal(json_string_value(json_object_get(s, "part")), "layer-0001");
    assert_int_equal(json_integer_value(json_object_get(s, "pp")), 1);
    assert_int_equal(json_integer_value(json_object_get(s, "crc32")), a.crc32);
    assert_int_equal(json_integer_value(json_object_get(s, "sizeBytes")), a.size);
    s = json_array_get(shards, 1);
    assert_int_equal(json_integer_value(json_object_get(s, "crc32")), b.crc32);
    /* A repeated commit reports nothing new. */
    assert_int_equal(json_array_size(json_object_get(json_array_get(boss.commits, 1), "shards")),
                     0);
    helios_close(c);
}

TEST(every_save_has_a_token_of_its_own)
{
    int64_t version;
    helios_client *c = open_client("auto");
    helios_version_spec spec = {HELIOS_VERSION_SPEC_INIT,
                                .model = "toy",
                                .job = "job-1",
                                .step = 50,
                                .rank = 3,
                                .world = 4,
                                .layout = HELIOS_LAYOUT_ANY_DTYPE};
    forget(&boss.begins);
    assert_int_equal(helios_version_open(c, &spec, &version), HELIOS_OK);
    assert_int_equal(helios_version_open(c, &spec, &version), HELIOS_OK);
    json_t *first = json_array_get(told(boss.begins), 0), *second = json_array_get(boss.begins, 1);
    assert_int_equal(json_integer_value(json_object_get(first, "rank")), 3);
    assert_string_equal(json_string_value(json_object_get(first, "check")), "any-dtype");
    assert_int_equal(strlen(json_string_value(json_object_get(first, "token"))), 16);
    assert_string_not_equal(json_string_value(json_object_get(first, "token")),
                            json_string_value(json_object_get(second, "token")));
    spec.rank = 4;
    assert_int_equal(helios_version_open(c, &spec, &version), HELIOS_EINVAL);
    spec.rank = 0;
    spec.layout = 3;
    assert_int_equal(helios_version_open(c, &spec, &version), HELIOS_EINVAL);
    helios_close(c);
}

TEST(who_gives_a_version_up_names_what_was_put_and_why)
{
    char id[33];
    helios_client *c = open_client("auto");
    forget(&boss.gaveup);
    helios_shard s = put(c, 4, "head");
    (void)put(c, 5, "head"); /* of another version */
    assert_int_equal(helios_version_abandon(c, "toy", 4, 2, "the disk is full"), HELIOS_OK);
    json_t *sent = json_array_get(told(boss.gaveup), 0), *ids = json_object_get(sent, "ids");
    snprintf(id, sizeof(id), "%016llx%016llx", (unsigned long long)s.id.hi,
             (unsigned long long)s.id.lo);
    assert_int_equal(json_array_size(ids), 1);
    assert_string_equal(json_string_value(json_array_get(ids, 0)), id);
    assert_int_equal(json_integer_value(json_object_get(sent, "rank")), 2);
    assert_string_equal(json_string_value(json_object_get(sent, "reason")), "the disk is full");
    /* Parts of an abandoned version are not committed with the next version of that number. */
    forget(&boss.commits);
    assert_int_equal(helios_version_commit(c, "toy", 4, 2, NULL, NULL), HELIOS_OK);
    json_t *shards = json_object_get(json_array_get(told(boss.commits), 0), "shards");
    assert_int_equal(json_array_size(shards), 0);
    forget(&boss.commits);
    helios_close(c);
}

TEST(a_commit_tells_the_layout_of_every_part)
{
    helios_client *c = open_client("auto");
    forget(&boss.commits);
    (void)put(c, 6, "layer-0001");
    assert_int_equal(helios_version_commit(c, "toy", 6, 0, NULL, NULL), HELIOS_OK);
    json_t *shards = json_object_get(json_array_get(told(boss.commits), 0), "shards");
    assert_string_equal(json_string_value(json_object_get(json_array_get(shards, 0), "layout")),
                        "layer-0001\tU8\t100\n");
    forget(&boss.commits);
    helios_close(c);
}

TEST(a_list_is_in_part_order_and_reads_are_reported_at_the_end)
{
    static const char *const put_order[] = {"optim-head", "head", "layer-0001", "embedding",
                                            "layer-0000"};
    static const char *const list_order[] = {"embedding", "layer-0000", "layer-0001", "head",
                                             "optim-head"};
    for (int net = 0; net < 2; net++) {
        helios_shard_list *list;
        helios_client *c = open_client(net ? "net" : "shm");
        forget(&boss.shards);
        forget(&boss.reports);
        for (size_t i = 0; i < 5; i++) {
            helios_shard s = put(c, 3, put_order[i]);
            serve_shard(&s);
        }
        assert_int_equal(helios_request_shards(c, "toy", -1, 1, 0, &list), HELIOS_OK);
        assert_int_equal(list->version, 3);
        assert_int_equal(list->count, 5);
        assert_string_equal(list->meta_json, "{\"step\": 5}");
        assert_string_equal(list->config_json, "{}");
        uint64_t bytes = 0;
        for (size_t i = 0; i < 5; i++) {
            const void *view;
            assert_string_equal(list->shards[i].part, list_order[i]);
            assert_int_equal(helios_map(c, list->shards[i].id, &view, NULL), HELIOS_OK);
            assert_int_equal(helios_unmap(c, view), HELIOS_OK);
            bytes += list->shards[i].size;
        }
        char buf[10];
        assert_int_equal(helios_get_range(c, list->shards[0].id, 0, buf, 10), HELIOS_OK);
        helios_shard_list_free(list);
        helios_close(c);

        uint64_t reads = 0, read_bytes = 0;
        for (size_t i = 0; i < json_array_size(told(boss.reports)); i++) {
            json_t *r = json_array_get(boss.reports, i);
            reads += (uint64_t)json_integer_value(json_object_get(r, "count"));
            read_bytes += (uint64_t)json_integer_value(json_object_get(r, "bytes"));
            assert_string_equal(json_string_value(json_object_get(r, "path")), net ? "tcp" : "shm");
        }
        assert_int_equal(reads, 6);
        assert_int_equal(read_bytes, bytes + 10);
    }
}

static json_int_t number(const json_t *params, const char *name)
{
    return json_integer_value(json_object_get(params, name));
}

static json_int_t accesses_of(const json_t *params)
{
    json_int_t count = 0;
    size_t i;
    const json_t *r;
    json_array_foreach (json_object_get(params, "reports"), i, r)
        count += number(r, "count");
    return count;
}

static size_t refused_count(void)
{
    pthread_mutex_lock(&boss.lock);
    size_t n = json_array_size(boss.refused);
    pthread_mutex_unlock(&boss.lock);
    return n;
}

TEST(a_report_that_is_not_answered_is_told_again_under_its_number)
{
    char buf[10];
    double end = now_s() + 30;
    pthread_mutex_lock(&boss.lock);
    boss.refuses = true;
    pthread_mutex_unlock(&boss.lock);
    forget(&boss.taken);
    helios_client *c = open_client("shm");
    helios_shard s = put(c, 3, "head");
    assert_int_equal(helios_get_range(c, s.id, 0, buf, 10), HELIOS_OK);
    while (refused_count() == 0) {
        assert_true(now_s() < end);
        nap_ms(5);
    }
    pthread_mutex_lock(&boss.lock);
    boss.refuses = false;
    pthread_mutex_unlock(&boss.lock);
    for (int i = 0; i < 3; i++) /* counted while the first one waits */
        assert_int_equal(helios_get_range(c, s.id, 0, buf, 10), HELIOS_OK);
    nap_ms(50); /* it gets older */
    helios_close(c);

    const json_t *taken = told(boss.taken), *refused = json_array_get(boss.refused, 0);
    json_int_t total = 0, incarnation = number(refused, "incarnation");
    assert_true(incarnation > 0);
    assert_int_equal(number(refused, "sequence"), 1);
    for (size_t i = 0; i < json_array_size(taken); i++) {
        assert_int_equal(number(json_array_get(taken, i), "sequence"), i + 1);
        assert_true(number(json_array_get(taken, i), "incarnation") == incarnation);
        total += accesses_of(json_array_get(taken, i));
    }
    assert_true(json_array_size(taken) >= 2);
    assert_int_equal(total, 4);
    const json_t *again = json_array_get(taken, 0);
    assert_int_equal(accesses_of(again), accesses_of(refused));
    const json_t *first = json_array_get(json_object_get(again, "reports"), 0),
                 *before = json_array_get(json_object_get(refused, "reports"), 0);
    assert_true(number(first, "ageMs") >= number(before, "ageMs") + (before != NULL ? 40 : 0));
}

/* Every read of the shard fails and names the mismatch. */
static void assert_refused(helios_client *c, helios_id id, size_t size, const char *what)
{
    const void *view = NULL;
    void *own = NULL;
    char *buf = malloc(size);
    assert_int_equal(helios_map(c, id, &view, NULL), HELIOS_ECORRUPT);
    assert_non_null(strstr(helios_last_error(), what));
    assert_int_equal(helios_map_private(c, id, &own, NULL), HELIOS_ECORRUPT);
    assert_int_equal(helios_get(c, id, buf, size), HELIOS_ECORRUPT);
    assert_non_null(strstr(helios_last_error(), what));
    assert_non_null(strstr(helios_last_error(), "toy@3/pp1/tp0/head"));
    assert_int_equal(helios_get_range(c, id, 1000, buf, 40000), HELIOS_ECORRUPT);
    free(buf);
}

TEST(a_shard_that_is_not_what_the_catalogue_says_is_not_read)
{
    static const int64_t shape[] = {50000};
    unsigned char *data = noise(50000, 7);
    const helios_tensor t = {.name = "w", .dtype = "U8", .shape = shape, .rank = 1, .data = data};
    for (int net = 0; net < 2; net++) {
        helios_shard s;
        helios_shard_list *list;
        const void *view;
        helios_client *c = open_client(net ? "net" : "shm");
        assert_int_equal(helios_version_put(c, "toy", 3, 1, 0, "head", &t, 1, &s), HELIOS_OK);
        forget(&boss.shards);
        helios_shard wrong = s;
        wrong.crc32 ^= 1;
        serve_shard(&wrong);
        assert_int_equal(helios_request_shards(c, "toy", -1, 1, 0, &list), HELIOS_OK);
        helios_shard_list_free(list);
        assert_refused(c, s.id, s.size, "with CRC-32");
        forget(&boss.shards);
        wrong = s;
        wrong.size++;
        serve_shard(&wrong);
        assert_int_equal(helios_request_shards(c, "toy", -1, 1, 0, &list), HELIOS_OK);
        helios_shard_list_free(list);
        assert_refused(c, s.id, s.size + 1, "but the catalogue says");
        forget(&boss.shards);
        serve_shard(&s);
        assert_int_equal(helios_request_shards(c, "toy", -1, 1, 0, &list), HELIOS_OK);
        helios_shard_list_free(list);
        assert_int_equal(helios_map(c, s.id, &view, NULL), HELIOS_OK);
        assert_int_equal(helios_unmap(c, view), HELIOS_OK);
        forget(&boss.shards);
        helios_close(c);
    }
    free(data);
}

/* Stores a shard of a cut in the pool, of the part "head". */
static helios_shard put_derived(uint64_t cut, const unsigned char *data, size_t size)
{
    struct hl_l3_client *l3 = NULL;
    struct hl_l3_staging staging = {0};
    struct hl_pool_ref ref;
    const struct hl_id id = hl_id_derived(cut, 0);
    assert_int_equal(hl_l3_connect(world.socket, 20000, &l3), HL_OK);
    assert_int_equal(hl_l3_staging_open(size, &staging), HL_OK);
    memcpy(staging.ptr, data, size);
    assert_int_equal(hl_l3_put_as(l3, id, &staging, size, 20000, &ref), HL_OK);
    hl_l3_staging_close(&staging);
    hl_l3_close(l3);
    return (helios_shard){.id = {id.hi, id.lo}, .part = "head", .size = size, .crc32 = ref.crc32};
}

/* What a reader gets when a derived shard that it has listed is damaged. The Controller keeps
 * handing it out until L3 has answered a report; `refused` of the reports get no answer. */
static void read_damaged(const char *path, int mapped, int refused)
{
    static uint64_t cut = 1;

    enum { SIZE = 50000 };

    unsigned char *old = noise(SIZE, (unsigned)(2 * cut)),
                  *new = noise(SIZE, (unsigned)(2 * cut + 1));
    unsigned char *got = malloc(SIZE);
    const void *view = got;
    helios_shard_list *list;
    helios_client *c = open_client(path);
    forget(&boss.shards);
    const helios_shard fresh = put_derived(cut++, new, SIZE), s = put_derived(cut++, old, SIZE);
    serve_shard(&fresh);
    pthread_mutex_lock(&boss.lock);
    boss.after_heal = boss.shards;
    boss.shards = json_array();
    boss.heals_refused = refused;
    boss.heals = 0;
    pthread_mutex_unlock(&boss.lock);
    serve_shard(&s);
    assert_int_equal(helios_request_shards(c, "toy", 3, 1, 0, &list), HELIOS_OK);
    helios_shard_list_free(list);
    world_flip(&world, old, 64);
    int st = mapped ? helios_map(c, s.id, &view, NULL) : helios_get(c, s.id, got, SIZE);
    if (st != HELIOS_OK)
        fail_msg("%s, mapped %d, %d reports refused: %s", path, mapped, refused,
                 helios_last_error());
    assert_memory_equal(view, new, SIZE);
    assert_int_equal(heals_told(), refused + 1);
    helios_close(c);
    free(old);
    free(new);
    free(got);
}

TEST(a_damaged_shard_of_a_cut_is_listed_again_once_its_report_is_answered)
{
    for (int mapped = 0; mapped < 2; mapped++)
        for (int refused = 0; refused <= 2; refused += 2) {
            read_damaged("shm", mapped, refused);
            read_damaged("net", mapped, refused);
        }
    forget(&boss.shards);
}

TEST(versions_that_were_passed_over_are_told)
{
    helios_shard_list *list;
    helios_client *c = open_client("shm");
    forget(&boss.shards);
    helios_shard s = put(c, 3, "head");
    serve_shard(&s);
    assert_int_equal(helios_request_shards(c, "toy", -1, 1, 0, &list), HELIOS_OK);
    assert_string_equal(list->skipped, "");
    helios_shard_list_free(list);
    pthread_mutex_lock(&boss.lock);
    boss.skipped = "version 4: 1 of its 2 shards are lost";
    pthread_mutex_unlock(&boss.lock);
    assert_int_equal(helios_request_shards(c, "toy", -1, 1, 0, &list), HELIOS_OK);
    assert_string_equal(list->skipped, "version 4: 1 of its 2 shards are lost");
    helios_shard_list_free(list);
    pthread_mutex_lock(&boss.lock);
    boss.skipped = NULL;
    pthread_mutex_unlock(&boss.lock);
    forget(&boss.shards);
    helios_close(c);
}

TEST(a_lost_shard_is_reported_with_its_troubles)
{
    static const int64_t shape[] = {4096};
    unsigned char *data = noise(4096, 5), *copy = malloc(8192);
    const helios_tensor t = {.name = "w", .dtype = "U8", .shape = shape, .rank = 1, .data = data};
    helios_shard s;
    helios_client *c = open_client("shm");
    forget(&boss.reports);
    assert_int_equal(helios_version_put(c, "toy", 3, 0, 0, "head", &t, 1, &s), HELIOS_OK);
    off_t at = world_flip(&world, data, 64);
    assert_int_equal(helios_get(c, s.id, copy, s.size), HELIOS_ECORRUPT);
    world_flip_at(&world, at);
    helios_close(c);
    assert_int_equal(json_array_size(told(boss.reports)), 1);
    json_t *r = json_array_get(boss.reports, 0);
    assert_int_equal(json_integer_value(json_object_get(r, "count")), 0);
    assert_int_equal(json_integer_value(json_object_get(r, "crcFailures")), 4);
    assert_int_equal(json_integer_value(json_object_get(r, "retries")), 3);
    assert_true(json_is_true(json_object_get(r, "lost")));
    free(data);
    free(copy);
}

TEST(where_the_nodes_are_is_asked_only_when_one_has_a_copy)
{
    helios_client *c = open_client("shm");
    char buf[16];
    for (int in_l2 = 0; in_l2 < 2; in_l2++) {
        pthread_mutex_lock(&boss.lock);
        json_array_append_new(
            boss.copies, json_pack("{s:s s:s}", "tier", in_l2 ? "L2" : "L1", "node", "node-7"));
        boss.nodes_asked = 0;
        pthread_mutex_unlock(&boss.lock);
        assert_int_equal(helios_get(c, (helios_id){.hi = 1, .lo = 2}, buf, sizeof(buf)),
                         HELIOS_ENOENT);
        (void)told(boss.copies);
        assert_int_equal(boss.nodes_asked > 0, in_l2);
    }
    helios_close(c);
    forget(&boss.copies);
}

TEST(a_shard_that_only_a_node_without_a_data_port_has_is_said_to_be_there)
{
    helios_client *c = open_client("shm");
    char buf[16];
    pthread_mutex_lock(&boss.lock);
    json_array_append_new(boss.copies, json_pack("{s:s s:s}", "tier", "L2", "node", "node-7"));
    json_array_append_new(boss.nodes,
                          json_pack("{s:{s:s s:s s:s s:s} s:s}", "node", "name", "node-7",
                                    "agentAddress", "127.0.0.1:1", "incarnation", "1", "executor",
                                    "process", "state", "ready"));
    pthread_mutex_unlock(&boss.lock);
    assert_int_equal(helios_get(c, (helios_id){.hi = 1, .lo = 2}, buf, sizeof(buf)), HELIOS_ENOENT);
    assert_non_null(strstr(hl_error_text(), "only in the L2 of node node-7"));
    forget(&boss.copies);
    forget(&boss.nodes);
    helios_close(c);
}

TESTS_IN(setup, teardown)

int main(int argc, char **argv)
{
    char program[512];
    world_program(program, sizeof(program));
    if (access(program, X_OK) != 0) {
        printf("skipped: %s is not built\n", program);
        return SKIP_CODE;
    }
    return tests_run(argc, argv);
}
