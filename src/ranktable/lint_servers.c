/* Checks formats 1.0 and 1.2: servers and their devices, and super pods of servers. */
#include <stdio.h>
#include <string.h>

#include "core/json.h"
#include "ranktable/lint_private.h"

#define SERVER_ID_MAX 64
#define DEVICES_MAX   16 /* per server: 8 or 16 on A2, 16 on A3 */
#define POD_ID_MAX    128

struct table {
    struct lint *l;
    bool in_super_pods;   /* format 1.2 */
    bool wants_addresses; /* ranks communicate over the devices' network cards */
    const json_t *servers;
    size_t devices;
    /* Values that were seen, and where. */
    json_t *ids, *ranks, *addresses, *backups;
    json_t *pod_of, *super_devices; /* server to super pod; "POD ID" of devices */
};

static void server_place(size_t server, char out[LINT_PLACE_MAX])
{
    snprintf(out, LINT_PLACE_MAX, "server_list[%zu]", server);
}

static void device_place(size_t server, size_t device, char out[LINT_PLACE_MAX])
{
    snprintf(out, LINT_PLACE_MAX, "server_list[%zu].device[%zu]", server, device);
}

static const char *id_of(const json_t *server)
{
    return hl_json_str(server, "server_id", "");
}

/* ---- super pods ------------------------------------------------------------------------------ */

static void lint_pod_server(struct table *t, const char *place, const json_t *server,
                            const char *pod)
{
    const char *id = lint_text(t->l, place, server, "server_id", true, SERVER_ID_MAX);
    if (id == NULL)
        return;
    if (json_object_get(t->ids, id) == NULL)
        lint_say(t->l, place, "server %s is not in server_list", id);
    else if (json_object_get(t->pod_of, id) != NULL)
        lint_say(t->l, place, "server %s is in super pod %.64s, too", id,
                 hl_json_str(t->pod_of, id, ""));
    else if (json_object_set_new(t->pod_of, id, json_string(pod)) != 0)
        t->l->text.failed = true;
}

static void lint_pod(struct table *t, size_t index, const json_t *pod, json_t *seen)
{
    char place[LINT_PLACE_MAX], inner[LINT_PLACE_MAX];
    const json_t *server;
    size_t i;
    snprintf(place, sizeof(place), "super_pod_list[%zu]", index);
    const char *id = lint_text(t->l, place, pod, "super_pod_id", true, POD_ID_MAX);
    const json_t *servers = lint_list(t->l, place, pod, "server_list");
    if (id != NULL)
        lint_once(t->l, seen, place, "super_pod_id", id);
    json_array_foreach (servers, i, server) {
        snprintf(inner, sizeof(inner), "super_pod_list[%zu].server_list[%zu]", index, i);
        lint_pod_server(t, inner, server, id != NULL ? id : "");
    }
}

/* Checks that every server is in a super pod, and that servers of one super pod are adjacent. */
static void lint_pod_order(struct table *t)
{
    json_t *left = json_object();
    const char *before = "";
    const json_t *server;
    size_t i;
    json_array_foreach (t->servers, i, server) {
        char place[LINT_PLACE_MAX];
        const char *pod = hl_json_str(t->pod_of, id_of(server), NULL);
        server_place(i, place);
        if (pod == NULL && id_of(server)[0] != '\0')
            lint_say(t->l, place, "server %.64s is in no super pod", id_of(server));
        if (pod == NULL || strcmp(pod, before) == 0)
            continue;
        if (json_object_get(left, pod) != NULL)
            lint_say(t->l, place,
                     "servers of super pod %.64s stand apart: list those of one super pod together",
                     pod);
        json_object_set_new(left, before, json_true());
        before = pod;
    }
    json_decref(left);
}

