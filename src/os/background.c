#include "os/background.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

#define ROOM_PCT 90                          /* of one processor; what is less is crowded */
#define PAUSE_NS (5 * HL_BACKGROUND_LOOK_NS) /* without a piece: what was seen before is old */
#define PIECE_NS HL_BACKGROUND_REST_NS       /* what takes longer waited for something else */

static int background_nice = -1;
static _Thread_local bool in_background;
static _Thread_local uint64_t piece_begun_ns;
static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER; /* guards state */
static struct hl_background_state state;

void hl_background_nice(int nice)
{
    background_nice = nice;
}

/* Of a thread, not of its process: Linux takes a thread's id where POSIX says process. */
void hl_background_enter(void)
{
    static const struct sched_param none = {0};
    int nice = background_nice >= 0 ? background_nice : (int)strtol(HL_BACKGROUND_NICE, NULL, 10);
    id_t self = (id_t)syscall(SYS_gettid);
    if (nice == 0)
        return;
    in_background = background_nice > 0;
    if (getpriority(PRIO_PROCESS, self) >= nice)
        return;
    if (sched_setscheduler(0, SCHED_BATCH, &none) != 0 ||
        setpriority(PRIO_PROCESS, self, nice) != 0)
        hl_warn("a thread of the background runs like any other error=\"%s\"", strerror(errno));
}

/* ---- rests ----------------------------------------------------------------------------------- */

/* Its own threads give way to each other by their nice values. */
static bool is_crowded(const struct hl_background_count *from, const struct hl_background_count *to)
{
    uint64_t room = to->idle_ns - from->idle_ns + to->own_ns - from->own_ns;
    return room * 100 < (to->now_ns - from->now_ns) * ROOM_PCT;
}

bool hl_background_looks(const struct hl_background_state *b, uint64_t now_ns)
{
    if (now_ns < b->until_ns)
        return false;
    return b->until_ns != 0 || b->from.now_ns == 0 ||
           now_ns - b->from.now_ns >= HL_BACKGROUND_LOOK_NS;
}

bool hl_background_step(struct hl_background_state *b, const struct hl_background_count *c)
{
    if (b->last_ns != 0 && c->now_ns - b->last_ns > PAUSE_NS)
        *b = (struct hl_background_state){0};
    bool looks = hl_background_looks(b, c->now_ns);
    b->last_ns = c->now_ns;
    if (!looks)
        return b->until_ns != 0;
    bool looked = b->until_ns == 0 && b->from.now_ns != 0;
    b->until_ns = looked && is_crowded(&b->from, c) ? c->now_ns + HL_BACKGROUND_STAY_NS : 0;
    b->from = *c;
    return b->until_ns != 0;
}

uint64_t hl_background_rest_ns(uint64_t worked_ns)
{
    uint64_t rest = (worked_ns < PIECE_NS ? worked_ns : PIECE_NS) * HL_BACKGROUND_RESTS;
    return rest < HL_BACKGROUND_REST_NS ? rest : HL_BACKGROUND_REST_NS;
}

/* "up idle" in seconds. */
static bool read_idle(uint64_t *out)
{
    char text[128];
    double up, idle;
    int fd = open("/proc/uptime", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    text[n > 0 ? n : 0] = '\0';
    if (sscanf(text, "%lf %lf", &up, &idle) != 2)
        return false;
    *out = (uint64_t)(idle * (double)HL_NS_PER_S);
    return true;
}

static uint64_t own_ns(void)
{
    struct timespec t = {0};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * HL_NS_PER_S + (uint64_t)t.tv_nsec;
}

static bool is_time_to_rest(uint64_t now_ns)
{
    struct hl_background_count c = {.now_ns = now_ns, .own_ns = own_ns()};
    pthread_mutex_lock(&state_lock);
    bool known = !hl_background_looks(&state, now_ns) || read_idle(&c.idle_ns);
    bool rests = known && hl_background_step(&state, &c);
    pthread_mutex_unlock(&state_lock);
    return rests;
}

void hl_background_rest(void)
{
    if (!in_background)
        return;
    uint64_t now = hl_now_ns();
    if (is_time_to_rest(now)) {
        uint64_t ns = hl_background_rest_ns(now - piece_begun_ns);
        nanosleep(&(struct timespec){.tv_nsec = (long)ns}, NULL);
    }
    piece_begun_ns = hl_now_ns();
}
