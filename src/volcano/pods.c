/* The state of pods and Jobs. A rank that ended by itself with another code than 0 has failed. If a
 * pod disappears for any other reason (eviction, preemption, a node, a delete), it is lost, as it
 * is with a lost node. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "core/json.h"
#include "volcano/gang.h"

#define LOCAL_MAX 9999
#define SIGNALLED 128 /* exit codes above this are signals */

int hl_volcano_attempt_of(const json_t *object, const char *gang)
{
    const json_t *labels = json_object_get(json_object_get(object, "metadata"), "labels");
    uint64_t attempt;
    if (gang[0] == '\0' || strcmp(hl_json_str(labels, HL_VOLCANO_GANG, ""), gang) != 0)
        return 0;
    return hl_parse_number(hl_json_str(labels, HL_VOLCANO_ATTEMPT, ""), INT_MAX, &attempt)
               ? (int)attempt
               : 0;
}

const char *hl_volcano_job_id(const json_t *object)
{
    const json_t *meta = json_object_get(object, "metadata");
    return hl_json_str(json_object_get(meta, "annotations"), HL_VOLCANO_JOB, "");
}

static void HL_PRINTF(2, 3) set_message(struct hl_volcano_pod *out, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(out->message, sizeof(out->message), fmt, ap);
    va_end(ap);
}

static const json_t *state_of(const json_t *container, const char *which)
{
    return json_object_get(json_object_get(container, "state"), which);
}

/* Label of a container by its name; containers that others added to the pod, like a service mesh,
 * are not ranks. */
static const char *container_label(const json_t *container, const struct hl_volcano_ranks *ranks,
                                   char buf[48])
{
    const char *name = hl_json_str(container, "name", "");
    uint64_t local;
    if (strncmp(name, "local-", 6) == 0 && hl_parse_number(name + 6, LOCAL_MAX, &local))
        snprintf(buf, 48, "rank %d", ranks->first + (int)local);
    else if (strcmp(name, HL_VOLCANO_SHARED) == 0 && ranks->count > 1)
        snprintf(buf, 48, "the container of ranks %d to %d", ranks->first,
                 ranks->first + ranks->count - 1);
    else if (strcmp(name, HL_VOLCANO_SHARED) == 0)
        snprintf(buf, 48, "rank %d", ranks->first);
    else
        snprintf(buf, 48, "container %.30s", name);
    return buf;
}

/* Parses the last words of the shell of a shared container (command.c): "rank 3 exited with code
 * 7", possibly followed by " out of memory". */
static bool parse_last_words(const char *words, uint64_t *rank, uint64_t *code, bool *oom)
{
    static const char full[] = " out of memory";
    char first[12], second[12];
    int end = 0;
    if (sscanf(words, "rank %11[0-9] exited with code %11[0-9]%n", first, second, &end) != 2)
        return false;
    const char *left = words + end;
    bool is_full = strncmp(left, full, sizeof(full) - 1) == 0;
    if (is_full)
        left += sizeof(full) - 1;
    if (left[strspn(left, "\n")] != '\0' || !hl_parse_number(first, INT_MAX, rank) ||
        !hl_parse_number(second, INT_MAX, code))
        return false;
    *oom = is_full;
    return true;
}

