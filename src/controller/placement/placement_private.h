/* controller/placement/placement_private.h - the state of placement, and the parts that work on it.
 *
 * Threads: the Controller's loop.
 */
#ifndef HL_CONTROLLER_PLACEMENT_PRIVATE_H
#define HL_CONTROLLER_PLACEMENT_PRIVATE_H

#include <uthash.h>

#include "base/arena.h"
#include "controller/commits.h"
#include "controller/copies/copies.h"
#include "controller/core.h"
#include "controller/nodes/nodes.h"
#include "controller/placement/placement.h"
#include "controller/planned.h"
#include "core/migration/migration.h"
#include "core/placement/backbone.h"
#include "core/placement/budget.h"
#include "core/placement/policy.h"
#include "core/placement/recording.h"
#include "core/placement/saved.h"

/* A node and its index in core/placement. */
struct placed_node {
    char name[128];
    uint16_t index;
    struct node *node;   /* NULL: not known, or not any more */
    bool flaps_told;     /* the log says that it takes no shards because it comes and goes */
    uint64_t l1_request; /* hl_chunk_request_decide */
    UT_hash_handle hh;
};

/* Its Agent asks for nothing any more, or has not asked yet. */
static inline void requests_forget(struct placed_node *n)
{
    n->l1_request = 0;
}

/* A process that sends reports. */
struct reporter {
    uint64_t incarnation;
    struct hl_report_window window;
    int64_t seen_ms;
    bool refused;      /* its last report did not count: its node is unknown or silent */
    UT_hash_handle hh; /* in the order of their last report */
};

/* The newest decision about a shard that does more than change its state. */
struct noted_decision {
    struct hl_id id;
    struct hl_decision decision;
    double busy_pct; /* of the backbone, then; -1: not known, or it does not depend on that */
    int64_t at_ms;   /* wall time */
    uint32_t pass;   /* the last pass that made it */
    bool carried_out;
    int64_t rests_ms; /* its move failed: no other one before that, of placement_now_ms */
    UT_hash_handle hh;
};

/* A call waiting for the end of a move. */
struct move_call {
    struct hl_id id;
    struct hl_rpc_call *call;
    char why[120]; /* its copy failed; "" = it has not */
    struct move_call *next;
};

#define PLACES_MAX  64 /* from which a shard can be read; more are not looked at */
#define MOVES_ENDED 64

/* A move that has ended, kept for queries. */
struct ended_move {
    struct hl_move_rec rec;
    int64_t began_ms; /* wall time */
    double seconds;
    char error[160];
};

/* A pinned shard or version, which is not moved away. */
struct pin {
    char key[HL_CATALOG_KEY_MAX]; /* of its record */
    int64_t since_ms;
    UT_hash_handle hh;
};

struct kept_use;
struct placed_set;
struct prefetch;
struct hl_pool_version;

#define WARM_MOVES 16 /* waiting or in flight */

/* Loading from the archive since L3 started. */
struct warm {
    char incarnation[64]; /* the daemon for whose pool it was planned; "" = none yet */
    bool warned;          /* it can do nothing, and the log says why */
    unsigned laps;        /* times it was planned for that pool */
    struct hl_id *shards; /* shards of the last plan, in order */
    size_t count, next;
    struct hl_id under_way[WARM_MOVES]; /* shards */
    size_t under_way_count;
    size_t failed;                 /* of the plan */
    bool probes;                   /* the last load failed: load one at a time until one succeeds */
    int64_t rest_ms;               /* nothing is ordered before this time */
    uint64_t loaded, loaded_bytes; /* since the Controller has started */
};

/* Priorities of moves. The policy's moves have lower ones (pass.c), moves ordered by people higher
 * ones. */
#define PRIORITY_PREFETCH 220
#define PRIORITY_UNREAD   10 /* moves back shards that were prefetched and never read */
#define PRIORITY_WARM     5  /* from the archive into a pool with free room */

/* Minimum rate, bytes per second: a slower copy would send data to its receiver too rarely. */
#define PACE_MIN 1000000

