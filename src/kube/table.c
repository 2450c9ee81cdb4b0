#include "kube/table.h"

#include "kube/watcher.h"

static hl_status no_memory(void)
{
    return hl_fail(HL_ENOMEM, "out of memory allocating a table of the API server's objects");
}

hl_status hl_kube_table_init(struct hl_kube_table *t, const char *(*key)(const json_t *object))
{
    *t = (struct hl_kube_table){.key = key, .now = json_object()};
    return t->now != NULL ? HL_OK : no_memory();
}

void hl_kube_table_fini(struct hl_kube_table *t)
{
    json_decref(t->now);
    json_decref(t->next);
    *t = (struct hl_kube_table){0};
}

static hl_status table_put(const struct hl_kube_table *t, json_t *into, json_t *object)
{
    const char *key = t->key(object);
    return key == NULL || json_object_set(into, key, object) == 0 ? HL_OK : no_memory();
}

hl_status hl_kube_table_list(struct hl_kube_table *t, const json_t *objects, unsigned page)
{
    json_t *o;
    size_t i;
    if ((page & HL_KUBE_FIRST) != 0) {
        json_decref(t->next);
        t->next = json_object();
    }
    hl_status st = t->next != NULL ? HL_OK : no_memory(); /* maybe in an earlier page */
    json_array_foreach (objects, i, o)
        if (st == HL_OK)
            st = table_put(t, t->next, o);
    if (st != HL_OK) {
        json_decref(t->next);
        t->next = NULL;
    } else if ((page & HL_KUBE_LAST) != 0) {
        json_decref(t->now);
        t->now = hl_steal(&t->next);
        t->synced = true;
    }
    return st;
}

hl_status hl_kube_table_change(struct hl_kube_table *t, enum hl_kube_event type, json_t *object)
{
    if (type != HL_KUBE_DELETED)
        return table_put(t, t->now, object);
    const char *key = t->key(object);
    if (key != NULL)
        json_object_del(t->now, key);
    return HL_OK;
}

json_t *hl_kube_table_find(const struct hl_kube_table *t, const char *key)
{
    return json_object_get(t->now, key);
}
