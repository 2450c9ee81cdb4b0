/* Sets of shards (core/placement/sets.h). The shards of one position (pp, tp, ep) of a version, or
 * of a cut of it, are read by one rank; a version is the sum of its ranks. So L1 is vacated by
 * whole ranks and versions, and pinning a version pins its set.
 *
 * A set lives from its first shard to its last one. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "controller/placement/placement_private.h"

#define SET_KEY_MAX (HL_MODEL_NAME_MAX + HL_SPLIT_TEXT_MAX + 64)

struct placed_set {
    uint32_t set;
    UT_hash_handle hh;
    char key[];
};

/* "model@3" */
static void set_version_key(const struct hl_version_rec *v, char key[SET_KEY_MAX])
{
    snprintf(key, SET_KEY_MAX, "%s@%" PRId64, v->model->name, v->number);
}

/* "model@3/pp0/tp1/ep0", or for a cut "model@3/TP8/pp0/tp1/ep0" */
static void set_rank_key(const struct hl_shard_rec *s, char key[SET_KEY_MAX])
{
    char split[HL_SPLIT_TEXT_MAX] = "";
    if (s->cut != NULL)
        hl_split_cut_text(&s->cut->split, split);
    snprintf(key, SET_KEY_MAX, "%s@%" PRId64 "/%s%spp%d/tp%d/ep%d", s->version->model->name,
             s->version->number, split, s->cut != NULL ? "/" : "", s->pp, s->tp, s->ep);
}

static struct placed_set *set_find(const struct hl_controller *c, const char *key)
{
    struct placed_set *x;
    HASH_FIND_STR(c->placement->sets, key, x);
    return x;
}

static hl_status set_add(struct hl_controller *c, const char *key, uint32_t above, uint32_t *set)
{
    size_t length = strlen(key);
    struct placed_set *x = calloc(1, sizeof(*x) + length + 1);
    if (x == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the set %s of shards", key);
    hl_status st = hl_placement_set_add(&c->placement->core, above, &x->set);
    if (st != HL_OK) {
        free(x);
        return st;
    }
    memcpy(x->key, key, length);
    HASH_ADD_KEYPTR(hh, c->placement->sets, x->key, length, x);
    *set = x->set;
    return HL_OK;
}

static hl_status set_need_version(struct hl_controller *c, const struct hl_version_rec *v,
                                  bool pinned, uint32_t *set)
{
    char key[SET_KEY_MAX];
    set_version_key(v, key);
    const struct placed_set *x = set_find(c, key);
    if (x != NULL) {
        *set = x->set;
        return HL_OK;
    }
    HL_TRY(set_add(c, key, HL_SET_NONE, set));
    return pinned ? hl_placement_set_pin(&c->placement->core, *set, true) : HL_OK;
}

hl_status set_join(struct hl_controller *c, const struct hl_shard_rec *s, bool version_pinned)
{
    char key[SET_KEY_MAX];
    uint32_t set;
    set_rank_key(s, key);
    const struct placed_set *x = set_find(c, key);
    if (x != NULL) {
        set = x->set;
    } else {
        HL_TRY(set_need_version(c, s->version, version_pinned, &set));
        HL_TRY(set_add(c, key, set, &set));
    }
    return hl_placement_set_join(&c->placement->core, s->id, set);
}

void set_pin(struct hl_controller *c, const struct hl_version_rec *v, bool pinned)
{
    char key[SET_KEY_MAX];
    set_version_key(v, key);
    const struct placed_set *x = set_find(c, key);
    if (x != NULL && hl_placement_set_pin(&c->placement->core, x->set, pinned) != HL_OK)
        hl_debug("pin of a version: %s", hl_error_text());
}

bool set_look(const struct hl_controller *c, const struct hl_version_rec *v,
              struct hl_set_view *out)
{
    char key[SET_KEY_MAX];
    set_version_key(v, key);
    const struct placed_set *x = set_find(c, key);
    return x != NULL && hl_placement_set_look(&c->placement->core, x->set, out) == HL_OK;
}

static void set_remove_empty(struct hl_controller *c, struct placed_set *x)
{
    struct hl_placement *p = &c->placement->core;
    const struct hl_shard_set *set = x != NULL ? hl_set_table_find(&p->sets, x->set) : NULL;
    if (set == NULL || set->shards > 0 || set->sets > 0)
        return;
    if (hl_placement_set_remove(p, x->set) != HL_OK)
        hl_debug("a set of shards was not removed: %s", hl_error_text());
    HASH_DEL(c->placement->sets, x);
    free(x);
}

void set_left(struct hl_controller *c, const struct hl_shard_rec *s, uint32_t set)
{
    char key[SET_KEY_MAX];
    const struct hl_shard_set *x = hl_set_table_find(&c->placement->core.sets, set);
    if (x == NULL || x->shards > 0)
        return;
    set_rank_key(s, key);
    set_remove_empty(c, set_find(c, key));
    set_version_key(s->version, key);
    set_remove_empty(c, set_find(c, key));
}

void sets_fini(struct hl_controller *c)
{
    struct placed_set *x, *next;
    HASH_ITER (hh, c->placement->sets, x, next) {
        HASH_DEL(c->placement->sets, x);
        free(x);
    }
}
