/* torch writes the files, with the expected tensors beside them. */
#include "torch_rig.h"

#include <inttypes.h>

static int setup(void **state __attribute__((unused)))
{
    return rig_make("files");
}

TESTS_IN(setup, rig_teardown)

/* Tensors of the tree that `name`.pt holds. */
static void list_tensors(const struct hl_torch_file *file, struct hl_torch_tensors *out)
{
    *out = (struct hl_torch_tensors){0};
    if (hl_torch_tensors_add(out, file->pickle.root, &(struct hl_torch_walk){0}) != HL_OK ||
        hl_torch_tensors_finish(out) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static void open_file(const struct rig_file *f, struct hl_torch_file *out)
{
    if (hl_torch_file_open(&f->source, out) != HL_OK)
        fail_msg("%s", hl_error_text());
}

/* "F32 [2,3] [3,1] 24" */
static void describe(const struct hl_torch_tensor *t, char *buf, size_t cap)
{
    char shape[192], stride[192];
    struct hl_tensor strides = t->tensor;
    memcpy(strides.shape, t->stride, sizeof(strides.shape));
    snprintf(buf, cap, "%s %s %s %s %" PRIu64, t->tensor.name, hl_dtype_name(t->tensor.dtype),
             hl_tensor_shape_text(&t->tensor, shape, sizeof(shape)),
             hl_tensor_shape_text(&strides, stride, sizeof(stride)), t->tensor.size);
}

/* Every tensor of NAME.txt is there, in order, with its bytes where the header says. */
static void assert_as_torch_says(const char *name)
{
    char path[64], line[512];
    struct rig_file f, text, raw;
    struct hl_torch_file file;
    struct hl_torch_tensors tensors;
    struct hl_safetensors header;
    snprintf(path, sizeof(path), "%s.pt", name);
    rig_load(path, &f);
    snprintf(path, sizeof(path), "%s.txt", name);
    rig_load(path, &text);
    snprintf(path, sizeof(path), "%s.raw", name);
    rig_load(path, &raw);
    open_file(&f, &file);
    list_tensors(&file, &tensors);
    if (hl_torch_file_header(&file, &tensors, f.len, &header) != HL_OK)
        fail_msg("%s", hl_error_text());
    assert_int_equal(header.count, tensors.count);
    const char *at = (const char *)text.bytes;
    size_t data = 0;
    for (size_t i = 0; i < tensors.count; i++) {
        const char *end = strchr(at, '\n');
        assert_non_null(end);
        describe(&tensors.list[i], line, sizeof(line));
        assert_int_equal(strlen(line), end - at);
        assert_memory_equal(line, at, (size_t)(end - at));
        at = end + 1;
        const struct hl_tensor *t = hl_safetensors_find(&header, tensors.list[i].tensor.name);
        assert_non_null(t);
        assert_true(t->offset <= f.len && t->size <= f.len - t->offset);
        assert_true(data + t->size <= raw.len);
        assert_memory_equal(f.bytes + t->offset, raw.bytes + data, t->size);
        data += t->size;
    }
    assert_int_equal(*at, '\0');
    assert_int_equal(data, raw.len);
    hl_safetensors_fini(&header);
    hl_torch_tensors_fini(&tensors);
    hl_torch_file_fini(&file);
    rig_free(&f);
    rig_free(&text);
    rig_free(&raw);
}

TEST(a_state_dict_has_the_tensors_that_torch_wrote)
{
    rig_need_torch();
    assert_as_torch_says("state");
}

TEST(so_has_one_of_the_older_format)
{
    rig_need_torch();
    assert_as_torch_says("old");
}

TEST(so_has_one_of_the_newest_pickle_protocol)
{
    rig_need_torch();
    assert_as_torch_says("protocol5");
}

TEST(tensors_in_dictionaries_and_lists_have_a_path)
{
    rig_need_torch();
    assert_as_torch_says("nested");
    assert_as_torch_says("list");
}

TEST(tied_tensors_are_known_and_views_are_not_tied)
{
    rig_need_torch();
    struct rig_file f;
    struct hl_torch_file file;
    struct hl_torch_tensors t;
    rig_load("state.pt", &f);
    open_file(&f, &file);
    list_tensors(&file, &t);
    assert_string_equal(t.list[0].tensor.name, "plain");
    assert_string_equal(t.list[2].tensor.name, "tied");
    assert_int_equal(t.list[2].tied_to, 0);
    for (size_t i = 0; i < t.count; i++)
        if (i != 2)
            assert_int_equal(t.list[i].tied_to, -1);
    assert_string_equal(t.list[1].storage, t.list[0].storage);
    assert_int_equal(t.list[1].tensor.offset, 2 * 4 * sizeof(float));
    hl_torch_tensors_fini(&t);
    hl_torch_file_fini(&file);
    rig_free(&f);
}

TEST(a_turned_view_is_refused_by_name)
{
    rig_need_torch();
    struct rig_file f;
    struct hl_safetensors st;
    rig_load("strided.pt", &f);
    assert_int_equal(hl_torch_state_dict(&f.source, &st), HL_EUNSUPPORTED);
    assert_error_has("tensor 'turned', [3,2], is a transposed or strided view");
    rig_free(&f);
}

static void assert_no_state_dict(const char *name, hl_status status, const char *text)
{
    struct rig_file f;
    struct hl_safetensors st;
    rig_load(name, &f);
    assert_int_equal(hl_torch_state_dict(&f.source, &st), status);
    assert_error_has(text);
    rig_free(&f);
}

TEST(what_is_no_state_dict_of_dense_tensors_is_refused_by_its_class)
{
    rig_need_torch();
    assert_no_state_dict("hidden.pt", HL_EUNSUPPORTED, "'hidden' is an object of class __main__.");
    assert_no_state_dict("sparse.pt", HL_EUNSUPPORTED, "torch._utils._rebuild_sparse_tensor");
    assert_no_state_dict("number.pt", HL_EINVAL, "'number' is an int, not a tensor");
    assert_no_state_dict("complex.pt", HL_EUNSUPPORTED,
                         "tensor 'complex': the class torch.Complex");
    assert_no_state_dict("module.pt", HL_EINVAL,
                         "torch.nn.modules.linear.Linear, not a state dict");
    assert_no_state_dict("module_old.pt", HL_EINVAL, "it holds an object, not a state dict: save");
    assert_no_state_dict("list.pt", HL_EINVAL, "a list, not a state dict");
    assert_no_state_dict("deflated.pt", HL_EUNSUPPORTED, "is compressed");
    assert_no_state_dict("state.txt", HL_EINVAL, "neither a zip nor a pickle");
    assert_no_state_dict("nested.pt", HL_EINVAL, "'model.names.0' is a str, not a tensor");
}

TEST(a_part_of_a_file_is_a_source_of_its_own)
{
    rig_need_torch();
    struct rig_file f, whole = {0};
    struct hl_torch_slice slice;
    struct hl_safetensors st;
    rig_load("small.pt", &f);
    whole.bytes = calloc(1, f.len + 300);
    memcpy(whole.bytes + 100, f.bytes, f.len);
    rig_source(&whole, f.len + 300);
    assert_int_equal(hl_torch_slice_init(&slice, &whole.source, 100, f.len), HL_OK);
    assert_int_equal(hl_torch_state_dict(&slice.source, &st), HL_OK);
    assert_int_equal(st.count, 2);
    hl_safetensors_fini(&st);
    assert_int_equal(hl_torch_slice_init(&slice, &whole.source, 301, f.len), HL_EINVAL);
    assert_int_equal(hl_torch_slice_init(&slice, &whole.source, UINT64_MAX, 2), HL_EINVAL);
    rig_free(&whole);
    rig_free(&f);
}

/* Whatever is accepted lies within the file. */
static hl_status try_state_dict(const struct rig_file *f)
{
    struct hl_safetensors st;
    hl_status status = hl_torch_state_dict(&f->source, &st);
    if (status != HL_OK)
        return status;
    for (size_t i = 0; i < st.count; i++)
        assert_true(st.tensors[i].offset <= f->len &&
                    st.tensors[i].size <= f->len - st.tensors[i].offset);
    hl_safetensors_fini(&st);
    return HL_OK;
}

static void cut_and_flip(const char *name)
{
    struct rig_file f;
    rig_load(name, &f);
    size_t len = f.len;
    assert_int_equal(try_state_dict(&f), HL_OK);
    for (size_t n = 0; n < len; n++) {
        struct rig_file part = {.bytes = malloc(n + 1)};
        memcpy(part.bytes, f.bytes, n);
        rig_source(&part, n);
        assert_int_not_equal(try_state_dict(&part), HL_OK);
        rig_free(&part);
    }
    for (size_t i = 0; i < len; i++) {
        static const uint8_t masks[] = {1, 2, 4, 8, 16, 32, 64, 128, 255};
        for (size_t k = 0; k < sizeof(masks); k++) {
            f.bytes[i] ^= masks[k];
            (void)try_state_dict(&f);
            f.bytes[i] ^= masks[k];
        }
    }
    rig_free(&f);
}

TEST(every_truncation_is_refused_and_every_flipped_byte_survived)
{
    rig_need_torch();
    cut_and_flip("small.pt");
    cut_and_flip("small_old.pt");
}

TEST(a_storage_of_the_older_format_has_as_many_elements_as_its_pickle_says)
{
    static const uint64_t counts[] = {0, 2, 4, 6, 12};
    struct rig_file f;
    rig_need_torch();
    rig_load("small_old.pt", &f); /* ends with a storage of 3 elements of 4 bytes */
    for (size_t i = 0; i < HL_ARRAY_LEN(counts); i++) {
        memcpy(f.bytes + f.len - 20, &counts[i], sizeof(counts[i]));
        assert_int_equal(try_state_dict(&f), HL_EINVAL);
        assert_error_has("elements");
    }
    rig_free(&f);
}

/* Position of `bytes` in the file, searched from `at` on. */
static size_t find_bytes(const struct rig_file *f, size_t at, const char *bytes)
{
    const uint8_t *p = memmem(f->bytes + at, f->len - at, bytes, 4);
    assert_non_null(p);
    return (size_t)(p - f->bytes);
}

/* small.pt with `width` bytes at `at` + `field` changed is refused with `text`. */
static void assert_patched(const char *signature, int nth, size_t field, uint64_t value,
                           size_t width, const char *text)
{
    struct rig_file f;
    rig_load("small.pt", &f);
    size_t at = find_bytes(&f, 0, signature);
    for (int i = 0; i < nth; i++)
        at = find_bytes(&f, at + 4, signature);
    memcpy(f.bytes + at + field, &value, width);
    hl_error_clear();
    assert_int_not_equal(try_state_dict(&f), HL_OK);
    assert_error_has(text);
    rig_free(&f);
}

/* Entries of the directory: data.pkl, data/0, data/1, version. */
TEST(a_directory_that_lies_is_refused)
{
    rig_need_torch();
    assert_patched("PK\1\2", 1, 42, 0, 4, "no local header");    /* data/0 is data.pkl */
    assert_patched("PK\1\2", 1, 42, UINT32_MAX, 4, "truncated"); /* beyond the file */
    assert_patched("PK\1\2", 0, 24, 400, 4, "are stored of");    /* two sizes */
    assert_patched("PK\1\2", 0, 20, 0x7fffffff7fffffffull, 8,
                   "beyond the directory");                               /* data.pkl, huge */
    assert_patched("PK\1\2", 1, 20, 0x0000008000000080ull, 8, "overlap"); /* data/0 is 128 bytes */
    assert_patched("PK\1\2", 1, 8, 1, 2, "encrypted");
    assert_patched("PK\1\2", 1, 10, 8, 2, "compressed");
    assert_patched("PK\1\2", 1, 28, 9000, 2, "ends inside an entry");
    assert_patched("PK\1\2", 1, 46, 'x', 1, "not in the folder");
    assert_patched("PK\6\6", 0, 24, UINT64_MAX, 8, "several parts");
    assert_patched("PK\6\6", 0, 48, UINT64_MAX, 8, "does not end before");
    assert_patched("PK\6\6", 0, 40, 1, 8, "can't hold");
    assert_patched("PK\6\7", 0, 8, UINT64_MAX - 8, 8, "truncated");
    assert_patched("PK\3\4", 1, 28, 60000, 2, "beyond the directory");
}
