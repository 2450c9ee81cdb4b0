#include "hybridps/client/record.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hybridps/layout/layout.h"

#define PLANS_MAX 8 /* for one record */

static void fini_phase(struct hl_record_phase *p)
{
    hl_trace_fini(&p->trace);
    hl_chunk_plan_free(p->plan);
}

void hl_record_fini(struct hl_record *r)
{
    if (r->pool != NULL)
        hl_policy_set_plan(hl_chunk_pool_policy(r->pool), NULL);
    for (size_t i = 0; i < r->phase_count; i++)
        fini_phase(&r->phases[i]);
    free(r->phases);
    free(r->hits);
    free(r->content);
    hl_trace_fini(&r->trace);
    *r = (struct hl_record){0};
}

/* ---- recording ---- */

/* Stops recording this iteration. */
static void give_up(struct hl_record *r)
{
    hl_error_clear();
    hl_trace_fini(&r->trace);
    r->recording = 0;
}

/* Adds the chunks that the trace does not have yet: a layout can create chunks at any time. An
 * older record tells which chunks had content at the beginning. */
static hl_status record_chunks(struct hl_record *r, const struct hl_trace *older)
{
    struct hl_chunk_pool_stats s;
    hl_chunk_pool_stats(r->pool, &s);
    for (uint32_t c = (uint32_t)r->trace.chunk_count; c < s.chunks; c++) {
        struct hl_chunk_info info;
        char id[16];
        hl_chunk_pool_info(r->pool, c, &info);
        int content = older != NULL && c < older->chunk_count
                          ? older->chunks[c].has_content
                          : c < r->content_count && r->content[c];
        snprintf(id, sizeof(id), "%u", (unsigned)c);
        HL_TRY(hl_trace_add_chunk(&r->trace, id, 1, hl_tensor_kind_name(info.kind), info.bytes,
                                  content));
    }
    return HL_OK;
}

static hl_status copy_moment(struct hl_record *r, const struct hl_trace_moment *m,
                             const uint8_t *only)
{
    HL_TRY(hl_trace_add_moment(&r->trace, m->stage, m->op, m->avail));
    for (size_t i = 0; i < m->need_count; i++)
        if (only == NULL || only[i])
            HL_TRY(hl_trace_add_need(&r->trace, m->need[i].chunk, m->need[i].on_host,
                                     m->need[i].write));
    for (size_t i = 0; i < m->free_count && only == NULL; i++)
        HL_TRY(hl_trace_add_free(&r->trace, m->free[i]));
    return HL_OK;
}

static hl_status copy_past(struct hl_record *r)
{
    const struct hl_trace *t = &r->phase->trace;
    HL_TRY(record_chunks(r, t));
    for (size_t i = 0; i < r->moment && r->begun; i++)
        HL_TRY(copy_moment(r, &t->moments[i], NULL));
    return r->begun ? copy_moment(r, &t->moments[r->moment], r->hits) : HL_OK;
}

/* From here on the iteration differs from the recorded one. */
static void deviate_from_plan(struct hl_record *r)
{
    r->deviations++;
    r->following = 0;
    r->recording = 1;
    hl_policy_set_plan(hl_chunk_pool_policy(r->pool), NULL);
    if (copy_past(r) != HL_OK)
        give_up(r);
}

/* ---- iterations ---- */

static const struct hl_trace_moment *current_moment(const struct hl_record *r)
{
    return &r->phase->trace.moments[r->moment];
}

static bool moment_is_whole(const struct hl_record *r)
{
    return !r->begun || r->hit_count == current_moment(r)->need_count;
}

static void end_iteration(struct hl_record *r)
{
    if (r->phase == NULL)
        return;
    if (r->following &&
        !(r->begun && r->moment + 1 == r->phase->trace.moment_count && moment_is_whole(r)))
        deviate_from_plan(r);
    hl_policy_set_plan(hl_chunk_pool_policy(r->pool), NULL);
    if (r->recording && r->trace.moment_count > 0) {
        struct hl_record_phase *p = r->phase;
        hl_trace_fini(&p->trace);
        hl_chunk_plan_free(p->plan);
        p->plan = NULL;
        p->plans = p->stale = 0;
        p->trace = r->trace;
        p->trace.iterations = r->ahead > 0 ? r->ahead : HL_CHUNK_PLAN_AHEAD;
        struct hl_chunk_pool_stats pool;
        hl_chunk_pool_stats(r->pool, &pool);
        p->trace.capacity = pool.capacity;
        p->whole = 1;
        r->last = p;
        r->trace = (struct hl_trace){0};
    }
    hl_trace_fini(&r->trace);
    r->recording = r->following = r->begun = 0;
    r->previous = r->phase;
    r->phase = NULL;
}

