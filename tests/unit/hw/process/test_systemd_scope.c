/* A scope is requested over a bus of the test's own; the test plays systemd at its other end. */
#include "support/test.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>
#include <unistd.h>

#include "base/clock.h"
#include "hw/process/systemd_scope.h"

#define SHORT_MS   300
#define PATIENT_MS 60000

enum manner { ENDS_JOB, REFUSES, KEEPS_SILENT, HANGS_UP, SIGNALS_OF_OTHERS };

struct fake_systemd {
    enum manner manner;
    const char *result; /* of the job */
    char folder[64], path[96];
    int listener;
    pthread_t thread;
    char unit[256], mode[16], slice[32], controllers[32];
    uint32_t pid;
    bool subscribed, matched;
};

static int skip_variant(sd_bus_message *m)
{
    return sd_bus_message_skip(m, "v");
}

static int read_strings(sd_bus_message *m, char *out, size_t cap)
{
    const char *word;
    sd_bus_message_enter_container(m, 'v', "as");
    sd_bus_message_enter_container(m, 'a', "s");
    while (sd_bus_message_read(m, "s", &word) > 0)
        snprintf(out + strlen(out), cap - strlen(out), "%s%s", *out ? " " : "", word);
    sd_bus_message_exit_container(m);
    return sd_bus_message_exit_container(m);
}

static void read_request(struct fake_systemd *f, sd_bus_message *m)
{
    const char *unit, *mode, *name, *text;
    sd_bus_message_read(m, "ss", &unit, &mode);
    snprintf(f->unit, sizeof(f->unit), "%s", unit);
    snprintf(f->mode, sizeof(f->mode), "%s", mode);
    sd_bus_message_enter_container(m, 'a', "(sv)");
    while (sd_bus_message_enter_container(m, 'r', "sv") > 0) {
        sd_bus_message_read(m, "s", &name);
        if (strcmp(name, "Slice") == 0 && sd_bus_message_read(m, "v", "s", &text) >= 0)
            snprintf(f->slice, sizeof(f->slice), "%s", text);
        else if (strcmp(name, "DelegateControllers") == 0)
            read_strings(m, f->controllers, sizeof(f->controllers));
        else if (strcmp(name, "PIDs") == 0)
            sd_bus_message_read(m, "v", "au", 1, &f->pid);
        else
            skip_variant(m);
        sd_bus_message_exit_container(m);
    }
}

static int signal_job_removed(sd_bus *bus, const char *unit, const char *result)
{
    sd_bus_message *m = NULL;
    int err = sd_bus_message_new_signal(bus, &m, "/org/freedesktop/systemd1",
                                        "org.freedesktop.systemd1.Manager", "JobRemoved");
    if (err >= 0)
        err = sd_bus_message_set_sender(m, ":1.1");
    if (err >= 0)
        err = sd_bus_message_append(m, "uoss", 7, "/org/freedesktop/systemd1/job/7", unit, result);
    if (err >= 0)
        err = sd_bus_send(bus, m, NULL);
    sd_bus_message_unref(m);
    return err;
}

static int start_unit(struct fake_systemd *f, sd_bus_message *m)
{
    sd_bus *bus = sd_bus_message_get_bus(m);
    read_request(f, m);
    if (f->manner == KEEPS_SILENT)
        return 1;
    if (f->manner == HANGS_UP) {
        sd_bus_close(bus);
        return 1;
    }
    if (f->manner == REFUSES)
        return sd_bus_reply_method_errorf(m, SD_BUS_ERROR_ACCESS_DENIED, "not on a Monday");
    sd_bus_reply_method_return(m, "o", "/org/freedesktop/systemd1/job/7");
    if (f->manner == SIGNALS_OF_OTHERS)
        return signal_job_removed(bus, "another.scope", "done");
    return signal_job_removed(bus, f->unit, f->result);
}

static int on_message(sd_bus_message *m, void *arg, sd_bus_error *error)
{
    struct fake_systemd *f = arg;
    (void)error;
    if (sd_bus_message_is_method_call(m, "org.freedesktop.DBus", "Hello"))
        return sd_bus_reply_method_return(m, "s", ":1.2");
    if (sd_bus_message_is_method_call(m, "org.freedesktop.DBus", "AddMatch"))
        return f->matched = sd_bus_reply_method_return(m, "") >= 0;
    if (sd_bus_message_is_method_call(m, NULL, "Subscribe"))
        return f->subscribed = true;
    if (sd_bus_message_is_method_call(m, NULL, "StartTransientUnit"))
        return start_unit(f, m);
    return 0;
}

