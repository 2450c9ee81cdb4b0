/* Megatron checkpoints at several splits, in both formats, give the shards that the Hugging Face
 * original gives, byte for byte; and broken ones are refused by name. */
#include "support/test.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include "mem/import/import.h"
#include "support/heap_sink.h"

static char root[] = "/tmp/hl_megatron_XXXXXX";
static int made; /* torch has made the checkpoints */

static void run(const char *format, const char *a, const char *b)
{
    char command[1024];
    snprintf(command, sizeof(command), format, a, b);
    assert_int_equal(system(command), 0);
}

static int setup(void **state)
{
    const char *source = getenv("HELIOS_SOURCE");
    char command[1024];
    (void)state;
    if (mkdtemp(root) == NULL)
        return 1;
    snprintf(command, sizeof(command),
             "LD_PRELOAD= /usr/bin/python3 -W ignore %s/tests/support/megatron_checkpoints.py %s",
             source != NULL ? source : ".", root);
    int rc = access("/usr/bin/python3", X_OK) == 0 ? system(command) : 77 << 8;
    made = rc == 0;
    return rc == 0 || rc >> 8 == 77 ? 0 : 1;
}

static int teardown(void **state)
{
    char command[64];
    (void)state;
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

TESTS_IN(setup, teardown)

static void need_torch(void)
{
    if (!made)
        skip();
}

/* ---- what an import gives ------------------------------------------------------------------- */

struct result {
    struct heap heap;
    struct hl_import_shard *shards;
    size_t count;
    char *config;
};

static hl_status import_from(const char *dir, const char *iteration,
                             const struct hl_partition_options *o, struct result *out)
{
    struct hl_import *im = NULL;
    *out = (struct result){0};
    const struct hl_import_options options = {
        .dir = dir, .model = "tiny", .version = 7, .partition = *o, .iteration = iteration};
    HL_TRY(hl_import_open(&options, &im));
    struct hl_import_sink sink = heap_sink(&out->heap);
    hl_status st = hl_import_run(im, &(struct hl_import_run){.sink = &sink}, &out->shards);
    out->count = hl_import_shard_count(im);
    out->config = strdup(hl_import_config(im));
    hl_import_close(im);
    return st;
}

static void result_free(struct result *r)
{
    heap_free(&r->heap);
    free(r->shards);
    free(r->config);
}

static void assert_same(const struct result *a, const struct result *b)
{
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++) {
        const struct kept *x = heap_find(&a->heap, a->shards[i].id);
        const struct kept *y = heap_find(&b->heap, b->shards[i].id);
        assert_string_equal(a->shards[i].part, b->shards[i].part);
        assert_int_equal(x->size, y->size);
        if (memcmp(x->ptr, y->ptr, x->size) != 0)
            fail_msg("part %s of pp %d, tp %d, ep %d differs", a->shards[i].part, a->shards[i].pp,
                     a->shards[i].tp, a->shards[i].ep);
    }
}

static const struct hl_partition_options targets[] = {
    {.tp = 1, .pp = 1},
    {.tp = 2, .pp = 2, .naming = HL_API_LAYER_NAMING_TE},
    {.tp = 4, .pp = 1, .vocab_divisor = 8, .pad = HL_API_VOCAB_PADDING_ZERO},
    {.tp = 2, .pp = 2, .virtual_stages = 2},
};

static const struct hl_partition_options expert_targets[] = {
    {.tp = 2, .pp = 1, .ep = 2, .etp = 1},
    {.tp = 1, .pp = 2, .ep = 4},
};

/* Every Megatron checkpoint of the family against its original. */
static void assert_family_at(const char *family, const struct hl_partition_options *o)
{
    char dir[128], path[512];
    struct result hf, other;
    int compared = 0;
    snprintf(dir, sizeof(dir), "%s/%s/hf", root, family);
    if (import_from(dir, NULL, o, &hf) != HL_OK)
        fail_msg("%s: %s", dir, hl_error_text());
    snprintf(dir, sizeof(dir), "%s/%s", root, family);
    DIR *d = opendir(dir);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        if (strncmp(e->d_name, "torch-", 6) != 0 && strncmp(e->d_name, "dist-", 5) != 0)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (import_from(path, NULL, o, &other) != HL_OK)
            fail_msg("%s at tp %d, pp %d: %s", path, o->tp, o->pp, hl_error_text());
        assert_same(&hf, &other);
        result_free(&other);
        compared++;
    }
    closedir(d);
    result_free(&hf);
    assert_true(compared >= 6);
}

