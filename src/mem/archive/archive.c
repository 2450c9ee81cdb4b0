/* What all archives share: the quota and an index of the shards with their sizes, which one scan
 * fills at the open. An id is claimed in the index before a back end works on it (WRITING,
 * REMOVING), so back ends never see two changes of one shard at once, and the lock is never held
 * during I/O.
 *
 *     put --> WRITING --stored--> SEALED --remove--> REMOVING --removed--> no entry
 *                |                   ^                  |
 *                |                   '------failed------'
 *                '--failed--> no entry
 *
 * A claim never waits: a second put or a remove of a claimed id gets HL_EBUSY. A read needs a
 * SEALED entry only when it begins; the medium orders a concurrent remove. */
#include "mem/archive/archive.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/crc32.h"
#include "core/catalog/manifest_id.h"
#include "core/safetensors/safetensors.h"
#include "mem/archive/ops.h"

/* Must follow ops.h: a failed insert must not end the process. */
#define HASH_NONFATAL_OOM            1
#define uthash_nonfatal_oom(element) ((element)->lost = true)
#include <uthash.h>

enum state { SEALED, WRITING, REMOVING };

/* All fields are guarded by hl_archive.lock. `id`, `size` and `number` never change; the state says
 * who may work on the shard in the medium. */
struct hl_archive_entry {
    struct hl_id id;
    uint64_t size;
    uint64_t number;      /* order of insertion, and of pages */
    uint32_t crc, stated; /* stated: by the catalogue */
    bool crc_known, is_stated;
    bool crc_derived; /* from the shard's own header */
    enum state state;
    unsigned removals;   /* that were begun: a look that overlaps one proves nothing */
    unsigned seen_round; /* the last check that has seen the object in a list */
    bool lost;           /* uthash ran out of memory */
    UT_hash_handle hh;
};

#define VERIFY_PIECE ((uint64_t)8 << 20)
#define CHECK_PAGE   256

/* With the lock held. The entry stays valid until the unlock, or while the caller has it
 * claimed. */
static struct hl_archive_entry *find_entry(struct hl_archive *a, struct hl_id id)
{
    struct hl_archive_entry *e = NULL;
    HASH_FIND(hh, a->entries, &id, sizeof(id), e);
    return e;
}

static void drop_entry(struct hl_archive *a, struct hl_archive_entry *e)
{
    a->info.used_bytes -= e->size;
    if (e->state == WRITING)
        a->info.writing_bytes -= e->size;
    HASH_DEL(a->entries, e);
    free(e);
}

/* Counts the SEALED entries; a REMOVING one is neither listed nor counted. */
static void count_shard(struct hl_archive *a, struct hl_id id, int more)
{
    a->info.count += (uint64_t)more;
    if (hl_manifest_is(id))
        a->info.manifests += (uint64_t)more;
}

void archive_entries_fini(struct hl_archive *a)
{
    struct hl_archive_entry *e, *next;
    HASH_ITER (hh, a->entries, e, next)
        drop_entry(a, e);
}

static hl_status add_entry(struct hl_archive *a, struct hl_id id, uint64_t size, enum state state)
{
    struct hl_archive_entry *e = calloc(1, sizeof(*e));
    if (e == NULL)
        return hl_fail(HL_ENOMEM, "archive: out of memory allocating its index");
    e->id = id;
    e->size = size;
    e->state = state;
    e->number = ++a->last_number;
    HASH_ADD(hh, a->entries, id, sizeof(e->id), e);
    if (e->lost) {
        free(e);
        return hl_fail(HL_ENOMEM, "archive: out of memory allocating its index");
    }
    a->info.used_bytes += size;
    if (state == WRITING)
        a->info.writing_bytes += size;
    return HL_OK;
}

/* Called without the lock by the scan at the open, before any other thread knows the archive. */
hl_status hl_archive_found(struct hl_archive *a, struct hl_id id, uint64_t size)
{
    HL_TRY(add_entry(a, id, size, SEALED));
    count_shard(a, id, 1);
    return HL_OK;
}

