/* Lists and watches objects in a thread of its own, and delivers them on the loop.
 *
 *    the watcher's thread                                   the loop
 *     list, page by page --> post_message --> waiting --> on_call: listed, changed
 *     watch: events -------> post_message ----'  |        hl_kube_watcher_deliver, on request
 *                                                '-- `called`: at most one call is pending
 *
 *     stale --list--> listed --watch--> watching --ends in time--> listed
 *       ^  '--failed: back off           '--410, a broken stream--> stale
 *       '---------------------------------'   other failures: back off, watch again
 *
 * `lock` guards info, the waiting messages, `called` and `refs`; only the thread uses `version` to
 * `told`. The owner, a posted call and a running delivery each hold a reference to the watcher,
 * because a callback may stop it. `stops` wakes the thread from a pause; a running request is ended
 * by opts.kube's own cancel. */
#include "kube/watcher.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

#include "base/backoff.h"
#include "base/clock.h"
#include "base/id.h"
#include "base/log.h"
#include "core/json.h"
#include "curl/library.h"
#include "os/cond.h"

#define PAGE         100
#define BACKOFF_MS   200
#define GATHER_MS    20 /* time to gather a watch's events, on demand */
#define BACKOFF_TOP  10000
#define RETRY_MAX_S  30    /* longest delay that the server can ask for */
#define ABSENT_MS    60000 /* until the next try for a kind that the server does not know */
#define WATCH_GAP_MS 1000  /* at least, between watches, and lists of expired versions */
#define WINDOW_S     300
#define LATE_S       10    /* how late the server may end a watch */
#define TELL_MS      10000 /* between two log lines about the same trouble; doubles each time */
#define TELL_TOP     3600000
#define WELL_NS      (30 * HL_NS_PER_S) /* a watch that lasted this long was healthy */

/* Failures since the watch was last healthy, and what was logged about them: the first one, some at
 * growing intervals, and the recovery. */
struct trouble {
    unsigned failures, lines;
    uint64_t since_ns, line_ns;
    bool is_open; /* the last logged line is a failure */
    char text[256];
};

struct hl_kube_watcher {
    struct hl_kube_watcher_opts opts;
    char *path, *selector;
    pthread_t thread;
    atomic_bool stopping; /* set with the lock held, since pauses wait with it */
    pthread_cond_t stops; /* ends the pause between two attempts */
    pthread_mutex_t lock; /* guards info, and waiting to refs */
    struct hl_kube_watcher_info info;
    struct message *waiting;
    unsigned count; /* number of waiting messages */
    bool called;    /* a call to the loop is pending */
    unsigned refs;  /* of the owner, the call and deliveries */
    bool dead;      /* stopped: messages are dropped */
    char version[64];
    bool only_json;      /* the server's other format can't be read */
    unsigned tries;      /* failures since a watch was healthy */
    uint64_t listed_ns;  /* start of the last list */
    uint64_t begun_ns;   /* when the server began the present watch; 0 = not yet */
    struct trouble told; /* used by the thread only */
};

/* A message to the loop. */
struct message {
    struct message *prev, *next;
    json_t *object; /* or the array of a page */
    void *decoded;  /* or an object that was not JSON */
    bool is_page;
    unsigned page;
    enum hl_kube_event type;
};

static void unref_watcher(struct hl_kube_watcher *w)
{
    pthread_mutex_lock(&w->lock);
    unsigned left = --w->refs;
    pthread_mutex_unlock(&w->lock);
    if (left > 0)
        return;
    pthread_cond_destroy(&w->stops);
    pthread_mutex_destroy(&w->lock);
    free(w->path);
    free(w->selector);
    free(w);
}

static struct message *take_waiting(struct hl_kube_watcher *w)
{
    pthread_mutex_lock(&w->lock);
    struct message *all = w->waiting;
    w->waiting = NULL;
    w->count = 0;
    pthread_mutex_unlock(&w->lock);
    return all;
}

static void deliver_message(struct hl_kube_watcher *w, struct message *m)
{
    if (m->decoded != NULL && w->dead)
        w->opts.decoder->drop(m->decoded);
    else if (m->decoded != NULL)
        w->opts.decoder->changed(w->opts.arg, m->type, m->decoded);
    else if (!w->dead && m->is_page)
        w->opts.listed(w->opts.arg, m->object, m->page);
    else if (!w->dead)
        w->opts.changed(w->opts.arg, m->type, m->object);
    json_decref(m->object);
    free(m);
}

