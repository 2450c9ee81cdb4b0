/* bench archive: moves shards into the archive and back. The limit is a plain file of the same size
 * in the same directory, written with fsync and read back cold, taking turns with it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/crc32.h"
#include "cli/bench/bench.h"
#include "cli/bench/commands.h"
#include "core/safetensors/safetensors.h"
#include "mem/archive/archive.h"
#include "os/file.h"

#define MIB   ((uint64_t)1 << 20)
#define PIECE ((size_t)1 << 20)

struct archive_bench_args {
    char *dir, *endpoint, *bucket;
    int64_t rounds, big_rounds;
};

#define AT(field) HL_OPTION_FIELD(struct archive_bench_args, field)

static const struct hl_option archive_bench_rows[] = {
    {"dir", "--dir", "/var/tmp", "Directory on the disk to measure.", HL_OPT_PATH, 1, 0, NULL,
     AT(dir)},
    {"rounds", "--rounds", "30", "How many shards of 1 MiB.", HL_OPT_INT, 1, 10000, NULL,
     AT(rounds)},
    {"big_rounds", "--big-rounds", "5", "How many shards of 256 MiB.", HL_OPT_INT, 1, 1000, NULL,
     AT(big_rounds)},
    {"endpoint", "--s3-endpoint", "", "S3 store to measure too, http://HOST:PORT.", HL_OPT_STRING,
     0, 0, NULL, AT(endpoint)},
    {"bucket", "--s3-bucket", "helios", "Its bucket; credentials come from AWS_ACCESS_KEY_ID.",
     HL_OPT_STRING, 0, 0, NULL, AT(bucket)},
};

struct archive_bench {
    char dir[512];
    struct hl_archive *archive; /* in the directory */
    struct hl_archive *s3;      /* NULL = none */
    unsigned char *bytes, *back;
    uint64_t size;
    uint32_t crc;
    struct bench_samples store, load, file_write, file_read, s3_store, s3_load;
    struct bench_report report;
};

/* Makes a shard of one tensor, of about `size` bytes including its header. */
static hl_status make_shard(struct archive_bench *b, uint64_t size)
{
    struct hl_tensor t = {.name = "weight", .dtype = HL_DTYPE_U8, .rank = 1, .shape = {size - 512}};
    struct hl_safetensors_layout layout = {.tensors = &t, .count = 1, .crc_fields = 1};
    struct hl_safetensors_image image;
    HL_TRY(hl_safetensors_write(&layout, &image));
    uint64_t header = image.size, data = size - 512, x = 88172645463325252;
    free(b->bytes);
    free(b->back);
    b->bytes = malloc(header + data);
    b->back = malloc(header + data);
    if (b->bytes == NULL || b->back == NULL) {
        hl_safetensors_image_fini(&image);
        return hl_fail(HL_ENOMEM, "out of memory allocating a shard of %llu bytes",
                       (unsigned long long)size);
    }
    for (uint64_t i = 0; i + 8 <= data; i += 8) { /* data that a disk can't compress */
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(b->bytes + header + i, &x, 8);
    }
    memset(b->back, 0, header + data);
    memcpy(b->bytes, image.bytes, header);
    hl_safetensors_patch_crc(&image, b->bytes, 0, hl_crc32(0, b->bytes + header, data));
    hl_safetensors_image_fini(&image);
    b->size = header + data;
    b->crc = hl_crc32(0, b->bytes, b->size);
    return HL_OK;
}

/* Drops the cache, where the system allows it, so that the next read comes from the disk. */
static void drop_cache(const char *path)
{
    HL_AUTO(hl_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)fdatasync(fd);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    }
}

static hl_status fail_file(const char *what, const char *path)
{
    return hl_fail(hl_status_of_errno(errno), "%s %s: %s", what, path, strerror(errno));
}

/* Writes as an archive has to: bytes and name are on the disk when it returns. */
static hl_status write_file(const struct archive_bench *b, const char *path)
{
    HL_AUTO(hl_closep) int dir = open(b->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    HL_AUTO(hl_closep) int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 || dir < 0)
        return fail_file("make", path);
    for (uint64_t at = 0; at < b->size;) {
        uint64_t left = b->size - at;
        ssize_t n = write(fd, b->bytes + at, left < PIECE ? left : PIECE);
        if (n <= 0)
            return fail_file("write", path);
        at += (uint64_t)n;
    }
    return fsync(fd) == 0 && fsync(dir) == 0 ? HL_OK : fail_file("sync", path);
}

static hl_status read_file(const struct archive_bench *b, const char *path)
{
    HL_AUTO(hl_closep) int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return fail_file("open", path);
    for (uint64_t at = 0; at < b->size;) {
        uint64_t left = b->size - at;
        ssize_t n = read(fd, b->back + at, left < PIECE ? left : PIECE);
        if (n <= 0)
            return fail_file("read", path);
        at += (uint64_t)n;
    }
    return HL_OK;
}

static hl_status file_round(struct archive_bench *b)
{
    char path[600];
    snprintf(path, sizeof(path), "%s/plain", b->dir);
    uint64_t start = hl_now_ns();
    HL_TRY(write_file(b, path));
    bench_add(&b->file_write, hl_now_ns() - start);
    drop_cache(path);
    start = hl_now_ns();
    hl_status st = read_file(b, path);
    bench_add(&b->file_read, hl_now_ns() - start);
    unlink(path);
    return st;
}

