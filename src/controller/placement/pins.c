/* Pins: no move takes a pinned shard or version away until it is unpinned or removed. A pin is a
 * record of its own. So it outlives the caller that set it, and ends with what it pins. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "controller/commits.h"
#include "controller/placement/placement_private.h"
#include "controller/records.h"

static void shard_key(struct hl_id id, char key[HL_CATALOG_KEY_MAX])
{
    snprintf(key, HL_CATALOG_KEY_MAX, "pin/shard/%s", hl_id_format(id).s);
}

static void version_key(const struct hl_version_rec *v, char key[HL_CATALOG_KEY_MAX])
{
    snprintf(key, HL_CATALOG_KEY_MAX, "pin/version/%s/%010" PRId64, v->model->name, v->number);
}

static struct pin *pin_find(const struct hl_controller *c, const char *key)
{
    struct pin *pin;
    HASH_FIND_STR(c->placement->pins, key, pin);
    return pin;
}

static hl_status pin_add(struct hl_controller *c, const char *key, int64_t since_ms)
{
    struct pin *pin = pin_find(c, key);
    if (pin != NULL)
        return HL_OK;
    if ((pin = calloc(1, sizeof(*pin))) == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a pin");
    snprintf(pin->key, sizeof(pin->key), "%s", key);
    pin->since_ms = since_ms;
    HASH_ADD_STR(c->placement->pins, key, pin);
    return HL_OK;
}

static void pin_remove(struct hl_controller *c, struct pin *pin)
{
    HASH_DEL(c->placement->pins, pin);
    free(pin);
}

hl_status placement_load_pin(struct hl_controller *c, const char *key, const json_t *record)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_pin_record pin;
    HL_TRY(hl_api_from_json(&hl_api_pin_record_type, record, &arena, &pin));
    return pin_add(c, key, pin.since_ms);
}

bool pin_has_shard(const struct hl_controller *c, struct hl_id id)
{
    char key[HL_CATALOG_KEY_MAX];
    if (c->placement->pins == NULL)
        return false;
    shard_key(id, key);
    return pin_find(c, key) != NULL;
}

bool pin_has_version(const struct hl_controller *c, const struct hl_version_rec *v)
{
    char key[HL_CATALOG_KEY_MAX];
    if (c->placement->pins == NULL)
        return false;
    version_key(v, key);
    return pin_find(c, key) != NULL;
}

/* ---- the store ------------------------------------------------------------------------------- */

static hl_status pin_write(struct hl_controller *c, const char *key, int64_t since_ms, bool pinned,
                           hl_store_written done, void *arg)
{
    struct hl_records records = {0};
    const struct hl_api_pin_record pin = {since_ms};
    json_t *value = pinned ? hl_api_to_json(&hl_api_pin_record_type, &pin) : NULL;
    hl_status st = pinned && value == NULL ? hl_fail(HL_ENOMEM, "out of memory for a pin")
                                           : hl_records_add(&records, value, "%s", key);
    if (st == HL_OK)
        st = controller_write(c, &records, done, arg);
    hl_records_fini(&records);
    return st;
}

static void on_pruned(void *arg, hl_status st, const char *text)
{
    if (!controller_stopped(arg) && st != HL_OK)
        hl_warn("pin of what was removed stays in the store until the next start error=\"%s\"",
                text);
}

/* Resolves what the key names: a shard, or a version. False: it does not exist. */
static bool pin_resolve(const struct hl_controller *c, const char *key, struct hl_shard_rec **shard,
                        struct hl_version_rec **version)
{
    struct hl_id id;
    char model[HL_CATALOG_KEY_MAX];
    struct hl_model_rec *m;
    *shard = NULL;
    *version = NULL;
    if (strncmp(key, "pin/shard/", 10) == 0) {
        if (hl_id_parse(key + 10, &id) == HL_OK)
            *shard = hl_catalog_shard(&c->catalog, id);
        return *shard != NULL;
    }
    const char *slash = strrchr(key, '/');
    snprintf(model, sizeof(model), "%.*s", (int)(slash - (key + 12)), key + 12);
    return hl_catalog_model(&c->catalog, model, &m) == HL_OK &&
           hl_catalog_version(m, strtoll(slash + 1, NULL, 10), version) == HL_OK;
}

