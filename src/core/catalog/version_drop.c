#include "core/catalog/version_drop.h"

#include <string.h>

static bool is_going(const struct hl_version_watch *w, const struct hl_version_rec *v)
{
    return w->is_going(w->arg, v);
}

struct hl_version_rec *hl_version_surplus(const struct hl_version_rec *newest, int keep,
                                          const struct hl_version_watch *watch)
{
    int whole = 0;
    for (struct hl_version_rec *v = newest->model->versions; v != NULL && keep > 0; v = v->next) {
        if (v->state != HL_API_VERSION_STATE_VISIBLE || v->world == 0 ||
            strcmp(v->job, newest->job) != 0)
            continue;
        if (whole >= keep && !is_going(watch, v))
            return v;
        whole += hl_version_whole(v);
    }
    return NULL;
}

struct hl_version_rec *hl_version_incomplete(const struct hl_catalog *c, const char *job,
                                             int attempt, const struct hl_version_watch *watch)
{
    for (const struct hl_model_rec *m = c->models; m != NULL; m = m->hh.next)
        for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
            if (v->state != HL_API_VERSION_STATE_VISIBLE && v->attempt < attempt &&
                strcmp(v->job, job) == 0 && !is_going(watch, v))
                return v;
    return NULL;
}

struct hl_version_rec *hl_version_overtaken(const struct hl_version_rec *v,
                                            const struct hl_version_watch *watch)
{
    for (struct hl_version_rec *o = v->model->versions; o != NULL; o = o->next)
        if (o->state != HL_API_VERSION_STATE_VISIBLE && o->attempt == v->attempt &&
            o->generation < v->generation && strcmp(o->job, v->job) == 0 && !is_going(watch, o))
            return o;
    return NULL;
}

struct hl_version_rec *hl_version_stale(struct hl_model_rec *m, int64_t now_ms, int64_t grace_ms,
                                        const struct hl_version_watch *watch)
{
    for (struct hl_version_rec *v = m->versions; v != NULL; v = v->next) {
        if (v->state == HL_API_VERSION_STATE_VISIBLE || watch->is_written(watch->arg, v) ||
            is_going(watch, v))
            continue;
        if (v->touched_ms == 0)
            v->touched_ms = now_ms;
        if (now_ms - v->touched_ms > grace_ms)
            return v;
    }
    return NULL;
}

static bool is_newest(const struct hl_version_rec *v)
{
    struct hl_version_rec *newest;
    if (hl_catalog_version(v->model, -1, &newest) == HL_OK)
        return newest == v;
    hl_error_clear();
    return false;
}

bool hl_version_is_read(const struct hl_version_rec *v, const struct hl_version_reader *reader)
{
    if (reader->over || strcmp(reader->model, v->model->name) != 0)
        return false;
    return v->number == reader->loaded || v->number == reader->named || is_newest(v);
}
