/* Every key of a job file in every executor: it changes how ranks are started, or it is refused by
 * name. The executors' suite tests the effect on a running rank. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/json.h"
#include "core/planner/plan.h"
#include "volcano/gang.h"

enum fate {
    STARTS,  /* changes what a container is started with, or where */
    REFUSED, /* with executor and key */
    RULES,   /* accepted: it steers the job, not its containers */
};

static const enum hl_job_executor executors[] = {HL_JOB_EXECUTOR_PROCESS, HL_JOB_EXECUTOR_DOCKER,
                                                 HL_JOB_EXECUTOR_PODMAN,
                                                 HL_JOB_EXECUTOR_KUBERNETES};

static const struct row {
    const char *key;
    const char *with; /* members beside the base's */
    enum fate fates[HL_ARRAY_LEN(executors)];
} rows[] = {
    {"dockerImage", "{'dockerImage': 'other:2'}", {REFUSED, STARTS, STARTS, STARTS}},
    {"mounts", "{'mounts': ['/data:/in:ro']}", {REFUSED, STARTS, STARTS, STARTS}},
    {"command", "{'command': ['other']}", {STARTS, STARTS, STARTS, STARTS}},
    {"workdir", "{'workdir': '/w'}", {STARTS, STARTS, STARTS, STARTS}},
    {"env", "{'env': {'A': 'b'}}", {STARTS, STARTS, STARTS, STARTS}},
    {"venv", "{'venv': '/v'}", {STARTS, REFUSED, REFUSED, REFUSED}},
    {"conda", "{'conda': '/c'}", {STARTS, REFUSED, REFUSED, REFUSED}},
    {"python", "{'python': '/p'}", {STARTS, REFUSED, REFUSED, REFUSED}},
    {"resources.ranks_per_slot",
     "{'resources': {'ranks_per_slot': 1}}",
     {STARTS, STARTS, STARTS, STARTS}},
    {"resources.gpus_per_rank",
     "{'resources': {'gpus_per_rank': 0, 'ranks_per_slot': 2}}",
     {STARTS, STARTS, STARTS, STARTS}},
    {"resources.cpus_per_rank",
     "{'resources': {'cpus_per_rank': 64}}",
     {STARTS, STARTS, STARTS, STARTS}},
    {"resources.memory", "{'resources': {'memory': '1GiB'}}", {STARTS, STARTS, STARTS, STARTS}},
    {"resources.gpu_memory",
     "{'resources': {'gpu_memory': '32GiB'}}",
     {STARTS, STARTS, STARTS, REFUSED}},
    {"resources.nic_class",
     "{'resources': {'nic_class': 'ConnectX-5'}}",
     {STARTS, STARTS, STARTS, REFUSED}},
    {"dataset.path", "{'dataset': {'path': '/d'}}", {STARTS, STARTS, STARTS, STARTS}},
    {"checkpoint.every", "{'checkpoint': {'every': 7}}", {STARTS, STARTS, STARTS, STARTS}},
    {"placement.gang",
     "{'placement': {'gang': 'numa required'}}",
     {STARTS, STARTS, STARTS, REFUSED}},
    {"placement.tensor",
     "{'placement': {'tensor': 'server required'}}",
     {RULES, RULES, RULES, REFUSED}},
    {"recovery.mode", "{'recovery': {'mode': 'replace'}}", {STARTS, REFUSED, REFUSED, REFUSED}},
    {"queue", "{'queue': 'prod'}", {RULES, RULES, RULES, REFUSED}},
    {"priority", "{'priority': 5}", {RULES, RULES, RULES, REFUSED}},
    {"restarts", "{'restarts': 2}", {RULES, RULES, RULES, RULES}},
    {"timeouts.run", "{'timeouts': {'run': '1h'}}", {RULES, RULES, RULES, RULES}},
    {"rankTable", "{'rankTable': 'v1'}", {RULES, RULES, RULES, RULES}},
};

/* Two nodes with two slots: two GPUs of 16 GiB and 8 processors each, no NIC. */
static void make_cluster(struct hl_cluster *c)
{
    for (int n = 0; n < 2; n++) {
        struct hl_arena arena = {0};
        struct hl_api_slot *slots = hl_arena_array(&arena, 2, sizeof(*slots));
        for (int i = 0; i < 2; i++) {
            struct hl_api_device *gpus = hl_arena_array(&arena, 2, sizeof(*gpus));
            for (int g = 0; g < 2; g++) {
                gpus[g].id = hl_arena_printf(&arena, "0000:%02x:%02x.0", i, g);
                gpus[g].memory_bytes = UINT64_C(16) << 30;
            }
            slots[i] = (struct hl_api_slot){.numa_id = i,
                                            .cpus = i == 0 ? "0-7" : "8-15",
                                            .memory_bytes = UINT64_C(64) << 30,
                                            .gpus = {gpus, 2}};
        }
        const char *name = n == 0 ? "node-0" : "node-1";
        const struct hl_api_node_info info = {
            .name = name, .host_id = name, .rank_address = name, .slots = {slots, 2}};
        assert_int_equal(hl_cluster_put(c, &info), HL_OK);
        hl_arena_fini(&arena);
    }
}

