/*
 * Whatever a request holds is a stranger's: texts have limits, are UTF-8 and hold nothing that a
 * terminal obeys, paths lead nowhere but down, a map has each key once. A message may name a field
 * and a key, never a value: those may be secrets.
 */
#include <string.h>

#include "csi_parts.h"

static bool is_clean(const char *text, size_t bytes)
{
    if (!sl_is_utf8(text, bytes))
        return false;
    for (size_t i = 0; i < bytes; i++)
        if ((uint8_t)text[i] < 0x20 || text[i] == 0x7f)
            return false;
    return true;
}

int sl_csi_check_id(const char *field, const char *text, size_t limit, struct sl_err *err)
{
    size_t bytes = strnlen(text, limit + 1);
    if (!bytes)
        return sl_fail(err, SL_E_USAGE, "%s is missing", field);
    if (bytes > limit)
        return sl_fail(err, SL_E_USAGE, "%s is longer than %zu bytes", field, limit);
    if (!is_clean(text, bytes))
        return sl_fail(err, SL_E_USAGE, "%s contains control characters or is not UTF-8", field);
    return 0;
}

int sl_csi_check_path(const char *field, const char *path, struct sl_err *err)
{
    if (sl_csi_check_id(field, path, SL_CSI_PATH_BYTES, err) < 0)
        return -1;
    if (path[0] != '/')
        return sl_fail(err, SL_E_USAGE, "%s is not an absolute path", field);
    for (const char *at = path; at; at = strchr(at + 1, '/'))
        if (strncmp(at, "/..", 3) == 0 && (at[3] == '/' || !at[3]))
            return sl_fail(err, SL_E_USAGE, "%s contains '..'", field);
    return 0;
}

/* What is always so may be asked for. */
static int check_mount(const Csi__V1__VolumeCapability__MountVolume *mount, struct sl_err *err)
{
    static const char *const flags[] = {"ro", "nosuid", "nodev", "noexec"};
    if (mount->fs_type[0] && strcmp(mount->fs_type, "tmpfs") != 0)
        return sl_fail(err, SL_E_USAGE, "fs_type '%.80s' is not supported: leave it out",
                       mount->fs_type);
    if (strlen(mount->volume_mount_group) > SL_CSI_ID_BYTES)
        return sl_fail(err, SL_E_USAGE, "volume_mount_group is longer than %d bytes",
                       SL_CSI_ID_BYTES);
    for (size_t i = 0; i < mount->n_mount_flags; i++) {
        bool known = false;
        for (size_t j = 0; j < SL_COUNT(flags); j++)
            known |= strcmp(mount->mount_flags[i], flags[j]) == 0;
        if (!known)
            return sl_fail(err, SL_E_USAGE,
                           "mount flag '%.80s' is not supported: models are mounted ro, nosuid, "
                           "nodev and noexec",
                           mount->mount_flags[i]);
    }
    return 0;
}

int sl_csi_check_capability(const Csi__V1__VolumeCapability *capability, struct sl_err *err)
{
    if (!capability)
        return sl_fail(err, SL_E_USAGE, "volume_capability is missing");
    if (capability->access_type_case == CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_BLOCK)
        return sl_fail(err, SL_E_USAGE,
                       "a model cannot be a block device: use volumeMode Filesystem");
    if (capability->access_type_case != CSI__V1__VOLUME_CAPABILITY__ACCESS_TYPE_MOUNT)
        return sl_fail(err, SL_E_USAGE, "volume_capability says neither block nor mount");
    if (!capability->access_mode)
        return sl_fail(err, SL_E_USAGE, "volume_capability has no access mode");
    switch (capability->access_mode->mode) {
    case CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_WRITER: /* inline volumes */
    case CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__SINGLE_NODE_READER_ONLY:
    case CSI__V1__VOLUME_CAPABILITY__ACCESS_MODE__MODE__MULTI_NODE_READER_ONLY:
        return check_mount(capability->mount, err);
    default:
        return sl_fail(err, SL_E_USAGE,
                       "volumes of models are read-only: give persistent volumes the access mode "
                       "ReadOnlyMany");
    }
}

int sl_csi_check_capabilities(Csi__V1__VolumeCapability *const *capabilities, size_t count,
                              struct sl_err *err)
{
    if (!count)
        return sl_fail(err, SL_E_USAGE, "volume_capabilities are missing");
    if (count > SL_CSI_CAPABILITIES_MAX)
        return sl_fail(err, SL_E_USAGE, "more than %d volume_capabilities",
                       SL_CSI_CAPABILITIES_MAX);
    for (size_t i = 0; i < count; i++)
        if (sl_csi_check_capability(capabilities[i], err) < 0)
            return -1;
    return 0;
}

static int compare_pairs(const void *a, const void *b)
{
    return strcmp(((const struct sl_volume_pair *)a)->key, ((const struct sl_volume_pair *)b)->key);
}

int sl_csi_pairs_read(const char *field, void *entries, size_t count, size_t value_bytes,
                      struct sl_csi_pairs *pairs, struct sl_err *err)
{
    struct sl_csi_entry *const *from = entries;
    pairs->count = count;
    if (count > SL_CSI_PAIRS_MAX)
        return sl_fail(err, SL_E_USAGE, "%s has more than %d entries", field, SL_CSI_PAIRS_MAX);
    for (size_t i = 0; i < count; i++) {
        if (sl_csi_check_id("a key", from[i]->key, SL_CSI_KEY_BYTES, err) < 0)
            return sl_wrap(err, "%s", field);
        if (strnlen(from[i]->value, value_bytes + 1) > value_bytes)
            return sl_fail(err, SL_E_USAGE, "%s '%.128s' is longer than %zu bytes", field,
                           from[i]->key, value_bytes);
        if (!sl_is_utf8(from[i]->value, strlen(from[i]->value)))
            return sl_fail(err, SL_E_USAGE, "%s '%.128s' is not UTF-8", field, from[i]->key);
        pairs->pairs[i] = (struct sl_volume_pair){from[i]->key, from[i]->value};
    }
    qsort(pairs->pairs, count, sizeof(pairs->pairs[0]), compare_pairs);
    for (size_t i = 1; i < count; i++)
        if (strcmp(pairs->pairs[i - 1].key, pairs->pairs[i].key) == 0)
            return sl_fail(err, SL_E_USAGE, "%s '%.128s' is given twice", field,
                           pairs->pairs[i].key);
    return 0;
}
