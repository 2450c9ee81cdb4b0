/* The secret of this process's cluster, hashed to a key of fixed length.
 *
 *     none --hl_auth_use_file--> set --the same secret again--> set
 *                                 '---another one: HL_ECONFLICT, the first one stays
 *
 * `lock` guards is_set and master, which belong together: a program may open a second client with
 * the same file while threads of the first one connect. A proof is computed from a copy of the key,
 * so the lock is only held while 32 bytes are copied, and the copy is wiped. */
#include "auth/secret.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "os/file.h"

#define FILE_MIN 16
#define FILE_MAX 4096

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool is_set;
static uint8_t master[HL_AUTH_LEN];

/* The group may read the file, because a package gives it to the daemons' group; other users may
 * not. */
static hl_status check_owner(int fd, const char *path)
{
    struct stat st;
    if (fstat(fd, &st) != 0)
        return hl_fail(HL_EIO, "secret file %s: %m", path);
    if (!S_ISREG(st.st_mode) || (st.st_uid != geteuid() && st.st_uid != 0) ||
        (st.st_mode & (S_IWGRP | S_IRWXO)) != 0)
        return hl_fail(
            HL_EPERM,
            "secret file %s: it has mode %03o and belongs to user %u; it must be a file of "
            "this user or root that others may not read (chmod 600)",
            path, (unsigned)st.st_mode & 0777, (unsigned)st.st_uid);
    return HL_OK;
}

static hl_status read_file(const char *path, uint8_t out[HL_AUTH_LEN])
{
    char text[FILE_MAX + 1];
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0)
        return hl_fail(errno == ENOENT ? HL_ENOENT : HL_EPERM,
                       "secret file %s: %m; auth.secret_file names it", path);
    hl_status st = check_owner(fd, path);
    ssize_t n = st == HL_OK ? read(fd, text, sizeof(text)) : 0;
    close(fd);
    HL_TRY(st);
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r'))
        n--;
    if (n < FILE_MIN || n > FILE_MAX)
        return hl_fail(HL_EINVAL, "secret file %s: %zd bytes (expected %d to %d)", path, n,
                       FILE_MIN, FILE_MAX);
    unsigned len = HL_AUTH_LEN;
    EVP_Digest(text, (size_t)n, out, &len, EVP_sha256(), NULL);
    OPENSSL_cleanse(text, sizeof(text));
    return HL_OK;
}

hl_status hl_auth_use_file(const char *path)
{
    uint8_t key[HL_AUTH_LEN];
    if (path[0] == '\0')
        return HL_OK;
    if (strcmp(path, "none") == 0)
        return !hl_auth_is_set() ? HL_OK
                                 : hl_fail(HL_ECONFLICT, "secret file none: this process has a "
                                                         "cluster's secret already");
    HL_TRY(read_file(path, key));
    pthread_mutex_lock(&lock);
    bool other = is_set && !hl_auth_equal(key, master);
    if (!other)
        memcpy(master, key, sizeof(master));
    is_set = true;
    pthread_mutex_unlock(&lock);
    OPENSSL_cleanse(key, sizeof(key));
    if (other)
        return hl_fail(HL_ECONFLICT, "secret file %s: this process uses another cluster's secret",
                       path);
    return HL_OK;
}

void hl_auth_use_none(void)
{
    pthread_mutex_lock(&lock);
    is_set = false;
    pthread_mutex_unlock(&lock);
}

bool hl_auth_is_set(void)
{
    pthread_mutex_lock(&lock);
    bool set = is_set;
    pthread_mutex_unlock(&lock);
    return set;
}

hl_status hl_auth_make_file(const char *path)
{
    uint8_t bytes[HL_AUTH_LEN];
    char text[2 * HL_AUTH_LEN + 1];
    HL_TRY(hl_auth_nonce(bytes));
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0 && errno == EEXIST)
        return HL_OK;
    if (fd < 0)
        return hl_fail(hl_status_of_errno(errno), "secret file %s: %m", path);
    for (size_t i = 0; i < sizeof(bytes); i++)
        snprintf(text + 2 * i, 3, "%02x", bytes[i]);
    text[sizeof(text) - 1] = '\n';
    bool written = write(fd, text, sizeof(text)) == (ssize_t)sizeof(text) && fsync(fd) == 0;
    int error = errno;
    close(fd);
    if (written)
        return HL_OK;
    unlink(path);
    return hl_fail(hl_status_of_errno(error), "secret file %s: %s", path, strerror(error));
}

/* Computes the HMAC of the parts, one after the other. */
static void secret_mac(const char *purpose, const uint8_t *a, const uint8_t *b,
                       uint8_t out[HL_AUTH_LEN])
{
    uint8_t text[64 + 2 * HL_AUTH_LEN], key[HL_AUTH_LEN];
    size_t n = strnlen(purpose, 63);
    unsigned len = HL_AUTH_LEN;
    memset(text, 0, sizeof(text));
    memcpy(text, purpose, n); /* padded, so that no purpose runs into the next part */
    n = 64;
    if (a != NULL) {
        memcpy(text + n, a, HL_AUTH_LEN);
        memcpy(text + n + HL_AUTH_LEN, b, HL_AUTH_LEN);
        n += 2 * HL_AUTH_LEN;
    }
    pthread_mutex_lock(&lock);
    memcpy(key, master, sizeof(key));
    pthread_mutex_unlock(&lock);
    HMAC(EVP_sha256(), key, sizeof(key), text, n, out, &len);
    OPENSSL_cleanse(key, sizeof(key));
}

void hl_auth_derive(const char *purpose, uint8_t out[HL_AUTH_LEN])
{
    secret_mac(purpose, NULL, NULL, out);
}

void hl_auth_proof(const char *purpose, const uint8_t a[HL_AUTH_LEN], const uint8_t b[HL_AUTH_LEN],
                   uint8_t out[HL_AUTH_LEN])
{
    secret_mac(purpose, a, b, out);
}

bool hl_auth_equal(const uint8_t a[HL_AUTH_LEN], const uint8_t b[HL_AUTH_LEN])
{
    return CRYPTO_memcmp(a, b, HL_AUTH_LEN) == 0;
}

hl_status hl_auth_nonce(uint8_t out[HL_AUTH_LEN])
{
    if (getrandom(out, HL_AUTH_LEN, 0) != HL_AUTH_LEN)
        return hl_fail(HL_EIO, "random bytes: %m");
    return HL_OK;
}
