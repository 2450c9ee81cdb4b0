/* core/placement/params.h - the parameters of shard placement.
 *
 * They may change while the daemon runs: check a new set, then apply it with
 * hl_placement_configure.
 *
 * Owns:    nothing.
 * Threads: any.
 * Errors:  HL_EINVAL names the parameter, its value and what is allowed.
 * Units:   ms; percent of a capacity; accesses within the window.
 * Limits:  those of HL_POLICY_MAP.
 */
#ifndef HL_CORE_PLACEMENT_PARAMS_H
#define HL_CORE_PLACEMENT_PARAMS_H

#include <stdint.h>

#include "base/status.h"

#define HL_POLICY_DAY_MS (86400 * INT64_C(1000))

struct hl_placement_params {
    /* HeatScore: alpha * N / T + beta * exp(-age / tau), T and age in seconds */
    int64_t window_ms; /* T */
    int64_t tau_ms;
    double alpha, beta;
    /* stability: N / (N + half) * 1 / (1 + CV of intervals) * (1 - exp(-residence / tau)) */
    double stability_half;
    int64_t stability_tau_ms;
    /* fluidity: recent moves; the weight of each decays with time */
    int64_t fluidity_tau_ms;
    double fluidity_high; /* from this value on a shard stays in L2 */
    /* watermarks of L1 */
    double high_pct, low_pct;
    /* when heat makes a shard active, and when it cools */
    double warm_heat, cool_heat;
    /* accesses from other servers */
    double migrate_base;
    double spread_accesses; /* from this many on, a server counts as a frequent reader */
    int64_t spread_servers; /* with this many frequent readers a shard goes to L3 */
    double recall_share;    /* readers are scattered if none has this share of all accesses */
    /* rest */
    int64_t residence_ms; /* a shard stays at a new place at least this long */
    int64_t archive_ms;   /* a shard that is idle in L3 this long goes to L4 */
    /* a node that left twice within this time gets no shards until it has stayed up this long */
    int64_t flap_ms;
};

/* clang-format off */
/* kind (of conf/options.h), field, option, flag, default, least, most, help. They are defined only
 * here: controller/conf.c generates its option rows from them. */
#define HL_POLICY_MAP(X)                                                                          \
    X(DURATION, window_ms, "policy.window", "--policy-window",                                    \
      "5m", 1000, HL_POLICY_DAY_MS,                                                               \
      "T of the HeatScore: the window in which accesses are counted.")                            \
    X(DURATION, tau_ms, "policy.tau", "--policy-tau",                                             \
      "2m", 1000, HL_POLICY_DAY_MS,                                                               \
      "Tau of the HeatScore: how fast a shard cools after an access.")                            \
    X(NUMBER, alpha, "policy.alpha", "--policy-alpha",                                            \
      "0.7", 0, 1000,                                                                             \
      "Weight of the frequency of accesses in the HeatScore.")                                    \
    X(NUMBER, beta, "policy.beta", "--policy-beta",                                               \
      "0.3", 0, 1000,                                                                             \
      "Weight of the last access in the HeatScore.")                                              \
    X(NUMBER, stability_half, "policy.stability_half", "--policy-stability-half",                 \
      "20", 0, 1000000000,                                                                        \
      "Accesses in the window that give half of the stability's frequency.")                      \
    X(DURATION, stability_tau_ms, "policy.stability_tau", "--policy-stability-tau",               \
      "10m", 1000, 30 * HL_POLICY_DAY_MS,                                                         \
      "How fast a shard that stays where it is becomes stable.")                                  \
    X(DURATION, fluidity_tau_ms, "policy.fluidity_tau", "--policy-fluidity-tau",                  \
      "1h", 1000, 30 * HL_POLICY_DAY_MS,                                                          \
      "How fast a move is forgotten.")                                                            \
    X(NUMBER, fluidity_high, "policy.fluidity_high", "--policy-fluidity-high",                    \
      "3", 0, 1000000000,                                                                         \
      "Number of recent moves at which a shard no longer goes to L1.")                            \
    X(PERCENT, high_pct, "policy.high_pct", "--policy-high-pct",                                  \
      "85", 1, 100,                                                                               \
      "Use of a node's L1 above which its least stable shards leave it.")                         \
    X(PERCENT, low_pct, "policy.low_pct", "--policy-low-pct",                                     \
      "70", 0, 100,                                                                               \
      "Use of a node's L1 below which hot shards of its L2 are brought there.")                   \
    X(NUMBER, warm_heat, "policy.warm_heat", "--policy-warm-heat",                                \
      "0.15", 0, 1000000000,                                                                      \
      "HeatScore at which a shard becomes active.")                                               \
    X(NUMBER, cool_heat, "policy.cool_heat", "--policy-cool-heat",                                \
      "0.05", 0, 1000000000,                                                                      \
      "HeatScore below which a shard cools.")                                                     \
    X(NUMBER, migrate_base, "policy.migrate_base", "--policy-migrate-base",                       \
      "20", 1, 1000000000,                                                                        \
      "Accesses by another server above which a shard goes to the L2 of that server; more "       \
      "while the backbone is busy.")                                                              \
    X(NUMBER, spread_accesses, "policy.spread_accesses", "--policy-spread-accesses",              \
      "5", 1, 1000000000,                                                                         \
      "Accesses at which a server counts as a frequent reader.")                                  \
    X(INT, spread_servers, "policy.spread_servers", "--policy-spread-servers",                    \
      "3", 2, 3,                                                                                  \
      "Number of other frequent readers at which a shard goes to L3.")                            \
    X(NUMBER, recall_share, "policy.recall_share", "--policy-recall-share",                       \
      "0.5", 0, 1,                                                                                \
      "Share of the most frequent reader below which readers are scattered.")                     \
    X(DURATION, residence_ms, "policy.residence", "--policy-residence",                           \
      "1m", 0, HL_POLICY_DAY_MS,                                                                  \
      "How long a shard stays where it was moved to.")                                            \
    X(DURATION, archive_ms, "policy.archive", "--policy-archive",                                 \
      "1h", 1000, 365 * HL_POLICY_DAY_MS,                                                         \
      "How long a shard in L3 is not read before it goes to L4.")                                 \
    X(DURATION, flap_ms, "policy.flap", "--policy-flap",                                          \
      "5m", 0, HL_POLICY_DAY_MS,                                                                  \
      "A node that left twice within this time takes no shards until it has stayed for as long.")

/* clang-format on */

void hl_placement_params_init(struct hl_placement_params *params);
hl_status hl_placement_params_check(const struct hl_placement_params *params) HL_CHECK;

#endif
