/* Runs the pickle's opcodes; a table has the handler of each. The stack holds values; marks are
 * indices into it. Everything that a pickle can grow (stack, memo, lists) grows by at most one slot
 * per byte of the pickle. */
#include "core/torch/pickle.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define VALUES_MAX   ((size_t)1 << 25)
#define NAME_MAX_LEN 512u /* of a module or a class */
#define PROTO        0x80

struct machine {
    const uint8_t *bytes;
    size_t len;
    size_t at;   /* offset of the next byte to read */
    size_t code; /* offset of the current opcode */
    struct hl_pickle_value **stack;
    size_t depth, cap;
    size_t *marks;
    size_t mark_count, mark_cap;
    struct hl_pickle_value **memo;
    size_t memo_cap;  /* number of slots; unset ones are NULL */
    size_t memo_next; /* index that MEMOIZE uses next */
    size_t values;
    bool stopped;
    struct hl_arena *arena;
};

/* A macro with the constant `status` as its value, so that the compiler sees that a failure leaves
 * outputs unset. */
#define fail_op(m, status, ...) (hl_fail(status, __VA_ARGS__), prefix_op(m, status), (status))

static void prefix_op(const struct machine *m, hl_status st)
{
    (void)hl_fail_prefix(st, "pickle, byte %zu: ", m->code);
}

/* ---- bytes ----------------------------------------------------------------------------------- */

HL_CHECK static hl_status take_bytes(struct machine *m, uint64_t n, const uint8_t **out)
{
    if (n > m->len - m->at)
        return fail_op(m, HL_EINVAL, "%" PRIu64 " bytes are needed, %zu are left: it is truncated",
                       n, m->len - m->at);
    *out = m->bytes + m->at;
    m->at += n;
    return HL_OK;
}

HL_CHECK static hl_status take_number(struct machine *m, size_t width, uint64_t *out)
{
    const uint8_t *p;
    uint64_t v = 0;
    HL_TRY(take_bytes(m, width, &p));
    memcpy(&v, p, width); /* little endian, as everything here */
    *out = v;
    return HL_OK;
}

/* The width of the count in front of a text, bytes or an integer. */
static size_t count_width(uint8_t code)
{
    switch (code) {
    case 'U':  /* SHORT_BINSTRING */
    case 'C':  /* SHORT_BINBYTES */
    case 0x8c: /* SHORT_BINUNICODE */
    case 0x8a: /* LONG1 */
        return 1;
    case 0x8d: /* BINUNICODE8 */
    case 0x8e: /* BINBYTES8 */
    case 0x96: /* BYTEARRAY8 */
        return 8;
    default:
        return 4;
    }
}

HL_CHECK static hl_status take_counted(struct machine *m, uint8_t code, struct hl_pickle_text *out)
{
    uint64_t n;
    const uint8_t *p;
    HL_TRY(take_number(m, count_width(code), &n));
    HL_TRY(take_bytes(m, n, &p));
    *out = (struct hl_pickle_text){.data = (const char *)p, .len = n};
    return HL_OK;
}

HL_CHECK static hl_status take_line(struct machine *m, struct hl_pickle_text *out)
{
    const uint8_t *p = m->bytes + m->at, *end = memchr(p, '\n', m->len - m->at);
    if (end == NULL)
        return fail_op(m, HL_EINVAL, "a name does not end: it is truncated");
    *out = (struct hl_pickle_text){.data = (const char *)p, .len = (size_t)(end - p)};
    m->at += out->len + 1;
    return HL_OK;
}

/* ---- values, stack, marks, memo -------------------------------------------------------------- */

HL_CHECK static hl_status grow_array(struct machine *m, void *array, size_t need, size_t *cap,
                                     size_t size)
{
    void **list = array;
    if (need <= *cap)
        return HL_OK;
    size_t more = *cap * 2 > need ? *cap * 2 : need + 64;
    void *p = realloc(*list, more * size);
    if (p == NULL)
        return fail_op(m, HL_ENOMEM, "out of memory allocating a table of %zu entries", more);
    memset((char *)p + *cap * size, 0, (more - *cap) * size);
    *list = p;
    *cap = more;
    return HL_OK;
}

