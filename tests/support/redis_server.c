/* Keys are a list under one mutex; each connection has a thread that reads commands with a FILE. */
#include "redis_server.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "redis_table.h"

enum { WORDS_MAX = 8, CLIENTS_MAX = 256, QUEUE_MAX = 4096, COUNTS_MAX = 32 };

struct key {
    struct key *next;
    char *name, *data;
    size_t name_bytes, bytes;
};

struct words {
    char *data[WORDS_MAX];
    size_t bytes[WORDS_MAX];
    unsigned count;
};

struct client {
    struct sl_redis_server *server;
    pthread_t thread;
    int fd;
    bool known, in_multi;
    struct words queue[QUEUE_MAX];
    unsigned queued;
    uint64_t watched; /* generation when WATCH came; 0: none */
};

struct sl_redis_server {
    int fd, port;
    pthread_t thread;
    pthread_mutex_t mutex;
    struct key *keys;
    const char *password;
    uint64_t generation; /* of keys named …:header:0 */
    struct client *clients[CLIENTS_MAX];
    unsigned client_count;
    struct {
        char verb[16];
        unsigned count;
    } counts[COUNTS_MAX];
    struct {
        const char *verb, *reply;
        unsigned nth, last;
        long cut;
    } fault;
    struct {
        const char *verb, *key, *data;
        unsigned nth;
    } meddle;
    struct {
        const char *verb;
        unsigned nth;
        void (*call)(void *arg);
        void *arg;
    } pause;
    bool stopping;
};

/* ---- keys (under the lock) ------------------------------------------------------------------- */

static struct key **find(struct sl_redis_server *server, const char *name, size_t bytes)
{
    struct key **at = &server->keys;
    while (*at && ((*at)->name_bytes != bytes || memcmp((*at)->name, name, bytes) != 0))
        at = &(*at)->next;
    return at;
}

static void note_change(struct sl_redis_server *server, const char *name, size_t bytes)
{
    if (bytes > 9 && memcmp(name + bytes - 9, ":header:0", 9) == 0)
        server->generation++;
}

static void drop(struct sl_redis_server *server, const char *name, size_t bytes)
{
    struct key **at = find(server, name, bytes), *key = *at;
    if (!key)
        return;
    note_change(server, name, bytes);
    *at = key->next;
    free(key->name);
    free(key->data);
    free(key);
}

static void *copy(const void *data, size_t bytes)
{
    char *made = malloc(bytes + 1);
    if (!made)
        abort();
    if (bytes)
        memcpy(made, data, bytes);
    made[bytes] = 0;
    return made;
}

static struct key *set(struct sl_redis_server *server, const char *name, size_t name_bytes,
                       const void *data, size_t bytes)
{
    struct key **at = find(server, name, name_bytes);
    if (!*at) {
        *at = calloc(1, sizeof(**at));
        (*at)->name = copy(name, name_bytes);
        (*at)->name_bytes = name_bytes;
    }
    note_change(server, name, name_bytes);
    free((*at)->data);
    (*at)->data = copy(data, bytes);
    (*at)->bytes = bytes;
    return *at;
}

/* ---- commands (under the lock) --------------------------------------------------------------- */

/* A reply in the making. */
struct reply {
    char *data;
    size_t bytes;
};

static void add(struct reply *reply, const void *data, size_t bytes)
{
    reply->data = realloc(reply->data, reply->bytes + bytes + 1);
    if (!reply->data)
        abort();
    memcpy(reply->data + reply->bytes, data, bytes);
    reply->bytes += bytes;
}

static void say(struct reply *reply, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    int bytes = vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    add(reply, text, (size_t)bytes);
}

static void say_value(struct reply *reply, const void *data, size_t bytes)
{
    say(reply, "$%zu\r\n", bytes);
    if (bytes)
        add(reply, data, bytes);
    add(reply, "\r\n", 2);
}

