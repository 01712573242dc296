# Starts the cluster that all tests here share, once, and stops it at the end.
# shellcheck shell=bash

load helpers

setup_suite() {
	mini_cluster start --plugin "$PLUGIN" --launcher "$ETH_HPP_PREFIX/bin/eth-hpp"
	mkdir -p "$TEST_WORK"
	compile pmix_exchange pmix
}

teardown_suite() {
	mini_cluster stop
	rm -rf "$TEST_WORK"
}
