#include "support/test.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/job/elastic.h"

/* Gives "row:column" of a value as the length of its pointer. */
static void where(const void *ctx, const char *pointer, bool of_key, int *line, int *column)
{
    (void)ctx;
    *line = of_key ? 10 : 20;
    *column = (int)strlen(pointer);
}

static hl_status parse(enum hl_job_executor executor, const char *sizes, const char *more,
                       struct hl_job *job)
{
    char text[512];
    json_error_t err;
    const struct hl_job_source source = {.name = "job.yaml", .where = where, .executor = executor};
    snprintf(text, sizeof(text),
             "{\"jobName\": \"x\", \"command\": [\"x\"], \"parallelism\": {%s}%s}", sizes, more);
    json_t *doc = json_loads(text, 0, &err);
    if (doc == NULL)
        fail_msg("%s in %s", err.text, text);
    hl_status st = hl_job_parse(doc, &source, job);
    json_decref(doc);
    return st;
}

static void is_bad(const char *sizes, const char *more, const char *said)
{
    struct hl_job job = {0};
    assert_int_equal(parse(HL_JOB_EXECUTOR_PROCESS, sizes, more, &job), HL_EINVAL);
    assert_string_equal(hl_error_text(), said);
}

#define RANGE(min, max) "\"data_parallel_size\": {\"min\": " #min ", \"max\": " #max "}"
#define REPLACE         ", \"recovery\": {\"mode\": \"replace\"}"

TEST(a_range_of_sizes_is_kept_and_the_job_waits_with_the_least)
{
    struct hl_job job, again;
    assert_int_equal(parse(HL_JOB_EXECUTOR_PROCESS, RANGE(2, 5),
                           ", \"recovery\": {\"mode\": \"replace\", \"growAfter\": \"5s\"}", &job),
                     HL_OK);
    assert_true(hl_job_is_elastic(&job));
    assert_true(hl_job_resizes(&job));
    assert_int_equal(job.grid.dp, 2);
    assert_int_equal(job.grow_after_ms, 5000);
    hl_job_set_size(&job, 4); /* the size of a placed gang is not part of the request */
    json_t *doc = hl_job_to_json(&job);
    assert_int_equal(hl_job_parse(doc, NULL, &again), HL_OK);
    assert_int_equal(again.dp_min, 2);
    assert_int_equal(again.dp_max, 5);
    assert_int_equal(again.grid.dp, 2);
    assert_int_equal(again.grow_after_ms, 5000);
    json_decref(doc);
    hl_job_fini(&again);
    hl_job_fini(&job);
    assert_int_equal(parse(HL_JOB_EXECUTOR_PROCESS, RANGE(3, 3), "", &job), HL_OK);
    assert_false(hl_job_is_elastic(&job));
    assert_int_equal(job.grow_after_ms, HL_JOB_GROW_MS);
    hl_job_fini(&job);
    assert_int_equal(parse(HL_JOB_EXECUTOR_DOCKER, RANGE(1, 3), ", \"dockerImage\": \"i\"", &job),
                     HL_OK);
    assert_true(hl_job_is_elastic(&job));
    assert_false(hl_job_resizes(&job));
    hl_job_fini(&job);
}