struct placement {
    struct hl_placement core;
    struct hl_policy policy;
    struct hl_placement_conf conf; /* in force */
    struct placed_node *nodes;     /* by name */
    struct placed_node **by_index;
    uint32_t index_room;
    struct reporter *reporters;
    uint64_t unnamed_reads;
    struct hl_recording recording;
    uint64_t recording_id; /* random */
    int64_t recorded_ms;   /* when it was last asked for */
    struct noted_decision *noted;
    struct pin *pins;
    struct placed_set *sets; /* by key */
    struct hl_migration moves;
    bool moves_running; /* actions are being taken */
    struct hl_timer *moves_timer;
    struct move_call *calls;
    struct ended_move ended[MOVES_ENDED];
    unsigned ended_count;                                   /* of all; the ring has the last ones */
    double rates[HL_MOVE_PATHS], used_rates[HL_MOVE_PATHS]; /* measured; as the policy has them */
    uint64_t measured[HL_MOVE_PATHS];                       /* copies that have measured it */
    double busy_pct;         /* of the backbone, as the last pass had it; -1: not known */
    struct hl_budget budget; /* of the policy's moves */
    bool (*gang_starts)(const struct hl_controller *c);
    const struct gang_source *gangs; /* NULL: none */
    struct prefetch *prefetches;
    bool prefetch_looks;  /* gangs are being looked at */
    bool prefetch_looked; /* they have been, since this start */
    int64_t l3_silent_ms; /* since when; 0 = it answers */
    struct hl_timer *timer;
    bool behind;                     /* all shards are to be followed */
    const struct hl_shard_rec *walk; /* the next one, while they are */
    struct hl_id *waiting;           /* to be followed */
    size_t waiting_count, waiting_room;
    struct hl_timer *follow_timer; /* of the next turn */
    void (*followed)(struct hl_controller *c);
    uint64_t revision;       /* of the catalogue whose pins were pruned */
    bool full, pass_trouble; /* trouble_is_new */
    uint64_t passes;         /* completed, since this start */
    int64_t pool_order_ms;   /* the pool's order is due then */
    bool pool_order_asked;   /* it is on its way */
    int64_t started_ms;
    struct warm warm;
    struct kept_use *uses;   /* of an earlier Controller: uses.c */
    struct hl_id *uses_gone; /* whose records are to go */
    size_t uses_gone_count, uses_gone_room;
    uint32_t uses_at, uses_kept;       /* the next shard; records in the store */
    uint32_t uses_lap_left, uses_left; /* shards without room for one: in this lap, in the last */
    int64_t uses_lap_ms;
    bool uses_writing, uses_trouble;
};

/* nodes.c */
int64_t placement_now_ms(void);
/* Converts a time of the core's clock to wall time. */
int64_t placement_wall_ms(int64_t ms);
struct placed_node *placed_node_at(const struct hl_controller *c, uint16_t index);
struct placed_node *placed_node_find(const struct hl_controller *c, const char *name);
/* "" of none. */
const char *placed_node_name(const struct hl_controller *c, uint16_t index);
/* Adds the node if it is new. NULL: there is no room, which was logged. */
struct placed_node *placed_node_need(struct hl_controller *c, const char *name);
/* Converts the place of a copy; a node that was forgotten, or has no index, becomes
 * HL_READER_NONE. */
struct hl_place placed_place(struct hl_controller *c, const struct place *from);
/* Shards may go there: the node accepts new ones and does not flap. */
bool placed_node_takes(const struct hl_controller *c, const struct placed_node *n);
/* How busy the backbone is, from the daemons' last reports; -1: unknown. */
double backbone_busy_pct(const struct hl_controller *c);

/* uses.c */
/* The shard was placed, or found elsewhere: restores what was saved about it. */
void uses_placed(struct hl_controller *c, struct hl_id id);
/* Writes some of the changed data. */
void uses_run(struct hl_controller *c);
/* The shard left the catalogue. */
void uses_gone(struct hl_controller *c, struct hl_id id);
/* Prometheus text. */
void uses_gauges(const struct hl_controller *c, struct hl_buf *out);
void uses_fini(struct hl_controller *c);

/* follow.c */
/* Updates the shard's place from its copies. */
void placement_follow(struct hl_controller *c, struct hl_id id);
/* Also one that is newer than the last pass. NULL: it is in no visible version, or has no copy. */
const struct hl_placed_shard *placement_find(struct hl_controller *c, struct hl_id id);
/* Does that as soon as the loop has time. */
void placement_follow_later(struct hl_controller *c, struct hl_id id);
extern const struct hl_catalog_events placement_catalog_events;
/* Follows what has changed since the last pass, as much as a turn of the loop allows. False: there
 * is more, and `followed` is called after the last of it. */
bool follow_all(struct hl_controller *c, void (*followed)(struct hl_controller *c));
/* Its parts: a walk begins if one is due; true: nothing is left to be followed. */
void follow_begin(struct hl_controller *c);
bool follow_turn(struct hl_controller *c);
void follow_stop(struct hl_controller *c);

/* sets.c */
/* Puts a placed shard into the set of its rank. */
hl_status set_join(struct hl_controller *c, const struct hl_shard_rec *s,
                   bool version_pinned) HL_CHECK;
/* Pins or unpins all shards of the version that are placed or will be. */
void set_pin(struct hl_controller *c, const struct hl_version_rec *v, bool pinned);
/* What is known of the shards of the version; false: none is placed. */
bool set_look(const struct hl_controller *c, const struct hl_version_rec *v,
              struct hl_set_view *out);
/* A placed shard that was in `set` is gone, and its sets if it was their last one. */
void set_left(struct hl_controller *c, const struct hl_shard_rec *s, uint32_t set);
void sets_fini(struct hl_controller *c);

/* pool_order.c */
/* Tells L3 repeatedly, while the pool fills up, which versions leave a full pool first. */
void pool_order_run(struct hl_controller *c);

/* The versions that can be read, as core/placement/pool_order.h orders them. `items` is to be
 * freed, whatever is returned. False: out of memory. */
