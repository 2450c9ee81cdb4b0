/* Layouts of GPT models compared with the numbers of an independent program, and with the chunks
 * that the client makes. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/model/hf.h"
#include "helios/helios.h"
#include "helios/hybridps.h"
#include "hybridps/client/client_private.h"
#include "hybridps/layout/layout.h"

#define MI        (UINT64_C(1) << 20)
#define ELEMENT   4
#define PER_LAYER 6

static const struct shape {
    unsigned layers;
    uint64_t h;
    double at[4]; /* utilisation with chunks of 32, 64, 128, 256 Mi elements; 0 = not known */
} shapes[] = {
    {12, 768, {.845, .634, .634, .317}},
    {24, 1024, {.901, .901, .751, .563}},
    {48, 1600, {.916, .956, .916, .916}},
    {78, 5120, {0, 0, .781, .933}},
};

/* ln1, qkv, projection, ln2, fc1, fc2: each module's weight and bias together. */
static size_t gpt(const struct shape *s, struct hl_layout_item *out)
{
    const uint64_t h = s->h, modules[PER_LAYER] = {2 * h, 3 * h * h + 3 * h, h * h + h,
                                                   2 * h, 4 * h * h + 4 * h, 4 * h * h + h};
    size_t n = 0;
    for (unsigned i = 0; i < s->layers; i++)
        for (unsigned k = 0; k < PER_LAYER; k++)
            out[n++] = (struct hl_layout_item){.bytes = modules[k] * ELEMENT};
    return n;
}

TEST(test_gpt_models_fill_chunks_as_the_independent_packing_did)
{
    struct hl_layout_item items[78 * PER_LAYER];
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        size_t n = gpt(&shapes[i], items);
        for (unsigned k = 0; k < 4; k++) {
            struct hl_layout l;
            if (shapes[i].at[k] == 0)
                continue;
            assert_int_equal(hl_layout_fill(items, n, (32 * MI << k) * ELEMENT, 0, NULL, &l), 0);
            assert_float_equal(hl_layout_utilisation(&l), shapes[i].at[k], 0.0006);
            assert_int_equal(l.allocated, l.chunks * ((32 * MI << k) * ELEMENT));
        }
    }
}

TEST(test_the_search_fills_gpt_models_to_99_percent)
{
    struct hl_layout_item items[78 * PER_LAYER];
    const uint64_t granules[] = {4096, 65536, 2 * MI};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        size_t n = gpt(&shapes[i], items);
        for (unsigned g = 0; g < 3; g++) {
            struct hl_layout l, again;
            struct hl_layout_options o = {.most = 256 * MI * ELEMENT, .granule = granules[g]};
            assert_int_equal(hl_layout_search(items, n, &o, &l), 0);
            if (hl_layout_utilisation(&l) < .99)
                fail_msg("%u layers of %d, granule %d: %f at %f Mi", shapes[i].layers,
                         (int)shapes[i].h, (int)granules[g], hl_layout_utilisation(&l),
                         (double)l.chunk_bytes / ELEMENT / (double)MI);
            assert_int_equal(l.chunk_bytes % granules[g], 0);
            assert_true(l.chunk_bytes <= o.most);
            assert_int_equal(hl_layout_fill(items, n, l.chunk_bytes, granules[g], NULL, &again), 0);
            assert_int_equal(again.chunks, l.chunks);
            assert_int_equal(again.allocated, l.allocated);
        }
    }
}

TEST(test_a_tensor_goes_to_the_first_chunk_with_room)
{
    const struct hl_layout_item items[] = {{640, 0}, {500, 0}, {640, 1},
                                           {300, 0}, {64, 0},  {2000, 0}};
    uint32_t at[6];
    struct hl_layout l;
    assert_int_equal(hl_layout_fill(items, 6, 1024, 0, at, &l), 0);
    assert_int_equal(at[0], 0); /* 640 of 1024 */
    assert_int_equal(at[1], 1); /* 512: does not fit after it */
    assert_int_equal(at[3], 0); /* 320 of the 384 left */
    assert_int_equal(at[4], 0); /* the last 64 */
    assert_int_equal(at[5], 2); /* longer: in a chunk of its own, 2048 */
    assert_int_equal(at[2], 3); /* another kind */
    assert_int_equal(l.chunks, 4);
    assert_int_equal(l.allocated, 3 * 1024 + 2048);
    assert_int_equal(l.used, 4144);
    assert_int_equal(l.longest, 2048);
}

