/* The start: what the store has becomes the state. One record that can't be read, because the
 * medium has changed it or somebody has edited it, costs its object and not the start. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/claim.h"
#include "controller/controller_private.h"

#define SEQ_GAP 1000 /* job numbers left out when nobody knows the last one */

/* The sentence of the failure is the thread's. */
static void note_damaged(struct hl_controller *c, const char *key)
{
    hl_error("a record of the store can't be read; its object is left out and the record stays as "
             "it is key=%s error=\"%s\"",
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

/* Nodes register again, and jobs are left alone. */
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

static hl_status load_job(void *arg, const char *key, json_t *value)
{
    hl_status st = jobs_load(arg, value);
    return st == HL_OK || st == HL_ENOMEM ? st : other_damaged(arg, key);
}

static hl_status load_seq(void *arg, const char *key, json_t *value)
{
    struct hl_controller *c = arg;
    (void)key;
    c->job_seq = hl_json_int(value, "last", 0);
    return HL_OK;
}

/* No id is given twice: the numbers of jobs that can't be read count, and where the last number
 * itself is lost a good many are left out. */
static void settle_seq(struct hl_controller *c)
{
    const char *key;
    json_t *why;
    bool unknown = false;
    json_object_foreach (c->damaged, key, why) {
        const char *dash = strrchr(key, '-');
        int64_t seq =
            dash != NULL && strncmp(key, "job/", 4) == 0 ? strtoll(dash + 1, NULL, 10) : 0;
        if (seq > c->job_seq && seq < INT64_MAX - SEQ_GAP)
            c->job_seq = seq;
        unknown |= strncmp(key, "seq/", 4) == 0;
    }
    if (unknown)
        c->job_seq += SEQ_GAP;
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
        {"shard/", load_catalog, catalog_damaged}, {"node/", load_node, other_damaged},
        {"seq/job", load_seq, other_damaged},      {"job/", load_job, other_damaged},
    };

    HL_TRY(hl_store_open(c->opts.store_url, &c->store));
    hl_status st = claim_load(c);
    if (st == HL_ECORRUPT) { /* the pool knows whose it is: helios recover takes that over */
        note_damaged(c, HL_CLAIM_ID_KEY);
        claim_load_none(c);
    } else if (st != HL_OK) {
        return st;
    }
    for (size_t i = 0; i < HL_ARRAY_LEN(kinds); i++)
        HL_TRY(hl_store_scan_past_damage(c->store, kinds[i].prefix, kinds[i].visit,
                                         kinds[i].damaged, c));
    hl_catalog_loaded(&c->catalog);
    settle_seq(c);
    hl_info("state loaded models=%u shards=%u nodes=%u jobs=%u damaged=%zu",
            HASH_COUNT(c->catalog.models), HASH_COUNT(c->catalog.shards), HASH_COUNT(c->nodes),
            HASH_COUNT(c->jobs), json_object_size(c->damaged));
    return HL_OK;
}

/* ---- jobs whose record is damaged ------------------------------------------------------------ */

bool job_is_damaged(const struct hl_controller *c, const char *id)
{
    char key[HL_JOB_ID_MAX + 8];
    snprintf(key, sizeof(key), "job/%s", id);
    return json_object_get(c->damaged, key) != NULL;
}

struct drop {
    struct hl_controller *c;
    struct hl_rpc_call *call;
    char key[HL_JOB_ID_MAX + 8];
};

static void on_dropped(void *arg, hl_status st, const char *text)
{
    struct drop *d = arg;
    if (controller_landed(d->c))
        st = hl_fail(HL_ECANCELED, "the Controller was stopped");
    else if (st == HL_OK)
        json_object_del(d->c->damaged, d->key);
    else
        st = hl_fail(st, "%s", text);
    if (st == HL_OK)
        hl_rpc_reply(d->call, json_pack("{s:s}", "state", "cancelled"));
    else
        reject(d->call, st);
    free(d);
}

void job_drop_damaged(struct hl_controller *c, const char *id, struct hl_rpc_call *call)
{
    struct hl_records records = {0};
    struct drop *d = calloc(1, sizeof(*d));
    hl_status st =
        d != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a cancellation");
    if (st == HL_OK) {
        *d = (struct drop){.c = c, .call = call};
        snprintf(d->key, sizeof(d->key), "job/%s", id);
        st = hl_records_add(&records, NULL, "%s", d->key);
    }
    if (st == HL_OK)
        st = controller_write(c, &records, on_dropped, d);
    hl_records_fini(&records);
    if (st != HL_OK) {
        free(d);
        reject(call, st);
    }
}

/* ---- what was damaged and is removed --------------------------------------------------------- */

void damaged_forget(struct hl_controller *c, const char *model, int64_t version)
{
    const char *key;
    json_t *why;
    void *next;
    json_object_foreach_safe(c->damaged, next, key, why)
    {
        char kind[8], name[HL_MODEL_NAME_MAX + 1];
        int64_t number = -1;
        if (sscanf(key, "%7[a-z]/%128[^/]/%" SCNd64, kind, name, &number) >= 2 &&
            strcmp(kind, "job") != 0 && strcmp(kind, "node") != 0 && strcmp(name, model) == 0 &&
            (version == -1 || number == version))
            json_object_del(c->damaged, key);
    }
}
