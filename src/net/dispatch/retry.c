/* net/dispatch/retry.c - one thread per attempt and none between attempts, so an idle connection
 * costs nothing.
 *
 *     IDLE --poll, when due: thread made--> CONNECTING --the thread ends--> FINISHED
 *       ^                                                                        |
 *       '--poll, or free: joined, `made` taken, next attempt is due later--------'
 *
 * Poll and free are called by one thread, the connection's. In CONNECTING the attempt owns `st` and
 * `made`; FINISHED is stored with release and loaded with acquire, so the caller sees both. Only
 * free waits for an attempt, and sets `cancel` first.
 *
 * An attempt makes a second connection, which replaces the first one while that is not in use:
 * running transfers stay on their path to the end. */
#include "net/dispatch/retry.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"

#define DOUBLED_MAX 4

enum state { IDLE, CONNECTING, FINISHED };

struct hl_net_retry {
    struct hl_net_connect_opts opts;
    char *address;
    bool both; /* both sides are known to have RDMA */
    unsigned doubled;
    hl_status st; /* status of the last attempt */
    uint64_t due_ns;
    atomic_int state; /* enum state; the thread stores FINISHED, the caller the rest */
    atomic_bool cancel;
    pthread_t thread;
    struct hl_net_client *made; /* NULL: the attempt failed */
};

struct hl_net_retry *hl_net_retry_new(const struct hl_net_connect_opts *opts, bool both)
{
    struct hl_net_retry *r = calloc(1, sizeof(*r));
    if (r == NULL || (r->address = strdup(opts->address)) == NULL) {
        free(r);
        return NULL;
    }
    r->opts = *opts;
    r->both = both;
    r->opts.address = r->address;
    r->opts.rdma_only = true;
    r->opts.cancel = &r->cancel;
    r->due_ns = hl_now_ns() + (uint64_t)opts->rdma_retry_ms * HL_NS_PER_MS;
    return r;
}

/* Whether the attempt failed because a side still has no RDMA, which was known before. */
static bool is_without(const struct hl_net_retry *r)
{
    return !r->both && r->st == HL_EUNSUPPORTED;
}

static void *retry_attempt(void *arg)
{
    struct hl_net_retry *r = arg;
    r->st = r->opts.ops->connect(&r->opts, &r->made);
    if (r->st != HL_OK) {
        r->made = NULL;
        if (!atomic_load(&r->cancel)) {
            if (!is_without(r))
                hl_fault_count("rdma-failed", "tcp");
            hl_debug("net: reads from %s still go without rdma: %s", r->address, hl_error_text());
        }
    }
    atomic_store_explicit(&r->state, FINISHED, memory_order_release);
    return NULL;
}

static struct hl_net_client *collect_attempt(struct hl_net_retry *r)
{
    struct hl_net_client *made;
    pthread_join(r->thread, NULL);
    made = r->made;
    r->made = NULL;
    if (!is_without(r))
        r->doubled = 0;
    else if (r->doubled < DOUBLED_MAX)
        r->doubled++;
    r->due_ns = hl_now_ns() + ((uint64_t)r->opts.rdma_retry_ms << r->doubled) * HL_NS_PER_MS;
    atomic_store_explicit(&r->state, IDLE, memory_order_relaxed);
    return made;
}

struct hl_net_client *hl_net_retry_poll(struct hl_net_retry *r)
{
    int state = atomic_load_explicit(&r->state, memory_order_acquire);
    if (state == FINISHED) {
        struct hl_net_client *made = collect_attempt(r);
        if (made != NULL) {
            hl_fault_count("rdma-back", "rdma");
            hl_info("net: reads from %s go over rdma %s", r->address, r->both ? "again" : "now");
        }
        return made;
    }
    if (state == IDLE && hl_now_ns() >= r->due_ns) {
        atomic_store_explicit(&r->state, CONNECTING, memory_order_relaxed);
        if (pthread_create(&r->thread, NULL, retry_attempt, r) != 0)
            atomic_store_explicit(&r->state, IDLE, memory_order_relaxed);
    }
    return NULL;
}

void hl_net_retry_free(struct hl_net_retry *r)
{
    if (r == NULL)
        return;
    atomic_store(&r->cancel, true);
    if (atomic_load_explicit(&r->state, memory_order_acquire) != IDLE) {
        struct hl_net_client *made = collect_attempt(r);
        if (made != NULL)
            r->opts.ops->close(made); /* made without a retry of its own */
    }
    free(r->address);
    free(r);
}
