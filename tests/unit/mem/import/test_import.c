/* Whole imports into a sink on the heap, compared byte for byte with slices made element by element
 * in memory; and failures: whatever goes wrong, every shard is released. */
#include "support/test.h"

#include <fcntl.h>
#include <ftw.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/crc32.h"
#include "mem/import/import.h"
#include "support/heap_sink.h"
#include "support/hf_slices.h"
#include "support/torch_command.h"

/* ---- a directory for each test ------------------------------------------------------------------
 */

static char dir[64];
static bool as_torch; /* the checkpoint becomes pytorch_model.bin */

static int enter(void **state)
{
    (void)state;
    snprintf(dir, sizeof(dir), "/tmp/hl_import_XXXXXX");
    return mkdtemp(dir) == NULL ? -1 : 0;
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

static int leave(void **state)
{
    (void)state;
    return nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

static int enter_torch(void **state)
{
    as_torch = true;
    return enter(state);
}

static int leave_torch(void **state)
{
    as_torch = false;
    return leave(state);
}

static void put_text(const char *name, const char *text)
{
    FILE *f = hf_create(dir, name);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static hl_status open_import(struct hl_partition_options o, struct hl_import **im)
{
    return hl_import_open(
        &(struct hl_import_options){.dir = dir, .model = "tiny", .version = 7, .partition = o}, im);
}

static hl_status run_import(struct hl_import *im, struct heap *h, const atomic_bool *cancel,
                            struct hl_import_shard **shards)
{
    struct hl_import_sink sink = heap_sink(h);
    return hl_import_run(im, &(struct hl_import_run){.sink = &sink, .threads = 2, .cancel = cancel},
                         shards);
}

/* ---- good imports -------------------------------------------------------------------------------
 */

static void same_shard(const struct kept *k, const struct hl_import_shard *s, size_t index,
                       const struct hf_slices *want)
{
    struct hl_safetensors header;
    const struct hl_partition_shard *plan = &want->plan.shards[index];
    assert_int_equal(hl_safetensors_parse(k->ptr, k->size, k->size, &header), HL_OK);
    assert_int_equal(header.data_offset % 64, 0);
    assert_int_equal(header.count, plan->tensor_count);
    assert_int_equal(s->tensors, plan->tensor_count);
    assert_string_equal(hl_safetensors_meta(&header, "helios.model"), "tiny");
    assert_string_equal(hl_safetensors_meta(&header, "helios.version"), "7");
    assert_string_equal(hl_safetensors_meta(&header, "helios.part"), s->part);
    for (uint32_t i = 0; i < plan->tensor_count; i++) {
        const struct hf_slice *slice = &want->list[plan->tensor_first + i];
        const struct hl_tensor *t = hl_safetensors_find(&header, slice->name);
        uint32_t crc;
        assert_non_null(t);
        assert_int_equal(t->size, slice->tensor.size);
        assert_memory_equal(k->ptr + header.data_offset + t->offset, slice->data, t->size);
        assert_int_equal(hl_safetensors_crc(&header, slice->name, &crc), HL_OK);
        assert_int_equal(crc, hl_crc32(0, slice->data, t->size));
    }
    hl_safetensors_fini(&header);
}

/* Skips where torch is not installed. */
static void turn_into_torch(void)
{
    char arguments[256];
    snprintf(arguments, sizeof(arguments), "tests/support/torch_files.py %s bin", dir);
    int rc = torch_command(arguments);
    if (rc == 77)
        TEST_SKIP("torch is not installed");
    assert_int_equal(rc, 0);
}

static void import_and_compare(const struct hf_fixture *f, struct hl_partition_options o)
{
    struct hf_model *m = hf_model_make(f);
    struct hl_import *im;
    struct hl_import_shard *shards;
    struct hf_slices want;
    static struct heap h;
    h = (struct heap){0};
    hf_model_save(m, dir);
    if (as_torch)
        turn_into_torch();
    if (open_import(o, &im) != HL_OK || run_import(im, &h, NULL, &shards) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(hf_slice(m, &o, &want), HL_OK);
    assert_int_equal(hl_import_shard_count(im), want.plan.shard_count);
    assert_int_equal(h.sealed, want.plan.shard_count);
    assert_int_equal(h.live, 0);
    uint64_t total = 0;
    for (size_t i = 0; i < want.plan.shard_count; i++) {
        const struct kept *k = heap_find(&h, shards[i].id);
        assert_non_null(k);
        assert_string_equal(shards[i].part, want.plan.shards[i].part);
        assert_int_equal(shards[i].pp, want.plan.shards[i].pp);
        assert_int_equal(shards[i].tp, want.plan.shards[i].tp);
        assert_int_equal(shards[i].size_bytes, k->size);
        assert_int_equal(shards[i].crc32, hl_crc32(0, k->ptr, k->size));
        same_shard(k, &shards[i], i, &want);
        total += k->size;
    }
    assert_int_equal(total, hl_import_total_bytes(im));
    hl_import_close(im);
    free(shards);
    heap_free(&h);
    hf_slices_free(&want);
    hf_model_free(m);
}

static const struct hf_fixture small = {.arch = "llama",
                                        .layers = 2,
                                        .hidden = 16,
                                        .heads = 4,
                                        .kv_heads = 2,
                                        .ffn = 24,
                                        .vocab = 50,
                                        .dtype = HL_DTYPE_BF16};

TEST_IN(enter, leave, a_llama_in_one_file_is_sliced)
{
    import_and_compare(&small, (struct hl_partition_options){.tp = 2, .pp = 2, .vocab_divisor = 8});
}

TEST_IN(enter, leave, a_sharded_qwen2_with_chunks_and_zero_padding_is_sliced)
{
    struct hf_fixture f = small;
    f.arch = "qwen2";
    f.layers = 4;
    f.files = 3;
    f.tied = 1;
    f.buffers = 1;
    import_and_compare(&f, (struct hl_partition_options){.tp = 2,
                                                         .pp = 2,
                                                         .virtual_stages = 2,
                                                         .pad = HL_API_VOCAB_PADDING_ZERO,
                                                         .naming = HL_API_LAYER_NAMING_TE});
}

TEST_IN(enter, leave, gpt2_is_transposed_in_every_width)
{

    static const enum hl_dtype dtypes[] = {HL_DTYPE_F16, HL_DTYPE_F32, HL_DTYPE_F64};

    for (size_t i = 0; i < HL_ARRAY_LEN(dtypes); i++) {
        struct hf_fixture f = {.arch = "gpt2",
                               .layers = 1,
                               .hidden = 36,
                               .heads = 6,
                               .ffn = 44,
                               .vocab = 21,
                               .positions = 9,
                               .tied = 1,
                               .bare = 1,
                               .buffers = 1,
                               .dtype = dtypes[i]};
        import_and_compare(&f, (struct hl_partition_options){.tp = 2, .pp = 1});
    }
}

/* Shards of several chunks, rows wide enough for one read per run, and bands of a transpose. */
TEST_IN(enter, leave, big_tensors_take_every_path)
{
    struct hf_fixture f = {.arch = "llama",
                           .layers = 1,
                           .hidden = 256,
                           .heads = 4,
                           .kv_heads = 4,
                           .ffn = 3000,
                           .vocab = 1003,
                           .dtype = HL_DTYPE_F32};
    import_and_compare(&f, (struct hl_partition_options){.tp = 4, .pp = 1});
    import_and_compare(&f, (struct hl_partition_options){.tp = 1, .pp = 1});
    f = (struct hf_fixture){.arch = "gpt2",
                            .layers = 1,
                            .hidden = 320,
                            .heads = 4,
                            .ffn = 4400,
                            .vocab = 500,
                            .positions = 64,
                            .tied = 1,
                            .dtype = HL_DTYPE_F32};
    import_and_compare(&f, (struct hl_partition_options){.tp = 1, .pp = 1});
    import_and_compare(&f, (struct hl_partition_options){.tp = 4, .pp = 1});
}

static void import_all(struct heap *h, struct hl_import_shard **shards, size_t *count)
{
    struct hl_import *im;
    struct hl_partition_options o = {.tp = 2, .pp = 2};
    if (open_import(o, &im) != HL_OK || run_import(im, h, NULL, shards) != HL_OK)
        fail_msg("%s", hl_error_text());
    *count = hl_import_shard_count(im);
    hl_import_close(im);
}

TEST_IN(enter, leave, shards_from_torch_files_equal_those_from_safetensors)
{
    static struct heap before, after;
    struct hl_import_shard *a, *b;
    size_t count, again;
    before = after = (struct heap){0};
    hf_checkpoint(&small, dir);
    import_all(&before, &a, &count);
    turn_into_torch();
    import_all(&after, &b, &again);
    assert_int_equal(count, again);
    for (size_t i = 0; i < count; i++) {
        const struct kept *x = heap_find(&before, a[i].id), *y = heap_find(&after, b[i].id);
        assert_int_equal(x->size, y->size);
        assert_memory_equal(x->ptr, y->ptr, x->size);
    }
    free(a);
    free(b);
    heap_free(&before);
    heap_free(&after);
}

/* The reference is made without any file. */
TEST_IN(enter_torch, leave_torch, a_llama_in_pytorch_model_bin_is_sliced)
{
    import_and_compare(&small, (struct hl_partition_options){.tp = 2, .pp = 2, .vocab_divisor = 8});
}

TEST_IN(enter_torch, leave_torch, several_files_of_torch_with_a_tied_head_are_sliced)
{
    struct hf_fixture f = small;
    f.files = 3;
    f.tied = 1;
    f.head_anyway = 1;
    f.buffers = 1;
    import_and_compare(&f, (struct hl_partition_options){.tp = 2, .pp = 2});
}

TEST_IN(enter_torch, leave_torch, a_head_tied_in_one_torch_file_is_sliced)
{
    struct hf_fixture f = small;
    f.tied = 1;
    f.head_anyway = 1;
    import_and_compare(&f, (struct hl_partition_options){.tp = 2, .pp = 1});
}

TEST_IN(enter_torch, leave_torch, gpt2_of_torch_is_transposed)
{
    struct hf_fixture f = small;
    f.arch = "gpt2";
    f.kv_heads = 4;
    f.positions = 12;
    f.tied = 1;
    f.buffers = 1;
    import_and_compare(&f, (struct hl_partition_options){.tp = 2, .pp = 2});
}

/* ---- failures
 * ------------------------------------------------------------------------------------ */

static void run_fails(struct heap *h, const atomic_bool *cancel, hl_status want, const char *text)
{
    struct hl_import *im;
    struct hl_import_shard *shards = NULL;
    struct hl_partition_options o = {.tp = 2, .pp = 2};
    if (open_import(o, &im) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(run_import(im, h, cancel, &shards), want);
    if (strstr(hl_error_text(), text) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), text);
    assert_null(shards);
    assert_int_equal(h->live, 0);
    assert_int_equal(h->discarded, h->sealed);
    heap_free(h);
    hl_import_close(im);
}

TEST_IN(enter, leave, a_failing_sink_gets_everything_back)
{
    hf_checkpoint(&small, dir);
    for (int n = 1; n <= 12; n++) { /* 4 ranks: 2 embeddings, 4 layers, 2 heads = 8 shards */
        struct heap h = {.fail_alloc = n <= 8 ? n : 0, .fail_seal = n > 8 ? n - 8 : 0};
        run_fails(&h, NULL, n <= 8 ? HL_ENOSPC : HL_EIO, "the heap");
    }
}

TEST_IN(enter, leave, a_cancelled_import_gives_everything_back)
{
    atomic_bool cancel = false;
    hf_checkpoint(&small, dir);
    struct heap h = {.cancel = &cancel};
    run_fails(&h, &cancel, HL_ECANCELED, "cancelled");
}

static const char *weights_path(void)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    return path;
}

static void truncate_weights(void)
{
    assert_int_equal(truncate(weights_path(), 4096), 0);
}

/* The last byte, with another time, as if it was not written within a tick of the clock. */
static void rewrite(const char *path)
{
    const struct timespec times[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, "x", 1, lseek(fd, 0, SEEK_END) - 1), 1);
    assert_int_equal(futimens(fd, times), 0);
    close(fd);
}

static void rewrite_weights(void)
{
    rewrite(weights_path());
}

/* The plan was made from these texts. */
static void rewrite_config(void)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/config.json", dir);
    rewrite(path);
}

static void rewrite_index(void)
{
    char path[128];
    snprintf(path, sizeof(path), "%s/model.safetensors.index.json", dir);
    rewrite(path);
}

static void replace_weights(void)
{
    char other[160];
    snprintf(other, sizeof(other), "%s.new", weights_path());
    FILE *f = fopen(other, "we");
    assert_non_null(f);
    fclose(f);
    assert_int_equal(rename(other, weights_path()), 0);
}

static void remove_weights(void)
{
    assert_int_equal(unlink(weights_path()), 0);
}

TEST_IN(enter, leave, a_file_that_is_saved_again_meanwhile_is_an_error)
{
    struct {
        void (*meanwhile)(void);
        const char *text;
        int files;
    } cases[] = {{truncate_weights, "model.safetensors", 1},
                 {rewrite_weights, "model.safetensors was changed", 1},
                 {replace_weights, "model.safetensors was replaced", 1},
                 {rewrite_config, "config.json was changed", 1},
                 {rewrite_index, "model.safetensors.index.json was changed", 2}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct hf_fixture f = small;
        f.files = cases[i].files;
        if (f.files > 1)
            remove_weights();
        hf_checkpoint(&f, dir);
        struct heap h = {.meanwhile = cases[i].meanwhile};
        run_fails(&h, NULL, HL_EIO, cases[i].text);
    }
}

TEST_IN(enter, leave, a_file_that_is_removed_meanwhile_is_read_to_its_end)
{
    struct heap h = {.meanwhile = remove_weights};
    struct hl_import_shard *shards;
    size_t count;
    hf_checkpoint(&small, dir);
    import_all(&h, &shards, &count);
    assert_int_equal(h.sealed, count);
    free(shards);
    heap_free(&h);
}

TEST_IN(enter, leave, a_tied_head_that_differs_is_refused)
{
    struct hf_fixture f = small;
    f.tied = 1;
    f.head_anyway = 1;
    import_and_compare(&f, (struct hl_partition_options){.tp = 1, .pp = 2});
    f.head_anyway = 2;
    hf_checkpoint(&f, dir);
    struct heap h = {0};
    run_fails(&h, NULL, HL_EINVAL, "'lm_head.weight' hold different bytes");
}

static void refuse(const char *text)
{
    struct hl_import *im;
    if (open_import((struct hl_partition_options){.tp = 2, .pp = 2}, &im) == HL_OK)
        fail_msg("accepted, but should say '%s'", text);
    if (strstr(hl_error_text(), text) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), text);
}

