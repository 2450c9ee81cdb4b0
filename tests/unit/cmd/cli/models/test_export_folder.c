/* What stands in the way of an export, and what is removed when it is replaced: files of two
 * exports never mix. */
#include "support/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/models/export_folder.h"
#include "os/file.h"

static char home[64];

static int make_home(void **state __attribute__((unused)))
{
    snprintf(home, sizeof(home), "/tmp/helios-folder-XXXXXX");
    return mkdtemp(home) != NULL ? 0 : -1;
}

static int remove_home(void **state __attribute__((unused)))
{
    return hl_dir_remove(home) == HL_OK ? 0 : -1;
}

/* Creates home/NAME; a name that ends with '/' is a folder. */
static void put(const char *name)
{
    char path[160], *slash;
    snprintf(path, sizeof(path), "%s/%s", home, name);
    slash = strrchr(path, '/');
    *slash = '\0';
    assert_int_equal(hl_dir_make(path, 0755), HL_OK);
    *slash = '/';
    if (slash[1] != '\0')
        assert_int_equal(hl_file_write_atomic(path, "x", 1), HL_OK);
}

static bool is_there(const char *name)
{
    char path[160];
    struct stat sb;
    snprintf(path, sizeof(path), "%s/%s", home, name);
    return lstat(path, &sb) == 0;
}

static void assert_refused(hl_status st, const char *name, const char *remedy)
{
    assert_int_equal(st, HL_EEXIST);
    assert_non_null(strstr(hl_error_text(), name));
    assert_non_null(strstr(hl_error_text(), remedy));
    hl_error_clear();
}

TEST_IN(make_home, remove_home, each_file_of_a_checkpoint_is_in_the_way_until_it_is_replaced)
{
    static const char *const names[] = {"config.json",
                                        "hf_quant_config.json",
                                        "adapter_config.json",
                                        "adapter_model.safetensors",
                                        "model.safetensors",
                                        "model-00002-of-00003.safetensors",
                                        "model.safetensors.index.json",
                                        "optimizer/optimizer.safetensors",
                                        "optimizer/optimizer-00001-of-00002.safetensors"};
    for (size_t i = 0; i < HL_ARRAY_LEN(names); i++) {
        const char *slash = strrchr(names[i], '/');
        put(names[i]);
        assert_refused(hf_folder_check(home, false), slash != NULL ? slash + 1 : names[i],
                       "--replace");
        assert_true(is_there(names[i]));
        assert_int_equal(hf_folder_check(home, true), HL_OK);
        assert_int_equal(hf_folder_clear(home), HL_OK);
        assert_false(is_there(names[i]));
        assert_int_equal(hf_folder_check(home, false), HL_OK);
    }
    assert_false(is_there("optimizer"));
}

TEST_IN(make_home, remove_home, what_no_export_writes_is_never_removed)
{
    static const char *const kept[] = {"tokenizer.json", "pytorch_model.bin",
                                       "model-00001-of-00002.safetensors.bak",
                                       "generation_config.json", "optimizer/notes"};
    static const char *const foreign[] = {"consolidated.safetensors",
                                          "diffusion.safetensors.index.json",
                                          "optimizer/model.safetensors"};
    put("config.json");
    for (size_t i = 0; i < HL_ARRAY_LEN(kept); i++)
        put(kept[i]);
    assert_int_equal(hf_folder_check(home, true), HL_OK);
    assert_int_equal(hf_folder_clear(home), HL_OK);
    for (size_t i = 0; i < HL_ARRAY_LEN(kept); i++)
        assert_true(is_there(kept[i]));
    assert_int_equal(hf_folder_check(home, false), HL_OK);
    for (size_t i = 0; i < HL_ARRAY_LEN(foreign); i++) {
        const char *slash = strrchr(foreign[i], '/');
        char path[160];
        put(foreign[i]);
        assert_refused(hf_folder_check(home, true), slash != NULL ? slash + 1 : foreign[i],
                       "remove it");
        snprintf(path, sizeof(path), "%s/%s", home, foreign[i]);
        assert_int_equal(unlink(path), 0);
    }
}

