/* Reads both formats of torch.save. The older one has five consecutive pickles (magic number,
 * version, byte order, tree, keys of the storages), followed by the storages, each as its number of
 * elements and its bytes. It is converted to the table that a zip has. */
#include "core/torch/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PREFIX_FIRST ((uint64_t)1 << 20)
#define PREFIX_MAX   ((uint64_t)256 << 20)
#define KEY_CAP      80 /* "data/" and a key of tensors.h */
#define DATA         "data/"

static hl_status read_slice(void *arg, uint64_t at, void *to, size_t len)
{
    const struct hl_torch_slice *s = arg;
    if (at > s->source.size || len > s->source.size - at)
        return hl_fail(HL_EINVAL, "byte %" PRIu64 " is beyond its %" PRIu64, at, s->source.size);
    return s->whole->read(s->whole->arg, s->offset + at, to, len);
}

hl_status hl_torch_slice_init(struct hl_torch_slice *slice, const struct hl_torch_source *whole,
                              uint64_t offset, uint64_t size)
{
    if (offset > whole->size || size > whole->size - offset)
        return hl_fail(HL_EINVAL,
                       "%" PRIu64 " bytes at %" PRIu64 " are beyond the file's %" PRIu64
                       ": it is truncated",
                       size, offset, whole->size);
    *slice = (struct hl_torch_slice){.whole = whole, .offset = offset};
    slice->source = (struct hl_torch_source){.size = size, .read = read_slice, .arg = slice};
    return HL_OK;
}

HL_CHECK static hl_status read_bytes(const struct hl_torch_source *source, uint64_t at,
                                     uint64_t len, uint8_t **out)
{
    uint8_t *p = malloc(len + 1);
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating %" PRIu64 " bytes of a torch file",
                       len);
    hl_status st = source->read(source->arg, at, p, len);
    if (st != HL_OK) {
        free(p);
        return st;
    }
    *out = p;
    return HL_OK;
}

HL_CHECK static hl_status check_root(const struct hl_torch_file *f)
{
    char what[256];
    if (hl_pickle_pairs(f->pickle.root) != NULL)
        return HL_OK;
    return hl_fail(HL_EINVAL,
                   "it holds %s, not a state dict: save model.state_dict() with torch.save",
                   hl_pickle_what(f->pickle.root, what, sizeof(what)));
}

/* ---- zip ------------------------------------------------------------------------------------- */

/* Checks the entry "byteorder" ("little" or "big"). Older versions of torch do not write it. */
HL_CHECK static hl_status check_byteorder(const struct hl_torch_source *source,
                                          const struct hl_torch_zip *zip)
{
    char text[8] = "";
    const struct hl_torch_zip_entry *e = hl_torch_zip_find(zip, "byteorder");
    if (e == NULL)
        return HL_OK;
    if (e->size < sizeof(text))
        HL_TRY(source->read(source->arg, e->offset, text, e->size));
    if (strcmp(text, "little") != 0)
        return hl_fail(HL_EUNSUPPORTED,
                       "its byte order is '%s': save it on a little-endian "
                       "machine",
                       text);
    return HL_OK;
}

HL_CHECK static hl_status open_zip(const struct hl_torch_source *source, struct hl_torch_file *f)
{
    HL_TRY(hl_torch_zip_open(source, &f->zip));
    const struct hl_torch_zip_entry *e = hl_torch_zip_find(&f->zip, "data.pkl");
    if (e == NULL)
        return hl_fail(HL_EINVAL, "the zip has no data.pkl: it is not a file of torch.save");
    if (e->size > HL_PICKLE_BYTES_MAX)
        return hl_fail(HL_EINVAL, "data.pkl has %" PRIu64 " bytes, at most %zu", e->size,
                       HL_PICKLE_BYTES_MAX);
    HL_TRY(check_byteorder(source, &f->zip));
    HL_TRY(read_bytes(source, e->offset, e->size, &f->bytes));
    return hl_pickle_parse(f->bytes, e->size, &f->pickle);
}

/* ---- the older format ------------------------------------------------------------------------ */

struct old_file {
    struct hl_pickle magic, version, system, keys;
    uint64_t storages; /* where they begin */
};

static void old_file_fini(struct old_file *old)
{
    hl_pickle_fini(&old->magic);
    hl_pickle_fini(&old->version);
    hl_pickle_fini(&old->system);
    hl_pickle_fini(&old->keys);
}

/* Parses the five pickles; fails if they do not end in the file's first `len` bytes. */
HL_CHECK static hl_status parse_old(const uint8_t *bytes, size_t len, struct hl_torch_file *f,
                                    struct old_file *old)
{
    static const uint8_t magic[] = {0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19};
    struct hl_pickle *const pickles[] = {&old->magic, &old->version, &old->system, &f->pickle,
                                         &old->keys};
    size_t at = 0;
    for (size_t i = 0; i < HL_ARRAY_LEN(pickles); i++) {
        HL_TRY(hl_pickle_parse(bytes + at, len - at, pickles[i]));
        at += pickles[i]->used;
        const struct hl_pickle_value *v = old->magic.root;
        if (v->kind != HL_PICKLE_BIG || v->text.len != sizeof(magic) ||
            memcmp(v->text.data, magic, sizeof(magic)) != 0)
            return hl_fail(HL_EINVAL, "it is a pickle, but not one of torch.save");
    }
    old->storages = at;
    return HL_OK;
}

