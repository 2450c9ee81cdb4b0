/* unit/mem/tier/tier_backends.h - the media under the conformance suite.
 *
 * Owns:    nothing. Included by test_tier_conformance.c only.
 * Threads: the test's.
 * Errors:  a status, or cmocka assertions.
 * Units:   bytes.
 * Limits:  none.
 */
#ifndef HL_TESTS_TIER_BACKENDS_H
#define HL_TESTS_TIER_BACKENDS_H

#include <unistd.h>

#include "mem/device/device.h"
#include "mem/pool/pool.h"
#include "support/cuda_library.h"
#include "unit/mem/tier/tier_rig.h"

/* ---- pool ---- */

static hl_status pool_open_as(struct tier_rig *r, enum hl_api_tier tier)
{
    if (r->pool == NULL) {
        snprintf(r->path, sizeof(r->path), "/dev/shm/helios-test-tier-%d", (int)getpid());
        HL_TRY(hl_pool_open(
            &(struct hl_pool_options){
                .path = r->path, .capacity = TIER_QUOTA, .quarantine_ms = 1, .beat_ms = 2},
            NULL, &r->pool));
    }
    return hl_tier_over_pool(r->pool, tier, "pool", &r->limits, &r->tier);
}

static hl_status pool_l2_open(struct tier_rig *r)
{
    return pool_open_as(r, HL_API_TIER_L2);
}

static void pool_rig_close(struct tier_rig *r)
{
    hl_pool_remove(r->pool);
    r->pool = NULL;
}

static void pool_damage(struct tier_rig *r, const struct hl_tier_ref *ref, uint64_t offset)
{
    size_t len;
    ((uint8_t *)hl_pool_base(r->pool, &len))[ref->offset + offset] ^= 0x10;
}

static hl_status pool_l3_open(struct tier_rig *r)
{
    const struct hl_pool_region_options regions[] = {{0, TIER_QUOTA / 2}, {0, TIER_QUOTA / 2}};
    if (r->pool == NULL) {
        snprintf(r->path, sizeof(r->path), "/dev/shm/helios-test-tier-%d", (int)getpid());
        HL_TRY(hl_pool_open(&(struct hl_pool_options){.path = r->path,
                                                      .quarantine_ms = 1,
                                                      .beat_ms = 2,
                                                      .prefault = 1,
                                                      .regions = regions,
                                                      .region_count = 2},
                            NULL, &r->pool));
    }
    return hl_tier_over_pool(r->pool, HL_API_TIER_L3, "pool", &r->limits, &r->tier);
}

/* ---- devices ---- */

static hl_status emu_open(struct tier_rig *r)
{
    if (r->device == NULL)
        HL_TRY(hl_device_open("emu:8MiB", NULL, &r->device));
    return hl_tier_over_device(r->device, "emu:0", &r->limits, &r->tier);
}

/* The driver's own rules, and memory that the CPU can't reach. */
static hl_status cuda_open(struct tier_rig *r)
{
    char library[512];
    cuda_library(library, sizeof(library));
    setenv("CUDA_STUB_DELAY_US", "20", 1);
    if (r->device == NULL)
        HL_TRY(hl_device_open("cuda:0:64MiB", &(struct hl_device_options){.cuda_driver = library},
                              &r->device));
    return hl_tier_over_device(r->device, "cuda:0", &r->limits, &r->tier);
}

static void device_rig_close(struct tier_rig *r)
{
    struct hl_device_info info;
    hl_device_info(r->device, &info);
    assert_int_equal(info.blocks, 0); /* the tier has given back what it took */
    hl_device_close(r->device);
    r->device = NULL;
}

static void device_damage(struct tier_rig *r, const struct hl_tier_ref *ref, uint64_t offset)
{
    struct hl_device_block block;
    uint8_t byte;
    assert_int_equal(hl_tier_device_block(r->tier, ref, &block), HL_OK);
    assert_int_equal(hl_device_copy_out(r->device, &block, offset, &byte, 1), HL_OK);
    byte ^= 0x10;
    assert_int_equal(hl_device_copy_in(r->device, &block, offset, &byte, 1), HL_OK);
}

/* ---- archive ---- */