static void lint_pods(struct table *t, const json_t *doc)
{
    const json_t *list, *pod;
    json_t *seen = json_object();
    size_t i;
    if (json_object_get(doc, "super_pod_list") == NULL)
        lint_say(t->l, "",
                 "super_pod_list is missing: HCCL then treats each server separately, which is "
                 "version 1.0");
    else if ((list = lint_list(t->l, "", doc, "super_pod_list")) != NULL) {
        json_array_foreach (list, i, pod)
            lint_pod(t, i, pod, seen);
        lint_pod_order(t);
        t->wants_addresses = json_array_size(list) > 1;
    }
    json_decref(seen);
}

/* ---- a device -------------------------------------------------------------------------------- */

static const char *address_of(struct table *t, const char *place, const json_t *device,
                              const char *key)
{
    const char *text = lint_text(t->l, place, device, key, false, 64);
    if (text == NULL || lint_is_address(text, true))
        return text;
    lint_say(t->l, place, "%s '%s' is not an IP address%s", key, text,
             strcmp(text, "-1") == 0 ? ": -1 is what a device plugin writes that found none" : "");
    return NULL;
}

static void lint_addresses(struct table *t, const char *place, const json_t *device)
{
    const char *own = address_of(t, place, device, "device_ip");
    const char *backup = address_of(t, place, device, "backup_device_ip");
    if (own != NULL)
        lint_once(t->l, t->addresses, place, "device_ip", own);
    else if (t->wants_addresses && json_object_get(device, "device_ip") == NULL)
        lint_say(t->l, place, "device_ip is missing, and there is more than one %s",
                 t->in_super_pods ? "super pod" : "server");
    if (backup != NULL && own != NULL && strcmp(backup, own) == 0)
        lint_say(t->l, place, "backup_device_ip is the device's own address");
    else if (backup != NULL)
        lint_once(t->l, t->backups, place, "backup_device_ip", backup);
}

static void lint_super_device(struct table *t, const char *place, const json_t *device,
                              const char *server)
{
    uint64_t id;
    char value[POD_ID_MAX + 32];
    const char *pod = hl_json_str(t->pod_of, server, NULL);
    if (!lint_digits(t->l, place, device, "super_device_id", true, 0, UINT32_MAX - 1, &id) ||
        pod == NULL)
        return;
    snprintf(value, sizeof(value), "%llu in super pod %.128s", (unsigned long long)id, pod);
    lint_once(t->l, t->super_devices, place, "super_device_id", value);
}

static void lint_ports(struct table *t, const char *place, const json_t *device, json_t *host_ports)
{
    uint64_t port;
    char text[24];
    lint_digits(t->l, place, device, "device_port", false, 1, LINT_PORT_MAX, &port);
    lint_digits(t->l, place, device, "backup_device_port", false, 1, LINT_PORT_MAX, &port);
    if (!lint_digits(t->l, place, device, "host_port", false, 1, LINT_PORT_MAX, &port))
        return;
    snprintf(text, sizeof(text), "%llu", (unsigned long long)port);
    lint_once(t->l, host_ports, place, "host_port", text);
}

/* Reads the device's rank. False: it is not a rank of this table, or another device has it. */
static bool lint_rank(struct table *t, const char *place, const json_t *device, uint64_t *out)
{
    char text[24];
    if (!lint_digits(t->l, place, device, "rank_id", true, 0, t->devices - 1, out))
        return false;
    snprintf(text, sizeof(text), "%llu", (unsigned long long)*out);
    return lint_once(t->l, t->ranks, place, "rank_id", text);
}

/* ---- a server -------------------------------------------------------------------------------- */

/* What must be unique among a server's devices, and the range of their ranks. */
struct devices {
    json_t *ids, *host_ports;
    uint64_t first, last; /* ranks */
    size_t ranks;
};

