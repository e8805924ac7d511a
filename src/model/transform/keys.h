/*
 * The key that the user gave: 32 raw bytes in a file, or a passphrase in a file (or typed at a
 * terminal), from which the key of each file is derived. Never from the command line or the spec
 * itself. Locked in memory where the system lets us, wiped when freed. One thread until keys are
 * shared; then any may find and wait.
 */
#ifndef SL_KEYS_H
#define SL_KEYS_H

#include "crypt.h"
#include "mem.h"

struct sl_keys;

/** How much work an untrusted file may ask of us (section 11.3). */
enum { SL_KDF_OPSLIMIT_MAX = 16 };
#define SL_KDF_MEMLIMIT_MAX (UINT64_C(2) * 1024 * 1024 * 1024)
/* Of all files together, passes times memory: some half an hour, or 1,365 of the usual ones. */
static const uint64_t SL_KDF_WORK_MAX = 1099511627776;

/**
 * Read what is there. Exactly one of the two is given, NULL or "" means not: SL_E_USAGE for both;
 * *keys is NULL, with 0, for neither. key_file: exactly 32 bytes, else SL_E_USAGE saying what
 * `sluice keygen` makes. passphrase_file: its bytes without one trailing newline ("\n" or "\r\n"),
 * 1 to 64 KiB; "-" asks at the terminal (/dev/tty, echo off). SL_E_NOT_FOUND, SL_E_AUTH if a file
 * is missing, unreadable. A warning for a file that others may read. Blocks for the
 * file or the terminal. *keys is the caller's. SL_E_NO_SPACE,
 * SL_E_CANCELED.
 */
int sl_keys_open(const char *key_file, const char *passphrase_file, struct sl_keys **keys,
                 struct sl_err *err);
/** Wipes, but for what a derivation in hand has, which wipes it at its end (derive.h). NULL is
 * fine. */
void sl_keys_free(struct sl_keys *keys);
SL_AUTO_DEFINE(sl_keys)
/** Keys from memory; the bytes are copied. SL_E_USAGE for a passphrase that is empty or too long;
 * SL_E_NO_SPACE, SL_E_INTERNAL. */
struct sl_keys *sl_keys_from_key(const uint8_t key[SL_KEY_BYTES], struct sl_err *err);
struct sl_keys *sl_keys_from_passphrase(const void *passphrase, size_t bytes, struct sl_err *err);
/** Else it is an exact key. */
bool sl_keys_have_passphrase(const struct sl_keys *keys);
/** A NUL-terminated copy in `text`, for who wants the passphrase itself; wipe it. SL_E_USAGE if it
 * does not fit or holds a NUL. */
int sl_keys_passphrase(const struct sl_keys *keys, char *text, size_t limit, struct sl_err *err);
/**
 * The key for data whose key derivation is kdf (NULL: none); SL_KEY_BYTES, borrowed until
 * sl_keys_free(). An exact key ignores kdf. SL_E_FORMAT, code E_KDF: a passphrase for data without
 * derivation, an unknown alg, a salt that is not 16 bytes, more work than the limits above. Each
 * derivation is made once and kept. Any thread; blocks while a key is derived.
 */
const uint8_t *sl_keys_find(struct sl_keys *keys, const struct sl_kdf *kdf, struct sl_err *err);

struct sl_cancel;
/** This ends what waits for keys and what makes them: SL_E_CANCELED. Borrowed as long as they are;
 * NULL: nothing does. Before keys are shared. */
void sl_keys_heed(struct sl_keys *keys, struct sl_cancel *cancel);
/**
 * Derive later: from now on sl_keys_find() checks and returns at once, and its bytes are the key
 * only after sl_keys_begin() and sl_keys_wait(). A derivation takes half a second and one
 * processor, in which other things can be made ready. Before keys are shared between threads.
 */
void sl_keys_defer(struct sl_keys *keys);
/** Begin what was deferred, on a thread of its own. SL_E_NO_SPACE. */
int sl_keys_begin(struct sl_keys *keys, struct sl_err *err);
/** Is a derivation still going on? */
bool sl_keys_busy(struct sl_keys *keys);
/** Block until all derivations that have begun are done. SL_E_NO_SPACE: one of them needs more
 * memory than it gets. SL_E_CANCELED. */
int sl_keys_wait(struct sl_keys *keys, struct sl_err *err);

#endif