TEST(test_bounds_are_kept_and_nonsense_is_refused)
{
    const struct hl_layout_item items[] = {{1000, 0}, {3000, 0}, {500, 0}};
    struct hl_layout l;
    struct hl_layout_options o = {.least = 8192, .most = 16384, .granule = 4096};
    assert_int_equal(hl_layout_search(items, 3, &o, &l), 0);
    assert_int_equal(l.chunk_bytes, 8192);
    o = (struct hl_layout_options){.most = 2048}; /* less than the longest tensor */
    assert_int_equal(hl_layout_search(items, 3, &o, &l), 0);
    assert_true(l.chunk_bytes <= 2048);
    assert_int_equal(l.longest, 3008);
    assert_int_equal(hl_layout_search(items, 0, &o, &l), HELIOS_EINVAL);
    const struct hl_layout_item bad[] = {{UINT64_MAX / 2, 0}, {UINT64_MAX / 2, 0}},
                                none[] = {{0, 0}};
    assert_int_equal(hl_layout_search(bad, 2, &o, &l), HELIOS_EINVAL);
    assert_int_equal(hl_layout_fill(bad, 2, 64, 0, NULL, &l), HELIOS_EINVAL);
    assert_int_equal(hl_layout_search(none, 1, &o, &l), HELIOS_EINVAL);
}

TEST(test_the_client_makes_the_chunks_that_the_layout_foresees)
{
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = "emu:1MiB",
                          .chunk_bytes = 16000}; /* not whole pages */
    struct hl_layout_item items[200];
    uint32_t at[200], first[200], tensor;
    struct hl_layout l;
    hybridps *h = NULL;
    hybridps_stats_t stats = {HYBRIDPS_STATS_INIT};
    uint64_t seed = 5, granule;
    assert_int_equal(hybridps_open(&o, &h), 0);
    assert_int_equal(hybridps_stats(h, &stats), 0);
    granule = stats.granule;
    for (unsigned i = 0; i < 200; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        items[i] = (struct hl_layout_item){.bytes = 1 + (seed >> 40) % 20000, .kind = i / 40};
        assert_int_equal(hybridps_add(h, "t", (int)items[i].kind, items[i].bytes, &tensor), 0);
        assert_int_equal(tensor, i);
    }
    assert_int_equal(hybridps_layout(h), 0);
    assert_int_equal(hl_layout_fill(items, 200, o.chunk_bytes, granule, at, &l), 0);
    assert_int_equal(hybridps_stats(h, &stats), 0);
    assert_int_equal(stats.chunks, l.chunks);
    for (unsigned i = 0; i < 200; i++) {
        hybridps_tensor_info t = {HYBRIDPS_TENSOR_INFO_INIT};
        assert_int_equal(hybridps_tensor(h, i, &t), 0);
        first[i] = t.chunk;
        assert_int_equal(first[i], at[i]);
    }
    hybridps_close(h);
}

/* ---- the client's choice without options ---- */