TEST_IN(enter, leave, incomplete_directories_are_refused)
{
    refuse("holds none of model.safetensors");
    put_text("config.json", "{\"model_type\": \"llama\"");
    refuse("/config.json:1:");
    char *config = hf_config_text(&small);
    put_text("config.json", config);
    free(config);
    refuse("holds none of model.safetensors, model.safetensors.index.json, pytorch_model.bin and "
           "pytorch_model.bin.index.json");
    put_text("pytorch_model.bin", "version https://git-lfs.github.com/spec/v1");
    refuse("/pytorch_model.bin: it is neither a zip nor a pickle");
    put_text("model.safetensors", "");
    refuse("/model.safetensors: a safetensors file has at least 8 bytes");
    put_text("model.safetensors", "version https://git-lfs.github.com/spec/v1");
    refuse("is this a safetensors file?");
    char path[128];
    snprintf(path, sizeof(path), "%s/model.safetensors", dir);
    assert_int_equal(remove(path), 0);
    assert_int_equal(mkfifo(path, 0600), 0);
    refuse("is not a regular file");
    assert_int_equal(remove(path), 0);
    hf_checkpoint(&small, dir);
    assert_int_equal(truncate(path, 12000), 0);
    refuse("it is truncated");
}

TEST_IN(enter, leave, numbers_beyond_64_bits_are_refused_with_what_to_do)
{
    static const char *const numbers[] = {"1e999", "1000000000000000019884624838656"};
    char text[128];
    for (size_t i = 0; i < HL_ARRAY_LEN(numbers); i++) {
        snprintf(text, sizeof(text), "{\"model_type\": \"mamba2\",\n \"limit\": [0.0, %s]}",
                 numbers[i]);
        put_text("config.json", text);
        refuse("/config.json:2:");
        refuse("put a finite one of 64 bits in its place");
    }
    put_text("config.json", "{\"model_type\": ]");
    refuse("unexpected token near ']'");
    assert_null(strstr(hl_error_text(), "finite"));
}

