/* Memory with a descriptor: where it is mapped, and huge pages. */
#include "support/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/shm.h"

#define MIB  ((uint64_t)1 << 20)
#define SIZE (8 * MIB + 4096 * 3)

static uint64_t huge_bytes(void)
{
    unsigned long long n = 0;
    FILE *f = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "r");
    if (f != NULL) {
        if (fscanf(f, "%llu", &n) != 1)
            n = 0;
        fclose(f);
    }
    return n;
}

static int make(uint64_t size)
{
    int fd = memfd_create("test", MFD_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(ftruncate(fd, (off_t)size), 0);
    return fd;
}

static void *map(int fd, uint64_t size, bool writable)
{
    void *p = NULL;
    assert_int_equal(hl_shm_map(fd, size, writable, &p), HL_OK);
    return p;
}

TEST(aligned_to_huge_pages)
{
    if (huge_bytes() == 0)
        TEST_SKIP("this kernel has no huge pages");
    int fd = make(SIZE);
    for (int i = 0; i < 3; i++) {
        uint8_t *p = map(fd, SIZE, true);
        assert_int_equal((uintptr_t)p % huge_bytes(), 0);
        memset(p, i, SIZE); /* to its very end */
    }
    close(fd);
}

/* What is written stays, what is not is zero, and another mapping sees the same. */
TEST(collapse_keeps_content)
{
    int fd = make(SIZE);
    uint8_t *p = map(fd, SIZE, true);
    for (uint64_t at = 0; at < SIZE; at += 3 * MIB / 2)
        p[at] = (uint8_t)(at / MIB + 1);
    hl_shm_collapse_on(&(struct hl_shm_range){p, SIZE, -1}, 1);
    const uint8_t *q = map(fd, SIZE, false);
    for (uint64_t at = 0; at < SIZE; at++)
        assert_int_equal(q[at], at % (3 * MIB / 2) == 0 ? (uint8_t)(at / MIB + 1) : 0);
    hl_shm_unmap(p, SIZE);
    hl_shm_unmap((void *)q, SIZE);
    close(fd);
}

TEST(collapse_makes_huge_pages)
{
    int fd = make(SIZE);
    uint8_t *p = map(fd, SIZE, true);
    p[0] = 1;
    if (huge_bytes() == 0 || madvise(p, huge_bytes(), 25 /* MADV_COLLAPSE */) != 0) {
        TEST_SKIP("this kernel makes no huge pages on demand");
    }
    hl_shm_collapse_on(&(struct hl_shm_range){p, SIZE, -1}, 1);
    hl_shm_prefault(p, SIZE, true);
    assert_true(hl_shm_huge_bytes(p, SIZE) >= 4 * MIB);
    hl_shm_unmap(p, SIZE);
    close(fd);
}

/* A file system without space: no signal, and reserving says what is missing. */
TEST(collapse_beyond_the_room)
{
    char dir[] = "/tmp/helios-shm-XXXXXX", path[64];
    assert_non_null(mkdtemp(dir));
    if (mount("helios-test", dir, "tmpfs", 0, "size=4m") != 0) {
        rmdir(dir);
        TEST_SKIP("mounting needs root");
    }
    snprintf(path, sizeof(path), "%s/f", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_int_equal(ftruncate(fd, (off_t)(16 * MIB)), 0);
    uint8_t *p = map(fd, 16 * MIB, true);
    hl_shm_collapse_on(&(struct hl_shm_range){p, 16 * MIB, -1}, 1);
    assert_int_equal(hl_shm_reserve(fd, path, 16 * MIB), HL_ENOSPC);
    hl_shm_unmap(p, 16 * MIB);
    close(fd);
    assert_int_equal(umount(dir), 0);
    assert_int_equal(rmdir(dir), 0);
}

TEST(a_private_mapping_is_written_and_the_file_is_not)
{
    int fd = make(SIZE), reader;
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), offset = 2 * MIB + page, len;
    uint8_t *file = map(fd, SIZE, true);
    for (uint64_t i = 0; i < SIZE; i++)
        file[i] = (uint8_t)(i >> 12);
    assert_int_equal(hl_shm_reopen(fd, &reader), HL_OK);
    static const uint64_t sizes[] = {5, 4096, 5 * MIB};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        void *p;
        assert_int_equal(hl_shm_map_private(reader, offset, sizes[i], &p, &len), HL_OK);
        assert_int_equal(len, (sizes[i] + page - 1) / page * page);
        assert_memory_equal(p, file + offset, sizes[i]);
        memset(p, 0xee, sizes[i]);
        assert_int_equal(file[offset], (uint8_t)(offset >> 12));
        hl_shm_unmap(p, len);
    }
    void *p;
    assert_int_not_equal(hl_shm_map_private(-1, 0, 5, &p, &len), HL_OK);
    close(reader);
    hl_shm_unmap(file, SIZE);
    close(fd);
}
