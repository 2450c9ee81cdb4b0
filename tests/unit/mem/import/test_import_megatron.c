/* Megatron checkpoints at several splits, in both formats, give the same shards as the Hugging Face
 * original, byte for byte; and broken ones are refused by name. */
#include "support/test.h"

#include <dirent.h>
#include <stdlib.h>
#include <unistd.h>

#include "mem/import/import.h"
#include "support/heap_sink.h"
#include "support/python.h"

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
    char code[1024];
    (void)state;
    if (mkdtemp(root) == NULL)
        return 1;
    snprintf(code, sizeof(code),
             "import runpy, sys\n"
             "sys.path.insert(0, '%1$s/tests/support')\n"
             "sys.argv = ['megatron_checkpoints.py', '%2$s']\n"
             "runpy.run_path('%1$s/tests/support/megatron_checkpoints.py', run_name='__main__')\n",
             source != NULL ? source : ".", root);
    int rc = python_start();
    if (rc == 0)
        rc = python_run(code);
    made = rc == 0;
    return rc == 0 || rc == PYTHON_NONE ? 0 : 1;
}

static int teardown(void **state)
{
    char command[64];
    (void)state;
    python_stop();
    snprintf(command, sizeof(command), "rm -r %s", root);
    return system(command);
}

TESTS_IN(setup, teardown)

static void need_torch(void)
{
    if (!made)
        TEST_SKIP("torch is not installed");
}

/* ---- what an import gives ------------------------------------------------------------------- */

struct result {
    struct heap heap;
    struct hl_import_shard *shards;
    size_t count;
    char *config;
    char *meta;
};

static void (*meanwhile)(void); /* called during the imports, if not NULL */

static hl_status import_with(const struct hl_import_options *options, struct result *out)
{
    struct hl_import *im = NULL;
    *out = (struct result){.heap = {.meanwhile = meanwhile}};
    HL_TRY(hl_import_open(options, &im));
    struct hl_import_sink sink = heap_sink(&out->heap);
    hl_status st = hl_import_run(im, &(struct hl_import_run){.sink = &sink}, &out->shards);
    out->count = hl_import_shard_count(im);
    out->config = strdup(hl_import_config(im));
    out->meta = strdup(hl_import_meta(im));
    hl_import_close(im);
    return st;
}

static hl_status import_from(const char *dir, const char *iteration,
                             const struct hl_partition_options *o, struct result *out)
{
    const struct hl_import_options options = {
        .dir = dir, .model = "tiny", .version = 7, .partition = *o, .iteration = iteration};
    return import_with(&options, out);
}

static hl_status import_optimizer(const char *dir, const struct hl_partition_options *o,
                                  struct result *out)
{
    const struct hl_import_options options = {
        .dir = dir, .model = "tiny", .version = 7, .partition = *o, .optimizer = true};
    return import_with(&options, out);
}

