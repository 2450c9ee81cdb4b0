/* The real helios-l3d: who owns its pool and its archive, what other clusters may do there, and the
 * archive's trash. */
#include "support/test.h"

#include "base/id.h"
#include "core/json.h"
#include "integration/client_world.h"
#include "mem/socket/socket.h"
#include "os/file.h"
#include "rpc/rpc.h"
#include "support/rpc_json.h"
#include "unit/mem/archive/archive_rig.h"

#define MS 20000
#define A  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
#define B  "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"

static struct hl_rpc *rpc;

struct place {
    struct world w;
    struct hl_rpc_peer *peer;
    char archive[128]; /* directory */
};

static void connect_peer(struct place *p)
{
    hl_rpc_peer_close(p->peer);
    p->peer = NULL;
    assert_int_equal(hl_rpc_open(rpc, p->w.address, "L3", &p->peer), HL_OK);
}

static void begin(struct place *p)
{
    *p = (struct place){0};
    snprintf(p->archive, sizeof(p->archive), "/tmp/helios-test-claim-%d", (int)getpid());
    assert_int_equal(hl_dir_remove(p->archive), HL_OK);
    char url[160];
    snprintf(url, sizeof(url), "dir:%s", p->archive);
    setenv("HELIOS_ARCHIVE_URL", url, 1);
    setenv("HELIOS_ARCHIVE_MODE", "manual", 1);
    world_start(&p->w, "16MiB");
    connect_peer(p);
}

static void end(struct place *p)
{
    hl_rpc_peer_close(p->peer);
    world_end(&p->w);
    assert_int_equal(hl_dir_remove(p->archive), HL_OK);
    unsetenv("HELIOS_ARCHIVE_URL");
    unsetenv("HELIOS_ARCHIVE_MODE");
}

static void again(struct place *p)
{
    world_launch(&p->w);
    world_wait(&p->w);
    connect_peer(p);
}

static hl_status call(struct place *p, const char *method, json_t *params, json_t **result)
{
    hl_status st = rpc_json_call(p->peer, method, params, MS, result);
    json_decref(params);
    return st;
}

static json_t *must(struct place *p, const char *method, json_t *params)
{
    json_t *result = NULL;
    if (call(p, method, params, &result) != HL_OK)
        fail_msg("%s: %s", method, hl_error_text());
    return result;
}

static json_t *of_shard(const struct shard *s, const char *cluster)
{
    json_t *params = json_pack("{s:[s]}", "ids", hl_id_format(s->id).s);
    if (cluster != NULL)
        json_object_set_new(params, "cluster", json_string(cluster));
    return params;
}

static int64_t ask(struct place *p, const char *method, json_t *params, const char *field)
{
    json_t *r = must(p, method, params);
    int64_t n = hl_json_int(r, field, -1);
    json_decref(r);
    return n;
}

static struct shard new_shard(struct place *p, uint64_t data, unsigned seed)
{
    struct shard s = shard_make(id_of(1), data, seed, 1);
    struct hl_l3_client *c = NULL;
    struct hl_l3_staging staging = {0};
    struct hl_pool_ref ref;
    assert_int_equal(hl_l3_connect(p->w.socket, MS, &c), HL_OK);
    assert_int_equal(hl_l3_staging_open(s.size, &staging), HL_OK);
    memcpy(staging.ptr, s.bytes, s.size);
    if (hl_l3_put(c, &staging, s.size, MS, &ref) != HL_OK)
        fail_msg("%s", hl_error_text());
    s.id = ref.id;
    hl_l3_staging_close(&staging);
    hl_l3_close(c);
    return s;
}

struct terms {
    const char *cluster;
    int revision, seen;
    const char *mode;
};

/* L3's answer; new reference. */
static json_t *claim(struct place *p, struct terms t)
{
    return must(p, "claim",
                json_pack("{s:s s:i s:i s:s}", "cluster", t.cluster, "revision", t.revision, "seen",
                          t.seen, "mode", t.mode != NULL ? t.mode : "own"));
}

static void assert_claim(struct place *p, struct terms t, const char *state)
{
    json_t *r = claim(p, t);
    assert_string_equal(hl_json_str(r, "state", ""), state);
    json_decref(r);
}

