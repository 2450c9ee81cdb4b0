/* Memory whose faults are served: reads, writes, many threads, and foreign faults. */
#include "support/test.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "os/pagefault.h"

#define PAGES 64

/* A page is filled through a second mapping before the first one shows it: a reader that comes
 * meanwhile must fault, too, and must not find it half filled. */
struct memory {
    uint8_t *at, *fill;
    size_t page;
    unsigned reads, writes;
    bool shown[PAGES];
};

static bool serve(void *arg, const struct hl_pagefault_access *access)
{
    struct memory *m = arg;
    size_t i = (size_t)((uint8_t *)access->address - m->at) / m->page;
    if ((uint8_t *)access->address < m->at || i >= PAGES)
        return false;
    bool write = access->write_known ? access->write : m->shown[i];
    if (write)
        m->writes++;
    else
        m->reads++;
    uint8_t *page = m->at + i * m->page;
    if (!m->shown[i])
        memset(m->fill + i * m->page, (int)i + 1, m->page);
    m->shown[i] = true;
    mprotect(page, m->page, write ? PROT_READ | PROT_WRITE : PROT_READ);
    return true;
}

static struct memory memory_make(void)
{
    struct memory m = {.page = (size_t)sysconf(_SC_PAGESIZE)};
    size_t len = PAGES * m.page;
    int fd = memfd_create("faults", MFD_CLOEXEC);
    assert_true(fd >= 0 && ftruncate(fd, (off_t)len) == 0);
    m.at = mmap(NULL, len, PROT_NONE, MAP_SHARED, fd, 0);
    m.fill = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(m.at != MAP_FAILED && m.fill != MAP_FAILED);
    close(fd);
    return m;
}

static void memory_drop(struct memory *m)
{
    munmap(m->at, PAGES * m->page);
    munmap(m->fill, PAGES * m->page);
}

static void *reader(void *arg)
{
    struct memory *m = arg;
    for (size_t i = 0; i < PAGES; i++)
        if (*(volatile uint8_t *)(m->at + i * m->page + m->page - 1) != i + 1)
            return m;
    return NULL;
}

enum how { NOBODYS, SUSPENDED, REMOVED, CHILD, SENT };

/* How a process that does this ends. */
static int ends_with(enum how how, void (*handler)(int))
{
    pid_t pid = fork();
    if (pid == 0) {
        struct memory m = memory_make();
        struct hl_pagefault *f = NULL;
        signal(SIGSEGV, handler);
        if (hl_pagefault_add(serve, NULL, &m, &f) != HL_OK)
            _exit(50);
        if (how == SUSPENDED)
            hl_pagefault_suspend();
        if (how == REMOVED)
            hl_pagefault_remove(f);
        if (how == CHILD) {
            pid_t child = fork();
            if (child != 0) {
                int status;
                waitpid(child, &status, 0);
                if (WIFSIGNALED(status))
                    raise(WTERMSIG(status));
                _exit(WEXITSTATUS(status));
            }
        }
        if (how == SENT)
            kill(getpid(), SIGSEGV);
        else
            *(volatile uint8_t *)(how == NOBODYS ? (void *)64 : m.at) = 1;
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static void exit_42(int number)
{
    (void)number;
    _exit(42);
}

TEST(what_is_not_served_goes_to_who_was_there_before)
{
    for (int how = NOBODYS; how <= SENT; how++) {
        assert_int_equal(ends_with((enum how)how, exit_42), 42);
        assert_int_equal(ends_with((enum how)how, SIG_DFL), -SIGSEGV);
    }
}

TEST(a_read_finds_what_the_server_puts_there_and_a_write_stays)
{
    struct memory m = memory_make();
    struct hl_pagefault *f;
    assert_int_equal(hl_pagefault_add(serve, NULL, &m, &f), HL_OK);
    for (size_t i = 0; i < PAGES; i++)
        assert_int_equal(*(volatile uint8_t *)(m.at + i * m.page + 7), i + 1);
    assert_int_equal(m.reads, PAGES);
    assert_int_equal(m.writes, 0);
    *(volatile uint8_t *)(m.at + 3 * m.page) = 99;
    assert_int_equal(m.writes, 1);
    assert_int_equal(m.at[3 * m.page], 99);
    assert_int_equal(m.at[3 * m.page + 1], 4);
    hl_pagefault_remove(f);
    memory_drop(&m);
}

TEST(many_threads_may_fault_at_once)
{
    for (int round = 0; round < 20; round++) {
        struct memory m = memory_make();
        struct hl_pagefault *f;
        pthread_t threads[8];
        assert_int_equal(hl_pagefault_add(serve, NULL, &m, &f), HL_OK);
        for (size_t i = 0; i < 8; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, reader, &m), 0);
        for (size_t i = 0; i < 8; i++) {
            void *wrong;
            assert_int_equal(pthread_join(threads[i], &wrong), 0);
            assert_null(wrong);
        }
        for (size_t i = 0; i < PAGES; i++)
            assert_int_equal(m.at[i * m.page], i + 1);
        hl_pagefault_remove(f);
        memory_drop(&m);
    }
}
