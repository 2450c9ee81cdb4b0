/* base/arena.h - memory that is freed all at once: a decoded message, an answer under construction.
 *
 * Owns:    its blocks, until hl_arena_fini.
 * Threads: one at a time; an arena may be handed from one thread to another.
 * Errors:  NULL when out of memory, and the arena remembers it (hl_arena_failed): code that builds
 *          a large value may check once, at the end.
 * Units:   bytes.
 * Limits:  none; a block is at least 4 KiB, a large piece gets a block of its own.
 */
#ifndef HL_BASE_ARENA_H
#define HL_BASE_ARENA_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct hl_arena_block;

/* A zeroed struct is an empty arena. */
struct hl_arena {
    struct hl_arena_block *newest;
    bool failed;
};

/* Zeroed memory, aligned for any type. A size of 0 gives a valid pointer. */
void *hl_arena_alloc(struct hl_arena *arena, size_t size);
/* Like calloc: NULL also if the product overflows. */
void *hl_arena_array(struct hl_arena *arena, size_t count, size_t size);
/* Makes room for one more element behind the `count` elements of an array that only this function
 * has grown (NULL at first). A full array is copied to one of twice the size. */
void *hl_arena_grow(struct hl_arena *arena, void *items, size_t count, size_t size);
/* A NUL-terminated copy. */
char *hl_arena_text(struct hl_arena *arena, const char *text, size_t len);
/* NULL stays NULL. */
char *hl_arena_strdup(struct hl_arena *arena, const char *text);
char *hl_arena_printf(struct hl_arena *arena, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* True if an allocation from it has failed. */
static inline bool hl_arena_failed(const struct hl_arena *arena)
{
    return arena->failed;
}

/* Moves everything from `from` to `to`; `from` is empty afterwards. */
void hl_arena_move(struct hl_arena *to, struct hl_arena *from);
/* The arena is empty again and may be used. */
void hl_arena_fini(struct hl_arena *arena);

#ifdef __cplusplus
}
#endif

#endif
