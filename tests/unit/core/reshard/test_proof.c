/* Saves through the commit path of a catalogue: whole ones become visible and proved; a thousand
 * saves damaged in one place do not become visible. HL_SEED repeats a run. */
#include "support/test.h"

#include <inttypes.h>

#include "base/crc32.h"
#include "base/id.h"
#include "core/catalog/catalog.h"
#include "core/families/logical.h"
#include "core/model/partition.h"
#include "unit/core/model/plan_crc.h"

#define SIZES                                                                                      \
    "\"num_hidden_layers\": 4, \"hidden_size\": 8, \"num_attention_heads\": 4,"                    \
    "\"num_key_value_heads\": 2, \"head_dim\": 4, \"vocab_size\": 10,"                             \
    "\"max_position_embeddings\": 32, \"intermediate_size\": 16"
#define GPT2                                                                                       \
    "{\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_embd\": 8, \"n_head\": 4,"                     \
    "\"vocab_size\": 10, \"n_positions\": 8}"

static const char *const families[] = {
    "{\"model_type\": \"llama\", " SIZES "}",
    "{\"model_type\": \"llama\", \"tie_word_embeddings\": true, " SIZES "}",
    "{\"model_type\": \"mistral\", " SIZES "}",
    "{\"model_type\": \"qwen2\", " SIZES "}",
    "{\"model_type\": \"qwen3\", " SIZES "}",
    "{\"model_type\": \"phi3\", " SIZES "}",
    "{\"model_type\": \"gemma2\", " SIZES "}",
    "{\"model_type\": \"gemma3_text\", " SIZES "}",
    "{\"model_type\": \"gpt_neox\", " SIZES "}",
    GPT2,
};

static const char *const expert_families[] = {
    "{\"model_type\": \"mixtral\", \"num_local_experts\": 4, " SIZES "}",
    "{\"model_type\": \"qwen3_moe\", \"num_experts\": 4, \"moe_intermediate_size\": 8, " SIZES "}",
    "{\"model_type\": \"mixtral\", \"num_local_experts\": 4, \"tie_word_embeddings\": true, " SIZES
    "}",
    "{\"model_type\": \"glm4_moe\", \"n_routed_experts\": 4, \"n_shared_experts\": 1,"
    "\"moe_intermediate_size\": 8, \"first_k_dense_replace\": 1, \"use_qk_norm\": true, " SIZES "}",
};

static const struct hl_partition_options expert_splits[] = {
    {.tp = 1, .pp = 1, .ep = 2, .vocab_divisor = 1},
    {.tp = 2, .pp = 1, .ep = 2, .etp = 1, .vocab_divisor = 4},
    {.tp = 2, .pp = 2, .ep = 2, .etp = 2, .vocab_divisor = 1},
    {.tp = 1, .pp = 2, .ep = 4, .vocab_divisor = 2},
    {.tp = 4, .pp = 1, .ep = 2, .etp = 2, .vocab_divisor = 1},
    {.tp = 2, .pp = 2, .ep = 2, .etp = 1, .virtual_stages = 2},
};

static const struct hl_partition_options splits[] = {
    {.tp = 1, .pp = 1, .vocab_divisor = 1}, {.tp = 2, .pp = 1, .vocab_divisor = 4},
    {.tp = 2, .pp = 2, .vocab_divisor = 1}, {.tp = 4, .pp = 1, .vocab_divisor = 4},
    {.tp = 2, .pp = 4, .vocab_divisor = 8}, {.tp = 4, .pp = 2, .vocab_divisor = 1},
    {.tp = 1, .pp = 4, .vocab_divisor = 3}, {.tp = 2, .pp = 2, .virtual_stages = 2},
    {.tp = 4, .pp = 2, .vocab_divisor = 4}, /* the last tensor rank has padding only */
};

/* ---- a store, a model and a save ---------------------------------------------------------------
 */

static hl_status keep(void *arg, const struct hl_records *records)
{
    (void)arg;
    (void)records;
    return HL_OK;
}

#define TENSORS_MAX 96