/* ---- checksums ------------------------------------------------------------------------------ */

hl_status hl_archive_derive_crc(const void *head, size_t len, uint64_t size, uint32_t *out)
{
    struct hl_safetensors st;
    HL_TRY(hl_safetensors_parse(head, len, size, &st));
    uint32_t crc = hl_crc32(0, head, st.data_offset);
    hl_status status = HL_OK;
    for (size_t i = 0; i < st.count && status == HL_OK; i++) {
        uint32_t part = 0;
        status = hl_safetensors_crc(&st, st.tensors[i].name, &part);
        crc = hl_crc32_combine(crc, part, st.tensors[i].size);
    }
    hl_safetensors_fini(&st);
    if (status == HL_OK)
        *out = crc;
    return status;
}

/* Only a file that any reader can open and whose own checksums are right is worth keeping. */
static hl_status check_shard(struct hl_id id, const void *bytes, uint64_t size, uint32_t crc)
{
    uint32_t derived = 0;
    hl_status st = hl_archive_derive_crc(bytes, size, size, &derived);
    if (st == HL_ENOENT)
        return HL_OK; /* a shard whose tensors have no checksums */
    if (st != HL_OK)
        return hl_fail_prefix(st, "archive: shard %s: ", hl_id_format(id).s);
    if (derived != crc)
        return hl_fail(HL_ECORRUPT,
                       "archive: shard %s: the tensor checksums in its header make %08" PRIx32
                       ", the shard's is %08" PRIx32 "; it is not stored",
                       hl_id_format(id).s, derived, crc);
    return HL_OK;
}

/* ---- shards --------------------------------------------------------------------------------- */

/* With the lock held. The quota is checked and the bytes are counted in one step, so concurrent
 * puts can't exceed it together. */
static hl_status claim_put(struct hl_archive *a, struct hl_id id, uint64_t size)
{
    struct hl_archive_entry *e = find_entry(a, id);
    uint64_t quota = a->info.quota_bytes, used = a->info.used_bytes;
    if (e != NULL && e->state != SEALED)
        return hl_fail(HL_EBUSY, "archive: shard %s is being %s", hl_id_format(id).s,
                       e->state == WRITING ? "written" : "removed");
    if (e != NULL)
        return hl_fail(HL_EEXIST, "archive: shard %s is stored already", hl_id_format(id).s);
    if (quota != 0 && (used > quota || size > quota - used))
        return hl_fail(HL_ENOSPC,
                       "archive: shard %s of %" PRIu64 " bytes: %" PRIu64
                       " of the quota of %" PRIu64
                       " bytes are used; remove shards or raise the quota",
                       hl_id_format(id).s, size, used, quota);
    return add_entry(a, id, size, WRITING);
}

hl_status archive_begin_put(struct hl_archive *a, struct hl_id id, uint64_t size)
{
    pthread_mutex_lock(&a->lock);
    hl_status st = claim_put(a, id, size);
    pthread_mutex_unlock(&a->lock);
    return st;
}

/* `crc` is NULL if unknown, as for a shard that came back from the trash. */
void archive_end_put(struct hl_archive *a, struct hl_id id, uint64_t size, const uint32_t *crc,
                     hl_status st)
{
    pthread_mutex_lock(&a->lock);
    struct hl_archive_entry *e = find_entry(a, id);
    if (st == HL_OK) {
        a->info.writing_bytes -= size;
        e->state = SEALED;
        e->crc = crc != NULL ? *crc : 0;
        e->crc_known = crc != NULL;
        count_shard(a, id, 1);
    } else {
        drop_entry(a, e);
    }
    pthread_mutex_unlock(&a->lock);
}

static _Thread_local const atomic_bool *stop_of_thread;

void hl_archive_stop_with(const atomic_bool *stop)
{
    stop_of_thread = stop;
}

