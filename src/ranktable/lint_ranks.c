/* Checks format 2.0: ranks, and the addresses of each rank in every layer of the network. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/json.h"
#include "ranktable/lint_private.h"

#define RANKS_MAX     65536
#define ID_MAX        64 /* limit of device_id and local_id */
#define LAYERS_MAX    8
#define INSTANCE_MAX  1024
#define ADDRESSES_MAX 24
#define ADDRESS_MAX   256
#define PORTS_MAX     16
#define EID_DIGITS    32
#define DESCRIBED     "TOPO_FILE_DESC"

struct table {
    struct lint *l;
    size_t ranks;
    json_t *seen, *locals; /* rank_id; "ID in INSTANCE of layer 0" */
};

/* ---- addresses ------------------------------------------------------------------------------- */

static bool is_address_of(const char *type, const char *text)
{
    if (strcasecmp(type, "EID") == 0)
        return strlen(text) == EID_DIGITS && strspn(text, "0123456789abcdefABCDEF") == EID_DIGITS;
    return lint_is_address(text, strcasecmp(type, "IPV6") == 0) &&
           (strchr(text, ':') != NULL) == (strcasecmp(type, "IPV6") == 0);
}

/* "DIE/PORT", or "d2h" on the host's side. */
static bool is_port(const char *text)
{
    const char *slash = strchr(text, '/');
    const char *rest = slash != NULL ? slash + 1 : "";
    if (strcmp(text, "d2h") == 0)
        return true;
    return slash != NULL && slash != text && rest[0] != '\0' &&
           strspn(text, "0123456789") == (size_t)(slash - text) &&
           strspn(rest, "0123456789") == strlen(rest);
}

static void lint_address_ports(struct table *t, const char *place, const json_t *address,
                               json_t *taken)
{
    const json_t *list = lint_list(t->l, place, address, "ports"), *port;
    size_t i;
    if (json_array_size(list) > PORTS_MAX)
        lint_say(t->l, place, "ports has %zu, more than %d", json_array_size(list), PORTS_MAX);
    json_array_foreach (list, i, port) {
        const char *text = json_string_value(port);
        if (text == NULL || !is_port(text))
            lint_say(t->l, place, "port '%.32s' is not DIE/PORT, as 0/4", text != NULL ? text : "");
        else if (strcmp(text, "d2h") != 0)
            lint_once(t->l, taken, place, "port", text);
    }
}

static void lint_address(struct table *t, const char *layer, size_t index, const json_t *address,
                         json_t *taken)
{
    char place[LINT_PLACE_MAX];
    snprintf(place, sizeof(place), "%.90s.rank_addr_list[%zu]", layer, index);
    const char *type = lint_text(t->l, place, address, "addr_type", true, 16);
    const char *text = lint_text(t->l, place, address, "addr", true, ADDRESS_MAX);
    bool is_known =
        type != NULL && (strcasecmp(type, "EID") == 0 || strcasecmp(type, "IPV4") == 0 ||
                         strcasecmp(type, "IPV6") == 0);
    if (type != NULL && !is_known)
        lint_say(t->l, place, "addr_type is '%s', none of EID, IPV4, IPV6", type);
    if (is_known && text != NULL && !is_address_of(type, text))
        lint_say(t->l, place, "addr '%.64s' is not an address of type %s", text, type);
    lint_address_ports(t, place, address, taken);
}

/* ---- layers ---------------------------------------------------------------------------------- */

static void lint_net_type(struct table *t, const char *place, const json_t *layer, int64_t number)
{
    const char *type = lint_text(t->l, place, layer, "net_type", true, 32);
    if (type == NULL || strcmp(type, DESCRIBED) == 0)
        return;
    if (strcmp(type, "CLOS") != 0)
        lint_say(t->l, place, "net_type is '%s', neither CLOS nor " DESCRIBED, type);
    else if (number == 0)
        lint_say(t->l, place, "net_type of layer 0 is CLOS: only " DESCRIBED " is read there");
}

