/* Finds tensors by the calls that would rebuild them. A tensor is
 * torch._utils._rebuild_tensor_v2(storage, offset, size, stride, ...), where storage is a
 * persistent id ('storage', class, key, device, elements). Parameters and subclasses wrap that call
 * in another one. */
#include "core/torch/tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

#define TENSORS_MAX ((size_t)1 << 18)
#define DEPTH_MAX   64
#define STEPS_MAX   ((uint64_t)1 << 22)
#define WRAPS_MAX   8 /* nested wrappers of one tensor: a parameter in a subclass in ... */
#define KEY_MAX     64

struct walker {
    struct hl_torch_tensors *out;
    bool only_tensors;
    uint64_t steps;
    int depth;
    size_t len; /* of path */
    char path[HL_TENSOR_NAME_MAX + 1];
};

/* ---- dtypes ---------------------------------------------------------------------------------- */

static const struct {
    const char *name;    /* torch.NAME */
    const char *storage; /* torch.NAMEStorage; NULL: untyped storages only */
    enum hl_dtype dtype;
} dtypes[] = {
    {"float64", "Double", HL_DTYPE_F64},     {"float32", "Float", HL_DTYPE_F32},
    {"float16", "Half", HL_DTYPE_F16},       {"bfloat16", "BFloat16", HL_DTYPE_BF16},
    {"int64", "Long", HL_DTYPE_I64},         {"int32", "Int", HL_DTYPE_I32},
    {"int16", "Short", HL_DTYPE_I16},        {"int8", "Char", HL_DTYPE_I8},
    {"uint64", NULL, HL_DTYPE_U64},          {"uint32", NULL, HL_DTYPE_U32},
    {"uint16", NULL, HL_DTYPE_U16},          {"uint8", "Byte", HL_DTYPE_U8},
    {"bool", "Bool", HL_DTYPE_BOOL},         {"float8_e4m3fn", NULL, HL_DTYPE_F8_E4M3},
    {"float8_e5m2", NULL, HL_DTYPE_F8_E5M2}, {"float8_e8m0fnu", NULL, HL_DTYPE_F8_E8M0},
};

/* The name after the last dot if the first component is torch, otherwise "". */
static const char *torch_name(const char *class_name)
{
    const char *dot = class_name != NULL ? strrchr(class_name, '.') : NULL;
    return dot != NULL && strncmp(class_name, "torch.", 6) == 0 ? dot + 1 : "";
}

hl_status hl_torch_dtype(const struct hl_pickle_value *class_value, enum hl_dtype *out)
{
    char what[256];
    const char *name = torch_name(hl_pickle_class(class_value));
    for (size_t i = 0; i < HL_ARRAY_LEN(dtypes); i++) {
        size_t n = dtypes[i].storage != NULL ? strlen(dtypes[i].storage) : 0;
        if (strcmp(name, dtypes[i].name) == 0 ||
            (n > 0 && strncmp(name, dtypes[i].storage, n) == 0 &&
             strcmp(name + n, "Storage") == 0)) {
            *out = dtypes[i].dtype;
            return HL_OK;
        }
    }
    return hl_fail(HL_EUNSUPPORTED,
                   "%s is not a supported dtype: convert the tensor before you save it",
                   hl_pickle_what(class_value, what, sizeof(what)));
}

/* ---- one tensor ------------------------------------------------------------------------------ */

/* The function that rebuilds a tensor, and its arguments. */
struct rebuild {
    const char *function; /* NULL: not a tensor */
    const struct hl_pickle_items *args;
};

