#include "kube/parse.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define DEPTH_MAX 2048
#define SHORT_MAX 18 /* a number of this many digits fits any integer */

/* The position in the text; `end` is one past its last byte. */
struct json_cursor {
    const char *at, *begin, *end;
    const struct hl_kube_members *members;
    unsigned depth;
    bool no_memory;
};

static json_t *parse_value(struct json_cursor *p);

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static void skip_space(struct json_cursor *p)
{
    while (p->at < p->end && is_space(*p->at))
        p->at++;
}

/* Skips `c` if it comes next; returns whether it did. */
static bool take_char(struct json_cursor *p, char c)
{
    skip_space(p);
    if (p->at == p->end || *p->at != c)
        return false;
    p->at++;
    return true;
}

/* Leaves rare cases to jansson, whose rules apply to all cases. */
static json_t *parse_slowly(struct json_cursor *p, const char *from)
{
    return json_loadb(from, (size_t)(p->at - from), JSON_DECODE_ANY, NULL);
}

static json_t *note_made(struct json_cursor *p, json_t *value)
{
    p->no_memory |= value == NULL;
    return value;
}

/* ---- strings --------------------------------------------------------------------------------- */

enum kind_of_string { STRING_OPEN, STRING_PLAIN, STRING_ODD };

/* Classes of a byte in a string. ODD: it does not stand for itself. STOP: it ends a run of ordinary
 * bytes. */
enum { ODD = 1, STOP = 2 };

static const uint8_t classes[256] = {
    [0 ... 0x1f] = ODD, [0x80 ... 0xff] = ODD, ['\\'] = ODD | STOP, ['"'] = STOP};

/* Skips a string, from its opening quote to after its closing one, if there is one. The inner loop
 * only depends on its counter: if the step came from the class, each byte would cost 13 cycles
 * instead of 4. */
static enum kind_of_string pass_string(struct json_cursor *p)
{
    const char *at = p->at + 1;
    unsigned seen = 0;
    while (at < p->end && *at != '"') {
        for (; at < p->end && (classes[(unsigned char)*at] & STOP) == 0; at++)
            seen |= classes[(unsigned char)*at];
        if (at < p->end && *at == '\\') {
            seen |= ODD;
            at += 2;
        }
    }
    p->at = at < p->end ? at + 1 : p->end;
    if (at >= p->end)
        return STRING_OPEN;
    return (seen & ODD) == 0 ? STRING_PLAIN : STRING_ODD;
}

/* The character that `\c` stands for; 0: left to jansson. */
static char escaped_char(char c)
{
    return c == '"' || c == '\\' || c == '/' ? c : c == 'n' ? '\n' : c == 't' ? '\t' : '\0';
}

/* Parses a closed string that is not plain; `from` is its opening quote, p->at its end. */
static json_t *parse_escaped(struct json_cursor *p, const char *from)
{
    const char *at = from + 1, *end = p->at - 1;
    char *text = malloc((size_t)(end - at) + 1), *to = text;
    if (text == NULL)
        return note_made(p, NULL);
    while (at < end) {
        unsigned char c = (unsigned char)*at++;
        *to = c != '\\' ? (char)c : escaped_char(*at++);
        if ((c != '\\' && (c < 0x20 || c >= 0x80)) || *to == '\0') {
            free(text);
            return parse_slowly(p, from);
        }
        to++;
    }
    json_t *out = note_made(p, json_stringn_nocheck(text, (size_t)(to - text)));
    free(text);
    return out;
}

static json_t *parse_string(struct json_cursor *p)
{
    const char *from = p->at;
    enum kind_of_string kind = pass_string(p);
    if (kind == STRING_PLAIN)
        return note_made(p, json_stringn_nocheck(from + 1, (size_t)(p->at - from) - 2));
    return kind == STRING_ODD ? parse_escaped(p, from) : NULL;
}

/* ---- numbers and words ----------------------------------------------------------------------- */

static json_t *parse_number(struct json_cursor *p)
{
    const char *from = p->at;
    json_int_t n = 0;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9' && p->at - from < SHORT_MAX)
        n = n * 10 + (*p->at++ - '0');
    bool done = p->at == p->end || strchr("0123456789.eE", *p->at) == NULL || *p->at == '\0';
    if (done && p->at > from && (*from != '0' || p->at - from == 1))
        return note_made(p, json_integer(n));
    while (p->at < p->end && *p->at != '\0' && strchr("+-0123456789.eE", *p->at) != NULL)
        p->at++;
    return parse_slowly(p, from);
}

