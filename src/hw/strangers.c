/* Containers without a record here: shims, recognised by their command line ("helios-agent shim
 * DIR"), and an engine's containers, recognised by their labels. */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/lists.h"
#include "base/log.h"
#include "base/text.h"
#include "hw/engine/engine_ranks.h"
#include "hw/process/process_executor_private.h"
#include "os/command.h"
#include "os/file.h"

#define STRANGERS_MAX 4096
#define END_MS        5000

static hl_status list_add(struct hl_stranger_list *list, struct hl_arena *arena,
                          struct hl_stranger one)
{
    if (list->items == NULL)
        list->items = hl_arena_array(arena, STRANGERS_MAX, sizeof(*list->items));
    if (hl_arena_failed(arena) || one.container == NULL)
        return hl_fail(HL_ENOMEM, "out of memory listing containers without a record");
    if (list->count < STRANGERS_MAX)
        list->items[list->count++] = one;
    return HL_OK;
}

/* ---- shims ---- */

/* Directory of the shim if process `pid` is one; otherwise NULL. */
static char *shim_directory(const char *pid, struct hl_arena *arena)
{
    char path[64];
    HL_AUTO(hl_buf_fini) struct hl_buf line = HL_BUF(65536);
    snprintf(path, sizeof(path), "/proc/%.20s/cmdline", pid);
    if (hl_file_read(path, &line) != HL_OK || line.len < 8)
        return NULL;
    const char *end = line.data + line.len, *last = line.data;
    bool shim = false;
    if (strcmp(line.data, "helios-agent") != 0)
        return NULL;
    for (const char *p = line.data; p < end; p += strlen(p) + 1) {
        shim |= strcmp(p, "shim") == 0;
        last = p;
    }
    return shim && last[0] == '/' ? hl_arena_strdup(arena, last) : NULL;
}

static hl_status find_shims(const char *containers_dir, struct hl_arena *arena,
                            struct hl_stranger_list *out)
{
    hl_status st = HL_OK;
    DIR *proc = opendir("/proc");
    for (struct dirent *d; st == HL_OK && proc != NULL && (d = readdir(proc)) != NULL;) {
        uint64_t number;
        if (!hl_parse_number(d->d_name, INT32_MAX, &number))
            continue;
        char *dir = shim_directory(d->d_name, arena),
             *slash = dir != NULL ? strrchr(dir, '/') : NULL;
        if (slash == NULL || slash == dir)
            continue;
        *slash = '\0';
        bool own = strcmp(dir, containers_dir) == 0;
        if (own && access(hl_path_in(hl_path_in(dir, slash + 1).s, "spec.json").s, F_OK) == 0)
            continue; /* it has a record */
        st = list_add(out, arena,
                      (struct hl_stranger){.container = slash + 1,
                                           .owner = dir,
                                           .handle = hl_arena_strdup(arena, d->d_name),
                                           .own = own});
    }
    if (proc != NULL)
        closedir(proc);
    return st;
}

/* The ranks die with their shim; processes that they have started are in their control group. */
static hl_status end_shim(const struct hl_stranger *x)
{
    struct hl_process p;
    struct hl_cgroup group;
    char name[HL_GROUP_NAME_MAX];
    uint64_t pid;
    HL_AUTO(hl_closep) int fd = -1;
    if (!hl_parse_number(x->handle, INT32_MAX, &pid) ||
        hl_process_identify((pid_t)pid, &p) != HL_OK || hl_process_open(p, &fd) != HL_OK)
        return HL_OK; /* gone already */
    hl_group_name(hl_path_in(x->owner, x->container).s, x->container, name);
    hl_cgroup_find((pid_t)pid, name, &group);
    HL_TRY(hl_process_signal(fd, SIGKILL));
    if (!hl_process_wait(fd, END_MS))
        return hl_fail(HL_ETIMEDOUT, "shim %s of container %s does not end", x->handle,
                       x->container);
    return hl_cgroup_remove(&group, END_MS);
}

/* ---- containers of an engine ---- */

