/* Shards of pieces are joined to what one rank would have saved: the same layout and the same
 * CRCs. */
#include "support/test.h"

#include <string.h>

#include "base/crc32.h"
#include "core/model/layout.h"
#include "core/reshard/proof.h"

#define PARAMS                                                                                     \
    "a.bias\tBF16\t6\n"                                                                            \
    "a.weight\tBF16\t4,6\n"

static const uint8_t bytes[96] = {1, 2, 3, 5, 8, 13, 21, 34, 55, 89};

/* Of elements [start, end), F32. */
static uint32_t crc_of(unsigned start, unsigned end)
{
    return hl_crc32(0, bytes + (size_t)4 * start, (size_t)4 * (end - start));
}

/* State of a rank's part; pieces of `m.a.weight` and `m.a.bias`. */
struct state {
    char names[4][64];
    struct hl_tensor tensors[4];
    uint32_t crcs[4];
    size_t count;
    char *layout, *text;
};

static void state_add(struct state *s, const char *param, const char *shape, unsigned start,
                      unsigned end)
{
    size_t n = s->count++;
    snprintf(s->names[n], sizeof(s->names[n]), "m.%s.at%uof%s", param, start, shape);
    s->tensors[n] = (struct hl_tensor){
        .name = s->names[n], .dtype = HL_DTYPE_F32, .rank = 1, .shape = {end - start}};
    s->crcs[n] = crc_of(start, end);
}

static struct hl_proof_shard state_shard(struct state *s, int tp, int rank, const char *part)
{
    assert_int_equal(hl_layout_text(s->tensors, s->count, &s->layout), HL_OK);
    assert_int_equal(hl_layout_crcs(s->tensors, s->crcs, s->count, &s->text), HL_OK);
    return (struct hl_proof_shard){
        .tp = tp, .rank = rank, .part = part, .layout = s->layout, .crcs = s->text};
}

static struct hl_proof_shard plain(const char *part, const char *layout)
{
    return (struct hl_proof_shard){.part = part, .layout = layout};
}

struct save {
    struct state states[3];
    struct hl_proof_shard shards[8];
    size_t count;
    struct hl_arena arena;
    struct hl_proof_shard *out;
    size_t out_count;
};

/* Three data ranks: the middle of the weight, its ends, the bias in two. */
static void save_make(struct save *v)
{
    memset(v, 0, sizeof(*v));
    state_add(&v->states[0], "a.weight", "4x6", 5, 17);
    state_add(&v->states[1], "a.weight", "4x6", 0, 5);
    state_add(&v->states[1], "a.bias", "6", 0, 1);
    state_add(&v->states[2], "a.bias", "6", 1, 6);
    state_add(&v->states[2], "a.weight", "4x6", 17, 24);
}

static hl_status save_join(struct save *v)
{
    static const char *const parts[] = {"optim-layer-0000", "optim-dp1of3-layer-0000",
                                        "optim-dp2of3-layer-0000"};
    for (int dp = 2; dp >= 0; dp--)
        v->shards[v->count++] = state_shard(&v->states[dp], 0, 4 * dp, parts[dp]);
    v->shards[v->count++] = plain("layer-0000", PARAMS);
    v->shards[v->count++] = plain("extra-layer-0000", PARAMS);
    v->shards[v->count++] = plain("optim-dp1of3-head", "m.h\tF32\t3\n");
    return hl_proof_join_pieces(v->shards, v->count, &v->arena, &v->out, &v->out_count);
}

static void save_free(struct save *v)
{
    for (size_t i = 0; i < HL_ARRAY_LEN(v->states); i++) {
        free(v->states[i].layout);
        free(v->states[i].text);
    }
    hl_arena_fini(&v->arena);
}

static const struct hl_proof_shard *find(const struct save *v, const char *part)
{
    for (size_t i = 0; i < v->out_count; i++)
        if (strcmp(v->out[i].part, part) == 0)
            return &v->out[i];
    fail_msg("there should be a part %s", part);
    return NULL;
}

TEST(pieces_become_what_one_rank_would_have_saved)
{
    struct save v;
    char want[17];
    save_make(&v);
    assert_int_equal(save_join(&v), HL_OK);
    assert_int_equal(v.out_count, 4);
    const struct hl_proof_shard *s = find(&v, "optim-layer-0000");
    assert_true(s->joined);
    assert_string_equal(s->layout, "m.a.bias\tF32\t6\nm.a.weight\tF32\t4,6\n");
    snprintf(want, sizeof(want), "%08x%08x", crc_of(0, 6), crc_of(0, 24));
    assert_string_equal(s->crcs, want);
    assert_false(find(&v, "optim-dp1of3-head")->joined); /* shares, but no pieces */
    assert_string_equal(find(&v, "extra-layer-0000")->layout, PARAMS);
    save_free(&v);
}

static void refused(struct save *v, const char *why)
{
    assert_int_equal(save_join(v), HL_EINVAL);
    if (strstr(hl_error_text(), why) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), why);
    assert_non_null(strstr(hl_error_text(), "pp0/tp0/layer-0000: "));
    save_free(v);
}

TEST(pieces_that_are_not_the_whole_state_are_refused)
{
    struct save v;
    save_make(&v);
    v.states[2].count--;
    refused(&v,
            "'m.a.weight': no data-parallel rank holds elements [17, 24); rank 0 holds [5, 17)");
    save_make(&v);
    v.states[1].count = 0;
    state_add(&v.states[1], "a.bias", "6", 0, 1);
    refused(&v, "'m.a.weight': no data-parallel rank holds elements [0, 5); rank 0 holds [5, 17)");
    save_make(&v);
    state_add(&v.states[1], "a.bias", "6", 0, 3);
    v.states[1].tensors[1] = v.states[1].tensors[2];
    v.states[1].count--;
    refused(&v, "'m.a.bias': elements [1, 3) are held by rank 4 and by rank 8");
    save_make(&v);
    memset(&v.states[1], 0, sizeof(v.states[1]));
    state_add(&v.states[1], "a.weight", "4x6", 0, 5);
    state_add(&v.states[1], "a.bias", "7", 0, 1);
    refused(&v, "has shape [7] on rank 4 and [6] on rank 8");
}

TEST(whole_tensors_beside_pieces_are_refused)
{
    struct save v;
    save_make(&v);
    v.states[2].tensors[0] =
        (struct hl_tensor){.name = "m.a.bias", .dtype = HL_DTYPE_F32, .rank = 1, .shape = {6}};
    refused(&v, "'m.a.bias' of rank 8 is whole, and other state of its part is in pieces");
}

TEST(pieces_of_another_shape_than_the_parameters_are_refused)
{
    struct save v;
    save_make(&v);
    for (int i = 0; i < 3; i++)
        v.states[i].count = 0;
    state_add(&v.states[0], "a.weight", "6x4", 0, 24);
    refused(&v, "'m.a.weight' is in pieces of shape [6,4], and its parameter has shape [4,6]");
    save_make(&v);
    state_add(&v.states[0], "b.weight", "6x4", 0, 24);
    refused(&v, "'m.b.weight' belongs to no parameter of its part");
}

TEST(a_shard_of_an_earlier_release_stays_as_it_is)
{
    struct save v;
    save_make(&v);
    v.shards[v.count++] = plain("optim-dp1of2-layer-0000", NULL);
    assert_int_equal(hl_proof_join_pieces(v.shards, v.count, &v.arena, &v.out, &v.out_count),
                     HL_OK);
    assert_int_equal(v.out_count, 1);
    assert_null(v.out[0].layout);
    save_free(&v);
}