static void result_free(struct result *r)
{
    heap_free(&r->heap);
    free(r->shards);
    free(r->config);
    free(r->meta);
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

/* Compares every Megatron checkpoint of the family with its original. */
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

/* ---- optimizer state ------------------------------------------------------------------------- */

static const char *const kinds[] = {"exp_avg", "exp_avg_sq", "param"};

/* The shard of that part, at the position of `at`. */
static const struct kept *find_part(const struct result *r, const struct hl_import_shard *at,
                                    const char *part)
{
    for (size_t i = 0; i < r->count; i++)
        if (r->shards[i].pp == at->pp && r->shards[i].tp == at->tp && r->shards[i].ep == at->ep &&
            strcmp(r->shards[i].part, part) == 0)
            return heap_find(&r->heap, r->shards[i].id);
    return NULL;
}

/* "KIND.NAME" of the state has the bytes of NAME in the model that consists of that kind. */
static void assert_state(const struct hl_tensor *t, const uint8_t *bytes,
                         const struct hl_import_shard *at, const struct result *models)
{
    for (size_t k = 0; k < HL_ARRAY_LEN(kinds); k++) {
        size_t n = strlen(kinds[k]);
        struct hl_safetensors header;
        if (strncmp(t->name, kinds[k], n) != 0 || t->name[n] != '.')
            continue;
        const struct kept *m = find_part(&models[k], at, at->part + strlen("optim-"));
        assert_non_null(m);
        assert_int_equal(hl_safetensors_parse(m->ptr, m->size, m->size, &header), HL_OK);
        const struct hl_tensor *want = hl_safetensors_find(&header, t->name + n + 1);
        if (want == NULL || want->dtype != t->dtype || want->size != t->size ||
            memcmp(want->shape, t->shape, sizeof(t->shape)) != 0 ||
            memcmp(m->ptr + header.data_offset + want->offset, bytes, t->size) != 0)
            fail_msg("'%s' of %s at pp %d, tp %d, ep %d differs", t->name, at->part, at->pp, at->tp,
                     at->ep);
        hl_safetensors_fini(&header);
        return;
    }
    fail_msg("'%s' is of no kind", t->name);
}

/* Trained parameters of the shards; FP32 ones have no copy. */
static size_t count_state(const struct result *hf)
{
    size_t count = 0;
    for (size_t i = 0; i < hf->count; i++) {
        struct hl_safetensors header;
        const struct kept *k = heap_find(&hf->heap, hf->shards[i].id);
        assert_int_equal(hl_safetensors_parse(k->ptr, k->size, k->size, &header), HL_OK);
        for (size_t j = 0; j < header.count; j++)
            if (strstr(header.tensors[j].name, "expert_bias") == NULL)
                count += header.tensors[j].dtype == HL_DTYPE_F32 ? 2 : 3;
        hl_safetensors_fini(&header);
    }
    return count;
}

static void assert_optimizer(const struct result *r, const struct result *hf,
                             const struct result *models)
{
    size_t count = 0;
    struct result params = *r;
    params.count = hf->count;
    assert_same(hf, &params);
    for (size_t i = hf->count; i < r->count; i++) {
        struct hl_safetensors header;
        const struct kept *k = heap_find(&r->heap, r->shards[i].id);
        assert_int_equal(strncmp(r->shards[i].part, "optim-", 6), 0);
        assert_int_equal(hl_safetensors_parse(k->ptr, k->size, k->size, &header), HL_OK);
        for (size_t j = 0; j < header.count; j++)
            assert_state(&header.tensors[j], k->ptr + header.data_offset + header.tensors[j].offset,
                         &r->shards[i], models);
        count += header.count;
        hl_safetensors_fini(&header);
    }
    assert_int_equal(count, count_state(hf));
}

/* Every checkpoint of the family with optimizer state, compared with models that consist of one
 * kind of it. */
static void assert_optimizers_at(const char *family, const struct hl_partition_options *o)
{
    char dir[160];
    struct result hf, models[HL_ARRAY_LEN(kinds)], other;
    int compared = 0;
    snprintf(dir, sizeof(dir), "%s/%s/hf", root, family);
    assert_int_equal(import_from(dir, NULL, o, &hf), HL_OK);
    for (size_t k = 0; k < HL_ARRAY_LEN(kinds); k++) {
        snprintf(dir, sizeof(dir), "%s/%s/state/%s", root, family, kinds[k]);
        assert_int_equal(import_from(dir, NULL, o, &models[k]), HL_OK);
    }
    for (int i = 0; i < 9; i++) {
        snprintf(dir, sizeof(dir), i < 6 ? "%s/%s/torch-%d" : "%s/%s/dist-state-%d", root, family,
                 i < 6 ? i + 1 : i - 5);
        if (access(dir, F_OK) != 0)
            continue;
        if (import_optimizer(dir, o, &other) != HL_OK)
            fail_msg("%s at tp %d, pp %d: %s", dir, o->tp, o->pp, hl_error_text());
        assert_optimizer(&other, &hf, models);
        result_free(&other);
        compared++;
    }
    for (size_t k = 0; k < HL_ARRAY_LEN(kinds); k++)
        result_free(&models[k]);
    result_free(&hf);
    assert_true(compared >= 7);
}

static void assert_optimizers(const char *family, bool experts)
{
    need_torch();
    for (size_t i = 1; i < HL_ARRAY_LEN(targets); i++)
        assert_optimizers_at(family, &targets[i]);
    for (size_t i = 0; experts && i < HL_ARRAY_LEN(expert_targets); i++)
        assert_optimizers_at(family, &expert_targets[i]);
}

TEST(optimizer_state_follows_its_parameters_to_every_split)
{
    assert_optimizers("llama", false);
    assert_optimizers("qwen2", false);
    assert_optimizers("gpt2", false);
}

TEST(optimizer_state_of_experts_follows_them_to_every_grid)
{
    assert_optimizers("mixtral", true);
    assert_optimizers("deepseek_v3_mtp", true);
}

/* ---- what is reported ----------------------------------------------------------------------- */

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
    assert_non_null(strstr(r.config, "the optimizer state (2 tensors, 1152 bytes); with "
                                     "--optimizer it is imported"));
    assert_non_null(strstr(r.config, "the state of random numbers"));
    result_free(&r);
}

