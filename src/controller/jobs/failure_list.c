/* The first failures of a job: a list, newest first. */
#include <stdlib.h>

#include "controller/jobs/jobs_private.h"

void failure_free(struct job_failure *f)
{
    hl_arena_fini(&f->arena);
    free(f);
}

void failures_free(struct job *j)
{
    while (j->failures != NULL) {
        struct job_failure *f = j->failures;
        j->failures = f->next;
        failure_free(f);
    }
}

hl_status failure_copy(const struct hl_api_job_failure *from, struct job_failure **out)
{
    struct job_failure *f = calloc(1, sizeof(*f));
    if (f == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the failure of a job");
    hl_status st = hl_api_copy(&hl_api_job_failure_type, from, &f->arena, &f->f);
    if (st != HL_OK) {
        failure_free(f);
        return st;
    }
    *out = f;
    return HL_OK;
}

const struct hl_api_job_failure *job_failure_of(const struct job *j, int attempt)
{
    for (const struct job_failure *f = j->failures; f != NULL; f = f->next)
        if (attempt == 0 || f->f.attempt == attempt)
            return &f->f;
    return NULL;
}

/* In order of age, the newest last; without logs. */
struct hl_api_job_failure_list job_failures_list(const struct job *j, struct hl_arena *arena)
{
    struct hl_api_job_failure_list list = {0};
    size_t n = 0;
    for (const struct job_failure *f = j->failures; f != NULL; f = f->next)
        n++;
    list.items = hl_arena_array(arena, n, sizeof(*list.items));
    for (const struct job_failure *f = j->failures; list.items != NULL && f != NULL; f = f->next) {
        list.items[--n] = f->f;
        list.items[n].log = "";
        list.count++;
    }
    return list;
}

hl_status failures_forget(const struct job *j, struct hl_records *records)
{
    for (const struct job_failure *f = j->failures; f != NULL; f = f->next)
        HL_TRY(hl_records_add(records, NULL, "failure/%s/%d", j->id, f->f.attempt));
    return HL_OK;
}