static hl_status archive_rig_open(struct tier_rig *r)
{
    char url[80];
    if (r->archive == NULL) {
        snprintf(r->path, sizeof(r->path), "/tmp/hl-tier-XXXXXX");
        if (mkdtemp(r->path) == NULL)
            return HL_EIO;
        snprintf(url, sizeof(url), "dir:%s", r->path);
        HL_TRY(hl_archive_open(&(struct hl_archive_options){.url = url, .quota_bytes = TIER_QUOTA},
                               &r->archive));
    }
    return hl_tier_over_archive(r->archive, "dir", &r->limits, &r->tier);
}

static void archive_rig_close(struct tier_rig *r)
{
    hl_archive_close(r->archive);
    r->archive = NULL;
    assert_int_equal(hl_dir_remove(r->path), HL_OK);
}

static void archive_damage(struct tier_rig *r, const struct hl_tier_ref *ref, uint64_t offset)
{
    char file[160], byte;
    struct hl_id_text id = hl_id_format(ref->id);
    snprintf(file, sizeof(file), "%s/%.2s/%s.safetensors", r->path, id.s, id.s);
    FILE *f = fopen(file, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, (long)offset, SEEK_SET), 0);
    assert_int_equal(fread(&byte, 1, 1, f), 1);
    byte ^= 0x10;
    assert_int_equal(fseek(f, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite(&byte, 1, 1, f), 1);
    assert_int_equal(fclose(f), 0);
}

/* HELIOS_TEST_S3 is s3://BUCKET/PREFIX, HELIOS_TEST_S3_ENDPOINT http://HOST:PORT; credentials are
 * those of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY. */
static const char *s3_missing(void)
{
    return getenv("HELIOS_TEST_S3") != NULL
               ? NULL
               : "no S3 server is given: HELIOS_TEST_S3=s3://BUCKET/PREFIX names one";
}

static hl_status s3_open(struct tier_rig *r)
{
    char url[512];
    if (r->archive == NULL) {
        snprintf(url, sizeof(url), "%s/%s", getenv("HELIOS_TEST_S3"),
                 hl_id_format(hl_id_random()).s);
        HL_TRY(hl_archive_open(
            &(struct hl_archive_options){.url = url,
                                         .quota_bytes = TIER_QUOTA,
                                         .s3_endpoint = getenv("HELIOS_TEST_S3_ENDPOINT")},
            &r->archive));
    }
    return hl_tier_over_archive(r->archive, "s3", &r->limits, &r->tier);
}

static hl_status s3_remove(void *arg, struct hl_id id, uint64_t size)
{
    struct tier_rig *r = arg;
    (void)size;
    return hl_archive_remove(r->archive, id);
}

static void s3_close(struct tier_rig *r)
{
    assert_int_equal(hl_archive_list(r->archive, s3_remove, r), HL_OK);
    hl_archive_close(r->archive);
    r->archive = NULL;
}

/* ---- all of them ---- */

/* 85 % and 70 % of 8 MiB are 7130316.8 and 5872025.6; of 64 MiB, 57042534.4 and 46976204.8. */
static const struct tier_backend backends[] = {
    {.name = "pool as L2",
     .quota = TIER_QUOTA,
     .high = 7130316,
     .low = 5872025,
     .quarantines = true,
     .persists = true,
     .open = pool_l2_open,
     .close = pool_rig_close,
     .damage = pool_damage},
    {.name = "pool of two regions as L3",
     .quota = TIER_QUOTA,
     .high = 7130316,
     .low = 5872025,
     .quarantines = true,
     .persists = true,
     .open = pool_l3_open,
     .close = pool_rig_close,
     .damage = pool_damage},
    {.name = "emulated device",
     .quota = TIER_QUOTA,
     .high = 7130316,
     .low = 5872025,
     .open = emu_open,
     .close = device_rig_close,
     .damage = device_damage},
    {.name = "cuda device over a stub driver",
     .quota = CUDA_QUOTA,
     .high = 57042534,
     .low = 46976204,
     .open = cuda_open,
     .close = device_rig_close,
     .damage = device_damage},
    {.name = "archive in a directory",
     .quota = TIER_QUOTA,
     .high = 7130316,
     .low = 5872025,
     .persists = true,
     .open = archive_rig_open,
     .close = archive_rig_close,
     .damage = archive_damage},
    {.name = "archive in an S3 store",
     .quota = TIER_QUOTA,
     .high = 7130316,
     .low = 5872025,
     .persists = true,
     .open = s3_open,
     .close = s3_close,
     .missing = s3_missing},
};

#endif
