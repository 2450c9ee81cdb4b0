/* The trash of an archive: shards under names that contain the time at which they were moved there.
 * Its index keeps the order in which they were found or added, so that a page can continue from a
 * number. An id may be there twice; both have the same bytes, and either can be used.
 *
 *     shard SEALED --trash: archive_begin_removal, move--> in the trash --untrash--> SEALED
 *                                                              |   ^
 *                                                trash_empty   |   '-- the medium failed
 *                                                              '--> removed
 *
 * An entry that is being moved back or removed belongs to the thread that took it out of the index
 * (take_out): no other thread finds it, and the medium is called without the lock. The lock is the
 * archive's; it guards the index and its counters. */
#include "mem/archive/ops.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"

/* A failed insert must not end the process. */
#define HASH_NONFATAL_OOM            1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
#include <uthash.h>

#define SUFFIX     ".safetensors"
#define CHECK_PAGE 64

struct hl_archive_trash_entry {
    struct hl_id id;
    uint64_t size;
    int64_t ms;
    uint64_t number;
    unsigned seen_round; /* the last check that has seen the object in a list */
    bool gone;           /* a check has not found it */
    bool lost;           /* uthash ran out of memory */
    UT_hash_handle hh;
};

struct name {
    char s[HL_ARCHIVE_TRASH_NAME_MAX];
};

static struct name name_of(const struct hl_archive_trash_entry *e)
{
    struct name n;
    snprintf(n.s, sizeof(n.s), "%013" PRId64 "-%s" SUFFIX, e->ms, hl_id_format(e->id).s);
    return n;
}

static void describe_entry(const struct hl_archive_trash_entry *e, struct hl_archive_trashed *out)
{
    *out = (struct hl_archive_trashed){.id = e->id, .size = e->size, .ms = e->ms};
    snprintf(out->place, sizeof(out->place), HL_ARCHIVE_TRASH "/%.70s", name_of(e).s);
}

/* Takes ownership of the entry. If there is no memory for it, the shard is invisible until the next
 * open. */
static void trash_insert(struct hl_archive *a, struct hl_archive_trash_entry *e)
{
    e->number = ++a->last_trash_number;
    HASH_ADD(hh, a->trash, id, sizeof(e->id), e);
    if (e->lost) {
        free(e);
        return;
    }
    a->info.trashed++;
    a->info.trashed_bytes += e->size;
}

static void insert_locked(struct hl_archive *a, struct hl_archive_trash_entry *e)
{
    pthread_mutex_lock(&a->lock);
    trash_insert(a, e);
    pthread_mutex_unlock(&a->lock);
}

/* With the lock held, or during the close. */
static void take_out(struct hl_archive *a, struct hl_archive_trash_entry *e)
{
    HASH_DEL(a->trash, e);
    a->info.trashed--;
    a->info.trashed_bytes -= e->size;
}

static bool parse_name(const char *name, struct hl_archive_trash_entry *out)
{
    char id[HL_ID_TEXT_LEN + 1] = "", *end = NULL;
    *out = (struct hl_archive_trash_entry){.ms = strtoll(name, &end, 10)};
    if (*end == '-')
        snprintf(id, sizeof(id), "%.*s", HL_ID_TEXT_LEN, end + 1);
    if (out->ms >= 0 && hl_id_parse(id, &out->id) == HL_OK && !hl_id_is_none(out->id) &&
        strcmp(name_of(out).s, name) == 0)
        return true;
    hl_error_clear();
    return false;
}

bool hl_archive_found_trash(struct hl_archive *a, const char *name, uint64_t size)
{
    struct hl_archive_trash_entry *e = calloc(1, sizeof(*e));
    if (e == NULL || !parse_name(name, e)) {
        free(e);
        return false;
    }
    e->size = size;
    trash_insert(a, e);
    return true;
}

void archive_trash_fini(struct hl_archive *a)
{
    struct hl_archive_trash_entry *e, *next;
    HASH_ITER (hh, a->trash, e, next) {
        take_out(a, e);
        free(e);
    }
}

/* The entry is allocated first: the move then needs no memory, so a moved shard is always
 * listed. */
hl_status hl_archive_trash(struct hl_archive *a, struct hl_id id, int64_t now_ms,
                           struct hl_archive_trashed *out)
{
    struct hl_archive_trash_entry *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return hl_fail(HL_ENOMEM, "archive: out of memory listing its trash");
    e->id = id;
    e->ms = now_ms > 0 ? now_ms : 0;
    hl_status st = archive_begin_removal(a, id, &e->size);
    if (st == HL_OK) {
        st = a->ops->trash(a, id, e->size, name_of(e).s);
        archive_end_removal(a, id, st);
    }
    if (st != HL_OK) {
        free(e);
        return st;
    }
    if (out != NULL)
        describe_entry(e, out);
    insert_locked(a, e);
    return HL_OK;
}

/* With the entry taken out. *gone: its object is not there any more. */
static hl_status move_back(struct hl_archive *a, const struct hl_archive_trash_entry *e, bool *gone)
{
    *gone = false;
    HL_TRY(archive_begin_put(a, e->id, e->size));
    hl_status st = a->ops->untrash(a, e->id, e->size, name_of(e).s);
    archive_end_put(a, e->id, e->size, NULL, st);
    if (st == HL_ENOENT) {
        st = a->ops->trash_look(a, e->size, name_of(e).s);
        *gone = st == HL_ENOENT;
    }
    return st;
}