static void get_range(const struct key *key, const struct words *words, struct reply *reply)
{
    size_t begin = strtoull(words->data[2], NULL, 10), end = strtoull(words->data[3], NULL, 10) + 1;
    if (!key || begin >= key->bytes) {
        say_value(reply, "", 0);
        return;
    }
    end = end < key->bytes ? end : key->bytes;
    say_value(reply, key->data + begin, end - begin);
}

static void set_range(struct sl_redis_server *server, struct key *key, const struct words *words,
                      struct reply *reply)
{
    size_t at = strtoull(words->data[2], NULL, 10), bytes = words->bytes[3];
    if (!key)
        key = set(server, words->data[1], words->bytes[1], "", 0);
    if (at + bytes > key->bytes) {
        key->data = realloc(key->data, at + bytes + 1);
        memset(key->data + key->bytes, 0, at + bytes - key->bytes);
        key->bytes = at + bytes;
    }
    memcpy(key->data + at, words->data[3], bytes);
    say(reply, ":%zu\r\n", key->bytes);
}

static void rename_key(struct sl_redis_server *server, struct key *key, const struct words *words,
                       struct reply *reply)
{
    if (!key) {
        say(reply, "-ERR no such key\r\n");
        return;
    }
    set(server, words->data[2], words->bytes[2], key->data, key->bytes);
    drop(server, words->data[1], words->bytes[1]);
    say(reply, "+OK\r\n");
}

static void carry_out(struct sl_redis_server *server, const struct words *words,
                      struct reply *reply)
{
    const char *verb = words->data[0];
    struct key *key = words->count > 1 ? *find(server, words->data[1], words->bytes[1]) : NULL;
    if (strcmp(verb, "GET") == 0 && !key) {
        say(reply, "$-1\r\n");
    } else if (strcmp(verb, "GET") == 0) {
        say_value(reply, key->data, key->bytes);
    } else if (strcmp(verb, "GETRANGE") == 0) {
        get_range(key, words, reply);
    } else if (strcmp(verb, "STRLEN") == 0) {
        say(reply, ":%zu\r\n", key ? key->bytes : 0);
    } else if (strcmp(verb, "EXISTS") == 0) {
        say(reply, ":%d\r\n", key != NULL);
    } else if (strcmp(verb, "SET") == 0 || strcmp(verb, "SETEX") == 0) {
        unsigned last = words->count - 1;
        set(server, words->data[1], words->bytes[1], words->data[last], words->bytes[last]);
        say(reply, "+OK\r\n");
    } else if (strcmp(verb, "SETRANGE") == 0) {
        set_range(server, key, words, reply);
    } else if (strcmp(verb, "RENAME") == 0) {
        rename_key(server, key, words, reply);
    } else if (strcmp(verb, "UNLINK") == 0) {
        drop(server, words->data[1], words->bytes[1]);
        say(reply, ":%d\r\n", key != NULL);
    } else if (strcmp(verb, "EXPIRE") == 0 || strcmp(verb, "PERSIST") == 0) {
        say(reply, ":1\r\n");
    } else if (strcmp(verb, "CONFIG") == 0) {
        say(reply, "*2\r\n$18\r\nproto-max-bulk-len\r\n$8\r\n20000000\r\n");
    } else {
        say(reply, "-ERR unknown command '%.20s', with args beginning with: '%.20s'\r\n", verb,
            words->count > 1 ? words->data[1] : "");
    }
}

static void release_words(struct words *words)
{
    for (unsigned i = 0; i < words->count; i++)
        free(words->data[i]);
    words->count = 0;
}

static void execute(struct client *client, struct reply *reply)
{
    struct sl_redis_server *server = client->server;
    if (client->watched && client->watched != server->generation + 1) {
        say(reply, "*-1\r\n");
    } else {
        say(reply, "*%u\r\n", client->queued);
        for (unsigned i = 0; i < client->queued; i++)
            carry_out(server, &client->queue[i], reply);
    }
    for (unsigned i = 0; i < client->queued; i++)
        release_words(&client->queue[i]);
    client->queued = 0;
    client->in_multi = false;
    client->watched = 0;
}

