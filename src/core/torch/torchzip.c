/* Lays out the zip and writes its pickle. Every entry is stored and has zip64 sizes, even a small
 * one: huge files need that form, and with only one form every test covers it. Tensor data is
 * aligned by an 'FB' extra field, as in torch's own writer. Apart from argparse.Namespace, the
 * pickle uses only opcodes and globals that weights_only loading allows. */
#include "core/torch/torchzip.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/crc32.h"

#define STEM        "archive"
#define BYTES_MAX   ((size_t)1 << 31)
#define TENSORS_MAX ((size_t)1 << 20)
#define CHUNKS_MAX  1024
#define ALIGN       64

/* ---- pickle ---------------------------------------------------------------------------------- */

static void pickle_put(struct hl_buf *b, const void *data, size_t len)
{
    (void)hl_buf_append(b, data, len);
}

static void put_u(struct hl_buf *b, uint64_t v, size_t bytes)
{
    pickle_put(b, &v, bytes); /* little endian, as everything here */
}

static void pickle_op(struct hl_buf *b, char code)
{
    pickle_put(b, &code, 1);
}

static void put_text(struct hl_buf *b, const char *s, size_t len)
{
    pickle_op(b, 'X'); /* BINUNICODE */
    put_u(b, len, 4);
    pickle_put(b, s, len);
}

static void put_word(struct hl_buf *b, const char *s)
{
    put_text(b, s, strlen(s));
}

static void put_int(struct hl_buf *b, uint64_t v)
{
    if (v < 256) {
        pickle_op(b, 'K'); /* BININT1 */
        put_u(b, v, 1);
    } else if (v <= INT32_MAX) {
        pickle_op(b, 'J'); /* BININT */
        put_u(b, v, 4);
    } else {
        pickle_op(b, '\x8a'); /* LONG1; the ninth byte keeps it positive */
        put_u(b, 9, 1);
        put_u(b, v, 8);
        put_u(b, 0, 1);
    }
}

static void put_ordered_dict(struct hl_buf *b)
{
    (void)hl_buf_printf(b, "ccollections\nOrderedDict\n)R");
}

static const char *storage_of(enum hl_dtype dtype)
{
    static const char *const names[HL_DTYPE_COUNT] = {
        [HL_DTYPE_F64] = "DoubleStorage", [HL_DTYPE_F32] = "FloatStorage",
        [HL_DTYPE_F16] = "HalfStorage",   [HL_DTYPE_BF16] = "BFloat16Storage",
        [HL_DTYPE_I64] = "LongStorage",   [HL_DTYPE_I32] = "IntStorage",
        [HL_DTYPE_I16] = "ShortStorage",  [HL_DTYPE_I8] = "CharStorage",
        [HL_DTYPE_U8] = "ByteStorage",    [HL_DTYPE_BOOL] = "BoolStorage",
    };
    return names[dtype];
}

/* torch._utils._rebuild_tensor_v2(storage, 0, size, stride, False, OrderedDict()) */
static void put_tensor(struct hl_buf *b, const struct hl_tensor *t, size_t key)
{
    uint64_t stride[HL_TENSOR_RANK_MAX];
    uint64_t step = 1;
    for (uint32_t i = t->rank; i-- > 0;) {
        stride[i] = step;
        step *= t->shape[i] > 0 ? t->shape[i] : 1;
    }
    char name[24];
    snprintf(name, sizeof(name), "%zu", key);
    (void)hl_buf_printf(b, "ctorch._utils\n_rebuild_tensor_v2\n((");
    put_word(b, "storage");
    (void)hl_buf_printf(b, "ctorch\n%s\n", storage_of(t->dtype));
    put_word(b, name);
    put_word(b, "cpu");
    put_int(b, t->size / hl_dtype_size(t->dtype));
    pickle_op(b, 't'); /* TUPLE from the mark */
    pickle_op(b, 'Q'); /* BINPERSID */
    put_int(b, 0);
    pickle_op(b, '(');
    for (uint32_t i = 0; i < t->rank; i++)
        put_int(b, t->shape[i]);
    pickle_op(b, 't');
    pickle_op(b, '(');
    for (uint32_t i = 0; i < t->rank; i++)
        put_int(b, stride[i]);
    pickle_op(b, 't');
    pickle_op(b, '\x89'); /* NEWFALSE: requires_grad */
    put_ordered_dict(b);
    pickle_op(b, 't');
    pickle_op(b, 'R');
}

/* "model3.x" is chunk 3 and *rest "x"; anything else is chunk -1 and the whole name. */
static int chunk_of(const char *name, const char **rest)
{
    *rest = name;
    if (strncmp(name, "model", 5) != 0 || name[5] < '0' || name[5] > '9')
        return -1;
    char *end;
    unsigned long n = strtoul(name + 5, &end, 10);
    if (*end != '.' || n >= CHUNKS_MAX)
        return -1;
    *rest = end + 1;
    return (int)n;
}

