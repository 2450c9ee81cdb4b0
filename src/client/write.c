/* Writing a new version: every part is built in a memfd, copied into the pool with its CRC, and
 * remembered until this rank commits. Parts that are never committed belong to no version, and the
 * Controller's sweep frees them.
 *
 *     put_part ---bytes, without a lock---> pool ---pending_add---> client->pending
 *                                                                     |
 *        commit, abandon: forget_pending after the Controller's answer '
 *
 * client->lock guards the list and is held for all of an open, commit or abandon. So a put that
 * ends meanwhile becomes pending either before the commit or after it, never in part. Several
 * threads may put parts of one version in parallel; the caller commits when all have returned. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/abi.h"
#include "base/copy.h"
#include "base/text.h"
#include "base/utf8.h"
#include "client/client_private.h"
#include "client/shard_image.h"
#include "core/model/layout.h"
#include "core/model/part.h"
#include "os/copy_measure.h"

#define PART_MAX sizeof(((helios_shard *)0)->part)

/* Call with client->lock held; this also holds for forget_pending, pending_add, pending_count and
 * their callers. */
static bool pending_is(const struct pending *p, const char *model, int64_t version)
{
    return p->shard.version == version && strcmp(p->shard.model, model) == 0;
}

static void forget_pending(helios_client *c, const char *model, int64_t version)
{
    struct pending **at = &c->pending;
    while (*at != NULL) {
        struct pending *p = *at;
        if (!pending_is(p, model, version)) {
            at = &p->next;
            continue;
        }
        *at = p->next;
        hl_arena_fini(&p->arena);
        free(p);
    }
}

/* Completes the spec that the caller gave. */
static hl_status read_spec(const helios_client *client, const helios_version_spec *given,
                           const int64_t *version, helios_version_spec *spec)
{
    if (client == NULL || given == NULL || version == NULL)
        return hl_fail(HL_EINVAL, "helios_version_open: client, spec and version must not be NULL");
    HL_TRY(HL_ABI_READ(helios_version_spec, given, spec));
    if (spec->model == NULL || spec->job == NULL)
        return hl_fail(HL_EINVAL, "helios_version_open: model and job must not be NULL");
    if (spec->world < 1 || spec->rank < 0 || spec->rank >= spec->world)
        return hl_fail(HL_EINVAL, "helios_version_open: rank %d is outside a gang of %d",
                       spec->rank, spec->world);
    if (spec->layout < HELIOS_LAYOUT_EXACT || spec->layout > HELIOS_LAYOUT_UNCHECKED)
        return hl_fail(HL_EINVAL, "helios_version_open: layout %d is not a HELIOS_LAYOUT_ value",
                       spec->layout);
    return HL_OK;
}

static hl_status begin_version(struct operation *op,
                               const struct hl_api_controller_begin_version_params *p,
                               int64_t *number)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_begin_version_results r;
    hl_status st;
    HL_TRY(controller_named(op, "beginVersion"));
    do
        st = hl_call_controller_begin_version(op->client->controller, p, operation_left_ms(op),
                                              &arena, &r);
    while (controller_again(op, st));
    HL_TRY(st);
    *number = r.version;
    return HL_OK;
}

/* The sizes of a model that is to be created; all 0: none is. */
static hl_status create_read(const helios_split *given, struct hl_api_split *out)
{
    *out = (struct hl_api_split){0};
    if (given == NULL)
        return HL_OK;
    HL_TRY(split_read(given, out));
    out->tp = out->tp != 0 ? out->tp : 1;
    out->pp = out->pp != 0 ? out->pp : 1;
    return HL_OK;
}

/* The container of which this process is a rank, if another process may take its place; -1: none.
 */
static int32_t own_container(void)
{
    const char *text = getenv("HELIOS_CONTAINER");
    uint64_t index;
    return text != NULL && hl_parse_number(text, INT32_MAX, &index) ? (int32_t)index : -1;
}