HL_CHECK static hl_status push_value(struct machine *m, struct hl_pickle_value *v)
{
    if (m->depth == VALUES_MAX)
        return fail_op(m, HL_EINVAL, "more than %zu values on the stack", VALUES_MAX);
    HL_TRY(grow_array(m, &m->stack, m->depth + 1, &m->cap, sizeof(*m->stack)));
    m->stack[m->depth++] = v;
    return HL_OK;
}

HL_CHECK static hl_status make_value(struct machine *m, enum hl_pickle_kind kind,
                                     struct hl_pickle_value **out)
{
    if (m->values++ == VALUES_MAX)
        return fail_op(m, HL_EINVAL, "more than %zu values", VALUES_MAX);
    struct hl_pickle_value *v = hl_arena_alloc(m->arena, sizeof(*v));
    if (v == NULL)
        return fail_op(m, HL_ENOMEM, "out of memory allocating %zu values", m->values);
    v->kind = kind;
    *out = v;
    return HL_OK;
}

/* Pushes a new value. */
HL_CHECK static hl_status push_new(struct machine *m, enum hl_pickle_kind kind,
                                   struct hl_pickle_value **out)
{
    HL_TRY(make_value(m, kind, out));
    return push_value(m, *out);
}

/* No opcode can pop below the last mark. */
HL_CHECK static hl_status pop_value(struct machine *m, struct hl_pickle_value **out)
{
    size_t floor = m->mark_count > 0 ? m->marks[m->mark_count - 1] : 0;
    if (m->depth == floor)
        return fail_op(m, HL_EINVAL, "the stack is empty");
    *out = m->stack[--m->depth];
    return HL_OK;
}

/* The top value, which stays on the stack. */
HL_CHECK static hl_status top_value(struct machine *m, struct hl_pickle_value **out)
{
    HL_TRY(pop_value(m, out));
    m->depth++;
    return HL_OK;
}

/* Removes the last mark and the values above it. They are valid until the next push. */
HL_CHECK static hl_status pop_mark(struct machine *m, struct hl_pickle_value ***items,
                                   size_t *count)
{
    if (m->mark_count == 0)
        return fail_op(m, HL_EINVAL, "there is no mark");
    size_t from = m->marks[--m->mark_count];
    *items = m->stack != NULL ? m->stack + from : NULL; /* NULL: nothing was ever pushed */
    *count = m->depth - from;
    m->depth = from;
    return HL_OK;
}

HL_CHECK static hl_status add_items(struct machine *m, struct hl_pickle_items *to,
                                    struct hl_pickle_value *const *items, size_t count)
{
    size_t need = to->count + count;
    if (need > UINT32_MAX / 2)
        return fail_op(m, HL_EINVAL, "a list of %zu items", need);
    if (need > to->cap) {
        uint32_t cap = need > 2 * (size_t)to->cap ? (uint32_t)need : 2 * to->cap;
        const struct hl_pickle_value **p = hl_arena_array(m->arena, cap, sizeof(*p));
        if (p == NULL)
            return fail_op(m, HL_ENOMEM, "out of memory allocating a list of %u items", cap);
        if (to->count > 0)
            memcpy(p, to->at, to->count * sizeof(*p));
        to->at = p;
        to->cap = cap;
    }
    for (size_t i = 0; i < count; i++)
        to->at[to->count++] = items[i];
    return HL_OK;
}

/* ---- plain values ---------------------------------------------------------------------------- */

HL_CHECK static hl_status op_constant(struct machine *m, uint8_t code)
{
    struct hl_pickle_value *v;
    HL_TRY(push_new(m, code == 'N' ? HL_PICKLE_NONE : HL_PICKLE_BOOL, &v));
    v->integer = code == 0x88;
    return HL_OK;
}

HL_CHECK static hl_status op_int(struct machine *m, uint8_t code)
{
    uint64_t n;
    struct hl_pickle_value *v;
    HL_TRY(take_number(m, code == 'K' ? 1 : code == 'M' ? 2 : 4, &n));
    HL_TRY(push_new(m, HL_PICKLE_INT, &v));
    v->integer = code == 'J' ? (int32_t)n : (int64_t)n;
    return HL_OK;
}