TEST(what_the_optimizer_says_of_itself_comes_along_with_its_state)
{
    struct result r;
    char dir[128];
    need_torch();
    for (int i = 0; i < 2; i++) {
        snprintf(dir, sizeof(dir), "%s/llama/%s", root, i == 0 ? "torch-2" : "dist-state-1");
        assert_int_equal(import_optimizer(dir, &targets[0], &r), HL_OK);
        assert_null(strstr(r.config, "the optimizer state"));
        assert_null(strstr(r.config, "the learning-rate scheduler"));
        assert_non_null(strstr(r.meta, i == 0 ? "\"iteration\":10" : "\"iteration\":20"));
        assert_non_null(strstr(r.meta, "\"opt_param_scheduler\":{\"max_lr\":0.0001"));
        assert_non_null(strstr(r.meta, "\"step\":19"));
        if (i == 0) /* torch's Adam also has it in tensors */
            assert_non_null(strstr(r.meta, "\"max_lr\":0.0001},\"step\":19"));
        assert_null(strstr(r.meta, "\"params\""));
        result_free(&r);
    }
    snprintf(dir, sizeof(dir), "%s/llama/dist-state-1", root);
    assert_int_equal(import_from(dir, NULL, &targets[0], &r), HL_OK);
    assert_string_equal(r.meta, "");
    result_free(&r);
}

/* ---- refused -------------------------------------------------------------------------------- */

/* Prefix of Python code; otherwise it is a shell command. */
#define PYTHON "python: "

static void run_python(const char *format, const char *dir)
{
    char code[2048];
    snprintf(code, sizeof(code), format, dir);
    assert_int_equal(python_run(code), 0);
}

/* A copy of a checkpoint, broken by a command in which %s is its directory. */
static void broken(const char *from, const char *command, char *dir, size_t cap)
{
    char source[128];
    need_torch();
    snprintf(source, sizeof(source), "%s/%s", root, from);
    snprintf(dir, cap, "%s/broken", root);
    run("rm -rf %2$s && cp -r %1$s %2$s", source, dir);
    if (strncmp(command, PYTHON, strlen(PYTHON)) == 0)
        run_python(command + strlen(PYTHON), dir);
    else if (command[0] != '\0')
        run(command, dir, "");
}

