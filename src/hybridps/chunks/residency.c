#include "hybridps/chunks/residency.h"

#include <stdlib.h>

enum { NEEDED_NOW, ORDINARY, TAKEN_NOW }; /* turns of victims: the highest leaves first */

/* ---- moves ---- */

hl_status hl_moves_reserve(struct hl_moves *m, size_t chunks)
{
    if (chunks <= m->cap)
        return HL_OK;
    uint32_t *out = realloc(m->out, chunks * sizeof(*out));
    m->out = out != NULL ? out : m->out;
    uint32_t *leave = realloc(m->leave, chunks * sizeof(*leave));
    m->leave = leave != NULL ? leave : m->leave;
    uint32_t *load = realloc(m->load, chunks * sizeof(*load));
    m->load = load != NULL ? load : m->load;
    struct hl_victim *candidates = realloc(m->candidates, chunks * sizeof(*candidates));
    m->candidates = candidates != NULL ? candidates : m->candidates;
    if (out == NULL || leave == NULL || load == NULL || candidates == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating moves of chunks");
    m->cap = chunks;
    return HL_OK;
}

void hl_moves_fini(struct hl_moves *m)
{
    free(m->out);
    free(m->leave);
    free(m->load);
    free(m->candidates);
    *m = (struct hl_moves){0};
}

void hl_moves_clear(struct hl_moves *m)
{
    m->out_count = m->leave_count = m->load_count = 0;
    m->load_bytes = m->host_bytes = 0;
}

static void copy_out(const struct hl_residency *r, uint32_t chunk, struct hl_moves *m)
{
    const struct hl_resident *c = &r->chunks[chunk];
    m->out[m->out_count++] = chunk;
    m->host_bytes += c->host_memory == HL_HOST_NONE ? c->bytes : 0;
}

/* A chunk that the host reads is in the list of copies already. */
static void add_leaver(const struct hl_residency *r, uint32_t chunk, struct hl_moves *m)
{
    const struct hl_resident *c = &r->chunks[chunk];
    m->leave[m->leave_count++] = chunk;
    if (!c->host && !(c->want & HL_WANT_HOST))
        copy_out(r, chunk, m);
}

/* ---- victims ---- */

static bool host_takes(const struct hl_residency *r, const struct hl_resident *c)
{
    return (c->want & HL_WANT_HOST) && (!r->copy || (c->want & HL_WRITE_HOST));
}

/* One moment can contain several accesses, the device's before the host's. */
static uint8_t turn_of(const struct hl_residency *r, const struct hl_resident *c)
{
    if (r->now > 0 && c->expected == r->now)
        return NEEDED_NOW;
    return r->now > 0 && c->host_next == r->now && c->host_takes ? TAKEN_NOW : ORDINARY;
}

static bool victim_before(const struct hl_victim *a, const struct hl_victim *b)
{
    if (a->turn != b->turn)
        return a->turn > b->turn;
    if (a->rank > b->rank || a->rank < b->rank)
        return a->rank > b->rank;
    return a->chunk < b->chunk;
}

/* Keeps the best victim at index 0, because mostly one victim is enough. */
static void add_candidate(struct hl_moves *m, size_t *count, struct hl_victim v)
{
    struct hl_victim *all = m->candidates;
    if (*count > 0 && victim_before(&v, &all[0])) {
        all[*count] = all[0];
        all[0] = v;
    } else {
        all[*count] = v;
    }
    ++*count;
}

static uint32_t take_first(struct hl_moves *m, size_t *count)
{
    struct hl_victim *all = m->candidates;
    uint32_t taken = all[0].chunk;
    all[0] = all[--*count];
    return taken;
}

/* Moves the best victim to index 0 after the previous one was taken. */
static void find_first(struct hl_moves *m, size_t count)
{
    size_t first = 0;
    for (size_t i = 1; i < count; i++)
        if (victim_before(&m->candidates[i], &m->candidates[first]))
            first = i;
    struct hl_victim found = m->candidates[first];
    m->candidates[first] = m->candidates[0];
    m->candidates[0] = found;
}

static size_t find_candidates(const struct hl_residency *r, struct hl_moves *m)
{
    size_t count = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct hl_resident *c = &r->chunks[i];
        if (!c->device || c->device_pins > 0 || (c->want & HL_WANT_DEVICE) || host_takes(r, c))
            continue;
        /* A chunk that the host reads in this moment will be clean by then. */
        bool read = (c->want & HL_WANT_HOST) || (r->now > 0 && c->host_next == r->now);
        double rank = r->rank(r->arg, i, r->now, !c->host && !read);
        add_candidate(m, &count, (struct hl_victim){rank, i, turn_of(r, c)});
    }
    return count;
}

