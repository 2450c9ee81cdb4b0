/* Additions to a job's record: events for people, and changes that the state machine does not know.
 * Files below jobs.c make them, so the record is written through jobs->save. */
#include "base/clock.h"
#include "base/log.h"
#include "controller/jobs/jobs_private.h"

#define JOB_EVENTS_MAX 200

void job_keep(struct job *j)
{
    j->keep = true; /* the run is unchanged, but more than the run has to be written */
    j->resume = true;
    j->controller->jobs->save(j);
}

void note_event(struct job *j, int attempt, const char *word, const char *text)
{
    const struct hl_api_job_event event = {
        .time_ms = hl_wall_ms(), .attempt = attempt, .kind = word, .text = text};
    json_array_append_new(j->events, hl_api_to_json(&hl_api_job_event_type, &event));
    if (json_array_size(j->events) > JOB_EVENTS_MAX)
        json_array_remove(j->events, 0);
    hl_info("job %s job=%s attempt=%d text=\"%s\"", word, j->id, attempt, text);
}

void job_note(struct job *j, const char *kind, const char *text)
{
    note_event(j, j->run.attempt, kind, text);
    job_keep(j);
}
