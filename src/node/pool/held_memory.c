/*
 * An inotify watch of a file without a name tells when its last descriptor and mapping have gone,
 * whoever had them, however they were made (O_PATH too) and without a descriptor of our own: the
 * kernel sends IN_DELETE_SELF as the file leaves memory. That is how memfds are watched.
 *
 * A file of a tmpfs may have two entries in the kernel's cache: as it was made, and by the name
 * that it was kept under, which the daemon after a restart opened; the watch ends with the first.
 * So a descriptor of our own is kept until the kernel grants it a lease for writing, which it does
 * when nobody else has the file open or mapped, and it is watched from then on. The same is the
 * fall-back where there is no inotify; a lease takes a file of our own user's, or CAP_LEASE.
 */
#include "held_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/inotify.h>
#include <unistd.h>

#include "log.h"
#include "pool_parts.h"

struct piece {
    struct piece *next; /* of all that the watcher watches */
    int fd;             /* asked for a lease; -1: not, or not any more */
    int watch;          /* -1: none */
    uint64_t bytes;
    bool gone;
};

struct sl_held_watcher {
    int fd; /* of inotify; -1: there is none */
    pthread_mutex_t lock;
    struct {
        struct piece *pieces;
    } locked;
};

struct sl_held_memory {
    struct sl_held_watcher *watcher;
    size_t count;
    struct piece pieces[];
};

/* ---- the watcher ----------------------------------------------------------------------------- */

struct sl_held_watcher *sl_held_watcher_new(struct sl_err *err)
{
    struct sl_held_watcher *watcher = sl_alloc(sizeof(*watcher), err);
    if (!watcher)
        return NULL;
    pthread_mutex_init(&watcher->lock, NULL);
    watcher->fd = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    if (watcher->fd < 0)
        sl_log(SL_LOG_WARN,
               "what clients keep of evicted models is known less well: inotify: %s (raise "
               "fs.inotify.max_user_instances)",
               strerror(errno));
    return watcher;
}

void sl_held_watcher_free(struct sl_held_watcher *watcher)
{
    if (!watcher)
        return;
    if (watcher->fd >= 0)
        close(watcher->fd);
    pthread_mutex_destroy(&watcher->lock);
    free(watcher);
}

/* The same file may be watched twice: it is one watch. */
static void note_gone(struct sl_held_watcher *watcher, int watch)
{
    for (struct piece *at = watcher->locked.pieces; at; at = at->next)
        if (at->watch == watch)
            at->gone = true;
}

/* Events were lost: what inotify does not list any more has gone. */
static void note_unlisted(struct sl_held_watcher *watcher)
{
    char path[64], line[256];
    unsigned watch;
    snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", watcher->fd);
    FILE *file = fopen(path, "re");
    if (!file)
        return;
    for (struct piece *at = watcher->locked.pieces; at; at = at->next) {
        bool listed = at->watch < 0 || at->gone;
        rewind(file);
        while (!listed && fgets(line, sizeof(line), file))
            listed = sscanf(line, "inotify wd:%x", &watch) == 1 && (int)watch == at->watch;
        at->gone = at->gone || !listed;
    }
    fclose(file);
}

static void read_events(struct sl_held_watcher *watcher)
{
    union {
        char bytes[16 * 1024];
        struct inotify_event aligned;
    } events;
    ssize_t got;
    bool lost = false;
    SL_LOCKED(&watcher->lock);
    while ((got = read(watcher->fd, events.bytes, sizeof(events.bytes))) > 0 ||
           (got < 0 && errno == EINTR))
        for (ssize_t at = 0; at < got;) {
            struct inotify_event event; /* no names: nothing but this */
            memcpy(&event, events.bytes + at, sizeof(event));
            at += (ssize_t)(sizeof(event) + event.len);
            lost = lost || event.mask & IN_Q_OVERFLOW;
            note_gone(watcher, event.wd);
        }
    if (lost)
        note_unlisted(watcher);
}

