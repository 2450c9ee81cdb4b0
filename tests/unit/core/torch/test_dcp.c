/* A distributed checkpoint as torch 2 writes it, with its classes' names, and one by torch 1.13's
 * own writer. */
#include "torch_rig.h"

#include "core/torch/dcp.h"

static int setup(void **state __attribute__((unused)))
{
    return rig_make("dcp");
}

TESTS_IN(setup, rig_teardown)

static hl_status read_metadata(const char *name, struct hl_torch_dcp *out)
{
    struct rig_file f;
    struct hl_pickle p;
    rig_load(name, &f);
    if (hl_pickle_parse(f.bytes, f.len, &p) != HL_OK)
        fail_msg("%s", hl_error_text());
    hl_status st = hl_torch_dcp_read(p.root, NULL, out);
    hl_pickle_fini(&p);
    rig_free(&f);
    return st;
}

/* Copies the chunk's bytes from its file into its rows of the whole tensor at `to`. */
static void read_chunk(const char *folder, const struct hl_torch_dcp_tensor *t,
                       const struct hl_torch_dcp_chunk *c, uint8_t *to)
{
    char path[128];
    struct rig_file f;
    struct hl_torch_slice slice;
    struct hl_torch_file file;
    struct hl_torch_tensors tensors = {0};
    struct hl_safetensors header;
    snprintf(path, sizeof(path), "%s%s", folder, c->file);
    rig_load(path, &f);
    assert_int_equal(hl_torch_slice_init(&slice, &f.source, c->offset, c->size), HL_OK);
    assert_int_equal(hl_torch_file_open(&slice.source, &file), HL_OK);
    assert_int_equal(hl_torch_tensors_add(&tensors, file.pickle.root, &(struct hl_torch_walk){0}),
                     HL_OK);
    assert_int_equal(tensors.count, 1);
    assert_int_equal(hl_torch_file_header(&file, &tensors, c->size, &header), HL_OK);
    const struct hl_tensor *part = &header.tensors[0];
    assert_int_equal(part->dtype, t->tensor.dtype);
    assert_int_equal(part->rank, t->tensor.rank);
    assert_memory_equal(part->shape, c->shape, part->rank * sizeof(part->shape[0]));
    uint64_t row = t->tensor.rank > 0 ? t->tensor.size / t->tensor.shape[0] : 0;
    memcpy(to + c->begin[0] * row, f.bytes + c->offset + part->offset, part->size);
    hl_safetensors_fini(&header);
    hl_torch_tensors_fini(&tensors);
    hl_torch_file_fini(&file);
    rig_free(&f);
}

static void assert_checkpoint(const char *folder, size_t chunks)
{
    static const char *const names[] = {"layers.weight", "norm", "step"};
    char path[64];
    struct hl_torch_dcp dcp;
    struct rig_file raw;
    size_t at = 0;
    snprintf(path, sizeof(path), "%s.metadata", folder);
    if (read_metadata(path, &dcp) != HL_OK)
        fail_msg("%s", hl_error_text());
    rig_load("dcp.raw", &raw);
    assert_int_equal(dcp.count, 3);
    for (size_t i = 0; i < dcp.count; i++) {
        const struct hl_torch_dcp_tensor *t = &dcp.tensors[i];
        assert_string_equal(t->tensor.name, names[i]);
        assert_int_equal(t->chunk_count, t->tensor.rank > 0 ? chunks : 1);
        uint8_t *whole = calloc(1, t->tensor.size);
        for (size_t k = 0; k < t->chunk_count; k++)
            read_chunk(folder, t, &t->chunks[k], whole);
        assert_memory_equal(whole, raw.bytes + at, t->tensor.size);
        at += t->tensor.size;
        free(whole);
    }
    assert_int_equal(at, raw.len);
    hl_torch_dcp_fini(&dcp);
    rig_free(&raw);
}

TEST(chunks_make_the_tensors_that_torch_wrote)
{
    rig_need_torch();
    assert_checkpoint("", 2);
}

TEST(so_do_those_of_torch_1_13s_own_writer)
{
    char path[64];
    rig_need_torch();
    snprintf(path, sizeof(path), "%s/own", rig_dir);
    if (access(path, F_OK) != 0)
        TEST_SKIP("this torch writes no such checkpoint");
    assert_checkpoint("own/", 1);
}

