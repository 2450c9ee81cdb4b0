#include "core/catalog/catalog_cut.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/catalog/catalog_private.h"
#include "core/model/layout.h"
#include "core/model/part.h"
#include "core/reshard/piece.h"
#include "core/reshard/proof.h"

/* ---- what can be cut ------------------------------------------------------------------------- */

/* A shard's tensors, sorted by name. */
struct listed {
    struct hl_tensor *tensors;
    size_t count;
};

/* Reads the tensors of the shard `part` at the same position as `s`. Returns false if that shard is
 * missing or its layout is unknown. */
static bool read_beside(const struct hl_version_rec *v, const struct hl_proof_shard *s,
                        const char *part, struct hl_arena *arena, struct listed *out)
{
    struct hl_partition_shard key = {.pp = s->pp, .tp = s->tp, .ep = s->ep};
    if ((size_t)snprintf(key.part, sizeof(key.part), "%s", part) >= sizeof(key.part))
        return false;
    struct hl_shard_rec *const *at = hl_version_shard_at(v, &key);
    return at != NULL && (*at)->layout != NULL &&
           hl_layout_read((*at)->layout, arena, &out->tensors, &out->count) == HL_OK;
}

static int name_order(const void *key, const void *element)
{
    return strcmp(key, ((const struct hl_tensor *)element)->name);
}

static const struct hl_tensor *find_listed(const struct listed *list, const char *name)
{
    return bsearch(name, list->tensors, list->count, sizeof(*list->tensors), name_order);
}

/* The state has the shape of the parameter whose name its own name ends with. */
static bool has_whole_shape(const struct hl_tensor *state, const struct listed *parameters)
{
    for (const char *at = state->name; at != NULL;) {
        const struct hl_tensor *t = find_listed(parameters, at);
        if (t != NULL)
            return t->rank == state->rank &&
                   memcmp(t->shape, state->shape, t->rank * sizeof(*t->shape)) == 0;
        at = strchr(at, '.');
        at = at != NULL ? at + 1 : NULL;
    }
    return false;
}

/* A lower rank's share holds one of these tensors as well. */
static bool is_shared_before(const struct hl_version_rec *v, const struct hl_proof_shard *s,
                             const struct listed *held, struct hl_arena *arena)
{
    const struct hl_part share = hl_part_of(s->part);
    char part[HL_PARTITION_PART_MAX];
    struct listed other;
    for (int dp = 0; dp < share.dp; dp++) {
        if (dp == 0)
            snprintf(part, sizeof(part), "optim-%s", share.of);
        else
            snprintf(part, sizeof(part), "optim-dp%dof%d-%s", dp, share.dp_size, share.of);
        if (!read_beside(v, s, part, arena, &other))
            continue;
        for (size_t i = 0; i < held->count; i++)
            if (find_listed(&other, held->tensors[i].name) != NULL)
                return true;
    }
    return false;
}

/* Every tensor of the shard is the whole state of a parameter, and no other share holds it. */
static bool holds_whole_state(const struct hl_version_rec *v, const struct hl_proof_shard *s)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct listed parameters, held;
    if (!read_beside(v, s, s->part, &arena, &held) ||
        !read_beside(v, s, hl_part_of(s->part).of, &arena, &parameters))
        return false;
    for (size_t i = 0; i < held.count; i++)
        if (!has_whole_shape(&held.tensors[i], &parameters))
            return false;
    return !is_shared_before(v, s, &held, &arena);
}

/* Lists the version's shards with their pieces joined. */
HL_CHECK static hl_status join_pieces(const struct hl_version_rec *v, struct hl_arena *arena,
                                      struct hl_proof_shard **out, size_t *count)
{
    struct hl_proof_shard *list = hl_arena_array(arena, v->shard_count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", v->shard_count);
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        list[i] = (struct hl_proof_shard){.pp = s->pp,
                                          .tp = s->tp,
                                          .ep = s->ep,
                                          .rank = s->rank,
                                          .part = s->part,
                                          .layout = s->layout};
    }
    return hl_proof_join_pieces(list, v->shard_count, arena, out, count);
}

static bool shares_state(const struct hl_version_rec *v)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_proof_shard *list;
    size_t count;
    bool shares = false, pieces = false;
    if (join_pieces(v, &arena, &list, &count) != HL_OK) {
        hl_error_clear();
        return true;
    }
    for (size_t i = 0; i < count && !shares; i++)
        shares = hl_part_of(list[i].part).dp_size > 1;
    for (size_t i = 0; i < count && shares && !pieces; i++) {
        const struct hl_proof_shard *s = &list[i];
        pieces =
            hl_part_of(s->part).kind == HL_PART_OPTIM && !s->joined && !holds_whole_state(v, s);
    }
    return pieces;
}

