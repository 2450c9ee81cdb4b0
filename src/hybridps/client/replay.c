#include "hybridps/client/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hybridps/layout/layout.h"

#define STRIDE     4096 /* bytes between two marks */
#define PLAN_NEEDS 400000

struct replay {
    const struct hl_trace *t;
    struct hl_replay_options o;
    struct hl_chunk_pool *pool;
    uint64_t *version; /* version that was written last */
    uint8_t *live;     /* nonzero: has content */
    uint64_t *span;
    struct hl_chunk_plan *plan;
};

void hl_replay_fini(struct hl_replay_result *r)
{
    free(r->iterations);
    *r = (struct hl_replay_result){0};
}

/* ---- contents ---- */

static uint64_t mark_of(uint32_t chunk, uint64_t version, uint64_t at)
{
    uint64_t x = (version << 24 ^ chunk) * UINT64_C(0x9e3779b97f4a7c15) + at;
    return (x ^ x >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
}

static void write_marks(uint8_t *to, uint64_t span, uint32_t chunk, uint64_t version)
{
    for (uint64_t at = 0; at + 8 <= span; at += STRIDE) {
        uint64_t m = mark_of(chunk, version, at);
        memcpy(to + at, &m, 8);
    }
}

static hl_status check_marks(const struct replay *r, const uint8_t *at, uint32_t chunk,
                             bool on_host)
{
    for (uint64_t i = 0; i + 8 <= r->span[chunk]; i += STRIDE) {
        uint64_t m = mark_of(chunk, r->version[chunk], i);
        if (memcmp(at + i, &m, 8) != 0)
            return hl_fail(HL_ECORRUPT,
                           "chunk \"%s\" on the %s does not hold what was written last",
                           r->t->chunks[chunk].id, on_host ? "host" : "device");
    }
    return HL_OK;
}

/* Checks the content of the moment's chunks, and writes where the trace does; the first use of new
 * content writes it.
 */
static hl_status touch_chunks(struct replay *r, const struct hl_trace_moment *m)
{
    for (size_t i = 0; i < m->need_count; i++)
        if (r->live[m->need[i].chunk]) {
            struct hl_chunk_info info;
            hl_chunk_pool_info(r->pool, m->need[i].chunk, &info);
            HL_TRY(check_marks(r, m->need[i].on_host ? info.host : (void *)(uintptr_t)info.address,
                               m->need[i].chunk, m->need[i].on_host));
        }
    for (size_t i = 0; i < m->need_count; i++) {
        uint32_t c = m->need[i].chunk;
        struct hl_chunk_info info;
        if (r->live[c] && !m->need[i].write)
            continue;
        hl_chunk_pool_info(r->pool, c, &info);
        r->live[c] = 1;
        r->version[c]++;
        if (info.on_host)
            write_marks(info.host, r->span[c], c, r->version[c]);
        if (info.on_device)
            write_marks((void *)(uintptr_t)info.address, r->span[c], c, r->version[c]);
    }
    return HL_OK;
}

/* ---- plans ---- */

/* Plans all iterations at once, if that is cheap. */
static hl_status plan_all(const struct replay *r, size_t needs, struct hl_chunk_plan **out)
{
    struct hl_chunk_plan_options o = {.copy = r->o.copy, .iterations = r->t->iterations};
    uint64_t most = r->o.plan_needs > 0 ? r->o.plan_needs : PLAN_NEEDS;
    if (r->o.ahead > 0 || r->t->iterations > most / needs)
        return HL_OK;
    return hl_chunk_plan_make(r->t, &o, out);
}

/* Plans like training does, which learns too late that it ends: only with `ahead`. Otherwise plans
 * up to the last iteration. */
static hl_status plan_endless(const struct replay *r, struct hl_chunk_plan **out)
{
    struct hl_chunk_plan_options o = {.copy = r->o.copy, .endless = 1, .iterations = r->o.ahead};
    if (r->o.ahead == 0 && r->t->iterations <= HL_CHUNK_PLAN_AHEAD)
        return HL_OK;
    HL_TRY(hl_chunk_plan_make(r->t, &o, out));
    return r->o.ahead > 0 ? HL_OK : hl_chunk_plan_end(*out, r->t, &o, r->t->iterations);
}

/* Takes the cheaper plan; if both cost the same, the endless one, which training follows. */
static hl_status choose_plan(struct replay *r)
{
    struct hl_chunk_plan *all = NULL, *endless = NULL;
    struct hl_chunk_plan_facts a, e;
    size_t needs = r->t->moment_count + 1;
    if (strcmp(r->o.policy, "opt") != 0)
        return HL_OK;
    for (size_t i = 0; i < r->t->moment_count; i++)
        needs += r->t->moments[i].need_count;
    hl_status st = plan_endless(r, &endless);
    if (st == HL_OK)
        st = plan_all(r, needs, &all);
    if (st == HL_OK && all != NULL && endless != NULL) {
        hl_chunk_plan_facts(all, &a);
        hl_chunk_plan_facts(endless, &e);
    }
    int take_all = all != NULL && (endless == NULL || a.moved < e.moved);
    r->plan = take_all ? all : endless;
    hl_chunk_plan_free(take_all ? endless : all);
    hl_policy_set_plan(hl_chunk_pool_policy(r->pool), r->plan);
    return st;
}

/* ---- the run ---- */

static hl_status add_chunks(struct replay *r)
{
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), all = 0;
    char spec[64];
    for (size_t i = 0; i < r->t->chunk_count; i++) {
        uint64_t span = (r->t->chunks[i].bytes - 1) / r->o.scale + 1;
        r->span[i] = (span + page - 1) / page * page;
        all += r->span[i];
    }
    snprintf(spec, sizeof(spec), "emu:%" PRIu64, all > 0 ? all : page);
    struct hl_chunk_pool_options o = {.device = spec,
                                      .copy = r->o.copy,
                                      .policy = r->o.policy,
                                      .policy_options = r->o.policy_options};
    HL_TRY(hl_chunk_pool_open(&o, &r->pool));
    for (size_t i = 0; i < r->t->chunk_count; i++) {
        uint32_t chunk;
        HL_TRY(hl_chunk_pool_add(r->pool, hl_tensor_kind(r->t->chunks[i].kind),
                                 r->t->chunks[i].bytes, r->span[i], &chunk));
        if (!r->t->chunks[i].has_content)
            continue;
        struct hl_trace_use use = {.chunk = chunk, .on_host = 1, .write = 1};
        struct hl_chunk_info info;
        HL_TRY(hl_chunk_pool_access(r->pool, &use, 1));
        hl_chunk_pool_info(r->pool, chunk, &info);
        write_marks(info.host, r->span[i], chunk, ++r->version[i]);
        hl_chunk_pool_release(r->pool, chunk, 1);
        r->live[i] = 1;
    }
    return HL_OK;
}

