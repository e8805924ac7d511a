/* See ms_hub.h. */
#include "ms_hub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "buf.h"
#include "hash.h"
#include "url.h"

enum { LISTED_MAX = 3000 };
static const char api[] = "/api/v1/models/org/name/";

static void say(struct sl_server_reply *reply, const char *body)
{
    reply->body = strdup(body);
    reply->body_bytes = strlen(body);
}

/* One file or folder, if it lies below root (right below, unless it is recursive). */
static void list_item(struct sl_buf *text, const char *root, bool recursive, const char *type,
                      const char *path, size_t bytes, const char *sha256)
{
    size_t below = strlen(root);
    if (strncmp(path, root, below) != 0 || !path[below] || (below && path[below] != '/'))
        return;
    if (!recursive && strchr(path + below + !!below, '/'))
        return;
    sl_buf_printf(text, NULL,
                  "%s{\"Type\": \"%s\", \"Name\": \"n\", \"Path\": \"%s\", \"Size\": %zu, "
                  "\"Sha256\": \"%s\"}",
                  strchr(sl_buf_string(text), '{') ? ", " : "", type, path, bytes, sha256);
}

static void list_many(const struct sl_ms_hub *hub, struct sl_buf *text, const char *root,
                      bool recursive)
{
    char path[64];
    if (!hub->many)
        return;
    list_item(text, root, recursive, "tree", "many", 0, "");
    list_item(text, root, recursive, "tree", "many/more", 0, "");
    for (unsigned i = 0; i < hub->many; i++) {
        snprintf(path, sizeof(path), i % 2 ? "many/more/%u" : "many/%u", i);
        list_item(text, root, recursive, "blob", path, 1, "");
    }
}

/* The real one leaves out the rest without a word. */
static void cut_off(struct sl_buf *text)
{
    char *at = text->data;
    for (unsigned items = 0; at && (at = strstr(at, "{\"Type\"")); at++)
        if (items++ == LISTED_MAX) {
            text->used = (size_t)(at - text->data) - 2;
            text->data[text->used] = 0;
            return;
        }
}

static void give_listing(const struct sl_ms_hub *hub, const char *target,
                         struct sl_server_reply *reply)
{
    const char *at = strstr(target, "&Root=");
    bool recursive = strstr(target, "Recursive=True") != NULL;
    sl_autofree char *root = sl_url_decode(at ? at + 6 : "", at ? strcspn(at + 6, "&") : 0, NULL);
    sl_autobuf items = SL_BUF_INIT(8 << 20), text = SL_BUF_INIT(8 << 20);
    list_item(&items, root, recursive, "tree", "sub", 0, "");
    list_item(&items, root, recursive, "blob", ".gitattributes", 7, "");
    for (unsigned i = 0; i < hub->file_count; i++)
        list_item(&items, root, recursive, "blob", hub->files[i].path, hub->files[i].bytes,
                  hub->files[i].sha256);
    list_many(hub, &items, root, recursive);
    cut_off(&items);
    sl_buf_printf(&text, NULL, "{\"Code\": 200, \"Success\": true, \"Data\": {\"Files\": [%s]}}",
                  sl_buf_string(&items));
    say(reply, hub->listing ? hub->listing : sl_buf_string(&text));
}

static void give_file(struct sl_ms_hub *hub, const char *target, struct sl_server_reply *reply)
{
    const char *at = strstr(target, "&FilePath=");
    sl_autofree char *path = sl_url_decode(at + 10, strlen(at + 10), NULL);
    for (unsigned i = 0; i < hub->file_count; i++) {
        const struct sl_ms_hub_file *file = &hub->files[i];
        if (strcmp(file->path, path) != 0)
            continue;
        if (file->large) {
            reply->status = 302;
            snprintf(reply->headers, sizeof(reply->headers),
                     "Location: http://127.0.0.1:%u/lfs/%s?%u\r\n", sl_server_port(hub->cdn),
                     file->sha256, ++hub->links);
            return;
        }
        reply->body = malloc(file->bytes + 1);
        memcpy(reply->body, file->data, file->bytes);
        reply->body_bytes = file->bytes;
        return;
    }
    reply->status = 404;
    say(reply, "{\"Code\": 10010204002, \"Message\": \"no such file\", \"Success\": false}");
}

