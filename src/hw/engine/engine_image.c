/* The image of a container: present already, or pulled, with the progress in the status. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "hw/engine/engine_ranks.h"
#include "os/command.h"

#define PULL_MS (6 * 3600 * 1000)

hl_status hl_engine_image_find(const struct hl_engine_ranks *e, const char *image,
                               struct hl_engine_image *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    struct hl_args args = hl_engine_args(e, &arena);
    hl_args_add(&args, "image");
    hl_args_add(&args, "inspect");
    hl_args_add(&args, "--format=" HL_ENGINE_IMAGE_FORMAT);
    hl_args_add(&args, image);
    HL_TRY(hl_engine_call(e, &args, NULL, HL_ENGINE_CALL_MS, &r));
    char *line = hl_arena_strdup(&arena, hl_command_text(&r.out));
    if (line == NULL)
        return hl_fail(HL_ENOMEM, "out of memory looking for image %.200s", image);
    line[strcspn(line, "\n")] = '\0';
    return hl_engine_image_parse(image, line, out);
}

const char *hl_engine_pull_printed(const struct hl_engine_ranks *e, const struct hl_buf *out,
                                   const struct hl_buf *err)
{
    return hl_command_text(e->kind == HL_ENGINE_PODMAN ? err : out);
}

hl_status hl_engine_image_pull(const struct hl_engine_ranks *e, const char *image,
                               struct hl_command command)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    struct hl_args args = hl_engine_args(e, &arena);
    if (hl_engine_image_is_id(image))
        return hl_fail(HL_ENOENT,
                       "it has no registry and is not on this node; load it on every node (%s "
                       "load), or push it and name its registry in dockerImage",
                       hl_engine_name(e->kind));
    hl_args_add(&args, "pull");
    hl_args_add(&args, image);
    command.timeout_ms = PULL_MS;
    command.newest = HL_PULL_WINDOW;
    command.terminal = e->kind == HL_ENGINE_DOCKER; /* other engines do not print bytes */
    return hl_engine_run(e, &args, NULL, command, &r);
}

hl_status hl_engine_image_lacks(const char *image, hl_status st)
{
    return hl_fail_prefix(st, "image %.200s is not available: ", image);
}

/* Called during a pull: reports its progress, and reacts to a stop. */
static bool pull_goes_on(void *arg, const struct hl_buf *out, const struct hl_buf *err)
{
    struct hl_shim *s = arg;
    char text[sizeof(s->engine->progress)];
    hl_pull_progress_take(&s->engine->pull, hl_engine_pull_printed(s->engine, out, err));
    hl_pull_progress_tell(&s->engine->pull, s->spec.image, text, sizeof(text));
    if (strcmp(text, s->engine->progress) != 0) {
        snprintf(s->engine->progress, sizeof(s->engine->progress), "%s", text);
        if (hl_text_set(&s->status.message, "%s", text) == HL_OK)
            hl_shim_tell(s);
    }
    hl_shim_take_signals(s);
    return !s->requested;
}

hl_status hl_engine_image_get(struct hl_shim *s)
{
    struct hl_engine_image found = {0};
    hl_status st = hl_engine_image_find(s->engine, s->spec.image, &found);
    if (st == HL_ENOENT) {
        hl_info("container %s: %s is not on this node and is being pulled", s->spec.id,
                s->spec.image);
        st = hl_engine_image_pull(s->engine, s->spec.image,
                                  (struct hl_command){.go_on = pull_goes_on, .arg = s});
        if (st == HL_OK)
            st = hl_engine_image_find(s->engine, s->spec.image, &found);
        if (st == HL_OK)
            st = hl_text_set(&s->status.message, "%s", "");
    }
    snprintf(s->engine->image, sizeof(s->engine->image), "%s", found.id);
    return st == HL_OK || st == HL_EUNAVAIL ? st : hl_engine_image_lacks(s->spec.image, st);
}