/* A shard of a save before it becomes a message. */
struct entry {
    int pp, tp, ep, rank;
    char part[HL_PARTITION_PART_MAX + 16];
    struct hl_tensor tensors[TENSORS_MAX];
    char names[TENSORS_MAX][160];
    uint32_t crcs[TENSORS_MAX];
    bool padding[TENSORS_MAX]; /* nothing else; the only replica is that of a tied head, at the same
                                  tp */
    size_t count;
};

struct save {
    struct entry *list;
    size_t count, cap;
    int tp, pp;
    int stage; /* ranks per stage: data-parallel ones divide the experts */
};

struct model {
    struct hl_catalog c;
    struct hl_version_rec *base;
    struct save whole; /* what a correct save holds */
    const struct hl_partition_options *o;
    const char *family;
};

static struct entry *entry_new(struct save *v)
{
    if (v->count == v->cap) {
        v->cap = v->cap > 0 ? 2 * v->cap : 64;
        v->list = realloc(v->list, v->cap * sizeof(*v->list));
        assert_non_null(v->list);
    }
    return &v->list[v->count++];
}

/* `to` must be zero, or a save. */
static void save_copy(struct save *to, const struct save *from)
{
    struct save v = *from;
    v.list = realloc(to->list, (from->cap + 1) * sizeof(*v.list));
    v.cap = from->cap + 1;
    assert_non_null(v.list);
    memcpy(v.list, from->list, from->count * sizeof(*v.list));
    *to = v;
}

static void model_close(struct model *m)
{
    hl_catalog_fini(&m->c);
    free(m->whole.list);
}

static bool is_padding(const struct hl_partition_plan *p, uint32_t tensor)
{
    bool padding = true;
    for (uint32_t i = p->op_first[tensor]; i < p->op_first[tensor + 1]; i++)
        padding &= p->ops[i].kind == HL_COPY_ZERO ||
                   (p->ops[i].kind == HL_COPY_RUNS && p->ops[i].stride == 0);
    return padding;
}

static void entry_add(struct entry *e, const struct hl_tensor *t, const char *prefix, uint32_t crc,
                      bool padding)
{
    size_t n = e->count++;
    assert_true(n < TENSORS_MAX);
    snprintf(e->names[n], sizeof(e->names[n]), "%s%s", prefix, t->name);
    e->tensors[n] = *t;
    e->padding[n] = padding;
    e->crcs[n] = hl_crc32(crc, prefix, strlen(prefix));
}

static int experts_tp(const struct hl_partition_options *o)
{
    return o->etp > 0 ? o->etp : o->tp;
}

/* The first rank of a stage that holds it. */
static int slot_of(const struct hl_partition_shard *s, const struct hl_partition_options *o)
{
    return strncmp(s->part, "experts-", 8) == 0 ? s->ep * experts_tp(o) + s->tp : s->tp;
}

/* Every shard, and its state in F32. */
static void save_plan(struct save *v, const struct hl_partition_plan *p,
                      const struct hl_partition_options *o)
{
    static const char *const prefixes[] = {"exp_avg.", "exp_avg_sq."};
    for (size_t i = 0; i < p->shard_count; i++) {
        const struct hl_partition_shard *s = &p->shards[i];
        (void)entry_new(v);
        struct entry *state = entry_new(v), *e = state - 1;
        e->pp = state->pp = s->pp;
        e->tp = state->tp = s->tp;
        e->ep = state->ep = s->ep;
        e->rank = state->rank = s->pp * v->stage + slot_of(s, o);
        e->count = state->count = 0;
        snprintf(e->part, sizeof(e->part), "%s", s->part);
        snprintf(state->part, sizeof(state->part), "optim-%s", s->part);
        for (uint32_t k = s->tensor_first; k < s->tensor_first + s->tensor_count; k++) {
            struct hl_tensor t = p->tensors[k];
            entry_add(e, &t, "", crc_of(p, k), is_padding(p, k));
            t.dtype = HL_DTYPE_F32;
            for (size_t x = 0; x < HL_ARRAY_LEN(prefixes); x++)
                entry_add(state, &t, prefixes[x], crc_of(p, k), is_padding(p, k));
        }
    }
}

