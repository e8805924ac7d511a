/*
 * Where the redirects of a URL led, once for everybody who reads it.
 *
 * An object begins unknown. If the answer to its first request redirects, the place is kept, and
 * every later request goes there. When the place answers that the link has expired it is forgotten,
 * and one request asks the URL itself again; the others wait for an eventfd that is readable while
 * nobody asks. Objects of a store in which nothing was ever redirected are not waited for: their
 * first requests go out side by side, unless they go by caches, which know no redirects. Places are
 * numbered, so that a late refusal of an old link does not take the new one away.
 */
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "http_object.h"
#include "imds.h"
#include "log.h"

struct sl_http_object {
    struct sl_http_object *next; /* in its bucket */
    char *url;
    bool shared;
    struct {
        pthread_mutex_t mutex;
        enum { UNKNOWN, DIRECT, LEADS_AWAY } state;
        char *place;     /* NULL: to be asked for */
        unsigned number; /* of the place: counts them */
        bool asking;     /* a request is out that will tell for all */
        int settled_fd;  /* readable while nobody asks; -1: there is none yet */
    } locked;
};

static struct sl_http_object *object_new(const char *url, bool shared, struct sl_err *err)
{
    struct sl_http_object *object = sl_alloc(sizeof(*object), err);
    if (!object)
        return NULL;
    object->shared = shared;
    object->locked.settled_fd = -1;
    pthread_mutex_init(&object->locked.mutex, NULL);
    object->url = sl_strdup(url, err);
    if (!object->url)
        sl_http_object_free(sl_steal(&object));
    return object;
}

struct sl_http_object *sl_http_object_new(const char *url, struct sl_err *err)
{
    return object_new(url, false, err);
}

void sl_http_object_free(struct sl_http_object *object)
{
    if (!object)
        return;
    if (object->locked.settled_fd >= 0)
        close(object->locked.settled_fd);
    pthread_mutex_destroy(&object->locked.mutex);
    free(object->locked.place);
    free(object->url);
    free(object);
}

const char *sl_http_object_url(const struct sl_http_object *object)
{
    return object->url;
}

struct sl_http_object *sl_http_base_object(struct sl_http_base *base, const char *url,
                                           struct sl_err *err)
{
    uint32_t hash = 2166136261;
    for (const char *at = url; *at; at++)
        hash = (hash ^ (unsigned char)*at) * 16777619;
    SL_LOCKED(&base->locked.mutex);
    struct sl_http_object **bucket = &base->locked.objects[hash % SL_HTTP_BUCKETS];
    for (struct sl_http_object *object = *bucket; object; object = object->next)
        if (strcmp(object->url, url) == 0)
            return object;
    struct sl_http_object *object = object_new(url, true, err);
    if (!object)
        return NULL;
    object->next = *bucket;
    *bucket = object;
    return object;
}

/* There is no other thread any more. */
void sl_http_base_forget_objects(struct sl_http_base *base)
{
    for (unsigned i = 0; i < SL_HTTP_BUCKETS; i++)
        while (base->locked.objects[i]) {
            struct sl_http_object *object = base->locked.objects[i];
            base->locked.objects[i] = object->next;
            sl_http_object_free(object);
        }
}

/* ---- asking for a place ---------------------------------------------------------------------- */

static bool leads_away_elsewhere(struct sl_http_base *base)
{
    SL_LOCKED(&base->locked.mutex);
    return base->locked.redirects;
}

/* Under the lock: is the answer to this request worth waiting for? */
static bool claim(struct sl_http_object *object, bool redirects)
{
    bool doubtful =
        object->locked.state == LEADS_AWAY || (object->locked.state == UNKNOWN && redirects);
    if (!object->shared || !doubtful)
        return false;
    if (object->locked.settled_fd < 0)
        object->locked.settled_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    eventfd_t drained;
    object->locked.asking =
        object->locked.settled_fd >= 0 && (eventfd_read(object->locked.settled_fd, &drained), true);
    return object->locked.asking;
}

int sl_http_object_place(struct sl_http_base *base, struct sl_http_object *object,
                         struct sl_range_request *request, struct sl_err *err)
{
    bool redirects = request->by_cache || leads_away_elsewhere(base);
    SL_LOCKED(&object->locked.mutex);
    request->object = object;
    request->place = object->locked.number;
    if (!object->locked.place && object->locked.asking) {
        request->waits = true;
        request->wait_fd = object->locked.settled_fd;
        return 0;
    }
    request->url = sl_strdup(object->locked.place ? object->locked.place : object->url, err);
    if (!request->url)
        return -1;
    request->asks = !object->locked.place && claim(object, redirects);
    return 0;
}