static void put_chunk(struct hl_buf *b, const struct hl_torchzip_tensor *tensors, size_t count,
                      int chunk)
{
    char key[24] = "model";
    if (chunk >= 0)
        snprintf(key, sizeof(key), "model%d", chunk);
    put_word(b, key);
    put_ordered_dict(b);
    pickle_op(b, '(');
    for (size_t i = 0; i < count; i++) {
        const char *name;
        if (tensors[i].optimizer || chunk_of(tensors[i].tensor->name, &name) != chunk)
            continue;
        put_word(b, name);
        put_tensor(b, tensors[i].tensor, i);
    }
    pickle_op(b, 'u'); /* SETITEMS */
}

static void put_optimizer(struct hl_buf *b, const struct hl_torchzip_tensor *tensors, size_t count)
{
    put_word(b, "helios_optimizer");
    put_ordered_dict(b);
    pickle_op(b, '(');
    for (size_t i = 0; i < count; i++) {
        if (!tensors[i].optimizer)
            continue;
        put_word(b, tensors[i].tensor->name);
        put_tensor(b, tensors[i].tensor, i);
    }
    pickle_op(b, 'u');
}

static void put_signed(struct hl_buf *b, int64_t v)
{
    if (v >= 0) {
        put_int(b, (uint64_t)v);
        return;
    }
    pickle_op(b, '\x8a'); /* LONG1, two's complement */
    put_u(b, 8, 1);
    put_u(b, (uint64_t)v, 8);
}

static void put_real(struct hl_buf *b, double v)
{
    uint64_t bits;
    pickle_op(b, 'G'); /* BINFLOAT, big endian */
    memcpy(&bits, &v, sizeof(bits));
    bits = __builtin_bswap64(bits);
    put_u(b, bits, 8);
}

HL_CHECK static hl_status put_value(struct hl_buf *b, const char *name, const json_t *value)
{
    const char *text = json_string_value(value);
    if (text != NULL && strncmp(text, "torch.", 6) == 0)
        (void)hl_buf_printf(b, "ctorch\n%s\n", text + 6);
    else if (text != NULL)
        put_word(b, text);
    else if (json_is_integer(value))
        put_signed(b, json_integer_value(value));
    else if (json_is_number(value))
        put_real(b, json_number_value(value));
    else if (json_is_boolean(value))
        pickle_op(b, json_is_true(value) ? '\x88' : '\x89');
    else if (json_is_null(value))
        pickle_op(b, 'N');
    else
        return hl_fail(HL_EINVAL, "argument '%s' is an object, or a list in a list", name);
    return HL_OK;
}

HL_CHECK static hl_status put_argument(struct hl_buf *b, const char *name, const json_t *value)
{
    const json_t *item;
    size_t i;
    put_word(b, name);
    if (!json_is_array(value))
        return put_value(b, name, value);
    pickle_put(b, "](", 2); /* EMPTY_LIST, MARK */
    json_array_foreach (value, i, item)
        HL_TRY(put_value(b, name, item));
    pickle_op(b, 'e'); /* APPENDS */
    return HL_OK;
}

/* argparse.Namespace, as Python pickles one: NEWOBJ without arguments, BUILD from a dictionary. */
HL_CHECK static hl_status put_namespace(struct hl_buf *b, const json_t *args)
{
    const char *name;
    json_t *value;
    put_word(b, "args");
    (void)hl_buf_printf(b, "cargparse\nNamespace\n)\x81}(");
    json_object_foreach ((json_t *)args, name, value)
        HL_TRY(put_argument(b, name, value));
    pickle_put(b, "ub", 2);
    return HL_OK;
}

HL_CHECK static hl_status put_pickle(struct hl_buf *b, const struct hl_torchzip_tensor *tensors,
                                     size_t count, const struct hl_torchzip_options *options)
{
    unsigned char present[CHUNKS_MAX + 1] = {0};
    bool optimizer = false;
    const char *rest;
    for (size_t i = 0; i < count; i++) {
        optimizer |= tensors[i].optimizer;
        if (!tensors[i].optimizer)
            present[chunk_of(tensors[i].tensor->name, &rest) + 1] = 1;
    }
    present[0] |= memchr(present, 1, sizeof(present)) == NULL;
    pickle_put(b, "\x80\x02}(", 4); /* PROTO 2, EMPTY_DICT, MARK */
    for (int chunk = -1; chunk < CHUNKS_MAX; chunk++)
        if (present[chunk + 1])
            put_chunk(b, tensors, count, chunk);
    put_word(b, "checkpoint_version");
    put_int(b, 3); /* equals 3.0 in Python; torch 1.13's safe unpickler refuses floats */
    put_word(b, "iteration");
    put_int(b, options->iteration > 0 ? (uint64_t)options->iteration : 0);
    if (options->args != NULL)
        HL_TRY(put_namespace(b, options->args));
    if (optimizer)
        put_optimizer(b, tensors, count);
    pickle_put(b, "u.", 2);
    return HL_OK;
}

