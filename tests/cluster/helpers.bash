# What the cluster tests have in common.
# shellcheck shell=bash

CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
CLUSTER_DIR=/var/tmp/eth-hpp-tests-cluster
OTHER_CLUSTER_DIR=/var/tmp/eth-hpp-tests-other
# A folder that login node and nodes share, for programs, job scripts and their output.
TEST_WORK=/var/tmp/eth-hpp-tests-work

# Where `make install` has put the project; tests/run sets it.
: "${ETH_HPP_PREFIX:=$CHECKOUT/build-tests/installed}"

mini_cluster() {
	local command=$1
	shift
	"$CHECKOUT/contrib/mini-cluster" "$command" --dir "$CLUSTER_DIR" "$@"
}

# For tests/run, where bats was interrupted.
clean_up_clusters() {
	local dir
	for dir in "$CLUSTER_DIR" "$OTHER_CLUSTER_DIR"; do "$CHECKOUT/contrib/mini-cluster" stop --dir "$dir"; done
	rm -rf "$TEST_WORK"
}

# A command on the cluster's login node. Nothing there may take longer than two minutes.
on_cluster() {
	(cd "$TEST_WORK" && timeout --kill-after=5 120 "$CHECKOUT/contrib/mini-cluster" exec --dir "$CLUSTER_DIR" -- "$@")
}

# A command on a node, outside of any job.
on_node() { # NODE COMMAND...
	local node=$1
	shift
	mini_cluster exec --on "$node" -- "$@"
}

wait_until() { # SECONDS COMMAND...
	local deadline=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $deadline ] || {
			echo "still not so in time: $*"
			return 1
		}
		sleep 0.2
	done
}

has_line() { # LINE FILE
	grep -qxF -- "$1" "$TEST_WORK/$2" 2>/dev/null
}

# All jobs ended and all nodes fit for work: each test leaves the cluster so.
cluster_is_idle() {
	[ -z "$(on_cluster squeue -h)" ] && [ "$(on_cluster sinfo -h -p all -o %T)" = idle ]
}

cancel_all_jobs() {
	on_cluster scancel --user=root
	wait_until 30 cluster_is_idle
}

# A test program of this folder, with the flags of a pkg-config package.
compile() { # NAME PACKAGE
	# shellcheck disable=SC2046 # several flags
	cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror -o "$TEST_WORK/$1" "$CHECKOUT/tests/cluster/$1.c" $(pkg-config --cflags --libs "$2")
}