static void assert_family(const char *family, bool experts)
{
    need_torch();
    for (size_t i = 0; i < HL_ARRAY_LEN(targets); i++)
        assert_family_at(family, &targets[i]);
    for (size_t i = 0; experts && i < HL_ARRAY_LEN(expert_targets); i++)
        assert_family_at(family, &expert_targets[i]);
}

TEST(llama_is_the_original_at_every_split)
{
    assert_family("llama", false);
}

TEST(qwen2_with_biases_and_a_tied_head_is_the_original)
{
    assert_family("qwen2", false);
}

TEST(qwen3_with_wide_heads_is_the_original)
{
    assert_family("qwen3", false);
}

TEST(gemma2_by_its_config_is_the_original)
{
    assert_family("gemma2", false);
}

TEST(gpt2_is_turned_back)
{
    assert_family("gpt2", false);
}

TEST(gpt_neox_is_the_original)
{
    assert_family("gpt_neox", false);
}

TEST(mixtral_at_every_expert_grid_is_the_original)
{
    assert_family("mixtral", true);
}

TEST(qwen2_moe_with_a_shared_expert_is_the_original)
{
    assert_family("qwen2_moe", true);
}

TEST(qwen3_moe_with_a_dense_layer_is_the_original)
{
    assert_family("qwen3_moe", true);
}

TEST(deepseek_v2_is_the_original)
{
    assert_family("deepseek_v2", true);
}

TEST(deepseek_v3_with_biases_of_the_router_is_the_original)
{
    assert_family("deepseek_v3", true);
}

TEST(layers_that_predict_more_tokens_come_along)
{
    assert_family("deepseek_v3_mtp", true);
    assert_family("glm4_moe", true);
}

/* ---- what is said --------------------------------------------------------------------------- */

TEST(what_is_left_out_is_said)
{
    struct result r;
    char dir[128];
    need_torch();
    snprintf(dir, sizeof(dir), "%s/llama/torch-2", root);
    assert_int_equal(import_from(dir, NULL, &targets[0], &r), HL_OK);
    assert_non_null(strstr(r.config, "\"iteration\":10"));
    assert_non_null(strstr(r.config, "the optimizer state"));
    assert_non_null(strstr(r.config, "the learning-rate scheduler"));
    assert_non_null(strstr(r.config, "the state of random numbers"));
    result_free(&r);
    snprintf(dir, sizeof(dir), "%s/llama/dist-2", root);
    assert_int_equal(import_from(dir, NULL, &targets[0], &r), HL_OK);
    assert_non_null(strstr(r.config, "the optimizer state (2 tensors, 1152 bytes)"));
    result_free(&r);
}

/* ---- refused -------------------------------------------------------------------------------- */

/* A copy of a checkpoint that a command of the shell breaks, in which %s is its directory. */
static void broken(const char *from, const char *command, char *dir, size_t cap)
{
    char source[128];
    need_torch();
    snprintf(source, sizeof(source), "%s/%s", root, from);
    snprintf(dir, cap, "%s/broken", root);
    run("rm -rf %2$s && cp -r %1$s %2$s", source, dir);
    if (command[0] != '\0')
        run(command, dir, "");
}

static void assert_refused(const char *from, const char *iteration, const char *command,
                           const char *why)
{
    char dir[128];
    struct result r;
    broken(from, command, dir, sizeof(dir));
    hl_status st = import_from(dir, iteration, &targets[1], &r);
    if (st == HL_OK)
        fail_msg("%s after '%s' was imported", from, command);
    if (strstr(hl_error_text(), why) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), why);
    assert_int_equal(r.heap.live, 0);
    assert_int_equal(r.heap.sealed, r.heap.discarded);
    result_free(&r);
}

TEST(rows_that_may_be_padding_are_told_of)
{
    char dir[128];
    struct result r;
    broken("llama/torch-1",
           "/usr/bin/python3 -W ignore -c \""
           "import torch; p = '%s/iter_0000010/mp_rank_00/model_optim_rng.pt'; s = torch.load(p);"
           "s['args'].vocab_size = None; torch.save(s, p)\"",
           dir, sizeof(dir));
    assert_int_equal(import_from(dir, NULL, &targets[0], &r), HL_OK);
    assert_non_null(strstr(r.config, "\"vocab\":64"));
    assert_non_null(strstr(r.config, "args.vocab_size is not set, so all 64 rows count as words"));
    result_free(&r);
}

