/* An entry of the list is [name, dtype, shape, ranges]. In the name, '*' stands for each of the
 * first two numbers between dots. A range [a, b, c, d] means every first number a..b with every
 * second number c..d. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "core/families/logical.h"

#define NUMBERS     2
#define NUMBER_MAX  1000000
#define TENSORS_MAX ((size_t)1 << 24)
#define NAMES_MAX   ((size_t)4 << 30)

struct item {
    const struct hl_tensor *tensor;
    char *pattern;
    uint64_t number[NUMBERS];
};

/* The start of a number that stands between dots and has printf's form. */
static const char *find_number(const char *name)
{
    for (const char *at = strchr(name, '.'); at != NULL; at = strchr(at + 1, '.')) {
        size_t n = strspn(at + 1, "0123456789");
        if (n > 0 && n < 7 && at[1 + n] == '.' && (n == 1 || at[1] != '0'))
            return at + 1;
    }
    return NULL;
}

static int split_name(const char *name, struct item *out)
{
    struct hl_buf b = HL_BUF(2 * (HL_TENSOR_NAME_MAX + 1));
    for (size_t i = 0; i < NUMBERS; i++) {
        const char *at = find_number(name);
        if (at == NULL)
            break;
        char *end;
        (void)hl_buf_append(&b, name, (size_t)(at - name));
        (void)hl_buf_append(&b, "*", 1);
        out->number[i] = strtoull(at, &end, 10);
        name = end;
    }
    (void)hl_buf_append(&b, name, strlen(name) + 1);
    if (b.failed) {
        hl_buf_fini(&b);
        return -1;
    }
    out->pattern = hl_buf_take(&b);
    return 0;
}

static int order_numbers(uint64_t a, uint64_t b)
{
    return (a > b) - (a < b);
}

/* 0 = one entry can hold both. */
static int by_kind(const struct item *x, const struct item *y)
{
    const struct hl_tensor *a = x->tensor, *b = y->tensor;
    int c = strcmp(x->pattern, y->pattern);
    c = c != 0 ? c : order_numbers(a->dtype, b->dtype);
    c = c != 0 ? c : order_numbers(a->rank, b->rank);
    for (uint32_t i = 0; i < a->rank && c == 0; i++)
        c = order_numbers(a->shape[i], b->shape[i]);
    return c;
}

static int by_kind_and_number(const void *a, const void *b)
{
    const struct item *x = a, *y = b;
    int c = by_kind(x, y);
    c = c != 0 ? c : order_numbers(x->number[0], y->number[0]);
    return c != 0 ? c : order_numbers(x->number[1], y->number[1]);
}

static int64_t at_of(const json_t *range, size_t i)
{
    return (int64_t)json_integer_value(json_array_get(range, i));
}

/* Adds the second numbers a..b of the first number n, merged with those of n - 1 if they are the
 * same. */
static void add_range(json_t *ranges, int64_t n, int64_t a, int64_t b)
{
    for (size_t i = json_array_size(ranges); i-- > 0;) {
        json_t *r = json_array_get(ranges, i);
        if (at_of(r, 1) == n - 1 && at_of(r, 2) == a && at_of(r, 3) == b) {
            json_array_set_new(r, 1, json_integer(n));
            return;
        }
        if (at_of(r, 1) < n - 1)
            break;
    }
    json_array_append_new(ranges, json_pack("[I, I, I, I]", (json_int_t)n, (json_int_t)n,
                                            (json_int_t)a, (json_int_t)b));
}

/* Makes the entry of items [0, n), which are of one kind; NULL = out of memory. */
static json_t *entry_of(const struct item *items, size_t n)
{
    const struct hl_tensor *t = items->tensor;
    json_t *shape = json_array(), *ranges = json_array();
    for (uint32_t i = 0; i < t->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)t->shape[i]));
    for (size_t i = 0, end; i < n; i = end) {
        for (end = i + 1; end < n && items[end].number[0] == items[i].number[0] &&
                          items[end].number[1] == items[end - 1].number[1] + 1;
             end++)
            ;
        add_range(ranges, (int64_t)items[i].number[0], (int64_t)items[i].number[1],
                  (int64_t)items[end - 1].number[1]);
    }
    return json_pack("[s, s, o, o]", items->pattern, hl_dtype_name(t->dtype), shape, ranges);
}