static unsigned count_verb(struct sl_redis_server *server, const char *verb)
{
    for (unsigned i = 0; i < COUNTS_MAX; i++) {
        if (!server->counts[i].verb[0])
            snprintf(server->counts[i].verb, sizeof(server->counts[i].verb), "%s", verb);
        if (strcmp(server->counts[i].verb, verb) == 0)
            return ++server->counts[i].count;
    }
    abort();
}

static void meddle(struct sl_redis_server *server, const char *verb)
{
    if (!server->meddle.verb || strcmp(server->meddle.verb, verb) != 0 || --server->meddle.nth)
        return;
    const char *name = server->meddle.key, *data = server->meddle.data;
    server->meddle.verb = NULL;
    if (data)
        set(server, name, strlen(name), data, strlen(data));
    else
        drop(server, name, strlen(name));
}

static void greet(struct client *client, const struct words *words, struct reply *reply)
{
    const char *password = client->server->password;
    if (!password)
        say(reply, "-ERR AUTH <password> called without any password configured\r\n");
    else if (strcmp(words->data[words->count - 1], password) != 0)
        say(reply, "-WRONGPASS invalid username-password pair or user is disabled.\r\n");
    else
        client->known = true, say(reply, "+OK\r\n");
}

/* One command; *cut as the fault says. Takes the words. */
static void answer(struct client *client, struct words *words, struct reply *reply, long *cut)
{
    struct sl_redis_server *server = client->server;
    const char *verb = words->data[0];
    count_verb(server, verb);
    meddle(server, verb);
    bool struck = server->fault.verb && strcmp(server->fault.verb, verb) == 0;
    if (struck && server->fault.last)
        server->fault.last--;
    else
        struck = false;
    if (struck && server->fault.nth > 1)
        server->fault.nth--, struck = false;
    *cut = struck ? server->fault.cut : -1;
    if (struck && server->fault.reply) {
        add(reply, server->fault.reply, strlen(server->fault.reply));
    } else if (strcmp(verb, "AUTH") == 0) {
        greet(client, words, reply);
    } else if (server->password && !client->known) {
        say(reply, "-NOAUTH Authentication required.\r\n");
    } else if (strcmp(verb, "SELECT") == 0) {
        say(reply, "+OK\r\n");
    } else if (strcmp(verb, "WATCH") == 0) {
        client->watched = server->generation + 1;
        say(reply, "+OK\r\n");
    } else if (strcmp(verb, "MULTI") == 0) {
        client->in_multi = true;
        say(reply, "+OK\r\n");
    } else if (strcmp(verb, "EXEC") == 0) {
        execute(client, reply);
    } else if (client->in_multi && client->queued < QUEUE_MAX) {
        client->queue[client->queued++] = *words;
        words->count = 0;
        say(reply, "+QUEUED\r\n");
    } else {
        carry_out(server, words, reply);
    }
    release_words(words);
}

/* ---- connections ----------------------------------------------------------------------------- */

static bool read_words(FILE *in, struct words *words)
{
    unsigned count;
    words->count = 0;
    if (fscanf(in, "*%u", &count) != 1 || fgetc(in) != '\r' || fgetc(in) != '\n' ||
        count > WORDS_MAX)
        return false;
    while (words->count < count) {
        size_t bytes;
        if (fscanf(in, "$%zu", &bytes) != 1 || fgetc(in) != '\r' || fgetc(in) != '\n')
            return false;
        char *data = malloc(bytes + 1);
        words->data[words->count] = data;
        words->bytes[words->count++] = bytes;
        if (fread(data, 1, bytes, in) != bytes || fgetc(in) != '\r' || fgetc(in) != '\n')
            return false;
        data[bytes] = 0;
    }
    return true;
}

