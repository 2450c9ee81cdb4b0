/* controller/kube/objects_private.h - reads members of the API server's objects.
 *
 * Threads: any; they read only what they are given.
 */
#ifndef HL_CONTROLLER_KUBE_OBJECTS_PRIVATE_H
#define HL_CONTROLLER_KUBE_OBJECTS_PRIVATE_H

#include <jansson.h>

#include "base/status.h"

/* The string at a path like "metadata.name", borrowed. HL_EPROTO names the path if it is missing or
 * not a string. */
hl_status object_text(const json_t *object, const char *path, const char **out) HL_CHECK;
/* The same, but "" if it is missing. */
hl_status object_text_if_any(const json_t *object, const char *path, const char **out) HL_CHECK;

#endif
