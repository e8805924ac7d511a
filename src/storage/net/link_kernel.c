/*
 * Handing the receiving side of a TLS connection to the kernel.
 *
 * The kernel wants the key, the nonce's fixed part and the number of the next record. OpenSSL tells
 * the secret that key and nonce are derived from (RFC 8446, section 7.3) through its key log, and
 * each record's head through its message callback: with that the records can be counted. libcurl's
 * own input and output below OpenSSL keeps OpenSSL from doing all this itself, and OpenSSL 3.0
 * would do it for TLS 1.2 only.
 *
 * What it costs is measured as it goes (processor time of this thread in receiving, both ways):
 * the kernel saves a copy, but its ciphers may be slower than OpenSSL's.
 */
#include "link_kernel.h"

#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/core_names.h>
#include <openssl/kdf.h>
#include <openssl/objects.h>
#include <openssl/params.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "log.h"
#include "metrics.h"

#ifndef TCP_ULP
#define TCP_ULP 31
#endif
#ifndef SOL_TLS
#define SOL_TLS 282
#endif
#ifndef TLS_RX_EXPECT_NO_PAD
#define TLS_RX_EXPECT_NO_PAD 4
#endif

enum {
    RECORD_ALERT = 21,
    RECORD_HANDSHAKE = 22,
    RECORD_DATA = 23,
    MESSAGE_TICKET = 4,
    MESSAGE_KEY_UPDATE = 24,
    KEY_BYTES_MAX = 32,
    NONCE_BYTES = 12,
    PROBE_BYTES = 8 << 20,  /* each way, before the kernel is judged */
    PROBE_EVERY = 4,        /* time of asking, a connection is handed over to find out */
    EMPTY_RECORDS_MAX = 64, /* in a row, before other connections have their turn */
};

static int context_slot = -1;
static pthread_once_t slot_once = PTHREAD_ONCE_INIT;

/* What this process knows of its kernel. */
static struct {
    pthread_mutex_t mutex;
    bool missing; /* it does not do it */
    bool used, logged;
    unsigned asked;
    uint64_t ns[2], bytes[2]; /* spent in receiving; [1]: by the kernel */
} state = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static void make_slot(void)
{
    context_slot = SSL_CTX_get_ex_new_index(0, NULL, NULL, NULL, NULL);
}

/* ---- what OpenSSL tells ---------------------------------------------------------------------- */

static struct sl_kernel_tls *of_connection(const SSL *ssl)
{
    return SSL_CTX_get_ex_data(SSL_get_SSL_CTX(ssl), context_slot);
}

