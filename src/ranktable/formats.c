/* The documents. All numbers are strings, but in 2.0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranktable/table.h"

static json_t *number(uint64_t n)
{
    char text[24];
    snprintf(text, sizeof(text), "%llu", (unsigned long long)n);
    return json_string(text);
}

static const char *status_of(const struct hl_ranktable *t)
{
    return hl_ranktable_is_complete(t) ? "completed" : "initializing";
}

static void put_known(json_t *obj, const char *key, const char *value)
{
    if (value[0] != '\0')
        json_object_set_new(obj, key, json_string(value));
}

/* ---- v1 ---- */

static json_t *instance_v1(const struct hl_ranktable_instance *x)
{
    json_t *devices = json_array();
    for (size_t d = 0; d < x->device_count; d++) {
        json_t *device = json_pack("{s:s}", "device_id", x->devices[d].id);
        put_known(device, "device_ip", x->devices[d].ip);
        json_array_append_new(devices, device);
    }
    return json_pack("{s:s s:s s:o}", "pod_name", x->name, "server_id", x->server_id, "devices",
                     devices);
}

static json_t *document_v1(const struct hl_ranktable *t)
{
    json_t *groups = json_array();
    for (size_t g = 0; g < t->group_count; g++) {
        json_t *list = json_array();
        for (size_t i = 0; i < t->count; i++)
            if (t->instances[i].group == g)
                json_array_append_new(list, instance_v1(&t->instances[i]));
        json_array_append_new(groups, json_pack("{s:s s:o s:o}", "group_name", t->groups[g].name,
                                                "instance_count", number(t->groups[g].instances),
                                                "instance_list", list));
    }
    return json_pack("{s:s s:o s:o}", "status", status_of(t), "group_count", number(t->group_count),
                     "group_list", groups);
}

/* ---- v2 and 1.2: one entry per instance that has devices, in the order of ranks ---- */

static json_t *server_v2(const struct hl_ranktable_instance *x, int super)
{
    json_t *devices = json_array(), *server = json_object();
    for (size_t d = 0; d < x->device_count; d++) {
        const struct hl_ranktable_device *from = &x->devices[d];
        json_t *device = json_pack("{s:s}", "device_id", from->id);
        put_known(device, "device_ip", from->ip);
        if (super)
            put_known(device, "super_device_id", from->super_id);
        json_object_set_new(device, "rank_id", number((uint64_t)from->rank));
        json_array_append_new(devices, device);
    }
    json_object_set_new(server, "device", devices);
    json_object_set_new(server, "server_id", json_string(x->server_id));
    if (super) {
        put_known(server, "host_ip", x->host_ip);
        put_known(server, "container_ip", x->container_ip);
        put_known(server, "hardware_type", x->hardware_type);
    }
    return server;
}

static json_t *document_servers(const struct hl_ranktable *t, int super)
{
    json_t *servers = json_array();
    for (size_t i = 0; i < t->count; i++)
        if (t->instances[i].device_count > 0)
            json_array_append_new(servers, server_v2(&t->instances[i], super));
    size_t n = json_array_size(servers);
    return json_pack("{s:s s:o s:o s:s}", "status", status_of(t), "server_list", servers,
                     "server_count", number(n), "version", super ? "1.2" : "1.0");
}

/* The entry of `id`, made when it is not there. Borrowed. */
static json_t *super_pod(json_t *pods, const char *id)
{
    size_t i;
    json_t *pod;
    json_array_foreach (pods, i, pod)
        if (strcmp(json_string_value(json_object_get(pod, "super_pod_id")), id) == 0)
            return pod;
    json_array_append_new(pods, json_pack("{s:s s:[]}", "super_pod_id", id, "server_list"));
    return json_array_get(pods, json_array_size(pods) - 1);
}

/* What an instance says, else so many servers each in the order of ranks. */
static json_t *super_pods(const struct hl_ranktable *t)
{
    json_t *pods = json_array(), *seen = json_object();
    for (size_t i = 0; i < t->count; i++) {
        const struct hl_ranktable_instance *x = &t->instances[i];
        char block[24];
        if (x->device_count == 0)
            continue;
        size_t server = json_object_size(seen);
        if (json_object_get(seen, x->server_id) != NULL)
            continue;
        json_object_set_new(seen, x->server_id, json_true());
        snprintf(block, sizeof(block), "%zu",
                 t->super_pod_servers > 0 ? server / t->super_pod_servers : 0);
        json_t *pod = super_pod(pods, x->super_pod_id[0] != '\0' ? x->super_pod_id : block);
        json_array_append_new(json_object_get(pod, "server_list"),
                              json_pack("{s:s}", "server_id", x->server_id));
    }
    json_decref(seen);
    return pods;
}

static hl_status document_1_2(const struct hl_ranktable *t, json_t **out)
{
    for (size_t i = 0; i < t->count; i++)
        for (size_t d = 0; d < t->instances[i].device_count; d++)
            if (t->instances[i].devices[d].super_id[0] == '\0')
                return hl_fail(HL_EUNSUPPORTED,
                               "%s: device %s has no super_device_id, which format 1.2 needs",
                               t->instances[i].name, t->instances[i].devices[d].id);
    *out = document_servers(t, 1);
    json_object_set_new(*out, "super_pod_list", super_pods(t));
    return HL_OK;
}

/* ---- 2.0 ---- */

static hl_status document_2_0(const struct hl_ranktable *t, json_t **out)
{
    json_t *ranks = json_array();
    for (size_t i = 0; i < t->count; i++) {
        const struct hl_ranktable_instance *x = &t->instances[i];
        for (size_t d = 0; d < x->device_count; d++) {
            const struct hl_ranktable_device *v = &x->devices[d];
            if (v->levels == NULL) {
                json_decref(ranks);
                return hl_fail(HL_EUNSUPPORTED,
                               "%s: device %s has no levelList, which format 2.0 needs", x->name,
                               v->id);
            }
            json_array_append_new(ranks, json_pack("{s:i s:i s:I s:O}", "rank_id", v->rank,
                                                   "local_id", (int)d, "device_id",
                                                   (json_int_t)strtoll(v->id, NULL, 10),
                                                   "level_list", v->levels));
        }
    }
    *out = json_pack("{s:s s:s s:I s:o}", "status", status_of(t), "version", "2.0", "rank_count",
                     (json_int_t)json_array_size(ranks), "rank_list", ranks);
    return HL_OK;
}

hl_status hl_ranktable_document(const struct hl_ranktable *t, enum hl_ranktable_format format,
                                json_t **out)
{
    *out = NULL;
    if (format == HL_RANKTABLE_1_2)
        HL_TRY(document_1_2(t, out));
    else if (format == HL_RANKTABLE_2_0)
        HL_TRY(document_2_0(t, out));
    else
        *out = format == HL_RANKTABLE_V1 ? document_v1(t) : document_servers(t, 0);
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "memory is short for a rank table");
}