/* `gone`: bytes that leave in any case. */
static bool make_room(const struct hl_residency *r, uint64_t gone, struct hl_moves *m)
{
    uint64_t need = r->device + m->load_bytes, target = r->avail - r->asked;
    if (need - gone <= target)
        return true;
    size_t left = find_candidates(r, m);
    while (left > 0 && (need - gone > r->avail || m->candidates[0].turn != NEEDED_NOW)) {
        uint32_t victim = take_first(m, &left);
        gone += r->chunks[victim].bytes;
        add_leaver(r, victim, m);
        if (need - gone <= target)
            return true;
        find_first(m, left);
    }
    return need - gone <= r->avail;
}

/* ---- decisions ---- */

bool hl_residency_access(const struct hl_residency *r, const uint32_t *wanted, size_t count,
                         struct hl_moves *m)
{
    uint64_t gone = 0;
    hl_moves_clear(m);
    for (size_t i = 0; i < count; i++) {
        const struct hl_resident *c = &r->chunks[wanted[i]];
        bool here = c->device || c->host;
        if ((c->want & HL_WANT_DEVICE) && !c->device) {
            m->load[m->load_count++] = wanted[i];
            m->load_bytes += c->bytes;
        }
        if ((c->below || ((c->want & HL_WANT_HOST) && !here)) && c->host_memory == HL_HOST_NONE)
            m->host_bytes += c->bytes;
        if (!(c->want & HL_WANT_HOST) || !c->device)
            continue;
        if (!c->host)
            copy_out(r, wanted[i], m);
        if (host_takes(r, c)) {
            add_leaver(r, wanted[i], m);
            gone += c->bytes;
        }
    }
    return make_room(r, gone, m);
}

/* Decides what the access of the next moment would decide. Chunks that are pinned now can be
 * unpinned by then, so they are candidates; but if one is chosen, nothing can be done now. */
bool hl_residency_ahead(const struct hl_residency *r, const struct hl_trace_use *uses, size_t count,
                        struct hl_moves *m)
{
    size_t left = 0;
    uint64_t gone = 0, limit = r->avail - r->asked;
    hl_moves_clear(m);
    for (size_t i = 0; i < count; i++)
        m->load_bytes += r->chunks[uses[i].chunk].device ? 0 : r->chunks[uses[i].chunk].bytes;
    if (m->load_bytes == 0)
        return false;
    if (r->device + m->load_bytes <= limit)
        return true;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct hl_resident *c = &r->chunks[i];
        if (!c->device || c->expected == r->now + 1)
            continue;
        double rank = r->rank(r->arg, i, r->now + 1, !c->host);
        add_candidate(m, &left, (struct hl_victim){rank, i, ORDINARY});
    }
    while (left > 0) {
        uint32_t victim = take_first(m, &left);
        const struct hl_resident *c = &r->chunks[victim];
        if (c->device_pins > 0 || c->host_pins > 0)
            return false;
        m->leave[m->leave_count++] = victim;
        gone += c->bytes;
        if (r->device + m->load_bytes - gone <= limit)
            return true;
        find_first(m, left);
    }
    return false;
}

bool hl_residency_place(const struct hl_residency *r, const uint8_t *places, uint32_t count,
                        struct hl_moves *m)
{
    uint64_t device = 0;
    hl_moves_clear(m);
    for (uint32_t i = 0; i < r->count; i++) {
        const struct hl_resident *c = &r->chunks[i];
        bool there = i < count ? (places[i] & HL_CHUNK_ON_DEVICE) != 0 : c->device;
        device += there ? c->bytes : 0;
        if (c->device && !there) {
            add_leaver(r, i, m);
        } else if (c->device && i < count && (places[i] & HL_CHUNK_ON_HOST) && !c->host) {
            copy_out(r, i, m);
        } else if (!c->device && there && (c->host || c->below)) {
            m->load[m->load_count++] = i;
            m->load_bytes += c->bytes;
            m->host_bytes += c->below && c->host_memory == HL_HOST_NONE ? c->bytes : 0;
        }
    }
    return device <= r->avail;
}

bool hl_residency_host_victim(const struct hl_residency *r, bool spills, uint32_t *victim)
{
    bool found = false;
    uint64_t latest = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const struct hl_resident *c = &r->chunks[i];
        if (c->host_pins > 0 || c->want != 0 || c->busy || c->host_memory == HL_HOST_NONE)
            continue;
        if (c->host_memory == HL_HOST_STALE) {
            *victim = i;
            return true;
        }
        if (!c->host || (!c->device && !spills))
            continue;
        uint64_t next = r->next_use(r->arg, i);
        if (!found || next > latest) {
            *victim = i;
            latest = next;
            found = true;
        }
    }
    return found;
}
