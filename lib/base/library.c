#include "base/library.h"

#include <dlfcn.h>
#include <string.h>

enum eth_hpp_status eth_hpp_library_open(const char *file, const char *package, void **library,
                                         struct eth_hpp_error *err)
{
    void *opened = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (opened == NULL) {
        const char *why = dlerror(); /* begins with the file's name */
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED, "%s: install %s",
                                 why != NULL ? why : file, package);
    }
    *library = opened;
    return ETH_HPP_OK;
}

enum eth_hpp_status eth_hpp_library_find(void *library, const char *file, const char *name,
                                         void *function, struct eth_hpp_error *err)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        return eth_hpp_error_set(err, ETH_HPP_ERR_UNSUPPORTED,
                                 "%s: has no %s: eth-hpp was built with another version of it",
                                 file, name);
    memcpy(function, &found, sizeof(found)); /* a cast would be no standard C */
    return ETH_HPP_OK;
}
