/* hw/health/health_private.h - what the files of the health test share.
 *
 * Threads: the one that runs the test; only it adds rows.
 */
#ifndef HL_HW_HEALTH_HEALTH_PRIVATE_H
#define HL_HW_HEALTH_HEALTH_PRIVATE_H

#include "hw/health/health.h"

struct hl_health_run {
    const struct hl_health_opts *opts;
    struct hl_arena *arena;
    uint64_t deadline_ns;
    struct hl_api_health *out;
};

/* health_row.c: adds a row; value and text are copied. */
void hl_health_row(struct hl_health_run *r, const char *name, enum hl_api_health_state state,
                   const char *value, const char *text);

/* health_processors.c: rows memory and checksum */
void hl_health_processors(struct hl_health_run *r);
/* health_network.c */
void hl_health_network(struct hl_health_run *r);
/* health_script.c */
void hl_health_script(struct hl_health_run *r);

#endif