static void assert_import_refused(const char *from, const char *command, const char *why,
                                  struct hl_import_options options)
{
    char dir[128];
    struct result r;
    broken(from, command, dir, sizeof(dir));
    options.dir = dir;
    options.model = "tiny";
    options.partition = targets[1];
    hl_status st = import_with(&options, &r);
    if (st == HL_OK)
        fail_msg("%s after '%s' was imported", from, command);
    if (strstr(hl_error_text(), why) == NULL)
        fail_msg("'%s' does not say '%s'", hl_error_text(), why);
    assert_int_equal(r.heap.live, 0);
    assert_int_equal(r.heap.sealed, r.heap.discarded);
    result_free(&r);
}

static void assert_refused(const char *from, const char *iteration, const char *command,
                           const char *why)
{
    assert_import_refused(from, command, why, (struct hl_import_options){.iteration = iteration});
}

static void assert_optimizer_refused(const char *from, const char *command, const char *why)
{
    assert_import_refused(from, command, why, (struct hl_import_options){.optimizer = true});
}

/* The statement changes `s`, the tree of one rank's file. */
static void assert_state_refused(const char *statement, const char *why)
{
    char command[1024];
    snprintf(command, sizeof(command),
             PYTHON "import torch; p = '%%s/iter_0000010/mp_rank_01_001/model_optim_rng.pt';"
                    "s = torch.load(p); o = s['optimizer']; g = o['optimizer']['param_groups'];"
                    "w = o['optimizer']['state'][g[1]['params'][1]];"
                    "%s; torch.save(s, p)",
             statement);
    assert_optimizer_refused("llama/torch-2", command, why);
}

/* The expression computes `t` from .metadata's `s`, the state "exp_avg" of linear_fc2. */
static void assert_dist_refused(const char *from, const char *statement, const char *why)
{
    char command[1200];
    const char *source = getenv("HELIOS_SOURCE");
    snprintf(command, sizeof(command),
             PYTHON
             "import sys; sys.path.insert(0, '%s/tests/support');"
             "import pickle, tempfile, torch, megatron_dist as m;"
             "m.Dcp(tempfile.gettempdir()); p = '%%s/iter_0000020/.metadata';"
             "s = pickle.load(open(p, 'rb'));"
             "n, = [k for k in s.state_dict_metadata if k.endswith('optimizer.state.exp_avg.'"
             "'decoder.layers.mlp.linear_fc2.weight')];"
             "t = s.state_dict_metadata[n]; %s; pickle.dump(s, open(p, 'wb'))",
             source != NULL ? source : ".", statement);
    assert_optimizer_refused(from, command, why);
}

TEST(state_of_another_shape_is_named)
{
    assert_state_refused("w['exp_avg'] = torch.ones(3, 3);"
                         "w['exp_avg_sq'] = torch.ones(3, 3)",
                         "no group of the optimizer fits parameter");
    assert_state_refused("w['exp_avg_sq'] = torch.ones(3, 3)",
                         "the optimizer's 'exp_avg_sq' of parameter "
                         "'decoder.layers.0.self_attention.linear_proj.weight' has another shape");
    assert_state_refused("o['fp32_from_fp16_params'][1][1] = torch.ones(3)",
                         "the FP32 copy of parameter 'decoder.layers.0.self_attention.linear_proj."
                         "weight' is missing");
    assert_dist_refused("llama/dist-state-1", "t.size = torch.Size([4, 32, 64])",
                        "elements: a part of the checkpoint is missing");
    assert_dist_refused("llama/dist-state-1",
                        "t.size = torch.Size([4, 32, 24]); t.chunks = [c for "
                        "c in t.chunks if c.offsets[2] == 0]",
                        "has shape [4,32,24], its parameter [4,32,48]");
}

TEST(state_in_another_order_is_found_by_its_copies)
{
    /* Two swapped matrices of one shape: number and shape are right. */
    assert_state_refused("m = o['fp32_from_fp16_params'][1]; m[0], m[4] = m[4], m[0]",
                         "the FP32 copy of 'decoder.layers.0.self_attention.linear_qkv.weight' is "
                         "that of another parameter");
}

