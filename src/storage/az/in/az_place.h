/* Where a container is, and what its URI and the settings say of credentials. */
#ifndef SL_AZ_PLACE_H
#define SL_AZ_PLACE_H

#include "az_options.h"

enum { SL_AZ_NAME_BYTES_MAX = 1024 };

/** All strings owned; NULL: not known. */
struct sl_az_place {
    char *account;
    char *base;     /* "https://ACCOUNT.blob.core.windows.net": what "/CONTAINER/…" follows */
    bool tls, near; /* near: this machine */
    char *container;
    char *prefix; /* names of the store's blobs begin so: "" or with '/' at its end */
    char *shown;  /* "az://CONTAINER/": what people see before the prefix */
    /* Secrets, of which the first that is there is used: */
    char *uri_sas;
    char *key; /* base64 */
    char *sas;
    const char *from; /* which setting gave key or sas, for people */
};

/** Does the URI name a container, as far as its text tells? SL_E_USAGE. */
int sl_az_check(const char *uri, struct sl_err *err);
/**
 * Find a container, by URI, options and environment.
 *
 * @place   out: release it by sl_az_place_release(), after a failure too.
 * @uri     az:// and the like, or the https URL of a blob.
 * @config  its options and what else the spec says; borrowed for the call.
 * @key     out: the last segment of the name. NULL before the call; free() it, after a failure too.
 * @return  0, or -1: SL_E_USAGE if no account is named, or a connection string or an endpoint is
 *          broken; SL_E_AUTH for files of secrets that cannot be read. Texts of secrets stand in no
 *          message.
 */
int sl_az_place_find(struct sl_az_place *place, const char *uri,
                     const struct sl_source_config *config, char **key, struct sl_err *err);
void sl_az_place_release(struct sl_az_place *place);
/** The SAS or key of the place as it is now: files are read anew, since whoever renews a secret
 * replaces them. A file that cannot be read gives what it held before. NULL: SL_E_NO_SPACE. Wipe by
 * sl_secret_free(). */
char *sl_az_place_secret(const struct sl_az_place *place, const struct sl_source_config *config,
                         struct sl_err *err);

/** What a connection string says (fuzzed). Strings are owned; NULL: not there. */
struct sl_az_connection {
    char *protocol, *account, *key, *suffix, *endpoint, *sas;
};
int sl_az_connection_parse(const char *text, struct sl_az_connection *connection,
                           struct sl_err *err);
void sl_az_connection_release(struct sl_az_connection *connection);

#endif
