/* What open versions must hold if they are split differently from their model. It is planned once
 * for all their ranks, in a thread, because that takes longer than the loop may be blocked.
 *
 *     commits --> layout_plan --> being planned already? --no--> hl_expected_plan in a thread
 *                      '--> waiters <--------------------------------'
 *
 * A plan is kept as long as an open version needs it. */
#include <stdlib.h>
#include <string.h>

#include "controller/background.h"
#include "controller/models/models_private.h"
#include "core/catalog/expected.h"

struct layout_waiter {
    layout_planned done;
    void *arg;
    struct layout_waiter *next;
};

struct layout {
    struct background task; /* must be first */
    struct hl_expected *expected;
    bool ready;
    struct layout_waiter *waiters;
    struct layout *next;
};

static void layout_free(struct layout *l)
{
    while (l->waiters != NULL) {
        struct layout_waiter *w = l->waiters;
        l->waiters = w->next;
        free(w);
    }
    hl_expected_free(l->expected);
    free(l);
}

void layouts_fini(struct hl_controller *c)
{
    struct layout *l, *next;
    for (l = c->models->layouts; l != NULL; l = next) {
        next = l->next;
        layout_free(l);
    }
    c->models->layouts = NULL;
}

/* The layout of the version, planned or being planned. */
static struct layout *layout_of(const struct hl_controller *c, const struct hl_version_rec *v)
{
    const struct hl_version_rec *base =
        v->state == HL_API_VERSION_STATE_OPEN ? hl_version_expects_of(v) : NULL;
    for (struct layout *l = c->models->layouts; base != NULL && l != NULL; l = l->next)
        if (hl_expected_serves(l->expected, v, base))
            return l;
    return NULL;
}

const struct hl_expected *layout_find(const struct hl_controller *c, const struct hl_version_rec *v)
{
    const struct layout *l = layout_of(c, v);
    return l != NULL && l->ready ? l->expected : NULL;
}

bool layout_is_missing(const struct hl_controller *c, const struct hl_version_rec *v)
{
    return v->state == HL_API_VERSION_STATE_OPEN && hl_version_expects_of(v) != NULL &&
           layout_find(c, v) == NULL;
}

static hl_status layout_run(struct background *task)
{
    hl_expected_plan(((struct layout *)task)->expected);
    return HL_OK; /* each commit reports any problem of the plan */
}

/* Each waiter holds the Controller: after the last one all of this may be freed. */
static void on_planned(struct background *task, hl_status st)
{
    struct layout *l = (struct layout *)task;
    struct layout_waiter *w = l->waiters;
    l->waiters = NULL;
    l->ready = st == HL_OK;
    (void)controller_stopped(task->c);
    while (w != NULL) {
        struct layout_waiter *next = w->next;
        w->done(w->arg);
        free(w);
        w = next;
    }
}

HL_CHECK static hl_status layout_new(struct hl_controller *c, const struct hl_version_rec *v,
                                     struct layout **out)
{
    const struct hl_api_split split = hl_version_split(v);
    struct layout *l = calloc(1, sizeof(*l));
    if (l == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the layout of a version");
    l->task.run = layout_run;
    l->task.done = on_planned;
    hl_status st = hl_expected_new(hl_version_expects_of(v), &split, &l->expected);
    if (st == HL_OK)
        st = background_start(c, &l->task);
    if (st != HL_OK) {
        layout_free(l);
        return st;
    }
    l->next = c->models->layouts;
    c->models->layouts = l;
    *out = l;
    return HL_OK;
}

hl_status layout_plan(struct hl_controller *c, const struct hl_version_rec *v, layout_planned done,
                      void *arg)
{
    struct layout *l = layout_of(c, v);
    struct layout_waiter *w = calloc(1, sizeof(*w));
    hl_status st = w != NULL ? HL_OK : hl_fail(HL_ENOMEM, "out of memory waiting for a layout");
    if (st == HL_OK && l == NULL)
        st = layout_new(c, v, &l);
    if (st != HL_OK) {
        free(w);
        return st;
    }
    controller_hold(c);
    *w = (struct layout_waiter){done, arg, l->waiters};
    l->waiters = w;
    return HL_OK;
}

static bool layout_is_needed(const struct hl_controller *c, const struct layout *l)
{
    struct hl_model_rec *m;
    if (hl_catalog_model(&c->catalog, l->expected->model, &m) != HL_OK) {
        hl_error_clear();
        return false;
    }
    for (const struct hl_version_rec *v = m->versions; v != NULL; v = v->next)
        if (layout_of(c, v) == l)
            return true;
    return false;
}

void layouts_forget(struct hl_controller *c)
{
    for (struct layout **at = &c->models->layouts; *at != NULL;) {
        struct layout *l = *at;
        if (!l->ready || layout_is_needed(c, l)) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        layout_free(l);
    }
}
