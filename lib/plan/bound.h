/* A step time that no plan can beat. */
#ifndef ETH_HPP_PLAN_BOUND_H
#define ETH_HPP_PLAN_BOUND_H

#include "plan/cost.h"

/*
 * The longest step T, to some tenths of a per cent, that is proven to be impossible. Proof. Take a
 * plan that takes T.
 *
 * 1. Tail. The optimizer starts after all computation, and each parameter is updated on some GPU:
 *    if it takes O, then the GPUs update at most sum_g O / optimizer_s[g] parameters, which must be
 *    all. The sums of the first layer's block and of a tensor tied to it start after the last
 *    backward of all, one after the other on the first layer's owners; with k >= 2 owners a sum (or
 *    a reduce-scatter and the later gather) takes at least bytes / best bandwidth + 2 latencies.
 *    With one owner that worker runs those layers, and for a tied tensor all between them, for the
 *    whole batch, which is ruled out first.
 *    So all computation ends by T - tail.
 *
 * 2. Window. A worker whose stage begins with layer a cannot start before one micro-batch has
 *    passed the layers below a, nor end later than one before the end: it computes within
 *    W = T - tail - passage(a), with each layer's passage the shortest forward + backward there is,
 *    and a stage before it costs two hand-overs of at least one sample.
 *
 * 3. Worker. Let it have layers [a,e), k samples of each of n micro-batches, at most v in flight.
 *    Whole numbers n are limited by: the batch, n k <= B; its time, n (f + b) <= W; the way of the
 *    first and the last micro-batch through the stages behind it and back, which takes at least
 *    r = passage(e): W >= f + r + b + (n - 1) max(f, b). Memory holds its state and the v
 *    micro-batches: v k kept + k (layer + workspace) + state <= memory. A micro-batch is there from
 *    its forward to its backward, f + r + b at least, so that n (f + r + b) <= v W. A sharded
 *    optimizer's state is divided by no more owners than there are GPUs. So the worker uses at most
 *    the part u = max of n (f + b) / W of its window.
 *
 * 4. Price. The worker's k n samples of layer l take t_l(k) each micro-batch, sum_l n t_l = n (f +
 *    b) <= u W. Per GPU (tp of them) it does x = n k / tp samples of each of its layers, so that
 *    sum_l x c_l <= 1 with c_l = tp t_l(k) / (k u W), or with any smaller c_l: with the smallest of
 *    all stages, samples and degrees that its kind of GPU can hold together with layer l. Added
 *    over the GPUs of all kinds d: sum_l X[l,d] c[l,d] <= gpus[d], and sum_d X[l,d] = B for each
 *    layer. T is impossible where this linear programme has no solution. Its duals w[d] prove it:
 *    B sum_l min_d w[d] c[l,d] > sum_d w[d] gpus[d] cannot be for any w >= 0 if there is one.
 *
 * 5. Networks. Give layer l a worth v[l] = min_d w[d] c[l,d] a sample, so that a node's GPUs do no
 *    more than W = sum of their w. Let a node do y[l] samples of layer l. Its network carries each
 *    sample that it does not do both of two neighbouring layers of, at least |y[l] - y[l+1]|
 *    times the least output, and the gradients of each layer that other nodes do samples of too,
 *    0 < y[l] < B: a ring of k >= 2 takes 2 (k-1) / k >= 1 times these. Rings cross a network one
 *    after the other, and only after the forwards of the whole batch, for which all GPUs together
 *    take F. So the gradients that it shares, x bytes, take at most T - optimizer - F, and together
 *    with the hand-overs at most T - optimizer. A node that can do neither all gradients nor the
 *    hand-over of the whole batch in that is slow. If a slow node does no layer for the whole batch
 *    it does some layer not at all (else it would share all gradients), so that what it does of
 *    others comes in or goes out: y <= (bandwidth (T - optimizer) - x) / output, and it does at
 * most V = max_x of that times the worth of the best layers of x bytes. If it does some layer for
 * the whole batch, then it does every layer for some of it (else it would hand the whole batch
 *    over), and by the same count the other nodes do at most V. So T is impossible where the sum
 *    over all nodes of W, or of V where that is less and the node slow, is less than
 *    B sum_l v[l], and W + V is for every slow node: for any w >= 0, which need not be the same for
 *    both.
 *
 * Where memory, fill and drain, whole numbers and networks do not bind, c[l,d] = best[l,d] / T, and
 * T is the time of the whole batch dealt freely and fractionally to the GPUs, each at its best
 * profiled rate.
 *
 * Long models are looked at in cells of several layers, and many profiled samples in ranges, each
 * with the most favourable figures in it. The time grows with kinds of GPU, not with GPUs. Returns
 * 0 when out of memory or where no device has times; INFINITY where no plan fits.
 */
double eth_hpp_bound(const struct eth_hpp_cost *cost, int global_batch);

#endif
