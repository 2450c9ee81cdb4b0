/* Hand-made pickles: what this machine's torch can't write, and what no torch would. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "core/torch/pickle.h"
#include "core/torch/tensors.h"

#define STORAGE(class_name, elements)                                                              \
    "(U\x07storagec" class_name "\nU\x01"                                                          \
    "0U\x03"                                                                                       \
    "cpu" elements "tQ"
#define V2(storage, offset, size, stride)                                                          \
    "ctorch._utils\n_rebuild_tensor_v2\n(" storage offset size stride "\x89"                       \
    "ccollections\nOrderedDict\n)RtR"
#define FLOATS       STORAGE("torch\nFloatStorage", "K\x06")
#define WHOLE        V2(FLOATS, "K\0", "K\x02K\x03\x86", "K\x03K\x01\x86")
#define PICKLE(body) "\x80\x02" body "."

#define LISTED(body, out) list_tensors(PICKLE(body), sizeof(PICKLE(body)) - 1, out)
#define REFUSED(body, status, text)                                                                \
    do {                                                                                           \
        struct hl_torch_tensors refused_ = {0};                                                    \
        assert_int_equal(LISTED(body, &refused_), status);                                         \
        assert_error_has(text);                                                                    \
        hl_torch_tensors_fini(&refused_);                                                          \
    } while (0)

static void assert_error_has(const char *text)
{
    if (strstr(hl_error_text(), text) == NULL)
        fail_msg("'%s' is not in: %s", text, hl_error_text());
}

static hl_status list_tensors(const char *bytes, size_t len, struct hl_torch_tensors *out)
{
    struct hl_pickle p;
    if (hl_pickle_parse(bytes, len, &p) != HL_OK)
        fail_msg("%s", hl_error_text());
    hl_status st = hl_torch_tensors_add(out, p.root, &(struct hl_torch_walk){.prefix = "w"});
    if (st == HL_OK)
        st = hl_torch_tensors_finish(out);
    hl_pickle_fini(&p);
    return st;
}

/* The only tensor of the tree. */
static struct hl_torch_tensor only_tensor(const struct hl_torch_tensors *t)
{
    assert_int_equal(t->count, 1);
    return t->list[0];
}

TEST(a_tensor_is_where_its_storage_and_strides_say)
{
    struct hl_torch_tensors t = {0};
    assert_int_equal(LISTED(WHOLE, &t), HL_OK);
    struct hl_torch_tensor w = only_tensor(&t);
    assert_string_equal(w.tensor.name, "w");
    assert_string_equal(w.storage, "0");
    assert_int_equal(w.tensor.size, 24);
    assert_int_equal(w.storage_size, 24);
    assert_true(w.contiguous);
    hl_torch_tensors_fini(&t);
    assert_int_equal(LISTED(V2(FLOATS, "K\x02", "K\x02K\x01\x86", "K\x01K\x09\x86"), &t), HL_OK);
    w = only_tensor(&t);
    assert_int_equal(w.tensor.offset, 8);
    assert_true(w.contiguous); /* the stride of a dimension of one element does not matter */
    hl_torch_tensors_fini(&t);
    assert_int_equal(LISTED(V2(FLOATS, "K\0", "K\x03K\x02\x86", "K\x01K\x03\x86"), &t), HL_OK);
    assert_false(only_tensor(&t).contiguous);
    hl_torch_tensors_fini(&t);
    assert_int_equal(LISTED(V2(FLOATS, "K\0", "K\x09\x85", "K\0\x85"), &t), HL_OK);
    assert_false(only_tensor(&t).contiguous); /* one element, repeated nine times */
    hl_torch_tensors_fini(&t);
}

