/*
 * The range contract (RFC 9110 sections 13 to 15), once for all stores over HTTP.
 *
 * A request gets exactly the bytes that were asked for, of the version that was opened, or an error
 * that names the answer. Nothing comes before its head was judged; a longer body is an error.
 *
 * A web server that answers its opening with all of the object knows no ranges. From then on such
 * an object is asked for whole, and a range that has ended leaves the answer where it is (flow), so
 * that the next one, which lies behind it, goes on there.
 *
 *     IDLE ──▶ HEAD ──▶ BODY ──▶ IDLE        judge(), which may lead to another HEAD first
 *      │ ▲      │ │
 *      │ │      │ └──▶ REFUSING, EMPTY ──▶ IDLE     an error; an object without a byte
 *      │ │      └────▶ COUNTING ──▶ HEAD     the length is what comes, then it is asked again
 *      ▼ │
 *     WAITING ──▶ HEAD                       somebody else asks where the redirect leads
 *
 *     send_request()  HEAD, WAITING; BODY where the answer in hand goes on     take_body()  BODY
 *
 * A failure and an abort are IDLE. Only the thread that has the channel moves it.
 */
#include "http_channel.h"

#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "buf.h"
#include "http_base.h"
#include "http_range.h"
#include "http_through.h"
#include "url.h"

enum { REDIRECTS_MAX = 10, COUNTED_AT_ONCE = 64 };

enum phase { IDLE, WAITING, HEAD, BODY, REFUSING, EMPTY, COUNTING };

struct sl_channel {
    struct sl_store *store;
    const struct sl_http_hooks *hooks;
    struct sl_exchange *exchange;
    struct sl_source *source;
    uint64_t begin, end; /* asked for */
    uint64_t skip, left; /* of the answer's body: before the range, of the range */
    bool cut;            /* more of it comes behind the range */
    bool first;
    unsigned hedge;                 /* as of a request */
    const char *via;                /* the same; NULL: to the origin */
    char led[SL_THROUGH_VIA_BYTES]; /* where its connection leads by now; "": to the origin */
    unsigned redirects;
    enum phase phase;
    /* Of a server without ranges: an answer of all of an object, read up to there, with which a
     * range behind it goes on. object NULL: there is none */
    struct {
        struct sl_http_object *object;
        uint64_t at, of;
    } flow;
    uint64_t count; /* bytes that came, of an answer that is read to learn its length, … */
    bool counted;   /* … which has ended */
    bool busy;      /* COUNTING: there is more in hand */
    char *url;      /* of the request in hand; NULL: it waits */
    struct sl_http_object *object; /* of that request, NULL: the kind keeps no redirects */
    unsigned place;
    bool asks;   /* others wait for what it learns */
    int wait_fd; /* WAITING */
    uint64_t wait_until_ns;
    struct sl_version announced; /* by the answer in hand */
    struct sl_buf detail;
};

static void set_phase(struct sl_channel *channel, enum phase to)
{
#ifndef NDEBUG
#define TO(phase) (1u << (phase))
    static const unsigned steps[] = {
        [IDLE] = TO(IDLE) | TO(WAITING) | TO(HEAD) | TO(BODY),
        [WAITING] = TO(IDLE) | TO(WAITING) | TO(HEAD) | TO(BODY),
        [HEAD] =
            TO(IDLE) | TO(WAITING) | TO(HEAD) | TO(BODY) | TO(REFUSING) | TO(EMPTY) | TO(COUNTING),
        [BODY] = TO(IDLE),
        [REFUSING] = TO(IDLE),
        [EMPTY] = TO(IDLE),
        [COUNTING] = TO(IDLE) | TO(WAITING) | TO(HEAD),
    };
#undef TO
    assert(steps[channel->phase] & 1u << to);
#endif
    channel->phase = to;
}

