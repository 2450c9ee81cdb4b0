/* Collectives with a part for each rank, and messages from rank to rank: bit for bit, in place, in
 * pieces, over a transport that has only an allgather, and when a rank is killed. */
#include "support/test.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

#include "base/clock.h"
#include "base/half.h"
#include "group/group.h"
#include "helios/helios.h"
#include "unit/group/group_world.h"

#define TYPES (HYBRIDPS_U8 + 1)
#define OPS   (HYBRIDPS_PROD + 1)

/* ---- values: each element in its type ---- */

union number {
    float f32;
    double f64;
    int32_t i32;
    int64_t i64;
    uint8_t u8;
    uint16_t half;
};

static union number element(int rank, size_t i, int type)
{
    float x = value(rank, i);
    union number e = {0};
    if (type == HYBRIDPS_F32)
        e.f32 = i % 97 == 13 && rank == 1 ? NAN : x;
    else if (type == HYBRIDPS_F64)
        e.f64 = (double)x * 1.000000119;
    else if (type == HYBRIDPS_I32)
        e.i32 = (int32_t)(x * 2e6f);
    else if (type == HYBRIDPS_I64)
        e.i64 = (int64_t)((double)x * 4e15);
    else if (type == HYBRIDPS_U8)
        e.u8 = (uint8_t)(int32_t)(x * 100);
    else
        hl_half_store(&x, 1, &e.half, type, 0);
    return e;
}

/* The smaller or larger value; a NaN is kept. */
#define PICK(a, b, op)                                                                             \
    ((op) == HYBRIDPS_MIN ? (isnan((double)(b)) || (b) < (a) ? (b) : (a))                          \
                          : (isnan((double)(b)) || (b) > (a) ? (b) : (a)))
#define FOLD(a, b, op)                                                                             \
    ((op) == HYBRIDPS_PROD ? (a) * (b) : (op) <= HYBRIDPS_MEAN ? (a) + (b) : PICK(a, b, op))
/* Unsigned, so that it wraps. */
#define FOLD_WHOLE(a, b, op, wide)                                                                 \
    ((op) == HYBRIDPS_PROD  ? (wide)(a) * (wide)(b)                                                \
     : (op) == HYBRIDPS_SUM ? (wide)(a) + (wide)(b)                                                \
                            : (wide)PICK(a, b, op))

static union number fold(union number a, union number b, int type, int op)
{
    union number r = {0};
    float x, y;
    switch (type) {
    case HYBRIDPS_F32:
        r.f32 = isnan(a.f32) ? a.f32 : FOLD(a.f32, b.f32, op);
        break;
    case HYBRIDPS_F64:
        r.f64 = FOLD(a.f64, b.f64, op);
        break;
    case HYBRIDPS_I32:
        r.i32 = (int32_t)FOLD_WHOLE(a.i32, b.i32, op, uint32_t);
        break;
    case HYBRIDPS_I64:
        r.i64 = (int64_t)FOLD_WHOLE(a.i64, b.i64, op, uint64_t);
        break;
    case HYBRIDPS_U8:
        r.u8 = (uint8_t)FOLD_WHOLE(a.u8, b.u8, op, uint32_t);
        break;
    default:
        hl_half_load(&a.half, type, 0, 1, &x);
        hl_half_load(&b.half, type, 0, 1, &y);
        x = FOLD(x, y, op);
        hl_half_store(&x, 1, &r.half, type, 0);
    }
    return r;
}

static union number expected(int world, size_t i, int type, int op)
{
    union number sum = element(0, i, type);
    float x;
    for (int r = 1; r < world; r++)
        sum = fold(sum, element(r, i, type), type, op);
    if (op != HYBRIDPS_MEAN || world == 1)
        return sum;
    if (type == HYBRIDPS_F32) {
        sum.f32 /= (float)world;
    } else if (type == HYBRIDPS_F64) {
        sum.f64 /= world;
    } else {
        hl_half_load(&sum.half, type, 0, 1, &x);
        x /= (float)world;
        hl_half_store(&x, 1, &sum.half, type, 0);
    }
    return sum;
}

/* Elements first, first + 1, ... of this rank. */
static uint8_t *filled(int rank, size_t first, size_t n, int type)
{
    size_t size = hl_collective_size(type);
    uint8_t *data = malloc(n * size + 1);
    for (size_t i = 0; i < n; i++) {
        union number e = element(rank, first + i, type);
        memcpy(data + i * size, &e, size);
    }
    return data;
}