static uint64_t next_id = 1;

/* The shard as the rank's client describes it. */
static void describe(struct entry *e, struct hl_arena *arena, bool crcs, struct hl_api_shard *out)
{
    char *layout, *text;
    for (size_t i = 0; i < e->count; i++)
        e->tensors[i].name = e->names[i];
    assert_int_equal(hl_layout_text(e->tensors, e->count, &layout), HL_OK);
    assert_int_equal(hl_layout_crcs(e->tensors, e->crcs, e->count, &text), HL_OK);
    *out = (struct hl_api_shard){.id = hl_id_print((struct hl_id){7, next_id++}, arena),
                                 .pp = e->pp,
                                 .tp = e->tp,
                                 .ep = e->ep,
                                 .part = e->part,
                                 .size_bytes = 100,
                                 .crc32 = 7,
                                 .tensors = (uint32_t)e->count,
                                 .layout = hl_arena_strdup(arena, layout),
                                 .tensor_crcs = crcs ? hl_arena_strdup(arena, text) : ""};
    free(layout);
    free(text);
}

static struct hl_api_shard_list describe_rank(struct save *v, int rank, bool state, bool crcs,
                                              struct hl_arena *arena)
{
    struct hl_api_shard_list list = {.items = hl_arena_array(arena, v->count, sizeof(*list.items))};
    for (size_t i = 0; i < v->count; i++)
        if ((rank < 0 || v->list[i].rank == rank) &&
            (state || strncmp(v->list[i].part, "optim-", 6) != 0))
            describe(&v->list[i], arena, crcs, &list.items[list.count++]);
    return list;
}

static void import(struct model *m, const char *config)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_import_done done = {.name = "m",
                                  .source = "/data/m",
                                  .tp = m->o->tp,
                                  .pp = m->o->pp,
                                  .virtual_stages = m->o->virtual_stages,
                                  .config = config,
                                  .now_ms = 1,
                                  .shards = describe_rank(&m->whole, -1, false, false, &arena)};
    if (hl_catalog_import(&m->c, &done, keep, NULL, &m->base) != HL_OK)
        fail_msg("%s", hl_error_text());
}

/* Returns false if the family can't be split like that. */
static bool model_open(struct model *m, const char *family, const struct hl_partition_options *o)
{
    struct hl_hf_config config;
    struct hl_logical logical;
    struct hl_partition_plan plan;
    char *doc;
    memset(m, 0, sizeof(*m));
    m->o = o;
    m->family = family;
    m->whole.tp = o->tp;
    m->whole.pp = o->pp;
    m->whole.stage = o->ep * experts_tp(o) > o->tp ? o->ep * experts_tp(o) : o->tp;
    assert_int_equal(hl_hf_config_parse(family, strlen(family), "config.json", &config), HL_OK);
    assert_int_equal(hl_family_logical(&config, &(struct hl_checkpoint){0}, &logical), HL_OK);
    for (size_t i = 0; i < logical.count; i++) {
        logical.tensors[i].dtype = HL_DTYPE_BF16;
        assert_int_equal(hl_tensor_bytes(&logical.tensors[i], &logical.tensors[i].size), HL_OK);
    }
    hl_status st = hl_partition_plan(&config, logical.tensors, logical.count, o, &plan);
    if (st == HL_OK) {
        save_plan(&m->whole, &plan, o);
        assert_int_equal(hl_partition_config(&config, o, &plan, &doc), HL_OK);
        import(m, doc);
        free(doc);
        hl_partition_fini(&plan);
    }
    hl_logical_fini(&logical);
    hl_hf_config_fini(&config);
    return st == HL_OK;
}

static int64_t next_step = 1;

