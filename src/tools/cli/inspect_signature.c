/* A signature as it stands there: whoever wrote it wrote all of this. So the first line says that
 * nothing was verified, and texts are made harmless for terminals. */
#include "inspect_signature.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "bundle_claims.h"
#include "inspect_report.h"
#include "oms.h"

enum { HEAD_BYTES = 64 * 1024, TIME_BYTES = 32 };

struct signature {
    const char *uri;
    struct sl_bundle *bundle;
    struct sl_oms *oms;
    struct sl_bundle_claims claims;
    size_t files;
    uint64_t bytes; /* of ranges; whole files do not say */
    bool kinds[SL_HASH_MD5 + 1];
};

static const char *const methods[] = {[SL_SIGNED_KEY] = "key",
                                      [SL_SIGNED_CERTIFICATE] = "certificate",
                                      [SL_SIGNED_KEYLESS] = "keyless"};

bool sl_inspect_is_signature(const char *name)
{
    size_t bytes = strlen(name);
    return bytes > 4 && strcmp(name + bytes - 4, ".sig") == 0;
}

static const char *time_text(int64_t seconds, char text[TIME_BYTES])
{
    time_t when = (time_t)seconds;
    struct tm parts;
    gmtime_r(&when, &parts);
    strftime(text, TIME_BYTES, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

/* ---- reading --------------------------------------------------------------------------------- */

static void count(struct signature *signature)
{
    const struct sl_oms *oms = signature->oms;
    for (size_t i = 0; i < oms->resource_count; i++) {
        const struct sl_oms_resource *now = &oms->resources[i];
        signature->kinds[now->kind] = true;
        signature->files += i == 0 || strcmp(now->name, now[-1].name) != 0;
        if (oms->shards)
            signature->bytes = sl_add_capped(signature->bytes, now->end - now->start);
    }
}

static int read_signature(struct sl_source *source, struct signature *signature, struct sl_err *err)
{
    uint64_t bytes = sl_source_bytes(source);
    char size[32];
    if (bytes > SL_BUNDLE_BYTES_MAX)
        return sl_fail(err, SL_E_FORMAT, "not a signature: it has %s, at most 64 MiB are taken",
                       sl_human_bytes(bytes, size));
    sl_autofree char *text = sl_alloc((size_t)bytes + 1, err);
    if (!text || sl_source_read(source, 0, text, (size_t)bytes, err) < 0 ||
        sl_bundle_parse(text, (size_t)bytes, &signature->bundle, err) < 0 ||
        sl_oms_peek(signature->bundle, &signature->oms, err) < 0 ||
        sl_bundle_claims_read(signature->bundle, &signature->claims, err) < 0)
        return -1;
    count(signature);
    return 0;
}

/* ---- showing --------------------------------------------------------------------------------- */

static void row(const char *what, const char *text)
{
    printf("%-12s ", what);
    sl_print_sanitized(text);
    printf("\n");
}

static void print_signer(const struct signature *signature)
{
    const struct sl_bundle_claims *claims = &signature->claims;
    char from[TIME_BYTES], until[TIME_BYTES];
    row("method", methods[signature->bundle->method]);
    if (signature->bundle->method == SL_SIGNED_KEY) {
        row("key hint", signature->bundle->hint ? signature->bundle->hint : "none");
    } else {
        row("subject", claims->subject ? claims->subject : "none");
        row("issuer", claims->issuer ? claims->issuer : "none");
        row("fingerprint", claims->fingerprint);
        printf("%-12s %s to %s\n", "valid", time_text(claims->valid_from, from),
               time_text(claims->valid_until, until));
    }
    row("signed", claims->logged_at ? time_text(claims->logged_at, from) : "at a time not said");
}

static void print_content(const struct signature *signature)
{
    const struct sl_oms *oms = signature->oms;
    char a[40], b[40], bytes[32];
    const char *separator = "";
    if (oms->shards) {
        printf("%-12s %s, %s", "signs", sl_human_count(signature->files, "file", a),
               sl_human_count(oms->resource_count, "range", b));
        printf(" of up to %s, %s\n", sl_human_bytes(oms->shard_bytes, b),
               sl_human_bytes(signature->bytes, bytes));
    } else {
        printf("%-12s %s, whole\n", "signs",
               oms->single ? "one file, not named" : sl_human_count(signature->files, "file", a));
    }
    printf("%-12s ", "hashes");
    for (unsigned kind = 0; kind < SL_COUNT(signature->kinds); kind++)
        if (signature->kinds[kind]) {
            printf("%s%s", separator, sl_hash_name((enum sl_hash_kind)kind));
            separator = ", ";
        }
    printf("\n");
    for (size_t i = 0; i < oms->ignored_count; i++)
        row(i ? "" : "ignores", oms->ignored[i]);
}

static void json_text(struct sl_json *json, const char *key, const char *text)
{
    if (text && *text)
        sl_json_key_string(json, key, text);
}

static void json_time(struct sl_json *json, const char *key, int64_t seconds)
{
    char text[TIME_BYTES];
    if (seconds)
        sl_json_key_string(json, key, time_text(seconds, text));
}

static void write_json(const struct signature *signature, struct sl_json *json)
{
    const struct sl_oms *oms = signature->oms;
    sl_json_object(json);
    sl_json_key_uri(json, "uri", signature->uri);
    sl_json_key_string(json, "format", "oms");
    sl_json_key_bool(json, "verified", false);
    sl_json_key_string(json, "method", methods[signature->bundle->method]);
    json_text(json, "hint", signature->bundle->hint);
    json_text(json, "subject", signature->claims.subject);
    json_text(json, "issuer", signature->claims.issuer);
    json_text(json, "fingerprint", signature->claims.fingerprint);
    json_time(json, "valid_from", signature->claims.valid_from);
    json_time(json, "valid_until", signature->claims.valid_until);
    json_time(json, "logged_at", signature->claims.logged_at);
    sl_json_key_uint(json, "files", signature->files);
    sl_json_key_uint(json, "resources", oms->resource_count);
    if (oms->shards) {
        sl_json_key_uint(json, "shard_bytes", oms->shard_bytes);
        sl_json_key_uint(json, "bytes", signature->bytes);
    }
    sl_json_key(json, "hashes");
    sl_json_array(json);
    for (unsigned kind = 0; kind < SL_COUNT(signature->kinds); kind++)
        if (signature->kinds[kind])
            sl_json_string(json, sl_hash_name((enum sl_hash_kind)kind));
    sl_json_end(json);
    sl_json_key(json, "ignored");
    sl_json_array(json);
    for (size_t i = 0; i < oms->ignored_count; i++)
        sl_json_string(json, oms->ignored[i]);
    sl_json_end(json);
    sl_json_end(json);
}

static void print(const struct signature *signature)
{
    sl_print_sanitized(signature->uri);
    printf(": OpenSSF Model Signing, not verified here (`sluice verify` does that)\n");
    print_signer(signature);
    print_content(signature);
}

int sl_inspect_signature(struct sl_store *store, const char *name, struct sl_json *json,
                         struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    struct signature signature = {0};
    if (sl_source_open(store, name, HEAD_BYTES, &source, err) < 0)
        return -1;
    signature.uri = sl_source_uri(source);
    int done = read_signature(source, &signature, err);
    if (done < 0)
        sl_wrap(err, "'%s'", signature.uri);
    else if (json)
        write_json(&signature, json);
    else
        print(&signature);
    sl_bundle_claims_release(&signature.claims);
    sl_oms_free(signature.oms);
    sl_bundle_free(signature.bundle);
    return done;
}