static const struct {
    const char *name, *config;
} models[] = {
    {"GPT-2 small", "{\"model_type\":\"gpt2\",\"n_layer\":12,\"n_embd\":768,\"n_head\":12,"
                    "\"vocab_size\":50257,\"n_positions\":1024}"},
    {"GPT-2 medium", "{\"model_type\":\"gpt2\",\"n_layer\":24,\"n_embd\":1024,\"n_head\":16,"
                     "\"vocab_size\":50257,\"n_positions\":1024}"},
    {"GPT-2 XL", "{\"model_type\":\"gpt2\",\"n_layer\":48,\"n_embd\":1600,\"n_head\":25,"
                 "\"vocab_size\":50257,\"n_positions\":1024}"},
    {"Llama 7B", "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":11008,"
                 "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"vocab_size\":32000,"
                 "\"tie_word_embeddings\":false}"},
    {"Llama 3 8B", "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":14336,"
                   "\"num_hidden_layers\":32,\"num_attention_heads\":32,"
                   "\"num_key_value_heads\":8,\"vocab_size\":128256,"
                   "\"tie_word_embeddings\":false}"},
    {"TinyLlama", "{\"model_type\":\"llama\",\"hidden_size\":2048,\"intermediate_size\":5632,"
                  "\"num_hidden_layers\":22,\"num_attention_heads\":32,"
                  "\"num_key_value_heads\":4,\"vocab_size\":32000,"
                  "\"tie_word_embeddings\":false}"},
};

/* Bytes of each kind's elements: 16 bytes a parameter. */
static const unsigned of_kind[] = {2, 2, 4, 4, 4};

static double lay_out(const char *config, const char *device)
{
    struct hl_hf_config c;
    struct hl_estimate e;
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = device};
    hybridps *h = NULL;
    uint64_t used = 0, allocated = 0;
    assert_int_equal(hl_hf_config_parse(config, strlen(config), "config.json", &c), 0);
    assert_int_equal(hl_estimate_of_config(&c, &e), 0);
    hl_hf_config_fini(&c);
    assert_int_equal(hybridps_open(&o, &h), 0);
    for (unsigned k = 0; k < sizeof(of_kind) / sizeof(of_kind[0]); k++)
        for (size_t i = 0; i < e.count; i++) {
            uint32_t tensor;
            uint64_t bytes = e.tensors[i].elements * of_kind[k];
            assert_int_equal(hybridps_add(h, "t", (int)k, bytes, &tensor), 0);
            used += bytes;
        }
    assert_int_equal(hybridps_layout(h), 0);
    for (uint32_t i = 0; i < h->tensors.chunk_count; i++)
        allocated += h->tensors.chunks[i].bytes;
    print_message("%u chunks, ", (unsigned)h->tensors.chunk_count);
    hl_estimate_fini(&e);
    hybridps_close(h);
    return (double)used / (double)allocated;
}

TEST(test_the_client_fills_models_to_99_percent_by_itself)
{
    static const char *const devices[] = {"emu:512MiB", "emu:4GiB", "emu:24GiB"};
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        for (int d = 0; d < 3; d++) {
            double used = lay_out(models[i].config, devices[d]);
            print_message("%s on %s: %.2f %%\n", models[i].name, devices[d], 100 * used);
            assert_true(used >= .99);
        }
}

/* A bias after an embedding would keep the embedding on the device whenever the bias is used. */
TEST(test_a_tensor_longer_than_chunks_is_alone)
{
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    const struct hl_layout_item items[] = {
        {page + 904, 0}, {64, 0}, {64, 0}, {2 * page + 808, 0}, {64, 0}};
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = "emu:1MiB", .chunk_bytes = page};
    uint32_t at[5], tensor;
    struct hl_layout l;
    hybridps *h = NULL;
    assert_int_equal(hl_layout_fill(items, 5, page, page, at, &l), 0);
    assert_int_equal(hybridps_open(&o, &h), 0);
    for (int i = 0; i < 5; i++)
        assert_int_equal(hybridps_add(h, "t", 0, items[i].bytes, &tensor), 0);
    assert_int_equal(hybridps_layout(h), 0);
    for (uint32_t i = 0; i < 5; i++) {
        static const uint32_t want[] = {0, 1, 1, 2, 1};
        hybridps_tensor_info t = {HYBRIDPS_TENSOR_INFO_INIT};
        assert_int_equal(hybridps_tensor(h, i, &t), 0);
        assert_int_equal(t.chunk, want[i]);
        assert_int_equal(at[i], want[i]);
    }
    hybridps_close(h);
}
