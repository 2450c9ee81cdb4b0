/* kube/watcher.h - a cache's feed: all objects of one kind, then every change of them.
 *
 * Lists in pages, watches from there, lists again when the server has forgotten our version. What
 * vanished meanwhile is missing in the next list. Failures are waited out: 0.2 s, doubled to 10 s,
 * a fifth of it by chance; what the server asks for (Retry-After) counts when it is longer.
 *
 * Owns:    a thread, and what it has brought until that is called for. Its client and loop are
 *          borrowed.
 * Threads: start and stop on the loop's; `listed` and `changed` are called there.
 * Errors:  none reach the caller but at start: hl_kube_watcher_info has the last; of those that
 *          repeat themselves some are logged, and when it goes on.
 * Units:   seconds.
 * Limits:  none; lists are delivered by pages, so that no more than one need be in memory.
 */
#ifndef HL_KUBE_WATCHER_H
#define HL_KUBE_WATCHER_H

#include <stdbool.h>

#include "kube/http.h"
#include "os/loop.h"

struct hl_kube_watcher;

/* How objects of a watch are read that come in Protocol Buffers, of which a server makes a tenth of
 * the work that JSON is. A server that has none, or sends what `decode` can't read, is asked for
 * JSON; lists are JSON. */
struct hl_kube_decoder {
    /* On the watcher's thread. HL_EPROTO: it is no such object. */
    hl_status (*decode)(const char *bytes, size_t len, void **out);
    /* On the loop's, in place of `changed`; the object is the callee's. */
    void (*changed)(void *arg, enum hl_kube_event type, void *object);
    void (*drop)(void *object);
};

/* Which page of a list it is; both of a list that has only one. A list that is begun need not come
 * to its end: another one begins instead. */
enum { HL_KUBE_FIRST = 1, HL_KUBE_LAST = 2 };

struct hl_kube_watcher_opts {
    struct hl_kube *kube;
    struct hl_loop *loop;
    const char *path;                      /* "/api/v1/pods" */
    const char *selector;                  /* of labels, encoded; "" = all */
    const struct hl_kube_members *members; /* of objects that are taken (parse.h); NULL = all */
    const struct hl_kube_decoder *decoder; /* NULL = all is JSON */
    bool on_demand;     /* what a watch brings waits for hl_kube_watcher_deliver, or for
                          HL_KUBE_WAITING others: to wake a loop costs as much as an event */
    bool only_metadata; /* of what a watch brings; lists bring all */
    bool optional;      /* a kind that the server does not know, or does not show us, is looked
                          at once a minute */
    int window_s;       /* of one watch; 0 = 300 to 600 by chance */
    /* A page of all there is now; an array, borrowed. */
    void (*listed)(void *arg, const json_t *objects, unsigned page);
    void (*changed)(void *arg, enum hl_kube_event type, json_t *object);
    void *arg;
};

#define HL_KUBE_WAITING 256

struct hl_kube_watcher_info {
    unsigned long lists, watches, failures;
    unsigned long events; /* of watches */
    char problem[256];    /* "" = none at the moment */
};

/* Texts are copied. */
hl_status hl_kube_watcher_start(const struct hl_kube_watcher_opts *opts,
                                struct hl_kube_watcher **out) HL_CHECK;
/* What waits, now. */
void hl_kube_watcher_deliver(struct hl_kube_watcher *w);
void hl_kube_watcher_info(struct hl_kube_watcher *w, struct hl_kube_watcher_info *out);
/* After the client's `cancel` was set: waits for the thread; nothing is called from then on. NULL
 * is fine. */
void hl_kube_watcher_stop(struct hl_kube_watcher *w);

#endif
