/* The environment that a rank gets about its node: only what the job does not set itself. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agent/agent_private.h"
#include "agent/store_private.h"
#include "os/file.h"

static struct hl_api_device gpus_a[] = {{.id = "0000:81:00.0"}, {.id = "0000:02:00.0"}};
static struct hl_api_device gpus_b[] = {{.id = "0000:41:00.0"}};
static struct hl_api_device nics_a[] = {{.name = "mlx5_0"}, {.name = "eth0"}, {.name = "mlx5_1"}};
static struct hl_api_device nics_b[] = {{.name = "mlx5_2"}};
static struct hl_api_slot slots[] = {
    {.numa_id = 0, .gpus = {gpus_a, 2}, .nics = {nics_a, 3}},
    {.numa_id = 1, .gpus = {gpus_b, 1}, .nics = {nics_b, 1}},
};

static const struct hl_executor_ops processes = {.name = "process"};
static struct hl_executor executor = {.ops = &processes};

struct rig {
    struct hl_agent a;
    struct store store;
    struct hl_auth_conf auth;
    struct hl_net_conf data;
    struct hl_read_conf read;
    struct hl_container_spec spec;
    char library[32], python_dir[32], verbs[32];
};

static int setup(void **state)
{
    static struct rig r;
    r = (struct rig){.library = "/lib/libhelios.so.0", .data = *hl_net_conf_default()};
    if (hl_options_defaults(hl_auth_rows.rows, hl_auth_rows.count, &r.auth) != HL_OK ||
        hl_options_defaults(hl_read_retry_rows.rows, hl_read_retry_rows.count, &r.read) != HL_OK ||
        hl_options_defaults(hl_read_timeout_rows.rows, hl_read_timeout_rows.count, &r.read) !=
            HL_OK)
        return -1;
    r.a = (struct hl_agent){.name = "node-1",
                            .interface = "eth7",
                            .library = r.library,
                            .python_dir = r.python_dir,
                            .store = &r.store,
                            .executor = &executor,
                            .auth = &r.auth,
                            .data = &r.data,
                            .read = &r.read,
                            .node.slots = {slots, 2}};
    *state = &r;
    snprintf(r.verbs, sizeof(r.verbs), "/tmp/helios-test-env-XXXXXX");
    if (mkdtemp(r.verbs) == NULL)
        return -1;
    r.a.verbs_dir = r.verbs;
    return env_find_gpus(&r.a, &r.a.node.slots) == HL_OK ? 0 : -1;
}

/* A port of an RDMA device, as the kernel shows it. */
static void make_port(const struct rig *r, const char *nic, int port, const char *state)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/%s/ports/%d", r->verbs, nic, port);
    assert_int_equal(hl_dir_make(path, 0755), HL_OK);
    snprintf(path, sizeof(path), "%s/%s/ports/%d/state", r->verbs, nic, port);
    assert_int_equal(hl_file_write_atomic(path, state, strlen(state)), HL_OK);
}

static int teardown(void **state)
{
    struct rig *r = *state;
    r->spec.gpus = NULL; /* not its own */
    r->spec.gpu_count = 0;
    hl_container_spec_fini(&r->spec);
    hl_arena_fini(&r->a.arena);
    if (hl_dir_remove(r->verbs) != HL_OK)
        return -1;
    hl_args_fini(hl_auth_rows.rows, hl_auth_rows.count, &r->auth);
    hl_args_fini(hl_read_retry_rows.rows, hl_read_retry_rows.count, &r->read);
    hl_args_fini(hl_read_timeout_rows.rows, hl_read_timeout_rows.count, &r->read);
    return 0;
}

/* A variable of the rank, after env_complete. */
static const char *variable(struct rig *r, const char *key)
{
    return hl_env_get(&r->spec.env, key);
}

static void give_gpus(struct rig *r, int numa, size_t count, const char *const *ids)
{
    r->spec.numa_id = numa;
    r->spec.gpus = (char **)ids; /* only read */
    r->spec.gpu_count = count;
}

TEST_IN(setup, teardown, gpus_are_numbered_in_the_order_of_the_bus)
{
    struct rig *r = *state;
    assert_int_equal(r->a.gpu_count, 3);
    assert_string_equal(r->a.gpus[0], "0000:02:00.0");
    assert_string_equal(r->a.gpus[1], "0000:41:00.0");
    assert_string_equal(r->a.gpus[2], "0000:81:00.0");
}