/* LONG1 and LONG4: two's complement of any size. */
HL_CHECK static hl_status op_long(struct machine *m, uint8_t code)
{
    struct hl_pickle_text t;
    struct hl_pickle_value *v;
    HL_TRY(take_counted(m, code, &t));
    const uint8_t *p = (const uint8_t *)t.data;
    uint8_t sign = t.len > 0 && p[t.len - 1] >= 0x80 ? 0xff : 0;
    while (t.len > 8 && p[t.len - 1] == sign && (p[t.len - 2] ^ sign) < 0x80)
        t.len--;
    if (t.len > 8) {
        HL_TRY(push_new(m, HL_PICKLE_BIG, &v));
        v->text = t;
        return HL_OK;
    }
    uint64_t n = sign != 0 ? UINT64_MAX : 0;
    if (t.len > 0)
        memcpy(&n, p, t.len);
    HL_TRY(push_new(m, HL_PICKLE_INT, &v));
    v->integer = (int64_t)n;
    return HL_OK;
}

HL_CHECK static hl_status op_float(struct machine *m, uint8_t code __attribute__((unused)))
{
    uint64_t bits;
    struct hl_pickle_value *v;
    HL_TRY(take_number(m, 8, &bits));
    bits = __builtin_bswap64(bits);
    HL_TRY(push_new(m, HL_PICKLE_FLOAT, &v));
    memcpy(&v->real, &bits, sizeof(bits));
    return HL_OK;
}

HL_CHECK static hl_status op_text(struct machine *m, uint8_t code)
{
    struct hl_pickle_text t;
    struct hl_pickle_value *v;
    bool bytes = code == 'B' || code == 'C' || code == 0x8e || code == 0x96;
    HL_TRY(take_counted(m, code, &t));
    HL_TRY(push_new(m, bytes ? HL_PICKLE_BYTES : HL_PICKLE_TEXT, &v));
    v->text = t;
    return HL_OK;
}

/* ---- tuples, lists, dictionaries, sets ------------------------------------------------------- */

HL_CHECK static hl_status op_empty(struct machine *m, uint8_t code)
{
    struct hl_pickle_value *v;
    return push_new(m,
                    code == ')'   ? HL_PICKLE_TUPLE
                    : code == ']' ? HL_PICKLE_LIST
                    : code == '}' ? HL_PICKLE_DICT
                                  : HL_PICKLE_SET,
                    &v);
}

HL_CHECK static hl_status op_mark(struct machine *m, uint8_t code __attribute__((unused)))
{
    HL_TRY(grow_array(m, &m->marks, m->mark_count + 1, &m->mark_cap, sizeof(*m->marks)));
    m->marks[m->mark_count++] = m->depth;
    return HL_OK;
}

/* TUPLE1 to TUPLE3 need no mark. */
HL_CHECK static hl_status op_short_tuple(struct machine *m, uint8_t code)
{
    struct hl_pickle_value *items[3], *v;
    size_t n = code - 0x84;
    for (size_t i = n; i-- > 0;)
        HL_TRY(pop_value(m, &items[i]));
    HL_TRY(push_new(m, HL_PICKLE_TUPLE, &v));
    return add_items(m, &v->items, items, n);
}

/* TUPLE, LIST, DICT, FROZENSET: made of all values above the mark. */
HL_CHECK static hl_status op_collect(struct machine *m, uint8_t code)
{
    struct hl_pickle_value **items, *v;
    size_t n;
    HL_TRY(pop_mark(m, &items, &n));
    if (code == 'd' && n % 2 != 0)
        return fail_op(m, HL_EINVAL, "a key without a value");
    HL_TRY(make_value(m,
                      code == 't'   ? HL_PICKLE_TUPLE
                      : code == 'l' ? HL_PICKLE_LIST
                      : code == 'd' ? HL_PICKLE_DICT
                                    : HL_PICKLE_SET,
                      &v));
    HL_TRY(add_items(m, &v->items, items, n));
    return push_value(m, v);
}

/* Adds items to the value on top of the stack, for APPEND, SETITEM and ADDITEMS. */
HL_CHECK static hl_status fill_top(struct machine *m, enum hl_pickle_kind kind,
                                   struct hl_pickle_value *const *items, size_t count)
{
    struct hl_pickle_value *v;
    char what[256];
    HL_TRY(top_value(m, &v));
    if (kind == HL_PICKLE_DICT && count % 2 != 0)
        return fail_op(m, HL_EINVAL, "a key without a value");
    if (v->kind == kind)
        return add_items(m, &v->items, items, count);
    if (v->kind == HL_PICKLE_OBJECT)
        return add_items(m, kind == HL_PICKLE_DICT ? &v->object->pairs : &v->object->list, items,
                         count);
    return fail_op(m, HL_EINVAL, "items are added to %s", hl_pickle_what(v, what, sizeof(what)));
}

