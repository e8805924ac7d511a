/*
 * What lets requests into a registry: nothing until it asks, then a token of the service that its
 * challenge names, or a login at each request.
 *
 * https://github.com/distribution/distribution/blob/main/docs/content/spec/auth/token.md; logins as
 * container tools keep them (containers-auth.json(5)).
 */
#ifndef SL_OCI_AUTH_H
#define SL_OCI_AUTH_H

#include "http_channel.h"
#include "tokens.h"

/** A login of a file of container tools. Wiped and released. */
struct sl_oci_login {
    char *user, *password; /* NULL: there is none */
    char *identity;        /* an identity token instead; NULL: none */
    char *from;            /* "'/root/.docker/config.json'" */
    char *helper;          /* the program that keeps it; NULL: none */
};
void sl_oci_login_release(struct sl_oci_login *login);
/**
 * Find the login for a registry's repository in files of container tools. No login is not an error.
 *
 * @path    of the file; NULL or "": the first of the usual places that has one.
 * @host    of the registry: "ghcr.io", "localhost:5000".
 * @repo    "org/name"; what is said of it goes before what is said of the host.
 * @login   zeroed before; filled in with what is found. Release it, after a failure too.
 * @return  0, or -1: SL_E_USAGE: a file that is broken; SL_E_NOT_FOUND: `path` is not there;
 *          SL_E_NO_SPACE.
 *
 * Reads files.
 */
int sl_oci_login_find(const char *path, const char *host, const char *repo,
                      struct sl_oci_login *login, struct sl_err *err);
/**
 * As sl_oci_login_find(), in the text of one file. Fuzzed.
 *
 * @text, bytes  of the file.
 * @path         of the file, for messages and login->from.
 * @host         of the registry.
 * @repo         "org/name".
 * @login        released after a failure, too.
 * @return       0, or -1 with SL_E_USAGE or SL_E_NO_SPACE.
 */
int sl_oci_login_parse(const char *text, size_t bytes, const char *path, const char *host,
                       const char *repo, struct sl_oci_login *login, struct sl_err *err);

/** A challenge (RFC 9110 section 11.6.1), taken apart; all malloc'ed, NULL: absent. */
struct sl_oci_challenge {
    bool basic;
    char *realm, *service, *scope;
};
/** The first one that can be answered. -1, SL_E_AUTH: there is none. Release it. Fuzzed. */
int sl_oci_challenge_parse(const char *header, struct sl_oci_challenge *challenge,
                           struct sl_err *err);
void sl_oci_challenge_release(struct sl_oci_challenge *challenge);

struct sl_oci_auth;
/**
 * Ask docker-credential-NAME for the login of a host. What it says it has none of is not an error,
 * but a warning.
 *
 * @name    NAME; the program is looked for in PATH's absolute directories.
 * @host    of the registry.
 * @cancel  ends the wait where the thread has none of its own (sl_thread_cancel()); may be NULL.
 * @login   zeroed before; filled in with what is found. Release it, after a failure too.
 * @return  0, or -1: SL_E_USAGE: the name is none; SL_E_AUTH, SL_E_CANCELED.
 *
 * Runs the program, and blocks for a minute at most.
 */
int sl_oci_helper_ask(const char *name, const char *host, struct sl_cancel *cancel,
                      struct sl_oci_login *login, struct sl_err *err);
/**
 * Make what lets requests in. No network.
 *
 * @config  borrowed until it is freed, as are
 * @host    of the registry and
 * @repo    "org/name".
 * @bare    the registry is asked over plain http on another machine, where no password may go.
 * @tls     it is asked over https, which a token service must not leave.
 * @login   taken over, and zeroed, unless it fails.
 * @return  NULL: SL_E_NO_SPACE.
 *
 * Any thread, but new and free.
 */
struct sl_oci_auth *sl_oci_auth_new(const struct sl_source_config *config, const char *host,
                                    const char *repo, bool bare, bool tls,
                                    struct sl_oci_login *login, struct sl_err *err);
void sl_oci_auth_free(struct sl_oci_auth *auth);
/** The header of a request to the registry; *token: which one it is, 0: none. May block. SL_E_AUTH,
 * SL_E_NET. */
int sl_oci_let_in(struct sl_oci_auth *auth, struct sl_range_request *request, unsigned *token,
                  struct sl_err *err);
/** A refusal (401) came with this header. NULL is fine. */
void sl_oci_note_challenge(struct sl_oci_auth *auth, const char *header);
/** A request with this token was refused (401): true if the next one goes with another. May block.
 */
bool sl_oci_renew(struct sl_oci_auth *auth, unsigned token);
/** For messages; borrowed. */
const struct sl_oci_login *sl_oci_auth_login(const struct sl_oci_auth *auth);

#endif
