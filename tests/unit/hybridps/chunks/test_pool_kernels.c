/* A framework's kernels that still use a chunk when it has to leave: the pool waits for them. On
 * the stub of the driver, whose kernels run in a stream of their own. */
#include "support/test.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cuda/driver.h"
#include "hybridps/chunks/pool.h"

#define UNIT      ((size_t)2 << 20)
#define KERNEL_US 60000

static char library[512];

struct rig {
    struct cuda_driver cu;
    cu_result (*kernel)(cu_ptr at, size_t len, unsigned char value, unsigned long us);
    struct hl_chunk_pool *pool;
    uint32_t c[3]; /* two of them fit on the device */
};

static void rig_open(struct rig *r, bool copy)
{
    struct CUctx_st *context;
    struct hl_chunk_pool_options o = {
        .device = "cuda:0:4MiB", .cuda_driver = library, .policy = "lru", .copy = copy};
    setenv("CUDA_STUB_DELAY_US", "100", 1);
    assert_int_equal(cuda_driver_load(library, &r->cu), HL_OK);
    void *so = dlopen(library, RTLD_NOW | RTLD_NOLOAD);
    assert_non_null(so);
    *(void **)&r->kernel = dlsym(so, "cuda_stub_kernel");
    assert_non_null(r->kernel);
    assert_int_equal(hl_chunk_pool_open(&o, &r->pool), HL_OK);
    assert_int_equal(r->cu.cuDevicePrimaryCtxRetain(&context, 0), HL_CUDA_SUCCESS);
    assert_int_equal(r->cu.cuCtxPushCurrent_v2(context), HL_CUDA_SUCCESS);
    for (int i = 0; i < 3; i++)
        assert_int_equal(hl_chunk_pool_add(r->pool, 0, UNIT, 0, &r->c[i]), HL_OK);
}

static void rig_close(struct rig *r)
{
    struct CUctx_st *context;
    hl_chunk_pool_close(r->pool);
    assert_int_equal(r->cu.cuCtxSynchronize(), HL_CUDA_SUCCESS); /* no kernel lost its memory */
    assert_int_equal(r->cu.cuCtxPopCurrent_v2(&context), HL_CUDA_SUCCESS);
    assert_int_equal(r->cu.cuDevicePrimaryCtxRelease_v2(0), HL_CUDA_SUCCESS);
}

static void use(struct rig *r, uint32_t c, bool on_host, bool write)
{
    struct hl_trace_use u = {.chunk = c, .on_host = on_host, .write = write};
    if (hl_chunk_pool_access(r->pool, &u, 1) != HL_OK)
        fail_msg("%s", hl_error_text());
}

static struct hl_chunk_info info_of(struct rig *r, uint32_t c)
{
    struct hl_chunk_info i;
    hl_chunk_pool_info(r->pool, c, &i);
    return i;
}

/* The chunk's bytes become `value` some time after it was released. */
static void begin_kernel(struct rig *r, uint32_t c, unsigned char value)
{
    use(r, c, false, true);
    assert_int_equal(r->kernel(info_of(r, c).address, UNIT, value, KERNEL_US), HL_CUDA_SUCCESS);
    hl_chunk_pool_release(r->pool, c, false);
}

static void assert_host_has(struct rig *r, uint32_t c, unsigned char value)
{
    use(r, c, true, false);
    const unsigned char *at = info_of(r, c).host;
    assert_int_equal(at[0], value);
    assert_int_equal(at[UNIT - 1], value);
    hl_chunk_pool_release(r->pool, c, true);
}

TEST(a_chunk_that_must_leave_comes_to_the_host_with_what_kernels_were_writing)
{
    for (int copy = 0; copy < 2; copy++) {
        struct rig r;
        rig_open(&r, copy);
        for (unsigned char round = 1; round < 4; round++) {
            begin_kernel(&r, r.c[0], round);
            use(&r, r.c[1], false, true);
            use(&r, r.c[2], false, true); /* the first one leaves */
            hl_chunk_pool_release(r.pool, r.c[1], false);
            hl_chunk_pool_release(r.pool, r.c[2], false);
            assert_false(info_of(&r, r.c[0]).on_device);
            assert_host_has(&r, r.c[0], round);
        }
        rig_close(&r);
    }
}

TEST(what_is_read_on_the_host_is_what_kernels_have_written)
{
    struct rig r;
    rig_open(&r, true);
    begin_kernel(&r, r.c[0], 9);
    assert_host_has(&r, r.c[0], 9);
    rig_close(&r);
}

TEST(memory_is_not_taken_from_kernels_when_content_ends_or_the_pool_is_closed)
{
    struct rig r;
    rig_open(&r, true);
    begin_kernel(&r, r.c[0], 1);
    hl_chunk_pool_end(r.pool, r.c[0]);
    assert_int_equal(r.cu.cuCtxSynchronize(), HL_CUDA_SUCCESS);
    begin_kernel(&r, r.c[1], 2);
    rig_close(&r);
}

TEST(chunks_that_leave_ahead_wait_for_kernels_too)
{
    struct rig r;
    rig_open(&r, true);
    for (int i = 1; i < 3; i++) {
        use(&r, r.c[i], true, true);
        memset(info_of(&r, r.c[i]).host, 0, UNIT);
        hl_chunk_pool_release(r.pool, r.c[i], true);
    }
    begin_kernel(&r, r.c[0], 5);
    struct hl_trace_use next[] = {{.chunk = r.c[1]}, {.chunk = r.c[2]}};
    hl_chunk_pool_ahead(r.pool, next, 2, 2 * UNIT, 2);
    assert_host_has(&r, r.c[0], 5);
    rig_close(&r);
}

/* The driver reports that for memory that it has locked already. */
static bool is_pinned(struct rig *r, uint32_t c)
{
    void *host = info_of(r, c).host;
    cu_result answer = r->cu.cuMemHostRegister_v2(host, UNIT, HL_CU_MEMHOSTREGISTER_PORTABLE);
    if (answer == HL_CUDA_SUCCESS)
        (void)r->cu.cuMemHostUnregister(host);
    return answer == HL_CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
}

TEST(host_memory_of_chunks_is_pinned_where_it_stays)
{
    for (int copy = 0; copy < 2; copy++) {
        struct rig r;
        rig_open(&r, copy);
        assert_false(is_pinned(&r, r.c[0]));
        begin_kernel(&r, r.c[0], 3);
        assert_host_has(&r, r.c[0], 3);
        assert_int_equal(is_pinned(&r, r.c[0]), copy);
        hl_chunk_pool_end(r.pool, r.c[0]); /* not counted: it is kept for the next content */
        assert_int_equal(is_pinned(&r, r.c[0]), copy);
        rig_close(&r); /* the stub aborts a process that leaves pins behind */
    }
}

TEST(where_the_driver_pins_nothing_copies_are_right_all_the_same)
{
    struct rig r;
    setenv("CUDA_STUB_FAIL", "cuMemHostRegister:1:800", 1);
    rig_open(&r, true);
    begin_kernel(&r, r.c[0], 4);
    assert_host_has(&r, r.c[0], 4);
    unsetenv("CUDA_STUB_FAIL");
    assert_false(is_pinned(&r, r.c[0]));
    rig_close(&r);
}

int main(int argc, char **argv)
{
    const char *build = getenv("HELIOS_BUILD");
    snprintf(library, sizeof(library), "%s/tests/libcuda_stub.so", build != NULL ? build : "build");
    return tests_run(argc, argv);
}
