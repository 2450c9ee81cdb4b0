#include "hybridps/client/tensors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "hybridps/layout/layout.h"

static hl_status fail_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating the index of tensors");
}

const char *hl_tensor_state_name(int state)
{
    static const char *const names[] = {"FREE", "HOLD", "COMPUTE", "AFTER_FWD", "AFTER_BWD"};
    return state >= 0 && state <= HYBRIDPS_AFTER_BWD ? names[state] : "?";
}

void hl_tensors_fini(struct hl_tensors *t)
{
    for (uint32_t i = 0; i < t->count; i++)
        free(t->list[i].name);
    free(t->list);
    free(t->chunks);
    *t = (struct hl_tensors){0};
}

hl_status hl_tensors_add(struct hl_tensors *t, const char *name, int kind, uint64_t bytes,
                         uint32_t *tensor)
{
    if (kind < 0 || kind >= HYBRIDPS_KINDS)
        return hl_fail(HL_EINVAL, "tensor \"%s\": unknown kind %d", name, kind);
    if (bytes == 0 || bytes > HL_TRACE_BYTES_MAX)
        return hl_fail(HL_EINVAL, "tensor \"%s\": invalid size of %" PRIu64 " bytes", name, bytes);
    if (t->count == t->cap) {
        uint32_t cap = t->cap == 0 ? 64 : t->cap * 2;
        struct hl_tensor *list = cap > t->cap ? realloc(t->list, cap * sizeof(*list)) : NULL;
        if (list == NULL)
            return fail_memory();
        t->list = list;
        t->cap = cap;
    }
    char *copy = strdup(name);
    if (copy == NULL)
        return fail_memory();
    t->list[t->count] =
        (struct hl_tensor){.name = copy, .kind = kind, .bytes = bytes, .chunk = HL_TENSOR_NONE};
    *tensor = t->count++;
    return HL_OK;
}

/* ---- layout ---- */

static uint64_t align_bytes(uint64_t bytes)
{
    return (bytes + HL_TENSOR_ALIGN - 1) / HL_TENSOR_ALIGN * HL_TENSOR_ALIGN;
}

static uint64_t in_granules(struct hl_chunk_pool *pool, uint64_t bytes)
{
    struct hl_chunk_pool_stats s;
    hl_chunk_pool_stats(pool, &s);
    return (bytes + s.granule - 1) / s.granule * s.granule;
}

static hl_status new_chunk(struct hl_tensors *t, struct hl_chunk_pool *pool, int kind,
                           uint64_t bytes)
{
    uint32_t chunk;
    bytes = in_granules(pool, bytes);
    if (t->chunk_count == t->chunk_cap) {
        uint32_t cap = t->chunk_cap == 0 ? 64 : t->chunk_cap * 2;
        struct hl_tensor_chunk *chunks = realloc(t->chunks, cap * sizeof(*chunks));
        if (chunks == NULL)
            return fail_memory();
        t->chunks = chunks;
        t->chunk_cap = cap;
    }
    HL_TRY(hl_chunk_pool_add(pool, kind, bytes, 0, &chunk));
    t->chunks[t->chunk_count++] = (struct hl_tensor_chunk){.kind = kind, .bytes = bytes};
    return HL_OK;
}

static bool has_room(const struct hl_tensor_chunk *c, int kind, uint64_t need)
{
    return c->kind == kind && c->bytes - c->used >= need && (!c->own || c->used == 0);
}

static hl_status place_tensor(struct hl_tensors *t, struct hl_chunk_pool *pool, struct hl_tensor *x,
                              uint64_t chunk_bytes)
{
    uint64_t need = align_bytes(x->bytes);
    uint32_t c = 0;
    while (c < t->chunk_count && !has_room(&t->chunks[c], x->kind, need))
        c++;
    if (c == t->chunk_count) {
        HL_TRY(new_chunk(t, pool, x->kind, need > chunk_bytes ? need : chunk_bytes));
        t->chunks[c].own = need > chunk_bytes;
    }
    x->chunk = c;
    x->offset = t->chunks[c].used;
    t->chunks[c].used += need;
    return HL_OK;
}

/* Chooses the chunk size for the tensors that are not placed yet. */
static hl_status choose_size(const struct hl_tensors *t, struct hl_chunk_pool *pool, uint64_t most,
                             uint64_t *out)
{
    struct hl_chunk_pool_stats s;
    struct hl_layout l;
    size_t n = t->count - t->placed;
    struct hl_layout_item *items = calloc(n, sizeof(*items));
    if (items == NULL)
        return fail_memory();
    for (size_t i = 0; i < n; i++)
        items[i] = (struct hl_layout_item){.bytes = t->list[t->placed + i].bytes,
                                           .kind = (uint32_t)t->list[t->placed + i].kind};
    hl_chunk_pool_stats(pool, &s);
    struct hl_layout_options o = {
        .least = s.granule, .most = most, .granule = s.granule, .largest = 1};
    hl_status st = hl_layout_search(items, n, &o, &l);
    if (st == HL_OK)
        *out = l.chunk_bytes;
    free(items);
    return st;
}

