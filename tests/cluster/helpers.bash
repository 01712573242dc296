# What the cluster tests have in common.
# shellcheck shell=bash

CHECKOUT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)
# Names of its own for each checkout, so that two of them can be tested at once.
own=$(cksum <<<"$CHECKOUT" | cut -d' ' -f1)
CLUSTER_DIR=/var/tmp/eth-hpp-tests-$own
OTHER_CLUSTER_DIR=$CLUSTER_DIR-other
# A folder that login node and nodes share, for programs, job scripts and their output.
TEST_WORK=$CLUSTER_DIR-work
# Times that are measured here are nobody's but the tests'.
export XDG_CACHE_HOME=$TEST_WORK/cache

# Where `make install` has put the project; tests/run sets it.
: "${ETH_HPP_PREFIX:=$CHECKOUT/build-tests/installed}"

PLUGIN=$ETH_HPP_PREFIX/lib/slurm/spank_eth_hpp.so
# The GPU module built for emulated GPUs, of the same build.
: "${EMULATED_MODULE:=$CHECKOUT/build-tests/gcc/tests/emulation/cuda/.libs/libethhpp_cuda.so}"

# SLURM_ROOT: a root filesystem with another Slurm than this machine's; tests/run sets it.
mini_cluster() {
	local command=$1
	shift
	[ "$command" != start ] || [ -z "${SLURM_ROOT-}" ] || set -- --root "$SLURM_ROOT" "$@"
	"$CHECKOUT/contrib/mini-cluster" "$command" --dir "$CLUSTER_DIR" "$@"
}

# For tests/run, where bats was interrupted.
clean_up_clusters() {
	local dir
	for dir in "$CLUSTER_DIR" "$OTHER_CLUSTER_DIR"; do "$CHECKOUT/contrib/mini-cluster" stop --dir "$dir"; done
	! mountpoint -q "$TEST_WORK/small" || umount "$TEST_WORK/small" # of faults.bats
	rm -rf "$TEST_WORK"
}

# A command on the cluster's login node. Nothing there may take longer than two minutes.
on_cluster() {
	(cd "$TEST_WORK" && mini_cluster exec -- timeout --kill-after=5 120 "$@")
}

# The same for a heterogeneous srun. That of Slurm 22.05 hangs now and then after its tasks have ended: two of
# its threads stop one PMIx abort agent. Such a run is ended and done again.
on_cluster_het() { # SECONDS COMMAND...
	local limit=$1 try status
	shift
	for try in 1 2 3 4; do
		status=0
		on_cluster timeout --kill-after=1 "$limit" "$@" >"$BATS_TEST_TMPDIR/het.out" 2>&1 || status=$?
		# 124: it heeded the first signal of timeout, 137: only the second.
		[ $status -eq 124 ] || [ $status -eq 137 ] || break
		echo "# try $try of a heterogeneous srun hung" >&3
		cancel_all_jobs >&3 2>&1 # not among the output of the run that counts
	done
	cat "$BATS_TEST_TMPDIR/het.out"
	return $status
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

# By their numbers: of several --state scancel heeds the last alone.
cancel_all_jobs() {
	on_cluster sh -c 'squeue -h -o %A | xargs -r scancel' || true # some may end meanwhile
	wait_until 30 cluster_is_idle
}

# A test program of this folder, or, as NAME.so, a library to be preloaded, with the flags of a pkg-config package.
compile() { # NAME PACKAGE
	local shared=
	[[ $1 != *.so ]] || shared='-shared -fPIC'
	# shellcheck disable=SC2046,SC2086 # several flags
	cc -std=c11 -D_GNU_SOURCE -Wall -Wextra -Werror $shared -o "$TEST_WORK/$1" "$CHECKOUT/tests/cluster/${1%.so}.c" \
		$(pkg-config --cflags --libs "$2")
}
