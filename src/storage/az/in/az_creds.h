/*
 * Credentials for Azure: the SAS of the URI, the spec, connection string, SAS and key of the
 * environment, a service principal, workload identity, managed identity, none.
 */
#ifndef SL_AZ_CREDS_H
#define SL_AZ_CREDS_H

#include "az_place.h"
#include "tokens.h"

struct sl_az_creds;
/** No network. place and config are borrowed. SL_E_AUTH for what sluice does not do, and for
 * tokens that would go over plain http to another machine. */
struct sl_az_creds *sl_az_creds_new(const struct sl_az_place *place,
                                    const struct sl_source_config *config, struct sl_err *err);
void sl_az_creds_free(struct sl_az_creds *creds);
SL_AUTO_DEFINE(sl_az_creds)
/** What a key signs lets writes in, too. Before it is asked for. */
void sl_az_creds_for_writing(struct sl_az_creds *creds);
/**
 * Give what lets a request in now. Errors and threads as sl_tokens_get().
 *
 * @text        out: wiped by sl_secret_free(); NULL: there is none, and requests go without.
 * @is_query    out: text is a query (a SAS), else a bearer token.
 * @generation  out: what sl_az_creds_renew() takes.
 * @return      0, or -1.
 */
int sl_az_creds_get(struct sl_az_creds *creds, char **text, bool *is_query, unsigned *generation,
                    struct sl_err *err);
bool sl_az_creds_renew(struct sl_az_creds *creds, unsigned generation);
/** For people; borrowed. */
const char *sl_az_creds_origin(const struct sl_az_creds *creds);
/** Requests go without: because it was asked for, or because nothing was found. */
enum sl_az_bare { SL_AZ_LET_IN, SL_AZ_ANONYMOUS, SL_AZ_NONE_FOUND };
enum sl_az_bare sl_az_creds_bare(struct sl_az_creds *creds);

/** What a SAS allows. */
struct sl_az_sas {
    const char *account, *container;
    const char *blob;         /* NULL: all of the container */
    const char *rights;       /* "rl" */
    const char *begins, *end; /* "2013-05-24T00:00:00Z"; begins may be "" */
    bool tls;                 /* by https alone */
};
/**
 * A service SAS signed with an account's key (base64), as a query; free it by sl_secret_free().
 * SL_E_AUTH for a key that is none.
 * https://learn.microsoft.com/rest/api/storageservices/create-service-sas
 */
char *sl_az_sas_sign(const struct sl_az_sas *sas, const char *key, struct sl_err *err);

#endif
