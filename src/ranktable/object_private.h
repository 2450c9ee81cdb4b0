/* ranktable/object_private.h - the metadata that every Kubernetes object has.
 *
 * Threads: any.
 */
#ifndef HL_RANKTABLE_OBJECT_PRIVATE_H
#define HL_RANKTABLE_OBJECT_PRIVATE_H

#include <jansson.h>

/* Borrowed; NULL if the object has none. */
static inline const json_t *object_meta(const json_t *object)
{
    return json_object_get(object, "metadata");
}

#endif
