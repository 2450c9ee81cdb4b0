/* Leader election by a Lease of Kubernetes.
 *
 *     not held --try_once: free, or its holder silent for long enough--> held --.
 *        ^                                                               |  ^   | renewed every
 *        |                                                               |  '---' lease_retry_ms
 *        '--another holds it, or lease_give_up_ms without a renewal------'
 *
 * A holder gives up before hold_s have passed, so this process stops acting before another one can
 * begin.
 *
 * One thread calls the server. The loop reads `held`, and tell_change informs it of a change. The
 * posted call holds a reference, because the owner may have stopped the lease by then. `stops`
 * wakes the thread from its pause. lease_stop joins the thread and then releases the Lease. */
#include "ranktabled/lease.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "core/json.h"
#include "os/cond.h"

#define HOLD_S  15 /* if a Lease does not state its duration */
#define CALL_MS 5000

struct lease {
    struct lease_opts opts;
    char *identity, path[768];
    pthread_t thread;
    atomic_bool stopping, held;
    atomic_int refs;
    pthread_mutex_t lock;   /* `stopping` is set under it */
    pthread_cond_t stops;   /* ends the pause between two renewals */
    struct lease_seen seen; /* from here on used by the thread only */
    uint64_t renewed_ns;    /* when our last renewal began */
    char problem[256];
};

static uint64_t lease_give_up_ms(const struct lease *l)
{
    return (uint64_t)l->opts.hold_s * 1000 * 2 / 3;
}

static uint64_t lease_retry_ms(const struct lease *l)
{
    return (uint64_t)l->opts.hold_s * 1000 * 2 / 15;
}

/* A renewal makes two calls; both must end before the lease is given up. */
static int lease_call_ms(const struct lease *l)
{
    uint64_t ms = lease_give_up_ms(l) / 2;
    return ms < CALL_MS ? (int)ms : CALL_MS;
}

/* Measures by our own clock: `since_ns` is when renewTime was seen to change, so clocks of other
 * hosts do not matter. */
bool lease_may_take(const json_t *lease, const char *identity, struct lease_seen *seen,
                    uint64_t now_ns)
{
    const json_t *spec = json_object_get(lease, "spec");
    const char *holder = hl_json_str(spec, "holderIdentity", "");
    const char *renewed = hl_json_str(spec, "renewTime", "");
    uint64_t hold_s = (uint64_t)hl_json_int(spec, "leaseDurationSeconds", HOLD_S);
    if (strcmp(seen->renewed, renewed) != 0 || seen->since_ns == 0) {
        snprintf(seen->renewed, sizeof(seen->renewed), "%s", renewed);
        seen->since_ns = now_ns;
    }
    return holder[0] == '\0' || strcmp(holder, identity) == 0 ||
           now_ns - seen->since_ns > hold_s * HL_NS_PER_S;
}

static void time_text(char *out, size_t cap)
{
    struct timespec now;
    struct tm utc;
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(out, cap, "%Y-%m-%dT%H:%M:%S", &utc);
    snprintf(out + n, cap - n, ".%06ldZ", now.tv_nsec / 1000);
}

/* Makes the new object; old: NULL = there is none yet. Returns a new reference. */
static json_t *make_lease(const struct lease *l, const json_t *old, const char *holder)
{
    char now[64];
    const json_t *spec = json_object_get(old, "spec"), *meta = json_object_get(old, "metadata");
    bool mine = strcmp(hl_json_str(spec, "holderIdentity", ""), l->identity) == 0;
    json_int_t transitions = (json_int_t)hl_json_int(spec, "leaseTransitions", 0);
    time_text(now, sizeof(now));
    json_t *doc = json_pack("{s:s s:s s:{s:s s:s} s:{s:s s:i s:s s:s s:I}}", "apiVersion",
                            "coordination.k8s.io/v1", "kind", "Lease", "metadata", "name",
                            l->opts.name, "namespace", l->opts.ns, "spec", "holderIdentity", holder,
                            "leaseDurationSeconds", l->opts.hold_s, "renewTime", now, "acquireTime",
                            mine ? hl_json_str(spec, "acquireTime", now) : now, "leaseTransitions",
                            old != NULL && !mine ? transitions + 1 : transitions);
    if (old != NULL)
        json_object_set_new(json_object_get(doc, "metadata"), "resourceVersion",
                            json_string(hl_json_str(meta, "resourceVersion", "")));
    return doc;
}

static hl_status call_server(struct lease *l, const char *method, const json_t *body, json_t **out)
{
    char path[sizeof(l->path)];
    snprintf(path, sizeof(path), "%s", l->path);
    if (strcmp(method, "POST") == 0)
        *strrchr(path, '/') = '\0';
    return hl_kube_call(
        l->opts.kube,
        &(struct hl_kube_request){
            .method = method, .path = path, .body = body, .timeout_ms = lease_call_ms(l)},
        out);
}

