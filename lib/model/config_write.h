/* Writing a Hugging Face config.json. */
#ifndef ETH_HPP_MODEL_CONFIG_WRITE_H
#define ETH_HPP_MODEL_CONFIG_WRITE_H

#include "model/model.h"

/* The text of the config.json of a model of a family that is built in; freed by the caller. Errors:
 * UNSUPPORTED (another family), MEMORY. */
enum eth_hpp_status eth_hpp_model_config_print(const struct eth_hpp_model *model, char **text,
                                               struct eth_hpp_error *err);

#endif
