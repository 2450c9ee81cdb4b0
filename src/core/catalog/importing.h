/* core/catalog/importing.h - how the Controller tracks an import or a cut that L3 runs.
 *
 * Owns:    nothing.
 * Threads: any. Pure: times are arguments.
 * Errors:  hl_import_as_base says which size differs from the base's.
 * Units:   ns.
 * Limits:  HL_IMPORTS_MAX are remembered; beyond that a finished one is evicted.
 */
#ifndef HL_CORE_CATALOG_IMPORTING_H
#define HL_CORE_CATALOG_IMPORTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

#define HL_IMPORTS_MAX 1000

/* If L3 does not answer for this long, the import has failed. */
#define HL_IMPORT_SILENCE_NS UINT64_C(10000000000)

/* How many imports and cuts L3 runs at a time. The last place is reserved for cuts, because a
 * reader waits for a cut: so a cut can proceed however many imports there are. */
#define HL_IMPORT_PLACES 5

/* Another one may begin while that many are running. */
bool hl_import_has_place(int imports, int cuts, bool is_cut);

/* Whether an import for which L3 had no place keeps waiting. It may wait for wait_ms in total; 0 =
 * it does not wait. */
bool hl_import_may_wait(uint64_t waited_ns, uint64_t wait_ms);

/* L3's answer to the question about an import's progress. */
struct hl_import_answer {
    hl_status st;
    enum hl_api_import_state state; /* only valid if st is HL_OK */
    uint64_t silent_ns;             /* time since its last HL_OK answer */
};

enum hl_import_turn {
    HL_IMPORT_GOES_ON,
    HL_IMPORT_MADE,      /* all its shards are sealed: add them to the catalogue */
    HL_IMPORT_FAILED,    /* L3 reports a failure */
    HL_IMPORT_FORGOTTEN, /* L3 was restarted and no longer knows it */
    HL_IMPORT_UNHEARD,   /* no answer: ask again */
    HL_IMPORT_SILENT,    /* no answer for too long: it has failed */
};

enum hl_import_turn hl_import_judge(const struct hl_import_answer *answer);

/* Whether an import is evicted for a new one when that many are remembered. One in use (it runs, or
 * an answer about it is pending) is not. */
bool hl_import_is_evicted(size_t remembered, bool in_use);

/* An adapter is stored with the split of its base: fills in the request's sizes. Sizes that the
 * request states must equal the base's; 1 counts as not stated. */
hl_status hl_import_as_base(const struct hl_api_split *base,
                            struct hl_api_import_request *r) HL_CHECK;

#endif
