/* Checks whether a version can be cut for a split. The model is planned for it in a thread, because
 * that takes longer than the loop may be blocked. */
#include <stdlib.h>

#include "controller/background.h"
#include "controller/models/models_private.h"
#include "core/catalog/catalog_cut.h"

struct planning {
    struct background task; /* must be first */
    struct hl_arena arena;
    struct hl_version_rec *version;
    struct hl_api_split split;
    cut_planned done;
    void *arg;
};

static hl_status planning_run(struct background *task)
{
    const struct planning *p = (struct planning *)task;
    return hl_version_check_cut(p->version, &p->split);
}

static void planning_free(struct planning *p)
{
    hl_arena_fini(&p->arena);
    free(p);
}

static void on_planned(struct background *task, hl_status st)
{
    struct planning *p = (struct planning *)task;
    p->done(p->arg, st);
    planning_free(p);
}

hl_status cut_plan(struct hl_controller *c, const struct hl_version_rec *v,
                   const struct hl_api_split *split, cut_planned done, void *arg)
{
    struct planning *p = calloc(1, sizeof(*p));
    if (p == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the plan of a cut");
    p->task.run = planning_run;
    p->task.done = on_planned;
    p->split = *split;
    p->done = done;
    p->arg = arg;
    hl_status st = hl_version_copy_for_cut(v, &p->arena, &p->version);
    if (st == HL_OK)
        st = background_start(c, &p->task);
    if (st != HL_OK)
        planning_free(p);
    return st;
}
