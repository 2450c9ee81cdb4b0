/* A record of the store that can't be read costs its own object, which is named. */
#include "support/test.h"

#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "controller/copies/copies.h"
#include "controller/executor.h"
#include "controller/jobs/jobs_private.h"
#include "controller/nodes/nodes.h"
#include "controller/placement/placement.h"
#include "controller/service/service_private.h"
#include "store/store.h"

static const struct job_executor executor;
static const struct job_executor *const executors[] = {&executor, NULL};
static const struct node_events events;

static bool is_false(const struct hl_controller *c)
{
    (void)c;
    return false;
}

struct world {
    struct hl_controller c;
    struct service service;
    char path[64], url[80];
};

static void records_remove(const struct world *w)
{
    static const char *const ends[] = {"", "-wal", "-shm"};
    for (size_t i = 0; i < HL_ARRAY_LEN(ends); i++) {
        char path[80];
        snprintf(path, sizeof(path), "%s%s", w->path, ends[i]);
        (void)unlink(path);
    }
}

/* As hl_controller_start creates it, until it reads its state. */
static void world_init(struct world *w)
{
    struct hl_controller *c = &w->c;
    *w = (struct world){.c = {.refs = 1}};
    snprintf(w->path, sizeof(w->path), "/dev/shm/helios-test-state-load-%d", (int)getpid());
    snprintf(w->url, sizeof(w->url), "sqlite:%s", w->path);
    records_remove(w);
    c->opts.store_url = w->url;
    c->service = &w->service;
    hl_listening_init(&c->listening, UINT64_MAX, hl_now_ns(), hl_wall_ms());
    assert_int_equal(hl_rpc_create(&c->opts.rpc), HL_OK);
    assert_int_equal(nodes_create(c, &events), HL_OK);
    assert_int_equal(copies_create(c, is_false), HL_OK);
    assert_int_equal(placement_create(c, is_false), HL_OK);
    assert_int_equal(jobs_create(c, executors, &executor), HL_OK);
    assert_int_equal(queue_create(c), HL_OK);
}

static void world_fini(struct world *w)
{
    struct hl_controller *c = &w->c;
    queue_destroy(c);
    nodes_disconnect(c);
    jobs_fini(c);
    placement_fini(c);
    copies_fini(c);
    nodes_fini(c);
    json_decref(c->damaged);
    hl_catalog_fini(&c->catalog);
    hl_store_close(c->store);
    hl_rpc_destroy(c->opts.rpc);
    records_remove(w);
}

static void record_put(struct world *w, const char *key, const char *text)
{
    struct hl_store *store;
    json_t *value = json_loads(text, 0, NULL);
    assert_non_null(value);
    assert_int_equal(hl_store_open(w->url, &store), HL_OK);
    const struct hl_store_op op = {HL_STORE_PUT, key, value};
    assert_int_equal(hl_store_commit(store, &op, 1), HL_OK);
    hl_store_close(store);
    json_decref(value);
}

/* Loads, and this record alone is damaged; the reason has the word. */
static void is_damaged(struct world *w, const char *key, const char *word)
{
    assert_int_equal(state_load(&w->c), HL_OK);
    const char *why = json_string_value(json_object_get(w->c.damaged, key));
    assert_non_null(why);
    if (strstr(why, word) == NULL)
        print_error("%s: %s\n", word, why);
    assert_non_null(strstr(why, word));
    assert_int_equal(json_object_size(w->c.damaged), 1);
}

TEST(an_empty_store_becomes_a_cluster)
{
    struct world w;
    world_init(&w);
    assert_int_equal(state_load(&w.c), HL_OK);
    assert_false(hl_id_is_none(w.c.claim.cluster));
    assert_true(w.c.claim.epoch > 0);
    assert_null(w.c.damaged);
    world_fini(&w);
}

#define NODE(more) "{\"name\": \"n0\", \"incarnation\": \"1\", \"executor\": \"process\"" more "}"

TEST(a_node_is_remembered_and_not_ready)
{
    struct world w;
    world_init(&w);
    record_put(&w, "node/n0", NODE(", \"agentAddress\": \"127.0.0.1:1\", \"drainedMs\": 5"));
    assert_int_equal(state_load(&w.c), HL_OK);
    assert_null(w.c.damaged);
    struct node *n = node_find(&w.c, "n0");
    assert_non_null(n);
    assert_false(node_ready(n));
    assert_int_equal(n->drained_ms, 5);
    world_fini(&w);
}

TEST(metrics_count_a_remembered_node_as_lost_until_it_is_back)
{
    struct world w;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(1 << 20);
    world_init(&w);
    record_put(&w, "node/n0", NODE(", \"agentAddress\": \"127.0.0.1:1\""));
    assert_int_equal(state_load(&w.c), HL_OK);
    w.service.tier_reads[HL_API_TIER_L2] = 3;
    assert_int_equal(hl_controller_gauges(&w.c, &text), HL_OK);
    const char *metrics = (const char *)text.data;
    assert_non_null(strstr(metrics, "\nhelios_nodes{state=\"ready\"} 0\n"));
    assert_non_null(strstr(metrics, "\nhelios_nodes{state=\"lost\"} 1\n"));
    assert_non_null(strstr(metrics, "\nhelios_pool_refused 0\n"));
    assert_non_null(strstr(metrics, "\nhelios_rank_reads_total{tier=\"L2\"} 3\n"));
    world_fini(&w);
}

TEST(a_node_without_an_address_is_left_out_and_its_neighbour_is_not)
{
    struct world w;
    world_init(&w);
    record_put(&w, "node/n0", NODE(""));
    record_put(&w, "node/n1",
               "{\"name\": \"n1\", \"incarnation\": \"1\", \"executor\": \"process\","
               " \"agentAddress\": \"127.0.0.1:1\"}");
    is_damaged(&w, "node/n0", "agentAddress");
    assert_null(node_find(&w.c, "n0"));
    assert_non_null(node_find(&w.c, "n1"));
    world_fini(&w);
}

TEST(a_job_that_cannot_be_read_keeps_its_number)
{
    struct world w;
    world_init(&w);
    record_put(&w, "job/train-12", "{\"doc\": {}}");
    record_put(&w, "seq/job", "{\"last\": 3}");
    is_damaged(&w, "job/train-12", "run");
    assert_int_equal(jobs_count(&w.c), 0);
    assert_true(w.c.jobs->seq >= 12); /* no new job gets it */
    world_fini(&w);
}

TEST(a_model_that_cannot_be_read_keeps_its_name)
{
    struct world w;
    world_init(&w);
    record_put(&w, "model/tiny", "{\"name\": 7}");
    is_damaged(&w, "model/tiny", "name");
    assert_int_equal(HASH_COUNT(w.c.catalog.models), 1); /* no import gets it */
    world_fini(&w);
}

TEST(a_damaged_cut_or_use_of_a_shard_is_forgotten)
{
    struct world w;
    world_init(&w);
    record_put(&w, "use/0", "{\"what\": 1}");
    record_put(&w, "cut/0", "{\"what\": 1}");
    assert_int_equal(state_load(&w.c), HL_OK);
    assert_null(w.c.damaged);
    world_fini(&w);
}

TEST(without_its_id_a_controller_claims_nothing)
{
    struct world w;
    world_init(&w);
    record_put(&w, "cluster/id", "{\"id\": \"?\"}");
    is_damaged(&w, "cluster/id", "id");
    assert_false(hl_id_is_none(w.c.claim.cluster));
    world_fini(&w);
}
