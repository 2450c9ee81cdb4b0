/* Chooses what starts gangs, if the option leaves that to us (kube.podgroups=auto): a worker thread
 * asks the API server which APIs it serves, until it names one that we know.
 *
 *     gangs_start --> engine_start --> asked --> engine_take --> watches
 *                          ^             | no answer, or neither served
 *                          '-- not yet <-'
 *
 * The choice is kept in a file: existing gangs stay with their engine, even if another one is
 * served since. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/log.h"
#include "controller/background.h"
#include "controller/kube/gangs_private.h"
#include "os/file.h"

#define ASK_MS  200
#define ASK_TOP 10000

struct ask {
    struct background task;
    struct gangs *g;
    bool served[HL_GANG_ENGINES];
};

/* ---- in a worker thread ---------------------------------------------------------------------- */

static hl_status ask_one(struct ask *k, size_t engine)
{
    const struct hl_gang_root root = hl_gang_root(hl_gang_versions[engine]);
    char path[128];
    json_t *list = NULL;
    snprintf(path, sizeof(path), "/apis/%s", root.api);
    hl_status st =
        hl_kube_call(k->g->api,
                     &(struct hl_kube_request){
                         .method = "GET", .path = path, .timeout_ms = k->g->c->opts.rpc_timeout_ms},
                     &list);
    if (st == HL_OK)
        k->served[engine] = hl_gang_is_served(&root, list);
    json_decref(list);
    return st == HL_ENOENT ? HL_OK : st;
}

static hl_status ask_run(struct background *task)
{
    struct ask *k = (struct ask *)task;
    for (size_t i = 0; i < HL_GANG_ENGINES; i++)
        HL_TRY(ask_one(k, i));
    return HL_OK;
}

/* ---- on the loop ----------------------------------------------------------------------------- */

static void kept_path(const struct gangs *g, char out[PATH_MAX])
{
    snprintf(out, PATH_MAX, "%.3800s/kube.engine", g->engine.dir);
}

/* "volcano" or a version; any other content was not written by us. */
static bool read_kept(const struct gangs *g, char *out, size_t cap)
{
    char path[PATH_MAX];
    HL_AUTO(hl_buf_fini) struct hl_buf text = HL_BUF(64);
    kept_path(g, path);
    if (hl_file_read(path, &text) != HL_OK || text.data == NULL)
        return false;
    size_t n = strcspn(text.data, "\n");
    snprintf(out, cap, "%.*s", (int)n, text.data);
    return hl_gang_version_of(out) != NULL;
}

static void write_kept(const struct gangs *g)
{
    char path[PATH_MAX], text[64];
    int n = snprintf(text, sizeof(text), "%s\n", hl_gang_engine_name(g->podgroups));
    kept_path(g, path);
    if (hl_file_write_durable(path, text, (size_t)n, 0644) != HL_OK)
        hl_warn("the choice of what starts gangs can't be stored error=\"%s\"", hl_error_text());
}

/* version: one of hl_gang_versions. */
static void engine_set(struct gangs *g, const char *version)
{
    g->podgroups = version;
    g->root = hl_gang_root(version);
    g->volcano.podgroups = version;
}

static void engine_take(struct gangs *g, const char *version)
{
    if (g->engine.is_known && strcmp(version, g->podgroups) != 0)
        hl_warn("Kubernetes: %s is no longer served; gangs that it has started are lost",
                g->root.api);
    engine_set(g, version);
    g->engine.is_known = true;
    g->engine.problem[0] = '\0';
    if (g->engine.watch(g) != HL_OK) {
        snprintf(g->engine.problem, sizeof(g->engine.problem), "%s", hl_error_text());
        g->engine.not_before_ns = UINT64_MAX; /* some of the watches may exist already */
        hl_error("Kubernetes is not watched error=\"%s\"", hl_error_text());
        return;
    }
    g->engine.is_decided = true;
    write_kept(g);
    hl_info("gangs are started by %s of %s", g->root.kind, g->root.api);
}

/* problem: why the engine is not known. */
static void engine_wait(struct gangs *g, const char *problem)
{
    uint64_t ms = hl_backoff_ms(ASK_MS, ASK_TOP, g->engine.tries++);
    if (strcmp(g->engine.problem, problem) != 0)
        hl_warn("Kubernetes: unknown yet what starts gangs error=\"%s\"", problem);
    snprintf(g->engine.problem, sizeof(g->engine.problem), "%s", problem);
    g->engine.not_before_ns = hl_now_ns() + ms * HL_NS_PER_MS;
}

static void on_asked(struct background *task, hl_status st)
{
    struct ask *k = (struct ask *)task;
    struct gangs *g = k->g;
    const char *version = NULL;
    char why[sizeof(g->engine.problem)];
    snprintf(why, sizeof(why), "%s", st != HL_OK ? hl_error_text() : "");
    g->calls--;
    g->engine.is_asked = false;
    if (!controller_stopped(g->c)) {
        if (st == HL_OK)
            version = hl_gang_choose(k->served, g->engine.is_known ? g->podgroups : NULL);
        if (st == HL_OK && version == NULL)
            snprintf(why, sizeof(why),
                     "%s serves neither Volcano (batch.volcano.sh/v1alpha1) nor PodGroups of "
                     "scheduling.k8s.io: install Volcano, or turn on Kubernetes' own "
                     "(docs/kubernetes.md)",
                     g->config->server);
        if (version != NULL)
            engine_take(g, version);
        else
            engine_wait(g, why);
    }
    free(k);
}

void engine_tick(struct gangs *g)
{
    if (g->engine.is_decided || g->engine.is_asked || hl_now_ns() < g->engine.not_before_ns)
        return;
    struct ask *k = calloc(1, sizeof(*k));
    if (k == NULL)
        return;
    k->g = g;
    k->task.run = ask_run;
    k->task.done = on_asked;
    if (background_start(g->c, &k->task) != HL_OK) {
        free(k);
        return;
    }
    g->calls++;
    g->engine.is_asked = true;
}

hl_status engine_start(struct gangs *g, const char *option, const char *state_dir)
{
    char kept[64];
    snprintf(g->engine.dir, sizeof(g->engine.dir), "%s", state_dir);
    if (strcmp(option, "auto") != 0) {
        engine_set(g, hl_gang_version_of(option));
        g->engine.is_known = g->engine.is_decided = true;
        HL_TRY(g->engine.watch(g));
        write_kept(g);
        return HL_OK;
    }
    g->engine.is_known = read_kept(g, kept, sizeof(kept));
    engine_set(g, g->engine.is_known ? hl_gang_version_of(kept) : "");
    engine_tick(g);
    return HL_OK;
}

/* The engine decides what a job may ask for. */
hl_status engine_check(const struct gangs *g)
{
    if (g->engine.is_known)
        return HL_OK;
    return hl_fail(HL_EUNAVAIL, "it is not known yet what starts gangs on Kubernetes: %s",
                   g->engine.problem[0] != '\0' ? g->engine.problem
                                                : "the API server has not answered; try again");
}
