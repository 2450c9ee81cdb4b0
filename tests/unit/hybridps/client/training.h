/* A model that trains in managed memory, layer by layer, and checks what it finds there. The test
 * includes cmocka first. */
#ifndef TESTS_HYBRIDPS_TRAINING_H
#define TESTS_HYBRIDPS_TRAINING_H

#include <stdint.h>
#include <stdio.h>
#include <unistd.h>

#include "base/status.h"
#include "helios/hybridps.h"

#define LAYERS 12

/* A model of LAYERS parameters, gradients and fp32 copies, each filling a chunk of a page. */
struct model {
    hybridps *h;
    uint64_t page;
    uint32_t param[LAYERS], grad[LAYERS], p32[LAYERS];
    uint64_t value[LAYERS]; /* the parameter's expected value, recorded independently */
};

#define OK(call)                                                                                   \
    do {                                                                                           \
        if ((call) != 0)                                                                           \
            fail_msg("%s: %s", #call, hl_error_text());                                            \
    } while (0)

static inline uint64_t page(void)
{
    return (uint64_t)sysconf(_SC_PAGESIZE);
}

static inline void *use(hybridps *h, uint32_t t, int where, int write)
{
    hybridps_use u = {.tensor = t, .where = where, .write = write};
    OK(hybridps_access(h, &u, 1));
    return u.address;
}

static inline void done(hybridps *h, uint32_t t, int state)
{
    OK(hybridps_release(h, &t, 1, state));
}

static int fetch_ahead; /* chunks; for every client opened from now on */

static inline hybridps *open_with(unsigned pages, const char *policy, const char *mode)
{
    char spec[32];
    hybridps *h = NULL;
    snprintf(spec, sizeof(spec), "emu:%llu", (unsigned long long)(pages * page()));
    hybridps_options o = {HYBRIDPS_OPTIONS_INIT, .device = spec,        .policy = policy,
                          .mode = mode,          .chunk_bytes = page(), .prefetch = fetch_ahead};
    OK(hybridps_open(&o, &h));
    return h;
}

static inline void build(struct model *m, unsigned pages, const char *policy, const char *mode)
{
    char name[32];
    *m = (struct model){.h = open_with(pages, policy, mode), .page = page()};
    for (unsigned i = 0; i < LAYERS; i++) {
        snprintf(name, sizeof(name), "layer%u.weight", i);
        OK(hybridps_add(m->h, name, HYBRIDPS_PARAM, m->page, &m->param[i]));
        OK(hybridps_add(m->h, name, HYBRIDPS_GRAD, m->page, &m->grad[i]));
        OK(hybridps_add(m->h, name, HYBRIDPS_P32, m->page, &m->p32[i]));
    }
    OK(hybridps_layout(m->h));
    for (unsigned i = 0; i < LAYERS; i++) {
        uint64_t *p = use(m->h, m->param[i], HYBRIDPS_HOST, 1);
        p[0] = p[m->page / 8 - 1] = m->value[i] = 1000 + i;
        done(m->h, m->param[i], HYBRIDPS_HOLD);
        uint64_t *q = use(m->h, m->p32[i], HYBRIDPS_HOST, 1);
        q[0] = m->value[i];
        done(m->h, m->p32[i], HYBRIDPS_HOLD);
    }
}

static inline void check_param(const struct model *m, const uint64_t *p, unsigned i)
{
    assert_int_equal(p[0], m->value[i]);
    assert_int_equal(p[m->page / 8 - 1], m->value[i]);
}

static inline void forward(struct model *m, unsigned i, unsigned other)
{
    char op[16];
    snprintf(op, sizeof(op), "l%u", i);
    OK(hybridps_moment(m->h, "FWD", op, other * m->page));
    check_param(m, use(m->h, m->param[i], HYBRIDPS_DEVICE, 0), i);
    done(m->h, m->param[i], HYBRIDPS_AFTER_FWD);
}

static inline void backward(struct model *m, unsigned i, unsigned other)
{
    char op[16];
    hybridps_use u[] = {{.tensor = m->param[i], .where = HYBRIDPS_DEVICE},
                        {.tensor = m->grad[i], .where = HYBRIDPS_DEVICE, .write = 1}};
    snprintf(op, sizeof(op), "l%u", i);
    OK(hybridps_moment(m->h, "BWD", op, other * m->page));
    OK(hybridps_access(m->h, u, 2));
    check_param(m, u[0].address, i);
    ((uint64_t *)u[1].address)[1] = m->value[i] * 3;
    done(m->h, m->param[i], HYBRIDPS_AFTER_BWD);
    done(m->h, m->grad[i], HYBRIDPS_AFTER_BWD);
}

/* The optimizer: param and p32 get a new value from the gradient, whose content then ends. */
static inline void step(struct model *m, unsigned i, int where)
{
    hybridps_use u[] = {{.tensor = m->param[i], .where = where, .write = 1},
                        {.tensor = m->grad[i], .where = where},
                        {.tensor = m->p32[i], .where = where, .write = 1}};
    OK(hybridps_moment(m->h, "ADAM", "", 0));
    OK(hybridps_access(m->h, u, 3));
    check_param(m, u[0].address, i);
    assert_int_equal(((uint64_t *)u[1].address)[1], m->value[i] * 3);
    assert_int_equal(((uint64_t *)u[2].address)[0], m->value[i]);
    m->value[i] = m->value[i] * 3 + 1;
    uint64_t *p = u[0].address;
    p[0] = p[m->page / 8 - 1] = ((uint64_t *)u[2].address)[0] = m->value[i];
    done(m->h, m->param[i], HYBRIDPS_HOLD);
    done(m->h, m->p32[i], HYBRIDPS_HOLD);
    done(m->h, m->grad[i], HYBRIDPS_FREE);
}

/* Activations grow in the forward pass and shrink in the backward pass. */
static inline void train(struct model *m, int adam_on)
{
    OK(hybridps_iteration(m->h, "train"));
    for (unsigned i = 0; i < LAYERS; i++)
        forward(m, i, i / 2);
    for (unsigned i = LAYERS; i-- > 0;)
        backward(m, i, i / 2);
    for (unsigned i = 0; i < LAYERS; i++)
        step(m, i, adam_on);
}

static inline hybridps_traffic last_of(hybridps *h)
{
    hybridps_stats_t s = {HYBRIDPS_STATS_INIT};
    OK(hybridps_iteration(h, NULL));
    OK(hybridps_stats(h, &s));
    assert_int_equal(s.peak_over_avail, 0);
    return s.last;
}

#endif