/* APPEND and SETITEM: one item, or a key and its value. */
HL_CHECK static hl_status op_add_one(struct machine *m, uint8_t code)
{
    struct hl_pickle_value *items[2];
    size_t n = code == 'a' ? 1 : 2;
    for (size_t i = n; i-- > 0;)
        HL_TRY(pop_value(m, &items[i]));
    return fill_top(m, code == 'a' ? HL_PICKLE_LIST : HL_PICKLE_DICT, items, n);
}

/* APPENDS, SETITEMS, ADDITEMS. The items stay readable above the end of the stack, because nothing
 * is pushed. */
HL_CHECK static hl_status op_add_many(struct machine *m, uint8_t code)
{
    struct hl_pickle_value **items;
    size_t n;
    HL_TRY(pop_mark(m, &items, &n));
    return fill_top(m,
                    code == 'e'   ? HL_PICKLE_LIST
                    : code == 'u' ? HL_PICKLE_DICT
                                  : HL_PICKLE_SET,
                    items, n);
}

/* ---- classes and objects --------------------------------------------------------------------- */

HL_CHECK static hl_status check_name(const struct machine *m, const struct hl_pickle_text *t)
{
    if (t->len == 0 || t->len > NAME_MAX_LEN)
        return fail_op(m, HL_EINVAL, "a class or module name of %zu bytes, 1 to %u are allowed",
                       t->len, NAME_MAX_LEN);
    for (size_t i = 0; i < t->len; i++)
        if ((uint8_t)t->data[i] <= 0x20 || t->data[i] == 0x7f)
            return fail_op(m, HL_EINVAL,
                           "a class or module name holds a blank or control character");
    return HL_OK;
}

HL_CHECK static hl_status push_class(struct machine *m, const struct hl_pickle_text *module,
                                     const struct hl_pickle_text *name)
{
    struct hl_pickle_value *v;
    HL_TRY(check_name(m, module));
    HL_TRY(check_name(m, name));
    HL_TRY(push_new(m, HL_PICKLE_CLASS, &v));
    char *text = hl_arena_alloc(m->arena, module->len + name->len + 2);
    if (text == NULL)
        return fail_op(m, HL_ENOMEM, "out of memory allocating the name of a class");
    memcpy(text, module->data, module->len);
    text[module->len] = '.';
    memcpy(text + module->len + 1, name->data, name->len);
    v->text = (struct hl_pickle_text){.data = text, .len = module->len + name->len + 1};
    return HL_OK;
}

HL_CHECK static hl_status op_global(struct machine *m, uint8_t code __attribute__((unused)))
{
    struct hl_pickle_text module, name;
    HL_TRY(take_line(m, &module));
    HL_TRY(take_line(m, &name));
    return push_class(m, &module, &name);
}

HL_CHECK static hl_status op_stack_global(struct machine *m, uint8_t code __attribute__((unused)))
{
    struct hl_pickle_value *module, *name;
    HL_TRY(pop_value(m, &name));
    HL_TRY(pop_value(m, &module));
    if (module->kind != HL_PICKLE_TEXT || name->kind != HL_PICKLE_TEXT)
        return fail_op(m, HL_EINVAL, "the name of a class is not text");
    return push_class(m, &module->text, &name->text);
}

HL_CHECK static hl_status push_object(struct machine *m, struct hl_pickle_value *callable,
                                      struct hl_pickle_value *args,
                                      struct hl_pickle_value *keywords)
{
    struct hl_pickle_value *v;
    char what[256];
    if (args->kind != HL_PICKLE_TUPLE || (keywords != NULL && keywords->kind != HL_PICKLE_DICT))
        return fail_op(m, HL_EINVAL, "the arguments of an object are %s",
                       hl_pickle_what(args, what, sizeof(what)));
    HL_TRY(push_new(m, HL_PICKLE_OBJECT, &v));
    v->object = hl_arena_alloc(m->arena, sizeof(*v->object));
    if (v->object == NULL)
        return fail_op(m, HL_ENOMEM, "out of memory allocating an object");
    *v->object =
        (struct hl_pickle_object){.callable = callable, .args = args, .keywords = keywords};
    return HL_OK;
}

