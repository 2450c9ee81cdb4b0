/* sim/world.h - a cluster under a virtual clock: holders of copies, Controllers that run the real
 * step function of moves, a store that outlives them, and a network that loses, doubles, reorders
 * and damages what it carries.
 *
 * A step delivers one message or timer. A script says at which steps what happens: moves are
 * ordered and cancelled, readers read, holders and Controllers crash. All follows from the seed.
 *
 *     script.c   what happens when, by the seed       network.c      messages and timers
 *     holder.c   copies, and orders that are obeyed   controller.c   the step function's caller
 *     check.c    what must hold after each step       run.c          a run, and making it shorter
 *
 * Owns:    everything in struct world.
 * Threads: one.
 * Errors:  the first thing that does not hold is in world.broken; the run ends with it.
 * Units:   ms of the virtual clock; steps.
 * Limits:  the constants below.
 */
#ifndef TESTS_SIM_WORLD_H
#define TESTS_SIM_WORLD_H

#include "base/heap.h"
#include "core/migration/migration.h"

#define NODES       3
#define L3          NODES /* the holder of pool and archive */
#define HOLDERS     (NODES + 1)
#define SLOTS       2 /* L1 and L2 of a node, L3 and L4 of the L3 host */
#define SHARDS      4
#define BYTES       48
#define CONTROLLERS 8
#define STORE       100 /* as an addressee; holders are 0..., Controllers CTL + number */
#define CTL         50
#define JOURNAL     64
#define MESSAGES    2048
#define EVENTS      72
#define SCRIPT_END  1000 /* steps in which the script's events happen */
#define STEPS_MAX   20000
#define BEAT_MS     100
#define GONE_MS     350
#define COPIES_MAX  (HOLDERS * SLOTS)

#define SIM_MUTANTS(X)                                                                             \
    X(NONE, "none", "")                                                                            \
    X(EPOCH, "epoch", "holders obey orders of an old epoch")                                       \
    X(ORDER, "order", "holders obey orders that are older than others they have obeyed")           \
    X(JOURNAL, "journal", "a Controller that starts does not read the journal")                    \
    X(FENCE, "fence", "the store takes commits of an old epoch")                                   \
    X(HIDE, "hide", "copies are offered whatever the move says")                                   \
    X(STOP, "stop", "holders finish copies that they were told to stop")                           \
    X(QUOTA, "quota", "holders take what they have no room for")                                   \
    X(INVENTORY, "inventory", "an inventory is believed that is older than a drop")

enum mutant {

#define X(name, text, what) MUTANT_##name,
    SIM_MUTANTS(X)
#undef X
        MUTANTS
};

enum event_kind {
    EVENT_ORDER,
    EVENT_CANCEL,
    EVENT_READ,
    EVENT_CRASH,    /* a holder's process; device memory is lost */
    EVENT_LOSE,     /* a holder's host; only the archive stays */
    EVENT_CUT,      /* a holder and the Controllers don't hear each other for a while */
    EVENT_STOP,     /* the Controller; another one starts */
    EVENT_TAKEOVER, /* another one starts while it goes on */
    EVENT_STORE,    /* commits fail for a while, some after all were made */
    EVENT_DELETE,   /* a shard belongs to no version any more */
    EVENT_NEED,     /* from now on all copies of a shard are needed: moves leave the old one */
    EVENT_KINDS
};

struct event {
    uint32_t step;
    enum event_kind kind;
    uint32_t arg;
    bool off; /* taken out to make the run shorter */
};

/* Per mille of messages, and ms. */
struct weather {
    uint32_t loss, doubled, damaged, delay_ms;
    uint32_t domains;
};

struct script {
    uint64_t seed;
    struct weather weather;
    struct event events[EVENTS]; /* by step */
};

enum message_kind {
    MSG_HELLO,
    MSG_BEAT,
    MSG_COPY,
    MSG_STOP,
    MSG_CHECK,
    MSG_DROP,
    MSG_READ,
    MSG_DATA,
    MSG_COPIED,
    MSG_CHECKED,
    MSG_DROPPED,
    MSG_COMMIT,
    MSG_COMMITTED,
    TIMER_BEAT,
    TIMER_WATCH,
    TIMER_TICK,
    TIMER_RESTART,
    TIMER_CONTROLLER,
    TIMER_READER,
    TIMER_HEAL,
    TIMER_STORE,
    MESSAGE_KINDS
};

struct entry {
    bool has;
    uint32_t size, crc;
};

/* What a holder says of itself with each message to a Controller. */
struct snapshot {
    uint32_t incarnation, epoch;
    uint64_t change;
    uint64_t obeyed[SHARDS];
    struct entry copies[SLOTS][SHARDS];
};

struct message {
    enum message_kind kind;
    int from, to;
    uint32_t incarnation; /* of the addressee: one of another life does not get it */
    uint32_t epoch;
    uint64_t order;
    struct hl_id move;
    int shard, slot;
    int source, source_slot;
    hl_status st;
    uint32_t size, crc;
    uint8_t bytes[BYTES];
    bool erase; /* a commit */
    struct hl_move_rec rec;
    struct snapshot snap;
    uint32_t since_step; /* a drop's confirmation was asked, a reader has asked */
    bool offered[HOLDERS][SLOTS];
};

struct copy {
    struct entry entry;
    bool good; /* its bytes are the shard's */
    uint8_t bytes[BYTES];
    uint32_t lost_step; /* a good one was lost by a crash */
};

