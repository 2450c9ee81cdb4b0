/* A libhelios with one shard in memory that records every call: for tests of the Python binding. */
#include <helios/helios.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct helios_client {
    int mapped;
};

static char last_error[256];
static char calls[4096];
static _Alignas(64) unsigned char bytes[128];

#define CALL(...) snprintf(calls + strlen(calls), sizeof(calls) - strlen(calls), __VA_ARGS__)

/* The calls so far, one per line; reading clears them. */
HELIOS_API const char *fake_calls(void);
HELIOS_API void fake_set_bytes(const void *data, size_t size);

const char *fake_calls(void)
{
    static char out[sizeof(calls)];
    memcpy(out, calls, sizeof(out));
    calls[0] = '\0';
    return out;
}

void fake_set_bytes(const void *data, size_t size)
{
    memcpy(bytes, data, size);
}

const char *helios_version(void)
{
    return "0.1.7";
}

const char *helios_last_error(void)
{
    return last_error;
}

const char *helios_strerror(int code)
{
    (void)code;
    return "general";
}

static int check_size(size_t given, size_t expected)
{
    if (given == expected)
        return 0;
    snprintf(last_error, sizeof(last_error), "a size of %zu in place of %zu", given, expected);
    return HELIOS_EINVAL;
}

int helios_open(const helios_options *o, helios_client **out)
{
    if (check_size(o->size, sizeof(*o)) != 0)
        return HELIOS_EINVAL;
    CALL("open %s %s %s %d %d\n", o->controller, o->l3 ? o->l3 : "-", o->path ? o->path : "-",
         o->timeout_ms, o->retries);
    if (strcmp(o->controller, "down") == 0) {
        snprintf(last_error, sizeof(last_error), "nobody answers at down");
        return HELIOS_EUNAVAIL;
    }
    *out = calloc(1, sizeof(**out));
    return *out == NULL ? HELIOS_ENOMEM : 0;
}

void helios_close(helios_client *client)
{
    CALL("close mapped=%d\n", client->mapped);
    free(client);
}

int helios_request_place(helios_client *client, const char *model, int64_t version,
                         const helios_split *split, const helios_place *place,
                         helios_shard_list **out)
{
    static helios_shard shards[2] = {
        {{1, 2}, "embedding", sizeof(bytes), 7, 1},
        {{0xffffffffffffffff, 4}, "layer-0003", 1ull << 40, 0xffffffff, 9},
    };
    static const helios_tensor_name names[] = {{"layers.3.w", "layers.0.w"}};
    static const helios_shard_view views[] = {
        {.pp = 4, .tp = 2}, {5, 2, .renamed = 1, .ep = 3, .count = 1, .names = names}};
    static helios_shard_list list = {.count = 2,
                                     .shards = shards,
                                     .meta_json = "{\"step\": 3}",
                                     .config_json = "{}",
                                     .views = views};
    (void)client;
    if (check_size(place->size, sizeof(*place)) != 0)
        return HELIOS_EINVAL;
    CALL("request %s %lld %d %d %d", model, (long long)version, place->pp, place->tp, place->ep);
    if (split != NULL && check_size(split->size, sizeof(*split)) == 0)
        CALL(" of %dx%d/%d %d+%d ep %d/%d", split->tp, split->pp, split->virtual_stages,
             split->first_stage_layers, split->last_stage_layers, split->ep, split->etp);
    CALL("\n");
    if (place->pp > 1) {
        last_error[0] = '\0';
        return HELIOS_ENOENT;
    }
    list.version = version < 0 ? 1ll << 33 : version;
    *out = &list;
    return 0;
}

void helios_shard_list_free(helios_shard_list *list)
{
    CALL("free %zu\n", list->count);
}

int helios_names_under(const char *const *names, size_t count, const char *naming,
                       helios_names **out)
{
    static helios_names same;
    (void)naming;
    same = (helios_names){count, names};
    *out = &same;
    return 0;
}

int helios_parts_of(const char *config_json, const helios_split *split, int pp,
                    const char *const *names, size_t count, helios_names **out)
{
    CALL("parts %d %s\n", pp, config_json);
    (void)split;
    return helios_names_under(names, count, "", out);
}

void helios_names_free(helios_names *names)
{
    names->count = 0;
}

int helios_map_private(helios_client *client, helios_id id, void **data, size_t *size)
{
    CALL("map %llx %llx\n", (unsigned long long)id.hi, (unsigned long long)id.lo);
    client->mapped++;
    *data = bytes;
    *size = sizeof(bytes);
    return 0;
}

