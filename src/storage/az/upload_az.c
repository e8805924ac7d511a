/*
 * A new blob: blocks that are sent by the threads of upload_parts.c in any order, and a list of
 * them at the end, which makes the blob. Nothing is visible before; blocks of a list that never
 * came go after a week.
 *
 * A list may be carried out although its answer is lost; then the repetition says that the blob
 * exists, and the names of its blocks, which hold a random number, say whether it is ours.
 * https://learn.microsoft.com/rest/api/storageservices/put-block-list
 */
#include <inttypes.h>
#include <openssl/evp.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>

#include "az_store.h"
#include "hash.h"
#include "upload_backend.h"
#include "upload_parts.h"
#include "xml.h"

enum {
    ANSWER_BYTES_MAX = 64 * 1024,
    LIST_BYTES_MAX = SL_PARTS_MAX * 128, /* of block names */
    BLOCK_NAME_BYTES = 24,
    MD5_TEXT_BYTES = 25, /* base64 of 16 bytes, and a NUL */
    COMPLETE_SECONDS = 300,
};
static const uint64_t BLOCK_BYTES_MAX = UINT64_C(4000) << 20;

struct az_upload {
    struct sl_upload *upload;
    struct sl_store *store;
    struct sl_az *az;
    char *blob;
    char what[400];
    uint64_t part_bytes, part_count;
    struct sl_parts *parts;   /* NULL: an empty blob */
    uint8_t mark[8];          /* of the names of our blocks */
    bool hashes;              /* the crypto library has MD5: it has not in FIPS mode */
    char md5[MD5_TEXT_BYTES]; /* of the blob, of one block at most; "": not known */
};

/* Of a block, or of a blob of one. */
static int take_md5(const void *data, size_t bytes, char text[MD5_TEXT_BYTES], struct sl_err *err)
{
    uint8_t digest[SL_HASH_BYTES_MAX];
    if (sl_digest_of(SL_HASH_MD5, NULL, 0, data, bytes, digest, err) < 0)
        return -1;
    EVP_EncodeBlock((unsigned char *)text, digest, (int)sl_hash_bytes(SL_HASH_MD5));
    return 0;
}

/* The name of a block, in base64: all of the same length, as Azure wants it. */
static void name_block(const struct az_upload *azu, uint64_t number, char text[40])
{
    char plain[BLOCK_NAME_BYTES + 1], hex[17];
    sl_hex(azu->mark, sizeof(azu->mark), hex);
    snprintf(plain, sizeof(plain), "%s%08u", hex, (unsigned)number);
    EVP_EncodeBlock((unsigned char *)text, (const unsigned char *)plain, BLOCK_NAME_BYTES);
}

/* ---- requests -------------------------------------------------------------------------------- */

/* One request, of one thread. */
struct asking {
    struct az_upload *azu;
    const char *what, *query;
    const char *headers[5]; /* beside the credentials; ended by NULL */
    unsigned let_in;
};

static int prepare(void *arg, struct sl_range_request *request, struct sl_err *err)
{
    struct asking *asking = arg;
    if (sl_az_let_in(asking->azu->az, asking->azu->blob, asking->query, request, &asking->let_in,
                     err) < 0)
        return -1;
    for (const char *const *header = asking->headers; *header; header++)
        if (sl_range_add_header(request, err, "%s", *header) < 0)
            return -1;
    return 0;
}

static int fail_exists(const struct az_upload *azu, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_USAGE, "exists",
                        "'%.380s' exists: name another destination, or replace it with --replace",
                        azu->upload->uri);
}

static int refuse(void *arg, const struct sl_answer *answer, struct sl_err *err)
{
    struct asking *asking = arg;
    struct sl_cloud_headers headers;
    const struct sl_cloud_reply reply = sl_cloud_reply_of(answer, SL_AZ_CODE_HEADER, &headers);
    return sl_az_refused(asking->azu->az, asking->what, SL_AZ_WRITE, &reply, err);
}

static bool recover(void *arg, const struct sl_err *why)
{
    struct asking *asking = arg;
    return sl_az_recover(asking->azu->az, asking->let_in, why);
}

static struct sl_http_call call_of(struct asking *asking, const char *method)
{
    return (struct sl_http_call){.what = asking->what,
                                 .method = method,
                                 .answer_limit = ANSWER_BYTES_MAX,
                                 .arg = asking,
                                 .prepare = prepare,
                                 .refuse = refuse,
                                 .recover = recover};
}

static struct sl_exchange *new_exchange(const struct az_upload *azu, unsigned seconds,
                                        struct sl_cancel *stop, struct sl_err *err)
{
    const struct sl_source_config *config = &azu->store->config;
    const struct sl_connect connect = {.tls = config->tls,
                                       .cancel = config->cancel,
                                       .stall_seconds = SL_MAX(config->stall_seconds, seconds),
                                       .stop = stop};
    return sl_exchange_new(&connect, err);
}

/* ---- beginning ------------------------------------------------------------------------------- */

