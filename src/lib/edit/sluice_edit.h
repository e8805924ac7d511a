/*
 * Model files that are changed where they lie: the part of libsluice.so that sluice.h has no room
 * for. What that says of errors, sizes and threads holds here, too.
 *
 *     struct sluice_editor *editor;
 *     struct sluice_tensor tensor = {.size = sizeof(tensor), .name = "lm_head.weight", …};
 *     if (sluice_edit("model.safetensors", NULL, &editor, &error) < 0)
 *         …error.message
 *     if (sluice_replace(editor, &tensor, &error) < 0)
 *         …sluice_edit_abandon(editor)
 *     if (sluice_commit(editor, &error) < 0)
 *         …
 */
#ifndef SL_SLUICE_EDIT_H
#define SL_SLUICE_EDIT_H

#include "sluice.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Changes of a local model file. For one thread at a time. */
struct sluice_editor;
enum {
    SLUICE_EDIT_COPY = 1, /* a new file takes its place in any case: whoever has the present one
                             open or mapped keeps it as it is */
};
struct sluice_edit_options {
    size_t size;
    uint32_t flags;
};
/**
 * Begin to change a file that safetensors, tensorizer or torch.save() wrote: a path, or a file:
 * URI; links are followed. Nobody else can begin meanwhile. A change that a crash left incomplete
 * is completed. options may be NULL. *editor is the caller's until sluice_commit() or
 * sluice_edit_abandon(). SLUICE_USAGE, code "busy": somebody else is changing it; also files that
 * are encrypted, or of other formats; SLUICE_AUTH: it cannot be written; and what sluice_open()
 * says of a file that cannot be read.
 */
SLUICE_API int sluice_edit(const char *path, const struct sluice_edit_options *options,
                           struct sluice_editor **editor, struct sluice_error *error);
/** Another type, shape and content for a tensor that is there, as of sluice_write(). Its data are
 * borrowed until the commit; all else is copied. Its role and module stay. SLUICE_NOT_FOUND. */
SLUICE_API int sluice_replace(struct sluice_editor *editor, const struct sluice_tensor *tensor,
                              struct sluice_error *error);
/** One more tensor, behind all others. SLUICE_USAGE, code "exists". */
SLUICE_API int sluice_append(struct sluice_editor *editor, const struct sluice_tensor *tensor,
                             struct sluice_error *error);
/** One less. name_bytes 0: up to its NUL. SLUICE_NOT_FOUND. */
SLUICE_API int sluice_delete(struct sluice_editor *editor, const char *name, uint64_t name_bytes,
                             struct sluice_error *error);
/**
 * Do all of it, or, after an error or a crash, nothing: whatever is killed when, the file has its
 * old content, or the next edit completes the new one. Readers refuse it until then, code
 * "changed". What stays where it is is not written again; docs/library.md says when that is so, and
 * what other programs see. Blocks. The editor is gone, however it ends. SLUICE_NO_SPACE: the
 * message says so if the next edit completes it. SLUICE_FORMAT: a tensor that the format cannot
 * hold. SLUICE_INTEGRITY, code "changed": somebody wrote to it meanwhile.
 */
SLUICE_API int sluice_commit(struct sluice_editor *editor, struct sluice_error *error);
/** The editor is gone, and nothing was changed. NULL is fine. */
SLUICE_API void sluice_edit_abandon(struct sluice_editor *editor);

#ifdef __cplusplus
}
#endif

#endif
