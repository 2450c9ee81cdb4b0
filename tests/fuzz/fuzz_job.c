/* A job file of any bytes: YAML, then the job. What is accepted must read back to the same job. */
#include <stdint.h>
#include <stdlib.h>

#include "conf/yaml.h"
#include "core/job/job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    HL_AUTO(hl_yaml_freep) struct hl_yaml *doc = NULL;
    struct hl_job job, again;
    if (hl_yaml_parse("job.yaml", (const char *)data, size, &doc) != HL_OK)
        return 0;
    struct hl_job_source src = {.name = "job.yaml", .where = hl_yaml_locate, .ctx = doc};
    if (hl_job_parse(hl_yaml_root(doc), &src, &job) != HL_OK)
        return 0;
    json_t *one = hl_job_to_json(&job);
    if (one == NULL || hl_job_parse(one, NULL, &again) != HL_OK)
        abort();
    json_t *two = hl_job_to_json(&again);
    if (!json_equal(one, two))
        abort();
    json_decref(one);
    json_decref(two);
    hl_job_fini(&job);
    hl_job_fini(&again);
    return 0;
}
