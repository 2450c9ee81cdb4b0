/* Expressions of the tables. Operators bind as in C; a comparison gives 0 or 1. */
#include <ctype.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "core/families/family.h"

struct parser {
    const struct hl_family_scope *scope;
    const char *text;
    const char *at;
    int depth;
};

static hl_status eval_binary(struct parser *p, int level, int64_t *out);

HL_CHECK static hl_status fail_at(const struct parser *p, const char *what)
{
    return hl_fail(HL_EINVAL, "family %s: expression '%s' at '%.20s': %s", p->scope->family->name,
                   p->text, p->at, what);
}

static void skip_spaces(struct parser *p)
{
    while (*p->at == ' ')
        p->at++;
}

int hl_family_symbol_index(const struct hl_family *family, const char *name, size_t len)
{
    for (int i = 0; family->symbols[i].name != NULL; i++)
        if (strlen(family->symbols[i].name) == len &&
            strncmp(family->symbols[i].name, name, len) == 0)
            return i;
    return -1;
}

HL_CHECK static hl_status eval_nested(const struct parser *p, const char *text, int64_t *out)
{
    struct parser inner = {.scope = p->scope, .text = text, .at = text, .depth = p->depth + 1};
    HL_TRY(eval_binary(&inner, 0, out));
    skip_spaces(&inner);
    return *inner.at == '\0' ? HL_OK : fail_at(&inner, "an operator was expected");
}

static bool list_has(const json_t *list, int64_t layer)
{
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == layer)
            return true;
    return false;
}

HL_CHECK static hl_status eval_symbol(struct parser *p, int64_t *out)
{
    const char *name = p->at;
    while (isalnum((unsigned char)*p->at) || *p->at == '_')
        p->at++;
    size_t len = (size_t)(p->at - name);
    if (len == strlen("layer") && strncmp(name, "layer", len) == 0) {
        *out = p->scope->layer;
        return HL_OK;
    }
    int i = hl_family_symbol_index(p->scope->family, name, len);
    if (i < 0) {
        p->at = name;
        return fail_at(p, "no such symbol");
    }
    const struct hl_family_symbol *s = &p->scope->family->symbols[i];
    const json_t *list =
        s->kind == HL_SYMBOL_LAYERS ? json_object_get(p->scope->config, s->field) : NULL;
    if (json_is_array(list)) {
        *out = list_has(list, p->scope->layer);
        return HL_OK;
    }
    if (s->kind == HL_SYMBOL_VALUE || s->kind == HL_SYMBOL_LAYERS)
        return eval_nested(p, s->absent, out);
    *out = p->scope->values[i];
    return HL_OK;
}

HL_CHECK static hl_status eval_unary(struct parser *p, int64_t *out)
{
    if (p->depth >= HL_FAMILY_DEPTH_MAX)
        return fail_at(p, "nested too deep");
    skip_spaces(p);
    if (*p->at == '!') {
        p->at++;
        p->depth++;
        HL_TRY(eval_unary(p, out));
        p->depth--;
        *out = !*out;
        return HL_OK;
    }
    if (*p->at == '(') {
        p->at++;
        p->depth++;
        HL_TRY(eval_binary(p, 0, out));
        p->depth--;
        skip_spaces(p);
        if (*p->at != ')')
            return fail_at(p, "')' was expected");
        p->at++;
        return HL_OK;
    }
    if (isdigit((unsigned char)*p->at)) {
        char *end;
        *out = (int64_t)strtoll(p->at, &end, 10);
        p->at = end;
        return HL_OK;
    }
    if (isalpha((unsigned char)*p->at))
        return eval_symbol(p, out);
    return fail_at(p, "a number or a symbol was expected");
}

enum op { OR, AND, EQ, NE, LE, GE, LT, GT, ADD, SUB, MUL, DIV, MOD, OP_COUNT };

/* A longer operator comes before its own prefixes. */
static const struct {
    const char *text;
    int level;
} ops[OP_COUNT] = {
    [OR] = {"||", 1}, [AND] = {"&&", 2}, [EQ] = {"==", 3}, [NE] = {"!=", 3}, [LE] = {"<=", 3},
    [GE] = {">=", 3}, [LT] = {"<", 3},   [GT] = {">", 3},  [ADD] = {"+", 4}, [SUB] = {"-", 4},
    [MUL] = {"*", 5}, [DIV] = {"/", 5},  [MOD] = {"%", 5},
};

static enum op find_op(struct parser *p)
{
    skip_spaces(p);
    for (int i = 0; i < OP_COUNT; i++)
        if (strncmp(p->at, ops[i].text, strlen(ops[i].text)) == 0)
            return (enum op)i;
    return OP_COUNT;
}

HL_CHECK static hl_status apply_op(struct parser *p, enum op op, int64_t a, int64_t b, int64_t *out)
{
    int wide = 0;
    switch (op) {
    case OR:
        *out = a || b;
        break;
    case AND:
        *out = a && b;
        break;
    case EQ:
        *out = a == b;
        break;
    case NE:
        *out = a != b;
        break;
    case LE:
        *out = a <= b;
        break;
    case GE:
        *out = a >= b;
        break;
    case LT:
        *out = a < b;
        break;
    case GT:
        *out = a > b;
        break;
    case ADD:
        wide = __builtin_add_overflow(a, b, out);
        break;
    case SUB:
        wide = __builtin_sub_overflow(a, b, out);
        break;
    case MUL:
        wide = __builtin_mul_overflow(a, b, out);
        break;
    default:
        if (b == 0 || (a == INT64_MIN && b == -1))
            return fail_at(p, "division by zero");
        *out = op == DIV ? a / b : a % b;
    }
    return wide ? fail_at(p, "the value is beyond 2^63") : HL_OK;
}

/* Evaluates operators that bind tighter than `level`, from left to right. */
HL_CHECK static hl_status eval_binary(struct parser *p, int level, int64_t *out)
{
    int64_t left, right;
    HL_TRY(eval_unary(p, &left));
    for (;;) {
        enum op op = find_op(p);
        if (op == OP_COUNT || ops[op].level <= level) {
            *out = left;
            return HL_OK;
        }
        p->at += strlen(ops[op].text);
        HL_TRY(eval_binary(p, ops[op].level, &right));
        HL_TRY(apply_op(p, op, left, right, &left));
    }
}

hl_status hl_family_eval(const struct hl_family_scope *scope, const char *expression, int64_t *out)
{
    struct parser p = {.scope = scope, .text = expression, .at = expression, .depth = -1};
    int64_t value;
    HL_TRY(eval_nested(&p, expression, &value));
    *out = value;
    return HL_OK;
}

hl_status hl_family_size(const struct hl_family_scope *scope, const char *expression,
                         uint64_t absent, uint64_t *out)
{
    int64_t value;
    *out = absent;
    if (expression == NULL)
        return HL_OK;
    HL_TRY(hl_family_eval(scope, expression, &value));
    if (value < 0)
        return hl_fail(HL_EINVAL, "family %s: expression '%s' gives %" PRId64, scope->family->name,
                       expression, value);
    *out = (uint64_t)value;
    return HL_OK;
}
