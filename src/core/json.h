/* core/json.h - reading members of foreign JSON objects with defaults. What is Helios' own is read
 * as structs of the schema (api/api.h).
 *
 * Owns:    nothing; texts are borrowed from the object, what is taken is the caller's.
 * Threads: any.
 * Errors:  none: an absent member or one of another type gives the default.
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

/* Borrowed array member, NULL when there is none (json_array_foreach takes NULL). */
static inline json_t *hl_json_list(const json_t *obj, const char *key)
{
    json_t *v = json_object_get(obj, key);
    return json_is_array(v) ? v : NULL;
}

/* The member, which leaves the object and is the caller's; NULL when there is none. What goes to
 * another thread goes whole: jansson's counts are atomic, but the last to count down reads nothing
 * of what the others did before. */
static inline json_t *hl_json_take(json_t *obj, const char *key)
{
    json_t *v = json_incref(json_object_get(obj, key));
    json_object_del(obj, key);
    return v;
}

#endif