static int hex_digit(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* The secret at the end of "LABEL RANDOM SECRET", in hexadecimal. */
static bool take_secret(struct sl_kernel_tls *kernel, const char *line, const char *label)
{
    size_t length = strlen(label), count = 0;
    if (strncmp(line, label, length) != 0)
        return false;
    const char *at = strchr(line + length, ' ');
    for (at = at ? at + 1 : ""; count < sizeof(kernel->secret) && at[0] && at[1]; at += 2) {
        int high = hex_digit(at[0] | 0x20), low = hex_digit(at[1] | 0x20);
        if (high < 0 || low < 0)
            return false;
        kernel->secret[count++] = (uint8_t)(high << 4 | low);
    }
    kernel->secret_bytes = count;
    return true;
}

/* With TLS 1.3 the secret of what the server sends from now on; with 1.2 the master secret, before
 * the server changes to keys of it (note_message). */
static void note_secret(const SSL *ssl, const char *line)
{
    struct sl_kernel_tls *kernel = of_connection(ssl);
    if (!kernel || (!take_secret(kernel, line, "SERVER_TRAFFIC_SECRET_0 ") &&
                    !take_secret(kernel, line, "CLIENT_RANDOM ")))
        return;
    kernel->ssl = (SSL *)ssl;
    kernel->records = 0;
}

static void note_message(int sent, int version, int type, const void *data, size_t bytes, SSL *ssl,
                         void *unused)
{
    struct sl_kernel_tls *kernel = of_connection(ssl);
    (void)version, (void)unused;
    if (!kernel || sent)
        return;
    uint8_t first = bytes ? *(const uint8_t *)data : 0;
    if (type == SSL3_RT_HEADER)
        kernel->records = first == SSL3_RT_CHANGE_CIPHER_SPEC ? 0 : kernel->records + 1;
    else if (type == SSL3_RT_HANDSHAKE && first == MESSAGE_KEY_UPDATE)
        kernel->ssl = NULL;
}

bool sl_kernel_tls_built_in(void)
{
    return true;
}

void sl_kernel_tls_watch(struct sl_kernel_tls *kernel, enum sl_tls_kernel mode, SSL_CTX *context)
{
    pthread_once(&slot_once, make_slot);
    if (mode == SL_TLS_KERNEL_OFF || context_slot < 0 || SSL_CTX_get_keylog_callback(context) ||
        SSL_CTX_set_ex_data(context, context_slot, kernel) != 1)
        return;
    SSL_CTX_set_keylog_callback(context, note_secret);
    SSL_CTX_set_msg_callback(context, note_message);
}

void sl_kernel_tls_end(struct sl_kernel_tls *kernel)
{
    OPENSSL_cleanse(kernel, sizeof(*kernel));
}

/* ---- keys ------------------------------------------------------------------------------------ */

struct keys {
    uint8_t key[KEY_BYTES_MAX], nonce[NONCE_BYTES], number[8];
};

static bool derive_by(const char *name, const OSSL_PARAM *params, uint8_t *out, size_t bytes)
{
    EVP_KDF *kdf = EVP_KDF_fetch(NULL, name, NULL);
    EVP_KDF_CTX *context = EVP_KDF_CTX_new(kdf);
    bool good = context && EVP_KDF_derive(context, out, bytes, params) == 1;
    EVP_KDF_CTX_free(context);
    EVP_KDF_free(kdf);
    return good;
}

#define SECRET(kernel, param)                                                                      \
    OSSL_PARAM_construct_octet_string(param, (void *)(kernel)->secret, (kernel)->secret_bytes)

/* TLS 1.3: HKDF-Expand-Label(secret, label, "", bytes), RFC 8446, section 7.1. */
static bool expand(const struct sl_kernel_tls *kernel, const char *digest, const char *label,
                   uint8_t *out, size_t bytes)
{
    char info[32];
    int length = snprintf(info + 3, sizeof(info) - 4, "tls13 %s", label);
    int mode = EVP_KDF_HKDF_MODE_EXPAND_ONLY;
    info[0] = 0;
    info[1] = (char)bytes;
    info[2] = (char)length;
    info[3 + length] = 0; /* no context */
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)digest, 0),
        OSSL_PARAM_construct_int(OSSL_KDF_PARAM_MODE, &mode),
        SECRET(kernel, OSSL_KDF_PARAM_KEY),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_INFO, info, (size_t)length + 4),
        OSSL_PARAM_construct_end(),
    };
    return derive_by("HKDF", params, out, bytes);
}

/* TLS 1.2: keys of client and server, then the fixed parts of their nonces (RFC 5246, section 6.3).
 */
static bool split(const struct sl_kernel_tls *kernel, const char *digest, size_t key_bytes,
                  size_t salt_bytes, struct keys *keys)
{
    uint8_t block[2 * (KEY_BYTES_MAX + NONCE_BYTES)], seed[13 + 2 * SSL3_RANDOM_SIZE];
    memcpy(seed, "key expansion", 13);
    SSL_get_server_random(kernel->ssl, seed + 13, SSL3_RANDOM_SIZE);
    SSL_get_client_random(kernel->ssl, seed + 13 + SSL3_RANDOM_SIZE, SSL3_RANDOM_SIZE);
    const OSSL_PARAM params[] = {
        OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, (char *)digest, 0),
        SECRET(kernel, OSSL_KDF_PARAM_SECRET),
        OSSL_PARAM_construct_octet_string(OSSL_KDF_PARAM_SEED, seed, sizeof(seed)),
        OSSL_PARAM_construct_end(),
    };
    bool good = derive_by("TLS1-PRF", params, block, 2 * (key_bytes + salt_bytes));
    memcpy(keys->key, block + key_bytes, key_bytes);
    memcpy(keys->nonce, block + 2 * key_bytes + salt_bytes, salt_bytes);
    /* AES-GCM sends the rest of its nonce with each record. */
    memcpy(keys->nonce + salt_bytes, keys->number, NONCE_BYTES - salt_bytes);
    OPENSSL_cleanse(block, sizeof(block));
    return good;
}

