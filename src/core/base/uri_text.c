/*
 * Of a URI four places count: where its authority begins, what of it is a user or a key, where the
 * rest ends, and whether a mark tells that something was left out. URLs and Redis may name a user,
 * and are shown without; elsewhere a user is a mistake, and "…@" stands for it.
 */
#include "uri_text.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "buf.h"

/* The longest name of a host, of a bucket, and of anything that may have lost its end. */
enum { COMPONENT_BYTES_MAX = 128, BUCKET_BYTES_MAX = 63, CUT_BYTES = 40 };

static const char mark[] = "…@";

static const struct scheme {
    const char *word;
    bool signs;     /* a query is a signature, or not for people */
    bool user;      /* "user:password@" has its place */
    bool container; /* "container@account" */
    bool colons;    /* a bucket may have colons */
} schemes[] = {
    {"http", .signs = true, .user = true},
    {"https", .signs = true, .user = true},
    {"az", .signs = true},
    {"azure", .signs = true},
    {"abfs", .signs = true, .user = true, .container = true},
    {"abfss", .signs = true, .user = true, .container = true},
    {"redis", .user = true},
    {"rediss", .user = true},
    {"s3", .colons = true},
    {"gs", false},
    {"hf", false},
    {"ms", false},
    {"modelscope", false},
    {"oci", false},
};
/* Of a scheme that nobody knows, and of files on a host. */
static const struct scheme other = {"", .user = true};

struct parts {
    size_t authority, user; /* user: bytes from there on that are left out */
    size_t end;             /* of what is shown */
    bool marked;
    bool bare; /* "user:password@host" without a scheme */
};

/* What is known of a text: it is a URI and no more, it is one in a message, or that ends with it
 * and may have cut it off. */
enum known { WHOLE, WITHIN, CUT };

static const struct scheme *find_scheme(const char *word, size_t bytes)
{
    for (size_t i = 0; i < SL_COUNT(schemes); i++)
        if (strlen(schemes[i].word) == bytes && strncasecmp(schemes[i].word, word, bytes) == 0)
            return &schemes[i];
    return &other;
}

static bool is_scheme_char(char c)
{
    return isalnum((unsigned char)c) || c == '+' || c == '-' || c == '.';
}

static size_t span_until(const char *text, size_t bytes, const char *ends)
{
    size_t used = 0;
    while (used < bytes && !strchr(ends, text[used]))
        used++;
    return used;
}

/* Behind the last '@', or "%40", of these bytes; 0: none. One before a digest does not count. */
static size_t behind_at(const char *text, size_t bytes)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = bytes; i-- > 0;) {
        size_t width = text[i] == '@'                                       ? 1
                       : bytes - i >= 3 && strncmp(text + i, "%40", 3) == 0 ? 3
                                                                            : 0;
        size_t from = i + width;
        if (!width)
            continue;
        if (bytes - from > 7 && strncmp(text + from, "sha", 3) == 0 &&
            span_until(text + from, bytes - from, ":") + 8 < bytes - from &&
            strspn(strchr(text + from, ':') + 1, digits) >= 8)
            continue;
        return from;
    }
    return 0;
}

