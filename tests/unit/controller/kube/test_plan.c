/* Which rank goes into which pod, and what is refused because no node could offer it; which gang a
 * PodGroup belongs to. */
#include "support/test.h"

#include <string.h>

#include "controller/kube/gangs_private.h"

static struct hl_job job_of(const char *text)
{
    struct hl_job job;
    json_t *doc = json_loads(text, 0, NULL);
    assert_non_null(doc);
    if (hl_job_parse(doc, NULL, &job) != HL_OK)
        fail_msg("%s", hl_error_text());
    json_decref(doc);
    return job;
}

/* Four ranks, two of them in a pod. */
static const char of_four[] =
    "{\"jobName\": \"gpt\", \"command\": [\"train\"], \"dockerImage\": \"train:1\", "
    "\"parallelism\": {\"pipeline_parallel_size\": 1, \"tensor_parallel_size\": 4, "
    "\"data_parallel_size\": 1}, \"resources\": {\"ranks_per_slot\": %d, \"memory\": \"1GiB\"}%s}";

static hl_status plan(const struct gangs *g, int per_pod, const char *more, struct hl_plan **out)
{
    char text[1024];
    snprintf(text, sizeof(text), of_four, per_pod, more);
    struct hl_job job = job_of(text);
    hl_status st = gangs_plan(g, &job, "gpt-1", 1, out);
    hl_job_fini(&job);
    return st;
}

static struct gangs gangs_of(const char *device, char *accelerator)
{
    return (struct gangs){.accelerator = accelerator,
                          .volcano = {.ns = "train",
                                      .queue = "q",
                                      .topology_policy = "single-numa-node",
                                      .device = device,
                                      .near_key = "",
                                      .podgroups = "",
                                      .slot_devices = 1,
                                      .keep_s = 60}};
}

TEST(ranks_are_divided_among_pods)
{
    char none[] = "";
    struct gangs g = gangs_of("nvidia.com/gpu", none);
    struct hl_plan *p = NULL;
    if (plan(&g, 2, "", &p) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(p->container_count, 2);
    for (int i = 0; i < 2; i++)
        assert_int_equal(p->containers[i].rank_count, 2);
    hl_plan_free(p);
}

TEST(devices_that_the_product_does_not_give_are_refused)
{
    char type[] = "850-SuperPod-Atlas-8";
    struct gangs g = gangs_of("huawei.com/Ascend910", type);
    struct hl_plan *p = NULL;
    assert_int_equal(plan(&g, 2, "", &p), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), type));
    assert_non_null(strstr(hl_error_text(), "resources.ranks_per_slot"));
    assert_null(p);
    if (plan(&g, 4, "", &p) != HL_OK) /* one pod alone */
        fail_msg("%s", hl_error_text());
    hl_plan_free(p);
}

TEST(a_format_of_the_table_that_another_program_decides_is_refused)
{
    char type[] = "module-910b-8";
    struct gangs g = gangs_of("huawei.com/Ascend910", type);
    struct hl_plan *p = NULL;
    assert_int_equal(plan(&g, 2, ", \"rankTable\": \"v1\"", &p), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "rankTable"));
    assert_null(p);
}

TEST(a_pod_group_belongs_to_the_job_that_owns_it)
{
    static const struct {
        const char *owners, *name;
    } rows[] = {
        {"[{\"kind\": \"Job\", \"name\": \"gpt-1\"}]", "gpt-1"},
        {"[{\"kind\": \"Pod\", \"name\": \"p\"}, {\"kind\": \"Job\", \"name\": \"b\"}]", "b"},
        {"[{\"kind\": \"Pod\", \"name\": \"p\"}]", NULL},
        {"[{\"kind\": 7, \"name\": \"p\"}, {\"kind\": \"Job\"}]", NULL},
        {"[]", NULL},
        {"{}", NULL},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        char text[256];
        snprintf(text, sizeof(text), "{\"metadata\": {\"ownerReferences\": %s}}", rows[i].owners);
        json_t *group = json_loads(text, 0, NULL);
        const char *name = gang_of_group(group);
        if (rows[i].name == NULL)
            assert_null(name);
        else
            assert_string_equal(name, rows[i].name);
        json_decref(group);
    }
    assert_null(gang_of_group(NULL));
}
