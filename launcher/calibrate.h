/*
 * Calibration: what layers and links really take, measured in the allocation just before the job.
 */
#ifndef ETH_HPP_LAUNCHER_CALIBRATE_H
#define ETH_HPP_LAUNCHER_CALIBRATE_H

#include "comm/comm.h"
#include "launcher/launch.h"

/* ---- links ---- */

/* One pair of ranks: between two GPUs of a node, or the first ranks of two nodes. */
struct eth_hpp_link_measure {
    int from, to;
    double latency_s, bandwidth;
};

/* The pairs that are measured, the same list on every rank: in each node its first two ranks; then
 * the nodes' first ranks with each other, in rounds in which every node has one partner, at most 15
 * rounds. *rounds[i] is the round of pair i, 0 for those inside nodes. Both lists are freed by the
 * caller; latency and bandwidth are 0 still. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_calibrate_pairs(const struct eth_hpp_launch_rank *ranks, int count,
                                            struct eth_hpp_link_measure **pairs, int **rounds,
                                            int *pair_count, struct eth_hpp_error *err);

/* Measures this rank's pairs over the transport, round after round, within 0.6 s together. Only the
 * `from` of a pair fills it in. Collective. Errors: PEER, TIMEOUT, MEMORY. */
enum eth_hpp_status eth_hpp_calibrate_links(struct eth_hpp_comm *comm, int rank,
                                            struct eth_hpp_link_measure *pairs, const int *rounds,
                                            int pair_count, struct eth_hpp_error *err);

/* Puts measured links into the cluster: a node's own two figures, its network's (the best that any
 * partner got), and a limited link for each pair that stays 20 % below what both ends can do.
 * Errors: MEMORY. */
enum eth_hpp_status eth_hpp_calibrate_apply_links(const struct eth_hpp_link_measure *pairs,
                                                  int pair_count,
                                                  const struct eth_hpp_launch_rank *ranks,
                                                  struct eth_hpp_cluster *cluster,
                                                  struct eth_hpp_error *err);

/* Adds the links that the site's file states between nodes of the cluster; they win over what was
 * measured. Errors: INPUT (the file), MEMORY. */
enum eth_hpp_status eth_hpp_calibrate_apply_site(const char *site_file,
                                                 struct eth_hpp_cluster *cluster,
                                                 struct eth_hpp_error *err);

/* ---- one device ---- */

enum eth_hpp_calibrate_when { ETH_HPP_CALIBRATE_AUTO, ETH_HPP_CALIBRATE_YES, ETH_HPP_CALIBRATE_NO };

/* How long measuring a device may take when a job starts; with the links it makes 2 s. */
#define ETH_HPP_CALIBRATE_DEVICE_S 1.3

/* What is to be measured of a device. */
struct eth_hpp_calibrate_request {
    int need, most;  /* samples of the largest micro-batch: of a given plan, and of any */
    double budget_s; /* a slow device takes longer where a given plan needs it */
    enum eth_hpp_calibrate_when when;
};

/* Times of this rank's device for the model, emulated where it is: from the cache (AUTO) or
 * measured (YES, or AUTO where nothing fitting is cached). NO, or AUTO where this build cannot
 * measure the device or the model: points 0, and the times are derived then. Errors: UNSUPPORTED
 * (YES, and it cannot be measured), MEMORY, or a failure of the device. */
enum eth_hpp_status eth_hpp_calibrate_device(const struct eth_hpp_model *model, int sequence,
                                             enum eth_hpp_dtype dtype,
                                             const struct eth_hpp_launch_rank *rank,
                                             const struct eth_hpp_calibrate_request *request,
                                             struct eth_hpp_launch_times *times,
                                             struct eth_hpp_error *err);

/* The profile file of one device that calibration keeps, and `eth-hpp profile` writes. *profile is
 * freed by the caller. Errors: INPUT, MEMORY. */
enum eth_hpp_status eth_hpp_calibrate_profile(const struct eth_hpp_model *model, int sequence,
                                              enum eth_hpp_dtype dtype, const char *device,
                                              const struct eth_hpp_launch_times *times,
                                              struct eth_hpp_profile *profile,
                                              struct eth_hpp_error *err);

/* Where the cached profile of this rank's device lies: the name has the model, dtype, sequence and
 * device, and a sum over everything that times depend on (the model's shape, the driver, the very
 * GPU). False where there is no place for a cache, such as a home folder that does not exist. */
bool eth_hpp_cache_path(const struct eth_hpp_model *model, int sequence, enum eth_hpp_dtype dtype,
                        const struct eth_hpp_launch_rank *rank, char *path, size_t size);
/* Makes the folder that the path lies in; false where it cannot be made. */
bool eth_hpp_cache_make_folder(const char *path);

/* ---- devices of the whole job ---- */

/* Gives GPUs that are more than 5 % off the median of their kind a device of their own, named by
 * their speed: "A100-SXM-40GB~0.80". `decoders` is how many decoders the model has. Sets
 * ranks[r].device. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_calibrate_name_devices(const struct eth_hpp_launch_times *times,
                                                   int decoders, struct eth_hpp_launch_rank *ranks,
                                                   int count, struct eth_hpp_error *err);

/* Gives each rank the device of a given profile that is of its kind and nearest to its speed, since
 * today's "~0.79" is that file's "~0.80". Ranks whose kind it does not have keep their name. */
void eth_hpp_calibrate_match_devices(const struct eth_hpp_profile *profile,
                                     struct eth_hpp_launch_rank *ranks, int count);

/* Adds the times of every device that was measured to the profile: of the ranks that have it the
 * median, point by point. Errors: MEMORY. */
enum eth_hpp_status eth_hpp_calibrate_fill_profile(const struct eth_hpp_launch_times *times,
                                                   const struct eth_hpp_launch_rank *ranks,
                                                   int count, struct eth_hpp_profile *profile,
                                                   struct eth_hpp_error *err);

#endif
