/* Converts the schema's structs to and from JSON: for `-o json`, files and the Controller's
 * store. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "api/api.h"
#include "base/base64.h"
#include "base/utf8.h"

#define PATH_MAX_TEXT 256

/* The position in a document: a chain on the stack, from which a text is only made for an error. */
struct json_path {
    const struct json_path *up;
    const char *name; /* NULL: an element of a list */
    size_t index;
    int depth;
    bool any_member; /* at the top: unknown members are ignored */
};

static size_t path_format(const struct json_path *path, char *out, size_t size)
{
    if (path->up == NULL)
        return 0;
    size_t len = path_format(path->up, out, size);
    if (len >= size)
        return len;
    int n = path->name == NULL
                ? snprintf(out + len, size - len, "[%zu]", path->index)
                : snprintf(out + len, size - len, "%s%.80s", len > 0 ? "." : "", path->name);
    return len + (n > 0 ? (size_t)n : 0);
}

static hl_status path_fail(const struct json_path *path, const char *what)
{
    char where[PATH_MAX_TEXT] = "";
    path_format(path, where, sizeof(where));
    return where[0] == '\0' ? hl_fail(HL_EINVAL, "%s", what)
                            : hl_fail(HL_EINVAL, "field %s: %s", where, what);
}

static const char *json_kind(const json_t *v)
{
    if (v == NULL)
        return "nothing";
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "text";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a real number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    default:
        return "null";
    }
}

static hl_status path_expected(const struct json_path *path, const char *what, const json_t *found)
{
    char text[96];
    snprintf(text, sizeof(text), "expected %s, found %s", what, json_kind(found));
    return path_fail(path, text);
}

/* ---- to JSON ---- */

/* `shown`: in the form for people. */
static json_t *fields_to_json(const struct hl_api_type *type, size_t first, bool shown,
                              const char *value);

static json_t *data_to_json(const char *value)
{
    struct hl_api_data data;
    memcpy(&data, value, sizeof(data));
    struct hl_buf text = HL_BUF(SIZE_MAX);
    json_t *json = NULL;
    if (hl_base64_encode(data.bytes, data.size, &text) == HL_OK)
        json = json_stringn(text.data != NULL ? text.data : "", text.len);
    hl_buf_fini(&text);
    return json;
}

/* JSON can only hold text: bytes that are not UTF-8 are shown as U+FFFD. */
static json_t *text_to_json(const char *value)
{
    const char *text;
    memcpy(&text, value, sizeof(text));
    if (text == NULL)
        return json_string("");
    json_t *json = json_string(text);
    if (json != NULL)
        return json;
    struct hl_arena arena = {0};
    char *clean = hl_utf8_clean(&arena, text, strlen(text));
    json = clean != NULL ? json_string(clean) : NULL;
    hl_arena_fini(&arena);
    return json;
}

#define NUMBER(type, make)                                                                         \
    {                                                                                              \
        type number;                                                                               \
        memcpy(&number, value, sizeof(number));                                                    \
        return make;                                                                               \
    }

/* A NUL is an ordinary character here. */
static json_t *bytes_to_text(struct hl_api_data data)
{
    json_t *json = json_stringn(data.size > 0 ? data.bytes : "", data.size);
    if (json != NULL)
        return json;
    struct hl_arena arena = {0};
    char *text = hl_arena_text(&arena, data.bytes, data.size);
    for (size_t i = 0; text != NULL && i < data.size; i++)
        if ((unsigned char)text[i] >= 0x80)
            text[i] = '?';
    json = text != NULL ? json_stringn(text, data.size) : NULL;
    hl_arena_fini(&arena);
    return json;
}

/* NULL: the field has no other form for people, or its content is invalid. */
static json_t *element_to_shown(const struct hl_api_field *field, const char *value)
{
    if (field->shown == HL_API_SHOWN_HEX && field->kind == HL_API_UINT32)
        NUMBER(uint32_t, json_sprintf("%08" PRIx32, number))
    if (field->shown == HL_API_SHOWN_JSON && field->kind == HL_API_TEXT)
        NUMBER(const char *, json_loads(number != NULL ? number : "", JSON_DECODE_ANY, NULL))
    if (field->shown == HL_API_SHOWN_TEXT && field->kind == HL_API_DATA)
        NUMBER(struct hl_api_data, bytes_to_text(number))
    return NULL;
}

