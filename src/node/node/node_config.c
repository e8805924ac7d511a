/*
 * Reading goes on after a mistake, so that one run shows all of them. A name may stand for one
 * model only, over all files: the second one is a mistake, too.
 */
#include "node_config.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "buf.h"

enum { FILES_MAX = 4096, PATH_BYTES = 4096 };

struct reading {
    struct sl_node_config *config;
    const char *path; /* of the config */
    struct sl_buf *complaints;
    struct sl_err first; /* mistake */
};

void sl_node_config_release(struct sl_node_config *config)
{
    for (size_t i = 0; i < config->count; i++)
        sl_spec_release(&config->models[i].spec);
    free(config->models);
    sl_node_spec_release(&config->spec);
    memset(config, 0, sizeof(*config));
}

/* A mistake is noted and reading goes on; anything else ends it. `listed`: in complaints already.
 */
static int judge(struct reading *reading, const struct sl_err *why, bool listed, struct sl_err *err)
{
    if (why->kind == SL_E_NO_SPACE) {
        if (err)
            *err = *why;
        return -1;
    }
    if (!reading->first.kind) {
        reading->first = *why;
        reading->first.kind = SL_E_USAGE;
    }
    return listed ? 0 : sl_buf_printf(reading->complaints, err, "%s\n", why->message);
}

static bool is_taken(const struct sl_node_config *config, const char *name)
{
    for (size_t i = 0; i < config->count; i++)
        if (strcmp(config->models[i].spec.metadata.name, name) == 0)
            return true;
    return false;
}

static int take_specs(struct reading *reading, struct sl_specs *specs, bool pin, const char *file,
                      struct sl_err *err)
{
    struct sl_node_config *config = reading->config;
    if (sl_grow(&config->models, &config->capacity, config->count + specs->count,
                sizeof(*config->models), err) < 0)
        return -1;
    for (size_t i = 0; i < specs->count; i++) {
        const char *name = specs->items[i].metadata.name;
        struct sl_err why = SL_ERR_INIT;
        if (is_taken(config, name)) {
            sl_fail(&why, SL_E_USAGE, "%.300s: another file has a model '%s', too", file, name);
            if (judge(reading, &why, false, err) < 0)
                return -1;
            continue;
        }
        config->models[config->count++] = (struct sl_node_model){specs->items[i], pin};
        memset(&specs->items[i], 0, sizeof(specs->items[i]));
    }
    return 0;
}

static int read_spec_file(struct reading *reading, const char *path, bool pin, struct sl_err *err)
{
    struct sl_specs specs = {0};
    struct sl_err why = SL_ERR_INIT;
    sl_autobuf text = SL_BUF_INIT(SL_SPEC_BYTES_MAX);
    if (sl_spec_file_text(path, "model spec", &text, &why) < 0)
        return judge(reading, &why, false, err);
    if (sl_spec_parse_placed(sl_buf_string(&text), text.used, path, true, &specs,
                             reading->complaints, &why) < 0)
        return judge(reading, &why, true, err);
    int done = take_specs(reading, &specs, pin, path, err);
    sl_specs_release(&specs);
    return done;
}

/* ---- folders -------------------------------------------------------------------------------- */

static int is_spec_file(const struct dirent *entry)
{
    const char *dot = strrchr(entry->d_name, '.');
    return entry->d_name[0] != '.' && dot &&
           (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0);
}

static int read_folder(struct reading *reading, const char *path, bool pin, struct sl_err *err)
{
    struct dirent **entries = NULL;
    struct sl_err why = SL_ERR_INIT;
    int count = scandir(path, &entries, is_spec_file, alphasort), done = 0;
    if (count < 0) {
        sl_fail_errno(&why, sl_errno_is_short(errno) ? SL_E_NO_SPACE : SL_E_USAGE, errno,
                      "cannot read the folder '%s'", path);
        return judge(reading, &why, false, err);
    }
    if (count > FILES_MAX) {
        sl_fail(&why, SL_E_USAGE, "'%s' holds %d specs, at most %d are read", path, count,
                FILES_MAX);
        done = judge(reading, &why, false, err);
    }
    for (int i = 0; i < count; i++) {
        char file[PATH_BYTES];
        if (done == 0 && count <= FILES_MAX &&
            snprintf(file, sizeof(file), "%s/%s", path, entries[i]->d_name) < (int)sizeof(file))
            done = read_spec_file(reading, file, pin, err);
        free(entries[i]);
    }
    free(entries);
    return done;
}

static int read_models(struct reading *reading, const struct sl_node_spec_models *models,
                       struct sl_err *err)
{
    const char *slash = strrchr(reading->path, '/');
    int base = slash && models->file[0] != '/' ? (int)(slash - reading->path) + 1 : 0;
    sl_autofree char *path = sl_asprintf(err, "%.*s%s", base, reading->path, models->file);
    struct stat status;
    struct sl_err why = SL_ERR_INIT;
    if (!path)
        return -1;
    if (stat(path, &status) < 0) {
        sl_fail_errno(&why, SL_E_USAGE, errno, "%.300s: cannot read the models of '%s'",
                      reading->path, path);
        return judge(reading, &why, false, err);
    }
    return S_ISDIR(status.st_mode) ? read_folder(reading, path, models->pin, err)
                                   : read_spec_file(reading, path, models->pin, err);
}

/* ---- the whole ------------------------------------------------------------------------------ */

static int read_config(struct reading *reading, struct sl_err *err)
{
    struct sl_node_config *config = reading->config;
    struct sl_specs specs = {0};
    struct sl_err why = SL_ERR_INIT;
    sl_autobuf text = SL_BUF_INIT(SL_SPEC_BYTES_MAX);
    int done = 0;
    if (sl_spec_file_text(reading->path, "config", &text, err) < 0)
        return -1;
    if (sl_node_spec_parse(sl_buf_string(&text), text.used, reading->path, &config->spec, &specs,
                           reading->complaints, &why) < 0)
        done = judge(reading, &why, true, err);
    if (done == 0)
        done = take_specs(reading, &specs, true, reading->path, err);
    sl_specs_release(&specs);
    const struct sl_node_spec_models *models = config->spec.models.items;
    for (size_t i = 0; done == 0 && i < config->spec.models.count; i++)
        if (models[i].file) /* else that was a mistake already */
            done = read_models(reading, &models[i], err);
    return done;
}

int sl_node_config_read(const char *path, struct sl_node_config *config, struct sl_buf *complaints,
                        struct sl_err *err)
{
    struct reading reading = {config, path, complaints, SL_ERR_INIT};
    memset(config, 0, sizeof(*config));
    if (read_config(&reading, err) < 0)
        return -1;
    if (!reading.first.kind)
        return 0;
    if (err)
        *err = reading.first;
    return -1;
}
