/* The part of the stub that runs later: streams, events, copies. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "support/cuda_stub.h"

struct CUstream_st {
    struct CUstream_st *next; /* list of all streams */
    struct CUctx_st *context;
    struct stub_task *first, **last;
    pthread_cond_t work;
    pthread_t thread;
    int stop;
};

struct CUevent_st {
    unsigned long recorded, reached;
    unsigned
        parts; /* streams of a context that have not reached it yet; 0: it belongs to one stream */
};

static struct CUstream_st *all_streams;

/* Looks up the addresses at run time, as the engine of a device does: memory that was unmapped in
 * between is an error that the context does not survive. The lock is held. */
static void run_copy(struct CUctx_st *c, const struct stub_task *t)
{
    cu_enum reading = HL_CU_MEM_ACCESS_FLAGS_PROT_READ;
    cu_enum writing = HL_CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    void *dst = t->dst_device ? stub_shadow(t->dst, t->len, &writing) : (void *)(uintptr_t)t->dst;
    const void *src =
        t->src_device ? stub_shadow(t->src, t->len, &reading) : (const void *)(uintptr_t)t->src;
    if (dst == NULL || src == NULL || writing != HL_CU_MEM_ACCESS_FLAGS_PROT_READWRITE ||
        reading == 0) {
        c->sticky = HL_CUDA_ERROR_ILLEGAL_ADDRESS;
        return;
    }
    memmove(dst, src, t->len);
}

