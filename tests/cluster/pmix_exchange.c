/*
 * Every rank publishes its host, all meet at a collecting fence, and rank 0 prints what it got from
 * each: "rank 3 on node2". It shows that the cluster's PMIx carries data between nodes.
 */
#include <pmix.h>
#include <stdio.h>
#include <unistd.h>

static pmix_status_t publish_host(void)
{
    char host[64];
    pmix_value_t value;
    pmix_status_t status;

    if (gethostname(host, sizeof(host)) != 0)
        return PMIX_ERROR;
    value.type = PMIX_STRING;
    value.data.string = host;
    status = PMIx_Put(PMIX_GLOBAL, "test.host", &value);
    return status == PMIX_SUCCESS ? PMIx_Commit() : status;
}

static pmix_status_t meet(pmix_proc_t *all)
{
    bool yes = true;
    pmix_info_t collect;

    PMIX_INFO_LOAD(&collect, PMIX_COLLECT_DATA, &yes, PMIX_BOOL);
    return PMIx_Fence(all, 1, &collect, 1);
}

static pmix_status_t print_hosts(pmix_proc_t *peer)
{
    pmix_value_t *value;
    pmix_status_t status = PMIx_Get(peer, PMIX_JOB_SIZE, NULL, 0, &value);
    uint32_t size;

    if (status != PMIX_SUCCESS)
        return status;
    size = value->data.uint32;
    PMIX_VALUE_RELEASE(value);
    for (uint32_t rank = 0; rank < size && status == PMIX_SUCCESS; rank++) {
        peer->rank = rank;
        status = PMIx_Get(peer, "test.host", NULL, 0, &value);
        if (status == PMIX_SUCCESS) {
            printf("rank %u on %s\n", rank, value->data.string);
            PMIX_VALUE_RELEASE(value);
        }
    }
    return status;
}

int main(void)
{
    pmix_proc_t self, all;
    pmix_status_t status = PMIx_Init(&self, NULL, 0);

    if (status == PMIX_SUCCESS)
        status = publish_host();
    PMIX_LOAD_PROCID(&all, self.nspace, PMIX_RANK_WILDCARD);
    if (status == PMIX_SUCCESS)
        status = meet(&all);
    if (status == PMIX_SUCCESS && self.rank == 0)
        status = print_hosts(&all);
    if (status != PMIX_SUCCESS) {
        fprintf(stderr, "pmix_exchange: %s\n", PMIx_Error_string(status));
        return 1;
    }
    return PMIx_Finalize(NULL, 0) == PMIX_SUCCESS ? 0 : 1;
}
