/* The table of jobs, by id, by name and by slot. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "controller/jobs/jobs_private.h"
#include "core/catalog/version_drop.h"
#include "core/job/jobnodes.h"

enum hl_job_executor jobs_kind(const struct hl_controller *c)
{
    const struct job_executor *e = c->jobs->executor;
    return e == &agents_executor ? controller_agents_kind(c) : e->kind;
}

hl_status executors_start(struct hl_controller *c)
{
    for (const struct job_executor *const *e = c->jobs->executors; *e != NULL; e++)
        if ((*e)->start != NULL)
            HL_TRY((*e)->start(c));
    return HL_OK;
}

void executors_stop(struct hl_controller *c)
{
    if (c->jobs == NULL)
        return;
    for (const struct job_executor *const *e = c->jobs->executors; *e != NULL; e++)
        if ((*e)->stop != NULL)
            (*e)->stop(c);
}

void executors_tell(const struct hl_controller *c, struct hl_arena *arena,
                    struct hl_api_cluster_info *io)
{
    for (const struct job_executor *const *e = c->jobs->executors; *e != NULL; e++)
        if ((*e)->tell != NULL)
            (*e)->tell(c, arena, io);
}

/* An older record may lack a key; if two have the same key, calls get the first. */
void jobs_add(struct job *j)
{
    struct jobs *jobs = j->controller->jobs;
    HASH_ADD_STR(jobs->table, id, j);
    j->has_key = j->doc.key != NULL && j->doc.key[0] != '\0' &&
                 jobs_find_key(j->controller, j->doc.key) == NULL;
    if (j->has_key)
        HASH_ADD_KEYPTR(hh_key, jobs->by_key, j->doc.key, strlen(j->doc.key), j);
}

void jobs_remove(struct job *j)
{
    struct jobs *jobs = j->controller->jobs;
    HASH_DEL(jobs->table, j);
    if (j->has_key)
        HASH_DELETE(hh_key, jobs->by_key, j);
}

struct job *jobs_find_key(const struct hl_controller *c, const char *key)
{
    struct job *j;
    HASH_FIND(hh_key, c->jobs->by_key, key, strlen(key), j);
    return j;
}

struct job *job_by_id(const struct hl_controller *c, const char *id)
{
    struct job *j;
    HASH_FIND_STR(c->jobs->table, id, j);
    return j;
}

struct job *jobs_first(const struct hl_controller *c)
{
    return c->jobs->table;
}

unsigned jobs_count(const struct hl_controller *c)
{
    return HASH_COUNT(c->jobs->table);
}

void jobs_count_states(const struct hl_controller *c, unsigned count[HL_API_JOB_STATE_COUNT])
{
    memset(count, 0, HL_API_JOB_STATE_COUNT * sizeof(*count));
    for (const struct job *j = c->jobs->table; j != NULL; j = j->hh.next)
        count[j->run.state]++;
}

static bool job_starts(const struct job *j)
{
    for (int i = 0; i < j->run.container_count && j->run.state == HL_API_JOB_STATE_STARTING; i++)
        if (j->run.containers[i].state != HL_API_CONTAINER_STATE_WANTED)
            return true;
    return false;
}

bool jobs_gang_starts(const struct hl_controller *c)
{
    for (const struct job *j = c->jobs->table; j != NULL; j = j->hh.next)
        if (job_starts(j))
            return true;
    return false;
}

/* An id like NAME-7 whose number a job has had. */
static bool was_given(const struct hl_controller *c, const char *id)
{
    const char *dash = strrchr(id, '-');
    char *end;
    if (dash == NULL || dash == id || dash[1] < '1' || dash[1] > '9')
        return false;
    long long seq = strtoll(dash + 1, &end, 10);
    return *end == '\0' && seq <= c->jobs->seq;
}

/* The job of that name that has not ended, or else the newest one; NULL: there is none. */
static hl_status find_by_name(struct hl_controller *c, const char *name, struct job **out)
{
    struct job *newest = NULL, *live = NULL;
    char ids[256] = "";
    size_t at = 0;
    int count = 0;
    for (struct job *k = c->jobs->table; k != NULL; k = k->hh.next) {
        if (k->saved.run == NULL || strcmp(k->spec.name, name) != 0)
            continue;
        newest = k;
        if (hl_job_state_ended(k->run.state))
            continue;
        live = k;
        if (count++ < 5 && at + strlen(k->id) + 8 < sizeof(ids))
            at += (size_t)snprintf(ids + at, sizeof(ids) - at, "%s%s", at > 0 ? ", " : "", k->id);
        else
            snprintf(ids + at, sizeof(ids) - at, ", ...");
    }
    if (count > 1)
        return hl_fail(HL_ECONFLICT, "%d jobs named '%.64s' are not over: give the id of one (%s)",
                       count, name, ids);
    *out = live != NULL ? live : newest;
    return HL_OK;
}