/* only: the container of this owner to find; NULL: all containers that have no record here. */
static hl_status add_labelled(char *line, const char *owner, const char *containers_dir,
                              const char *only, struct hl_arena *arena,
                              struct hl_stranger_list *out)
{
    char *id = strsep(&line, " "), *whose = strsep(&line, " "), *container = strsep(&line, " ");
    if (container == NULL || *container == '\0')
        return HL_OK;
    bool own = strcmp(whose, owner) == 0;
    struct hl_path record = hl_path_in(hl_path_in(containers_dir, container).s, "spec.json");
    bool wanted =
        only != NULL ? own && strcmp(only, container) == 0 : !own || access(record.s, F_OK) != 0;
    if (!wanted)
        return HL_OK;
    return list_add(out, arena,
                    (struct hl_stranger){.container = hl_arena_strdup(arena, container),
                                         .owner = hl_arena_strdup(arena, whose),
                                         .handle = hl_arena_strdup(arena, id),
                                         .own = own});
}

/* Lists the engine's containers that have the label; `state` = NULL: in any state. A container of
 * Helios is listed once for each of its ranks. */
static hl_status list_labelled(enum hl_engine_kind kind, const char *label, const char *state,
                               const char *containers_dir, const char *only, struct hl_arena *arena,
                               struct hl_stranger_list *out)
{
    struct hl_stranger_list list = {0};
    struct hl_engine_ranks e;
    char owner[16];
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    HL_TRY(hl_engine_client(kind, &e));
    hl_engine_owner(containers_dir, owner);
    struct hl_args args = hl_engine_args(&e, arena);
    const char *const having[] = {label, NULL};
    static const char *const shown[] = {HL_LABEL_OWNER, HL_LABEL_CONTAINER, NULL};
    hl_engine_list_args(kind, having, shown, &args);
    if (state != NULL)
        hl_args_printf(&args, "--filter=status=%s", state);
    if (hl_arena_failed(arena)) /* without a filter it would list others' containers */
        return hl_fail(HL_ENOMEM, "out of memory listing an engine's containers");
    HL_TRY(hl_engine_call(&e, &args, NULL, HL_ENGINE_CALL_MS, &r));
    char *at = r.out.data;
    for (char *line; at != NULL && (line = strsep(&at, "\n")) != NULL;)
        HL_TRY(add_labelled(line, owner, containers_dir, only, arena, &list));
    *out = list;
    return HL_OK;
}

hl_status hl_labelled_find(enum hl_engine_kind kind, const char *containers_dir, const char *only,
                           struct hl_arena *arena, struct hl_stranger_list *out)
{
    return list_labelled(kind, HL_LABEL_CONTAINER, NULL, containers_dir, only, arena, out);
}

static hl_status end_labelled(enum hl_engine_kind kind, const struct hl_stranger *x)
{
    struct hl_engine_ranks e;
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_command_fini) struct hl_command_result r = {0};
    HL_TRY(hl_engine_client(kind, &e));
    struct hl_args args = hl_engine_args(&e, &arena);
    hl_engine_remove_args(kind, &args);
    hl_args_add(&args, x->handle);
    return hl_engine_call(&e, &args, NULL, HL_ENGINE_CALL_MS, &r);
}

/* Lists what the engine runs for another state directory, whether its shim lives or not. */
static hl_status find_running(enum hl_engine_kind kind, const char *state_directory,
                              const char *containers_dir, struct hl_arena *arena,
                              struct hl_stranger_list *out)
{
    const char *label = hl_arena_printf(arena, HL_LABEL_STATE "=%s", state_directory);
    return list_labelled(kind, label, "running", containers_dir, NULL, arena, out);
}

/* ---- both ---- */

hl_status hl_strangers_find(enum hl_engine_kind engine, const char *containers_dir,
                            struct hl_arena *arena, struct hl_stranger_list *out)
{
    struct hl_stranger_list list = {0};
    HL_TRY(engine == HL_ENGINE_NONE ? find_shims(containers_dir, arena, &list)
                                    : hl_labelled_find(engine, containers_dir, NULL, arena, &list));
    *out = list;
    return HL_OK;
}

hl_status hl_stranger_end(enum hl_engine_kind engine, const struct hl_stranger *x)
{
    return engine == HL_ENGINE_NONE ? end_shim(x) : end_labelled(engine, x);
}