static void show_moment(const struct replay *r, uint64_t k, size_t moment,
                        const struct hl_chunk_pool_stats *before)
{
    struct hl_chunk_pool_stats s;
    if (r->o.watch == NULL)
        return;
    hl_chunk_pool_stats(r->pool, &s);
    struct hl_replay_view v = {.avail = s.avail,
                               .h2d = s.total.h2d - before->total.h2d,
                               .d2h = s.total.d2h - before->total.d2h};
    memcpy(v.device_by_kind, s.device_by_kind, sizeof(v.device_by_kind));
    memcpy(v.host_by_kind, s.host_by_kind, sizeof(v.host_by_kind));
    r->o.watch(r->o.watch_arg, k, moment, &v);
}

static hl_status run_moment(struct replay *r, uint64_t k, size_t moment)
{
    const struct hl_trace_moment *m = &r->t->moments[moment];
    struct hl_chunk_pool_stats before;
    hl_chunk_pool_stats(r->pool, &before);
    hl_chunk_pool_moment(r->pool, m->avail);
    HL_TRY(hl_chunk_pool_access(r->pool, m->need, m->need_count));
    show_moment(r, k, moment, &before);
    hl_status st = touch_chunks(r, m);
    for (size_t i = 0; i < m->need_count; i++)
        hl_chunk_pool_release(r->pool, m->need[i].chunk, m->need[i].on_host);
    HL_TRY(st);
    for (size_t i = 0; i < m->free_count; i++) {
        hl_chunk_pool_end(r->pool, m->free[i]);
        r->live[m->free[i]] = 0;
    }
    return hl_chunk_pool_audit(r->pool);
}

static hl_status run_iteration(struct replay *r, uint64_t k, struct hl_replay_iteration *out)
{
    struct hl_chunk_pool_stats before, after;
    char name[160];
    hl_chunk_pool_stats(r->pool, &before);
    for (size_t i = 0; i < r->t->moment_count; i++) {
        if (r->plan != NULL)
            hl_chunk_plan_seek(r->plan, k * r->t->moment_count + i);
        hl_status st = run_moment(r, k, i);
        if (st != HL_OK)
            return hl_fail_prefix(st, "iteration %" PRIu64 ", %s: ", k,
                                  hl_trace_moment_name(r->t, i, name, sizeof(name)));
    }
    hl_chunk_pool_stats(r->pool, &after);
    out->h2d = after.total.h2d - before.total.h2d;
    out->d2h = after.total.d2h - before.total.d2h;
    return HL_OK;
}

hl_status hl_replay(const struct hl_trace *t, const struct hl_replay_options *options,
                    struct hl_replay_result *out)
{
    struct replay r = {.t = t, .o = *options};
    struct hl_replay_result result = {.count = t->iterations};
    size_t n = t->chunk_count + 1;
    r.o.scale = r.o.scale > 0 ? r.o.scale : 1;
    result.iterations = calloc(t->iterations + 1, sizeof(*result.iterations));
    r.version = calloc(n, sizeof(*r.version));
    r.live = calloc(n, 1);
    r.span = calloc(n, sizeof(*r.span));
    hl_status st = HL_OK;
    if (result.iterations == NULL || r.version == NULL || r.live == NULL || r.span == NULL)
        st = hl_fail(HL_ENOMEM, "out of memory allocating a replay");
    else
        st = add_chunks(&r);
    if (st == HL_OK)
        st = choose_plan(&r);
    for (uint64_t k = 0; k < t->iterations && st == HL_OK; k++)
        st = run_iteration(&r, k, &result.iterations[k]);
    if (st == HL_OK) {
        struct hl_chunk_pool_stats s;
        hl_chunk_pool_stats(r.pool, &s);
        result.peak_over_avail = s.peak_over_avail;
        *out = result;
    } else {
        hl_replay_fini(&result);
    }
    hl_chunk_pool_close(r.pool);
    hl_chunk_plan_free(r.plan);
    free(r.version);
    free(r.live);
    free(r.span);
    return st;
}
