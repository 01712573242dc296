#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "emulation/ranks.h"
#include "launcher/exchange.h"

/* ---- what ranks say ---- */

static int talk(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    (void)user;
    const struct eth_hpp_bootstrap_place *place = eth_hpp_bootstrap_get_place(bootstrap);
    struct eth_hpp_exchange_word *words;
    struct eth_hpp_error err = {0};
    char word[64];
    /* Words of unlike length, an empty one among them. */
    int size = place->rank == 1 ? 0 : snprintf(word, sizeof(word), "rank %d", place->rank);
    RANK_CHECK(eth_hpp_exchange_round(bootstrap, "one", 10, ETH_HPP_OK, word, (size_t)size, &words,
                                      &err) == ETH_HPP_OK,
               "%s", err.text);
    for (int r = 0; r < place->size; r++) {
        char expected[64] = "";
        if (r != 1)
            snprintf(expected, sizeof(expected), "rank %d", r);
        RANK_CHECK(words[r].size == strlen(expected) && strcmp(words[r].data, expected) == 0,
                   "rank %d said \"%s\"", r, (char *)words[r].data);
    }
    eth_hpp_exchange_free(words, place->size);
    RANK_CHECK(eth_hpp_exchange_round(bootstrap, "two", 10, ETH_HPP_OK, "x", 1, &words, &err) ==
                   ETH_HPP_OK,
               "%s", err.text);
    eth_hpp_exchange_free(words, place->size);
    eth_hpp_bootstrap_close(bootstrap);
    return 0;
}

static void every_rank_hears_every_word(void **state)
{
    (void)state;
    struct ranks_result result;
    ranks_run(5, talk, NULL, 20, &result);
    for (int r = 0; r < 5; r++)
        if (result.exit_code[r] != 0)
            fail_msg("rank %d: %d: %s", r, result.exit_code[r], result.log);
}

/* ---- failures ---- */

static int fail_on_two(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    (void)user;
    const struct eth_hpp_bootstrap_place *place = eth_hpp_bootstrap_get_place(bootstrap);
    struct eth_hpp_exchange_word *words;
    struct eth_hpp_error err = {0};
    enum eth_hpp_status status = ETH_HPP_OK;
    if (place->rank == 2)
        status = eth_hpp_error_set(&err, ETH_HPP_ERR_INFEASIBLE, "two is too large");
    if (place->rank == 3)
        status = eth_hpp_error_set(&err, ETH_HPP_ERR_INPUT, "three is wrong");
    status = eth_hpp_exchange_round(bootstrap, "one", 10, status, "x", 1, &words, &err);
    RANK_CHECK(status == ETH_HPP_ERR_INFEASIBLE, "%d", (int)status);
    if (err.text[0] != '\0')
        eth_hpp_log_error("%s", err.text);
    eth_hpp_bootstrap_close(bootstrap);
    return eth_hpp_error_exit_code(status);
}

static void the_lowest_failure_ends_all_with_one_line_and_one_code(void **state)
{
    (void)state;
    struct ranks_result result;
    ranks_run(4, fail_on_two, NULL, 20, &result);
    for (int r = 0; r < 4; r++)
        assert_int_equal(result.exit_code[r], ETH_HPP_EXIT_INFEASIBLE);
    assert_int_equal(ranks_log_count(&result, "eth-hpp: two is too large"), 1);
    assert_int_equal(ranks_log_count(&result, "eth-hpp: "), 1);
}

/* ---- a rank that does not come ---- */

static int stay_away_on_one(struct eth_hpp_bootstrap *bootstrap, void *user)
{
    (void)user;
    struct eth_hpp_exchange_word *words;
    struct eth_hpp_error err = {0};
    if (eth_hpp_bootstrap_get_place(bootstrap)->rank == 1)
        return 7;
    eth_hpp_exchange_round(bootstrap, "one", 1, ETH_HPP_OK, "x", 1, &words, &err);
    return 0; /* is not reached */
}

static void a_rank_that_does_not_come_ends_the_others_in_time(void **state)
{
    (void)state;
    struct ranks_result result;
    ranks_run(4, stay_away_on_one, NULL, 20, &result);
    assert_true(result.seconds < 10);
    for (int r = 0; r < 4; r++)
        assert_int_not_equal(result.exit_code[r], 0);
    assert_int_equal(ranks_log_count(&result, "eth-hpp: rank 1 on host0 did not come"), 1);
    assert_int_equal(ranks_log_count(&result, "eth-hpp: "), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_hears_every_word),
        cmocka_unit_test(the_lowest_failure_ends_all_with_one_line_and_one_code),
        cmocka_unit_test(a_rank_that_does_not_come_ends_the_others_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
