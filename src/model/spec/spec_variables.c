/*
 * ${VAR} in scalars. What is put in is never looked at again, neither for variables nor for YAML: a
 * value from the environment cannot become a key. An unset variable is an error, because a load
 * from the wrong bucket is worse.
 */
#include <ctype.h>
#include <string.h>

#include "buf.h"
#include "spec_node.h"

enum { NAME_BYTES_MAX = 128 };

/* The length of the name after "${", 0 if what follows is not a NAME}. */
static size_t name_length(const char *text)
{
    size_t length = 0;
    if (isdigit((unsigned char)*text))
        return 0;
    while (isalnum((unsigned char)text[length]) || text[length] == '_')
        length++;
    return text[length] == '}' && length < NAME_BYTES_MAX ? length : 0;
}

static int append_variable(struct sl_buf *out, const char *text, size_t length, struct sl_err *err)
{
    char name[NAME_BYTES_MAX];
    memcpy(name, text, length);
    name[length] = 0;
    const char *value = getenv(name);
    if (!value)
        return sl_fail(err, SL_E_USAGE, "the environment variable '%s' is not set", name);
    return sl_buf_text(out, value, err);
}

char *sl_expand_variables(const char *text, size_t limit, struct sl_err *err)
{
    sl_autobuf out = SL_BUF_INIT(limit);
    while (*text) {
        size_t plain = strcspn(text, "$");
        if (sl_buf_append(&out, text, plain, err) < 0)
            return NULL;
        text += plain;
        if (strncmp(text, "$${", 3) == 0) {
            if (sl_buf_text(&out, "${", err) < 0)
                return NULL;
            text += 3;
        } else if (strncmp(text, "${", 2) == 0) {
            size_t length = name_length(text + 2);
            if (!length) {
                sl_fail(err, SL_E_USAGE, "'%.80s' is not a ${NAME}; write $${ for a plain ${",
                        text);
                return NULL;
            }
            if (append_variable(&out, text + 2, length, err) < 0)
                return NULL;
            text += length + 3;
        } else if (*text) {
            if (sl_buf_append(&out, text++, 1, err) < 0)
                return NULL;
        }
    }
    return sl_buf_steal(&out, err);
}
