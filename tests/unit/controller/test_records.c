/* Records of the store, and objects of the API server: a missing member or one of the wrong type is
 * an error that names it, and a record of an older release is read. */
#include "support/test.h"

#include <string.h>

#include "controller/jobs/jobs_private.h"
#include "controller/kube/objects_private.h"
#include "controller/records.h"

/* As the first release wrote it: without port, launch, gang and the version to load. */
static const char first_release[] =
    "{\"doc\": {\"yaml\": \"jobName: a\", \"source\": \"job.yaml\", \"key\": \"k-1\", \"seq\": 7,"
    "  \"spec\": {\"jobName\": \"a\", \"command\": [\"true\"]}},"
    " \"run\": {\"id\": \"a-7\", \"state\": \"succeeded\", \"goal\": \"none\", \"attempt\": 2, "
    "\"containers\": []},"
    " \"events\": [{\"timeMs\": 5, \"attempt\": 1, \"kind\": \"submitted\", \"text\": \"t\"}]}";

static json_t *parse(const char *text)
{
    json_error_t err;
    json_t *value = json_loads(text, 0, &err);
    if (value == NULL)
        print_error("line %d: %s\n", err.line, err.text);
    assert_non_null(value);
    return value;
}

/* With the clocks by which a time ledger is read. */
static struct jobs jobs = {.boot_id = "boot"};
static struct hl_controller controller = {.jobs = &jobs};

static struct job *read_job(json_t *value, hl_status *st)
{
    struct job *j = calloc(1, sizeof(*j));
    assert_non_null(j);
    j->controller = &controller;
    *st = job_record_read(j, value);
    json_decref(value);
    return j;
}

TEST(a_job_of_the_first_release_is_read)
{
    hl_status st;
    struct job *j = read_job(parse(first_release), &st);
    assert_int_equal(st, HL_OK);
    assert_string_equal(j->run.id, "a-7");
    assert_string_equal(j->spec.name, "a");
    assert_string_equal(j->doc.key, "k-1");
    assert_int_equal(j->seq, 7);
    assert_int_equal(j->load_version, -1);
    assert_int_equal(j->port.number, 0);
    assert_int_equal(j->port.settled.attempt, 2); /* the only one possible */
    assert_string_equal(j->doc.gang, "");
    assert_string_equal(j->doc.launch.file, "");
    assert_int_equal(json_array_size(j->events), 1);
    assert_false(j->ledger.begun);
    assert_string_equal(images_pinned(j), "");
    job_free(j);
}

TEST(a_job_is_written_as_it_is_read)
{
    hl_status st;
    struct job *j = read_job(parse(first_release), &st);
    assert_int_equal(st, HL_OK);
    j->load_version = 3;
    j->port.number = 29500;
    assert_int_equal(images_pin(j, "reg/x@sha256:1"), HL_OK);
    j->ledger = (struct hl_ledger){
        .begun = true, .over = true, .ms[HL_LEDGER_STEP] = 70, .ms[HL_LEDGER_LOST] = 30};
    struct job_record now = job_record_now(j);
    struct job *again = read_job(job_record_json(j, &now), &st);
    assert_int_equal(st, HL_OK);
    assert_int_equal(again->load_version, 3);
    assert_int_equal(again->port.number, 29500);
    assert_string_equal(images_pinned(again), "reg/x@sha256:1");
    assert_int_equal(ledger_show(again).wall_ms, 100);
    assert_int_equal(ledger_show(again).lost_ms, 30);
    assert_int_equal(again->port.settled.attempt, 2);
    assert_int_equal(again->seq, 7);
    assert_string_equal(again->doc.source, "job.yaml");
    assert_true(json_equal(again->events, j->events));
    assert_true(json_equal(again->saved.run, now.run));
    job_record_fini(&now);
    job_free(again);
    job_free(j);
}

/* The record is refused by its name if this member is replaced, or with NULL removed. */
static void is_refused(const char *object, const char *member, json_t *value, const char *name)
{
    hl_status st;
    json_t *record = parse(first_release);
    json_t *at = object[0] != '\0' ? json_object_get(record, object) : record;
    if (json_is_array(at))
        at = json_array_get(at, 0);
    if (value != NULL)
        json_object_set_new(at, member, value);
    else
        json_object_del(at, member);
    struct job *j = read_job(record, &st);
    assert_int_not_equal(st, HL_OK);
    if (strstr(hl_error_text(), name) == NULL)
        print_error("%s: %s\n", name, hl_error_text());
    assert_non_null(strstr(hl_error_text(), name));
    job_free(j);
}

TEST(what_is_wrong_with_a_job_is_named)
{
    is_refused("", "run", NULL, "run");
    is_refused("", "doc", NULL, "doc");
    is_refused("", "port", json_string("29500"), "port");
    is_refused("", "events", json_object(), "events");
    is_refused("events", "timeMs", json_string("5"), "events[0].timeMs");
    is_refused("doc", "spec", NULL, "spec");
    is_refused("doc", "seq", json_real(7.5), "seq");
    is_refused("doc", "secret", json_string("?"), "secret");
}

TEST(a_record_is_parted_into_its_structs)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_node_absence absence;
    json_t *record = parse("{\"name\": \"n-1\", \"lostMs\": 12}");
    assert_int_equal(record_take(record, &hl_api_node_absence_type, &arena, &absence), HL_OK);
    assert_int_equal(absence.lost_ms, 12);
    assert_int_equal(absence.seen_ms, 0);
    assert_int_equal(json_object_size(record), 1); /* the name remains */
    json_object_set_new(record, "seenMs", json_true());
    assert_int_equal(record_take(record, &hl_api_node_absence_type, &arena, &absence), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "seenMs"));
    json_decref(record);
}

TEST(a_required_number_of_a_record_has_no_default)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_job_number number;
    json_t *record = parse("{}");
    assert_int_equal(hl_api_from_json(&hl_api_job_number_type, record, &arena, &number), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "last"));
    json_decref(record);
}

TEST(a_member_that_the_api_server_left_out_is_named)
{
    const char *text = NULL;
    json_t *pod = parse("{\"metadata\": {\"name\": \"p-0\", \"uid\": 7}, \"status\": {}}");
    assert_int_equal(object_text(pod, "metadata.name", &text), HL_OK);
    assert_string_equal(text, "p-0");
    assert_int_equal(object_text(pod, "metadata.uid", &text), HL_EPROTO);
    assert_non_null(strstr(hl_error_text(), "metadata.uid"));
    assert_int_equal(object_text(pod, "status.podIP", &text), HL_EPROTO);
    assert_non_null(strstr(hl_error_text(), "status.podIP"));
    assert_int_equal(object_text(NULL, "metadata.name", &text), HL_EPROTO);
    assert_int_equal(object_text_if_any(pod, "status.state.message", &text), HL_OK);
    assert_string_equal(text, "");
    assert_int_equal(object_text_if_any(pod, "metadata.uid", &text), HL_EPROTO);
    json_decref(pod);
}
