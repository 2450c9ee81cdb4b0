/* Write-behind: what visible versions hold in the pool and the archive has not yet is archived, a
 * batch at a time. The sweep knows what is missing, so nothing has to be remembered: whatever dies,
 * the next sweep finds the rest. */
#include <string.h>

#include "base/log.h"
#include "controller/controller_private.h"

#define BATCH 256

static void on_archived(void *arg, hl_status st, const char *text, json_t *result)
{
    struct hl_controller *c = arg;
    (void)result;
    if (controller_landed(c))
        return;
    c->archiving = 0;
    if (st == HL_OK) {
        c->archive_complained = 0;
        c->sweep_ns = 0; /* is there more? */
    } else if (!c->archive_complained) {
        c->archive_complained = 1;
        hl_warn("not everything is archived yet, each sweep tries again error=\"%s\"", text);
    }
}

void archive_behind(struct hl_controller *c)
{
    if (c->archiving || strcmp(hl_json_str(c->pool, "archiveMode", ""), "write-behind") != 0)
        return;
    json_t *ids = json_array();
    for (struct hl_shard_rec *s = c->catalog.shards; s != NULL; s = s->hh.next) {
        if (s->version->state != HL_VERSION_VISIBLE || s->archived || s->dropping || s->missed > 0)
            continue;
        json_array_append_new(ids, json_string(hl_id_format(s->id).s));
        if (json_array_size(ids) == BATCH)
            break;
    }
    manifests_not_archived(c, ids, BATCH);
    if (json_array_size(ids) > 0) {
        json_t *params = json_pack("{s:O}", "ids", ids);
        c->archiving = 1;
        controller_call_for(c, c->l3, "archive", params, c->opts.copy_timeout_ms, on_archived, c);
        json_decref(params);
    }
    json_decref(ids);
}

/* The daemon can't see who reads its mapped pool, and gives up first what was not used for long. */
static void on_touched(void *arg, hl_status st, const char *text, json_t *result)
{
    (void)result;
    if (!controller_landed(arg) && st != HL_OK)
        hl_debug("L3 was not told of reads: %s", text);
}

void archive_touch(struct hl_controller *c, const json_t *reports)
{
    json_t *ids = json_array(), *r;
    size_t i;
    json_array_foreach (pool_has_archive(c) ? reports : NULL, i, r) {
        if (strcmp(hl_json_str(r, "path", ""), "shm") == 0 && hl_json_int(r, "count", 0) > 0)
            json_array_append(ids, json_object_get(r, "id"));
    }
    if (json_array_size(ids) > 0) {
        json_t *params = json_pack("{s:O}", "ids", ids);
        controller_call(c, c->l3, "touch", params, on_touched, c);
        json_decref(params);
    }
    json_decref(ids);
}
