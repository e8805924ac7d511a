/*
 * The handler runs under the server's lock, so an answer is of one version, and the next one may be
 * of another. Paths: /bucket/NUMBER/weights.bin by place, its sidecar beside it, the listing of
 * /bucket as S3 has it, and /elsewhere/TICKET/NUMBER for where redirects lead.
 */
#include "version_world.h"

#undef NDEBUG
#include <assert.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "hash.h"
#include "mem.h"
#include "sidecar.h"

enum { TICKET_REQUESTS = 5 };
static const char DATE[] = "Sun, 22 Nov 2026 10:00:00 GMT";

static const struct {
    const char *name;
    bool tells, steady;
} styles[SL_WORLD_STYLES] = {
    [SL_WORLD_STRONG] = {"a strong ETag", true, true},
    [SL_WORLD_OLD_DATE] = {"an old date", true, true},
    [SL_WORLD_ID] = {"a version id", true, true},
    [SL_WORLD_WEAK] = {"a weak ETag for all", false, true},
    [SL_WORLD_WEAK_EACH] = {"weak ETags", false, true},
    [SL_WORLD_NEW_DATE] = {"a date of this second", false, true},
    [SL_WORLD_NULL_ID] = {"version id null", false, true},
    [SL_WORLD_EMPTY_TAG] = {"an empty ETag", false, true},
    [SL_WORLD_NONE] = {"nothing", false, true},
    [SL_WORLD_VANISHING] = {"ETags that vanish", false, false},
    [SL_WORLD_FORMS] = {"ETags that change form", false, false},
};

const char *sl_world_style_name(enum sl_world_style style)
{
    return styles[style].name;
}

bool sl_world_style_shows_change(enum sl_world_style style)
{
    return styles[style].tells;
}

bool sl_world_style_is_steady(enum sl_world_style style)
{
    return styles[style].steady;
}

/* ---- what answers say ------------------------------------------------------------------------ */

static bool now_and_then(struct sl_world *world)
{
    world->locked.noise = world->locked.noise * 6364136223846793005u + 1442695040888963407u;
    return world->locked.noise >> 61 == 0;
}

static void write_etag(struct sl_world *world, const struct sl_world_place *place, char text[64])
{
    const unsigned version = place->current;
    *text = 0;
    switch (place->style) {
    case SL_WORLD_VANISHING:
        if (now_and_then(world))
            return;
        /* fall through */
    case SL_WORLD_STRONG:
        snprintf(text, 64, "\"v%u\"", version);
        return;
    case SL_WORLD_FORMS:
        snprintf(text, 64, "%s\"v%u\"", now_and_then(world) ? "W/" : "", version);
        return;
    case SL_WORLD_WEAK:
        snprintf(text, 64, "W/\"same\"");
        return;
    case SL_WORLD_WEAK_EACH:
        snprintf(text, 64, "W/\"v%u\"", version);
        return;
    case SL_WORLD_EMPTY_TAG:
        snprintf(text, 64, "\"\"");
        return;
    default:
        return;
    }
}

static void write_date(const struct sl_world_place *place, char text[64])
{
    *text = 0;
    if (place->style == SL_WORLD_OLD_DATE)
        snprintf(text, 64, "Sun, 22 Nov 2026 09:00:%02u GMT", place->current);
    else if (place->style == SL_WORLD_WEAK)
        snprintf(text, 64, "Sun, 22 Nov 2026 09:00:00 GMT");
    else if (place->style == SL_WORLD_NEW_DATE)
        snprintf(text, 64, "%s", DATE);
}

#define ADD(reply, ...)                                                                            \
    snprintf((reply)->headers + strlen((reply)->headers),                                          \
             sizeof((reply)->headers) - strlen((reply)->headers), __VA_ARGS__)

/* false: the request's conditions do not hold. */
static bool add_validators(struct sl_world *world, const struct sl_world_place *place,
                           const struct sl_server_request *request, struct sl_server_reply *reply)
{
    char etag[64], date[64], wanted[256];
    write_etag(world, place, etag);
    write_date(place, date);
    ADD(reply, "Date: %s\r\n", DATE);
    if (*etag)
        ADD(reply, "ETag: %s\r\n", etag);
    if (*date)
        ADD(reply, "Last-Modified: %s\r\n", date);
    if (place->style == SL_WORLD_ID)
        ADD(reply, "x-amz-version-id: id.%u\r\n", place->current);
    if (place->style == SL_WORLD_NULL_ID)
        ADD(reply, "x-amz-version-id: null\r\n");
    if (world->locked.plan.ignores_conditions)
        return true;
    if (sl_server_header(request, "If-Match", wanted, sizeof(wanted)))
        return strcmp(wanted, etag) == 0;
    return !sl_server_header(request, "If-Unmodified-Since", wanted, sizeof(wanted)) ||
           strcmp(wanted, date) == 0;
}

/* ---- answers --------------------------------------------------------------------------------- */

