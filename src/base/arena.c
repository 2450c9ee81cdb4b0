#include "base/arena.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_SIZE ((size_t)4096)
#define ALIGNMENT  _Alignof(max_align_t)

struct hl_arena_block {
    struct hl_arena_block *older;
    size_t used;
    size_t size;
    _Alignas(max_align_t) unsigned char data[];
};

/* Adds a separate block behind the newest one, so that the newest one's remaining room is still
 * used. */
static struct hl_arena_block *arena_block_add(struct hl_arena *arena, size_t size)
{
    size_t capacity = size > BLOCK_SIZE / 2 ? size : BLOCK_SIZE;
    struct hl_arena_block *block = calloc(1, sizeof(*block) + capacity);
    if (block == NULL)
        return NULL;
    block->size = capacity;
    if (arena->newest != NULL && size > BLOCK_SIZE / 2) {
        block->older = arena->newest->older;
        arena->newest->older = block;
    } else {
        block->older = arena->newest;
        arena->newest = block;
    }
    return block;
}

void *hl_arena_alloc(struct hl_arena *arena, size_t size)
{
    struct hl_arena_block *block = arena->newest;
    if (size > SIZE_MAX - sizeof(*block) - ALIGNMENT) {
        arena->failed = true;
        return NULL;
    }
    size = size == 0 ? ALIGNMENT : (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (block == NULL || block->size - block->used < size)
        block = arena_block_add(arena, size);
    if (block == NULL) {
        arena->failed = true;
        return NULL;
    }
    void *piece = block->data + block->used;
    block->used += size;
    return piece;
}

void *hl_arena_array(struct hl_arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes)) {
        arena->failed = true;
        return NULL;
    }
    return hl_arena_alloc(arena, bytes);
}

void *hl_arena_grow(struct hl_arena *arena, void *items, size_t count, size_t size)
{
    if (count > 0 && (count & (count - 1)) != 0) /* arrays are full at 1, 2, 4, ... */
        return items;
    void *longer = hl_arena_array(arena, count > 0 ? 2 * count : 1, size);
    if (longer != NULL && count > 0)
        memcpy(longer, items, count * size);
    return longer;
}

char *hl_arena_text(struct hl_arena *arena, const char *text, size_t len)
{
    char *copy = hl_arena_alloc(arena, len + 1);
    if (copy != NULL && len > 0) /* no bytes may be at NULL */
        memcpy(copy, text, len);
    return copy;
}

char *hl_arena_strdup(struct hl_arena *arena, const char *text)
{
    return text != NULL ? hl_arena_text(arena, text, strlen(text)) : NULL;
}

char *hl_arena_printf(struct hl_arena *arena, const char *format, ...)
{
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    int len = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = len >= 0 ? hl_arena_alloc(arena, (size_t)len + 1) : NULL;
    if (text != NULL)
        vsnprintf(text, (size_t)len + 1, format, again);
    else
        arena->failed = true;
    va_end(again);
    return text;
}

void hl_arena_move(struct hl_arena *to, struct hl_arena *from)
{
    struct hl_arena_block *last = from->newest;
    if (last != NULL) {
        while (last->older != NULL)
            last = last->older;
        last->older = to->newest;
        to->newest = from->newest;
    }
    to->failed |= from->failed;
    *from = (struct hl_arena){0};
}

void hl_arena_fini(struct hl_arena *arena)
{
    while (arena->newest != NULL) {
        struct hl_arena_block *block = arena->newest;
        arena->newest = block->older;
        free(block);
    }
    *arena = (struct hl_arena){0};
}
