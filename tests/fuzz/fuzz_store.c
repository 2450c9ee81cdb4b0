/* Records of the Controller's store, of any bytes: the first one chooses. Lines of key, tab and
 * JSON make a catalogue; one JSON text is a running job, a plan or a node's slots. What is accepted
 * must print, and read again as the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog.h"
#include "core/job/jobstate.h"
#include "core/planner/plan.h"
#include "core/planner/topo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(int ok)
{
    if (!ok)
        abort();
}

/* The record reads again, alone where that is possible, as what it says of itself. */
static void print_catalog(const struct hl_catalog *c)
{
    for (const struct hl_model_rec *m = c->models; m != NULL; m = m->hh.next) {
        struct hl_arena arena = {0};
        struct hl_api_model info = hl_model_rec_info(m, &arena);
        check(info.name == m->name && !hl_arena_failed(&arena));
        hl_arena_fini(&arena);
    }
    for (const struct hl_shard_rec *s = c->shards; s != NULL; s = s->hh.next) {
        json_t *shard = hl_shard_rec_to_json(s);
        check(shard != NULL && hl_catalog_shard(c, s->id) == s);
        json_decref(shard);
    }
}

static void catalog(char *text)
{
    struct hl_catalog c = {0};
    char *rest = text;
    for (char *line; (line = strsep(&rest, "\n")) != NULL;) {
        char *tab = strchr(line, '\t');
        if (tab == NULL)
            continue;
        *tab = '\0';
        json_t *value = json_loads(tab + 1, JSON_DECODE_ANY, NULL);
        if (value != NULL && hl_catalog_load(&c, line, value) != HL_OK)
            check(hl_error_text()[0] != '\0');
        json_decref(value);
    }
    print_catalog(&c);
    hl_catalog_fini(&c);
}

static void jobrun(const json_t *doc)
{
    struct hl_jobrun run = {0}, again = {0};
    if (hl_jobrun_from_json(doc, &run) != HL_OK)
        return;
    struct hl_job_actions actions = {0};
    json_t *one = hl_jobrun_to_json(&run);
    check(one != NULL && hl_jobrun_from_json(one, &again) == HL_OK);
    json_t *two = hl_jobrun_to_json(&again);
    check(json_equal(one, two));
    (void)!hl_jobrun_resume(&run, &actions);
    hl_job_actions_fini(&actions);
    struct hl_arena arena = {0};
    (void)hl_jobrun_containers(&run, &arena);
    hl_arena_fini(&arena);
    json_decref(one);
    json_decref(two);
    hl_jobrun_fini(&run);
    hl_jobrun_fini(&again);
}

static void plan(const json_t *doc)
{
    struct hl_plan *p = NULL, *again = NULL;
    if (hl_plan_from_json(doc, &p) != HL_OK)
        return;
    json_t *one = hl_plan_to_json(p);
    check(one != NULL && hl_plan_from_json(one, &again) == HL_OK);
    json_t *two = hl_plan_to_json(again);
    check(json_equal(one, two));
    json_decref(one);
    json_decref(two);
    hl_plan_free(p);
    hl_plan_free(again);
}

static void topo(json_t *doc)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_node_info given, one = {0}, two = {0};
    struct hl_topo t = {0}, again = {0};
    json_t *node = json_pack("{s:O}", "slots", doc);
    hl_status st = hl_api_from_json(&hl_api_node_info_type, node, &arena, &given);
    json_decref(node);
    if (st != HL_OK || hl_topo_from_api(&given.slots, &t) != HL_OK)
        return;
    check(hl_topo_to_api(&t, &arena, &one.slots) == HL_OK);
    check(hl_topo_from_api(&one.slots, &again) == HL_OK);
    check(hl_topo_to_api(&again, &arena, &two.slots) == HL_OK);
    json_t *first = hl_api_to_json(&hl_api_node_info_type, &one);
    json_t *second = hl_api_to_json(&hl_api_node_info_type, &two);
    check(first != NULL && json_equal(first, second));
    json_decref(first);
    json_decref(second);
    hl_topo_fini(&t);
    hl_topo_fini(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1)
        return 0;
    char *text = calloc(1, size);
    check(text != NULL);
    memcpy(text, data + 1, size - 1);
    if (data[0] % 4 == 0) {
        catalog(text);
        free(text);
        return 0;
    }
    json_t *doc = json_loadb(text, size - 1, 0, NULL);
    if (doc != NULL && data[0] % 4 == 1)
        jobrun(doc);
    else if (doc != NULL && data[0] % 4 == 2)
        plan(doc);
    else if (doc != NULL)
        topo(doc);
    json_decref(doc);
    free(text);
    return 0;
}