static bool answer_status(struct sl_server_reply *reply, int status)
{
    reply->status = status;
    free(reply->body);
    reply->body = NULL;
    reply->body_bytes = 0;
    return true;
}

static bool answer_range(const struct sl_server_request *request, const void *data, size_t bytes,
                         struct sl_server_reply *reply)
{
    char text[128];
    uint64_t begin = 0, end = bytes, last;
    if (sl_server_header(request, "Range", text, sizeof(text)) &&
        sscanf(text, "bytes=%" SCNu64 "-%" SCNu64, &begin, &last) == 2) {
        if (begin >= bytes) {
            ADD(reply, "Content-Range: bytes */%zu\r\n", bytes);
            return answer_status(reply, 416);
        }
        end = SL_MIN(last + 1, (uint64_t)bytes);
        reply->status = 206;
        ADD(reply, "Content-Range: bytes %" PRIu64 "-%" PRIu64 "/%zu\r\n", begin, end - 1, bytes);
    }
    reply->body_bytes = (size_t)(end - begin);
    reply->body = malloc(reply->body_bytes + 1);
    assert(reply->body);
    memcpy(reply->body, (const uint8_t *)data + begin, reply->body_bytes);
    return true;
}

/* What the plan has for this request. */
static void happen(struct sl_world *world)
{
    const struct sl_world_plan *plan = &world->locked.plan;
    unsigned number = ++world->locked.answers;
    if (number == plan->replace_at)
        for (size_t i = 0; i < SL_WORLD_PLACES; i++) {
            world->locked.places[i].current = plan->replace_by;
            world->locked.places[i].seen[plan->replace_by] = true;
        }
    if (number != plan->cancel_at)
        return;
    world->locked.whole = number - 1;
    if (world->locked.victim)
        kill(world->locked.victim, SIGKILL);
    else if (world->locked.cancel)
        sl_cancel_raise(world->locked.cancel, 0);
}

/* Whoever asks again on a connection has read what came on it before. On a machine that stops the
 * client for a while another connection stands in for one that seems to stall, and what came on
 * that may be lost with a kill. */
static void note_asked(struct sl_world *world, unsigned connection)
{
    for (unsigned i = 0; i < world->locked.answered_count; i++)
        if (world->locked.answered[i] == connection) {
            world->locked.taken++;
            return;
        }
    if (world->locked.answered_count < SL_WORLD_CONNECTIONS)
        world->locked.answered[world->locked.answered_count++] = connection;
}

static bool answer_object(struct sl_world *world, unsigned number,
                          const struct sl_server_request *request, struct sl_server_reply *reply)
{
    struct sl_world_place *place = &world->locked.places[number];
    const struct sl_world_plan *plan = &world->locked.plan;
    note_asked(world, request->connection);
    happen(world);
    if (number == 0 && plan->gone_at && world->locked.answers >= plan->gone_at)
        return answer_status(reply, 404);
    bool holds = add_validators(world, place, request, reply);
    if (!holds)
        return answer_status(reply, 412);
    answer_range(request, world->data[place->current], world->bytes[place->current], reply);
    world->locked.sent += reply->body_bytes;
    return true;
}

static bool answer_listing(struct sl_world *world, const char *target,
                           struct sl_server_reply *reply)
{
    char text[2048], etag[64];
    unsigned number = strstr(target, "prefix=1") ? 1 : 0;
    const struct sl_world_place *place = &world->locked.places[number];
    write_etag(world, place, etag);
    int used = snprintf(text, sizeof(text),
                        "<?xml version=\"1.0\"?><ListBucketResult><IsTruncated>false</IsTruncated>"
                        "<Contents><Key>%u/weights.bin</Key><Size>%zu</Size>",
                        number, world->bytes[place->current]);
    if (*etag)
        used += snprintf(text + used, sizeof(text) - (size_t)used, "<ETag>%s</ETag>", etag);
    snprintf(text + used, sizeof(text) - (size_t)used, "</Contents></ListBucketResult>");
    reply->body = strdup(text);
    reply->body_bytes = strlen(text);
    return true;
}

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    struct sl_world *world = arg;
    const char *target = request->target;
    unsigned number = 0, ticket;
    if (request->connection <= world->locked.earlier)
        return answer_status(reply, 404); /* it comes late: its load was killed */
    if (strncmp(target, "/bucket?", 8) == 0 || strncmp(target, "/bucket/?", 9) == 0)
        return answer_listing(world, target, reply);
    if (sscanf(target, "/elsewhere/%u/%u", &ticket, &number) == 2) {
        if (world->locked.answers >= ticket + TICKET_REQUESTS)
            return answer_status(reply, 403);
        return answer_object(world, number, request, reply);
    }
    if (sscanf(target, "/bucket/%u/", &number) != 1 || number >= SL_WORLD_PLACES)
        return answer_status(reply, 404);
    if (strstr(target, SL_SIDECAR_SUFFIX)) {
        const char *text = world->sidecars[world->locked.sidecar];
        return answer_range(request, text, strlen(text), reply);
    }
    if (world->locked.plan.redirects) {
        ADD(reply, "Location: /elsewhere/%u/%u\r\n", world->locked.answers, number);
        return answer_status(reply, 302);
    }
    return answer_object(world, number, request, reply);
}