static hl_status archive_round(struct archive_bench *b, struct hl_archive *a,
                               struct bench_samples *store, struct bench_samples *load)
{
    char path[700];
    struct hl_id id = hl_id_random();
    struct hl_id_text text = hl_id_format(id);
    uint64_t start = hl_now_ns();
    HL_TRY(hl_archive_put(a, id, b->bytes, b->size, b->crc));
    bench_add(store, hl_now_ns() - start);
    snprintf(path, sizeof(path), "%s/archive/%.2s/%s.safetensors", b->dir, text.s, text.s);
    drop_cache(path);
    start = hl_now_ns();
    HL_TRY(hl_archive_get(a, id, b->back, b->size, b->crc));
    bench_add(load, hl_now_ns() - start);
    return hl_archive_remove(a, id);
}

static hl_status init_samples(struct archive_bench *b, size_t rounds)
{
    struct bench_samples *all[] = {&b->store,     &b->load,     &b->file_write,
                                   &b->file_read, &b->s3_store, &b->s3_load};
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        HL_TRY(bench_samples_init(all[i], rounds));
    return HL_OK;
}

static hl_status measure_archive(struct archive_bench *b, uint64_t size, const char *name,
                                 size_t rounds)
{
    char text[96];
    HL_TRY(make_shard(b, size));
    HL_TRY(init_samples(b, rounds));
    HL_TRY(archive_round(b, b->archive, &b->store, &b->load)); /* warm-up: makes the directories */
    HL_TRY(init_samples(b, rounds));
    for (size_t i = 0; i < rounds; i++) { /* in turns, because the disk's speed varies */
        HL_TRY(file_round(b));
        HL_TRY(archive_round(b, b->archive, &b->store, &b->load));
        if (b->s3 != NULL)
            HL_TRY(archive_round(b, b->s3, &b->s3_store, &b->s3_load));
    }
    struct bench_report *r = &b->report;
    double write = bench_row(r, "file", "write", b->size, &b->file_write)->min_us;
    double store = bench_row(r, "archive-dir", "store", b->size, &b->store)->min_us;
    double read = bench_row(r, "file", "read", b->size, &b->file_read)->min_us;
    double load = bench_row(r, "archive-dir", "load", b->size, &b->load)->min_us;
    if (b->s3 != NULL) {
        (void)bench_row(r, "archive-s3", "store", b->size, &b->s3_store);
        (void)bench_row(r, "archive-s3", "load", b->size, &b->s3_load);
    }
    snprintf(text, sizeof(text), "store %s / write and fsync of a file (best)", name);
    bench_ratio(r, text, write / store, 0, 0);
    snprintf(text, sizeof(text), "load %s / cold read of a file (best)", name);
    bench_ratio(r, text, read / load, 0, 0);
    return HL_OK;
}

static hl_status open_s3(struct archive_bench *b, const struct archive_bench_args *args)
{
    char url[256];
    snprintf(url, sizeof(url), "s3://%s/helios-bench-%d", args->bucket, (int)getpid());
    return hl_archive_open(&(struct hl_archive_options){.url = url, .s3_endpoint = args->endpoint},
                           &b->s3);
}

static hl_status run_archive_bench(struct archive_bench *b, const struct archive_bench_args *args)
{
    char url[600];
    snprintf(b->dir, sizeof(b->dir), "%.480s/helios-bench-XXXXXX", args->dir);
    if (mkdtemp(b->dir) == NULL) {
        b->dir[0] = '\0';
        return hl_fail(hl_status_of_errno(errno), "make a directory in %s: %s", args->dir,
                       strerror(errno));
    }
    snprintf(url, sizeof(url), "dir:%s/archive", b->dir);
    HL_TRY(hl_archive_open(&(struct hl_archive_options){.url = url}, &b->archive));
    if (args->endpoint[0] != '\0')
        HL_TRY(open_s3(b, args));
    HL_TRY(measure_archive(b, MIB, "1 MiB", (size_t)args->rounds));
    return measure_archive(b, 256 * MIB, "256 MiB", (size_t)args->big_rounds);
}

static void clean_up(struct archive_bench *b)
{
    struct bench_samples *all[] = {&b->store,     &b->load,     &b->file_write,
                                   &b->file_read, &b->s3_store, &b->s3_load};
    hl_archive_close(b->archive);
    hl_archive_close(b->s3);
    if (b->dir[0] != '\0' && hl_dir_remove(b->dir) != HL_OK)
        fprintf(stderr, "helios: %s was not removed\n", b->dir);
    for (size_t i = 0; i < HL_ARRAY_LEN(all); i++)
        bench_samples_fini(all[i]);
    free(b->bytes);
    free(b->back);
}

hl_status cmd_bench_archive(struct cli *cli, int argc, char **argv)
{
    struct archive_bench_args args = {0};
    struct archive_bench *b = calloc(1, sizeof(*b));
    if (b == NULL)
        return hl_fail(HL_ENOMEM, "out of memory allocating the benchmark");
    hl_status st = cli_args(cli, archive_bench_rows, HL_ARRAY_LEN(archive_bench_rows), argc, argv,
                            &args, 0, 0);
    if (st == HL_OK) {
        st = run_archive_bench(b, &args);
        if (st == HL_OK)
            st = bench_print(cli, &b->report);
        clean_up(b);
        hl_args_fini(archive_bench_rows, HL_ARRAY_LEN(archive_bench_rows), &args);
    }
    free(b);
    return st;
}
