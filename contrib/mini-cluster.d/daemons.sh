# The daemons of a mini-cluster: munged, slurmctld, one slurmd a node. Sourced by mini-cluster.
# shellcheck shell=bash

daemon_names='slurmctld|slurmd|slurmstepd|munged'

# The plain way shares this machine's ports with everybody: a range of its own for each folder.
choose_ports() {
	local sum try port
	first_port=6817
	[ "$mode" = plain ] || return 0
	read -r sum _ < <(cksum <<<"$dir")
	for ((try = 0; try < 400; try++)); do
		first_port=$((20000 + (sum + try) % 400 * 25))
		for ((port = first_port; port <= first_port + ${#node_names[@]}; port++)); do
			port_free "$port" || continue 2
		done
		return 0
	done
	die "no free ports found between 20000 and 30000"
}

port_free() { # PORT
	! (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

daemons_start() {
	local name
	(umask 077 && head -c 1024 /dev/urandom >"$dir/etc/munge.key")
	daemon login munged --key-file="$dir/etc/munge.key" --socket="$dir/run/munge.socket" \
		--pid-file="$dir/run/munged.pid" --log-file="$dir/log/munged.log" --seed-file="$dir/run/munge.seed"
	wait_until 10 test -S "$dir/run/munge.socket" || die "munged did not start: see $dir/log/munged.log"
	daemon login slurmctld
	for name in "${node_names[@]}"; do daemon "$name" slurmd -N "$name"; done
	wait_until 30 nodes_ready ||
		die "the nodes did not come up: see $dir/log; sinfo says: $(on_login sinfo -N -h -o '%N %T %E' 2>&1)"
}

daemon() { # MEMBER COMMAND...
	local member=$1
	shift
	(close_descriptors && cd / && SLURM_CONF=$dir/etc/slurm.conf member_exec "$member" "$@") \
		</dev/null >>"$dir/log/$1-start.log" 2>&1 ||
		die "$1 of $member did not start: $(tail -qn 3 "$dir/log/$1-start.log" "$dir/log/$1-$member.log" 2>/dev/null)"
}

nodes_ready() {
	local states
	states=$(on_login sinfo -h -p all -N -o %T 2>/dev/null) || return 1
	[ "$(grep -cx idle <<<"$states")" -eq ${#node_names[@]} ]
}

# A command with the cluster's environment on the login node.
on_login() {
	member_env login "$@"
}

member_env() { # MEMBER COMMAND...
	local member=$1
	shift
	SLURM_CONF=$dir/etc/slurm.conf ETH_HPP_SITE_FILE=$dir/etc/site.json member_exec "$member" "$@"
}

# In the plain way no kernel ends the job's processes along with the daemons.
daemons_stop_plain() {
	local pid jobs
	if jobs=$(timeout 5 env SLURM_CONF="$dir/etc/slurm.conf" squeue -h -o %A 2>/dev/null) && [ -n "$jobs" ]; then
		# shellcheck disable=SC2086 # one word a job
		timeout 5 env SLURM_CONF="$dir/etc/slurm.conf" scancel $jobs || true
		wait_until 5 no_process_left slurmstepd || true
	fi
	for pid in $(cluster_processes "$daemon_names"); do
		kill_tree "$pid"
	done
	wait_until 10 no_process_left "$daemon_names" ||
		die "some daemons of $dir do not end: $(cluster_processes "$daemon_names")"
}

no_process_left() { # NAMES
	[ -z "$(cluster_processes "$1")" ]
}

# Processes of this cluster by the name of their program: they all have its configuration in their
# environment, also when their pid file is gone.
cluster_processes() { # NAMES
	local folder program
	for folder in /proc/[0-9]*; do
		# Debian's files are called slurmd-wlm...
		program=$(readlink "$folder/exe" 2>/dev/null) || continue
		[[ ${program##*/} =~ ^($1)(-wlm)?$ ]] || continue
		tr '\0' '\n' 2>/dev/null <"$folder/environ" | grep -qxF "SLURM_CONF=$dir/etc/slurm.conf" || continue
		echo "${folder#/proc/}"
	done
}

kill_tree() { # PID
	local child
	for child in $(cat "/proc/$1/task/"*/children 2>/dev/null); do kill_tree "$child"; done
	kill -KILL "$1" 2>/dev/null || true
}