TEST_IN(setup, teardown, more_gpus_than_can_be_numbered_are_refused)
{
    static struct hl_api_device many[257];
    struct rig *r = *state;
    for (size_t i = 0; i < HL_ARRAY_LEN(many); i++)
        many[i].id = "0000:01:00.0";
    struct hl_api_slot slot = {.gpus = {many, 256}};
    assert_int_equal(env_find_gpus(&r->a, &(struct hl_api_slot_list){&slot, 1}), HL_OK);
    slot.gpus.count = 257;
    assert_int_equal(env_find_gpus(&r->a, &(struct hl_api_slot_list){&slot, 1}), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "256"));
    assert_int_equal(r->a.gpu_count, 256); /* as they were */
}

TEST_IN(setup, teardown, a_rank_is_told_its_node)
{
    struct rig *r = *state;
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_string_equal(variable(r, "HELIOS_NODE"), "node-1");
    assert_string_equal(variable(r, "GLOO_SOCKET_IFNAME"), "eth7");
    assert_string_equal(variable(r, "HELIOS_LIBRARY"), "/lib/libhelios.so.0");
    assert_string_equal(variable(r, "PYTHONUNBUFFERED"), "1");
}

TEST_IN(setup, teardown, what_the_job_says_stays)
{
    struct rig *r = *state;
    static const char *const keys[] = {"HELIOS_NODE",          "GLOO_SOCKET_IFNAME",
                                       "CUDA_VISIBLE_DEVICES", "NCCL_SOCKET_IFNAME",
                                       "NCCL_IB_HCA",          "PYTHONUNBUFFERED"};
    static const char *const ids[] = {"0000:41:00.0"};
    for (size_t i = 0; i < HL_ARRAY_LEN(keys); i++)
        assert_int_equal(hl_env_set(&r->spec.env, keys[i], "mine"), HL_OK);
    give_gpus(r, 1, 1, ids);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    for (size_t i = 0; i < HL_ARRAY_LEN(keys); i++)
        assert_string_equal(variable(r, keys[i]), "mine");
    assert_null(variable(r, "HYBRIDPS_DEVICES")); /* which devices are visible is not known */
}

TEST_IN(setup, teardown, what_the_node_does_not_know_is_not_set)
{
    struct rig *r = *state;
    r->a.interface[0] = '\0';
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_null(variable(r, "GLOO_SOCKET_IFNAME"));
    assert_null(variable(r, "HELIOS_STORE_SOCKET")); /* the store has no socket */
    assert_null(variable(r, "HYBRIDPS_MANAGER"));    /* there is no table of chunks */
    assert_null(variable(r, "HELIOS_L3_SOCKET"));
    assert_null(variable(r, "PYTHONPATH"));
}

TEST_IN(setup, teardown, without_gpus_nothing_is_said_of_cuda)
{
    struct rig *r = *state;
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_null(variable(r, "CUDA_VISIBLE_DEVICES"));
    assert_null(variable(r, "CUDA_DEVICE_ORDER"));
    assert_null(variable(r, "NCCL_SOCKET_IFNAME"));
    assert_null(variable(r, "NCCL_IB_HCA"));
}

TEST_IN(setup, teardown, gpus_are_shown_by_the_machine_s_numbers_in_the_order_given)
{
    struct rig *r = *state;
    static const char *const ids[] = {"0000:81:00.0", "0000:02:00.0"};
    give_gpus(r, 0, 2, ids);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_string_equal(variable(r, "CUDA_VISIBLE_DEVICES"), "2,0");
    assert_string_equal(variable(r, "HYBRIDPS_DEVICES"), "0,1"); /* in the order of the slots */
    assert_string_equal(variable(r, "CUDA_DEVICE_ORDER"), "PCI_BUS_ID");
    assert_string_equal(variable(r, "NCCL_SOCKET_IFNAME"), "eth7");
}

TEST_IN(setup, teardown, the_second_container_s_gpus_have_numbers_of_their_own_in_the_table)
{
    struct rig *r = *state;
    static const char *const ids[] = {"0000:41:00.0"};
    give_gpus(r, 1, 1, ids);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_string_equal(variable(r, "CUDA_VISIBLE_DEVICES"), "1");
    assert_string_equal(variable(r, "HYBRIDPS_DEVICES"), "2");
}

TEST_IN(setup, teardown, a_gpu_that_is_not_the_machine_s_hides_nothing)
{
    struct rig *r = *state;
    static const char *const ids[] = {"0000:02:00.0", "0000:99:00.0"};
    give_gpus(r, 0, 2, ids);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_null(variable(r, "CUDA_VISIBLE_DEVICES"));
    assert_null(variable(r, "HYBRIDPS_DEVICES"));
    assert_null(variable(r, "CUDA_DEVICE_ORDER"));
}