static struct sl_channel *channel_new(struct sl_store *store, struct sl_err *err)
{
    struct sl_connect connect = sl_store_connect(store);
    struct sl_channel *channel = sl_alloc(sizeof(*channel), err);
    if (!channel)
        return NULL;
    channel->store = store;
    channel->hooks = store->kind->hooks;
    channel->detail.limit = SL_RANGE_DETAIL_MAX;
    channel->exchange = sl_exchange_new(&connect, err);
    if (!channel->exchange) {
        free(channel);
        return NULL;
    }
    return channel;
}

/* The answer that goes on is not wanted any more. */
static void leave_flow(struct sl_channel *channel)
{
    if (channel->flow.object)
        sl_exchange_abort(channel->exchange);
    channel->flow.object = NULL;
}

struct sl_exchange *sl_http_channel_exchange(struct sl_channel *channel)
{
    leave_flow(channel);
    return channel->exchange;
}

/* Nobody is to wait for this request any more. */
static void settle(struct sl_channel *channel, bool direct)
{
    if (channel->asks || (direct && channel->object))
        sl_http_object_settle(channel->object, direct);
    channel->asks = false;
}

static void channel_free(struct sl_channel *channel)
{
    if (!channel)
        return;
    settle(channel, false);
    sl_exchange_free(channel->exchange);
    sl_buf_release(&channel->detail);
    free(channel->url);
    free(channel);
}

static void channel_abort(struct sl_channel *channel)
{
    settle(channel, false);
    sl_exchange_abort(channel->exchange);
    channel->flow.object = NULL;
    set_phase(channel, IDLE);
}

static bool channel_leads_to(const struct sl_channel *channel, const struct sl_host *host)
{
    return sl_exchange_leads_to(channel->exchange, host);
}

static struct sl_answered channel_answered(const struct sl_channel *channel)
{
    return sl_exchange_answered(channel->exchange);
}

static int channel_connect(struct sl_channel *channel, const struct sl_exchange *like,
                           struct sl_err *err)
{
    return sl_exchange_connect(channel->exchange, like, err);
}

static const char *channel_via(const struct sl_channel *channel)
{
    return *channel->led ? channel->led : NULL;
}

static int channel_poll(struct sl_channel *channel, struct pollfd fds[SL_IO_POLL_MAX],
                        uint64_t *deadline_ns)
{
    if (channel->phase == COUNTING && channel->busy) {
        *deadline_ns = 0;
        return 0;
    }
    if (channel->phase != WAITING)
        return sl_exchange_poll(channel->exchange, fds, deadline_ns);
    fds[0] = (struct pollfd){channel->wait_fd, POLLIN, 0};
    *deadline_ns = channel->wait_until_ns ? channel->wait_until_ns : UINT64_MAX;
    return channel->wait_fd >= 0;
}

/* ---- the request ----------------------------------------------------------------------------- */

/* A weak ETag never matches in If-Match (RFC 9110 section 13.1.1): the date stands in, and the
 * answer is compared. */
static int add_preconditions(const struct sl_channel *channel, struct sl_range_request *request,
                             struct sl_err *err)
{
    const struct sl_version *version = &channel->source->version;
    if (channel->first)
        return 0;
    if (sl_etag_is_strong(version->etag))
        return sl_range_add_header(request, err, "If-Match: %s", version->etag);
    if (version->last_modified[0] && !request->dates_compared)
        return sl_range_add_header(request, err, "If-Unmodified-Since: %s", version->last_modified);
    return 0;
}

static int add_range(const struct sl_channel *channel, struct sl_range_request *request,
                     struct sl_err *err)
{
    uint64_t at = channel->source->piece_at;
    return sl_range_add_header(request, err, "Range: bytes=%" PRIu64 "-%" PRIu64,
                               at + channel->begin, at + channel->end - 1);
}

static uint64_t bytes_of(const struct sl_source *source);
static void take_body(struct sl_channel *channel, uint64_t skip, uint64_t left, bool cut);
static bool is_of_version(const struct sl_channel *channel);

/* Sources of one object may be opened by one request, and read by others. */
static bool is_in_order(const struct sl_channel *channel)
{
    return channel->hooks->in_order && !channel->first &&
           (channel->source->in_order || sl_store_advice(channel->store).in_order);
}