static int is_expected(const uint8_t *data, int world, size_t first, size_t n, int type, int op)
{
    size_t size = hl_collective_size(type);
    for (size_t i = 0; i < n; i++) {
        union number want = expected(world, first + i, type, op), is = {0};
        memcpy(&is, data + i * size, size);
        if (memcmp(&is, &want, size) != 0 &&
            !(type == HYBRIDPS_F32 && isnan(is.f32) && isnan(want.f32))) {
            fprintf(stderr, "world %d, type %d, op %d, element %zu\n", world, type, op, first + i);
            return 0;
        }
    }
    return 1;
}

/* ---- reductions ---- */

static int reductions_of(hybridps_group *g, int rank, int world, size_t n, int type, int op)
{
    size_t size = hl_collective_size(type), all = n * (size_t)world, mine = n * (size_t)rank;
    uint8_t *x = filled(rank, 0, n, type), *out = malloc(n * size + 1);
    WANT(hybridps_group_allreduce(g, "r", x, n, type, op) == 0);
    WANT(is_expected(x, world, 0, n, type, op));
    free(x);
    for (int place = 0; place < 3; place++) { /* elsewhere, where `in` starts, in its own part */
        x = filled(rank, 0, all, type);
        uint8_t *to = place == 0 ? out : place == 1 ? x : x + mine * size;
        WANT(hybridps_group_reduce_scatter(g, "s", x, to, n, type, op) == 0);
        WANT(is_expected(to, world, mine, n, type, op));
        free(x);
    }
    free(out);
    return 0;
}

static int reductions(hybridps_group *g, int rank, int world)
{
    static const size_t counts[] = {0, 3, 20001};
    for (size_t k = 0; k < HL_ARRAY_LEN(counts); k++)
        for (int type = 0; type < TYPES; type++)
            for (int op = 0; op < OPS; op++) {
                float none = 0;
                if (type >= HYBRIDPS_I32 && op == HYBRIDPS_MEAN)
                    WANT(hybridps_group_allreduce(g, "r", &none, 1, type, op) == HELIOS_EINVAL);
                else
                    WANT(reductions_of(g, rank, world, counts[k], type, op) == 0);
            }
    return 0;
}

static int reduce_by_memory(int rank, int world)
{
    hybridps_group *g = join(rank, world, 20000);
    WANT(g != NULL && reductions(g, rank, world) == 0);
    hybridps_group_close(g);
    return 0;
}

TEST(every_operation_of_every_type_goes_in_the_order_of_ranks)
{
    for (int world = 1; world <= 4; world++)
        together(world, reduce_by_memory);
}

static int reduce_in_parts(int rank, int world)
{
    enum { N = 50000 };

    hybridps_group *g = join(rank, world, 20000);
    uint8_t *x = filled(rank, 0, N, HYBRIDPS_BF16);
    WANT(g != NULL);
    for (size_t at = 0, n; at < N; at += n) {
        n = at % 7777 + 1 < N - at ? at % 7777 + 1 : N - at;
        WANT(hybridps_group_allreduce(g, "r", x + at * 2, n, HYBRIDPS_BF16, 0) == 0);
    }
    WANT(is_expected(x, world, 0, N, HYBRIDPS_BF16, HYBRIDPS_SUM));
    free(x);
    hybridps_group_close(g);
    return 0;
}

TEST(sums_have_the_same_bits_however_an_array_is_cut)
{
    together(3, reduce_in_parts);
}

/* ---- all to all ---- */

static uint8_t letter(int from, int to, size_t i)
{
    return (uint8_t)((size_t)from * 31 + (size_t)to * 7 + i % 251);
}

static int exchanges(hybridps_group *g, int rank, int world)
{
    static const size_t counts[] = {1, 63, 65536, 65537, 300001};
    for (size_t k = 0; k < HL_ARRAY_LEN(counts); k++)
        for (int in_place = 0; in_place <= 1; in_place++) {
            size_t n = counts[k], all = n * (size_t)world;
            uint8_t *in = malloc(all), *out = in_place ? in : malloc(all);
            for (size_t i = 0; i < all; i++)
                in[i] = letter(rank, (int)(i / n), i % n);
            WANT(hybridps_group_alltoall(g, "x", in, out, n) == 0);
            for (size_t i = 0; i < all; i++)
                WANT(out[i] == letter((int)(i / n), rank, i % n));
            free(in);
            if (!in_place)
                free(out);
        }
    return 0;
}

