/* A job in the store: JobRecord, with two members and what belongs to each
 *
 *     doc    what is stored once: JobDoc, and beside it the spec (core/job/job.h)
 *     run    how far it has got (core/job/jobstate.h)
 *
 * The schema gives the default of a member that a record of an older release lacks. */
#include "controller/jobs/jobs_private.h"
#include "controller/records.h"

/* Both are borrowed from the object, which must not have other members. */
static hl_status take_two(json_t *from, const char *a, json_t **first, const char *b,
                          json_t **second)
{
    json_error_t err;
    const char *format = b != NULL ? "{s:o, s:o}" : "{s:o}";
    if (json_unpack_ex(from, &err, JSON_STRICT, format, a, first, b, second) != 0)
        return hl_fail(HL_ECORRUPT, "record of a job: %s", err.text);
    return HL_OK;
}

static hl_status doc_read(struct job *j, const json_t *value)
{
    json_t *rest = json_copy((json_t *)value), *spec = NULL;
    hl_status st = rest != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory reading a job");
    if (st == HL_OK)
        st = record_take(rest, &hl_api_job_doc_type, &j->doc_arena, &j->doc);
    if (st == HL_OK)
        st = take_two(rest, "spec", &spec, NULL, NULL);
    if (st == HL_OK)
        st = hl_job_parse(spec, NULL, &j->spec);
    json_decref(rest);
    j->doc_json = json_incref((json_t *)value);
    return st;
}

static hl_status events_read(struct job *j, const struct hl_api_job_event_list *list)
{
    j->events = json_array();
    for (size_t i = 0; i < list->count; i++)
        if (json_array_append_new(j->events,
                                  hl_api_to_json(&hl_api_job_event_type, &list->items[i])) != 0)
            return hl_fail(HL_ENOMEM, "out of memory reading the events of a job");
    return j->events != NULL ? HL_OK
                             : hl_fail(HL_ENOMEM, "out of memory reading the events of a job");
}

static hl_status parts_read(struct job *j, json_t *rest)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job_record r;
    json_t *doc = NULL, *run = NULL;
    HL_TRY(record_take(rest, &hl_api_job_record_type, &arena, &r));
    HL_TRY(take_two(rest, "doc", &doc, "run", &run));
    HL_TRY(doc_read(j, doc));
    HL_TRY(hl_jobrun_from_json(run, &j->run));
    j->run.policy = hl_job_policy(&j->spec);
    elastic_follow(j);
    HL_TRY(events_read(j, &r.events));
    j->load_version = r.load_version;
    HL_TRY(images_pin(j, r.image));
    ledger_restore(j, &r.ledger);
    j->port.number = r.port;
    j->gang_made = r.gang_made;
    j->port.settled = (struct master_place){
        .attempt = r.port_attempt >= 0 ? r.port_attempt : j->run.attempt,
        .container = r.port_container >= 0 ? r.port_container : master_container(j)};
    j->seq = j->doc.seq;
    j->saved = (struct job_record){json_incref(run), json_copy(j->events)};
    return HL_OK;
}

hl_status job_record_read(struct job *j, const json_t *value)
{
    json_t *rest = json_copy((json_t *)value);
    hl_status st = json_is_object(rest) ? parts_read(j, rest)
                                        : hl_fail(HL_ECORRUPT, "record of a job: not an object");
    json_decref(rest);
    return st;
}

hl_status job_doc_make(struct job *j)
{
    j->doc_json = hl_api_to_json(&hl_api_job_doc_type, &j->doc);
    if (json_object_set_new(j->doc_json, "spec", hl_job_to_json(&j->spec)) != 0)
        return hl_fail(HL_ENOMEM, "out of memory for the record of job '%s'", j->spec.name);
    return HL_OK;
}

struct job_record job_record_now(const struct job *j)
{
    return (struct job_record){hl_jobrun_to_json(&j->run), json_copy(j->events)};
}

json_t *job_record_json(const struct job *j, const struct job_record *r)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    json_t *value =
        hl_api_to_json(&hl_api_job_record_type,
                       &(struct hl_api_job_record){.load_version = j->load_version,
                                                   .port = j->port.number,
                                                   .port_attempt = j->port.settled.attempt,
                                                   .port_container = j->port.settled.container,
                                                   .gang_made = j->gang_made,
                                                   .ledger = ledger_record(j, &arena),
                                                   .image = images_pinned(j)});
    if (json_object_set(value, "doc", j->doc_json) != 0 ||
        json_object_set(value, "run", r->run) != 0 ||
        json_object_set(value, "events", r->events) != 0) {
        json_decref(value);
        return NULL;
    }
    return value;
}

void job_record_fini(struct job_record *r)
{
    json_decref(r->run);
    json_decref(r->events);
    *r = (struct job_record){NULL, NULL};
}

hl_status job_events_list(const json_t *events, struct hl_arena *arena,
                          struct hl_api_job_event_list *out)
{
    struct hl_api_job_event_list list = {
        .items = hl_arena_array(arena, json_array_size(events), sizeof(*list.items))};
    size_t i;
    const json_t *event;
    if (list.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the events of a job");
    json_array_foreach (events, i, event)
        HL_TRY(hl_api_from_json(&hl_api_job_event_type, event, arena, &list.items[list.count++]));
    *out = list;
    return HL_OK;
}