TEST(groups_that_shapes_do_not_tell_apart_are_refused)
{
    assert_state_refused("m = o['fp32_from_fp16_params']; m.append(m[1][4:]); m[1] = m[1][:4];"
                         "g.append(dict(g[1], params=g[1]['params'][4:]));"
                         "g[1]['params'] = g[1]['params'][:4]",
                         "several groups of the optimizer fit parameter "
                         "'decoder.layers.0.self_attention.linear_qkv.weight'");
}

TEST(missing_state_is_named)
{
    assert_state_refused("del w['exp_avg_sq']",
                         "optimizer state 'exp_avg_sq' of "
                         "'decoder.layers.0.self_attention.linear_proj.weight' is missing");
    assert_state_refused("del o['fp32_from_fp16_params'][0][-1]", "the FP32 copy of parameter");
    assert_state_refused("g[0]['params'].append(77)", "group 0 of the optimizer has");
    assert_state_refused("del s['optimizer']", "it has no 'optimizer'");
    assert_state_refused("del o['optimizer']['state']", "distributed optimizer");
    assert_dist_refused(
        "llama/dist-state-1", "del s.state_dict_metadata[n]",
        "optimizer state 'exp_avg' of 'decoder.layers.0.mlp.linear_fc2.weight' is missing");
    assert_dist_refused("llama/dist-state-1", "t.chunks.pop()",
                        "a part of the checkpoint is missing");
    assert_dist_refused("llama/dist-state-2", "t.chunks.pop()",
                        "a part of the checkpoint is missing");
}

TEST(state_that_cannot_be_read_says_what_to_save_with)
{
    assert_optimizer_refused("llama/dist-2", "", "--dist-ckpt-optim-fully-reshardable");
    assert_optimizer_refused("llama/hf", "", "is not a Megatron checkpoint, so no optimizer state");
}

/* Megatron writes them beside a rank's file, Megatron-Bridge above the iterations. */
TEST(state_of_a_layer_wise_distributed_optimizer_is_named)
{
    static const char *const folders[] = {"", "/iter_0000010/mp_rank_01_001"};
    for (size_t i = 0; i < HL_ARRAY_LEN(folders); i++) {
        char command[256], dir[128];
        struct result r;
        snprintf(command, sizeof(command), "touch %%s%s/layer_wise_optimizer_1.pt", folders[i]);
        assert_optimizer_refused("llama/torch-2", command,
                                 "/layer_wise_optimizer_1.pt has the state of a layer-wise");
        broken("llama/torch-2", command, dir, sizeof(dir));
        assert_int_equal(import_from(dir, NULL, &targets[1], &r), HL_OK);
        assert_non_null(strstr(r.config, "(layer_wise_optimizer_*.pt)"));
        result_free(&r);
    }
}

TEST(rows_that_may_be_padding_are_told_of)
{
    char dir[128];
    struct result r;
    broken("llama/torch-1",
           PYTHON
           "import torch; p = '%s/iter_0000010/mp_rank_00/model_optim_rng.pt'; s = torch.load(p);"
           "s['args'].vocab_size = None; torch.save(s, p)",
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
                   "iter_0000020/__1_0.distcp has ");
    assert_refused("llama/dist-2", NULL, "truncate -s -700 %s/iter_0000020/__1_0.distcp",
                   "it is truncated");
    /* Its end holds something that is not imported. */
    assert_refused("llama/dist-1", NULL, "truncate -s -1 %s/iter_0000020/__0_0.distcp",
                   "that .metadata places in it: it is truncated");
    assert_refused("llama/dist-2", NULL, "rm %s/iter_0000020/__3_0.distcp",
                   "__3_0.distcp: No such file or directory; copy all of the checkpoint");
    assert_refused("llama/dist-2", NULL, "rm %s/iter_0000020/common.pt",
                   "common.pt: No such file or directory; copy all of the checkpoint, or, if it "
                   "was not saved by Megatron, convert it to one file");
    assert_refused("llama/dist-2", NULL, "truncate -s 1000 %s/iter_0000020/.metadata", ".metadata");
    assert_refused("llama/torch-2", NULL,
                   "truncate -s -700 %s/iter_0000010/mp_rank_01_001/model_optim_rng.pt",
                   "mp_rank_01_001/model_optim_rng.pt");
}

