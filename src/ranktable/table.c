/* Adds instances to a table, checks them and numbers their ranks. */
#include "ranktable/table.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAP_MIN 16
#define CAP_MAX 1024 /* at first, because a job can request more pods than will ever exist */

static bool is_number(const char *s)
{
    return s[0] != '\0' && strspn(s, "0123456789") == strlen(s);
}

static bool is_address(const char *s)
{
    unsigned char raw[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, s, raw) == 1 || inet_pton(AF_INET6, s, raw) == 1;
}

void hl_ranktable_instance_fini(struct hl_ranktable_instance *i)
{
    for (size_t d = 0; d < i->device_count; d++)
        json_decref(i->devices[d].levels);
    free(i->devices);
    *i = (struct hl_ranktable_instance){.rank_index = -1};
}

void hl_ranktable_fini(struct hl_ranktable *t)
{
    for (size_t i = 0; i < t->count; i++)
        if (!t->instances[i].is_borrowed)
            hl_ranktable_instance_fini(&t->instances[i]);
    free(t->instances);
    free(t->groups);
    *t = (struct hl_ranktable){0};
}

hl_status hl_ranktable_format_parse(const char *name, enum hl_ranktable_format *out)
{
    static const char *const names[] = {"v1", "v2", "1.2", "2.0"};
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum hl_ranktable_format)i;
            return HL_OK;
        }
    return hl_fail(HL_EINVAL, "rank table format '%.32s' is not one of v1, v2, 1.2, 2.0", name);
}

