/* torch itself decides: /usr/bin/python3 loads a file made from the planned segments, with the safe
 * unpickler, and compares it value by value. Without torch that test is skipped. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/crc32.h"
#include "core/torch/torchzip.h"
#include "support/torch_command.h"

#define COUNT 5

static const float values[6] = {0.5f, -1.0f, 2.0f, 3.25f, 4.0f, 5.0f};
static const uint16_t halves[3] = {0x3F80, 0x4000, 0xC040}; /* bf16 1, 2, -3 */
static const int64_t number = 1234567890123;

static const struct {
    struct hl_tensor tensor;
    const void *data;
} input[COUNT] = {
    {{.name = "decoder.w", .dtype = HL_DTYPE_F32, .rank = 2, .shape = {2, 3}, .size = 24}, values},
    {{.name = "decoder.b", .dtype = HL_DTYPE_BF16, .rank = 1, .shape = {3}, .size = 6}, halves},
    {{.name = "n", .dtype = HL_DTYPE_I64, .rank = 0, .size = 8}, &number},
    {{.name = "empty", .dtype = HL_DTYPE_F16, .rank = 2, .shape = {0, 4}}, NULL},
    {{.name = "last", .dtype = HL_DTYPE_U8, .rank = 1, .shape = {5}, .size = 5}, "\1\2\3\4\5"},
};

static struct hl_torchzip plan(const char *prefix_of_odd)
{
    static char names[COUNT][64];
    static struct hl_tensor copies[COUNT];
    struct hl_torchzip_tensor list[COUNT];
    struct hl_torchzip z;
    for (size_t i = 0; i < COUNT; i++) {
        copies[i] = input[i].tensor;
        snprintf(names[i], sizeof(names[i]), "%s%s",
                 *prefix_of_odd == '\0' ? ""
                 : i % 2 == 0           ? "model0."
                                        : prefix_of_odd,
                 input[i].tensor.name);
        copies[i].name = names[i];
        list[i] = (struct hl_torchzip_tensor){
            .tensor = &copies[i], .crc32 = hl_crc32(0, input[i].data, input[i].tensor.size)};
    }
    assert_int_equal(
        hl_torchzip_plan(list, COUNT, &(struct hl_torchzip_options){.iteration = 70000}, &z),
        HL_OK);
    return z;
}

TEST(segments_follow_each_other_and_data_is_aligned)
{
    struct hl_torchzip z = plan("");
    uint64_t at = 0, from = 0;
    int tensors = 0;
    for (size_t i = 0; i < z.count; i++) {
        assert_int_equal(z.segments[i].offset, at);
        at += z.segments[i].size;
        if (z.segments[i].tensor >= 0) {
            assert_int_equal(z.segments[i].offset % 64, 0);
            assert_int_equal(z.segments[i].size, input[z.segments[i].tensor].tensor.size);
            tensors++;
        } else {
            assert_int_equal(z.segments[i].from, from);
            from += z.segments[i].size;
        }
    }
    assert_int_equal(at, z.file_size);
    assert_int_equal(from, z.bytes.len);
    assert_int_equal(tensors, COUNT - 1); /* the empty one has no segment */
    hl_torchzip_fini(&z);
}

static void save(const struct hl_torchzip *z, char *path)
{
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "wb");
    for (size_t i = 0; i < z->count; i++) {
        const struct hl_torchzip_segment *s = &z->segments[i];
        const void *data =
            s->tensor >= 0 ? input[s->tensor].data : (const void *)(z->bytes.data + s->from);
        assert_int_equal(fwrite(data, 1, s->size, f), s->size);
    }
    assert_int_equal(fclose(f), 0);
}

/* Runs Python code with the plain file in argv[1] and the one with two chunks in argv[2]; returns
 * its exit status.
 */
static int python(const char *code)
{
    char plain[] = "/tmp/hl_torchzip_XXXXXX", chunked[] = "/tmp/hl_torchzip_XXXXXX", command[2048];
    struct hl_torchzip z = plan("");
    save(&z, plain);
    hl_torchzip_fini(&z);
    z = plan("model1.");
    save(&z, chunked);
    hl_torchzip_fini(&z);
    snprintf(command, sizeof(command), "-c '%s' %s %s", code, plain, chunked);
    int rc = torch_command(command);
    unlink(plain);
    unlink(chunked);
    return rc;
}

TEST(python_reads_the_zip_and_its_checksums)
{
    if (access("/usr/bin/python3", X_OK) != 0)
        TEST_SKIP("no Python here");
    assert_int_equal(python("import sys, zipfile\n"
                            "z = zipfile.ZipFile(sys.argv[1])\n"
                            "assert z.testzip() is None\n"
                            "assert z.read(\"archive/version\") == b\"3\\n\"\n"
                            "assert z.read(\"archive/byteorder\") == b\"little\"\n"
                            "assert z.read(\"archive/data/4\") == bytes([1,2,3,4,5])\n"
                            "assert len(z.namelist()) == 8\n"),
                     0);
}

#define CHECK_TENSORS                                                                              \
    "assert w.tolist() == [[0.5, -1.0, 2.0], [3.25, 4.0, 5.0]]\n"                                  \
    "assert b.dtype == torch.bfloat16 and b.float().tolist() == [1, 2, -3]\n"                      \
    "assert n.shape == () and n.item() == 1234567890123\n"                                         \
    "assert e.shape == (0, 4) and e.dtype == torch.float16\n"                                      \
    "assert l.tolist() == [1, 2, 3, 4, 5] and w.is_contiguous()\n"

