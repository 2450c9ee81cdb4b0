/* controller/records.h - reads the JSON of a stored record into a struct of the schema.
 *
 * Owns:    nothing; texts are copied into the arena.
 * Threads: any.
 * Errors:  HL_EINVAL names the member that is missing or of another type.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_CONTROLLER_RECORDS_H
#define HL_CONTROLLER_RECORDS_H

#include <jansson.h>

#include "api/types.h"
#include "base/arena.h"
#include "base/status.h"

/* Removes the struct's members from the object and reads them; the caller reads the rest. */
hl_status record_take(json_t *from, const struct hl_api_type *type, struct hl_arena *arena,
                      void *out) HL_CHECK;

#endif
