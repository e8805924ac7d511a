/* Allocations of base/mem that fail on request: in every test program, by the linker's --wrap. */
#ifndef SL_ALLOC_FAIL_H
#define SL_ALLOC_FAIL_H

/** The nth allocation from now on (1 is the next) fails, and only that; 0 turns it off. Any
 * thread. */
void sl_alloc_fail_at(unsigned nth);
/** Allocations made since the last sl_alloc_fail_at(). */
unsigned sl_alloc_count(void);

#endif