static json_t *element_to_json(const struct hl_api_field *field, bool shown, const char *value)
{
    json_t *other = shown ? element_to_shown(field, value) : NULL;
    if (other != NULL)
        return other;
    switch (field->kind) {
    case HL_API_BOOL:
        NUMBER(bool, json_boolean(number))
    case HL_API_INT32:
        NUMBER(int32_t, json_integer(number))
    case HL_API_INT64:
        NUMBER(int64_t, json_integer(number))
    case HL_API_UINT16:
        NUMBER(uint16_t, json_integer(number))
    case HL_API_UINT32:
        NUMBER(uint32_t, json_integer(number))
    case HL_API_UINT64: /* jansson's integers end at 2^63-1; byte counts never reach that */
        NUMBER(uint64_t, json_integer(number > INT64_MAX ? INT64_MAX : (json_int_t)number))
    case HL_API_FLOAT64:
        NUMBER(double, isfinite(number) ? json_real(number) : json_null())
    case HL_API_ENUM:
        NUMBER(int, json_string(hl_api_enum_word(field->words, number)))
    case HL_API_TEXT:
        return text_to_json(value);
    case HL_API_DATA:
        return data_to_json(value);
    case HL_API_STRUCT:
        return fields_to_json(field->type, 0, shown, value);
    }
    return NULL;
}

static json_t *list_to_json(const struct hl_api_field *field, bool shown, const char *value)
{
    struct hl_api_list list;
    size_t size = hl_api_element_size(field);
    json_t *array = json_array();
    memcpy(&list, value, sizeof(list));
    for (size_t i = 0; i < list.count && array != NULL; i++) {
        if (json_array_append_new(
                array, element_to_json(field, shown, (const char *)list.items + i * size)) != 0) {
            json_decref(array);
            array = NULL;
        }
    }
    return array;
}

/* The field is unset: it has its default. */
static bool field_is_unsaid(const struct hl_api_field *field, const char *value)
{
    struct hl_api_list list;
    if (field->list) {
        memcpy(&list, value, sizeof(list));
        return list.count == 0;
    }
    switch (field->kind) {
    case HL_API_BOOL:
        NUMBER(bool, number == (field->preset != 0))
    case HL_API_INT32:
        NUMBER(int32_t, number == field->preset)
    case HL_API_INT64:
        NUMBER(int64_t, number == field->preset)
    case HL_API_UINT16:
        NUMBER(uint16_t, number == field->preset)
    case HL_API_UINT32:
        NUMBER(uint32_t, number == field->preset)
    case HL_API_UINT64:
        NUMBER(uint64_t, number == (uint64_t)field->preset)
    case HL_API_FLOAT64:
        NUMBER(double, fpclassify(number) == FP_ZERO)
    case HL_API_ENUM:
        NUMBER(int, number == field->preset)
    case HL_API_TEXT:
        NUMBER(const char *, number == NULL || (!field->optional && number[0] == '\0'))
    case HL_API_DATA:
        NUMBER(struct hl_api_data, number.size == 0)
    case HL_API_STRUCT:
        for (size_t i = 0; i < field->type->field_count; i++)
            if (!field_is_unsaid(&field->type->fields[i], value + field->type->fields[i].offset))
                return false;
        return true;
    }
    return false;
}

static json_t *map_to_json(const struct hl_api_field *field, bool shown, const char *value);

static json_t *value_to_json(const struct hl_api_field *field, bool shown, const char *value)
{
    if (field->map)
        return map_to_json(field, shown, value);
    if (field->list)
        return list_to_json(field, shown, value);
    return field->nullable && field_is_unsaid(field, value) ? json_null()
                                                            : element_to_json(field, shown, value);
}

/* Adds the elements as members of the object; false: out of memory. */
static bool map_add_members(const struct hl_api_field *field, bool shown, const char *value,
                            json_t *object)
{
    const struct hl_api_type *type = field->type;
    struct hl_api_list list;
    memcpy(&list, value, sizeof(list));
    for (size_t i = 0; i < list.count; i++) {
        const char *element = (const char *)list.items + i * type->size, *key;
        memcpy(&key, element + type->fields[0].offset, sizeof(key));
        json_t *v = type->field_count == 2
                        ? value_to_json(&type->fields[1], shown, element + type->fields[1].offset)
                        : fields_to_json(type, 1, shown, element);
        if (json_object_set_new(object, key != NULL ? key : "", v) != 0)
            return false;
    }
    return true;
}

