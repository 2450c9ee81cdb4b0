/* Merges as core/job/podspec.h describes: fields that Helios sets were refused there, so only
 * defaults are replaced here. */
#include "volcano/template.h"

#include <string.h>

#include "core/json.h"

/* If two sources have the same variable, the later one wins, so the gang's source stays last. */
static bool put_sources_first(json_t *container, const json_t *sources)
{
    json_t *all = json_deep_copy(sources);
    bool done = all != NULL && json_array_extend(all, json_object_get(container, "envFrom")) == 0 &&
                json_object_set(container, "envFrom", all) == 0;
    json_decref(all);
    return done;
}

bool hl_volcano_extend_rank(json_t *container, const struct hl_job *job)
{
    const json_t *rank = hl_podspec_rank(job->kubernetes);
    const json_t *sources = json_object_get(rank, "envFrom");
    if (rank == NULL)
        return true;
    json_t *rest = json_deep_copy(rank);
    if (rest == NULL)
        return false;
    json_object_del(rest, "name");
    json_object_del(rest, "envFrom");
    bool done = hl_podspec_merge(container, rest);
    json_decref(rest);
    return done && (sources == NULL || put_sources_first(container, sources));
}

/* A pod on the node's network would use the node's name server, which does not know services. */
static bool put_dns(json_t *spec)
{
    if (!json_is_true(json_object_get(spec, "hostNetwork")) ||
        json_object_get(spec, "dnsPolicy") != NULL)
        return true;
    return json_object_set_new(spec, "dnsPolicy", json_string("ClusterFirstWithHostNet")) == 0;
}

bool hl_volcano_extend_pod(json_t *template, const struct hl_job *job)
{
    const json_t *metadata = hl_podspec_metadata(job->kubernetes);
    const json_t *spec = hl_podspec_spec(job->kubernetes);
    json_t *own = json_object_get(template, "spec");
    if (metadata != NULL && !hl_podspec_merge(json_object_get(template, "metadata"), metadata))
        return false;
    if (spec == NULL)
        return true;
    json_t *rest = json_deep_copy(spec);
    if (rest == NULL)
        return false;
    json_object_del(rest, "containers");
    bool done = hl_podspec_merge(own, rest) && put_dns(own);
    json_decref(rest);
    return done;
}

/* The pods' priority class also applies to their PodGroup: Volcano orders gangs by it. */
bool hl_volcano_extend_job(json_t *spec, const struct hl_job *job)
{
    static const char *const same[] = {"queue", "networkTopology"};
    json_t *class = json_object_get(hl_podspec_spec(job->kubernetes), "priorityClassName");
    for (size_t i = 0; i < HL_ARRAY_LEN(same); i++) {
        json_t *v = json_object_get(job->kubernetes, same[i]);
        if (v != NULL && json_object_set(spec, same[i], v) != 0)
            return false;
    }
    return class == NULL || json_object_set(spec, "priorityClassName", class) == 0;
}
