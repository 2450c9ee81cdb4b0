/* Derives the adapter's family from the base's. For every matrix that the adapter changes there
 * are rows for A, for B and for their companions, with the rank of A and B as a number. Tensors
 * that the adapter has whole keep the base's row. Consecutive layers that are adapted alike
 * share rows. */
#include "core/model/lora.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "core/families/logical.h"

#define PREFIX   "base_model.model."
#define ROWS_MAX 65536
#define NAME_CAP 256
#define REMEDY   "merge the adapter into its base (PEFT's merge_and_unload) and import the result"

/* The tensors that an adapter can have for a module. */
enum piece {
    PIECE_A,
    PIECE_B,
    PIECE_BIAS,      /* bias of B (lora_bias) */
    PIECE_MAGNITUDE, /* DoRA: one number per output */
    PIECE_MAGNITUDE_WEIGHT,
    PIECES,
};

static const struct {
    const char *ending; /* in PEFT's names */
    const char *name;   /* in Megatron-Bridge's names, below the adapter */
} pieces[PIECES] = {{".lora_A.weight", "linear_in.weight"},
                    {".lora_B.weight", "linear_out.weight"},
                    {".lora_B.bias", "linear_out.bias"},
                    {".lora_magnitude_vector", "weight_magnitude"},
                    {".lora_magnitude_vector.weight", "weight_magnitude"}};

/* How a module is adapted in one layer. */
struct adapted {
    uint64_t rank;    /* rank of A and B; 0 = not adapted */
    bool has[PIECES]; /* companions of A and B */
    bool whole;       /* instead of A and B the adapter has all of the row's own tensors */
};

static bool same_adapted(const struct adapted *a, const struct adapted *b)
{
    for (int i = 0; i < PIECES; i++)
        if (a->has[i] != b->has[i])
            return false;
    return a->rank == b->rank && a->whole == b->whole;
}

struct lora {
    const struct hl_hf_config *base;
    const struct hl_family_prefix *prefix; /* the base's prefix that the adapter's names use */
    const struct hl_tensor *sources;
    size_t count;
    const struct hl_tensor **by_name; /* the adapter's tensors */
    struct hl_logical logical;        /* the base's tensors */
    const struct hl_tensor **modules; /* the base's tensors by name */
    struct hl_arena arena;
    struct hl_family family;
    struct hl_family_prefix prefixes[2];
    struct hl_family_tensor *rows;
    size_t row_count;
};

/* ---- names ----------------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct hl_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->name, (*y)->name);
}

static const struct hl_tensor *find_tensor(const struct hl_tensor **sorted, size_t count,
                                           const char *name)
{
    const struct hl_tensor key = {.name = name}, *at = &key;
    const struct hl_tensor **hit =
        count > 0 ? bsearch(&at, sorted, count, sizeof(*sorted), by_name) : NULL;
    return hit != NULL ? *hit : NULL;
}

/* Finds the adapter's tensor PREFIX + first `len` bytes of the name + ending. */
static const struct hl_tensor *find_piece(const struct lora *l, const char *name, size_t len,
                                          const char *ending)
{
    char text[2 * NAME_CAP];
    int n = snprintf(text, sizeof(text), PREFIX "%.*s%s", (int)len, name, ending);
    return n > 0 && (size_t)n < sizeof(text) ? find_tensor(l->by_name, l->count, text) : NULL;
}