hl_status hl_ranktable_add_group(struct hl_ranktable *t, const char *name, uint32_t instances)
{
    struct hl_ranktable_group *groups =
        realloc(t->groups, (t->group_count + 1) * sizeof(*t->groups));
    if (groups == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a rank table");
    t->groups = groups;
    struct hl_ranktable_group *g = &groups[t->group_count++];
    *g = (struct hl_ranktable_group){.instances = instances};
    if (strlen(name) >= sizeof(g->name)) {
        t->group_count--;
        return hl_fail(HL_EINVAL, "the name of task '%.64s...' is longer than 63 bytes", name);
    }
    snprintf(g->name, sizeof(g->name), "%s", name);
    return HL_OK;
}

static hl_status check_device(const struct hl_ranktable_instance *i,
                              const struct hl_ranktable_device *d)
{
    if (!is_number(d->id))
        return hl_fail(HL_EINVAL, "%s: device id '%s' is not a decimal number", i->name, d->id);
    if (d->ip[0] != '\0' && !is_address(d->ip))
        return hl_fail(HL_EINVAL, "%s: device %s has the address '%s', which is not an IP address",
                       i->name, d->id, d->ip);
    return HL_OK;
}

hl_status hl_ranktable_check_devices(struct hl_ranktable_instance *i)
{
    i->without_address = 0;
    for (size_t d = 0; d < i->device_count; d++) {
        const struct hl_ranktable_device *x = &i->devices[d];
        HL_TRY(check_device(i, x));
        for (size_t e = 0; e < d; e++)
            if (strcmp(i->devices[e].id, x->id) == 0)
                return hl_fail(HL_EINVAL, "%s: device %s is named twice", i->name, x->id);
        if (i->without_address == 0 && x->ip[0] == '\0' && x->levels == NULL)
            i->without_address = d + 1;
    }
    return HL_OK;
}

static hl_status check_instance(const struct hl_ranktable *t, struct hl_ranktable_instance *i)
{
    if (i->group >= t->group_count)
        return hl_fail(HL_EINVAL, "%s: the job has no task number %u", i->name, i->group);
    if (i->server_id[0] == '\0' && i->device_count > 0)
        return hl_fail(HL_EINVAL, "%s: it has devices but no server_id", i->name);
    if (i->rank_index < -1 || i->rank_index > HL_RANKTABLE_INDEX_MAX)
        return hl_fail(HL_EINVAL, "%s: rank index %d is not between 0 and %d", i->name,
                       i->rank_index, HL_RANKTABLE_INDEX_MAX);
    if (i->device_count > HL_RANKTABLE_DEVICES_MAX)
        return hl_fail(HL_EINVAL, "%s: %zu devices, at most %d", i->name, i->device_count,
                       HL_RANKTABLE_DEVICES_MAX);
    return i->is_borrowed ? HL_OK : hl_ranktable_check_devices(i);
}

static hl_status grow_table(struct hl_ranktable *t)
{
    size_t cap = t->cap > 0 ? t->cap * 2 : CAP_MIN;
    for (size_t g = 0; t->cap == 0 && g < t->group_count; g++)
        cap += t->groups[g].instances;
    if (t->cap == 0 && cap > CAP_MAX)
        cap = CAP_MAX;
    struct hl_ranktable_instance *all = realloc(t->instances, cap * sizeof(*all));
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a rank table");
    t->instances = all;
    t->cap = cap;
    return HL_OK;
}

hl_status hl_ranktable_add(struct hl_ranktable *t, struct hl_ranktable_instance *i)
{
    hl_status st = check_instance(t, i);
    if (st == HL_OK && t->count == t->cap)
        st = grow_table(t);
    if (st != HL_OK) {
        hl_ranktable_instance_fini(i);
        return st;
    }
    t->instances[t->count++] = *i;
    *i = (struct hl_ranktable_instance){.rank_index = -1};
    return HL_OK;
}

hl_status hl_ranktable_borrow(struct hl_ranktable *t, const struct hl_ranktable_instance *from,
                              uint32_t group, uint32_t place, int32_t rank_index)
{
    if (t->count == t->cap)
        HL_TRY(grow_table(t));
    struct hl_ranktable_instance *i = &t->instances[t->count];
    *i = *from;
    i->is_borrowed = true;
    i->group = group;
    i->place = place;
    i->rank_index = rank_index;
    HL_TRY(check_instance(t, i));
    t->count++;
    return HL_OK;
}

bool hl_ranktable_is_complete(const struct hl_ranktable *t)
{
    for (size_t g = 0; g < t->group_count; g++) {
        size_t have = 0;
        for (size_t i = 0; i < t->count; i++)
            have += t->instances[i].group == g;
        if (have != t->groups[g].instances)
            return false;
    }
    return true;
}

/* ---- numbering ------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
    const struct hl_ranktable_instance *x = a, *y = b;
    if (x->group != y->group)
        return x->group < y->group ? -1 : 1;
    if (x->place != y->place)
        return x->place < y->place ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_index(const void *a, const void *b)
{
    const struct hl_ranktable_instance *x = a, *y = b;
    return x->rank_index < y->rank_index ? -1 : x->rank_index > y->rank_index;
}

static void sort_instances(struct hl_ranktable *t, int (*order)(const void *a, const void *b))
{
    for (size_t i = 1; i < t->count; i++)
        if (order(&t->instances[i - 1], &t->instances[i]) > 0) {
            qsort(t->instances, t->count, sizeof(*t->instances), order);
            return;
        }
}

/* Requested indices are taken first; the other instances get the lowest free ones. */
static hl_status give_indices(struct hl_ranktable *t)
{
    uint8_t taken[HL_RANKTABLE_INDEX_MAX + 1] = {0};
    int32_t next = 0;
    for (size_t i = 0; i < t->count; i++) {
        const struct hl_ranktable_instance *x = &t->instances[i];
        if (x->rank_index < 0)
            continue;
        if (taken[x->rank_index])
            return hl_fail(HL_EINVAL, "%s: another one also has rank index %d", x->name,
                           x->rank_index);
        taken[x->rank_index] = 1;
    }
    for (size_t i = 0; i < t->count; i++) {
        struct hl_ranktable_instance *x = &t->instances[i];
        if (x->rank_index >= 0)
            continue;
        while (next <= HL_RANKTABLE_INDEX_MAX && taken[next])
            next++;
        if (next > HL_RANKTABLE_INDEX_MAX)
            return hl_fail(HL_EINVAL, "a rank table has at most %d instances",
                           HL_RANKTABLE_INDEX_MAX + 1);
        x->rank_index = next++;
    }
    return HL_OK;
}

struct used_place {
    const struct hl_ranktable_instance *instance;
    const struct hl_ranktable_device *device;
};

static int by_server(const void *a, const void *b)
{
    const struct hl_ranktable_instance *const *x = a, *const *y = b;
    return strcmp((*x)->server_id, (*y)->server_id);
}

static int by_id(const void *a, const void *b)
{
    const struct used_place *x = a, *y = b;
    return strcmp(x->device->id, y->device->id);
}

/* Checks that no device is claimed twice. all: the instances of one server. places: room for their
 * devices. */
static hl_status check_server(const struct hl_ranktable_instance **all, size_t count,
                              struct used_place *places)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t d = 0; d < all[i]->device_count; d++)
            places[n++] = (struct used_place){all[i], &all[i]->devices[d]};
    qsort(places, n, sizeof(*places), by_id);
    for (size_t i = 1; i < n; i++)
        if (by_id(&places[i - 1], &places[i]) == 0)
            return hl_fail(HL_EINVAL, "device %s of server %s is claimed by %s and by %s",
                           places[i].device->id, all[0]->server_id, places[i - 1].instance->name,
                           places[i].instance->name);
    return HL_OK;
}