/* Is the range behind what the answer in hand has given already, of the same version? */
static bool goes_on(const struct sl_channel *channel)
{
    return channel->flow.object && channel->flow.object == channel->object && !channel->first &&
           is_in_order(channel) && channel->flow.at <= channel->begin &&
           channel->flow.of == bytes_of(channel->source) && is_of_version(channel);
}

/* By a cache, if there is one, and if it may see the request. Where a link leads tells the origin.
 */
static int start_exchange(struct sl_channel *channel, struct sl_range_request *request,
                          struct sl_err *err)
{
    bool seen = channel->via && sl_http_through_may_see(request, channel->via);
    bool led = seen && !request->asks;
    if (channel->via && !seen)
        sl_through_past(channel->store->through, channel->source->uri,
                        "a token, a login, a signed link or a key goes with its requests, which a "
                        "cache sees only by https, and the key of SSE-C none");
    if (led && sl_http_through_name(channel->source, request, err) < 0)
        return -1;
    snprintf(channel->led, sizeof(channel->led), "%s", led ? channel->via : "");
    request->headers[request->header_count] = NULL;
    const struct sl_request sent = {.method = "GET",
                                    .url = request->url,
                                    .headers = (const char *const *)request->headers,
                                    .hedge =
                                        led ? 0 : channel->hedge, /* whoever fetches asks another */
                                    .via = led ? channel->led : NULL};
    return sl_exchange_start(channel->exchange, &sent, err);
}

static int send_request(struct sl_channel *channel, struct sl_err *err)
{
    struct sl_range_request request = {.by_cache = channel->via != NULL};
    int result = channel->hooks->prepare(channel->source, &request, err);
    channel->object = request.object;
    channel->place = request.place;
    channel->asks = request.asks;
    if (result == 0 && request.waits) {
        channel->wait_fd = request.wait_fd;
        channel->wait_until_ns = request.wait_until_ns;
        set_phase(channel, WAITING);
        sl_range_request_release(&request);
        return 0;
    }
    if (result == 0 && goes_on(channel)) {
        settle(channel, false);
        sl_range_request_release(&request);
        take_body(channel, channel->begin - channel->flow.at, channel->end - channel->begin,
                  channel->end < bytes_of(channel->source));
        channel->flow.object = NULL;
        return 0;
    }
    leave_flow(channel);
    if (result == 0 && !request.whole && !is_in_order(channel))
        result = add_range(channel, &request, err);
    if (result == 0)
        result = add_preconditions(channel, &request, err);
    if (result == 0)
        result = start_exchange(channel, &request, err);
    free(channel->url);
    channel->url = sl_steal(&request.url);
    sl_range_request_release(&request);
    set_phase(channel, result == 0 ? HEAD : IDLE);
    if (result < 0)
        settle(channel, false);
    return result;
}

static int channel_start(struct sl_channel *channel, struct sl_source *source,
                         const struct sl_try *try, struct sl_err *err)
{
    channel->source = source;
    channel->begin = try->begin;
    channel->end = try->end;
    channel->first = try->first;
    channel->hedge = try->hedge;
    channel->via = try->via;
    *channel->led = 0;
    channel->redirects = 0;
    channel->count = 0;
    channel->counted = false;
    return send_request(channel, err);
}

/* ---- the answer ------------------------------------------------------------------------------ */

/* Of what the transport reads. */
static uint64_t bytes_of(const struct sl_source *source)
{
    return source->piece_of ? source->piece_of : source->bytes;
}

/* The server breaks the contract: no retry makes that better. */
static enum sl_io_state break_contract(struct sl_channel *channel, struct sl_err *err,
                                       const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum sl_io_state break_contract(struct sl_channel *channel, struct sl_err *err,
                                       const char *format, ...)
{
    char why[256], known[48] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof(why), format, args);
    va_end(args);
    int status = sl_exchange_status(channel->exchange);
    if (!channel->first)
        snprintf(known, sizeof(known), ", which had %" PRIu64 " bytes", bytes_of(channel->source));
    sl_fail_code(err, SL_E_NET, "range",
                 "cannot read bytes %" PRIu64 "-%" PRIu64 " of '%s'%s: the server answered %d %s",
                 channel->begin, channel->end - 1, channel->source->uri, known, status, why);
    if (err) {
        err->retryable = false;
        err->http_status = status;
    }
    channel_abort(channel);
    return SL_IO_FAILED;
}

