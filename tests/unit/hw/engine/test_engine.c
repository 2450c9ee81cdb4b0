/* Command lines for docker and podman, compared with files in tests/data/engine that a person has
 * checked. HELIOS_WRITE_GOLDEN=1 rewrites them. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hw/engine/engine.h"
#include "hw/topology.h"
#include "os/file.h"

#define NVIDIA 0x10de

static char root[64]; /* a machine's driver files */

static void write_below(const char *dir, const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", root, dir);
    assert_int_equal(hl_dir_make(path, 0755), HL_OK);
    snprintf(path, sizeof(path), "%s/%s/%s", root, dir, name);
    assert_int_equal(hl_file_write_atomic(path, text, strlen(text)), HL_OK);
}

static void add_card(const char *pci, const char *uuid, int minor)
{
    char dir[128], text[256];
    snprintf(dir, sizeof(dir), "gpus/%s", pci);
    snprintf(text, sizeof(text),
             "Model: \t\t Tesla V100-SXM2-16GB\nIRQ:   \t\t 70\nGPU UUID: \t %s\n"
             "Video BIOS: \t 88.00.13.00.02\nBus Location: \t %s\nDevice Minor: \t %d\n",
             uuid, pci, minor);
    write_below(dir, "information", text);
}

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof(root), "/tmp/helios-test-engine-XXXXXX");
    assert_non_null(mkdtemp(root));
    return 0;
}

static int remove_root(void **state)
{
    (void)state;
    assert_int_equal(hl_dir_remove(root), HL_OK);
    return 0;
}

static char *below(const char *name)
{
    static char path[128];
    snprintf(path, sizeof(path), "%s/%s", root, name);
    return path;
}

/* Cards and RDMA devices of all slots, as their drivers show them. */
static void add_drivers(const struct hl_topo *t)
{
    int minor = 0, verbs = 0;
    for (size_t s = 0; s < t->slot_count; s++) {
        const struct hl_topo_slot *slot = &t->slots[s];
        for (size_t i = 0; i < slot->gpu_count; i++) {
            char uuid[64];
            if (slot->gpus[i].vendor != NVIDIA)
                continue;
            snprintf(uuid, sizeof(uuid), "GPU-00000000-0000-0000-0000-%012d", 100 + minor);
            add_card(slot->gpus[i].pci, uuid, minor++);
        }
        for (size_t i = 0; i < slot->nic_count; i++) {
            char dir[160], name[32];
            snprintf(dir, sizeof(dir), "ib/%s/device/infiniband_verbs", slot->nics[i].name);
            snprintf(name, sizeof(name), "uverbs%d", verbs++);
            write_below(dir, name, "");
        }
    }
}

/* A container on the slot, as an Agent receives it. */
static struct hl_container_spec spec_on(const struct hl_topo_slot *slot, const char *cpus)
{
    struct hl_container_spec spec = {
        .id = strdup("gpt-1.2.0"),
        .epoch = 1795700000,
        .job = strdup("gpt-1"),
        .attempt = 2,
        .numa_id = slot->numa_id,
        .cpus = strdup(cpus),
        .memory_bytes = UINT64_C(256) << 30,
        .image = strdup("registry/megatron:1"),
        .workdir = strdup("/src"),
        .stop_grace_ms = 10500,
        .venv = strdup(""),
        .conda = strdup(""),
        .python = strdup(""),
        .rank_table = strdup("{}"),
        .ranks = calloc(2, sizeof(struct hl_rank_spec)),
        .rank_count = 2,
    };
    spec.ranks[0].rank = 4;
    spec.ranks[1].rank = 5;
    assert_int_equal(hl_texts_add(&spec.command, &spec.command_count, "python3"), HL_OK);
    assert_int_equal(hl_texts_add(&spec.command, &spec.command_count, "train.py; echo $X"), HL_OK);
    assert_int_equal(hl_texts_add(&spec.mounts, &spec.mount_count, "/usr:/data,1:ro"), HL_OK);
    assert_int_equal(hl_texts_add(&spec.mounts, &spec.mount_count, "/tmp:/out"), HL_OK);
    for (size_t i = 0; i < slot->gpu_count; i++)
        if (slot->gpus[i].vendor == NVIDIA)
            assert_int_equal(hl_texts_add(&spec.gpus, &spec.gpu_count, slot->gpus[i].pci), HL_OK);
    for (size_t i = 0; i < slot->nic_count; i++)
        assert_int_equal(hl_texts_add(&spec.nics, &spec.nic_count, slot->nics[i].name), HL_OK);
    return spec;
}

