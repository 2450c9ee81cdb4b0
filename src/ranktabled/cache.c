#include "ranktabled/cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "core/json.h"

struct cached_pod {
    char *uid;
    json_t *object;
    struct cached_group *group;
    int listed;
    struct cached_pod *prev, *next; /* in its group */
    UT_hash_handle hh;
};

struct cached_group {
    char *key;
    struct cached_pod *pods;
    UT_hash_handle hh;
};

struct cached_map {
    char *key;
    json_t *object;
    int listed;
    UT_hash_handle hh;
};

const char *cache_meta(const json_t *object, const char *key)
{
    return hl_json_str(json_object_get(object, "metadata"), key, "");
}

static void name_key(const json_t *object, const char *name, char *out)
{
    snprintf(out, CACHE_KEY_MAX, "%.300s/%.300s", cache_meta(object, "namespace"), name);
}

static void job_key(enum hl_ranktable_kind kind, const json_t *job, char *out)
{
    static const char *const kinds[] = {"vcjob", "job", "deployment"};
    snprintf(out, CACHE_KEY_MAX, "%s %.300s/%.300s", kinds[kind], cache_meta(job, "namespace"),
             cache_meta(job, "name"));
}

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "memory is short for the cache of the API server's objects");
}

static void replace(json_t **at, json_t *object)
{
    json_incref(object);
    json_decref(*at);
    *at = object;
}

/* ---- whom it concerns ------------------------------------------------------------------------ */

static void mark_jobs(struct cache *c, const char *name_space, const char *name)
{
    for (struct cached_job *j = c->jobs; j != NULL; j = j->hh.next)
        if (strcmp(cache_meta(j->object, "namespace"), name_space) == 0 &&
            strcmp(cache_meta(j->object, "name"), name) == 0)
            j->dirty = 1;
}

