#include "plan_fixtures.h"

#include "plan/link_classes.h"

enum { NODES = 12, LINKS = 5 };

static void add_nodes(struct eth_hpp_cluster *cluster, int count)
{
    int device;
    struct eth_hpp_error err = {0};
    must(eth_hpp_cluster_add_device(cluster, "T4", &device, &err), &err);
    for (int i = 0; i < count; i++) {
        struct eth_hpp_node node = {.gpus = 1, .devices = &device};
        snprintf(node.name, sizeof(node.name), "n%d", i);
        must(eth_hpp_cluster_add_node(cluster, &node, &err), &err);
    }
}

static bool holds(const int *list, int count, int node)
{
    for (int i = 0; i < count; i++)
        if (list[i] == node)
            return true;
    return false;
}

/* What the header says, pair by pair. */
static int last_link(const struct eth_hpp_cluster *cluster, int x, int y)
{
    int last = -1;
    for (int l = 0; l < cluster->link_count; l++) {
        const struct eth_hpp_link *link = &cluster->links[l];
        if ((holds(link->from, link->from_count, x) && holds(link->to, link->to_count, y)) ||
            (holds(link->from, link->from_count, y) && holds(link->to, link->to_count, x)))
            last = l;
    }
    return last;
}

static void every_pair_finds_the_last_link_stated_for_it(void **state)
{
    (void)state;
    unsigned random = 1;
    for (int round = 0; round < 200; round++) {
        struct eth_hpp_cluster cluster = {0};
        struct eth_hpp_error err = {0};
        int *class_of, *link_of, classes, sides[2][NODES];
        add_nodes(&cluster, NODES);
        for (int l = 0; l < LINKS; l++) {
            struct eth_hpp_link link = {.from = sides[0], .to = sides[1], .bandwidth = 1};
            int *counts[2] = {&link.from_count, &link.to_count};
            for (int s = 0; s < 2; s++) {
                random = random * 1664525u + 1013904223u;
                *counts[s] = 1 + (int)(random >> 16) % 4; /* a node may stand twice in it */
                for (int i = 0; i < *counts[s]; i++) {
                    random = random * 1664525u + 1013904223u;
                    sides[s][i] = (int)(random >> 16) % NODES;
                }
            }
            must(eth_hpp_cluster_add_link(&cluster, &link, &err), &err);
        }
        must(eth_hpp_link_classes_make(&cluster, &class_of, &link_of, &classes, &err), &err);
        for (int x = 0; x < NODES; x++)
            for (int y = 0; y < NODES; y++)
                assert_int_equal(link_of[class_of[x] * classes + class_of[y]],
                                 last_link(&cluster, x, y));
        free(class_of);
        free(link_of);
        eth_hpp_cluster_free(&cluster);
    }
}

static void links_that_tell_too_many_nodes_apart_are_refused(void **state)
{
    (void)state;
    struct eth_hpp_cluster cluster = {0};
    struct eth_hpp_error err = {0};
    int *class_of, *link_of, classes;
    add_nodes(&cluster, 5000);
    for (int i = 0; i + 1 < 5000; i += 2) {
        int from = i, to = i + 1;
        struct eth_hpp_link link = {
            .from = &from, .to = &to, .from_count = 1, .to_count = 1, .bandwidth = 1};
        must(eth_hpp_cluster_add_link(&cluster, &link, &err), &err);
    }
    assert_int_equal(eth_hpp_link_classes_make(&cluster, &class_of, &link_of, &classes, &err),
                     ETH_HPP_ERR_INPUT);
    assert_non_null(strstr(err.text, "more than 4096 groups"));
    eth_hpp_cluster_free(&cluster);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pair_finds_the_last_link_stated_for_it),
        cmocka_unit_test(links_that_tell_too_many_nodes_apart_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
