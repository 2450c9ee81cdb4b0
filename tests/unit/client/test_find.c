/* The Controller of this machine's cluster, read from cluster.json. */
#include "support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/client_private.h"

#define STATE "/tmp/helios-test-find-XXXXXX"

static char dir[sizeof(STATE)];
static char path[sizeof(STATE) + 16];

static void put_cluster(const char *text)
{
    if (path[0] == '\0') {
        memcpy(dir, STATE, sizeof(STATE));
        assert_non_null(mkdtemp(dir));
        snprintf(path, sizeof(path), "%s/cluster.json", dir);
        setenv("HELIOS_STATE", dir, 1);
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static void end_state(void)
{
    unlink(path);
    rmdir(dir);
    path[0] = '\0';
}

TEST(the_address_of_the_running_cluster_is_found)
{
    char *address = NULL;
    enum found how;
    put_cluster("{\"state\": \"/s\", \"nodes\": 2, \"controller\": \"127.0.0.1:7400\","
                " \"node-0\": {\"pid\": 7}, \"of a newer release\": 1}");
    assert_int_equal(find_controller(&address, &how), HL_OK);
    assert_string_equal(address, "127.0.0.1:7400");
    assert_int_equal(how, FOUND_LOCAL);
    free(address);
    end_state();
}

static void is_refused(const char *text, hl_status wanted, const char *named)
{
    char *address = NULL;
    enum found how;
    put_cluster(text);
    assert_int_equal(find_controller(&address, &how), wanted);
    assert_null(address);
    if (strstr(hl_error_text(), named) == NULL)
        fail_msg("%s is not named: %s", named, hl_error_text());
}

TEST(what_is_wrong_with_the_file_is_named)
{
    is_refused("{\"controller\": 7400}", HL_ECORRUPT, "cluster.json: field controller");
    is_refused("{\"controller\": \"a:1\", \"secretFile\": true}", HL_ECORRUPT, "field secretFile");
    is_refused("[]", HL_ECORRUPT, "cluster.json");
    is_refused("{\"controller\"", HL_ECORRUPT, "cluster.json: line 1");
    is_refused("{\"state\": \"/s\"}", HL_EUNAVAIL, "helios up");
    end_state();
}
