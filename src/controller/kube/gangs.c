/* Decisions: turns what the API server has into events and requests. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/kube/gangs_private.h"
#include "controller/kube/objects_private.h"
#include "core/job/gang.h"
#include "core/job/jobnodes.h"
#include "core/planner/plan.h"
#include "ranktable/plan.h"

/* Minimum time between two requests to delete pods without their kubelets. */
#define FORCE_GAP_NS (5 * HL_NS_PER_S)

/* ---- what exists -------------------------------------------------------------------------- */

/* The pod of a container of the plan, NULL when no pod of ours exists. Borrowed. */
const json_t *gang_pod(const struct job *j, int index)
{
    const json_t *pod =
        hl_kube_table_find(&j->controller->gangs->pods, j->run.plan->containers[index].node);
    return hl_volcano_attempt_of(pod, j->gang->id) == j->run.containers_attempt ? pod : NULL;
}

void gang_pod_read(const struct job *j, int index, const json_t *pod, struct hl_volcano_pod *out)
{
    const struct hl_plan_container *c = &j->run.plan->containers[index];
    hl_volcano_pod_read(
        pod, &(struct hl_volcano_ranks){.first = c->ranks[0].rank, .count = c->rank_count}, out);
}

static const json_t *job_of(const struct job *j, int attempt)
{
    char name[HL_VOLCANO_NAME_MAX];
    hl_volcano_job_name(j->id, attempt, name);
    const json_t *job = hl_kube_table_find(&j->controller->gangs->jobs, name);
    return hl_volcano_attempt_of(job, j->gang->id) == attempt ? job : NULL;
}

bool gangs_synced(const struct gangs *g)
{
    return g->jobs.synced && g->pods.synced;
}

/* Volcano deletes succeeded Jobs by itself; for PodGroups we do it. */
static bool is_over(const struct job *j)
{
    const struct gangs *g = j->controller->gangs;
    return g->podgroups[0] != '\0' && j->ended_steady_ms != 0 &&
           controller_steady_ms(j->controller) - j->ended_steady_ms >= g->volcano.keep_s * 1000ll;
}

static struct hl_gang_attempt attempt_of(const struct job *j, int attempt)
{
    return (struct hl_gang_attempt){.attempt = attempt,
                                    .there = job_of(j, attempt) != NULL,
                                    .created = j->gang->created == attempt,
                                    .deleted = j->gang->deleted == attempt,
                                    .made = j->gang_made == attempt,
                                    .over = is_over(j)};
}

static bool is_up(const struct job *j)
{
    return hl_gang_is_up(j->run.state);
}

/* ---- events ------------------------------------------------------------------------------- */

static void container_lose(struct job *j, int index, const char *why)
{
    char text[HL_JOB_TEXT_MAX], node[HL_NODE_NAME_MAX + 1];
    snprintf(text, sizeof(text), "%s", why);
    memcpy(node, j->run.containers[index].node, sizeof(node));
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_NODE_LOST, .node = node, .text = text});
}

static void container_report(struct job *j, int index, const struct hl_volcano_pod *p)
{
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CONTAINER,
                                        .attempt = j->run.attempt,
                                        .index = index,
                                        .container = p->state,
                                        .exit_code = p->exit_code,
                                        .signal = p->signal,
                                        .text = p->message});
}

/* Checks one container of a gang that is up. */
static void container_check(struct job *j, int index)
{
    const json_t *pod = gang_pod(j, index);
    struct hl_volcano_pod p = {0};
    if (pod != NULL && hl_jobrun_may_run(&j->run, index))
        gang_pod_read(j, index, pod, &p);
    if (p.state <= HL_API_CONTAINER_STATE_RUNNING &&
        gang_node_lost(j, pod, p.message, sizeof(p.message)))
        p.state = HL_API_CONTAINER_STATE_LOST;
    switch (hl_pod_judge(j->run.containers[index].state, pod != NULL, p.state)) {
    case HL_POD_SAME:
        break;
    case HL_POD_GONE:
        container_lose(j, index, "its pod no longer exists");
        break;
    case HL_POD_LOST:
        container_lose(j, index, p.message);
        break;
    case HL_POD_REPLACED:
        container_lose(j, index, "its pod was replaced");
        break;
    case HL_POD_NEWS:
        container_report(j, index, &p);
        break;
    }
}

