/*
 * Which endpoint a blob is asked of: the mirrors in the order of the spec, then the registry. Only
 * what is compared with a digest comes here; the rest is the registry's alone, unless the spec
 * believes mirrors while that cannot be reached.
 */
#include <string.h>

#include "log.h"
#include "oci_store.h"
#include "url.h"

static int add_mirror(struct sl_oci *oci, const struct sl_oci_mirror *mirror, bool plain,
                      struct sl_err *err)
{
    const char *slash = *mirror->prefix ? "/" : "";
    sl_autofree char *name = sl_asprintf(err, "%s%s%s", mirror->host, slash, mirror->prefix);
    if (!name)
        return -1;
    if (oci->mirror_count == SL_OCI_MIRRORS_MAX)
        return sl_fail(err, SL_E_USAGE, "source.oci.mirrors names more than %d mirrors",
                       SL_OCI_MIRRORS_MAX);
    const struct sl_oci_place_facts facts = {.name = name,
                                             .host = mirror->host,
                                             .prefix = mirror->prefix,
                                             .repo = oci->uri.repo,
                                             .of = oci->uri.host,
                                             .plain = plain};
    return sl_oci_endpoint_open(&oci->mirrors[oci->mirror_count++], &oci->store->config, &facts,
                                err);
}

static int take_mirror(struct sl_oci *oci, const char *text, bool plain, struct sl_err *err)
{
    struct sl_oci_mirror mirror;
    int result = sl_oci_mirror_parse(text, &mirror, err);
    bool ours = result == 0 && (!mirror.registry || strcmp(mirror.registry, oci->uri.host) == 0);
    if (ours && !mirror.given)
        mirror.plain = plain || sl_oci_host_is_near(mirror.host);
    if (ours)
        result = add_mirror(oci, &mirror, mirror.plain, err);
    sl_oci_mirror_release(&mirror);
    return result;
}

int sl_oci_open_mirrors(struct sl_oci *oci, const struct sl_oci_options *options,
                        struct sl_err *err)
{
    if (!options || oci->store->config.no_mirrors)
        return 0;
    oci->trusts = options->trust_mirrors;
    for (size_t i = 0; i < options->mirrors.count; i++)
        if (take_mirror(oci, options->mirrors.items[i], options->plain_http, err) < 0)
            return sl_wrap(err, "source.oci.mirrors");
    return 0;
}

struct sl_oci_endpoint *sl_oci_endpoint_at(struct sl_oci *oci, unsigned number)
{
    return number < oci->mirror_count ? &oci->mirrors[number] : &oci->registry;
}

unsigned sl_oci_next_endpoint(struct sl_oci *oci, unsigned from, const char *digest)
{
    while (from < oci->mirror_count && !sl_oci_endpoint_serves(&oci->mirrors[from], digest))
        from++;
    return SL_MIN(from, oci->mirror_count);
}

bool sl_oci_leans_on_mirrors(struct sl_oci *oci, const struct sl_err *why)
{
    if (!oci->trusts || !oci->mirror_count || why->kind != SL_E_NET || !why->retryable)
        return false;
    if (!sl_oci_endpoint_is_left(&oci->registry))
        sl_log(SL_LOG_WARN,
               "'%.100s' cannot be reached, and its mirrors are believed "
               "(source.oci.trustMirrors): %s",
               oci->uri.host, why->message);
    sl_oci_endpoint_leave(&oci->registry);
    return true;
}

/* ---- hooks ----------------------------------------------------------------------------------- */

bool sl_oci_blame(struct sl_store *store, const struct sl_err *why)
{
    struct sl_oci *oci = store->impl;
    bool blamed = false;
    for (unsigned i = 0; i < oci->mirror_count; i++)
        blamed |= sl_oci_endpoint_blame(&oci->mirrors[i], why);
    return blamed;
}

static void describe_endpoint(const struct sl_oci_endpoint *endpoint, const char *what,
                              void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    const struct sl_oci_login *login = sl_oci_auth_login(endpoint->auth);
    const char *from = login->from ? login->from : "none";
    sl_autofree char *place =
        sl_asprintf(NULL, "%s (repository '%s')", endpoint->origin, endpoint->repo);
    sl_autofree char *keys = sl_asprintf(NULL, "%s of '%s'%s%s", from, endpoint->name,
                                         login->helper ? ", by docker-credential-" : "",
                                         login->helper ? login->helper : "");
    if (place && keys) {
        row(arg, what, place);
        row(arg, "credentials", keys);
    }
}

void sl_oci_describe(struct sl_store *store,
                     void (*row)(void *arg, const char *what, const char *text), void *arg)
{
    struct sl_oci *oci = store->impl;
    describe_endpoint(&oci->registry, "endpoint", row, arg);
    for (unsigned i = 0; i < oci->mirror_count; i++)
        describe_endpoint(&oci->mirrors[i], "mirror", row, arg);
}
