/* support/fault.h - what a test has shown, for the fault matrix (tests/net/matrix.py).
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  none; the matrix reports a name that is not a path or fault of it.
 * Units:   nanoseconds, printed as milliseconds.
 * Limits:  call it after the last assertion that the claim depends on.
 */
#ifndef HL_TESTS_FAULT_H
#define HL_TESTS_FAULT_H

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

/* Flushed: tests fork, and a child must not print it again. */
static inline void fault_shown(const char *path, const char *fault, const char *result)
{
    printf("FAULT path=%s fault=%s result=%s\n", path, fault, result);
    fflush(stdout);
}

/* The same for how fast a fault is noticed; the time goes to the log, for people to read. */
__attribute__((unused)) static void fault_noticed(const char *path, const char *fault,
                                                  const char *result, uint64_t ns)
{
    printf("noticed path=%s fault=%s ms=%" PRIu64 " bar=1000\n", path, fault, ns / 1000000);
    fault_shown(path, fault, result);
}

#endif