/* Takes a reference with it, because a callback may stop the watcher. */
static void deliver_all(struct hl_kube_watcher *w)
{
    struct message *m, *next, *all = take_waiting(w);
    DL_FOREACH_SAFE (all, m, next)
        deliver_message(w, m);
    unref_watcher(w);
}

void hl_kube_watcher_deliver(struct hl_kube_watcher *w)
{
    pthread_mutex_lock(&w->lock);
    w->refs++;
    pthread_mutex_unlock(&w->lock);
    deliver_all(w);
}

/* Runs on the loop, as the pending call. */
static void on_call(void *arg)
{
    struct hl_kube_watcher *w = arg;
    pthread_mutex_lock(&w->lock);
    w->called = false;
    pthread_mutex_unlock(&w->lock);
    deliver_all(w);
}

/* Takes ownership of what the message holds, also on failure. */
static hl_status post_message(struct hl_kube_watcher *w, struct message what)
{
    struct message *m = malloc(sizeof(*m));
    if (m == NULL || (what.object == NULL && what.decoded == NULL)) {
        free(m);
        json_decref(what.object);
        if (what.decoded != NULL)
            w->opts.decoder->drop(what.decoded);
        return hl_fail(HL_ENOMEM, "out of memory allocating an event of %s", w->path);
    }
    *m = what;
    pthread_mutex_lock(&w->lock);
    DL_APPEND(w->waiting, m);
    w->count++;
    w->info.events += !m->is_page;
    bool call = !w->called && (m->is_page || !w->opts.on_demand || w->count >= HL_KUBE_WAITING);
    w->called |= call;
    w->refs += (unsigned)call;
    pthread_mutex_unlock(&w->lock);
    if (call)
        hl_loop_post(w->opts.loop, on_call, w);
    return HL_OK;
}

static hl_status on_event(void *arg, enum hl_kube_event type, json_t *object)
{
    return post_message(arg, (struct message){.type = type, .object = object});
}

static hl_status on_encoded(void *arg, enum hl_kube_event type, const char *bytes, size_t len)
{
    struct hl_kube_watcher *w = arg;
    struct message what = {.type = type};
    HL_TRY(w->opts.decoder->decode(bytes, len, &what.decoded));
    return post_message(w, what);
}

static unsigned seconds_since(uint64_t ns)
{
    return (unsigned)((hl_now_ns() - ns) / HL_NS_PER_S);
}

/* Called when the server begins the watch: clears the problem of the previous watch, because this
 * one may last ten minutes. */
static void on_begun(void *arg)
{
    struct hl_kube_watcher *w = arg;
    struct trouble *t = &w->told;
    w->begun_ns = hl_now_ns();
    pthread_mutex_lock(&w->lock);
    w->info.problem[0] = '\0';
    pthread_mutex_unlock(&w->lock);
    if (t->is_open)
        hl_info("watch of %s continues, failures=%u seconds=%u", w->path, t->failures,
                seconds_since(t->since_ns));
    t->is_open = false;
}

/* ---- listing --------------------------------------------------------------------------------- */

static hl_status list_page(struct hl_kube_watcher *w, const char *after, int *retry_after_s,
                           json_t **out)
{
    char path[8192];
    char *token = curl_easy_escape(NULL, after, 0);
    int len = token == NULL ? -1
                            : snprintf(path, sizeof(path), "%s?limit=%d%s%s%s%s", w->path, PAGE,
                                       w->selector[0] != '\0' ? "&labelSelector=" : "", w->selector,
                                       token[0] != '\0' ? "&continue=" : "", token);
    curl_free(token);
    if (len < 0 || (size_t)len >= sizeof(path))
        return hl_fail(HL_EPROTO, "list of %s: its continue token is too long", w->path);
    return hl_kube_call(w->opts.kube,
                        &(struct hl_kube_request){.method = "GET",
                                                  .path = path,
                                                  .timeout_ms = 60000,
                                                  .members = w->opts.members,
                                                  .retry_after_s = retry_after_s},
                        out);
}

static hl_status take_page(struct hl_kube_watcher *w, json_t *page, unsigned at, char *after,
                           size_t cap)
{
    const json_t *meta = json_object_get(page, "metadata");
    int listed = json_is_array(json_object_get(page, "items"));
    snprintf(w->version, sizeof(w->version), "%s", hl_json_str(meta, "resourceVersion", ""));
    snprintf(after, cap, "%s", hl_json_str(meta, "continue", ""));
    if (after[0] == '\0')
        at |= HL_KUBE_LAST;
    if (w->version[0] == '\0')
        return hl_fail(HL_EPROTO, "list of %s: it has no resourceVersion", w->path);
    return post_message(
        w, (struct message){.object = listed ? hl_json_take(page, "items") : json_array(),
                            .is_page = true,
                            .page = at});
}

