/* Bitmaps of servers by their number of slots that fit a job. */
#include "core/planner/view.h"

#include <stdlib.h>
#include <string.h>

enum hl_slot_fault hl_slot_fault(const struct hl_slot_needs *needs, const struct hl_slot_group *g)
{
    if (g->gpus < needs->gpus || g->cpus < needs->cpus)
        return HL_SLOT_TOO_SMALL;
    if (needs->memory_bytes != 0 && g->memory_bytes != 0 && g->memory_bytes < needs->memory_bytes)
        return HL_SLOT_TOO_SMALL;
    if (g->gpu_memory_bytes < needs->gpu_memory_bytes)
        return HL_SLOT_GPU_MEMORY;
    return g->nic < needs->nic ? HL_SLOT_NIC : HL_SLOT_FITS;
}

/* The slots of a server of the class that the view includes. */
static int class_slots(const struct hl_place_class *c, const struct hl_slot_needs *needs,
                       enum hl_view_of of)
{
    int n = 0;
    if (of == HL_VIEW_FREE && (c->state != HL_SERVER_READY || hl_class_is_reserved(c, needs)))
        return 0;
    for (int g = 0; g < c->kind->group_count; g++)
        if (hl_slot_fault(needs, &c->kind->groups[g]) == HL_SLOT_FITS)
            n += of == HL_VIEW_FREE ? c->free[g] : c->kind->groups[g].slots;
    return n;
}

static int most_slots(const struct hl_place_index *x)
{
    int most = 0;
    for (struct hl_place_kind *kind = x->kinds; kind != NULL; kind = kind->hh.next)
        most = kind->slot_count > most ? kind->slot_count : most;
    return most;
}

static uint64_t *bits_of(const struct hl_place_view *v, int k)
{
    return v->bits + (size_t)k * v->index->words;
}

hl_status hl_place_view_init(struct hl_place_view *v, const struct hl_place_index *x,
                             const struct hl_slot_needs *needs, enum hl_view_of of)
{
    *v = (struct hl_place_view){.index = x, .most = most_slots(x)};
    v->bits = calloc(((size_t)v->most + 1) * x->words, sizeof(uint64_t));
    if (v->bits == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan over %zu servers", x->count);
    for (struct hl_place_kind *kind = x->kinds; kind != NULL; kind = kind->hh.next)
        for (struct hl_place_class *c = kind->classes; c != NULL; c = c->next) {
            int k = c->servers > 0 ? class_slots(c, needs, of) : 0;
            uint64_t *to = bits_of(v, k) + kind->word;
            for (size_t w = 0; k > 0 && w < kind->words; w++)
                to[w] |= c->bits[w];
            v->slots += (long)k * c->servers;
        }
    return HL_OK;
}

hl_status hl_place_view_copy(struct hl_place_view *v, const struct hl_place_view *from)
{
    size_t len = ((size_t)from->most + 1) * from->index->words * sizeof(uint64_t);
    uint64_t *bits = malloc(len);
    if (bits == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a plan");
    memcpy(bits, from->bits, len);
    *v = *from;
    v->bits = bits;
    return HL_OK;
}

void hl_place_view_fini(struct hl_place_view *v)
{
    free(v->bits);
    *v = (struct hl_place_view){0};
}

struct hl_place_range hl_place_view_all(const struct hl_place_view *v)
{
    return (struct hl_place_range){0, (uint32_t)v->index->count};
}

/* Word w of a bitmap without the bits outside the range. */
static uint64_t word_in(const uint64_t *bits, size_t w, struct hl_place_range in)
{
    uint64_t x = bits[w];
    if (w == in.lo / 64)
        x &= ~(uint64_t)0 << in.lo % 64;
    if (w == in.hi / 64)
        x &= ((uint64_t)1 << in.hi % 64) - 1;
    return x;
}

long hl_place_view_count(const struct hl_place_view *v, int k, struct hl_place_range in)
{
    const uint64_t *bits = bits_of(v, k);
    long n = 0;
    if (in.lo >= in.hi)
        return 0;
    for (size_t w = in.lo / 64; w <= (in.hi - 1) / 64; w++)
        n += __builtin_popcountll(word_in(bits, w, in));
    return n;
}

uint32_t hl_place_view_first(const struct hl_place_view *v, int k, struct hl_place_range in)
{
    const uint64_t *bits = bits_of(v, k);
    for (size_t w = in.lo / 64; in.lo < in.hi && w <= (in.hi - 1) / 64; w++) {
        uint64_t x = word_in(bits, w, in);
        if (x != 0)
            return (uint32_t)(w * 64) + (uint32_t)__builtin_ctzll(x);
    }
    return UINT32_MAX;
}

long hl_place_view_slots(const struct hl_place_view *v, struct hl_place_range in)
{
    long n = 0;
    for (int k = 1; k <= v->most; k++)
        n += k * hl_place_view_count(v, k, in);
    return n;
}

void hl_place_view_move(struct hl_place_view *v, uint32_t pos, int k, int left)
{
    uint64_t bit = (uint64_t)1 << pos % 64;
    bits_of(v, k)[pos / 64] &= ~bit;
    if (left > 0)
        bits_of(v, left)[pos / 64] |= bit;
    v->slots -= k - left;
}