static char *lines_of(const struct hl_args *args, const struct hl_args *env)
{
    struct hl_buf text = HL_BUF(1 << 20);
    for (size_t i = 0; i < args->count; i++)
        assert_int_equal(hl_buf_printf(&text, "%s\n", args->v[i]), HL_OK);
    assert_int_equal(hl_buf_printf(&text, "\nbeside the caller's environment:\n"), HL_OK);
    for (size_t i = 0; i < env->count; i++)
        assert_int_equal(hl_buf_printf(&text, "%s\n", env->v[i]), HL_OK);
    return hl_buf_take(&text);
}

static void assert_golden(const char *name, const char *text)
{
    char path[512];
    HL_AUTO(hl_buf_fini) struct hl_buf want = HL_BUF(1 << 20);
    const char *source = getenv("HELIOS_SOURCE");
    snprintf(path, sizeof(path), "%s/tests/data/engine/%s.txt", source != NULL ? source : ".",
             name);
    if (getenv("HELIOS_WRITE_GOLDEN") != NULL)
        assert_int_equal(hl_file_write_atomic(path, text, strlen(text)), HL_OK);
    assert_int_equal(hl_file_read(path, &want), HL_OK);
    assert_string_equal(text, want.data);
}

struct row {
    const char *topo;
    int slot; /* index */
    enum hl_engine_kind kind;
    const char *info;
    bool memlock;
    const char *golden;
};

static char *make_command(const struct row *row)
{
    char path[512];
    struct hl_topo t;
    struct hl_cpuset cpus, mems = {0};
    struct hl_engine_devices devices = {.way = hl_engine_gpus_of(row->kind, row->info)};
    HL_AUTO(hl_arena_fini) struct hl_arena arena = {0};
    HL_AUTO(hl_env_fini) struct hl_env env = {0};
    struct hl_args args = {.arena = &arena}, values = {.arena = &arena};
    const char *source = getenv("HELIOS_SOURCE");
    snprintf(path, sizeof(path), "%s/tests/data/topo/%s", source != NULL ? source : ".", row->topo);
    assert_int_equal(hl_topology_load_xml(path, &t), HL_OK);
    add_drivers(&t);
    char *text = hl_cpus_format(&t.slots[row->slot].cpus);
    struct hl_container_spec spec = spec_on(&t.slots[row->slot], text);
    assert_int_equal(hl_cpuset_parse(text, &cpus), HL_OK);
    hl_cpuset_add(&mems, (unsigned)spec.numa_id);
    free(text);
    assert_int_equal(hl_engine_find_gpus(below("gpus"), &spec, false, &devices), HL_OK);
    hl_engine_find_verbs(below("ib"), &spec, &devices);
    assert_string_equal(devices.note, "");
    assert_int_equal(hl_env_set(&env, "GLOBAL_RANK", "5"), HL_OK);
    assert_int_equal(hl_env_set(&env, "TOKEN", "a secret"), HL_OK);
    assert_int_equal(hl_env_set(&env, "GOOGLE_API_KEY", "another one"), HL_OK);
    assert_int_equal(hl_env_set(&env, "GODEBUG", "netdns=go"), HL_OK);
    assert_int_equal(hl_env_set(&env, "PATH", "/opt/bin:/bin"), HL_OK);
    assert_int_equal(hl_env_set(&env, "HELIOS_STORE_SOCKET", "/run/helios/l2.sock"), HL_OK);
    assert_int_equal(hl_env_set(&env, "HELIOS_L3_SOCKET", "/dev/shm/l3.sock"), HL_OK);
    assert_int_equal(hl_env_set(&env, "HELIOS_AUTH_SECRET_FILE", "/etc/helios/secret"), HL_OK);
    const struct hl_engine_create create = {.kind = row->kind,
                                            .spec = &spec,
                                            .rank = 1,
                                            .owner = "0a1b2c3d",
                                            .state = "8:1:2f:17a",
                                            .dir = "/var/lib/helios/agent/containers/gpt-1.2.0",
                                            .image = "sha256:1234",
                                            .cpus = &cpus,
                                            .mems = &mems,
                                            .devices = &devices,
                                            .log_max_bytes = 64 << 20,
                                            .memlock = row->memlock,
                                            .env = &env};
    assert_int_equal(hl_engine_create_args(&create, &args, &values), HL_OK);
    char *lines = lines_of(&args, &values);
    hl_container_spec_fini(&spec);
    hl_topo_fini(&t);
    return lines;
}