int helios_version_open(helios_client *client, const helios_version_spec *given, int64_t *version)
{
    static const enum hl_api_layout_check checks[] = {
        [HELIOS_LAYOUT_EXACT] = HL_API_LAYOUT_CHECK_EXACT,
        [HELIOS_LAYOUT_ANY_DTYPE] = HL_API_LAYOUT_CHECK_ANY_DTYPE,
        [HELIOS_LAYOUT_UNCHECKED] = HL_API_LAYOUT_CHECK_UNCHECKED,
    };
    struct operation op;
    helios_version_spec spec;
    struct hl_api_split split, create;
    char token[17];
    HL_TRY(read_spec(client, given, version, &spec));
    HL_TRY(split_read(spec.split, &split));
    HL_TRY(create_read(spec.create, &create));
    snprintf(token, sizeof(token), "%016llx", (unsigned long long)(hl_id_random().lo | 1));
    hl_error_clear();
    pthread_mutex_lock(&client->lock);
    operation_begin(&op, client);
    const struct hl_api_controller_begin_version_params p = {
        .model = spec.model,
        .job = spec.job,
        .attempt = spec.attempt,
        .generation = helios_generation(),
        .step = spec.step,
        .world = spec.world,
        .rank = spec.rank,
        .token = token,
        .check = checks[spec.layout],
        .split = split,
        .create = create,
        .config = spec.config_json != NULL ? spec.config_json : "",
        .container = own_container()};
    int64_t number;
    hl_status st = begin_version(&op, &p, &number);
    if (st == HL_OK) {
        forget_pending(client, spec.model, number); /* left from a removed model of this name */
        hl_error_clear();
        *version = number;
    }
    pthread_mutex_unlock(&client->lock);
    return st;
}

static hl_status check_put(const char *model, const char *part, const helios_place *at)
{
    if (model[0] == '\0' || part[0] == '\0' || strlen(part) >= PART_MAX)
        return hl_fail(HL_EINVAL,
                       "part '%s' of model '%s': both need a name, a part of at most "
                       "%zu bytes",
                       part, model, PART_MAX - 1);
    if (at->pp < 0 || at->tp < 0 || at->ep < 0)
        return hl_fail(HL_EINVAL, "part '%s': pp %d, tp %d and ep %d count from 0", part, at->pp,
                       at->tp, at->ep);
    return HL_OK;
}

static hl_status put_shm(struct operation *op, struct shm *shm, const struct hl_l3_staging *s,
                         uint64_t size, uint32_t crc32, struct hl_id *id)
{
    struct hl_pool_ref ref;
    HL_TRY(hl_l3_put(shm->socket, s, size, operation_left_ms(op), &ref));
    if (ref.crc32 == crc32) {
        *id = ref.id;
        return HL_OK;
    }
    operation_failed_crc(op, 1);
    if (hl_l3_drop(shm->socket, ref.id, operation_left_ms(op)) != HL_OK)
        hl_error_clear(); /* the sweep frees it */
    return hl_fail(HL_ECORRUPT, "the pool copied a shard with checksum %08x instead of %08x",
                   ref.crc32, crc32);
}

/* No lock: attach_enter keeps the mapped pool for the call, and net_put shares one connection among
 * threads under its own lock. */
static hl_status put_once(struct operation *op, const struct hl_l3_staging *s, uint64_t size,
                          uint32_t crc32, struct hl_id *id)
{
    helios_client *c = op->client;
    uint64_t started_ns = hl_now_ns();
    struct shm *shm = attach_enter(c);
    bool net = shm == NULL;
    hl_status st = HL_OK;
    if (!net)
        st = put_shm(op, shm, s, size, crc32, id);
    attach_leave(c);
    if (net)
        st = net_put(op, c->attach.net, s->ptr, size, crc32, id);
    (void)planes_count(c, TALLY_WRITE, net, size, st);
    if (st == HL_OK)
        planes_time(c, TALLY_WRITE, net, hl_now_ns() - started_ns);
    return st;
}

/* Tries once more after a lost daemon or a damaged copy; if the first shard was stored after all,
 * it is an orphan that the sweep frees. */
static hl_status put_bytes(struct operation *op, const struct hl_l3_staging *s, uint64_t size,
                           uint32_t crc32, struct hl_id *id)
{
    hl_status st = put_once(op, s, size, crc32, id);
    if (st == HL_ECORRUPT) {
        operation_retried(op);
        st = put_once(op, s, size, crc32, id);
    } else if ((st == HL_EUNAVAIL || st == HL_ESTALE) && read_recover(op, &st)) {
        st = put_once(op, s, size, crc32, id);
    }
    return st;
}

