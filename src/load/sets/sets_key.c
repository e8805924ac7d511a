/*
 * What a set depends on: the labels of the user, the machine, the model, and the path, since
 * engines hash the paths of their caches into their own keys. It is written as JSON with sorted
 * labels, so that two different sets of facts never have one text, and hashed.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

#include "cuda.h"
#include "hash.h"
#include "sets_parts.h"
#include "uri_text.h"

enum { FACTS_BYTES_MAX = 48 * 1024, FORMAT = 1 };

const struct sl_spec *sl_sets_find(const struct sl_specs *specs)
{
    for (size_t i = 0; i < specs->count; i++)
        if (specs->items[i].sink.caches.path)
            return &specs->items[i];
    return NULL;
}

/* ---- the machine ----------------------------------------------------------------------------- */

/* "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu …": the first such number. */
static void take_driver(const struct sl_cuda *cuda, char driver[64])
{
    sl_autobuf text = SL_BUF_INIT(4096);
    int version = 0;
    if (sl_buf_read_file(&text, "/proc/driver/nvidia/version", NULL) == 0) {
        const char *at = strstr(sl_buf_string(&text), "Module");
        at = at ? at + strcspn(at, "0123456789\n") : "";
        size_t bytes = strspn(at, "0123456789.");
        snprintf(driver, 64, "%.*s", (int)SL_MIN(bytes, (size_t)63), at);
    }
    if (!*driver && cuda->driver_version(&version) == 0)
        snprintf(driver, 64, "cuda %d.%d", version / 1000, version % 1000 / 10);
}

void sl_sets_look(struct sl_sets_machine *machine)
{
    struct sl_cuda_device device = {.ordinal = 0};
    struct sl_cuda_err why;
    struct utsname system;
    *machine = (struct sl_sets_machine){.gpu = "cpu"};
    if (uname(&system) == 0)
        snprintf(machine->arch, sizeof(machine->arch), "%.31s", system.machine);
    const struct sl_cuda *cuda = sl_cuda_open(&why);
    if (!cuda || (sl_cuda_device(cuda, 0, &device, &why) < 0 && !*device.name))
        return;
    snprintf(machine->gpu, sizeof(machine->gpu), "%s", device.name);
    snprintf(machine->capability, sizeof(machine->capability), "%d.%d", device.major, device.minor);
    take_driver(cuda, machine->driver);
}

/* ---- the key --------------------------------------------------------------------------------- */

static int by_text(const void *a, const void *b)
{
    return strcmp(**(const char *const *const *)a, **(const char *const *const *)b);
}

/* Each of map->keys by its own place, which is the value's, too. */
static int write_labels(const struct sl_map *map, struct sl_json *json, struct sl_err *err)
{
    sl_autofree char ***order = sl_alloc_array(map->count, sizeof(*order), err);
    if (!order)
        return -1;
    for (size_t i = 0; i < map->count; i++)
        order[i] = &map->keys[i];
    if (map->count)
        qsort(order, map->count, sizeof(*order), by_text);
    sl_json_key(json, "labels");
    sl_json_object(json);
    for (size_t i = 0; i < map->count; i++)
        sl_json_key_string(json, *order[i], map->values[order[i] - map->keys]);
    sl_json_end(json);
    return 0;
}

static int write_facts(const struct sl_spec *spec, const struct sl_sets_machine *machine,
                       struct sl_json *json, struct sl_err *err)
{
    const struct sl_spec_sets *sets = &spec->sink.caches;
    sl_autofree char *model = sl_uri_sanitize(spec->source.uri ? spec->source.uri : "", err);
    if (!model)
        return -1;
    sl_json_object(json);
    sl_json_key_uint(json, "format", FORMAT);
    sl_json_key_string(json, "model", model);
    sl_json_key_string(json, "path", sets->path);
    sl_json_key_string(json, "variant", sets->variant ? sets->variant : "");
    sl_json_key_string(json, "arch", machine->arch);
    sl_json_key_string(json, "gpu", machine->gpu);
    sl_json_key_string(json, "capability", machine->capability);
    sl_json_key_string(json, "driver", machine->driver);
    int done = write_labels(&sets->labels, json, err);
    sl_json_end(json);
    return done;
}

int sl_sets_key(const struct sl_spec *spec, const struct sl_sets_machine *machine,
                struct sl_buf *facts, char key[SL_SETS_KEY_BYTES], struct sl_err *err)
{
    struct sl_json json;
    uint8_t digest[SL_HASH_BYTES_MAX];
    sl_json_init(&json, FACTS_BYTES_MAX);
    int done = write_facts(spec, machine, &json, err);
    const char *text = done == 0 ? sl_json_text(&json, err) : NULL;
    if (!text || sl_buf_text(facts, text, err) < 0 ||
        sl_digest_of(SL_HASH_SHA256, NULL, 0, text, strlen(text), digest, err) < 0)
        done = -1;
    else
        sl_hex(digest, 32, key);
    sl_json_release(&json);
    return done;
}

/* ---- the environment ------------------------------------------------------------------------- */

int sl_sets_each_variable(const char *path,
                          int (*each)(void *arg, const char *name, const char *value), void *arg,
                          struct sl_err *err)
{
    static const struct {
        const char *name, *folder;
    } rows[] = {
#define SL_SETS_VARIABLE(name, folder) {name, folder},
#include "sets.def"
#undef SL_SETS_VARIABLE
    };
    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        if (getenv(rows[i].name))
            continue;
        sl_autofree char *value = sl_asprintf(err, "%s/%s", path, rows[i].folder);
        if (!value)
            return -1;
        if (each(arg, rows[i].name, value) < 0)
            return sl_fail(err, SL_E_NO_SPACE, "out of memory for the environment");
    }
    return 0;
}

static int set_variable(void *arg, const char *name, const char *value)
{
    (void)arg;
    return setenv(name, value, 0);
}

int sl_sets_export(const char *path, struct sl_err *err)
{
    return sl_sets_each_variable(path, set_variable, NULL, err);
}