TEST(torch_loads_it_with_the_safe_unpickler)
{
    if (access("/usr/bin/python3", X_OK) != 0)
        TEST_SKIP("no Python here");
    int rc = python("import sys\n"
                    "try: import torch\n"
                    "except ModuleNotFoundError: sys.exit(77)\n"
                    "for safe in (True, False):\n"
                    "  d = torch.load(sys.argv[1], weights_only=safe)\n"
                    "  assert list(d) == [\"model\", \"checkpoint_version\", \"iteration\"]\n"
                    "  assert d[\"checkpoint_version\"] == 3.0 and d[\"iteration\"] == 70000\n"
                    "w, b, n, e, l = d[\"model\"].values()\n" CHECK_TENSORS
                    "d = torch.load(sys.argv[2], weights_only=True)\n"
                    "assert list(d)[:2] == [\"model0\", \"model1\"]\n"
                    "assert list(d[\"model1\"]) == [\"decoder.b\", \"empty\"]\n"
                    "w, n, l = d[\"model0\"].values()\n"
                    "b, e = d[\"model1\"].values()\n" CHECK_TENSORS);
    if (rc == 77)
        TEST_SKIP("torch is not installed");
    assert_int_equal(rc, 0);
}

/* The same for the file with these args, and with all tensors but the first as optimizer state. */
static int python_with_args(const char *code, json_t *args)
{
    char path[] = "/tmp/hl_torchzip_XXXXXX", command[2048];
    struct hl_torchzip_tensor list[COUNT];
    struct hl_torchzip z;
    for (size_t i = 0; i < COUNT; i++)
        list[i] = (struct hl_torchzip_tensor){
            .tensor = &input[i].tensor,
            .crc32 = hl_crc32(0, input[i].data, input[i].tensor.size),
            .optimizer = i > 0,
        };
    const struct hl_torchzip_options options = {.iteration = 7, .args = args};
    assert_int_equal(hl_torchzip_plan(list, COUNT, &options, &z), HL_OK);
    save(&z, path);
    hl_torchzip_fini(&z);
    json_decref(args);
    snprintf(command, sizeof(command), "-c '%s' %s", code, path);
    int rc = torch_command(command);
    unlink(path);
    return rc;
}

TEST(args_are_a_namespace_of_pythons_types)
{
    if (access("/usr/bin/python3", X_OK) != 0)
        TEST_SKIP("no Python here");
    json_t *args = json_pack("{s:i s:i s:I s:i s:f s:b s:b s:n s:s s:s}", "small", 7, "word", 70000,
                             "large", (json_int_t)1 << 40, "negative", -3, "real", 0.1, "yes", 1,
                             "no", 0, "none", "text", "rope", "dtype", "torch.bfloat16");
    int rc = python_with_args(
        "import sys, argparse\n"
        "try: import torch\n"
        "except ModuleNotFoundError: sys.exit(77)\n"
        "d = torch.load(sys.argv[1])\n"
        "assert list(d) == [\"model\", \"checkpoint_version\", \"iteration\", \"args\","
        " \"helios_optimizer\"]\n"
        "a = d[\"args\"]\n"
        "assert type(a) is argparse.Namespace and d[\"iteration\"] == 7\n"
        "assert vars(a) == dict(small=7, word=70000, large=1 << 40, negative=-3, real=0.1,"
        " yes=True, no=False, none=None, text=\"rope\", dtype=torch.bfloat16)\n"
        "assert [type(v).__name__ for v in vars(a).values()] == "
        "[\"int\"] * 4 + [\"float\", \"bool\", \"bool\", \"NoneType\", \"str\", \"dtype\"]\n"
        "assert list(d[\"model\"]) == [\"decoder.w\"]\n"
        "o = d[\"helios_optimizer\"]\n"
        "assert list(o) == [\"decoder.b\", \"n\", \"empty\", \"last\"]\n"
        "assert o[\"last\"].tolist() == [1, 2, 3, 4, 5]\n",
        args);
    if (rc == 77)
        TEST_SKIP("torch is not installed");
    assert_int_equal(rc, 0);
}

TEST(an_argument_that_is_a_list_of_lists_is_refused_by_name)
{
    json_t *args = json_pack("{s:[[i]]}", "data_path", 1);
    const struct hl_torchzip_options options = {.args = args};
    struct hl_torchzip z;
    assert_int_equal(hl_torchzip_plan(NULL, 0, &options, &z), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "data_path"));
    json_decref(args);
}

TEST(two_tensors_of_one_name_are_refused)
{
    struct hl_torchzip_tensor list[2] = {{.tensor = &input[0].tensor},
                                         {.tensor = &input[0].tensor, .optimizer = true}};
    const struct hl_torchzip_options options = {0};
    struct hl_torchzip z;
    assert_int_equal(hl_torchzip_plan(list, 2, &options, &z), HL_OK); /* they go to other keys */
    hl_torchzip_fini(&z);
    list[1].optimizer = false;
    assert_int_equal(hl_torchzip_plan(list, 2, &options, &z), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "decoder.w"));
}

TEST(a_dtype_without_storage_is_refused_by_name)
{
    struct hl_tensor t = {.name = "x", .dtype = HL_DTYPE_F8_E4M3, .rank = 1, .shape = {1}};
    struct hl_torchzip z;
    assert_int_equal(hl_torchzip_plan(&(struct hl_torchzip_tensor){.tensor = &t}, 1,
                                      &(struct hl_torchzip_options){0}, &z),
                     HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "tensor 'x'"));
}