HL_CHECK static hl_status read_old(const struct hl_torch_source *source, struct hl_torch_file *f,
                                   struct old_file *old)
{
    for (uint64_t len = PREFIX_FIRST;; len *= 4) {
        bool all = len >= source->size || len >= PREFIX_MAX;
        len = len < source->size ? len : source->size;
        HL_TRY(read_bytes(source, 0, len, &f->bytes));
        hl_status st = parse_old(f->bytes, len, f, old);
        if (st == HL_OK || all)
            return st;
        old_file_fini(old); /* the pickles may be longer than what was read */
        hl_torch_file_fini(f);
    }
}

HL_CHECK static hl_status check_old(const struct old_file *old)
{
    int64_t version = 0;
    HL_TRY(hl_pickle_int(old->version.root, &version));
    if (version != 1001)
        return hl_fail(HL_EUNSUPPORTED,
                       "torch.save's format %" PRId64 " is not supported, only 1001", version);
    const struct hl_pickle_value *little = hl_pickle_find(old->system.root, "little_endian");
    if (little == NULL || little->kind != HL_PICKLE_BOOL || little->integer != 1)
        return hl_fail(HL_EUNSUPPORTED, "it is not little-endian: save it on such a machine");
    return HL_OK;
}

static int by_storage(const void *a, const void *b)
{
    const struct hl_torch_tensor *x = a, *y = b;
    return strcmp(x->storage, y->storage);
}

static int by_entry(const void *a, const void *b)
{
    const struct hl_torch_zip_entry *x = a, *y = b;
    return strcmp(x->name, y->name);
}