static void lint_layer(struct table *t, const char *place, const json_t *layer, int64_t *number)
{
    json_t *taken = json_object();
    const json_t *addresses, *address;
    int64_t before = *number, at = -1;
    size_t i;
    if (lint_integer(t->l, place, layer, "net_layer", true, 0, LAYERS_MAX - 1, &at)) {
        if (at <= before || (before < 0 && at > 0))
            lint_say(t->l, place, "net_layer is %lld: layers begin with 0 and rise", (long long)at);
        *number = at;
    }
    lint_text(t->l, place, layer, "net_instance_id", true, INSTANCE_MAX);
    lint_net_type(t, place, layer, at);
    addresses = lint_list(t->l, place, layer, "rank_addr_list");
    if (json_array_size(addresses) > ADDRESSES_MAX)
        lint_say(t->l, place, "rank_addr_list has %zu, more than %d", json_array_size(addresses),
                 ADDRESSES_MAX);
    json_array_foreach (addresses, i, address)
        lint_address(t, place, i, address, taken);
    json_decref(taken);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

/* Checks that local_id is unique on its server, which is the instance of the lowest layer. */
static void lint_local(struct table *t, const char *place, const json_t *rank)
{
    int64_t local;
    char value[160];
    const json_t *lowest = json_array_get(hl_json_list(rank, "level_list"), 0);
    if (!lint_integer(t->l, place, rank, "local_id", true, 0, ID_MAX, &local))
        return;
    snprintf(value, sizeof(value), "%lld in %.128s", (long long)local,
             hl_json_str(lowest, "net_instance_id", "?"));
    lint_once(t->l, t->locals, place, "local_id", value);
}

static void lint_rank(struct table *t, size_t index, const json_t *rank)
{
    char place[LINT_PLACE_MAX], inner[LINT_PLACE_MAX], text[24];
    int64_t id, before = -1, ignored;
    const json_t *layers, *layer;
    size_t i;
    snprintf(place, sizeof(place), "rank_list[%zu]", index);
    if (lint_integer(t->l, place, rank, "rank_id", true, 0, (int64_t)t->ranks - 1, &id)) {
        snprintf(text, sizeof(text), "%lld", (long long)id);
        lint_once(t->l, t->seen, place, "rank_id", text);
    }
    lint_local(t, place, rank);
    lint_integer(t->l, place, rank, "device_id", true, 0, ID_MAX, &ignored);
    lint_integer(t->l, place, rank, "device_port", false, 1, LINT_PORT_MAX, &ignored);
    lint_integer(t->l, place, rank, "host_port", false, 1, LINT_PORT_MAX, &ignored);
    layers = lint_list(t->l, place, rank, "level_list");
    if (json_array_size(layers) > LAYERS_MAX)
        lint_say(t->l, place, "level_list has %zu layers, more than %d", json_array_size(layers),
                 LAYERS_MAX);
    json_array_foreach (layers, i, layer) {
        snprintf(inner, sizeof(inner), "rank_list[%zu].level_list[%zu]", index, i);
        lint_layer(t, inner, layer, &before);
    }
}

void lint_ranks(struct lint *l, const json_t *doc)
{
    struct table t = {.l = l, .seen = json_object(), .locals = json_object()};
    const json_t *list = lint_list(l, "", doc, "rank_list"), *rank;
    int64_t count;
    size_t i;
    t.ranks = json_array_size(list);
    if (lint_integer(l, "", doc, "rank_count", true, 1, RANKS_MAX, &count) && list != NULL &&
        (size_t)count != t.ranks)
        lint_say(l, "", "rank_count is %lld, and rank_list has %zu", (long long)count, t.ranks);
    json_array_foreach (list, i, rank)
        lint_rank(&t, i, rank);
    l->devices = t.ranks;
    json_decref(t.seen);
    json_decref(t.locals);
}
