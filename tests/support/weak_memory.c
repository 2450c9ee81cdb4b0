#include "support/weak_memory.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>

#define STACK   (256 * 1024)
#define BUCKETS 4096
#define STEPS   20000000 /* of one order: more means no progress */

struct message {
    uint64_t value;
    uint32_t time;
    int released; /* `known`: what its writer knew */
    uint32_t known[WM_LOCATIONS];
};

struct location {
    const void *at; /* NULL: free */
    uint32_t size, oldest, latest,
        consistent; /* times; the last is that of the last seq_cst access */
    struct message kept[WM_KEPT];
};

struct thread {
    ucontext_t context;
    void *(*run)(void *);
    void *arg;
    const void *sleeps; /* a word to sleep on; a thread to join */
    int used, done;
    uint32_t known[WM_LOCATIONS];
    char stack[STACK];
};

static struct {
    uint64_t random, steps, seed;
    uint32_t often; /* threads switch one time in so many */
    uint32_t late;  /* and loads are late one time in so many */
    const char *weaken;
    uint32_t n, now; /* number of locations, and the running thread */
    struct location locations[WM_LOCATIONS];
    uint16_t bucket[BUCKETS]; /* 1 + a location */
    struct thread threads[WM_THREADS];
    int locked;
    uint32_t unlocked[WM_LOCATIONS]; /* knowledge of the last thread to unlock the mutex */
} wm;

static void end(const char *why)
{
    fprintf(stderr, "weak memory, seed %llu, step %llu: %s\n", (unsigned long long)wm.seed,
            (unsigned long long)wm.steps, why);
    fflush(stderr);
    _exit(1);
}

static uint32_t draw(uint32_t n)
{
    wm.random ^= wm.random << 13;
    wm.random ^= wm.random >> 7;
    wm.random ^= wm.random << 17;
    return (uint32_t)(wm.random >> 20) % n;
}

void wm_begin(uint64_t seed, const char *weaken)
{
    wm.seed = seed;
    wm.random = seed * 0x9e3779b97f4a7c15u | 1;
    wm.steps = 0;
    wm.weaken = weaken;
    wm.threads[0].used = 1;
    draw(2);
    wm.often = 2u << draw(5);
    wm.late = 2u + draw(3);
}

/* ---- threads ---- */

static int can_run(const struct thread *t)
{
    return t->used && !t->done && t->sleeps == NULL;
}

static void turn(int must)
{
    uint32_t can[WM_THREADS], n = 0, from = wm.now;
    for (uint32_t i = 0; i < WM_THREADS; i++)
        if (i != from && can_run(&wm.threads[i]))
            can[n++] = i;
    if (n == 0 && must)
        end("all threads sleep: a wake-up was lost");
    if (n == 0)
        return;
    wm.now = can[draw(n)];
    swapcontext(&wm.threads[from].context, &wm.threads[wm.now].context);
}

static void step(void)
{
    if (++wm.steps > STEPS)
        end("it does not come to an end");
    if (draw(wm.often) == 0)
        turn(0);
}

static void learn(uint32_t *known, const uint32_t *more)
{
    for (uint32_t i = 0; i < wm.n; i++)
        known[i] = known[i] > more[i] ? known[i] : more[i];
}

static void begin_thread(void)
{
    struct thread *t = &wm.threads[wm.now];
    t->run(t->arg);
    t->done = 1;
    for (uint32_t i = 0; i < WM_THREADS; i++)
        if (wm.threads[i].sleeps == t)
            wm.threads[i].sleeps = NULL;
    turn(1);
}

int wm_create(pthread_t *out, void *(*run)(void *), void *arg)
{
    uint32_t i = 0;
    while (i < WM_THREADS && wm.threads[i].used)
        i++;
    if (i == WM_THREADS)
        end("too many threads");
    struct thread *t = &wm.threads[i];
    t->run = run;
    t->arg = arg;
    t->used = 1;
    t->done = 0;
    t->sleeps = NULL;
    memcpy(t->known, wm.threads[wm.now].known, sizeof(t->known));
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = t->stack;
    t->context.uc_stack.ss_size = sizeof(t->stack);
    makecontext(&t->context, begin_thread, 0);
    *out = (pthread_t)i;
    return 0;
}

