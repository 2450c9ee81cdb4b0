/* Damaged copies in the pool and in the archive: detected, replaced, and never taken for good. */
#include "support/test.h"

#include "integration/l3_archive_world.h"

/* Where L3 says the shard is: "L3", "L4", "" = nowhere. */
static void assert_found(struct place *p, const struct shard *s, const char *tier)
{
    json_t *r = must(p, "look", json_pack("{s:[s]}", "ids", hl_id_format(s->id).s));
    const json_t *found = json_array_get(hl_json_list(r, "shards"), 0);
    assert_string_equal(hl_json_str(found, "tier", ""), tier);
    if (found != NULL)
        assert_int_equal(hl_json_int(found, "sizeBytes", -1), s->size);
    json_decref(r);
}

static size_t archived_count(struct place *p)
{
    json_t *r = must(p, "listArchived", NULL);
    size_t n = json_array_size(hl_json_list(r, "extents"));
    json_decref(r);
    return n;
}

static int verified(struct place *p, const struct shard *s)
{
    json_t *r =
        must(p, "verify", json_pack("{s:s s:s}", "id", hl_id_format(s->id).s, "tier", "L4"));
    int ok = hl_json_bool(r, "ok", 0);
    json_decref(r);
    return ok;
}

static void spoil_archived(struct place *p, const struct shard *s)
{
    char path[256];
    archived_path(p, s, path, sizeof(path));
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "!", 1, 4 * MIB), 1);
    close(fd);
}

TEST(a_damaged_archived_copy_counts_as_absent_and_is_replaced)
{
    struct place p;
    begin(&p, "64MiB", "manual");
    struct shard s = new_shard(&p, 5 * MIB, 1);
    assert_found(&p, &s, "L3");
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    spoil_archived(&p, &s);
    assert_int_equal(archived_count(&p), 1); /* not checked yet */
    assert_false(verified(&p, &s));
    assert_int_equal(archived_count(&p), 0);
    assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 0); /* the last good copy stays */
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    assert_true(verified(&p, &s));
    assert_int_equal(archived_count(&p), 1);
    assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 1);
    assert_found(&p, &s, "L4");
    spoil_archived(&p, &s);
    assert_false(verified(&p, &s));
    assert_found(&p, &s, "");
    assert_int_equal(call(&p, "locate", ids(&s, 1), NULL), HL_ECORRUPT);
    assert_non_null(strstr(hl_error_text(), "the only copy, in the archive, is damaged"));
    free(s.bytes);
    end(&p);
}

TEST(a_bit_in_an_archived_header_is_noticed_after_a_restart)
{
    struct place p;
    char path[256];
    begin(&p, "64MiB", "manual");
    struct shard s = new_shard(&p, MIB, 1);
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    world_kill(&p.w);
    assert_int_equal(unlink(p.w.pool), 0);
    archived_path(&p, &s, path, sizeof(path));
    int fd = open(path, O_RDWR);
    off_t at = strstr(s.bytes + 8, "\"a\"") + 1 - s.bytes; /* a tensor's name */
    assert_int_equal(pwrite(fd, "c", 1, at), 1);
    bool kept = fgetxattr(fd, "user.helios.crc32", NULL, 0) > 0;
    close(fd);
    world_launch(&p.w);
    world_wait(&p.w);
    connect_peer(&p);
    if (kept) { /* else the file system keeps no attributes of users */
        assert_int_equal(call(&p, "locate", ids(&s, 1), NULL), HL_ECORRUPT);
        assert_int_equal(archived_count(&p), 0);
    }
    free(s.bytes);
    end(&p);
}

static json_t *stated(const struct shard *s)
{
    return json_pack("{s:[{s:s s:I}]}", "extents", "id", hl_id_format(s->id).s, "crc32",
                     (json_int_t)s->crc);
}

/* The file has lost its attribute with the CRC, as by a plain copy. */
TEST(a_bit_in_a_header_is_noticed_by_what_the_catalogue_says)
{
    struct place p;
    char path[256];
    begin(&p, "64MiB", "manual");
    struct shard s[2] = {new_shard(&p, MIB, 1), new_shard(&p, MIB, 2)};
    assert_int_equal(ask(&p, "archive", ids(s, 2), "archived"), 2);
    world_kill(&p.w);
    assert_int_equal(unlink(p.w.pool), 0);
    for (unsigned i = 0; i < 2; i++) {
        archived_path(&p, &s[i], path, sizeof(path));
        (void)!removexattr(path, "user.helios.crc32");
    }
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "I", 1, strstr(s[1].bytes + 8, "U8") - s[1].bytes), 1);
    close(fd);
    world_launch(&p.w);
    world_wait(&p.w);
    connect_peer(&p);
    for (unsigned i = 0; i < 2; i++)
        json_decref(must(&p, "stateArchived", stated(&s[i])));
    json_decref(must(&p, "locate", ids(s, 1)));
    assert_int_equal(call(&p, "locate", ids(s + 1, 1), NULL), HL_ECORRUPT);
    assert_int_equal(archived_count(&p), 1);
    free(s[0].bytes);
    free(s[1].bytes);
    end(&p);
}

static void assert_heal(struct place *p, const struct shard *s, json_t *sources, const char *state,
                        const char *source)
{
    json_t *r = must(p, "heal",
                     json_pack("{s:s s:o}", "id", hl_id_format(s->id).s, "sources",
                               sources != NULL ? sources : json_array()));
    assert_string_equal(hl_json_str(r, "state", ""), state);
    assert_string_equal(hl_json_str(r, "source", ""), source);
    json_decref(r);
}

