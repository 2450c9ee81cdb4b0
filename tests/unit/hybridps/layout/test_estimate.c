/* Estimates by hand, and compared with the real client: a device of the estimated size works, a
 * smaller one does not. */
#include "support/test.h"

#include <stdio.h>
#include <string.h>

#include "core/model/hf.h"
#include "helios/helios.h"
#include "hybridps/layout/layout.h"

static const char gpt2[] =
    "{\"model_type\":\"gpt2\",\"n_layer\":12,\"n_embd\":768,\"n_head\":12,\"vocab_size\":50257,"
    "\"n_positions\":1024}";
static const char llama7b[] =
    "{\"model_type\":\"llama\",\"hidden_size\":4096,\"intermediate_size\":11008,"
    "\"num_hidden_layers\":32,\"num_attention_heads\":32,\"vocab_size\":32000,"
    "\"tie_word_embeddings\":false}";
static const char small[] =
    "{\"model_type\":\"qwen2\",\"hidden_size\":96,\"intermediate_size\":200,"
    "\"num_hidden_layers\":3,\"num_attention_heads\":6,\"num_key_value_heads\":2,"
    "\"vocab_size\":500,\"tie_word_embeddings\":true}";

static struct hl_estimate of(const char *config)
{
    struct hl_hf_config c;
    struct hl_estimate e;
    assert_int_equal(hl_hf_config_parse(config, strlen(config), "config.json", &c), HL_OK);
    assert_int_equal(hl_estimate_of_config(&c, &e), HL_OK);
    hl_hf_config_fini(&c);
    return e;
}

TEST(test_models_have_their_published_numbers_of_parameters)
{
    struct hl_estimate e = of(gpt2);
    assert_int_equal(e.parameters, 124439808);
    hl_estimate_fini(&e);
    e = of(llama7b);
    assert_int_equal(e.parameters, 6738415616);
    hl_estimate_fini(&e);
}

TEST(test_bytes_per_parameter_are_16_and_14)
{

    const struct {
        uint64_t element;
        int reuse;
        uint64_t bytes;
    } rows[] = {{2, 0, 16}, {2, 1, 14}, {4, 0, 16}, {4, 1, 12}};
    struct hl_estimate e = of(gpt2);
    for (int i = 0; i < 4; i++) {
        struct hl_estimate_options o = {
            .element_bytes = rows[i].element, .reuse = rows[i].reuse, .granule = 2 << 20};
        assert_int_equal(hl_estimate_run(&e, &o), HL_OK);
        assert_int_equal(e.total, 124439808 * rows[i].bytes);
        assert_int_equal(e.layout.used, e.total);
        assert_true(hl_layout_utilisation(&e.layout) >= .95);
        o.chunk_bytes = 4 << 20;
        assert_int_equal(hl_estimate_run(&e, &o), HL_OK);
        /* Longer than a chunk, so in a chunk of its own: the embedding (50257 x 768). */
        uint64_t wte = (50257 * 768 * rows[i].element + (2 << 20) - 1) / (2 << 20) * (2 << 20);
        assert_int_equal(e.smallest, wte * (rows[i].reuse ? 1 : 2));
        assert_string_equal(e.modules[e.widest], "wte");
    }
    hl_estimate_fini(&e);
}

TEST(test_a_number_of_parameters_is_kept_to_the_last)
{
    const uint64_t counts[] = {1, 24, 1000, 85054464, 1500000000, 175000000000};
    for (int i = 0; i < 6; i++) {
        struct hl_estimate e;
        struct hl_estimate_options o = {.element_bytes = 2, .granule = 4096};
        assert_int_equal(hl_estimate_of_count(counts[i], &e), HL_OK);
        assert_int_equal(e.parameters, counts[i]);
        assert_int_equal(hl_estimate_run(&e, &o), HL_OK);
        assert_int_equal(e.total, 16 * counts[i]);
        if (counts[i] == 85054464) {
            assert_int_equal(e.layers, 12);
            assert_int_equal(e.hidden, 768);
        }
        hl_estimate_fini(&e);
    }
    struct hl_estimate none;
    assert_int_equal(hl_estimate_of_count(0, &none), HL_EINVAL);
    assert_int_equal(hl_estimate_of_count(UINT64_MAX, &none), HL_EINVAL);
}

/* Every module in turn with parameters and gradients on the device; returns the first failure. */
static int train(const struct hl_estimate *e, uint64_t device)
{
    char spec[64];
    uint32_t tensor, n = (uint32_t)e->count;
    hybridps *h = NULL;
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)device);
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = spec, .policy = "lru",
                          .chunk_bytes = e->layout.chunk_bytes};
    assert_int_equal(hybridps_open(&o, &h), 0);
    for (int k = 0; k < HYBRIDPS_KINDS; k++)
        for (size_t i = 0; i < e->count && e->per_parameter[k] > 0; i++)
            assert_int_equal(hybridps_add(h, e->modules[e->tensors[i].module], k,
                                          e->tensors[i].elements * e->per_parameter[k], &tensor),
                             0);
    assert_int_equal(hybridps_layout(h), 0);
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    assert_int_equal(hybridps_stats(h, &s), 0);
    assert_int_equal(s.chunks, e->layout.chunks);
    int rc = 0;
    for (uint32_t i = 0, end; i < n && rc == 0; i = end) {
        hybridps_use uses[8];
        uint32_t tensors[8], count = 0;
        for (end = i; end < n && e->tensors[end].module == e->tensors[i].module; end++)
            for (uint32_t k = 0; k < 2; k++) {
                tensors[count] = k * n + end;
                uses[count++] =
                    (hybridps_use){.tensor = k * n + end, .where = HYBRIDPS_DEVICE, .write = 1};
            }
        rc = hybridps_access(h, uses, count);
        if (rc == 0)
            assert_int_equal(hybridps_release(h, tensors, count, HYBRIDPS_HOLD), 0);
    }
    hybridps_close(h);
    return rc;
}

TEST(test_the_smallest_device_works_and_a_smaller_one_does_not)
{
    struct hl_estimate e = of(small);
    const uint64_t granule = 65536; /* a multiple of every page size */
    for (uint64_t chunk = 0; chunk <= 4 * granule; chunk += 2 * granule) {
        struct hl_estimate_options o = {
            .element_bytes = 4, .granule = granule, .chunk_bytes = chunk};
        assert_int_equal(hl_estimate_run(&e, &o), HL_OK);
        assert_int_equal(train(&e, e.smallest), 0);
        assert_int_equal(train(&e, e.smallest - granule), HELIOS_ENOSPC);
    }
    hl_estimate_fini(&e);
}
