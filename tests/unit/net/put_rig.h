/* The store behind a server's puts, which records what became of every object. */
#ifndef HL_TEST_PUT_RIG_H
#define HL_TEST_PUT_RIG_H

#include <stdbool.h>

#include "unit/net/net_rig.h"

#define OBJECTS_MAX 512

/* A store with a lock, a door that can be closed, and a list of what must not be stored. */
struct store {
    pthread_mutex_t lock;
    pthread_cond_t moved;

    struct object {
        uint8_t *bytes;
        uint64_t size;
        struct hl_id id;
        int state; /* 1 begun, 2 committed, 3 aborted */
    } objects[OBJECTS_MAX];

    size_t count;
    int open, open_max;
    bool shut;          /* begin waits */
    bool at_door;       /* it is waiting */
    uint64_t refuse_of; /* size that is refused */
};

static hl_status store_begin(void *arg, struct hl_id id, uint64_t size, void **token, void **ptr)
{
    struct store *s = arg;
    pthread_mutex_lock(&s->lock);
    while (s->shut) {
        s->at_door = true;
        pthread_cond_wait(&s->moved, &s->lock);
    }
    struct object *o = size == s->refuse_of ? NULL : &s->objects[s->count++];
    if (o != NULL) {
        *o = (struct object){malloc(size), size, id, 1};
        s->open++;
        s->open_max = s->open > s->open_max ? s->open : s->open_max;
        *token = o;
        *ptr = o->bytes;
    }
    pthread_mutex_unlock(&s->lock);
    return o != NULL ? HL_OK : hl_fail(HL_ENOSPC, "no room for %llu", (unsigned long long)size);
}

static void end(struct store *s, struct object *o, int state)
{
    pthread_mutex_lock(&s->lock);
    assert_int_equal(o->state, 1);
    o->state = state;
    s->open--;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

static hl_status store_commit(void *arg, void *token, uint32_t crc, const uint32_t *chunk_crcs,
                              size_t chunk_count, struct hl_id *id)
{
    struct object *o = token;
    assert_int_equal(hl_crc32(0, o->bytes, o->size), crc);
    assert_int_equal(chunk_count, (o->size + MIB - 1) / MIB);
    assert_int_equal(hl_crc32(0, o->bytes, o->size < MIB ? o->size : MIB), chunk_crcs[0]);
    if (hl_id_is_none(o->id))
        o->id = (struct hl_id){7, crc};
    *id = o->id;
    end(arg, o, 2);
    return HL_OK;
}

static void store_abort(void *arg, void *token)
{
    end(arg, token, 3);
}

static void store_init(struct store *s)
{
    memset(s, 0, sizeof(*s));
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->moved, NULL);
}

static void store_fini(struct store *s)
{
    assert_int_equal(s->open, 0);
    for (size_t i = 0; i < s->count; i++)
        free(s->objects[i].bytes);
    pthread_cond_destroy(&s->moved);
    pthread_mutex_destroy(&s->lock);
}

static inline void shut(struct store *s, bool yes)
{
    pthread_mutex_lock(&s->lock);
    s->shut = yes;
    pthread_cond_broadcast(&s->moved);
    pthread_mutex_unlock(&s->lock);
}

static inline bool at_door(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    bool yes = s->at_door;
    pthread_mutex_unlock(&s->lock);
    return yes;
}

static inline size_t begun(struct store *s)
{
    pthread_mutex_lock(&s->lock);
    size_t n = s->count;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static size_t count_of(struct store *s, int state)
{
    size_t n = 0;
    pthread_mutex_lock(&s->lock);
    for (size_t i = 0; i < s->count; i++)
        n += s->objects[i].state == state;
    pthread_mutex_unlock(&s->lock);
    return n;
}

static inline const struct object *object_of(struct store *s, struct hl_id id)
{
    for (size_t i = 0; i < s->count; i++)
        if (hl_id_equal(s->objects[i].id, id))
            return &s->objects[i];
    fail_msg("object %s was not stored", hl_id_format(id).s);
    return NULL;
}

static struct hl_net_server *serve_store(struct store *s, int queue, int put_timeout_ms)
{
    struct hl_net_server *server = NULL;
    struct hl_net_server_opts opts = {.listen = "127.0.0.1:0",
                                      .pool = pool,
                                      .pool_len = POOL_LEN,
                                      .put = {store_begin, store_commit, store_abort, s},
                                      .put_queue = queue,
                                      .put_timeout_ms = put_timeout_ms,
                                      .ops = back_end};
    if (hl_net_server_start(&opts, &server) != HL_OK)
        fail_msg("%s", hl_error_text());
    return server;
}

#endif