TEST_IN(make_root, remove_root, each_topology_has_its_command_line)
{
    static const struct row rows[] = {
        {"power-2slots.xml", 0, HL_ENGINE_DOCKER, "{\"Runtimes\":{\"nvidia\":{}}}", true,
         "docker-power-0-runtime"},
        {"power-2slots.xml", 1, HL_ENGINE_PODMAN, "", true, "podman-power-8-cdi"},
        {"power-2slots.xml", 0, HL_ENGINE_DOCKER, "{\"Runtimes\":{\"runc\":{}}}", false,
         "docker-power-0-plain"},
        {"x86-2slots.xml", 1, HL_ENGINE_DOCKER,
         "{\"ServerVersion\":\"28.2.2\",\"CDISpecDirs\":[\"/etc/cdi\"]}", true, "docker-x86-1-cdi"},
        {"bare-2slots.xml", 1, HL_ENGINE_DOCKER, "{}", true, "docker-bare-1"},
    };

    for (size_t i = 0; i < HL_ARRAY_LEN(rows); i++) {
        char *text = make_command(&rows[i]);
        assert_golden(rows[i].golden, text);
        free(text);
    }
}

TEST(gpus_come_as_the_engine_can_hand_them_out)
{
    assert_int_equal(hl_engine_gpus_of(HL_ENGINE_PODMAN, "{\"Runtimes\":{\"nvidia\":{}}}"),
                     HL_ENGINE_GPUS_CDI);
    assert_int_equal(hl_engine_gpus_of(HL_ENGINE_DOCKER, "{\"Runtimes\":{\"nvidia\":{}}}"),
                     HL_ENGINE_GPUS_RUNTIME);
    assert_int_equal(hl_engine_gpus_of(HL_ENGINE_DOCKER, "{\"ServerVersion\":\"24.0.9\","
                                                         "\"CDISpecDirs\":[\"/etc/cdi\"]}"),
                     HL_ENGINE_GPUS_PLAIN);
    assert_int_equal(hl_engine_gpus_of(HL_ENGINE_DOCKER, "{\"ServerVersion\":\"25.0.0\","
                                                         "\"CDISpecDirs\":[\"/etc/cdi\"]}"),
                     HL_ENGINE_GPUS_CDI);
    assert_int_equal(hl_engine_gpus_of(HL_ENGINE_DOCKER, "no JSON"), HL_ENGINE_GPUS_PLAIN);
}

static hl_status find_two(const char *first, const char *second, bool foreign,
                          struct hl_engine_devices *out)
{
    struct hl_container_spec spec = {.id = (char *)"c"};
    assert_int_equal(hl_texts_add(&spec.gpus, &spec.gpu_count, first), HL_OK);
    assert_int_equal(hl_texts_add(&spec.gpus, &spec.gpu_count, second), HL_OK);
    *out = (struct hl_engine_devices){.way = HL_ENGINE_GPUS_CDI};
    hl_status st = hl_engine_find_gpus(below("gpus"), &spec, foreign, out);
    spec.id = NULL;
    hl_container_spec_fini(&spec);
    return st;
}

TEST_IN(make_root, remove_root, a_gpu_that_has_gone_or_shares_its_uuid_is_refused)
{
    struct hl_engine_devices d;
    add_card("0004:04:00.0", "GPU-a", 3);
    add_card("0004:05:00.0", "GPU-a", 4);
    add_card("0004:06:00.0", "GPU-c", 5);
    add_card("0004:07:00.0", "GPU-\?\?\?\?-\?\?", 6);
    assert_int_equal(find_two("0004:06:00.0", "0004:04:00.0", false, &d), HL_OK);
    assert_string_equal(d.gpus[0].uuid, "GPU-c");
    assert_int_equal(d.gpus[1].minor, 3);
    assert_int_equal(find_two("0004:04:00.0", "0004:05:00.0", false, &d), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "0004:04:00.0 and 0004:05:00.0"));
    assert_int_equal(find_two("0004:04:00.0", "0035:03:00.0", false, &d), HL_ENOENT);
    assert_non_null(strstr(hl_error_text(), "0035:03:00.0"));
    assert_int_equal(find_two("0004:04:00.0", "0035:03:00.0", true, &d), HL_OK);
    assert_int_equal(d.gpu_count, 1);
    assert_string_equal(d.note, "GPU 0035:03:00.0 is not on this machine");
    assert_int_equal(find_two("0004:04:00.0", "0004:07:00.0", false, &d), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "reports no UUID"));
}

TEST(what_inspect_says_is_read)
{
    struct hl_engine_state s;
    char ended[] = "abc exited 139 true 0 ", up[] = "abc running 0 false 77 ",
         made[] = "abc created 128 false 0 failed to create: error setting rlimit type 8",
         odd[] = "abc running", podman[] = "abc exited 3 false 0 <no value>";
    assert_int_equal(hl_engine_state_parse(ended, &s), HL_OK);
    assert_true(s.ended && s.oom);
    assert_int_equal(s.exit_code, 139);
    assert_int_equal(s.signal, 11);
    assert_int_equal(hl_engine_state_parse(up, &s), HL_OK);
    assert_false(s.ended || s.oom || s.created);
    assert_int_equal(s.pid, 77);
    assert_int_equal(hl_engine_state_parse(made, &s), HL_OK);
    assert_true(s.created && !s.ended);
    assert_string_equal(s.error, "failed to create: error setting rlimit type 8");
    assert_int_equal(hl_engine_state_parse(podman, &s), HL_OK);
    assert_string_equal(s.error, "");
    assert_int_equal(s.signal, 0);
    assert_int_equal(hl_engine_state_parse(odd, &s), HL_EPROTO);
}

