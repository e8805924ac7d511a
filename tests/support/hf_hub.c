/* See hf_hub.h. Small files are blobs of the hub's own server, behind a relative redirect. */
#include "hf_hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "buf.h"
#include "hash.h"
#include "json.h"
#include "url.h"

static const char api[] = "/api/models/org/name/";
static const char files_at[] = "/org/name/resolve/" SL_HUB_COMMIT "/";
static const char kept_api[] = "/api/buckets/org/name/";
static const char small_at[] = "/api/resolve-cache/models/org/name/" SL_HUB_COMMIT "/";

static void say(struct sl_server_reply *reply, const char *body)
{
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

/* One page of the tree, with the next one's address. */
static void give_page(struct sl_hub *hub, const struct sl_server_request *request,
                      struct sl_server_reply *reply)
{
    const char *cursor = strstr(request->target, "cursor=");
    unsigned at = cursor ? (unsigned)strtoul(cursor + 7, NULL, 10) : 0;
    unsigned end = hub->page_entries ? at + hub->page_entries : hub->file_count;
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    sl_buf_text(&text, at ? "[" : "[{\"type\": \"directory\", \"oid\": \"00\", \"path\": \"a\"}",
                NULL);
    for (; at < end && at < hub->file_count; at++) {
        const struct sl_hub_file *file = &hub->files[at];
        sl_buf_printf(&text, NULL, "%s{\"type\": \"file\", \"size\": %zu, \"path\": \"%s\", ",
                      text.used > 1 ? ", " : "", file->bytes, file->path);
        if (file->large)
            sl_buf_printf(&text, NULL,
                          "\"oid\": \"%040d\", %s%s%s\"lfs\": {\"oid\": \"%s\", "
                          "\"size\": %zu, \"pointerSize\": 133}}",
                          1, *file->xet ? "\"xetHash\": \"" : "", file->xet,
                          *file->xet ? "\", " : "", file->hash, file->bytes);
        else
            sl_buf_printf(&text, NULL, "\"oid\": \"%s\"}", file->hash);
    }
    sl_buf_text(&text, "]", NULL);
    if (at < hub->file_count)
        snprintf(reply->headers, sizeof(reply->headers),
                 "Link: <http://hub.invalid%stree/%s?recursive=true&cursor=%u>; rel=\"next\"\r\n",
                 api, hub->commit, at);
    say(reply, sl_buf_string(&text));
}

static void give_tree(struct sl_hub *hub, const struct sl_server_request *request,
                      struct sl_server_reply *reply)
{
    if (!hub->tree) {
        give_page(hub, request, reply);
        return;
    }
    if (hub->endless)
        snprintf(reply->headers, sizeof(reply->headers),
                 "Link: <http://hub.invalid%stree/%s?cursor=%u>; rel=\"next\"\r\n", api,
                 hub->commit, ++hub->pages);
    else if (hub->next)
        snprintf(reply->headers, sizeof(reply->headers), "Link: <%s>; rel=\"next\"\r\n", hub->next);
    say(reply, hub->tree);
}

static const struct sl_hub_file *find(const struct sl_hub *hub, const char *path)
{
    sl_autofree char *decoded = sl_url_decode(path, strcspn(path, "?"), NULL);
    for (unsigned i = 0; decoded && i < hub->file_count; i++)
        if (strcmp(hub->files[i].path, decoded) == 0)
            return &hub->files[i];
    return NULL;
}

static void give_place(struct sl_hub *hub, const char *path, struct sl_server_reply *reply)
{
    const struct sl_hub_file *file = find(hub, path);
    if (!file) {
        reply->status = 404;
        snprintf(reply->headers, sizeof(reply->headers), "X-Error-Code: EntryNotFound\r\n");
    } else if (file->large) {
        reply->status = 302;
        snprintf(reply->headers, sizeof(reply->headers),
                 "Location: http://127.0.0.1:%u/%s?%u\r\nX-Repo-Commit: %s\r\n"
                 "X-Linked-Size: %zu\r\nX-Linked-Etag: \"%s\"\r\n%s%s%s",
                 sl_server_port(hub->cdn), path, ++hub->links, hub->commit, file->bytes, file->hash,
                 *file->xet ? "X-Xet-Hash: " : "", file->xet, *file->xet ? "\r\n" : "");
    } else {
        reply->status = 307;
        snprintf(reply->headers, sizeof(reply->headers), "Location: %s%s\r\nX-Repo-Commit: %s\r\n",
                 small_at, path, hub->commit);
    }
}

/* ---- the bucket ------------------------------------------------------------------------------ */

static void say_kept(struct sl_buf *text, const struct sl_hub_file *file)
{
    sl_buf_printf(text, NULL,
                  "%s{\"type\": \"file\", \"path\": \"%s\", \"size\": %zu, \"xetHash\": \"%s\", "
                  "\"mtime\": \"2026-03-01T10:00:00.000Z\", \"uploadedAt\": "
                  "\"2026-03-01T10:00:01.000Z\"}",
                  text->used > 1 ? ", " : "", file->path, file->bytes, file->xet);
}

/* All whose paths begin so, whether or not that is a folder. */
static void give_kept_tree(struct sl_hub *hub, const char *call, struct sl_server_reply *reply)
{
    const char *begin = call + strcspn(call, "/?"), *cursor = strstr(call, "cursor=");
    begin += *begin == '/';
    sl_autofree char *prefix = sl_url_decode(begin, strcspn(begin, "?"), NULL);
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    unsigned at = cursor ? (unsigned)strtoul(cursor + 7, NULL, 10) : 0, given = 0;
    if (!prefix)
        return; /* the test has no memory */
    sl_buf_text(&text, "[", NULL);
    for (; at < hub->kept_count && (!hub->page_entries || given < hub->page_entries); at++)
        if (strncmp(hub->kept[at].path, prefix, strlen(prefix)) == 0) {
            say_kept(&text, &hub->kept[at]);
            given++;
        }
    sl_buf_text(&text, "]", NULL);
    if (at < hub->kept_count)
        snprintf(reply->headers, sizeof(reply->headers),
                 "Link: <http://hub.invalid%stree%s%s?recursive=true&cursor=%u>; rel=\"next\"\r\n",
                 kept_api, *prefix ? "/" : "", prefix, at);
    say(reply, hub->tree ? hub->tree : sl_buf_string(&text));
}

static const struct sl_hub_file *find_kept(const struct sl_hub *hub, const char *path)
{
    for (unsigned i = 0; path && i < hub->kept_count; i++)
        if (strcmp(hub->kept[i].path, path) == 0)
            return &hub->kept[i];
    return NULL;
}

/* What is not there is left out. */
static void give_paths(struct sl_hub *hub, const struct sl_server_request *request,
                       struct sl_server_reply *reply)
{
    char kind[64] = "";
    sl_autobuf text = SL_BUF_INIT(1 << 20);
    json_t *asked = sl_json_parse(request->body, request->body_bytes, "the question", NULL);
    json_t *paths = asked ? json_object_get(asked, "paths") : NULL;
    sl_server_header(request, "Content-Type", kind, sizeof(kind));
    if (strcmp(request->method, "POST") != 0 || strcmp(kind, "application/json") != 0 ||
        !json_is_array(paths)) {
        reply->status = 400;
        json_decref(asked);
        return;
    }
    sl_buf_text(&text, "[", NULL);
    for (size_t i = 0; i < json_array_size(paths); i++) {
        const char *path = json_string_value(json_array_get(paths, i));
        const struct sl_hub_file *file = path ? find_kept(hub, path) : NULL;
        if (file)
            say_kept(&text, file);
    }
    sl_buf_text(&text, "]", NULL);
    say(reply, hub->tree ? hub->tree : sl_buf_string(&text));
    json_decref(asked);
}

/* The link is to the content. What the real hub has in X-Linked-Etag is not known: no SHA-256. */
static bool give_kept_place(struct sl_hub *hub, const char *path, struct sl_server_reply *reply)
{
    sl_autofree char *decoded = sl_url_decode(path, strcspn(path, "?"), NULL);
    const struct sl_hub_file *file = find_kept(hub, decoded);
    char told[128] = "";
    if (hub->direct)
        return false;
    if (!file) {
        reply->status = 404;
        snprintf(reply->headers, sizeof(reply->headers), "X-Error-Code: EntryNotFound\r\n");
        return true;
    }
    if (!hub->silent)
        snprintf(told, sizeof(told), "X-Xet-Hash: %s\r\n", file->xet);
    reply->status = 302;
    snprintf(reply->headers, sizeof(reply->headers),
             "Location: http://127.0.0.1:%u/xet/%s?%u\r\nX-Linked-Size: %zu\r\n"
             "X-Linked-Etag: \"%s\"\r\n%s",
             sl_server_port(hub->cdn), file->hash, ++hub->links, file->bytes, file->xet, told);
    return true;
}

static void give_xet_token(struct sl_hub *hub, struct sl_server_reply *reply);

/* false: it has nothing to say. */
static bool answer_kept(struct sl_hub *hub, const struct sl_server_request *request,
                        struct sl_server_reply *reply)
{
    const char *target = request->target, *call = target + strlen(kept_api);
    if (strncmp(target, SL_HUB_KEPT, strlen(SL_HUB_KEPT)) == 0)
        return give_kept_place(hub, target + strlen(SL_HUB_KEPT), reply);
    if (strncmp(target, kept_api, strlen(kept_api)) != 0)
        return false;
    if (strncmp(call, "tree", 4) == 0 && strchr("/?", call[4])) {
        give_kept_tree(hub, call, reply);
    } else if (strcmp(call, "paths-info") == 0) {
        give_paths(hub, request, reply);
    } else if (strcmp(call, "xet-read-token") == 0) {
        give_xet_token(hub, reply);
    } else {
        reply->status = 404;
    }
    return true;
}

void sl_hub_keep(struct sl_hub *hub, const char *path, const void *data, size_t bytes,
                 const char *xet)
{
    struct sl_hub_file *file = (struct sl_hub_file *)(uintptr_t)find_kept(hub, path);
    char place[128];
    uint8_t digest[SL_HASH_BYTES_MAX];
    if (!file && hub->kept_count == SL_HUB_FILES_MAX)
        abort();
    file = file ? file : &hub->kept[hub->kept_count++];
    snprintf(file->path, sizeof(file->path), "%s", path);
    file->bytes = bytes;
    sl_digest_of(SL_HASH_SHA256, NULL, 0, data, bytes, digest, NULL);
    sl_hex(digest, 32, file->hash);
    snprintf(file->xet, sizeof(file->xet), "%s", xet ? xet : file->hash);
    snprintf(place, sizeof(place), "/xet/%s", file->hash);
    sl_server_put(hub->cdn, place, data, bytes, "\"edge\"");
}

/* ---- it -------------------------------------------------------------------------------------- */

/* Good for an hour. */
static void give_xet_token(struct sl_hub *hub, struct sl_server_reply *reply)
{
    char text[512];
    if (!hub->xet_url && !hub->xet_answer) {
        reply->status = 404;
        return;
    }
    snprintf(text, sizeof(text), "{\"casUrl\": \"%s\", \"accessToken\": \"xet-%u\", \"exp\": %lld}",
             hub->xet_url ? hub->xet_url : "", ++hub->xet_tokens, (long long)time(NULL) + 3600);
    say(reply, hub->xet_answer ? hub->xet_answer : text);
}

static bool refuses(struct sl_hub *hub, const struct sl_server_request *request,
                    struct sl_server_reply *reply)
{
    char text[256];
    bool counted = hub->refuse_times && hub->refused >= hub->refuse_times;
    if (hub->refuse_status && !counted) {
        hub->refused++;
        reply->status = (int)hub->refuse_status;
        snprintf(reply->headers, sizeof(reply->headers), "%s",
                 hub->refuse_headers ? hub->refuse_headers : "");
        return true;
    }
    if (!hub->token || (sl_server_header(request, "Authorization", text, sizeof(text)) &&
                        strncmp(text, "Bearer ", 7) == 0 && strcmp(text + 7, hub->token) == 0))
        return false;
    reply->status = 401;
    if (sl_server_header(request, "Authorization", text, sizeof(text)))
        snprintf(reply->headers, sizeof(reply->headers),
                 "X-Error-Message: Invalid credentials in Authorization header\r\n");
    return true;
}

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    struct sl_hub *hub = arg;
    const char *target = request->target;
    if (refuses(hub, request, reply))
        return true;
    if (strncmp(target, api, strlen(api)) == 0) {
        const char *call = target + strlen(api);
        if (strncmp(call, "tree/" SL_HUB_COMMIT, strlen("tree/" SL_HUB_COMMIT)) == 0) {
            give_tree(hub, request, reply);
        } else if (strcmp(call, "xet-read-token/" SL_HUB_COMMIT) == 0) {
            give_xet_token(hub, reply);
        } else if (strcmp(call, "revision/main") == 0 ||
                   strcmp(call, "revision/refs%2Fpr%2F1") == 0) {
            say(reply, "{\"id\": \"org/name\", \"sha\": \"" SL_HUB_COMMIT "\"}");
        } else {
            reply->status = 404;
            snprintf(reply->headers, sizeof(reply->headers), "X-Error-Code: RevisionNotFound\r\n");
        }
        return true;
    }
    if (strncmp(target, files_at, strlen(files_at)) != 0)
        return answer_kept(hub, request, reply);
    give_place(hub, target + strlen(files_at), reply);
    return true;
}

