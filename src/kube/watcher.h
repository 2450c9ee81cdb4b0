/* kube/watcher.h - feeds a cache: delivers all objects of one kind, then every change of them.
 *
 * It lists the objects in pages, watches from that version, and lists again when the server has
 * forgotten the version. Objects deleted meanwhile are missing in the next list. After a failure it
 * waits for 0.2 s, doubled up to 10 s, a fifth of it random; or longer if the server asks for it
 * (Retry-After).
 *
 * Owns:    a thread, and messages until they are delivered. Its client and loop are borrowed.
 * Threads: start and stop on the loop's; `listed` and `changed` are called there.
 * Errors:  returned only by start. hl_kube_watcher_info has the last one; of repeated ones only
 *          some are logged, and the recovery.
 * Units:   seconds.
 * Limits:  none; lists are delivered in pages, so that only one page must be in memory.
 */
#ifndef HL_KUBE_WATCHER_H
#define HL_KUBE_WATCHER_H

#include <stdbool.h>

#include "kube/http.h"
#include "os/loop.h"

struct hl_kube_watcher;

/* Reads objects of a watch in Protocol Buffers, which cost the server a tenth of the work of JSON.
 * If a server does not support them, or sends what `decode` can't read, it is asked for JSON. Lists
 * are always JSON. */
struct hl_kube_decoder {
    /* Called on the watcher's thread. HL_EPROTO: it is not such an object. */
    hl_status (*decode)(const char *bytes, size_t len, void **out);
    /* Called on the loop's thread instead of `changed`, and takes the object. */
    void (*changed)(void *arg, enum hl_kube_event type, void *object);
    void (*drop)(void *object);
};

/* The place of a page in a list; a single page has both bits. A list that has begun need not be
 * completed: another one can begin instead. */
enum { HL_KUBE_FIRST = 1, HL_KUBE_LAST = 2 };

struct hl_kube_watcher_opts {
    struct hl_kube *kube;
    struct hl_loop *loop;
    const char *path;                      /* "/api/v1/pods" */
    const char *selector;                  /* selector of labels, encoded; "" = all */
    const struct hl_kube_members *members; /* members of objects to keep (parse.h); NULL = all */
    const struct hl_kube_decoder *decoder; /* NULL = everything is JSON */
    bool on_demand;     /* events wait for hl_kube_watcher_deliver, or until there are
                         * HL_KUBE_WAITING: waking the loop costs as much as an event */
    bool only_metadata; /* a watch delivers metadata only; lists deliver everything */
    bool optional;      /* a kind that the server may not know or show us; then it is tried once a
                         * minute */
    int window_s;       /* of one watch; 0 = random, 300 to 600 */
    /* Called for a page of the list; an array, borrowed. */
    void (*listed)(void *arg, const json_t *objects, unsigned page);
    void (*changed)(void *arg, enum hl_kube_event type, json_t *object);
    void *arg;
};

#define HL_KUBE_WAITING 256

struct hl_kube_watcher_info {
    unsigned long lists, watches, failures;
    unsigned long events; /* received from watches */
    char problem[256];    /* "" = none at the moment */
};

/* Texts are copied. */
hl_status hl_kube_watcher_start(const struct hl_kube_watcher_opts *opts,
                                struct hl_kube_watcher **out) HL_CHECK;
/* Delivers what is waiting now. */
void hl_kube_watcher_deliver(struct hl_kube_watcher *w);
void hl_kube_watcher_info(struct hl_kube_watcher *w, struct hl_kube_watcher_info *out);
/* Call it after the client's `cancel` was set: it waits for the thread, and nothing is called
 * afterwards. NULL is allowed. */
void hl_kube_watcher_stop(struct hl_kube_watcher *w);

#endif