const atomic_bool *archive_take_stop(void)
{
    const atomic_bool *stop = stop_of_thread;
    stop_of_thread = NULL;
    return stop;
}

bool archive_is_stopped(const atomic_bool *cancel)
{
    return (cancel != NULL && atomic_load_explicit(cancel, memory_order_relaxed)) ||
           (stop_of_thread != NULL && atomic_load_explicit(stop_of_thread, memory_order_relaxed));
}

/* Reads the whole object. */
static hl_status sum_up(struct hl_archive *a, struct hl_id id, uint64_t size, uint32_t *out)
{
    uint32_t got = 0, crc;
    HL_AUTO(hl_freep) void *piece = malloc(VERIFY_PIECE);
    if (piece == NULL)
        return hl_fail(HL_ENOMEM, "archive: out of memory verifying shard %s", hl_id_format(id).s);
    for (uint64_t at = 0; at < size; at += VERIFY_PIECE) {
        uint64_t len = size - at < VERIFY_PIECE ? size - at : VERIFY_PIECE;
        if (archive_is_stopped(a->cancel))
            return hl_fail(HL_ECANCELED, "archive: verification of shard %s", hl_id_format(id).s);
        HL_TRY(a->ops->read(a, id, size, at, piece, len, &crc));
        got = hl_crc32_combine(got, crc, len);
    }
    *out = got;
    return HL_OK;
}

/* Something has the shard's name already. It makes way only if it is the shard itself, which others
 * have put back after the index forgot it. It is written again, because it may not be on disk. */
static hl_status put_again(struct hl_archive *a, struct hl_id id, const void *bytes, uint64_t size,
                           uint32_t crc)
{
    char why[HL_ERROR_TEXT_MAX];
    uint32_t got = 0;
    snprintf(why, sizeof(why), "%s", hl_error_text());
    hl_status st = sum_up(a, id, size, &got);
    if (st == HL_ECANCELED)
        return st;
    if (st != HL_OK || got != crc)
        return hl_fail(HL_EIO, "%s", why);
    HL_TRY(a->ops->remove(a, id));
    st = a->ops->put(a, id, bytes, size, crc);
    return st == HL_EEXIST ? hl_fail(HL_EIO, "%s", why) : st;
}

hl_status hl_archive_put(struct hl_archive *a, struct hl_id id, const void *bytes, uint64_t size,
                         uint32_t crc)
{
    if (hl_id_is_none(id))
        return hl_fail(HL_EINVAL, "archive: the id of a shard must not be 0");
    HL_TRY(check_shard(id, bytes, size, crc));
    HL_TRY(archive_begin_put(a, id, size));
    hl_status st = a->ops->put(a, id, bytes, size, crc);
    if (st == HL_EEXIST)
        st = put_again(a, id, bytes, size, crc);
    archive_end_put(a, id, size, &crc, st);
    return st;
}

hl_status hl_archive_size(struct hl_archive *a, struct hl_id id, uint64_t *out)
{
    hl_status st = HL_OK;
    pthread_mutex_lock(&a->lock);
    const struct hl_archive_entry *e = find_entry(a, id);
    if (e == NULL || e->state != SEALED)
        st = hl_fail(HL_ENOENT, "archive: shard %s is not stored", hl_id_format(id).s);
    else
        *out = e->size;
    pthread_mutex_unlock(&a->lock);
    return st;
}

/* The bytes are read without the lock and without a claim. If they are removed meanwhile, the back
 * end or the checksum fails: an answer never has other bytes. */
hl_status hl_archive_get(struct hl_archive *a, struct hl_id id, void *dst, uint64_t size,
                         uint32_t crc)
{
    uint64_t stored = 0;
    uint32_t got = 0;
    HL_TRY(hl_archive_size(a, id, &stored));
    if (stored != size)
        return hl_fail(HL_ECORRUPT,
                       "archive: shard %s has %" PRIu64 " bytes, the archive holds %" PRIu64,
                       hl_id_format(id).s, size, stored);
    HL_TRY(a->ops->read(a, id, size, 0, dst, size, &got));
    if (got != crc)
        return hl_fail(HL_ECORRUPT,
                       "archive: shard %s: the bytes have CRC %08" PRIx32 ", expected %08" PRIx32
                       "; take another copy and remove this one",
                       hl_id_format(id).s, got, crc);
    return HL_OK;
}