bool hl_version_shares_state(struct hl_version_rec *v)
{
    if (v->shares_state == 0)
        v->shares_state = shares_state(v) ? 1 : -1;
    return v->shares_state > 0;
}

bool hl_shard_can_be_cut(const struct hl_shard_rec *s, bool shares)
{
    enum hl_part_kind kind = hl_part_of(s->part).kind;
    return kind == HL_PART_MODEL || (kind == HL_PART_OPTIM && !shares);
}

bool hl_shard_is_common(const struct hl_version_rec *v, const struct hl_shard_rec *s)
{
    const struct hl_api_split own = hl_version_split(v);
    struct hl_partition_shard key = {.pp = s->pp};
    if (hl_part_of(s->part).kind != HL_PART_EXTRA || hl_part_has_experts(s->part) ||
        s->layout == NULL || s->tensor_crcs == NULL ||
        (size_t)snprintf(key.part, sizeof(key.part), "%s", s->part) >= sizeof(key.part))
        return false;
    for (key.tp = 0; key.tp < own.tp; key.tp++) {
        struct hl_shard_rec *const *at = hl_version_shard_at(v, &key);
        if (at == NULL || (*at)->layout == NULL || (*at)->tensor_crcs == NULL ||
            strcmp((*at)->layout, s->layout) != 0 ||
            strcmp((*at)->tensor_crcs, s->tensor_crcs) != 0)
            return false;
    }
    return true;
}

const char *hl_version_left_out(struct hl_version_rec *v, char *buf, size_t cap)
{
    size_t shares = 0, blobs = 0;
    const struct hl_shard_rec *first = NULL;
    int n = 0;
    buf[0] = '\0';
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        enum hl_part_kind kind = hl_part_of(s->part).kind;
        bool blob = kind == HL_PART_EXTRA && !hl_shard_is_common(v, s);
        shares += kind == HL_PART_OPTIM;
        blobs += blob;
        first = blob && first == NULL ? s : first;
    }
    if (shares > 0 && hl_version_shares_state(v))
        n = snprintf(buf, cap,
                     "optimizer state (%zu shards): data-parallel ranks hold shares of it, and "
                     "some tensors are neither whole in one share nor in pieces that cover them, "
                     "so only their own split can read it",
                     shares);
    if (blobs > 0 && n >= 0 && (size_t)n < cap)
        snprintf(
            buf + n, cap - (size_t)n,
            "%sextra state of modules (%zu shards, such as %.31s at pp %d): tensor ranks differ "
            "in it, and it can't be cut",
            n > 0 ? "; " : "", blobs, first->part, first->pp);
    return buf;
}

struct hl_api_split hl_version_cut_split(const struct hl_version_rec *v,
                                         const struct hl_api_split *want)
{
    const struct hl_api_split own = hl_version_split(v);
    struct hl_api_split s = hl_split_resolve(want, &own);
    s.pp = 1;
    s.virtual_stages = 1;
    s.first_stage_layers = s.last_stage_layers = 0;
    return s;
}

/* The contents of the version's shards, taken from the layouts recorded with them. */
struct recorded {
    const struct hl_version_rec *v;
    struct hl_arena arena;
    struct listed *read; /* one entry per shard; tensors are read on first use */
};

HL_CHECK static hl_status read_recorded(struct recorded *r, struct hl_shard_rec *const *at,
                                        struct listed **out)
{
    *out = &r->read[at - r->v->shards];
    if ((*out)->tensors != NULL)
        return HL_OK;
    return hl_layout_read((*at)->layout, &r->arena, &(*out)->tensors, &(*out)->count);
}

static hl_status find_recorded(void *arg, const struct hl_partition_shard *shard, const char *name,
                               const struct hl_tensor **out)
{
    struct recorded *r = arg;
    struct listed *held;
    struct hl_shard_rec *const *at = hl_version_shard_at(r->v, shard);
    if (at == NULL)
        return hl_fail(HL_EINVAL,
                       "the version has no part %s at pp %d, tp %d, which its config requires",
                       shard->part, shard->pp, shard->tp);
    if ((*at)->layout == NULL)
        return hl_fail(HL_EUNSUPPORTED,
                       "it was stored by an earlier release, which did not record the tensors of "
                       "its shards; export it (`helios model export --format hf`) and import that");
    HL_TRY(read_recorded(r, at, &held));
    *out = find_listed(held, name);
    if (*out == NULL)
        return hl_fail(HL_EINVAL, "part %s at pp %d, tp %d lacks the tensor '%.200s'", shard->part,
                       shard->pp, shard->tp, name);
    return HL_OK;
}