hl_status hl_tensors_layout(struct hl_tensors *t, struct hl_chunk_pool *pool, uint64_t chunk_bytes,
                            uint64_t most)
{
    if (t->placed == t->count)
        return HL_OK;
    if (chunk_bytes == 0)
        HL_TRY(choose_size(t, pool, most, &chunk_bytes));
    else if (chunk_bytes <= INT64_MAX) /* tensors may fill all of an allocated chunk */
        chunk_bytes = in_granules(pool, chunk_bytes);
    for (uint32_t i = t->placed; i < t->count; i++) {
        hl_status st = place_tensor(t, pool, &t->list[i], chunk_bytes);
        if (st == HL_OK)
            continue;
        while (i-- > t->placed) {
            t->chunks[t->list[i].chunk].used -= align_bytes(t->list[i].bytes);
            t->list[i].chunk = HL_TENSOR_NONE;
        }
        return st;
    }
    t->placed = t->count;
    return HL_OK;
}

/* ---- allowed uses ---- */

static hl_status find_placed(const struct hl_tensors *t, uint32_t tensor,
                             const struct hl_tensor **out)
{
    if (tensor >= t->count)
        return hl_fail(HL_ENOENT, "there is no tensor %" PRIu32 "; %" PRIu32 " were registered",
                       tensor, t->count);
    if (t->list[tensor].chunk == HL_TENSOR_NONE)
        return hl_fail(HL_EINVAL, "tensor \"%s\" has no chunk yet: make a layout first",
                       t->list[tensor].name);
    *out = &t->list[tensor];
    return HL_OK;
}

static const char *place_name(int where)
{
    return where == HYBRIDPS_HOST ? "host" : "device";
}

static hl_status check_use(const struct hl_tensors *t, const hybridps_use *use)
{
    const struct hl_tensor *x = NULL;
    HL_TRY(find_placed(t, use->tensor, &x));
    if (use->where != HYBRIDPS_HOST && use->where != HYBRIDPS_DEVICE)
        return hl_fail(HL_EINVAL, "tensor \"%s\": %d is neither host nor device", x->name,
                       use->where);
    if (x->pins > 0 && x->where != use->where)
        return hl_fail(
            HL_EBUSY,
            "tensor \"%s\" is in COMPUTE on the %s and requested on the %s: release it first",
            x->name, place_name(x->where), place_name(use->where));
    if (x->marks != 0 && x->marks != (uint32_t)use->where + 1)
        return hl_fail(HL_EINVAL, "tensor \"%s\" is requested on host and device at once", x->name);
    return HL_OK;
}

hl_status hl_tensors_check_access(struct hl_tensors *t, const hybridps_use *uses, size_t n)
{
    hl_status st = HL_OK;
    size_t marked = 0;
    for (; marked < n && st == HL_OK; marked += st == HL_OK) {
        st = check_use(t, &uses[marked]);
        if (st == HL_OK)
            t->list[uses[marked].tensor].marks = (uint32_t)uses[marked].where + 1;
    }
    for (size_t i = 0; i < marked; i++)
        t->list[uses[i].tensor].marks = 0;
    return st;
}

static hl_status mark_released(struct hl_tensors *t, const uint32_t *tensors, size_t n,
                               size_t *marked)
{
    for (*marked = 0; *marked < n; (*marked)++) {
        const struct hl_tensor *x = NULL;
        HL_TRY(find_placed(t, tensors[*marked], &x));
        if (x->marks >= x->pins)
            return hl_fail(HL_EINVAL,
                           "tensor \"%s\" is released %s: it is in %s, in use %" PRIu32 " times",
                           x->name, x->pins > 0 ? "more often than accessed" : "without an access",
                           hl_tensor_state_name(x->state), x->pins);
        t->list[tensors[*marked]].marks++;
    }
    return HL_OK;
}

hl_status hl_tensors_check_release(struct hl_tensors *t, const uint32_t *tensors, size_t n,
                                   int state)
{
    size_t marked;
    if (state < HYBRIDPS_FREE || state > HYBRIDPS_AFTER_BWD || state == HYBRIDPS_COMPUTE)
        return hl_fail(HL_EINVAL,
                       "a tensor is released to HOLD, AFTER_FWD, AFTER_BWD or FREE, not to %s (%d)",
                       hl_tensor_state_name(state), state);
    hl_status st = mark_released(t, tensors, n, &marked);
    for (size_t i = 0; i < marked; i++)
        t->list[tensors[i]].marks = 0;
    return st;
}

hl_status hl_tensors_check_drop(const struct hl_tensors *t, const uint32_t *tensors, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (tensors[i] >= t->count)
            return hl_fail(HL_ENOENT, "there is no tensor %u; %u were registered",
                           (unsigned)tensors[i], (unsigned)t->count);
        if (t->list[tensors[i]].pins > 0)
            return hl_fail(HL_EBUSY, "tensor \"%s\" is in COMPUTE and can't be dropped",
                           t->list[tensors[i]].name);
    }
    return HL_OK;
}