TEST(values_that_are_no_tensors_are_listed_apart)
{
    rig_need_torch();
    struct hl_torch_dcp dcp;
    struct rig_file f;
    struct hl_torch_slice slice;
    struct hl_torch_file file;
    int64_t step;
    assert_int_equal(read_metadata(".metadata", &dcp), HL_OK);
    assert_int_equal(dcp.bytes_count, 1);
    assert_string_equal(dcp.bytes[0].name, "extra");
    rig_load(dcp.bytes[0].file, &f);
    assert_int_equal(hl_torch_slice_init(&slice, &f.source, dcp.bytes[0].offset, dcp.bytes[0].size),
                     HL_OK);
    assert_int_equal(hl_torch_file_open(&slice.source, &file), HL_OK);
    assert_int_equal(hl_pickle_int(hl_pickle_find(file.pickle.root, "step"), &step), HL_OK);
    assert_int_equal(step, 3);
    hl_torch_file_fini(&file);
    hl_torch_dcp_fini(&dcp);
    rig_free(&f);
}

TEST(a_part_that_is_missing_is_named)
{
    rig_need_torch();
    struct hl_torch_dcp dcp;
    assert_int_equal(read_metadata("hole.metadata", &dcp), HL_EINVAL);
    assert_error_has("'layers.weight': its chunks hold 9 of 18 elements");
    assert_int_equal(read_metadata("missing.metadata", &dcp), HL_EINVAL);
    assert_error_has("'extra2': storage_data does not say where it is");
}

TEST(every_flipped_byte_of_the_metadata_is_survived)
{
    rig_need_torch();
    struct rig_file f;
    rig_load(".metadata", &f);
    for (size_t i = 0; i < f.len; i++) {
        for (int v = 1; v < 256; v++) {
            struct hl_pickle p;
            struct hl_torch_dcp dcp;
            f.bytes[i] ^= (uint8_t)v;
            if (hl_pickle_parse(f.bytes, f.len, &p) == HL_OK) {
                if (hl_torch_dcp_read(p.root, NULL, &dcp) == HL_OK)
                    hl_torch_dcp_fini(&dcp);
                hl_pickle_fini(&p);
            }
            f.bytes[i] ^= (uint8_t)v;
        }
    }
    rig_free(&f);
}

/* ---- by hand --------------------------------------------------------------------------------- */

#define BOXES_MAX 8

/* Chunks of a matrix: begin and shape, two numbers each, in a hand-made tree. */
struct box {
    int64_t begin[2], shape[2];
};

static struct hl_pickle_value numbers[256], tuples[64], objects[64], classes[8], texts[16];
static struct hl_pickle_object bodies[64];
static const struct hl_pickle_value *slots[2048];
static size_t number_count, tuple_count, object_count, class_count, text_count, slot_count;

static struct hl_pickle_items items_of(size_t count, const struct hl_pickle_value *const *values)
{
    const struct hl_pickle_value **at = &slots[slot_count];
    memcpy(at, values, count * sizeof(*values));
    slot_count += count;
    return (struct hl_pickle_items){.at = at, .count = (uint32_t)count};
}

static const struct hl_pickle_value *make_items(enum hl_pickle_kind kind, size_t count,
                                                const struct hl_pickle_value *const *values)
{
    tuples[tuple_count] = (struct hl_pickle_value){.kind = kind, .items = items_of(count, values)};
    return &tuples[tuple_count++];
}

static const struct hl_pickle_value *make_text(struct hl_pickle_value *at, enum hl_pickle_kind kind,
                                               const char *text)
{
    *at = (struct hl_pickle_value){.kind = kind, .text = {.data = text, .len = strlen(text)}};
    return at;
}

static const struct hl_pickle_value *text_of(const char *text)
{
    return make_text(&texts[text_count++], HL_PICKLE_TEXT, text);
}

static const struct hl_pickle_value *pair_of(const int64_t *two)
{
    for (int i = 0; i < 2; i++)
        numbers[number_count + (size_t)i] =
            (struct hl_pickle_value){.kind = HL_PICKLE_INT, .integer = two[i]};
    number_count += 2;
    return make_items(HL_PICKLE_TUPLE, 2,
                      (const struct hl_pickle_value *const[]){&numbers[number_count - 2],
                                                              &numbers[number_count - 1]});
}

/* An object whose state is a dictionary of these keys and values. */
static const struct hl_pickle_value *make_object(const struct hl_pickle_value *class_value,
                                                 size_t count,
                                                 const struct hl_pickle_value *const *pairs)
{
    bodies[object_count] =
        (struct hl_pickle_object){.callable = class_value,
                                  .args = make_items(HL_PICKLE_TUPLE, 0, pairs),
                                  .state = make_items(HL_PICKLE_DICT, count, pairs)};
    objects[object_count] =
        (struct hl_pickle_value){.kind = HL_PICKLE_OBJECT, .object = &bodies[object_count]};
    return &objects[object_count++];
}

