/* Proves a version before it becomes visible. It runs in a thread, because planning a large model
 * again takes longer than the loop may be blocked. */
#include <stdlib.h>
#include <string.h>

#include "controller/background.h"
#include "controller/models/models_private.h"

struct proving {
    struct background task; /* must be first */
    struct hl_arena arena;
    struct hl_version_proof version;
    struct proved proved;
    proof_done done;
    void *arg;
};

static hl_status proving_run(struct background *task)
{
    struct proving *p = (struct proving *)task;
    HL_TRY(hl_version_settle(&p->version, &p->proved.config));
    p->proved.settled = true;
    return hl_proof_check(&p->version.input, &p->proved.proof);
}

static void proving_free(struct proving *p)
{
    hl_arena_fini(&p->arena);
    free(p->proved.config);
    free(p);
}

static void on_proved(struct background *task, hl_status st)
{
    struct proving *p = (struct proving *)task;
    p->done(p->arg, st, &p->proved);
    proving_free(p);
}

HL_CHECK static hl_status proving_new(proof_done done, void *arg, struct proving **out)
{
    *out = calloc(1, sizeof(**out));
    if (*out == NULL)
        return hl_fail(HL_ENOMEM, "out of memory for the proof of a version");
    (*out)->done = done;
    (*out)->arg = arg;
    return HL_OK;
}

static hl_status proving_start(struct hl_controller *c, struct proving *p, hl_status st)
{
    p->task.run = proving_run;
    p->task.done = on_proved;
    if (st == HL_OK)
        st = background_start(c, &p->task);
    if (st != HL_OK)
        proving_free(p);
    return st;
}

hl_status proof_start(struct hl_controller *c, const struct hl_version_commit *commit,
                      proof_done done, void *arg)
{
    struct proving *p;
    HL_TRY(proving_new(done, arg, &p));
    return proving_start(c, p, hl_version_proof_input(&c->catalog, commit, &p->arena, &p->version));
}

hl_status proof_start_import(struct hl_controller *c, const char *config,
                             const struct hl_api_shard_list *shards, proof_done done, void *arg)
{
    struct proving *p;
    HL_TRY(proving_new(done, arg, &p));
    return proving_start(c, p, hl_import_proof_input(config, shards, &p->arena, &p->version));
}
