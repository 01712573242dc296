/*
 * EMULATED. Runs a kernel on the host the way that a GPU would as far as a kernel can tell: the
 * threads of a block side by side between barriers, a warp's lanes together in a shuffle. Every
 * thread that waits keeps a stack of its own; one that never waits costs no more than a call. Odd
 * blocks start their threads in reverse, so that a missing barrier shows.
 *
 * A barrier that not all threads of a block reach, and a shuffle that not all lanes of a warp take
 * part in, end the program with a line on stderr: on a GPU they would hang or be undefined.
 */
#ifndef ETH_HPP_EMULATION_CUDA_SIMT_H
#define ETH_HPP_EMULATION_CUDA_SIMT_H

#include <cuda_runtime.h>

/* Runs `thread` once for each thread of the grid. Not re-entrant. */
void eth_hpp_simt_run(dim3 grid, dim3 block, const std::function<void()> &thread);

#endif
