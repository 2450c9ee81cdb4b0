/* auth/secret.h - the cluster's secret, which every TCP protocol asks a peer for.
 *
 * A process has one, set before it serves or connects; without one nothing is asked. The secret
 * itself never travels: RPC proves that both sides know it, the data port shows a key derived from
 * it, and ZeroMQ's CURVE takes its keys from it. It says who belongs to the cluster, not which user
 * somebody is; RPC and data are not encrypted by it.
 *
 * Owns:    the process's secret.
 * Threads: hl_auth_use_file and hl_auth_use_none before other threads use the rest, or with the
 *          secret that is in use already; the rest from any.
 * Errors:  HL_ENOENT, HL_EPERM (others may read the file), HL_EINVAL (too short or too long),
 *          HL_ECONFLICT (the process uses another one), HL_EEXIST, HL_EIO.
 * Units:   bytes.
 * Limits:  files of 16 to 4096 bytes; a line feed at the end does not count.
 * Source:  HMAC-SHA-256, RFC 2104.
 */
#ifndef HL_AUTH_SECRET_H
#define HL_AUTH_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_AUTH_LEN 32 /* of keys, nonces and proofs */

/* path "": the process has none, unless it was set before; "none": it is to have none. */
hl_status hl_auth_use_file(const char *path) HL_CHECK;
/* For tests: forget it. */
void hl_auth_use_none(void);
bool hl_auth_is_set(void);
/* A new random secret in a file that nobody else may read; HL_OK when the file is there. */
hl_status hl_auth_make_file(const char *path) HL_CHECK;

/* A key for one purpose. */
void hl_auth_derive(const char *purpose, uint8_t out[HL_AUTH_LEN]);
/* What only who knows the secret can say about two nonces. */
void hl_auth_proof(const char *purpose, const uint8_t a[HL_AUTH_LEN], const uint8_t b[HL_AUTH_LEN],
                   uint8_t out[HL_AUTH_LEN]);
/* In a time that does not depend on where they differ. */
bool hl_auth_equal(const uint8_t a[HL_AUTH_LEN], const uint8_t b[HL_AUTH_LEN]);
hl_status hl_auth_nonce(uint8_t out[HL_AUTH_LEN]) HL_CHECK;

#endif