static int exchange_by_memory(int rank, int world)
{
    hybridps_group *g = join(rank, world, 20000);
    WANT(g != NULL && exchanges(g, rank, world) == 0);
    hybridps_group_close(g);
    return 0;
}

TEST(every_rank_gets_its_part_of_all)
{
    for (int world = 1; world <= 4; world++)
        together(world, exchange_by_memory);
}

/* ---- a transport with only the required functions ---- */

static int only_allgather(void *arg, const char *what, const void *mine, void *all, uint64_t bytes)
{
    return hybridps_group_allgather(arg, what, mine, all, bytes);
}

static int only_broadcast(void *arg, const char *what, void *data, uint64_t bytes, int src)
{
    return hybridps_group_broadcast(arg, what, data, bytes, src);
}

static void close_inner(void *arg)
{
    hybridps_group_close(arg);
}

static int make_do(int rank, int world)
{
    hybridps_transport t = {HYBRIDPS_TRANSPORT_INIT,
                            .rank = rank,
                            .world = world,
                            .arg = join(rank, world, 20000),
                            .allgather = only_allgather,
                            .broadcast = only_broadcast,
                            .close = close_inner};
    hybridps_group *g = NULL;
    char c = 1;
    WANT(t.arg != NULL && hybridps_group_over(&t, &g) == 0);
    WANT(reductions(g, rank, world) == 0);
    WANT(exchanges(g, rank, world) == 0);
    WANT(hybridps_group_send(g, "p", &c, 1, !rank, 0) == HELIOS_EUNSUPPORTED);
    WANT(hybridps_group_recv(g, "p", &c, 1, !rank, 0) == HELIOS_EUNSUPPORTED);
    WANT(reductions_of(g, rank, world, 3, HYBRIDPS_F32, 0) == 0); /* that does not lose it */
    hybridps_group_close(g);
    return 0;
}

TEST(an_allgather_is_enough_for_all_of_it)
{
    for (int world = 2; world <= 3; world++)
        together(world, make_do);
}

/* ---- one to another ---- */

/* To all higher ranks, and then back from the highest, in every size. */
static int letters(int rank, int world)
{
    static const size_t counts[] = {1, 65536, 65537, 200003};
    hybridps_group *g = join(rank, world, 20000);
    WANT(g != NULL);
    for (size_t k = 0; k < HL_ARRAY_LEN(counts); k++) {
        size_t n = counts[k];
        uint8_t *x = malloc(n);
        for (int from = 0; from < world; from++)
            for (int to = 0; to < world; to++) {
                for (size_t i = 0; i < n && rank == from; i++)
                    x[i] = letter(from, to, i);
                if (rank == from && to != from)
                    WANT(hybridps_group_send(g, "s", x, n, to, from * 10 + to) == 0);
                if (rank != to || to == from)
                    continue;
                WANT(hybridps_group_recv(g, "r", x, n, from, from * 10 + to) == 0);
                for (size_t i = 0; i < n; i++)
                    WANT(x[i] == letter(from, to, i));
            }
        free(x);
    }
    WANT(reductions_of(g, rank, world, 100, HYBRIDPS_F32, 0) == 0); /* collectives go on */
    hybridps_group_close(g);
    return 0;
}

TEST(what_one_sends_another_receives)
{
    for (int world = 2; world <= 4; world++)
        together(world, letters);
}

/* Rank 0 receives them in another order than they arrive. */
static int out_of_order(int rank, int world)
{
    hybridps_group *g = join(rank, world, 20000);
    int x = rank;
    WANT(g != NULL);
    for (int k = 0; k < 200; k++)
        for (int r = world - 1; r > 0; r--) {
            if (rank == r)
                WANT(hybridps_group_send(g, "s", &rank, sizeof(rank), 0, k) == 0);
            if (rank != 0)
                continue;
            WANT(hybridps_group_recv(g, "r", &x, sizeof(x), r, k) == 0 && x == r);
        }
    WANT(hybridps_group_send(g, "s", &x, 1, rank, 0) == HELIOS_EINVAL);
    WANT(hybridps_group_send(g, "s", &x, 1, world, 0) == HELIOS_EINVAL);
    WANT(hybridps_group_recv(g, "s", NULL, 1, !rank, 0) == HELIOS_EINVAL);
    WANT(hybridps_group_send(g, "s", NULL, 0, !rank, 0) == 0);
    hybridps_group_close(g);
    return 0;
}