json_t *hl_logical_json(const struct hl_tensor *tensors, const unsigned char *keep, size_t count)
{
    struct item *items = calloc(count + 1, sizeof(*items));
    json_t *list = json_array();
    size_t n = 0;
    int bad = items == NULL || list == NULL;
    for (size_t i = 0; i < count && !bad; i++) {
        if (!keep[i])
            continue;
        items[n].tensor = &tensors[i];
        bad = split_name(tensors[i].name, &items[n]) != 0;
        n += !bad;
    }
    if (n > 0)
        qsort(items, n, sizeof(*items), by_kind_and_number);
    for (size_t i = 0, end; i < n && !bad; i = end) {
        for (end = i + 1; end < n && by_kind(&items[i], &items[end]) == 0; end++)
            ;
        bad = json_array_append_new(list, entry_of(&items[i], end - i)) != 0;
    }
    for (size_t i = 0; i < n; i++)
        free(items[i].pattern);
    free(items);
    if (bad) {
        json_decref(list);
        return NULL;
    }
    return list;
}

/* ---- reading --------------------------------------------------------------------------------- */

struct reading {
    struct hl_buf names;
    struct hl_tensor *list;
    size_t count, cap;
};

/* Replaces the stars by the numbers. */
HL_CHECK static hl_status put_name(struct hl_buf *b, const char *pattern, const int64_t *numbers)
{
    for (size_t i = 0; i < NUMBERS; i++) {
        const char *star = strchr(pattern, '*');
        if (star == NULL)
            break;
        HL_TRY(hl_buf_printf(b, "%.*s%" PRId64, (int)(star - pattern), pattern, numbers[i]));
        pattern = star + 1;
    }
    return hl_buf_append(b, pattern, strlen(pattern) + 1);
}

/* The buffer of names moves while it grows, so names are offsets until the end. */
HL_CHECK static hl_status add_tensor(struct reading *r, const struct hl_tensor *like,
                                     const char *pattern, const int64_t *numbers)
{
    if (r->count == r->cap) {
        size_t cap = r->cap == 0 ? 256 : r->cap * 2;
        struct hl_tensor *more = cap <= TENSORS_MAX ? realloc(r->list, cap * sizeof(*more)) : NULL;
        if (more == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a list of %zu tensors", cap);
        r->list = more;
        r->cap = cap;
    }
    struct hl_tensor *t = &r->list[r->count++];
    *t = *like;
    t->name = (const char *)(uintptr_t)r->names.len;
    HL_TRY(put_name(&r->names, pattern, numbers));
    return hl_tensor_bytes(t, &t->size);
}

HL_CHECK static hl_status fail_entry(const char *pattern)
{
    return hl_fail(HL_EINVAL, "the model's config: entry '%.80s' of its tensors is malformed",
                   pattern != NULL ? pattern : "");
}

HL_CHECK static hl_status read_ranges(struct reading *r, const struct hl_tensor *like,
                                      const char *pattern, const json_t *ranges)
{
    size_t i;
    json_t *range;
    json_array_foreach (ranges, i, range) {
        int64_t a = at_of(range, 0), b = at_of(range, 1), c = at_of(range, 2), d = at_of(range, 3);
        if (json_array_size(range) != 4 || a < 0 || b > NUMBER_MAX || c < 0 || d > NUMBER_MAX)
            return fail_entry(pattern);
        for (int64_t n = a; n <= b; n++)
            for (int64_t k = c; k <= d; k++)
                HL_TRY(add_tensor(r, like, pattern, (int64_t[]){n, k}));
    }
    return HL_OK;
}

HL_CHECK static hl_status read_entry(struct reading *r, const json_t *entry)
{
    const char *pattern = json_string_value(json_array_get(entry, 0));
    const char *dtype = json_string_value(json_array_get(entry, 1));
    const json_t *shape = json_array_get(entry, 2);
    struct hl_tensor like = {.rank = (uint32_t)json_array_size(shape)};
    if (pattern == NULL || dtype == NULL || json_array_size(shape) > HL_TENSOR_RANK_MAX ||
        strlen(pattern) > HL_TENSOR_NAME_MAX)
        return fail_entry(pattern);
    HL_TRY(hl_dtype_parse(dtype, &like.dtype));
    for (uint32_t i = 0; i < like.rank; i++) {
        const json_t *n = json_array_get(shape, i);
        if (!json_is_integer(n) || json_integer_value(n) < 0)
            return fail_entry(pattern);
        like.shape[i] = (uint64_t)json_integer_value(n);
    }
    return read_ranges(r, &like, pattern, json_array_get(entry, 3));
}

hl_status hl_logical_read(const json_t *list, struct hl_logical *out)
{
    struct reading r = {.names = HL_BUF(NAMES_MAX)};
    hl_status st = HL_OK;
    for (size_t i = 0; i < json_array_size(list) && st == HL_OK; i++)
        st = read_entry(&r, json_array_get(list, i));
    if (st != HL_OK) {
        free(r.list);
        hl_buf_fini(&r.names);
        return st;
    }
    *out = (struct hl_logical){.tensors = r.list, .count = r.count, .names = hl_buf_take(&r.names)};
    for (size_t i = 0; i < out->count; i++)
        out->tensors[i].name = out->names + (uintptr_t)out->tensors[i].name;
    return HL_OK;
}
