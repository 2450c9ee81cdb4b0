/* controller/copies/copies.h - where the bytes are: the L3 daemon's pool and archive, compared with
 * the catalogue by the sweep, and the copies in the nodes' stores.
 *
 * What nodes hold is soft state, learned from the Agents' inventories and from the answers to our
 * own calls, and never trusted blindly. The manifest of each visible version
 * (core/catalog/manifest.h) lies beside its shards: it is written after the commit that made the
 * version visible was answered. A missing one is written by the next sweep, one of no version is
 * freed as an orphan.
 *
 * Owns:    the table of copies, what L3 said of its pool, what the last sweep has seen.
 * Threads: the Controller's loop.
 * Errors:  none: what can't be remembered or written is done again by the next inventory or sweep.
 * Units:   bytes, seconds, ms.
 * Limits:  256 drops under way at a node, 16 manifests under way.
 */
#ifndef HL_CONTROLLER_COPIES_COPIES_H
#define HL_CONTROLLER_COPIES_COPIES_H

#include <stdbool.h>

#include "api/types.h"
#include "base/id.h"
#include "core/placement/durability.h"
#include "rpc/controller_calls.h"

struct hl_controller;
struct hl_model_rec;
struct hl_shard_rec;
struct hl_version_rec;
struct node;

/* importing: whether an import is running, whose shards are in no version yet. */
hl_status copies_create(struct hl_controller *c,
                        bool (*importing)(const struct hl_controller *c)) HL_CHECK;
/* No turn of a walk comes any more. */
void copies_end_walks(struct hl_controller *c);
void copies_fini(struct hl_controller *c);
/* The catalogue's last word of it: a walk is not at it any more. */
void copies_shard_leaves(struct hl_controller *c, const struct hl_shard_rec *s);

/* What others do with copies. */
struct copy_events {
    /* A copy of the shard has come or gone. */
    void (*changed)(struct hl_controller *c, struct hl_id id);
    /* The same of pool and archive, as a sweep has found it: of many shards at once. */
    void (*swept)(struct hl_controller *c, struct hl_id id);
    /* True: the copy is not offered to readers. */
    bool (*hidden)(const struct hl_controller *c, struct hl_id id, enum hl_api_tier tier,
                   const struct node *node);
    /* True: the shard moves, which may drop a copy of it. */
    bool (*moves)(const struct hl_controller *c, struct hl_id id);
};

/* `events` is borrowed for the Controller's life. */
void copies_watch(struct hl_controller *c, const struct copy_events *events);
/* Ask L3 how its pool is; begin a sweep when one is due. */
void pool_tick(struct hl_controller *c);
/* Ask the nodes that have changed what they hold; drop copies of unknown shards. */
void copies_tick(struct hl_controller *c);

/* ---- copies ---- */

/* Where a copy lies: the L3 host (node NULL) or a node. */
struct place {
    enum hl_api_tier tier;
    struct node *node;
    char device[96];
};

/* Where a shard can be read from now; the pool and the archive included. Returns how many there
 * are, at most `max` are stored. `at_least` leaves out what is less safe: HL_API_TIER_L2 = no
 * device memory. */
size_t copies_places(struct hl_controller *c, struct hl_id id, enum hl_api_tier at_least,
                     struct place *out, size_t max);
/* Free bytes of the node's L2; false: it has none. */
bool copies_room(const struct node *n, uint64_t *free_bytes);
/* What fails together with the place, as a host. */
uint32_t copies_domain(const struct hl_controller *c, const struct place *p);
/* `copy` is borrowed for the time of the call; NULL unless st is HL_OK. HL_ECANCELED: the
 * Controller is gone, touch nothing of it. So with the others. */
typedef void (*copies_brought)(void *arg, hl_status st, const char *text,
                               const struct hl_api_copy *copy);

/* How much longer a copy of so many bytes takes that may go no faster. */
static inline int64_t copy_paced_ms(uint64_t size_bytes, uint64_t bytes_per_s)
{
    return bytes_per_s > 0 ? (int64_t)((double)size_bytes * 1e3 / (double)bytes_per_s) + 1 : 0;
}

struct copies_order {
    struct hl_id id; /* the caller's, for copies_stop */
    struct hl_id shard;
    struct place goal;
    enum hl_api_operation op;
    uint64_t bytes_per_s; /* that it may take of its way; 0: all it can get */
    bool gives_way;       /* out of the archive: only while nobody else loads, into free room */
};

/* Bring a copy of the shard to `goal`, from where it is near. */
hl_status copies_bring(struct hl_controller *c, const struct copies_order *order,
                       copies_brought done, void *arg) HL_CHECK;
/* Ends the copy of that order: no further step begins, and the node that makes the present one is
 * told, or L3. Its `done` still comes; it may have been ready. Where it is not this Controller's
 * the holders of `also` are told. What others wait for too goes on. */
void copies_stop(struct hl_controller *c, struct hl_id order, const struct place *also,
                 size_t also_count);
/* dropped: the holder had it. */
typedef void (*copies_dropped)(void *arg, hl_status st, const char *text, bool dropped);
/* Drop that copy without a question: the caller knows of another one. */
hl_status copies_drop(struct hl_controller *c, struct hl_id id, const struct place *p,
                      copies_dropped done, void *arg) HL_CHECK;

/* A drop of a copy of the shard was ordered and is not answered. */
bool copies_are_dropping(const struct hl_controller *c, struct hl_id id);

/* A copy as its holder has confirmed it. */
struct confirmed_copy {
    struct place place;
    uint64_t size_bytes;
    uint32_t crc32;
};

