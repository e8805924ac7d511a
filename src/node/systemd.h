/* The service manager's protocols (sd_notify(3), sd_listen_fds(3)), where there is one. */
#ifndef SL_SYSTEMD_H
#define SL_SYSTEMD_H

#include <stdbool.h>

enum { SL_SYSTEMD_SOCKETS_MAX = 16 };

/** "READY=1", lines. Without a manager nothing happens; a failure is logged as a warning. */
void sl_systemd_notify(const char *text);
/** RELOADING=1 with the time that the manager asks for. */
void sl_systemd_reloading(void);
/** How often the manager wants to hear WATCHDOG=1, half its limit; 0: it does not. */
unsigned sl_systemd_watchdog_ms(void);

/** Sockets that the manager opened for us. */
struct sl_systemd_sockets {
    struct {
        int fd; /* closed on exec; -1 once it was taken */
        char name[64];
    } items[SL_SYSTEMD_SOCKETS_MAX];
    unsigned count;
};
/** Find them, and take the variables out of the environment. Call it before threads start. */
void sl_systemd_sockets(struct sl_systemd_sockets *sockets);
/** The one of this name (FileDescriptorName=), or -1; the caller owns it then. */
int sl_systemd_take(struct sl_systemd_sockets *sockets, const char *name);
/** Closes what nobody took; how many those were. */
unsigned sl_systemd_close(struct sl_systemd_sockets *sockets);

#endif
