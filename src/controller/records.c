#include "controller/records.h"

hl_status record_take(json_t *from, const struct hl_api_type *type, struct hl_arena *arena,
                      void *out)
{
    json_t *own = json_object();
    hl_status st = own != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory reading a record");
    for (size_t i = 0; st == HL_OK && i < type->field_count; i++) {
        const char *name = type->fields[i].name;
        json_t *v = json_object_get(from, name);
        if (v == NULL)
            continue;
        if (json_object_set(own, name, v) != 0)
            st = hl_fail(HL_ENOMEM, "out of memory reading a record");
        json_object_del(from, name);
    }
    if (st == HL_OK)
        st = hl_api_from_json(type, own, arena, out);
    json_decref(own);
    return st;
}
