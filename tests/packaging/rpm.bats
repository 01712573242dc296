#!/usr/bin/env bats
# The rpms, and their life on a cluster. Its machines are Debian's: the packages that the rpms depend on are there, but not as
# rpms, so that dependencies are looked at rather than resolved.

load ../cluster/helpers
load cluster
load lifecycle

setup_file() {
	local bcond=--without
	! has_toolkit || bcond=--with
	make_distribution
	mkdir -p first newer
	# The upgrade is the same build as another release of the package.
	{
		build_rpms -tb "$bcond" cuda eth-hpp-*.tar.xz && mv rpm/RPMS/*/*.rpm first/ &&
			tar xf eth-hpp-*.tar.xz &&
			build_rpms -bb --short-circuit "$bcond" cuda --define 'dist .newer' eth-hpp-*/contrib/eth-hpp.spec && mv rpm/RPMS/*/*.rpm newer/
	} >"$TEST_WORK/rpm.log" 2>&1 || {
		tail -n 30 "$TEST_WORK/rpm.log"
		return 1
	}
	start_cluster
}

build_rpms() { # ARGUMENT...
	rpmbuild --nodeps --noclean --buildroot "$PWD/root" --define "_topdir $PWD/rpm" "$@"
}

rpm_on() { # MEMBER ARGUMENT...
	local member=$1
	shift
	on_node "$member" rpm --dbpath /var/lib/rpm --force-debian --nodeps "$@"
}

install_on() { # FOLDER MEMBER
	rpm_on "$2" --upgrade "$1"/eth-hpp-[0-9]*.rpm "$1"/eth-hpp-slurm-plugin-*.rpm "$1"/libethhpp1-*.rpm "$1"/libethhpp-devel-*.rpm
}

remove_from() { # MEMBER
	rpm_on "$1" --erase eth-hpp-slurm-plugin eth-hpp libethhpp-devel libethhpp1
}

remove_plugin() { # MEMBER
	rpm_on "$1" --erase eth-hpp-slurm-plugin
}

requires() { # PACKAGE
	rpm -qp --requires "$TEST_WORK/packages/first/$1"-[0-9]*.rpm
}

@test "the rpms are those of the Debian packages" {
	for name in eth-hpp eth-hpp-slurm-plugin libethhpp1 libethhpp-devel; do
		compgen -G "$TEST_WORK/packages/first/$name-0.1.0-*.rpm"
	done
}

@test "the plugin's rpm fits the Slurm release that it was built for, and the program of its own build" {
	release=$(dpkg-query -W -f '${Version}' slurm-wlm-basic-plugins | cut -d. -f1,2)
	run requires eth-hpp-slurm-plugin
	[[ $output == *"slurm < "* && $output == *"slurm >= $release"* && $output == *"eth-hpp(x86-64) = 0.1.0-1"* ]]
}

@test "installed beside a running job, the rpms enable nothing" {
	installed_they_enable_nothing "$TEST_WORK/packages/first"
}

@test "enabled by its sample, the rpm's plugin runs jobs through the launcher" {
	enabled_the_plugin_runs_the_launcher
}

@test "the GPU module's rpm is installed where the program looks for it, and removed" {
	has_toolkit || skip "no CUDA toolkit: the rpm is not built"
	rpm_on n2 --install "$TEST_WORK"/packages/first/eth-hpp-cuda-*.rpm
	file=$(rpm -qpl "$TEST_WORK"/packages/first/eth-hpp-cuda-*.rpm | grep 'libethhpp_cuda\.so$')
	on_node n2 test -e "$file"
	on_node n2 grep -qF "${file%/*}" /usr/bin/eth-hpp
	run requires eth-hpp-cuda
	[[ $output == *"eth-hpp(x86-64) = 0.1.0-1"* && $output == *"libethhpp1(x86-64) = 0.1.0-1"* ]]
	rpm_on n2 --erase eth-hpp-cuda
	on_node n2 test ! -e "${file%/*}"
}

@test "upgraded node by node, running jobs and new ones go on" {
	upgraded_jobs_go_on "$TEST_WORK/packages/newer"
}

@test "switched off, running jobs go on and new ones that ask are refused" {
	switched_off_jobs_go_on
}

@test "named by another file of Slurm's than its own, the rpm's plugin is not removed" {
	named_elsewhere_the_plugin_stays /etc/slurm/plugstack.conf /etc/slurm/plugstack.conf.d/site.conf
}

# Two releases of a Slurm without files.
@test "while the rpm's plugin is there, rpm does not upgrade Slurm" {
	release=$(dpkg-query -W -f '${Version}' slurm-wlm-basic-plugins | cut -d. -f1,2)
	for version in "$release.1" 99.05.1; do
		printf '%s\n' 'Name: slurm' "Version: $version" 'Release: 1' 'Summary: A test' 'License: none' 'BuildArch: noarch' \
			'%description' '%files' >"$TEST_WORK/slurm.spec"
		rpmbuild -bb --define "_topdir $TEST_WORK/slurm" "$TEST_WORK/slurm.spec"
	done
	rpm_on n2 --install "$TEST_WORK/slurm/RPMS/noarch/slurm-$release"*.rpm
	run on_node n2 rpm --dbpath /var/lib/rpm --force-debian --upgrade "$TEST_WORK"/slurm/RPMS/noarch/slurm-99.*.rpm
	echo "$output"
	[ "$status" -ne 0 ]
	[[ $output == *"slurm < "*" is needed by (installed) eth-hpp-slurm-plugin"* ]]
	rpm_on n2 --erase slurm
}

@test "removed below running jobs, nothing fails and nothing but the disabled configuration is left" {
	removed_nothing_fails_and_nothing_is_left $CONFIGURATION.disabled
}