/* rank: the container's label, in a buffer of 48 bytes. */
static void describe_end(const json_t *end, char *rank, struct hl_volcano_pod *out)
{
    const char *why = hl_json_str(end, "message", "");
    uint64_t number, code;
    bool oom = false;
    out->state = HL_API_CONTAINER_STATE_FAILED;
    out->exit_code = (int)hl_json_int(end, "exitCode", 1);
    if (parse_last_words(why, &number, &code, &oom)) {
        snprintf(rank, 48, "rank %d", (int)number);
        out->exit_code = (int)code;
        why = "";
    }
    size_t n = strcspn(why, "\n");
    int len = (int)(n < 120 ? n : 120);
    if (out->exit_code > SIGNALLED)
        out->signal = out->exit_code - SIGNALLED;
    oom |= strcmp(hl_json_str(end, "reason", ""), "OOMKilled") == 0;
    if (oom && out->signal == SIGKILL)
        set_message(out, "%s was killed, its memory was full (OOMKilled)", rank);
    else if (oom) /* a child of the rank was killed */
        set_message(out, "%s exited with code %d, its memory was full (OOMKilled)", rank,
                    out->exit_code);
    else if (out->signal > 0)
        set_message(out, "%s was killed by signal %d%s%.*s", rank, out->signal, len > 0 ? ": " : "",
                    len, why);
    else
        set_message(out, "%s exited with code %d%s%.*s", rank, out->exit_code, len > 0 ? ": " : "",
                    len, why);
}

/* Returns true if a rank has failed; *begun counts the ranks that have begun. */
static bool look_at_ranks(const json_t *list, const struct hl_volcano_ranks *ranks, size_t *begun,
                          struct hl_volcano_pod *out)
{
    char rank[48];
    size_t i;
    const json_t *c;
    json_array_foreach (list, i, c) {
        const json_t *end = state_of(c, "terminated"), *wait = state_of(c, "waiting");
        if (end != NULL && hl_json_int(end, "exitCode", 0) != 0) {
            container_label(c, ranks, rank);
            describe_end(end, rank, out);
            return true;
        }
        *begun += end != NULL || state_of(c, "running") != NULL;
        if (wait != NULL)
            set_message(out, "%s waits: %.60s %.140s", container_label(c, ranks, rank),
                        hl_json_str(wait, "reason", ""), hl_json_str(wait, "message", ""));
    }
    return false;
}

static const json_t *find_condition(const json_t *status, const char *type, const char *value)
{
    size_t i;
    const json_t *c;
    json_array_foreach (hl_json_list(status, "conditions"), i, c) {
        if (strcmp(hl_json_str(c, "type", ""), type) == 0 &&
            strcmp(hl_json_str(c, "status", ""), value) == 0)
            return c;
    }
    return NULL;
}

/* Whether the system removed the pod. */
static bool was_taken(const json_t *status, struct hl_volcano_pod *out)
{
    static const char *const reasons[] = {
        "Evicted",    "NodeLost",   "NodeShutdown", "Shutdown",
        "Terminated", "Preempting", "NodeAffinity", "UnexpectedAdmissionError"};
    const char *reason = hl_json_str(status, "reason", "");
    const json_t *target = find_condition(status, "DisruptionTarget", "True");
    bool found = target != NULL;
    for (size_t i = 0; i < HL_ARRAY_LEN(reasons); i++)
        found |= strcmp(reason, reasons[i]) == 0;
    if (found)
        set_message(out, "%.60s %.160s",
                    reason[0] != '\0' ? reason : hl_json_str(target, "reason", "DisruptionTarget"),
                    hl_json_str(status, "message", ""));
    return found;
}

static void read_failed(const json_t *status, const struct hl_volcano_ranks *ranks,
                        struct hl_volcano_pod *out)
{
    size_t begun = 0;
    if (!look_at_ranks(hl_json_list(status, "containerStatuses"), ranks, &begun, out)) {
        out->state = HL_API_CONTAINER_STATE_LOST;
        set_message(out, "the pod failed: %.60s %.140s", hl_json_str(status, "reason", ""),
                    hl_json_str(status, "message", ""));
    }
}

static void read_alive(const json_t *pod, const json_t *status,
                       const struct hl_volcano_ranks *ranks, struct hl_volcano_pod *out)
{
    const json_t *list = hl_json_list(status, "containerStatuses");
    const json_t *unplaced = find_condition(status, "PodScheduled", "False");
    size_t begun = 0,
           wanted = json_array_size(json_object_get(json_object_get(pod, "spec"), "containers"));
    if (unplaced != NULL)
        set_message(out, "%.60s: %.160s", hl_json_str(unplaced, "reason", ""),
                    hl_json_str(unplaced, "message", ""));
    if (look_at_ranks(list, ranks, &begun, out))
        return;
    if (strcmp(hl_json_str(status, "phase", ""), "Running") == 0 && begun >= wanted)
        out->state = HL_API_CONTAINER_STATE_RUNNING;
}