TEST(a_receiver_chooses_whose_letter_it_takes)
{
    together(4, out_of_order);
}

static int wrong_tag(int rank, int world)
{
    hybridps_group *g = join(rank, world, 20000);
    char x[12] = {0};
    WANT(g != NULL);
    if (rank == 0) {
        WANT(hybridps_group_send(g, "mine", x, 12, 1, 7) == HELIOS_EUNAVAIL);
        WANT(strstr(hl_error_text(), "rank 1 has given up the group") != NULL);
    } else {
        WANT(hybridps_group_recv(g, "yours", x, 12, 0, 8) == HELIOS_ECONFLICT);
        WANT(strstr(hl_error_text(), "rank 0 sends \"mine\", 12 bytes with tag 7") != NULL);
        WANT(strstr(hl_error_text(), "receives \"yours\", 12 bytes with tag 8") != NULL);
    }
    hybridps_group_close(g);
    return 0;
}

TEST(both_sides_must_mean_the_same_letter)
{
    together(2, wrong_tag);
}

/* ---- the end of a rank ---- */

static int call_of(hybridps_group *g, int kind)
{
    static float x[64], y[64];
    switch (kind) {
    case 0:
        return hybridps_group_reduce_scatter(g, "grad", x, y, 8, HYBRIDPS_F32, HYBRIDPS_MAX);
    case 1:
        return hybridps_group_alltoall(g, "grad", x, y, 8);
    case 2:
        return hybridps_group_send(g, "grad", x, 8, 1, 0);
    default:
        return hybridps_group_recv(g, "grad", x, 8, 1, 0);
    }
}

static int kind_of_call;

static int is_killed(int rank, int world)
{
    hybridps_group *g = join(rank, world, 1000 * CHILD_S);
    float x = 1;
    WANT(g != NULL && hybridps_group_allreduce(g, "x", &x, 1, HYBRIDPS_F32, 0) == 0);
    if (rank == 1)
        _exit(0); /* silently */
    uint64_t began = hl_now_ns();
    WANT(call_of(g, kind_of_call) == HELIOS_EUNAVAIL);
    WANT(strstr(hl_error_text(), "rank 1 (process ") != NULL);
    /* The rank saw it die, or heard of it from another one that did. */
    WANT(strstr(hl_error_text(), "in grad") != NULL);
    WANT(hl_now_ns() - began < UINT64_C(20) * HL_NS_PER_S);
    WANT(call_of(g, 0) == HELIOS_EUNAVAIL && strstr(hl_error_text(), "lost") != NULL);
    hybridps_group_close(g);
    return 0;
}

TEST(all_others_name_the_rank_that_died)
{
    for (kind_of_call = 0; kind_of_call < 4; kind_of_call++)
        together(kind_of_call < 2 ? 4 : 2, is_killed);
}

static int never_comes(int rank, int world)
{
    hybridps_group *g = join(rank, world, rank == 0 ? 200 : 20000);
    char x = 0;
    WANT(g != NULL);
    if (rank == 0) {
        WANT(hybridps_group_recv(g, "late", &x, 1, 1, 0) == HELIOS_ETIMEDOUT);
        WANT(strstr(hl_error_text(), "rank 1 (process ") && strstr(hl_error_text(), "200 ms"));
    } else {
        WANT(hybridps_group_recv(g, "never", &x, 1, 0, 0) == HELIOS_EUNAVAIL);
    }
    hybridps_group_close(g);
    return 0;
}

TEST(a_letter_that_does_not_come_ends_the_wait)
{
    together(2, never_comes);
}

static void *cancel_it(void *g)
{
    hybridps_group_cancel(g);
    return NULL;
}