static json_t *map_to_json(const struct hl_api_field *field, bool shown, const char *value)
{
    json_t *object = json_object();
    if (object != NULL && !map_add_members(field, shown, value, object)) {
        json_decref(object);
        object = NULL;
    }
    return object;
}

static bool field_is_left_out(const struct hl_api_field *field, bool shown, const char *value)
{
    if (shown && field->shown == HL_API_SHOWN_JSON)
        NUMBER(const char *, number == NULL || number[0] == '\0')
    return field->optional && field_is_unsaid(field, value);
}

/* Adds the field's member or members; false: out of memory. */
static bool field_add(const struct hl_api_field *field, bool shown, const char *value,
                      json_t *object)
{
    if (field->rest)
        return map_add_members(field, shown, value, object);
    if (field->flatten)
        return json_object_update_new(object, fields_to_json(field->type, 0, shown, value)) == 0;
    return json_object_set_new(object, field->name, value_to_json(field, shown, value)) == 0;
}

/* Makes an object of the fields from number `first` on. */
static json_t *fields_to_json(const struct hl_api_type *type, size_t first, bool shown,
                              const char *value)
{
    json_t *object = json_object();
    for (size_t i = first; i < type->field_count && object != NULL; i++) {
        const struct hl_api_field *field = &type->fields[i];
        const char *at = value + field->offset;
        if (!field_is_left_out(field, shown, at) && !field_add(field, shown, at, object)) {
            json_decref(object);
            object = NULL;
        }
    }
    return object;
}

json_t *hl_api_to_json(const struct hl_api_type *type, const void *value)
{
    return fields_to_json(type, 0, false, value);
}

json_t *hl_api_show(const struct hl_api_type *type, const void *value)
{
    return fields_to_json(type, 0, true, value);
}

/* ---- from JSON ---- */

static hl_status fields_from_json(const struct hl_api_type *type, size_t first, const json_t *json,
                                  const struct json_path *path, struct hl_arena *arena, char *to);
static hl_status map_from_json(const struct hl_api_field *field, const json_t *json,
                               const struct hl_api_type *beside, const struct json_path *path,
                               struct hl_arena *arena, char *to);

/* Converts a JSON integer to `size` bytes, if it is within the bounds. */
static hl_status integer_from_json(const json_t *json, const struct json_path *path, int64_t least,
                                   uint64_t most, size_t size, char *to)
{
    if (!json_is_integer(json))
        return path_expected(path, "an integer", json);
    int64_t number = json_integer_value(json);
    if (number < least || (number > 0 && (uint64_t)number > most)) {
        char text[128];
        snprintf(text, sizeof(text), "%" PRId64 " is outside %" PRId64 "..%" PRIu64, number, least,
                 most);
        return path_fail(path, text);
    }
    if (size == sizeof(uint16_t))
        memcpy(to, &(uint16_t){(uint16_t)number}, size);
    else if (size == sizeof(uint32_t))
        memcpy(to, &(uint32_t){(uint32_t)number}, size);
    else
        memcpy(to, &number, size);
    return HL_OK;
}

static hl_status enum_from_json(const struct hl_api_field *field, const json_t *json,
                                const struct json_path *path, char *to)
{
    const char *word = json_string_value(json);
    if (word == NULL)
        return path_expected(path, "text", json);
    int value = hl_api_enum_find(field->words, word);
    if (value < 0) {
        char text[HL_API_UNKNOWN_MAX];
        return path_fail(path, hl_api_enum_unknown(field->words, word, text));
    }
    if (field->required && word[0] == '\0')
        return path_fail(path, "missing");
    memcpy(to, &value, sizeof(value));
    return HL_OK;
}

static hl_status text_from_json(const struct hl_api_field *field, const json_t *json,
                                const struct json_path *path, struct hl_arena *arena, char *to)
{
    if (!json_is_string(json))
        return path_expected(path, field->kind == HL_API_DATA ? "base64 text" : "text", json);
    const char *text = json_string_value(json);
    size_t len = json_string_length(json);
    if (field->kind == HL_API_TEXT) {
        const char *copy = hl_arena_text(arena, text, len);
        memcpy(to, &copy, sizeof(copy));
        return copy != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory reading %s", field->name);
    }
    struct hl_buf bytes = HL_BUF(len + 1); /* with room for the final NUL */
    hl_status st = hl_base64_decode(text, &bytes);
    struct hl_api_data data = {.size = bytes.len};
    if (st == HL_OK)
        data.bytes = hl_arena_text(arena, bytes.data != NULL ? bytes.data : "", bytes.len);
    hl_buf_fini(&bytes);
    if (st != HL_OK)
        return path_fail(path, "the text is not base64");
    memcpy(to, &data, sizeof(data));
    return data.bytes != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory reading %s", field->name);
}

