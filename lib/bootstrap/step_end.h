/*
 * The end of a Slurm step in which a rank hangs: SIGKILL, which is all that PMIx has, would end the
 * hanging one without telling whether that was the failure or its remedy. Not for others than the
 * bootstrap.
 */
#ifndef ETH_HPP_BOOTSTRAP_STEP_END_H
#define ETH_HPP_BOOTSTRAP_STEP_END_H

#include <stdbool.h>

/* From now on SIGTERM does not end this process, but is how it hears that another rank has said why
 * the job ends and ends it. For a process that is about to end. */
void eth_hpp_step_end_listen(void);
bool eth_hpp_step_end_heard(void);

/* Has Slurm send all tasks of the step, this one too, SIGCONT, for those that are stopped, and
 * SIGTERM; and SIGKILL some seconds later to those that heed neither. By scancel: false where there
 * is none. Waits for its answers for a second each. */
bool eth_hpp_step_end_ask(void);

/* Sleeps that long, whatever signals come; with `listening` only until the end is heard. */
void eth_hpp_step_end_pause(double seconds, bool listening);

/* Several nodes may take it on themselves to say why the job ends, where it cannot be known who
 * else will: they do so one after another, by their turn from 0 on. True when it has come; false
 * where the end is heard before. */
bool eth_hpp_step_end_turn(int turn);

#endif