static hl_status pending_add(helios_client *c, const struct hl_shard_spec *spec, const char *layout,
                             const char *tensor_crcs, const helios_shard *s)
{
    const struct hl_id_text id = hl_id_format(id_of(s->id));
    const struct hl_api_shard shard = {.id = id.s,
                                       .model = spec->model,
                                       .version = spec->version,
                                       .pp = spec->pp,
                                       .tp = spec->tp,
                                       .ep = spec->ep,
                                       .part = s->part,
                                       .size_bytes = s->size,
                                       .crc32 = s->crc32,
                                       .tensors = s->tensors,
                                       .layout = layout,
                                       .tensor_crcs = tensor_crcs};
    if (!hl_utf8_valid(spec->model) || !hl_utf8_valid(s->part) || !hl_utf8_valid(layout))
        return hl_fail(HL_EINVAL, "model '%s', part '%s' or one of its tensors is not UTF-8",
                       spec->model, s->part);
    struct pending *p = calloc(1, sizeof(*p));
    if (p == NULL || hl_api_copy(&hl_api_shard_type, &shard, &p->arena, &p->shard) != HL_OK) {
        if (p != NULL)
            hl_arena_fini(&p->arena);
        free(p);
        return hl_fail(HL_ENOMEM, "out of memory for the record of a shard");
    }
    struct pending **end = &c->pending;
    while (*end != NULL)
        end = &(*end)->next;
    *end = p;
    return HL_OK;
}

static hl_status put_part(struct operation *op, const struct hl_shard_spec *spec, helios_shard *out)
{
    struct hl_shard_image image;
    struct hl_l3_staging staging;
    helios_shard shard = {0};
    struct hl_id id;
    HL_AUTO(hl_freep) char *layout = NULL;
    char place[HL_PART_PLACE_MAX];
    HL_AUTO(hl_freep) char *crcs = NULL;
    HL_TRY(hl_shard_image_plan(spec, &image));
    hl_status st = hl_layout_text(image.tensors, image.count, &layout);
    if (st == HL_OK)
        st = hl_l3_staging_open(image.size, &staging);
    if (st == HL_OK) {
        shard.size = image.size;
        shard.tensors = (uint32_t)image.count;
        if (image.size >= HL_COPY_BULK)
            hl_copy_measure();
        st = hl_shard_image_fill(&image, staging.ptr, &shard.crc32);
        /* Filling in the tensors may have taken long; that time does not count for the pool. */
        op->deadline_ns = hl_now_ns() + (uint64_t)op->client->read.timeout_ms * HL_NS_PER_MS;
        if (st == HL_OK)
            st = put_bytes(op, &staging, image.size, shard.crc32, &id);
        hl_l3_staging_close(&staging);
    }
    if (st == HL_OK)
        st = hl_layout_crcs(image.tensors, image.crcs, image.count, &crcs);
    hl_shard_image_fini(&image);
    if (st != HL_OK)
        return hl_fail_prefix(st, "writing %s@%lld/%s: ", spec->model, (long long)spec->version,
                              hl_part_place(spec->pp, spec->tp, spec->ep, spec->part, place));
    shard.id = (helios_id){.hi = id.hi, .lo = id.lo};
    memcpy(shard.part, spec->part, strlen(spec->part));
    pthread_mutex_lock(&op->client->lock);
    st = pending_add(op->client, spec, layout, crcs, &shard);
    pthread_mutex_unlock(&op->client->lock);
    HL_TRY(st);
    names_add(op->client, id, spec->model, spec->version, spec->pp, spec->tp, spec->ep, spec->part);
    *out = shard;
    return HL_OK;
}

int helios_version_put_at(helios_client *client, const char *model, int64_t version,
                          const helios_place *place, const char *part, const helios_tensor *tensors,
                          size_t count, helios_fill fill, void *arg, helios_shard *out)
{
    struct operation op;
    helios_place at;
    helios_shard shard;
    if (client == NULL || model == NULL || place == NULL || part == NULL || tensors == NULL)
        return hl_fail(
            HL_EINVAL,
            "helios_version_put: client, model, place, part and tensors must not be NULL");
    HL_TRY(HL_ABI_READ(helios_place, place, &at));
    HL_TRY(check_put(model, part, &at));
    hl_error_clear();
    operation_begin(&op, client);
    hl_status st = put_part(&op,
                            &(struct hl_shard_spec){.model = model,
                                                    .version = version,
                                                    .pp = at.pp,
                                                    .tp = at.tp,
                                                    .ep = hl_part_has_experts(part) ? at.ep : 0,
                                                    .part = part,
                                                    .tensors = tensors,
                                                    .count = count,
                                                    .fill = fill,
                                                    .fill_arg = arg},
                            &shard);
    if (st == HL_OK) {
        atomic_fetch_add_explicit(&client->counters.write_ns, hl_now_ns() - op.started_ns,
                                  memory_order_relaxed);
        hl_error_clear();
        if (out != NULL)
            *out = shard;
    }
    return st;
}

