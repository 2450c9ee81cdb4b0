/* Handles records of the store that were unreadable at the start, while the Controller runs: jobs
 * whose records are lost but whose containers run on, and models and versions that are removed. */
#include "controller/damaged.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "controller/commits.h"
#include "controller/core.h"
#include "core/job/jobstate.h"

/* ---- jobs whose record is damaged ------------------------------------------------------------ */

bool job_is_damaged(const struct hl_controller *c, const char *id)
{
    char key[HL_JOB_ID_MAX + 8];
    snprintf(key, sizeof(key), "job/%s", id);
    return json_object_get(c->damaged, key) != NULL;
}

const char *job_damaged_container(const struct hl_controller *c,
                                  const struct hl_api_container_status_list *containers)
{
    for (size_t i = 0; i < containers->count; i++) {
        const char *id = containers->items[i].id;
        enum hl_api_container_state state = containers->items[i].state;
        char job[HL_JOB_ID_MAX + 1];
        int attempt, index;
        if ((state == HL_API_CONTAINER_STATE_RUNNING || state == HL_API_CONTAINER_STATE_STARTING) &&
            hl_container_id_parse(id, job, sizeof(job), &attempt, &index) == HL_OK &&
            job_is_damaged(c, job))
            return id;
    }
    return NULL;
}

struct drop {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    char key[HL_JOB_ID_MAX + 8];
};

static void on_dropped(void *arg, hl_status st, const char *text)
{
    struct drop *d = arg;
    if (controller_stopped(d->c))
        st = hl_fail(HL_ECANCELED, "the Controller was stopped");
    else if (st == HL_OK)
        json_object_del(d->c->damaged, d->key);
    else
        st = hl_fail(st, "%s", text);
    if (st == HL_OK)
        hl_reply_controller_cancel_job(
            d->call, &(struct hl_api_controller_cancel_job_results){HL_API_JOB_STATE_CANCELLED,
                                                                    d->key + strlen("job/")});
    else
        call_reject(d->call, st);
    free(d);
}

void job_drop_damaged(struct hl_controller *c, const char *id, struct hl_rpc_call *call)
{
    struct hl_records records = {0};
    struct drop *d = calloc(1, sizeof(*d));
    hl_status st =
        d != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a cancellation");
    if (st == HL_OK) {
        *d = (struct drop){.c = c, .call = call};
        snprintf(d->key, sizeof(d->key), "job/%s", id);
        st = hl_records_add(&records, NULL, "%s", d->key);
    }
    if (st == HL_OK)
        st = controller_write(c, &records, on_dropped, d);
    hl_records_fini(&records);
    if (st != HL_OK) {
        free(d);
        call_reject(call, st);
    }
}

/* ---- what was damaged and is removed --------------------------------------------------------- */

void damaged_forget(struct hl_controller *c, const char *model, int64_t version)
{
    const char *key;
    json_t *why;
    void *next;
    json_object_foreach_safe(c->damaged, next, key, why)
    {
        char kind[8], name[HL_MODEL_NAME_MAX + 1];
        int64_t number = -1;
        if (sscanf(key, "%7[a-z]/%128[^/]/%" SCNd64, kind, name, &number) >= 2 &&
            strcmp(kind, "job") != 0 && strcmp(kind, "node") != 0 && strcmp(name, model) == 0 &&
            (version == -1 || number == version))
            json_object_del(c->damaged, key);
    }
}
