/* Startup: builds the state from the store. A record that can't be read, because the medium has
 * changed it or a user has edited it, costs its object but does not fail the start. */
#include <inttypes.h>

#include "base/log.h"
#include "controller/jobs/jobs.h"
#include "controller/nodes/nodes.h"
#include "controller/placement/placement.h"
#include "controller/service/service_private.h"
#include "core/catalog/catalog_cut.h"
#include "store/store.h"

/* The failure's text is the thread's error text. */
static void note_damaged(struct hl_controller *c, const char *key)
{
    hl_error("a record of the store can't be read; its object is left out and the record is kept "
             "key=%s error=\"%s\"",
             key, hl_error_text());
    if (c->damaged == NULL)
        c->damaged = json_object();
    json_object_set_new(c->damaged, key, json_string(hl_error_text()));
}

static hl_status catalog_damaged(void *arg, const char *key)
{
    struct hl_controller *c = arg;
    note_damaged(c, key);
    hl_status st = hl_catalog_damaged(&c->catalog, key);
    return st == HL_ENOENT ? HL_OK : st;
}

static hl_status load_catalog(void *arg, const char *key, json_t *value)
{
    struct hl_controller *c = arg;
    hl_status st = hl_catalog_load(&c->catalog, key, value);
    return st == HL_ECORRUPT ? catalog_damaged(c, key) : st;
}

/* A cut is made again on request; the sweep frees what is left of this one. */
static hl_status cut_damaged(void *arg, const char *key)
{
    (void)arg;
    hl_warn("cut forgotten key=%s error=\"%s\"", key, hl_error_text());
    return HL_OK;
}

static hl_status load_cut(void *arg, const char *key, json_t *value)
{
    struct hl_controller *c = arg;
    hl_status st = hl_catalog_load_cut(&c->catalog, key, value);
    return st == HL_OK || st == HL_ENOMEM ? st : cut_damaged(c, key);
}

/* Nodes register again by themselves, and jobs are left alone. */
static hl_status other_damaged(void *arg, const char *key)
{
    note_damaged(arg, key);
    return HL_OK;
}

static hl_status load_node(void *arg, const char *key, json_t *value)
{
    hl_status st = nodes_load(arg, value);
    return st == HL_OK || st == HL_ENOMEM ? st : other_damaged(arg, key);
}

static hl_status load_pin(void *arg, const char *key, json_t *value)
{
    hl_status st = placement_load_pin(arg, key, value);
    return st == HL_OK || st == HL_ENOMEM ? st : other_damaged(arg, key);
}

static hl_status load_move(void *arg, const char *key, json_t *value)
{
    hl_status st = placement_load_move(arg, key, value);
    return st == HL_OK || st == HL_ENOMEM ? st : other_damaged(arg, key);
}

static hl_status use_damaged(void *arg, const char *key)
{
    (void)arg;
    hl_warn("the use of a shard is lost, its record can't be read key=%s error=\"%s\"", key,
            hl_error_text());
    return HL_OK;
}

static hl_status load_use(void *arg, const char *key, json_t *value)
{
    hl_status st = placement_load_use(arg, key, value);
    return st == HL_OK || st == HL_ENOMEM ? st : use_damaged(arg, key);
}

static hl_status load_job(void *arg, const char *key, json_t *value)
{
    hl_status st = jobs_load(arg, value);
    return st == HL_OK || st == HL_ENOMEM ? st : other_damaged(arg, key);
}

static hl_status load_queue(void *arg, const char *key, json_t *value)
{
    hl_status st = queue_load_use(arg, key, value);
    return st == HL_OK || st == HL_ENOMEM ? st : other_damaged(arg, key);
}

static hl_status load_failure(void *arg, const char *key, json_t *value)
{
    hl_status st = jobs_load_failure(arg, key, value);
    return st == HL_OK || st == HL_ENOMEM ? st : other_damaged(arg, key);
}

static hl_status load_seq(void *arg, const char *key, json_t *value)
{
    (void)key;
    return jobs_load_seq(arg, value);
}

/* Notes problems that no single record shows. */
static void note_versions(struct hl_controller *c)
{
    char why[160];
    for (const struct hl_model_rec *m = c->catalog.models; m != NULL; m = m->hh.next)
        for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
            if (v->records_missing == 0 && !v->records_differ)
                continue;
            char key[HL_CATALOG_KEY_MAX];
            snprintf(key, sizeof(key), "version/%s/%010" PRId64, m->name, v->number);
            (void)hl_fail(HL_ECORRUPT, "version %" PRId64 " of '%s': %s", v->number, m->name,
                          hl_version_trouble(v, why, sizeof(why)));
            note_damaged(c, key);
        }
}

/* Models before their versions before their shards; nodes before the jobs that run on them. */
hl_status state_load(struct hl_controller *c)
{
    static const struct {
        const char *prefix;
        hl_store_visit visit;
        hl_store_damaged damaged;
    } kinds[] = {
        {"model/", load_catalog, catalog_damaged}, {"version/", load_catalog, catalog_damaged},
        {"shard/", load_catalog, catalog_damaged}, {"cut/", load_cut, cut_damaged},
        {"node/", load_node, other_damaged},       {"seq/job", load_seq, other_damaged},
        {"job/", load_job, other_damaged},         {"pin/", load_pin, other_damaged},
        {"move/", load_move, other_damaged},       {"failure/", load_failure, other_damaged},
        {"queue/", load_queue, other_damaged},     {"use/", load_use, use_damaged},
    };

    HL_TRY(hl_store_open(c->opts.store_url, &c->store));
    hl_status st = claim_load(c);
    if (st == HL_ECORRUPT) { /* the pool knows its owner: helios recover takes that over */
        note_damaged(c, HL_CLAIM_ID_KEY);
        claim_load_none(c);
    } else if (st != HL_OK) {
        return st;
    }
    HL_TRY(claim_begin_epoch(c));
    for (size_t i = 0; i < HL_ARRAY_LEN(kinds); i++)
        HL_TRY(hl_store_scan_past_damage(c->store, kinds[i].prefix, kinds[i].visit,
                                         kinds[i].damaged, c));
    hl_catalog_loaded(&c->catalog);
    note_versions(c);
    jobs_settle_seq(c);
    hl_info("state loaded models=%u shards=%u nodes=%u jobs=%u damaged=%zu",
            HASH_COUNT(c->catalog.models), HASH_COUNT(c->catalog.shards), nodes_count(c),
            jobs_count(c), json_object_size(c->damaged));
    return HL_OK;
}
