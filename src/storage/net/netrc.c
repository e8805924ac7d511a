/* One pass over the words of the file; the first machine that fits wins, "default" fits every host.
 */
#include "netrc.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "buf.h"
#include "log.h"
#include "mem.h"

struct words {
    const char *begin, *at, *end;
};

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The next word into word[SL_NETRC_WORD_MAX], quotes undone; false at the end or if it is too long.
 */
static bool next_word(struct words *words, char *word)
{
    for (; words->at < words->end; words->at++) {
        if (*words->at == '#' && (words->at == words->begin || words->at[-1] == '\n'))
            while (words->at + 1 < words->end && words->at[1] != '\n')
                words->at++;
        else if (!is_space(*words->at))
            break;
    }
    if (words->at == words->end)
        return false;
    bool quoted = *words->at == '"';
    if (quoted)
        words->at++;
    size_t used = 0;
    while (words->at < words->end && (quoted ? *words->at != '"' : !is_space(*words->at))) {
        if (quoted && *words->at == '\\' && words->at + 1 < words->end)
            words->at++;
        if (used + 1 == SL_NETRC_WORD_MAX)
            return false;
        word[used++] = *words->at++;
    }
    if (quoted && words->at < words->end)
        words->at++;
    word[used] = 0;
    return true;
}

/* A macro ends with an empty line. */
static void skip_macro(struct words *words)
{
    while (words->at < words->end) {
        const char *line = memchr(words->at, '\n', (size_t)(words->end - words->at));
        words->at = line ? line + 1 : words->end;
        if (words->at < words->end && (*words->at == '\n' || *words->at == '\r'))
            return;
    }
}

bool sl_netrc_parse(const char *text, size_t bytes, const char *host, struct sl_netrc_login *login)
{
    struct words words = {text, text, text + bytes};
    char word[SL_NETRC_WORD_MAX];
    bool inside = false, found = false;
    *login = (struct sl_netrc_login){0};
    while (next_word(&words, word)) {
        if (strcasecmp(word, "machine") == 0 || strcasecmp(word, "default") == 0) {
            if (found)
                return true;
            login->by_default = strcasecmp(word, "default") == 0;
            inside = login->by_default || (next_word(&words, word) && strcasecmp(word, host) == 0);
        } else if (strcasecmp(word, "login") == 0) {
            if (next_word(&words, word) && inside) {
                memcpy(login->login, word, sizeof(word));
                found = true;
            }
        } else if (strcasecmp(word, "password") == 0) {
            if (next_word(&words, word) && inside) {
                memcpy(login->password, word, sizeof(word));
                found = true;
            }
        } else if (strcasecmp(word, "macdef") == 0) {
            skip_macro(&words);
        }
    }
    return found;
}

bool sl_netrc_find(const char *host, struct sl_netrc_login *login)
{
    const char *named = getenv("NETRC"), *home = getenv("HOME");
    bool is_named = named && *named;
    if (!is_named && (!home || !*home))
        return false;
    sl_autofree char *path =
        is_named ? sl_strdup(named, NULL) : sl_asprintf(NULL, "%s/.netrc", home);
    sl_autobuf text = SL_BUF_INIT(SL_NETRC_BYTES_MAX);
    struct sl_err why = SL_ERR_INIT;
    if (!path)
        return false;
    if (sl_buf_read_file(&text, path, &why) < 0) {
        if (is_named)
            sl_log(SL_LOG_WARN, "no login is taken from the file that NETRC names: %s",
                   why.message);
        return false;
    }
    return sl_netrc_parse(sl_buf_string(&text), text.used, host, login);
}
