/* api/api.h - the schema's structs as C knows them, and what can be done with any of them.
 *
 * tools/gen_api.py makes api/types.h from api/v1/helios.capnp: a C struct for every struct of the
 * schema and for the parameters and results of every method, and tables that describe them. The
 * functions here are driven by these tables.
 *
 * A decoded text is never NULL, unless it is $optional and JSON had no such member. In a struct
 * that the caller fills, NULL means "". A list is an array and its count. All zero is the schema's
 * default, except where the schema gives a field a preset.
 *
 * Owns:    nothing; values live in the arena that is given, or are borrowed from their maker.
 * Threads: any; the tables are constant.
 * Errors:  HL_EINVAL (a field is unknown, missing or of the wrong type, or its enum lacks the word
 *          or number: the text has its path, such as "field containers[3].state: ..."), HL_ENOMEM.
 * Units:   as the schema names them.
 * Limits:  JSON nests at most 64 deep; it has no integers above 2^63-1.
 */
#ifndef HL_API_API_H
#define HL_API_API_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define HL_API_DEPTH_MAX 64

enum hl_api_kind {
    HL_API_BOOL,
    HL_API_INT32,
    HL_API_INT64,
    HL_API_UINT16,
    HL_API_UINT32,
    HL_API_UINT64,
    HL_API_FLOAT64,
    HL_API_TEXT, /* const char * */
    HL_API_DATA, /* struct hl_api_data */
    HL_API_ENUM, /* an enum with the words of hl_api_field.words */
    HL_API_STRUCT,
};

/* Bytes; JSON has them as base64. */
struct hl_api_data {
    const void *bytes;
    size_t size;
};

/* What every list looks like. */
struct hl_api_list {
    void *items;
    size_t count;
};

struct hl_api_type;

/* How a field is shown to people if its plain value says little to them. */
enum hl_api_shown {
    HL_API_SHOWN_PLAIN,
    HL_API_SHOWN_HEX,
    HL_API_SHOWN_JSON,
    HL_API_SHOWN_TEXT,
};

/* An enum: what JSON and people call its values, in their order. If the first word is "", it stands
 * for an absent value. */
struct hl_api_enum {
    const char *name; /* of the enum, in a message: "tier kind" */
    const char *const *words;
    size_t count;
};

struct hl_api_field {
    const char *name; /* in JSON and in messages */
    size_t offset;
    enum hl_api_kind kind; /* of the field, or of a list's elements */
    bool list;
    bool required; /* an empty or absent value is an error */
    /* Of JSON, as api/v1/helios.capnp says. */
    bool optional;
    bool map;
    bool rest;
    bool flatten;
    bool nullable;
    enum hl_api_shown shown;
    int64_t preset;
    const struct hl_api_type *type;  /* of a struct */
    const struct hl_api_enum *words; /* of an enum */
};

struct hl_api_type {
    const char *name;
    size_t size;
    const struct hl_api_field *fields; /* in the order of their ordinals */
    size_t field_count;
};

struct hl_api_method {
    const char *name;
    unsigned ordinal;
    const struct hl_api_type *params;
    const struct hl_api_type *results;
};

struct hl_api_interface {
    const char *name;
    const struct hl_api_method *methods; /* by ordinal */
    size_t method_count;
};

/* Size of an element of the field's list, or of the field itself if it is not a list. */
size_t hl_api_element_size(const struct hl_api_field *field);

/* "?" for an unknown value. */
const char *hl_api_enum_word(const struct hl_api_enum *e, int value);
/* -1: unknown. */
int hl_api_enum_find(const struct hl_api_enum *e, const char *word);
/* HL_EINVAL: "unknown tier 'L5' (expected L1, L2, L3 or L4)". The functions hl_api_X_parse of
 * api/types.h call it. */
hl_status hl_api_enum_parse(const struct hl_api_enum *e, const char *word, int *out) HL_CHECK;
#define HL_API_UNKNOWN_MAX 640
/* That sentence into out[HL_API_UNKNOWN_MAX]; returns out. */
const char *hl_api_enum_unknown(const struct hl_api_enum *e, const char *word, char *out);

/* A copy with everything in the arena. `to` is untouched on failure. */
hl_status hl_api_copy(const struct hl_api_type *type, const void *from, struct hl_arena *arena,
                      void *to) HL_CHECK;

/* A new object with every field except absent optional ones. NULL: out of memory. */
json_t *hl_api_to_json(const struct hl_api_type *type, const void *value);
/* The same for people: fields are shown as $shown says. It can't be read back. */
json_t *hl_api_show(const struct hl_api_type *type, const void *value);
/* Absent and null members get the default. `to` is untouched on failure. */
hl_status hl_api_from_json(const struct hl_api_type *type, const json_t *json,
                           struct hl_arena *arena, void *to) HL_CHECK;
/* The same for a record of a store: unknown members are skipped, because a newer release may have
 * written them. */
hl_status hl_api_record_from_json(const struct hl_api_type *type, const json_t *json,
                                  struct hl_arena *arena, void *to) HL_CHECK;

#ifdef __cplusplus
}
#endif

#endif
