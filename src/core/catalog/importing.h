/* core/catalog/importing.h - an import or a cut that L3 runs, as the Controller follows it.
 *
 * Owns:    nothing.
 * Threads: any. Pure: times are arguments.
 * Errors:  hl_import_as_base says which size is another one than the base's.
 * Units:   ns.
 * Limits:  HL_IMPORTS_MAX remembered; then an ended one is evicted.
 */
#ifndef HL_CORE_CATALOG_IMPORTING_H
#define HL_CORE_CATALOG_IMPORTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/types.h"
#include "base/status.h"

#define HL_IMPORTS_MAX 1000

/* L3 has not answered for so long: the import has failed. */
#define HL_IMPORT_SILENCE_NS UINT64_C(10000000000)

/* L3 runs so many imports and cuts at a time. The last place is a cut's, which a reader waits for:
 * however many imports follow each other, one always goes on. */
#define HL_IMPORT_PLACES 5

/* Another one may begin beside so many that run. */
bool hl_import_has_place(int imports, int cuts, bool is_cut);

/* Whether an import that L3 had no place for goes on waiting for one, of which it may wait
 * `wait_ms`; 0 = it does not wait. */
bool hl_import_may_wait(uint64_t waited_ns, uint64_t wait_ms);

/* What L3 has answered when it was asked how far it is. */
struct hl_import_answer {
    hl_status st;
    enum hl_api_import_state state; /* counts with HL_OK */
    uint64_t silent_ns;             /* since its last answer that was HL_OK */
};

enum hl_import_turn {
    HL_IMPORT_GOES_ON,
    HL_IMPORT_MADE,      /* all its shards are sealed: the catalogue takes them */
    HL_IMPORT_FAILED,    /* as L3 says */
    HL_IMPORT_FORGOTTEN, /* L3 was restarted, and it is gone */
    HL_IMPORT_UNHEARD,   /* asked again */
    HL_IMPORT_SILENT,    /* for too long: it has failed */
};

enum hl_import_turn hl_import_judge(const struct hl_import_answer *answer);

/* Whether an import makes room for a new one, of so many that are remembered. One in use (it runs,
 * or an answer about it is still to come) does not. */
bool hl_import_is_evicted(size_t remembered, bool in_use);

/* An adapter is stored as its base is split: fills the request's sizes in. Those that it states
 * must be the base's; 1 is what is asked for where nothing is said. */
hl_status hl_import_as_base(const struct hl_api_split *base,
                            struct hl_api_import_request *r) HL_CHECK;

#endif