static void spoil_in_pool(struct place *p, const struct shard *s)
{
    json_t *r = must(p, "locate", json_pack("{s:[s]}", "ids", hl_id_format(s->id).s));
    const json_t *extent = json_array_get(hl_json_list(r, "extents"), 0);
    world_flip_at(&p->w, (off_t)(hl_json_int(extent, "offset", 0) + (int64_t)s->size / 2));
    json_decref(r);
}

TEST(a_bad_shard_is_replaced_from_the_archive)
{
    struct place p;
    char path[256];
    begin(&p, "32MiB", "manual");
    struct shard s = new_shard(&p, 5 * MIB + 1, 3);
    assert_heal(&p, &s, NULL, "good", "");
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, NULL, "lost", ""); /* there is no other copy: nothing is changed */
    assert_int_equal(pool_number(&p, "shards"), 1);
    spoil_in_pool(&p, &s); /* flipped back: good */
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    spoil_in_pool(&p, &s);
    helios_client *c = world_client(&p.w, "shm", MS, 1);
    assert_heal(&p, &s, NULL, "healed", "L4");
    assert_read(c, &s);
    assert_exact(&p);
    /* The archive's copy is bad too: the pool's stays as it is, and is not reported as good. */
    archived_path(&p, &s, path, sizeof(path));
    int fd = open(path, O_WRONLY);
    assert_int_equal(pwrite(fd, "!", 1, 4 * MIB), 1);
    close(fd);
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, NULL, "lost", "");
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, NULL, "good", "");
    assert_exact(&p);
    helios_close(c);
    free(s.bytes);
    end(&p);
}

TEST(a_missing_shard_is_healed_like_a_bad_one)
{
    struct place p;
    begin(&p, "32MiB", "manual");
    struct shard s = new_shard(&p, 2 * MIB, 3);
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    assert_int_equal(ask(&p, "evict", ids(&s, 1), "evicted"), 1);
    assert_heal(&p, &s, NULL, "healed", "L4");
    assert_int_equal(pool_number(&p, "shards"), 1);
    assert_int_equal(ask(&p, "free", ids(&s, 1), "freed"), 1);
    assert_int_equal(ask(&p, "dropArchived", ids(&s, 1), "dropped"), 1);
    assert_heal(&p, &s, NULL, "lost", "");
    assert_int_equal(pool_number(&p, "usedBytes"), 0);
    free(s.bytes);
    end(&p);
}

static json_t *source_of(const struct node *n, const struct shard *s);

TEST(a_source_with_an_impossible_size_is_refused)
{
    struct place p;
    struct shard s = {.size = (uint64_t)1 << 43};
    begin(&p, "32MiB", "manual");
    json_t *params =
        json_pack("{s:s s:[o]}", "id", hl_id_format(id_of(7)).s, "sources", source_of(NULL, &s));
    json_t *result = NULL;
    assert_int_equal(call(&p, "heal", params, &result), HL_EINVAL);
    end(&p);
}

static json_t *source_of(const struct node *n, const struct shard *s)
{
    return json_pack("{s:s s:I s:I s:s s:s s:s s:i}", "id", hl_id_format(s->id).s, "sizeBytes",
                     (json_int_t)s->size, "crc32", (json_int_t)s->crc, "sourceNode", "node-7",
                     "sourceAddress", n != NULL ? hl_rpc_server_address(n->server) : "127.0.0.1:1",
                     "sourceDataAddress", n != NULL ? hl_net_server_address(n->net) : "127.0.0.1:1",
                     "timeoutMs", 5000);
}

TEST(a_bad_shard_is_replaced_from_a_node)
{
    struct place p;
    struct node n;
    char path[256], *back;
    begin(&p, "32MiB", "manual");
    struct shard s = new_shard(&p, 5 * MIB + 1, 3);
    node_start(&n, rpc, &s);
    spoil_in_pool(&p, &s);
    /* a dead node first, then the good one */
    assert_heal(&p, &s, json_pack("[o o]", source_of(NULL, &s), source_of(&n, &s)), "healed",
                "node-7");
    assert_heal(&p, &s, NULL, "good", "");
    /* not in the pool at all: size and CRC are taken from the source */
    assert_int_equal(ask(&p, "free", ids(&s, 1), "freed"), 1);
    assert_heal(&p, &s, json_pack("[o]", source_of(&n, &s)), "healed", "node-7");
    assert_exact(&p);
    /* pool and archive are bad: both are good afterwards */
    assert_int_equal(ask(&p, "archive", ids(&s, 1), "archived"), 1);
    archived_path(&p, &s, path, sizeof(path));
    int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, "!!", 2, 4 * MIB), 2);
    close(fd);
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, json_pack("[o]", source_of(&n, &s)), "healed", "node-7");
    back = malloc(s.size);
    fd = open(path, O_RDONLY);
    assert_int_equal(pread(fd, back, s.size, 0), s.size);
    close(fd);
    assert_memory_equal(back, s.bytes, s.size);
    /* the node's copy is bad: nothing is taken from it */
    size_t len;
    ((char *)hl_pool_base(n.pool, &len))[n.ref.offset + 100] ^= 1;
    assert_int_equal(ask(&p, "dropArchived", ids(&s, 1), "dropped"), 1);
    spoil_in_pool(&p, &s);
    assert_heal(&p, &s, json_pack("[o]", source_of(&n, &s)), "lost", "");
    assert_exact(&p);
    node_stop(&n);
    free(back);
    free(s.bytes);
    end(&p);
    fault_shown("archive-dir", "corrupt", "healed");
}

int main(int argc, char **argv)
{
    hl_log_init("test", HL_LOG_ERROR);
    if (hl_rpc_create(&rpc) != HL_OK)
        return 1;
    int failed = tests_run(argc, argv);
    hl_rpc_destroy(rpc);
    return failed;
}
