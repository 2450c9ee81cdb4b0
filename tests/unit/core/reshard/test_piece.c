/* Names of pieces, and joined pieces compared with a model of which rank holds which element. */
#include "support/test.h"

#include <inttypes.h>
#include <string.h>

#include "base/crc32.h"
#include "core/model/layout.h"
#include "core/reshard/piece.h"

static struct hl_tensor piece(const char *name, uint64_t n)
{
    return (struct hl_tensor){
        .name = name, .dtype = HL_DTYPE_F32, .rank = 1, .shape = {n}, .size = 4 * n};
}

TEST(a_name_says_where_a_piece_begins_and_of_what)
{
    struct hl_piece p;
    struct hl_tensor t = piece("exp_avg.a.weight.at128of64x32", 100);
    assert_int_equal(hl_piece_read(&t, &p), HL_OK);
    assert_false(p.whole);
    assert_int_equal(p.name_len, strlen("exp_avg.a.weight"));
    assert_string_equal(p.suffix, ".at128of64x32");
    assert_int_equal(p.rank, 2);
    assert_int_equal(p.shape[0], 64);
    assert_int_equal(p.shape[1], 32);
    assert_int_equal(p.start, 128);
    assert_int_equal(p.end, 228);
    t = piece("step.a.bias.at0of", 1);
    assert_int_equal(hl_piece_read(&t, &p), HL_OK);
    assert_int_equal(p.rank, 0);
}

TEST(other_names_are_whole_tensors)
{
    static const char *const names[] = {
        "exp_avg.a.weight", "a.at",      "a.at1",
        "a.at1of2y3",       "a.at1of2x", "a.at01of4",
        "a.atof4",          ".at",       "a.at1of99999999999999999999",
        "a.at1of4.weight",  "a.bat1of4", "at1of4",
    };
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++) {
        struct hl_piece p;
        struct hl_tensor t = piece(names[i], 7);
        assert_int_equal(hl_piece_read(&t, &p), HL_OK);
        assert_true(p.whole);
        assert_int_equal(p.name_len, strlen(names[i]));
        assert_int_equal(p.start, 0);
        assert_int_equal(p.end, 7);
    }
}

static void refused(const struct hl_tensor *t, const char *why)
{
    struct hl_piece p;
    assert_int_equal(hl_piece_read(t, &p), HL_EINVAL);
    if (strstr(hl_error_text(), why) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), why);
}

TEST(a_piece_outside_its_tensor_is_refused)
{
    struct hl_tensor t = piece("m.a.at60of8x8", 5);
    refused(&t, "5 elements from 60 on, which are not in a tensor of shape [8,8]");
    t = piece("m.a.at18446744073709551615of8x8", 5);
    refused(&t, "not in a tensor");
    t = piece("m.a.at0of8x8", 0);
    refused(&t, "a vector of one element or more");
    t = piece("m.a.at0of8x8", 8);
    t.rank = 2;
    t.shape[1] = 1;
    refused(&t, "a vector of one element or more");
    t = piece("m.a.at0of4294967296x4294967296", 1);
    refused(&t, "not in a tensor");
}

TEST(state_names_its_parameter_by_pieces_too)
{
    static const char params[] = "a.weight\tF32\t8,8\n";
    assert_int_equal(hl_layout_names_parameters(params, "m.a.weight.at0of8x8\tF32\t5\n"), HL_OK);
    assert_int_equal(hl_layout_names_parameters(params, "m.b.weight.at0of8x8\tF32\t5\n"),
                     HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "m.b.weight"));
}

/* ---- joining --------------------------------------------------------------------------------- */

#define ELEMENTS 40 /* of a tensor of 5 x 8 */
#define RANKS    3

/* Pieces of one tensor on some ranks. */
struct held {
    struct hl_tensor tensors[RANKS][8];
    uint32_t crcs[RANKS][8];
    char names[RANKS][8][64];
    struct hl_piece_share shares[RANKS];
    int hits[ELEMENTS];
    uint8_t bytes[4 * ELEMENTS];
};

static void held_init(struct held *h)
{
    memset(h, 0, sizeof(*h));
    for (size_t i = 0; i < sizeof(h->bytes); i++)
        h->bytes[i] = (uint8_t)(i * 37 + 11);
    for (int r = 0; r < RANKS; r++)
        h->shares[r] =
            (struct hl_piece_share){.writer = r + 10, .tensors = h->tensors[r], .crcs = h->crcs[r]};
}

static void held_add(struct held *h, int rank, uint64_t start, uint64_t end)
{
    size_t n = h->shares[rank].count++;
    snprintf(h->names[rank][n], sizeof(h->names[rank][n]), "m.w.at%" PRIu64 "of5x8", start);
    h->tensors[rank][n] = piece(h->names[rank][n], end - start);
    h->crcs[rank][n] = hl_crc32(0, h->bytes + 4 * start, 4 * (end - start));
    for (uint64_t i = start; i < end; i++)
        h->hits[i]++;
}

/* Whether each element is held once. */
static bool held_is_whole(const struct held *h)
{
    for (size_t i = 0; i < ELEMENTS; i++)
        if (h->hits[i] != 1)
            return false;
    return true;
}