/* REDUCE, NEWOBJ, NEWOBJ_EX: all mean "call this with these arguments". */
HL_CHECK static hl_status op_call(struct machine *m, uint8_t code)
{
    struct hl_pickle_value *callable, *args, *keywords = NULL;
    if (code == 0x92)
        HL_TRY(pop_value(m, &keywords));
    HL_TRY(pop_value(m, &args));
    HL_TRY(pop_value(m, &callable));
    return push_object(m, callable, args, keywords);
}

/* OBJ: a class and its arguments above the mark. */
HL_CHECK static hl_status op_obj(struct machine *m, uint8_t code __attribute__((unused)))
{
    struct hl_pickle_value **items, *callable, *args;
    size_t n;
    HL_TRY(pop_mark(m, &items, &n));
    if (n == 0)
        return fail_op(m, HL_EINVAL, "an object without a class");
    callable = items[0];
    HL_TRY(make_value(m, HL_PICKLE_TUPLE, &args));
    HL_TRY(add_items(m, &args->items, items + 1, n - 1));
    return push_object(m, callable, args, NULL);
}

HL_CHECK static hl_status op_build(struct machine *m, uint8_t code __attribute__((unused)))
{
    struct hl_pickle_value *state, *v;
    char what[256];
    HL_TRY(pop_value(m, &state));
    HL_TRY(top_value(m, &v));
    if (v->kind != HL_PICKLE_OBJECT || v->object->state != NULL)
        return fail_op(m, HL_EINVAL, "a state is set in %s%s",
                       hl_pickle_what(v, what, sizeof(what)),
                       v->kind == HL_PICKLE_OBJECT ? " that has one" : "");
    v->object->state = state;
    return HL_OK;
}

HL_CHECK static hl_status op_persistent(struct machine *m, uint8_t code __attribute__((unused)))
{
    struct hl_pickle_value *id, *v;
    HL_TRY(pop_value(m, &id));
    HL_TRY(push_new(m, HL_PICKLE_PERSISTENT, &v));
    v->id = id;
    return HL_OK;
}

/* ---- memo, stack, frame ---------------------------------------------------------------------- */

/* A pickler numbers memoized values consecutively, so an index above the number of bytes is
 * invalid. */
HL_CHECK static hl_status put_memo(struct machine *m, uint64_t index)
{
    struct hl_pickle_value *v;
    HL_TRY(top_value(m, &v));
    if (index >= m->len || index >= VALUES_MAX)
        return fail_op(m, HL_EINVAL, "memo %" PRIu64 " of a pickle of %zu bytes", index, m->len);
    HL_TRY(grow_array(m, &m->memo, index + 1, &m->memo_cap, sizeof(*m->memo)));
    m->memo[index] = v;
    return HL_OK;
}

HL_CHECK static hl_status op_put(struct machine *m, uint8_t code)
{
    uint64_t index;
    HL_TRY(take_number(m, code == 'q' ? 1 : 4, &index));
    return put_memo(m, index);
}

HL_CHECK static hl_status op_memoize(struct machine *m, uint8_t code __attribute__((unused)))
{
    return put_memo(m, m->memo_next++);
}

HL_CHECK static hl_status op_get(struct machine *m, uint8_t code)
{
    uint64_t index;
    HL_TRY(take_number(m, code == 'h' ? 1 : 4, &index));
    if (index >= m->memo_cap || m->memo[index] == NULL)
        return fail_op(m, HL_EINVAL, "memo %" PRIu64 " was never set", index);
    return push_value(m, m->memo[index]);
}

/* POP, POP_MARK, DUP */
HL_CHECK static hl_status op_stack(struct machine *m, uint8_t code)
{
    struct hl_pickle_value **items, *v;
    size_t n;
    if (code == '1')
        return pop_mark(m, &items, &n);
    if (code == '0')
        return pop_value(m, &v);
    HL_TRY(top_value(m, &v));
    return push_value(m, v);
}

HL_CHECK static hl_status op_frame(struct machine *m, uint8_t code __attribute__((unused)))
{
    uint64_t n;
    HL_TRY(take_number(m, 8, &n));
    if (n > m->len - m->at)
        return fail_op(m, HL_EINVAL, "a frame of %" PRIu64 " bytes, %zu are left: it is truncated",
                       n, m->len - m->at);
    return HL_OK;
}