static json_t *parse_word(struct json_cursor *p, const char *word, json_t *value)
{
    size_t n = strlen(word);
    if ((size_t)(p->end - p->at) < n || memcmp(p->at, word, n) != 0)
        return NULL;
    p->at += n;
    return value;
}

/* ---- lists and objects ----------------------------------------------------------------------- */

/* Parses the items between brackets into `group`. `one` parses an item; it returns false
 * if there is none, or when out of memory. */
static json_t *parse_group(struct json_cursor *p, json_t *group, char end,
                           bool (*one)(struct json_cursor *p, json_t *group))
{
    p->at++;
    if (note_made(p, group) == NULL || take_char(p, end))
        return group;
    bool ok;
    do
        ok = one(p, group);
    while (ok && take_char(p, ','));
    if (ok && take_char(p, end))
        return group;
    json_decref(group);
    return NULL;
}

static bool parse_item(struct json_cursor *p, json_t *list)
{
    json_t *value = parse_value(p);
    return value != NULL && json_array_append_new(list, value) == 0;
}

/* The members of lists, events, bookmarks and error statuses. */
static const char *const of_all[] = {
    "type",   "object",  "items",   "metadata", "resourceVersion",   "continue", "code",
    "reason", "message", "details", "status",   "retryAfterSeconds", NULL,
};

enum taken { LEFT_OUT, TAKEN, WITH_ALL };

static enum taken is_in(const char *const *names, const char *key, size_t len)
{
    for (; *names != NULL; names++) {
        const char *name = *names;
        if (name[0] == key[0] && strncmp(name, key, len) == 0 &&
            (name[len] == '\0' || (name[len] == '*' && name[len + 1] == '\0')))
            return name[len] == '*' ? WITH_ALL : TAKEN;
    }
    return LEFT_OUT;
}

static enum taken is_taken(const struct json_cursor *p, const char *key, size_t len)
{
    const struct hl_kube_members *m = p->members;
    if (m == NULL)
        return TAKEN;
    enum taken how = is_in(m->names, key, len);
    if (!m->only)
        return how == LEFT_OUT ? TAKEN : LEFT_OUT;
    return how != LEFT_OUT ? how : is_in(of_all, key, len);
}

/* ---- skipping -------------------------------------------------------------------------------- */

/* Most bytes of an object are skipped here, sixteen at a time: bit I of each mask belongs to byte
 * I. */
struct marks {
    unsigned quotes, slashes, opening, closing;
};

/* { and [ differ only in this bit, as do } and ]; setting it turns no other byte into one of
 * them. */
#define BRACKET_BIT 0x20

#ifdef __SSE2__
static struct marks marks_in(const char *at)
{
    __m128i bytes = _mm_loadu_si128((const __m128i *)(const void *)at);
    __m128i folded = _mm_or_si128(bytes, _mm_set1_epi8(BRACKET_BIT));
#define MARKS(from, c) (unsigned)_mm_movemask_epi8(_mm_cmpeq_epi8(from, _mm_set1_epi8(c)))
    return (struct marks){.quotes = MARKS(bytes, '"'),
                          .slashes = MARKS(bytes, '\\'),
                          .opening = MARKS(folded, '{'),
                          .closing = MARKS(folded, '}')};
#undef MARKS
}
#else
static struct marks marks_in(const char *at)
{
    struct marks m = {0};
    for (int i = 0; i < 16; i++) {
        m.quotes |= (unsigned)(at[i] == '"') << i;
        m.slashes |= (unsigned)(at[i] == '\\') << i;
        m.opening |= (unsigned)((at[i] | BRACKET_BIT) == '{') << i;
        m.closing |= (unsigned)((at[i] | BRACKET_BIT) == '}') << i;
    }
    return m;
}
#endif

/* The state while skipping: the depth of nested lists and objects, and whether the position is
 * within a string (all ones) or not. */
struct passing {
    int64_t depth;
    unsigned within;
};

/* Skips bytes up to `stop` or slightly beyond, or to the byte after the bracket that closes the
 * group. */
static const char *pass_bytes(const char *at, const char *stop, struct passing *s)
{
    static const int8_t steps[256] = {['{'] = 1, ['['] = 1, ['}'] = -1, [']'] = -1};
    while (at < stop && s->depth > 0) {
        char c = *at++;
        if (c == '"')
            s->within = ~s->within;
        else if (s->within == 0)
            s->depth += steps[(unsigned char)c];
        else if (c == '\\')
            at++;
    }
    return at;
}

