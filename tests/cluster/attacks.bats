#!/usr/bin/env bats
# What one user tries against root's processes and against another user, on nodes that both have jobs on. Nothing of
# it reads, writes, stops or tells what is not the user's own.

load helpers
CLUSTER_DIR=$OTHER_CLUSTER_DIR

# Two of the users that every Debian machine has.
MALLORY=$(id -u www-data) VICTIM=$(id -u backup)

setup_file() {
	printf '%s\n' 'n1 T4:2' 'n2 T4:2' >"$BATS_FILE_TMPDIR/nodes"
	cp "$CHECKOUT/tests/emulation/launcher" "$TEST_WORK/launcher"
	compile spy.so pmix
	mini_cluster start --nodes "$BATS_FILE_TMPDIR/nodes" --plugin "$PLUGIN" --launcher "$TEST_WORK/launcher"
}

teardown_file() {
	mini_cluster stop
}

setup() {
	LOOT=$TEST_WORK/loot
	rm -rf "$LOOT"
	mkdir -m 1777 "$LOOT"
	setpriv --reuid="$MALLORY" --regid="$MALLORY" --clear-groups test -r "$PLUGIN" ||
		skip "the build folder is closed to other users"
}

teardown() {
	cancel_all_jobs
	wait_until 10 no_inventory_left
	[ "$(on_cluster sinfo -h -p all -o %T)" = idle ] # drained is none
}

no_inventory_left() {
	[ -z "$(on_node n1 find /run/eth-hpp -mindepth 1 2>/dev/null)$(on_node n2 find /run/eth-hpp -mindepth 1 2>/dev/null)" ]
}

as() { # UID COMMAND...
	local user=$1
	shift
	on_cluster setpriv --reuid="$user" --regid="$user" --clear-groups "$@"
}

# No log of root's has a line that begins as the attacker wants it.
no_line_forged() {
	! grep -arn '^FORGED' "$CLUSTER_DIR/log"
}

@test "options preset behind srun's back are checked in slurmstepd, and forge no line of a log" {
	local name
	for name in seq global_batch plan dtype; do
		run as "$MALLORY" env "_SLURM_SPANK_OPTION_eth_hpp_eth_hpp=gpt2" \
			"_SLURM_SPANK_OPTION_eth_hpp_eth_hpp_$name=1"$'\nFORGED \e[2J\r\nFORGED' srun -N2 true
		echo "$name: $output"
		[ "$status" -ne 0 ]
		[ "$(grep -c 'eth-hpp: ' <<<"$output")" -eq 1 ]
		[[ $output == *"eth-hpp: --eth-hpp-"* && $output != *launched* && $output != *$'\e'* ]]
		no_line_forged
	done
	run as "$MALLORY" srun -N1 -J $'job\nFORGED' --eth-hpp=$'gpt2\nFORGED' true
	[ "$status" -ne 0 ]
	as "$MALLORY" srun -N1 -J $'job\nFORGED' --eth-hpp=gpt2 true $'no\nFORGED'
	no_line_forged
}

@test "an option of all that fits is refused with a short line" {
	local huge
	huge=$(head -c 100000 /dev/zero | tr '\0' x)
	run as "$MALLORY" srun -N1 --eth-hpp="$huge" true
	[ "$status" -ne 0 ]
	[ "$(grep 'eth-hpp: ' <<<"$output" | head -c 4000 | wc -c)" -lt 2000 ]
	run as "$MALLORY" env "_SLURM_SPANK_OPTION_eth_hpp_eth_hpp=gpt2" "_SLURM_SPANK_OPTION_eth_hpp_eth_hpp_seq=$huge" srun -N1 true
	[ "$status" -ne 0 ]
	[ "$(grep 'eth-hpp: ' <<<"$output" | head -c 4000 | wc -c)" -lt 2000 ]
	printf '#!/bin/sh\n#SBATCH --eth-hpp-seq=%s%s%s\n' "$huge" "$huge" "$huge" >"$LOOT/job"
	run as "$MALLORY" sbatch -W -o /dev/null "$LOOT/job"
	[ "$status" -ne 0 ]
}

