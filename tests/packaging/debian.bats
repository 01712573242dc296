#!/usr/bin/env bats
# The Debian source package, what it builds, and the life of that on a cluster.

load ../cluster/helpers
load cluster
load lifecycle
load slurm_upgrade

setup_file() {
	make_distribution
	export DEB_BUILD_OPTIONS="nocheck parallel=$(nproc)" DEB_BUILD_PROFILES=""
	! has_toolkit || DEB_BUILD_PROFILES=pkg.eth-hpp.cuda
	tar xf eth-hpp-*.tar.xz
	{
		(cd eth-hpp-*/ && dpkg-buildpackage -us -uc -S) &&
			dpkg-source -x eth-hpp_*.dsc unpacked &&
			(cd unpacked && dpkg-buildpackage -us -uc -b)
	} >"$TEST_WORK/deb.log" 2>&1 || {
		tail -n 30 "$TEST_WORK/deb.log"
		return 1
	}
	repack 9.0 newer
	start_cluster
}

# The same packages under a higher version, as an upgrade.
repack() { # VERSION FOLDER [SED-EXPRESSION]
	local package
	mkdir -p "$2"
	for package in "$TEST_WORK"/packages/*[!m]_0.1.0_*.deb; do # not those of debug symbols
		dpkg-deb -R "$package" repacked
		sed -i -E "s/^Version: .*/Version: $1/; s/\(= 0\.1\.0\)/(= $1)/g; ${3-}" repacked/DEBIAN/control
		dpkg-deb --root-owner-group -b repacked "$2" >/dev/null
		rm -r repacked
	done
}

install_on() { # FOLDER MEMBER
	# shellcheck disable=SC2016 # for the member's shell
	on_node "$2" sh -c 'dpkg --install --no-triggers "$1"/eth-hpp_*.deb "$1"/eth-hpp-slurm-plugin_*.deb "$1"/libethhpp1_*.deb \
		"$1"/libethhpp-dev_*.deb' sh "$1"
}

remove_from() { # MEMBER
	on_node "$1" dpkg --purge --no-triggers eth-hpp-slurm-plugin eth-hpp libethhpp-dev libethhpp1
}

remove_plugin() { # MEMBER
	on_node "$1" dpkg --purge eth-hpp-slurm-plugin
}

@test "the source package and the packages are clean for lintian" {
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
	installed_they_enable_nothing "$TEST_WORK/packages"
}

@test "a program is built with the library's packages, and is told that there is no plan" {
	cat >"$TEST_WORK/program.c" <<-END
		#include <eth_hpp.h>
		#include <stdio.h>

		int main(void)
		{
		    struct eth_hpp_context *context;
		    struct eth_hpp_error err;
		    if (eth_hpp_init(NULL, &context, &err) == ETH_HPP_ERR_INPUT)
		        puts(err.text);
		    return 0;
		}
	END
	# shellcheck disable=SC2016 # for the member's shell
	on_node login sh -ec 'cd "$1" && cc -Wall -Werror $(pkg-config --cflags eth-hpp) -o program program.c $(pkg-config --libs eth-hpp)' \
		sh "$TEST_WORK"
	run on_node login env -u ETH_HPP_PLAN_FILE "$TEST_WORK/program"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *plan* ]]
}

@test "enabled by its sample, the plugin runs jobs through the launcher" {
	enabled_the_plugin_runs_the_launcher
}

@test "the GPU module's package goes with the program and the library of its own build" {
	has_toolkit || skip "no CUDA toolkit: the package is not built"
	on_node n2 dpkg --install "$TEST_WORK"/packages/eth-hpp-cuda_*.deb
	file=$(on_node n2 dpkg --listfiles eth-hpp-cuda | grep 'libethhpp_cuda\.so$')
	on_node n2 grep -qF "${file%/*}" /usr/bin/eth-hpp
	for package in eth-hpp libethhpp1; do
		run on_node n2 apt-get --yes --no-remove install "$TEST_WORK/packages/newer/${package}_9.0_amd64.deb"
		echo "$output"
		[ "$status" -ne 0 ]
		[[ $output == *"eth-hpp-cuda"* ]]
	done
	on_node n2 dpkg --purge eth-hpp-cuda
	on_node n2 test ! -e "$file"
}

@test "upgraded node by node, running jobs and new ones go on" {
	upgraded_jobs_go_on "$TEST_WORK/packages/newer"
}

@test "switched off, running jobs go on and new ones that ask are refused" {
	switched_off_jobs_go_on
}

@test "named by another file of Slurm's than its own, the plugin is not removed" {
	named_elsewhere_the_plugin_stays /etc/slurm/plugstack.conf /etc/slurm/plugstack.conf.d/site.conf /etc/slurm-llnl/plugstack.conf
}