static enum sl_io_state changed(struct sl_channel *channel, struct sl_err *err, const char *what,
                                const char *was, const char *is)
{
    sl_fail_code(err, SL_E_INTEGRITY, "changed",
                 "'%s' changed while it was read: %s was %.80s, is %.80s", channel->source->uri,
                 what, was, is);
    if (err)
        err->http_status = sl_exchange_status(channel->exchange);
    channel_abort(channel);
    return SL_IO_FAILED;
}

static enum sl_io_state changed_length(struct sl_channel *channel, uint64_t bytes,
                                       struct sl_err *err)
{
    char was[24], is[24];
    snprintf(was, sizeof(was), "%" PRIu64, bytes_of(channel->source));
    snprintf(is, sizeof(is), "%" PRIu64, bytes);
    return changed(channel, err, "its length", was, is);
}

static const char *header(const struct sl_channel *channel, const char *name)
{
    const char *value = sl_exchange_header(channel->exchange, name);
    return value ? value : "";
}

/* A value that does not fit is not a version. */
static void copy_version(char *to, size_t bytes, const char *value)
{
    if (strlen(value) < bytes)
        memcpy(to, value, strlen(value) + 1);
}

static void read_version(struct sl_channel *channel)
{
    struct sl_version *version = &channel->announced;
    *version = (struct sl_version){.etag = ""};
    copy_version(version->etag, sizeof(version->etag), header(channel, "ETag"));
    copy_version(version->last_modified, sizeof(version->last_modified),
                 header(channel, "Last-Modified"));
    copy_version(version->version_id, sizeof(version->version_id),
                 header(channel, "x-amz-version-id"));
    version->dated = sl_version_date_settled(version->last_modified, header(channel, "Date"));
    if (channel->first)
        memcpy(version->pin, channel->source->version.pin, sizeof(version->pin)); /* the kind's */
}

static const char *or_missing(const char *text)
{
    return *text ? text : "missing";
}

/* A text that comes, goes or changes is a change, unless a strong ETag says that it is not. */
static enum sl_io_state compare_versions(struct sl_channel *channel, const struct sl_version *known,
                                         const struct sl_version *now, struct sl_err *err)
{
    bool strong = sl_etag_is_strong(known->etag);
    if (known->pin[0] && !known->etag[0] && !known->last_modified[0])
        return SL_IO_DATA; /* nothing else is known of it, and the request asked for no other */
    bool ids = strong ? known->version_id[0] && now->version_id[0] : true;
    if (strcmp(known->etag, now->etag) != 0)
        return changed(channel, err, "ETag", or_missing(known->etag), or_missing(now->etag));
    if (!strong && strcmp(known->last_modified, now->last_modified) != 0)
        return changed(channel, err, "Last-Modified", or_missing(known->last_modified),
                       or_missing(now->last_modified));
    if (ids && strcmp(known->version_id, now->version_id) != 0)
        return changed(channel, err, "version id", or_missing(known->version_id),
                       or_missing(now->version_id));
    return SL_IO_DATA;
}

/* A share has no more of the store's words than the common name, which it finds objects by. */
static bool is_named(const struct sl_channel *channel)
{
    char name[SL_SOURCE_NAME_BYTES];
    return *channel->led && *header(channel, SL_HTTP_THROUGH_NAME) &&
           sl_source_common_name(channel->source, name) &&
           strcmp(header(channel, SL_HTTP_THROUGH_NAME), name) == 0;
}

/* Learn the version from the first answer; hold every other to it. DATA if it is right. What the
 * kind pinned is the version: servers that stand for one another (a CDN) may give the same bytes
 * ETags and dates of their own. */