hl_status hl_archive_read(struct hl_archive *a, struct hl_id id, uint64_t size, uint64_t offset,
                          void *dst, uint64_t len, uint32_t *crc)
{
    return a->ops->read(a, id, size, offset, dst, len, crc);
}

static bool copy_entry(struct hl_archive *a, struct hl_id id, struct hl_archive_entry *out)
{
    pthread_mutex_lock(&a->lock);
    const struct hl_archive_entry *e = find_entry(a, id);
    bool stored = e != NULL && e->state == SEALED;
    if (stored)
        *out = *e;
    pthread_mutex_unlock(&a->lock);
    return stored;
}

void hl_archive_state_crc(struct hl_archive *a, struct hl_id id, uint32_t crc)
{
    pthread_mutex_lock(&a->lock);
    struct hl_archive_entry *e = find_entry(a, id);
    if (e != NULL && e->state == SEALED && !(e->crc_known && (!e->crc_derived || e->crc == crc))) {
        e->stated = crc;
        e->is_stated = true;
        e->crc_known = false;
    }
    pthread_mutex_unlock(&a->lock);
}

/* Looks the entry up again: meanwhile it may have been removed, or its CRC stated. */
static void learn_crc(struct hl_archive *a, struct hl_id id, uint32_t crc, bool derived)
{
    pthread_mutex_lock(&a->lock);
    struct hl_archive_entry *e = find_entry(a, id);
    if (e != NULL && e->state == SEALED && !(derived && e->is_stated)) {
        e->crc = crc;
        e->crc_known = true;
        e->crc_derived = derived;
    }
    pthread_mutex_unlock(&a->lock);
}

/* Reads the CRC from the header alone. */
static hl_status read_crc(struct hl_archive *a, struct hl_id id, uint32_t *out)
{
    uint64_t size = 0, len = 0;
    uint32_t crc;
    unsigned char first[8] = {0};
    HL_TRY(hl_archive_size(a, id, &size));
    HL_TRY(a->ops->read(a, id, size, 0, first, size < 8 ? size : 8, &crc));
    hl_status st = hl_safetensors_header_len(first, size < 8 ? size : 8, size, &len);
    if (st != HL_OK)
        return hl_fail_prefix(HL_ECORRUPT, "archive: shard %s: ", hl_id_format(id).s);
    HL_AUTO(hl_freep) char *head = malloc(8 + len);
    if (head == NULL)
        return hl_fail(HL_ENOMEM, "archive: out of memory allocating a header of %" PRIu64 " bytes",
                       len);
    HL_TRY(a->ops->read(a, id, size, 0, head, 8 + len, &crc));
    st = hl_archive_derive_crc(head, 8 + len, size, out);
    if (st != HL_OK)
        return hl_fail_prefix(st == HL_EINVAL ? HL_ECORRUPT : st,
                              "archive: shard %s: ", hl_id_format(id).s);
    return HL_OK;
}

/* A caller that asks for the CRC without reading the shard hears of a damaged header already now.
 */
static hl_status compare_crc(struct hl_archive *a, struct hl_id id, uint32_t kept)
{
    uint32_t derived = 0;
    hl_status st = read_crc(a, id, &derived);
    if (st == HL_ENOENT) /* a shard whose tensors have no checksums */
        return HL_OK;
    if (st == HL_OK && derived != kept)
        return hl_fail(HL_ECORRUPT,
                       "archive: shard %s has CRC %08" PRIx32
                       " according to its header, expected %08" PRIx32,
                       hl_id_format(id).s, derived, kept);
    return st;
}

