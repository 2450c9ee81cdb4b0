/* base/status.h - the one status type, and the text that explains a failure.
 *
 * Owns:    nothing; the text of the last failure is a per-thread buffer.
 * Threads: any; each thread sees only its own last failure.
 * Errors:  the function that decides a failure calls hl_fail(); callers pass the status up
 *          unchanged; the edge (RPC handler, CLI, loop callback) logs or prints hl_error_text()
 *          once.
 * Units:   none.
 * Limits:  a failure text is truncated between characters, at HL_ERROR_TEXT_MAX - 1 bytes.
 */
#ifndef HL_BASE_STATUS_H
#define HL_BASE_STATUS_H

#include <stdbool.h>
#include <stddef.h>

#define HL_ERROR_TEXT_MAX 1024

/* Values are stable: they travel in RPC errors and are the C ABI's error codes. */
/* clang-format off */
#define HL_STATUS_MAP(X)                                                \
    X(OK,            0, "ok")                                           \
    X(EINVAL,       -1, "invalid input")                                \
    X(ENOENT,       -2, "not found")                                    \
    X(EEXIST,       -3, "already exists")                               \
    X(ENOMEM,       -4, "out of memory")                                \
    X(ENOSPC,       -5, "no space left")                                \
    X(EIO,          -6, "input/output error")                           \
    X(ECORRUPT,     -7, "checksum mismatch")                            \
    X(ETIMEDOUT,    -8, "deadline passed")                              \
    X(EUNAVAIL,     -9, "peer unavailable")                             \
    X(EBUSY,       -10, "busy")                                         \
    X(ESTALE,      -11, "stale")                                        \
    X(ECANCELED,   -12, "cancelled")                                    \
    X(EPERM,       -13, "not permitted")                                \
    X(EPROTO,      -14, "protocol violation")                           \
    X(EUNSUPPORTED,-15, "not supported")                                \
    X(ECONFLICT,   -16, "conflict")                                     \
    X(EINTERNAL,   -17, "internal error")

/* clang-format on */

typedef enum hl_status {

#define X(name, value, text) HL_##name = (value),
    HL_STATUS_MAP(X)
#undef X
} hl_status;

#define HL_CHECK              __attribute__((warn_unused_result))
#define HL_PRINTF(fmt, first) __attribute__((format(printf, fmt, first)))

/* Short text of a status, never NULL. */
const char *hl_status_text(hl_status st);
/* Name without prefix ("ENOENT"), never NULL. */
const char *hl_status_name(hl_status st);
/* Status with that name; HL_EINTERNAL if there is none. */
hl_status hl_status_by_name(const char *name);
/* True when the same call may succeed later without any change (EUNAVAIL, EBUSY, ETIMEDOUT,
 * ESTALE). */
bool hl_status_retryable(hl_status st);

/* Records why a call failed and returns `st`. `%m` is allowed. */
#define hl_fail(st, ...) hl_fail_at((st), __FILE__, __LINE__, __VA_ARGS__)
hl_status hl_fail_at(hl_status st, const char *file, int line, const char *fmt, ...)
    HL_PRINTF(4, 5);
/* Prepends words to the recorded text ("reading config.json: " + old) and returns `st`. */
hl_status hl_fail_prefix(hl_status st, const char *fmt, ...) HL_PRINTF(2, 3);
/* Text of this thread's last failure; "" when none. Borrowed until the next failure. */
const char *hl_error_text(void);
/* file:line where the last failure was recorded, for debug logs. */
const char *hl_error_where(void);
void hl_error_clear(void);

#define HL_TRY(expr)                                                                               \
    do {                                                                                           \
        hl_status hl_try_ = (expr);                                                                \
        if (hl_try_ != HL_OK)                                                                      \
            return hl_try_;                                                                        \
    } while (0)

/* HL_AUTO(fn) type *p = NULL;  calls fn(&p) when p leaves its scope. */
#define HL_AUTO(fn) __attribute__((cleanup(fn)))
/* Take a pointer out of an HL_AUTO local. */
#define hl_steal(pp)                                                                               \
    ({                                                                                             \
        __typeof__(*(pp)) t_ = *(pp);                                                              \
        *(pp) = NULL;                                                                              \
        t_;                                                                                        \
    })
/* Cleanup for malloc'ed pointers of any type. */
void hl_freep(void *pp);

#define HL_ARRAY_LEN(a) (sizeof(a) / sizeof((a)[0]))

#endif
