/* controller/copies/copies.h - tracks where the bytes are: in the L3 daemon's pool and archive,
 * which the sweep compares with the catalogue, and in the copies in the nodes' stores.
 *
 * What nodes hold is soft state, learned from the Agents' inventories and from the answers to our
 * own calls; it is never trusted blindly. The manifest of each visible version
 * (core/catalog/manifest.h) is stored next to its shards. It is written after the commit that made
 * the version visible was answered. The next sweep writes a missing manifest, and frees one without
 * a version as an orphan.
 *
 * Owns:    the table of copies, L3's last answer about its pool, and the results of the last sweep.
 * Threads: the Controller's loop.
 * Errors:  none: anything that can't be stored or written is repeated by the next inventory or
 *          sweep.
 * Units:   bytes, seconds, ms.
 * Limits:  256 drops in progress per node, 16 manifests in progress.
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

/* importing: tells whether an import is running; its shards are in no version yet. */
hl_status copies_create(struct hl_controller *c,
                        bool (*importing)(const struct hl_controller *c)) HL_CHECK;
/* Ends all walks: no further turn runs. */
void copies_end_walks(struct hl_controller *c);
void copies_fini(struct hl_controller *c);
/* The shard is leaving the catalogue: no walk may point at it any more. */
void copies_shard_leaves(struct hl_controller *c, const struct hl_shard_rec *s);

/* Callbacks for other wings that deal with copies. */
struct copy_events {
    /* A copy of the shard was added or removed. */
    void (*changed)(struct hl_controller *c, struct hl_id id);
    /* The same for pool and archive, found by a sweep, so for many shards at once. */
    void (*swept)(struct hl_controller *c, struct hl_id id);
    /* True: the copy must not be offered to readers. */
    bool (*hidden)(const struct hl_controller *c, struct hl_id id, enum hl_api_tier tier,
                   const struct node *node);
    /* True: the shard is moving, which may drop a copy of it. */
    bool (*moves)(const struct hl_controller *c, struct hl_id id);
};

/* `events` is borrowed for the Controller's life. */
void copies_watch(struct hl_controller *c, const struct copy_events *events);
/* Asks L3 about its pool; begins a sweep when one is due. */
void pool_tick(struct hl_controller *c);
/* Asks nodes with changes for their inventory; drops copies of unknown shards. */
void copies_tick(struct hl_controller *c);

/* ---- copies ---- */

/* The place of a copy: the L3 host (node NULL) or a node. */
struct place {
    enum hl_api_tier tier;
    struct node *node;
    char device[96];
};

/* The places from which a shard can be read now, including pool and archive. Returns how many there
 * are; at most `max` are stored. at_least excludes less safe tiers: HL_API_TIER_L2 = no device
 * memory. */
size_t copies_places(struct hl_controller *c, struct hl_id id, enum hl_api_tier at_least,
                     struct place *out, size_t max);
/* The nodes that have other bytes than the catalogue under the shard's id. None of them can hold
 * the shard until that copy has changed. Returned and stored like those of copies_places. */
size_t copies_wrong(struct hl_controller *c, struct hl_id id, struct place *out, size_t max);
/* HL_ECONFLICT: the node of the place is one of them, in that tier or in its L2, through which
 * copies come. */
hl_status copies_fit(struct hl_controller *c, struct hl_id id, const struct place *at) HL_CHECK;
/* Free bytes of the node's L2; false: it has no L2. */
bool copies_room(const struct node *n, uint64_t *free_bytes);
/* The failure domain of the place, such as its host. */
uint32_t copies_domain(const struct hl_controller *c, const struct place *p);
/* copy: borrowed during the call; NULL unless st is HL_OK. HL_ECANCELED: the Controller is gone, so
 * don't touch it. The same holds for the callbacks below. */
typedef void (*copies_brought)(void *arg, hl_status st, const char *text,
                               const struct hl_api_copy *copy);

/* Additional time that a copy of that size takes because of its rate limit. */
static inline int64_t copy_paced_ms(uint64_t size_bytes, uint64_t bytes_per_s)
{
    return bytes_per_s > 0 ? (int64_t)((double)size_bytes * 1e3 / (double)bytes_per_s) + 1 : 0;
}

struct copies_order {
    struct hl_id id; /* chosen by the caller, for copies_stop */
    struct hl_id shard;
    struct place goal;
    enum hl_api_operation op;
    uint64_t bytes_per_s; /* bandwidth limit; 0: none */
    /* loads from the archive only while no other load does, and only into free room */
    bool gives_way;
};

/* Brings a copy of the shard to `goal`, from the nearest source. */
hl_status copies_bring(struct hl_controller *c, const struct copies_order *order,
                       copies_brought done, void *arg) HL_CHECK;
/* Stops the copy of that order: no further step begins, and the node (or L3) that carries out the
 * current one is told. Its `done` is still called; the copy may have been complete. If the order is
 * an earlier Controller's, the holders in `also` are told. A copy that others also wait for
 * continues. */
void copies_stop(struct hl_controller *c, struct hl_id order, const struct place *also,
                 size_t also_count);
/* dropped: the holder had the copy. */
typedef void (*copies_dropped)(void *arg, hl_status st, const char *text, bool dropped);
/* Drops that copy without checks: the caller knows that another one exists. */
hl_status copies_drop(struct hl_controller *c, struct hl_id id, const struct place *p,
                      copies_dropped done, void *arg) HL_CHECK;

/* A drop of a copy of the shard was ordered and has not been answered yet. */
bool copies_are_dropping(const struct hl_controller *c, struct hl_id id);

/* A copy that its holder has confirmed. */
struct confirmed_copy {
    struct place place;
    uint64_t size_bytes;
    uint32_t crc32;
};

