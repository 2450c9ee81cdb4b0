/* Writes the table in each format, as compact JSON. All numbers are strings, except in 2.0. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ranktable/table.h"

/* ---- writing JSON: by hand, as a table may have ten thousand devices and change every second ---
 */

static void put_comma(struct hl_buf *b)
{
    char last = b->len > 0 ? b->data[b->len - 1] : '{';
    if (last != '{' && last != '[' && last != ':')
        hl_buf_append(b, ",", 1);
}

static void open_list(struct hl_buf *b, char bracket)
{
    put_comma(b);
    hl_buf_append(b, &bracket, 1);
}

static void close_list(struct hl_buf *b, char bracket)
{
    hl_buf_append(b, &bracket, 1);
}

static void put_key(struct hl_buf *b, const char *key)
{
    put_comma(b);
    hl_buf_append(b, "\"", 1);
    hl_buf_append(b, key, strlen(key));
    hl_buf_append(b, "\":", 2);
}

static void put_text(struct hl_buf *b, const char *key, const char *value)
{
    put_key(b, key);
    hl_buf_quote(b, value);
}

static void put_known(struct hl_buf *b, const char *key, const char *value)
{
    if (value[0] != '\0')
        put_text(b, key, value);
}

static void put_number(struct hl_buf *b, const char *key, uint64_t n)
{
    char text[24], *at = text + sizeof(text) - 1;
    *at = '\0';
    do
        *--at = (char)('0' + n % 10);
    while ((n /= 10) > 0);
    put_text(b, key, at);
}

static void put_integer(struct hl_buf *b, const char *key, long long n)
{
    put_key(b, key);
    hl_buf_printf(b, "%lld", n);
}

static void put_json(struct hl_buf *b, const char *key, const json_t *value)
{
    char *text = json_dumps(value, JSON_COMPACT);
    put_key(b, key);
    if (text == NULL)
        b->failed = true;
    else
        hl_buf_append(b, text, strlen(text));
    free(text);
}

static void put_status(struct hl_buf *b, const struct hl_ranktable *t)
{
    put_text(b, "status", hl_ranktable_is_complete(t) ? "completed" : "initializing");
}

/* ---- v1 ---- */

static void instance_v1(struct hl_buf *b, const struct hl_ranktable_instance *x)
{
    open_list(b, '{');
    put_text(b, "pod_name", x->name);
    put_text(b, "server_id", x->server_id);
    put_key(b, "devices");
    open_list(b, '[');
    for (size_t d = 0; d < x->device_count; d++) {
        open_list(b, '{');
        put_text(b, "device_id", x->devices[d].id);
        put_known(b, "device_ip", x->devices[d].ip);
        close_list(b, '}');
    }
    close_list(b, ']');
    close_list(b, '}');
}

static void groups_v1(struct hl_buf *b, const struct hl_ranktable *t)
{
    put_number(b, "group_count", t->group_count);
    put_key(b, "group_list");
    open_list(b, '[');
    for (size_t g = 0; g < t->group_count; g++) {
        open_list(b, '{');
        put_text(b, "group_name", t->groups[g].name);
        put_number(b, "instance_count", t->groups[g].instances);
        put_key(b, "instance_list");
        open_list(b, '[');
        for (size_t i = 0; i < t->count; i++)
            if (t->instances[i].group == g)
                instance_v1(b, &t->instances[i]);
        close_list(b, ']');
        close_list(b, '}');
    }
    close_list(b, ']');
}

/* ---- servers ---- */

/* Links the instances on one server, because HCCL refuses a server_id that occurs twice. */
struct on_server {
    const struct hl_ranktable_instance *x;
    size_t order;           /* position in the order of ranks */
    struct on_server *next; /* next instance on the same server; NULL = none */
    bool is_first;
    size_t before; /* number of the server's devices that are listed before this instance's */
};

static int by_server(const void *a, const void *b)
{
    const struct on_server *const *x = a, *const *y = b;
    int c = strcmp((*x)->x->server_id, (*y)->x->server_id);
    return c != 0 ? c : (*x)->order < (*y)->order ? -1 : (*x)->order > (*y)->order;
}

static void link_servers(struct on_server **sorted, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        struct on_server *at = sorted[i], *last = i > 0 ? sorted[i - 1] : NULL;
        at->is_first = last == NULL || strcmp(last->x->server_id, at->x->server_id) != 0;
        if (at->is_first)
            continue;
        last->next = at;
        at->before = last->before + last->x->device_count;
    }
}

/* The instances that have devices, in the order of ranks; *count is their number. The caller frees
 * the list. NULL: out of memory. */
static struct on_server *find_servers(const struct hl_ranktable *t, size_t *count)
{
    size_t n = 0;
    struct on_server *all = calloc(t->count + 1, sizeof(*all));
    struct on_server **sorted = calloc(t->count + 1, sizeof(struct on_server *));
    for (size_t i = 0; all != NULL && sorted != NULL && i < t->count; i++) {
        if (t->instances[i].device_count == 0)
            continue;
        all[n] = (struct on_server){.x = &t->instances[i], .order = n};
        sorted[n] = &all[n];
        n++;
    }
    if (sorted == NULL) {
        free(all);
        all = NULL;
    }
    if (all != NULL && n > 0) {
        qsort(sorted, n, sizeof(struct on_server *), by_server);
        link_servers(sorted, n);
    }
    free(sorted);
    *count = n;
    return all;
}