/* Makes one entry per storage; its size is known from the tensors. */
HL_CHECK static hl_status place_storages(const struct hl_torch_source *source,
                                         const struct hl_pickle_items *keys, uint64_t at,
                                         const struct hl_torch_tensors *tensors,
                                         struct hl_torch_zip *zip)
{
    zip->entries = hl_arena_array(&zip->arena, keys->count + 1, sizeof(*zip->entries));
    if (zip->entries == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %u storages", keys->count);
    for (uint32_t i = 0; i < keys->count; i++, zip->count++) {
        const struct hl_pickle_value *v = keys->at[i];
        uint64_t elements;
        char key[KEY_CAP];
        if (v->kind != HL_PICKLE_TEXT || v->text.len >= sizeof(key) - strlen(DATA))
            return hl_fail(HL_EINVAL, "the key of storage %u is not a short text", i);
        snprintf(key, sizeof(key), "%.*s", (int)v->text.len, v->text.data);
        const struct hl_torch_tensor *t =
            tensors->count == 0 ? NULL
                                : bsearch(&(struct hl_torch_tensor){.storage = key}, tensors->list,
                                          tensors->count, sizeof(*tensors->list), by_storage);
        if (t == NULL)
            return hl_fail(HL_EINVAL, "storage '%s' holds no tensor", key);
        if (source->size - at < sizeof(elements) ||
            source->size - at - sizeof(elements) < t->storage_size)
            return hl_fail(HL_EINVAL,
                           "storage '%s', %" PRIu64 " bytes, is beyond the file's end: "
                           "it is truncated",
                           key, t->storage_size);
        HL_TRY(source->read(source->arg, at, &elements, sizeof(elements)));
        if (elements != t->storage_elements)
            return hl_fail(HL_EINVAL,
                           "storage '%s' has %" PRIu64 " elements, but its tensors say %" PRIu64,
                           key, elements, t->storage_elements);
        zip->entries[i] =
            (struct hl_torch_zip_entry){.name = hl_arena_printf(&zip->arena, DATA "%s", key),
                                        .offset = at + sizeof(elements),
                                        .size = t->storage_size};
        if (zip->entries[i].name == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating the name of a storage");
        at += sizeof(elements) + t->storage_size;
    }
    if (zip->count > 1)
        qsort(zip->entries, zip->count, sizeof(*zip->entries), by_entry);
    return HL_OK;
}

HL_CHECK static hl_status open_old(const struct hl_torch_source *source, struct hl_torch_file *f,
                                   struct old_file *old)
{
    HL_AUTO(hl_torch_tensors_fini) struct hl_torch_tensors tensors = {0};
    HL_TRY(read_old(source, f, old));
    HL_TRY(check_old(old));
    HL_TRY(check_root(f)); /* a module's storages can't be placed */
    const struct hl_pickle_items *keys = hl_pickle_sequence(old->keys.root);
    if (keys == NULL)
        return hl_fail(HL_EINVAL, "its list of storages is missing");
    HL_TRY(hl_torch_tensors_add(&tensors, f->pickle.root, &(struct hl_torch_walk){0}));
    if (tensors.count > 1)
        qsort(tensors.list, tensors.count, sizeof(*tensors.list), by_storage);
    return place_storages(source, keys, old->storages, &tensors, &f->zip);
}

/* ---- file ------------------------------------------------------------------------------------ */

HL_CHECK static hl_status open_file(const struct hl_torch_source *source, struct hl_torch_file *f)
{
    uint8_t first[4] = {0};
    if (source->size >= sizeof(first))
        HL_TRY(source->read(source->arg, 0, first, sizeof(first)));
    if (memcmp(first, "PK\3\4", sizeof(first)) == 0)
        return open_zip(source, f);
    if (first[0] == 0x80) {
        HL_AUTO(old_file_fini) struct old_file old = {0};
        return open_old(source, f, &old);
    }
    return hl_fail(HL_EINVAL, "it is neither a zip nor a pickle: not a file of torch.save");
}

hl_status hl_torch_file_open(const struct hl_torch_source *source, struct hl_torch_file *out)
{
    struct hl_torch_file f = {0};
    hl_status st = open_file(source, &f);
    if (st != HL_OK) {
        hl_torch_file_fini(&f);
        return st;
    }
    *out = f;
    return HL_OK;
}

void hl_torch_file_fini(struct hl_torch_file *file)
{
    hl_pickle_fini(&file->pickle);
    hl_torch_zip_fini(&file->zip);
    free(file->bytes);
    *file = (struct hl_torch_file){0};
}

/* ---- as the header of a safetensors file ----------------------------------------------------- */

HL_CHECK static hl_status place_in_file(const struct hl_torch_file *file,
                                        const struct hl_torch_tensor *from, struct hl_tensor *to)
{
    char name[KEY_CAP], shape[192];
    *to = from->tensor;
    if (!from->contiguous)
        return hl_fail(HL_EUNSUPPORTED,
                       "tensor '%s', %s, is a transposed or strided view: save its .contiguous() "
                       "instead",
                       to->name, hl_tensor_shape_text(to, shape, sizeof(shape)));
    snprintf(name, sizeof(name), DATA "%s", from->storage);
    const struct hl_torch_zip_entry *e = hl_torch_zip_find(&file->zip, name);
    if (e == NULL)
        return hl_fail(HL_EINVAL, "tensor '%s': its storage '%s' is missing", to->name,
                       from->storage);
    if (e->size != from->storage_size)
        return hl_fail(HL_EINVAL,
                       "tensor '%s': its storage '%s' has %" PRIu64 " bytes, not %" PRIu64,
                       to->name, from->storage, e->size, from->storage_size);
    to->offset += e->offset;
    return HL_OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct hl_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int by_name(const void *a, const void *b, void *tensors)
{
    const struct hl_tensor *list = tensors;
    return strcmp(list[*(const uint32_t *)a].name, list[*(const uint32_t *)b].name);
}

HL_CHECK static hl_status fill_header(const struct hl_torch_file *file,
                                      const struct hl_torch_tensors *tensors,
                                      struct hl_safetensors *st)
{
    size_t text = 1;
    for (size_t i = 0; i < tensors->count; i++)
        text += strlen(tensors->list[i].tensor.name) + 1;
    st->tensors = calloc(tensors->count + 1, sizeof(*st->tensors));
    st->by_name = calloc(tensors->count + 1, sizeof(*st->by_name));
    st->text = malloc(text);
    if (st->tensors == NULL || st->by_name == NULL || st->text == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu tensors",
                       tensors->count);
    char *at = st->text;
    for (size_t i = 0; i < tensors->count; i++) {
        HL_TRY(place_in_file(file, &tensors->list[i], &st->tensors[i]));
        size_t n = strlen(st->tensors[i].name) + 1;
        st->tensors[i].name = memcpy(at, st->tensors[i].name, n);
        at += n;
        st->by_name[i] = (uint32_t)i;
    }
    st->count = tensors->count;
    qsort(st->tensors, st->count, sizeof(*st->tensors), by_offset);
    qsort_r(st->by_name, st->count, sizeof(*st->by_name), by_name, st->tensors);
    return HL_OK;
}

hl_status hl_torch_file_header(const struct hl_torch_file *file,
                               const struct hl_torch_tensors *tensors, uint64_t file_size,
                               struct hl_safetensors *out)
{
    struct hl_safetensors st = {.data_size = file_size};
    hl_status status = fill_header(file, tensors, &st);
    if (status != HL_OK) {
        hl_safetensors_fini(&st);
        return status;
    }
    *out = st;
    return HL_OK;
}

hl_status hl_torch_state_dict(const struct hl_torch_source *source, struct hl_safetensors *out)
{
    HL_AUTO(hl_torch_file_fini) struct hl_torch_file file = {0};
    HL_AUTO(hl_torch_tensors_fini) struct hl_torch_tensors tensors = {0};
    HL_TRY(hl_torch_file_open(source, &file));
    HL_TRY(check_root(&file));
    HL_TRY(hl_torch_tensors_add(&tensors, file.pickle.root,
                                &(struct hl_torch_walk){.only_tensors = true}));
    HL_TRY(hl_torch_tensors_finish(&tensors));
    return hl_torch_file_header(&file, &tensors, source->size, out);
}