HL_CHECK static hl_status sort_tensors(const struct hl_tensor *tensors, size_t count,
                                       const struct hl_tensor ***out)
{
    const struct hl_tensor **list = calloc(count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the names of %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        list[i] = &tensors[i];
    qsort(list, count, sizeof(*list), by_name);
    *out = list;
    return HL_OK;
}

/* Splits "base_model.model.X.lora_A.weight" into X and the piece; false = another name. */
static bool split_name(const char *name, char *module, size_t cap, enum piece *piece)
{
    size_t n = strlen(name), p = strlen(PREFIX);
    if (strncmp(name, PREFIX, p) != 0)
        return false;
    for (int i = 0; i < PIECES; i++) {
        size_t e = strlen(pieces[i].ending);
        if (n <= p + e || n - p - e >= cap || strcmp(name + n - e, pieces[i].ending) != 0)
            continue;
        snprintf(module, cap, "%.*s", (int)(n - p - e), name + p);
        *piece = (enum piece)i;
        return true;
    }
    return false;
}

/* Finds the base's prefix that the adapter's names use. Modules are named after the class that was
 * trained, which can differ from the class that wrote the base's files. */
static void find_prefix(struct lora *l)
{
    char start[NAME_CAP];
    l->prefix = l->base->family->prefixes;
    for (const struct hl_family_prefix *at = l->prefix; at->body != NULL; at++) {
        int n = snprintf(start, sizeof(start), PREFIX "%s%s", at->body, l->base->family->layers);
        for (size_t i = 0; i < l->count; i++)
            if (strncmp(l->sources[i].name, start, (size_t)n) == 0) {
                l->prefix = at;
                return;
            }
    }
}

/* ---- the adapter against its base ------------------------------------------------------------ */

HL_CHECK static hl_status fail_kind(const char *name)
{
    static const struct {
        const char *has, *what;
    } kinds[] = {{"lora_embedding_", "an adapter of an embedding"},
                 {"trainable_tokens", "rows of an embedding (trainable_token_indices)"},
                 {"base_layer", "a copy of the base's own tensor"},
                 {"modules_to_save", "a module under the name that PEFT has in memory"},
                 {"vision", "an adapter of the vision part"},
                 {"multi_modal", "an adapter of the vision part"}};

    for (size_t i = 0; i < HL_ARRAY_LEN(kinds); i++)
        if (strstr(name, kinds[i].has) != NULL)
            return hl_fail(HL_EUNSUPPORTED,
                           "adapter tensor '%s' is %s, which can't be sliced; " REMEDY, name,
                           kinds[i].what);
    return hl_fail(HL_EINVAL,
                   "adapter tensor '%s' is not a LoRA tensor: its name is not '" PREFIX
                   "<module>.lora_A.weight' or '.lora_B.weight', and the base has no tensor of the "
                   "rest of it; remove it, or " REMEDY,
                   name);
}

static const struct hl_family_tensor *vocabulary_row(const struct lora *l,
                                                     enum hl_family_place place)
{
    const struct hl_family_tensor *row = l->base->family->tensors;
    while (row->name != NULL && (row->place != place || row->split != HL_SPLIT_VOCABULARY))
        row++;
    return row;
}

/* A tied base has no tensor for its head. An adapter can have one beside the whole embedding; the
 * two are compared. */
HL_CHECK static hl_status check_tied_head(const struct lora *l, const struct hl_tensor *t,
                                          const char *name, bool *out)
{
    char head[NAME_CAP], embedding[NAME_CAP];
    const struct hl_family_tensor *row = vocabulary_row(l, HL_PLACE_HEAD);
    *out = false;
    if (!l->base->tied || row->name == NULL)
        return HL_OK;
    HL_TRY(hl_family_source_name(l->base->family, l->prefix, row, 0, 0, 0, head, sizeof(head)));
    row = vocabulary_row(l, HL_PLACE_EMBEDDING);
    HL_TRY(hl_family_source_name(l->base->family, l->prefix, row, 0, 0, 0, embedding,
                                 sizeof(embedding)));
    size_t n = strlen(head), module = n - strlen(".weight");
    *out = strcmp(name, head) == 0 && find_piece(l, embedding, strlen(embedding), "") != NULL;
    if (*out || strncmp(name, head, module) != 0 || (name[module] != '.' && name[module] != '\0'))
        return HL_OK;
    return hl_fail(HL_EUNSUPPORTED,
                   "adapter tensor '%s': the base's head is its embedding '%s', which can't be "
                   "changed in one place alone; " REMEDY,
                   t->name, embedding);
}

/* Inputs and outputs of a module of the base; Conv1D of gpt2 is stored [in, out]. */
static void module_sizes(const struct lora *l, const struct hl_tensor *weight, uint64_t *in,
                         uint64_t *out)
{
    bool turned = strcmp(l->base->family->name, "gpt2") == 0;
    *out = weight->shape[turned ? 1 : 0];
    *in = weight->shape[turned ? 0 : 1];
}

static bool has_shape(const struct hl_tensor *t, enum piece piece, uint64_t in, uint64_t out)
{
    if (piece != PIECE_A && piece != PIECE_B)
        return t->rank == 1 && t->shape[0] == out;
    return t->rank == 2 && t->shape[1 - piece] == (piece == PIECE_A ? in : out) &&
           t->shape[piece] != 0;
}

/* Checks that A and B both exist, and that their companions have both. */
HL_CHECK static hl_status check_halves(const struct lora *l, const struct hl_tensor *t,
                                       const char *module, enum piece piece)
{
    size_t n = strlen(module);
    if (piece == PIECE_MAGNITUDE &&
        find_piece(l, module, n, pieces[PIECE_MAGNITUDE_WEIGHT].ending) != NULL)
        return hl_fail(HL_EINVAL,
                       "adapter tensor '%s' appears twice, once more with .weight at its end",
                       t->name);
    for (int half = PIECE_A; half <= PIECE_B; half++) {
        const struct hl_tensor *other = find_piece(l, module, n, pieces[half].ending);
        if (other == NULL)
            return hl_fail(HL_ENOENT,
                           "adapter tensor '%s' lacks its other half: '" PREFIX "%s%s' is missing",
                           t->name, module, pieces[half].ending);
        if (piece == PIECE_A && half == PIECE_B && other->rank == 2 &&
            other->shape[1] != t->shape[0])
            return hl_fail(HL_EINVAL,
                           "adapter tensors '%s' and '%s' differ in rank: %" PRIu64 " and %" PRIu64,
                           t->name, other->name, t->shape[0], other->shape[1]);
    }
    return HL_OK;
}

HL_CHECK static hl_status check_piece(const struct lora *l, const struct hl_tensor *t,
                                      const char *module, enum piece piece)
{
    char name[NAME_CAP + 64], has[192];
    uint64_t in, out;
    snprintf(name, sizeof(name), "%s.weight", module);
    const struct hl_tensor *weight = find_tensor(l->modules, l->logical.count, name);
    bool tied;
    HL_TRY(check_tied_head(l, t, module, &tied));
    if ((weight == NULL || weight->rank != 2) && hl_vision_name(module) != NULL)
        return fail_kind(t->name);
    if (weight == NULL || weight->rank != 2)
        return hl_fail(HL_EINVAL,
                       "adapter tensor '%s': the base, a %s model of %" PRIu64
                       " layers, has no matrix '%s'; it is an adapter for another base",
                       t->name, l->base->architecture, l->base->layers, name);
    module_sizes(l, weight, &in, &out);
    if (!has_shape(t, piece, in, out))
        return hl_fail(HL_EINVAL,
                       "adapter tensor '%s' has shape %s, the base's '%s' has %" PRIu64
                       " inputs and %" PRIu64 " outputs; it is an adapter for another base",
                       t->name, hl_tensor_shape_text(t, has, sizeof(has)), name, in, out);
    return check_halves(l, t, module, piece);
}

/* Checks a tensor of the base that the adapter replaces (modules_to_save, bias). */
HL_CHECK static hl_status check_whole(const struct lora *l, const struct hl_tensor *t)
{
    char has[192], want[192];
    const char *name = t->name + strlen(PREFIX);
    if (strncmp(t->name, PREFIX, strlen(PREFIX)) != 0)
        return fail_kind(t->name);
    const struct hl_tensor *of = find_tensor(l->modules, l->logical.count, name);
    bool tied;
    HL_TRY(check_tied_head(l, t, name, &tied));
    if (of == NULL)
        return tied ? HL_OK : fail_kind(t->name);
    if (t->rank == of->rank && memcmp(t->shape, of->shape, t->rank * sizeof(*t->shape)) == 0)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "adapter tensor '%s' has shape %s, the base's has %s; if the vocabulary has "
                   "grown, " REMEDY ", else it is an adapter for another base",
                   t->name, hl_tensor_shape_text(t, has, sizeof(has)),
                   hl_tensor_shape_text(of, want, sizeof(want)));
}