static hl_status list_objects(struct hl_kube_watcher *w, int *retry_after_s)
{
    char after[4096] = "";
    unsigned at = HL_KUBE_FIRST;
    w->listed_ns = hl_now_ns();
    do {
        json_t *page = NULL;
        HL_TRY(list_page(w, after, retry_after_s, &page));
        hl_status st = take_page(w, page, at, after, sizeof(after));
        json_decref(page);
        HL_TRY(st);
        at = 0;
    } while (after[0] != '\0' && !atomic_load(&w->stopping));
    return HL_OK;
}

/* ---- watching -------------------------------------------------------------------------------- */

static hl_status watch_objects(struct hl_kube_watcher *w, int *retry_after_s)
{
    struct hl_kube_stream stream;
    char path[2048];
    int window =
        w->opts.window_s > 0 ? w->opts.window_s : WINDOW_S + (int)(hl_random_u64() % WINDOW_S);
    snprintf(path, sizeof(path),
             "%s?watch=true&allowWatchBookmarks=true&timeoutSeconds=%d%s%s&resourceVersion=%s",
             w->path, window, w->selector[0] != '\0' ? "&labelSelector=" : "", w->selector,
             w->version);
    hl_kube_stream_init(&stream, w->version, on_event, w);
    stream.members = w->opts.members;
    stream.begun = on_begun;
    if (w->opts.decoder != NULL && !w->only_json)
        stream.encoded = on_encoded;
    w->begun_ns = 0;
    hl_status st =
        hl_kube_watch(w->opts.kube,
                      &(struct hl_kube_request){.path = path,
                                                .timeout_ms = (window + LATE_S) * 1000,
                                                .only_metadata = w->opts.only_metadata,
                                                .gather_ms = w->opts.on_demand ? GATHER_MS : 0,
                                                .retry_after_s = retry_after_s},
                      &stream);
    snprintf(w->version, sizeof(w->version), "%s", stream.version);
    if (st == HL_EPROTO && stream.is_encoded)
        w->only_json = true;
    hl_kube_stream_fini(&stream);
    return st;
}

/* ---- the thread ------------------------------------------------------------------------------ */

/* A kind that the server does not know, or does not show us, and that is optional. */
static bool is_absent(const struct hl_kube_watcher *w, hl_status st)
{
    return w->opts.optional && (st == HL_ENOENT || st == HL_EPERM);
}

/* A different failure is logged sooner than a repeated one, but not at once, because two failures
 * can alternate. */
static void tell_failure(struct hl_kube_watcher *w, hl_status st)
{
    struct trouble *t = &w->told;
    const char *text = hl_error_text();
    uint64_t now = hl_now_ns();
    bool news = strncmp(t->text, text, sizeof(t->text) - 1) != 0;
    uint64_t gap_ms = news ? TELL_MS : hl_backoff_ms(TELL_MS, TELL_TOP, t->lines - 1);
    if (t->failures++ == 0)
        t->since_ns = now;
    if (t->lines > 0 && (now - t->line_ns < gap_ms * HL_NS_PER_MS || (!news && is_absent(w, st))))
        return;
    if (w->opts.optional && st == HL_ENOENT)
        hl_info("%s; continuing without it", text);
    else if (t->failures > 1)
        hl_warn("%s, failures=%u seconds=%u", text, t->failures, seconds_since(t->since_ns));
    else
        hl_warn("%s", text);
    t->lines++;
    t->line_ns = now;
    t->is_open = true;
    snprintf(t->text, sizeof(t->text), "%s", text);
}

static void note_result(struct hl_kube_watcher *w, bool is_list, hl_status st)
{
    pthread_mutex_lock(&w->lock);
    struct hl_kube_watcher_info *i = &w->info;
    i->lists += is_list && st == HL_OK;
    i->watches += !is_list;
    i->failures += st != HL_OK;
    snprintf(i->problem, sizeof(i->problem), "%s", st == HL_OK ? "" : hl_error_text());
    pthread_mutex_unlock(&w->lock);
    if (st != HL_OK)
        tell_failure(w, st);
}