/* The last rank's commit, as the Controller makes it. */
static hl_status commit_last(struct model *m, struct hl_version_commit *p)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_version_proof in;
    struct hl_proof proof;
    HL_AUTO(hl_freep) char *config = NULL;
    HL_TRY(hl_version_proof_input(&m->c, p, &arena, &in));
    HL_TRY(hl_version_settle(&in, &config));
    hl_status st = hl_proof_check(&in.input, &proof);
    if (st == HL_OK) {
        p->proof = &proof;
        p->config = config;
        return hl_catalog_commit_part(&m->c, p, keep, NULL);
    }
    char why[HL_ERROR_TEXT_MAX];
    struct hl_id *ids;
    size_t n;
    snprintf(why, sizeof(why), "%s", hl_error_text());
    struct hl_version_abandon a = {
        .version = p->version, .rank = p->rank, .reason = why, .refuted = true};
    assert_int_equal(hl_catalog_abandon(&m->c, &a, keep, NULL, &ids, &n), HL_OK);
    free(ids);
    return hl_fail(st, "%s", why);
}

/* The save's shards, rank by rank. */
static hl_status save_version(struct model *m, struct save *v, bool crcs,
                              enum hl_api_layout_check check, struct hl_version_rec **out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    int world = v->stage * v->pp;
    struct hl_version_begin b = {.model = "m",
                                 .job = "j",
                                 .attempt = 1,
                                 .step = next_step++,
                                 .world = world,
                                 .now_ms = 2,
                                 .check = check};
    struct hl_version_rec *version = NULL;
    for (b.rank = 0; b.rank < world; b.rank++) {
        b.token = (uint64_t)next_step << 16 | (uint64_t)(b.rank + 1);
        HL_TRY(hl_catalog_begin(&m->c, &b, keep, NULL, &version));
    }
    for (int rank = 0; rank < world; rank++) {
        struct hl_version_commit p = {.version = version,
                                      .rank = rank,
                                      .shards = describe_rank(v, rank, true, crcs, &arena),
                                      .meta = "",
                                      .now_ms = 3};
        if (rank + 1 == world)
            HL_TRY(commit_last(m, &p));
        else
            HL_TRY(hl_catalog_commit_part(&m->c, &p, keep, NULL));
    }
    *out = version;
    return HL_OK;
}

/* ---- whole saves -------------------------------------------------------------------------------
 */

static void prove_correct_save(struct model *m, const char *family,
                               const struct hl_partition_options *o)
{
    struct hl_version_rec *v;
    if (!model_open(m, family, o))
        fail_msg("%.40s: %s", family, hl_error_text());
    if (save_version(m, &m->whole, true, HL_API_LAYOUT_CHECK_EXACT, &v) != HL_OK)
        fail_msg("%.40s tp %d pp %d ep %d: %s", family, o->tp, o->pp, o->ep, hl_error_text());
    assert_int_equal(v->state, HL_API_VERSION_STATE_VISIBLE);
    if (!v->proved)
        fail_msg("%.40s tp %d pp %d ep %d: %s", family, o->tp, o->pp, o->ep, v->unproved);
    model_close(m);
}

TEST(correct_saves_of_every_dense_family_and_split_are_proved)
{
    struct model *m = malloc(sizeof(*m));
    for (size_t f = 0; f < HL_ARRAY_LEN(families); f++)
        for (size_t k = 0; k < HL_ARRAY_LEN(splits); k++)
            prove_correct_save(m, families[f], &splits[k]);
    free(m);
}

TEST(correct_saves_of_models_with_experts_are_proved)
{
    struct model *m = malloc(sizeof(*m));
    for (size_t f = 0; f < HL_ARRAY_LEN(expert_families); f++)
        for (size_t k = 0; k < HL_ARRAY_LEN(expert_splits); k++)
            prove_correct_save(m, expert_families[f], &expert_splits[k]);
    free(m);
}

/* As many layers and ranks as a model of 405 billion parameters has. */
TEST(a_save_of_a_thousand_ranks_is_proved)
{
    static const char family[] =
        "{\"model_type\": \"llama\", \"num_hidden_layers\": 126, \"hidden_size\": 16384,"
        "\"num_attention_heads\": 128, \"num_key_value_heads\": 8, \"head_dim\": 128,"
        "\"vocab_size\": 128256, \"max_position_embeddings\": 131072,"
        "\"intermediate_size\": 53248}";
    const struct hl_partition_options o = {.tp = 8, .pp = 126, .vocab_divisor = 128};
    struct model *m = malloc(sizeof(*m));
    prove_correct_save(m, family, &o);
    free(m);
}