static hl_status element_from_json(const struct hl_api_field *field, const json_t *json,
                                   const struct json_path *path, struct hl_arena *arena, char *to)
{
    switch (field->kind) {
    case HL_API_BOOL:
        if (!json_is_boolean(json))
            return path_expected(path, "true or false", json);
        memcpy(to, &(bool){json_is_true(json)}, sizeof(bool));
        return HL_OK;
    case HL_API_INT32:
        return integer_from_json(json, path, INT32_MIN, INT32_MAX, sizeof(int32_t), to);
    case HL_API_INT64:
        return integer_from_json(json, path, INT64_MIN, INT64_MAX, sizeof(int64_t), to);
    case HL_API_UINT16:
        return integer_from_json(json, path, 0, UINT16_MAX, sizeof(uint16_t), to);
    case HL_API_UINT32:
        return integer_from_json(json, path, 0, UINT32_MAX, sizeof(uint32_t), to);
    case HL_API_UINT64:
        return integer_from_json(json, path, 0, UINT64_MAX, sizeof(uint64_t), to);
    case HL_API_FLOAT64:
        if (!json_is_number(json))
            return path_expected(path, "a number", json);
        memcpy(to, &(double){json_number_value(json)}, sizeof(double));
        return HL_OK;
    case HL_API_ENUM:
        return enum_from_json(field, json, path, to);
    case HL_API_TEXT:
    case HL_API_DATA:
        return text_from_json(field, json, path, arena, to);
    case HL_API_STRUCT:
        return fields_from_json(field->type, 0, json, path, arena, to);
    }
    return HL_OK;
}

