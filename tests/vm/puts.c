/* puts ADDRESS TIMEOUT_MS COUNT BYTES: hands COUNT objects to a data server in one call.
 *
 * Byte i of object k is (i + k) % 251, so a fragment that lands in the wrong place shows. Prints
 * the path, then "stored ID" for each object in order, or what failed. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#include "auth/secret.h"
#include "base/crc32.h"
#include "net/net.h"

#define PERIOD 251

static unsigned char *make_object(size_t k, size_t len)
{
    unsigned char *p = malloc(len);
    for (size_t i = 0; p != NULL && i < len; i++)
        p[i] = (unsigned char)((i + k) % PERIOD);
    return p;
}

static int put_all(struct hl_net_client *client, size_t count, size_t len, int timeout_ms)
{
    struct hl_net_item *items = calloc(count, sizeof(*items));
    if (items == NULL)
        return 1;
    for (size_t k = 0; k < count; k++) {
        unsigned char *data = make_object(k, len);
        if (data == NULL)
            return 1;
        items[k] = (struct hl_net_item){.data = data, .len = len, .crc = hl_crc32(0, data, len)};
    }
    printf("path %s\n", hl_net_path_name(client));
    fflush(stdout); /* whoever kills us waits for this */
    hl_status st = hl_net_put_many(client, items, count, timeout_ms);
    if (st != HL_OK)
        printf("failed %s: %s\n", hl_status_name(st), hl_error_text());
    for (size_t k = 0; k < count; k++) {
        if (items[k].status == HL_OK)
            printf("stored %s\n", hl_id_format(items[k].id).s);
        free((void *)items[k].data);
    }
    fflush(stdout);
    free(items);
    return st != HL_OK;
}

int main(int argc, char **argv)
{
    struct hl_net_client *client;
    prctl(PR_SET_PDEATHSIG, SIGKILL); /* UCX spins on when the script is gone */
    if (argc != 5) {
        fprintf(stderr, "usage: puts ADDRESS TIMEOUT_MS COUNT BYTES\n");
        return 2;
    }
    const char *secret = getenv("HELIOS_AUTH_SECRET_FILE");
    if (hl_auth_use_file(secret != NULL ? secret : "") != HL_OK) {
        fprintf(stderr, "puts: %s\n", hl_error_text());
        return 1;
    }
    int timeout_ms = atoi(argv[2]);
    struct hl_net_connect_opts opts = {
        .address = argv[1], .timeout_ms = timeout_ms, .stall_ms = timeout_ms};
    if (hl_net_connect_with(&opts, &client) != HL_OK) {
        printf("refused: %s\n", hl_error_text());
        return 1;
    }
    int bad = put_all(client, strtoull(argv[3], NULL, 10), strtoull(argv[4], NULL, 10), timeout_ms);
    hl_net_close(client);
    return bad;
}
