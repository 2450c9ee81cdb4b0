/* Reads .metadata. Its storage_data maps (tensor name, offset of a chunk) to a place in a file. The
 * keys are objects; they become an array sorted by name and offset, in which each chunk of
 * state_dict_metadata is looked up. Modules and classes differ between versions: torch 1.13 keeps
 * the classes in torch.distributed._shard.checkpoint, and Megatron-core 0.15 saved a Metadata class
 * of its own. */
#include "core/torch/dcp.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "core/torch/tensors.h"

#define CHUNKS_MAX   ((size_t)1 << 22)
#define COMPARES_MAX ((uint64_t)1 << 28)
#define FILE_MAX     255

/* One entry of storage_data. */
struct place {
    struct hl_pickle_text name;
    bool boxed; /* it belongs to a tensor; otherwise its offset is None */
    uint32_t rank;
    uint64_t begin[HL_TENSOR_RANK_MAX];
    const char *file;
    uint64_t offset;
    uint64_t size;
};

struct reader {
    struct hl_torch_dcp *out;
    bool (*wanted)(const char *name);
    struct place *places; /* sorted */
    size_t place_count;
    size_t chunks;
    uint64_t compares;
};

static bool is_class(const struct hl_pickle_value *v, const char *name)
{
    static const char *const modules[] = {"torch.distributed.checkpoint.",
                                          "torch.distributed._shard.checkpoint."};
    const char *full = v->kind == HL_PICKLE_OBJECT ? hl_pickle_class(v) : NULL;
    for (size_t i = 0; full != NULL && i < HL_ARRAY_LEN(modules); i++)
        if (strncmp(full, modules[i], strlen(modules[i])) == 0 &&
            strcmp(full + strlen(modules[i]), name) == 0)
            return true;
    return false;
}

static bool is_metadata(const struct hl_pickle_value *v)
{
    return is_class(v, "metadata.Metadata") ||
           hl_pickle_is(v, "megatron.core.dist_checkpointing.strategies.torch.MCoreMetadata");
}

static bool is_none(const struct hl_pickle_value *v)
{
    return v == NULL || v->kind == HL_PICKLE_NONE;
}

/* ---- where chunks lie ------------------------------------------------------------------------ */

static int compare_text(const struct hl_pickle_text *x, const struct hl_pickle_text *y)
{
    size_t n = x->len < y->len ? x->len : y->len;
    int order = n > 0 ? memcmp(x->data, y->data, n) : 0;
    return order != 0 ? order : (x->len > y->len) - (x->len < y->len);
}

static int by_key(const void *a, const void *b)
{
    const struct place *x = a, *y = b;
    int order = compare_text(&x->name, &y->name);
    if (order != 0)
        return order;
    if (x->boxed != y->boxed)
        return x->boxed ? 1 : -1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    for (uint32_t i = 0; i < x->rank; i++)
        if (x->begin[i] != y->begin[i])
            return x->begin[i] < y->begin[i] ? -1 : 1;
    return 0;
}

/* Accepts only a plain file name, so that the file is in the checkpoint's own folder. */
HL_CHECK static hl_status read_file_name(struct reader *r, const struct hl_pickle_value *v,
                                         const char **out)
{
    bool good = v != NULL && v->kind == HL_PICKLE_TEXT && v->text.len > 0 &&
                v->text.len <= FILE_MAX && v->text.data[0] != '.' &&
                memchr(v->text.data, '/', v->text.len) == NULL &&
                !hl_ascii_has_control((const char *)v->text.data, v->text.len);
    if (!good)
        return hl_fail(HL_EINVAL, "storage_data names a file that is not a plain file name");
    *out = hl_arena_text(&r->out->arena, v->text.data, v->text.len);
    return *out != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory allocating a file name");
}