TEST(float8_lies_in_an_untyped_storage)
{
    struct hl_torch_tensors t = {0};
    assert_int_equal(LISTED("ctorch._utils\n_rebuild_tensor_v3\n(" STORAGE(
                                "torch.storage\nUntypedStorage",
                                "K\x06") "K\x02K\x04\x85K\x01\x85\x89"
                                         "ccollections\nOrderedDict\n)Rctorch\nfloat8_e4m3fn\ntR",
                            &t),
                     HL_OK);
    struct hl_torch_tensor w = only_tensor(&t);
    assert_int_equal(w.tensor.dtype, HL_DTYPE_F8_E4M3);
    assert_int_equal(w.tensor.offset, 2);
    assert_int_equal(w.tensor.size, 4);
    assert_int_equal(w.storage_size, 6);
    hl_torch_tensors_fini(&t);
    REFUSED(V2(STORAGE("torch.storage\nUntypedStorage", "K\x06"), "K\0", "K\x01\x85", "K\x01\x85"),
            HL_EINVAL, "no dtype");
}

#define FROM_TYPE(type)                                                                            \
    "ctorch._tensor\n_rebuild_from_type_v2\n(ctorch._utils\n_rebuild_tensor_v2\nc" type            \
    "\n(" FLOATS "K\0K\x06\x85K\x01\x85\x89NtNtR"

TEST(wrapped_tensors_are_seen_through_and_unknown_classes_are_not)
{
    struct hl_torch_tensors t = {0};
    assert_int_equal(LISTED(FROM_TYPE("torch.nn.parameter\nParameter"), &t), HL_OK);
    assert_int_equal(only_tensor(&t).tensor.size, 24);
    hl_torch_tensors_fini(&t);
    assert_int_equal(LISTED("ctorch._utils\n_rebuild_parameter_with_state\n(" WHOLE "\x88N}tR", &t),
                     HL_OK);
    assert_int_equal(only_tensor(&t).tensor.size, 24);
    hl_torch_tensors_fini(&t);
    REFUSED(FROM_TYPE("other\nTensor"), HL_EUNSUPPORTED, "torch._tensor._rebuild_from_type_v2");
    REFUSED("cother\nwrap\n(" WHOLE "tR", HL_EUNSUPPORTED, "'w' is an object of class other.wrap");
    REFUSED("}U\x01"
            "b\x8c\0cother\nwrap\n(" WHOLE "tR\x86s",
            HL_EUNSUPPORTED, "'w.b.1'");
    REFUSED(FLOATS, HL_EUNSUPPORTED, "'w' is a storage");
    REFUSED("}N" WHOLE "s", HL_EUNSUPPORTED, "which holds tensor data"); /* it has no name */
}

/* torch 2 adds a seventh argument where a view is negated or conjugated only when it is read. */
#define WITH_METADATA(pairs)                                                                       \
    "ctorch._utils\n_rebuild_tensor_v2\n(" FLOATS "K\0K\x06\x85K\x01\x85\x89"                      \
    "ccollections\nOrderedDict\n)R}" pairs "tR"

TEST(a_view_whose_values_are_not_in_its_storage_is_refused)
{
    struct hl_torch_tensors t = {0};
    assert_int_equal(LISTED(WITH_METADATA("U\x03"
                                          "neg\x89s"),
                            &t),
                     HL_OK);
    assert_int_equal(only_tensor(&t).tensor.size, 24);
    hl_torch_tensors_fini(&t);
    REFUSED(WITH_METADATA("U\x03"
                          "neg\x88s"),
            HL_EUNSUPPORTED, "tensor 'w': it has metadata 'neg'");
    REFUSED("ctorch._utils\n_rebuild_tensor_v3\n(" STORAGE(
                "torch.storage\nUntypedStorage",
                "K\x06") "K\x02K\x04\x85K\x01\x85\x89"
                         "ccollections\nOrderedDict\n)Rctorch\nfloat8_e4m3fn\n}U\x04"
                         "conj\x88stR",
            HL_EUNSUPPORTED, ".resolve_conj().resolve_neg()");
}

