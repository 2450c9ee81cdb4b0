/* Imports at every layout are resharded to every other one and compared, including the header, with
 * the import at that layout; and failures: no shard is left, and a bad source byte is found. */
#include "support/test.h"

#include <ftw.h>

#include "mem/import/import.h"
#include "mem/reshard/reshard.h"
#include "support/heap_sink.h"
#include "support/reshard_models.h"

/* Tensors of several MiB, with elements across block boundaries. */
static const struct hf_fixture big_models[] = {
    {.arch = "llama",
     .layers = 2,
     .hidden = 320,
     .heads = 4,
     .kv_heads = 2,
     .ffn = 1200,
     .vocab = 4001,
     .dtype = HL_DTYPE_F32},
    {.arch = "gpt2",
     .layers = 2,
     .hidden = 404,
     .heads = 4,
     .ffn = 1616,
     .vocab = 3001,
     .positions = 16,
     .tied = 1,
     .dtype = HL_DTYPE_BF16},
};

/* A model at one layout: the plan and the sealed shards, by the plan's order. */
struct world {
    struct hl_partition_plan plan;
    struct hl_reshard_source *sources;
    struct heap *heap; /* NULL: the bytes belong to this struct */
};

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw)
{
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void add_source(struct world *w, size_t i, const uint8_t *bytes, uint64_t size)
{
    uint32_t *crcs = calloc(hl_chunk_count(size), sizeof(*crcs));
    for (uint64_t c = 0; c < hl_chunk_count(size); c++)
        crcs[c] = hl_crc32(0, bytes + c * HL_CHUNK, hl_chunk_len(size, c));
    w->sources[i] = (struct hl_reshard_source){
        .id = hl_id_random(),
        .bytes = bytes,
        .chunks = {.size = size, .crc32 = hl_crc32(0, bytes, size), .crcs = crcs}};
}

/* The model imported with these options; 0 if it can't be split like that. */
static int world_import(struct world *w, const struct hf_model *m, const char *dir,
                        const struct hl_partition_options *o)
{
    struct hl_import *im;
    struct hl_import_shard *shards;
    struct hl_import_options options = {.dir = dir, .model = "tiny", .version = 7, .partition = *o};
    if (hl_import_open(&options, &im) != HL_OK)
        return 0;
    *w = (struct world){.heap = calloc(1, sizeof(*w->heap))};
    struct hl_import_sink sink = heap_sink(w->heap);
    hf_require(hl_import_run(im, &(struct hl_import_run){.sink = &sink}, &shards) == HL_OK, dir);
    hf_require(hf_plan(m, o, &w->plan) == HL_OK, dir);
    w->sources = calloc(w->plan.shard_count, sizeof(*w->sources));
    for (size_t i = 0; i < w->plan.shard_count; i++) {
        const struct kept *k = heap_find(w->heap, shards[i].id);
        add_source(w, i, k->ptr, k->size);
    }
    free(shards);
    hl_import_close(im);
    return 1;
}

/* Every tensor in a file of its own, after a header that Helios did not write. */
static void world_unsliced(struct world *w, const struct hf_model *m)
{
    struct rs_layout whole;
    rs_whole(m, &whole);
    *w = (struct world){.plan = whole.s.plan};
    w->sources = calloc(m->count, sizeof(*w->sources));
    for (size_t i = 0; i < m->count; i++) {
        struct hl_tensor t = m->tensors[i];
        struct hl_safetensors_image image;
        hf_require(hl_safetensors_write(&(struct hl_safetensors_layout){.tensors = &t, .count = 1},
                                        &image) == HL_OK,
                   t.name);
        uint8_t *bytes = malloc(image.size + t.size);
        memcpy(bytes, image.bytes, image.size);
        memcpy(bytes + image.size, m->data[i], t.size);
        add_source(w, i, bytes, image.size + t.size);
        hl_safetensors_image_fini(&image);
        free(whole.s.list[i].data);
    }
    free(whole.s.list);
}

static void world_free(struct world *w)
{
    for (size_t i = 0; i < w->plan.shard_count; i++) {
        free((void *)(uintptr_t)w->sources[i].chunks.crcs);
        if (w->heap == NULL)
            free((void *)(uintptr_t)w->sources[i].bytes);
    }
    if (w->heap != NULL)
        heap_free(w->heap);
    free(w->heap);
    free(w->sources);
    hl_partition_fini(&w->plan);
}

/* All of b's shards from a's, aliases too. */
static hl_status reshard(const struct hf_model *m, const struct world *a, const struct world *b,
                         struct heap *h, const atomic_bool *cancel, struct hl_reshard_done *done)
{
    struct hl_reshard_plan plan;
    struct hl_import_sink sink = heap_sink(h);
    unsigned char *wanted = malloc(b->plan.shard_count);
    memset(wanted, 1, b->plan.shard_count);
    hf_require(hl_reshard_plan(m->tensors, m->count, &a->plan, &b->plan, &plan) == HL_OK, "plan");
    struct hl_reshard_run run = {.model = "tiny",
                                 .version = 7,
                                 .a = &a->plan,
                                 .b = &b->plan,
                                 .plan = &plan,
                                 .sources = a->sources,
                                 .wanted = wanted,
                                 .sink = &sink,
                                 .cancel = cancel};
    hl_status st = hl_reshard_run(&run, done);
    hl_reshard_fini(&plan);
    free(wanted);
    return st;
}

static void same_shards(const struct world *want, const struct heap *h,
                        const struct hl_reshard_done *done)
{
    uint64_t bytes = 0;
    assert_int_equal(done->made, want->plan.shard_count);
    for (size_t i = 0; i < want->plan.shard_count; i++) {
        const struct kept *k = heap_find(h, done->shards[i].id);
        assert_non_null(k);
        assert_int_equal(k->size, want->sources[i].chunks.size);
        assert_int_equal(done->shards[i].crc32, want->sources[i].chunks.crc32);
        assert_string_equal(done->shards[i].part, want->plan.shards[i].part);
        assert_memory_equal(k->ptr, want->sources[i].bytes, k->size);
        bytes += k->size;
    }
    assert_int_equal(done->copied_bytes, bytes);
    assert_int_equal(h->live, 0);
    assert_int_equal(h->discarded, 0);
}

/* Element by element, because an unsliced target has a header that no import writes. */
static void reshard_pair(const struct hf_model *m, const struct world *a, const struct world *b)
{
    struct heap h = {0};
    struct hl_reshard_done done;
    if (reshard(m, a, b, &h, NULL, &done) != HL_OK)
        fail_msg("%s", hl_error_text());
    if (b->heap != NULL) {
        same_shards(b, &h, &done);
    } else {
        for (size_t i = 0; i < m->count; i++) {
            const struct kept *k = heap_find(&h, done.shards[i].id);
            assert_memory_equal(k->ptr + k->size - m->tensors[i].size, m->data[i],
                                m->tensors[i].size);
        }
    }
    free(done.shards);
    heap_free(&h);
}

static char dir[64];

static struct hf_model *enter_model(const struct hf_fixture *f)
{
    struct hf_model *m = hf_model_make(f);
    snprintf(dir, sizeof(dir), "/tmp/hl_reshard_XXXXXX");
    assert_non_null(mkdtemp(dir));
    hf_model_save(m, dir);
    return m;
}

static void leave_model(struct hf_model *m)
{
    hf_model_free(m);
    assert_int_equal(nftw(dir, remove_one, 8, FTW_DEPTH | FTW_PHYS), 0);
}

static struct hl_partition_options options_at(int tp, int pp, int chunks)
{
    return (struct hl_partition_options){
        .tp = tp, .pp = pp, .virtual_stages = chunks, .vocab_divisor = 8};
}

static void every_pair(const struct hf_fixture *f, size_t at_least)
{
    static const int grid[][3] = {{1, 1, 1}, {2, 1, 1}, {3, 1, 1}, {4, 1, 1}, {1, 2, 1}, {2, 2, 1},
                                  {2, 2, 2}, {4, 2, 2}, {1, 4, 1}, {2, 4, 1}, {4, 4, 1}};
    struct world list[HL_ARRAY_LEN(grid) + 1];
    struct hf_model *m = enter_model(f);
    size_t n = 0;
    world_unsliced(&list[n++], m);
    for (size_t i = 0; i < HL_ARRAY_LEN(grid); i++) {
        struct hl_partition_options o = options_at(grid[i][0], grid[i][1], grid[i][2]);
        n += (size_t)world_import(&list[n], m, dir, &o);
    }
    assert_true(n >= at_least);
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            reshard_pair(m, &list[i], &list[k]);
    for (size_t i = 0; i < n; i++)
        world_free(&list[i]);
    leave_model(m);
}

TEST(shards_are_those_of_a_fresh_import_for_every_pair)
{
    for (size_t f = 0; f < HL_ARRAY_LEN(rs_models); f++)
        every_pair(&rs_models[f], 11);
}

TEST(tensors_of_many_blocks_too)
{
    for (size_t f = 0; f < HL_ARRAY_LEN(big_models); f++)
        every_pair(&big_models[f], 6);
}

/* ---- failures -------------------------------------------------------------------------------- */

struct failing {
    struct hf_model *m;
    struct world a, b;
};

static void failing_open(struct failing *f)
{
    f->m = enter_model(&big_models[0]);
    struct hl_partition_options two = options_at(2, 1, 1), four = options_at(4, 1, 1);
    assert_true(world_import(&f->a, f->m, dir, &two));
    assert_true(world_import(&f->b, f->m, dir, &four));
}

static void failing_close(struct failing *f)
{
    world_free(&f->a);
    world_free(&f->b);
    leave_model(f->m);
}

static void no_shard_is_left(const struct heap *h)
{
    assert_int_equal(h->live, 0);
    assert_int_equal(h->discarded, h->sealed);
}

/* One byte in every MiB of every shard in turn: damage in the header is found, too. */
TEST(a_damaged_source_mib_is_named)
{
    struct failing f;
    failing_open(&f);
    size_t damaged = 0;
    for (size_t s = 0; s < f.a.plan.shard_count; s++) {
        const struct hl_chunks *c = &f.a.sources[s].chunks;
        for (uint64_t i = 0; i < hl_chunk_count(c->size); i++, damaged++) {
            struct heap h = {0};
            struct hl_reshard_done done;
            char want[160];
            uint8_t *byte = (uint8_t *)(uintptr_t)f.a.sources[s].bytes + i * HL_CHUNK +
                            hl_chunk_len(c->size, i) / 2;
            *byte ^= 4;
            assert_int_equal(reshard(f.m, &f.a, &f.b, &h, NULL, &done), HL_ECORRUPT);
            snprintf(want, sizeof(want), "MiB %d of source shard %s (pp 0, tp %d, %s)", (int)i,
                     hl_id_format(f.a.sources[s].id).s, f.a.plan.shards[s].tp,
                     f.a.plan.shards[s].part);
            assert_non_null(strstr(hl_error_text(), want));
            no_shard_is_left(&h);
            *byte ^= 4;
            heap_free(&h);
        }
    }
    assert_true(damaged > 20);
    failing_close(&f);
}

TEST(a_cancel_or_a_failing_sink_leaves_no_shard)
{
    struct failing f;
    failing_open(&f);
    for (int i = 0; i < 2 * (int)f.b.plan.shard_count; i++) {
        int n = i / 2 + 1;
        struct heap h = {.fail_alloc = i % 2 ? n : 0, .fail_seal = i % 2 ? 0 : n};
        struct hl_reshard_done done;
        assert_int_equal(reshard(f.m, &f.a, &f.b, &h, NULL, &done), i % 2 ? HL_ENOSPC : HL_EIO);
        no_shard_is_left(&h);
        heap_free(&h);
    }
    atomic_bool cancel = false;
    struct heap h = {.cancel = &cancel};
    struct hl_reshard_done done;
    assert_int_equal(reshard(f.m, &f.a, &f.b, &h, &cancel, &done), HL_ECANCELED);
    assert_true(h.sealed > 0 && h.sealed < (int)f.b.plan.shard_count);
    no_shard_is_left(&h);
    heap_free(&h);
    failing_close(&f);
}

TEST(a_source_that_is_another_layouts_is_refused)
{
    struct failing f;
    failing_open(&f);
    struct heap h = {0};
    struct hl_reshard_done done;
    struct hl_reshard_source keep = f.a.sources[1];
    f.a.sources[1] = f.b.sources[1]; /* a layer of tp 4 */
    assert_int_equal(reshard(f.m, &f.a, &f.b, &h, NULL, &done), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "source shard of pp 0, tp 0, layer-0000: tensor "
                                            "'decoder.layers.0.self_attention.linear_qkv.weight' "
                                            "is F32 [160,320], the layout says F32 [320,320]"));
    f.a.sources[1].bytes = NULL;
    assert_int_equal(reshard(f.m, &f.a, &f.b, &h, NULL, &done), HL_ENOENT);
    f.a.sources[1] = keep;
    assert_int_equal(h.sealed + h.live, 0);
    failing_close(&f);
}