static void join_as_the_model_says(struct held *h)
{
    struct hl_arena arena = {0};
    struct hl_tensor *out;
    uint32_t *crcs;
    size_t n;
    hl_status st = hl_pieces_join(h->shares, RANKS, &arena, &out, &crcs, &n);
    if (!held_is_whole(h)) {
        assert_int_equal(st, HL_EINVAL);
        assert_non_null(strstr(hl_error_text(), "'m.w'"));
        assert_non_null(strstr(hl_error_text(), "elements ["));
        assert_non_null(strstr(hl_error_text(), "rank 1")); /* 10 to 12 */
    } else {
        assert_int_equal(st, HL_OK);
        assert_int_equal(n, 1);
        assert_string_equal(out[0].name, "m.w");
        assert_int_equal(out[0].rank, 2);
        assert_int_equal(out[0].size, sizeof(h->bytes));
        assert_int_equal(crcs[0], hl_crc32(0, h->bytes, sizeof(h->bytes)));
    }
    hl_arena_fini(&arena);
}

TEST(pieces_are_joined_if_and_only_if_they_cover_their_tensor_once)
{
    uint64_t seed = 7;
    size_t whole = 0;
    for (int round = 0; round < 3000; round++) {
        struct held h;
        held_init(&h);
        uint64_t at = 0;
        int pieces = 0;
        while (at < ELEMENTS && pieces++ < 6) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            uint64_t n = 1 + (seed >> 33) % 20, from = at;
            if (at + n > ELEMENTS)
                n = ELEMENTS - at;
            if ((seed >> 20) % 16 == 0 && from > 0)
                from--; /* once more */
            if ((seed >> 24) % 16 != 0)
                held_add(&h, (int)((seed >> 40) % RANKS), from, at + n);
            at += n;
        }
        if (h.shares[0].count + h.shares[1].count + h.shares[2].count == 0)
            continue;
        whole += held_is_whole(&h);
        join_as_the_model_says(&h);
    }
    assert_true(whole > 300 && whole < 2700);
}

static void join_refused(struct held *h, const char *why)
{
    struct hl_arena arena = {0};
    struct hl_tensor *out;
    uint32_t *crcs;
    size_t n;
    assert_int_equal(hl_pieces_join(h->shares, RANKS, &arena, &out, &crcs, &n), HL_EINVAL);
    if (strstr(hl_error_text(), why) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), why);
    hl_arena_fini(&arena);
}

TEST(what_does_not_fit_is_named_with_its_ranks)
{
    struct held h;
    held_init(&h);
    held_add(&h, 0, 0, 10);
    held_add(&h, 1, 12, 40);
    join_refused(&h, "no data-parallel rank holds elements [10, 12); rank 10 holds [0, 10)");
    held_init(&h);
    held_add(&h, 0, 0, 20);
    held_add(&h, 2, 15, 40);
    join_refused(&h, "elements [15, 20) are held by rank 10 and by rank 12");
    held_init(&h);
    held_add(&h, 0, 0, 20);
    held_add(&h, 1, 0, 20);
    join_refused(&h, "elements [0, 20) are held by rank 10 and by rank 11");
    held_init(&h);
    held_add(&h, 0, 0, 20);
    held_add(&h, 1, 20, 40);
    snprintf(h.names[1][0], sizeof(h.names[1][0]), "m.w.at20of8x5");
    join_refused(&h, "has shape [5,8] on rank 10 and [8,5] on rank 11");
    snprintf(h.names[1][0], sizeof(h.names[1][0]), "m.w.at20of5x8");
    h.tensors[1][0].dtype = HL_DTYPE_I32;
    join_refused(&h, "is F32 on rank 10 and I32 on rank 11");
    held_init(&h);
    held_add(&h, 0, 0, 40);
    h.tensors[1][h.shares[1].count++] = (struct hl_tensor){
        .name = "m.w", .dtype = HL_DTYPE_F32, .rank = 2, .shape = {5, 8}, .size = 160};
    join_refused(&h, "elements [0, 40) are held by rank 10 and by rank 11");
}

TEST(names_that_begin_alike_are_different_tensors)
{
    struct held h;
    struct hl_arena arena = {0};
    struct hl_tensor *out;
    uint32_t *crcs;
    size_t n;
    held_init(&h);
    held_add(&h, 0, 0, 40);
    h.tensors[1][h.shares[1].count++] = piece("m.w.x.at0of3", 3);
    h.shares[2] = (struct hl_piece_share){.writer = 3, .tensors = h.tensors[2], .count = 1};
    h.tensors[2][0] = piece("m.w0", 3);
    assert_int_equal(hl_pieces_join(h.shares, RANKS, &arena, &out, &crcs, &n), HL_OK);
    assert_int_equal(n, 3);
    assert_string_equal(out[0].name, "m.w");
    assert_string_equal(out[1].name, "m.w.x");
    assert_string_equal(out[2].name, "m.w0");
    assert_null(crcs); /* rank 3 has given none */
    hl_arena_fini(&arena);
}
