/* Calls of docker and podman. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/engine/engine_ranks.h"
#include "os/command.h"

struct hl_args hl_engine_args(const struct hl_engine_ranks *e, struct hl_arena *arena)
{
    struct hl_args args = {.arena = arena};
    hl_args_add(&args, hl_engine_name(e->kind));
    return args;
}

hl_status hl_engine_client(enum hl_engine_kind kind, struct hl_engine_ranks *out)
{
    *out = (struct hl_engine_ranks){.kind = kind};
    return hl_process_find(hl_engine_name(kind), getenv("PATH"), out->program,
                           sizeof(out->program));
}

static bool holds_one(const char *text, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strstr(text, *words) != NULL)
            return true;
    return false;
}

/* The decisive line of an error: the daemon's message if there is one, otherwise the last line,
 * because warnings come before it. */
static void telling_line(const char *text, char *out, size_t size)
{
    static const char *const daemon = "Error response from daemon: ";
    const char *said = strstr(text, daemon), *end = text + strlen(text), *begin;
    if (said != NULL) {
        said += strlen(daemon);
        snprintf(out, size, "%.*s", (int)strcspn(said, "\n"), said);
        return;
    }
    while (end > text && (end[-1] == '\n' || end[-1] == ' '))
        end--;
    for (begin = end; begin > text && begin[-1] != '\n';)
        begin--;
    snprintf(out, size, "%.*s", (int)(end - begin), begin);
}

/* Advice for errors that the engine's own message does not explain. */
static const char *advice_for(const char *line)
{
    return strstr(line, "requested cgroup controller") != NULL
               ? "; systemd has to delegate it to the Agent's user (docs/executors.md), or root to "
                 "run the Agent"
               : "";
}

static hl_status explain_call(const struct hl_engine_ranks *e, const struct hl_args *args,
                              const struct hl_command_result *r)
{
    static const char *const down[] = {"Cannot connect to the Docker daemon",
                                       "Is the docker daemon running",
                                       "error during connect",
                                       "unable to connect to Podman",
                                       "Cannot connect to Podman",
                                       NULL};
    static const char *const absent[] = {
        "No such container", "No such object", "No such image",   "no such container",
        "no such object",    "no such image",  "image not known", NULL};
    const char *text = hl_command_text(&r->err);
    char line[400];
    hl_status st = holds_one(text, down)     ? HL_EUNAVAIL
                   : holds_one(text, absent) ? HL_ENOENT
                                             : HL_EIO;
    telling_line(text, line, sizeof(line));
    if (st == HL_EUNAVAIL)
        return hl_fail(st, "%s does not answer (%s); start its daemon on this node", e->program,
                       line);
    return hl_fail(st, "%s %s: %s%s", hl_engine_name(e->kind), args->count > 1 ? args->v[1] : "",
                   line[0] != '\0' ? line : "it failed without a message", advice_for(line));
}

/* The caller's environment follows `more`, because of two variables with one name the first
 * counts. */
static hl_status whole_env(const struct hl_args *more, struct hl_args *out)
{
    for (size_t i = 0; more != NULL && i < more->count; i++)
        hl_args_add(out, more->v[i]);
    for (char **p = environ; *p != NULL; p++)
        hl_args_add(out, *p);
    return hl_args_end(out);
}

hl_status hl_engine_run(const struct hl_engine_ranks *e, struct hl_args *args,
                        const struct hl_args *env, struct hl_command command,
                        struct hl_command_result *out)
{
    struct hl_args all = {.arena = args->arena};
    HL_TRY(hl_args_end(args));
    HL_TRY(whole_env(env, &all));
    command.program = e->program;
    command.argv = args->v;
    command.env = all.v;
    hl_status st = hl_command_run(&command, out);
    if (st != HL_OK && st != HL_ETIMEDOUT && st != HL_ECANCELED) /* HL_ENOENT = no container */
        return hl_fail_prefix(HL_EUNAVAIL, "%s does not answer: ", hl_engine_name(e->kind));
    HL_TRY(st);
    return out->exit_code == 0 ? HL_OK : explain_call(e, args, out);
}

hl_status hl_engine_call(const struct hl_engine_ranks *e, struct hl_args *args,
                         const struct hl_args *env, int timeout_ms, struct hl_command_result *out)
{
    return hl_engine_run(e, args, env, (struct hl_command){.timeout_ms = timeout_ms}, out);
}
