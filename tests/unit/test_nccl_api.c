/* What comm/nccl/nccl_api.h says of NCCL, held against NCCL's own header by the compiler. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#if __has_include(<nccl.h>)
#include <nccl.h>

#include "comm/nccl/nccl_api.h"

#define SAME_NUMBER(ours, theirs)                                                                  \
    _Static_assert((long long)(ours) == (long long)(theirs), #ours " is " #theirs)
SAME_NUMBER(NCCL_SUCCESS, ncclSuccess);
SAME_NUMBER(NCCL_UNHANDLED_CUDA_ERROR, ncclUnhandledCudaError);
SAME_NUMBER(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME_NUMBER(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME_NUMBER(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME_NUMBER(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME_NUMBER(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME_NUMBER(NCCL_IN_PROGRESS, ncclInProgress);
SAME_NUMBER(NCCL_UINT8, ncclUint8);
SAME_NUMBER(NCCL_FLOAT32, ncclFloat32);
SAME_NUMBER(NCCL_SUM, ncclSum);
SAME_NUMBER(NCCL_NO_COLOR, NCCL_SPLIT_NOCOLOR);
SAME_NUMBER(NCCL_UNDEFINED, NCCL_CONFIG_UNDEF_INT);
SAME_NUMBER(sizeof(struct eth_hpp_nccl_id), sizeof(ncclUniqueId));
/* Enumerations are handed over and returned as int. */
SAME_NUMBER(sizeof(int), sizeof(ncclResult_t));
SAME_NUMBER(sizeof(int), sizeof(ncclDataType_t));
SAME_NUMBER(sizeof(int), sizeof(ncclRedOp_t));

#define SAME_MEMBER(ours, theirs)                                                                  \
    SAME_NUMBER(offsetof(struct eth_hpp_nccl_config, ours), offsetof(ncclConfig_t, theirs));       \
    SAME_NUMBER(sizeof(((struct eth_hpp_nccl_config *)NULL)->ours),                                \
                sizeof(((ncclConfig_t *)NULL)->theirs))
SAME_MEMBER(size, size);
SAME_MEMBER(magic, magic);
SAME_MEMBER(version, version);
SAME_MEMBER(blocking, blocking);
SAME_MEMBER(cga_cluster_size, cgaClusterSize);
SAME_MEMBER(min_ctas, minCTAs);
SAME_MEMBER(max_ctas, maxCTAs);
SAME_MEMBER(net_name, netName);
SAME_MEMBER(split_share, splitShare);

/* Each call is there. */
#define IS_DECLARED(result, name, arguments) SAME_NUMBER(sizeof(&nccl##name), sizeof(void *));
ETH_HPP_NCCL_FUNCTIONS(IS_DECLARED)

static void numbers_and_layouts_are_those_of_nccl(void **state)
{
    (void)state;
    print_message("# compiled against NCCL %d\n", NCCL_VERSION_CODE);
}
#else
static void numbers_and_layouts_are_those_of_nccl(void **state)
{
    (void)state;
    print_message("# skipped: the CUDA toolkit has no nccl.h\n");
    skip();
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_and_layouts_are_those_of_nccl),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