static hl_status list_recorded(void *arg, const struct hl_partition_shard *shard,
                               const struct hl_tensor **out, size_t *count)
{
    struct recorded *r = arg;
    struct hl_shard_rec *const *at = hl_version_shard_at(r->v, shard);
    struct listed none = {0}, *held = &none;
    if (at != NULL && (*at)->layout != NULL)
        HL_TRY(read_recorded(r, at, &held));
    *out = held->tensors;
    *count = held->count;
    return HL_OK;
}

static hl_status crc_recorded(void *arg, const struct hl_partition_shard *shard, const char *name,
                              uint32_t *out)
{
    struct recorded *r = arg;
    struct hl_shard_rec *const *at = hl_version_shard_at(r->v, shard);
    struct listed *held;
    if (at == NULL || (*at)->tensor_crcs == NULL)
        return hl_fail(
            HL_EUNSUPPORTED,
            "part %s at pp %d, tp %d came without the checksums of its tensors, so it is not known "
            "whether tensor ranks hold the same '%.200s'; read the version as it was saved",
            shard->part, shard->pp, shard->tp, name);
    HL_TRY(read_recorded(r, at, &held));
    const struct hl_tensor *t = find_listed(held, name);
    if (t == NULL)
        return hl_fail(HL_EINTERNAL, "tensor '%s' was listed but does not exist", name);
    *out = hl_layout_crc((*at)->tensor_crcs, (size_t)(t - held->tensors));
    return HL_OK;
}

/* The state, or piece of one, belongs to a tensor of the part that the config does not name. */
static bool is_beside(const struct hl_whole *w, const struct hl_partition_shard *part,
                      const char *state)
{
    const struct hl_partition_plan *p = &w->ranks;
    size_t len = hl_piece_name_len(state, strlen(state));
    for (uint32_t i = part->tensor_first; i < part->tensor_first + part->tensor_count; i++) {
        const char *name = p->tensors[i].name;
        size_t n = strlen(name);
        if (p->op_first[i] < p->op_first[i + 1] &&
            p->ops[p->op_first[i]].source >= w->beside_first && len > n &&
            state[len - n - 1] == '.' && strncmp(state + len - n, name, n) == 0)
            return true;
    }
    return false;
}

HL_CHECK static hl_status check_state(struct recorded *r, const struct hl_whole *w,
                                      const struct hl_partition_shard *part,
                                      const struct hl_shard_rec *s)
{
    struct hl_partition_shard own = {.pp = s->pp, .tp = s->tp, .ep = s->ep}, first;
    struct listed held, its;
    snprintf(own.part, sizeof(own.part), "%.*s", HL_PARTITION_PART_MAX - 1, s->part);
    first = own;
    first.tp = 0;
    HL_TRY(list_recorded(r, &own, (const struct hl_tensor **)&held.tensors, &held.count));
    HL_TRY(list_recorded(r, &first, (const struct hl_tensor **)&its.tensors, &its.count));
    for (size_t i = 0; i < held.count; i++) {
        const char *name = held.tensors[i].name;
        uint32_t crc = 0, other = 1;
        if (!is_beside(w, part, name))
            continue;
        if (find_listed(&its, name) != NULL) {
            HL_TRY(crc_recorded(r, &own, name, &crc));
            HL_TRY(crc_recorded(r, &first, name, &other));
        }
        if (crc != other)
            return hl_fail(HL_EUNSUPPORTED,
                           "optimizer tensor '%.200s' of part %s at pp %d belongs to none that the "
                           "model's config asks for, and tensor ranks 0 and %d differ in it: read "
                           "the version as it was saved",
                           name, s->part, s->pp, s->tp);
    }
    return HL_OK;
}

/* A cut keeps only one of the tensor ranks' states of such a tensor, so they must all be the
 * same. */