/* "host:80" and "[::1]:80" are no user and password, "user:pass/word" is. */
static bool has_password(const char *text, size_t bytes, bool colons)
{
    size_t colon = *text == '[' ? span_until(text, bytes, "]") : 0;
    colon += span_until(text + colon, bytes - colon, ":");
    if (colon == bytes)
        return false;
    size_t port = bytes - colon - 1;
    if (colon && port <= 5 && strspn(text + colon + 1, "0123456789") >= port)
        return false;
    /* "tenant:bucket" and ARNs are buckets: only what looks like Amazon's key ids is none. */
    return !colons || (isupper((unsigned char)*text) &&
                       strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789") >= colon);
}

static bool is_bucket(const char *text, size_t bytes)
{
    return bytes <= BUCKET_BYTES_MAX &&
           strspn(text, "abcdefghijklmnopqrstuvwxyz0123456789-.") >= bytes;
}

/* Does it look like the beginning of a secret, whose '@' was cut off with the rest? A bucket
 * without a dot may be as long as a token. Messages cut nothing that they quote to less than 80
 * bytes, which is longer than any. */
static bool is_cut(const struct scheme *scheme, const char *text, size_t bytes, bool password,
                   enum known known)
{
    bool named = known == WHOLE || memchr(text, '.', bytes) || strncmp(text, "arn:", 4) == 0 ||
                 (known == WITHIN && !scheme->user && is_bucket(text, bytes));
    return bytes > COMPONENT_BYTES_MAX || (bytes > CUT_BYTES && (password || !named));
}

/* A password may have '?' and '#' in it, unless what follows them is a query of ours. */
static size_t user_bytes(const struct scheme *scheme, const char *text, size_t bytes,
                         enum known known)
{
    size_t host = span_until(text, bytes, "/?#"), place = span_until(text, bytes, "/");
    if (scheme->signs && !has_password(text, host, scheme->colons))
        place = host;
    size_t user = behind_at(text, place);
    if (*text == '[' && user && text[user] == ']')
        return 0; /* "[user@]host" of our own words */
    bool digest = !user && memchr(text, '@', place);
    host = span_until(text + user, bytes - user, "/?#");
    bool password = !digest && has_password(text + user, host, scheme->colons);
    bool cut = (user && password) || is_cut(scheme, text + user, place - user, password, known);
    if (place == bytes && !digest && cut)
        return place;
    if (user)
        return scheme->container && !memchr(text, ':', user) ? 0 : user;
    return password ? behind_at(text, bytes) : 0;
}

/* A parameter's name tells that its value is a secret. */
static bool is_secret_name(const char *name, size_t bytes)
{
    static const char *const words[] = {"sig", "token", "secret", "passw", "pwd", "cred",
                                        "key", "auth",  "sas",    "sess",  "jwt"};
    for (size_t i = 0; i < SL_COUNT(words); i++)
        for (size_t at = 0; at + strlen(words[i]) <= bytes; at++)
            if (strncasecmp(name + at, words[i], strlen(words[i])) == 0)
                return true;
    return false;
}

/* Bytes of what parts parameters, as it is or percent-encoded; 0: none is here. */
static size_t separator(const char *text, size_t bytes)
{
    static const char *const encoded[] = {"%3f", "%23", "%26"};
    for (size_t i = 0; bytes >= 3 && i < SL_COUNT(encoded); i++)
        if (strncasecmp(text, encoded[i], 3) == 0)
            return 3;
    return bytes && strchr("?#&;", *text) ? 1 : 0;
}

static size_t until_separator(const char *text, size_t bytes)
{
    size_t used = 0;
    while (used < bytes && !separator(text + used, bytes - used))
        used++;
    return used;
}

/* Up to the query or fragment that is a secret. A key may have '?' and '#' in it. */
static size_t shown_bytes(const struct scheme *scheme, const char *text, size_t bytes)
{
    size_t query = until_separator(text, bytes);
    if (scheme->signs && query < bytes && strchr("?#", text[query]))
        return query;
    for (size_t at = query; at < bytes; at += until_separator(text + at, bytes - at)) {
        at += separator(text + at, bytes - at);
        size_t name = strcspn(text + at, "=%"), word = until_separator(text + at, bytes - at);
        if (name < word && is_secret_name(text + at, name))
            return query;
    }
    return scheme->signs ? span_until(text, bytes, "?#") : bytes;
}

/* Who forgot the scheme of an endpoint has a password in it all the same. */
static bool find_bare(const char *uri, size_t bytes, struct parts *parts)
{
    size_t user = behind_at(uri, span_until(uri, bytes, "/"));
    *parts = (struct parts){0, user, bytes, true, true};
    return user;
}

/* false: it is none, or one that has nothing to hide. */
static bool find_parts(const char *uri, size_t bytes, enum known known, struct parts *parts)
{
    size_t word = 0, slashes = 0;
    while (word < bytes && is_scheme_char(uri[word]))
        word++;
    if (word < 1 || word >= bytes || uri[word] != ':')
        return false;
    const struct scheme *scheme = find_scheme(uri, word);
    while (word + 1 + slashes < bytes && uri[word + 1 + slashes] == '/')
        slashes++;
    if (scheme == &other && slashes == 0)
        return find_bare(uri, bytes, parts);
    if (word < 2 || !isalpha((unsigned char)*uri) || (scheme == &other && slashes != 2))
        return false;
    size_t at = word + 1 + slashes;
    const char *text = uri + at;
    size_t user = user_bytes(scheme, text, bytes - at, known);
    size_t shown = shown_bytes(scheme, text + user, bytes - at - user);
    *parts = (struct parts){.authority = at,
                            .user = user,
                            .end = at + user + shown,
                            .marked = user && (!scheme->user || slashes != 2)};
    return user || parts->end < bytes;
}

size_t sl_uri_write(const char *uri, char *text, size_t size)
{
    struct parts parts;
    if (!find_parts(uri, strlen(uri), WHOLE, &parts))
        return (size_t)snprintf(text, size, "%s", uri);
    size_t from = parts.authority + parts.user;
    return (size_t)snprintf(text, size, "%.*s%s%.*s", (int)parts.authority, uri,
                            parts.marked ? mark : "", (int)(parts.end - from), uri + from);
}

bool sl_uri_holds_key(const char *uri)
{
    struct parts parts;
    return find_parts(uri, strlen(uri), WHOLE, &parts) && parts.marked && !parts.bare;
}

/* ---- within a message ------------------------------------------------------------------------ */

static bool ends_word(const char *text)
{
    return !*text || strchr(" ,:;.)\n", *text) || strncmp(text, "? ", 2) == 0;
}

/* A quoted one ends with its quote, which text of it may hold, too; another one at a blank. */
static size_t end_of(const char *text, const char *uri)
{
    char quote = uri > text && strchr("'\"", uri[-1]) ? uri[-1] : 0;
    size_t used = 0;
    if (!quote)
        return strcspn(uri, " \t\n'\"<>");
    while (uri[used] && !(uri[used] == quote && ends_word(uri + used + 1)))
        used++;
    return used;
}

static char *next_uri(const char *text, char *at)
{
    while ((at = strchr(at, ':'))) {
        char *word = at++;
        while (word > text && is_scheme_char(word[-1]))
            word--;
        if (*word != ':' && *at && !isspace((unsigned char)*at))
            return word;
    }
    return NULL;
}

/* Of a name or a path, such as "arn:aws:s3:…", and no beginning of anything. */
static bool is_part(const char *text, const char *uri)
{
    return uri > text && strchr(":/", uri[-1]) && uri[strcspn(uri, ":") + 1] != '/';
}

void sl_uri_hide(char *text, size_t size)
{
    size_t used = strlen(text);
    for (char *uri = text; (uri = next_uri(text, uri));) {
        struct parts parts;
        size_t bytes = end_of(text, uri);
        bool cut = uri + bytes == text + used && used + 1 >= size;
        if (is_part(text, uri) || !find_parts(uri, bytes, cut ? CUT : WITHIN, &parts)) {
            uri += strcspn(uri, ":") + 1;
            continue;
        }
        size_t sign = parts.marked ? sizeof(mark) - 1 : 0, from = parts.authority + parts.user;
        size_t kept = parts.end - from, rest = used - (size_t)(uri - text) - bytes;
        if (parts.authority + sign + kept + rest + (size_t)(uri - text) >= size)
            sign = 0;
        memmove(uri + parts.authority + sign, uri + from, kept);
        memcpy(uri + parts.authority, mark, sign);
        uri += parts.authority + sign + kept;
        memmove(uri, text + used - rest, rest + 1);
        used = (size_t)(uri - text) + rest;
    }
}