#define LIST(...) ((const struct hl_pickle_value *const[]){__VA_ARGS__})

/* How a 4 x 4 tensor of these chunks is read. */
static hl_status read_boxes(const struct box *boxes, size_t count)
{
    const struct hl_pickle_value *chunks[BOXES_MAX], *places[2 * BOXES_MAX], *classes_of[6];
    static const char *const names[] = {
        "torch.distributed.checkpoint.metadata.Metadata",
        "torch.distributed.checkpoint.metadata.TensorStorageMetadata",
        "torch.distributed.checkpoint.metadata.ChunkStorageMetadata",
        "torch.distributed.checkpoint.metadata.MetadataIndex",
        "torch.distributed.checkpoint.filesystem._StorageInfo",
        "torch.float32",
    };
    number_count = tuple_count = object_count = class_count = text_count = slot_count = 0;
    for (size_t i = 0; i < 6; i++)
        classes_of[i] = make_text(&classes[class_count++], HL_PICKLE_CLASS, names[i]);
    const struct hl_pickle_value *name = text_of("w"), *fqn = text_of("fqn"),
                                 *offset = text_of("offset"), *offsets = text_of("offsets"),
                                 *sizes = text_of("sizes"), *path = text_of("relative_path"),
                                 *file = text_of("__0_0.distcp"), *length = text_of("length"),
                                 *dtype = text_of("dtype");
    const struct hl_pickle_value *four = pair_of((const int64_t[]){4, 4});
    for (size_t i = 0; i < count; i++) {
        const struct hl_pickle_value *begin = pair_of(boxes[i].begin);
        chunks[i] =
            make_object(classes_of[2], 4, LIST(offsets, begin, sizes, pair_of(boxes[i].shape)));
        places[2 * i] = make_object(classes_of[3], 4, LIST(fqn, name, offset, begin));
        places[2 * i + 1] = make_object(classes_of[4], 6,
                                        LIST(path, file, offset, &numbers[0], length, &numbers[0]));
    }
    const struct hl_pickle_value *tensor = make_object(
        classes_of[1], 6,
        LIST(text_of("properties"), make_object(classes_of[5], 2, LIST(dtype, classes_of[5])),
             text_of("size"), four, text_of("chunks"), make_items(HL_PICKLE_LIST, count, chunks)));
    const struct hl_pickle_value *root = make_object(
        classes_of[0], 4,
        LIST(text_of("state_dict_metadata"), make_items(HL_PICKLE_DICT, 2, LIST(name, tensor)),
             text_of("storage_data"), make_items(HL_PICKLE_DICT, 2 * count, places)));
    struct hl_torch_dcp dcp;
    hl_status st = hl_torch_dcp_read(root, NULL, &dcp);
    if (st == HL_OK)
        hl_torch_dcp_fini(&dcp);
    return st;
}

TEST(chunks_cover_every_element_exactly_once)
{
    const struct box whole[] = {{{0, 0}, {4, 4}}};
    const struct box bricks[] = {
        {{0, 0}, {1, 4}}, {{1, 0}, {3, 1}}, {{1, 1}, {2, 3}}, {{3, 1}, {1, 3}}};
    const struct box empty[] = {{{0, 0}, {4, 4}}, {{2, 2}, {0, 1}}};
    const struct box overlap[] = {{{0, 0}, {2, 4}}, {{1, 0}, {2, 4}}};
    const struct box beyond[] = {{{0, 0}, {4, 4}}, {{4, 0}, {1, 4}}};
    const struct box hole[] = {{{0, 0}, {2, 4}}, {{2, 0}, {2, 3}}};
    const struct box twice[] = {{{0, 0}, {4, 4}}, {{0, 0}, {4, 4}}};
    assert_int_equal(read_boxes(whole, 1), HL_OK);
    assert_int_equal(read_boxes(bricks, 4), HL_OK);
    assert_int_equal(read_boxes(empty, 2), HL_OK);
    assert_int_equal(read_boxes(overlap, 2), HL_EINVAL);
    assert_error_has("two of its chunks share elements");
    assert_int_equal(read_boxes(beyond, 2), HL_EINVAL);
    assert_error_has("a chunk spans 1 at 4 of 4 in dimension 0");
    assert_int_equal(read_boxes(hole, 2), HL_EINVAL);
    assert_error_has("hold 14 of 16 elements");
    assert_int_equal(read_boxes(twice, 2), HL_EINVAL);
    assert_error_has("a chunk of 'w' twice");
    assert_int_equal(read_boxes(whole, 0), HL_EINVAL);
}
