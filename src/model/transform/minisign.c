/*
 * A .minisig file has four lines: "untrusted comment: …", the base64 of algorithm (2 bytes), key id
 * (8) and signature (64), "trusted comment: …", and the base64 of a second signature over the first
 * one and the trusted comment. A .pub file has a comment and the base64 of algorithm, id and key.
 * Nothing is guessed: other lines, other lengths and other algorithms are refused.
 */
#include "minisign.h"

#include <sodium.h>
#include <string.h>

#include "buf.h"
#include "crypt.h"

enum { ALGORITHM_BYTES = 2, HEAD_BYTES = ALGORITHM_BYTES + SL_MINISIGN_ID_BYTES };

static const char UNTRUSTED[] = "untrusted comment: ", TRUSTED[] = "trusted comment: ";

struct line {
    const char *text;
    size_t bytes;
};

/* The next line without its end ("\n" or "\r\n"); false at the end of the text. */
static bool take_line(const char **text, size_t *left, struct line *line)
{
    if (*left == 0)
        return false;
    const char *end = memchr(*text, '\n', *left);
    size_t all = end ? (size_t)(end - *text) + 1 : *left;
    *line = (struct line){*text, all - (end != NULL)};
    if (line->bytes && line->text[line->bytes - 1] == '\r')
        line->bytes--;
    *text += all;
    *left -= all;
    return true;
}

static bool begins(const struct line *line, const char *with)
{
    return line->bytes >= strlen(with) && memcmp(line->text, with, strlen(with)) == 0;
}

static bool is_base64_of(const struct line *line, uint8_t *data, size_t bytes)
{
    size_t got;
    const char *end;
    return sodium_base642bin(data, bytes, line->text, line->bytes, NULL, &got, &end,
                             sodium_base64_VARIANT_ORIGINAL) == 0 &&
           got == bytes && end == line->text + line->bytes;
}

void sl_minisign_id_text(const uint8_t id[SL_MINISIGN_ID_BYTES], char text[17])
{
    uint8_t turned[SL_MINISIGN_ID_BYTES];
    for (int i = 0; i < SL_MINISIGN_ID_BYTES; i++)
        turned[i] = id[SL_MINISIGN_ID_BYTES - 1 - i];
    sl_hex(turned, sizeof(turned), text);
    for (; *text; text++)
        if (*text >= 'a')
            *text = (char)(*text - 'a' + 'A');
}

int sl_minisign_key_parse(const char *text, size_t bytes, struct sl_minisign_key *key,
                          struct sl_err *err)
{
    uint8_t data[HEAD_BYTES + SL_MINISIGN_KEY_BYTES];
    struct line line = {0};
    if (sl_crypt_init(err) < 0)
        return -1;
    bool there = take_line(&text, &bytes, &line);
    if (there && begins(&line, UNTRUSTED))
        there = take_line(&text, &bytes, &line);
    if (!there || !is_base64_of(&line, data, sizeof(data)) || memcmp(data, "Ed", 2) != 0 ||
        take_line(&text, &bytes, &line))
        return sl_fail(err, SL_E_USAGE,
                       "not a minisign public key: one is 56 characters that start with RW, as "
                       "`minisign -G` shows them and writes them into the .pub file");
    memcpy(key->id, data + ALGORITHM_BYTES, sizeof(key->id));
    memcpy(key->key, data + HEAD_BYTES, sizeof(key->key));
    return 0;
}

static int refuse(const char *why, struct sl_err *err)
{
    return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE", "not a minisign signature: %s", why);
}

/* The four lines, judged one by one; data gets algorithm, id and signature. */
static int take_lines(const char *text, size_t bytes, uint8_t *data, size_t data_bytes,
                      struct line *comment, uint8_t global[SL_MINISIGN_SIGNATURE_BYTES],
                      struct sl_err *err)
{
    struct line line;
    if (!take_line(&text, &bytes, &line) || !begins(&line, UNTRUSTED))
        return refuse("its first line is not an untrusted comment", err);
    if (!take_line(&text, &bytes, &line) || !is_base64_of(&line, data, data_bytes))
        return refuse("its second line is not the base64 of a signature", err);
    if (memcmp(data, "Ed", 2) != 0 && memcmp(data, "ED", 2) != 0)
        return refuse("its algorithm is neither Ed nor ED", err);
    if (!take_line(&text, &bytes, comment) || !begins(comment, TRUSTED))
        return refuse("its third line is not a trusted comment", err);
    if (!take_line(&text, &bytes, &line) ||
        !is_base64_of(&line, global, SL_MINISIGN_SIGNATURE_BYTES))
        return refuse("its fourth line is not the base64 of the comment's signature", err);
    if (take_line(&text, &bytes, &line))
        return refuse("it has more than four lines", err);
    comment->text += strlen(TRUSTED);
    comment->bytes -= strlen(TRUSTED);
    return 0;
}

int sl_minisign_parse(const char *text, size_t bytes, const struct sl_minisign_key *key,
                      struct sl_minisign_signature *signature, struct sl_err *err)
{
    uint8_t data[HEAD_BYTES + SL_MINISIGN_SIGNATURE_BYTES], global[SL_MINISIGN_SIGNATURE_BYTES];
    uint8_t signed_too[SL_MINISIGN_SIGNATURE_BYTES + SL_MINISIGN_FILE_BYTES_MAX];
    struct line comment;
    if (sl_crypt_init(err) < 0)
        return -1;
    if (bytes > SL_MINISIGN_FILE_BYTES_MAX)
        return refuse("it is longer than 16 KiB", err);
    if (take_lines(text, bytes, data, sizeof(data), &comment, global, err) < 0)
        return -1;
    signature->prehashed = data[1] == 'D';
    memcpy(signature->id, data + ALGORITHM_BYTES, sizeof(signature->id));
    memcpy(signature->signature, data + HEAD_BYTES, sizeof(signature->signature));
    if (memcmp(signature->id, key->id, sizeof(key->id)) != 0) {
        char its[17], ours[17];
        sl_minisign_id_text(signature->id, its);
        sl_minisign_id_text(key->id, ours);
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "it was signed by key %s, expected %s: if you trust that key, name its "
                            "public half instead, else have it signed again",
                            its, ours);
    }
    memcpy(signed_too, signature->signature, sizeof(signature->signature));
    memcpy(signed_too + sizeof(signature->signature), comment.text, comment.bytes);
    if (!sl_minisign_matches(key->key, global, signed_too,
                             sizeof(signature->signature) + comment.bytes))
        return sl_fail_code(err, SL_E_INTEGRITY, "E_SIGNATURE",
                            "the signature of its trusted comment is wrong: it was changed, or is "
                            "not of this key");
    return 0;
}

bool sl_minisign_matches(const uint8_t key[SL_MINISIGN_KEY_BYTES],
                         const uint8_t signature[SL_MINISIGN_SIGNATURE_BYTES], const void *data,
                         size_t bytes)
{
    return crypto_sign_verify_detached(signature, data, bytes, key) == 0;
}