/* The owners that poolInfo and the claim in the archive name. */
static void assert_owners(struct place *p, const char *pool, int revision, const char *archive,
                          int archive_revision)
{
    char path[200];
    json_t *r = must(p, "poolInfo", NULL);
    const json_t *info = json_object_get(r, "pool");
    assert_string_equal(hl_json_str(info, "cluster", ""), pool);
    assert_int_equal(hl_json_int(info, "revision", -1), revision);
    json_decref(r);
    snprintf(path, sizeof(path), "%s/helios-cluster.json", p->archive);
    json_t *text = json_load_file(path, 0, NULL);
    assert_string_equal(hl_json_str(text, "cluster", ""), archive);
    assert_int_equal(hl_json_int(text, "revision", 0), archive_revision);
    json_decref(text);
}

static void write_owner(struct place *p, const char *text)
{
    char path[200];
    snprintf(path, sizeof(path), "%s/helios-cluster.json", p->archive);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

/* ---- claims ---------------------------------------------------------------------------------- */

TEST(what_is_empty_is_the_first_ones_also_after_a_kill)
{
    struct place p;
    begin(&p);
    assert_owners(&p, "", 0, "", 0);
    json_t *r = claim(&p, (struct terms){.cluster = A, .revision = 3, .seen = 3});
    assert_string_equal(hl_json_str(r, "state", ""), "claimed");
    assert_string_equal(hl_json_str(r, "cluster", ""), A);
    assert_string_equal(hl_json_str(r, "archiveCluster", ""), A);
    assert_int_equal(hl_json_int(r, "revision", 0), 3);
    json_decref(r);
    assert_owners(&p, A, 3, A, 3);
    world_kill(&p.w);
    again(&p);
    assert_owners(&p, A, 3, A, 3);
    /* An empty pool is not free: shards of its cluster are on their way. */
    assert_claim(&p, (struct terms){.cluster = B, .revision = 9, .seen = 9}, "other");
    assert_owners(&p, A, 3, A, 3);
    end(&p);
}

TEST(a_stranger_takes_nothing_out_and_puts_nothing_in)
{
    static const char *const strangers[] = {B, "", NULL};
    static const char *const methods[] = {"free", "evict", "dropArchived", "untrash",
                                          "orderEviction"};
    struct place p;
    begin(&p);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1}, "claimed");
    struct shard s = new_shard(&p, 100000, 1);
    assert_int_equal(ask(&p, "archive", of_shard(&s, NULL), "archived"), 1);
    for (size_t i = 0; i < HL_ARRAY_LEN(strangers); i++) {
        for (size_t k = 0; k < HL_ARRAY_LEN(methods); k++) {
            json_t *r = NULL;
            assert_int_equal(call(&p, methods[k], of_shard(&s, strangers[i]), &r), HL_EPERM);
            assert_error_has(A);
            assert_null(r);
        }
        json_t *said = json_pack("{s:[] s:s*}", "extents", "cluster", strangers[i]), *none = NULL;
        assert_int_equal(call(&p, "stateArchived", said, &none), HL_EPERM);
    }
    json_t *request = json_pack("{s:{s:s s:s s:s} s:s}", "request", "importId", A, "dir", "/tmp",
                                "name", "x", "cluster", B);
    json_t *none = NULL;
    assert_int_equal(call(&p, "importModel", request, &none), HL_EPERM);
    assert_int_equal(ask(&p, "evict", of_shard(&s, A), "evicted"), 1);
    assert_int_equal(ask(&p, "dropArchived", of_shard(&s, A), "dropped"), 1);
    free(s.bytes);
    end(&p);
}

TEST(an_old_catalogue_is_told_so)
{
    struct place p;
    begin(&p);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 5, .seen = 5}, "claimed");
    assert_claim(&p, (struct terms){.cluster = A, .revision = 9, .seen = 5}, "claimed");
    /* The pool went on by itself, but does not know of 9. */
    json_t *r = claim(&p, (struct terms){.cluster = A, .revision = 11, .seen = 8});
    assert_string_equal(hl_json_str(r, "state", ""), "newer");
    assert_int_equal(hl_json_int(r, "revision", 0), 9);
    json_decref(r);
    assert_owners(&p, A, 9, A, 5);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 9, .seen = 9}, "claimed");
    end(&p);
}