static enum sl_io_state judge_version(struct sl_channel *channel, uint64_t total,
                                      struct sl_err *err)
{
    struct sl_source *source = channel->source;
    if (channel->first) {
        if (!source->version.pin[0])
            source->version = channel->announced;
        source->bytes = total;
        return SL_IO_DATA;
    }
    if (total != bytes_of(source))
        return changed_length(channel, total, err);
    if (is_named(channel))
        return SL_IO_DATA;
    return compare_versions(channel, &source->version, &channel->announced, err);
}

static bool is_of_version(const struct sl_channel *channel)
{
    const struct sl_version *known = &channel->source->version, *now = &channel->announced;
    return strcmp(known->etag, now->etag) == 0 &&
           strcmp(known->last_modified, now->last_modified) == 0 &&
           strcmp(known->version_id, now->version_id) == 0;
}

static void take_body(struct sl_channel *channel, uint64_t skip, uint64_t left, bool cut)
{
    channel->skip = skip;
    channel->left = left;
    channel->cut = cut;
    set_phase(channel, BODY);
}

static enum sl_io_state judge_partial(struct sl_channel *channel, struct sl_err *err)
{
    const char *range = header(channel, "Content-Range");
    uint64_t a, b, total = bytes_of(channel->source), at = channel->source->piece_at;
    bool known;
    if (strncasecmp(header(channel, "Content-Type"), "multipart/byteranges", 20) == 0)
        return break_contract(channel, err, "with multipart/byteranges to one range");
    if (!*range)
        return break_contract(channel, err, "without Content-Range");
    if (!sl_content_range_parse(range, false, &a, &b, &total, &known))
        return break_contract(channel, err, "with a Content-Range '%.100s' that makes no sense",
                              range);
    if (!known && channel->first)
        return break_contract(
            channel, err, "with a Content-Range '%.100s' that does not give the object's length",
            range);
    uint64_t end = channel->first ? SL_MIN(channel->end, total) : channel->end;
    if (judge_version(channel, total, err) != SL_IO_DATA)
        return SL_IO_FAILED;
    if (a != at + channel->begin || b + 1 != at + end)
        return break_contract(channel, err, "with another range: '%.100s'", range);
    take_body(channel, 0, end - channel->begin, false);
    int64_t length = sl_exchange_content_length(channel->exchange);
    if (length >= 0 && (uint64_t)length != channel->left)
        return break_contract(channel, err,
                              "with a body of %" PRId64 " bytes to Content-Range '%.100s'", length,
                              range);
    return SL_IO_DATA;
}

/* The server of an object that is opened knows no ranges, or no lengths. */
static void note_in_order(struct sl_channel *channel, bool known, uint64_t total)
{
    channel->source->in_order = true;
    if (!known || total > channel->end)
        sl_store_note_in_order(channel->store, known);
}

/* 200 to a range request is good only if the whole object was wanted, the kind has it cut, or its
 * objects may be read in order. */
static enum sl_io_state judge_whole(struct sl_channel *channel, struct sl_err *err)
{
    int64_t length = sl_exchange_content_length(channel->exchange);
    bool known = length >= 0 || channel->counted;
    uint64_t total = length >= 0        ? (uint64_t)length
                     : channel->counted ? channel->count
                                        : bytes_of(channel->source);
    bool ordered = channel->first ? channel->hooks->in_order : is_in_order(channel);
    if (ordered && channel->first && !known) {
        note_in_order(channel, known, 0);
        set_phase(channel, COUNTING);
        return SL_IO_DATA;
    }
    bool cuts = ordered || total <= channel->hooks->cuts_bytes_max;
    bool wanted = channel->first ? known && (cuts || total <= channel->end)
                                 : cuts || (known && channel->begin == 0 &&
                                            channel->end == bytes_of(channel->source));
    if (!wanted || channel->begin > total)
        return break_contract(
            channel, err,
            "instead of 206 Partial Content: the server does not support range requests");
    if (judge_version(channel, total, err) != SL_IO_DATA)
        return SL_IO_FAILED;
    if (ordered && channel->first)
        note_in_order(channel, known, total);
    uint64_t end = cuts ? SL_MIN(channel->end, total) : total;
    take_body(channel, channel->begin, end - channel->begin, end < total);
    return SL_IO_DATA;
}

