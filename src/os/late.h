/* os/late.h - a library that is loaded when it is first needed.
 *
 * Most runs of a program need none of its large libraries, and loading them takes longer than the
 * rest of its start.
 *
 * Owns:    a library that was loaded stays loaded to the end of the process.
 * Threads: any; what hl_late_load filled in is the same for all afterwards.
 * Errors:  HL_EUNAVAIL (there is no such library, or a function is missing in it); the next call
 *          tries again.
 * Units:   none.
 * Limits:  none.
 */
#ifndef HL_OS_LATE_H
#define HL_OS_LATE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct hl_late {
    const char *library; /* "libcurl.so.4"; tools/late.py finds the names in what was linked */
    const char *const *names;
    void *calls; /* a pointer to each function, in the order of the names */
    size_t count;
    pthread_mutex_t lock; /* guards is_loaded */
    bool is_loaded;
};

/* One of a file: `list` is the X macro of the functions, of which `table` has the pointers. */
#define HL_LATE(so, list, table)                                                                   \
    {                                                                                              \
        .library = (so), .names = (const char *const[]){list(HL_LATE_NAME)}, .calls = &(table),    \
        .count = sizeof(table) / sizeof(void (*)(void)), .lock = PTHREAD_MUTEX_INITIALIZER         \
    }
#define HL_LATE_NAME(name) #name,

hl_status hl_late_load(struct hl_late *late) HL_CHECK;

/* Of a library that is open: `function` is a pointer to a pointer to a function, which is NULL and
 * the answer false where there is none of that name. */
bool hl_late_symbol(void *library, const char *name, void *function);

#endif