HL_CHECK static hl_status op_proto(struct machine *m, uint8_t code __attribute__((unused)))
{
    uint64_t version;
    HL_TRY(take_number(m, 1, &version));
    if (version < 2 || version > 5)
        return fail_op(m, HL_EUNSUPPORTED,
                       "pickle protocol %" PRIu64
                       " is not supported, only 2 to 5: save it again with torch.save",
                       version);
    return HL_OK;
}

HL_CHECK static hl_status op_stop(struct machine *m, uint8_t code __attribute__((unused)))
{
    if (m->depth != 1 || m->mark_count != 0)
        return fail_op(m, HL_EINVAL, "%zu values and %zu marks are left at its end", m->depth,
                       m->mark_count);
    m->stopped = true;
    return HL_OK;
}

/* ---- the machine ----------------------------------------------------------------------------- */

static hl_status (*const handlers[256])(struct machine *m, uint8_t code) = {
    ['N'] = op_constant,      [0x88] = op_constant,    [0x89] = op_constant,
    ['K'] = op_int,           ['M'] = op_int,          ['J'] = op_int,
    [0x8a] = op_long,         [0x8b] = op_long,        ['G'] = op_float,
    ['X'] = op_text,          [0x8c] = op_text,        [0x8d] = op_text,
    ['B'] = op_text,          ['C'] = op_text,         [0x8e] = op_text,
    [0x96] = op_text,         ['U'] = op_text,         ['T'] = op_text,
    [')'] = op_empty,         [']'] = op_empty,        ['}'] = op_empty,
    [0x8f] = op_empty,        ['('] = op_mark,         [0x85] = op_short_tuple,
    [0x86] = op_short_tuple,  [0x87] = op_short_tuple, ['t'] = op_collect,
    ['l'] = op_collect,       ['d'] = op_collect,      [0x91] = op_collect,
    ['a'] = op_add_one,       ['s'] = op_add_one,      ['e'] = op_add_many,
    ['u'] = op_add_many,      [0x90] = op_add_many,    ['c'] = op_global,
    [0x93] = op_stack_global, ['R'] = op_call,         [0x81] = op_call,
    [0x92] = op_call,         ['o'] = op_obj,          ['b'] = op_build,
    ['Q'] = op_persistent,    ['q'] = op_put,          ['r'] = op_put,
    [0x94] = op_memoize,      ['h'] = op_get,          ['j'] = op_get,
    ['0'] = op_stack,         ['1'] = op_stack,        ['2'] = op_stack,
    [0x95] = op_frame,        [PROTO] = op_proto,      ['.'] = op_stop,
};

HL_CHECK static hl_status run_machine(struct machine *m)
{
    if (m->len > HL_PICKLE_BYTES_MAX)
        return hl_fail(HL_EINVAL, "a pickle of %zu bytes, at most %zu", m->len,
                       HL_PICKLE_BYTES_MAX);
    if (m->len == 0 || m->bytes[0] != PROTO)
        return hl_fail(HL_EUNSUPPORTED, "it does not begin as a pickle of protocol 2 to 5");
    while (!m->stopped) {
        if (m->at == m->len)
            return hl_fail(HL_EINVAL, "the pickle does not end within %zu bytes: it is truncated",
                           m->len);
        m->code = m->at;
        uint8_t code = m->bytes[m->at++];
        if (handlers[code] == NULL)
            return fail_op(m, HL_EUNSUPPORTED, "opcode 0x%02x is not supported", code);
        HL_TRY(handlers[code](m, code));
    }
    return HL_OK;
}

hl_status hl_pickle_parse(const void *bytes, size_t len, struct hl_pickle *out)
{
    struct hl_pickle p = {0};
    struct machine m = {.bytes = bytes, .len = len, .arena = &p.arena};
    hl_status st = run_machine(&m);
    if (st == HL_OK) {
        p.root = m.stack[0];
        p.used = m.at;
    } else {
        hl_pickle_fini(&p);
    }
    free(m.stack);
    free(m.marks);
    free(m.memo);
    if (st == HL_OK)
        *out = p;
    return st;
}

void hl_pickle_fini(struct hl_pickle *p)
{
    hl_arena_fini(&p->arena);
    *p = (struct hl_pickle){0};
}
