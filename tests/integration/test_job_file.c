/* The YAML reader and the job parser together, as the Controller uses them. */
#include "support/test.h"

#include <stdlib.h>
#include <string.h>

#include "conf/yaml.h"
#include "core/job/job.h"

static hl_status read_job_for(enum hl_job_executor executor, const char *text, struct hl_job *job)
{
    HL_AUTO(hl_yaml_freep) struct hl_yaml *doc = NULL;
    HL_TRY(hl_yaml_parse("job.yaml", text, strlen(text), &doc));
    struct hl_job_source src = {
        .name = "job.yaml", .where = hl_yaml_locate, .ctx = doc, .executor = executor};
    return hl_job_parse(hl_yaml_root(doc), &src, job);
}

static hl_status read_job(const char *text, struct hl_job *job)
{
    return read_job_for(HL_JOB_EXECUTOR_ANY, text, job);
}

/* Copied from the specification, chapter 4, step 1. */
static const char spec_yaml[] = "jobName: gpt3-175b-training\n"
                                "model:\n"
                                "  name: gpt3\n"
                                "  size: 175B\n"
                                "dataset:\n"
                                "  path: /path/to/my/dataset\n"
                                "parallelism:\n"
                                "  pipeline_parallel_size: 8\n"
                                "  tensor_parallel_size: 8\n"
                                "  data_parallel_size: 16\n"
                                "dockerImage: registry.my-company.com/megatron-lm:latest\n";

TEST(the_specs_file_is_accepted_unchanged)
{
    struct hl_job job;
    assert_int_equal(read_job(spec_yaml, &job), HL_OK);
    assert_string_equal(job.model_size, "175B");
    assert_int_equal(hl_rank_world(&job.grid), 1024);
    hl_job_fini(&job);
}

TEST(mistakes_are_told_with_line_and_column)
{

    static const struct {
        const char *text;
        const char *said;
    } rows[] = {
        {"jobName: x\nparallelism:\n  tensor_paralel_size: 2\n",
         "job.yaml:3:3: 'tensor_paralel_size' is not a key of parallelism; did you mean "
         "'tensor_parallel_size'?"},
        {"jobName: x\nparallelism:\n  tensor_parallel_size: two\n",
         "job.yaml:3:25: parallelism.tensor_parallel_size: must be a whole number"},
        {"jobName: x\ncommand:\n  - a\n  - 1.5\n",
         "job.yaml:4:5: command[1]: put the number in quotes, so that it stays as written"},
        {"jobName: x\nenv:\n  RANK: 3\n",
         "job.yaml:3:3: env.RANK: is set by Helios for every rank; remove it"},
        {"jobName: x\ncommand: y\nparallelism: {pipeline_parallel_size: 2000,"
         " tensor_parallel_size: 2000}\n",
         "job.yaml:3:14: parallelism: 2000 × 2000 × 1 ranks are more than 1000000"},
        {"jobName: x\njobName: y\n",
         "job.yaml:2:1: the key 'jobName' appears twice, first in line 1"},
        {"", "job.yaml:1:1: a job is written as KEY: VALUE lines"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hl_job job = {0};
        assert_int_equal(read_job(rows[i].text, &job), HL_EINVAL);
        assert_string_equal(hl_error_text(), rows[i].said);
    }
}

TEST(a_key_that_the_executor_can_not_honour_is_an_error_at_its_place)
{

    static const struct {
        enum hl_job_executor executor;
        const char *text;
        const char *said; /* NULL = accepted */
    } rows[] = {
        {HL_JOB_EXECUTOR_KUBERNETES, spec_yaml, NULL},
        {HL_JOB_EXECUTOR_PROCESS, spec_yaml, "job.yaml:11:1: dockerImage: "},
        {HL_JOB_EXECUTOR_PROCESS, "jobName: x\ncommand: y\nmounts:\n  - /a:/b\n",
         "job.yaml:3:1: mounts: "},
        {HL_JOB_EXECUTOR_PROCESS, "jobName: x\n", "command is missing"},
        {HL_JOB_EXECUTOR_KUBERNETES, "jobName: x\ncommand: y\n", "dockerImage is missing"},
        {HL_JOB_EXECUTOR_DOCKER, spec_yaml, NULL},
        {HL_JOB_EXECUTOR_PODMAN, "jobName: x\ncommand: y\n",
         "dockerImage is missing, and the executor podman runs ranks in an image"},
        {HL_JOB_EXECUTOR_DOCKER, "jobName: x\ndockerImage: i\nmounts: ['/a:/b']\n", NULL},
        {HL_JOB_EXECUTOR_DOCKER, "jobName: x\ndockerImage: i\nvenv: /v\n",
         "job.yaml:3:1: venv: the executor docker can't honour it"},
        {HL_JOB_EXECUTOR_PODMAN, "jobName: x\ndockerImage: i\npython: /v\n",
         "job.yaml:3:1: python: the executor podman can't honour it"},
        {HL_JOB_EXECUTOR_DOCKER, "jobName: x\ndockerImage: i\nworkdir: .\n",
         "job.yaml:3:10: workdir: '.' is relative"},
        {HL_JOB_EXECUTOR_KUBERNETES, "jobName: x\ndockerImage: i\nworkdir: src\n",
         "job.yaml:3:10: workdir: 'src' is relative"},
        {HL_JOB_EXECUTOR_KUBERNETES,
         "jobName: x\ndockerImage: i\nworkdir: /src\nmounts: ['/a:/b']\n", NULL},
        {HL_JOB_EXECUTOR_PROCESS, "jobName: x\ncommand: y\nworkdir: src\n", NULL},
        {HL_JOB_EXECUTOR_PROCESS, "jobName: x\ncommand: y\nconda: train\n", NULL},
        {HL_JOB_EXECUTOR_KUBERNETES, "jobName: x\ndockerImage: i\nconda: train\n",
         "job.yaml:3:1: conda: "},
        {HL_JOB_EXECUTOR_KUBERNETES, "jobName: x\ndockerImage: i\nvenv: /v\n",
         "job.yaml:3:1: venv: "},
        {HL_JOB_EXECUTOR_KUBERNETES, "jobName: x\ndockerImage: i\npython: /p\n",
         "job.yaml:3:1: python: "},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct hl_job job = {0};
        hl_status st = read_job_for(rows[i].executor, rows[i].text, &job);
        assert_int_equal(st, rows[i].said != NULL ? HL_EINVAL : HL_OK);
        if (rows[i].said != NULL && strstr(hl_error_text(), rows[i].said) == NULL)
            fail_msg("'%s' should hold '%s'", hl_error_text(), rows[i].said);
        hl_job_fini(&job);
    }
}