int wm_join(pthread_t which)
{
    struct thread *t = &wm.threads[which], *me = &wm.threads[wm.now];
    while (!t->done) {
        me->sleeps = t;
        turn(1);
    }
    learn(me->known, t->known);
    t->used = 0;
    return 0;
}

int wm_lock(void)
{
    step();
    while (wm.locked)
        turn(1);
    wm.locked = 1;
    learn(wm.threads[wm.now].known, wm.unlocked);
    return 0;
}

int wm_unlock(void)
{
    wm.locked = 0;
    memcpy(wm.unlocked, wm.threads[wm.now].known, sizeof(wm.unlocked));
    step();
    return 0;
}

/* Acts as the kernel does: it looks at the word itself. */
void wm_wait(const uint32_t *word, uint32_t while_it_is)
{
    step();
    if (*word != while_it_is)
        return;
    wm.threads[wm.now].sleeps = word;
    turn(1);
}

void wm_wake(const uint32_t *word, int n)
{
    step();
    for (uint32_t i = 0; i < WM_THREADS && n > 0; i++)
        if (wm.threads[i].used && wm.threads[i].sleeps == word) {
            wm.threads[i].sleeps = NULL;
            n--;
        }
}

int wm_yield(void)
{
    wm.steps++;
    turn(0);
    return 0;
}

uint64_t wm_clock(void)
{
    return 1 + wm.steps * 100;
}

/* ---- memory ---- */

static uint64_t value_of(const void *p, uint32_t size)
{
    uint32_t small;
    uint64_t large;
    if (size == sizeof(large))
        return memcpy(&large, p, sizeof(large)), large;
    if (size != sizeof(small))
        end("a location of neither 4 nor 8 bytes");
    return memcpy(&small, p, sizeof(small)), small;
}

static uint32_t bucket_of(const void *p)
{
    return (uint32_t)((uintptr_t)p >> 2) * 2654435761u >> 20;
}

static void index_all(void)
{
    memset(wm.bucket, 0, sizeof(wm.bucket));
    for (uint32_t i = 0; i < wm.n; i++) {
        uint32_t b = bucket_of(wm.locations[i].at);
        while (wm.locations[i].at != NULL && wm.bucket[b] != 0)
            b = (b + 1) % BUCKETS;
        if (wm.locations[i].at != NULL)
            wm.bucket[b] = (uint16_t)(i + 1);
    }
}

static struct message *latest(struct location *l)
{
    return &l->kept[l->latest % WM_KEPT];
}

static struct message *add(struct location *l, uint64_t value)
{
    l->latest++;
    if (l->latest - l->oldest >= WM_KEPT)
        l->oldest = l->latest - WM_KEPT + 1;
    struct message *m = latest(l);
    m->value = value;
    m->time = l->latest;
    m->released = 0;
    return m;
}

static struct location *make(const void *p, uint32_t size)
{
    uint32_t i = 0;
    while (i < wm.n && wm.locations[i].at != NULL)
        i++;
    if (i == WM_LOCATIONS)
        end("too many locations");
    wm.n = i == wm.n ? i + 1 : wm.n;
    struct location *l = &wm.locations[i]; /* its times go on: no thread knows the new ones */
    l->at = p;
    l->size = size;
    add(l, value_of(p, size));
    l->oldest = l->latest;
    index_all();
    return l;
}

/* A plain store is visible to all threads. */
static struct location *find(const void *p, uint32_t size)
{
    uint32_t b = bucket_of(p);
    while (wm.bucket[b] != 0 && wm.locations[wm.bucket[b] - 1].at != p)
        b = (b + 1) % BUCKETS;
    if (wm.bucket[b] == 0)
        return make(p, size);
    struct location *l = &wm.locations[wm.bucket[b] - 1];
    if (latest(l)->value != value_of(p, size)) {
        add(l, value_of(p, size));
        l->oldest = l->latest;
    }
    return l;
}