# By a stranger, and by the user of the jobs.
@test "who races prologs and epilogs with links, folders and renames wins nothing" {
	local job user i racers=()
	compile racer pmix
	mkdir -m 777 "$LOOT/target"
	job=$(as "$VICTIM" srun -N1 -w n1 sh -c 'echo $SLURM_JOB_ID')
	on_node n1 rm -rf /run/eth-hpp # its making is raced for, too
	for user in "$MALLORY" "$VICTIM"; do
		on_node n1 setpriv --reuid="$user" --regid="$user" --clear-groups "$TEST_WORK/racer" "$LOOT/target" "$job" 6 \
			>"$LOOT/raced-$user" 2>&1 3>&- &
		racers+=($!)
	done
	i=0
	while kill -0 "${racers[0]}" 2>/dev/null; do
		as "$VICTIM" srun -N1 -w n1 --eth-hpp=gpt2 grep -q '"node":"n1"' "/run/eth-hpp/$((job + ++i))/n1.json"
	done
	wait "${racers[@]}"
	cat "$LOOT"/raced-*
	[ $i -gt 2 ] && [ $i -lt 40 ]
	[ "$(cat "$LOOT"/raced-*)" = tried$'\n'tried ]
	[ -z "$(ls "$LOOT/target")" ]
	[ "$(on_node n1 stat -c '%u %a' /run/eth-hpp)" = "0 711" ]
}

# Each program that a user could plant says as whom it runs.
plant() { # PROGRAM...
	local program
	mkdir "$LOOT/bin"
	for program in "$@"; do
		printf '#!/bin/sh\nexec /usr/bin/env -u LD_PRELOAD /bin/sh -c '\''echo "$(/usr/bin/id -u) planted %s" >>"%s"'\''\n' \
			"$program" "$LOOT/spy" >"$LOOT/bin/$program"
	done
	chmod -R 755 "$LOOT/bin"
}

@test "a user's LD_PRELOAD, PATH, SPANK_* and ETH_HPP_* reach no process but the user's own" {
	plant scancel eth-hpp launcher inventory nvidia-smi id env printf
	run as "$MALLORY" env LD_PRELOAD="$TEST_WORK/spy.so" SPY="$LOOT/spy" PATH="$LOOT/bin:$PATH" \
		SPANK_LD_PRELOAD="$TEST_WORK/spy.so" SPANK_SPY="$LOOT/spy" SPANK_SLURMD_NODENAME=../../etc SLURMD_NODENAME=../../etc \
		SPANK_SLURM_JOB_ID=1 SLURM_JOB_UID=0 SPANK__SLURM_SPANK_OPTION_eth_hpp_eth_hpp=gpt2 ETH_HPP_INVENTORY=/etc/shadow \
		ETH_HPP_STEP_LAUNCHER="$LOOT/bin/launcher" ETH_HPP_STEP_COMMAND="$LOOT/bin/inventory" ETH_HPP_SITE_FILE=/etc/shadow \
		ETH_HPP_LAUNCHER="$LOOT/bin/launcher" \
		srun -N2 --eth-hpp=gpt2 /bin/sh -c 'echo "at $SLURM_JOB_ID $ETH_HPP_INVENTORY $ETH_HPP_SITE_FILE"; kill -SEGV $$'
	echo "$output"
	[ "$status" -ne 0 ] # and so scancel is run
	grep -qE "^at ([0-9]+) /run/eth-hpp/\1/n[12]\.json $CLUSTER_DIR/etc/site.json\$" <<<"$output"
	[ "$(grep -c 'eth-hpp: rank .* ended by signal' <<<"$output")" -ge 1 ]
	cat "$LOOT/spy"
	[ "$(wc -l <"$LOOT/spy")" -ge 4 ]
	[ "$(cut -d' ' -f1 "$LOOT/spy" | sort -u)" = "$MALLORY" ]
}