int helios_version_put_from(helios_client *client, const char *model, int64_t version, int pp,
                            int tp, const char *part, const helios_tensor *tensors, size_t count,
                            helios_fill fill, void *arg, helios_shard *out)
{
    const helios_place place = {HELIOS_PLACE_INIT, .pp = pp, .tp = tp};
    return helios_version_put_at(client, model, version, &place, part, tensors, count, fill, arg,
                                 out);
}

int helios_version_put(helios_client *client, const char *model, int64_t version, int pp, int tp,
                       const char *part, const helios_tensor *tensors, size_t count,
                       helios_shard *out)
{
    return helios_version_put_from(client, model, version, pp, tp, part, tensors, count, NULL, NULL,
                                   out);
}

/* Counts what was put for the version and is not committed yet. */
static size_t pending_count(const helios_client *c, const char *model, int64_t version)
{
    size_t n = 0;
    for (const struct pending *p = c->pending; p != NULL; p = p->next)
        n += pending_is(p, model, version);
    return n;
}

/* Commits what is pending for the version. */
static hl_status commit_part(struct operation *op, struct hl_api_controller_commit_part_params p,
                             bool *visible)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_controller_commit_part_results r;
    helios_client *c = op->client;
    hl_status st;
    p.shards.items =
        hl_arena_array(&arena, pending_count(c, p.model, p.version), sizeof(*p.shards.items));
    if (p.shards.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory committing %s@%lld", p.model,
                       (long long)p.version);
    for (const struct pending *s = c->pending; s != NULL; s = s->next)
        if (pending_is(s, p.model, p.version))
            p.shards.items[p.shards.count++] = s->shard;
    HL_TRY(controller_named(op, "commitPart"));
    p.waits = true;
    do {
        st = hl_call_controller_commit_part(c->controller, &p, operation_left_ms(op), &arena, &r);
        if (st == HL_OK && r.securing)
            operation_extend(op); /* the Controller has its own deadline for that */
    } while ((st == HL_OK && r.securing) || controller_again(op, st));
    HL_TRY(st);
    *visible = r.visible;
    return HL_OK;
}

int helios_version_commit(helios_client *client, const char *model, int64_t version, int rank,
                          const char *meta_json, int *visible)
{
    struct operation op;
    if (client == NULL || model == NULL)
        return hl_fail(HL_EINVAL, "helios_version_commit: client and model must not be NULL");
    hl_error_clear();
    pthread_mutex_lock(&client->lock);
    operation_begin(&op, client);
    const struct hl_api_controller_commit_part_params p = {.model = model,
                                                           .version = version,
                                                           .rank = rank,
                                                           .meta = meta_json,
                                                           .container = own_container()};
    bool all = false;
    hl_status st = commit_part(&op, p, &all);
    /* Without an answer the shards stay pending, so that the same commit can be repeated. */
    if (st == HL_OK) {
        forget_pending(client, model, version);
        hl_error_clear();
        if (visible != NULL)
            *visible = all;
    }
    pthread_mutex_unlock(&client->lock);
    return st;
}

/* Abandons the version, with the ids of what is pending for it. */
static hl_status abandon_version(struct operation *op,
                                 struct hl_api_controller_abandon_version_params p)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    helios_client *c = op->client;
    hl_status st;
    p.ids.items =
        hl_arena_array(&arena, pending_count(c, p.model, p.version), sizeof(*p.ids.items));
    if (p.ids.items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory abandoning %s@%lld", p.model,
                       (long long)p.version);
    for (const struct pending *s = c->pending; s != NULL; s = s->next)
        if (pending_is(s, p.model, p.version))
            p.ids.items[p.ids.count++] = s->shard.id;
    HL_TRY(controller_named(op, "abandonVersion"));
    do
        st = hl_call_controller_abandon_version(c->controller, &p, operation_left_ms(op), NULL,
                                                NULL);
    while (controller_again(op, st));
    return st;
}

int helios_version_abandon(helios_client *client, const char *model, int64_t version, int rank,
                           const char *reason)
{
    struct operation op;
    if (client == NULL || model == NULL)
        return hl_fail(HL_EINVAL, "helios_version_abandon: client and model must not be NULL");
    hl_error_clear();
    pthread_mutex_lock(&client->lock);
    operation_begin(&op, client);
    const struct hl_api_controller_abandon_version_params p = {
        .model = model,
        .version = version,
        .rank = rank,
        .reason = reason != NULL ? reason : "no reason was given"};
    hl_status st = abandon_version(&op, p);
    if (st == HL_OK) {
        forget_pending(client, model, version);
        hl_error_clear();
    }
    pthread_mutex_unlock(&client->lock);
    return st;
}