static hl_status without_address(const struct hl_ranktable_instance *x)
{
    return hl_fail(HL_EINVAL,
                   "%s: device %s has no address; a job on more than one server needs them all",
                   x->name, x->devices[x->without_address - 1].id);
}

/* all: `count` instances, sorted by server. An instance alone on its server was checked when it was
 * added. */
static hl_status check_servers(const struct hl_ranktable_instance **all, size_t count,
                               struct used_place *places)
{
    int many = count > 0 && by_server(&all[0], &all[count - 1]) != 0;
    for (size_t i = 0, end = 0; i < count; i = end) {
        for (end = i; end < count && by_server(&all[i], &all[end]) == 0; end++)
            if (many && all[end]->without_address > 0)
                return without_address(all[end]);
        if (end - i > 1)
            HL_TRY(check_server(&all[i], end - i, places));
    }
    return HL_OK;
}

static hl_status check_devices(const struct hl_ranktable *t, size_t total)
{
    size_t n = 0;
    struct used_place *places = calloc(total + 1, sizeof(*places));
    const struct hl_ranktable_instance **all = calloc(t->count + 1, sizeof(*all));
    hl_status st = HL_ENOMEM;
    if (places == NULL || all == NULL) {
        (void)hl_fail(st, "out of memory allocating a rank table");
    } else {
        for (size_t i = 0; i < t->count; i++)
            if (t->instances[i].device_count > 0)
                all[n++] = &t->instances[i];
        qsort(all, n, sizeof(*all), by_server);
        st = check_servers(all, n, places);
    }
    free(places);
    free(all);
    return st;
}

hl_status hl_ranktable_number(struct hl_ranktable *t)
{
    int rank = 0, complete = hl_ranktable_is_complete(t);
    size_t devices = 0;
    sort_instances(t, by_place);
    HL_TRY(give_indices(t));
    sort_instances(t, by_index);
    for (size_t i = 0; i < t->count; i++) {
        struct hl_ranktable_instance *x = &t->instances[i];
        if (!complete) /* leave room for missing instances */
            rank = x->rank_index * (int)x->device_count;
        x->first_rank = rank;
        rank += (int)x->device_count;
        devices += x->device_count;
    }
    return check_devices(t, devices);
}
