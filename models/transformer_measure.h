/*
 * How long layers and the optimizer take on this device: what calibration measures. Layers run
 * through the same code as in training, on weights and activations of their own.
 */
#ifndef ETH_HPP_MODELS_TRANSFORMER_MEASURE_H
#define ETH_HPP_MODELS_TRANSFORMER_MEASURE_H

#include "kernels/kernels.h"
#include "model/model.h"

struct eth_hpp_transformer_measure;

/* Makes one layer of this kind with room for `samples`. The kernels must outlive it. Freed with
 * eth_hpp_transformer_measure_close. Errors: UNSUPPORTED (not GPT-2), MEMORY (also where the device
 * has not enough of it: then fewer samples may still fit). */
enum eth_hpp_status eth_hpp_transformer_measure_open(const struct eth_hpp_kernels *kernels,
                                                     const struct eth_hpp_model *model,
                                                     enum eth_hpp_kind kind, int sequence,
                                                     int samples,
                                                     struct eth_hpp_transformer_measure **measure,
                                                     struct eth_hpp_error *err);
/* NULL is fine. */
void eth_hpp_transformer_measure_close(struct eth_hpp_transformer_measure *measure);

/* Runs the layer once forward and once backward on 1 .. `samples` samples, and gives the seconds of
 * each. The first run of a size warms up: leave it out, and take the median or the least of several
 * others. Errors: a failure of the device. */
enum eth_hpp_status eth_hpp_transformer_measure_layer(struct eth_hpp_transformer_measure *measure,
                                                      int samples, double *forward_s,
                                                      double *backward_s,
                                                      struct eth_hpp_error *err);

/* Runs one AdamW update of the layer's largest tensor and gives the seconds for one parameter. */
enum eth_hpp_status
eth_hpp_transformer_measure_optimizer(struct eth_hpp_transformer_measure *measure,
                                      double *s_per_parameter, struct eth_hpp_error *err);

#endif