static void pause_ms(struct hl_kube_watcher *w, uint64_t ms)
{
    uint64_t until = hl_now_ns() + ms * HL_NS_PER_MS;
    pthread_mutex_lock(&w->lock);
    while (!atomic_load(&w->stopping) && hl_now_ns() < until)
        (void)hl_cond_wait_until(&w->stops, &w->lock, until);
    pthread_mutex_unlock(&w->lock);
}

static void back_off(struct hl_kube_watcher *w, hl_status st, int retry_after_s)
{
    uint64_t ms = hl_backoff_ms(BACKOFF_MS, BACKOFF_TOP, w->tries++);
    if (is_absent(w, st))
        ms = ABSENT_MS;
    ms = ms * 4 / 5 + hl_random_u64() % (ms * 2 / 5 + 1);
    if (retry_after_s > 0 && retry_after_s <= RETRY_MAX_S && (uint64_t)retry_after_s * 1000 > ms)
        ms = (uint64_t)retry_after_s * 1000;
    pause_ms(w, ms);
}

/* True if all objects must be listed again. */
static bool watch_on(struct hl_kube_watcher *w)
{
    int retry_after_s = 0;
    uint64_t since = hl_now_ns();
    hl_status st = watch_objects(w, &retry_after_s);
    bool ended = st == HL_OK || (st == HL_ETIMEDOUT && w->begun_ns > 0);
    if (st == HL_ECANCELED)
        return false;
    if (ended || (w->begun_ns > 0 && hl_now_ns() - w->begun_ns > WELL_NS)) {
        w->told = (struct trouble){0};
        w->tries = 0;
    }
    if (ended) {
        note_result(w, false, HL_OK);
        uint64_t ms = (hl_now_ns() - since) / HL_NS_PER_MS;
        if (ms < WATCH_GAP_MS)
            pause_ms(w, WATCH_GAP_MS - ms);
        return false;
    }
    if (st == HL_ESTALE) {
        uint64_t ms = (hl_now_ns() - w->listed_ns) / HL_NS_PER_MS;
        if (ms < WATCH_GAP_MS) /* the server forgets versions that it has just sent */
            pause_ms(w, WATCH_GAP_MS - ms);
        return true;
    }
    note_result(w, false, st);
    back_off(w, st, retry_after_s);
    return st == HL_EPROTO || st == HL_ENOENT || st == HL_ENOMEM;
}

static void *watcher_main(void *arg)
{
    struct hl_kube_watcher *w = arg;
    bool stale = true;
    while (!atomic_load(&w->stopping)) {
        int retry_after_s = 0;
        if (!stale) {
            stale = watch_on(w);
            continue;
        }
        hl_status st = list_objects(w, &retry_after_s);
        if (st == HL_ECANCELED)
            break;
        note_result(w, true, st);
        stale = st != HL_OK;
        if (st == HL_ESTALE && w->tries == 0) /* the first 410: retries at once */
            w->tries++;
        else if (stale)
            back_off(w, st, retry_after_s);
    }
    return NULL;
}

hl_status hl_kube_watcher_start(const struct hl_kube_watcher_opts *opts,
                                struct hl_kube_watcher **out)
{
    struct hl_kube_watcher *w = calloc(1, sizeof(*w));
    if (w == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating a watcher");
    w->opts = *opts;
    w->refs = 1;
    w->path = strdup(opts->path);
    w->selector = strdup(opts->selector);
    pthread_mutex_init(&w->lock, NULL);
    hl_cond_init(&w->stops);
    if (w->path == NULL || w->selector == NULL ||
        pthread_create(&w->thread, NULL, watcher_main, w) != 0) {
        unref_watcher(w);
        return hl_fail(HL_ENOMEM, "watcher of %s: out of memory, or its thread can't be started",
                       opts->path);
    }
    *out = w;
    return HL_OK;
}

void hl_kube_watcher_info(struct hl_kube_watcher *w, struct hl_kube_watcher_info *out)
{
    pthread_mutex_lock(&w->lock);
    *out = w->info;
    pthread_mutex_unlock(&w->lock);
}

void hl_kube_watcher_stop(struct hl_kube_watcher *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    atomic_store(&w->stopping, true);
    pthread_cond_signal(&w->stops);
    pthread_mutex_unlock(&w->lock);
    pthread_join(w->thread, NULL);
    w->dead = true;
    hl_kube_watcher_deliver(w); /* drops the messages, since the watcher is dead */
    unref_watcher(w);
}