/* The other host: signed links and nothing else. */
static bool serve(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    struct sl_hub *hub = arg;
    char text[256];
    const char *query = strchr(request->target, '?');
    if (sl_server_header(request, "Authorization", text, sizeof(text)))
        hub->leaked_tokens++;
    if (query && (unsigned)strtoul(query + 1, NULL, 10) >= hub->oldest_link)
        return false;
    reply->status = 403;
    return true;
}

void sl_hub_start(struct sl_hub *hub)
{
    *hub = (struct sl_hub){.commit = SL_HUB_COMMIT};
    hub->origin = sl_server_start();
    hub->cdn = sl_server_start();
    sl_server_handle(hub->origin, answer, hub);
    sl_server_handle(hub->cdn, serve, hub);
}

void sl_hub_stop(struct sl_hub *hub)
{
    sl_server_stop(hub->origin);
    sl_server_stop(hub->cdn);
}

void sl_hub_put(struct sl_hub *hub, const char *path, const void *data, size_t bytes, bool large)
{
    struct sl_hub_file *file = &hub->files[hub->file_count++];
    char head[40], place[512];
    uint8_t digest[SL_HASH_BYTES_MAX];
    int head_bytes = snprintf(head, sizeof(head), "blob %zu", bytes) + 1;
    if (hub->file_count > SL_HUB_FILES_MAX)
        abort();
    snprintf(file->path, sizeof(file->path), "%s", path);
    file->bytes = bytes;
    file->large = large;
    sl_digest_of(large ? SL_HASH_SHA256 : SL_HASH_SHA1, head, large ? 0 : (size_t)head_bytes, data,
                 bytes, digest, NULL);
    sl_hex(digest, large ? 32 : 20, file->hash);
    sl_autofree char *encoded = sl_url_encode(path, true, NULL);
    snprintf(place, sizeof(place), "%s%s", large ? "/" : small_at, encoded);
    sl_server_put(large ? hub->cdn : hub->origin, place, data, bytes, "\"edge\"");
}

unsigned sl_hub_count(struct sl_hub *hub, const char *begin)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sl_server_request_count(hub->origin); i++)
        count += strncmp(sl_server_request_at(hub->origin, i)->target, begin, strlen(begin)) == 0;
    return count;
}

const char *sl_hub_url(struct sl_hub *hub)
{
    (void)sl_server_request_count(hub->origin); /* their locks order what was written before */
    (void)sl_server_request_count(hub->cdn);
    return sl_server_url(hub->origin, "");
}
