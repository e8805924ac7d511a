/*
 * Credentials for S3: found once, refreshed before they expire, never shown.
 *
 * Order: anonymous or configFile of the spec, a profile named by the spec, environment, web
 * identity, the AWS tools' files, ~/.s3cfg, container, instance metadata, anonymous.
 */
#ifndef SL_CREDS_H
#define SL_CREDS_H

#include <stdbool.h>
#include <stdint.h>

#include "buf.h"
#include "creds_files.h"
#include "source.h"

enum { SL_ACCESS_KEY_MAX = 256, SL_SECRET_KEY_MAX = 1024, SL_SESSION_TOKEN_MAX = 8000 };

/** A copy of the keys at one moment. Zeroed is anonymous. */
struct sl_key {
    char *access_key, *secret_key; /* NULL: requests go unsigned */
    char *session_token;           /* NULL: none */
    int64_t expires;               /* seconds since 1970, 0 never */
    unsigned generation;           /* counts refreshes */
};
/** Wipes and frees; zeroed afterwards. */
void sl_key_release(struct sl_key *key);
#define sl_autokey __attribute__((cleanup(sl_key_release))) struct sl_key
/**
 * Fill in a key. Texts are copied; those of before are wiped, expires and generation stay.
 *
 * @access_key     its id.
 * @secret_key     what signs.
 * @session_token  "" or NULL: none.
 * @origin         whose they are, for messages: "the environment".
 * @return         0, or -1: SL_E_AUTH if a text cannot stand in a header (it is not quoted);
 *                 SL_E_NO_SPACE. Then the key is as it was.
 */
int sl_key_set(struct sl_key *key, const char *access_key, const char *secret_key,
               const char *session_token, const char *origin, struct sl_err *err);
/**
 * Fill in a key from JSON as containers, instances and programs answer it.
 *
 * @key     zeroed: without an Expiration in the text its expires stays.
 * @text    the answer.
 * @token   its member with the session token.
 * @origin  who answered, for messages.
 * @return  0, or -1: SL_E_AUTH for what is no key, SL_E_NO_SPACE.
 */
int sl_key_from_json(struct sl_key *key, const struct sl_buf *text, const char *token,
                     const char *origin, struct sl_err *err);
int sl_key_copy(struct sl_key *key, const struct sl_key *from, struct sl_err *err);
/** 2026-11-21T04:31:02Z, with fraction or offset too, as seconds since 1970; -1 if it is none. */
int sl_parse_time(const char *text, int64_t *seconds);

struct sl_creds;

/**
 * Choose where credentials come from: reads environment and files, no network. config is borrowed
 * until the free. SL_E_USAGE for broken files (FILE:LINE) and profiles that are missing, SL_E_AUTH
 * for what sluice does not do (SSO, a credential_process that is not allowed) with what to do
 * instead.
 */
struct sl_creds *sl_creds_new(const struct sl_source_config *config, struct sl_err *err);
void sl_creds_free(struct sl_creds *creds);
SL_AUTO_DEFINE(sl_creds)

/**
 * The keys to sign with now. Any thread; the first call, and one when they are about to expire, may
 * ask a service and block (each try limited in time); other threads go on with the old keys as long
 * as those are good. SL_E_AUTH if there are none to be had. Release with sl_key_release().
 */
int sl_creds_get(struct sl_creds *creds, struct sl_key *key, struct sl_err *err);
/** True while keys of that generation need no refresh; cheap. */
bool sl_creds_current(struct sl_creds *creds, unsigned generation);
/** The store says that keys of `generation` have expired: true if there are other ones now. May
 * block. */
bool sl_creds_renew(struct sl_creds *creds, unsigned generation);
/** "environment", "profile 'x' of /root/.aws/credentials": for people. Borrowed. */
const char *sl_creds_origin(struct sl_creds *creds);
/** Requests go unsigned because nothing was found (not because it was asked for). */
bool sl_creds_none_found(struct sl_creds *creds);

/** What the files say besides keys; borrowed, never NULL; s3cfg is all NULL unless it gave the keys
 * or was named by the spec. */
const struct sl_profile *sl_creds_profile(const struct sl_creds *creds);
const struct sl_s3cfg *sl_creds_s3cfg(const struct sl_creds *creds);
/** Spec, AWS_REGION, AWS_DEFAULT_REGION, .s3cfg, profile, us-east-1. Borrowed. */
const char *sl_creds_region(const struct sl_creds *creds);
/** Somebody named it; else it is us-east-1 for want of another. */
bool sl_creds_region_given(const struct sl_creds *creds);

#endif