void wm_free(void *p)
{
    size_t room = p != NULL ? malloc_usable_size(p) : 0;
    int any = 0;
    for (uint32_t i = 0; i < wm.n; i++) {
        uintptr_t at = (uintptr_t)wm.locations[i].at;
        if (at == 0 || at < (uintptr_t)p || at >= (uintptr_t)p + room)
            continue;
        wm.locations[i].at = NULL;
        any = 1;
    }
    if (any)
        index_all();
    free(p);
}

static int order_at(int order, const char *where)
{
    if (order != __ATOMIC_SEQ_CST || wm.weaken == NULL)
        return order;
    int here = strcmp(wm.weaken, "*") == 0 || strcmp(wm.weaken, where) == 0;
    return here ? __ATOMIC_ACQ_REL : order;
}

static int acquires(int order)
{
    return order == __ATOMIC_ACQUIRE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST;
}

static int releases(int order)
{
    return order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST;
}

static uint64_t take(struct location *l, struct message *m, int order)
{
    uint32_t i = (uint32_t)(l - wm.locations), *known = wm.threads[wm.now].known;
    known[i] = known[i] > m->time ? known[i] : m->time;
    if (acquires(order) && m->released)
        learn(known, m->known);
    if (order == __ATOMIC_SEQ_CST && l->consistent < m->time)
        l->consistent = m->time;
    return m->value;
}

uint64_t wm_load(const void *p, uint32_t size, int order, const char *where)
{
    step();
    order = order_at(order, where);
    struct location *l = find(p, size);
    uint32_t least = wm.threads[wm.now].known[l - wm.locations], time = l->latest;
    least = least < l->oldest ? l->oldest : least;
    if (order == __ATOMIC_SEQ_CST && least < l->consistent)
        least = l->consistent;
    if (draw(wm.late) == 0)
        time = least + draw(l->latest - least + 1) / 2;
    return take(l, &l->kept[time % WM_KEPT], order);
}

/* `before`: the message that this one follows directly, whose readers' knowledge stays valid; or
 * NULL. */
static void put(struct location *l, const struct message *before, uint64_t value, int order)
{
    uint32_t i = (uint32_t)(l - wm.locations), *known = wm.threads[wm.now].known;
    struct message *m = add(l, value);
    known[i] = m->time;
    if (releases(order)) {
        memcpy(m->known, known, sizeof(m->known));
        m->released = 1;
    }
    if (before != NULL && before->released) {
        if (!m->released)
            memset(m->known, 0, sizeof(m->known));
        learn(m->known, before->known);
        m->released = 1;
    }
    if (order == __ATOMIC_SEQ_CST)
        l->consistent = m->time;
    void *at = (void *)(uintptr_t)l->at;
    if (l->size == sizeof(uint64_t))
        *(uint64_t *)at = value;
    else
        *(uint32_t *)at = (uint32_t)value;
    m->value = value_of(at, l->size);
}

void wm_store(void *p, uint32_t size, uint64_t value, int order, const char *where)
{
    step();
    put(find(p, size), NULL, value, order_at(order, where));
}

uint64_t wm_change(void *p, uint32_t size, enum wm_change how, uint64_t value, int order,
                   const char *where)
{
    step();
    order = order_at(order, where);
    struct location *l = find(p, size);
    struct message *m = latest(l);
    uint64_t was = take(l, m, order);
    put(l, m, how == WM_ADD ? was + value : value, order);
    return was;
}

int wm_swap(void *p, uint32_t size, void *expected, uint64_t value, int order, int failed,
            const char *where)
{
    step();
    struct location *l = find(p, size);
    struct message *m = latest(l);
    int same = m->value == value_of(expected, size);
    order = order_at(same ? order : failed, where);
    uint64_t was = take(l, m, order);
    if (same)
        put(l, m, value, order);
    else
        memcpy(expected, &was, size); /* little end first */
    return same;
}
