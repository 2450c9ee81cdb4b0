/* Writes the sentences of a report, and checks members that all formats have. */
#include <arpa/inet.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "ranktable/lint_private.h"

/* ---- sentences ------------------------------------------------------------------------------- */

/* The file's text is foreign: it must not send control characters to the terminal. */
static void make_printable(char *text)
{
    for (char *p = text; *p != '\0'; p++)
        if (iscntrl((unsigned char)*p))
            *p = '?';
}

void lint_say(struct lint *l, const char *place, const char *fmt, ...)
{
    char sentence[LINT_SENTENCE_MAX - LINT_PLACE_MAX];
    va_list args;
    if (++l->faults > HL_RANKTABLE_FAULTS_MAX)
        return;
    va_start(args, fmt);
    vsnprintf(sentence, sizeof(sentence), fmt, args);
    va_end(args);
    make_printable(sentence);
    if (hl_buf_printf(&l->text, "%s%s%s\n", place, place[0] != '\0' ? ": " : "", sentence) != HL_OK)
        l->text.failed = true;
}

/* ---- members --------------------------------------------------------------------------------- */

static bool is_there(struct lint *l, const char *place, const json_t *value, const char *key,
                     bool wanted)
{
    if (value != NULL)
        return true;
    if (wanted)
        lint_say(l, place, "%s is missing", key);
    return false;
}

const char *lint_text(struct lint *l, const char *place, const json_t *obj, const char *key,
                      bool wanted, size_t max)
{
    const json_t *value = json_object_get(obj, key);
    const char *text = json_string_value(value);
    if (!is_there(l, place, value, key, wanted))
        return NULL;
    if (text == NULL)
        lint_say(l, place, "%s is not a text: put it in quotes", key);
    else if (text[0] == '\0')
        lint_say(l, place, "%s is empty", key);
    else if (json_string_length(value) > max)
        lint_say(l, place, "%s has %zu bytes, more than %zu", key, json_string_length(value), max);
    else
        return text;
    return NULL;
}

bool lint_digits(struct lint *l, const char *place, const json_t *obj, const char *key, bool wanted,
                 uint64_t min, uint64_t max, uint64_t *out)
{
    const char *text = lint_text(l, place, obj, key, wanted, 20);
    if (text == NULL)
        return false;
    if (!hl_parse_number(text, UINT32_MAX, out))
        lint_say(l, place, "%s '%s' is not a decimal number", key, text);
    else if (*out < min || *out > max)
        lint_say(l, place, "%s is %s, not between %llu and %llu", key, text,
                 (unsigned long long)min, (unsigned long long)max);
    else
        return true;
    return false;
}

bool lint_integer(struct lint *l, const char *place, const json_t *obj, const char *key,
                  bool wanted, int64_t min, int64_t max, int64_t *out)
{
    const json_t *value = json_object_get(obj, key);
    if (!is_there(l, place, value, key, wanted))
        return false;
    *out = (int64_t)json_integer_value(value);
    if (!json_is_integer(value))
        lint_say(l, place, "%s is not a whole number: format 2.0 has it without quotes", key);
    else if (*out < min || *out > max)
        lint_say(l, place, "%s is %lld, not between %lld and %lld", key, (long long)*out,
                 (long long)min, (long long)max);
    else
        return true;
    return false;
}

const json_t *lint_list(struct lint *l, const char *place, const json_t *obj, const char *key)
{
    const json_t *list = json_object_get(obj, key);
    if (!is_there(l, place, list, key, true))
        return NULL;
    if (!json_is_array(list))
        lint_say(l, place, "%s is not a list", key);
    else if (json_array_size(list) == 0)
        lint_say(l, place, "%s is empty", key);
    else
        return list;
    return NULL;
}

bool lint_once(struct lint *l, json_t *seen, const char *place, const char *what, const char *value)
{
    const char *other = json_string_value(json_object_get(seen, value));
    if (other != NULL) {
        lint_say(l, place, "%s %.64s is also that of %s", what, value, other);
        return false;
    }
    if (json_object_set_new(seen, value, json_string(place)) != 0)
        l->text.failed = true;
    return true;
}

bool lint_is_address(const char *text, bool may_be_6)
{
    unsigned char raw[sizeof(struct in6_addr)];
    return inet_pton(AF_INET, text, raw) == 1 || (may_be_6 && inet_pton(AF_INET6, text, raw) == 1);
}
