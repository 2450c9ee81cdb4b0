/* rpc_lines ADDRESS INTERFACE: reads calls from stdin, one a line, and makes them in order, so that
 * a script needs no process for each.
 *
 *     in   METHOD TIMEOUT_MS {parameters}
 *     out  {"ok": true, "result": {...}} or {"ok": false, "status": "...", "text": "..."}
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/rpc_json.h"

static json_t *line_call(struct hl_rpc_peer *peer, const char *line)
{
    char method[64];
    int timeout_ms = 0, at = 0;
    json_t *result = NULL;
    hl_status st = HL_OK;
    if (sscanf(line, "%63s %d %n", method, &timeout_ms, &at) != 2 || timeout_ms <= 0)
        st = hl_fail(HL_EINVAL, "expected METHOD TIMEOUT_MS {parameters}");
    json_t *params = st == HL_OK ? json_loads(line + at, 0, NULL) : NULL;
    if (st == HL_OK && params == NULL)
        st = hl_fail(HL_EINVAL, "the parameters are no JSON");
    if (st == HL_OK)
        st = rpc_json_call(peer, method, params, timeout_ms, &result);
    json_decref(params);
    if (st == HL_OK)
        return json_pack("{s:b s:o}", "ok", 1, "result", result);
    return json_pack("{s:b s:s s:s}", "ok", 0, "status", hl_status_name(st), "text",
                     hl_error_text());
}

int main(int argc, char **argv)
{
    struct hl_rpc *rpc = NULL;
    struct hl_rpc_peer *peer = NULL;
    char *line = NULL;
    size_t room = 0;
    if (argc != 3 || hl_rpc_create(&rpc) != HL_OK ||
        hl_rpc_open(rpc, argv[1], argv[2], &peer) != HL_OK) {
        fprintf(stderr, "usage: rpc_lines ADDRESS Controller|Agent|L3: %s\n", hl_error_text());
        return 2;
    }
    while (getline(&line, &room, stdin) > 0) {
        json_t *answer = line_call(peer, line);
        json_dumpf(answer, stdout, JSON_COMPACT);
        json_decref(answer);
        putchar('\n');
        fflush(stdout);
    }
    free(line);
    hl_rpc_peer_close(peer);
    hl_rpc_destroy(rpc);
    return 0;
}