TEST(what_can_not_be_proved_is_said)
{
    struct model *m = malloc(sizeof(*m));
    struct hl_version_rec *v;
    assert_true(model_open(m, families[0], &splits[1]));
    assert_int_equal(save_version(m, &m->whole, false, HL_API_LAYOUT_CHECK_EXACT, &v), HL_OK);
    assert_false(v->proved);
    assert_non_null(strstr(v->unproved, "without the checksums of its tensors"));
    assert_int_equal(save_version(m, &m->whole, true, HL_API_LAYOUT_CHECK_UNCHECKED, &v), HL_OK);
    assert_false(v->proved);
    assert_non_null(strstr(v->unproved, "strict=False"));
    m->whole.list[1].tensors[0].rank = 1; /* state that has not the parameter's shape, on tp 0 */
    assert_int_equal(save_version(m, &m->whole, true, HL_API_LAYOUT_CHECK_EXACT, &v), HL_OK);
    assert_false(v->proved);
    assert_non_null(strstr(v->unproved, "optimizer state: "));
    model_close(m);
    free(m);
}

/* ---- mutations ---------------------------------------------------------------------------------
 */

static uint64_t seed;

static uint64_t pick(uint64_t below)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % below;
}

static struct entry *pick_entry(struct save *v)
{
    return &v->list[pick(v->count)];
}

/* Another rank has these bytes, too: the plan's operations are the same. */
static bool is_replica(const struct save *v, const struct entry *e, size_t tensor)
{
    for (size_t i = 0; i < v->count; i++)
        for (size_t k = 0; k < v->list[i].count && &v->list[i] != e; k++)
            if (v->list[i].crcs[k] == e->crcs[tensor] &&
                (!e->padding[tensor] || v->list[i].tp == e->tp))
                return true;
    return false;
}

static void remove_tensor(struct entry *e, size_t k)
{
    for (; k + 1 < e->count; k++) {
        e->tensors[k] = e->tensors[k + 1];
        e->crcs[k] = e->crcs[k + 1];
        e->padding[k] = e->padding[k + 1];
        memcpy(e->names[k], e->names[k + 1], sizeof(e->names[k]));
    }
    e->count--;
}

/* A lone rank without state for a parameter may have frozen it. */
static int drop_tensor(struct save *v)
{
    struct entry *e = pick_entry(v);
    if (e->count < 2 || (v->tp == 1 && strncmp(e->part, "optim-", 6) == 0))
        return 0;
    remove_tensor(e, pick(e->count));
    return 1;
}

static int drop_shard(struct save *v)
{
    size_t i = pick(v->count);
    if (v->tp == 1 && strncmp(v->list[i].part, "optim-", 6) == 0)
        return 0;
    v->list[i] = v->list[--v->count];
    return 1;
}

static int double_shard(struct save *v)
{
    size_t from = pick(v->count);
    struct entry *e = entry_new(v);
    *e = v->list[from];
    e->rank = (int)pick((uint64_t)(v->stage * v->pp));
    return 1;
}

static int double_tensor(struct save *v)
{
    struct entry *e = pick_entry(v);
    if (e->count == TENSORS_MAX)
        return 0;
    size_t from = pick(e->count), to = e->count++;
    e->tensors[to] = e->tensors[from];
    e->crcs[to] = e->crcs[from];
    e->padding[to] = e->padding[from];
    memcpy(e->names[to], e->names[from], sizeof(e->names[to]));
    return 1;
}

/* Takes rows that belong to a neighbour. */
static int shift_edge(struct save *v)
{
    struct entry *e = pick_entry(v);
    struct hl_tensor *t = &e->tensors[pick(e->count)];
    if (strncmp(e->part, "optim-", 6) == 0)
        return 0;
    t->shape[pick(t->rank)] += 1 + pick(3);
    return 1;
}