/* 416: an empty object has no satisfiable range; of another one it has shrunk. DATA: it is neither.
 */
static enum sl_io_state judge_unsatisfied(struct sl_channel *channel, struct sl_err *err)
{
    uint64_t a, b, total = 0;
    bool has_total = false;
    bool known = sl_content_range_parse(header(channel, "Content-Range"), true, &a, &b, &total,
                                        &has_total) &&
                 has_total;
    if (channel->first && known && total == 0) {
        if (judge_version(channel, 0, err) != SL_IO_DATA)
            return SL_IO_FAILED;
        sl_exchange_abort(channel->exchange);
        set_phase(channel, EMPTY);
        return SL_IO_END;
    }
    if (channel->first)
        return SL_IO_DATA;
    if (known && total != bytes_of(channel->source))
        return changed_length(channel, total, err);
    return changed(channel, err, "its length", "longer than the range", "shorter (416)");
}

/* A redirect that is not followed. DATA: it is a refusal like others. */
static enum sl_io_state judge_moved(struct sl_channel *channel, const char *location,
                                    struct sl_err *err)
{
    char what[400];
    sl_autofree char *to = sl_url_resolve(channel->url, location, NULL);
    snprintf(what, sizeof(what), "cannot read '%.380s'", channel->source->uri);
    if (!to || sl_http_check_moved(what, channel->url, to, sl_exchange_status(channel->exchange),
                                   err) == 0)
        return SL_IO_DATA;
    channel_abort(channel);
    return SL_IO_FAILED;
}

/* A redirect that the kind follows: WAIT, the next request is under way. DATA: it is not
 * followed. */
static enum sl_io_state judge_redirect(struct sl_channel *channel, struct sl_err *err)
{
    const char *location = sl_exchange_header(channel->exchange, "Location");
    if (!location || !channel->url)
        return SL_IO_DATA;
    if (!channel->hooks->redirect)
        return judge_moved(channel, location, err);
    if (++channel->redirects > REDIRECTS_MAX)
        return break_contract(channel, err, "the %dth time in a row: the redirects go in a circle",
                              REDIRECTS_MAX + 1);
    sl_autofree char *to = sl_url_resolve(channel->url, location, err);
    int result =
        to ? channel->hooks->redirect(channel->source, channel->exchange, channel->url, to, err)
           : -1;
    if (result > 0)
        return judge_moved(channel, location, err);
    if (result < 0) {
        sl_wrap(err, "cannot read '%s'", channel->source->uri);
        channel_abort(channel);
        return SL_IO_FAILED;
    }
    settle(channel, false);
    sl_exchange_abort(channel->exchange);
    return send_request(channel, err) < 0 ? SL_IO_FAILED : SL_IO_WAIT;
}

/* What the kind has to say to the answer. */
static int hear_kind(struct sl_channel *channel, struct sl_err *err)
{
    if (channel->hooks->check && !is_named(channel) &&
        channel->hooks->check(channel->source, channel->exchange, channel->url, err) < 0)
        return -1;
    return channel->first && channel->hooks->answered
               ? channel->hooks->answered(channel->source, channel->exchange, &channel->announced,
                                          err)
               : 0;
}

static bool is_packing(const char *word, size_t bytes)
{
    static const char *const words[] = {"gzip",       "x-gzip", "deflate", "compress",
                                        "x-compress", "br",     "zstd"};
    for (size_t i = 0; i < SL_COUNT(words); i++)
        if (strlen(words[i]) == bytes && strncasecmp(words[i], word, bytes) == 0)
            return true;
    return false;
}

/*
 * Has a web server packed the bytes of its own accord? What a store tells is a label that lies
 * beside the object, as is a word that no server packs by (aws-chunked, utf-8): its ranges are of
 * the bytes that are stored. A signed link to a store is a web server to us, but says whose it is.
 */
