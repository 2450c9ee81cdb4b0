#include "maco/graph/heap.h"

#include <stdlib.h>

#include "maco/graph/graph.h"

void hl_maco_heap_fini(struct hl_maco_heap *h)
{
    free(h->e);
    *h = (struct hl_maco_heap){0};
}

static int heap_entry_before(struct hl_maco_entry a, struct hl_maco_entry b)
{
    return a.key < b.key || (a.key == b.key && a.tie < b.tie);
}

hl_status hl_maco_heap_push(struct hl_maco_heap *h, uint64_t key, uint64_t tie)
{
    struct hl_maco_entry x = {key, tie};
    HL_TRY(hl_maco_grow(&h->e, &h->cap, h->n, 1, sizeof(x)));
    size_t at = h->n++;
    while (at > 0 && heap_entry_before(x, h->e[(at - 1) / 2])) {
        h->e[at] = h->e[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    h->e[at] = x;
    return HL_OK;
}

struct hl_maco_entry hl_maco_heap_pop(struct hl_maco_heap *h)
{
    struct hl_maco_entry least = h->e[0], x = h->e[--h->n];
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