void pin_follow(struct hl_controller *c, const struct hl_shard_rec *s)
{
    struct hl_placement *core = &c->placement->core;
    const struct hl_placed_shard *x = hl_placement_shard_find(core, s->id);
    bool pinned = pin_has_shard(c, s->id);
    if (x != NULL && x->pinned_itself != pinned &&
        hl_placement_shard_pin(core, s->id, pinned) != HL_OK)
        hl_debug("pin of a shard: %s", hl_error_text());
}

/* Pins or unpins the shards before any caller is told. */
static void pin_apply(struct hl_controller *c, const char *key)
{
    struct hl_shard_rec *shard;
    struct hl_version_rec *v;
    if (!pin_resolve(c, key, &shard, &v))
        return;
    if (v != NULL)
        set_pin(c, v, pin_has_version(c, v));
    else
        pin_follow(c, shard);
}

void pins_prune(struct hl_controller *c)
{
    struct pin *pin, *next;
    struct hl_shard_rec *shard;
    struct hl_version_rec *v;
    HASH_ITER (hh, c->placement->pins, pin, next) {
        if (pin_resolve(c, pin->key, &shard, &v))
            continue;
        if (pin_write(c, pin->key, 0, false, on_pruned, c) != HL_OK)
            hl_debug("pin was not removed: %s", hl_error_text());
        pin_remove(c, pin);
    }
}

void pins_fini(struct hl_controller *c)
{
    struct pin *pin, *next;
    HASH_ITER (hh, c->placement->pins, pin, next) {
        pin_remove(c, pin);
    }
}

/* ---- pin ------------------------------------------------------------------------------------- */

struct pin_task {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    char key[HL_CATALOG_KEY_MAX];
    int64_t since_ms;
    bool pinned;
};

static void on_pin_written(void *arg, hl_status st, const char *text)
{
    struct pin_task t = *(struct pin_task *)arg;
    free(arg);
    if (controller_stopped(t.c))
        st = hl_fail(HL_ECANCELED, "the Controller was stopped");
    else if (st != HL_OK)
        st = hl_fail(st, "%s", text);
    else if (t.pinned)
        st = pin_add(t.c, t.key, t.since_ms);
    else if (pin_find(t.c, t.key) != NULL)
        pin_remove(t.c, pin_find(t.c, t.key));
    if (st != HL_OK) {
        call_reject(t.call, st);
        return;
    }
    pin_apply(t.c, t.key);
    hl_reply_controller_pin(t.call, &(struct hl_api_controller_pin_results){.changed = true});
}

static hl_status pin_key(const struct hl_controller *c,
                         const struct hl_api_controller_pin_params *p, char *key)
{
    struct hl_id id;
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    if (p->id[0] != '\0') {
        HL_TRY(hl_id_parse(p->id, &id));
        if (hl_catalog_shard(&c->catalog, id) == NULL)
            return hl_fail(HL_ENOENT,
                           "shard %s belongs to no version; `helios shard ls` lists shards", p->id);
        shard_key(id, key);
        return HL_OK;
    }
    if (p->model[0] == '\0')
        return hl_fail(HL_EINVAL, "id and model are missing: name a shard or a version");
    HL_TRY(hl_catalog_model(&c->catalog, p->model, &m));
    HL_TRY(hl_catalog_version(m, p->version, &v));
    version_key(v, key);
    return HL_OK;
}

void method_pin(void *arg, struct hl_rpc_call *call, const struct hl_api_controller_pin_params *p)
{
    struct hl_controller *c = controller_enter(arg);
    struct pin_task *t = calloc(1, sizeof(*t));
    hl_status st = t != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory for a pin");
    if (st == HL_OK) {
        *t = (struct pin_task){.c = c, .call = call, .since_ms = hl_wall_ms(), .pinned = p->pinned};
        st = pin_key(c, p, t->key);
    }
    if (st == HL_OK && (pin_find(c, t->key) != NULL) == p->pinned) {
        hl_reply_controller_pin(call, &(struct hl_api_controller_pin_results){.changed = false});
        free(t);
        return;
    }
    if (st == HL_OK)
        st = pin_write(c, t->key, t->since_ms, t->pinned, on_pin_written, t);
    if (st != HL_OK) {
        call_reject(call, st);
        free(t);
    }
}
