/*
 * sluice ls: what lies at a URI, before anything is loaded: a listing where the store has one, else
 * the one object. A name without its slash is taken for the object and for what lies below it.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "cli.h"
#include "format.h"
#include "json.h"
#include "stores.h"

enum { JSON_BYTES_MAX = 256 * 1024 * 1024, VERSION_COLUMNS = 16 };

struct listing {
    struct sl_cli *cli;
    struct sl_json json;
    const char *only; /* this object and what lies below it; "": all */
    uint64_t count, bytes;
};

static const char *format_name(const char *name)
{
    const struct sl_format *format = sl_format_of_name(name, NULL);
    return format ? format->name : "data";
}

/* The tag without its quotes, cut: enough to see that two differ. */
static void short_version(const char *etag, const char *pin, char text[VERSION_COLUMNS + 1])
{
    const char *from = pin && *pin ? pin : etag ? etag : "";
    from += strncmp(from, "W/", 2) == 0 ? 2 : 0;
    from += *from == '"';
    snprintf(text, VERSION_COLUMNS + 1, "%.*s", (int)strcspn(from, "\""), from);
    if (!*text)
        snprintf(text, VERSION_COLUMNS + 1, "-");
    sl_sanitize(text);
}

static int show(struct listing *listing, const struct sl_entry *entry, struct sl_err *err)
{
    char size[32], version[VERSION_COLUMNS + 1];
    listing->bytes = sl_add_capped(listing->bytes, entry->bytes);
    if (listing->cli->json) {
        sl_json_object(&listing->json);
        sl_json_key_string(&listing->json, "name", entry->name);
        sl_json_key_uint(&listing->json, "bytes", entry->bytes);
        sl_json_key_string(&listing->json, "format", format_name(entry->name));
        sl_json_key_string(&listing->json, "etag", entry->etag ? entry->etag : "");
        sl_json_key_string(&listing->json, "version", entry->pin ? entry->pin : "");
        sl_json_end(&listing->json);
    } else {
        sl_autofree char *name = sl_strdup(entry->name, err);
        if (!name)
            return -1;
        sl_sanitize(name);
        short_version(entry->etag, entry->pin, version);
        if (!listing->count)
            printf("%12s  %-16s  %-12s %s\n", "SIZE", "VERSION", "FORMAT", "NAME");
        printf("%12s  %-16s  %-12s %s\n", sl_human_bytes(entry->bytes, size), version,
               format_name(entry->name), name);
    }
    listing->count++;
    return sl_cancel_check(listing->cli->cancel, err);
}

static int take_entry(const struct sl_entry *entry, void *arg, struct sl_err *err)
{
    struct listing *listing = arg;
    size_t bytes = strlen(listing->only);
    bool wanted = !bytes || (strncmp(entry->name, listing->only, bytes) == 0 &&
                             (!entry->name[bytes] || entry->name[bytes] == '/'));
    return wanted ? show(listing, entry, err) : 0;
}

/* One object, by asking for its first bytes. */
static int show_object(struct listing *listing, struct sl_store *store, struct sl_err *err)
{
    SL_AUTO(sl_source) source = NULL;
    if (sl_source_open(store, listing->only, SL_FORMAT_PROBE_BYTES, &source, err) < 0)
        return -1;
    const struct sl_version *version = sl_source_version(source);
    const struct sl_entry entry = {.name = listing->only,
                                   .bytes = sl_source_bytes(source),
                                   .etag = version->etag,
                                   .pin = *version->pin ? version->pin : version->version_id};
    return show(listing, &entry, err);
}

static int list(struct listing *listing, struct sl_store *store, struct sl_err *err)
{
    const struct sl_store_traits *traits = sl_store_traits(store);
    if (!*listing->only)
        return sl_store_list(store, take_entry, listing, err);
    struct sl_err why = SL_ERR_INIT;
    if (!traits->listing || traits->local)
        return show_object(listing, store, err);
    if (sl_store_list_begin(store, listing->only, take_entry, listing, &why) == 0 && listing->count)
        return 0;
    if (why.kind == SL_E_CANCELED || listing->count) {
        *err = why;
        return -1;
    }
    return show_object(listing, store, err); /* who may read may not list */
}

static int list_uri(struct listing *listing, const struct sl_spec *spec, struct sl_err *err)
{
    struct sl_source_config config;
    SL_AUTO(sl_store) store = NULL;
    sl_autofree char *key = NULL;
    char size[32];
    sl_spec_source_config(spec, listing->cli->cancel, NULL, &config);
    if (sl_store_open(spec->source.uri, &config, &store, &key, err) < 0)
        return -1;
    listing->only = key;
    sl_json_array(&listing->json);
    if (list(listing, store, err) < 0)
        return -1;
    sl_json_end(&listing->json);
    if (listing->cli->json)
        return sl_cli_print_json(&listing->json, err);
    printf("%12s  %" PRIu64 " %s\n", sl_human_bytes(listing->bytes, size), listing->count,
           listing->count == 1 ? "object" : "objects");
    return 0;
}

static int run(struct sl_cli *cli, struct sl_err *err)
{
    struct sl_specs specs = {0};
    struct listing listing = {.cli = cli};
    sl_json_init(&listing.json, JSON_BYTES_MAX);
    cli->looks = true;
    int done = sl_cli_uri_specs(cli, cli->operands[0], "/dev/shm", &specs, err);
    if (done == 0)
        done = list_uri(&listing, &specs.items[0], err);
    sl_json_release(&listing.json);
    sl_specs_release(&specs);
    return done;
}

const struct sl_command sl_cmd_ls = {
    .name = "ls",
    .usage = "sluice ls URI",
    .summary = "list the objects at a URI, with sizes, versions and formats",
    .description =
        "Lists an object or everything below a prefix, with the credentials and settings that a "
        "load would use. A name without its slash stands for the object and for everything below "
        "it. The format is what the name says; `sluice inspect` looks inside. The version is the "
        "beginning of the store's own: an ETag, a generation, a commit. A store that cannot be "
        "reached is given up after 2 s; a load waits longer, since it may start before its store "
        "(--unreachable-seconds).",
    .examples = "sluice ls s3://bucket/model/\n"
                "sluice ls hf://org/name\n"
                "sluice ls s3://bucket/model/ --json   # every name with its whole version",
    .spec_flags = true,
    .operand_min = 1,
    .operand_max = 1,
    .run = run,
};
