/* One hash table of objects per kind, and one of pods by job. A change marks the jobs that it
 * affects as dirty; the loop judges those. */
#include "ranktabled/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "core/json.h"

#define PARTIAL "PartialObjectMetadata" /* the kind of an object with nothing but metadata */

struct cached_pod {
    struct cache_entry entry;
    struct hl_ranktable_pod *pod;
    struct cached_group *group;
};

struct cached_group {
    char *key;
    const struct hl_ranktable_pod **pods; /* sorted by age, so that callers have little to sort */
    size_t count, cap;
    size_t ready; /* number of ready pods */
    UT_hash_handle hh;
};

const char *cache_meta(const json_t *object, const char *key)
{
    return hl_json_str(json_object_get(object, "metadata"), key, "");
}

static void full_name(const char *ns, const char *name, char *out)
{
    snprintf(out, CACHE_KEY_MAX, "%.300s/%.300s", ns, name);
}

static void key_of(enum cache_kind kind, const char *ns, const char *name, char *out)
{
    static const char *const names[] = {"vcjob", "job", "deployment", "pod", "configmap"};
    snprintf(out, CACHE_KEY_MAX, "%s %.300s/%.300s", names[kind], ns, name);
}

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating the cache of the API server's objects");
}

static struct cache_entry *cache_find(const struct cache *c, enum cache_kind kind, const char *key)
{
    struct cache_entry *e = NULL;
    HASH_FIND_STR(c->all[kind], key, e);
    return e;
}

/* NULL: out of memory. The entry counts as listed. */
static struct cache_entry *find_or_make(struct cache *c, enum cache_kind kind, const char *key,
                                        bool *is_new)
{
    static const size_t sizes[CACHE_KINDS] = {
        [CACHE_VCJOBS] = sizeof(struct cached_job),      [CACHE_JOBS] = sizeof(struct cached_job),
        [CACHE_DEPLOYMENTS] = sizeof(struct cached_job), [CACHE_PODS] = sizeof(struct cached_pod),
        [CACHE_MAPS] = sizeof(struct cached_map),
    };
    struct cache_entry *e = cache_find(c, kind, key);
    *is_new = e == NULL;
    if (*is_new) {
        e = calloc(1, sizes[kind]);
        if (e == NULL || (e->key = strdup(key)) == NULL) {
            free(e);
            return NULL;
        }
        e->kind = kind;
        HASH_ADD_KEYPTR(hh, c->all[kind], e->key, strlen(e->key), e);
    }
    e->listed = true;
    return e;
}

/* ---- whom it concerns ------------------------------------------------------------------------ */

/* Marks the group's job. It runs for each event of a pod, so names are compared only if their
 * hashes are equal. */
static void mark_owner(struct cache *c, const struct cached_group *g)
{
    char key[CACHE_KEY_MAX];
    for (struct cached_job *j = c->jobs; j != NULL; j = j->next) {
        if (j->hash != g->hh.hashv)
            continue;
        full_name(j->ns, j->name, key);
        j->dirty |= strcmp(key, g->key) == 0;
    }
}

/* Marks the jobs of a ConfigMap. but_writers: not a job that is writing it, because the change can
 * be its own write; the answer to the write tells. */