HL_CHECK static hl_status check_tensor(const struct lora *l, const struct hl_tensor *t)
{
    char module[NAME_CAP];
    enum piece piece;
    return split_name(t->name, module, sizeof(module), &piece) ? check_piece(l, t, module, piece)
                                                               : check_whole(l, t);
}

/* ---- how a row is adapted -------------------------------------------------------------------- */

/* How source k of a row is adapted at a layer, for one expert. */
HL_CHECK static hl_status adapted_source(const struct lora *l, const struct hl_family_tensor *row,
                                         size_t k, uint64_t layer, uint64_t expert,
                                         struct adapted *out)
{
    char name[NAME_CAP];
    *out = (struct adapted){0};
    HL_TRY(hl_family_source_name(l->base->family, l->prefix, row, k, layer, expert, name,
                                 sizeof(name)));
    size_t n = strlen(name), w = strlen(".weight");
    out->whole = find_piece(l, name, n, "") != NULL;
    if (row->cols == NULL || n <= w || strcmp(name + n - w, ".weight") != 0)
        return HL_OK;
    const struct hl_tensor *a = find_piece(l, name, n - w, pieces[PIECE_A].ending);
    out->rank = a != NULL ? a->shape[0] : 0;
    for (int i = PIECE_BIAS; i < PIECES && a != NULL; i++)
        out->has[i] = find_piece(l, name, n - w, pieces[i].ending) != NULL;
    return HL_OK;
}

