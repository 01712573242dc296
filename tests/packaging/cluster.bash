# What the tests of Debian packages and of rpms have in common: a cluster that works. Each member has its own /usr, /etc and
# databases of packages, laid over this machine's, so that packages are installed on one after the other, and this machine
# keeps none.
# shellcheck shell=bash

CLUSTER_DIR=$OTHER_CLUSTER_DIR
MEMBERS=(login n1 n2)
CONFIGURATION=/etc/slurm/plugstack.conf.d/eth-hpp.conf
# shellcheck disable=SC2034 # for lifecycle.bash
ASKING=(--eth-hpp=gpt2 --eth-hpp-calibrate=no)

start_cluster() {
	printf '%s\n' 'n1 T4:2' 'n2 T4:2' >"$TEST_WORK/nodes"
	mini_cluster start --nodes "$TEST_WORK/nodes"
	for member in "${MEMBERS[@]}"; do lay_over "$member"; done
	echo 'include /etc/slurm/plugstack.conf.d/*.conf' >"$CLUSTER_DIR/etc/plugstack.conf"
}

lay_over() { # MEMBER
	# shellcheck disable=SC2016 # for the member's shell
	on_node "$1" sh -ec '
		own=$1/over
		mkdir -p "$own" && mount -t tmpfs over "$own"
		for folder in /usr /etc /var/lib /var/cache /var/log; do
			mkdir -p "$own$folder/upper" "$own$folder/work"
			mount -t overlay over -o "lowerdir=$folder,upperdir=$own$folder/upper,workdir=$own$folder/work" $folder
		done' sh "$CLUSTER_DIR/nodes/$1"
}

# The distribution, as $TEST_WORK/packages/eth-hpp-*.tar.xz. One architecture is enough of the GPU module to be packed.
make_distribution() {
	mkdir -p "$TEST_WORK/packages"
	make -C "$ETH_HPP_BUILD" dist >"$TEST_WORK/dist.log" 2>&1
	cp "$ETH_HPP_BUILD"/eth-hpp-*.tar.xz "$TEST_WORK/packages/"
	cd "$TEST_WORK/packages" || return
	export CUDA_ARCHITECTURES=75
}

has_toolkit() { grep -q '^NVCC = .' "$ETH_HPP_BUILD/Makefile"; }

enable_on() { # MEMBER
	on_node "$1" mkdir -p "${CONFIGURATION%/*}"
	on_node "$1" cp /usr/share/doc/eth-hpp-slurm-plugin/plugstack.conf.d/eth-hpp.conf $CONFIGURATION
	on_node "$1" sed -i "/^required/s|\$| site_file=$CLUSTER_DIR/etc/site.json|" $CONFIGURATION # emulated GPUs
}

# Jobs that run while something is done: one that has nothing to do with eth-hpp, and, if told so, one that asks.
# shellcheck disable=SC2016 # for the tasks' shells
start_jobs() { # [OPTION...]
	on_cluster srun -N2 --overlap sh -c 'touch running.plain.$SLURM_PROCID; while [ ! -e go ]; do sleep 0.1; done' \
		>"$TEST_WORK/plain.out" 2>&1 3>&- &
	plain=$!
	wait_until 20 test -e "$TEST_WORK/running.plain.1"
	asking=""
	[ $# -gt 0 ] || return 0
	on_cluster srun -N2 "$@" sh -c 'touch running.asking.$RANK; while [ ! -e go ]; do sleep 0.1; done' \
		>"$TEST_WORK/asking.out" 2>&1 3>&- &
	asking=$!
	wait_until 40 test -e "$TEST_WORK/running.asking.1"
}

jobs_end_well() {
	touch "$TEST_WORK/go"
	wait "$plain"
	[ -z "$asking" ] || wait "$asking"
	wait_until 20 cluster_is_idle
	[ -z "$(on_cluster sinfo -h -R)" ]
}

restart_slurmd() { # NODE
	# shellcheck disable=SC2016 # for the node's shell
	on_node "$1" sh -c 'pid=$(cat "$1"); kill "$pid"; while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done; exec slurmd -N "$2"' \
		sh "$CLUSTER_DIR/run/slurmd-$1.pid" "$1"
}

teardown_file() {
	mini_cluster stop
	rm -rf "$TEST_WORK"
}

teardown() {
	touch "$TEST_WORK/go"
	cancel_all_jobs
	rm -f "$TEST_WORK"/{go,running.*}
}