struct transfer {
    bool on;
    uint64_t order;
    uint32_t epoch;
    int slot, controller;
    struct hl_id move;
};

struct holder {
    bool up, cut;
    uint32_t incarnation, epoch; /* the newest epoch it has seen outlives its process */
    uint32_t told_epoch;         /* the greatest that any message has brought */
    uint64_t told_order[SHARDS];
    uint64_t change;
    uint64_t obeyed[SHARDS];
    struct copy copies[SLOTS][SHARDS];
    struct transfer transfers[SHARDS];
    struct hl_id stopped[SHARDS]; /* the last move whose copy it was told to stop */
    uint32_t quota[SLOTS];
    uint32_t crash_step;
};

/* What a Controller believes of a holder. */
struct belief {
    bool heard, gone;
    int64_t heard_ms;
    struct snapshot snap;
    uint64_t dropping[SLOTS][SHARDS]; /* the drop's order; 0 = none in flight */
};

struct asking {
    bool on;
    struct hl_id move;
    uint64_t order;
    uint32_t step; /* in which it was asked */
    bool waits[HOLDERS];
    struct hl_move_copy copies[COPIES_MAX];
    size_t count;
};

struct controller {
    bool alive;
    uint32_t epoch;
    struct hl_migration moves;
    struct belief beliefs[HOLDERS];
    struct asking asking[SHARDS];
    struct hl_place places[SHARDS]; /* in force, as it believes */
    struct hl_id stopped[SHARDS];   /* the last move whose copy it has stopped */
    struct hl_id kept[SHARDS];      /* the last move whose old copy it needed */
    int64_t tick_ms;
    uint64_t next_move;
};

struct store {
    uint32_t epoch;
    bool bad;
    struct hl_move_rec journal[JOURNAL];
    bool used[JOURNAL];
    struct hl_place places[SHARDS];
};

struct world {
    const struct script *script;
    enum mutant mutant;
    bool trace, calm; /* calm: nothing happens any more, what is left comes to an end */
    uint64_t random;
    int64_t now_ms;
    uint32_t step, next_event;
    struct hl_heap queue;
    struct message *messages;
    uint16_t free_slots[MESSAGES];
    uint32_t free_count;
    uint64_t sequence;
    struct holder holders[HOLDERS];
    struct controller controllers[CONTROLLERS];
    uint32_t controller_count;
    struct store store;
    uint8_t truth[SHARDS][BYTES];
    uint32_t size[SHARDS], crc[SHARDS];
    bool lost[SHARDS], deleted[SHARDS], needed[SHARDS];
    uint32_t ended, switched, reverted, stopped, dropped, reads;
    char broken[256];
    const char *broken_rule; /* which one */
};

/* ---- script.c ---- */

uint64_t random_next(uint64_t *state);
uint32_t world_random(struct world *w, uint32_t below);
const char *event_text(enum event_kind kind);
void script_make(struct script *s, uint64_t seed);
void script_print(const struct script *s);

/* ---- check.c ---- */

/* The first one counts. */
void world_break(struct world *w, const char *fmt, ...) HL_PRINTF(2, 3);
void world_say(struct world *w, const char *fmt, ...) HL_PRINTF(2, 3);
int place_holder(struct hl_place place);
int place_slot(struct hl_place place);
struct hl_place place_at(int holder, int slot);
struct hl_id shard_id(int shard);
/* The newest one that is alive; NULL: none is. */
struct controller *world_controller(struct world *w);
/* The Controller has heard of the holder's present life, and has not given it up. */
bool is_known(const struct world *w, const struct controller *c, int holder);
/* A good copy; lasting: in another memory than a device's. */
bool world_has(const struct world *w, int shard, bool lasting);
void check_step(struct world *w);
/* Everything has come to an end. */
void check_end(struct world *w);
/* Before a drop is carried out, a switch committed, an order obeyed. */
void check_drop(struct world *w, int holder, const struct message *drop);
void check_switch(struct world *w, const struct hl_move_rec *rec);
void check_obeyed(struct world *w, int holder, const struct message *order);
void check_read(struct world *w, const struct message *reader);

/* ---- network.c ---- */

void world_send(struct world *w, const struct message *m);
void world_timer(struct world *w, const struct message *m, int64_t at_ms);
/* false: nothing is left. */
bool world_take(struct world *w, struct message *m);

/* ---- holder.c ---- */

void holder_get(struct world *w, const struct message *m);
void holder_crash(struct world *w, int holder, bool host);
void holder_put(struct world *w, int holder, int slot, int shard, const uint8_t *bytes,
                uint32_t size);

/* ---- controller.c ---- */

void controller_start(struct world *w);
void controller_get(struct world *w, struct controller *c, const struct message *m);
void controller_order(struct world *w, struct controller *c, uint32_t arg);
void controller_cancel(struct world *w, struct controller *c, uint32_t arg);
void controller_delete(struct world *w, struct controller *c, int shard);
void controller_end(struct controller *c);
/* It knows what the holder has, and offers that copy to readers. */
bool controller_offers(const struct world *w, const struct controller *c, int holder, int slot,
                       int shard);
void store_get(struct world *w, const struct message *m);

/* ---- run.c ---- */

/* true: everything held. */
bool run_script(const struct script *s, enum mutant mutant, bool trace, struct world *w);
/* Takes out what the failure does not need; returns how many events are left. */
unsigned run_shrink(struct script *s, enum mutant mutant, struct world *w);

#endif