/* No controller replaces a lost pod of a PodGroup, so the gang has to end; with a Job, Volcano ends
 * it. */
static bool lacks_pod(const struct job *j)
{
    bool all_made = j->gang->maps_sent == j->run.attempt;
    for (int i = 0; all_made && i < j->run.container_count; i++)
        if (gang_pod(j, i) == NULL && hl_jobrun_may_run(&j->run, i))
            return true;
    return false;
}

/* What is wrong with its Job; NULL = nothing. Borrowed. */
static const char *job_trouble(struct job *j, const json_t *job)
{
    if (job == NULL)
        return j->gang->seen == j->run.attempt ? "deleted" : NULL;
    j->gang->seen = j->run.attempt;
    if (j->controller->gangs->podgroups[0] != '\0' && lacks_pod(j))
        return "without one of its pods";
    return hl_volcano_job_trouble(job);
}

/* Handles a Job that ended, was suspended or deleted while its pods don't say why. */
static void job_check(struct job *j)
{
    const json_t *job = job_of(j, j->run.attempt);
    const char *why = job_trouble(j, job);
    char text[HL_JOB_TEXT_MAX];
    if (!hl_gang_trouble(&j->gang->trouble_ns, why != NULL, j->controller->listening.listened_ns))
        return;
    const char *message;
    if (object_text_if_any(job, "status.state.message", &message) != HL_OK)
        message = hl_error_text();
    snprintf(text, sizeof(text), "the %s is %s %.160s", j->controller->gangs->root.word, why,
             message);
    for (int i = 0; i < j->run.container_count; i++)
        if (hl_jobrun_may_run(&j->run, i)) {
            container_lose(j, i, text);
            return;
        }
}

static uint64_t stop_grace_ns(const struct job *j)
{
    int64_t ms = j->spec.stop_grace_ms;
    return (uint64_t)(ms >= 0 ? ms : j->controller->opts.stop_grace_ms) * HL_NS_PER_MS;
}

/* Whether the pod of a container is still waited for. */
static enum hl_pod_end end_of_pod(const struct job *j, int index)
{
    const json_t *pod = gang_pod(j, index);
    char why[HL_JOB_TEXT_MAX];
    const struct hl_gang_ending e = {.gone_ns = j->gang->gone_ns,
                                     .grace_ns = stop_grace_ns(j),
                                     .node_lost = gang_node_lost(j, pod, why, sizeof(why))};
    return hl_gang_pod_end(&e, j->controller->listening.listened_ns);
}

static void container_give_up(struct job *j, int index)
{
    char why[HL_JOB_TEXT_MAX];
    snprintf(why, sizeof(why), "pod %s has not ended and was given up",
             j->run.plan->containers[index].node);
    hl_warn("Kubernetes: job=%s attempt=%d %s", j->id, j->run.attempt, why);
    container_lose(j, index, why);
}

/* Force-deletes pods that their kubelets do not end, including those of lost containers. */
static void pods_force(struct job *j)
{
    const json_t *force[GANG_FORCE_MAX];
    size_t count = 0;
    uint64_t now_ns = hl_now_ns();
    if (now_ns < j->gang->not_before_ns || now_ns - j->gang->forced_ns < FORCE_GAP_NS)
        return;
    for (int i = 0; i < j->run.container_count && count < GANG_FORCE_MAX; i++)
        if (gang_pod(j, i) != NULL && end_of_pod(j, i) == HL_POD_END_FORCE)
            force[count++] = gang_pod(j, i);
    if (count > 0)
        gang_force(j, force, count);
}

