/* l3d/imports_private.h - a running import or cut, shared by imports.c, import_sink.c and cut.c.
 *
 *     loop thread                           its thread
 *     -----------                           ----------
 *     import_start --pthread_create-------> import_thread: slices into the pool
 *     import_progress <--- done_bytes ------   atomic, while it runs
 *     import_cancel ------ cancel --------->   checked between blocks
 *     import_progress <--- phase -----------   stored last, with release: then the rest is constant
 *
 * Threads: as drawn. States: running -> done | failed. It is kept for late queries until it is
 *          joined and freed.
 */
#ifndef HL_L3D_IMPORTS_PRIVATE_H
#define HL_L3D_IMPORTS_PRIVATE_H

#include <pthread.h>
#include <stdatomic.h>
#include <uthash.h>

#include "l3d/l3d_private.h"
#include "mem/import/import.h"

struct import {
    char id[HL_ID_TEXT_LEN + 1];
    struct hl_l3d *daemon;
    bool is_cut;           /* reads stored shards; otherwise a directory */
    struct hl_arena arena; /* of the request */
    struct hl_api_import_request request;
    struct hl_api_cut_request cut;
    const char *model;
    int64_t version;
    pthread_t thread;
    bool joined;
    atomic_bool cancel;
    _Atomic uint64_t done_bytes;
    _Atomic uint64_t total_bytes;
    /* written by the thread before it stores `phase` with release */
    _Atomic int phase;
    hl_status status;
    char error[HL_ERROR_TEXT_MAX];
    char *config; /* NULL for a cut */
    char *meta;   /* NULL for a cut */
    struct hl_import_shard *shards;
    char **layouts; /* core/model/layout.h, one per shard */
    char **crcs;    /* of the tensors of each layout; NULL for a cut, which is not proved */
    size_t shard_count;
    double seconds;
    uint64_t cut_number;    /* core/catalog/derived_id.h */
    atomic_uint cut_shards; /* number of shards that have an id */
    UT_hash_handle hh;
};

/* import_sink.c: run in the thread of the import */
struct hl_import_sink import_sink(struct import *im);
void import_note_progress(void *arg, uint64_t done, uint64_t total);
/* Checks that the pool has room. Waits for quarantines, because what was freed a moment ago will
 * soon be free. */
hl_status import_check_room(struct import *im, uint64_t need) HL_CHECK;

/* cut.c */
/* Does a whole cut, in its thread. */
hl_status import_cut(struct import *im) HL_CHECK;

#endif