HL_CHECK static hl_status read_place(struct reader *r, const struct hl_pickle_value *key,
                                     const struct hl_pickle_value *info, struct place *p)
{
    char what[256];
    const struct hl_pickle_value *name = hl_pickle_attribute(key, "fqn");
    const struct hl_pickle_value *begin = hl_pickle_attribute(key, "offset");
    if (!is_class(key, "metadata.MetadataIndex") || name == NULL || name->kind != HL_PICKLE_TEXT)
        return hl_fail(HL_EINVAL, "a key of storage_data is %s, not a MetadataIndex",
                       hl_pickle_what(key, what, sizeof(what)));
    if (!is_class(info, "filesystem._StorageInfo"))
        return hl_fail(HL_EUNSUPPORTED,
                       "'%.*s' is stored as %s: save it with torch's FileSystemWriter",
                       (int)(name->text.len < 200 ? name->text.len : 200), name->text.data,
                       hl_pickle_what(info, what, sizeof(what)));
    if (!is_none(hl_pickle_attribute(info, "transform_descriptors")))
        return hl_fail(HL_EUNSUPPORTED, "'%.*s' is stored compressed: save it without transforms",
                       (int)(name->text.len < 200 ? name->text.len : 200), name->text.data);
    p->name = name->text;
    p->boxed = !is_none(begin);
    if (p->boxed)
        HL_TRY(hl_pickle_sizes(begin, p->begin, HL_TENSOR_RANK_MAX, &p->rank));
    HL_TRY(read_file_name(r, hl_pickle_attribute(info, "relative_path"), &p->file));
    HL_TRY(hl_pickle_size(hl_pickle_attribute(info, "offset"), &p->offset));
    return hl_pickle_size(hl_pickle_attribute(info, "length"), &p->size);
}

