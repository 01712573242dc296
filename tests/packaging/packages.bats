#!/usr/bin/env bats
# The packages on a cluster that works. Each member has its own /usr, /etc and dpkg database, laid over this machine's, so
# that packages are installed on one after the other, and this machine keeps none.

load ../cluster/helpers
CLUSTER_DIR=$OTHER_CLUSTER_DIR

MEMBERS=(login n1 n2)
CONFIGURATION=/etc/slurm/plugstack.conf.d/eth-hpp.conf

setup_file() {
	mkdir -p "$TEST_WORK/packages"
	export DEB_BUILD_OPTIONS="nocheck parallel=$(nproc)"
	make -C "$ETH_HPP_BUILD" dist >"$TEST_WORK/dist.log" 2>&1
	cp "$ETH_HPP_BUILD"/eth-hpp-*.tar.xz "$TEST_WORK/packages/"
	cd "$TEST_WORK/packages"
	tar xf eth-hpp-*.tar.xz
	(cd eth-hpp-*/ && dpkg-buildpackage -us -uc -b) >"$TEST_WORK/deb.log" 2>&1 || {
		tail -n 30 "$TEST_WORK/deb.log"
		return 1
	}
	newer_packages
	printf '%s\n' 'n1 T4:2' 'n2 T4:2' >"$TEST_WORK/nodes"
	mini_cluster start --nodes "$TEST_WORK/nodes"
	for member in "${MEMBERS[@]}"; do lay_over "$member"; done
	echo 'include /etc/slurm/plugstack.conf.d/*.conf' >"$CLUSTER_DIR/etc/plugstack.conf"
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

# The same packages under a higher version, as an upgrade.
newer_packages() {
	local package
	mkdir newer
	for package in ./*[!m]_0.1.0_*.deb; do # not those of debug symbols
		dpkg-deb -R "$package" unpacked
		sed -i -E 's/^Version: .*/Version: 9.0/; s/\(= 0\.1\.0\)/(= 9.0)/g' unpacked/DEBIAN/control
		dpkg-deb --root-owner-group -b unpacked newer >/dev/null
		rm -r unpacked
	done
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

install_on() { # FOLDER MEMBER
	on_node "$2" sh -c 'dpkg --install --no-triggers "$1"/eth-hpp_*.deb "$1"/eth-hpp-slurm-plugin_*.deb "$1"/libethhpp1_*.deb \
		"$1"/libethhpp-dev_*.deb' sh "$1"
}

enable_everywhere() {
	for member in "${MEMBERS[@]}"; do
		on_node "$member" cp /usr/share/doc/eth-hpp-slurm-plugin/plugstack.conf.d/eth-hpp.conf $CONFIGURATION
		on_node "$member" sed -i "/^required/s|\$| site_file=$CLUSTER_DIR/etc/site.json|" $CONFIGURATION # emulated GPUs
	done
}

# Jobs that run while something is done: one that has nothing to do with eth-hpp, and, if told so, one that asks.
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

@test "the packages are clean for lintian" {
	run lintian --allow-root --fail-on error,warning "$TEST_WORK"/packages/eth-hpp_*.changes
	echo "$output"
	[ "$status" -eq 0 ]
	[ -z "$(grep '^[EW]:' <<<"$output")" ]
}

@test "the plugin's package fits the Slurm release that it was built for alone" {
	release=$(dpkg-query -W -f '${Version}' slurm-wlm-basic-plugins | cut -d. -f1,2)
	run dpkg -f "$TEST_WORK"/packages/eth-hpp-slurm-plugin_*.deb Depends
	[[ $output == *"slurm-wlm-basic-plugins (>= $release), slurm-wlm-basic-plugins (<< $release"* ||
		$output == *"slurm-wlm-basic-plugins (>= $release), slurm-wlm-basic-plugins (<< ${release%.*}."* ]]
}

@test "installed beside a running job, the packages enable nothing" {
	start_jobs
	for member in "${MEMBERS[@]}"; do install_on "$TEST_WORK/packages" "$member"; done
	run on_cluster srun -N2 --overlap hostname
	[ "$status" -eq 0 ]
	run on_cluster srun -N1 --overlap --eth-hpp=gpt2 hostname
	[ "$status" -ne 0 ]
	[[ $output == *"unrecognized option"* ]]
	jobs_end_well
}

@test "enabled by its sample, the plugin runs jobs through the launcher" {
	enable_everywhere
	for node in n1 n2; do restart_slurmd "$node"; done
	wait_until 20 cluster_is_idle
	run on_cluster srun -N2 --eth-hpp=gpt2 --eth-hpp-calibrate=no sh -c 'echo "rank $RANK with $ETH_HPP_INVENTORY"'
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"rank 0 with /run/eth-hpp/"*n1.json* && $output == *"rank 1 with /run/eth-hpp/"*n2.json* ]]
}

