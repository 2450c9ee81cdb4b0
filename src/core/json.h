/* core/json.h - reads members of foreign JSON objects, with defaults. Helios' own JSON is read into
 * structs of the schema (api/api.h).
 *
 * Owns:    nothing; strings are borrowed from the object; a member that was taken belongs to the
 *          caller.
 * Threads: any.
 * Errors:  none: for an absent member, or one of another type, the default is returned.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CORE_JSON_H
#define HL_CORE_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

static inline const char *hl_json_str(const json_t *obj, const char *key, const char *absent)
{
    const char *s = json_string_value(json_object_get(obj, key));
    return s != NULL ? s : absent;
}

static inline int64_t hl_json_int(const json_t *obj, const char *key, int64_t absent)
{
    const json_t *v = json_object_get(obj, key);
    return json_is_integer(v) ? (int64_t)json_integer_value(v) : absent;
}

static inline double hl_json_real(const json_t *obj, const char *key, double absent)
{
    const json_t *v = json_object_get(obj, key);
    return json_is_number(v) ? json_number_value(v) : absent;
}

static inline bool hl_json_bool(const json_t *obj, const char *key, bool absent)
{
    const json_t *v = json_object_get(obj, key);
    return json_is_boolean(v) ? json_is_true(v) : absent;
}

/* A borrowed array member; NULL if there is none (json_array_foreach accepts NULL). */
static inline json_t *hl_json_list(const json_t *obj, const char *key)
{
    json_t *v = json_object_get(obj, key);
    return json_is_array(v) ? v : NULL;
}

/* Removes the member from the object and gives it to the caller; NULL if there is none. JSON that
 * goes to another thread must be handed over completely: jansson's reference counts are atomic, but
 * the thread that drops the last reference does not synchronise with earlier writes of the
 * others. */
static inline json_t *hl_json_take(json_t *obj, const char *key)
{
    json_t *v = json_incref(json_object_get(obj, key));
    json_object_del(obj, key);
    return v;
}

#endif
