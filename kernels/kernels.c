#include "kernels/kernels.h"

#include <string.h>

#include "config.h"
#ifdef HAVE_ONEDNN
#include "kernels/cpu/cpu.h"
#endif

enum eth_hpp_status eth_hpp_kernels_create(const char *name, struct eth_hpp_kernels **kernels,
                                           struct eth_hpp_error *err)
{
    if (strcmp(name, "cpu") != 0)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "no kernels for \"%s\": this build has \"cpu\"", name);
#ifdef HAVE_ONEDNN
    return eth_hpp_cpu_create(kernels, err);
#else
    (void)kernels;
    return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                             "the CPU kernels were not built: install libdnnl-dev and run "
                             "configure again");
#endif
}

void eth_hpp_kernels_destroy(struct eth_hpp_kernels *kernels)
{
    if (kernels != NULL)
        kernels->destroy(kernels);
}
