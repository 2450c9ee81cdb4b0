/* A rank's file as Megatron writes it, made with torch. */
#include "torch_rig.h"

#include "core/torch/megatron.h"

static int setup(void **state __attribute__((unused)))
{
    return rig_make("megatron");
}

TESTS_IN(setup, rig_teardown)

static void assert_folder(const char *text, const char *expected)
{
    char buf[64];
    assert_int_equal(hl_megatron_folder(text, strlen(text), buf, sizeof(buf)), HL_OK);
    assert_string_equal(buf, expected);
}

TEST(the_tracker_names_a_folder)
{
    char buf[64];
    assert_folder("release", "release");
    assert_folder("10\n", "iter_0000010");
    assert_folder("12345678", "iter_12345678");
    assert_folder("0", "iter_0000000");
    static const char *const bad[] = {
        "", "\n", "-1", "1.5", "../x", "release now", "99999999999999999999999999999999999999"};
    for (size_t i = 0; i < HL_ARRAY_LEN(bad); i++)
        assert_int_equal(hl_megatron_folder(bad[i], strlen(bad[i]), buf, sizeof(buf)), HL_EINVAL);
}

static void assert_place(uint64_t pp, uint64_t ep, const char *folder, uint64_t t, uint64_t p,
                         uint64_t e)
{
    char buf[64];
    struct hl_megatron_sizes sizes = {.tp = 4, .pp = pp, .ep = ep};
    struct hl_megatron_place place;
    assert_int_equal(hl_megatron_place(folder, &sizes, &place), HL_OK);
    assert_int_equal(place.tp, t);
    assert_int_equal(place.pp, p);
    assert_int_equal(place.ep, e);
    assert_string_equal(hl_megatron_rank_folder(&sizes, &place, buf, sizeof(buf)), folder);
}

static void assert_no_place(uint64_t pp, uint64_t ep, const char *folder, const char *text)
{
    struct hl_megatron_place place;
    assert_int_equal(
        hl_megatron_place(folder, &(struct hl_megatron_sizes){.tp = 4, .pp = pp, .ep = ep}, &place),
        HL_EINVAL);
    assert_error_has(text);
}

/* The same name means another rank under other sizes. */
TEST(a_rank_has_its_place_by_the_sizes)
{
    assert_place(1, 1, "mp_rank_03", 3, 0, 0);
    assert_place(8, 1, "mp_rank_01_005", 1, 5, 0);
    assert_place(1, 8, "mp_rank_01_005", 1, 0, 5);
    assert_place(8, 8, "mp_rank_00_001_007", 0, 1, 7);
    assert_no_place(1, 1, "mp_rank_04", "beyond TP 4");
    assert_no_place(2, 1, "mp_rank_00_002", "beyond TP 4, PP 2");
    assert_no_place(2, 1, "mp_rank_00", "which is like mp_rank_00_000");
    assert_no_place(1, 1, "mp_rank_00_000", "which is like mp_rank_00");
    assert_no_place(1, 1, "mp_rank_0", "which is like mp_rank_00");
    assert_no_place(1, 1, "mp_rank_", "which is like mp_rank_00");
    assert_no_place(1, 1, "mp_rank_00x", "which is like mp_rank_00");
    assert_no_place(1, 1, "rank_00", "which is like mp_rank_00");
}

static void open_rank(const char *name, struct rig_file *f, struct hl_torch_file *file)
{
    rig_load(name, f);
    if (hl_torch_file_open(&f->source, file) != HL_OK)
        fail_msg("%s", hl_error_text());
}

TEST(args_say_the_sizes)
{
    rig_need_torch();
    struct rig_file f;
    struct hl_torch_file file;
    struct hl_megatron_sizes s;
    open_rank("rank.pt", &f, &file);
    assert_int_equal(hl_megatron_sizes_read(file.pickle.root, &s), HL_OK);
    assert_int_equal(s.tp, 2);
    assert_int_equal(s.pp, 2);
    assert_int_equal(s.ep, 1);
    assert_int_equal(s.layers, 4);
    assert_int_equal(s.hidden, 8);
    assert_int_equal(s.ffn, 12);
    assert_int_equal(s.heads, 4);
    assert_int_equal(s.kv_heads, 2);
    assert_int_equal(s.positions, 16);
    assert_int_equal(s.padded_vocab, 64);
    assert_int_equal(s.experts, 0);
    assert_true(s.untied);
    assert_true(s.gated);
    assert_int_equal(hl_megatron_sizes_read(hl_pickle_find(file.pickle.root, "model"), &s),
                     HL_EINVAL);
    assert_error_has("it has no 'args'");
    hl_torch_file_fini(&file);
    rig_free(&f);
}

static void assert_tensors(const char *name, const char *const *names, size_t count)
{
    char path[64];
    struct rig_file f, raw;
    struct hl_torch_file file;
    struct hl_torch_tensors t;
    struct hl_safetensors header;
    size_t at = 0;
    snprintf(path, sizeof(path), "%s.pt", name);
    open_rank(path, &f, &file);
    snprintf(path, sizeof(path), "%s.raw", name);
    rig_load(path, &raw);
    assert_int_equal(hl_megatron_tensors(file.pickle.root, &t), HL_OK);
    assert_int_equal(t.count, count);
    assert_int_equal(hl_torch_file_header(&file, &t, f.len, &header), HL_OK);
    for (size_t i = 0; i < count; i++) {
        assert_string_equal(t.list[i].tensor.name, names[i]);
        const struct hl_tensor *found = hl_safetensors_find(&header, names[i]);
        assert_non_null(found);
        assert_memory_equal(f.bytes + found->offset, raw.bytes + at, found->size);
        at += found->size;
    }
    assert_int_equal(at, raw.len);
    hl_safetensors_fini(&header);
    hl_torch_tensors_fini(&t);
    hl_torch_file_fini(&file);
    rig_free(&raw);
    rig_free(&f);
}

TEST(the_models_tensors_are_listed_and_nothing_else)
{
    rig_need_torch();
    assert_tensors("rank",
                   (const char *const[]){"embedding.word_embeddings.weight",
                                         "decoder.layers.0.mlp.linear_fc1.weight"},
                   2);
    assert_tensors("chunks", (const char *const[]){"model0.a", "model1.a", "model1.b"}, 3);
}
