/* What the Controller counts of the reports of ranks, and that no report can fill its tables. */
#include "support/test.h"

#include <string.h>

#include "base/clock.h"
#include "controller/service/service_private.h"
#include "unit/controller/catalog_rig.h"

struct world {
    struct hl_controller c;
    struct service service;
    struct hl_shard_rec *shard; /* 1 */
};

static void world_init(struct world *w)
{
    *w = (struct world){.c.refs = 1};
    w->c.service = &w->service;
    w->shard = import_model(&w->c.catalog, "tiny", 1, "{}")->shards[0];
}

static void world_fini(struct world *w)
{
    hl_catalog_fini(&w->c.catalog);
}

static void report(struct world *w, const struct hl_api_access_report *r)
{
    struct hl_api_access_report now = *r;
    now.id = r->id != NULL ? r->id : "";
    service_count(&w->c, &(struct hl_api_controller_report_access_params){.reports = {&now, 1}});
}

static const struct path_count *path_find(const struct world *w, const char *path)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(w->service.paths); i++)
        if (strcmp(w->service.paths[i].path, path) == 0)
            return &w->service.paths[i];
    return NULL;
}

TEST(reads_are_added_by_path_and_tier)
{
    struct world w;
    world_init(&w);
    report(&w, &(struct hl_api_access_report){
                   .path = "shm", .count = 2, .bytes = 70, .tier = HL_API_TIER_L2});
    report(&w, &(struct hl_api_access_report){
                   .path = "tcp", .count = 1, .bytes = 40, .tier = HL_API_TIER_L3});
    report(&w, &(struct hl_api_access_report){
                   .path = "shm", .count = 3, .bytes = 5, .tier = HL_API_TIER_L2});
    assert_int_equal(path_find(&w, "shm")->ops, 5);
    assert_int_equal(path_find(&w, "shm")->bytes, 75);
    assert_int_equal(path_find(&w, "tcp")->ops, 1);
    assert_int_equal(w.service.tier_reads[HL_API_TIER_L2], 5);
    assert_int_equal(w.service.tier_reads[HL_API_TIER_L3], 1);
    world_fini(&w);
}

TEST(words_of_a_rank_do_not_fill_the_table_of_paths)
{
    struct world w;
    world_init(&w);
    report(&w, &(struct hl_api_access_report){.path = "a path of more than 15 bytes", .count = 1});
    for (int i = 0; i < 20; i++) {
        char word[16];
        snprintf(word, sizeof(word), "w%d", i);
        report(&w, &(struct hl_api_access_report){.path = word, .count = 1});
    }
    report(&w, &(struct hl_api_access_report){.path = "rdma", .count = 4});
    assert_int_equal(path_find(&w, "unknown")->ops, 21);
    assert_non_null(path_find(&w, "rdma"));
    assert_int_equal(path_find(&w, "rdma")->ops, 4);
    assert_null(path_find(&w, "w0"));
    world_fini(&w);
}

TEST(a_report_of_troubles_alone_is_no_read)
{
    struct world w;
    world_init(&w);
    const struct hl_id_text id = hl_id_format(w.shard->id);
    report(&w, &(struct hl_api_access_report){
                   .id = id.s, .path = "", .crc_failures = 3, .retries = 2, .lost = true});
    assert_int_equal(w.service.crc_failures, 3);
    assert_int_equal(w.service.crc_retries, 2);
    assert_int_equal(w.service.lost_reads, 1);
    assert_int_equal(w.service.paths[0].path[0], '\0');
    assert_int_equal(w.shard->accesses, 0);
    assert_int_equal(w.shard->last_access_ms, 0);
    world_fini(&w);
}

TEST(a_shard_remembers_how_often_and_when_it_was_read)
{
    struct world w;
    world_init(&w);
    const struct hl_id_text id = hl_id_format(w.shard->id);
    int64_t before = hl_wall_ms();
    report(&w,
           &(struct hl_api_access_report){.id = id.s, .path = "shm", .count = 7, .age_ms = 1000});
    assert_int_equal(w.shard->accesses, 7);
    assert_in_range(w.shard->last_access_ms, before - 1000, hl_wall_ms() - 1000);
    world_fini(&w);
}

TEST(a_read_of_a_shard_that_is_not_known_counts_by_its_path)
{
    struct world w;
    world_init(&w);
    report(&w, &(struct hl_api_access_report){
                   .id = "not an id", .path = "tcp", .count = 2, .lost = true});
    assert_int_equal(path_find(&w, "tcp")->ops, 2);
    assert_int_equal(w.service.lost_reads, 0);
    world_fini(&w);
}

TEST(transfers_are_added_to_their_plane)
{
    struct world w;
    world_init(&w);
    uint64_t buckets[HL_PLANE_BUCKETS + 5] = {[0] = 1, [2] = 4, [HL_PLANE_BUCKETS] = 9};
    struct hl_api_transfer_report t = {.plane = HL_API_PLANE_BACKBONE,
                                       .operation = HL_API_OPERATION_READ,
                                       .path = HL_API_ROUTE_PATH_TCP,
                                       .reason = HL_API_ROUTE_REASON_NO_RDMA,
                                       .ops = 5,
                                       .bytes = 300,
                                       .latency = {buckets, HL_ARRAY_LEN(buckets)},
                                       .latency_ns = 1000};
    struct hl_api_controller_report_access_params p = {.transfers = {&t, 1}};
    service_count(&w.c, &p);
    t.sent = t.failed = true;
    service_count(&w.c, &p);
    const struct hl_plane_stats *s = &w.service.ranks[HL_PLANE_BACKBONE];
    assert_int_equal(s->ops[0], 5);
    assert_int_equal(s->ops[1], 5);
    assert_int_equal(s->bytes[1], 300);
    assert_int_equal(s->failed, 5);
    assert_int_equal(s->latency[2], 8);
    assert_int_equal(s->latency_ns, 2000); /* and no bucket beyond the last was written */
    assert_int_equal(w.service.ranks[HL_PLANE_MIGRATION].ops[0], 0);
    world_fini(&w);
}

TEST(only_known_faults_are_counted)
{
    struct world w;
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(1 << 20);
    world_init(&w);
    struct hl_api_fault_report faults[] = {
        {"reordered", "emulated", 6}, {"reordered", "pigeon", 7}, {"mischief", "tcp", 8}};
    service_count(&w.c, &(struct hl_api_controller_report_access_params){.faults = {faults, 3}});
    assert_int_equal(hl_plane_metrics(&text), HL_OK);
    const char *metrics = (const char *)text.data;
    assert_non_null(strstr(metrics, "cause=\"reordered\",path=\"emulated\"} 6\n"));
    assert_null(strstr(metrics, "pigeon"));
    assert_null(strstr(metrics, "mischief"));
    world_fini(&w);
}