static int watch(struct sl_held_watcher *watcher, int fd)
{
    char path[64];
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return watcher->fd < 0 ? -1 : inotify_add_watch(watcher->fd, path, IN_DELETE_SELF);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static void link_piece(struct sl_held_watcher *watcher, struct piece *piece)
{
    SL_LOCKED(&watcher->lock);
    piece->next = watcher->locked.pieces;
    watcher->locked.pieces = piece;
}

static void unlink_piece(struct sl_held_watcher *watcher, struct piece *piece)
{
    bool shared = false;
    SL_LOCKED(&watcher->lock);
    struct piece **at = &watcher->locked.pieces;
    while (*at != piece)
        at = &(*at)->next;
    *at = piece->next;
    for (const struct piece *other = watcher->locked.pieces; other; other = other->next)
        shared = shared || other->watch == piece->watch;
    if (piece->watch >= 0 && !piece->gone && !shared)
        inotify_rm_watch(watcher->fd, piece->watch);
}

static void begin(struct sl_held_watcher *watcher, const struct sl_slab *slab, struct piece *piece)
{
    *piece = (struct piece){.fd = -1, .watch = -1, .bytes = slab->bytes};
    if (slab->kind == SL_SLAB_MEMFD)
        piece->watch = watch(watcher, slab->reader_fd);
    if (piece->watch < 0 && slab->kind != SL_SLAB_GPU)
        piece->fd = sl_memfd_reader(slab->reader_fd, NULL); /* what clients have is another */
    piece->gone = piece->watch < 0 && piece->fd < 0;
}

/* Does anybody else have it? The signal, ignored unless somebody cares for it, is for who breaks
 * the lease in this very moment. */
static bool is_alone(int fd)
{
    fcntl(fd, F_SETSIG, SIGURG);
    if (fcntl(fd, F_SETLEASE, F_WRLCK) < 0)
        return errno != EAGAIN && errno != EBUSY && errno != EINTR;
    fcntl(fd, F_SETLEASE, F_UNLCK);
    return true;
}

static void ask_for_lease(struct sl_held_watcher *watcher, struct piece *piece)
{
    if (!is_alone(piece->fd))
        return;
    int found = watch(watcher, piece->fd);
    {
        SL_LOCKED(&watcher->lock);
        piece->watch = found;
    }
    close(piece->fd); /* frees its memory here */
    piece->fd = -1;
    SL_LOCKED(&watcher->lock);
    piece->gone = piece->gone || found < 0;
}

/* ---- of a model ------------------------------------------------------------------------------ */

struct sl_held_memory *sl_held_memory_watch(struct sl_held_watcher *watcher,
                                            const struct sl_pool_model *model)
{
    size_t count = 0;
    for (size_t i = 0; i < model->copy_count; i++)
        count += model->copies[i]->slab_count;
    struct sl_held_memory *memory =
        sl_alloc(sizeof(struct sl_held_memory) + count * sizeof(struct piece), NULL);
    if (!memory) {
        sl_log(SL_LOG_WARN, "what clients keep of '%s' is not counted: out of memory", model->name);
        return NULL;
    }
    memory->watcher = watcher;
    for (size_t i = 0; i < model->copy_count; i++)
        for (size_t n = 0; n < model->copies[i]->slab_count; n++) {
            struct piece *piece = &memory->pieces[memory->count++];
            begin(watcher, &model->copies[i]->slabs[n], piece);
            link_piece(watcher, piece);
        }
    return memory;
}

uint64_t sl_held_memory_look(struct sl_held_memory *memory)
{
    struct sl_held_watcher *watcher = memory->watcher;
    uint64_t bytes = 0;
    for (size_t i = 0; i < memory->count; i++)
        if (memory->pieces[i].fd >= 0)
            ask_for_lease(watcher, &memory->pieces[i]);
    if (watcher->fd >= 0)
        read_events(watcher);
    SL_LOCKED(&watcher->lock);
    for (size_t i = 0; i < memory->count; i++)
        bytes += memory->pieces[i].gone ? 0 : memory->pieces[i].bytes;
    return bytes;
}

void sl_held_memory_free(struct sl_held_memory *memory)
{
    if (!memory)
        return;
    for (size_t i = 0; i < memory->count; i++) {
        unlink_piece(memory->watcher, &memory->pieces[i]);
        if (memory->pieces[i].fd >= 0)
            close(memory->pieces[i].fd);
    }
    free(memory);
}
