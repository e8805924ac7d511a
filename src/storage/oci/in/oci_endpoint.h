/*
 * Where the bytes of a repository come from: its registry, and mirrors of it. Each has an origin,
 * a login, tokens and links of its own, and none of them is ever sent to another.
 *
 * What is not locked is set by its opening; any thread, but open and close.
 */
#ifndef SL_OCI_ENDPOINT_H
#define SL_OCI_ENDPOINT_H

#include "http_base.h"
#include "oci_auth.h"
#include "places.h"

enum { SL_OCI_DIGEST_BYTES = 72 };

struct sl_oci_endpoint {
    struct sl_http_base http; /* its URL is the registry's API */
    char *name;               /* for people: "ghcr.io", "cache.internal:5000/ghcr" */
    char *host, *repo;        /* of requests and logins; the repository with a mirror's prefix */
    char *origin;             /* "https://ghcr.io", without '/' at its end */
    char *query;              /* "?ns=ghcr.io" of mirrors; "" */
    bool mirror;
    struct sl_oci_auth *auth;
    struct {
        pthread_mutex_t mutex;
        unsigned token; /* that was sent last; 0: none */
    } locked;
};

/** What a mirror is written as: [REGISTRY=][http://|https://]HOST[:PORT][/PREFIX]. */
struct sl_oci_mirror {
    char *registry;    /* it is of this one alone; NULL: of every one */
    char *host;        /* "cache.internal:5000" */
    char *prefix;      /* before the repository's name; "": nothing */
    bool plain, given; /* http; the scheme was written */
};
/** SL_E_USAGE, which quotes nothing that may be a secret. Release it after a failure, too.
 * Fuzzed. */
int sl_oci_mirror_parse(const char *text, struct sl_oci_mirror *mirror, struct sl_err *err);
void sl_oci_mirror_release(struct sl_oci_mirror *mirror);

/** Where to ask, and with which login. Strings are copied. */
struct sl_oci_place_facts {
    const char *name, *host, *prefix, *repo;
    const char *of; /* the registry that it is a mirror of; NULL: it is the registry */
    bool plain;     /* over http */
};
/** No network; reads files of logins. config is borrowed. SL_E_USAGE, SL_E_NO_SPACE, SL_E_AUTH. */
int sl_oci_endpoint_open(struct sl_oci_endpoint *endpoint, const struct sl_source_config *config,
                         const struct sl_oci_place_facts *facts, struct sl_err *err);
/** Zeroed and half-made ones are fine. */
void sl_oci_endpoint_close(struct sl_oci_endpoint *endpoint);

/** A URL of its API: kind is "blobs" or "manifests". free() it. */
char *sl_oci_endpoint_url(const struct sl_oci_endpoint *endpoint, const char *kind,
                          const char *reference, struct sl_err *err);
/** Add what lets a request in, if its URL is at the endpoint and nowhere else. As
 * sl_oci_let_in(). */
int sl_oci_endpoint_let_in(struct sl_oci_endpoint *endpoint, struct sl_range_request *request,
                           struct sl_err *err);
/** A refusal: was something done about it, so that the next try may do better? A link that expired
 * (object; NULL: none), a token. May block. */
bool sl_oci_endpoint_recover(struct sl_oci_endpoint *endpoint, struct sl_http_object *object,
                             const struct sl_err *why, struct sl_err *err);

#endif
