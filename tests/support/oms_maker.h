/*
 * Signatures of models as OpenSSF Model Signing has them, made by OpenSSL alone: for tests of what
 * a load does with them. Keys are new in every process.
 */
#ifndef SL_OMS_MAKER_H
#define SL_OMS_MAKER_H

#include <openssl/evp.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct oms_file {
    const char *name;
    const void *data;
    size_t bytes;
};
struct oms_wanted {
    const struct oms_file *files;
    size_t count;
    uint64_t shard_bytes;  /* 0: whole files */
    const char *hash;      /* NULL: "sha256"; "blake2b", or what does not exist */
    const char *ignored;   /* a path; NULL: none */
    const char *predicate; /* NULL: that of version 1.0 */
};
/** A key of P-256; EVP_PKEY_free() it. */
EVP_PKEY *oms_key(void);
/** Its public half as PEM, into a file; append: behind others. */
void oms_put_key(EVP_PKEY *key, const char *path, bool append);
/** The bundle; free() it. */
char *oms_sign(const struct oms_wanted *wanted, EVP_PKEY *key);

#endif