TEST_IN(make_home, remove_home, a_directory_that_is_not_there_has_nothing_in_the_way)
{
    char path[96];
    snprintf(path, sizeof(path), "%s/none", home);
    const struct ranks_folder ranks = {
        .dir = path, .sizes = {.tp = 1, .pp = 1, .ep = 1}, .pp = -1, .tp = -1, .ep = -1};
    assert_int_equal(hf_folder_check(path, false), HL_OK);
    assert_int_equal(hf_folder_clear(path), HL_OK);
    assert_int_equal(ranks_folder_check(&ranks, false), HL_OK);
    assert_int_equal(ranks_folder_clear(&ranks), HL_OK);
    put("file");
    snprintf(path, sizeof(path), "%s/file", home);
    assert_int_equal(hf_folder_check(path, false), HL_EIO);
}

TEST_IN(make_home, remove_home, ranks_that_are_written_are_in_the_way_and_others_of_the_layout_stay)
{
    struct ranks_folder f = {
        .dir = home, .sizes = {.tp = 2, .pp = 2, .ep = 1}, .pp = -1, .tp = -1, .ep = -1};
    put("mp_rank_00_001.safetensors");
    put("mp_rank_01_001.safetensors");
    put("notes.txt");
    assert_refused(ranks_folder_check(&f, false), "mp_rank_00_001.safetensors of another export",
                   "--replace");
    f.pp = 0;
    assert_int_equal(ranks_folder_check(&f, false), HL_OK); /* files of the other stage */
    f.pp = 1;
    f.tp = 1;
    assert_refused(ranks_folder_check(&f, false), "mp_rank_01_001.safetensors", "--replace");
    assert_int_equal(ranks_folder_check(&f, true), HL_OK);
    assert_int_equal(ranks_folder_clear(&f), HL_OK);
    assert_true(is_there("mp_rank_00_001.safetensors"));
    assert_false(is_there("mp_rank_01_001.safetensors"));
    put("mp_rank_01.safetensors"); /* of another layout, whichever rank is written */
    assert_refused(ranks_folder_check(&f, false), "another TP, PP or EP", "--replace");
    assert_int_equal(ranks_folder_clear(&f), HL_OK);
    assert_false(is_there("mp_rank_01.safetensors"));
    assert_true(is_there("mp_rank_00_001.safetensors"));
    assert_true(is_there("notes.txt"));
    put("model.safetensors"); /* in the other form: a reader of *.safetensors would take both */
    assert_refused(ranks_folder_check(&f, true), "model.safetensors", "remove it");
    assert_refused(hf_folder_check(home, true), "mp_rank_00_001.safetensors", "remove it");
}

TEST_IN(make_home, remove_home,
        folders_of_megatron_go_with_the_file_that_exports_write_and_with_no_other)
{
    const struct ranks_folder f = {.dir = home,
                                   .torch = true,
                                   .sizes = {.tp = 2, .pp = 1, .ep = 1},
                                   .pp = -1,
                                   .tp = -1,
                                   .ep = -1};
    put("mp_rank_00/"); /* empty: nothing would be replaced */
    assert_int_equal(ranks_folder_check(&f, false), HL_OK);
    put("mp_rank_00/model_optim_rng.pt");
    assert_refused(ranks_folder_check(&f, false), "mp_rank_00 of another export", "--replace");
    put("mp_rank_00_000/"); /* Megatron would load it nevertheless */
    put("mp_rank_00_001/model_optim_rng.pt");
    assert_int_equal(ranks_folder_check(&f, true), HL_OK);
    assert_int_equal(ranks_folder_clear(&f), HL_OK);
    assert_int_equal(ranks_folder_check(&f, false), HL_OK);
    assert_false(is_there("mp_rank_00"));
    assert_false(is_there("mp_rank_00_001"));
    put("mp_rank_01/distrib_optim.pt"); /* Megatron's own save */
    assert_refused(ranks_folder_check(&f, true), "distrib_optim.pt", "remove it");
    assert_true(is_there("mp_rank_01/distrib_optim.pt"));
    assert_int_equal(hl_dir_remove(home), HL_OK);
    put(".metadata"); /* of torch_dist: Megatron would read that format */
    assert_refused(ranks_folder_check(&f, true), ".metadata", "remove it");
}
