/*
 * One record at a time is taken out of the socket and opened. What is left of it is not told by
 * poll(), as a kernel would: so whoever reads has to go on until EAGAIN.
 */
#include "fake_kernel_tls.h"

#include <errno.h>
#include <linux/tls.h>
#include <netinet/in.h>
#include <openssl/evp.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ULP = 31, LEVEL_TLS = 282, HEAD = 5, TAG = 16, RECORD_MAX = 16384 + 256, SOCKETS = 64 };

struct sl_fake_kernel sl_fake_kernel;

static struct connection {
    bool attached, handed, old; /* TLS 1.2 */
    const EVP_CIPHER *cipher;
    uint8_t key[32], nonce[12];
    uint64_t number;
    uint8_t record[RECORD_MAX]; /* the next one, as it is sent */
    size_t have, taken;         /* of it; of its data */
} connections[SOCKETS];

void sl_fake_kernel_reset(void)
{
    memset(connections, 0, sizeof(connections));
    memset(&sl_fake_kernel, 0, sizeof(sl_fake_kernel));
}

static uint64_t big_endian(const uint8_t *bytes)
{
    uint64_t number = 0;
    for (int i = 0; i < 8; i++)
        number = number << 8 | bytes[i];
    return number;
}

#define TAKE(field, struct_name, evp)                                                              \
    do {                                                                                           \
        const struct struct_name *given = value;                                                   \
        if (bytes != sizeof(*given))                                                               \
            return -1;                                                                             \
        connection->cipher = evp;                                                                  \
        memcpy(connection->key, given->key, sizeof(given->key));                                   \
        memcpy(connection->nonce, given->salt, sizeof(given->salt));                               \
        memcpy(connection->nonce + sizeof(given->salt), given->iv, sizeof(given->iv));             \
        connection->number = big_endian(given->rec_seq);                                           \
    } while (0)

static int take_keys(struct connection *connection, const void *value, socklen_t bytes)
{
    const struct tls_crypto_info *info = value;
    if (info->version != TLS_1_3_VERSION && info->version != TLS_1_2_VERSION)
        return -1;
    connection->old = info->version == TLS_1_2_VERSION;
    if (info->cipher_type == TLS_CIPHER_AES_GCM_128)
        TAKE(gcm128, tls12_crypto_info_aes_gcm_128, EVP_aes_128_gcm());
    else if (info->cipher_type == TLS_CIPHER_AES_GCM_256)
        TAKE(gcm256, tls12_crypto_info_aes_gcm_256, EVP_aes_256_gcm());
    else if (info->cipher_type == TLS_CIPHER_CHACHA20_POLY1305)
        TAKE(chacha, tls12_crypto_info_chacha20_poly1305, EVP_chacha20_poly1305());
    else
        return -1;
    connection->handed = true;
    sl_fake_kernel.handed++;
    return 0;
}

static int fail(int number)
{
    errno = number;
    return -1;
}

int sl_fake_kernel_setsockopt(int fd, int level, int name, const void *value, socklen_t bytes)
{
    struct connection *connection = &connections[fd % SOCKETS];
    if (sl_fake_kernel.absent)
        return (int)syscall(SYS_setsockopt, fd, level, name, value, bytes);
    if (level == IPPROTO_TCP && name == ULP) {
        sl_fake_kernel.asked++;
        *connection = (struct connection){.attached = !sl_fake_kernel.ulp_errno};
        return sl_fake_kernel.ulp_errno ? fail(sl_fake_kernel.ulp_errno) : 0;
    }
    if (level != LEVEL_TLS)
        return (int)syscall(SYS_setsockopt, fd, level, name, value, bytes);
    if (name != TLS_RX)
        return fail(ENOPROTOOPT);
    if (sl_fake_kernel.keys_errno || !connection->attached)
        return fail(sl_fake_kernel.keys_errno ? sl_fake_kernel.keys_errno : EINVAL);
    return take_keys(connection, value, bytes) < 0 ? fail(EINVAL) : 0;
}

/* ---- records --------------------------------------------------------------------------------- */

static size_t explicit_bytes(const struct connection *connection)
{
    return connection->old && connection->cipher != EVP_chacha20_poly1305() ? 8 : 0;
}

/* Nonce and authenticated data: RFC 8446, section 5.2 and 5.3; RFC 5288, RFC 7905. */
static int make_nonce(const struct connection *connection, const uint8_t *record, size_t body,
                      uint8_t nonce[12], uint8_t data[13])
{
    memcpy(nonce, connection->nonce, 12);
    for (int i = 0; i < 8; i++)
        data[7 - i] = (uint8_t)(connection->number >> (8 * i));
    for (int i = 0; i < 8; i++)
        nonce[4 + i] = explicit_bytes(connection) ? record[HEAD + i] : nonce[4 + i] ^ data[i];
    if (!connection->old) {
        memcpy(data, record, HEAD);
        return HEAD;
    }
    memcpy(data + 8, record, 3);
    data[11] = (uint8_t)(body >> 8);
    data[12] = (uint8_t)body;
    return 13;
}