HL_CHECK static hl_status read_places(struct reader *r, const struct hl_pickle_value *storage)
{
    const struct hl_pickle_items *pairs = hl_pickle_pairs(storage);
    if (pairs == NULL)
        return hl_fail(HL_EINVAL, "storage_data is not a dict: save it with torch's "
                                  "FileSystemWriter");
    r->place_count = pairs->count / 2;
    if (r->place_count > CHUNKS_MAX)
        return hl_fail(HL_EINVAL, "%zu chunks, at most %zu", r->place_count, CHUNKS_MAX);
    r->places = calloc(r->place_count + 1, sizeof(*r->places));
    if (r->places == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu chunks", r->place_count);
    for (size_t i = 0; i < r->place_count; i++)
        HL_TRY(read_place(r, pairs->at[2 * i], pairs->at[2 * i + 1], &r->places[i]));
    qsort(r->places, r->place_count, sizeof(*r->places), by_key);
    for (size_t i = 1; i < r->place_count; i++)
        if (by_key(&r->places[i - 1], &r->places[i]) == 0)
            return hl_fail(HL_EINVAL, "storage_data holds a chunk of '%.*s' twice",
                           (int)(r->places[i].name.len < 200 ? r->places[i].name.len : 200),
                           r->places[i].name.data);
    return HL_OK;
}

static int by_file(const void *a, const void *b)
{
    const struct hl_torch_dcp_file *x = a, *y = b;
    return strcmp(x->name, y->name);
}

HL_CHECK static hl_status list_files(struct reader *r)
{
    struct hl_torch_dcp *out = r->out;
    size_t n = r->place_count;
    out->files = hl_arena_array(&out->arena, n + 1, sizeof(*out->files));
    if (out->files == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu files", n);
    for (size_t i = 0; i < n; i++) {
        out->files[i].name = r->places[i].file;
        if (__builtin_add_overflow(r->places[i].offset, r->places[i].size, &out->files[i].size))
            return hl_fail(HL_EINVAL, "storage_data places a chunk beyond 2^64 in %s",
                           r->places[i].file);
    }
    if (n > 0)
        qsort(out->files, n, sizeof(*out->files), by_file);
    for (size_t i = 0; i < n; i++) {
        struct hl_torch_dcp_file *last =
            out->file_count > 0 ? &out->files[out->file_count - 1] : NULL;
        if (last == NULL || strcmp(last->name, out->files[i].name) != 0)
            out->files[out->file_count++] = out->files[i];
        else if (last->size < out->files[i].size)
            last->size = out->files[i].size;
    }
    return HL_OK;
}

static const struct place *find_place(const struct reader *r, const struct place *key)
{
    return r->place_count > 0 ? bsearch(key, r->places, r->place_count, sizeof(*r->places), by_key)
                              : NULL;
}

/* ---- tensors --------------------------------------------------------------------------------- */

HL_CHECK static hl_status read_name(struct reader *r, const struct hl_pickle_value *v,
                                    const char **out)
{
    bool good = v->kind == HL_PICKLE_TEXT && v->text.len > 0 && v->text.len <= HL_TENSOR_NAME_MAX &&
                !hl_ascii_has_control((const char *)v->text.data, v->text.len);
    const char *text = good ? hl_arena_text(&r->out->arena, v->text.data, v->text.len) : NULL;
    if (good && text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the name of a tensor");
    if (!good || !hl_utf8_valid(text))
        return hl_fail(HL_EINVAL, "a name is not text of 1 to %d bytes without control characters",
                       HL_TENSOR_NAME_MAX);
    *out = text;
    return HL_OK;
}

HL_CHECK static hl_status read_dtype(const struct hl_pickle_value *properties, enum hl_dtype *out)
{
    char what[256];
    const struct hl_pickle_value *state = properties != NULL && properties->kind == HL_PICKLE_OBJECT
                                              ? properties->object->state
                                              : NULL;
    const struct hl_pickle_value *dtype = hl_pickle_attribute(properties, "dtype");
    /* TensorProperties pickles its state as the tuple (dtype, layout, ...). */
    if (dtype == NULL && state != NULL && state->kind == HL_PICKLE_TUPLE && state->items.count > 0)
        dtype = state->items.at[0];
    if (dtype == NULL || dtype->kind != HL_PICKLE_CLASS)
        return hl_fail(HL_EINVAL, "its properties are %s, which contain no dtype",
                       hl_pickle_what(properties, what, sizeof(what)));
    return hl_torch_dtype(dtype, out);
}

/* Checks that the box is inside the tensor. *volume: the number of its elements. */
HL_CHECK static hl_status check_box(const struct hl_tensor *t, const struct hl_torch_dcp_chunk *c,
                                    uint64_t *volume)
{
    uint64_t n = 1;
    for (uint32_t i = 0; i < t->rank; i++) {
        if (c->begin[i] > t->shape[i] || c->shape[i] > t->shape[i] - c->begin[i])
            return hl_fail(HL_EINVAL,
                           "a chunk spans %" PRIu64 " at %" PRIu64 " of %" PRIu64
                           " in dimension %u",
                           c->shape[i], c->begin[i], t->shape[i], i);
        n *= c->shape[i]; /* no overflow: 0, or at most the tensor's elements */
    }
    *volume = n;
    return HL_OK;
}

HL_CHECK static hl_status read_chunk(struct reader *r, const struct hl_tensor *t,
                                     const struct hl_pickle_text *name,
                                     const struct hl_pickle_value *v, struct hl_torch_dcp_chunk *c,
                                     uint64_t *volume)
{
    char what[256];
    uint32_t rank, sizes;
    if (!is_class(v, "metadata.ChunkStorageMetadata"))
        return hl_fail(HL_EINVAL, "a chunk is %s, not a ChunkStorageMetadata",
                       hl_pickle_what(v, what, sizeof(what)));
    HL_TRY(hl_pickle_sizes(hl_pickle_attribute(v, "offsets"), c->begin, HL_TENSOR_RANK_MAX, &rank));
    HL_TRY(hl_pickle_sizes(hl_pickle_attribute(v, "sizes"), c->shape, HL_TENSOR_RANK_MAX, &sizes));
    if (rank != t->rank || sizes != t->rank)
        return hl_fail(HL_EINVAL, "a chunk has %u and %u dimensions, the tensor %u", rank, sizes,
                       t->rank);
    HL_TRY(check_box(t, c, volume));
    struct place key = {.name = *name, .boxed = true, .rank = rank};
    memcpy(key.begin, c->begin, sizeof(key.begin));
    const struct place *p = find_place(r, &key);
    if (p == NULL && *volume > 0)
        return hl_fail(HL_EINVAL, "storage_data does not say where a chunk is");
    if (p != NULL) {
        c->file = p->file;
        c->offset = p->offset;
        c->size = p->size;
    }
    return HL_OK;
}

static int by_begin(const void *a, const void *b)
{
    const struct hl_torch_dcp_chunk *x = a, *y = b;
    for (uint32_t i = 0; i < HL_TENSOR_RANK_MAX; i++)
        if (x->begin[i] != y->begin[i])
            return x->begin[i] < y->begin[i] ? -1 : 1;
    return 0;
}

static bool boxes_meet(const struct hl_torch_dcp_chunk *x, const struct hl_torch_dcp_chunk *y,
                       uint32_t rank)
{
    for (uint32_t i = 0; i < rank; i++)
        if (x->shape[i] == 0 || y->shape[i] == 0 || x->begin[i] + x->shape[i] <= y->begin[i] ||
            y->begin[i] + y->shape[i] <= x->begin[i])
            return false;
    return true;
}

/* Checks that no two chunks share an element and that together they have as many elements as the
 * tensor. Then they cover it exactly. */
HL_CHECK static hl_status check_cover(struct reader *r, const struct hl_torch_dcp_tensor *t,
                                      uint64_t volume)
{
    uint64_t all = t->tensor.size / hl_dtype_size(t->tensor.dtype);
    uint32_t rank = t->tensor.rank;
    for (size_t i = 0; i < t->chunk_count; i++) {
        const struct hl_torch_dcp_chunk *x = &t->chunks[i];
        for (size_t k = i + 1; k < t->chunk_count; k++) {
            const struct hl_torch_dcp_chunk *y = &t->chunks[k];
            if (rank > 0 && y->begin[0] >= x->begin[0] + x->shape[0])
                break;
            if (r->compares++ == COMPARES_MAX)
                return hl_fail(HL_EUNSUPPORTED, "its chunks are too many to be compared");
            if (boxes_meet(x, y, rank))
                return hl_fail(HL_EINVAL, "two of its chunks share elements");
        }
    }
    if (volume != all)
        return hl_fail(HL_EINVAL,
                       "its chunks hold %" PRIu64 " of %" PRIu64
                       " elements: a part of the checkpoint is missing",
                       volume, all);
    return HL_OK;
}

HL_CHECK static hl_status read_tensor(struct reader *r, const struct hl_pickle_text *name,
                                      const struct hl_pickle_value *v,
                                      struct hl_torch_dcp_tensor *t)
{
    uint64_t volume = 0, one = 0;
    const struct hl_pickle_items *chunks = hl_pickle_sequence(hl_pickle_attribute(v, "chunks"));
    HL_TRY(read_dtype(hl_pickle_attribute(v, "properties"), &t->tensor.dtype));
    HL_TRY(hl_pickle_sizes(hl_pickle_attribute(v, "size"), t->tensor.shape, HL_TENSOR_RANK_MAX,
                           &t->tensor.rank));
    HL_TRY(hl_tensor_bytes(&t->tensor, &t->tensor.size));
    if (r->wanted != NULL && !r->wanted(t->tensor.name))
        return HL_OK;
    if (chunks == NULL)
        return hl_fail(HL_EINVAL, "its chunks are not a list");
    /* A pickle can share one list of chunks among many tensors, so their total is limited. Every
     * chunk has a place of its own, except an empty one. */
    r->chunks += chunks->count;
    if (r->chunks > r->place_count + r->out->count)
        return hl_fail(HL_EINVAL, "storage_data has fewer places than there are chunks");
    t->chunks = hl_arena_array(&r->out->arena, chunks->count + 1, sizeof(*t->chunks));
    if (t->chunks == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %u chunks", chunks->count);
    for (uint32_t i = 0; i < chunks->count; i++) {
        HL_TRY(read_chunk(r, &t->tensor, name, chunks->at[i], &t->chunks[i], &one));
        volume += one;
    }
    t->chunk_count = chunks->count;
    if (t->chunk_count > 1)
        qsort(t->chunks, t->chunk_count, sizeof(*t->chunks), by_begin);
    return check_cover(r, t, volume);
}

HL_CHECK static hl_status read_bytes(struct reader *r, const struct hl_pickle_text *name,
                                     struct hl_torch_dcp_bytes *b)
{
    const struct place *p = find_place(r, &(struct place){.name = *name});
    if (p == NULL)
        return hl_fail(HL_EINVAL, "storage_data does not say where it is");
    b->file = p->file;
    b->offset = p->offset;
    b->size = p->size;
    return HL_OK;
}

HL_CHECK static hl_status read_member(struct reader *r, const struct hl_pickle_value *key,
                                      const struct hl_pickle_value *v)
{
    char what[256];
    const char *name = NULL;
    struct hl_torch_dcp *out = r->out;
    hl_status st;
    HL_TRY(read_name(r, key, &name));
    if (is_class(v, "metadata.TensorStorageMetadata")) {
        struct hl_torch_dcp_tensor *t = &out->tensors[out->count++];
        t->tensor.name = name;
        st = read_tensor(r, &key->text, v, t);
    } else if (is_class(v, "metadata.BytesStorageMetadata")) {
        struct hl_torch_dcp_bytes *b = &out->bytes[out->bytes_count++];
        b->name = name;
        st = read_bytes(r, &key->text, b);
    } else {
        st = hl_fail(HL_EUNSUPPORTED, "it is %s, which is not supported",
                     hl_pickle_what(v, what, sizeof(what)));
    }
    return st == HL_OK ? HL_OK : hl_fail_prefix(st, "'%.200s': ", name);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

HL_CHECK static hl_status check_names(const struct hl_torch_dcp *dcp)
{
    size_t n = 0;
    HL_AUTO(hl_freep)
    const char **names = calloc(dcp->count + dcp->bytes_count + 1, sizeof(const char *));
    if (names == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an index of %zu tensors", dcp->count);
    for (size_t i = 0; i < dcp->count; i++)
        names[n++] = dcp->tensors[i].tensor.name;
    for (size_t i = 0; i < dcp->bytes_count; i++)
        names[n++] = dcp->bytes[i].name;
    qsort(names, n, sizeof(const char *), by_name);
    for (size_t i = 1; i < n; i++)
        if (strcmp(names[i - 1], names[i]) == 0)
            return hl_fail(HL_EINVAL, "'%.200s' appears twice", names[i]);
    return HL_OK;
}

HL_CHECK static hl_status read_metadata(struct reader *r, const struct hl_pickle_value *root)
{
    char what[256];
    struct hl_torch_dcp *out = r->out;
    if (!is_metadata(root))
        return hl_fail(HL_EINVAL,
                       "it holds %s, not the Metadata of a PyTorch distributed checkpoint",
                       hl_pickle_what(root, what, sizeof(what)));
    const struct hl_pickle_items *members =
        hl_pickle_pairs(hl_pickle_attribute(root, "state_dict_metadata"));
    if (members == NULL)
        return hl_fail(HL_EINVAL, "state_dict_metadata is not a dict");
    HL_TRY(read_places(r, hl_pickle_attribute(root, "storage_data")));
    HL_TRY(list_files(r));
    out->tensors = hl_arena_array(&out->arena, members->count / 2 + 1, sizeof(*out->tensors));
    out->bytes = hl_arena_array(&out->arena, members->count / 2 + 1, sizeof(*out->bytes));
    if (out->tensors == NULL || out->bytes == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %u tensors",
                       members->count / 2);
    for (uint32_t i = 0; i + 1 < members->count; i += 2)
        HL_TRY(read_member(r, members->at[i], members->at[i + 1]));
    return check_names(out);
}

hl_status hl_torch_dcp_read(const struct hl_pickle_value *root, bool (*wanted)(const char *name),
                            struct hl_torch_dcp *out)
{
    struct hl_torch_dcp dcp = {0};
    struct reader r = {.out = &dcp, .wanted = wanted};
    hl_status st = read_metadata(&r, root);
    free(r.places);
    if (st != HL_OK) {
        hl_torch_dcp_fini(&dcp);
        return st;
    }
    *out = dcp;
    return HL_OK;
}

void hl_torch_dcp_fini(struct hl_torch_dcp *dcp)
{
    hl_arena_fini(&dcp->arena);
    *dcp = (struct hl_torch_dcp){0};
}
