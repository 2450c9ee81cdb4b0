/* Which jobs share a plan: the key distinguishes what the planner uses, and nothing else. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/job/job.h"

/* The key of a job with these members besides name and command. */
static char *key_of(const char *name, const char *members)
{
    char text[512];
    struct hl_job job;
    snprintf(text, sizeof(text), "{\"jobName\": \"%s\", \"command\": \"true\"%s}", name, members);
    json_t *doc = json_loads(text, 0, NULL);
    assert_non_null(doc);
    if (hl_job_parse(doc, &(struct hl_job_source){.name = "job"}, &job) != HL_OK)
        fail_msg("%s: %s", text, hl_error_text());
    char *key = hl_job_shape_key(&job);
    assert_non_null(key);
    hl_job_fini(&job);
    json_decref(doc);
    return key;
}

TEST(jobs_that_the_planner_sees_alike_have_one_key)
{
    char *one = key_of("one", "");
    char *other =
        key_of("other", ", \"queue\": \"prod\", \"priority\": 2, \"env\": {\"A\": \"b\"}, "
                        "\"timeouts\": {\"run\": \"5m\"}");
    assert_string_equal(one, other);
    free(one);
    free(other);
}

TEST(whatever_the_planner_looks_at_makes_another_key)
{
    static const char *const members[] = {
        "",
        ", \"parallelism\": {\"tensor_parallel_size\": 2}",
        ", \"parallelism\": {\"pipeline_parallel_size\": 2}",
        ", \"parallelism\": {\"data_parallel_size\": 2}",
        ", \"parallelism\": {\"data_parallel_size\": {\"min\": 1, \"max\": 2}}",
        ", \"parallelism\": {\"data_parallel_size\": {\"min\": 1, \"max\": 4}}",
        ", \"resources\": {\"ranks_per_slot\": 2}",
        ", \"resources\": {\"gpus_per_rank\": 0}",
        ", \"resources\": {\"memory\": \"1GiB\"}",
        ", \"placement\": {\"gang\": \"leaf required\"}",
        ", \"placement\": {\"gang\": \"leaf preferred\"}",
        ", \"spareSlots\": 1, \"recovery\": {\"mode\": \"replace\"}",
    };
    char *keys[HL_ARRAY_LEN(members)];
    for (size_t i = 0; i < HL_ARRAY_LEN(members); i++)
        keys[i] = key_of("x", members[i]);
    for (size_t i = 0; i < HL_ARRAY_LEN(members); i++)
        for (size_t k = 0; k < i; k++)
            assert_string_not_equal(keys[i], keys[k]);
    for (size_t i = 0; i < HL_ARRAY_LEN(members); i++)
        free(keys[i]);
}