/* All experts of a layer must be adapted alike, because they are one row. */
HL_CHECK static hl_status adapted_layer(const struct lora *l, const struct hl_family_tensor *row,
                                        size_t k, uint64_t layer, struct adapted *out)
{
    struct hl_family_scope scope = hl_hf_scope(l->base, layer);
    struct adapted other;
    char name[NAME_CAP];
    uint64_t experts = 1;
    if (row->place == HL_PLACE_EXPERT && !(row->form & HL_FORM_STACKED))
        HL_TRY(hl_family_size(&scope, "experts", 0, &experts));
    HL_TRY(adapted_source(l, row, k, layer, 0, out));
    for (uint64_t e = 1; e < experts; e++) {
        HL_TRY(adapted_source(l, row, k, layer, e, &other));
        if (same_adapted(&other, out))
            continue;
        HL_TRY(hl_family_source_name(l->base->family, l->prefix, row, k, layer, e, name,
                                     sizeof(name)));
        return hl_fail(HL_EUNSUPPORTED,
                       "the adapter of '%s' has a different rank than that of expert 0, or one of "
                       "them has none: experts of a layer can only be sliced if they are adapted "
                       "in the same way; " REMEDY,
                       name);
    }
    return HL_OK;
}

/* ---- rows of the table ----------------------------------------------------------------------- */

/* The name of the adapter of a part of a fused matrix, as in Megatron-Bridge's canonical LoRA. */
static const char *adapter_of(const struct hl_family_tensor *row, size_t k)
{
    static const char *const qkv[] = {"adapter.adapter_q", "adapter.adapter_k",
                                      "adapter.adapter_v"};
    static const char *const pairs[] = {"adapter.adapter_gate", "adapter.adapter_up"};
    if (hl_family_source_count(row) == 1)
        return "adapter";
    return row->split == HL_SPLIT_QKV ? qkv[k] : pairs[k];
}

static const char *rows_of(const struct hl_family_tensor *row, size_t k)
{
    if (row->split == HL_SPLIT_QKV)
        return k == 0 ? "heads * head_dim" : "kv_heads * head_dim";
    return row->rows;
}