int helios_unmap(helios_client *client, const void *data)
{
    CALL("unmap %d\n", data == bytes);
    client->mapped--;
    return 0;
}

int helios_version_open(helios_client *client, const helios_version_spec *spec, int64_t *version)
{
    (void)client;
    if (check_size(spec->size, sizeof(*spec)) != 0)
        return HELIOS_EINVAL;
    CALL("open %s %s %d %lld %d/%d layout=%d", spec->model, spec->job, spec->attempt,
         (long long)spec->step, spec->rank, spec->world, spec->layout);
    if (spec->split != NULL)
        CALL(" of %dx%d/%d", spec->split->tp, spec->split->pp, spec->split->virtual_stages);
    CALL("\n");
    *version = 1ll << 34;
    return 0;
}

int helios_version_abandon(helios_client *client, const char *model, int64_t version, int rank,
                           const char *reason)
{
    (void)client;
    CALL("abandon %s %lld %d %s\n", model, (long long)version, rank, reason);
    return 0;
}

int helios_join_gang(helios_client *client, const char *job, int attempt, int container,
                     int local_rank, int32_t *number, char *env, size_t cap)
{
    (void)client;
    CALL("join_gang %s %d %d %d\n", job, attempt, container, local_rank);
    *number = 3;
    snprintf(env, cap, "RANK=1\nMASTER_ADDR=a=b\n");
    return 0;
}

static int put_ready(const helios_tensor *tensors, size_t count, helios_shard *out)
{
    for (size_t i = 0; i < count; i++) {
        CALL("  %s %s rank=%d", tensors[i].name, tensors[i].dtype, tensors[i].rank);
        for (int d = 0; d < tensors[i].rank; d++)
            CALL(" %lld", (long long)tensors[i].shape[d]);
        CALL(" first=%d\n", *(const unsigned char *)tensors[i].data);
    }
    *out = (helios_shard){.size = 4096};
    return 0;
}

int helios_version_put_at(helios_client *client, const char *model, int64_t version,
                          const helios_place *place, const char *part, const helios_tensor *tensors,
                          size_t count, helios_fill fill, void *arg, helios_shard *out)
{
    (void)client;
    if (check_size(place->size, sizeof(*place)) != 0)
        return HELIOS_EINVAL;
    CALL("put%s %s %lld %d %d %d %s\n", fill != NULL ? " from" : "", model, (long long)version,
         place->pp, place->tp, place->ep, part);
    if (fill == NULL)
        return put_ready(tensors, count, out);
    for (size_t i = 0; i < count; i++) {
        unsigned char data[64] = {0};
        if (tensors[i].data == NULL && fill(arg, i, data, 8) != 0)
            return HELIOS_ECANCELED;
        CALL("  %s first=%d\n", tensors[i].name,
             tensors[i].data != NULL ? *(const unsigned char *)tensors[i].data : data[0]);
    }
    *out = (helios_shard){.size = 4096};
    return 0;
}

int helios_version_commit(helios_client *client, const char *model, int64_t version, int rank,
                          const char *meta_json, int *visible)
{
    (void)client;
    CALL("commit %s %lld %d %s\n", model, (long long)version, rank, meta_json ? meta_json : "-");
    *visible = 1;
    return 0;
}

int helios_report(int64_t step, double loss, uint64_t tokens)
{
    CALL("report %lld %g %llu\n", (long long)step, loss, (unsigned long long)tokens);
    return 0;
}

int helios_waited(uint64_t ns)
{
    CALL("waited %llu\n", (unsigned long long)ns);
    return 0;
}

int helios_held(const void *address, uint64_t size)
{
    (void)address, (void)size;
    return 0;
}

int helios_checksums(const void *data, uint64_t size, uint32_t *out)
{
    const unsigned char *bytes = data;
    for (uint64_t i = 0; i < size; i += 1 << 20)
        out[i >> 20] = bytes[i];
    return 0;
}

int helios_trouble(const char *text)
{
    CALL("trouble %s\n", text);
    return 0;
}

int helios_activity(int activity)
{
    (void)activity;
    return 0;
}

int helios_joined(uint32_t generation)
{
    CALL("joined %u\n", generation);
    return 0;
}

uint32_t helios_generation(void)
{
    return 7;
}

int helios_get_stats(helios_client *client, helios_stats *out)
{
    (void)client;
    if (check_size(out->size, sizeof(*out)) != 0)
        return HELIOS_EINVAL;
    *out = (helios_stats){sizeof(*out), "shm", 1, 2, 3, 4, 5, 6, 7, 8};
    return 0;
}
