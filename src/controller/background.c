#include "controller/background.h"

#include <stdio.h>

#include "controller/core.h"
#include "os/loop.h"

static void background_run(uv_work_t *work)
{
    struct background *task = work->data;
    task->st = task->run(task);
    if (task->st != HL_OK)
        snprintf(task->text, sizeof(task->text), "%s", hl_error_text());
}

static void background_done(uv_work_t *work, int canceled)
{
    struct background *task = work->data;
    hl_status st = task->st;
    if (canceled != 0)
        st = hl_fail(HL_ECANCELED, "the Controller was stopped");
    else if (st != HL_OK)
        st = hl_fail(st, "%s", task->text);
    task->done(task, st);
}

hl_status background_start(struct hl_controller *c, struct background *task)
{
    task->c = c;
    task->work.data = task;
    if (uv_queue_work(hl_loop_uv(c->opts.loop), &task->work, background_run, background_done) != 0)
        return hl_fail(HL_EUNAVAIL, "the Controller can't start a thread; try again");
    controller_hold(c);
    return HL_OK;
}