HL_CHECK static hl_status new_row(struct lora *l, struct hl_family_tensor **out)
{
    if (l->row_count == ROWS_MAX)
        return hl_fail(HL_EUNSUPPORTED, "an adapter with more than %d ranks of its own",
                       ROWS_MAX / 2);
    *out = &l->rows[l->row_count++];
    return HL_OK;
}

static const char *when_layers(struct lora *l, const struct hl_family_tensor *row, uint64_t first,
                               uint64_t end)
{
    return hl_arena_printf(&l->arena, "layer >= %" PRIu64 " && layer < %" PRIu64 " && (%s)", first,
                           end, row->when != NULL ? row->when : "1");
}

/* Tensors with one number per row of B are cut where B is cut. */
static enum hl_split split_of(const struct hl_family_tensor *row, enum piece piece)
{
    bool columns = row->split == HL_SPLIT_COLUMNS;
    if (piece == PIECE_A)
        return columns ? HL_SPLIT_COLUMNS : HL_SPLIT_WHOLE;
    return columns ? HL_SPLIT_WHOLE : hl_family_source_count(row) > 1 ? HL_SPLIT_ROWS : row->split;
}

/* Adds A, B and their companions of source k for the layers [first, end). */
HL_CHECK static hl_status add_pieces(struct lora *l, const struct hl_family_tensor *row, size_t k,
                                     const struct adapted *how, uint64_t first, uint64_t end)
{
    size_t module = strlen(row->name) - strlen(".weight");
    size_t hf = strlen(row->hf[k]) - strlen(".weight");
    const char *r = hl_arena_printf(&l->arena, "%" PRIu64, how->rank);
    const char *when = when_layers(l, row, first, end);
    for (int i = 0; i < PIECES; i++) {
        struct hl_family_tensor *t = NULL;
        if (i > PIECE_B && !how->has[i])
            continue;
        HL_TRY(new_row(l, &t));
        *t = (struct hl_family_tensor){.place = row->place,
                                       .split = split_of(row, (enum piece)i),
                                       .rows = i == PIECE_A ? r : rows_of(row, k),
                                       .cols = i == PIECE_A   ? row->cols
                                               : i == PIECE_B ? r
                                                              : NULL,
                                       .when = when};
        t->name = hl_arena_printf(&l->arena, "%.*s.%s.%s", (int)module, row->name,
                                  adapter_of(row, k), pieces[i].name);
        t->hf[0] = hl_arena_printf(&l->arena, "%.*s%s", (int)hf, row->hf[k], pieces[i].ending);
    }
    return HL_OK;
}

/* Adds the base's own row for the layers [first, end). */
HL_CHECK static hl_status add_whole(struct lora *l, const struct hl_family_tensor *row,
                                    uint64_t first, uint64_t end)
{
    struct hl_family_tensor *t = NULL;
    HL_TRY(new_row(l, &t));
    *t = *row;
    t->when = when_layers(l, row, first, end);
    return HL_OK;
}

HL_CHECK static hl_status check_source(const struct lora *l, const struct hl_family_tensor *row,
                                       size_t k, uint64_t layer,
                                       const struct hl_partition_options *o)
{
    uint64_t groups = l->base->kv_heads, tp = o->tp > 0 ? (uint64_t)o->tp : 1;
    char name[NAME_CAP];
    HL_TRY(hl_family_source_name(l->base->family, l->prefix, row, k, layer, 0, name, sizeof(name)));
    if (row->place == HL_PLACE_EMBEDDING || row->place == HL_PLACE_MTP)
        return hl_fail(HL_EUNSUPPORTED, "adapter of '%s' can't be sliced; " REMEDY, name);
    if (row->split == HL_SPLIT_QKV && hl_family_source_count(row) > 1 && groups % tp != 0)
        return hl_fail(HL_EINVAL,
                       "tp %" PRIu64 " cuts the %" PRIu64
                       " query groups of the base, so the adapter of '%s' has no slices; "
                       "use a tp that divides them",
                       tp, groups, name);
    return HL_OK;
}