/* ---- what is made ---------------------------------------------------------------------------- */

static void count_progress(void *arg, uint64_t done, uint64_t total)
{
    _Atomic uint64_t *most = arg;
    uint64_t seen = atomic_load(most);
    assert_true(done <= total);
    while (seen < done && !atomic_compare_exchange_weak(most, &seen, done)) {
    }
}

TEST(aliases_are_not_made_and_progress_ends_at_the_total)
{
    struct hf_model *m = enter_model(&rs_models[1]); /* tied: pp 2 adds a head */
    struct hl_partition_options one = options_at(2, 1, 1), two = options_at(2, 2, 1);
    struct world a, b;
    struct hl_reshard_plan plan;
    struct hl_reshard_done done;
    struct heap h = {0};
    struct hl_import_sink sink = heap_sink(&h);
    _Atomic uint64_t most = 0;
    assert_true(world_import(&a, m, dir, &one) && world_import(&b, m, dir, &two));
    assert_int_equal(hl_reshard_plan(m->tensors, m->count, &a.plan, &b.plan, &plan), HL_OK);
    struct hl_reshard_run run = {.model = "tiny",
                                 .version = 7,
                                 .a = &a.plan,
                                 .b = &b.plan,
                                 .plan = &plan,
                                 .sources = a.sources,
                                 .sink = &sink,
                                 .progress = count_progress,
                                 .progress_arg = &most};
    assert_int_equal(hl_reshard_run(&run, &done), HL_OK);
    assert_int_equal(done.made, 2); /* the heads of tp 0 and 1 */
    for (size_t i = 0; i < b.plan.shard_count; i++) {
        int head = strcmp(b.plan.shards[i].part, "head") == 0;
        assert_int_equal(!hl_id_is_none(done.shards[i].id), head);
        if (head) {
            const struct kept *k = heap_find(&h, done.shards[i].id);
            assert_memory_equal(k->ptr, b.sources[i].bytes, k->size);
        }
    }
    assert_int_equal(atomic_load(&most), done.copied_bytes);
    assert_true(done.verified_bytes > 0);
    free(done.shards);
    heap_free(&h);
    hl_reshard_fini(&plan);
    world_free(&a);
    world_free(&b);
    leave_model(m);
}