/* An error: not all have answered. */
typedef void (*copies_confirmed)(void *arg, hl_status st, const char *text,
                                 const struct confirmed_copy *copies, size_t count);
/* Ask the holders of all copies that are known, but for L1 and L4, and those of `also`. */
hl_status copies_confirm(struct hl_controller *c, struct hl_id id, const struct place *also,
                         size_t also_count, copies_confirmed done, void *arg) HL_CHECK;
/* "L2 of node-1", "L3" into buf. */
const char *place_name(const struct place *p, char *buf, size_t cap);
/* The shard with those of its copies that can be read now; it borrows from the catalogue. */
struct hl_api_shard copies_shard(struct hl_controller *c, const struct hl_shard_rec *s,
                                 struct hl_arena *arena);
/* The node's Agent is a new one: its inventory is asked for again, whatever its epoch. */
void copies_relist(struct hl_controller *c, struct node *n);
/* None of the node's copies counts any more. */
void copies_forget_node(struct hl_controller *c, struct node *n);

/* ---- pool and archive ---- */

/* What L3 last said of its pool; NULL: it does not answer. Borrowed until the next answer. */
const struct hl_api_pool_info *pool_info(const struct hl_controller *c);
/* ClusterInfo.l3State. */
const char *pool_state(const struct hl_controller *c);
/* Its last two sweeps since the daemon has started are over: what the pool has is known. */
bool pool_is_known(const struct hl_controller *c);
/* The L3 daemon has an L4. */
bool pool_has_archive(const struct hl_controller *c);
/* Free shards and manifests in pool, archive and nodes; failures are left to the sweep. */
void pool_free(struct hl_controller *c, const struct hl_id *ids, size_t n);
/* Those of them that the catalogue does not know: what was put and can't be committed any more. */
void pool_free_uncommitted(struct hl_controller *c, const struct hl_api_text_list *ids);
void pool_free_shards(struct hl_controller *c, const struct hl_api_shard_list *shards);
/* Something may have to be archived: don't wait for gc.interval. */
void sweep_soon(struct hl_controller *c);
/* The version is visible: write its manifest, and don't wait. */
void manifest_write(struct hl_controller *c, const struct hl_version_rec *v);
/* Those of the versions that are going: a list of ids that the caller frees, NULL without
 * memory: then they go as orphans. number -1: all of the model. */
struct hl_id *manifests_of(const struct hl_model_rec *m, int64_t number, size_t *count);
/* Tell L3 which shards were read through its mapping. */
void archive_touch(struct hl_controller *c, const struct hl_api_access_report_list *reports);

/* ---- durability: versions.durability ---- */

/* A shard that is to be held in so many failure domains. */
struct securable {
    struct hl_id id;
    uint64_t size_bytes;
    uint32_t crc32;
    const char *node; /* that will read it; "" = none that is known. Borrowed for the call, as: */
    const char *name; /* for people, where the catalogue does not know it */
};

/* Bring a copy of a shard that the catalogue may not know yet: then it is in the pool. */
hl_status copies_bring_stated(struct hl_controller *c, const struct securable *shard,
                              const struct place *goal, copies_brought done, void *arg) HL_CHECK;

struct securing;

struct securing_progress {
    uint64_t done_bytes, total_bytes;
};

/* HL_ETIMEDOUT, HL_EUNSUPPORTED name the first shard, where it is and what is missing.
 * HL_ECANCELED: the Controller is gone. */
typedef void (*securing_done)(void *arg, hl_status st, const char *text);

enum hl_durability copies_durability(const struct hl_controller *c);
/* From now on, and for the versions that are visible too: the next sweep makes what they lack. As
 * durability_check, and then nothing has changed. */
hl_status durability_change(struct hl_controller *c, const char *word) HL_CHECK;
/* HL_EUNSUPPORTED: no version can be held as is wanted: there is no archive, nor another host. */
hl_status durability_check(const struct hl_controller *c) HL_CHECK;
/* Bring the shards into as many failure domains as is wanted. `done` comes once, later, unless it
 * is cancelled first; then *out is gone. */
hl_status securing_start(struct hl_controller *c, const struct securable *shards, size_t count,
                         securing_done done, void *arg, struct securing **out) HL_CHECK;
struct securing_progress securing_look(const struct securing *t);
/* `done` does not come. */
void securing_cancel(struct securing *t);
/* Shards of a visible version that are held in too few failure domains now; of the first one into
 * `text` where it is. */
size_t version_lacking(struct hl_controller *c, const struct hl_version_rec *v, char *text,
                       size_t cap);
/* The same of all, by the last sweep. */
size_t durability_lacking(const struct hl_controller *c);
/* The version was secured, and is visible now: what the table of copies lacks of it is in the
 * archive, as L3 has answered before the catalogue knew the shard. */
void durability_settle(struct hl_controller *c, const struct hl_version_rec *v);
/* HL_ECONFLICT: without that copy, and with one at `comes`, which may be NULL, it would be held in
 * too few. */
hl_status durability_lets_go(struct hl_controller *c, struct hl_id id, const struct place *goes,
                             const struct place *comes) HL_CHECK;

void method_get_shard(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_get_shard_params *p);
void method_gone_shards(void *arg, struct hl_rpc_call *call,
                        const struct hl_api_controller_gone_shards_params *p);
void method_copy_shard(void *arg, struct hl_rpc_call *call,
                       const struct hl_api_controller_copy_shard_params *p);
void method_drop_copy(void *arg, struct hl_rpc_call *call,
                      const struct hl_api_controller_drop_copy_params *p);
void method_report_bad_copy(void *arg, struct hl_rpc_call *call,
                            const struct hl_api_controller_report_bad_copy_params *p);

#endif