static uint64_t layers_of(const struct lora *l, const struct hl_family_tensor *row)
{
    return row->place == HL_PLACE_LAYER || row->place == HL_PLACE_EXPERT ? l->base->layers : 1;
}

HL_CHECK static hl_status add_source(struct lora *l, const struct hl_family_tensor *row, size_t k,
                                     const struct hl_partition_options *o)
{
    uint64_t layers = layers_of(l, row), from = 0;
    struct adapted was = {0}, how;
    for (uint64_t i = 0; i <= layers; i++) {
        how = (struct adapted){0};
        if (i < layers)
            HL_TRY(adapted_layer(l, row, k, i, &how));
        how.whole = false;
        if (how.rank != 0)
            HL_TRY(check_source(l, row, k, i, o));
        if (same_adapted(&how, &was))
            continue;
        if (was.rank != 0)
            HL_TRY(add_pieces(l, row, k, &was, from, i));
        was = how;
        from = i;
    }
    return HL_OK;
}

/* *out: the adapter has all sources of the row at that layer. */
HL_CHECK static hl_status whole_at(const struct lora *l, const struct hl_family_tensor *row,
                                   uint64_t layer, bool *out)
{
    size_t sources = hl_family_source_count(row), found = 0, lacks = 0;
    char name[NAME_CAP];
    if (l->base->tied && row->place == HL_PLACE_HEAD && row->split == HL_SPLIT_VOCABULARY)
        row = vocabulary_row(l, HL_PLACE_EMBEDDING); /* its copy on the last stage */
    for (size_t k = 0; k < sources; k++) {
        struct adapted how;
        HL_TRY(adapted_layer(l, row, k, layer, &how));
        found += how.whole;
        lacks = how.whole ? lacks : k;
    }
    *out = found == sources && found > 0;
    if (found == 0 || found == sources)
        return HL_OK;
    HL_TRY(hl_family_source_name(l->base->family, l->prefix, row, lacks, layer, 0, name,
                                 sizeof(name)));
    return hl_fail(HL_EUNSUPPORTED,
                   "the adapter has no tensor '" PREFIX "%s', but others that are fused with it: "
                   "they can't be sliced alone; " REMEDY,
                   name);
}

HL_CHECK static hl_status add_wholes(struct lora *l, const struct hl_family_tensor *row)
{
    uint64_t layers = layers_of(l, row), from = 0;
    bool was = false, now;
    for (uint64_t i = 0; i <= layers; i++) {
        now = false;
        if (i < layers)
            HL_TRY(whole_at(l, row, i, &now));
        if (now == was)
            continue;
        if (was)
            HL_TRY(add_whole(l, row, from, i));
        was = now;
        from = i;
    }
    return HL_OK;
}