@test "upgraded node by node, running jobs and new ones go on" {
	start_jobs --eth-hpp=gpt2 --eth-hpp-calibrate=no
	for member in "${MEMBERS[@]}"; do
		install_on "$TEST_WORK/packages/newer" "$member"
		run on_cluster srun -N2 --overlap hostname
		[ "$status" -eq 0 ]
	done
	jobs_end_well
	run on_cluster srun -N2 --eth-hpp=gpt2 --eth-hpp-calibrate=no true
	[ "$status" -eq 0 ]
}

@test "switched off, running jobs go on and new ones that ask are refused" {
	start_jobs --eth-hpp=gpt2 --eth-hpp-calibrate=no
	for member in "${MEMBERS[@]}"; do on_node "$member" sed -i '/^required/s/$/ enabled=no/' $CONFIGURATION; done
	run on_cluster srun -N2 --overlap hostname
	[ "$status" -eq 0 ]
	run on_cluster srun -N1 --overlap --eth-hpp=gpt2 hostname
	[ "$status" -ne 0 ]
	[[ $output == *"switched off"* ]]
	jobs_end_well
	enable_everywhere
}

@test "named by another file of Slurm's than its own, the plugin is not removed" {
	for file in /etc/slurm/plugstack.conf /etc/slurm/plugstack.conf.d/site.conf /etc/slurm-llnl/plugstack.conf; do
		on_node n1 sh -c 'mkdir -p "${2%/*}" && cat "$1" >"$2"' sh $CONFIGURATION $file
		run on_node n1 dpkg --purge eth-hpp-slurm-plugin
		echo "$output"
		[ "$status" -ne 0 ]
		[[ $output == *"take the line with spank_eth_hpp.so out of $file first"* ]]
		on_node n1 test -e /usr/libexec/eth-hpp/eth-hpp-step
		on_node n1 test -e $CONFIGURATION
		on_node n1 rm $file
	done
}

@test "removed below running jobs, nothing fails and nothing is left" {
	start_jobs --eth-hpp=gpt2 --eth-hpp-calibrate=no
	for member in "${MEMBERS[@]}"; do
		on_node "$member" dpkg --purge --no-triggers eth-hpp-slurm-plugin eth-hpp libethhpp-dev libethhpp1
	done
	run on_cluster srun -N2 --overlap hostname
	[ "$status" -eq 0 ]
	jobs_end_well
	for node in n1 n2; do restart_slurmd "$node"; done
	wait_until 20 cluster_is_idle
	run on_cluster srun -N2 hostname
	[ "$status" -eq 0 ]
	for member in "${MEMBERS[@]}"; do
		run on_node "$member" find /usr /etc /var/lib /run -xdev -iname '*eth*hpp*' -newer "$TEST_WORK/nodes"
		echo "$member: $output"
		[ -z "$output" ]
	done
}

@test "rpmbuild makes the same split" {
	run rpmbuild -tb --nodeps --define "_topdir $TEST_WORK/rpm" "$TEST_WORK"/packages/eth-hpp-*.tar.xz
	[ "$status" -eq 0 ]
	for name in eth-hpp eth-hpp-slurm-plugin libethhpp1 libethhpp-devel; do
		compgen -G "$TEST_WORK/rpm/RPMS/*/$name-0.1.0-*.rpm"
	done
	release=$(dpkg-query -W -f '${Version}' slurm-wlm-basic-plugins | cut -d. -f1,2)
	run rpm -qp --requires "$TEST_WORK"/rpm/RPMS/*/eth-hpp-slurm-plugin-*.rpm
	[[ $output == *"slurm < "* && $output == *"slurm >= $release"* ]]
}
