#include "kernels/kernels.h"

#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "config.h"
#include "kernels/module.h"
#ifdef HAVE_ONEDNN
#include "kernels/cpu/cpu.h"
#endif

static enum eth_hpp_status create_cpu(enum eth_hpp_dtype values, struct eth_hpp_kernels **kernels,
                                      struct eth_hpp_error *err)
{
    if (values != ETH_HPP_FP32)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "the CPU kernels compute in fp32, not in %s",
                                 eth_hpp_dtype_name(values));
#ifdef HAVE_ONEDNN
    return eth_hpp_cpu_create(kernels, err);
#else
    (void)kernels;
    return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                             "the CPU kernels were not built: install libdnnl-dev and run "
                             "configure again");
#endif
}

/* Where this build was made without CUDA there may be a module all the same, of another build of
 * the same version. */
static enum eth_hpp_status find_module(const struct eth_hpp_module **module,
                                       struct eth_hpp_error *err)
{
    const char *file = getenv("ETH_HPP_CUDA_MODULE");
    const struct eth_hpp_module *(*get)(void);
    void *library;
    if (file == NULL || *file == '\0')
        file = ETH_HPP_MODULE_FOLDER "/" ETH_HPP_MODULE_FILE;
    enum eth_hpp_status status = eth_hpp_library_open(
        file, "eth-hpp's GPU module (configure --with-cuda) and the CUDA libraries it names",
        &library, err);
    if (status == ETH_HPP_OK)
        status = eth_hpp_library_find(library, file, ETH_HPP_MODULE_ENTRY, &get, err);
    if (status != ETH_HPP_OK)
        return status;
    const struct eth_hpp_module *found = get();
    if (strcmp(found->version, PACKAGE_VERSION) != 0 ||
        found->ops_bytes != sizeof(struct eth_hpp_kernels_ops))
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "%s: is the module of eth-hpp %s in another build than this %s: "
                                 "install both from one build",
                                 file, found->version, PACKAGE_VERSION);
    *module = found;
    return ETH_HPP_OK;
}

static enum eth_hpp_status create_cuda(const char *uuid, enum eth_hpp_dtype values,
                                       struct eth_hpp_kernels **kernels, struct eth_hpp_error *err)
{
    const struct eth_hpp_module *module = NULL;
    enum eth_hpp_status status = find_module(&module, err);
    if (status == ETH_HPP_OK)
        status = module->kernels_create(uuid, values, kernels, err);
    return status;
}

enum eth_hpp_status eth_hpp_kernels_create(const char *device, enum eth_hpp_dtype values,
                                           struct eth_hpp_kernels **kernels,
                                           struct eth_hpp_error *err)
{
    static const char cuda[] = "cuda:";
    const size_t length = sizeof(cuda) - 1;
    if (strcmp(device, "cpu") == 0)
        return create_cpu(values, kernels, err);
    if (strcmp(device, "cuda") == 0)
        return create_cuda(NULL, values, kernels, err);
    if (strncmp(device, cuda, length) == 0)
        return create_cuda(device + length, values, kernels, err);
    return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                             "no kernels for \"%s\": there are \"cpu\", \"cuda\" and \"cuda:UUID\"",
                             device);
}

void eth_hpp_kernels_destroy(struct eth_hpp_kernels *kernels)
{
    if (kernels != NULL)
        kernels->destroy(kernels);
}