/* Counts set bits. There are few of them, and not every processor has an instruction for that. */
static int count_marks(unsigned mask)
{
    int n = 0;
    for (; mask != 0; mask &= mask - 1)
        n++;
    return n;
}

/* The bytes with an odd number of quotes up to and including them: those within strings. */
static unsigned within_quotes(unsigned quotes)
{
    quotes ^= quotes << 1;
    quotes ^= quotes << 2;
    quotes ^= quotes << 4;
    return quotes ^ quotes << 8;
}

/* Skips a list or an object, from its opening bracket. */
static void pass_group(struct json_cursor *p)
{
    struct passing s = {.depth = 1};
    const char *at = p->at + 1;
    while (p->end - at >= 16 && s.depth > 0) {
        const struct marks m = marks_in(at);
        unsigned within = within_quotes(m.quotes) ^ s.within;
        int closing = count_marks(m.closing & ~within);
        if (m.slashes != 0 || closing >= s.depth) {
            at = pass_bytes(at, at + 16, &s);
            continue;
        }
        s.depth += count_marks(m.opening & ~within) - closing;
        s.within = (within >> 15 & 1) != 0 ? ~0u : 0;
        at += 16;
    }
    at = pass_bytes(at, p->end, &s);
    p->at = at < p->end ? at : p->end;
}

static void pass_value(struct json_cursor *p)
{
    skip_space(p);
    if (p->at < p->end && (*p->at | BRACKET_BIT) == '{')
        pass_group(p);
    while (p->at < p->end && *p->at != ',' && *p->at != '}' && *p->at != ']')
        if (*p->at == '"')
            (void)pass_string(p);
        else
            p->at++;
}

/* ---- members --------------------------------------------------------------------------------- */

static bool parse_member(struct json_cursor *p, json_t *object)
{
    skip_space(p);
    const char *from = p->at, *key = from + 1;
    if (p->at == p->end || *p->at != '"')
        return false;
    bool plain = pass_string(p) == STRING_PLAIN;
    size_t len = plain ? (size_t)(p->at - from) - 2 : 0;
    json_t *odd = plain ? NULL : parse_slowly(p, from);
    if (!plain) {
        key = json_string_value(odd);
        len = json_string_length(odd);
    }
    bool ok = key != NULL && take_char(p, ':');
    enum taken how = ok ? is_taken(p, key, len) : LEFT_OUT;
    if (ok && how == LEFT_OUT) {
        pass_value(p);
    } else if (ok) {
        const struct hl_kube_members *members = p->members;
        p->members = how == WITH_ALL ? NULL : members;
        json_t *value = parse_value(p);
        p->members = members;
        ok = value != NULL && json_object_setn_new_nocheck(object, key, len, value) == 0;
    }
    json_decref(odd);
    return ok;
}

static json_t *parse_any(struct json_cursor *p)
{
    switch (*p->at) {
    case '{':
        return parse_group(p, json_object(), '}', parse_member);
    case '[':
        return parse_group(p, json_array(), ']', parse_item);
    case '"':
        return parse_string(p);
    case 't':
        return parse_word(p, "true", json_true());
    case 'f':
        return parse_word(p, "false", json_false());
    case 'n':
        return parse_word(p, "null", json_null());
    default:
        return parse_number(p);
    }
}

static json_t *parse_value(struct json_cursor *p)
{
    skip_space(p);
    if (p->at == p->end || p->depth == DEPTH_MAX)
        return NULL;
    p->depth++;
    json_t *value = parse_any(p);
    p->depth--;
    return value;
}

hl_status hl_kube_parse(const char *text, size_t len, const struct hl_kube_members *members,
                        json_t **out)
{
    struct json_cursor p = {.at = text, .begin = text, .end = text + len, .members = members};
    json_t *value = parse_value(&p);
    skip_space(&p);
    if (p.at == p.end && (json_is_object(value) || json_is_array(value))) {
        *out = value;
        return HL_OK;
    }
    json_decref(value);
    return p.no_memory
               ? hl_fail(HL_ENOMEM, "out of memory allocating %zu bytes of JSON", len)
               : hl_fail(HL_EPROTO, "no JSON at byte %zu of %zu", (size_t)(p.at - p.begin), len);
}
