/*
 * How many descriptors this process may have open (ulimit -n), and what of them is for what: files
 * and connections are as many as fit, so a small limit costs speed and no load. Any thread, but
 * raise and restore. getrlimit(2).
 */
#ifndef SL_DESCRIPTORS_H
#define SL_DESCRIPTORS_H

/** Once, as the program starts: the soft limit becomes the hard one. We poll(), so descriptors
 * beyond 1024 do no harm; select() of others does, see below. */
void sl_descriptors_raise(void);
/** Before another program takes this process over: its soft limit is what ours was. */
void sl_descriptors_restore(void);
/** The soft limit as it is now. */
unsigned sl_descriptors(void);
/** So many files may be kept open by one that keeps many, at most `wanted` and at least 4. */
unsigned sl_descriptors_for_files(unsigned wanted);
/** So many connections may be made to one host, at least 4; one is up to three descriptors. */
unsigned sl_descriptors_for_connections(void);

#endif
