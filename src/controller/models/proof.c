/* The proof of a version before it becomes visible. Planning a large model again takes longer than
 * the loop may stand still: it is done in a thread of libuv's, on copies. */
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "controller/models/models_private.h"

struct proving {
    uv_work_t work; /* first */
    struct hl_arena arena;
    struct hl_version_proof version;
    struct proved proved;
    hl_status st;
    char text[HL_ERROR_TEXT_MAX];
    proof_done done;
    void *arg;
};

static void proving_run(uv_work_t *work)
{
    struct proving *p = (struct proving *)work;
    p->st = hl_version_settle(&p->version, &p->proved.config);
    p->proved.settled = p->st == HL_OK;
    if (p->st == HL_OK)
        p->st = hl_proof_check(&p->version.input, &p->proved.proof);
    if (p->st != HL_OK)
        snprintf(p->text, sizeof(p->text), "%s", hl_error_text());
}

static void proving_free(struct proving *p)
{
    hl_arena_fini(&p->arena);
    free(p->proved.config);
    free(p);
}

static void on_proved(uv_work_t *work, int canceled)
{
    struct proving *p = (struct proving *)work;
    hl_status st = p->st;
    if (canceled != 0)
        st = hl_fail(HL_ECANCELED, "the Controller was stopped");
    else if (st != HL_OK)
        st = hl_fail(st, "%s", p->text);
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
    if (st != HL_OK) {
        proving_free(p);
        return st;
    }
    controller_hold(c);
    uv_queue_work(hl_loop_uv(c->opts.loop), &p->work, proving_run, on_proved);
    return HL_OK;
}

hl_status proof_start(struct hl_controller *c, struct hl_version_rec *v, int rank,
                      const struct hl_api_shard_list *named, proof_done done, void *arg)
{
    struct proving *p;
    HL_TRY(proving_new(done, arg, &p));
    return proving_start(
        c, p, hl_version_proof_input(&c->catalog, v, rank, named, &p->arena, &p->version));
}

hl_status proof_start_import(struct hl_controller *c, const char *config,
                             const struct hl_api_shard_list *shards, proof_done done, void *arg)
{
    struct proving *p;
    HL_TRY(proving_new(done, arg, &p));
    return proving_start(c, p, hl_import_proof_input(config, shards, &p->arena, &p->version));
}