/* While stopping: a container whose pod is gone has ended, once nothing makes the pod again. */
static void absent_check(struct job *j)
{
    int attempt = j->run.attempt;
    const struct hl_gang_attempt now = attempt_of(j, attempt);
    if (j->gang->busy || !hl_gang_has_ended(&now))
        return;
    if (j->gang->gone_ns == 0)
        j->gang->gone_ns = j->controller->listening.listened_ns;
    pods_force(j);
    job_events_hold(j);
    for (int i = 0; i < j->run.container_count && j->run.state == HL_API_JOB_STATE_STOPPING; i++) {
        if (!hl_jobrun_may_run(&j->run, i))
            continue;
        if (gang_pod(j, i) == NULL)
            job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_ABSENT,
                                                .attempt = attempt,
                                                .index = i,
                                                .is_in_order = true}); /* by one watch */
        else if (end_of_pod(j, i) == HL_POD_END_GIVE_UP)
            container_give_up(j, i);
    }
    job_events_go(j);
}

static bool has_pods(const struct job *j)
{
    for (int i = 0; i < j->run.container_count; i++)
        if (gang_pod(j, i) != NULL)
            return true;
    return false;
}

/* For a gang that was up when the Controller ended: if its Job is gone, it may have finished, so it
 * is not run again. */
static void restored_check(struct job *j)
{
    const struct hl_gang_attempt now = attempt_of(j, j->run.attempt);
    if (!j->gang->restored)
        return;
    j->gang->restored = false;
    j->gang->seen = j->gang_made;
    if (!hl_gang_vanished(&now, &j->run, has_pods(j)))
        return;
    char text[HL_JOB_TEXT_MAX];
    snprintf(text, sizeof(text),
             "its %s was deleted while the Controller was not running; whether its ranks had "
             "finished is not known",
             j->controller->gangs->root.word);
    job_event(j, &(struct hl_job_event){.kind = HL_JOB_EV_CANCEL, .text = text});
}

void gang_reconcile(struct job *j)
{
    struct gangs *g = j->controller->gangs;
    int attempt = j->run.attempt;
    if (g == NULL || j->gang == NULL || !gangs_synced(g))
        return;
    restored_check(j);
    job_events_hold(j); /* a gang of thousands starts in one step */
    for (int i = 0; is_up(j) && j->run.attempt == attempt && i < j->run.container_count; i++)
        container_check(j, i);
    job_events_go(j);
    if (is_up(j) && j->run.attempt == attempt)
        job_check(j);
    if (j->run.state == HL_API_JOB_STATE_STOPPING)
        absent_check(j);
    else
        j->gang->gone_ns = 0;
    gang_apply(j);
}

/* ---- requests ----------------------------------------------------------------------------- */

/* An attempt whose Job should not exist, or 0. */
static int attempt_to_delete(const struct job *j)
{
    for (int attempt = 1; attempt <= j->run.attempt; attempt++) {
        const struct hl_gang_attempt a = attempt_of(j, attempt);
        if (hl_gang_goes(&a, &j->run))
            return attempt;
    }
    return 0;
}

static hl_status server_add(struct hl_cluster *cluster, const struct job *j, int index)
{
    const struct hl_plan_container *c = &j->run.plan->containers[index];
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_slot slot = {
        .gpus.items = hl_arena_array(&arena, (size_t)c->rank_count, sizeof(*slot.gpus.items))};
    struct hl_api_node_info info = {.name = c->node, .slots = {&slot, 1}};
    for (int k = 0; slot.gpus.items != NULL && k < c->rank_count; k++)
        slot.gpus.items[slot.gpus.count++].id = c->ranks[k].gpu;
    HL_TRY(object_text(gang_pod(j, index), "status.podIP", &info.host_address));
    return hl_cluster_put(cluster, &info);
}