# A package in favour of which dpkg removes the plugin, and which cannot be installed.
@test "enabled before a removal that is given up, the plugin is enabled after it" {
	mkdir -p "$TEST_WORK/failing/DEBIAN"
	cat >"$TEST_WORK/failing/DEBIAN/control" <<-END
		Package: failing
		Version: 1
		Architecture: all
		Maintainer: Nobody <nobody@example.org>
		Conflicts: eth-hpp-slurm-plugin
		Replaces: eth-hpp-slurm-plugin
		Description: a test
	END
	printf '#!/bin/sh\nexit 1\n' >"$TEST_WORK/failing/DEBIAN/preinst"
	chmod 755 "$TEST_WORK/failing/DEBIAN/preinst"
	dpkg-deb --root-owner-group -b "$TEST_WORK/failing" "$TEST_WORK/failing.deb"
	on_node n1 cp $CONFIGURATION "$TEST_WORK/enabled"
	run on_node n1 dpkg --install "$TEST_WORK/failing.deb"
	echo "$output"
	[ "$status" -ne 0 ]
	[[ $output == *"removing eth-hpp-slurm-plugin"* ]]
	on_node n1 cmp $CONFIGURATION "$TEST_WORK/enabled"
	[ "$(on_node n1 dpkg-query -W -f '${db:Status-Status}' eth-hpp-slurm-plugin)" = installed ]
}

@test "removed and installed again, the plugin is not enabled" {
	on_node n1 dpkg --remove --no-triggers eth-hpp-slurm-plugin
	on_node n1 test -e $CONFIGURATION.disabled
	install_on "$TEST_WORK/packages/newer" n1
	on_node n1 test ! -e $CONFIGURATION
	on_node n1 mv $CONFIGURATION.disabled $CONFIGURATION
}

@test "removed below running jobs, nothing fails and nothing is left" {
	removed_nothing_fails_and_nothing_is_left
}

# On a node that is given up with this: the newer Slurm has no files.
@test "Slurm is upgraded by no upgrade that removes nothing while the plugin is there" {
	newer_slurm "$TEST_WORK/slurm"
	install_on "$TEST_WORK/packages/newer" n2
	enable_on n2
	offer "$TEST_WORK/slurm" n2
	slurm=$(state_of n2 slurmd)
	apt_on n2 upgrade
	run apt_on n2 --no-remove install slurm-client slurmd
	echo "$output"
	[ "$status" -ne 0 ]
	[ "$(state_of n2 slurmd)" = "$slurm" ]
	[ "$(state_of n2 slurm-wlm-basic-plugins)" = "$slurm" ]
	[ "$(state_of n2 eth-hpp-slurm-plugin)" = "installed 9.0" ]
	on_node n2 test -e "$CONFIGURATION"
}

@test "Slurm's upgrade that takes the plugin along stops where another file names the plugin" {
	on_node n2 cp "$CONFIGURATION" /etc/slurm/plugstack.conf.d/site.conf
	run apt_on n2 dist-upgrade
	echo "$output"
	[ "$status" -ne 0 ]
	[[ $output == *"take the line with spank_eth_hpp.so out of /etc/slurm/plugstack.conf.d/site.conf first"* ]]
	[ "$(state_of n2 eth-hpp-slurm-plugin)" = "installed 9.0" ]
	on_node n2 test -e "$CONFIGURATION"
	on_node n2 rm /etc/slurm/plugstack.conf.d/site.conf
}

@test "Slurm's upgrade that takes the plugin along leaves no file of Slurm's that names it" {
	run apt_on n2 dist-upgrade
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"Removing eth-hpp-slurm-plugin"* ]]
	[ "$(state_of n2 slurmd)" = "installed $NEWER_SLURM" ]
	run on_node n2 grep -rls --include='*.conf' spank_eth_hpp /etc/slurm
	[ -z "$output" ]
	on_node n2 test -e "$CONFIGURATION.disabled"
}

# On another node, which is given up, too.
@test "Slurm and the plugin that fits it are upgraded at once, and the plugin stays enabled" {
	install_on "$TEST_WORK/packages/newer" n1
	enable_on n1
	cd "$TEST_WORK"
	repack 10.0 "$TEST_WORK/slurm" "s/(slurm-[a-z-]*) \(>= [^)]*\)/\1 (>= 99.05)/g; s/\(<< [^)]*\)/(<< 99.06~)/"
	offer "$TEST_WORK/slurm" n1
	apt_on n1 dist-upgrade
	[ "$(state_of n1 slurmd)" = "installed $NEWER_SLURM" ]
	[ "$(state_of n1 eth-hpp-slurm-plugin)" = "installed 10.0" ]
	on_node n1 test -e "$CONFIGURATION"
}
