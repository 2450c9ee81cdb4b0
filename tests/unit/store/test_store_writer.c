/* Commits on a thread of their own: store/writer over a back end that does what the test says. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <semaphore.h>
#include <time.h>

#include "store/ops.h"
#include "store/writer.h"

#define WAIT_S 20

/* Every commit waits for `go`. A row of the key "bad" fails the whole commit. */
struct fake {
    struct hl_store store; /* first: the handle */
    sem_t entered, go;
    char commits[512]; /* keys, a commit in brackets; read when the thread is idle or stopped */
};

struct world {
    struct fake fake;
    struct hl_loop *loop;
    struct hl_store_writer *writer;
    char told[512];
    int wanted, told_count;
};

struct put {
    struct world *w;
    const char *name;
};

static void append(char *out, size_t cap, const char *text)
{
    size_t at = strlen(out);
    snprintf(out + at, cap - at, "%s", text);
}

static void wait_for(sem_t *sem)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_S;
    assert_int_equal(sem_timedwait(sem, &until), 0);
}

static hl_status fake_commit(struct hl_store *store, const struct hl_store_row *rows, size_t n)
{
    struct fake *f = (struct fake *)store;
    hl_status st = HL_OK;
    sem_post(&f->entered);
    wait_for(&f->go);
    append(f->commits, sizeof(f->commits), "[");
    for (size_t i = 0; i < n; i++) {
        append(f->commits, sizeof(f->commits), rows[i].key);
        if (strcmp(rows[i].key, "bad") == 0)
            st = HL_ENOSPC;
    }
    append(f->commits, sizeof(f->commits), "]");
    return st == HL_OK ? st : hl_fail(st, "the disk is full");
}

static const struct hl_store_ops fake_ops = {.scheme = "fake", .commit = fake_commit};

static int setup(void **state)
{
    struct world *w = calloc(1, sizeof(*w));
    assert_non_null(w);
    w->fake.store.ops = &fake_ops;
    pthread_mutex_init(&w->fake.store.lock, NULL);
    sem_init(&w->fake.entered, 0, 0);
    sem_init(&w->fake.go, 0, 0);
    assert_int_equal(hl_loop_create(&w->loop), HL_OK);
    assert_int_equal(hl_store_writer_start(&w->fake.store, w->loop, &w->writer), HL_OK);
    *state = w;
    return 0;
}

static int teardown(void **state)
{
    struct world *w = *state;
    hl_store_writer_stop(w->writer);
    hl_loop_destroy(w->loop);
    pthread_mutex_destroy(&w->fake.store.lock);
    free(w);
    return 0;
}

static void on_written(void *arg, hl_status st, const char *text)
{
    struct put *p = arg;
    struct world *w = p->w;
    char word[128];
    snprintf(word, sizeof(word), "%s:%s%s; ", p->name, st == HL_OK ? "ok" : hl_status_name(st),
             text);
    append(w->told, sizeof(w->told), word);
    if (++w->told_count == w->wanted)
        hl_loop_stop(w->loop);
    free(p);
}

static void put(struct world *w, const char *key)
{
    struct put *p = calloc(1, sizeof(*p));
    json_t *value = json_integer(1);
    struct hl_store_op op = {HL_STORE_PUT, key, value};
    assert_non_null(p);
    *p = (struct put){w, key};
    w->wanted++;
    hl_store_writer_put(w->writer, &op, 1, on_written, p);
    json_decref(value);
}

static void let(struct world *w, int commits)
{
    while (commits-- > 0)
        sem_post(&w->fake.go);
}

TEST_IN(setup, teardown, what_waits_for_the_disk_is_one_commit_and_told_in_order)
{
    struct world *w = *state;
    put(w, "a");
    wait_for(&w->fake.entered); /* "a" is in flight: the others wait */
    put(w, "b");
    put(w, "c");
    put(w, "d");
    assert_string_equal(w->told, ""); /* no caller waited for the disk here */
    let(w, 2);
    assert_int_equal(hl_loop_run(w->loop), HL_OK);
    assert_string_equal(w->told, "a:ok; b:ok; c:ok; d:ok; ");
    assert_string_equal(w->fake.commits, "[a][bcd]");
}

TEST_IN(setup, teardown, a_batch_that_fails_costs_no_other)
{
    struct world *w = *state;
    put(w, "a");
    wait_for(&w->fake.entered);
    put(w, "b");
    put(w, "bad");
    put(w, "c");
    let(w, 5);
    assert_int_equal(hl_loop_run(w->loop), HL_OK);
    assert_string_equal(w->told, "a:ok; b:ok; bad:ENOSPCthe disk is full; c:ok; ");
    assert_string_equal(w->fake.commits, "[a][bbadc][b][bad][c]");
}

TEST_IN(setup, teardown, a_batch_that_can_not_be_made_is_told_in_its_turn)
{
    struct world *w = *state;
    put(w, "a");
    put(w, ""); /* no key */
    put(w, "c");
    let(w, 3);
    assert_int_equal(hl_loop_run(w->loop), HL_OK);
    assert_string_equal(w->told, "a:ok; :EINVALa key of the store is empty; c:ok; ");
}

TEST_IN(setup, teardown, stop_waits_for_what_was_put_and_the_answers_still_come)
{
    struct world *w = *state;
    let(w, 3);
    put(w, "a");
    put(w, "b");
    put(w, "c");
    hl_store_writer_stop(w->writer);
    w->writer = NULL;
    assert_int_equal(hl_loop_run(w->loop), HL_OK);
    assert_string_equal(w->told, "a:ok; b:ok; c:ok; ");
}
