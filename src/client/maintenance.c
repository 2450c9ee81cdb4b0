/* One thread per client: it reports accesses at most every REPORT_NS and once more at the end, and
 * looks after pins. For a training that never reads, it costs one check per tick.
 *
 *     sleep on maintenance_wake, TICK_MS at most --closing--> end
 *       ^    |
 *       |    v   without maintenance_lock, which only guards `closing`
 *       |  attach_watch     has the daemon restarted? pin again
 *       |  copies_report    bad copies that readers met, to the Controller
 *       |  keep_report      reads of kept copies, to the node's Agent
 *       '--report_accesses  every REPORT_NS
 *
 * It has no state of its own but `report` and `told`, which the closing thread takes over once it
 * has joined this one: what it reports was counted by the callers' threads, in tables with locks or
 * atomics of their own. Each of its calls has a deadline, so the thread can be joined.
 *
 * `closing` is set and the signal given under maintenance_lock, which this thread holds whenever it
 * does not work or sleep: a close is noticed at once in its sleep, and after the tick's calls in
 * its work. A report that got no answer is sent again, also by the close: its number tells the
 * Controller whether it has counted it. */
#include <limits.h>
#include <signal.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/text.h"
#include "client/client_private.h"

#define TICK_MS           250
#define REPORT_NS         (5 * HL_NS_PER_S)
#define REPORT_TIMEOUT_MS 2000

static int env_int(const char *name)
{
    const char *value = getenv(name);
    uint64_t number;
    return value != NULL && hl_parse_number(value, INT_MAX, &number) ? (int)number : 0;
}

static const char *env_text(const char *name)
{
    const char *value = getenv(name);
    return value != NULL ? value : "";
}

/* False: there is nothing to report. If memory runs out, what was taken is lost. */
static bool report_take(helios_client *c)
{
    struct access_report *r = &c->report;
    if (r->incarnation == 0)
        r->incarnation = hl_random_u64() >> 1 | 1; /* JSON integers have 63 bits */
    r->p = (struct hl_api_controller_report_access_params){
        .node = env_text("HELIOS_NODE"),
        .job = env_text("HELIOS_JOB"),
        .rank = env_int("GLOBAL_RANK"),
        .transfers = planes_take(c, c->told, &r->arena),
        .reports = access_take(c->access, net_path(c->attach.net), &r->arena),
        .faults = planes_take_faults(&r->arena),
        .incarnation = r->incarnation};
    r->waits = r->p.reports.count + r->p.transfers.count + r->p.faults.count > 0;
    if (r->waits)
        r->p.sequence = ++r->sequence;
    else
        hl_arena_fini(&r->arena);
    r->aged_ns = hl_now_ns();
    return r->waits;
}

/* Updates the ages, because the report gets older while it waits for its answer. */
static void report_age(struct access_report *r)
{
    uint64_t now = hl_now_ns(), ms = (now - r->aged_ns) / HL_NS_PER_MS;
    for (size_t i = 0; i < r->p.reports.count; i++) {
        struct hl_api_access_report *a = &r->p.reports.items[i];
        a->age_ms = a->age_ms + ms < UINT32_MAX ? a->age_ms + (uint32_t)ms : UINT32_MAX;
    }
    r->aged_ns += ms * HL_NS_PER_MS;
}

/* The report is sent again if the Controller can't be reached, but not if it refuses. False: there
 * was nothing to report. */
static bool report_accesses(helios_client *c)
{
    struct access_report *r = &c->report;
    if (c->controller == NULL || (!r->waits && !report_take(c)))
        return false;
    report_age(r);
    hl_status st =
        hl_call_controller_report_access(c->controller, &r->p, REPORT_TIMEOUT_MS, NULL, NULL);
    if (st != HL_OK)
        hl_debug("accesses were not reported: %s", hl_error_text());
    r->waits = hl_status_retryable(st) || st == HL_ECANCELED;
    if (!r->waits)
        hl_arena_fini(&r->arena);
    return true;
}

static void *maintenance_main(void *arg)
{
    helios_client *c = arg;
    uint64_t reported_ns = 0;
    pthread_mutex_lock(&c->maintenance_lock);
    while (!c->closing) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += TICK_MS * 1000000L;
        until.tv_sec += until.tv_nsec / 1000000000L;
        until.tv_nsec %= 1000000000L;
        pthread_cond_timedwait(&c->maintenance_wake, &c->maintenance_lock, &until);
        if (c->closing)
            break;
        pthread_mutex_unlock(&c->maintenance_lock);
        attach_watch(c);
        copies_report(c);
        keep_report(c);
        uint64_t now = hl_now_ns();
        if (now - reported_ns >= REPORT_NS && report_accesses(c))
            reported_ns = now;
        pthread_mutex_lock(&c->maintenance_lock);
    }
    pthread_mutex_unlock(&c->maintenance_lock);
    return NULL;
}

hl_status maintenance_start(helios_client *client)
{
    /* Signals belong to the program, not to a thread that it doesn't know. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int err = pthread_create(&client->maintenance, NULL, maintenance_main, client);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (err != 0)
        return hl_fail(HL_ENOMEM, "a thread for access reports can't be started");
    client->maintenance_started = true;
    return HL_OK;
}

void maintenance_stop(helios_client *client)
{
    if (!client->maintenance_started)
        return;
    pthread_mutex_lock(&client->maintenance_lock);
    client->closing = true;
    pthread_cond_signal(&client->maintenance_wake);
    pthread_mutex_unlock(&client->maintenance_lock);
    pthread_join(client->maintenance, NULL);
    client->maintenance_started = false;
    keep_report(client);
    bool waited = client->report.waits;
    report_accesses(client);
    if (waited && !client->report.waits) /* reports what was counted since */
        report_accesses(client);
    hl_arena_fini(&client->report.arena);
}