static bool is_packed(const struct sl_channel *channel)
{
    const char *word = header(channel, "Content-Encoding");
    bool label = channel->hooks->labels || *header(channel, "x-amz-request-id") ||
                 *header(channel, "x-ms-request-id");
    while (*word && !label) {
        size_t bytes = strcspn(word, ", \t");
        if (is_packing(word, bytes))
            return true;
        word += bytes;
        word += strspn(word, ", \t");
    }
    return false;
}

/* DATA: the body is the range. WAIT: another request is under way. END: the object is empty. */
static enum sl_io_state judge(struct sl_channel *channel, struct sl_err *err)
{
    int status = sl_exchange_status(channel->exchange);
    enum sl_io_state state = SL_IO_DATA;
    read_version(channel);
    if ((status == 200 || status == 206) && hear_kind(channel, err) < 0) {
        channel_abort(channel);
        return SL_IO_FAILED;
    }
    if ((status == 200 || status == 206) && is_packed(channel))
        return break_contract(channel, err,
                              "with Content-Encoding '%.60s', although none was accepted: turn "
                              "compression off for these files at the server (nginx: gzip off)",
                              header(channel, "Content-Encoding"));
    if (status == 200 || status == 206)
        settle(channel, !*channel->led);
    if (status == 206)
        return judge_partial(channel, err);
    if (status == 200)
        return judge_whole(channel, err);
    if (status == 412 && !channel->first)
        return changed(channel, err, "its version",
                       channel->source->version.etag[0] ? channel->source->version.etag
                                                        : channel->source->version.last_modified,
                       "another (412 Precondition Failed)");
    if (status == 416)
        state = judge_unsatisfied(channel, err);
    else if (status == 301 || status == 302 || status == 303 || status == 307 || status == 308)
        state = judge_redirect(channel, err);
    if (state == SL_IO_DATA) {
        channel->detail.used = 0;
        set_phase(channel, REFUSING);
    }
    return state;
}

/* Read what the server says about its refusal, as far as it fits, and make the error. DATA: there
 * is more to read. */
static enum sl_io_state refuse(struct sl_channel *channel, struct sl_err *err)
{
    char text[2048];
    size_t got;
    enum sl_io_state state = sl_exchange_body(channel->exchange, text, sizeof(text), &got, NULL);
    if (state == SL_IO_WAIT)
        return state;
    if (state == SL_IO_DATA && channel->detail.used + got <= SL_RANGE_DETAIL_MAX)
        return sl_buf_append(&channel->detail, text, got, err) < 0 ? SL_IO_FAILED : SL_IO_DATA;
    struct sl_source *source = channel->source;
    int status = sl_exchange_status(channel->exchange);
    if (channel->hooks->refuse) {
        channel->hooks->refuse(source, channel->exchange, sl_buf_string(&channel->detail),
                               channel->detail.used, err);
    } else {
        char what[300];
        snprintf(what, sizeof(what), "cannot read '%.256s'", source->uri);
        sl_http_fail(err, status, sl_exchange_header(channel->exchange, "Retry-After"), what, "");
    }
    if (err && !err->http_status)
        err->http_status = status;
    if (state == SL_IO_END)
        set_phase(channel, IDLE);
    else
        channel_abort(channel);
    return SL_IO_FAILED;
}

static enum sl_io_state break_off(struct sl_channel *channel, struct sl_err *err)
{
    sl_fail(err, SL_E_NET,
            "the answer to bytes %" PRIu64 "-%" PRIu64 " of '%s' ended %" PRIu64 " bytes early",
            channel->begin, channel->end - 1, channel->source->uri, channel->skip + channel->left);
    channel_abort(channel);
    return SL_IO_FAILED;
}