@test "the files of root's have their owner and mode, and a user in the job can change none" {
	cat >"$LOOT/try" <<-'END'
		file=$ETH_HPP_INVENTORY folder=${ETH_HPP_INVENTORY%/*}
		stat -c '%U %a %F %n' "$file" "$folder" /run/eth-hpp
		try() { "$@" 2>/dev/null && echo "DONE: $*"; }
		try ls /run/eth-hpp
		try ls "$folder"
		try rm -f "$file"
		try mv "$file" "$file.old"
		try chmod 666 "$file"
		try ln -sf /etc/passwd "$file"
		try ln -s /tmp "/run/eth-hpp/$((SLURM_JOB_ID + 1))"
		try mkdir "/run/eth-hpp/$((SLURM_JOB_ID + 1))"
		try touch "$folder/n2.json" "/run/eth-hpp/n1.stuck"
		try rmdir "$folder"
		try mv /run/eth-hpp /run/mine
		try sh -c "echo >>$file"
		echo tried
	END
	run as "$MALLORY" srun -N1 -w n1 --eth-hpp=gpt2 sh "$LOOT/try"
	echo "$output"
	[ "$status" -eq 0 ]
	grep -qxE 'root 644 regular file /run/eth-hpp/[0-9]+/n1.json' <<<"$output"
	grep -qxE 'root 710 directory /run/eth-hpp/[0-9]+' <<<"$output"
	grep -qxF 'root 711 directory /run/eth-hpp' <<<"$output"
	grep -qxF tried <<<"$output"
	[[ $output != *DONE* ]]
}

# A job of the victim's on the first node, which goes on until it is let go.
start_victim() { # OPTION... -- COMMAND: what its task does first
	local -a options=()
	while [ "$1" != -- ]; do
		options+=("$1")
		shift
	done
	as "$VICTIM" srun --quiet -N1 -n1 -w n1 --overlap "${options[@]}" sh -c "$2; while [ ! -e $LOOT/go ]; do sleep 0.1; done" \
		>"$LOOT/victim.out" 2>&1 3>&- &
	victim=$!
	wait_until 20 test -s "$LOOT/victim"
	read -r job pid what <"$LOOT/victim"
}

@test "a neighbour's job, inventory and processes are out of reach" {
	start_victim --eth-hpp=gpt2 -- "echo \$SLURM_JOB_ID \$\$ \$ETH_HPP_INVENTORY >$LOOT/victim"
	cat >"$LOOT/try" <<-'END'
		job=$1 pid=$2
		try() { "$@" >/dev/null 2>&1 && echo "DONE: $*"; }
		try cp "$0" "/run/eth-hpp/$job/n1.json"
		try rm -f "/run/eth-hpp/$job/n1.json"
		try touch "/run/eth-hpp/$job/n2.json"
		try cat "/run/eth-hpp/$job/n1.json"
		try stat "/run/eth-hpp/$job/n1.json"
		try ls "/run/eth-hpp/$job"
		try cat "/proc/$pid/environ"
		try ls "/proc/$pid/fd"
		try kill -KILL "$pid"
		try scancel "$job"
		try srun --jobid="$job" --overlap --eth-hpp=gpt2 true
		echo "own $SLURM_JOB_ID $ETH_HPP_INVENTORY"
	END
	# Of the victim's group, as all users of a site may be.
	run on_cluster setpriv --reuid="$MALLORY" --regid="$VICTIM" --clear-groups env ETH_HPP_INVENTORY="$what" \
		srun -N1 -n1 -w n1 --overlap --eth-hpp=gpt2 sh "$LOOT/try" "$job" "$pid"
	echo "$output"
	[ "$status" -eq 0 ]
	grep -qE '^own ([0-9]+) /run/eth-hpp/\1/n1.json$' <<<"$output"
	[[ $output != *DONE* ]]
	[ "$(on_node n1 sh -c "grep -c '\"node\":\"n1\"' /run/eth-hpp/$job/n1.json")" -eq 1 ]
	touch "$LOOT/go"
	wait $victim # its job is as if nothing had been
}

@test "a neighbour's plan cannot be read, and its launch not be stopped by what lies in its way" {
	on_node n1 setpriv --reuid="$MALLORY" --regid="$MALLORY" --clear-groups sh -c "mkdir -m 777 /tmp/eth-hpp-$VICTIM; ln -s / /tmp/eth-hpp-plan"
	start_victim --mpi=none --gpus-per-node=1 -- "exec $ETH_HPP_PREFIX/bin/eth-hpp launch --model=gpt2 --calibrate=no -- sh -c '
		grep -q eth-hpp-plan \$ETH_HPP_PLAN_FILE && echo \$SLURM_JOB_ID \$\$ \$ETH_HPP_PLAN_FILE >$LOOT/victim
		while [ ! -e $LOOT/go ]; do sleep 0.1; done'"
	run on_node n1 setpriv --reuid="$MALLORY" --regid="$MALLORY" --clear-groups cat "$what"
	[ "$status" -ne 0 ]
	[[ $output == *"Permission denied"* ]]
	on_node n1 setpriv --reuid="$VICTIM" --regid="$VICTIM" --clear-groups grep -q eth-hpp-plan "$what"
	touch "$LOOT/go"
	wait $victim
	on_node n1 rm -rf "/tmp/eth-hpp-$VICTIM" /tmp/eth-hpp-plan
}

@test "a user who stops what ends the step holds up nothing, and keeps no process outside of a job" {
	local stopper
	on_node n1 timeout 60 setpriv --reuid="$MALLORY" --regid="$MALLORY" --clear-groups \
		sh -c "until pkill -STOP -u $MALLORY -x scancel; do :; done; echo >$LOOT/stopped" 3>&- &
	stopper=$!
	while [ ! -e "$LOOT/stopped" ]; do # a scancel may be too quick for him
		kill -0 $stopper
		run as "$MALLORY" srun -N1 -w n1 --eth-hpp=gpt2 sh -c 'kill -SEGV $$'
		[ "$(grep -c 'eth-hpp: rank 0 on n1: ended by signal' <<<"$output")" -eq 1 ]
		wait_until 10 cluster_is_idle
	done
	pgrep -u "$MALLORY" -x scancel # it is stopped, and its step over
	wait_until 20 no_scancel_left
}

no_scancel_left() {
	! pgrep -u "$MALLORY" -x scancel
}