static bool send_all(int fd, const char *data, size_t bytes)
{
    while (bytes) {
        ssize_t sent = send(fd, data, bytes, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        data += sent, bytes -= (size_t)sent;
    }
    return true;
}

static void pause_before(struct sl_redis_server *server, const char *verb)
{
    void (*call)(void *) = NULL;
    void *arg = NULL;
    pthread_mutex_lock(&server->mutex);
    if (server->pause.call && strcmp(server->pause.verb, verb) == 0 && --server->pause.nth == 0) {
        call = server->pause.call, arg = server->pause.arg;
        server->pause.call = NULL;
    }
    pthread_mutex_unlock(&server->mutex);
    if (call)
        call(arg);
}

static void *serve(void *arg)
{
    struct client *client = arg;
    FILE *in = fdopen(dup(client->fd), "rb");
    struct words words;
    bool going = true;
    while (going && read_words(in, &words)) {
        struct reply reply = {0};
        long cut;
        pause_before(client->server, words.data[0]);
        pthread_mutex_lock(&client->server->mutex);
        answer(client, &words, &reply, &cut);
        pthread_mutex_unlock(&client->server->mutex);
        size_t bytes = cut >= 0 && (size_t)cut < reply.bytes ? (size_t)cut : reply.bytes;
        going = send_all(client->fd, reply.data, bytes) && cut < 0;
        free(reply.data);
    }
    release_words(&words);
    fclose(in);
    shutdown(client->fd, SHUT_RDWR);
    return NULL;
}

static void *listen_on(void *arg)
{
    struct sl_redis_server *server = arg;
    for (;;) {
        int fd = accept(server->fd, NULL, NULL);
        pthread_mutex_lock(&server->mutex);
        if (fd < 0 || server->stopping || server->client_count == CLIENTS_MAX) {
            pthread_mutex_unlock(&server->mutex);
            if (fd >= 0)
                close(fd);
            return NULL;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        struct client *client = calloc(1, sizeof(*client));
        client->server = server;
        client->fd = fd;
        server->clients[server->client_count++] = client;
        pthread_create(&client->thread, NULL, serve, client);
        pthread_mutex_unlock(&server->mutex);
    }
}

struct sl_redis_server *sl_redis_server_start(void)
{
    struct sl_redis_server *server = calloc(1, sizeof(*server));
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t bytes = sizeof(address);
    pthread_mutex_init(&server->mutex, NULL);
    server->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(server->fd, (struct sockaddr *)&address, bytes) < 0 || listen(server->fd, 64) < 0 ||
        getsockname(server->fd, (struct sockaddr *)&address, &bytes) < 0)
        abort();
    server->port = ntohs(address.sin_port);
    pthread_create(&server->thread, NULL, listen_on, server);
    return server;
}

void sl_redis_server_stop(struct sl_redis_server *server)
{
    pthread_mutex_lock(&server->mutex);
    server->stopping = true;
    shutdown(server->fd, SHUT_RDWR);
    for (unsigned i = 0; i < server->client_count; i++)
        shutdown(server->clients[i]->fd, SHUT_RDWR);
    pthread_mutex_unlock(&server->mutex);
    pthread_join(server->thread, NULL);
    for (unsigned i = 0; i < server->client_count; i++) {
        struct client *client = server->clients[i];
        pthread_join(client->thread, NULL);
        close(client->fd);
        for (unsigned k = 0; k < client->queued; k++)
            release_words(&client->queue[k]);
        free(client);
    }
    close(server->fd);
    while (server->keys)
        drop(server, server->keys->name, server->keys->name_bytes);
    pthread_mutex_destroy(&server->mutex);
    free(server);
}

/* ---- what tests ask -------------------------------------------------------------------------- */

int sl_redis_server_port(const struct sl_redis_server *server)
{
    return server->port;
}

const char *sl_redis_server_url(const struct sl_redis_server *server, const char *prefix)
{
    static _Thread_local char text[256];
    snprintf(text, sizeof(text), "redis://127.0.0.1:%d/%s", server->port, prefix);
    return text;
}

void sl_redis_server_password(struct sl_redis_server *server, const char *password)
{
    pthread_mutex_lock(&server->mutex);
    server->password = password;
    pthread_mutex_unlock(&server->mutex);
}

void sl_redis_server_put(struct sl_redis_server *server, const char *key, size_t key_bytes,
                         const void *data, size_t bytes)
{
    pthread_mutex_lock(&server->mutex);
    set(server, key, key_bytes, data, bytes);
    pthread_mutex_unlock(&server->mutex);
}

void sl_redis_server_put_model(struct sl_redis_server *server, const char *prefix,
                               const uint8_t *data, size_t bytes)
{
    struct sl_redis_table table;
    struct sl_buf key = SL_BUF_INIT(SL_REDIS_KEY_BYTES_MAX);
    size_t head = bytes > 73 ? 73 + (size_t)sl_get_le64(data + 65) : 0;
    if (sl_redis_table_parse(data, head, &table, NULL) < 0)
        abort();
    for (size_t i = 0; i < table.count; i++) {
        const struct sl_redis_part *part = &table.parts[i];
        sl_redis_key(&key, prefix, part->name, part->name_bytes, part->begin, NULL);
        sl_redis_server_put(server, key.data, key.used, data + part->begin,
                            (size_t)(part->end - part->begin));
    }
    sl_buf_release(&key);
    sl_redis_table_release(&table);
}

uint8_t *sl_redis_server_get(struct sl_redis_server *server, const char *key, size_t key_bytes,
                             size_t *bytes)
{
    pthread_mutex_lock(&server->mutex);
    struct key *found = *find(server, key, key_bytes);
    uint8_t *data = found ? copy(found->data, found->bytes) : NULL;
    *bytes = found ? found->bytes : 0;
    pthread_mutex_unlock(&server->mutex);
    return data;
}

void sl_redis_server_remove(struct sl_redis_server *server, const char *key, size_t key_bytes)
{
    pthread_mutex_lock(&server->mutex);
    drop(server, key, key_bytes);
    pthread_mutex_unlock(&server->mutex);
}

size_t sl_redis_server_key_count(struct sl_redis_server *server)
{
    size_t count = 0;
    pthread_mutex_lock(&server->mutex);
    for (struct key *key = server->keys; key; key = key->next)
        count++;
    pthread_mutex_unlock(&server->mutex);
    return count;
}

unsigned sl_redis_server_count(struct sl_redis_server *server, const char *verb)
{
    unsigned count = 0;
    pthread_mutex_lock(&server->mutex);
    for (unsigned i = 0; i < COUNTS_MAX; i++)
        if (strcmp(server->counts[i].verb, verb) == 0)
            count = server->counts[i].count;
    pthread_mutex_unlock(&server->mutex);
    return count;
}

unsigned sl_redis_server_connections(struct sl_redis_server *server)
{
    pthread_mutex_lock(&server->mutex);
    unsigned count = server->client_count;
    pthread_mutex_unlock(&server->mutex);
    return count;
}

void sl_redis_server_fault(struct sl_redis_server *server, const char *verb, unsigned nth,
                           unsigned last, const char *reply, long cut)
{
    pthread_mutex_lock(&server->mutex);
    server->fault.verb = verb;
    server->fault.nth = nth;
    server->fault.last = last;
    server->fault.reply = reply;
    server->fault.cut = cut;
    pthread_mutex_unlock(&server->mutex);
}

void sl_redis_server_meddle(struct sl_redis_server *server, const char *verb, unsigned nth,
                            const char *key, const char *data)
{
    pthread_mutex_lock(&server->mutex);
    server->meddle.verb = verb;
    server->meddle.nth = nth;
    server->meddle.key = key;
    server->meddle.data = data;
    pthread_mutex_unlock(&server->mutex);
}

void sl_redis_server_pause(struct sl_redis_server *server, const char *verb, unsigned nth,
                           void (*pause)(void *arg), void *arg)
{
    pthread_mutex_lock(&server->mutex);
    server->pause.verb = verb;
    server->pause.nth = nth;
    server->pause.call = pause;
    server->pause.arg = arg;
    pthread_mutex_unlock(&server->mutex);
}