HL_CHECK static hl_status make_family(struct lora *l, const struct hl_partition_options *o)
{
    const struct hl_family *base = l->base->family;
    l->rows = calloc(ROWS_MAX + 1, sizeof(*l->rows));
    if (l->rows == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of adapters");
    for (const struct hl_family_tensor *row = base->tensors; row->name != NULL; row++) {
        if (row->place == HL_PLACE_MTP_COPY || (row->form & HL_FORM_SEPARATE))
            continue;
        for (size_t k = 0; row->cols != NULL && k < hl_family_source_count(row); k++)
            HL_TRY(add_source(l, row, k, o));
        HL_TRY(add_wholes(l, row));
    }
    if (l->row_count == 0)
        return hl_fail(HL_EINVAL, "the adapter changes no matrix of its base, a %s model",
                       base->name);
    l->prefixes[0].body = hl_arena_printf(&l->arena, PREFIX "%s", l->prefix->body);
    l->prefixes[0].head = hl_arena_printf(&l->arena, PREFIX "%s", l->prefix->head);
    if (hl_arena_failed(&l->arena))
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu adapters", l->row_count);
    l->family = *base;
    l->family.tensors = l->rows;
    l->family.prefixes = l->prefixes;
    return HL_OK;
}

HL_CHECK static hl_status plan_adapter(struct lora *l, const struct hl_partition_options *options,
                                       struct hl_partition_plan *out)
{
    HL_TRY(sort_tensors(l->sources, l->count, &l->by_name));
    find_prefix(l);
    HL_TRY(hl_family_logical(l->base, &(struct hl_checkpoint){.prefix = l->prefix->body},
                             &l->logical));
    HL_TRY(sort_tensors(l->logical.tensors, l->logical.count, &l->modules));
    for (size_t i = 0; i < l->count; i++)
        HL_TRY(check_tensor(l, &l->sources[i]));
    HL_TRY(make_family(l, options));
    struct hl_hf_config config = *l->base;
    config.family = &l->family;
    HL_AUTO(hl_freep) unsigned char *all = malloc(l->count + 1);
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu tensors", l->count);
    memset(all, 1, l->count + 1);
    HL_TRY(hl_partition_plan(&config, l->sources, l->count, options, out));
    out->logical = hl_logical_json(l->sources, all, l->count);
    if (out->logical != NULL)
        return HL_OK;
    hl_partition_fini(out);
    return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu tensors", l->count);
}

hl_status hl_lora_plan(const struct hl_hf_config *base, const struct hl_tensor *sources,
                       size_t source_count, const struct hl_partition_options *options,
                       struct hl_partition_plan *out)
{
    struct lora l = {.base = base, .sources = sources, .count = source_count};
    hl_status st = plan_adapter(&l, options, out);
    free(l.by_name);
    free(l.modules);
    free(l.rows);
    hl_logical_fini(&l.logical);
    hl_arena_fini(&l.arena);
    return st;
}

/* ---- adapter_config.json --------------------------------------------------------------------- */

/* Reads PEFT's members, which can be missing or null. */
HL_CHECK static hl_status read_peft(const json_t *doc, const char *file, struct hl_lora_config *out)
{
    const json_t *type = json_object_get(doc, "peft_type");
    const json_t *base = json_object_get(doc, "base_model_name_or_path");
    const json_t *copied = json_object_get(doc, "layer_replication");
    const json_t *parameters = json_object_get(doc, "target_parameters");
    if (!json_is_object(doc))
        return hl_fail(HL_EINVAL, "%s: not a JSON object", file);
    if (!json_is_string(type) || strcmp(json_string_value(type), "LORA") != 0)
        return hl_fail(HL_EUNSUPPORTED, "%s: field 'peft_type' is '%.40s': only LORA can be sliced",
                       file, json_is_string(type) ? json_string_value(type) : "");
    if (base != NULL && !json_is_null(base) && !json_is_string(base))
        return hl_fail(HL_EINVAL, "%s: field 'base_model_name_or_path' is not text", file);
    if (json_array_size(copied) > 0)
        return hl_fail(HL_EUNSUPPORTED,
                       "%s: field 'layer_replication': an adapter of layers that the base has once "
                       "can't be sliced beside it; " REMEDY,
                       file);
    if (json_array_size(parameters) > 0)
        return hl_fail(
            HL_EUNSUPPORTED,
            "%s: field 'target_parameters': an adapter of a parameter that is not the weight of "
            "a module, as of all experts in one, can't be sliced; " REMEDY,
            file);
    out->base = json_is_string(base) ? json_string_value(base) : "";
    return HL_OK;
}

hl_status hl_lora_config_parse(const char *text, size_t len, const char *file,
                               struct hl_lora_config *out)
{
    json_error_t error;
    json_t *doc = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (doc == NULL)
        return hl_fail(HL_EINVAL, "%s:%d:%d: %s", file, error.line, error.column, error.text);
    struct hl_lora_config c = {.peft = doc};
    hl_status st = read_peft(doc, file, &c);
    if (st != HL_OK) {
        json_decref(doc);
        return st;
    }
    *out = c;
    return HL_OK;
}

void hl_lora_config_fini(struct hl_lora_config *c)
{
    json_decref(c->peft);
    *c = (struct hl_lora_config){0};
}
