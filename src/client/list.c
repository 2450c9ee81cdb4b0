/* Which shards a rank needs, from the Controller. */
#include <stdlib.h>
#include <string.h>

#include "client/client_private.h"

/* The texts live behind the list in one allocation each. */
struct owned_list {
    helios_shard_list list;
    char *meta;
    char *config;
};

void helios_shard_list_free(helios_shard_list *list)
{
    if (list == NULL)
        return;
    struct owned_list *o = (struct owned_list *)list;
    free(o->list.shards);
    free(o->meta);
    free(o->config);
    free(o);
}

static hl_status take_shard(helios_client *c, const char *model, const json_t *from,
                            helios_shard *to)
{
    struct hl_id id;
    const char *part = hl_json_str(from, "part", "");
    HL_TRY(hl_id_parse(hl_json_str(from, "id", ""), &id));
    if (strlen(part) >= sizeof(to->part))
        return hl_fail(HL_EPROTO, "part '%s' of model '%s' has a name that is too long", part,
                       model);
    to->id = (helios_id){.hi = id.hi, .lo = id.lo};
    memcpy(to->part, part, strlen(part) + 1);
    to->size = (uint64_t)hl_json_int(from, "sizeBytes", 0);
    to->crc32 = (uint32_t)hl_json_int(from, "crc32", 0);
    to->tensors = (uint32_t)hl_json_int(from, "tensors", 0);
    names_add(c, id, model, hl_json_int(from, "version", -1), (int)hl_json_int(from, "pp", 0),
              (int)hl_json_int(from, "tp", 0), part);
    return HL_OK;
}

/* A rank whose job divides its stages into other chunks than the model would train other layers
 * than it loads. Both are known only for the model that the job names. */
static hl_status check_virtual_stages(const char *model, const char *config)
{
    const char *own = getenv("HELIOS_MODEL"), *job = getenv("VIRTUAL_PIPELINE_PARALLEL_SIZE");
    if (own == NULL || job == NULL || *job == '\0')
        return HL_OK;
    size_t n = strcspn(own, "@");
    if (strncmp(model, own, n) != 0 || model[n] != '\0')
        return HL_OK;
    json_t *doc = json_loads(config, 0, NULL);
    int64_t chunks = hl_json_int(doc, "virtualStages", 1);
    json_decref(doc);
    char *end;
    long long wanted = strtoll(job, &end, 10);
    if (*end != '\0' || wanted != (chunks > 1 ? chunks : 1))
        return hl_fail(HL_EINVAL,
                       "VIRTUAL_PIPELINE_PARALLEL_SIZE is '%.20s', but model '%s' was imported "
                       "with --virtual-stages %lld; submit the job with that "
                       "virtual_pipeline_parallel_size or import the model again",
                       job, model, (long long)(chunks > 1 ? chunks : 1));
    return HL_OK;
}

static hl_status take_list(helios_client *c, const char *model, const json_t *result,
                           struct owned_list *o)
{
    const json_t *shards = hl_json_list(result, "shards");
    size_t i, count = json_array_size(shards);
    const json_t *s;
    const char *meta = hl_json_str(result, "meta", "");
    const char *config = hl_json_str(result, "config", "");
    HL_TRY(check_virtual_stages(model, config));
    o->list.version = hl_json_int(result, "version", -1);
    o->list.count = count;
    o->list.shards = calloc(count + 1, sizeof(*o->list.shards));
    o->meta = strdup(meta[0] != '\0' ? meta : "{}");
    o->config = strdup(config[0] != '\0' ? config : "{}");
    if (o->list.shards == NULL || o->meta == NULL || o->config == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu shards", count);
    o->list.meta_json = o->meta;
    o->list.config_json = o->config;
    json_array_foreach (shards, i, s)
        HL_TRY(take_shard(c, model, s, &o->list.shards[i]));
    return HL_OK;
}

/* "embedding" < "layer-0000" < … < "head" < "optim-embedding" < …, as in a model. */
static int part_rank(const char *part)
{
    int optim = strncmp(part, "optim-", 6) == 0;
    if (optim)
        part += 6;
    int kind = strcmp(part, "embedding") == 0 ? 0 : strncmp(part, "layer-", 6) == 0 ? 1 : 2;
    return optim * 3 + kind;
}

static int by_part(const void *a, const void *b)
{
    const helios_shard *x = a, *y = b;
    int order = part_rank(x->part) - part_rank(y->part);
    return order != 0 ? order : strcmp(x->part, y->part);
}

static void learn_places(struct operation *op, const helios_shard_list *list)
{
    helios_client *c = op->client;
    if (atomic_load_explicit(&c->attach.shm, memory_order_relaxed) != NULL)
        return;
    json_t *ids = json_array();
    for (size_t i = 0; i < list->count; i++)
        json_array_append_new(ids, json_string(hl_id_format(id_of(list->shards[i].id)).s));
    net_prefetch(op, c->attach.net, ids);
    json_decref(ids);
}

static hl_status request(struct operation *op, const char *model, int64_t version, int pp, int tp,
                         struct owned_list **out)
{
    json_t *result;
    HL_TRY(call_controller(op, "requestShards",
                           json_pack("{s:s s:I s:i s:i}", "model", model, "version",
                                     (json_int_t)version, "pp", pp, "tp", tp),
                           &result));
    struct owned_list *o = calloc(1, sizeof(*o));
    hl_status st = o != NULL ? take_list(op->client, model, result, o)
                             : hl_fail(HL_ENOMEM, "out of memory allocating a list of shards");
    json_decref(result);
    if (st != HL_OK) {
        if (o != NULL)
            helios_shard_list_free(&o->list);
        return st;
    }
    qsort(o->list.shards, o->list.count, sizeof(*o->list.shards), by_part);
    learn_places(op, &o->list);
    *out = o;
    return HL_OK;
}

int helios_request_shards(helios_client *client, const char *model, int64_t version, int pp, int tp,
                          helios_shard_list **out)
{
    struct operation op;
    struct owned_list *o = NULL;
    if (client == NULL || model == NULL || out == NULL)
        return hl_fail(HL_EINVAL, "helios_request_shards: client, model and out must not be NULL");
    if (pp < 0 || tp < 0 || version < -1)
        return hl_fail(HL_EINVAL,
                       "helios_request_shards: pp %d and tp %d count from 0, version %lld from 1 "
                       "(-1 is the newest)",
                       pp, tp, (long long)version);
    hl_error_clear();
    pthread_mutex_lock(&client->lock);
    operation_begin(&op, client);
    hl_status st = request(&op, model, version, pp, tp, &o);
    pthread_mutex_unlock(&client->lock);
    if (st == HL_OK) {
        hl_error_clear();
        *out = &o->list;
    }
    return st;
}