hl_status job_find(struct hl_controller *c, const char *id, struct job **out)
{
    struct job *j;
    j = job_by_id(c, id);
    if (j != NULL && j->saved.run == NULL)
        j = NULL; /* no caller knows its id yet */
    if (j == NULL)
        HL_TRY(find_by_name(c, id, &j));
    if (j == NULL && job_is_damaged(c, id))
        return hl_fail(HL_ECORRUPT,
                       "the record of job '%.100s' in the Controller's store is damaged: its "
                       "containers keep running, but the Controller knows nothing about it; "
                       "restore the store from a backup, or `helios cancel` ends it",
                       id);
    if (j == NULL && was_given(c, id))
        return hl_fail(HL_ENOENT,
                       "job '%.100s' no longer exists: ended jobs are forgotten with time (options "
                       "jobs.keep, jobs.keep_age of helios-controller)",
                       id);
    if (j == NULL)
        return hl_fail(HL_ENOENT, "job '%.100s' does not exist; `helios list` shows the jobs", id);
    *out = j;
    return HL_OK;
}

bool job_owns_container(const struct hl_api_container_status *status, const struct job *j,
                        int attempt)
{
    char job[HL_JOB_ID_MAX + 1];
    int number, index;
    return hl_container_id_parse(status->id, job, sizeof(job), &number, &index) == HL_OK &&
           number == attempt && strcmp(job, j->id) == 0;
}

void jobs_slot_holder(const struct hl_controller *c, const char *node, int numa_id,
                      const char **job, char *container, size_t cap)
{
    *job = "";
    container[0] = '\0';
    for (const struct job *j = c->jobs->table; j != NULL; j = j->hh.next) {
        if (!j->run.slots_held)
            continue;
        for (int i = 0; i < j->run.container_count; i++) {
            if (j->run.containers[i].numa_id != numa_id ||
                strcmp(j->run.containers[i].node, node) != 0)
                continue;
            *job = j->id;
            hl_container_id(j->id, j->run.attempt, hl_jobrun_index(&j->run, i), container, cap);
            return;
        }
    }
}

/* ---- jobs as users of versions --------------------------------------------------------------- */

static struct version_user version_user(const struct job *j)
{
    return (struct version_user){.job = j->id,
                                 .state = j->run.state,
                                 .attempt = j->run.attempt,
                                 .over = hl_job_state_ended(j->run.state)};
}

bool jobs_find_writer(const struct hl_controller *c, const char *id, struct version_user *out)
{
    struct job *j;
    j = job_by_id(c, id);
    if (j != NULL)
        *out = version_user(j);
    return j != NULL;
}

const char *jobs_find_node(const struct hl_controller *c, const char *job, int attempt, int rank)
{
    const struct job *j = job_by_id(c, job);
    if (j == NULL || j->run.plan == NULL || attempt != j->run.containers_attempt)
        return "";
    int index = hl_plan_container_of(j->run.plan, rank);
    return index >= 0 && index < j->run.container_count ? j->run.containers[index].node : "";
}

bool jobs_is_replaced(const struct hl_controller *c, const char *id, int attempt, int container)
{
    const struct job *j = job_by_id(c, id);
    if (j == NULL || j->run.plan == NULL || attempt != j->run.containers_attempt)
        return false;
    int at = job_position(j, container);
    return at < 0 || !hl_jobrun_has_ranks(&j->run, at) || j->run.plan->containers[at].leaves;
}

static bool job_needs_version(const struct job *j, const struct hl_version_rec *v)
{
    const struct hl_version_reader reader = {.model = j->spec.model,
                                             .named = j->spec.model_version,
                                             .loaded = j->load_version,
                                             .over = hl_job_state_ended(j->run.state)};
    return hl_version_is_read(v, &reader);
}

bool jobs_find_reader(const struct hl_controller *c, const struct hl_version_rec *v,
                      struct version_user *out)
{
    for (const struct job *j = c->jobs->table; j != NULL; j = j->hh.next) {
        if (!job_needs_version(j, v))
            continue;
        *out = version_user(j);
        return true;
    }
    return false;
}