TEST(ranks_that_disagree_are_named)
{
    assert_refused(
        "llama/torch-2", NULL,
        PYTHON
        "import torch; p = '%s/iter_0000010/mp_rank_01_001/model_optim_rng.pt'; s = torch.load(p);"
        "s['model']['decoder.final_layernorm.weight'][3] += 1; torch.save(s, p)",
        "'decoder.final_layernorm.weight' differs between");
}

TEST(a_file_of_another_iteration_is_refused)
{
    assert_refused("llama/torch-2", NULL,
                   PYTHON "import torch; p = '%s/iter_0000010/mp_rank_01_001/model_optim_rng.pt';"
                          "s = torch.load(p); s['iteration'] = 20; torch.save(s, p)",
                   "it is of iteration 20");
}

TEST(an_unknown_tensor_is_named)
{
    assert_refused("llama/torch-2", NULL,
                   PYTHON "import torch; p = '%s/iter_0000010/mp_rank_01_001/model_optim_rng.pt';"
                          "s = torch.load(p); s['model']['decoder.layers.0.extra.weight'] = "
                          "torch.ones(2); torch.save(s, p)",
                   "'decoder.layers.0.extra.weight' has no place in a llama model");
}

TEST(args_that_contradict_the_tensors_are_refused)
{
    const char *change =
        PYTHON "import torch, glob\nfor p in glob.glob('%s/*/*/model_optim_rng.pt'):\n"
               "  s = torch.load(p); s['args'].ffn_hidden_size = 64; torch.save(s, p)";
    assert_refused("llama/torch-2", NULL, change, "has shape");
}

TEST(a_config_of_another_model_is_refused)
{
    assert_refused("llama/torch-2", NULL,
                   "sed 's/\"num_hidden_layers\": 4/\"num_hidden_layers\": 5/' "
                   "%1$s/../llama/hf/config.json > %1$s/config.json",
                   "args.num_layers is 4, config.json says 5");
}

static void touch_config(void)
{
    run("touch -d @1 %s/broken/config.json", root, "");
}

TEST(a_config_that_is_saved_again_meanwhile_is_refused)
{
    meanwhile = touch_config;
    assert_refused("llama/torch-2", NULL, "cp %1$s/../llama/hf/config.json %1$s",
                   "config.json was changed");
    meanwhile = NULL;
}

TEST(texts_that_are_fifos_are_refused_instead_of_read)
{
    assert_refused("llama/torch-2", NULL, "mkfifo %s/config.json", "is not a regular file");
    assert_refused("llama/torch-2", NULL,
                   "cd %s && rm latest_checkpointed_iteration.txt && "
                   "mkfifo latest_checkpointed_iteration.txt",
                   "is not a regular file");
}

TEST(a_hostile_pickle_is_not_run)
{
    char mark[64];
    const char *make = PYTHON
        "import torch, os, sys\nclass H:\n  def __reduce__(self): return os.mkdir, ('%1$s/ran',)\n"
        "p = '%1$s/iter_0000010/mp_rank_01_001/model_optim_rng.pt'; s = torch.load(p)\n"
        "s['model']['decoder.final_layernorm.weight'] = H(); torch.save(s, p)";
    assert_refused("llama/torch-2", NULL, make, "decoder.final_layernorm.weight");
    snprintf(mark, sizeof(mark), "%s/broken/ran", root);
    assert_int_not_equal(access(mark, F_OK), 0);
}