static hl_status find_phase(struct hl_record *r, const char *name, struct hl_record_phase **out)
{
    for (size_t i = 0; i < r->phase_count; i++)
        if (strcmp(r->phases[i].name, name) == 0) {
            *out = &r->phases[i];
            return HL_OK;
        }
    if (strlen(name) >= sizeof((*out)->name) || r->phase_count == HL_RECORD_PHASES)
        return hl_fail(HL_EINVAL, "phase \"%.80s\": names have up to %zu bytes, and there are %d",
                       name, sizeof((*out)->name) - 1, HL_RECORD_PHASES);
    if (r->phases == NULL)
        r->phases = calloc(HL_RECORD_PHASES, sizeof(*r->phases));
    if (r->phases == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a record");
    *out = &r->phases[r->phase_count++];
    snprintf((*out)->name, sizeof((*out)->name), "%s", name);
    return HL_OK;
}

/* Where the chunks of the record are now. */
static uint8_t *chunk_places(const struct hl_record *r)
{
    size_t n = r->phase->trace.chunk_count;
    uint8_t *places = calloc(n + 1, 1);
    for (uint32_t c = 0; c < n && places != NULL; c++) {
        struct hl_chunk_info info;
        hl_chunk_pool_info(r->pool, c, &info);
        places[c] =
            (info.on_device ? HL_CHUNK_ON_DEVICE : 0) | (info.on_host ? HL_CHUNK_ON_HOST : 0);
    }
    return places;
}

static bool as_planned(const struct hl_record *r, const uint8_t *now, uint64_t turn)
{
    const struct hl_record_phase *p = r->phase;
    const uint8_t *then = p->plan != NULL ? hl_chunk_plan_places(p->plan, turn) : NULL;
    for (size_t c = 0; c < p->trace.chunk_count && then != NULL; c++)
        if (now[c] != then[c])
            return false;
    return then != NULL;
}

/* from: where the chunks are; NULL: where the trace says. */
static void make_plan(struct hl_record *r, const uint8_t *from)
{
    struct hl_record_phase *p = r->phase;
    size_t n = p->trace.chunk_count;
    uint8_t *device = calloc(n + 1, 1), *host = calloc(n + 1, 1);
    struct hl_chunk_plan_options o = {.copy = r->copy, .endless = 1, .iterations = r->ahead};
    hl_chunk_plan_free(p->plan);
    p->plan = NULL;
    p->stale = 0;
    p->turn = 0;
    p->plans++;
    for (size_t c = 0; c < n && from != NULL && device != NULL && host != NULL; c++) {
        device[c] = (from[c] & HL_CHUNK_ON_DEVICE) != 0;
        host[c] = (from[c] & HL_CHUNK_ON_HOST) != 0;
    }
    o.on_device = from != NULL ? device : NULL;
    o.on_host = from != NULL ? host : NULL;
    /* Without a plan, the policy falls back to lru. */
    if (device == NULL || host == NULL || hl_chunk_plan_make(&p->trace, &o, &p->plan) != HL_OK)
        hl_error_clear();
    free(device);
    free(host);
}

/* True if the last iteration is the recorded one, and the trace has all chunks: no layout has added
 * any since. */
static bool may_join(const struct hl_record *r)
{
    struct hl_chunk_pool_stats s;
    hl_chunk_pool_stats(r->pool, &s);
    return r->previous == r->phase && s.chunks == r->phase->trace.chunk_count;
}

/* Joins the plan in its second iteration. The recorded iteration followed no plan, so its chunks
 * are moved to where the plan would have left them; the bytes count towards the recorded iteration
 * if the next one follows at once. Returns true if the plan continues from there. */
static bool join_plan(struct hl_record *r)
{
    struct hl_record_phase *p = r->phase;
    make_plan(r, NULL);
    const uint8_t *places = p->plan != NULL ? hl_chunk_plan_places(p->plan, 1) : NULL;
    if (places == NULL)
        return false;
    if (hl_chunk_pool_place(r->pool, places, (uint32_t)p->trace.chunk_count) != HL_OK)
        hl_error_clear(); /* then another plan is made */
    uint8_t *now = chunk_places(r);
    int joined = now != NULL && as_planned(r, now, 1);
    p->turn = 1;
    free(now);
    return joined;
}

/* Chooses the plan for the iteration that begins. The present plan is kept if the chunks are where
 * it expects them, or where it began; otherwise a new one is made, at most PLANS_MAX times. While
 * memory is asked for, chunks lie elsewhere in each iteration: the present plan still says which of
 * them to keep, and a new one is made when that is over. */
static void plan_iteration(struct hl_record *r)
{
    struct hl_record_phase *p = r->phase;
    bool asked = hl_chunk_pool_asked(r->pool);
    if (p->plan == NULL && p->plans == 0 && !asked && may_join(r) && join_plan(r))
        return;
    uint8_t *now = chunk_places(r);
    if (now == NULL)
        return;
    if (!p->stale && as_planned(r, now, p->turn + 1))
        p->turn++;
    else if (!p->stale && as_planned(r, now, 0))
        p->turn = 0;
    else if (asked && p->plan != NULL && !p->stale)
        p->plans = 1;
    else if (p->plans < PLANS_MAX)
        make_plan(r, now);
    free(now);
}

/* Records which chunks have content now. */
static hl_status note_content(struct hl_record *r)
{
    struct hl_chunk_pool_stats s;
    hl_chunk_pool_stats(r->pool, &s);
    if (s.chunks > r->content_count) {
        uint8_t *content = realloc(r->content, s.chunks);
        if (content == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a record");
        r->content = content;
        r->content_count = s.chunks;
    }
    for (uint32_t c = 0; c < s.chunks; c++) {
        struct hl_chunk_info info;
        hl_chunk_pool_info(r->pool, c, &info);
        r->content[c] = info.on_device || info.on_host;
    }
    return HL_OK;
}

hl_status hl_record_iteration(struct hl_record *r, const char *phase)
{
    struct hl_record_phase *p = NULL;
    if (phase != NULL)
        HL_TRY(find_phase(r, phase, &p));
    if (phase != NULL)
        HL_TRY(note_content(r));
    end_iteration(r);
    r->phase = p;
    if (p == NULL)
        return HL_OK;
    if (p->whole) {
        if (r->opt)
            plan_iteration(r);
        if (p->plan != NULL)
            hl_chunk_plan_seek(p->plan, p->turn * p->trace.moment_count);
        hl_policy_set_plan(hl_chunk_pool_policy(r->pool), p->plan);
        r->following = 1;
        return HL_OK;
    }
    r->recording = 1;
    if (record_chunks(r, NULL) != HL_OK)
        give_up(r);
    return HL_OK;
}

/* ---- moments ---- */

static size_t next_moment(const struct hl_record *r)
{
    return r->begun ? r->moment + 1 : 0;
}

void hl_record_expect(struct hl_record *r)
{
    if (!r->following || next_moment(r) >= r->phase->trace.moment_count)
        return;
    const struct hl_trace_moment *m = &r->phase->trace.moments[next_moment(r)];
    hl_chunk_pool_expect(r->pool, m->need, m->need_count);
}

/* Begins copies for the next moment. Does nothing if the current moment frees contents or the next
 * one uses the host, because then the state at the next moment is not the present one. */
void hl_record_ahead(struct hl_record *r, int most)
{
    if (most <= 0 || !r->following || !r->begun || r->phase->plan == NULL || !moment_is_whole(r) ||
        current_moment(r)->free_count > 0 || next_moment(r) >= r->phase->trace.moment_count)
        return;
    const struct hl_trace_moment *m = &r->phase->trace.moments[next_moment(r)];
    for (size_t i = 0; i < m->need_count; i++)
        if (m->need[i].on_host)
            return;
    hl_chunk_pool_ahead(r->pool, m->need, m->need_count, m->avail, most);
}

static hl_status room_for_hits(struct hl_record *r, size_t count)
{
    if (count > r->hits_cap) {
        uint8_t *hits = realloc(r->hits, count);
        if (hits == NULL)
            return hl_fail(HL_ENOMEM, "out of memory allocating a record");
        r->hits = hits;
        r->hits_cap = count;
    }
    if (count > 0)
        memset(r->hits, 0, count);
    r->hit_count = 0;
    return HL_OK;
}

/* True if this moment is the next one of the record. */
static bool follow_moment(struct hl_record *r, const char *stage, const char *op, uint64_t avail)
{
    size_t next = next_moment(r);
    if (next >= r->phase->trace.moment_count || !moment_is_whole(r))
        return false;
    struct hl_trace_moment *m = &r->phase->trace.moments[next];
    if (strcmp(m->stage, stage) != 0 || strcmp(m->op, op) != 0 ||
        room_for_hits(r, m->need_count) != HL_OK)
        return false;
    if (m->avail != avail) { /* not a deviation, but the plan has to be made again */
        m->avail = avail;
        r->phase->stale = 1;
    }
    r->moment = next;
    r->begun = 1;
    if (r->phase->plan != NULL)
        hl_chunk_plan_seek(r->phase->plan, r->phase->turn * r->phase->trace.moment_count + next);
    return true;
}

static void need_pinned(struct hl_record *r)
{
    struct hl_chunk_pool_stats s;
    hl_chunk_pool_stats(r->pool, &s);
    for (uint32_t c = 0; c < s.chunks && s.pins > 0; c++) {
        struct hl_chunk_info info;
        hl_chunk_pool_info(r->pool, c, &info);
        if (info.device_pins > 0) {
            hl_record_need(r, c, 0, 0);
            if (r->following && r->phase->plan != NULL)
                hl_chunk_plan_used(r->phase->plan, c);
        }
        if (info.host_pins > 0)
            hl_record_need(r, c, 1, 0);
    }
}

void hl_record_moment(struct hl_record *r, const char *stage, const char *op, uint64_t avail)
{
    stage = stage != NULL ? stage : "";
    op = op != NULL ? op : "";
    if (r->following && !follow_moment(r, stage, op, avail))
        deviate_from_plan(r);
    if (r->recording && hl_trace_add_moment(&r->trace, stage, op, avail) != HL_OK)
        give_up(r);
    if (r->following || r->recording)
        need_pinned(r);
}

static bool follow_need(struct hl_record *r, uint32_t chunk, bool on_host, bool write)
{
    if (!r->begun)
        return false;
    const struct hl_trace_moment *m = current_moment(r);
    for (size_t i = 0; i < m->need_count; i++) {
        const struct hl_trace_use *u = &m->need[i];
        if (u->chunk != chunk || u->on_host != (on_host != 0))
            continue;
        if (write && !u->write)
            return false;
        r->hit_count += !r->hits[i];
        r->hits[i] = 1;
        return true;
    }
    return false;
}

void hl_record_need(struct hl_record *r, uint32_t chunk, bool on_host, bool write)
{
    if (r->following && !follow_need(r, chunk, on_host, write))
        deviate_from_plan(r);
    if (!r->recording)
        return;
    hl_status st = chunk < r->trace.chunk_count ? HL_OK : record_chunks(r, NULL);
    if (st == HL_OK)
        st = hl_trace_add_need(&r->trace, chunk, on_host, write);
    if (st != HL_OK)
        give_up(r);
}

void hl_record_free(struct hl_record *r, uint32_t chunk)
{
    if (r->following) {
        bool known = false;
        for (size_t i = 0; r->begun && i < current_moment(r)->free_count; i++)
            known |= current_moment(r)->free[i] == chunk;
        if (!known)
            deviate_from_plan(r);
    }
    if (r->recording && r->trace.moment_count > 0 && hl_trace_add_free(&r->trace, chunk) != HL_OK)
        give_up(r);
}

hl_status hl_record_find(const struct hl_record *r, const char *phase, const struct hl_trace **out)
{
    const struct hl_record_phase *p = phase == NULL ? r->last : NULL;
    for (size_t i = 0; i < r->phase_count && phase != NULL; i++)
        if (strcmp(r->phases[i].name, phase) == 0)
            p = &r->phases[i];
    if (p == NULL || !p->whole)
        return hl_fail(HL_ENOENT, "no iteration of phase \"%s\" was recorded to its end",
                       phase != NULL ? phase : "");
    *out = &p->trace;
    return HL_OK;
}
