/*
 * What the files of a repository share that are read through Xet: the place of the content store
 * and its token, which files are on it, what has been seen of each, and whether it works.
 *
 * Tokens go to the content store's origin alone; signed URLs get none. Any thread, but new and
 * free.
 */
#ifndef SL_XET_H
#define SL_XET_H

#include "check.h"
#include "http_channel.h"
#include "tokens.h"
#include "xet_hash.h"

struct sl_hf;
enum sl_xet_mode { SL_XET_AUTO, SL_XET_ON, SL_XET_OFF };

struct sl_xet;
/** hf outlives it. SL_E_NO_SPACE. No network. */
struct sl_xet *sl_xet_new(struct sl_hf *hf, enum sl_xet_mode mode, struct sl_err *err);
void sl_xet_free(struct sl_xet *xet);
SL_AUTO_DEFINE(sl_xet)
/** The store that signed URLs are read from: HTTP, without credentials. Its sources' impl is a
 * struct sl_xorb. */
struct sl_store *sl_xet_xorbs(struct sl_xet *xet);
struct sl_xorb {
    const char *url;
    uint64_t begin, end; /* that the request asks for */
};

/* ---- the token (xet_token.c) ------------------------------------------------------------------
 */

/** Where the content store is, and what lets requests in. */
struct sl_xet_access {
    char *url, *token; /* in one piece of memory: release it */
    unsigned generation;
};
/** Of now; asked for where it is needed first and before it ends. May block. Release it after a
 * failure, too. */
int sl_xet_access(struct sl_xet *xet, struct sl_xet_access *access, struct sl_err *err);
void sl_xet_access_release(struct sl_xet_access *access);
/** It was refused: true if there is another one now. May block. */
bool sl_xet_access_renew(struct sl_xet *xet, unsigned generation);
/**
 * Read the hub's answer to a request for a token. Fuzzed.
 *
 * @text, bytes  the answer's body.
 * @access       out: "URL TOKEN", wiped by sl_secret_free().
 * @expires      out: seconds since 1970, and not at once whatever the hub says.
 * @return       0, or -1: SL_E_FORMAT for what is none, SL_E_AUTH for a URL that no secret may go
 *               to and a token that no header may carry, SL_E_NO_SPACE.
 */
int sl_xet_access_parse(const char *text, size_t bytes, char **access, int64_t *expires,
                        struct sl_err *err);
/** May the hub, or Xet, lead there? Not from https to http, and not to an address where clouds keep
 * the keys of machines. SL_E_NET; nothing of the URL but its host is quoted. */
int sl_xet_check_place(const struct sl_hf *hf, const char *url, struct sl_err *err);
struct sl_tokens *sl_xet_tokens_new(struct sl_hf *hf, struct sl_err *err);

/* ---- files ------------------------------------------------------------------------------------
 */

/** A file of one commit. */
struct sl_xet_file;
/**
 * Note that the hub says that a file is on Xet.
 *
 * @commit  that the file is of.
 * @name    as the hub lists it.
 * @hash    64 hex digits; anything else makes no sense.
 * @bytes   of the file.
 * @return  0, or -1 with SL_E_NO_SPACE; where the hub said something else of the file before, what
 *          makes no sense, or lists too many files: in mode on -1 with SL_E_FORMAT, code "xet"; in
 *          mode auto 0, and Xet is not used any more, or not for this file.
 */
int sl_xet_note(struct sl_xet *xet, const char *commit, const char *name, const char *hash,
                uint64_t bytes, struct sl_err *err);
/**
 * Find a file that can be read through Xet.
 *
 * @commit  that the file is of.
 * @name    as sl_xet_note() has it.
 * @again   what Xet brought of it was wrong: links are to be used, where they are allowed (any
 *          mode but on).
 * @return  borrowed from xet; NULL: it is not on Xet as far as is known, or Xet is not used any
 *          more, or not for this file, or links are to be used.
 */
struct sl_xet_file *sl_xet_find(struct sl_xet *xet, const char *commit, const char *name,
                                bool again);
const char *sl_xet_file_hash_text(const struct sl_xet_file *file);
uint64_t sl_xet_file_bytes(const struct sl_xet_file *file);
/**
 * Take in a whole chunk. When every byte has come, the file's hash is compared.
 *
 * @offset       where the chunk begins in the file.
 * @data, bytes  its bytes, unpacked; borrowed for the call.
 * @vouched      somebody else checks all bytes of the file (sl_fetch_vouch()).
 * @return       0, or -1: SL_E_INTEGRITY, code "xet-hash", if the file's hash is another one, or if
 *               a chunk came twice and was not the same; SL_E_NO_SPACE.
 *
 * The error is retryable where another try may bring what is right: a chunk that came twice, a few
 * times; the whole file, if its bytes are vouched for. Then its delivery is not checked any more,
 * so that the hash of who vouches decides.
 */
int sl_xet_file_add(struct sl_xet_file *file, uint64_t offset, const void *data, size_t bytes,
                    bool vouched, struct sl_err *err);

/** Whether every byte of it that has been read came through Xet and is the file whose hash the hub
 * lists. */
enum sl_delivery sl_xet_delivery(struct sl_xet *xet, const char *commit, const char *name);
/** It is read in another way, too: its delivery is not checked. */
void sl_xet_read_elsewhere(struct sl_xet *xet, const char *commit, const char *name);

/* ---- whether it works -------------------------------------------------------------------------
 */

/** A range failed with *err, which becomes what the fetch must do about it. After a failure that
 * lasts, a store that cannot be reached, or some in a row, mode auto uses Xet no more, and says so
 * once. */
void sl_xet_note_failure(struct sl_xet *xet, struct sl_err *err);
void sl_xet_note_success(struct sl_xet *xet);

#endif
