/* The image of a container: here, or pulled, with its progress in the status. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hw/engine/engine_ranks.h"
#include "os/command.h"

#define PULL_MS (6 * 3600 * 1000)

static hl_status image_find(struct hl_shim *s)
{
    struct hl_engine_ranks *e = s->engine;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    struct hl_args args = hl_engine_args(e, &arena);
    hl_args_add(&args, "image");
    hl_args_add(&args, "inspect");
    hl_args_add(&args, "--format={{.Id}}");
    hl_args_add(&args, s->spec.image);
    HL_TRY(hl_engine_call(e, &args, NULL, HL_ENGINE_CALL_MS, &r));
    snprintf(e->image, sizeof(e->image), "%.*s", (int)strcspn(hl_command_text(&r.out), "\n"),
             hl_command_text(&r.out));
    return HL_OK;
}

/* While it pulls: tell how far it is, and hear a stop. */
static bool pull_goes_on(void *arg, const struct hl_buf *out, const struct hl_buf *err)
{
    struct hl_shim *s = arg;
    char text[sizeof(s->engine->progress)];
    const char *printed = s->engine->kind == HL_ENGINE_PODMAN ? err->data : out->data;
    hl_engine_pull_progress(s->spec.image, printed != NULL ? printed : "", text, sizeof(text));
    if (strcmp(text, s->engine->progress) != 0) {
        snprintf(s->engine->progress, sizeof(s->engine->progress), "%s", text);
        if (hl_text_set(&s->status.message, "%s", text) == HL_OK)
            hl_shim_tell(s);
    }
    hl_shim_take_signals(s);
    return !s->requested;
}

static hl_status image_pull(struct hl_shim *s)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    struct hl_args args = hl_engine_args(s->engine, &arena);
    hl_args_add(&args, "pull");
    hl_args_add(&args, s->spec.image);
    hl_info("container %s: %s is not here and is pulled", s->spec.id, s->spec.image);
    return hl_engine_run(
        s->engine, &args, NULL,
        (struct hl_command){.timeout_ms = PULL_MS, .go_on = pull_goes_on, .arg = s}, &r);
}

hl_status hl_engine_image_get(struct hl_shim *s)
{
    hl_status st = image_find(s);
    if (st == HL_ENOENT) {
        st = image_pull(s);
        if (st == HL_OK)
            st = image_find(s);
        if (st == HL_OK)
            st = hl_text_set(&s->status.message, "%s", "");
    }
    return st == HL_OK || st == HL_EUNAVAIL
               ? st
               : hl_fail_prefix(st, "image %.200s can't be had: ", s->spec.image);
}