static void mark_users(struct cache *c, const char *ns, const char *map, bool but_writers)
{
    for (struct cached_job *j = c->jobs; j != NULL; j = j->next)
        if (strcmp(j->map, map) == 0 && strcmp(j->ns, ns) == 0 && !(but_writers && j->writing))
            j->dirty = true;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static bool same_member(const json_t *a, const json_t *b, const char *key)
{
    const json_t *x = json_object_get(a, key), *y = json_object_get(b, key);
    return x == y || json_equal(x, y);
}

/* Whatever else changes, with every pod that starts or ends, does not matter to the table. */
static bool same_job(const json_t *a, const json_t *b)
{
    return same_member(a, b, "spec") && strcmp(cache_meta(a, "uid"), cache_meta(b, "uid")) == 0 &&
           same_member(json_object_get(a, "status"), json_object_get(b, "status"), "version");
}

static hl_status put_job(struct cache *c, struct cache_entry *e, json_t *object)
{
    struct cached_job *j = (struct cached_job *)e;
    if (j->object == NULL)
        DL_APPEND(c->jobs, j);
    if (j->object == NULL || j->gone || !same_job(j->object, object)) {
        j->dirty = true;
        j->look_ns = 0;
    }
    j->gone = false;
    json_incref(object);
    json_decref(j->object);
    j->object = object;
    j->ns = cache_meta(object, "namespace");
    j->name = cache_meta(object, "name");
    hl_ranktable_config_map(object, j->map, sizeof(j->map));
    char key[CACHE_KEY_MAX];
    full_name(j->ns, j->name, key);
    HASH_VALUE(key, strlen(key), j->hash);
    return HL_OK;
}

static void free_entry(struct cache *c, struct cache_entry *e)
{
    HASH_DEL(c->all[e->kind], e);
    free(e->key);
    free(e);
}

void cache_forget(struct cache *c, struct cached_job *job)
{
    DL_DELETE(c->jobs, job);
    json_decref(job->object);
    free_entry(c, &job->entry);
}

/* Another job with the same ConfigMap may have waited for this. */
static void drop_job(struct cache *c, struct cache_entry *e)
{
    struct cached_job *j = (struct cached_job *)e;
    j->gone = true;
    mark_users(c, j->ns, j->map, false);
    if (!j->writing)
        cache_forget(c, j);
}

/* ---- pods ------------------------------------------------------------------------------------ */

static struct cached_group *group_of(struct cache *c, const struct hl_ranktable_pod *pod)
{
    struct cached_group *g = NULL; /* pods without a job are in group "", which no job is called */
    char key[CACHE_KEY_MAX];
    full_name(pod->ns, pod->job != NULL ? pod->job : "", key);
    HASH_FIND_STR(c->groups, key, g);
    if (g != NULL)
        return g;
    g = calloc(1, sizeof(*g));
    if (g == NULL || (g->key = strdup(key)) == NULL) {
        free(g);
        return NULL;
    }
    HASH_ADD_KEYPTR(hh, c->groups, g->key, strlen(g->key), g);
    return g;
}

static void end_if_empty(struct cache *c, struct cached_group *g)
{
    if (g->count > 0)
        return;
    HASH_DEL(c->groups, g);
    free(g->pods);
    free(g->key);
    free(g);
}

static bool is_ready(const struct hl_ranktable_pod *pod)
{
    return pod->st == HL_OK && !pod->gone;
}

static void leave_group(struct cache *c, const struct cached_pod *p)
{
    struct cached_group *g = p->group;
    size_t i = 0;
    g->ready -= is_ready(p->pod);
    while (g->pods[i] != p->pod)
        i++;
    memmove(&g->pods[i], &g->pods[i + 1], (--g->count - i) * sizeof(*g->pods));
    end_if_empty(c, g);
}

static hl_status join_group(struct cached_group *g, const struct hl_ranktable_pod *pod)
{
    size_t i = g->count;
    if (g->count == g->cap) {
        size_t cap = g->cap > 0 ? 2 * g->cap : 4;
        const struct hl_ranktable_pod **pods = realloc(g->pods, cap * sizeof(*pods));
        if (pods == NULL)
            return no_memory();
        g->pods = pods;
        g->cap = cap;
    }
    for (; i > 0 && hl_ranktable_pod_order(g->pods[i - 1], pod) > 0; i--)
        g->pods[i] = g->pods[i - 1];
    g->pods[i] = pod;
    g->count++;
    g->ready += is_ready(pod);
    return HL_OK;
}

static hl_status change_pod(struct cache *c, struct cached_pod *p, struct hl_ranktable_pod *pod)
{
    struct cached_group *g = group_of(c, pod);
    hl_status st = g != NULL ? join_group(g, pod) : no_memory();
    if (st != HL_OK) {
        if (g != NULL)
            end_if_empty(c, g);
        return st;
    }
    if (p->group != NULL) { /* after joining: this can be the last pod of the same group */
        mark_owner(c, p->group);
        leave_group(c, p);
    }
    mark_owner(c, g);
    p->group = g;
    hl_ranktable_pod_free(p->pod);
    p->pod = pod;
    return HL_OK;
}

hl_status cache_put_pod(struct cache *c, struct hl_ranktable_pod *pod)
{
    bool is_new;
    struct cache_entry *e = find_or_make(c, CACHE_PODS, pod->uid, &is_new);
    struct cached_pod *p = (struct cached_pod *)e;
    if (p != NULL && p->pod != NULL && hl_ranktable_pod_equal(p->pod, pod)) {
        hl_ranktable_pod_free(pod);
        return HL_OK;
    }
    hl_status st = p != NULL ? change_pod(c, p, pod) : no_memory();
    if (st != HL_OK) {
        hl_ranktable_pod_free(pod);
        if (e != NULL && is_new)
            free_entry(c, e);
    }
    return st;
}

static void drop_pod(struct cache *c, struct cache_entry *e)
{
    struct cached_pod *p = (struct cached_pod *)e;
    mark_owner(c, p->group);
    leave_group(c, p);
    hl_ranktable_pod_free(p->pod);
    free_entry(c, e);
}

void cache_drop_pod(struct cache *c, const char *uid)
{
    struct cache_entry *e = cache_find(c, CACHE_PODS, uid);
    if (e != NULL)
        drop_pod(c, e);
}

/* NULL: the job has no pods. */
static const struct cached_group *group_of_job(const struct cache *c, const struct cached_job *job)
{
    struct cached_group *g = NULL;
    char key[CACHE_KEY_MAX];
    full_name(job->ns, job->name, key);
    HASH_FIND_STR(c->groups, key, g);
    return g;
}

const struct hl_ranktable_pod *const *cache_pods_of(struct cache *c, const struct cached_job *job,
                                                    size_t *count)
{
    const struct cached_group *g = group_of_job(c, job);
    *count = g != NULL ? g->count : 0;
    return g != NULL ? g->pods : NULL;
}

size_t cache_ready_of(struct cache *c, const struct cached_job *job)
{
    const struct cached_group *g = group_of_job(c, job);
    return g != NULL ? g->ready : 0;
}

/* ---- ConfigMaps ------------------------------------------------------------------------------ */

static bool same_text(const char *a, const char *b)
{
    return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

static bool is_version(const char *version)
{
    return version[0] != '\0' && strlen(version) < CACHE_VERSION_MAX;
}

static void set_version(char *at, const char *version)
{
    snprintf(at, CACHE_VERSION_MAX, "%s", version);
}

/* Takes a version from a watch. */
static void see_version(struct cache *c, struct cached_map *m, const char *version)
{
    set_version(m->seen, version);
    m->unread = strcmp(m->version, version) != 0;
    if (m->unread)
        mark_users(c, m->ns, m->name, true);
}

/* Takes a complete ConfigMap. *news: its text is different. */
static hl_status take_map(struct cached_map *m, const json_t *object, int *news)
{
    const char *text = hl_json_str(json_object_get(object, "data"), HL_RANKTABLE_KEY, NULL);
    char *copy = text != NULL ? strdup(text) : NULL;
    if (copy == NULL && text != NULL)
        return no_memory();
    *news = !same_text(m->text, text);
    free(m->text);
    m->text = copy;
    set_version(m->version, cache_meta(object, "resourceVersion"));
    return HL_OK;
}

static hl_status put_whole(struct cache *c, struct cached_map *m, const json_t *object, bool is_new)
{
    int news;
    HL_TRY(take_map(m, object, &news));
    set_version(m->seen, m->version);
    m->unread = false;
    if (is_new || news)
        mark_users(c, m->ns, m->name, false);
    return HL_OK;
}

static void free_map(struct cached_map *m)
{
    free(m->ns);
    free(m->name);
    free(m->text);
}

static hl_status put_map(struct cache *c, struct cache_entry *e, json_t *object)
{
    struct cached_map *m = (struct cached_map *)e;
    const char *version = cache_meta(object, "resourceVersion");
    bool is_new = m->ns == NULL, is_whole = strcmp(hl_json_str(object, "kind", ""), PARTIAL) != 0;
    if (!is_version(version))
        return hl_fail(HL_EPROTO, "%s: invalid resourceVersion '%.64s'", e->key, version);
    if (is_new) {
        m->ns = strdup(cache_meta(object, "namespace"));
        m->name = strdup(cache_meta(object, "name"));
    }
    hl_status st = m->ns == NULL || m->name == NULL ? no_memory() : HL_OK;
    if (st == HL_OK && is_whole)
        st = put_whole(c, m, object, is_new);
    else if (st == HL_OK)
        see_version(c, m, version);
    if (st != HL_OK && is_new)
        free_map(m); /* the caller removes the entry */
    return st;
}

static void drop_map(struct cache *c, struct cache_entry *e)
{
    struct cached_map *m = (struct cached_map *)e;
    mark_users(c, m->ns, m->name, false);
    free_map(m);
    free_entry(c, e);
}

struct cached_map *cache_map_of(struct cache *c, const struct cached_job *job)
{
    char key[CACHE_KEY_MAX];
    key_of(CACHE_MAPS, job->ns, job->map, key);
    return cache_map(c, key);
}

bool cache_wrote(struct cached_map *m, const char *before, const char *after, char **text)
{
    if (!is_version(after) || strcmp(m->version, before) != 0)
        return false;
    free(m->text);
    m->text = hl_steal(text);
    set_version(m->version, after);
    if (strcmp(m->seen, after) == 0)
        m->unread = false;
    return !m->unread;
}

void cache_was_read(struct cached_map *m, const json_t *object, const char *seen)
{
    int news;
    if (!is_version(cache_meta(object, "resourceVersion")) || take_map(m, object, &news) != HL_OK)
        return;
    /* The answer is at least as new as `seen`. If another version was seen since, it can be
     * newer. */
    m->unread = strcmp(m->seen, seen) != 0 && strcmp(m->seen, m->version) != 0;
}

static bool came_before(const struct cached_job *a, const struct cached_job *b)
{
    int order = strcmp(cache_meta(a->object, "creationTimestamp"),
                       cache_meta(b->object, "creationTimestamp"));
    return order != 0 ? order < 0 : strcmp(a->entry.key, b->entry.key) < 0;
}

const struct cached_job *cache_rival(struct cache *c, const struct cached_job *job)
{
    for (const struct cached_job *j = c->jobs; j != NULL; j = j->next)
        if (j != job && !j->gone && strcmp(j->map, job->map) == 0 && strcmp(j->ns, job->ns) == 0 &&
            came_before(j, job))
            return j;
    return NULL;
}

/* ---- all kinds ------------------------------------------------------------------------------- */

static const struct {
    hl_status (*put)(struct cache *c, struct cache_entry *e, json_t *object);
    void (*drop)(struct cache *c, struct cache_entry *e);
} kinds[CACHE_KINDS] = {
    [CACHE_VCJOBS] = {put_job, drop_job},      [CACHE_JOBS] = {put_job, drop_job},
    [CACHE_DEPLOYMENTS] = {put_job, drop_job}, [CACHE_PODS] = {.drop = drop_pod},
    [CACHE_MAPS] = {put_map, drop_map},
};

struct cached_job *cache_job(struct cache *c, enum cache_kind kind, const char *key)
{
    return (struct cached_job *)cache_find(c, kind, key);
}

struct cached_map *cache_map(struct cache *c, const char *key)
{
    return (struct cached_map *)cache_find(c, CACHE_MAPS, key);
}

hl_status cache_put(struct cache *c, enum cache_kind kind, json_t *object)
{
    char key[CACHE_KEY_MAX];
    struct hl_ranktable_pod *pod;
    bool is_new;
    if (kind == CACHE_PODS) {
        HL_TRY(hl_ranktable_pod_read(object, &pod));
        return cache_put_pod(c, pod);
    }
    key_of(kind, cache_meta(object, "namespace"), cache_meta(object, "name"), key);
    struct cache_entry *e = find_or_make(c, kind, key, &is_new);
    hl_status st = e != NULL ? kinds[kind].put(c, e, object) : no_memory();
    if (st != HL_OK && e != NULL && is_new)
        free_entry(c, e);
    return st;
}

void cache_drop(struct cache *c, enum cache_kind kind, const json_t *object)
{
    char key[CACHE_KEY_MAX];
    if (kind == CACHE_PODS) {
        cache_drop_pod(c, cache_meta(object, "uid"));
        return;
    }
    key_of(kind, cache_meta(object, "namespace"), cache_meta(object, "name"), key);
    struct cache_entry *e = cache_find(c, kind, key);
    if (e != NULL)
        kinds[kind].drop(c, e);
}

void cache_list_begin(struct cache *c, enum cache_kind kind)
{
    for (struct cache_entry *e = c->all[kind]; e != NULL; e = e->hh.next)
        e->listed = false;
}

void cache_list_end(struct cache *c, enum cache_kind kind)
{
    struct cache_entry *e, *next;
    HASH_ITER (hh, c->all[kind], e, next)
        if (!e->listed)
            kinds[kind].drop(c, e);
}

void cache_fini(struct cache *c)
{
    struct cache_entry *e, *next;
    for (struct cached_job *j = c->jobs; j != NULL; j = j->next)
        j->writing = false; /* no request is left that would forget it */
    for (int kind = 0; kind < CACHE_KINDS; kind++)
        HASH_ITER (hh, c->all[kind], e, next)
            kinds[kind].drop(c, e);
}
