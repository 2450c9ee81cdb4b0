#include "base/heap.h"

#include <stdbool.h>
#include <stdlib.h>

void hl_heap_fini(struct hl_heap *h)
{
    free(h->e);
    *h = (struct hl_heap){0};
}

static bool heap_entry_before(struct hl_heap_entry a, struct hl_heap_entry b)
{
    return a.key < b.key || (a.key == b.key && a.tie < b.tie);
}

/* Makes room for one more. */
static hl_status heap_reserve(struct hl_heap *h)
{
    if (h->n < h->cap)
        return HL_OK;
    size_t cap = h->cap == 0 ? 64 : h->cap * 2;
    struct hl_heap_entry *e = reallocarray(h->e, cap, sizeof(*e));
    if (e == NULL)
        return hl_fail(HL_ENOMEM, "out of memory growing a heap to %zu entries", cap);
    h->e = e;
    h->cap = cap;
    return HL_OK;
}

hl_status hl_heap_push(struct hl_heap *h, uint64_t key, uint64_t tie)
{
    struct hl_heap_entry x = {key, tie};
    HL_TRY(heap_reserve(h));
    size_t at = h->n++;
    while (at > 0 && heap_entry_before(x, h->e[(at - 1) / 2])) {
        h->e[at] = h->e[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h->e[at] = x;
    return HL_OK;
}

struct hl_heap_entry hl_heap_pop(struct hl_heap *h)
{
    struct hl_heap_entry least = h->e[0], x = h->e[--h->n];
    size_t at = 0, child;
    while ((child = 2 * at + 1) < h->n) {
        child += child + 1 < h->n && heap_entry_before(h->e[child + 1], h->e[child]);
        if (!heap_entry_before(h->e[child], x))
            break;
        h->e[at] = h->e[child];
        at = child;
    }
    h->e[at] = x;
    return least;
}