hl_status hl_archive_crc(struct hl_archive *a, struct hl_id id, uint32_t *out)
{
    struct hl_archive_entry e;
    if (copy_entry(a, id, &e) && e.crc_known) {
        *out = e.crc;
        return HL_OK;
    }
    hl_status st = a->ops->crc != NULL ? a->ops->crc(a, id, out) : HL_ENOENT;
    const bool kept = st == HL_OK;
    const bool stated = st == HL_ENOENT && copy_entry(a, id, &e) && e.is_stated;
    if (stated)
        *out = e.stated;
    if (stated || (kept && a->ops->reads_are_cheap))
        st = compare_crc(a, id, *out);
    else if (st == HL_ENOENT)
        st = read_crc(a, id, out);
    HL_TRY(st);
    learn_crc(a, id, *out, !kept && !stated);
    return HL_OK;
}

hl_status hl_archive_verify(struct hl_archive *a, struct hl_id id)
{
    uint64_t size = 0;
    uint32_t want = 0, got = 0;
    HL_TRY(hl_archive_size(a, id, &size));
    HL_TRY(hl_archive_crc(a, id, &want));
    HL_TRY(sum_up(a, id, size, &got));
    if (got != want)
        return hl_fail(HL_ECORRUPT,
                       "archive: shard %s: the bytes have CRC %08" PRIx32 ", expected %08" PRIx32,
                       hl_id_format(id).s, got, want);
    return HL_OK;
}

/* With the lock held. From now on the shard is not counted as stored; its bytes count until they
 * are freed. */
static hl_status claim_remove(struct hl_archive *a, struct hl_id id)
{
    struct hl_archive_entry *e = find_entry(a, id);
    if (e == NULL)
        return hl_fail(HL_ENOENT, "archive: shard %s is not stored", hl_id_format(id).s);
    if (e->state != SEALED)
        return hl_fail(HL_EBUSY, "archive: shard %s is being %s", hl_id_format(id).s,
                       e->state == WRITING ? "written" : "removed");
    e->state = REMOVING;
    e->removals++;
    count_shard(a, id, -1);
    return HL_OK;
}

hl_status archive_begin_removal(struct hl_archive *a, struct hl_id id, uint64_t *size)
{
    pthread_mutex_lock(&a->lock);
    hl_status st = claim_remove(a, id);
    if (st == HL_OK)
        *size = find_entry(a, id)->size;
    pthread_mutex_unlock(&a->lock);
    return st;
}

void archive_end_removal(struct hl_archive *a, struct hl_id id, hl_status st)
{
    pthread_mutex_lock(&a->lock);
    struct hl_archive_entry *e = find_entry(a, id);
    if (st == HL_OK) {
        drop_entry(a, e);
    } else {
        e->state = SEALED;
        count_shard(a, id, 1);
    }
    pthread_mutex_unlock(&a->lock);
}

hl_status hl_archive_remove(struct hl_archive *a, struct hl_id id)
{
    uint64_t size;
    HL_TRY(archive_begin_removal(a, id, &size));
    hl_status st = a->ops->remove(a, id);
    archive_end_removal(a, id, st);
    return st;
}

/* ---- objects that others have taken away ------------------------------------------------------
 */

/* False: the shard was removed or stored meanwhile, so what was seen is not what is there now. */
static bool forget_shard(struct hl_archive *a, const struct hl_archive_entry *was)
{
    pthread_mutex_lock(&a->lock);
    struct hl_archive_entry *e = find_entry(a, was->id);
    bool same =
        e != NULL && e->state == SEALED && e->number == was->number && e->removals == was->removals;
    if (same) {
        count_shard(a, e->id, -1);
        drop_entry(a, e);
    }
    pthread_mutex_unlock(&a->lock);
    return same;
}