static hl_status write_lease(struct lease *l, const json_t *old, const char *holder)
{
    json_t *doc = make_lease(l, old, holder);
    hl_status st = call_server(l, old != NULL ? "PUT" : "POST", doc, NULL);
    json_decref(doc);
    return st;
}

/* Takes or renews the lease. HL_EBUSY: another process holds it. A renewal counts from the time
 * before the request, so this process never believes longer than the server that it holds the
 * lease. */
static hl_status try_once(struct lease *l)
{
    json_t *old = NULL;
    uint64_t now = hl_now_ns();
    hl_status st = call_server(l, "GET", NULL, &old);
    if (st != HL_OK && st != HL_ENOENT)
        return st;
    if (old != NULL && !lease_may_take(old, l->identity, &l->seen, now))
        st = HL_EBUSY;
    else
        st = write_lease(l, old, l->identity);
    json_decref(old);
    if (st == HL_OK)
        l->renewed_ns = now;
    /* Another process was faster: the server refuses a write with an old resourceVersion. */
    return st == HL_ECONFLICT || st == HL_EEXIST ? HL_EBUSY : st;
}

static void unref_lease(struct lease *l)
{
    if (atomic_fetch_sub(&l->refs, 1) != 1)
        return;
    pthread_cond_destroy(&l->stops);
    pthread_mutex_destroy(&l->lock);
    free(l->identity);
    free(l);
}

/* Runs on the loop. */
static void tell_change(void *arg)
{
    struct lease *l = arg;
    if (!atomic_load(&l->stopping))
        l->opts.changed(l->opts.arg);
    unref_lease(l);
}

/* Called by the thread only, so exchange and post keep their order. The posted call holds a
 * reference. */
static void set_held(struct lease *l, bool held)
{
    if (atomic_exchange(&l->held, held) == held)
        return;
    hl_info("lease %s/%s is %s", l->opts.ns, l->opts.name, held ? "ours" : "no longer ours");
    atomic_fetch_add(&l->refs, 1);
    hl_loop_post(l->opts.loop, tell_change, l);
}

static void renew_lease(struct lease *l)
{
    hl_status st = try_once(l);
    if (st == HL_OK)
        set_held(l, true);
    else if (st == HL_EBUSY || hl_now_ns() - l->renewed_ns > lease_give_up_ms(l) * HL_NS_PER_MS)
        set_held(l, false);
    const char *problem = st == HL_OK || st == HL_EBUSY ? "" : hl_error_text();
    if (problem[0] != '\0' && strncmp(l->problem, problem, sizeof(l->problem) - 1) != 0)
        hl_warn("lease %s/%s: %s", l->opts.ns, l->opts.name, problem);
    snprintf(l->problem, sizeof(l->problem), "%s", problem);
}

static void *lease_main(void *arg)
{
    struct lease *l = arg;
    while (!atomic_load(&l->stopping)) {
        renew_lease(l);
        uint64_t until = hl_now_ns() + lease_retry_ms(l) * HL_NS_PER_MS;
        pthread_mutex_lock(&l->lock);
        while (!atomic_load(&l->stopping) && hl_now_ns() < until)
            (void)hl_cond_wait_until(&l->stops, &l->lock, until);
        pthread_mutex_unlock(&l->lock);
    }
    return NULL;
}

hl_status lease_start(const struct lease_opts *opts, struct lease **out)
{
    struct lease *l = calloc(1, sizeof(*l));
    if (l == NULL || (l->identity = strdup(opts->identity)) == NULL) {
        free(l);
        return hl_fail(HL_ENOMEM, "out of memory allocating a lease");
    }
    l->opts = *opts;
    atomic_init(&l->refs, 1);
    pthread_mutex_init(&l->lock, NULL);
    hl_cond_init(&l->stops);
    snprintf(l->path, sizeof(l->path),
             "/apis/coordination.k8s.io/v1/namespaces/%.300s/leases/%.300s", opts->ns, opts->name);
    if (pthread_create(&l->thread, NULL, lease_main, l) != 0) {
        unref_lease(l);
        return hl_fail(HL_ENOMEM, "can't start the thread of a lease");
    }
    *out = l;
    return HL_OK;
}

bool lease_is_held(const struct lease *l)
{
    return atomic_load(&l->held);
}

void lease_stop(struct lease *l)
{
    json_t *old = NULL;
    if (l == NULL)
        return;
    pthread_mutex_lock(&l->lock);
    atomic_store(&l->stopping, true);
    pthread_cond_signal(&l->stops);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    if (atomic_load(&l->held) && call_server(l, "GET", NULL, &old) == HL_OK &&
        strcmp(hl_json_str(json_object_get(old, "spec"), "holderIdentity", ""), l->identity) == 0 &&
        write_lease(l, old, "") != HL_OK)
        hl_debug("lease not released: %s", hl_error_text());
    json_decref(old);
    unref_lease(l);
}