/* 403: there may be one that we may not see; then the condition of the list decides. */
static int refuse_existing(struct az_upload *azu, struct sl_err *err)
{
    struct asking asking = {.azu = azu, .what = azu->what, .query = ""};
    struct sl_answer answer = {0};
    struct sl_err why = SL_ERR_INIT;
    const struct sl_http_call call = call_of(&asking, "HEAD");
    SL_AUTO(sl_exchange) exchange = new_exchange(azu, 0, NULL, err);
    if (!exchange)
        return -1;
    if (sl_http_call(&azu->store->config, exchange, &call, &answer, NULL, &why) == 0) {
        sl_answer_release(&answer);
        return fail_exists(azu, err);
    }
    bool absent = why.http_status == 404 && strcmp(why.code, "ContainerNotFound") != 0;
    if (absent || (why.http_status == 403 && sl_az_creds_bare(azu->az->creds) == SL_AZ_LET_IN))
        return 0;
    *err = why;
    return -1;
}

static int open_store(struct az_upload *azu, const char *uri, struct sl_err *err)
{
    sl_autofree char *name = NULL;
    struct sl_upload *upload = azu->upload;
    if (sl_store_open_kind(upload->kind, uri, upload->config.source, &azu->store, &name, err) < 0)
        return -1;
    azu->az = azu->store->impl;
    if (!*name)
        return sl_fail(err, SL_E_USAGE, "'%.300s' names no blob to write",
                       sl_store_uri(azu->store));
    sl_az_creds_for_writing(azu->az->creds);
    azu->blob = sl_asprintf(err, "%s%s", azu->az->place.prefix, name);
    free(upload->uri);
    upload->uri = azu->blob ? sl_asprintf(err, "%s%s", sl_store_uri(azu->store), name) : NULL;
    if (!upload->uri)
        return -1;
    snprintf(azu->what, sizeof(azu->what), "cannot write '%.380s'", upload->uri);
    return 0;
}

static void *channel_begin(void *arg, struct sl_cancel *stop, struct sl_err *err)
{
    return new_exchange(arg, 0, stop, err);
}

static void channel_end(void *arg, void *channel)
{
    (void)arg;
    sl_exchange_free(channel);
}

/* Azure checks its MD5. Only a blob of one block keeps it: the MD5 of many cannot be made of
 * theirs.
 */
static int send_block(void *arg, void *channel, uint64_t number, const void *data, size_t bytes,
                      struct sl_err *err)
{
    struct az_upload *azu = arg;
    char name[40], query[96], what[480], header[64], md5[MD5_TEXT_BYTES] = "";
    name_block(azu, number, name);
    snprintf(query, sizeof(query), "comp=block&blockid=%s", name); /* no character to encode */
    snprintf(what, sizeof(what), "%s, block %" PRIu64 " of %" PRIu64, azu->what, number + 1,
             azu->part_count);
    if (azu->hashes && take_md5(data, bytes, md5, err) < 0)
        return -1;
    if (azu->part_count == 1)
        memcpy(azu->md5, md5, sizeof(md5));
    snprintf(header, sizeof(header), "Content-MD5: %s", md5);
    struct asking asking = {
        .azu = azu, .what = what, .query = query, .headers = {*md5 ? header : NULL}};
    struct sl_answer answer = {0};
    struct sl_http_call call = call_of(&asking, "PUT");
    call.body = data;
    call.body_bytes = bytes;
    if (sl_http_call(&azu->store->config, channel, &call, &answer, NULL, err) < 0)
        return -1;
    sl_answer_release(&answer);
    return 0;
}

static int make_parts(struct az_upload *azu, struct sl_err *err)
{
    const struct sl_upload *upload = azu->upload;
    azu->part_bytes = upload->config.part_bytes;
    if (!azu->part_bytes || upload->bytes / SL_PARTS_MAX >= azu->part_bytes)
        azu->part_bytes = sl_parts_size(upload->bytes, upload->config.memory_bytes);
    if (azu->part_bytes > BLOCK_BYTES_MAX)
        return sl_fail(err, SL_E_USAGE, "%s: %" PRIu64 " bytes are more than Azure accepts",
                       azu->what, upload->bytes);
    if (!upload->bytes)
        return azu->hashes ? take_md5(NULL, 0, azu->md5, err) : 0;
    azu->part_count = (upload->bytes - 1) / azu->part_bytes + 1;
    const struct sl_parts_config config = {.bytes = upload->bytes,
                                           .part_bytes = azu->part_bytes,
                                           .memory_bytes = upload->config.memory_bytes,
                                           .connections = upload->config.connections,
                                           .cancel = upload->source.cancel,
                                           .arg = azu,
                                           .begin = channel_begin,
                                           .send = send_block,
                                           .end = channel_end};
    azu->parts = sl_parts_new(&config, err);
    return azu->parts ? 0 : -1;
}

static int az_open(struct sl_upload *upload, const char *uri, struct sl_err *err)
{
    struct az_upload *azu = upload->impl = sl_alloc(sizeof(*azu), err);
    if (!azu)
        return -1;
    azu->upload = upload;
    if (RAND_bytes(azu->mark, sizeof(azu->mark)) != 1)
        return sl_fail(err, SL_E_INTERNAL, "the crypto library has no random numbers");
    azu->hashes = sl_hash_is_available(SL_HASH_MD5);
    if (open_store(azu, uri, err) < 0 || (!upload->config.replace && refuse_existing(azu, err) < 0))
        return -1;
    return make_parts(azu, err);
}