static bool refuses(struct sl_ms_hub *hub, const struct sl_server_request *request,
                    struct sl_server_reply *reply)
{
    char text[256] = "", cookie[256] = "", wanted[256];
    if (hub->refuse_status && (!hub->refuse_times || hub->refused < hub->refuse_times)) {
        hub->refused++;
        reply->status = (int)hub->refuse_status;
        snprintf(reply->headers, sizeof(reply->headers), "%s",
                 hub->refuse_headers ? hub->refuse_headers : "");
        say(reply, hub->refuse_body ? hub->refuse_body : "");
        return true;
    }
    if (!hub->token)
        return false;
    sl_server_header(request, "Authorization", text, sizeof(text));
    sl_server_header(request, "Cookie", cookie, sizeof(cookie));
    snprintf(wanted, sizeof(wanted), "m_session_id=%s", hub->token);
    if (strncmp(text, "Bearer ", 7) == 0 && strcmp(text + 7, hub->token) == 0 &&
        strcmp(cookie, wanted) == 0)
        return false;
    reply->status = *text ? 401 : 404;
    say(reply, "{\"Code\": 10010205001, \"Message\": \"it is not there\", \"Success\": false}");
    return true;
}

static bool answer(const struct sl_server_request *request, struct sl_server_reply *reply,
                   void *arg)
{
    struct sl_ms_hub *hub = arg;
    const char *target = request->target;
    reply->status = 200;
    if (refuses(hub, request, reply))
        return true;
    if (strncmp(target, api, strlen(api)) != 0)
        return false;
    target += strlen(api);
    if (strncmp(target, "repo/files?Revision=master&", 27) == 0) {
        give_listing(hub, target, reply);
    } else if (strncmp(target, "repo?Revision=master&FilePath=", 30) == 0) {
        give_file(hub, target, reply);
    } else {
        reply->status = 404;
        say(reply, "{\"Code\": 10010203001, \"Message\": \"no such revision\"}");
    }
    return true;
}

/* The other host: signed links and nothing else. */
static bool serve(const struct sl_server_request *request, struct sl_server_reply *reply, void *arg)
{
    struct sl_ms_hub *hub = arg;
    char text[256];
    const char *query = strchr(request->target, '?');
    hub->leaked_tokens += sl_server_header(request, "Authorization", text, sizeof(text)) ||
                          sl_server_header(request, "Cookie", text, sizeof(text));
    if (query && (unsigned)strtoul(query + 1, NULL, 10) >= hub->oldest_link)
        return false;
    reply->status = 403;
    return true;
}

void sl_ms_hub_start(struct sl_ms_hub *hub)
{
    *hub = (struct sl_ms_hub){0};
    hub->origin = sl_server_start();
    hub->cdn = sl_server_start();
    sl_server_handle(hub->origin, answer, hub);
    sl_server_handle(hub->cdn, serve, hub);
}

void sl_ms_hub_stop(struct sl_ms_hub *hub)
{
    sl_server_stop(hub->origin);
    sl_server_stop(hub->cdn);
}

void sl_ms_hub_put(struct sl_ms_hub *hub, const char *path, const void *data, size_t bytes,
                   bool large)
{
    struct sl_ms_hub_file *file = &hub->files[hub->file_count++];
    char place[128];
    uint8_t digest[SL_HASH_BYTES_MAX];
    if (hub->file_count > SL_MS_HUB_FILES_MAX)
        abort();
    snprintf(file->path, sizeof(file->path), "%s", path);
    file->data = data;
    file->bytes = bytes;
    file->large = large;
    sl_digest_of(SL_HASH_SHA256, NULL, 0, data, bytes, digest, NULL);
    sl_hex(digest, 32, file->sha256);
    snprintf(place, sizeof(place), "/lfs/%s", file->sha256);
    if (large)
        sl_server_put(hub->cdn, place, data, bytes, "\"edge\"");
}

unsigned sl_ms_hub_count(struct sl_ms_hub *hub, const char *begin)
{
    unsigned count = 0;
    for (unsigned i = 0; i < sl_server_request_count(hub->origin); i++)
        count += strncmp(sl_server_request_at(hub->origin, i)->target, begin, strlen(begin)) == 0;
    return count;
}
