/* Opening endpoints, and what lets requests in there. */
#include "oci_endpoint.h"

#include <string.h>

#include "oci_store.h"

/* ---- opening --------------------------------------------------------------------------------- */

static int find_origin(struct sl_oci_endpoint *endpoint, bool plain, struct sl_err *err)
{
    static const char hub[] = "docker.io", hub_api[] = "registry-1.docker.io";
    const char *host = strcmp(endpoint->host, hub) == 0 ? hub_api : endpoint->host;
    sl_autofree char *url = sl_asprintf(err, "%s://%s", plain ? "http" : "https", host);
    if (!url || sl_http_base_open(&endpoint->http, url, err) < 0)
        return -1;
    free(sl_steal(&endpoint->http.login)); /* .netrc is not of registries */
    endpoint->origin = sl_url_format(&endpoint->http.url, false, err);
    for (size_t bytes = endpoint->origin ? strlen(endpoint->origin) : 0;
         bytes && endpoint->origin[bytes - 1] == '/';)
        endpoint->origin[--bytes] = 0;
    return endpoint->origin ? 0 : -1;
}

/* bare: everybody on the way would read it. */
static int find_login(struct sl_oci_endpoint *endpoint, const struct sl_source_config *config,
                      bool bare, struct sl_err *err)
{
    const struct sl_oci_options *options = sl_source_options(config, &sl_oci_table);
    const char *file = options ? options->docker_config : NULL;
    struct sl_oci_login login = {0};
    int result = 0;
    if (bare && file && *file && !endpoint->mirror)
        result = sl_fail(err, SL_E_AUTH,
                         "source.oci.plainHttp: '%.100s' would get the login of "
                         "source.oci.dockerConfig unencrypted: leave one of them out",
                         endpoint->host);
    else if (!bare)
        result = sl_oci_login_find(file, endpoint->host, endpoint->repo, &login, err);
    if (result == 0)
        endpoint->auth = sl_oci_auth_new(config, endpoint->host, endpoint->repo, bare,
                                         endpoint->http.url.tls, &login, err);
    sl_oci_login_release(&login);
    return endpoint->auth ? 0 : -1;
}

int sl_oci_endpoint_open(struct sl_oci_endpoint *endpoint, const struct sl_source_config *config,
                         const struct sl_oci_place_facts *facts, struct sl_err *err)
{
    pthread_mutex_init(&endpoint->locked.mutex, NULL);
    endpoint->http.section = "source.oci";
    endpoint->mirror = facts->of != NULL;
    endpoint->name = sl_strdup(facts->name, err);
    endpoint->host = endpoint->name ? sl_strdup(facts->host, err) : NULL;
    if (!endpoint->host)
        return -1;
    endpoint->repo =
        sl_asprintf(err, "%s%s%s", facts->prefix, *facts->prefix ? "/" : "", facts->repo);
    endpoint->query = facts->of ? sl_asprintf(err, "?ns=%s", facts->of) : sl_strdup("", err);
    if (!endpoint->repo || !endpoint->query || find_origin(endpoint, facts->plain, err) < 0)
        return -1;
    bool bare = facts->plain && !sl_url_host_is_near(endpoint->http.url.host);
    return find_login(endpoint, config, bare, err);
}

void sl_oci_endpoint_close(struct sl_oci_endpoint *endpoint)
{
    if (endpoint->http.url.host)
        sl_http_base_close(&endpoint->http);
    sl_oci_auth_free(endpoint->auth);
    free(endpoint->name);
    free(endpoint->host);
    free(endpoint->repo);
    free(endpoint->origin);
    free(endpoint->query);
    if (endpoint->name)
        pthread_mutex_destroy(&endpoint->locked.mutex);
}

/* ---- requests -------------------------------------------------------------------------------- */

char *sl_oci_endpoint_url(const struct sl_oci_endpoint *endpoint, const char *kind,
                          const char *reference, struct sl_err *err)
{
    return sl_asprintf(err, "%s/v2/%s/%s/%s%s", endpoint->origin, endpoint->repo, kind, reference,
                       endpoint->query);
}

int sl_oci_endpoint_let_in(struct sl_oci_endpoint *endpoint, struct sl_range_request *request,
                           struct sl_err *err)
{
    size_t bytes = strlen(endpoint->origin);
    unsigned token = 0;
    if (!request->url || strncmp(request->url, endpoint->origin, bytes) != 0 ||
        request->url[bytes] != '/')
        return 0;
    if (sl_oci_let_in(endpoint->auth, request, &token, err) < 0)
        return -1;
    SL_LOCKED(&endpoint->locked.mutex);
    endpoint->locked.token = token;
    return 0;
}

bool sl_oci_endpoint_recover(struct sl_oci_endpoint *endpoint, struct sl_http_object *object,
                             const struct sl_err *why, struct sl_err *err)
{
    unsigned token;
    bool link = object && sl_http_recover(&endpoint->http, object, why, err);
    {
        SL_LOCKED(&endpoint->locked.mutex);
        token = endpoint->locked.token;
    }
    return (why->http_status == 401 && sl_oci_renew(endpoint->auth, token)) || link;
}

/* "host" or "[::1]" of "host:port" */
bool sl_oci_host_is_near(const char *host)
{
    sl_autofree char *text = sl_asprintf(NULL, "http://%s/", host);
    sl_autourl url = {0};
    return text && sl_url_parse(text, &url, NULL) == 0 && sl_url_host_is_near(url.host);
}

int sl_oci_place_find(struct sl_oci_endpoint *endpoint, const char *digest,
                      struct sl_oci_place *place, struct sl_err *err)
{
    sl_autofree char *url = sl_oci_endpoint_url(endpoint, "blobs", digest, err);
    place->at = endpoint;
    place->object = url ? sl_http_base_object(&endpoint->http, url, err) : NULL;
    return place->object ? 0 : -1;
}