static hl_status list_from_json(const struct hl_api_field *field, const json_t *json,
                                const struct json_path *path, struct hl_arena *arena, char *to)
{
    if (!json_is_array(json))
        return path_expected(path, "a list", json);
    struct hl_api_list list = {.count = json_array_size(json)};
    size_t size = hl_api_element_size(field);
    char *items = hl_arena_array(arena, list.count, size);
    if (items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading %s", field->name);
    for (size_t i = 0; i < list.count; i++) {
        struct json_path here = {path, NULL, i, path->depth + 1, false};
        HL_TRY(element_from_json(field, json_array_get(json, i), &here, arena, items + i * size));
    }
    list.items = items;
    memcpy(to, &list, sizeof(list));
    return HL_OK;
}

static hl_status value_from_json(const struct hl_api_field *field, const json_t *json,
                                 const struct json_path *path, struct hl_arena *arena, char *to)
{
    if (field->map)
        return map_from_json(field, json, NULL, path, arena, to);
    return field->list ? list_from_json(field, json, path, arena, to)
                       : element_from_json(field, json, path, arena, to);
}

/* Sets the value of an absent member. */
static hl_status field_preset(const struct hl_api_field *field, const struct json_path *path,
                              struct hl_arena *arena, char *to)
{
    json_t *nothing = NULL;
    hl_status st = HL_OK;
    if (field->required)
        return path_fail(path, "missing");
    if (field->list || (field->kind == HL_API_TEXT && field->optional))
        return HL_OK;
    if (field->kind == HL_API_TEXT)
        memcpy(to, &(const char *){""}, sizeof(const char *));
    else if (field->kind == HL_API_STRUCT)
        st = fields_from_json(field->type, 0, nothing = json_object(), path, arena, to);
    else if (field->kind == HL_API_BOOL)
        memcpy(to, &(bool){field->preset != 0}, sizeof(bool));
    else if (field->kind == HL_API_ENUM)
        memcpy(to, &(int){(int)field->preset}, sizeof(int));
    else if (field->preset != 0)
        st = element_from_json(field, nothing = json_integer(field->preset), path, arena, to);
    json_decref(nothing);
    return st;
}

/* -1: there is none. */
static int find_field(const struct hl_api_type *type, size_t first, const char *name)
{
    for (size_t i = first; i < type->field_count; i++)
        if (!type->fields[i].rest && strcmp(type->fields[i].name, name) == 0)
            return (int)i;
    return -1;
}

static hl_status check_members(const struct hl_api_type *type, size_t first, const json_t *json,
                               const struct json_path *path)
{
    const char *key;
    json_t *v;
    const struct json_path *top = path;
    while (top->up != NULL)
        top = top->up;
    if (top->any_member)
        return HL_OK;
    for (size_t i = first; i < type->field_count; i++)
        if (type->fields[i].rest)
            return HL_OK; /* this field takes all other members */
    json_object_foreach ((json_t *)json, key, v) {
        struct json_path here = {path, key, 0, path->depth + 1, false};
        if (find_field(type, first, key) < 0)
            return path_fail(&here, "unknown");
    }
    return HL_OK;
}

/* Reads one member of a map. */
static hl_status pair_from_json(const struct hl_api_type *type, const char *key, const json_t *json,
                                const struct json_path *path, struct hl_arena *arena, char *to)
{
    const char *copy = hl_arena_strdup(arena, key);
    if (copy == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading %s", type->name);
    HL_TRY(type->field_count == 2
               ? value_from_json(&type->fields[1], json, path, arena, to + type->fields[1].offset)
               : fields_from_json(type, 1, json, path, arena, to));
    memcpy(to + type->fields[0].offset, &copy, sizeof(copy));
    return HL_OK;
}

/* beside: the type whose own fields are in the same object; NULL: there is none. */
static hl_status map_from_json(const struct hl_api_field *field, const json_t *json,
                               const struct hl_api_type *beside, const struct json_path *path,
                               struct hl_arena *arena, char *to)
{
    if (!json_is_object(json))
        return path_expected(path, "an object", json);
    struct hl_api_list list = {0};
    char *items = hl_arena_array(arena, json_object_size(json), field->type->size);
    const char *key;
    json_t *v;
    if (items == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading %s", field->name);
    json_object_foreach ((json_t *)json, key, v) {
        struct json_path here = {path, key, 0, path->depth + 1, false};
        if (beside == NULL || find_field(beside, 0, key) < 0)
            HL_TRY(pair_from_json(field->type, key, v, &here, arena,
                                  items + list.count++ * field->type->size));
    }
    list.items = items;
    memcpy(to, &list, sizeof(list));
    return HL_OK;
}

static hl_status fields_from_json(const struct hl_api_type *type, size_t first, const json_t *json,
                                  const struct json_path *path, struct hl_arena *arena, char *to)
{
    if (path->depth > HL_API_DEPTH_MAX)
        return path_fail(path, "nested too deep");
    if (!json_is_object(json))
        return path_expected(path, "an object", json);
    HL_TRY(check_members(type, first, json, path));
    memset(to, 0, type->size);
    for (size_t i = first; i < type->field_count; i++) {
        const struct hl_api_field *field = &type->fields[i];
        struct json_path here = {path, field->name, 0, path->depth + 1, false};
        const json_t *v = json_object_get(json, field->name);
        char *at = to + field->offset;
        if (field->flatten)
            return path_fail(&here, "a document of this type can only be written");
        if (field->rest)
            HL_TRY(map_from_json(field, json, type, path, arena, at));
        else if (v == NULL || json_is_null(v))
            HL_TRY(field_preset(field, &here, arena, at));
        else
            HL_TRY(value_from_json(field, v, &here, arena, at));
    }
    return HL_OK;
}

static hl_status read_all(const struct hl_api_type *type, const json_t *json,
                          const struct json_path *top, struct hl_arena *arena, void *to)
{
    void *value = hl_arena_alloc(arena, type->size);
    if (value == NULL)
        return hl_fail(HL_ENOMEM, "out of memory reading %s", type->name);
    HL_TRY(fields_from_json(type, 0, json, top, arena, value));
    memcpy(to, value, type->size);
    return HL_OK;
}

hl_status hl_api_from_json(const struct hl_api_type *type, const json_t *json,
                           struct hl_arena *arena, void *to)
{
    return read_all(type, json, &(struct json_path){0}, arena, to);
}

hl_status hl_api_record_from_json(const struct hl_api_type *type, const json_t *json,
                                  struct hl_arena *arena, void *to)
{
    return read_all(type, json, &(struct json_path){.any_member = true}, arena, to);
}
