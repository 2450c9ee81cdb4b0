/* What a process or a thread is doing, as the kernel tells. */
#ifndef TESTS_SUPPORT_PROCESS_STATE_H
#define TESTS_SUPPORT_PROCESS_STATE_H

#include <stdio.h>
#include <string.h>

/* R, S, D, T (stopped), Z ...; 0 = there is none. path: /proc/PID/stat, /proc/PID/task/TID/stat */
static inline char process_state(const char *path)
{
    char text[512] = "";
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return '\0';
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *name_end = strrchr(text, ')'); /* the name may hold anything */
    return name_end != NULL && name_end[1] == ' ' ? name_end[2] : '\0';
}

#endif