TEST(missing_ranks_are_named)
{
    assert_refused("llama/torch-2", NULL, "rm -r %s/iter_0000010/mp_rank_01_000",
                   "lacks mp_rank_01_000: the checkpoint is of TP 2, PP 2");
    assert_refused("mixtral/torch-5", NULL, "rm -r %s/iter_0000010/mp_rank_0?_001_001",
                   "lacks mp_rank_00_001_001, mp_rank_01_001_001");
    assert_refused("mixtral/torch-6", NULL, "rm -r %s/iter_0000010/mp_rank_01_003",
                   "lacks mp_rank_01_003");
}

TEST(a_missing_iteration_is_answered_with_those_that_are_there)
{
    assert_refused("llama/torch-2", "30", "", "holds no checkpoint; there is iter_0000010");
    assert_refused("llama/torch-2", "ten", "",
                   "'ten' is neither the number of an iteration nor 'release'");
    assert_refused("llama/hf", "30", "", "is not a Megatron checkpoint, but an iteration is given");
}

TEST(a_truncated_file_is_named_with_the_bytes_that_are_missing)
{
    assert_refused("llama/dist-2", NULL, "truncate -s -700 %s/iter_0000020/__1_0.distcp",
                   "iter_0000020/__1_0.distcp, ");
    assert_refused("llama/dist-2", NULL, "truncate -s -700 %s/iter_0000020/__1_0.distcp",
                   "it is truncated");
    assert_refused("llama/dist-2", NULL, "rm %s/iter_0000020/__3_0.distcp", "__3_0.distcp");
    assert_refused("llama/dist-2", NULL, "truncate -s 1000 %s/iter_0000020/.metadata", ".metadata");
    assert_refused("llama/torch-2", NULL,
                   "truncate -s -700 %s/iter_0000010/mp_rank_01_001/model_optim_rng.pt",
                   "mp_rank_01_001/model_optim_rng.pt");
}

TEST(ranks_that_disagree_are_named)
{
    assert_refused(
        "llama/torch-2", NULL,
        "/usr/bin/python3 -W ignore -c \""
        "import torch; p = '%s/iter_0000010/mp_rank_01_001/model_optim_rng.pt'; s = torch.load(p);"
        "s['model']['decoder.final_layernorm.weight'][3] += 1; torch.save(s, p)\"",
        "'decoder.final_layernorm.weight' differs between");
}

TEST(a_file_of_another_iteration_is_refused)
{
    assert_refused("llama/torch-2", NULL,
                   "/usr/bin/python3 -W ignore -c \""
                   "import torch; p = '%s/iter_0000010/mp_rank_01_001/model_optim_rng.pt';"
                   "s = torch.load(p); s['iteration'] = 20; torch.save(s, p)\"",
                   "it is of iteration 20");
}

TEST(an_unknown_tensor_is_named)
{
    assert_refused("llama/torch-2", NULL,
                   "/usr/bin/python3 -W ignore -c \""
                   "import torch; p = '%s/iter_0000010/mp_rank_01_001/model_optim_rng.pt';"
                   "s = torch.load(p); s['model']['decoder.layers.0.extra.weight'] = "
                   "torch.ones(2); torch.save(s, p)\"",
                   "'decoder.layers.0.extra.weight' has no place in a llama model");
}

TEST(args_that_contradict_the_tensors_are_refused)
{
    const char *change = "/usr/bin/python3 -W ignore -c \""
                         "import torch, glob\nfor p in glob.glob('%s/*/*/model_optim_rng.pt'):\n"
                         "  s = torch.load(p); s['args'].ffn_hidden_size = 64; torch.save(s, p)\"";
    assert_refused("llama/torch-2", NULL, change, "has shape");
}

TEST(a_config_of_another_model_is_refused)
{
    assert_refused("llama/torch-2", NULL,
                   "sed 's/\"num_hidden_layers\": 4/\"num_hidden_layers\": 5/' "
                   "%1$s/../llama/hf/config.json > %1$s/config.json",
                   "args.num_layers is 4, config.json says 5");
}

TEST(a_hostile_pickle_is_not_run)
{
    char mark[64];
    const char *make =
        "/usr/bin/python3 -W ignore -c \""
        "import torch, os, sys\nclass H:\n  def __reduce__(self): return os.mkdir, ('%1$s/ran',)\n"
        "p = '%1$s/iter_0000010/mp_rank_01_001/model_optim_rng.pt'; s = torch.load(p)\n"
        "s['model']['decoder.final_layernorm.weight'] = H(); torch.save(s, p)\"";
    assert_refused("llama/torch-2", NULL, make, "decoder.final_layernorm.weight");
    snprintf(mark, sizeof(mark), "%s/broken/ran", root);
    assert_int_not_equal(access(mark, F_OK), 0);
}
