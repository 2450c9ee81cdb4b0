/* Selects the body of a task. */
#include "maco/kernels/bodies.h"

#include <pthread.h>

#include "maco/kernels/blas.h"
#include "maco/kernels/body_private.h"

/* Bodies run in parallel, so BLAS must not use threads of its own meanwhile. That setting is global
 * to the process: the first of several runs changes it, and the last one restores it. The lock
 * guards both variables and is also held while the setting changes, so a run that begins while
 * another one ends does not see half of the change. */
static pthread_mutex_t runs_lock = PTHREAD_MUTEX_INITIALIZER;
static int runs, threads_before;

void hl_maco_bodies_begin(void)
{
    const struct hl_blas *blas = hl_blas();
    pthread_mutex_lock(&runs_lock);
    if (runs++ == 0 && blas != NULL && blas->set_threads != NULL) {
        threads_before = blas->get_threads();
        if (threads_before != 1)
            blas->set_threads(1);
    }
    pthread_mutex_unlock(&runs_lock);
}

void hl_maco_bodies_end(void)
{
    const struct hl_blas *blas = hl_blas();
    pthread_mutex_lock(&runs_lock);
    if (--runs == 0 && blas != NULL && blas->set_threads != NULL && threads_before != 1)
        blas->set_threads(threads_before);
    pthread_mutex_unlock(&runs_lock);
}

static hl_status run_arithmetic(const maco_task *t, struct hl_maco_scratch *s)
{
    int dtype = hl_maco_dtype(t);
    if (dtype > MACO_BF16)
        return hl_fail(HL_EUNSUPPORTED,
                       "a task of type %d with elements of type %d: arithmetic is of float32, "
                       "float16 and bfloat16",
                       t->type, dtype);
    switch (t->type) {
    case MACO_TASK_MATMUL:
        return hl_body_matmul(t, s);
    case MACO_TASK_ATTENTION:
        return hl_body_attention(t, s);
    case MACO_TASK_LINEAR:
        return hl_body_linear(t, s);
    case MACO_TASK_LAYERNORM:
        return hl_body_layernorm(t, s);
    case MACO_TASK_RMSNORM:
        return hl_body_rmsnorm(t, s);
    case MACO_TASK_SOFTMAX:
        return hl_body_softmax(t, s);
    case MACO_TASK_GELU:
    case MACO_TASK_SILU:
        return hl_body_unary(t);
    case MACO_TASK_ELEMENTWISE:
        return hl_body_elementwise(t);
    default:
        return hl_fail(HL_EINVAL, "a task of type %d has no body on a CPU", t->type);
    }
}

hl_status hl_maco_body(const maco_task *task, struct hl_maco_scratch *scratch)
{
    switch (task->type) {
    case MACO_TASK_NOP:
        return HL_OK;
    case MACO_TASK_MEMCPY:
        return hl_body_memcpy(task);
    case MACO_TASK_MEMSET:
        return hl_body_memset(task);
    default:
        return run_arithmetic(task, scratch);
    }
}
