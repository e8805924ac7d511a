/* The service manager's protocols (sd_notify(3), sd_listen_fds(3), sd_pid_notify_with_fds(3)),
 * where there is one. Any thread, but sl_systemd_sockets() and what takes from it. */
#ifndef SL_SYSTEMD_H
#define SL_SYSTEMD_H

#include <stdbool.h>

#include "err.h"

enum { SL_SYSTEMD_FDS_MAX = 16384, SL_SYSTEMD_NAME_BYTES = 64 };

/** "READY=1", lines. Without a manager nothing happens; a failure is logged as a warning. */
void sl_systemd_notify(const char *text);
/** RELOADING=1 with the time that the manager asks for (MONOTONIC_USEC=). */
void sl_systemd_reloading(void);
/** How often the manager wants to hear WATCHDOG=1, half its limit; 0: it does not. */
unsigned sl_systemd_watchdog_ms(void);

/**
 * Give the manager a descriptor to keep over a restart (its descriptor store), under a name of
 * letters, digits, '.' and '-'. fd stays the caller's, too. It is not told whether the manager
 * does: its unit must allow enough (FileDescriptorStoreMax=). May block while the manager is busy.
 * SL_E_NOT_FOUND: there is no manager; SL_E_NO_SPACE: it cannot be told.
 */
int sl_systemd_store(const char *name, int fd, struct sl_err *err);
/** It keeps what has this name no more. Errors and blocking as above. */
int sl_systemd_unstore(const char *name, struct sl_err *err);

/** Descriptors that the manager gives us: sockets that it opened, and what it kept. */
struct sl_systemd_fd {
    int fd; /* closed on exec; -1 once it was taken */
    char name[SL_SYSTEMD_NAME_BYTES];
};
struct sl_systemd_sockets {
    struct sl_systemd_fd *items;
    unsigned count;
};
/** Find them, and take the variables out of the environment. Call it before threads start. Release
 * them with sl_systemd_close(). */
void sl_systemd_sockets(struct sl_systemd_sockets *sockets);
/** The one of this name (FileDescriptorName=), or -1; the caller owns it then. */
int sl_systemd_take(struct sl_systemd_sockets *sockets, const char *name);
/** Closes what nobody took, and frees the list; how many those were. */
unsigned sl_systemd_close(struct sl_systemd_sockets *sockets);

#endif
