/* The hashes sluice knows, as a kind that every layer may name; hash.h and crc64.h compute them. */
#ifndef SL_HASH_KIND_H
#define SL_HASH_KIND_H

enum sl_hash_kind {
    SL_HASH_CRC32,
    SL_HASH_CRC32C,
    SL_HASH_SHA256,
    SL_HASH_BLAKE2B,
    SL_HASH_CRC64NVME,
    SL_HASH_SHA1, /* of what git names; no proof against who made it */
    SL_HASH_MD5   /* of Azure's blobs; nor is this one */
};
enum { SL_HASH_BYTES_MAX = 64 };

#endif
