/* 10,000 submissions at once: each gets an answer, those over the limit are refused by name, and
 * none is lost. */
#include "support/test.h"

#include "integration/controller_world.h"

#define CROWD   10000
#define ALLOWED 2000

struct crowd {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int taken, refused, other;
    char text[256];
};

static void on_submitted(void *arg, hl_status st, const char *text, json_t *result)
{
    struct crowd *k = arg;
    bool full =
        st == HL_EBUSY && strstr(text, "2000 jobs wait for slots, and option queue.pending");
    (void)result;
    pthread_mutex_lock(&k->lock);
    k->taken += st == HL_OK;
    k->refused += full;
    k->other += st != HL_OK && !full;
    if (st != HL_OK && !full)
        snprintf(k->text, sizeof(k->text), "%s", text);
    pthread_cond_signal(&k->cond);
    pthread_mutex_unlock(&k->lock);
}

static void submit_all(struct crowd *k)
{
    for (int i = 0; i < CROWD; i++) {
        char key[16];
        snprintf(key, sizeof(key), "k%d", i);
        json_t *p = json_pack("{s:s s:s s:s s:s}", "yaml", JOB_YAML, "source", "job.yaml",
                              "idempotencyKey", key, "cwd", "/tmp");
        rpc_json_call_async(w.peer, "submitJob", p, 120000, w.loop, on_submitted, k);
        json_decref(p);
    }
    pthread_mutex_lock(&k->lock);
    while (k->taken + k->refused + k->other < CROWD)
        pthread_cond_wait(&k->cond, &k->lock); /* each call has a deadline */
    pthread_mutex_unlock(&k->lock);
    if (k->other > 0)
        fail_msg("%d were answered otherwise, as: %s", k->other, k->text);
}

static int jobs_known(void)
{
    json_t *r = ask("listQueue", NULL);
    int n = (int)json_array_size(hl_json_list(r, "jobs"));
    json_decref(r);
    return n;
}

TEST_IN(setup, teardown, of_ten_thousand_jobs_at_once_none_is_lost)
{
    struct crowd k = {.lock = PTHREAD_MUTEX_INITIALIZER, .cond = PTHREAD_COND_INITIALIZER};
    char id[64];
    w.queue_pending = ALLOWED;
    restart_controller();
    submit_all(&k);
    assert_int_equal(k.taken, ALLOWED);
    assert_int_equal(k.refused, CROWD - ALLOWED);
    assert_int_equal(jobs_known(), ALLOWED);
    restart_controller();
    assert_int_equal(jobs_known(), ALLOWED);
    register_node(NULL); /* and they run */
    submit("k0", id, sizeof(id));
    wait_state(id, "running");
}