static enum sl_io_state read_range(struct sl_channel *channel, void *data, size_t bytes,
                                   size_t *got, struct sl_err *err)
{
    uint8_t beyond;
    if (channel->skip) {
        enum sl_io_state state =
            sl_http_pass_over(channel->exchange, &channel->skip, data, bytes, err);
        if (state != SL_IO_DATA)
            return state == SL_IO_END ? break_off(channel, err) : state;
    }
    if (channel->left) {
        enum sl_io_state state = sl_exchange_body(channel->exchange, data,
                                                  (size_t)SL_MIN(bytes, channel->left), got, err);
        channel->left -= *got;
        return state == SL_IO_END ? break_off(channel, err) : state;
    }
    if (channel->cut && is_in_order(channel)) {
        channel->flow.object = channel->object;
        channel->flow.at = channel->end;
        channel->flow.of = bytes_of(channel->source);
        set_phase(channel, IDLE);
        return SL_IO_END;
    }
    if (channel->cut) { /* also of one that is opened, whose server may have one connection only */
        channel_abort(channel);
        return SL_IO_END;
    }
    size_t more;
    enum sl_io_state state = sl_exchange_body(channel->exchange, &beyond, 1, &more, err);
    if (state == SL_IO_DATA)
        return break_contract(channel, err, "with more bytes than the range has");
    if (state == SL_IO_END)
        set_phase(channel, IDLE);
    return state;
}

/* A link that has expired, or leads to a place that is gone, is asked for again (sl_http_recover).
 */
static enum sl_io_state fail(struct sl_channel *channel, const struct sl_err *err)
{
    if (channel->object && err)
        sl_http_object_fail(channel->object, channel->place, err->http_status,
                            sl_retry_unreached(err) && !*channel->led);
    settle(channel, false);
    set_phase(channel, IDLE);
    return SL_IO_FAILED;
}

/* The length of an object whose server does not tell it: read it all, and ask again. WAIT, FAILED.
 */
static enum sl_io_state count(struct sl_channel *channel, void *data, size_t bytes,
                              struct sl_err *err)
{
    channel->busy = false;
    for (unsigned i = 0; i < COUNTED_AT_ONCE; i++) {
        size_t got = 0;
        enum sl_io_state state = sl_exchange_body(channel->exchange, data, bytes, &got, err);
        channel->count += got;
        if (channel->count > SL_OBJECT_BYTES_MAX)
            return break_contract(channel, err, "with a body that does not end");
        if (state == SL_IO_END) {
            channel->counted = true;
            return send_request(channel, err) < 0 ? SL_IO_FAILED : SL_IO_WAIT;
        }
        if (state != SL_IO_DATA)
            return state;
    }
    channel->busy = true;
    return SL_IO_WAIT;
}

/* Until the body begins: DATA. WAIT, FAILED, or END of an empty object. */
static enum sl_io_state read_head(struct sl_channel *channel, void *data, size_t bytes,
                                  struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    while (state != SL_IO_FAILED && channel->phase != BODY && channel->phase != IDLE) {
        if (channel->phase == EMPTY) {
            set_phase(channel, IDLE);
        } else if (channel->phase == WAITING) {
            if (send_request(channel, err) < 0)
                return SL_IO_FAILED;
            if (channel->phase == WAITING)
                return SL_IO_WAIT;
        } else if (channel->phase == COUNTING) {
            state = count(channel, data, bytes, err);
            if (state == SL_IO_WAIT)
                return state;
        } else if (channel->phase == REFUSING) {
            state = refuse(channel, err);
            if (state == SL_IO_WAIT)
                return state;
        } else {
            state = sl_exchange_head(channel->exchange, err);
            if (state == SL_IO_WAIT)
                return state;
            if (state == SL_IO_DATA)
                state = judge(channel, err);
        }
    }
    if (state == SL_IO_FAILED)
        return state;
    return channel->phase == BODY ? SL_IO_DATA : SL_IO_END;
}

static enum sl_io_state channel_read(struct sl_channel *channel, void *data, size_t bytes,
                                     size_t *got, struct sl_err *err)
{
    enum sl_io_state state = SL_IO_DATA;
    *got = 0;
    if (channel->phase != BODY)
        state = read_head(channel, data, bytes, err);
    if (state == SL_IO_DATA)
        state = read_range(channel, data, bytes, got, err);
    return state == SL_IO_FAILED ? fail(channel, err) : state;
}

const struct sl_transport sl_http_transport = {
    SL_CHANNEL_FUNCTIONS,
    .channel_via = channel_via,
    .may_see = sl_http_through_may_see_source,
    .channel_exchange = sl_http_channel_exchange,
};