TEST(a_range_that_makes_no_sense_is_refused_with_its_place)
{
    is_bad(RANGE(4, 2), "",
           "job.yaml:20:31: parallelism.data_parallel_size: min 4 is more than max 2");
    is_bad(RANGE(0, 2), "",
           "job.yaml:20:35: parallelism.data_parallel_size.min: is 0, must be from 1 to 1000000");
    is_bad(RANGE(1, 2000000), "",
           "job.yaml:20:35: parallelism.data_parallel_size.max: is 2000000, must be from 1 to "
           "1000000");
    is_bad(RANGE(1, 1.5), "",
           "job.yaml:20:35: parallelism.data_parallel_size.max: must be a whole number");
    is_bad("\"data_parallel_size\": {\"max\": 2}", "",
           "job.yaml:20:31: parallelism.data_parallel_size: has no min; give {min: N, max: N}");
    is_bad("\"data_parallel_size\": {\"min\": 1, \"max\": 2, \"step\": 1}", "",
           "job.yaml:20:31: parallelism.data_parallel_size: 'step' is not a key of it; these are: "
           "min, max");
    is_bad("\"tensor_parallel_size\": 1000, " RANGE(1, 1001), "",
           "job.yaml:20:35: parallelism.data_parallel_size.max: 1001 replicas of 1000 ranks are "
           "more than 1000000 ranks");
    is_bad("\"expert_model_parallel_size\": 8, " RANGE(3, 7), "",
           "job.yaml:20:31: parallelism.data_parallel_size: none of the sizes 3 to 7 divides the "
           "experts evenly: expert_model_parallel_size 8 times expert_tensor_parallel_size has to "
           "divide the ranks of a stage");
    is_bad(RANGE(1, 2), REPLACE ", \"placement\": {\"gang\": \"leaf required\"}",
           "job.yaml:20:10: placement: replicas that join later are placed separately, so data and "
           "gang can't be required with data_parallel_size: {min, max}; use preferred");
    is_bad(RANGE(1, 2), REPLACE ", \"spareSlots\": 1",
           "job.yaml:20:11: spareSlots: a gang with data_parallel_size: {min, max} continues "
           "without a lost server, and uses a free slot when there is one; remove the key");
    is_bad("\"data_parallel_size\": 2",
           ", \"recovery\": {\"mode\": \"replace\", \"growAfter\": \"5s\"}",
           "job.yaml:10:19: recovery.growAfter: has an effect with recovery: {mode: replace} and "
           "data_parallel_size: {min, max} only");
}

TEST(an_executor_with_a_fixed_number_of_pods_refuses_the_range_by_name)
{
    struct hl_job job = {0};
    assert_int_equal(
        parse(HL_JOB_EXECUTOR_KUBERNETES, RANGE(1, 2), ", \"dockerImage\": \"i\"", &job),
        HL_EINVAL);
    assert_string_equal(hl_error_text(),
                        "job.yaml:20:31: parallelism.data_parallel_size: the executor kubernetes "
                        "can't honour {min, max}: a Volcano Job has a fixed number of pods; give "
                        "one size");
    assert_int_equal(parse(HL_JOB_EXECUTOR_KUBERNETES, "\"data_parallel_size\": 2",
                           ", \"dockerImage\": \"i\"", &job),
                     HL_OK);
    hl_job_fini(&job);
}

/* Compared with Megatron's rule by counting: a stage's ranks form whole groups of ep x etp. */
TEST(sizes_are_those_with_which_the_experts_come_out_even)
{
    for (int tp = 1; tp <= 4; tp++)
        for (int ep = 1; ep <= 6; ep++)
            for (int low = 1; low <= 6; low++)
                for (int high = low; high <= 12; high++) {
                    struct hl_job job = {.grid = {.pp = 2, .tp = tp, .dp = low, .cp = 1},
                                         .dp_min = low,
                                         .dp_max = high,
                                         .ep = ep,
                                         .etp = tp};
                    bool allowed[32] = {0};
                    for (int dp = low; dp <= high; dp++) {
                        int ranks = 0;
                        while (ranks < tp * dp)
                            ranks += ep * tp;
                        allowed[dp] = ranks == tp * dp;
                    }
                    for (int dp = 0; dp < 16; dp++) {
                        int below = dp < 16 ? dp : 15, above = dp;
                        while (below > 0 && !allowed[below])
                            below--;
                        while (above < 32 && !allowed[above])
                            above++;
                        assert_int_equal(hl_job_size_is_allowed(&job, dp), allowed[dp]);
                        assert_int_equal(hl_job_size_up_to(&job, dp), below);
                        assert_int_equal(hl_job_size_from(&job, dp), above < 32 ? above : 0);
                    }
                }
}