static int az_write(struct sl_upload *upload, uint64_t offset, const void *data, size_t bytes,
                    struct sl_err *err)
{
    struct az_upload *azu = upload->impl;
    return sl_parts_write(azu->parts, offset, data, bytes, err);
}

static int az_admit(struct sl_upload *upload, struct sl_err *err)
{
    struct az_upload *azu = upload->impl;
    return azu->parts ? sl_parts_admit(azu->parts, err) : 0;
}

/* ---- making it visible ----------------------------------------------------------------------- */

struct first_name {
    const char *ours;
    bool seen, same;
};

static int on_name(const char *path, const char *value, void *arg, struct sl_err *err)
{
    (void)err;
    struct first_name *first = arg;
    if (strcmp(path, "BlockList/CommittedBlocks/Block/Name") == 0 && !first->seen) {
        first->seen = true;
        first->same = strcmp(value, first->ours) == 0;
    }
    return 0;
}

/* Is the blob that is there made of our blocks? */
static bool is_ours(struct az_upload *azu, struct sl_exchange *exchange)
{
    char name[40];
    struct asking asking = {
        .azu = azu, .what = azu->what, .query = "comp=blocklist&blocklisttype=committed"};
    struct sl_answer answer = {0};
    struct sl_http_call call = call_of(&asking, "GET");
    call.answer_limit = SL_XML_BYTES_MAX;
    name_block(azu, 0, name);
    struct first_name first = {.ours = name};
    if (!azu->part_count ||
        sl_http_call(&azu->store->config, exchange, &call, &answer, NULL, NULL) < 0)
        return false;
    const char *body = sl_buf_string(&answer.body);
    size_t mark = strncmp(body, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
    sl_xml_parse(body + mark, answer.body.used - mark, "blocks", on_name, &first, NULL);
    sl_answer_release(&answer);
    return first.same;
}

static int write_list(const struct az_upload *azu, struct sl_buf *out, struct sl_err *err)
{
    char name[40];
    if (sl_buf_text(out, "<?xml version=\"1.0\" encoding=\"utf-8\"?><BlockList>", err) < 0)
        return -1;
    for (uint64_t i = 0; i < azu->part_count; i++) {
        name_block(azu, i, name);
        if (sl_buf_printf(out, err, "<Latest>%s</Latest>", name) < 0)
            return -1;
    }
    return sl_buf_text(out, "</BlockList>", err);
}

static int commit(struct az_upload *azu, struct sl_err *err)
{
    sl_autobuf body = SL_BUF_INIT(LIST_BYTES_MAX);
    char md5[64];
    snprintf(md5, sizeof(md5), "x-ms-blob-content-md5: %s", azu->md5);
    struct asking asking = {.azu = azu,
                            .what = azu->what,
                            .query = "comp=blocklist",
                            .headers = {"Content-Type: text/plain; charset=UTF-8",
                                        "x-ms-blob-content-type: application/octet-stream"}};
    unsigned count = 2;
    if (!azu->upload->config.replace)
        asking.headers[count++] = "If-None-Match: *";
    if (*azu->md5)
        asking.headers[count] = md5;
    struct sl_answer answer = {0};
    struct sl_err why = SL_ERR_INIT;
    SL_AUTO(sl_exchange) exchange = new_exchange(azu, COMPLETE_SECONDS, NULL, err);
    if (!exchange || write_list(azu, &body, err) < 0)
        return -1;
    struct sl_http_call call = call_of(&asking, "PUT");
    call.body = body.data;
    call.body_bytes = body.used;
    if (sl_http_call(&azu->store->config, exchange, &call, &answer, NULL, &why) == 0) {
        sl_answer_release(&answer);
        return 0;
    }
    bool there = why.http_status == 409 || why.http_status == 412;
    bool lost = !why.http_status && why.kind != SL_E_CANCELED;
    /* 400: the blocks of a list that was carried out are no longer waiting */
    if ((there || lost || why.http_status == 400) && is_ours(azu, exchange))
        return 0;
    if (there && !azu->upload->config.replace)
        return fail_exists(azu, err);
    *err = why;
    return -1;
}

static int az_finish(struct sl_upload *upload, struct sl_err *err)
{
    struct az_upload *azu = upload->impl;
    if (azu->parts && sl_parts_finish(azu->parts, err) < 0)
        return -1;
    return commit(azu, err);
}

static void az_close(struct sl_upload *upload)
{
    struct az_upload *azu = upload->impl;
    if (!azu)
        return;
    sl_parts_free(azu->parts);
    free(azu->blob);
    sl_store_free(azu->store);
    free(azu);
}

const struct sl_upload_ops sl_upload_az_ops = {
    .open = az_open,
    .write = az_write,
    .admit = az_admit,
    .finish = az_finish,
    .close = az_close,
};
