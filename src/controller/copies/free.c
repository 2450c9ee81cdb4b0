/* Shards that belong to nothing any more leave the pool and the archive. */
#include "base/log.h"
#include "controller/controller_private.h"
#include "controller/copies/claim.h"
#include "controller/copies/copies.h"

static void on_freed(void *arg, hl_status st, const char *text, json_t *result)
{
    (void)result;
    if (!controller_landed(arg) && st != HL_OK)
        hl_warn("shards were not freed and wait for the sweep error=\"%s\"", text);
}

void free_in_pool(struct hl_controller *c, const struct hl_id *ids, size_t n)
{
    /* While it is not known whose the pool is they stay; the sweep finds them. */
    if (n == 0 || c->closing || !claim_ok(c, NULL, 0))
        return;
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++) {
        json_array_append_new(list, json_string(hl_id_format(ids[i]).s));
        copies_remove(c, ids[i]);
    }
    json_t *params = json_pack("{s:o s:s}", "ids", list, "cluster", claim_cluster(c).s);
    controller_call(c, c->l3, "free", params, on_freed, c);
    if (pool_has_archive(c))
        controller_call(c, c->l3, "dropArchived", params, on_freed, c);
    json_decref(params);
}
