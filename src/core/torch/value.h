/* core/torch/value.h - the contents of a pickle as a tree of values, without executing it.
 *
 * A class is a name. An object is a class, or anything else that the pickle calls, plus the
 * arguments of the call; a reader that knows the class can interpret it, for all others it is
 * opaque. Values may be shared, and lists, sets, dictionaries and objects may contain themselves,
 * so a walk of the tree must limit depth and steps.
 *
 * Owns:    nothing; values live in their hl_pickle. Text borrows from the pickle's bytes.
 * Threads: any; values are immutable.
 * Errors:  HL_EINVAL names what was found instead; prefix it with the place.
 * Units:   none.
 * Limits:  2^32 items of a list.
 */
#ifndef HL_CORE_TORCH_VALUE_H
#define HL_CORE_TORCH_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum hl_pickle_kind {
    HL_PICKLE_NONE,
    HL_PICKLE_BOOL,
    HL_PICKLE_INT,
    HL_PICKLE_BIG, /* an integer beyond 64 bits */
    HL_PICKLE_FLOAT,
    HL_PICKLE_TEXT,
    HL_PICKLE_BYTES,
    HL_PICKLE_TUPLE,
    HL_PICKLE_LIST,
    HL_PICKLE_DICT,
    HL_PICKLE_SET,
    HL_PICKLE_CLASS,
    HL_PICKLE_PERSISTENT, /* refers to something outside the pickle: a storage */
    HL_PICKLE_OBJECT,
    HL_PICKLE_KIND_COUNT
};

struct hl_pickle_value;

struct hl_pickle_items {
    const struct hl_pickle_value **at; /* a dictionary's: key, value, key, value, ... */
    uint32_t count;
    uint32_t cap;
};

struct hl_pickle_text {
    const char *data;
    size_t len;
};

struct hl_pickle_object {
    const struct hl_pickle_value *callable; /* usually a class */
    const struct hl_pickle_value *args;     /* a tuple */
    const struct hl_pickle_value *keywords; /* a dictionary, or NULL */
    const struct hl_pickle_value *state;    /* what BUILD sets, or NULL */
    struct hl_pickle_items list;            /* items appended to it */
    struct hl_pickle_items pairs;           /* items set in it, as in a dictionary */
};

struct hl_pickle_value {
    enum hl_pickle_kind kind;

    union {
        int64_t integer;                  /* BOOL, INT */
        double real;                      /* FLOAT */
        struct hl_pickle_text text;       /* TEXT, BYTES; BIG: two's complement, little endian;
                                           * CLASS: "module.name", followed by a NUL */
        struct hl_pickle_items items;     /* TUPLE, LIST, SET, DICT */
        const struct hl_pickle_value *id; /* PERSISTENT */
        struct hl_pickle_object *object;  /* OBJECT */
    };
};

/* "module.name" of a class, or of an object's class; NULL for all others. */
const char *hl_pickle_class(const struct hl_pickle_value *v);
/* Whether the value is an object of that class. */
bool hl_pickle_is(const struct hl_pickle_value *v, const char *class_name);
/* "an int", "an object of class collections.Counter" into buf; returns buf. NULL is "nothing". */
const char *hl_pickle_what(const struct hl_pickle_value *v, char *buf, size_t cap);
bool hl_pickle_text_is(const struct hl_pickle_value *v, const char *text);
/* A tuple's, a list's or a torch.Size's items; NULL for all others. */
const struct hl_pickle_items *hl_pickle_sequence(const struct hl_pickle_value *v);
/* Keys and values of a dict or a collections.OrderedDict; NULL for all others. */
const struct hl_pickle_items *hl_pickle_pairs(const struct hl_pickle_value *v);
/* Finds a value in such a dictionary by a string key. Of several it is the last one, as in Python.
 * NULL: none. */
const struct hl_pickle_value *hl_pickle_find(const struct hl_pickle_value *v, const char *key);
/* An attribute that an object's state sets; NULL: none. */
const struct hl_pickle_value *hl_pickle_attribute(const struct hl_pickle_value *v,
                                                  const char *name);
hl_status hl_pickle_int(const struct hl_pickle_value *v, int64_t *out) HL_CHECK;
/* An integer >= 0. */
hl_status hl_pickle_size(const struct hl_pickle_value *v, uint64_t *out) HL_CHECK;
/* Reads the sizes in a sequence of at most `max`. */
hl_status hl_pickle_sizes(const struct hl_pickle_value *v, uint64_t *list, uint32_t max,
                          uint32_t *count) HL_CHECK;

#endif