TEST(shards_of_nobody_known_are_only_adopted)
{
    struct place p;
    begin(&p);
    struct shard s = new_shard(&p, 1000, 1), t = new_shard(&p, 1000, 2);
    assert_int_equal(ask(&p, "archive", of_shard(&s, NULL), "archived"), 1);
    json_t *r = claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1});
    assert_string_equal(hl_json_str(r, "state", ""), "unclaimed");
    assert_string_equal(hl_json_str(r, "cluster", "?"), "");
    assert_int_equal(hl_json_int(r, "shards", 0), 2);
    assert_int_equal(hl_json_int(r, "archived", 0), 1);
    json_decref(r);
    assert_owners(&p, "", 0, "", 0);
    assert_int_equal(ask(&p, "free", of_shard(&t, NULL), "freed"), 1); /* as ever */
    assert_claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1, .mode = "adopt"},
                 "claimed");
    assert_owners(&p, A, 1, A, 1);
    assert_claim(&p, (struct terms){.cluster = B, .revision = 1, .seen = 1, .mode = "adopt"},
                 "other");
    free(s.bytes);
    free(t.bytes);
    end(&p);
}

TEST(a_taken_pool_has_changed_hands)
{
    struct place p;
    begin(&p);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 50, .seen = 50}, "claimed");
    struct shard s = new_shard(&p, 1000, 1);
    assert_int_equal(ask(&p, "archive", of_shard(&s, NULL), "archived"), 1);
    assert_claim(&p, (struct terms){.cluster = B, .revision = 2, .seen = 2, .mode = "take"},
                 "claimed");
    assert_owners(&p, B, 2, B, 2);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 51, .seen = 51}, "other");
    assert_int_equal(ask(&p, "free", of_shard(&s, B), "freed"), 1);
    free(s.bytes);
    end(&p);
}

TEST(after_a_reboot_the_archive_still_knows_its_owner)
{
    struct place p;
    begin(&p);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 4, .seen = 4}, "claimed");
    struct shard s = new_shard(&p, 1000, 1);
    assert_int_equal(ask(&p, "archive", of_shard(&s, NULL), "archived"), 1);
    world_kill(&p.w);
    assert_int_equal(unlink(p.w.pool), 0);
    again(&p);
    assert_claim(&p, (struct terms){.cluster = B, .revision = 4, .seen = 4}, "other");
    assert_claim(&p, (struct terms){.cluster = A, .revision = 3, .seen = 3}, "newer");
    assert_owners(&p, "", 0, A, 4); /* both or none */
    json_t *none = NULL;
    assert_int_equal(call(&p, "dropArchived", of_shard(&s, B), &none), HL_EPERM);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 4, .seen = 4}, "claimed");
    assert_owners(&p, A, 4, A, 4);
    free(s.bytes);
    end(&p);
}

TEST(an_empty_archive_is_whoevers_comes)
{
    struct place p;
    begin(&p);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 4, .seen = 4}, "claimed");
    world_kill(&p.w);
    assert_int_equal(unlink(p.w.pool), 0);
    again(&p);
    assert_claim(&p, (struct terms){.cluster = B, .revision = 1, .seen = 1}, "claimed");
    assert_owners(&p, B, 1, B, 1);
    end(&p);
}

TEST(the_archives_record_is_never_behind_its_shards)
{
    struct place p;
    begin(&p);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1}, "claimed");
    struct shard s = new_shard(&p, 1000, 1);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 7, .seen = 1}, "claimed");
    assert_owners(&p, A, 7, A, 1);
    assert_int_equal(ask(&p, "archive", of_shard(&s, NULL), "archived"), 1);
    assert_owners(&p, A, 7, A, 7);
    free(s.bytes);
    end(&p);
}

TEST(an_archive_of_another_cluster_gets_no_shards)
{
    struct place p;
    json_t *none = NULL;
    begin(&p);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1}, "claimed");
    struct shard s = new_shard(&p, 1000, 1), t = new_shard(&p, 1000, 2);
    assert_int_equal(ask(&p, "archive", of_shard(&s, NULL), "archived"), 1);
    world_kill(&p.w);
    write_owner(&p, "{\"cluster\": \"" B "\", \"revision\": 1}");
    again(&p);
    assert_int_equal(call(&p, "archive", of_shard(&t, NULL), &none), HL_EPERM);
    assert_error_has(B);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1}, "other");
    assert_int_equal(call(&p, "dropArchived", of_shard(&s, A), &none), HL_EPERM);
    free(s.bytes);
    free(t.bytes);
    end(&p);
}