/* st: an error if not all holders answered. */
typedef void (*copies_confirmed)(void *arg, hl_status st, const char *text,
                                 const struct confirmed_copy *copies, size_t count);
/* Asks the holders of all known copies except L1 and L4, and those in `also`. */
hl_status copies_confirm(struct hl_controller *c, struct hl_id id, const struct place *also,
                         size_t also_count, copies_confirmed done, void *arg) HL_CHECK;
/* Writes "L2 of node-1" or "L3" into buf. */
const char *place_name(const struct place *p, char *buf, size_t cap);
/* The shard with its copies that can be read now, for the API; borrows from the catalogue. */
struct hl_api_shard copies_shard(struct hl_controller *c, const struct hl_shard_rec *s,
                                 struct hl_arena *arena);
/* The node has a new Agent: asks for its inventory again, whatever its epoch. */
void copies_relist(struct hl_controller *c, struct node *n);
/* Forgets all copies of the node. */
void copies_forget_node(struct hl_controller *c, struct node *n);

/* ---- pool and archive ---- */

/* L3's last answer about its pool; NULL: it does not answer. Borrowed until the next answer. */
const struct hl_api_pool_info *pool_info(const struct hl_controller *c);
/* ClusterInfo.l3State. */
const char *pool_state(const struct hl_controller *c);
/* Two sweeps have finished since the daemon started, so the contents of the pool are known. */
bool pool_is_known(const struct hl_controller *c);
/* The L3 daemon has an L4. */
bool pool_has_archive(const struct hl_controller *c);
/* Frees shards and manifests in pool, archive and nodes; failures are left to the sweep. */
void pool_free(struct hl_controller *c, const struct hl_id *ids, size_t n);
/* Frees those that the catalogue does not know: they were put, but can't be committed any more. */
void pool_free_uncommitted(struct hl_controller *c, const struct hl_api_text_list *ids);
void pool_free_shards(struct hl_controller *c, const struct hl_api_shard_list *shards);
/* Something may have to be archived: sweeps without waiting for gc.interval. */
void sweep_soon(struct hl_controller *c);
/* The version is visible: writes its manifest, without waiting. */
void manifest_write(struct hl_controller *c, const struct hl_version_rec *v);
/* Ids of the manifests of versions that are being removed; the caller frees the list. number -1: of
 * the whole model. NULL when out of memory: then they are freed as orphans. */
struct hl_id *manifests_of(const struct hl_model_rec *m, int64_t number, size_t *count);
/* Tells L3 which shards were read through its mapping. */
void archive_touch(struct hl_controller *c, const struct hl_api_access_report_list *reports);

/* ---- durability: versions.durability ---- */

/* A shard that must be held in a number of failure domains. */
struct securable {
    struct hl_id id;
    uint64_t size_bytes;
    uint32_t crc32;
    /* node that will read it; "" = unknown. Borrowed during the call, like `name` */
    const char *node;
    const char *name; /* for people, if the catalogue does not know the shard */
};

/* Brings a copy of a shard that the catalogue may not know yet; in that case it is in the pool. */
hl_status copies_bring_stated(struct hl_controller *c, const struct securable *shard,
                              const struct place *goal, copies_brought done, void *arg) HL_CHECK;

struct securing;

struct securing_progress {
    uint64_t done_bytes, total_bytes;
};

/* HL_ETIMEDOUT and HL_EUNSUPPORTED name the first shard, where it is and what is missing.
 * HL_ECANCELED: the Controller is gone. */
typedef void (*securing_done)(void *arg, hl_status st, const char *text);

enum hl_durability copies_durability(const struct hl_controller *c);
/* Changes the durability, also of versions that are already visible: the next sweep makes their
 * missing copies. Fails like durability_check, and then nothing changes. */
hl_status durability_change(struct hl_controller *c, const char *word) HL_CHECK;
/* HL_EUNSUPPORTED: the cluster can't provide that durability, because there is no archive or no
 * other host. */
hl_status durability_check(const struct hl_controller *c) HL_CHECK;
/* Copies the shards into the required number of failure domains. `done` is called once, later,
 * unless it is cancelled first; *out is freed then. */
hl_status securing_start(struct hl_controller *c, const struct securable *shards, size_t count,
                         securing_done done, void *arg, struct securing **out) HL_CHECK;
struct securing_progress securing_look(const struct securing *t);
/* `done` will not be called. */
void securing_cancel(struct securing *t);
/* Number of shards of a visible version that are in too few failure domains now; writes into `text`
 * where the first of them is. */
size_t version_lacking(struct hl_controller *c, const struct hl_version_rec *v, char *text,
                       size_t cap);
/* The same for all versions, according to the last sweep. */
size_t durability_lacking(const struct hl_controller *c);
/* Number of sweeps completed since this start. */
uint64_t sweeps_completed(const struct hl_controller *c);
/* The version was secured and is visible now: notes that shards missing from the table of copies
 * are in the archive, as L3 answered before the catalogue knew them. */
void durability_settle(struct hl_controller *c, const struct hl_version_rec *v);
/* HL_ECONFLICT: without the copy at `goes`, and with one at `comes` (may be NULL), the shard would
 * be in too few failure domains. */
hl_status durability_lets_go(struct hl_controller *c, struct hl_id id, const struct place *goes,
                             const struct place *comes) HL_CHECK;

/* copies: those that holders have just confirmed. HL_ECONFLICT: without the copy at `surplus` the
 * shard is in too few failure domains, and with it is not. HL_EUNAVAIL: that seems so, but not all
 * nodes have reported their copies yet. */
hl_status durability_spares(struct hl_controller *c, struct hl_id id, const struct place *surplus,
                            const struct confirmed_copy *copies, size_t count) HL_CHECK;

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