static bool is_tensor_class(const struct hl_pickle_value *v)
{
    static const char *const names[] = {"torch.Tensor", "torch._tensor.Tensor",
                                        "torch.nn.parameter.Parameter",
                                        "torch.nn.parameter.Buffer"};
    const char *name = hl_pickle_class(v);
    for (size_t i = 0; name != NULL && i < HL_ARRAY_LEN(names); i++)
        if (v->kind == HL_PICKLE_CLASS && strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static bool is_rebuild(const char *name)
{
    return name != NULL && (strcmp(name, "torch._utils._rebuild_tensor") == 0 ||
                            strcmp(name, "torch._utils._rebuild_tensor_v2") == 0 ||
                            strcmp(name, "torch._utils._rebuild_tensor_v3") == 0);
}

/* Unwraps parameters and subclasses down to the call that names a storage. */
static struct rebuild find_rebuild(const struct hl_pickle_value *v)
{
    const struct rebuild none = {0};
    for (int i = 0; i < WRAPS_MAX && v->kind == HL_PICKLE_OBJECT; i++) {
        const char *name = hl_pickle_class(v);
        const struct hl_pickle_items *args = &v->object->args->items;
        if (is_rebuild(name))
            return (struct rebuild){.function = name, .args = args};
        if (name == NULL || args->count == 0)
            return none;
        if (strcmp(name, "torch._tensor._rebuild_from_type_v2") == 0 && args->count >= 3) {
            const char *function = hl_pickle_class(args->at[0]);
            if (!is_tensor_class(args->at[1]) || !is_rebuild(function) ||
                args->at[0]->kind != HL_PICKLE_CLASS || args->at[2]->kind != HL_PICKLE_TUPLE)
                return none;
            return (struct rebuild){.function = function, .args = &args->at[2]->items};
        }
        if (strcmp(name, "torch._utils._rebuild_parameter") != 0 &&
            strcmp(name, "torch._utils._rebuild_parameter_with_state") != 0)
            return none;
        v = args->at[0];
    }
    return none;
}

/* Copies a storage's key. It becomes the name of a zip entry, so it must be a plain name. */
HL_CHECK static hl_status copy_key(struct hl_arena *arena, const struct hl_pickle_value *v,
                                   const char **out)
{
    bool good = v->kind == HL_PICKLE_TEXT && v->text.len > 0 && v->text.len <= KEY_MAX;
    for (size_t i = 0; good && i < v->text.len; i++)
        good = (uint8_t)v->text.data[i] > 0x20 && v->text.data[i] != '/' && v->text.data[i] != 0x7f;
    if (!good)
        return hl_fail(HL_EINVAL, "the key of its storage is not a plain name of 1 to %d bytes",
                       KEY_MAX);
    *out = hl_arena_text(arena, v->text.data, v->text.len);
    return *out != NULL ? HL_OK
                        : hl_fail(HL_ENOMEM, "out of memory allocating the key of a storage");
}

/* Reads dtype, key and size of the storage. dtype: the one that a v3 call names, otherwise NULL. */
HL_CHECK static hl_status read_storage(struct hl_torch_tensors *out,
                                       const struct hl_pickle_value *v,
                                       const struct hl_pickle_value *dtype,
                                       struct hl_torch_tensor *t)
{
    char what[256];
    if (v->kind != HL_PICKLE_PERSISTENT)
        return hl_fail(HL_EUNSUPPORTED, "its storage is %s: save it again with torch.save",
                       hl_pickle_what(v, what, sizeof(what)));
    const struct hl_pickle_items *id = v->id->kind == HL_PICKLE_TUPLE ? &v->id->items : NULL;
    if (id == NULL || id->count < 5 || !hl_pickle_text_is(id->at[0], "storage") ||
        id->at[1]->kind != HL_PICKLE_CLASS)
        return hl_fail(HL_EINVAL, "its storage is not ('storage', class, key, device, elements)");
    if (id->count > 5 && id->at[5]->kind != HL_PICKLE_NONE)
        return hl_fail(HL_EUNSUPPORTED, "its storage is a part of another one, as torch before 0.4 "
                                        "wrote it: save it again with a newer torch");
    const char *storage = torch_name(hl_pickle_class(id->at[1]));
    bool bytes = strcmp(storage, "UntypedStorage") == 0 || strcmp(storage, "_UntypedStorage") == 0;
    if (dtype == NULL && bytes)
        return hl_fail(HL_EINVAL, "its storage has no dtype");
    HL_TRY(hl_torch_dtype(dtype != NULL ? dtype : id->at[1], &t->tensor.dtype));
    enum hl_dtype element = HL_DTYPE_U8;
    if (!bytes)
        HL_TRY(hl_torch_dtype(id->at[1], &element));
    HL_TRY(hl_pickle_size(id->at[4], &t->storage_elements));
    if (__builtin_mul_overflow(t->storage_elements, hl_dtype_size(element), &t->storage_size))
        return hl_fail(HL_EINVAL, "its storage is beyond 64 bits");
    return copy_key(&out->arena, id->at[2], &t->storage);
}

/* Converts offset and size to bytes, and checks that the last element is inside the storage. */
HL_CHECK static hl_status place_tensor(struct hl_torch_tensor *t, uint64_t offset)
{
    uint64_t last = offset, dense = 1, end;
    bool overflow = false, empty = false;
    t->contiguous = true;
    for (uint32_t i = t->tensor.rank; i-- > 0;) {
        uint64_t n = t->tensor.shape[i], reach;
        empty |= n == 0;
        if (n < 2)
            continue;
        t->contiguous &= t->stride[i] == dense;
        overflow |= __builtin_mul_overflow(n - 1, t->stride[i], &reach);
        overflow |= __builtin_add_overflow(last, reach, &last);
        overflow |= __builtin_mul_overflow(dense, n, &dense);
    }
    HL_TRY(hl_tensor_bytes(&t->tensor, &t->tensor.size));
    uint64_t width = hl_dtype_size(t->tensor.dtype);
    overflow |= __builtin_mul_overflow(offset, width, &t->tensor.offset);
    if (empty) {
        t->contiguous = true;
        t->tensor.offset = 0;
        return HL_OK;
    }
    overflow |= __builtin_add_overflow(last, 1, &end) || __builtin_mul_overflow(end, width, &end);
    if (overflow || end > t->storage_size)
        return hl_fail(HL_EINVAL,
                       "element %" PRIu64 " is its last one, its storage '%s' has %" PRIu64
                       " bytes",
                       last, t->storage, t->storage_size);
    return HL_OK;
}

/* Metadata marks lazy views: the tensor's values are not those in its storage. */
HL_CHECK static hl_status check_metadata(const struct hl_pickle_value *v)
{
    char what[256];
    const struct hl_pickle_items *pairs = hl_pickle_pairs(v);
    if (pairs == NULL && v->kind != HL_PICKLE_NONE)
        return hl_fail(HL_EUNSUPPORTED, "its metadata is %s, not a dict: save it again",
                       hl_pickle_what(v, what, sizeof(what)));
    for (uint32_t i = 0; pairs != NULL && i + 1 < pairs->count; i += 2) {
        const struct hl_pickle_value *key = pairs->at[i], *flag = pairs->at[i + 1];
        if (flag->kind == HL_PICKLE_BOOL && flag->integer == 0)
            continue;
        int len = key->kind == HL_PICKLE_TEXT && key->text.len < 64 ? (int)key->text.len : 0;
        return hl_fail(HL_EUNSUPPORTED,
                       "it has metadata '%.*s', as a lazily negated or conjugated view has: save "
                       "its .resolve_conj().resolve_neg() instead",
                       len, len > 0 ? key->text.data : "");
    }
    return HL_OK;
}

HL_CHECK static hl_status read_tensor(struct hl_torch_tensors *out, const struct rebuild *call,
                                      struct hl_torch_tensor *t)
{
    uint64_t offset;
    uint32_t strides;
    bool v3 = strcmp(call->function, "torch._utils._rebuild_tensor_v3") == 0;
    const struct hl_pickle_items *args = call->args;
    if (args->count < (v3 ? 7 : 4))
        return hl_fail(HL_EINVAL, "%s has only %u arguments", call->function, args->count);
    for (uint32_t i = v3 ? 7 : 6; i < args->count; i++)
        HL_TRY(check_metadata(args->at[i]));
    HL_TRY(read_storage(out, args->at[0], v3 ? args->at[6] : NULL, t));
    HL_TRY(hl_pickle_size(args->at[1], &offset));
    HL_TRY(hl_pickle_sizes(args->at[2], t->tensor.shape, HL_TENSOR_RANK_MAX, &t->tensor.rank));
    HL_TRY(hl_pickle_sizes(args->at[3], t->stride, HL_TENSOR_RANK_MAX, &strides));
    if (strides != t->tensor.rank)
        return hl_fail(HL_EINVAL, "it has %u dimensions and %u strides", t->tensor.rank, strides);
    return place_tensor(t, offset);
}

HL_CHECK static hl_status grow_list(struct hl_torch_tensors *out)
{
    if (out->count < out->cap)
        return HL_OK;
    if (out->count >= TENSORS_MAX)
        return hl_fail(HL_EINVAL, "more than %zu tensors", TENSORS_MAX);
    size_t cap = out->cap == 0 ? 64 : out->cap * 2;
    struct hl_torch_tensor *list = realloc(out->list, cap * sizeof(*list));
    if (list == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a table of %zu tensors", cap);
    out->list = list;
    out->cap = cap;
    return HL_OK;
}

HL_CHECK static hl_status add_tensor(struct walker *w, const struct rebuild *call)
{
    struct hl_torch_tensor t = {.tied_to = -1};
    HL_TRY(grow_list(w->out));
    t.tensor.name = hl_arena_text(&w->out->arena, w->path, w->len);
    if (t.tensor.name == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the name of a tensor");
    hl_status st = read_tensor(w->out, call, &t);
    if (st != HL_OK)
        return hl_fail_prefix(st, "tensor '%s': ", t.tensor.name);
    w->out->list[w->out->count++] = t;
    return HL_OK;
}

/* ---- the tree -------------------------------------------------------------------------------- */

HL_CHECK static hl_status count_step(struct walker *w)
{
    if (w->depth > DEPTH_MAX)
        return hl_fail(HL_EUNSUPPORTED, "'%s' is nested deeper than %d levels", w->path, DEPTH_MAX);
    if (w->steps++ == STEPS_MAX)
        return hl_fail(HL_EUNSUPPORTED, "'%s': values refer to each other too often to be listed",
                       w->path);
    return HL_OK;
}

HL_CHECK static hl_status find_storage(struct walker *w, const struct hl_pickle_value *v,
                                       bool *found);

HL_CHECK static hl_status find_in_items(struct walker *w, const struct hl_pickle_items *items,
                                        bool *found)
{
    for (uint32_t i = 0; i < items->count && !*found; i++)
        HL_TRY(find_storage(w, items->at[i], found));
    return HL_OK;
}

HL_CHECK static hl_status find_in_object(struct walker *w, const struct hl_pickle_object *o,
                                         bool *found)
{
    const struct hl_pickle_value *const parts[] = {o->callable, o->args, o->keywords, o->state};
    for (size_t i = 0; i < HL_ARRAY_LEN(parts) && !*found; i++)
        if (parts[i] != NULL)
            HL_TRY(find_storage(w, parts[i], found));
    HL_TRY(find_in_items(w, &o->list, found));
    return find_in_items(w, &o->pairs, found);
}

/* Sets *found when anything below `v` is a storage. */
HL_CHECK static hl_status find_storage(struct walker *w, const struct hl_pickle_value *v,
                                       bool *found)
{
    hl_status st = HL_OK;
    HL_TRY(count_step(w));
    w->depth++;
    if (v->kind == HL_PICKLE_PERSISTENT)
        *found = true;
    else if (v->kind == HL_PICKLE_OBJECT)
        st = find_in_object(w, v->object, found);
    else if (v->kind == HL_PICKLE_TUPLE || v->kind == HL_PICKLE_LIST || v->kind == HL_PICKLE_SET ||
             v->kind == HL_PICKLE_DICT)
        st = find_in_items(w, &v->items, found);
    w->depth--;
    return st;
}

/* Skips a value that is neither a tensor nor a container. One that contains a storage hides a
 * tensor and is refused. */
HL_CHECK static hl_status pass_by(struct walker *w, const struct hl_pickle_value *v)
{
    char what[256];
    bool storage = false;
    HL_TRY(find_storage(w, v, &storage));
    if (storage)
        return hl_fail(
            HL_EUNSUPPORTED,
            "'%s' is %s, which holds tensor data but is not a plain tensor: save a state "
            "dict of dense tensors",
            w->path, hl_pickle_what(v, what, sizeof(what)));
    if (w->only_tensors)
        return hl_fail(HL_EINVAL, "'%s' is %s, not a tensor: remove it and save again", w->path,
                       hl_pickle_what(v, what, sizeof(what)));
    return HL_OK;
}

/* Appends a name to the path. Names are shown in errors and listings, so their length is limited
 * and control characters are refused. */
HL_CHECK static hl_status enter_name(struct walker *w, const char *name, size_t len)
{
    size_t dot = w->len > 0 ? 1 : 0;
    if (len + dot > HL_TENSOR_NAME_MAX - w->len)
        return hl_fail(HL_EINVAL, "'%.100s': a name below it is longer than %d bytes", w->path,
                       HL_TENSOR_NAME_MAX);
    if (hl_ascii_has_control(name, len))
        return hl_fail(HL_EINVAL, "'%s': a name below it holds a control character", w->path);
    if (dot != 0)
        w->path[w->len++] = '.';
    if (len > 0)
        memcpy(w->path + w->len, name, len);
    w->len += len;
    w->path[w->len] = '\0';
    if (!hl_utf8_valid(w->path))
        return hl_fail(HL_EINVAL, "a name below '%.*s' is not UTF-8", (int)(w->len - len), w->path);
    return HL_OK;
}

HL_CHECK static hl_status walk_value(struct walker *w, const struct hl_pickle_value *v);

HL_CHECK static hl_status walk_member(struct walker *w, const char *name, size_t len,
                                      const struct hl_pickle_value *v)
{
    size_t before = w->len;
    HL_TRY(enter_name(w, name, len));
    w->depth++;
    HL_TRY(walk_value(w, v));
    w->depth--;
    w->len = before;
    w->path[before] = '\0';
    return HL_OK;
}

HL_CHECK static hl_status walk_pairs(struct walker *w, const struct hl_pickle_items *pairs)
{
    for (uint32_t i = 0; i + 1 < pairs->count; i += 2) {
        const struct hl_pickle_value *key = pairs->at[i];
        char number[24];
        int n;
        if (key->kind == HL_PICKLE_TEXT) {
            HL_TRY(walk_member(w, key->text.data, key->text.len, pairs->at[i + 1]));
        } else if (key->kind == HL_PICKLE_INT) {
            n = snprintf(number, sizeof(number), "%" PRId64, key->integer);
            HL_TRY(walk_member(w, number, (size_t)n, pairs->at[i + 1]));
        } else {
            HL_TRY(pass_by(w, pairs->at[i + 1])); /* a tensor below it has no name: refused */
        }
    }
    return HL_OK;
}

HL_CHECK static hl_status walk_items(struct walker *w, const struct hl_pickle_items *items)
{
    for (uint32_t i = 0; i < items->count; i++) {
        char number[24];
        int n = snprintf(number, sizeof(number), "%u", i);
        HL_TRY(walk_member(w, number, (size_t)n, items->at[i]));
    }
    return HL_OK;
}

HL_CHECK static hl_status walk_value(struct walker *w, const struct hl_pickle_value *v)
{
    HL_TRY(count_step(w));
    struct rebuild call = find_rebuild(v);
    if (call.function != NULL)
        return add_tensor(w, &call);
    const struct hl_pickle_items *pairs = hl_pickle_pairs(v);
    if (pairs != NULL)
        return walk_pairs(w, pairs);
    if (v->kind == HL_PICKLE_TUPLE || v->kind == HL_PICKLE_LIST)
        return walk_items(w, &v->items);
    return pass_by(w, v);
}

hl_status hl_torch_tensors_add(struct hl_torch_tensors *out, const struct hl_pickle_value *root,
                               const struct hl_torch_walk *walk)
{
    struct walker w = {.out = out, .only_tensors = walk->only_tensors};
    if (walk->prefix != NULL)
        HL_TRY(enter_name(&w, walk->prefix, strlen(walk->prefix)));
    return walk_value(&w, root);
}

/* ---- ties and names -------------------------------------------------------------------------- */

static int by_name(const void *a, const void *b)
{
    const struct hl_torch_tensor *const *x = a, *const *y = b;
    return strcmp((*x)->tensor.name, (*y)->tensor.name);
}

/* Compares what tied tensors have in common. */
static int compare_bytes(const struct hl_torch_tensor *x, const struct hl_torch_tensor *y)
{
    int order = strcmp(x->storage, y->storage);
    if (order != 0)
        return order;
    if (x->tensor.offset != y->tensor.offset)
        return x->tensor.offset < y->tensor.offset ? -1 : 1;
    if (x->tensor.dtype != y->tensor.dtype)
        return x->tensor.dtype < y->tensor.dtype ? -1 : 1;
    if (x->tensor.rank != y->tensor.rank)
        return x->tensor.rank < y->tensor.rank ? -1 : 1;
    order = memcmp(x->tensor.shape, y->tensor.shape, sizeof(x->tensor.shape));
    return order != 0 ? order : memcmp(x->stride, y->stride, sizeof(x->stride));
}

/* Sorts tied tensors together, in the order of the list, so that the first one leads its group. */
static int by_bytes(const void *a, const void *b)
{
    const struct hl_torch_tensor *x = *(const struct hl_torch_tensor *const *)a;
    const struct hl_torch_tensor *y = *(const struct hl_torch_tensor *const *)b;
    int order = compare_bytes(x, y);
    return order != 0 ? order : (x > y) - (x < y);
}

hl_status hl_torch_tensors_finish(struct hl_torch_tensors *tensors)
{
    HL_AUTO(hl_freep)
    struct hl_torch_tensor **order = calloc(tensors->count + 1, sizeof(struct hl_torch_tensor *));
    if (order == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating an index of %zu tensors",
                       tensors->count);
    for (size_t i = 0; i < tensors->count; i++)
        order[i] = &tensors->list[i];
    qsort(order, tensors->count, sizeof(struct hl_torch_tensor *), by_name);
    for (size_t i = 1; i < tensors->count; i++)
        if (strcmp(order[i - 1]->tensor.name, order[i]->tensor.name) == 0)
            return hl_fail(HL_EINVAL, "tensor '%s' appears twice", order[i]->tensor.name);
    qsort(order, tensors->count, sizeof(struct hl_torch_tensor *), by_bytes);
    for (size_t i = 0, first = 0; i < tensors->count; i++) {
        if (compare_bytes(order[first], order[i]) != 0 || order[i]->tensor.size == 0)
            first = i;
        order[i]->tied_to = first == i ? -1 : order[first] - tensors->list;
    }
    return HL_OK;
}

void hl_torch_tensors_fini(struct hl_torch_tensors *tensors)
{
    free(tensors->list);
    hl_arena_fini(&tensors->arena);
    *tensors = (struct hl_torch_tensors){0};
}