static void mark_users(struct cache *c, const json_t *map)
{
    char name[256];
    for (struct cached_job *j = c->jobs; j != NULL; j = j->hh.next) {
        if (strcmp(cache_meta(j->object, "namespace"), cache_meta(map, "namespace")) != 0)
            continue;
        hl_ranktable_config_map(j->object, name, sizeof(name));
        if (strcmp(name, cache_meta(map, "name")) == 0)
            j->dirty = 1;
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

struct cached_job *cache_job(struct cache *c, const char *key)
{
    struct cached_job *j = NULL;
    HASH_FIND_STR(c->jobs, key, j);
    return j;
}

hl_status cache_put_job(struct cache *c, enum hl_ranktable_kind kind, json_t *job)
{
    char key[CACHE_KEY_MAX];
    job_key(kind, job, key);
    struct cached_job *j = cache_job(c, key);
    if (j == NULL) {
        j = calloc(1, sizeof(*j));
        if (j == NULL || (j->key = strdup(key)) == NULL) {
            free(j);
            return no_memory();
        }
        j->kind = kind;
        HASH_ADD_KEYPTR(hh, c->jobs, j->key, strlen(j->key), j);
    }
    replace(&j->object, job);
    j->listed = 1;
    j->dirty = 1;
    j->gone = 0;
    return HL_OK;
}

void cache_forget(struct cache *c, struct cached_job *job)
{
    HASH_DEL(c->jobs, job);
    json_decref(job->object);
    free(job->key);
    free(job);
}

/* Another job of its ConfigMap may have waited for this. */
static void drop_job(struct cache *c, struct cached_job *job)
{
    char map[256];
    json_t *user = json_incref(job->object);
    job->gone = 1;
    if (!job->writing)
        cache_forget(c, job);
    hl_ranktable_config_map(user, map, sizeof(map));
    json_t *like = json_pack("{s:{s:s s:s}}", "metadata", "namespace",
                             cache_meta(user, "namespace"), "name", map);
    mark_users(c, like);
    json_decref(like);
    json_decref(user);
}

void cache_drop_job(struct cache *c, enum hl_ranktable_kind kind, const json_t *job)
{
    char key[CACHE_KEY_MAX];
    job_key(kind, job, key);
    struct cached_job *j = cache_job(c, key);
    if (j != NULL)
        drop_job(c, j);
}

hl_status cache_list_jobs(struct cache *c, enum hl_ranktable_kind kind, const json_t *jobs)
{
    struct cached_job *j, *next;
    json_t *job;
    size_t i;
    for (j = c->jobs; j != NULL; j = j->hh.next)
        j->listed = j->kind != kind;
    json_array_foreach (jobs, i, job)
        HL_TRY(cache_put_job(c, kind, job));
    HASH_ITER (hh, c->jobs, j, next)
        if (!j->listed)
            drop_job(c, j);
    return HL_OK;
}

/* ---- pods ------------------------------------------------------------------------------------ */

static struct cached_group *group_of(struct cache *c, const json_t *pod)
{
    struct cached_group *g = NULL;
    char key[CACHE_KEY_MAX];
    const char *job = hl_ranktable_job_of(pod);
    name_key(pod, job != NULL ? job : "", key);
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

static void leave_group(struct cache *c, struct cached_pod *p)
{
    struct cached_group *g = p->group;
    DL_DELETE(g->pods, p);
    p->group = NULL;
    if (g->pods != NULL)
        return;
    HASH_DEL(c->groups, g);
    free(g->key);
    free(g);
}

static void mark_of_pod(struct cache *c, const json_t *pod)
{
    const char *job = hl_ranktable_job_of(pod);
    if (job != NULL)
        mark_jobs(c, cache_meta(pod, "namespace"), job);
}

static struct cached_pod *find_pod(struct cache *c, const json_t *pod)
{
    struct cached_pod *p = NULL;
    const char *uid = cache_meta(pod, "uid");
    HASH_FIND_STR(c->pods, uid, p);
    return p;
}

hl_status cache_put_pod(struct cache *c, json_t *pod)
{
    struct cached_pod *p = find_pod(c, pod);
    struct cached_group *g = group_of(c, pod);
    if (g == NULL)
        return no_memory();
    if (p == NULL) {
        p = calloc(1, sizeof(*p));
        if (p == NULL || (p->uid = strdup(cache_meta(pod, "uid"))) == NULL) {
            free(p);
            return no_memory();
        }
        HASH_ADD_KEYPTR(hh, c->pods, p->uid, strlen(p->uid), p);
    }
    if (p->object != NULL && p->group != g)
        mark_of_pod(c, p->object); /* it was another job's */
    if (p->group != g) {
        if (p->group != NULL)
            leave_group(c, p);
        DL_APPEND(g->pods, p);
        p->group = g;
    }
    replace(&p->object, pod);
    p->listed = 1;
    mark_of_pod(c, pod);
    return HL_OK;
}

static void drop_pod(struct cache *c, struct cached_pod *p)
{
    mark_of_pod(c, p->object);
    leave_group(c, p);
    HASH_DEL(c->pods, p);
    json_decref(p->object);
    free(p->uid);
    free(p);
}

void cache_drop_pod(struct cache *c, const json_t *pod)
{
    struct cached_pod *p = find_pod(c, pod);
    if (p != NULL)
        drop_pod(c, p);
}

hl_status cache_list_pods(struct cache *c, const json_t *pods)
{
    struct cached_pod *p, *next;
    json_t *pod;
    size_t i;
    for (p = c->pods; p != NULL; p = p->hh.next)
        p->listed = 0;
    json_array_foreach (pods, i, pod)
        HL_TRY(cache_put_pod(c, pod));
    HASH_ITER (hh, c->pods, p, next)
        if (!p->listed)
            drop_pod(c, p);
    return HL_OK;
}

json_t *cache_pods_of(struct cache *c, const json_t *job)
{
    struct cached_group *g = NULL;
    const struct cached_pod *p;
    char key[CACHE_KEY_MAX];
    json_t *all = json_array();
    name_key(job, cache_meta(job, "name"), key);
    HASH_FIND_STR(c->groups, key, g);
    if (g != NULL)
        DL_FOREACH (g->pods, p)
            json_array_append(all, p->object);
    return all;
}

/* ---- ConfigMaps ------------------------------------------------------------------------------ */

static struct cached_map *find_map(struct cache *c, const json_t *object, const char *name)
{
    struct cached_map *m = NULL;
    char key[CACHE_KEY_MAX];
    name_key(object, name, key);
    HASH_FIND_STR(c->maps, key, m);
    return m;
}

hl_status cache_put_map(struct cache *c, json_t *map)
{
    char key[CACHE_KEY_MAX];
    struct cached_map *m = find_map(c, map, cache_meta(map, "name"));
    if (m == NULL) {
        name_key(map, cache_meta(map, "name"), key);
        m = calloc(1, sizeof(*m));
        if (m == NULL || (m->key = strdup(key)) == NULL) {
            free(m);
            return no_memory();
        }
        HASH_ADD_KEYPTR(hh, c->maps, m->key, strlen(m->key), m);
    }
    replace(&m->object, map);
    m->listed = 1;
    mark_users(c, map);
    return HL_OK;
}

static void drop_map(struct cache *c, struct cached_map *m)
{
    HASH_DEL(c->maps, m);
    mark_users(c, m->object);
    json_decref(m->object);
    free(m->key);
    free(m);
}

void cache_drop_map(struct cache *c, const json_t *map)
{
    struct cached_map *m = find_map(c, map, cache_meta(map, "name"));
    if (m != NULL)
        drop_map(c, m);
}

hl_status cache_list_maps(struct cache *c, const json_t *maps)
{
    struct cached_map *m, *next;
    json_t *map;
    size_t i;
    for (m = c->maps; m != NULL; m = m->hh.next)
        m->listed = 0;
    json_array_foreach (maps, i, map)
        HL_TRY(cache_put_map(c, map));
    HASH_ITER (hh, c->maps, m, next)
        if (!m->listed)
            drop_map(c, m);
    return HL_OK;
}

json_t *cache_map_of(struct cache *c, const json_t *job)
{
    char name[256];
    hl_ranktable_config_map(job, name, sizeof(name));
    struct cached_map *m = find_map(c, job, name);
    return m != NULL ? m->object : NULL;
}

static int came_before(const struct cached_job *a, const struct cached_job *b)
{
    int order = strcmp(cache_meta(a->object, "creationTimestamp"),
                       cache_meta(b->object, "creationTimestamp"));
    return order != 0 ? order < 0 : strcmp(a->key, b->key) < 0;
}

const struct cached_job *cache_rival(struct cache *c, const struct cached_job *job)
{
    char mine[256], name[256];
    hl_ranktable_config_map(job->object, mine, sizeof(mine));
    for (const struct cached_job *j = c->jobs; j != NULL; j = j->hh.next) {
        if (j == job || j->gone ||
            strcmp(cache_meta(j->object, "namespace"), cache_meta(job->object, "namespace")) != 0)
            continue;
        hl_ranktable_config_map(j->object, name, sizeof(name));
        if (strcmp(mine, name) == 0 && came_before(j, job))
            return j;
    }
    return NULL;
}

void cache_fini(struct cache *c)
{
    struct cached_pod *p, *next_pod;
    struct cached_job *j, *next_job;
    struct cached_map *m, *next_map;
    HASH_ITER (hh, c->pods, p, next_pod)
        drop_pod(c, p);
    HASH_ITER (hh, c->maps, m, next_map)
        drop_map(c, m);
    HASH_ITER (hh, c->jobs, j, next_job)
        cache_forget(c, j);
}
