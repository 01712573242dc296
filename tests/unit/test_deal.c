#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include "plan/deal.h"
#include "plan/waits.h"
#include "plan_fixtures.h"

static void data_is_dealt_so_that_pipelines_end_together(void **state)
{
    (void)state;
    /* One pipeline of 1 s a micro-batch beside two of 3 s: 30 samples are 18 + 6 + 6. */
    static const struct eth_hpp_pace paces[] = {{0, 1, 1, 1}, {0, 3, 1, 2}};
    int counts[2], more[2];
    assert_true(eth_hpp_deal(paces, 2, 30, counts, more));
    assert_int_equal(counts[0], 18);
    assert_int_equal(counts[1], 6);
    assert_int_equal(more[0] + more[1], 0);
    /* One more sample goes where it ends first. */
    assert_true(eth_hpp_deal(paces, 2, 31, counts, more));
    assert_int_equal(counts[0], 19);
    /* Fill counts: a pipeline that starts 6 s late gets 6 fewer. */
    static const struct eth_hpp_pace late[] = {{0, 1, 1, 1}, {6, 1, 1, 1}};
    assert_true(eth_hpp_deal(late, 2, 30, counts, more));
    assert_int_equal(counts[0], 18);
    assert_int_equal(counts[1], 12);
}

static void the_batch_is_dealt_exactly_or_not_at_all(void **state)
{
    (void)state;
    static const struct eth_hpp_pace paces[] = {{0, 1, 3, 2}, {0, 2, 5, 3}};
    for (int batch = 1; batch < 200; batch++) {
        int counts[2], more[2];
        if (!eth_hpp_deal(paces, 2, batch, counts, more)) {
            assert_true(batch < 60);
            continue;
        }
        assert_true(counts[0] >= 1 && counts[1] >= 1);
        assert_int_equal(3 * (2 * counts[0] + more[0]) + 5 * (3 * counts[1] + more[1]), batch);
    }
}

static void even_data_must_divide(void **state)
{
    (void)state;
    static const struct eth_hpp_pace paces[] = {{0, 1, 2, 2}, {0, 9, 2, 1}};
    int counts[2], more[2];
    assert_true(eth_hpp_deal_evenly(paces, 2, 24, counts, more));
    assert_int_equal(counts[0], 4);
    assert_int_equal(counts[1], 4);
    assert_false(eth_hpp_deal_evenly(paces, 2, 25, counts, more));
}

static void circles_of_waits_are_found(void **state)
{
    (void)state;
    static const int line[][2] = {{0, 1}, {1, 2}, {0, 2}, {3, 2}};
    static const int circle[][2] = {{0, 1}, {1, 2}, {2, 3}, {3, 1}, {3, 4}};
    int stuck;
    assert_true(eth_hpp_waits_find_cycle(line, 4, 4, &stuck));
    assert_int_equal(stuck, -1);
    assert_true(eth_hpp_waits_find_cycle(circle, 5, 5, &stuck));
    assert_true(stuck >= 1 && stuck <= 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(data_is_dealt_so_that_pipelines_end_together),
        cmocka_unit_test(the_batch_is_dealt_exactly_or_not_at_all),
        cmocka_unit_test(even_data_must_divide),
        cmocka_unit_test(circles_of_waits_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
