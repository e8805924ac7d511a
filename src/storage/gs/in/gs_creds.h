/*
 * Credentials for Google Cloud Storage, in the order of Google's own clients: the spec,
 * GOOGLE_APPLICATION_CREDENTIALS, GOOGLE_SERVICE_ACCOUNT_KEY, gcloud's file, the metadata server,
 * none.
 */
#ifndef SL_GS_CREDS_H
#define SL_GS_CREDS_H

#include "gs_options.h"
#include "tokens.h"

struct sl_gs_creds;
/**
 * Choose where tokens come from: reads environment and files, no network. bare: the store is asked
 * over plain http on another machine, where no token may go: SL_E_AUTH if credentials were named,
 * else none are used. config is borrowed. SL_E_USAGE for broken files; SL_E_AUTH for what sluice
 * does not do.
 */
struct sl_gs_creds *sl_gs_creds_new(const struct sl_source_config *config, bool bare,
                                    struct sl_err *err);
void sl_gs_creds_free(struct sl_gs_creds *creds);
SL_AUTO_DEFINE(sl_gs_creds)
/** Tokens are to let writes in, too. Before the first one is asked for. */
void sl_gs_creds_for_writing(struct sl_gs_creds *creds);
/** As sl_tokens_get() and sl_tokens_renew(). */
int sl_gs_creds_get(struct sl_gs_creds *creds, char **token, unsigned *generation,
                    struct sl_err *err);
bool sl_gs_creds_renew(struct sl_gs_creds *creds, unsigned generation);
/** "service account 'x@y' of '/f'": for people; borrowed. */
const char *sl_gs_creds_origin(const struct sl_gs_creds *creds);
/** Requests go without a token: because it was asked for, or because none was found. */
enum sl_gs_bare { SL_GS_LET_IN, SL_GS_ANONYMOUS, SL_GS_NONE_FOUND };
enum sl_gs_bare sl_gs_creds_bare(struct sl_gs_creds *creds);

/**
 * Make a JWT that a service account signs with its key, good for an hour.
 * https://google.aip.dev/auth/4111
 *
 * @email   of the account.
 * @key_id  of its key.
 * @pem     the private key (RSA).
 * @scope   what it is to allow.
 * @from    when the hour begins, in seconds since 1970.
 * @return  wiped by sl_secret_free(); NULL: SL_E_AUTH, SL_E_NO_SPACE.
 */
char *sl_gs_jwt(const char *email, const char *key_id, const char *pem, const char *scope,
                int64_t from, struct sl_err *err);

#endif