static hl_status parse(enum hl_job_executor executor, const char *with, struct hl_job *out)
{
    const struct hl_job_source src = {.name = "job.yaml", .executor = executor};
    json_error_t err;
    char *text = strdup(with);
    for (char *p = text; *p != '\0'; p++)
        *p = *p == '\'' ? '"' : *p;
    json_t *job = json_pack("{s:s s:{s:i} s:[s]}", "jobName", "j", "parallelism",
                            "tensor_parallel_size", 4, "command", "train");
    json_t *more = json_loads(text, 0, &err);
    assert_non_null(more);
    if (executor != HL_JOB_EXECUTOR_PROCESS)
        json_object_set_new(job, "dockerImage", json_string("base:1"));
    json_object_update(job, more);
    hl_status st = hl_job_parse(job, &src, out);
    json_decref(more);
    json_decref(job);
    free(text);
    return st;
}

static const struct hl_plan_spec_opts how = {.job_id = "j-1",
                                             .attempt = 1,
                                             .controller_address = "c:1",
                                             .l3_address = "tcp://l:2",
                                             .model_version = -1,
                                             .master_port = 29500};

/* What an Agent receives about the gang's first container, and whether the gang is placed at
 * all. */
static json_t *start_by_agents(const struct hl_job *job)
{
    struct hl_cluster cluster = {0};
    struct hl_plan *plan = NULL;
    struct hl_arena arena = {0};
    make_cluster(&cluster);
    assert_int_equal(hl_plan_make(job, &cluster, &plan), HL_OK);
    json_t *told =
        json_pack("{s:b s:i}", "feasible", plan->feasible, "containers", plan->container_count);
    if (plan->feasible) {
        struct hl_api_container_spec spec = hl_plan_container_spec(job, plan, 0, &how, &arena);
        json_object_set_new(told, "first", hl_api_to_json(&hl_api_container_spec_type, &spec));
    }
    hl_arena_fini(&arena);
    hl_plan_free(plan);
    hl_cluster_fini(&cluster);
    return told;
}

/* The Volcano Job and its variables. */
static json_t *start_by_kubernetes(const struct hl_job *job)
{
    static const struct hl_volcano_opts opts = {.ns = "n",
                                                .queue = "q",
                                                .topology_policy = "single-numa-node",
                                                .near_key = "",
                                                .device = "nvidia.com/gpu",
                                                .table_label = "",
                                                .accelerator = "",
                                                .podgroups = "",
                                                .slot_devices = 2,
                                                .keep_s = 60};
    struct hl_plan *plan = NULL;
    struct hl_arena arena = {0};
    json_t *doc = NULL;
    assert_int_equal(hl_volcano_plan(job, "j-1", 1, &opts, &plan), HL_OK);
    struct hl_volcano_gang gang = {
        .job_id = "j-1", .gang = "abcd", .attempt = 1, .job = job, .plan = plan};
    assert_int_equal(hl_volcano_job(&gang, &opts, NULL, &doc), HL_OK);
    struct hl_api_container_spec spec = hl_plan_container_spec(job, plan, 0, &how, &arena);
    json_t *told = json_pack("{s:o s:o}", "job", doc, "variables",
                             hl_volcano_variables(&gang, &opts, "u-1", &spec));
    hl_arena_fini(&arena);
    hl_plan_free(plan);
    return told;
}

static json_t *start(enum hl_job_executor executor, const char *with)
{
    struct hl_job job;
    if (parse(executor, with, &job) != HL_OK)
        fail_msg("%s with %s: %s", hl_job_executor_name(executor), with, hl_error_text());
    json_t *told =
        executor == HL_JOB_EXECUTOR_KUBERNETES ? start_by_kubernetes(&job) : start_by_agents(&job);
    hl_job_fini(&job);
    return told;
}

TEST(each_key_has_an_effect_or_is_refused_in_each_executor)
{
    for (size_t e = 0; e < HL_ARRAY_LEN(executors); e++) {
        const char *name = hl_job_executor_name(executors[e]);
        json_t *plain = start(executors[e], "{}");
        for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
            struct hl_job job;
            const struct row *row = &rows[i];
            if (row->fates[e] == REFUSED) {
                hl_status st = parse(executors[e], row->with, &job);
                if (st != HL_EINVAL || strstr(hl_error_text(), row->key) == NULL ||
                    strstr(hl_error_text(), name) == NULL)
                    fail_msg("%s in %s: %s", row->key, name, st == HL_OK ? "-" : hl_error_text());
                continue;
            }
            json_t *told = start(executors[e], row->with);
            if (row->fates[e] == STARTS && json_equal(plain, told))
                fail_msg("%s changes nothing in %s", row->key, name);
            json_decref(told);
        }
        json_decref(plain);
    }
}