/* The shard claims to be another rank's or another layer's. */
static int shift_shard(struct save *v)
{
    struct entry *e = pick_entry(v);
    uint64_t how = pick(3);
    unsigned layer;
    if (how == 0)
        e->tp = (e->tp + 1) % (v->tp + 1);
    else if (how == 1)
        e->pp = (e->pp + 1) % (v->pp + 1);
    else if (sscanf(e->part, "layer-%u", &layer) == 1)
        snprintf(e->part, sizeof(e->part), "layer-%04u", (layer + 1) % 5);
    else
        return 0;
    return 1;
}

/* Swaps tensors of two ranks, one of which other ranks hold, too. */
static int swap_tensors(struct save *v)
{
    struct entry *a = pick_entry(v), *b = pick_entry(v);
    size_t i = pick(a->count), k = pick(b->count);
    uint32_t crc = a->crcs[i];
    if (crc == b->crcs[k] || (!is_replica(v, a, i) && !is_replica(v, b, k)))
        return 0;
    a->crcs[i] = b->crcs[k];
    b->crcs[k] = crc;
    return 1;
}

static struct entry *pick_experts(struct save *v)
{
    for (int tries = 0; tries < 64; tries++) {
        struct entry *e = pick_entry(v);
        if (strstr(e->part, "experts-") != NULL)
            return e;
    }
    return NULL;
}

/* A rank saves its experts as those of another rank, or swaps the names of an expert's two
 * matrices. Swapped experts of equal shape cannot be detected: nothing in a save tells which bytes
 * an expert has (docs/saving.md). */
static int swap_experts(struct save *v)
{
    struct entry *e = pick_experts(v);
    if (e == NULL || strncmp(e->part, "optim-", 6) == 0)
        return 0;
    if (pick(2) == 0) {
        e->ep = (e->ep + 1) % 4;
        return 1;
    }
    size_t i = pick(e->count), k = pick(e->count);
    char name[160];
    if (e->tensors[i].shape[0] == e->tensors[k].shape[0])
        return 0;
    memcpy(name, e->names[i], sizeof(name));
    memcpy(e->names[i], e->names[k], sizeof(name));
    memcpy(e->names[k], name, sizeof(name));
    return 1;
}

/* Data of the previous step: everything of it in one shard of a rank. */
static int stale_replica(struct save *v)
{
    struct entry *e = pick_entry(v);
    int replicas = 0;
    for (size_t i = 0; i < e->count; i++)
        replicas += is_replica(v, e, i);
    for (size_t i = 0; i < e->count; i++)
        e->crcs[i] = hl_crc32(e->crcs[i], "before", 6);
    return replicas > 0;
}

static int flip_bit(struct save *v)
{
    struct entry *e = pick_entry(v);
    size_t i = pick(e->count);
    if (!is_replica(v, e, i))
        return 0;
    e->crcs[i] ^= 1u << pick(32);
    return 1;
}

static int other_dtype(struct save *v)
{
    struct entry *e = pick_entry(v);
    e->tensors[pick(e->count)].dtype = HL_DTYPE_F16;
    return strncmp(e->part, "optim-", 6) != 0;
}

static int other_name(struct save *v)
{
    struct entry *e = pick_entry(v);
    size_t i = pick(e->count);
    e->names[i][strlen(e->names[i]) - 1] = 'x';
    return 1;
}

static const struct {
    const char *name;
    int (*apply)(struct save *v); /* 0: not possible here */
} mutations[] = {
    {"drop_tensor", drop_tensor},   {"drop_shard", drop_shard},
    {"double_shard", double_shard}, {"double_tensor", double_tensor},
    {"shift_edge", shift_edge},     {"shift_shard", shift_shard},
    {"swap_tensors", swap_tensors}, {"stale_replica", stale_replica},
    {"flip_bit", flip_bit},         {"other_dtype", other_dtype},
    {"other_name", other_name},     {"swap_experts", swap_experts},
};

#define RUNS 1000

