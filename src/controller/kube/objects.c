/* Reads texts from the JSON objects of the API server, by a path such as metadata.name. */
#include "controller/kube/objects_private.h"

#include <string.h>

/* The member of an object at that path; NULL: it is missing. */
static const json_t *object_find(const json_t *object, const char *path)
{
    const json_t *at = object;
    while (at != NULL) {
        size_t len = strcspn(path, ".");
        char name[64];
        snprintf(name, sizeof(name), "%.*s", (int)len, path);
        at = json_object_get(at, name);
        if (path[len] == '\0')
            break;
        path += len + 1;
    }
    return at;
}

hl_status object_text_if_any(const json_t *object, const char *path, const char **out)
{
    const json_t *v = object_find(object, path);
    if (v != NULL && !json_is_string(v))
        return hl_fail(HL_EPROTO, "object of the API server: %s is not text", path);
    *out = v != NULL ? json_string_value(v) : "";
    return HL_OK;
}

hl_status object_text(const json_t *object, const char *path, const char **out)
{
    const char *text;
    HL_TRY(object_text_if_any(object, path, &text));
    if (text[0] == '\0')
        return hl_fail(HL_EPROTO, "object of the API server: %s is missing", path);
    *out = text;
    return HL_OK;
}
