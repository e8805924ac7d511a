/* The endpoints of an artifact: the mirrors in the order of the spec, then the registry. Only what
 * is compared with a digest is asked of mirrors (places.h); the rest is the registry's alone,
 * unless the spec believes them while that cannot be reached. */
#include <string.h>

#include "oci_store.h"

static int add_mirror(struct sl_oci *oci, const struct sl_oci_mirror *mirror, bool plain,
                      struct sl_err *err)
{
    const char *slash = *mirror->prefix ? "/" : "";
    sl_autofree char *name = sl_asprintf(err, "%s%s%s", mirror->host, slash, mirror->prefix);
    if (!name)
        return -1;
    if (oci->places.count == SL_PLACES_MAX)
        return sl_fail(err, SL_E_USAGE, "source.oci.mirrors names more than %d mirrors",
                       SL_PLACES_MAX);
    const struct sl_oci_place_facts facts = {.name = name,
                                             .host = mirror->host,
                                             .prefix = mirror->prefix,
                                             .repo = oci->uri.repo,
                                             .of = oci->uri.host,
                                             .plain = plain};
    struct sl_oci_endpoint *endpoint = &oci->mirrors[oci->places.count++];
    int result = sl_oci_endpoint_open(endpoint, &oci->store->config, &facts, err);
    oci->places.names[endpoint - oci->mirrors] = endpoint->name;
    return result;
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
    oci->places.origin = oci->uri.host;
    oci->store->places = &oci->places;
    if (!options || oci->store->config.no_mirrors)
        return 0;
    oci->places.believed = options->trust_mirrors ? "source.oci.trustMirrors" : NULL;
    for (size_t i = 0; i < options->mirrors.count; i++)
        if (take_mirror(oci, options->mirrors.items[i], options->plain_http, err) < 0)
            return sl_wrap(err, "source.oci.mirrors");
    return 0;
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
    for (unsigned i = 0; i < oci->places.count; i++)
        describe_endpoint(&oci->mirrors[i], "mirror", row, arg);
}