TEST_IN(setup, teardown, rdma_adapters_are_those_of_the_rank_s_own_numa_node)
{
    struct rig *r = *state;
    static const char *const ids[] = {"0000:02:00.0"};
    give_gpus(r, 0, 1, ids);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_string_equal(variable(r, "NCCL_IB_HCA"), "=mlx5_0,mlx5_1"); /* eth0 has none */
    assert_int_equal(r->spec.nic_count, 2);
    assert_null(variable(r, "UCX_NET_DEVICES")); /* they belong to another machine */
}

TEST_IN(setup, teardown, ucx_is_told_the_ports_that_carry_something)
{
    struct rig *r = *state;
    make_port(r, "mlx5_0", 1, "1: DOWN\n");
    make_port(r, "mlx5_0", 2, "4: ACTIVE\n");
    make_port(r, "mlx5_1", 1, "4: ACTIVE\n");
    make_port(r, "mlx5_2", 1, "4: ACTIVE\n"); /* the other slot's */
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_string_equal(variable(r, "UCX_NET_DEVICES"), "mlx5_0:2,mlx5_1:1");
    assert_null(variable(r, "NCCL_IB_HCA")); /* the slot has no GPUs */
}

TEST_IN(setup, teardown, an_adapter_that_udev_has_renamed_is_one)
{
    struct rig *r = *state;
    make_port(r, "eth0", 1, "4: ACTIVE\n");
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_int_equal(r->spec.nic_count, 3);
    assert_string_equal(variable(r, "UCX_NET_DEVICES"), "eth0:1");
}

TEST_IN(setup, teardown, a_numa_node_without_adapters_has_all_and_the_libraries_choose)
{
    struct rig *r = *state;
    static const char *const ids[] = {"0000:02:00.0"};
    make_port(r, "mlx5_2", 1, "4: ACTIVE\n");
    give_gpus(r, 5, 1, ids);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_int_equal(r->spec.nic_count, 3);
    assert_string_equal(r->spec.nics[2], "mlx5_2");
    assert_null(variable(r, "NCCL_IB_HCA"));
    assert_null(variable(r, "UCX_NET_DEVICES"));
}

TEST_IN(setup, teardown, python_finds_helios_before_the_job_s_own_paths)
{
    struct rig *r = *state;
    snprintf(r->python_dir, sizeof(r->python_dir), "/opt/helios/python");
    assert_int_equal(hl_env_set(&r->spec.env, "PYTHONPATH", "/mine:/other"), HL_OK);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_string_equal(variable(r, "PYTHONPATH"), "/opt/helios/python:/mine:/other");
}

TEST_IN(setup, teardown, an_empty_python_path_adds_no_current_directory)
{
    struct rig *r = *state;
    snprintf(r->python_dir, sizeof(r->python_dir), "/opt/helios/python");
    assert_int_equal(hl_env_set(&r->spec.env, "PYTHONPATH", ""), HL_OK);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_string_equal(variable(r, "PYTHONPATH"), "/opt/helios/python");
}

TEST_IN(setup, teardown, an_l3_that_does_not_answer_leaves_the_rank_without_its_socket)
{
    struct rig *r = *state;
    assert_int_equal(hl_env_set(&r->spec.env, "CONTROLLER_L3_CACHE_ADDRESS", ""), HL_OK);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_null(variable(r, "HELIOS_L3_SOCKET"));
    assert_int_equal(hl_env_set(&r->spec.env, "HELIOS_L3_SOCKET", "/mine"), HL_OK);
    assert_int_equal(env_complete(&r->a, &r->spec), HL_OK);
    assert_string_equal(variable(r, "HELIOS_L3_SOCKET"), "/mine");
}

TEST_IN(setup, teardown, an_address_that_was_given_is_the_one_told)
{
    struct rig *r = *state;
    env_find_addresses(&r->a, "unix:/tmp/c.sock", "127.0.0.1");
    assert_string_equal(r->a.rank_address, "127.0.0.1");
    assert_string_equal(r->a.host_address, "127.0.0.1");
    assert_string_equal(r->a.interface, "lo");
}

TEST_IN(setup, teardown, the_address_is_the_one_that_leads_to_the_controller)
{
    struct rig *r = *state;
    env_find_addresses(&r->a, "127.0.0.1:7400", "");
    assert_string_equal(r->a.rank_address, "127.0.0.1");
    assert_string_equal(r->a.interface, "lo");
}

TEST_IN(setup, teardown, a_name_without_an_address_is_told_and_has_no_interface)
{
    struct rig *r = *state;
    env_find_addresses(&r->a, "127.0.0.1:7400", "no-such-host.invalid");
    assert_string_equal(r->a.rank_address, "no-such-host.invalid");
    assert_string_equal(r->a.host_address, "");
    assert_string_equal(r->a.interface, "");
}
