/*
 * libcurl has the path of a system's certificates compiled in, or none in static builds. A program
 * that moves between distributions asks instead where they are; nothing is read here, so that a
 * load without TLS pays nothing.
 */
#include "ca.h"

#include <stdlib.h>
#include <unistd.h>

#include "mem.h"

static const char *const variables[] = {"SSL_CERT_FILE", "CURL_CA_BUNDLE", "REQUESTS_CA_BUNDLE"};

static const char *const system_files[] = {
    "/etc/ssl/certs/ca-certificates.crt", /* Debian, Ubuntu, Alpine, Arch; images from scratch */
    "/etc/pki/tls/certs/ca-bundle.crt",   /* Red Hat, Fedora, Amazon */
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", /* Red Hat since 7, and its newest */
    "/etc/ssl/ca-bundle.pem",                            /* SUSE */
    "/etc/ssl/cert.pem",                                 /* Alpine without ca-certificates */
};

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

const char *sl_ca_first(const char *const *files, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (access(files[i], R_OK) == 0)
            return files[i];
    }
    return NULL;
}

const char *sl_ca_system(void)
{
    bool there = sl_libcurl_open(NULL) == 0;
    const char *compiled_in = there ? sl_libcurl.version_info(CURLVERSION_NOW)->cainfo : NULL;
    if (compiled_in && access(compiled_in, R_OK) == 0)
        return compiled_in;
    return sl_ca_first(system_files, SL_COUNT(system_files));
}

/* A system may have them in a folder alone. */
static const char *system_directory(void)
{
    bool there = sl_libcurl_open(NULL) == 0;
    const char *compiled_in = there ? sl_libcurl.version_info(CURLVERSION_NOW)->capath : NULL;
    return compiled_in && access(compiled_in, R_OK | X_OK) == 0 ? compiled_in : NULL;
}

static CURLcode use_file(CURL *easy, const char *file)
{
    CURLcode bad = sl_libcurl.easy_setopt(easy, CURLOPT_CAINFO, file);
    return bad ? bad : sl_libcurl.easy_setopt(easy, CURLOPT_PROXY_CAINFO, file);
}

static CURLcode use_directory(CURL *easy, const char *directory)
{
    CURLcode bad = sl_libcurl.easy_setopt(easy, CURLOPT_CAPATH, directory);
    return bad ? bad : sl_libcurl.easy_setopt(easy, CURLOPT_PROXY_CAPATH, directory);
}

struct sl_ca_choice sl_ca_choose(const char *given)
{
    if (given && *given)
        return (struct sl_ca_choice){.file = given, .from = "source.tls.caFile"};
    struct sl_ca_choice choice = {.directory = variable("SSL_CERT_DIR"), .from = "the system"};
    for (size_t i = 0; i < SL_COUNT(variables) && !choice.file; i++) {
        choice.file = variable(variables[i]);
        choice.from = choice.file ? variables[i] : choice.from;
    }
    if (!choice.file)
        choice.file = sl_ca_system();
    if (!choice.file && !choice.directory)
        choice.directory = system_directory();
    return choice;
}

CURLcode sl_ca_use(CURL *easy, const struct sl_ca_choice *choice)
{
    /* No file is an error to libcurl only where it was told of one. */
    if (!choice->file && !choice->directory)
        return CURLE_OK;
    CURLcode bad = use_directory(easy, choice->directory); /* NULL: not the system's either */
    return bad ? bad : use_file(easy, choice->file);
}
