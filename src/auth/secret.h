/* auth/secret.h - the cluster's secret, which every TCP protocol requires of a peer.
 *
 * A process has one secret, set before it serves or connects; without one, nothing is required. The
 * secret itself is never sent: RPC proves that both sides know it, the data port presents a key
 * derived from it, and ZeroMQ's CURVE derives its keys from it. It authenticates members of the
 * cluster, not individual users; it does not encrypt RPC and data.
 *
 * Owns:    the process's secret.
 * Threads: call hl_auth_use_file and hl_auth_use_none before other threads use the rest, or with
 *          the secret that is already in use; the rest from any thread.
 * Errors:  HL_ENOENT, HL_EPERM (others may read the file), HL_EINVAL (too short or too long),
 *          HL_ECONFLICT (the process uses a different one), HL_EEXIST, HL_EIO.
 * Units:   bytes.
 * Limits:  files of 16 to 4096 bytes, not counting a line feed at the end.
 * Source:  HMAC-SHA-256, RFC 2104.
 */
#ifndef HL_AUTH_SECRET_H
#define HL_AUTH_SECRET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define HL_AUTH_LEN 32 /* of keys, nonces and proofs */

/* Sets the process's secret. path "": changes nothing, so there is no secret unless one was set
 * before. "none": requires that there is none, HL_ECONFLICT otherwise. */
hl_status hl_auth_use_file(const char *path) HL_CHECK;
/* For tests: forgets the secret. */
void hl_auth_use_none(void);
bool hl_auth_is_set(void);
/* Creates a file with a new random secret that no other user may read; HL_OK when the file
 * exists. */
hl_status hl_auth_make_file(const char *path) HL_CHECK;

/* Derives a key for one purpose. */
void hl_auth_derive(const char *purpose, uint8_t out[HL_AUTH_LEN]);
/* A proof over two nonces that only a holder of the secret can compute. */
void hl_auth_proof(const char *purpose, const uint8_t a[HL_AUTH_LEN], const uint8_t b[HL_AUTH_LEN],
                   uint8_t out[HL_AUTH_LEN]);
/* Constant-time comparison. */
bool hl_auth_equal(const uint8_t a[HL_AUTH_LEN], const uint8_t b[HL_AUTH_LEN]);
hl_status hl_auth_nonce(uint8_t out[HL_AUTH_LEN]) HL_CHECK;

#endif