hl_status hl_archive_untrash(struct hl_archive *a, struct hl_id id)
{
    for (;;) { /* ends: each round but the last one forgets an entry */
        struct hl_archive_trash_entry *e = NULL;
        bool gone;
        pthread_mutex_lock(&a->lock);
        HASH_FIND(hh, a->trash, &id, sizeof(id), e);
        if (e != NULL)
            take_out(a, e);
        pthread_mutex_unlock(&a->lock);
        if (e == NULL)
            return hl_fail(HL_ENOENT, "archive: shard %s is not in the trash", hl_id_format(id).s);
        hl_status st = move_back(a, e, &gone);
        if (st == HL_OK || gone)
            free(e);
        else
            insert_locked(a, e);
        if (!gone)
            return st;
    }
}

/* ---- objects that others have taken away ----------------------------------------------------- */

/* A shard that was trashed twice has two entries; one that is not marked is looked at. */
void archive_seen_trash(struct hl_archive *a, const char *name)
{
    struct hl_archive_trash_entry is, *e = NULL;
    if (!parse_name(name, &is))
        return;
    pthread_mutex_lock(&a->lock);
    HASH_FIND(hh, a->trash, &is.id, sizeof(is.id), e);
    if (e != NULL && e->ms == is.ms)
        e->seen_round = a->check_round;
    pthread_mutex_unlock(&a->lock);
}

/* Copies entries after *number that no list of this check has shown. */
static size_t unseen_page(struct hl_archive *a, uint64_t *number,
                          struct hl_archive_trash_entry *out, size_t max)
{
    size_t n = 0;
    struct hl_archive_trash_entry *e, *next;
    pthread_mutex_lock(&a->lock);
    HASH_ITER (hh, a->trash, e, next)
        if (e->number > *number && e->seen_round != a->check_round && n < max)
            out[n++] = *e;
    pthread_mutex_unlock(&a->lock);
    if (n > 0)
        *number = out[n - 1].number;
    return n;
}

/* Entries that others have taken out since have new numbers, or are none any more. */
static void forget_gone(struct hl_archive *a, const struct hl_archive_trash_entry *page, size_t n)
{
    size_t i = 0;
    struct hl_archive_trash_entry *e, *next;
    pthread_mutex_lock(&a->lock);
    HASH_ITER (hh, a->trash, e, next) {
        while (i < n && page[i].number < e->number)
            i++;
        if (i < n && page[i].number == e->number && page[i].gone) {
            take_out(a, e);
            free(e);
        }
    }
    pthread_mutex_unlock(&a->lock);
}

/* What can't be looked at stays; the archive is not away for that. */
hl_status archive_check_trash(struct hl_archive *a)
{
    struct hl_archive_trash_entry page[CHECK_PAGE];
    uint64_t number = 0, gone = 0;
    for (size_t n; (n = unseen_page(a, &number, page, CHECK_PAGE)) > 0;) {
        for (size_t i = 0; i < n; i++) {
            if (archive_is_stopped(a->cancel))
                return hl_fail(HL_ECANCELED, "archive: the look into its trash was stopped");
            hl_status st = a->ops->trash_look(a, page[i].size, name_of(&page[i]).s);
            page[i].gone = st == HL_ENOENT;
            gone += page[i].gone;
            if (st == HL_EUNAVAIL || st == HL_ETIMEDOUT)
                return st;
        }
        forget_gone(a, page, n);
    }
    if (gone > 0)
        hl_warn("shards are missing from the archive's trash count=%" PRIu64, gone);
    return HL_OK;
}

/* ---- lists, and emptying --------------------------------------------------------------------- */

size_t hl_archive_trash_page(struct hl_archive *a, uint64_t *cursor, struct hl_archive_trashed *out,
                             size_t max)
{
    size_t n = 0;
    uint64_t from = *cursor;
    struct hl_archive_trash_entry *e, *next;
    *cursor = 0;
    pthread_mutex_lock(&a->lock);
    HASH_ITER (hh, a->trash, e, next) {
        if (e->number < from)
            continue;
        if (n == max) {
            *cursor = e->number;
            break;
        }
        describe_entry(e, &out[n++]);
    }
    pthread_mutex_unlock(&a->lock);
    return n;
}

/* With the lock held. */
static struct hl_archive_trash_entry *find_old(struct hl_archive *a, int64_t before_ms)
{
    struct hl_archive_trash_entry *e, *next;
    HASH_ITER (hh, a->trash, e, next)
        if (e->ms < before_ms)
            return e;
    return NULL;
}

bool hl_archive_trash_old(struct hl_archive *a, int64_t before_ms)
{
    pthread_mutex_lock(&a->lock);
    bool old = find_old(a, before_ms) != NULL;
    pthread_mutex_unlock(&a->lock);
    return old;
}

hl_status hl_archive_trash_empty(struct hl_archive *a, int64_t before_ms,
                                 struct hl_archive_trashed *out)
{
    pthread_mutex_lock(&a->lock);
    struct hl_archive_trash_entry *e = find_old(a, before_ms);
    if (e != NULL)
        take_out(a, e);
    pthread_mutex_unlock(&a->lock);
    if (e == NULL)
        return hl_fail(HL_ENOENT, "archive: nothing in the trash is that old");
    hl_status st = a->ops->trash_remove(a, name_of(e).s);
    if (st != HL_OK) {
        insert_locked(a, e);
        return st;
    }
    describe_entry(e, out);
    free(e);
    return HL_OK;
}
