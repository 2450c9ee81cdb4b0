/* Reading members of the API server's objects. */
#ifndef HL_CONTROLLER_KUBE_OBJECTS_PRIVATE_H
#define HL_CONTROLLER_KUBE_OBJECTS_PRIVATE_H

#include <jansson.h>

#include "base/status.h"

/* The text at a path like "metadata.name", borrowed. HL_EPROTO names the path where it is missing
 * or no text. */
hl_status object_text(const json_t *object, const char *path, const char **out) HL_CHECK;
/* The same where it may be missing: then "". */
hl_status object_text_if_any(const json_t *object, const char *path, const char **out) HL_CHECK;

#endif
