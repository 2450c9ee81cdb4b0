/* A daemon of a local cluster is started and recorded, or does not go on; and what changes with the
 * flags of another `up`. */
#include "support/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/local/local_private.h"
#include "os/file.h"

/* A state directory whose helios-l3d does nothing but stay alive. */
struct rig {
    char state[64];
    struct local_opts opts;
    struct local l;
};

static void rig_make(struct rig *r)
{
    static const struct hl_api_key_value_list nothing;
    static const char script[] = "#!/bin/sh\nexec sleep 600\n";
    char path[128];
    snprintf(r->state, sizeof(r->state), "/tmp/helios-launch-XXXXXX");
    assert_non_null(mkdtemp(r->state));
    snprintf(path, sizeof(path), "%s/log", r->state);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/helios-l3d", r->state);
    assert_int_equal(hl_file_write_atomic(path, script, strlen(script)), HL_OK);
    assert_int_equal(chmod(path, 0700), 0);
    r->opts = (struct local_opts){.state = r->state, .given = &nothing};
    r->l = (struct local){.opts = &r->opts, .cluster.doc = {.state = r->state, .pool = ""}};
    snprintf(r->l.bin, sizeof(r->l.bin), "%s", r->state);
    snprintf(r->l.pool, sizeof(r->l.pool), "%s/pool", r->state);
    assert_int_equal(local_settings_load(&nothing, NULL, &r->l.settings), HL_OK);
    assert_int_equal(local_settings_store(&r->l.settings, &r->l.cluster), HL_OK);
}

static void rig_end(struct rig *r)
{
    local_settings_fini(&r->l.settings);
    local_cluster_fini(&r->l.cluster);
    hl_arena_fini(&r->l.arena);
    assert_int_equal(hl_dir_remove(r->state), HL_OK);
}

TEST(a_daemon_that_is_started_stands_in_cluster_json)
{
    struct rig r;
    struct local_cluster read;
    rig_make(&r);
    assert_int_equal(local_daemon_launch(&r.l, 0), HL_OK);
    assert_int_equal(local_read(r.state, &read), HL_OK);
    bool runs = local_daemon_runs(local_daemon_find(&read.doc, "l3d"));
    bool ended = local_end_daemon(&read.doc, "l3d");
    assert_true(runs && ended);
    local_cluster_fini(&read);
    rig_end(&r);
}

TEST(a_daemon_that_cluster_json_can_not_take_is_ended)
{
    struct rig r;
    char path[128];
    rig_make(&r);
    snprintf(path, sizeof(path), "%s/cluster.json", r.state);
    assert_int_equal(mkdir(path, 0700), 0); /* no file can be renamed to it, not even by root */
    assert_int_not_equal(local_daemon_launch(&r.l, 0), HL_OK);
    assert_non_null(strstr(hl_error_text(), path));
    const struct hl_api_local_daemon *d = local_daemon_find(&r.l.cluster.doc, "l3d");
    assert_non_null(d);
    assert_true(d->pid > 0); /* it had been started */
    bool runs = local_end_daemon(&r.l.cluster.doc, "l3d");
    assert_false(runs);
    assert_int_equal(kill((pid_t)d->pid, 0), -1);
    assert_int_equal(errno, ESRCH);
    rig_end(&r);
}

/* In a terminal, Ctrl-C goes to both. */
TEST(an_interrupted_start_does_not_blame_the_daemon)
{
    static const char script[] = "#!/bin/sh\nkill -INT $PPID\nkill -INT $$\n";
    struct rig r;
    char path[128];
    rig_make(&r);
    r.opts.ready_ms = 60000;
    snprintf(path, sizeof(path), "%s/helios-l3d", r.state);
    assert_int_equal(hl_file_write_atomic(path, script, strlen(script)), HL_OK);
    assert_int_equal(chmod(path, 0700), 0);
    local_signals_begin();
    hl_status st = local_daemon_start(&r.l, 0);
    local_signals_end();
    assert_int_equal(st, HL_ECANCELED);
    assert_non_null(strstr(hl_error_text(), "l3d"));
    rig_end(&r);
}

/* What another `up` with this flag too asks for. */
static void rig_ask(const struct rig *r, const char *flag, const char *value,
                    struct local_settings *out)
{
    struct hl_api_key_value pair = {flag, value};
    const struct hl_api_key_value_list given = {&pair, 1};
    assert_int_equal(local_settings_load(&given, &r->l.cluster.doc, out), HL_OK);
}

TEST(addresses_move_with_a_flag_that_differs)
{
    static const struct hl_api_key_value_list nothing;
    struct local_settings same = {0}, other = {0}, plane = {0};
    struct rig r;
    rig_make(&r);
    assert_int_equal(local_settings_load(&nothing, &r.l.cluster.doc, &same), HL_OK);
    assert_false(local_settings_moved(&same, &r.l.cluster.doc));
    rig_ask(&r, "address", "127.0.0.2", &other);
    assert_true(local_settings_moved(&other, &r.l.cluster.doc));
    setenv("HELIOS_PLANE_MANAGEMENT", "127.0.0.0/8", 1);
    assert_int_equal(local_settings_load(&nothing, &r.l.cluster.doc, &plane), HL_OK);
    unsetenv("HELIOS_PLANE_MANAGEMENT");
    assert_true(local_settings_moved(&plane, &r.l.cluster.doc));
    local_settings_fini(&plane);
    local_settings_fini(&same);
    local_settings_fini(&other);
    rig_end(&r);
}

TEST(a_node_memory_of_another_size_is_not_promised_to_a_kept_cluster)
{
    struct local_settings first = {0}, other = {0}, none = {0};
    struct rig r;
    rig_make(&r);
    rig_ask(&r, "l2-size", "16777216", &first);
    assert_int_equal(local_settings_compare(&first, &r.l.cluster.doc), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "--keep")); /* there is none yet */
    assert_int_equal(local_settings_store(&first, &r.l.cluster), HL_OK);
    rig_ask(&r, "l2-size", "33554432", &other);
    assert_int_equal(local_settings_compare(&other, &r.l.cluster.doc), HL_EINVAL);
    assert_null(strstr(hl_error_text(), "--keep"));
    rig_ask(&r, "l2-size", "0", &none);
    assert_int_equal(local_settings_compare(&none, &r.l.cluster.doc), HL_EINVAL);
    assert_non_null(strstr(hl_error_text(), "--keep"));
    local_settings_fini(&first);
    local_settings_fini(&other);
    local_settings_fini(&none);
    rig_end(&r);
}