HL_CHECK static hl_status check_states(struct recorded *r, const struct hl_whole *w)
{
    const struct hl_partition_plan *p = &w->ranks;
    for (size_t i = 0; w->beside_first < w->logical.count && i < r->v->shard_count; i++) {
        const struct hl_shard_rec *s = r->v->shards[i];
        const struct hl_part part = hl_part_of(s->part);
        for (size_t k = 0; part.kind == HL_PART_OPTIM && s->tp > 0 && k < p->shard_count; k++)
            if (p->shards[k].pp == s->pp && p->shards[k].tp == s->tp &&
                strcmp(p->shards[k].part, part.of) == 0)
                HL_TRY(check_state(r, w, &p->shards[k], s));
    }
    return HL_OK;
}

hl_status hl_version_plan_cut(const struct hl_version_rec *v, const struct hl_api_split *want,
                              struct hl_whole *out)
{
    HL_AUTO(hl_freep) char *config = NULL;
    const struct hl_api_split own = hl_version_split(v), split = hl_version_cut_split(v, want);
    struct recorded r = {.v = v};
    const struct hl_whole_stored stored = {find_recorded, list_recorded, crc_recorded, &r};
    HL_TRY(hl_split_config(v->model->config, &own, v->model->shape.layers, &config));
    r.read = hl_arena_array(&r.arena, v->shard_count + 1, sizeof(*r.read));
    hl_status st = r.read != NULL
                       ? hl_whole_split(config, &split, &stored, out)
                       : hl_fail(HL_ENOMEM, "out of memory for %zu shards", v->shard_count);
    if (st == HL_OK && ((st = hl_version_check_planned(v, &out->ranks, shares_state(v))) != HL_OK ||
                        (st = check_states(&r, out)) != HL_OK))
        hl_whole_fini(out);
    hl_arena_fini(&r.arena);
    return st;
}