static void run_kernel(struct CUctx_st *c, const struct stub_task *t)
{
    cu_enum access = HL_CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    void *dst = stub_shadow(t->dst, t->len, &access);
    if (dst == NULL || access != HL_CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        c->sticky = HL_CUDA_ERROR_ILLEGAL_ADDRESS;
    else
        memset(dst, (int)t->value, t->len);
}

/* Waits until the condition holds or the stream is destroyed. Without the lock between checks. */
static void await(struct CUstream_st *s, const struct stub_task *t)
{
    cu_enum access;
    for (;;) {
        int is_so;
        if (t->what == STUB_AWAIT_EVENT) {
            is_so = t->event->reached >= t->event_turn;
        } else {
            uint64_t *word = (uint64_t *)(void *)stub_shadow(t->dst, 8, &access);
            is_so =
                word == NULL || (int64_t)(__atomic_load_n(word, __ATOMIC_ACQUIRE) - t->value) >= 0;
        }
        if (is_so || s->stop)
            return;
        pthread_mutex_unlock(&stub_lock);
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        pthread_mutex_lock(&stub_lock);
    }
}

static void run_other(struct CUstream_st *s, const struct stub_task *t)
{
    cu_enum access;
    uint64_t *word;
    switch (t->what) {
    case STUB_EVENT:
        if (t->event->parts <= 1)
            t->event->reached = t->event_turn;
        t->event->parts -= t->event->parts > 0;
        break;
    case STUB_WRITE:
        word = (uint64_t *)(void *)stub_shadow(t->dst, 8, &access);
        if (word == NULL)
            s->context->sticky = HL_CUDA_ERROR_ILLEGAL_ADDRESS;
        else
            __atomic_store_n(word, t->value, __ATOMIC_RELEASE);
        break;
    case STUB_CALL:
        pthread_mutex_unlock(&stub_lock);
        t->call(t->arg);
        pthread_mutex_lock(&stub_lock);
        break;
    default:
        await(s, t);
    }
}

static void *stream_thread(void *arg)
{
    struct CUstream_st *s = arg;
    pthread_mutex_lock(&stub_lock);
    for (;;) {
        while (s->first == NULL && !s->stop)
            pthread_cond_wait(&s->work, &stub_lock);
        struct stub_task *t = s->first;
        if (t == NULL)
            break;
        if (t->what == STUB_COPY || t->what == STUB_KERNEL) {
            unsigned long us =
                t->what == STUB_KERNEL ? t->us : stub_setting("CUDA_STUB_DELAY_US", 2000);
            pthread_mutex_unlock(&stub_lock);
            nanosleep(&(struct timespec){.tv_sec = (time_t)(us / 1000000),
                                         .tv_nsec = (long)(us % 1000000) * 1000},
                      NULL);
            pthread_mutex_lock(&stub_lock);
            if (t->what == STUB_KERNEL)
                run_kernel(s->context, t);
            else
                run_copy(s->context, t);
        } else {
            run_other(s, t);
        }
        s->first = t->next;
        if (s->first == NULL)
            s->last = &s->first;
        free(t);
    }
    pthread_mutex_unlock(&stub_lock);
    return NULL;
}

static struct CUstream_st *new_stream(void)
{
    struct CUstream_st *s = calloc(1, sizeof(*s));
    if (s == NULL)
        return NULL;
    s->context = stub_context();
    s->last = &s->first;
    pthread_cond_init(&s->work, NULL);
    if (pthread_create(&s->thread, NULL, stream_thread, s) != 0) {
        free(s);
        return NULL;
    }
    s->next = all_streams;
    all_streams = s;
    return s;
}

/* NULL is the context's own stream; it lives from its first use to the end of the process. */
static struct CUstream_st *given_stream(struct CUstream_st *s)
{
    static struct CUstream_st *own;
    if (s != NULL)
        return s;
    if (own == NULL)
        own = new_stream();
    return own;
}

cu_result stub_add_task(struct CUstream_st *s, const struct stub_task *task)
{
    struct stub_task *t = malloc(sizeof(*t));
    s = given_stream(s);
    if (t == NULL || s == NULL || s->context != stub_context()) {
        free(t);
        return HL_CUDA_ERROR_INVALID_HANDLE;
    }
    *t = *task;
    *s->last = t;
    s->last = &t->next;
    pthread_cond_signal(&s->work);
    return HL_CUDA_SUCCESS;
}

cu_result cuda_stub_kernel(cu_ptr at, size_t len, unsigned char value, unsigned long us)
{
    static struct CUstream_st *others; /* live to the end of the process, as the context's own */
    BEGIN(1);
    if (others == NULL)
        others = new_stream();
    return stub_end(stub_add_task(others, &(struct stub_task){.what = STUB_KERNEL,
                                                              .dst = at,
                                                              .dst_device = 1,
                                                              .len = len,
                                                              .value = value,
                                                              .us = us}));
}

cu_result cuCtxSynchronize(void)
{
    BEGIN(1);
    struct CUctx_st *c = stub_context();
    for (struct CUstream_st *s = all_streams; s != NULL; s = s->next)
        while (s->context == c && s->first != NULL) {
            pthread_mutex_unlock(&stub_lock);
            nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
            pthread_mutex_lock(&stub_lock);
        }
    return stub_end(c->sticky);
}

cu_result cuCtxRecordEvent(struct CUctx_st *c, struct CUevent_st *e)
{
    cu_result r = HL_CUDA_SUCCESS;
    BEGIN(1);
    if (c != stub_context())
        return stub_end(HL_CUDA_ERROR_INVALID_HANDLE);
    e->recorded++;
    e->parts = 0;
    for (struct CUstream_st *s = all_streams; s != NULL && r == HL_CUDA_SUCCESS; s = s->next) {
        if (s->context != c || s->first == NULL)
            continue;
        e->parts++;
        r = stub_add_task(
            s, &(struct stub_task){.what = STUB_EVENT, .event = e, .event_turn = e->recorded});
    }
    if (e->parts == 0)
        e->reached = e->recorded;
    return stub_end(r);
}

static cu_result add_copy(struct CUstream_st *s, const struct stub_task *t)
{
    cu_enum access;
    /* An address that is not a device address is detected at once. */
    if ((t->dst_device && stub_shadow(t->dst, t->len, &access) == NULL) ||
        (t->src_device && stub_shadow(t->src, t->len, &access) == NULL))
        return HL_CUDA_ERROR_INVALID_VALUE;
    return stub_add_task(s, t);
}

cu_result cuMemcpyHtoDAsync_v2(cu_ptr dst, const void *src, size_t len, struct CUstream_st *s)
{
    BEGIN(1);
    return stub_end(add_copy(
        s, &(struct stub_task){.dst = dst, .src = (uintptr_t)src, .dst_device = 1, .len = len}));
}

cu_result cuMemcpyDtoHAsync_v2(void *dst, cu_ptr src, size_t len, struct CUstream_st *s)
{
    BEGIN(1);
    return stub_end(add_copy(
        s, &(struct stub_task){.dst = (uintptr_t)dst, .src = src, .src_device = 1, .len = len}));
}

cu_result cuMemcpyDtoDAsync_v2(cu_ptr dst, cu_ptr src, size_t len, struct CUstream_st *s)
{
    BEGIN(1);
    return stub_end(add_copy(
        s,
        &(struct stub_task){.dst = dst, .src = src, .dst_device = 1, .src_device = 1, .len = len}));
}

cu_result cuStreamCreate(struct CUstream_st **out, unsigned int flags)
{
    BEGIN(1);
    if (flags != HL_CU_STREAM_NON_BLOCKING) /* the only flag that Helios uses */
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    struct CUstream_st *s = new_stream();
    if (s == NULL)
        return stub_end(HL_CUDA_ERROR_OUT_OF_MEMORY);
    stub_streams++;
    *out = s;
    return stub_end(HL_CUDA_SUCCESS);
}

/* Either side can be the device's: there is one address space. */
cu_result cuMemcpyAsync(cu_ptr dst, cu_ptr src, size_t len, struct CUstream_st *s)
{
    cu_enum access;
    BEGIN(1);
    return stub_end(
        add_copy(s, &(struct stub_task){.dst = dst,
                                        .src = src,
                                        .dst_device = stub_shadow(dst, len, &access) != NULL,
                                        .src_device = stub_shadow(src, len, &access) != NULL,
                                        .len = len}));
}

cu_result cuStreamWaitEvent(struct CUstream_st *s, struct CUevent_st *e, unsigned int flags)
{
    BEGIN(1);
    if (flags != 0)
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    return stub_end(stub_add_task(
        s, &(struct stub_task){.what = STUB_AWAIT_EVENT, .event = e, .event_turn = e->recorded}));
}

static cu_result add_value(struct CUstream_st *s, enum stub_what what, cu_ptr word, uint64_t value)
{
    cu_enum access;
    if (word % 8 != 0 || stub_shadow(word, 8, &access) == NULL)
        return HL_CUDA_ERROR_INVALID_VALUE;
    return stub_add_task(s, &(struct stub_task){.what = what, .dst = word, .value = value});
}

cu_result cuStreamWaitValue64_v2(struct CUstream_st *s, cu_ptr word, uint64_t value,
                                 unsigned int flags)
{
    BEGIN(1);
    return stub_end(flags == HL_CU_STREAM_WAIT_VALUE_GEQ
                        ? add_value(s, STUB_AWAIT_VALUE, word, value)
                        : HL_CUDA_ERROR_INVALID_VALUE);
}

cu_result cuStreamWriteValue64_v2(struct CUstream_st *s, cu_ptr word, uint64_t value,
                                  unsigned int flags)
{
    BEGIN(1);
    return stub_end(flags == HL_CU_STREAM_WRITE_VALUE_DEFAULT
                        ? add_value(s, STUB_WRITE, word, value)
                        : HL_CUDA_ERROR_INVALID_VALUE);
}

cu_result cuLaunchHostFunc(struct CUstream_st *s, cu_host_fn call, void *arg)
{
    BEGIN(1);
    return stub_end(
        stub_add_task(s, &(struct stub_task){.what = STUB_CALL, .call = call, .arg = arg}));
}

cu_result cuStreamQuery(struct CUstream_st *s)
{
    BEGIN(1);
    return stub_end(s->first == NULL ? HL_CUDA_SUCCESS : HL_CUDA_ERROR_NOT_READY);
}

cu_result cuStreamDestroy_v2(struct CUstream_st *s)
{
    BEGIN(EVEN_LOST);
    s->stop = 1;
    stub_streams--;
    struct CUstream_st **p = &all_streams;
    while (*p != s)
        p = &(*p)->next;
    *p = s->next;
    pthread_cond_signal(&s->work);
    pthread_mutex_unlock(&stub_lock);
    pthread_join(s->thread, NULL);
    pthread_cond_destroy(&s->work);
    free(s);
    return HL_CUDA_SUCCESS;
}

cu_result cuEventCreate(struct CUevent_st **out, unsigned int flags)
{
    BEGIN(1);
    struct CUevent_st *e = calloc(1, sizeof(*e));
    if (e == NULL || flags != HL_CU_EVENT_DISABLE_TIMING) {
        free(e);
        return stub_end(HL_CUDA_ERROR_INVALID_VALUE);
    }
    stub_events++;
    *out = e;
    return stub_end(HL_CUDA_SUCCESS);
}

cu_result cuEventRecord(struct CUevent_st *e, struct CUstream_st *s)
{
    BEGIN(1);
    cu_result r = stub_add_task(
        s, &(struct stub_task){.what = STUB_EVENT, .event = e, .event_turn = e->recorded + 1});
    if (r == HL_CUDA_SUCCESS)
        e->recorded++;
    return stub_end(r);
}

cu_result cuEventQuery(struct CUevent_st *e)
{
    BEGIN(1);
    return stub_end(e->reached == e->recorded ? HL_CUDA_SUCCESS : HL_CUDA_ERROR_NOT_READY);
}

cu_result cuEventDestroy_v2(struct CUevent_st *e)
{
    BEGIN(EVEN_LOST);
    stub_events--;
    free(e);
    return stub_end(HL_CUDA_SUCCESS);
}