static bool derive(const struct sl_kernel_tls *kernel, const SSL_CIPHER *cipher, size_t key_bytes,
                   size_t salt_bytes, struct keys *keys)
{
    const EVP_MD *md = SSL_CIPHER_get_handshake_digest(cipher);
    const char *digest = md ? EVP_MD_get0_name(md) : NULL;
    for (unsigned i = 0; i < sizeof(keys->number); i++)
        keys->number[i] = (uint8_t)(kernel->records >> (56 - 8 * i));
    if (!digest)
        return false;
    if (SSL_version(kernel->ssl) == TLS1_2_VERSION)
        return split(kernel, digest, key_bytes, salt_bytes, keys);
    return expand(kernel, digest, "key", keys->key, key_bytes) &&
           expand(kernel, digest, "iv", keys->nonce, NONCE_BYTES);
}

union crypto {
    struct tls_crypto_info info;
    struct tls12_crypto_info_aes_gcm_128 gcm128;
    struct tls12_crypto_info_aes_gcm_256 gcm256;
    struct tls12_crypto_info_chacha20_poly1305 chacha;
};

/* A nonce is its salt and then its "iv"; the kernel counts on from rec_seq. */
#define FILL(field, name)                                                                          \
    (crypto->info.cipher_type = TLS_CIPHER_##name,                                                 \
     memcpy(crypto->field.key, keys.key, sizeof(crypto->field.key)),                               \
     memcpy(crypto->field.salt, keys.nonce, sizeof(crypto->field.salt)),                           \
     memcpy(crypto->field.iv, keys.nonce + sizeof(crypto->field.salt), sizeof(crypto->field.iv)),  \
     memcpy(crypto->field.rec_seq, keys.number, sizeof(keys.number)), sizeof(crypto->field))

/* What setsockopt() is to be given; its size, or 0 for a cipher that is not for the kernel. */
static size_t describe(const struct sl_kernel_tls *kernel, union crypto *crypto)
{
    struct keys keys;
    size_t bytes = 0;
    const SSL_CIPHER *cipher = SSL_get_current_cipher(kernel->ssl);
    int kind = cipher ? SSL_CIPHER_get_cipher_nid(cipher) : NID_undef;
    memset(crypto, 0, sizeof(*crypto));
    crypto->info.version =
        SSL_version(kernel->ssl) == TLS1_2_VERSION ? TLS_1_2_VERSION : TLS_1_3_VERSION;
    if (kind == NID_aes_128_gcm && derive(kernel, cipher, 16, 4, &keys))
        bytes = FILL(gcm128, AES_GCM_128);
    else if (kind == NID_aes_256_gcm && derive(kernel, cipher, 32, 4, &keys))
        bytes = FILL(gcm256, AES_GCM_256);
    else if (kind == NID_chacha20_poly1305 && derive(kernel, cipher, 32, NONCE_BYTES, &keys))
        bytes = FILL(chacha, CHACHA20_POLY1305);
    OPENSSL_cleanse(&keys, sizeof(keys));
    return bytes;
}

/* ---- handing over ---------------------------------------------------------------------------- */

bool sl_kernel_tls_pays(const uint64_t ns[2], const uint64_t bytes[2], unsigned times)
{
    if (bytes[0] < PROBE_BYTES || bytes[1] < PROBE_BYTES)
        return times % PROBE_EVERY == 0;
    return (double)ns[1] / (double)bytes[1] <= (double)ns[0] / (double)bytes[0];
}

static bool pays(void)
{
    pthread_mutex_lock(&state.mutex);
    bool good = sl_kernel_tls_pays(state.ns, state.bytes, state.asked++);
    bool report = state.bytes[0] >= PROBE_BYTES && state.bytes[1] >= PROBE_BYTES && !state.logged;
    state.logged |= report;
    double there = (double)state.ns[1] / (double)SL_MAX(state.bytes[1], 1);
    double here = (double)state.ns[0] / (double)SL_MAX(state.bytes[0], 1);
    pthread_mutex_unlock(&state.mutex);
    if (report)
        sl_log(SL_LOG_INFO, "TLS is received %s: %.2f CPU s/GB there, %.2f in the process",
               good ? "by the kernel" : "in the process, not by the kernel", there, here);
    return good;
}

/* What a flag was before. */
static bool exchange_flag(bool *flag, bool set)
{
    pthread_mutex_lock(&state.mutex);
    bool before = *flag;
    *flag |= set;
    pthread_mutex_unlock(&state.mutex);
    return before;
}

