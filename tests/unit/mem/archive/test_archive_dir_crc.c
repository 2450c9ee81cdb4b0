/* Which checksum counts for a file of the archive: the one kept with it, what the catalogue states,
 * or what its header says. */
#include "support/test.h"

#include <fcntl.h>
#include <unistd.h>

#include "unit/mem/archive/archive_rig.h"

#define CRC_ATTR "user.helios.crc32"

struct text {
    char s[200];
};

static struct text path_of(const struct rig *r, struct hl_id id)
{
    struct text t;
    struct hl_id_text name = hl_id_format(id);
    snprintf(t.s, sizeof(t.s), "%s/%.2s/%s.safetensors", r->dir, name.s, name.s);
    return t;
}

static hl_status crc_status(struct rig *r, const struct shard *s, uint32_t *out)
{
    *out = 0;
    return hl_archive_crc(r->archive, s->id, out);
}

/* Files without their attribute, as a plain copy makes them. */
TEST_IN(rig_setup, rig_teardown, a_stated_checksum_counts_where_none_was_kept)
{
    struct rig *r = *state;
    struct shard s[] = {shard_make(id_of(1), 1000, 1, 1), shard_make(id_of(2), 1000, 2, 1),
                        shard_make(id_of(3), 1000, 3, 0)};
    struct hl_archive_ref refs[4];
    uint64_t cursor = 0;
    uint32_t crc;
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(put(r, &s[i]), HL_OK);
        (void)!removexattr(path_of(r, s[i].id).s, CRC_ATTR);
    }
    rig_reopen(r, 0);
    int fd = open(path_of(r, s[0].id).s, O_RDWR);
    assert_int_equal(pwrite(fd, "I", 1, strstr(s[0].bytes + 8, "U8") - s[0].bytes), 1);
    close(fd);
    assert_int_equal(crc_status(r, &s[0], &crc), HL_OK); /* by the header alone it is right */
    assert_int_not_equal(crc, s[0].crc);
    assert_int_equal(crc_status(r, &s[2], &crc), HL_ENOENT);
    for (unsigned i = 0; i < 3; i++)
        hl_archive_state_crc(r->archive, s[i].id, s[i].crc);
    hl_archive_state_crc(r->archive, id_of(9), 1);
    assert_int_equal(hl_archive_page(r->archive, &cursor, refs, 4), 3);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(refs[i].crc, s[(refs[i].id.lo - 1)].crc);
    assert_int_equal(crc_status(r, &s[0], &crc), HL_ECORRUPT);
    assert_int_equal(hl_archive_verify(r->archive, s[0].id), HL_ECORRUPT);
    for (unsigned i = 1; i < 3; i++) {
        assert_int_equal(crc_status(r, &s[i], &crc), HL_OK);
        assert_int_equal(crc, s[i].crc);
        assert_int_equal(hl_archive_verify(r->archive, s[i].id), HL_OK);
    }
    for (unsigned i = 0; i < 3; i++)
        free(s[i].bytes);
}

TEST_IN(rig_setup, rig_teardown, a_kept_checksum_counts_more_than_a_stated_one)
{
    struct rig *r = *state;
    struct shard s = shard_make(id_of(1), 1000, 1, 1);
    uint32_t crc;
    if (!r->keeps_crc)
        TEST_SKIP("the file system keeps no attributes of users");
    assert_int_equal(put(r, &s), HL_OK);
    for (unsigned i = 0; i < 2; i++) {
        hl_archive_state_crc(r->archive, s.id, s.crc + 1);
        assert_int_equal(crc_status(r, &s, &crc), HL_OK);
        assert_int_equal(crc, s.crc);
        rig_reopen(r, 0);
    }
    free(s.bytes);
}
