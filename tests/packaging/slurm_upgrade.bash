# A newer Slurm for the machine's package manager: empty packages of the names and relations of those installed here.
# shellcheck shell=bash

NEWER_SLURM=99.05.1-1

newer_slurm() { # FOLDER
	local version package
	version=$(dpkg-query -W -f '${Version}' slurm-wlm-basic-plugins)
	mkdir -p "$1"
	# shellcheck disable=SC2016 # dpkg-query's fields
	for package in $(dpkg-query -W -f '${source:Package} ${Status} ${Package}\n' | sed -n 's/^slurm-wlm install ok installed //p'); do
		mkdir -p empty/DEBIAN
		dpkg-query -W -f 'Package: ${Package}\nSource: slurm-wlm\nVersion: ${Version}\nArchitecture: ${Architecture}\nMulti-Arch: ${Multi-Arch}
Maintainer: Nobody <nobody@example.org>\nDepends: ${Depends}\nDescription: a test\n' "$package" |
			sed "/^[A-Za-z-]*: *\$/d; s/$version/$NEWER_SLURM/g" >empty/DEBIAN/control
		dpkg-deb --root-owner-group -b empty "$1" >/dev/null
		rm -r empty
	done
}

# A member whose packages come from the folder alone. No daemon of theirs starts or stops there.
offer() { # FOLDER MEMBER
	(cd "$1" && dpkg-scanpackages . >Packages)
	# shellcheck disable=SC2016 # for the member's shell
	on_node "$2" sh -ec 'rm -rf /etc/apt/sources.list.d/* /var/lib/apt/lists/*
		printf "#!/bin/sh\nexit 101\n" >/usr/sbin/policy-rc.d && chmod +x /usr/sbin/policy-rc.d
		echo "deb [trusted=yes] file:$1 ./" >/etc/apt/sources.list
		apt-get -q update' sh "$1"
}

apt_on() { # MEMBER ARGUMENT...
	local member=$1
	shift
	on_node "$member" env DEBIAN_FRONTEND=noninteractive apt-get -q -y "$@"
}

state_of() { # MEMBER PACKAGE
	# shellcheck disable=SC2016 # dpkg-query's fields
	on_node "$1" dpkg-query -W -f '${db:Status-Status} ${Version}' "$2"
}