/* Serves one connection until the peer closes it. */
static void *serve_bus(void *arg)
{
    struct fake_systemd *f = arg;
    sd_id128_t id;
    sd_bus *bus = NULL;
    int fd = accept(f->listener, NULL, NULL);
    if (fd < 0 || sd_id128_randomize(&id) < 0 || sd_bus_new(&bus) < 0)
        abort();
    if (sd_bus_set_fd(bus, fd, fd) < 0 || sd_bus_set_server(bus, 1, id) < 0 ||
        sd_bus_add_filter(bus, NULL, on_message, f) < 0 || sd_bus_start(bus) < 0)
        abort();
    for (int r = 0; r >= 0;) {
        r = sd_bus_process(bus, NULL);
        if (r == 0)
            r = sd_bus_wait(bus, UINT64_MAX);
    }
    sd_bus_close_unref(bus);
    return NULL;
}

static void fake_start(struct fake_systemd *f)
{
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    char address[128];
    snprintf(f->folder, sizeof(f->folder), "/tmp/hl-bus-XXXXXX");
    assert_non_null(mkdtemp(f->folder));
    snprintf(f->path, sizeof(f->path), "%s/bus", f->folder);
    snprintf(name.sun_path, sizeof(name.sun_path), "%s", f->path);
    snprintf(address, sizeof(address), "unix:path=%s", f->path);
    setenv("DBUS_SYSTEM_BUS_ADDRESS", address, 1);
    f->listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(f->listener >= 0);
    assert_int_equal(bind(f->listener, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(listen(f->listener, 1), 0);
    assert_int_equal(pthread_create(&f->thread, NULL, serve_bus, f), 0);
}

static void fake_stop(struct fake_systemd *f)
{
    pthread_join(f->thread, NULL);
    close(f->listener);
    unlink(f->path);
    rmdir(f->folder);
}

static hl_status ask(struct fake_systemd *f, int timeout_ms)
{
    fake_start(f);
    hl_status st = hl_systemd_scope("helios-test", timeout_ms);
    fake_stop(f);
    return st;
}

TEST(the_scope_is_asked_for_this_process_with_its_controllers)
{
    struct fake_systemd f = {.manner = ENDS_JOB, .result = "done"};
    assert_int_equal(ask(&f, PATIENT_MS), HL_EIO); /* the fake systemd moves no process */
    assert_non_null(strstr(hl_error_text(), "without this process"));
    assert_true(f.matched && f.subscribed);
    assert_string_equal(f.unit, "helios-test.scope");
    assert_string_equal(f.mode, "fail");
    assert_string_equal(f.slice, "helios.slice");
    assert_string_equal(f.controllers, "cpuset memory");
    assert_int_equal(f.pid, getpid());
}

TEST(a_job_that_fails_gives_no_scope)
{
    struct fake_systemd f = {.manner = ENDS_JOB, .result = "failed"};
    assert_int_equal(ask(&f, PATIENT_MS), HL_EIO);
    assert_non_null(strstr(hl_error_text(), "'failed'"));
}

TEST(the_reason_of_a_refusal_is_passed_on)
{
    struct fake_systemd f = {.manner = REFUSES};
    assert_int_equal(ask(&f, PATIENT_MS), HL_EIO);
    assert_non_null(strstr(hl_error_text(), "not on a Monday"));
}

TEST(a_bus_that_hangs_up_is_an_error)
{
    struct fake_systemd f = {.manner = HANGS_UP};
    assert_int_equal(ask(&f, PATIENT_MS), HL_EIO);
}

TEST(silence_ends_at_the_deadline)
{
    struct fake_systemd f = {.manner = KEEPS_SILENT};
    assert_int_equal(ask(&f, SHORT_MS), HL_ETIMEDOUT);
    struct fake_systemd others = {.manner = SIGNALS_OF_OTHERS};
    assert_int_equal(ask(&others, SHORT_MS), HL_ETIMEDOUT);
}

/* The connection stays in the listener's queue. */
TEST(a_bus_that_never_answers_ends_at_the_deadline)
{
    struct fake_systemd f = {.manner = KEEPS_SILENT};
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    fake_start(&f);
    int first = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    snprintf(name.sun_path, sizeof(name.sun_path), "%s", f.path);
    assert_int_equal(connect(first, (struct sockaddr *)&name, sizeof(name)), 0);
    assert_int_equal(hl_systemd_scope("helios-test", SHORT_MS), HL_ETIMEDOUT);
    close(first);
    fake_stop(&f);
}

TEST(without_a_bus_there_is_no_scope)
{
    setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path=/nonexistent/bus", 1);
    assert_int_equal(hl_systemd_scope("helios-test", PATIENT_MS), HL_ENOENT);
}