void hl_volcano_pod_read(const json_t *pod, const struct hl_volcano_ranks *ranks,
                         struct hl_volcano_pod *out)
{
    const json_t *status = json_object_get(pod, "status");
    const char *phase = hl_json_str(status, "phase", "Pending");
    *out = (struct hl_volcano_pod){.state = HL_API_CONTAINER_STATE_WANTED};
    if (strcmp(phase, "Succeeded") == 0) {
        out->state = HL_API_CONTAINER_STATE_SUCCEEDED;
    } else if (was_taken(status, out)) {
        out->state = HL_API_CONTAINER_STATE_LOST;
    } else if (json_object_get(json_object_get(pod, "metadata"), "deletionTimestamp") != NULL) {
        out->state = HL_API_CONTAINER_STATE_LOST;
        set_message(out, "the pod is being deleted");
    } else if (strcmp(phase, "Failed") == 0) {
        read_failed(status, ranks, out);
    } else {
        read_alive(pod, status, ranks, out);
    }
}

bool hl_volcano_pod_is_shared(const json_t *pod)
{
    size_t i;
    const json_t *c;
    json_array_foreach (hl_json_list(json_object_get(pod, "spec"), "containers"), i, c)
        if (strcmp(hl_json_str(c, "name", ""), HL_VOLCANO_SHARED) == 0)
            return true;
    return false;
}

bool hl_volcano_rank_ended(const json_t *pod, int local_rank)
{
    char name[HL_VOLCANO_NAME_MAX] = HL_VOLCANO_SHARED;
    const json_t *status = json_object_get(pod, "status"), *c;
    const char *phase = hl_json_str(status, "phase", "");
    size_t i;
    if (!hl_volcano_pod_is_shared(pod))
        hl_volcano_rank_name(local_rank, name);
    if (strcmp(phase, "Succeeded") == 0 || strcmp(phase, "Failed") == 0)
        return true;
    json_array_foreach (hl_json_list(status, "containerStatuses"), i, c) {
        if (strcmp(hl_json_str(c, "name", ""), name) == 0)
            return state_of(c, "terminated") != NULL;
    }
    return false;
}

void hl_volcano_group_waits(const json_t *group, char *out, size_t cap)
{
    const json_t *status = json_object_get(group, "status");
    const json_t *unplaced = find_condition(status, "Unschedulable", "True");
    const char *phase = hl_json_str(status, "phase", "");
    out[0] = '\0';
    if (group == NULL || strcmp(phase, "Running") == 0 || strcmp(phase, "Completed") == 0)
        return;
    if (unplaced != NULL)
        snprintf(out, cap, "%.60s: %.300s", hl_json_str(unplaced, "reason", ""),
                 hl_json_str(unplaced, "message", ""));
    else if (strcmp(phase, "Pending") == 0)
        snprintf(out, cap, "Volcano has not admitted it to queue %.60s yet",
                 hl_json_str(json_object_get(group, "spec"), "queue", "default"));
}

const char *hl_volcano_job_trouble(const json_t *job)
{
    static const char *const ends[] = {"Failed", "Aborting", "Aborted", "Terminating",
                                       "Terminated"};
    const json_t *state = json_object_get(json_object_get(job, "status"), "state");
    const char *phase = hl_json_str(state, "phase", "");
    if (json_object_get(json_object_get(job, "metadata"), "deletionTimestamp") != NULL)
        return "Deleted";
    for (size_t i = 0; i < HL_ARRAY_LEN(ends); i++)
        if (strcmp(phase, ends[i]) == 0)
            return ends[i];
    return NULL;
}