TEST(an_unreadable_owner_is_a_stranger_until_it_is_taken)
{
    struct place p;
    json_t *none = NULL;
    begin(&p);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1}, "claimed");
    struct shard s = new_shard(&p, 1000, 1);
    assert_int_equal(ask(&p, "archive", of_shard(&s, NULL), "archived"), 1);
    world_kill(&p.w);
    write_owner(&p, "{\"cluster\"");
    again(&p);
    json_t *r = claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1});
    assert_string_equal(hl_json_str(r, "state", ""), "other");
    assert_true(hl_json_bool(r, "archiveDamaged", 0));
    json_decref(r);
    assert_int_equal(call(&p, "dropArchived", of_shard(&s, A), &none), HL_EPERM);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1, .mode = "take"},
                 "claimed");
    assert_owners(&p, A, 1, A, 1);
    assert_int_equal(ask(&p, "dropArchived", of_shard(&s, A), "dropped"), 1);
    free(s.bytes);
    end(&p);
}

TEST(claims_that_are_none_are_refused)
{
    struct place p;
    json_t *none = NULL;
    begin(&p);
    assert_int_equal(call(&p, "claim", json_pack("{s:s}", "cluster", ""), &none), HL_EINVAL);
    assert_int_equal(
        call(&p, "claim", json_pack("{s:s}", "cluster", "00000000000000000000000000000000"), &none),
        HL_EINVAL);
    assert_int_equal(
        call(&p, "claim", json_pack("{s:s s:s}", "cluster", A, "mode", "steal"), &none), HL_EINVAL);
    assert_owners(&p, "", 0, "", 0);
    end(&p);
}

/* ---- trash ----------------------------------------------------------------------------------- */

static size_t trashed(struct place *p, const struct shard *s)
{
    json_t *r = must(p, "listTrash", NULL);
    const json_t *list = hl_json_list(r, "trashed"), *one = json_array_get(list, 0);
    size_t n = json_array_size(list);
    if (n == 1) {
        char path[300];
        assert_string_equal(hl_json_str(one, "id", ""), hl_id_format(s->id).s);
        assert_int_equal(hl_json_int(one, "sizeBytes", 0), s->size);
        assert_true(hl_json_int(one, "trashedMs", 0) > 0);
        snprintf(path, sizeof(path), "%s/%s", p->archive, hl_json_str(one, "place", ""));
        assert_int_equal(access(path, R_OK), 0);
    }
    assert_int_equal(hl_json_int(r, "next", -1), 0);
    json_decref(r);
    return n;
}

TEST(what_was_trashed_can_be_called_back)
{
    struct place p;
    begin(&p);
    assert_claim(&p, (struct terms){.cluster = A, .revision = 1, .seen = 1}, "claimed");
    struct shard s = new_shard(&p, 3 * MIB, 1);
    assert_int_equal(ask(&p, "archive", of_shard(&s, NULL), "archived"), 1);
    assert_int_equal(trashed(&p, &s), 0);
    json_t *params = of_shard(&s, A);
    json_object_set_new(params, "trash", json_true());
    assert_int_equal(ask(&p, "dropArchived", params, "dropped"), 1);
    assert_int_equal(ask(&p, "free", of_shard(&s, A), "freed"), 1);
    assert_int_equal(trashed(&p, &s), 1);
    json_t *none = NULL;
    assert_int_equal(call(&p, "locate", of_shard(&s, NULL), &none), HL_ENOENT);
    world_kill(&p.w);
    again(&p);
    assert_int_equal(trashed(&p, &s), 1);
    assert_int_equal(ask(&p, "untrash", of_shard(&s, A), "restored"), 1);
    assert_int_equal(ask(&p, "untrash", of_shard(&s, A), "restored"), 0); /* fine */
    assert_int_equal(trashed(&p, &s), 0);
    helios_client *c = world_client(&p.w, "", MS, 1);
    char *back = malloc(s.size);
    helios_id id = {s.id.hi, s.id.lo};
    assert_int_equal(helios_get(c, id, back, s.size), HELIOS_OK);
    assert_memory_equal(back, s.bytes, s.size);
    free(back);
    helios_close(c);
    free(s.bytes);
    end(&p);
}

int main(int argc, char **argv)
{
    if (hl_rpc_create(&rpc) != HL_OK)
        return 1;
    int rc = tests_run(argc, argv);
    hl_rpc_destroy(rpc);
    return rc;
}