static void assert_pinned(const char *image, const char *said, const char *want)
{
    char line[512];
    struct hl_engine_image found;
    snprintf(line, sizeof(line), "%s", said);
    assert_int_equal(hl_engine_image_parse(image, line, &found), HL_OK);
    assert_string_equal(found.pinned, want);
}

TEST(an_image_is_pinned_to_the_digest_of_its_repository)
{
    struct hl_engine_image found;
    char odd[] = "nothing";
    assert_pinned("reg:5000/a/train:2",
                  "sha256:1 [\"reg:5000/a/other@sha256:2\",\"reg:5000/a/train@sha256:3\"]",
                  "reg:5000/a/train@sha256:3");
    assert_pinned("reg:5000/train", "sha256:1 [\"reg:5000/train@sha256:4\"]",
                  "reg:5000/train@sha256:4");
    assert_pinned("debian:12", "1f2e [\"docker.io/library/debian@sha256:5\"]",
                  "docker.io/library/debian@sha256:5");
    /* a longer name with the same end is another repository */
    assert_pinned("bian:12", "sha256:1 [\"debian@sha256:5\"]", "sha256:1");
    /* made on this node: it has only its id, which podman prints without its kind */
    assert_pinned("own:1", "sha256:6 []", "sha256:6");
    assert_pinned("own:1", "6f null", "sha256:6f");
    assert_pinned("own:1", "6f [\"localhost/own@sha256:5\"]", "sha256:6f"); /* podman 4.3.1 */
    assert_pinned("localhost:5000/own:1", "6f [\"localhost:5000/own@sha256:5\"]",
                  "localhost:5000/own@sha256:5");
    /* the job has named it already */
    assert_pinned("r/x@sha256:7", "sha256:1 [\"r/x@sha256:8\"]", "r/x@sha256:7");
    assert_pinned("sha256:9", "sha256:9 [\"r/x@sha256:8\"]", "sha256:9");
    assert_int_equal(hl_engine_image_parse("x", odd, &found), HL_EPROTO);
}

TEST(an_unknown_executor_is_refused_with_the_names)
{
    enum hl_engine_kind kind;
    assert_int_equal(hl_engine_kind_of("podman", &kind), HL_OK);
    assert_int_equal(kind, HL_ENGINE_PODMAN);
    assert_int_equal(hl_engine_kind_of("lxc", &kind), HL_EUNSUPPORTED);
    assert_non_null(strstr(hl_error_text(), "use process, docker or podman"));
}

static char *words_of(const struct hl_args *args, char *out, size_t size)
{
    out[0] = '\0';
    for (size_t i = 0; i < args->count; i++)
        snprintf(out + strlen(out), size - strlen(out), "%s|", args->v[i]);
    return out;
}

/* Podman 4.3 ends with "can't evaluate field Label", and waits 10 s for what it removes. */
TEST(containers_are_listed_and_removed_in_the_engines_own_words)
{
    static const char *const having[] = {"helios.container=a", "helios.owner=b", NULL};
    static const char *const shown[] = {"helios.owner", "helios.rank", NULL};
    struct hl_arena arena = {0};
    struct hl_args docker = {.arena = &arena}, podman = docker, rm = docker, rm_podman = docker;
    char text[512];
    hl_engine_list_args(HL_ENGINE_DOCKER, having, shown, &docker);
    assert_string_equal(words_of(&docker, text, sizeof(text)),
                        "ps|--all|--no-trunc|--filter=label=helios.container=a|"
                        "--filter=label=helios.owner=b|"
                        "--format={{.ID}} {{.Label \"helios.owner\"}} {{.Label \"helios.rank\"}}|");
    hl_engine_list_args(HL_ENGINE_PODMAN, having, shown, &podman);
    assert_string_equal(podman.v[podman.count - 1], "--format={{.ID}} {{index .Labels "
                                                    "\"helios.owner\"}} {{index .Labels "
                                                    "\"helios.rank\"}}");
    hl_engine_remove_args(HL_ENGINE_DOCKER, &rm);
    assert_string_equal(words_of(&rm, text, sizeof(text)), "rm|--force|");
    hl_engine_remove_args(HL_ENGINE_PODMAN, &rm_podman);
    assert_string_equal(words_of(&rm_podman, text, sizeof(text)), "rm|--force|--time=0|");
    hl_arena_fini(&arena);
}
