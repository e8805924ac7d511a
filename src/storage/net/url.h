/*
 * URLs of http and https (RFC 3986), taken apart and put together. Every input is hostile: control
 * characters never pass. Any thread, no network. What is returned as char * is the caller's to
 * free(); NULL is SL_E_NO_SPACE or what is said.
 */
#ifndef SL_URL_H
#define SL_URL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "mem.h"
#include "uri_text.h"

enum { SL_URL_BYTES_MAX = 16 * 1024, SL_URL_AUTHORITY_MAX = 272 };

struct sl_url {
    bool tls;       /* https */
    bool ipv6;      /* host is an address that needs brackets */
    uint16_t port;  /* the scheme's default if none was written */
    char *userinfo; /* "user:password" as written (percent-encoded), NULL if none */
    char *host;     /* lower case, without brackets */
    char *target;   /* path and query as they are sent: begins with '/', no fragment; bytes that may
                       not stand there are percent-encoded, nothing else is changed */
    bool fragment;  /* there was one, even if empty: whoever asks a server for this loses it */
};

/** Parse an absolute http or https URL. SL_E_USAGE quotes it without user and password. Release
 * with sl_url_release(). */
int sl_url_parse(const char *text, struct sl_url *url, struct sl_err *err);
/** Zeroed, and half-made ones, are fine. */
void sl_url_release(struct sl_url *url);
#define sl_autourl __attribute__((cleanup(sl_url_release))) struct sl_url

/** "host" or "host:port" where the port is not the default, IPv6 in brackets: the Host header.
 * Returns text. */
const char *sl_url_authority(const struct sl_url *url, char text[SL_URL_AUTHORITY_MAX]);
/** It names scheme, host and port alone. */
bool sl_url_is_host(const struct sl_url *url);
/** It names no more than these and a path, as an endpoint does. */
bool sl_url_is_base(const struct sl_url *url);
/** scheme, host and port are equal: credentials may go there. */
bool sl_url_same_origin(const struct sl_url *a, const struct sl_url *b);
/** The URL again, without user and password; without query if !query. free() it. */
char *sl_url_format(const struct sl_url *url, bool query, struct sl_err *err);
/** RFC 3986 section 5.2: what `reference` (a Location header) means below `base`. free() it.
 * SL_E_NET if it is not a http(s) URL. */
char *sl_url_resolve(const char *base, const char *reference, struct sl_err *err);

/** Is it of this machine: "127.0.0.1", "::1", "localhost"? What is sent there needs no TLS. */
bool sl_url_host_is_near(const char *host);

/** Percent-encode all but A-Z a-z 0-9 - . _ ~ (and '/' if keep_slash), hex in capitals: also
 * SigV4's encoding. free() it. */
char *sl_url_encode(const char *text, bool keep_slash, struct sl_err *err);
/** Undo percent-encoding; a broken escape or %00 is SL_E_USAGE. free() it. */
char *sl_url_decode(const char *text, size_t bytes, struct sl_err *err);

#endif