static void lint_device(struct table *t, size_t server, size_t index, const json_t *device,
                        struct devices *of)
{
    char place[LINT_PLACE_MAX], text[24];
    uint64_t id, rank;
    device_place(server, index, place);
    if (!json_is_object(device)) {
        lint_say(t->l, place, "it is not a JSON object");
        return;
    }
    if (lint_digits(t->l, place, device, "device_id", true, 0, DEVICES_MAX - 1, &id)) {
        snprintf(text, sizeof(text), "%llu", (unsigned long long)id);
        lint_once(t->l, of->ids, place, "device_id", text);
    }
    lint_addresses(t, place, device);
    lint_ports(t, place, device, of->host_ports);
    if (t->in_super_pods)
        lint_super_device(t, place, device, id_of(json_array_get(t->servers, server)));
    if (!lint_rank(t, place, device, &rank))
        return;
    of->first = of->ranks == 0 || rank < of->first ? rank : of->first;
    of->last = of->ranks == 0 || rank > of->last ? rank : of->last;
    of->ranks++;
}

static void lint_server(struct table *t, size_t index, const json_t *server)
{
    char place[LINT_PLACE_MAX];
    struct devices of = {.ids = json_object(), .host_ports = json_object()};
    const json_t *device;
    size_t i;
    server_place(index, place);
    const char *ip = lint_text(t->l, place, server, "host_ip", false, 64);
    if (ip != NULL && !lint_is_address(ip, false))
        lint_say(t->l, place, "host_ip '%s' is not an IPv4 address", ip);
    json_array_foreach (lint_list(t->l, place, server, "device"), i, device)
        lint_device(t, index, i, device, &of);
    if (of.ranks > 0 && of.last - of.first + 1 != of.ranks)
        lint_say(t->l, place,
                 "its %zu ranks lie between %llu and %llu: those of a server must follow each "
                 "other",
                 of.ranks, (unsigned long long)of.first, (unsigned long long)of.last);
    json_decref(of.ids);
    json_decref(of.host_ports);
}

/* ---- all ------------------------------------------------------------------------------------- */

static void lint_count(struct table *t, const json_t *doc)
{
    uint64_t count;
    size_t servers = json_array_size(t->servers);
    bool wanted = !t->in_super_pods;
    if (lint_digits(t->l, "", doc, "server_count", wanted, 0, UINT32_MAX, &count) &&
        count != servers)
        lint_say(t->l, "", "server_count is %llu, and server_list has %zu",
                 (unsigned long long)count, servers);
}

/* Checks the servers' ids first, because super pods and ranks refer to them. */
static void lint_ids(struct table *t)
{
    const json_t *server;
    size_t i;
    json_array_foreach (t->servers, i, server) {
        char place[LINT_PLACE_MAX];
        server_place(i, place);
        const char *id = lint_text(t->l, place, server, "server_id", true, SERVER_ID_MAX);
        if (id != NULL)
            lint_once(t->l, t->ids, place, "server_id", id);
        t->devices += json_array_size(hl_json_list(server, "device"));
    }
}

void lint_servers(struct lint *l, const json_t *doc, bool in_super_pods)
{
    struct table t = {.l = l, .in_super_pods = in_super_pods, .ids = json_object()};
    json_t **const sets[] = {&t.ranks, &t.addresses, &t.backups, &t.pod_of, &t.super_devices};
    const json_t *server;
    size_t i;
    for (i = 0; i < HL_ARRAY_LEN(sets); i++)
        *sets[i] = json_object();
    t.servers = lint_list(l, "", doc, "server_list");
    if (t.servers != NULL) {
        t.wants_addresses = json_array_size(t.servers) > 1;
        lint_count(&t, doc);
        lint_ids(&t);
        if (in_super_pods)
            lint_pods(&t, doc);
        json_array_foreach (t.servers, i, server)
            lint_server(&t, i, server);
        l->servers = json_array_size(t.servers);
        l->devices = t.devices;
    }
    for (i = 0; i < HL_ARRAY_LEN(sets); i++)
        json_decref(*sets[i]);
    json_decref(t.ids);
}