hl_status hl_version_copy_for_cut(const struct hl_version_rec *v, struct hl_arena *arena,
                                  struct hl_version_rec **out)
{
    struct hl_version_rec *copy = hl_arena_alloc(arena, sizeof(*copy));
    struct hl_model_rec *m = hl_arena_alloc(arena, sizeof(*m));
    struct hl_shard_rec *shards = hl_arena_array(arena, v->shard_count + 1, sizeof(*shards));
    struct hl_shard_rec **list = hl_arena_array(arena, v->shard_count + 1, sizeof(*list));
    if (copy == NULL || m == NULL || shards == NULL || list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for %zu shards", v->shard_count);
    m->config = hl_arena_strdup(arena, v->model->config);
    m->shape = v->model->shape;
    *copy = (struct hl_version_rec){.number = v->number,
                                    .split = hl_version_split(v),
                                    .shards = list,
                                    .shard_count = v->shard_count,
                                    .model = m};
    for (size_t i = 0; i < v->shard_count; i++) {
        const struct hl_shard_rec *s = v->shards[i];
        shards[i] = (struct hl_shard_rec){.pp = s->pp,
                                          .tp = s->tp,
                                          .ep = s->ep,
                                          .tensors = s->tensors,
                                          .layout = hl_arena_strdup(arena, s->layout),
                                          .tensor_crcs = hl_arena_strdup(arena, s->tensor_crcs)};
        memcpy(shards[i].part, s->part, sizeof(s->part));
        list[i] = &shards[i];
    }
    *out = copy;
    return hl_arena_failed(arena)
               ? hl_fail(HL_ENOMEM, "out of memory for %zu shards", v->shard_count)
               : HL_OK;
}

hl_status hl_version_check_cut(const struct hl_version_rec *v, const struct hl_api_split *want)
{
    struct hl_whole w;
    HL_TRY(hl_version_plan_cut(v, want, &w));
    hl_whole_fini(&w);
    return HL_OK;
}

/* ---- the cuts of a version ------------------------------------------------------------------- */

struct hl_cut_rec *hl_version_find_cut(const struct hl_version_rec *v,
                                       const struct hl_api_split *want)
{
    for (struct hl_cut_rec *cut = v->cuts; cut != NULL; cut = cut->next)
        if (hl_split_same_cut(&cut->split, want) && !hl_cut_is_lost(cut))
            return cut;
    return NULL;
}

bool hl_version_needs_cut(const struct hl_version_rec *v, const struct hl_api_split *want)
{
    const struct hl_api_split own = hl_version_split(v), s = hl_split_resolve(want, &own);
    return !v->model->shape.unsliced && !hl_split_same_cut(&own, &s) &&
           hl_version_find_cut(v, &s) == NULL;
}

static struct hl_cut_rec *cut_new(struct hl_version_rec *v, const struct hl_api_split *split,
                                  const char *left_out, size_t shards)
{
    struct hl_cut_rec *cut = calloc(1, sizeof(*cut));
    if (cut == NULL)
        return NULL;
    cut->split = *split;
    cut->version = v;
    cut->left_out = hl_text_copy(left_out);
    cut->shards = calloc(shards + 1, sizeof(struct hl_shard_rec *));
    if (cut->left_out == NULL || cut->shards == NULL) {
        hl_cut_rec_free(cut);
        return NULL;
    }
    return cut;
}

/* ---- their records --------------------------------------------------------------------------- */

static hl_status cut_describe(struct hl_records *r, const struct hl_cut_rec *cut)
{
    char key[HL_CATALOG_KEY_MAX];
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_cut_record record = {.model = cut->version->model->name,
                                       .version = cut->version->number,
                                       .split = cut->split,
                                       .left_out = cut->left_out};
    record.shards.items = hl_arena_array(&arena, cut->shard_count, sizeof(*record.shards.items));
    for (size_t i = 0; record.shards.items != NULL && i < cut->shard_count; i++) {
        const struct hl_shard_rec *s = cut->shards[i];
        record.shards.items[record.shards.count++] =
            (struct hl_api_cut_shard){.id = hl_id_print(s->id, &arena),
                                      .tp = s->tp,
                                      .ep = s->ep,
                                      .part = s->part,
                                      .size_bytes = s->size_bytes,
                                      .crc32 = s->crc32,
                                      .tensors = s->tensors,
                                      .layout = s->layout};
    }
    json_t *value =
        hl_arena_failed(&arena) ? NULL : hl_api_to_json(&hl_api_cut_record_type, &record);
    if (value == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the record of a cut");
    hl_cut_record_key(cut, key);
    return hl_records_add(r, value, "%s", key);
}

static hl_status add_shard(struct hl_cut_rec *cut, const struct hl_api_shard *shard)
{
    struct hl_shard_rec *s = hl_shard_rec_new(shard);
    if (s == NULL)
        return HL_EINVAL;
    s->version = cut->version;
    s->cut = cut;
    cut->shards[cut->shard_count++] = s;
    return s->layout != NULL ? HL_OK
                             : hl_fail(HL_EINVAL, "shard %s of a cut has no layout", shard->id);
}

hl_status hl_catalog_load_cut(struct hl_catalog *c, const char *key, const json_t *value)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_api_cut_record record;
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    char own[HL_CATALOG_KEY_MAX];
    HL_TRY(hl_api_from_json(&hl_api_cut_record_type, value, &arena, &record));
    HL_TRY(hl_catalog_model(c, record.model, &m));
    HL_TRY(hl_catalog_version(m, record.version, &v));
    struct hl_cut_rec *cut = cut_new(v, &record.split, record.left_out, record.shards.count);
    if (cut == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a cut");
    hl_cut_record_key(cut, own);
    hl_status st = strcmp(own, key) == 0
                       ? HL_OK
                       : hl_fail(HL_ECORRUPT, "its content belongs under the key %s", own);
    for (size_t i = 0; st == HL_OK && i < record.shards.count; i++) {
        const struct hl_api_cut_shard *s = &record.shards.items[i];
        st = add_shard(cut, &(struct hl_api_shard){.id = s->id,
                                                   .tp = s->tp,
                                                   .ep = s->ep,
                                                   .part = s->part,
                                                   .size_bytes = s->size_bytes,
                                                   .crc32 = s->crc32,
                                                   .tensors = s->tensors,
                                                   .layout = s->layout});
    }
    if (st == HL_OK)
        st = hl_shards_check(c, cut->shards, cut->shard_count);
    if (st != HL_OK) {
        hl_cut_rec_free(cut);
        return st;
    }
    hl_cut_link(c, cut);
    return HL_OK;
}

/* ---- changes --------------------------------------------------------------------------------- */

static bool cut_serves(const struct hl_cut_rec *cut, const void *split)
{
    return hl_split_same_cut(&cut->split, split);
}

static bool is_lost(const struct hl_cut_rec *cut, const void *none)
{
    (void)none;
    return hl_cut_is_lost(cut);
}

/* Cuts to be dropped, and the ids of their shards. */
struct going {
    bool (*goes)(const struct hl_cut_rec *cut, const void *arg);
    const void *arg;
    struct hl_id *ids;
    size_t count;
};

/* `replaced`: the caller writes new records for them. */
static hl_status describe_going(struct going *g, struct hl_version_rec *v, bool replaced,
                                struct hl_records *r)
{
    for (const struct hl_cut_rec *cut = v->cuts; cut != NULL; cut = cut->next) {
        if (!g->goes(cut, g->arg))
            continue;
        struct hl_id *ids = realloc(g->ids, (g->count + cut->shard_count + 1) * sizeof(*ids));
        if (ids == NULL)
            return hl_fail(HL_ENOMEM, "out of memory listing %zu shards", cut->shard_count);
        g->ids = ids;
        for (size_t i = 0; i < cut->shard_count; i++)
            g->ids[g->count++] = cut->shards[i]->id;
        if (!replaced)
            HL_TRY(hl_cut_describe_removal(r, cut));
    }
    return HL_OK;
}

static void unlink_going(const struct going *g, struct hl_catalog *c, struct hl_version_rec *v)
{
    struct hl_cut_rec *cut, *next;
    for (cut = v->cuts; cut != NULL; cut = next) {
        next = cut->next;
        if (g->goes(cut, g->arg))
            hl_cut_unlink(c, cut);
    }
}

static hl_status cut_of_shards(const struct hl_catalog *c, struct hl_version_rec *v,
                               const struct hl_api_split *split,
                               const struct hl_api_shard_list *shards, struct hl_cut_rec **out)
{
    char left_out[512];
    struct hl_cut_rec *cut =
        cut_new(v, split, hl_version_left_out(v, left_out, sizeof(left_out)), shards->count);
    if (cut == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for a cut");
    hl_status st = HL_OK;
    for (size_t i = 0; st == HL_OK && i < shards->count; i++)
        st = add_shard(cut, &shards->items[i]);
    if (st == HL_OK)
        st = hl_shards_check(c, cut->shards, cut->shard_count);
    if (st != HL_OK) {
        hl_cut_rec_free(cut);
        return st;
    }
    *out = cut;
    return HL_OK;
}

hl_status hl_catalog_add_cut(struct hl_catalog *c, struct hl_version_rec *v,
                             const struct hl_api_split *split,
                             const struct hl_api_shard_list *shards, hl_catalog_commit_fn commit,
                             void *arg, struct hl_id **ids, size_t *id_count)
{
    struct going g = {cut_serves, split, NULL, 0};
    struct hl_records records = {0};
    struct hl_cut_rec *cut = NULL;
    HL_TRY(cut_of_shards(c, v, split, shards, &cut));
    hl_status st = describe_going(&g, v, true, &records);
    if (st == HL_OK)
        st = cut_describe(&records, cut);
    if (st == HL_OK)
        st = commit(arg, &records);
    hl_records_fini(&records);
    if (st != HL_OK) {
        free(g.ids);
        hl_cut_rec_free(cut);
        return st;
    }
    unlink_going(&g, c, v);
    hl_cut_link(c, cut);
    *ids = g.ids;
    *id_count = g.count;
    return HL_OK;
}

bool hl_catalog_has_lost_cuts(const struct hl_catalog *c)
{
    for (const struct hl_model_rec *m = c->models; m != NULL; m = m->hh.next)
        for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            for (const struct hl_cut_rec *cut = v->cuts; cut != NULL; cut = cut->next)
                if (hl_cut_is_lost(cut))
                    return true;
    return false;
}

hl_status hl_catalog_drop_lost_cuts(struct hl_catalog *c, hl_catalog_commit_fn commit, void *arg,
                                    struct hl_id **ids, size_t *id_count)
{
    struct going g = {is_lost, NULL, NULL, 0};
    struct hl_records records = {0};
    struct hl_model_rec *m;
    struct hl_version_rec *v;
    hl_status st = HL_OK;
    for (m = c->models; st == HL_OK && m != NULL; m = m->hh.next)
        for (v = m->versions; st == HL_OK && v != NULL; v = v->next)
            st = describe_going(&g, v, false, &records);
    if (st == HL_OK && g.count > 0)
        st = commit(arg, &records);
    hl_records_fini(&records);
    if (st != HL_OK) {
        free(g.ids);
        return st;
    }
    for (m = c->models; m != NULL; m = m->hh.next)
        for (v = m->versions; v != NULL; v = v->next)
            unlink_going(&g, c, v);
    *ids = g.ids;
    *id_count = g.count;
    return HL_OK;
}
