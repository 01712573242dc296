# Members of a mini-cluster: the login node and the nodes, as namespaces. Sourced by mini-cluster.
# shellcheck shell=bash

started=() # processes that this command has started and not seen ready
namespace_flags=(--net --mount --uts --ipc --pid)

# Are namespaces, a private /proc and veth pairs allowed here?
namespaces_allowed() {
	unshare "${namespace_flags[@]}" --fork sh -c \
		'mount -t proc proc /proc && ip link add port0 type veth peer name eth0 && ip link add switch type bridge' \
		>/dev/null 2>&1
}

member_start() { # NAME
	local own=$dir/nodes/$1
	mkdir -p "$own/tmp" "$own/spool"
	chmod 1777 "$own/tmp"
	cat /proc/sys/kernel/random/uuid >"$own/boot_id"
	(
		close_descriptors
		exec setsid unshare "${namespace_flags[@]}" --fork --kill-child --propagation private \
			"$parts/member-init" "$dir" "$1" "$checkout" "$root" </dev/null >>"$dir/log/member-$1.log" 2>&1
	) &
	started+=($!)
}

# What is to outlive this command keeps nothing of its caller's open: a pipe would never end.
close_descriptors() {
	local fd
	for fd in /proc/self/fd/*; do
		fd=${fd##*/}
		[ "$fd" -le 2 ] || [ "$fd" -eq 255 ] || eval "exec $fd>&-"
	done
}

member_wait() { # NAME
	wait_until 10 test -s "$dir/run/$1.pid" ||
		die "member $1 did not start: $(tail -n 3 "$dir/log/member-$1.log")"
}

# The process that holds the member's namespaces; fails where it is gone.
member_pid() { # NAME
	local pid
	read -r pid 2>/dev/null <"$dir/run/$1.pid" || return 1
	# A number may have gone to another process since.
	tr '\0' '\n' 2>/dev/null <"/proc/$pid/cmdline" | grep -qxF "$dir" || return 1
	echo "$pid"
}

# Runs a command inside a member; in the plain way all members are this machine.
member_exec() { # NAME COMMAND...
	local name=$1 pid
	shift
	if [ "$mode" = plain ]; then
		"$@"
		return
	fi
	pid=$(member_pid "$name") || die "member $name is not running"
	# The caller's folder, looked up in the member's own mounts.
	nsenter --target "$pid" --net --mount --uts --ipc --pid -- \
		/bin/sh -c 'cd "$0" 2>/dev/null || cd /; exec "$@"' "$PWD" "$@"
}

# The switch is a bridge in the login node's own network, so that this machine's network is untouched
# and any number of clusters can use the same addresses.
network_start() {
	local login i
	login=$(member_pid login)
	in_network "$login" ip link set lo up
	in_network "$login" ip link add switch type bridge
	in_network "$login" ip address add 10.77.0.1/24 dev switch
	in_network "$login" ip link set switch up
	for i in "${!node_names[@]}"; do network_plug_in "$login" "$i"; done
}

network_plug_in() { # LOGIN-PID INDEX
	local login=$1 port=port$2 pid
	pid=$(member_pid "${node_names[$2]}")
	in_network "$login" ip link add "$port" type veth peer name eth0 netns "$pid"
	in_network "$login" ip link set "$port" master switch up
	in_network "$pid" ip link set lo up
	in_network "$pid" ip address add "$(node_address "$2")/24" dev eth0
	in_network "$pid" ip link set eth0 up
	[ "${node_rates[$2]}" = unlimited ] && return
	if ! { shape "$login" "$port" "${node_rates[$2]}" && shape "$pid" eth0 "${node_rates[$2]}"; }; then
		say "the rate of ${node_names[$2]} is not limited: traffic shaping (tc) is not allowed here"
	fi
}

in_network() { # PID COMMAND...
	local pid=$1
	shift
	nsenter --target "$pid" --net -- "$@"
}

# A burst of a millisecond keeps fast links fast.
shape() { # PID DEVICE RATE
	local burst=$(($(rate_bytes "$3") / 1000))
	[ $burst -ge 256000 ] || burst=256000
	in_network "$1" tc qdisc add dev "$2" root tbf rate "$3" burst $burst latency 100ms 2>/dev/null
}

# Ends all members with everything inside them, those too that have just been started.
members_stop() {
	[ ${#started[@]} -eq 0 ] || kill -KILL "${started[@]}" 2>/dev/null || true
	wait_until 10 no_member_left || die "some processes do not end: $(member_processes | xargs)"
}

no_member_left() {
	local pids
	pids=$(member_processes)
	[ -n "$pids" ] || return 0
	# shellcheck disable=SC2086 # one word a process
	kill -KILL $pids 2>/dev/null
	return 1
}

# Found by their command lines: there may be no pid file yet, or no more.
member_processes() {
	local file
	for file in $(grep -lzxF -- "$dir" /proc/[0-9]*/cmdline 2>/dev/null); do
		grep -qz 'member-init$' "$file" 2>/dev/null && [[ $file =~ [0-9]+ ]] && echo "${BASH_REMATCH[0]}"
	done
	true
}