/* A record's plaintext with its type's byte at the end; bytes, or -1 if it is not what was sent. */
static ssize_t open_record(const struct connection *connection, const uint8_t *record, size_t bytes,
                           uint8_t *plain)
{
    size_t before = HEAD + explicit_bytes(connection);
    uint8_t nonce[12], data[13];
    int used = 0, rest = 0, body = (int)(bytes - before - TAG);
    int data_bytes = make_nonce(connection, record, (size_t)body, nonce, data);
    EVP_CIPHER_CTX *context = EVP_CIPHER_CTX_new();
    bool good =
        EVP_DecryptInit_ex(context, connection->cipher, NULL, connection->key, nonce) == 1 &&
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, TAG,
                            (void *)(uintptr_t)(record + bytes - TAG)) == 1 &&
        EVP_DecryptUpdate(context, NULL, &used, data, data_bytes) == 1 &&
        EVP_DecryptUpdate(context, plain, &used, record + before, body) == 1 &&
        EVP_DecryptFinal_ex(context, plain + used, &rest) == 1;
    EVP_CIPHER_CTX_free(context);
    if (good && connection->old)
        plain[body++] = record[0];
    while (good && body > 0 && plain[body - 1] == 0)
        body--; /* padding */
    return good ? body : -1;
}

static ssize_t give(struct msghdr *message, uint8_t type, const void *data, size_t bytes)
{
    size_t room = message->msg_iov[0].iov_len, count = bytes < room ? bytes : room;
    memcpy(message->msg_iov[0].iov_base, data, count);
    struct cmsghdr *head = CMSG_FIRSTHDR(message);
    head->cmsg_level = LEVEL_TLS;
    head->cmsg_type = TLS_GET_RECORD_TYPE;
    head->cmsg_len = CMSG_LEN(1);
    *CMSG_DATA(head) = type;
    message->msg_controllen = head->cmsg_len;
    message->msg_flags = count == bytes ? MSG_EOR : 0;
    return (ssize_t)count;
}

/* What the test wants to come before the next record; -2: nothing. */
static ssize_t give_other(struct msghdr *message)
{
    static const uint8_t ticket[200] = {4}, key_update[] = {24, 0, 0, 1, 0};
    enum sl_fake_record next = sl_fake_kernel.next;
    sl_fake_kernel.next = SL_FAKE_RECORD_AS_IT_IS;
    switch (next) {
    case SL_FAKE_RECORD_TICKET:
        return give(message, 22, ticket, sizeof(ticket));
    case SL_FAKE_RECORD_KEY_UPDATE:
        return give(message, 22, key_update, sizeof(key_update));
    case SL_FAKE_RECORD_EMPTY:
        return give(message, 23, "", 0);
    case SL_FAKE_RECORD_DAMAGED:
        errno = EBADMSG;
        return -1;
    default:
        return -2;
    }
}

/* As much of a record's first `bytes` as has come; what recv() said. */
static ssize_t collect(struct connection *connection, int fd, size_t bytes)
{
    ssize_t came = 1;
    while (connection->have < bytes && came > 0) {
        came =
            recv(fd, connection->record + connection->have, bytes - connection->have, MSG_DONTWAIT);
        connection->have += came > 0 ? (size_t)came : 0;
    }
    return came;
}

ssize_t sl_fake_kernel_recvmsg(int fd, struct msghdr *message, int flags)
{
    struct connection *connection = &connections[fd % SOCKETS];
    uint8_t plain[RECORD_MAX];
    if (!connection->handed)
        return syscall(SYS_recvmsg, fd, message, flags);
    const uint8_t *record = connection->record;
    ssize_t came = collect(connection, fd, HEAD);
    size_t bytes = HEAD + (size_t)(record[3] << 8 | record[4]);
    if (came > 0 && (bytes > RECORD_MAX || bytes < HEAD + 8 + TAG))
        return fail(EBADMSG);
    if (came > 0)
        came = collect(connection, fd, bytes);
    if (came <= 0) {
        message->msg_controllen = 0;
        return came;
    }
    ssize_t other = connection->taken ? -2 : give_other(message);
    if (other != -2)
        return other;
    ssize_t body = open_record(connection, record, bytes, plain);
    if (body <= 0)
        return fail(EBADMSG);
    size_t left = (size_t)body - 1 - connection->taken;
    ssize_t given = give(message, plain[body - 1], plain + connection->taken, left);
    connection->taken += (size_t)given;
    if ((size_t)given == left) {
        connection->taken = connection->have = 0;
        connection->number++;
        sl_fake_kernel.records++;
    }
    return given;
}
