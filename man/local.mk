# Manual pages. tests/unit/test_manual.sh holds them against the program, the plugin and the library.
dist_man_MANS += \
	man/eth-hpp.1 \
	man/eth-hpp-checkpoint.1 \
	man/eth-hpp-inventory.1 \
	man/eth-hpp-launch.1 \
	man/eth-hpp-plan.1 \
	man/eth-hpp-profile.1 \
	man/eth-hpp-show.1 \
	man/eth-hpp-simulate.1 \
	man/eth-hpp-train.1 \
	man/libethhpp.3 \
	man/eth-hpp-formats.5 \
	man/eth-hpp-plugin.8