static bool shim_is_of(const struct hl_stranger *shim, const char *state_directory)
{
    char identity[64];
    hl_dir_identity(hl_path_in(shim->owner, "..").s, identity, sizeof(identity));
    return !shim->own && strcmp(identity, state_directory) == 0;
}

static void add_stray(struct hl_arena *arena, struct hl_api_text_list *ids, const char *container)
{
    for (size_t i = 0; i < ids->count; i++)
        if (strcmp(ids->items[i], container) == 0)
            return;
    hl_api_text_add(arena, ids, container);
}

hl_status hl_strays_list(enum hl_engine_kind engine, const char *state_directory,
                         const char *containers_dir, struct hl_arena *arena,
                         struct hl_api_text_list *out)
{
    HL_AUTO(hl_arena_fini) struct hl_arena scratch = {0};
    struct hl_stranger_list shims = {0}, ranks = {0};
    struct hl_api_text_list ids = {0};
    HL_TRY(find_shims(containers_dir, &scratch, &shims));
    if (engine != HL_ENGINE_NONE)
        HL_TRY(find_running(engine, state_directory, containers_dir, &scratch, &ranks));
    for (size_t i = 0; i < shims.count; i++)
        if (shim_is_of(&shims.items[i], state_directory))
            add_stray(arena, &ids, shims.items[i].container);
    for (size_t i = 0; i < ranks.count; i++)
        if (!ranks.items[i].own)
            add_stray(arena, &ids, ranks.items[i].container);
    if (hl_arena_failed(arena))
        return hl_fail(HL_ENOMEM, "out of memory listing containers of a silent Agent");
    *out = ids;
    return HL_OK;
}

/* Ends those whose shim is dead. */
static hl_status end_running(enum hl_engine_kind engine, const struct hl_stray *stray,
                             const char *containers_dir, bool *ended)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_stranger_list ranks = {0};
    HL_TRY(find_running(engine, stray->state_directory, containers_dir, &arena, &ranks));
    for (size_t i = 0; i < ranks.count; i++) {
        const struct hl_stranger *x = &ranks.items[i];
        if (x->own || strcmp(x->container, stray->container) != 0)
            continue;
        HL_TRY(end_labelled(engine, x));
        *ended = true;
    }
    return HL_OK;
}

hl_status hl_stray_end(enum hl_engine_kind engine, const struct hl_stray *stray,
                       const char *containers_dir, bool *ended)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_stranger_list shims = {0}, ranks = {0};
    *ended = false;
    HL_TRY(find_shims(containers_dir, &arena, &shims));
    for (size_t i = 0; i < shims.count; i++) {
        const struct hl_stranger *x = &shims.items[i];
        if (strcmp(x->container, stray->container) != 0 || !shim_is_of(x, stray->state_directory))
            continue;
        if (engine != HL_ENGINE_NONE) /* the ranks outlive their shim */
            HL_TRY(hl_labelled_find(engine, x->owner, x->container, &arena, &ranks));
        for (size_t k = 0; k < ranks.count; k++)
            HL_TRY(end_labelled(engine, &ranks.items[k]));
        HL_TRY(end_shim(x));
        *ended = true;
    }
    return engine != HL_ENGINE_NONE ? end_running(engine, stray, containers_dir, ended) : HL_OK;
}

void hl_px_sweep(struct hl_px *px)
{
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    struct hl_stranger_list list;
    if (hl_strangers_find(px->options.engine, px->containers.s, &arena, &list) != HL_OK) {
        hl_warn("containers without a record are not looked for: %s", hl_error_text());
        return;
    }
    for (size_t i = 0; i < list.count; i++) {
        const struct hl_stranger *x = &list.items[i];
        if (!x->own)
            hl_info("container %s of %s is also on this machine", x->container, x->owner);
        else if (hl_stranger_end(px->options.engine, x) == HL_OK)
            hl_info("container %s no longer had a record here and was ended (%s)", x->container,
                    x->handle);
        else
            hl_warn("container %s no longer has a record here: %s", x->container, hl_error_text());
    }
}