/* ---- v2 and 1.2: one entry per server, in the order of ranks ---- */

static void device_v2(struct hl_buf *b, const struct hl_ranktable_instance *x, size_t d, bool super)
{
    const struct hl_ranktable_device *from = &x->devices[d];
    open_list(b, '{');
    put_text(b, "device_id", from->id);
    put_known(b, "device_ip", from->ip);
    if (super)
        put_known(b, "super_device_id", from->super_id);
    put_number(b, "rank_id", (uint64_t)x->first_rank + d);
    close_list(b, '}');
}

static void server_v2(struct hl_buf *b, const struct on_server *first, bool super)
{
    const struct hl_ranktable_instance *x = first->x;
    open_list(b, '{');
    put_key(b, "device");
    open_list(b, '[');
    for (const struct on_server *at = first; at != NULL; at = at->next)
        for (size_t d = 0; d < at->x->device_count; d++)
            device_v2(b, at->x, d, super);
    close_list(b, ']');
    put_text(b, "server_id", x->server_id);
    if (super) {
        put_known(b, "host_ip", x->host_ip);
        put_known(b, "container_ip", x->container_ip);
        put_known(b, "hardware_type", x->hardware_type);
    }
    close_list(b, '}');
}

static void servers_v2(struct hl_buf *b, const struct on_server *all, size_t count, bool super)
{
    size_t n = 0;
    put_key(b, "server_list");
    open_list(b, '[');
    for (size_t i = 0; i < count; i++)
        if (all[i].is_first) {
            server_v2(b, &all[i], super);
            n++;
        }
    close_list(b, ']');
    put_number(b, "server_count", n);
    put_text(b, "version", super ? "1.2" : "1.0");
}

/* Finds the entry of `id`, or adds it. Borrowed. */
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

/* Groups servers by the super pod that their instance names. Without one, every `size` servers in
 * the order of ranks form a super pod. */
static json_t *super_pods(const struct on_server *all, size_t count, uint32_t size)
{
    json_t *pods = json_array();
    size_t server = 0;
    for (size_t i = 0; i < count; i++) {
        const struct hl_ranktable_instance *x = all[i].x;
        char block[24];
        if (!all[i].is_first)
            continue;
        snprintf(block, sizeof(block), "%zu", size > 0 ? server / size : 0);
        server++;
        json_t *pod = super_pod(pods, x->super_pod_id[0] != '\0' ? x->super_pod_id : block);
        json_array_append_new(json_object_get(pod, "server_list"),
                              json_pack("{s:s}", "server_id", x->server_id));
    }
    return pods;
}

static void super_pod_list(struct hl_buf *b, const struct on_server *all, size_t count,
                           uint32_t size)
{
    json_t *pods = super_pods(all, count, size);
    put_json(b, "super_pod_list", pods);
    json_decref(pods);
}

/* ---- 2.0 ---- */

static void ranks_2_0(struct hl_buf *b, const struct on_server *all, size_t count)
{
    long long n = 0;
    put_text(b, "version", "2.0");
    put_key(b, "rank_list");
    open_list(b, '[');
    for (size_t i = 0; i < count; i++)
        for (size_t d = 0; d < all[i].x->device_count; d++) {
            const struct hl_ranktable_device *v = &all[i].x->devices[d];
            open_list(b, '{');
            put_integer(b, "rank_id", all[i].x->first_rank + (int)d);
            put_integer(b, "local_id", (long long)(all[i].before + d));
            put_integer(b, "device_id", strtoll(v->id, NULL, 10));
            put_json(b, "level_list", v->levels);
            close_list(b, '}');
            n++;
        }
    close_list(b, ']');
    put_integer(b, "rank_count", n);
}

/* ---- all ---- */

static hl_status check_device(const struct hl_ranktable_instance *x,
                              const struct hl_ranktable_device *d, enum hl_ranktable_format format)
{
    if (format == HL_RANKTABLE_1_2 && d->super_id[0] == '\0')
        return hl_fail(HL_EUNSUPPORTED,
                       "%s: device %s has no super_device_id, which format 1.2 needs", x->name,
                       d->id);
    if (format == HL_RANKTABLE_2_0 && d->levels == NULL)
        return hl_fail(HL_EUNSUPPORTED, "%s: device %s has no levelList, which format 2.0 needs",
                       x->name, d->id);
    return HL_OK;
}

hl_status hl_ranktable_document(const struct hl_ranktable *t, enum hl_ranktable_format format,
                                struct hl_buf *out)
{
    for (size_t i = 0; i < t->count; i++)
        for (size_t d = 0; d < t->instances[i].device_count; d++)
            HL_TRY(check_device(&t->instances[i], &t->instances[i].devices[d], format));
    size_t count;
    struct on_server *all = find_servers(t, &count);
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a rank table");
    open_list(out, '{');
    put_status(out, t);
    if (format == HL_RANKTABLE_V1)
        groups_v1(out, t);
    else if (format == HL_RANKTABLE_2_0)
        ranks_2_0(out, all, count);
    else
        servers_v2(out, all, count, format == HL_RANKTABLE_1_2);
    if (format == HL_RANKTABLE_1_2)
        super_pod_list(out, all, count, t->super_pod_servers);
    close_list(out, '}');
    free(all);
    return out->failed ? hl_fail(HL_ENOMEM, "out of memory allocating a rank table") : HL_OK;
}