/* The table treats each pod as a server of its ranks, with the pod's own address. */
static hl_status table_of(const struct job *j, char **out)
{
    struct hl_cluster cluster = {0};
    enum hl_ranktable_format format = HL_RANKTABLE_V2;
    hl_status st = hl_ranktable_format_parse(j->spec.rank_table, &format);
    for (int i = 0; st == HL_OK && i < j->run.container_count; i++)
        st = server_add(&cluster, j, i);
    if (st == HL_OK)
        st = hl_ranktable_plan_text(j->run.plan, &cluster, j->id, format, out);
    hl_cluster_fini(&cluster);
    return st;
}

/* True if a rank has started: the gang was complete then, so a container that has no pod now has
 * lost it. */
static bool has_begun(const struct job *j)
{
    for (int i = 0; i < j->run.container_count; i++)
        if (j->run.containers[i].state != HL_API_CONTAINER_STATE_WANTED)
            return true;
    return false;
}

static void maps_publish(struct job *j)
{
    const char *uid;
    if (j->controller->gangs->podgroups[0] != '\0' && has_begun(j)) {
        j->gang->maps_sent = j->run.attempt;
        return;
    }
    if (object_text(job_of(j, j->run.attempt), "metadata.uid", &uid) == HL_OK)
        gang_put_maps(j, uid);
    else
        hl_error("ConfigMaps are not made job=%s error=\"%s\"", j->id, hl_error_text());
}

static void table_publish(struct job *j)
{
    char *table = NULL;
    j->gang->table_sent = j->run.attempt;
    if (table_of(j, &table) == HL_OK)
        gang_put_table(j, table);
    else
        hl_error("job has no rank table job=%s error=\"%s\"", j->id, hl_error_text());
    free(table);
}

void gang_apply(struct job *j)
{
    struct gangs *g = j->controller->gangs;
    if (g == NULL || j->gang == NULL || !gangs_synced(g) || j->gang->busy || !job_is_saved(j) ||
        hl_now_ns() < j->gang->not_before_ns)
        return;
    int away = attempt_to_delete(j), attempt = j->run.attempt;
    const struct hl_gang_attempt now = attempt_of(j, attempt);
    const struct hl_gang_done done = {.maps_sent = j->gang->maps_sent == attempt,
                                      .table_sent = j->gang->table_sent == attempt,
                                      .logs_kept = j->gang->logs_kept == attempt,
                                      .table_is_ours = !hl_volcano_is_ascend(&g->volcano)};
    if (away > 0) {
        gang_delete(j, away);
        return;
    }
    switch (hl_gang_next(&j->run, &now, &done)) {
    case HL_GANG_REST:
        break;
    case HL_GANG_CREATE:
        gang_create(j);
        break;
    case HL_GANG_RECORD:
        j->gang_made = attempt;
        job_keep(j);
        break;
    case HL_GANG_PUT_MAPS:
        maps_publish(j);
        break;
    case HL_GANG_PUT_TABLE:
        table_publish(j);
        break;
    case HL_GANG_KEEP_LOGS:
        gang_keep_logs(j);
        break;
    }
}

/* The job to which an object belongs, NULL when it is not one of ours. */
struct job *gang_owner(struct gangs *g, const json_t *object)
{
    struct job *j = NULL;
    j = job_by_id(g->c, hl_volcano_job_id(object));
    return j != NULL && j->gang != NULL && hl_volcano_attempt_of(object, j->gang->id) > 0 ? j
                                                                                          : NULL;
}

/* Covers jobs that have not ended, and what ended jobs have left behind. */
void gangs_tick(struct hl_controller *c)
{
    struct job *j, *next;
    const char *name;
    json_t *object;
    void *iter;
    if (c->gangs == NULL)
        return;
    engine_tick(c->gangs);
    nodes_prune(c->gangs);
    for (j = jobs_first(c); j != NULL; j = next) {
        next = j->hh.next;
        if (!hl_job_state_ended(j->run.state))
            gang_reconcile(j);
    }
    json_object_foreach_safe(c->gangs->jobs.now, iter, name, object)
    {
        j = gang_owner(c->gangs, object);
        if (j != NULL && hl_job_state_ended(j->run.state))
            gang_reconcile(j);
    }
}
