/* Which shards a rank needs, from the Controller. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "client/client_private.h"
#include "core/json.h"

/* The texts live behind the list in one allocation each. */
struct owned_list {
    helios_shard_list list;
    char *meta;
    char *config;
    char *skipped;
};

void helios_shard_list_free(helios_shard_list *list)
{
    if (list == NULL)
        return;
    struct owned_list *o = (struct owned_list *)list;
    free(o->list.shards);
    free(o->meta);
    free(o->config);
    free(o->skipped);
    free(o);
}

static hl_status take_shard(helios_client *c, const char *model, const struct hl_api_shard *from,
                            helios_shard *to)
{
    struct hl_id id;
    const char *part = from->part;
    HL_TRY(hl_id_parse(from->id, &id));
    if (strlen(part) >= sizeof(to->part))
        return hl_fail(HL_EPROTO, "part '%s' of model '%s' has a name that is too long", part,
                       model);
    to->id = (helios_id){.hi = id.hi, .lo = id.lo};
    memcpy(to->part, part, strlen(part) + 1);
    to->size = from->size_bytes;
    to->crc32 = from->crc32;
    to->tensors = from->tensors;
    names_add(c, id, model, from->version, from->pp, from->tp, part);
    names_expect(c, id, to->size, to->crc32);
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

static hl_status take_list(helios_client *c, const char *model,
                           const struct hl_api_controller_request_shards_results *r,
                           struct owned_list *o)
{
    const char *meta = r->meta, *config = r->config;
    size_t count = r->shards.count;
    HL_TRY(check_virtual_stages(model, config));
    o->list.version = r->version;
    o->list.count = count;
    o->list.shards = calloc(count + 1, sizeof(*o->list.shards));
    o->meta = strdup(meta[0] != '\0' ? meta : "{}");
    o->config = strdup(config[0] != '\0' ? config : "{}");
    o->skipped = strdup(r->skipped);
    if (o->list.shards == NULL || o->meta == NULL || o->config == NULL || o->skipped == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu shards", count);
    o->list.meta_json = o->meta;
    o->list.config_json = o->config;
    o->list.skipped = o->skipped;
    if (o->skipped[0] != '\0') /* what is read is older than what was saved last */
        hl_warn("model %s: version %lld is read, newer ones are not whole (%s)", model,
                (long long)o->list.version, o->skipped);
    for (size_t i = 0; i < count; i++)
        HL_TRY(take_shard(c, model, &r->shards.items[i], &o->list.shards[i]));
    return HL_OK;
}

/* "embedding" < "layer-0000" < … < "head" < "optim-embedding" < …, as in a model. */
static int part_rank(const char *part)
{
    bool optim = strncmp(part, "optim-", 6) == 0;
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
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_text_list ids = {.items =
                                       hl_arena_array(&arena, list->count, sizeof(*ids.items))};
    for (size_t i = 0; ids.items != NULL && i < list->count; i++)
        ids.items[ids.count++] = hl_id_print(id_of(list->shards[i].id), &arena);
    net_prefetch(op, c->attach.net, ids);
}

static hl_status request_list(struct operation *op, const char *model, int64_t version, int pp,
                              int tp, struct owned_list **out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    const struct hl_api_controller_request_shards_params p = {
        .model = model, .version = version, .pp = pp, .tp = tp};
    struct hl_api_controller_request_shards_results r;
    hl_status st;
    HL_TRY(controller_named(op, "requestShards"));
    do
        st = hl_call_controller_request_shards(op->client->controller, &p, operation_left_ms(op),
                                               &arena, &r);
    while (controller_again(op, st));
    HL_TRY(st);
    struct owned_list *o = calloc(1, sizeof(*o));
    st = o != NULL ? take_list(op->client, model, &r, o)
                   : hl_fail(HL_ENOMEM, "out of memory allocating a list of shards");
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
    hl_status st = request_list(&op, model, version, pp, tp, &o);
    pthread_mutex_unlock(&client->lock);
    if (st == HL_OK) {
        hl_error_clear();
        *out = &o->list;
    }
    return st;
}