TEST(a_thousand_damaged_saves_never_become_visible)
{
    const char *text = getenv("HL_SEED");
    uint64_t start = text != NULL ? strtoull(text, NULL, 0) : hl_random_u64() | 1;
    printf("HL_SEED=%" PRIu64 "\n", start);
    seed = start;
    struct model *m = malloc(sizeof(*m));
    struct save *v = calloc(1, sizeof(*v));
    for (size_t done = 0; done < RUNS;) {
        assert_true(pick(2) == 0
                        ? model_open(m, families[pick(HL_ARRAY_LEN(families))],
                                     &splits[pick(HL_ARRAY_LEN(splits))])
                        : model_open(m, expert_families[pick(HL_ARRAY_LEN(expert_families))],
                                     &expert_splits[pick(HL_ARRAY_LEN(expert_splits))]));
        for (int tries = 0; tries < 64 && done < RUNS; tries++) {
            size_t k = done % HL_ARRAY_LEN(mutations);
            struct hl_version_rec *version = NULL;
            save_copy(v, &m->whole);
            if (!mutations[k].apply(v))
                continue;
            hl_error_clear();
            if (save_version(m, v, true, HL_API_LAYOUT_CHECK_EXACT, &version) == HL_OK)
                fail_msg("HL_SEED=%" PRIu64 ": %s of %.40s tp %d pp %d, number %zu, was accepted",
                         start, mutations[k].name, m->family, m->o->tp, m->o->pp, done);
            assert_string_not_equal(hl_error_text(), "");
            assert_ptr_equal(hl_catalog_newest(m->c.models), m->base);
            done++;
        }
        model_close(m);
    }
    free(v->list);
    free(v);
    free(m);
}

TEST(every_rank_hears_why_a_version_was_refuted)
{
    struct model *m = malloc(sizeof(*m));
    struct hl_version_rec *v;
    assert_true(model_open(m, families[0], &splits[1]));
    size_t shards = HASH_COUNT(m->c.shards);
    for (size_t i = 0; i < m->whole.count; i++)
        for (size_t k = 0; k < m->whole.list[i].count && m->whole.list[i].tp == 1; k++)
            if (strcmp(m->whole.list[i].names[k], "decoder.final_layernorm.weight") == 0)
                m->whole.list[i].crcs[k] ^= 1;
    assert_int_equal(save_version(m, &m->whole, true, HL_API_LAYOUT_CHECK_EXACT, &v), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "elements [0, 8) of tensor 'model.norm.weight'"));
    assert_non_null(strstr(hl_error_text(), "of rank 0 (pp 0, tp 0)"));
    assert_non_null(strstr(hl_error_text(), "of rank 1 (pp 0, tp 1)"));
    v = m->c.models->versions;
    assert_int_equal(v->state, HL_API_VERSION_STATE_FAILED);
    assert_int_equal(v->shard_count, 0);
    assert_int_equal(HASH_COUNT(m->c.shards), shards);
    struct hl_version_commit p = {.version = v, .rank = 0, .meta = "", .now_ms = 4};
    assert_int_equal(hl_catalog_commit_part(&m->c, &p, keep, NULL), HL_ECANCELED);
    assert_non_null(strstr(hl_error_text(), "tensor 'model.norm.weight'"));
    assert_ptr_equal(m->c.models->versions, m->base); /* all ranks have been told */
    model_close(m);
    free(m);
}

/* For a tied head of which no other stage has rows. */
TEST(padding_of_a_tied_head_is_that_of_its_embedding)
{
    struct model *m = malloc(sizeof(*m));
    struct hl_version_rec *v;
    size_t changed = 0;
    assert_true(model_open(m, families[1], &splits[HL_ARRAY_LEN(splits) - 1]));
    for (size_t i = 0; i < m->whole.count; i++)
        for (size_t k = 0; k < m->whole.list[i].count; k++)
            if (m->whole.list[i].padding[k] &&
                strcmp(m->whole.list[i].names[k], "output_layer.weight") == 0) {
                m->whole.list[i].crcs[k] ^= 1;
                changed++;
            }
    assert_int_equal(changed, 1);
    assert_int_equal(save_version(m, &m->whole, true, HL_API_LAYOUT_CHECK_EXACT, &v), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "padding of tensor 'model.embed_tokens.weight'"));
    assert_non_null(strstr(hl_error_text(), "(pp 0, tp 3)"));
    assert_non_null(strstr(hl_error_text(), "(pp 1, tp 3)"));
    model_close(m);
    free(m);
}
