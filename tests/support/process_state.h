/* What a process or a thread is doing, as the kernel reports it. */
#ifndef TESTS_SUPPORT_PROCESS_STATE_H
#define TESTS_SUPPORT_PROCESS_STATE_H

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

/* R, S, D, T (stopped), Z ...; 0 = no such process. path: /proc/PID/stat,
 * /proc/PID/task/TID/stat */
static inline char process_state(const char *path)
{
    char text[512] = "";
    FILE *f = fopen(path, "re");
    if (f == NULL)
        return '\0';
    size_t n = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    text[n] = '\0';
    const char *name_end = strrchr(text, ')'); /* the name can contain any character */
    return name_end != NULL && name_end[1] == ' ' ? name_end[2] : '\0';
}

/* Number of threads of a process that are in this system call; -1 = in any. Only for processes that
 * the test may trace: its children. */
static inline int threads_in_call(pid_t pid, long number)
{
    char path[320], text[64];
    int count = 0;
    snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
    DIR *dir = opendir(path);
    for (struct dirent *e = NULL; dir != NULL && (e = readdir(dir)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "/proc/%d/task/%.200s/syscall", (int)pid, e->d_name);
        FILE *f = number < 0 ? NULL : fopen(path, "re");
        count += number < 0 || (f != NULL && fgets(text, sizeof(text), f) != NULL &&
                                strtol(text, NULL, 10) == number && strchr(text, ' ') != NULL);
        if (f != NULL)
            fclose(f);
    }
    if (dir != NULL)
        closedir(dir);
    return count;
}

#endif
