/* A change as records for the store. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/catalog/catalog_private.h"

void hl_records_fini(struct hl_records *r)
{
    for (size_t i = 0; i < r->count; i++)
        json_decref(r->list[i].value);
    free(r->list);
    *r = (struct hl_records){0};
}

hl_status hl_records_add(struct hl_records *r, json_t *value, const char *key_fmt, ...)
{
    if (r->count == r->cap) {
        size_t cap = r->cap == 0 ? 16 : r->cap * 2;
        struct hl_record *list = realloc(r->list, cap * sizeof(*list));
        if (list == NULL) {
            json_decref(value);
            return hl_fail(HL_ENOMEM, "out of memory allocating a change of %zu records", cap);
        }
        r->list = list;
        r->cap = cap;
    }
    struct hl_record *rec = &r->list[r->count++];
    va_list ap;
    va_start(ap, key_fmt);
    vsnprintf(rec->key, sizeof(rec->key), key_fmt, ap);
    va_end(ap);
    rec->value = value;
    return HL_OK;
}