static int is_cancelled(int rank, int world)
{
    hybridps_group *g = join(rank, world, 1000 * CHILD_S);
    float x = 1;
    pthread_t thread;
    WANT(g != NULL);
    if (rank == 0) {
        WANT(pthread_create(&thread, NULL, cancel_it, g) == 0);
        int code = hybridps_group_recv(g, "long", &x, 4, 1, 0);
        WANT(code == HELIOS_ECANCELED || (code == HELIOS_EUNAVAIL && /* before it began */
                                          strstr(hl_error_text(), "cancelled") != NULL));
        pthread_join(thread, NULL);
        WANT(hybridps_group_recv(g, "more", &x, 4, 1, 0) == HELIOS_EUNAVAIL);
    } else {
        WANT(hybridps_group_recv(g, "ever", &x, 4, 0, 0) ==
             HELIOS_EUNAVAIL); /* until rank 0 is gone */
    }
    hybridps_group_close(g);
    return 0;
}

TEST(a_wait_can_be_cancelled_from_another_thread)
{
    together(2, is_cancelled);
    hybridps_group_cancel(NULL);
}

/* A transport whose calls last until they are cancelled. */
struct lasting {
    int inside, cancelled, closed;
    hybridps_group *group;
};

static int lasts(void *arg, const char *what, const void *mine, void *all, uint64_t bytes)
{
    struct lasting *l = arg;
    (void)what, (void)mine, (void)all, (void)bytes;
    __atomic_store_n(&l->inside, 1, __ATOMIC_RELEASE);
    while (!__atomic_load_n(&l->cancelled, __ATOMIC_ACQUIRE))
        usleep(1000);
    __atomic_store_n(&l->inside, 0, __ATOMIC_RELEASE);
    return HELIOS_ECANCELED;
}

static int no_broadcast(void *arg, const char *what, void *data, uint64_t bytes, int src)
{
    (void)arg, (void)what, (void)data, (void)bytes, (void)src;
    return HELIOS_EUNAVAIL;
}

static void cancel_lasting(void *arg)
{
    __atomic_store_n(&((struct lasting *)arg)->cancelled, 1, __ATOMIC_RELEASE);
}

static void close_lasting(void *arg)
{
    struct lasting *l = arg;
    l->closed = 1 + __atomic_load_n(&l->inside, __ATOMIC_ACQUIRE);
}

static void *call_lasting(void *arg)
{
    struct lasting *l = arg;
    char mine = 1, all[2];
    return hybridps_group_allgather(l->group, "long", &mine, all, 1) == HELIOS_ECANCELED ? l : NULL;
}

TEST(a_transport_is_as_long_as_its_maker_says)
{
    hybridps_group *g = NULL;
    hybridps_transport t = {
        .world = 1, .allgather = lasts, .broadcast = no_broadcast, .close = (void (*)(void *))1};
    assert_int_equal(hybridps_group_over(&t, &g), HELIOS_EINVAL);
    assert_non_null(strstr(hl_error_text(), "sizeof(hybridps_transport)"));
    t.size = offsetof(hybridps_transport, close); /* it isn't called */
    assert_int_equal(hybridps_group_over(&t, &g), HELIOS_OK);
    hybridps_group_close(g);
}

static void close_around_a_call(struct lasting *l, void (*cancel)(void *arg))
{
    const hybridps_transport t = {HYBRIDPS_TRANSPORT_INIT,
                                  .world = 2,
                                  .arg = l,
                                  .allgather = lasts,
                                  .broadcast = no_broadcast,
                                  .close = close_lasting,
                                  .cancel = cancel};
    pthread_t thread;
    void *found = NULL;
    assert_int_equal(hybridps_group_over(&t, &l->group), 0);
    assert_int_equal(pthread_create(&thread, NULL, call_lasting, l), 0);
    while (!__atomic_load_n(&l->inside, __ATOMIC_ACQUIRE))
        usleep(1000);
    hybridps_group_close(l->group);
    if (cancel == NULL) {
        assert_int_equal(l->closed, 0);
        assert_int_equal(l->inside, 1);
        cancel_lasting(l);
    }
    pthread_join(thread, &found);
    assert_ptr_equal(found, l);
}

/* An exception leaves a collective unfinished, and the group with it. */
TEST(a_group_is_closed_around_a_call_of_another_thread)
{
    struct lasting l = {0}, stays = {0};
    close_around_a_call(&l, cancel_lasting);
    assert_int_equal(l.closed, 1); /* once the call had returned */
    close_around_a_call(&stays, NULL);
    free(stays.group); /* the call's to free, but it never returns */
}

int main(int argc, char **argv)
{
    snprintf(name, sizeof(name), "helios-test-parts-%d", (int)getpid());
    return tests_run(argc, argv);
}