void sl_http_object_settle(struct sl_http_object *object, bool direct)
{
    SL_LOCKED(&object->locked.mutex);
    if (direct && !object->locked.place)
        object->locked.state = DIRECT;
    if (!object->locked.asking)
        return;
    object->locked.asking = false;
    eventfd_write(object->locked.settled_fd, 1);
}

static bool has_expired(int status)
{
    return status == 401 || status == 403 || status == 404 || status == 410;
}

void sl_http_object_fail(struct sl_http_object *object, unsigned place, int status, bool unreached)
{
    SL_LOCKED(&object->locked.mutex);
    if ((!unreached && !has_expired(status)) || place != object->locked.number)
        return;
    free(sl_steal(&object->locked.place));
}

/* ---- redirects ------------------------------------------------------------------------------- */

/* A stranger's answer must not send us to the services of our own machine. */
static int check_place(const struct sl_http_base *base, const char *to, struct sl_err *err)
{
    sl_autourl url = {0};
    if (sl_url_parse(to, &url, err) < 0)
        return -1;
    if (!sl_imds_redirect_refused(base->url.host, url.host))
        return 0;
    sl_fail(err, SL_E_NET,
            "redirected to '%.100s', a cloud's metadata address, which serves the machine's keys: "
            "not followed",
            url.host);
    if (err)
        err->retryable = false;
    return -1;
}

static bool moves_to_tls(const char *from, const char *to)
{
    sl_autourl a = {0}, b = {0};
    return sl_url_parse(from, &a, NULL) == 0 && sl_url_parse(to, &b, NULL) == 0 && !a.tls &&
           b.tls && strcmp(a.host, b.host) == 0;
}

int sl_http_check_moved(const char *what, const char *from, const char *to, int status,
                        struct sl_err *err)
{
    sl_autourl url = {0};
    char authority[SL_URL_AUTHORITY_MAX];
    if (!moves_to_tls(from, to) || sl_url_parse(to, &url, NULL) < 0)
        return 0;
    sl_fail(err, SL_E_USAGE,
            "%s: the server answered %d and leads from http to https: name it as 'https://%s'",
            what, status, sl_url_authority(&url, authority));
    if (err)
        err->http_status = status;
    return -1;
}

/* Under no lock: whoever asked for the first redirect of a base is told what it loses by it. */
static void warn_of_login(const struct sl_http_base *base, const char *from, const char *to)
{
    if (sl_http_has_login(base) && moves_to_tls(from, to))
        sl_log(SL_LOG_WARN,
               "'%s' leads from http to https, and no login is sent on: name it with https://",
               base->url.host);
}

int sl_http_redirect(struct sl_http_base *base, struct sl_http_object *object, const char *from,
                     const char *to, int status, struct sl_err *err)
{
    if (strncmp(from, "https:", 6) == 0 && strncmp(to, "https:", 6) != 0) {
        sl_fail(err, SL_E_NET, "redirected (%d) from https to http, which is not followed", status);
        if (err)
            err->retryable = false;
        return -1;
    }
    if (check_place(base, to, err) < 0)
        return -1;
    char *copy = sl_strdup(to, err);
    bool first;
    if (!copy)
        return -1;
    {
        SL_LOCKED(&base->locked.mutex);
        first = !base->locked.redirects;
        base->locked.redirects = true;
    }
    if (first)
        warn_of_login(base, from, to);
    SL_LOCKED(&object->locked.mutex);
    free(object->locked.place);
    object->locked.place = copy;
    object->locked.number++;
    object->locked.state = LEADS_AWAY;
    return 0;
}

bool sl_http_object_expired(struct sl_http_object *object, const struct sl_err *why)
{
    SL_LOCKED(&object->locked.mutex);
    bool expired = object->locked.state == LEADS_AWAY &&
                   (sl_retry_unreached(why) || has_expired(why->http_status));
    if (expired && !object->shared)
        free(sl_steal(
            &object->locked.place)); /* else http_channel.c knows whether it was this one */
    return expired;
}
