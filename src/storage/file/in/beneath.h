/* Files below a folder, for somebody who may not leave it. */
#ifndef SL_BENEATH_H
#define SL_BENEATH_H

/**
 * Open what a path means below a folder, or -1 with errno. EXDEV: it leads out, by "..", by a
 * link, or because it is absolute; ELOOP: over a link that is not followed. Links that stay below
 * the folder are followed where the kernel can tell (openat2, Linux 5.6); elsewhere none is, and
 * neither is "..".
 */
int sl_beneath_open(int root_fd, const char *path, int flags);

#endif
