/* Communicators of the stand-in for NCCL, which a test makes itself. */
#ifndef HL_TESTS_NCCL_STUB_H
#define HL_TESTS_NCCL_STUB_H

#include <pthread.h>

#include "maco/cuda/host/nccl.h"
#include "support/nccl_device/nccl_device.h"

/* Shared by the ranks of a communicator, which are threads of one process. */
struct nccl_stub_team {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    int lsa; /* ranks that reach each other's memory; 0: all */
    int arrived, round, aborted;
    void *memory[NCCL_STUB_RANKS]; /* of the registration in progress */
    size_t size[NCCL_STUB_RANKS];
};

#define NCCL_STUB_TEAM                                                                             \
    {                                                                                              \
        .lock = PTHREAD_MUTEX_INITIALIZER, .turn = PTHREAD_COND_INITIALIZER                        \
    }

struct ncclComm {
    int ranks, rank;
    struct nccl_stub_team *team;       /* NULL: it has no windows */
    struct ncclWindow_vidmem *windows; /* registered windows */
    int aborted;
};

/* For the stub's source files: records the call; returns other than 0 if it was configured to
 * fail. */
nccl_result nccl_stub_note(const char *call, size_t count, int type, int more);
void nccl_stub_drop_windows(struct ncclComm *c);

#endif
