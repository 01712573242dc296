#include "launcher/planning.h"

const struct eth_hpp_option eth_hpp_planning_cluster = {.name = "cluster",
                                                        .kind = ETH_HPP_OPTION_FILE,
                                                        .argument = "FILE",
                                                        .help = "the cluster (eth-hpp-cluster)"};

const struct eth_hpp_option eth_hpp_planning_profile = {.name = "profile",
                                                        .kind = ETH_HPP_OPTION_FILE,
                                                        .argument = "FILE",
                                                        .help =
                                                            "what layers cost (eth-hpp-profile)"};
