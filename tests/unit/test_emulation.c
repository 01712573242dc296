#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "runtime/emulation.h"

static void nothing_is_emulated_unless_asked(void **state)
{
    (void)state;
    struct eth_hpp_emulator emulator;
    unsetenv("ETH_HPP_EMULATION");
    assert_int_equal(eth_hpp_emulator_from_environment(&emulator, NULL), ETH_HPP_OK);
    assert_true(emulator.half_flops == 0);
}

static void a_layer_takes_its_flops_at_the_devices_speed(void **state)
{
    (void)state;
    struct eth_hpp_emulator emulator;
    setenv("ETH_HPP_EMULATION", "A100-SXM-40GB:0.8:5e4", 1);
    assert_int_equal(eth_hpp_emulator_from_environment(&emulator, NULL), ETH_HPP_OK);
    /* 1e-4 + 5e4 x 3 x 1e7 / (0.45 x 312e12 x 0.8) */
    double expected = 1e-4 + 1.5e12 / (0.45 * 312e12 * 0.8);
    assert_true(fabs(eth_hpp_emulator_forward_s(&emulator, 3, 1e7) - expected) < 1e-12);
    unsetenv("ETH_HPP_EMULATION");
}

static void bad_settings_are_refused(void **state)
{
    (void)state;
    static const char *const cases[] = {"A100-SXM-40GB",          "A100-SXM-40GB:1",
                                        "A100-SXM-40GB:0:1",      "A100-SXM-40GB:1:-5",
                                        "A100-SXM-40GB:1:1 ",     "no-such-device:1:1",
                                        "A100-SXM-40GB:nan:5e4",  ":1:1",
                                        "A100-SXM-40GB:1:5e4:2.0"};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct eth_hpp_emulator emulator;
        struct eth_hpp_error err = {0};
        setenv("ETH_HPP_EMULATION", cases[i], 1);
        if (eth_hpp_emulator_from_environment(&emulator, &err) != ETH_HPP_ERR_INPUT)
            fail_msg("%s is taken", cases[i]);
        assert_non_null(strstr(err.text, "ETH_HPP_EMULATION"));
    }
    unsetenv("ETH_HPP_EMULATION");
}

static void a_stretch_ends_on_time_and_counts_what_came_late(void **state)
{
    (void)state;
    struct eth_hpp_emulator emulator = {.half_flops = 1};
    double start = eth_hpp_clock_now();
    eth_hpp_emulator_stretch(&emulator, start, 0.02);
    double after = eth_hpp_clock_now() - start;
    assert_true(after >= 0.02 && after < 0.5);
    assert_true(emulator.late_s == 0);
    eth_hpp_emulator_stretch(&emulator, start - 1, 0.25);
    assert_true(emulator.late_s > 0.75 && emulator.late_s < 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_emulated_unless_asked),
        cmocka_unit_test(a_layer_takes_its_flops_at_the_devices_speed),
        cmocka_unit_test(bad_settings_are_refused),
        cmocka_unit_test(a_stretch_ends_on_time_and_counts_what_came_late),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
