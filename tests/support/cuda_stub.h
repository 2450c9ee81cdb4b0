/* What the parts of the stub share; see cuda_stub.c. */
#ifndef HL_TESTS_CUDA_STUB_H
#define HL_TESTS_CUDA_STUB_H

#include <pthread.h>

#include "cuda/driver.h"

#define EVEN_LOST 2 /* needs a context, which an error may have lost */
#define API       __attribute__((visibility("default")))

struct CUctx_st {
    int device;
    int retained;
    cu_result sticky; /* an asynchronous error: the context is lost */
};

extern pthread_mutex_t stub_lock;                  /* guards all state of the stub */
extern int stub_streams, stub_events, stub_others; /* modules, host memory */

unsigned long stub_setting(const char *name, unsigned long otherwise);
/* Every call begins with this; on success it holds the lock afterwards. */
cu_result stub_begin(const char *name, int needs_context);
cu_result stub_end(cu_result r);
/* The current context, as found by stub_begin. */
struct CUctx_st *stub_context(void);
/* Where the CPU finds these bytes of the device; NULL: they are not all in one mapping. */
unsigned char *stub_shadow(cu_ptr at, size_t len, cu_enum *access);

/* Memory shared with other processes: the file and size of the memory at this address, or -1; and
 * the reverse. */
int stub_memfd(cu_ptr at, size_t *size);
cu_result stub_map(int fd, size_t size, cu_ptr *out);
/* A second address of the memory at this one, for cuMemFree. Takes the lock. */
API cu_result stub_alias(cu_ptr at, cu_ptr *out);

/* Acts as a framework's kernel in a stream of its own: the bytes at that address become `value`
 * after `us`.
 */
API cu_result cuda_stub_kernel(cu_ptr at, size_t len, unsigned char value, unsigned long us);

/* Work in a stream, done in order. */
enum stub_what {
    STUB_COPY,
    STUB_KERNEL,
    STUB_EVENT,
    STUB_AWAIT_EVENT,
    STUB_AWAIT_VALUE,
    STUB_WRITE,
    STUB_CALL
};

struct stub_task {
    struct stub_task *next;
    enum stub_what what;
    struct CUevent_st *event;
    unsigned long event_turn;
    cu_ptr dst, src; /* dst also: address of the word to wait for or write */
    int dst_device, src_device;
    size_t len;
    uint64_t value;
    unsigned long us; /* of a kernel: how long it runs before it writes `value` everywhere */
    cu_host_fn call;  /* called without the lock */
    void *arg;
};

cu_result stub_add_task(struct CUstream_st *s, const struct stub_task *task);

#define BEGIN(needs_context)                                                                       \
    do {                                                                                           \
        cu_result begin_ = stub_begin(__func__, needs_context);                                    \
        if (begin_ != HL_CUDA_SUCCESS)                                                             \
            return begin_;                                                                         \
    } while (0)

#define X(name, args) API cu_result name args;
CUDA_CALLS(X)
CUDA_VMM_CALLS(X)
CUDA_RUN_CALLS(X)
CUDA_CONTEXT_CALLS(X)
#undef X

#endif