/* ---- zip ------------------------------------------------------------------------------------- */

struct writer {
    struct hl_torchzip *z;
    size_t cap;
    size_t segment_from; /* generated bytes before this offset are in finished segments */
    struct hl_buf central;
    uint64_t entries;
};

static uint64_t writer_position(const struct writer *w)
{
    return w->z->file_size + (w->z->bytes.len - w->segment_from);
}

HL_CHECK static hl_status add_segment(struct writer *w, int64_t tensor, uint64_t size,
                                      uint64_t from)
{
    struct hl_torchzip *z = w->z;
    if (size == 0)
        return HL_OK;
    if (z->count == w->cap) {
        size_t cap = w->cap == 0 ? 64 : w->cap * 2;
        struct hl_torchzip_segment *list = realloc(z->segments, cap * sizeof(*list));
        if (list == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating %zu segments", cap);
        z->segments = list;
        w->cap = cap;
    }
    z->segments[z->count++] = (struct hl_torchzip_segment){
        .tensor = tensor, .offset = z->file_size, .size = size, .from = from};
    z->file_size += size;
    return HL_OK;
}

/* Ends the current run of generated bytes. */
HL_CHECK static hl_status flush(struct writer *w)
{
    uint64_t size = w->z->bytes.len - w->segment_from;
    HL_TRY(add_segment(w, -1, size, w->segment_from));
    w->segment_from = w->z->bytes.len;
    return HL_OK;
}

/* The fields that local and central headers share, from "version needed" to the name's length. */
static void put_common(struct hl_buf *b, uint32_t crc, size_t name_len)
{
    put_u(b, 45, 2); /* zip64 */
    put_u(b, 0, 2);
    put_u(b, 0, 2);    /* stored */
    put_u(b, 0, 2);    /* 00:00 */
    put_u(b, 0x21, 2); /* 1980-01-01: equal inputs give equal files */
    put_u(b, crc, 4);
    put_u(b, UINT32_MAX, 4);
    put_u(b, UINT32_MAX, 4);
    put_u(b, name_len, 2);
}

/* Writes the local header up to the start of the data, and the entry of the central directory. */
static void put_entry(struct writer *w, const char *name, uint64_t size, uint32_t crc)
{
    struct hl_buf *b = &w->z->bytes, *c = &w->central;
    size_t len = strlen(name);
    uint64_t at = writer_position(w);
    /* 30 fixed bytes, the name, 20 of zip64, 4 of the padding's own header. */
    uint64_t data = at + 30 + len + 20 + 4;
    uint64_t pad = (ALIGN - data % ALIGN) % ALIGN;
    pickle_put(b, "PK\3\4", 4);
    put_common(b, crc, len);
    put_u(b, 20 + 4 + pad, 2);
    pickle_put(b, name, len);
    put_u(b, 1, 2);
    put_u(b, 16, 2);
    put_u(b, size, 8);
    put_u(b, size, 8);
    pickle_put(b, "FB", 2);
    put_u(b, pad, 2);
    for (uint64_t i = 0; i < pad; i++)
        pickle_op(b, 'Z');

    pickle_put(c, "PK\1\2", 4);
    put_u(c, 45, 2);
    put_common(c, crc, len);
    put_u(c, 28, 2); /* extra */
    put_u(c, 0, 2);  /* comment */
    put_u(c, 0, 2);  /* disk */
    put_u(c, 0, 2);
    put_u(c, 0, 4);
    put_u(c, UINT32_MAX, 4);
    pickle_put(c, name, len);
    put_u(c, 1, 2);
    put_u(c, 24, 2);
    put_u(c, size, 8);
    put_u(c, size, 8);
    put_u(c, at, 8);
    w->entries++;
}

static void put_file(struct writer *w, const char *name, const void *data, size_t len)
{
    put_entry(w, name, len, hl_crc32(0, data, len));
    pickle_put(&w->z->bytes, data, len);
}

static void put_end(struct writer *w)
{
    struct hl_buf *b = &w->z->bytes;
    uint64_t begin = writer_position(w), size = w->central.len;
    uint64_t few = w->entries < UINT16_MAX ? w->entries : UINT16_MAX;
    pickle_put(b, w->central.data, w->central.len);
    uint64_t end = writer_position(w);
    pickle_put(b, "PK\6\6", 4); /* zip64 end of the central directory */
    put_u(b, 44, 8);
    put_u(b, 45, 2);
    put_u(b, 45, 2);
    put_u(b, 0, 4);
    put_u(b, 0, 4);
    put_u(b, w->entries, 8);
    put_u(b, w->entries, 8);
    put_u(b, size, 8);
    put_u(b, begin, 8);
    pickle_put(b, "PK\6\7", 4); /* zip64 locator: where that record is */
    put_u(b, 0, 4);
    put_u(b, end, 8);
    put_u(b, 1, 4);
    pickle_put(b, "PK\5\6", 4);
    put_u(b, 0, 2);
    put_u(b, 0, 2);
    put_u(b, few, 2);
    put_u(b, few, 2);
    put_u(b, size < UINT32_MAX ? size : UINT32_MAX, 4);
    put_u(b, UINT32_MAX, 4);
    put_u(b, 0, 2);
}

static int by_name(const void *a, const void *b)
{
    const struct hl_torchzip_tensor *x = *(const struct hl_torchzip_tensor *const *)a;
    const struct hl_torchzip_tensor *y = *(const struct hl_torchzip_tensor *const *)b;
    return x->optimizer != y->optimizer ? x->optimizer - y->optimizer
                                        : strcmp(x->tensor->name, y->tensor->name);
}

/* Refuses two tensors with the same name: a dictionary would silently keep only the last one. */
HL_CHECK static hl_status check_names(const struct hl_torchzip_tensor *tensors, size_t count)
{
    HL_AUTO(hl_freep) const struct hl_torchzip_tensor **list = calloc(count + 1, sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory sorting %zu tensors", count);
    for (size_t i = 0; i < count; i++)
        list[i] = &tensors[i];
    qsort(list, count, sizeof(*list), by_name);
    for (size_t i = 1; i < count; i++)
        if (by_name(&list[i - 1], &list[i]) == 0)
            return hl_fail(HL_EINVAL, "tensor '%s' is in two parts of one rank",
                           list[i]->tensor->name);
    return HL_OK;
}

HL_CHECK static hl_status check_tensors(const struct hl_torchzip_tensor *tensors, size_t count)
{
    if (count > TENSORS_MAX)
        return hl_fail(HL_EINVAL, "%zu tensors, at most %zu", count, TENSORS_MAX);
    for (size_t i = 0; i < count; i++) {
        const struct hl_tensor *t = tensors[i].tensor;
        if (storage_of(t->dtype) == NULL)
            return hl_fail(HL_EUNSUPPORTED, "tensor '%s': torch has no storage of dtype %s",
                           t->name, hl_dtype_name(t->dtype));
    }
    return check_names(tensors, count);
}

HL_CHECK static hl_status lay_out(struct writer *w, const struct hl_torchzip_tensor *tensors,
                                  size_t count, const struct hl_torchzip_options *options)
{
    char name[64];
    HL_AUTO(hl_buf_fini) struct hl_buf pickle = HL_BUF(BYTES_MAX);
    HL_TRY(put_pickle(&pickle, tensors, count, options));
    if (pickle.failed)
        return hl_fail(HL_ENOMEM, "out of memory allocating a pickle of %zu tensors", count);
    put_file(w, STEM "/data.pkl", pickle.data, pickle.len);
    put_file(w, STEM "/byteorder", "little", 6);
    for (size_t i = 0; i < count; i++) {
        snprintf(name, sizeof(name), STEM "/data/%zu", i);
        put_entry(w, name, tensors[i].tensor->size, tensors[i].crc32);
        HL_TRY(flush(w));
        HL_TRY(add_segment(w, (int64_t)i, tensors[i].tensor->size, 0));
    }
    put_file(w, STEM "/version", "3\n", 2);
    put_end(w);
    if (w->z->bytes.failed || w->central.failed)
        return hl_fail(HL_ENOMEM, "out of memory allocating a zip directory of %zu tensors", count);
    return flush(w);
}

hl_status hl_torchzip_plan(const struct hl_torchzip_tensor *tensors, size_t count,
                           const struct hl_torchzip_options *options, struct hl_torchzip *out)
{
    HL_TRY(check_tensors(tensors, count));
    struct hl_torchzip z = {.bytes = HL_BUF(BYTES_MAX)};
    struct writer w = {.z = &z, .central = HL_BUF(BYTES_MAX)};
    hl_status st = lay_out(&w, tensors, count, options);
    hl_buf_fini(&w.central);
    if (st != HL_OK) {
        hl_torchzip_fini(&z);
        return st;
    }
    *out = z;
    return HL_OK;
}

void hl_torchzip_fini(struct hl_torchzip *z)
{
    free(z->segments);
    hl_buf_fini(&z->bytes);
    *z = (struct hl_torchzip){0};
}