struct pool_versions {
    struct hl_pool_version *items;
    size_t count, room;
};

bool pool_versions_list(const struct hl_controller *c, struct pool_versions *l);
/* L3's pool as last reported; NULL: it does not answer. */
const struct hl_api_tier_info *pool_tier(const struct hl_controller *c);

/* warm.c */
/* Loads versions from the archive into a pool with free room: placement.warm. */
void warm_run(struct hl_controller *c);
/* Why placement.warm does nothing though it is set; "" = it works, or nothing is known of L3. */
const char *warm_why_not(const struct hl_controller *c);
/* Prometheus text. */
void warm_gauges(const struct hl_controller *c, struct hl_buf *out);
void warm_fini(struct hl_controller *c);

/* noted.c */
/* True: the decision differs from the previous one. */
bool noted_add(struct hl_controller *c, const struct hl_decision *d, bool carried_out);
const struct noted_decision *noted_find(const struct hl_controller *c, struct hl_id id);
void noted_forget(struct hl_controller *c, struct hl_id id);
/* A move of the shard has failed: no other before until_ms. */
void noted_rest(struct hl_controller *c, struct hl_id id, int64_t until_ms);
/* Forgets decisions that were not carried out and that the last pass did not repeat. */
void noted_expire(struct hl_controller *c);
void noted_fini(struct hl_controller *c);

/* moves.c */
/* Call it once the nodes are known: resumes the moves in the journal. */
hl_status moves_configure(struct hl_controller *c) HL_CHECK;
/* Carries out the engine's actions. */
void moves_run(struct hl_controller *c);
/* Handles timeouts. */
void moves_tick(struct hl_controller *c);
/* order->id must be a new move id. */
hl_status moves_order(struct hl_controller *c, const struct hl_move_order *order) HL_CHECK;
/* Prepares an order to move the shard to `goal`; the caller fills in id, priority and numbers. */
hl_status moves_prepare(struct hl_controller *c, struct hl_id shard, struct hl_place from,
                        struct hl_place goal, struct hl_move_order *out) HL_CHECK;
/* Rejects waiting calls; the moves continue after a restart. */
void moves_stop(struct hl_controller *c);
extern const struct copy_events placement_copy_events;

/* life.c */
void life_switched(struct hl_controller *c, const struct hl_move_rec *rec);
/* a: HL_MOVE_ENDED */
void life_ended(struct hl_controller *c, const struct hl_move_action *a);

/* journal.c */
hl_status move_record_write(struct hl_controller *c, const struct hl_move_rec *rec, bool erase,
                            hl_store_written done, void *arg) HL_CHECK;

/* pass.c */
void pass_run(struct hl_controller *c);

/* budget.c */
hl_status budget_configure(struct hl_controller *c) HL_CHECK;
/* The rate of a move's copy, in bytes per second; 0: no limit. */
uint64_t budget_pace(const struct hl_controller *c, const struct hl_move_order *o);
/* Of a path, in bytes per second: measured, or assumed before. */
double budget_rate(const struct placement *p, int path);
/* Learns a path's rate from a move's copy. pace: the copy's, in bytes per second; 0 = none. */
void budget_measure(struct placement *p, enum hl_move_path path, uint64_t pace,
                    const struct hl_api_copy *copy);
/* How long the copy may take at that rate. */
int64_t budget_copy_ms(const struct hl_controller *c, const struct hl_move_order *o);
/* A move of the policy has ended: returns the unused part of its budget. */
void budget_move_ended(struct hl_controller *c, const struct hl_move_rec *rec);
/* Decides whether the policy's moves pause now; this also holds moves that wait in the engine. */
void budget_rest(struct hl_controller *c);
/* Why they pause; "" = they don't. */
const char *budget_rest_text(const struct hl_controller *c);

/* prefetch.c */
/* Prefetches what starting gangs will read. */
void prefetch_run(struct hl_controller *c);
void prefetches_fini(struct hl_controller *c);

/* options.c */
hl_status placement_conf_copy(const struct hl_placement_conf *from,
                              struct hl_placement_conf *out) HL_CHECK;
void placement_conf_fini(struct hl_placement_conf *conf);
hl_status placement_timer_start(struct hl_controller *c) HL_CHECK;

/* reports.c */
void reporters_fini(struct hl_controller *c);

/* record.c */
/* before_ms: when the process reported before; < 0: it had not. */
void record_report(struct hl_controller *c, const struct hl_api_controller_report_access_params *p,
                   int64_t before_ms);
/* Ends the recording when it is no longer polled. */
void record_tick(struct hl_controller *c);

/* pins.c */
bool pin_has_shard(const struct hl_controller *c, struct hl_id id);
bool pin_has_version(const struct hl_controller *c, const struct hl_version_rec *v);
/* Updates from the pins whether the placed shard itself is pinned. */
void pin_follow(struct hl_controller *c, const struct hl_shard_rec *s);
/* Removes pins whose versions or shards are gone. */
void pins_prune(struct hl_controller *c);
void pins_fini(struct hl_controller *c);

#endif
