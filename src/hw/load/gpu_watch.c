#include "hw/load/gpu_watch.h"

#include <string.h>

#include "api/lists.h"

static const struct hl_api_gpu_load *gpu_find(const struct hl_api_gpu_load_list *list,
                                              const char *id)
{
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i].id, id) == 0)
            return &list->items[i];
    return NULL;
}

static hl_status watch_remember(struct hl_gpu_watch *w, const struct hl_api_gpu_load_list *now)
{
    w->first.items = hl_arena_array(&w->arena, now->count, sizeof(*w->first.items));
    for (size_t i = 0; w->first.items != NULL && i < now->count; i++)
        w->first.items[w->first.count++] =
            (struct hl_api_gpu_load){.id = hl_arena_strdup(&w->arena, now->items[i].id),
                                     .uuid = hl_arena_strdup(&w->arena, now->items[i].uuid)};
    if (hl_arena_failed(&w->arena)) {
        hl_gpu_watch_fini(w);
        return hl_fail(HL_ENOMEM, "out of memory remembering GPUs");
    }
    w->known = true;
    return HL_OK;
}

static void find_changed(const struct hl_gpu_watch *w, const struct hl_api_gpu_load_list *now,
                         struct hl_arena *arena, struct hl_api_text_list *troubles)
{
    for (size_t i = 0; i < w->first.count; i++) {
        const struct hl_api_gpu_load *was = &w->first.items[i], *is = gpu_find(now, was->id);
        if (is == NULL)
            hl_api_text_add(arena, troubles,
                            hl_arena_printf(arena,
                                            "GPU %s (%s) vanished: look at the kernel's log, then "
                                            "reset the GPU or restart the Agent without it",
                                            was->id, was->uuid));
        else if (strcmp(is->uuid, was->uuid) != 0)
            hl_api_text_add(arena, troubles,
                            hl_arena_printf(arena,
                                            "GPU %s was %s and is %s now: was the board exchanged? "
                                            "Restart the Agent to use it",
                                            was->id, was->uuid, is->uuid));
    }
}

static void find_twins(const struct hl_api_gpu_load_list *now, struct hl_arena *arena,
                       struct hl_api_text_list *troubles)
{
    for (size_t i = 0; i < now->count; i++)
        for (size_t k = i + 1; k < now->count; k++)
            if (strcmp(now->items[i].uuid, now->items[k].uuid) == 0)
                hl_api_text_add(
                    arena, troubles,
                    hl_arena_printf(arena,
                                    "GPUs %s and %s have one UUID, %s: no container could "
                                    "be given only one of them",
                                    now->items[i].id, now->items[k].id, now->items[i].uuid));
}

hl_status hl_gpu_watch_check(struct hl_gpu_watch *w, const struct hl_api_gpu_load_list *now,
                             struct hl_arena *arena, struct hl_api_text_list *troubles)
{
    if (!w->known)
        HL_TRY(watch_remember(w, now));
    find_changed(w, now, arena, troubles);
    find_twins(now, arena, troubles);
    return hl_arena_failed(arena) ? hl_fail(HL_ENOMEM, "out of memory comparing GPUs") : HL_OK;
}

void hl_gpu_watch_fini(struct hl_gpu_watch *w)
{
    hl_arena_fini(&w->arena);
    *w = (struct hl_gpu_watch){0};
}