TEST_IN(enter, leave, an_index_of_other_files_beside_a_whole_model_is_refused)
{
    char command[256];
    hf_checkpoint(&small, dir);
    snprintf(command, sizeof(command), "cp %s/model.safetensors %s/older.safetensors", dir, dir);
    assert_int_equal(system(command), 0);
    put_text("model.safetensors.index.json",
             "{\"weight_map\": {\"model.norm.weight\": \"older.safetensors\"}}");
    refuse(
        "holds both model.safetensors and model.safetensors.index.json, which names other files: "
        "remove the one that is not the model");
    put_text("model.safetensors.index.json",
             "{\"weight_map\": {\"model.norm.weight\": \"model.safetensors\"}}");
    struct hl_import *im;
    assert_int_equal(open_import((struct hl_partition_options){.tp = 2, .pp = 2}, &im), HL_OK);
    hl_import_close(im);
}

/* Makes the one file of `small` the first of a numbered set. */
static void copy_numbered(const char *to)
{
    char command[256];
    snprintf(command, sizeof(command), "cp %s/held %s/%s", dir, dir, to);
    assert_int_equal(system(command), 0);
}

TEST_IN(enter, leave, numbered_files_without_an_index_are_all_there)
{
    char from[128], to[128];
    hf_checkpoint(&small, dir);
    snprintf(from, sizeof(from), "%s/model.safetensors", dir);
    snprintf(to, sizeof(to), "%s/held", dir);
    assert_int_equal(rename(from, to), 0);
    snprintf(from, sizeof(from), "%s/config.json", dir);
    assert_int_equal(remove(from), 0);
    copy_numbered("w-00001-of-00003.safetensors");
    copy_numbered("w-00003-of-00003.safetensors");
    refuse("holds w-00001-of-00003.safetensors, but w-00002-of-00003.safetensors is missing: copy");
    copy_numbered("w-00002-of-00003.safetensors");
    refuse("there is no config.json, so the model can only be stored unsliced"); /* all are there */
    snprintf(from, sizeof(from), "%s/w-00001-of-00003.safetensors", dir);
    assert_int_equal(remove(from), 0);
    refuse("holds w-00002-of-00003.safetensors, but w-00001-of-00003.safetensors is missing: copy");
    copy_numbered("w-00000-of-00003.safetensors");
    refuse("holds w-00000-of-00003.safetensors, but w-00001-of-00003.safetensors is missing: copy");
}