hl_status hl_archive_look(struct hl_archive *a, struct hl_id id, bool *gone)
{
    struct hl_archive_entry was;
    *gone = false;
    if (!copy_entry(a, id, &was))
        return hl_fail(HL_ENOENT, "archive: shard %s is not stored", hl_id_format(id).s);
    hl_status st = a->ops->look(a, id, was.size);
    if (st != HL_ENOENT)
        return st;
    *gone = forget_shard(a, &was);
    return *gone ? st
                 : hl_fail(HL_EBUSY, "archive: shard %s is being stored or removed",
                           hl_id_format(id).s);
}

void archive_seen(struct hl_archive *a, struct hl_id id, uint64_t size)
{
    pthread_mutex_lock(&a->lock);
    struct hl_archive_entry *e = find_entry(a, id);
    if (e != NULL && e->size == size)
        e->seen_round = a->check_round;
    pthread_mutex_unlock(&a->lock);
}

static hl_status check_page(struct hl_archive *a, const struct hl_archive_ref *refs, size_t n,
                            hl_archive_missed missed, void *arg)
{
    for (size_t i = 0; i < n; i++) {
        struct hl_archive_entry e;
        bool gone;
        if (archive_is_stopped(a->cancel))
            return hl_fail(HL_ECANCELED, "archive: the look at its shards was stopped");
        if (a->ops->list != NULL && copy_entry(a, refs[i].id, &e) && e.seen_round == a->check_round)
            continue;
        hl_status st = hl_archive_look(a, refs[i].id, &gone);
        if (gone || st == HL_ECORRUPT)
            missed(arg, refs[i].id, gone);
        else if (st != HL_OK && st != HL_ENOENT && st != HL_EBUSY)
            return st;
    }
    return HL_OK;
}

hl_status archive_check_shards(struct hl_archive *a, hl_archive_missed missed, void *arg)
{
    struct hl_archive_ref page[CHECK_PAGE];
    uint64_t cursor = 0;
    do {
        size_t n = hl_archive_page(a, &cursor, page, HL_ARRAY_LEN(page));
        HL_TRY(check_page(a, page, n, missed, arg));
    } while (cursor != 0);
    return HL_OK;
}

void hl_archive_stat(struct hl_archive *a, struct hl_archive_info *out)
{
    pthread_mutex_lock(&a->lock);
    *out = a->info;
    out->scheme = a->ops->scheme;
    pthread_mutex_unlock(&a->lock);
}

struct listed {
    struct hl_id id;
    uint64_t size;
};

/* Copies the list under the lock and visits it without: the visitor may call the archive. */
hl_status hl_archive_list(struct hl_archive *a, hl_archive_visit visit, void *arg)
{
    size_t n = 0;
    struct hl_archive_entry *e, *next;
    pthread_mutex_lock(&a->lock);
    HL_AUTO(hl_freep) struct listed *all = calloc(a->info.count + 1, sizeof(*all));
    if (all != NULL)
        HASH_ITER (hh, a->entries, e, next)
            if (e->state == SEALED)
                all[n++] = (struct listed){e->id, e->size};
    pthread_mutex_unlock(&a->lock);
    if (all == NULL)
        return hl_fail(HL_ENOMEM, "archive: out of memory listing its shards");
    for (size_t i = 0; i < n; i++)
        HL_TRY(visit(arg, all[i].id, all[i].size));
    return HL_OK;
}

/* The hash keeps the order of insertion, so numbers ascend: a page continues after the last one
 * although entries were added and removed. */
size_t hl_archive_page(struct hl_archive *a, uint64_t *cursor, struct hl_archive_ref *out,
                       size_t max)
{
    size_t n = 0;
    struct hl_archive_entry *e, *next;
    uint64_t from = *cursor;
    *cursor = 0;
    pthread_mutex_lock(&a->lock);
    HASH_ITER (hh, a->entries, e, next) {
        if (e->number < from || e->state != SEALED)
            continue;
        if (n == max) {
            *cursor = e->number;
            break;
        }
        out[n++] = (struct hl_archive_ref){
            e->id, e->size, e->is_stated && !e->crc_known ? e->stated : e->crc, e->crc_known};
    }
    pthread_mutex_unlock(&a->lock);
    return n;
}
