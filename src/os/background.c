#include "os/background.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"

static int background_nice = -1;

void hl_background_nice(int nice)
{
    background_nice = nice;
}

/* Applies to the calling thread only: Linux takes a thread's id where POSIX takes a process's. */
void hl_background_enter(void)
{
    static const struct sched_param none = {0};
    int nice = background_nice >= 0 ? background_nice : (int)strtol(HL_BACKGROUND_NICE, NULL, 10);
    id_t self = (id_t)syscall(SYS_gettid);
    if (nice == 0 || getpriority(PRIO_PROCESS, self) >= nice)
        return;
    if (sched_setscheduler(0, SCHED_BATCH, &none) != 0 ||
        setpriority(PRIO_PROCESS, self, nice) != 0)
        hl_warn("a background thread runs at normal priority error=\"%s\"", strerror(errno));
}
