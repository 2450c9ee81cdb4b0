/* Whether what the index of the archive names is still there: other programs can remove its files
 * or objects, or the whole archive.
 *
 *     l4_look   one shard, before the pool's copy is evicted and before the archive is trusted
 *     a check   all shards, whenever the Controller's sweep asks for the inventory
 *
 * A shard whose object has gone leaves the index, so the next sweep archives it again if the pool
 * has it. An archive that can't be looked at proves nothing: its shards stay in the index, and
 * nothing is evicted for them. Both block, and so run in workers; the flags are atomic. */
#include "base/clock.h"
#include "base/log.h"
#include "base/plane.h"
#include "l3d/l4_private.h"

#define AWAY_NS     (5 * HL_NS_PER_S) /* between two looks at an unreachable archive */
#define CHECK_SHARE 20                /* a check takes at most this part of the time */

static void note_missing(struct hl_l3d *d, struct hl_id id)
{
    l4_bad_clear(d, id);
    hl_fault_count("missing", "archive");
}

static void note_away(struct hl_l3d *d, hl_status st)
{
    struct l4 *l4 = d->l4;
    if (st == HL_ECANCELED || st == HL_EBUSY || st == HL_ENOMEM)
        return;
    atomic_store(&l4->look_ns, hl_now_ns() + AWAY_NS);
    if (!atomic_exchange(&l4->away, true))
        hl_error(
            "the archive is unreachable: nothing is evicted or archived until it is back url=%s "
            "error=\"%s\"",
            l4->url, hl_error_text());
}

static void note_here(struct hl_l3d *d)
{
    if (atomic_exchange(&d->l4->away, false))
        hl_info("the archive is back url=%s", d->l4->url);
}

hl_status l4_look(struct hl_l3d *d, struct hl_id id)
{
    struct hl_archive *a;
    bool gone;
    HL_TRY(l4_need(d, &a));
    if (l4_bad_has(d, id))
        return hl_fail(HL_ECORRUPT, "shard %s: the copy in %s is damaged", hl_id_format(id).s,
                       d->l4->url);
    if (l4_is_away(d) && hl_now_ns() < atomic_load(&d->l4->look_ns))
        return hl_fail(HL_EUNAVAIL, "%s is unreachable", d->l4->url);
    hl_status st = hl_archive_look(a, id, &gone);
    if (gone) {
        hl_error("the archived copy is gone id=%s error=\"%s\"", hl_id_format(id).s,
                 hl_error_text());
        note_missing(d, id);
    } else if (st == HL_ECORRUPT) {
        l4_bad_mark(d, id);
    } else if (st != HL_OK && st != HL_ENOENT) {
        note_away(d, st);
        return st;
    }
    if (st == HL_OK || gone)
        note_here(d);
    return st;
}

/* The CRC in the archive may be computed from a header in which a bit has changed; the pool's is
 * that of the commit. Without a CRC the archived copy could not be loaded. */
bool l4_holds(struct hl_l3d *d, const struct hl_pool_ref *ref)
{
    struct hl_archive *a = l4_archive(d);
    uint64_t size;
    uint32_t crc = 0;
    if (l4_look(d, ref->id) != HL_OK || hl_archive_size(a, ref->id, &size) != HL_OK ||
        size != ref->size)
        return false;
    hl_status st = hl_archive_crc(a, ref->id, &crc);
    if (st == HL_OK && crc != ref->crc32)
        st = hl_fail(HL_ECORRUPT, "shard %s has CRC %08x in %s, %08x in the pool",
                     hl_id_format(ref->id).s, crc, d->l4->url, ref->crc32);
    if (st == HL_ECORRUPT)
        l4_bad_mark(d, ref->id);
    return st == HL_OK;
}

hl_status l4_gone(struct hl_l3d *d, struct hl_id id)
{
    char why[HL_ERROR_TEXT_MAX];
    snprintf(why, sizeof(why), "%s", hl_error_text());
    hl_status st = l4_look(d, id);
    return st == HL_OK ? hl_fail(HL_ENOENT, "%s", why) : st;
}

/* ---- all shards ------------------------------------------------------------------------------ */

static void on_missed(void *arg, struct hl_id id, bool gone)
{
    struct hl_l3d *d = arg;
    if (!gone) {
        l4_bad_mark(d, id);
        return;
    }
    if (d->l4->check.missing++ == 0)
        d->l4->check.first = id;
    note_missing(d, id);
}

static hl_status keep_claim(struct hl_l3d *d, struct hl_archive *a)
{
    pthread_mutex_lock(&d->l4->sign_lock);
    hl_status st = hl_archive_claim_keep(a);
    pthread_mutex_unlock(&d->l4->sign_lock);
    return st;
}

void l4_check_now(struct hl_l3d *d)
{
    struct l4_check *c = &d->l4->check;
    c->missing = 0;
    hl_status st = hl_archive_check(l4_archive(d), on_missed, d);
    if (c->missing > 0)
        hl_error("shards are missing from the archive, those in the pool are archived again "
                 "count=%llu first=%s url=%s",
                 (unsigned long long)c->missing, hl_id_format(c->first).s, d->l4->url);
    if (st == HL_OK)
        st = keep_claim(d, l4_archive(d));
    if (st == HL_OK)
        note_here(d);
    else
        note_away(d, st);
    hl_error_clear();
}

static void check_run(struct work *w)
{
    struct l4_check *c = (struct l4_check *)w;
    const uint64_t begun_ns = hl_now_ns();
    if (!atomic_load_explicit(&c->d->stopping, memory_order_relaxed))
        l4_check_now(c->d);
    const uint64_t now = hl_now_ns();
    c->next_ns = now + CHECK_SHARE * (now - begun_ns);
}

static void check_done(struct work *w)
{
    ((struct l4_check *)w)->busy = false;
}

void l4_check_soon(struct hl_l3d *d)
{
    struct l4_check *c = &d->l4->check;
    if (c->busy || l4_archive(d) == NULL || d->stopping || hl_now_ns() < c->next_ns)
        return;
    c->busy = true;
    c->d = d;
    c->work = (struct work){.run = check_run, .done = check_done};
    workers_add(d->l4->stores, &c->work);
}