static bool hand_over(const struct sl_kernel_tls *kernel, int fd)
{
    union crypto crypto;
    size_t bytes = describe(kernel, &crypto);
    int one = 1;
    bool good = false;
    if (bytes && setsockopt(fd, IPPROTO_TCP, TCP_ULP, "tls", sizeof("tls")) == 0)
        good = setsockopt(fd, SOL_TLS, TLS_RX, &crypto, (socklen_t)bytes) == 0;
    else if (bytes && (errno == ENOENT || errno == ENOPROTOOPT) &&
             !exchange_flag(&state.missing, true))
        sl_log(SL_LOG_DEBUG, "TLS is received in the process: this kernel does not do it (%s)",
               strerror(errno));
    OPENSSL_cleanse(&crypto, sizeof(crypto));
    if (good) /* a hint: no padding, so it may decrypt straight into our buffer */
        (void)!setsockopt(fd, SOL_TLS, TLS_RX_EXPECT_NO_PAD, &one, sizeof(one));
    return good;
}

void sl_kernel_tls_take(struct sl_kernel_tls *kernel, enum sl_tls_kernel mode, int fd)
{
    if (kernel->on || !kernel->ssl || !kernel->secret_bytes || mode == SL_TLS_KERNEL_OFF ||
        exchange_flag(&state.missing, false) || SSL_version(kernel->ssl) < TLS1_2_VERSION ||
        SSL_has_pending(kernel->ssl) || (mode == SL_TLS_KERNEL_AUTO && !pays()))
        return;
    if (!hand_over(kernel, fd)) {
        kernel->ssl = NULL; /* not asked again */
        return;
    }
    kernel->on = true;
    OPENSSL_cleanse(kernel->secret, sizeof(kernel->secret));
    if (!exchange_flag(&state.used, true))
        sl_log(SL_LOG_INFO, "TLS is received by the kernel%s",
               mode == SL_TLS_KERNEL_AUTO ? ", on some connections, to measure what it costs" : "");
    sl_metric_add(SL_M_SOURCE_KERNEL_TLS, 1);
}

bool sl_kernel_tls_used(void)
{
    return exchange_flag(&state.used, false);
}

/* ---- receiving ------------------------------------------------------------------------------- */

static int record_type(struct msghdr *message)
{
    const struct cmsghdr *head = CMSG_FIRSTHDR(message);
    if (!head || head->cmsg_level != SOL_TLS || head->cmsg_type != TLS_GET_RECORD_TYPE)
        return RECORD_DATA;
    return *CMSG_DATA(head);
}

/* A record that is not data, whole: go on after it (1), the end (0), or neither (-1). */
static int judge(int type, const uint8_t *record, size_t bytes, bool whole)
{
    if (type == RECORD_HANDSHAKE && whole && bytes && record[0] == MESSAGE_TICKET)
        return 1;
    if (type == RECORD_ALERT && bytes == 2 && record[1] == 0)
        return 0;
    errno = EPROTO;
    return -1;
}

ssize_t sl_kernel_tls_recv(int fd, void *data, size_t bytes)
{
    for (int round = 0; round < EMPTY_RECORDS_MAX; round++) {
        union {
            struct cmsghdr head;
            char room[CMSG_SPACE(1)];
        } control = {0};
        struct iovec part = {data, bytes};
        struct msghdr message = {.msg_iov = &part,
                                 .msg_iovlen = 1,
                                 .msg_control = &control,
                                 .msg_controllen = sizeof(control)};
        ssize_t came = recvmsg(fd, &message, MSG_DONTWAIT);
        if (came < 0) {
            errno = errno == EINTR ? EAGAIN : errno;
            return -1;
        }
        bool has_type = message.msg_controllen > 0 && CMSG_FIRSTHDR(&message);
        int type = record_type(&message);
        if (type == RECORD_DATA && came > 0)
            return came;
        if (!has_type) { /* the stream's end, without a word of the server's */
            errno = ECONNRESET;
            return -1;
        }
        int next =
            type == RECORD_DATA ? 1 : judge(type, data, (size_t)came, message.msg_flags & MSG_EOR);
        if (next <= 0)
            return next;
    }
    errno = EAGAIN;
    return -1;
}

/* ---- what it costs --------------------------------------------------------------------------- */

uint64_t sl_kernel_tls_clock(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

void sl_kernel_tls_note(bool by_kernel, uint64_t ns, size_t bytes)
{
    pthread_mutex_lock(&state.mutex);
    state.ns[by_kernel] += ns;
    state.bytes[by_kernel] += bytes;
    pthread_mutex_unlock(&state.mutex);
}