TEST_IN(enter, leave, an_index_can_not_leave_the_directory_or_lie)
{
    static const char *const escapes[] = {"../x.safetensors", "/etc/passwd",    "", "..",
                                          ".hidden",          "a/b.safetensors"};
    char text[256];
    hf_checkpoint(&small, dir);
    for (size_t i = 0; i < HL_ARRAY_LEN(escapes); i++) {
        snprintf(text, sizeof(text), "{\"weight_map\": {\"a\": \"%s\"}}", escapes[i]);
        put_text("model.safetensors.index.json", text);
        refuse("give a plain file name");
    }
    put_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": 3}}");
    refuse("weight_map['a'] is not a file name");
    put_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"none.safetensors\"}}");
    refuse("index.json names the file 'none.safetensors', which is missing: copy it too, or remove "
           "the index if model.safetensors is the whole model");
    put_text("model.safetensors.index.json", "{\"weight_map\": {\"a\": \"model.safetensors\"}}");
    refuse("is model.safetensors, which does not hold it");
    put_text("model.safetensors.index.json", "{}");
    refuse("'weight_map' is missing");
    snprintf(text, sizeof(text), "cp %s/model.safetensors %s/again.safetensors", dir, dir);
    assert_int_equal(system(text), 0);
    put_text("model.safetensors.index.json",
             "{\"weight_map\": {\"model.norm.weight\": \"model.safetensors\","
             " \"lm_head.weight\": \"again.safetensors\"}}");
    refuse("is in two files");
}
