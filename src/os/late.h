/* os/late.h - loads a library when it is first needed.
 *
 * Most runs of a program don't need its large libraries, and loading them takes longer than the
 * rest of the start.
 *
 * Owns:    a library that was loaded stays loaded to the end of the process.
 * Threads: any; after hl_late_load the table does not change any more.
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

/* Initialiser, one per file: `list` is the X macro of the functions, `table` the struct of
 * pointers. */
#define HL_LATE(so, list, table)                                                                   \
    {                                                                                              \
        .library = (so), .names = (const char *const[]){list(HL_LATE_NAME)}, .calls = &(table),    \
        .count = sizeof(table) / sizeof(void (*)(void)), .lock = PTHREAD_MUTEX_INITIALIZER         \
    }
#define HL_LATE_NAME(name) #name,

hl_status hl_late_load(struct hl_late *late) HL_CHECK;

/* Looks up a function of an open library: `function` points to a function pointer. If there is no
 * such function, the pointer becomes NULL and the result is false. */
bool hl_late_symbol(void *library, const char *name, void *function);

#endif