TEST(numbers_that_do_not_fit_are_refused)
{
#define BIG "\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f" /* 2^63 - 1 */
    REFUSED(V2(FLOATS, "K\x01", "K\x06\x85", "K\x01\x85"), HL_EINVAL,
            "'w': element 6 is its last one, its storage '0' has 24 bytes");
    REFUSED(V2(FLOATS, "K\0", "K\x02\x85", "K\x06\x85"), HL_EINVAL, "element 6 is its last one");
    REFUSED(V2(FLOATS, BIG, "K\x01\x85", "K\x01\x85"), HL_EINVAL, "is its last one");
    REFUSED(V2(FLOATS, "K\0", "K\x03\x85", BIG "\x85"), HL_EINVAL, "is its last one");
    REFUSED(V2(FLOATS, "K\0", BIG BIG "\x86", "K\0K\0\x86"), HL_EINVAL, "beyond 64 bits");
    REFUSED(V2(FLOATS, "K\0", "J\xff\xff\xff\xff\x85", "K\x01\x85"), HL_EINVAL, "-1 is negative");
    REFUSED(V2(FLOATS, "K\0", "K\x06\x85", "J\xff\xff\xff\xff\x85"), HL_EINVAL, "-1 is negative");
    REFUSED(V2(FLOATS, "K\0", "\x8a\x09\0\0\0\0\0\0\0\0\x01\x85", "K\x01\x85"), HL_EINVAL,
            "an int beyond 64 bits");
    REFUSED(V2(FLOATS, "K\0", "K\x06\x85", ")"), HL_EINVAL, "1 dimensions and 0 strides");
    REFUSED(V2(FLOATS, "K\0", "(K\1K\1K\1K\1K\1K\1K\1K\1K\1t", ")"), HL_EUNSUPPORTED,
            "9 dimensions, at most 8");
    REFUSED(V2(STORAGE("torch\nFloatStorage", BIG), "K\0", "K\1\x85", "K\1\x85"), HL_EINVAL,
            "beyond 64 bits");
    REFUSED(V2(STORAGE("torch\nComplexDoubleStorage", "K\x06"), "K\0", "K\1\x85", "K\1\x85"),
            HL_EUNSUPPORTED, "torch.ComplexDoubleStorage is not a supported dtype");
    REFUSED(V2("N", "K\0", "K\1\x85", "K\1\x85"), HL_EUNSUPPORTED, "its storage is None");
    REFUSED("ctorch._utils\n_rebuild_tensor_v2\n(" FLOATS "tR", HL_EINVAL, "only 1 arguments");
}

TEST(names_are_shown_so_they_are_checked)
{
    REFUSED("}U\x01\n" WHOLE "s", HL_EINVAL, "control character");
    REFUSED("}U\x02"
            "a\0" WHOLE "s",
            HL_EINVAL, "control character");
    REFUSED("}U\x01\xff" WHOLE "s", HL_EINVAL, "is not UTF-8");
    REFUSED("}U\x01"
            "a" WHOLE "sU\x01"
            "a" WHOLE "s",
            HL_EINVAL, "tensor 'w.a' appears twice");
    REFUSED(V2("(U\x07storagectorch\nFloatStorage\nU\x04../xU\x03"
               "cpuK\x06tQ",
               "K\0", "K\1\x85", "K\1\x85"),
            HL_EINVAL, "not a plain name");
}

/* `first`, `count` times `step`, `last` and a STOP, as a tree of tensors. */
static void assert_bomb(const char *first, const char *step, int count, const char *last,
                        const char *text)
{
    struct hl_torch_tensors t = {0};
    struct hl_buf b = HL_BUF(1 << 24);
    (void)hl_buf_append(&b, "\x80\x02", 2);
    (void)hl_buf_append(&b, first, strlen(first));
    for (int i = 0; i < count; i++)
        (void)hl_buf_append(&b, step, strlen(step));
    (void)hl_buf_append(&b, last, strlen(last));
    (void)hl_buf_append(&b, ".", 1);
    assert_int_equal(list_tensors(b.data, b.len, &t), HL_EUNSUPPORTED);
    assert_error_has(text);
    hl_torch_tensors_fini(&t);
    hl_buf_fini(&b);
}

TEST(trees_that_never_end_are_refused)
{
    assert_bomb(")", "\x85", 100000, "", "nested deeper than 64");
    assert_bomb("]q\x01",
                "h\x01"
                "a",
                1, "", "nested deeper than 64");                        /* contains itself */
    assert_bomb(")", "2\x86", 60, "", "refer to each other too often"); /* 2^60 leaves */
    assert_bomb("cother\nthing\n)", "2\x86", 60, "R", "refer to each other too often");
    assert_bomb("cother\nthing\n)R", "2\x86", 60, "", "refer to each other too often");
}
