/*
 * What one core decrypts, encrypts and hashes: ours beside libsodium's secretbox and OpenSSL's
 * SHA-256, on the same buffers, in turns. Prints a table of GB/s (10^9 bytes), the best of the
 * rounds. By hand, after a build:
 *
 *   cc -O2 -D_GNU_SOURCE -iquote src/model/transform -iquote src/core/base e2e/bench/crypt_speed.c
 * \
 *      BUILD/libsluice_transform.a BUILD/libsluice_base.a -lsodium -lcrypto -ljansson -lisal \
 *      -lpthread -o crypt_speed && taskset -c 1 ./crypt_speed
 */
#include <openssl/evp.h>
#include <sodium.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "crypt.h"
#include "hash.h"

enum { ROUNDS = 9, TOTAL_BYTES = 256 * 1024 * 1024, WINDOW_BYTES = 256 * 1024 };

static uint8_t key[SL_KEY_BYTES], nonce[SL_NONCE_BYTES], mac[SL_MAC_BYTES], digest[32];

struct buffers {
    size_t bytes;
    uint8_t *plain, *cipher, *out;
};

static void require(int is_true, const char *what)
{
    if (is_true)
        return;
    fprintf(stderr, "%s went wrong\n", what);
    exit(1);
}

static void open_theirs(const struct buffers *b)
{
    require(!crypto_secretbox_open_detached(b->out, b->cipher, mac, b->bytes, nonce, key),
            "secretbox_open_detached");
}

static void open_ours(const struct buffers *b)
{
    struct sl_opening opening;
    sl_opening_begin(&opening, key, nonce, 0);
    for (size_t at = 0; at < b->bytes; at += WINDOW_BYTES) {
        size_t step = b->bytes - at < WINDOW_BYTES ? b->bytes - at : WINDOW_BYTES;
        sl_opening_update(&opening, b->cipher + at, b->out + at, step);
    }
    require(sl_opening_end(&opening, mac), "sl_opening_end");
}

static void seal_theirs(const struct buffers *b)
{
    crypto_secretbox_detached(b->cipher, mac, b->plain, b->bytes, nonce, key);
}

static void seal_ours(const struct buffers *b)
{
    sl_crypt_seal(key, nonce, 0, b->plain, b->cipher, b->bytes, mac);
}

static void hash_theirs(const struct buffers *b)
{
    require(EVP_Digest(b->plain, b->bytes, digest, NULL, EVP_sha256(), NULL), "EVP_Digest");
}

static void hash_ours(const struct buffers *b)
{
    struct sl_sha256 *sha = sl_sha256_new(NULL);
    for (size_t at = 0; at < b->bytes; at += WINDOW_BYTES) {
        size_t step = b->bytes - at < WINDOW_BYTES ? b->bytes - at : WINDOW_BYTES;
        sl_sha256_update(sha, b->plain + at, step);
    }
    sl_sha256_finish(sha, digest);
    sl_sha256_free(sha);
}

static double seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static double rate(void (*work)(const struct buffers *), const struct buffers *b, double best)
{
    size_t times = TOTAL_BYTES / b->bytes;
    double begin = seconds();
    for (size_t i = 0; i < times; i++)
        work(b);
    double gb = (double)(times * b->bytes) / 1e9 / (seconds() - begin);
    return gb > best ? gb : best;
}

static void compare(const char *what, void (*ours)(const struct buffers *),
                    void (*theirs)(const struct buffers *), const struct buffers *b)
{
    double our_rate = 0, their_rate = 0;
    for (int round = 0; round < ROUNDS; round++) {
        our_rate = rate(ours, b, our_rate);
        their_rate = rate(theirs, b, their_rate);
    }
    printf("%-30s %8zu %8.2f %8.2f %8.2f\n", what, b->bytes, our_rate, their_rate,
           our_rate / their_rate);
}

int main(void)
{
    static const size_t sizes[] = {64 * 1024, 256 * 1024, 2 * 1024 * 1024};
    require(sl_crypt_init(NULL) == 0 && sodium_init() >= 0, "starting libsodium");
    sl_crypt_random(key, sizeof(key));
    sl_crypt_random(nonce, sizeof(nonce));
    printf("%-30s %8s %8s %8s %8s\n", "GB/s of CPU time, one core", "bytes", "ours", "theirs",
           "ratio");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(*sizes); i++) {
        struct buffers b = {.bytes = sizes[i]};
        b.plain = aligned_alloc(64, b.bytes);
        b.cipher = aligned_alloc(64, b.bytes);
        b.out = aligned_alloc(64, b.bytes);
        require(b.plain && b.cipher && b.out, "allocating");
        sl_crypt_random(b.plain, b.bytes);
        compare("seal (secretbox)", seal_ours, seal_theirs, &b);
        compare("open (secretbox)", open_ours, open_theirs, &b);
        require(memcmp(b.out, b.plain, b.bytes) == 0, "decrypting");
        compare("SHA-256 (EVP_Digest)", hash_ours, hash_theirs, &b);
        free(b.plain);
        free(b.cipher);
        free(b.out);
    }
    return 0;
}