/* ---- the world ------------------------------------------------------------------------------- */

static char *make_sidecar(const void *data, size_t bytes)
{
    struct sl_buf text = SL_BUF_INIT(1024 * 1024);
    struct sl_sidecar *sidecar = sl_sidecar_new("weights.bin", bytes, SL_WORLD_RANGE, NULL);
    assert(sidecar);
    for (size_t i = 0; i < sidecar->range_count; i++) {
        const uint8_t *range = (const uint8_t *)data + i * SL_WORLD_RANGE;
        size_t length = (size_t)(sl_sidecar_range_end(sidecar, i) - i * SL_WORLD_RANGE);
        struct sl_hasher *hasher = sl_hasher_new(SL_HASH_SHA256, NULL);
        uint8_t digest[SL_HASH_BYTES_MAX];
        sl_hasher_update(hasher, range, length);
        sl_hasher_finish(hasher, digest);
        sl_hasher_free(hasher);
        memcpy(sidecar->ranges[i].sha256, digest, 32);
        sidecar->ranges[i].crc32c = sl_crc32c(0, range, length);
    }
    sl_sidecar_tree(sidecar, sidecar->tree);
    assert(sl_sidecar_write(sidecar, &text, NULL) == 0);
    sl_sidecar_free(sidecar);
    return text.data;
}

/* Every eight bytes say where they are and of which version. */
static void make_version(struct sl_world *world, unsigned version, size_t bytes)
{
    struct sl_hasher *hasher = sl_hasher_new(SL_HASH_SHA256, NULL);
    uint8_t digest[SL_HASH_BYTES_MAX];
    world->bytes[version] = bytes;
    world->data[version] = calloc(1, bytes + 8);
    for (size_t at = 0; at < bytes; at += 8) {
        uint64_t word = (at + version + 1) * 0x9e3779b97f4a7c15u;
        memcpy(world->data[version] + at, &word, 8);
    }
    sl_hasher_update(hasher, world->data[version], bytes);
    sl_hasher_finish(hasher, digest);
    sl_hasher_free(hasher);
    sl_hex(digest, 32, world->sha256[version]);
    world->sidecars[version] = make_sidecar(world->data[version], bytes);
}

void sl_world_start(struct sl_world *world, bool equal_lengths)
{
    *world = (struct sl_world){.server = sl_server_start()};
    for (unsigned i = 0; i < SL_WORLD_VERSIONS; i++)
        make_version(world, i,
                     (size_t)SL_WORLD_RANGES * SL_WORLD_RANGE - 777 -
                         (equal_lengths ? 0 : i * 40000));
}

void sl_world_stop(struct sl_world *world)
{
    sl_server_stop(world->server);
    for (unsigned i = 0; i < SL_WORLD_VERSIONS; i++) {
        free(world->data[i]);
        free(world->sidecars[i]);
    }
}

/* Connections are accepted in their order: once this one has its answer all before it are known. */
static unsigned count_connections(struct sl_world *world)
{
    static const char ask[] = "GET /barrier HTTP/1.1\r\nHost: x\r\n\r\n";
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)sl_server_port(world->server)),
                             .sin_addr = {htonl(INADDR_LOOPBACK)}};
    char byte;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert(connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
    assert(send(fd, ask, sizeof(ask) - 1, MSG_NOSIGNAL) == (ssize_t)sizeof(ask) - 1);
    assert(recv(fd, &byte, 1, 0) == 1);
    close(fd);
    return sl_server_connection_count(world->server);
}

void sl_world_begin(struct sl_world *world, const struct sl_world_plan *plan,
                    struct sl_cancel *cancel, pid_t victim)
{
    for (size_t i = 0; i < SL_WORLD_PLACES; i++) {
        struct sl_world_place *place = &world->locked.places[i];
        memset(place->seen, 0, sizeof(place->seen));
        place->seen[place->current] = true;
    }
    world->locked.earlier = count_connections(world);
    world->locked.plan = *plan;
    world->locked.cancel = cancel;
    world->locked.victim = victim;
    world->locked.answers = world->locked.whole = 0;
    world->locked.taken = world->locked.answered_count = 0;
    world->locked.sent = 0;
    sl_server_handle(world->server, answer, world);
}

int sl_world_version_of(const struct sl_world *world, const void *data, size_t bytes)
{
    for (unsigned i = 0; i < SL_WORLD_VERSIONS; i++)
        if (world->bytes[i] == bytes && memcmp(world->data[i], data, bytes) == 0)
            return (int)i;
    return -1;
}

void sl_world_end(struct sl_world *world)
{
    sl_server_handle(world->server, NULL, NULL);
}
