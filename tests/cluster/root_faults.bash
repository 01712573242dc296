# shellcheck shell=bash
# Faults under the plugin, and what jobs must end with.

TABLE=$BATS_FILE_TMPDIR/table
task=true   # how the task of a job that asked ends
submit=srun # with what jobs are submitted: srun, salloc or sbatch

declare -gA ERRNO=([EIO]=5 [EAGAIN]=11 [ENOMEM]=12 [EACCES]=13 [ENFILE]=23 [EMFILE]=24 [ENOSPC]=28 [EROFS]=30 [EINTR]=4
	[ENOENT]=2 [SIGKILL]=9 [SIGTERM]=15)

start_cluster_of_faults() {
	mkdir -p "$TEST_WORK"
	echo 'n1 T4:2' >"$BATS_FILE_TMPDIR/nodes"
	cp "$CHECKOUT/tests/emulation/launcher" "$TEST_WORK/launcher"
	compile failing_calls.so pmix
	mini_cluster start --nodes "$BATS_FILE_TMPDIR/nodes" --plugin "$PLUGIN" --launcher "$TEST_WORK/launcher"
	sed -i 's|$| timeout=1|' "$CLUSTER_DIR/etc/plugstack.conf"
	cp "$CLUSTER_DIR/etc/plugstack.conf" "$BATS_FILE_TMPDIR/"
	write_slurmstepd
	restart_slurmd -d "$TEST_WORK/slurmstepd"
	: >"$TABLE"
}

stop_cluster_of_faults() {
	mini_cluster stop
	printf '# %-56s %s\n' "fault" "jobs that asked" >&3
	sed 's/^/# /' "$TABLE" >&3
	grep -q WRONG "$TABLE" || echo "# each time a job that did not ask was untouched, and the node was not drained" >&3
}

clean_up_fault() {
	no_fault
	rm -f "$TEST_WORK/inventory"
	cp "$BATS_FILE_TMPDIR/plugstack.conf" "$CLUSTER_DIR/etc/"
	remove_left
	# Where a test has failed: the next one finds a node again.
	cluster_is_idle || on_cluster scontrol update nodename=n1 state=resume 2>/dev/null || true
	cancel_all_jobs
}

# Runs in place of slurmstepd: a step's, or a prolog's or epilog's.
write_slurmstepd() {
	cat >"$TEST_WORK/slurmstepd" <<-END
		#!/bin/bash
		[ ! -e "$TEST_WORK/fault.open" ] || exec 1500</etc/shadow
		part=step
		[ "\$1" != spank ] || part=\$2
		[ ! -e "$TEST_WORK/fault.no-run" ] || [ "\$part" = step ] || [ ! -e /run ] || {
			exec unshare -m bash -c '
				mount -t tmpfs root /mnt
				for entry in /*; do
					case \$entry in
					/run | /mnt) ;;
					*) if [ -L "\$entry" ]; then cp -P "\$entry" /mnt; else mkdir "/mnt\$entry" && mount --rbind "\$entry" "/mnt\$entry"; fi ;;
					esac
				done 2>/dev/null
				exec chroot /mnt "\$0" "\$@"' "\$0" "\$@"
		}
		[ ! -e "$TEST_WORK/fault.\$part" ] || {
			export FAULT="\$(cat "$TEST_WORK/fault.\$part")" FAULT_LOG="$TEST_WORK/fault.log" LD_PRELOAD="$TEST_WORK/failing_calls.so"
		}
		exec $(command -v slurmstepd) "\$@"
	END
	chmod 755 "$TEST_WORK/slurmstepd"
}

restart_slurmd() { # OPTION...
	on_node n1 sh -c 'pid=$(cat "$0"); kill "$pid"; while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done; exec slurmd -N n1 "$@"' \
		"$CLUSTER_DIR/run/slurmd-n1.pid" "$@"
	wait_until 20 cluster_is_idle
}

fault() { # PART FAULT
	no_fault
	echo "$2" >"$TEST_WORK/fault.$1"
}

no_fault() {
	rm -f "$TEST_WORK"/fault.*
}

# A job with the fault that is meant for what submits it; its output and exit code are those of its step.
job_with_fault() {
	local -a with=() step=()
	[ ! -e "$TEST_WORK/fault.$submit" ] ||
		with=(env "FAULT=$(cat "$TEST_WORK/fault.$submit")" "FAULT_LOG=$TEST_WORK/fault.log" "LD_PRELOAD=$TEST_WORK/failing_calls.so")
	case $submit in
	srun) step=(-N1) ;;
	salloc) step=(-Q -N1) ;;
	sbatch) step=(-Q -W -N1 -o "$TEST_WORK/batch.out") ;;
	esac
	while [[ $1 == -* ]]; do
		step+=("$1")
		shift
	done
	rm -f "$TEST_WORK/batch.out"
	if [ $submit = srun ]; then
		submitted "${step[@]}" "$@"
	else
		# The fault is over where the step begins.
		printf '#!/bin/sh\nunset LD_PRELOAD FAULT FAULT_LOG\nexec srun %s\n' "${*@Q}" >"$TEST_WORK/job"
		chmod 755 "$TEST_WORK/job"
		submitted "${step[@]}" "$TEST_WORK/job"
	fi
}

submitted() { # ARGUMENT...
	local status=0
	on_cluster timeout --kill-after=1 20 "${with[@]}" "$submit" "$@" || status=$?
	[ ! -e "$TEST_WORK/batch.out" ] || cat "$TEST_WORK/batch.out"
	return $status
}

wrong() { # WHAT [FILE]
	outcome="WRONG: $1${2:+: $(head -c 500 "$2")}"
	return 1
}

# A job that did not ask, by its exit code and its output.
observe_plain() {
	local status=0 out=$BATS_TEST_TMPDIR/plain
	job_with_fault echo plain >"$out" 2>&1 || status=$?
	[ $status -eq 0 ] && [ "$(cat "$out")" = plain ] || wrong "a job that did not ask ended with $status" "$out"
}

# How many lines the plugin has in slurmd's log.
logged() {
	grep -c 'eth-hpp: ' "$CLUSTER_DIR/log/slurmd-n1.log" || true
}

# A job that asked has started, through the launcher, or says in one line why not, and so it does where it is killed.
# Where its prolog has left no inventory slurmd's log says why. Sets `inventory` to what it found.
observe_asked() {
	local status=0 lines out=$BATS_TEST_TMPDIR/asked before
	before=$(logged)
	job_with_fault --eth-hpp=gpt2 --eth-hpp-profile="$TEST_WORK/launcher" \
		sh -c 'echo started; cat "${ETH_HPP_INVENTORY:-/dev/null}"; '"$task" >"$out" 2>&1 || status=$?
	lines=$(grep -c 'eth-hpp: ' "$out" || true)
	inventory=$(sed '0,/^started$/d' "$out")
	outcome=started
	if grep -qx started "$out"; then
		grep -q '^launched 0' "$out" || wrong "started, but not through the launcher" "$out" || return
		[ "$task" != true ] || [ $status -eq 0 ] || wrong "started, and ended with $status" "$out" || return
		[ -n "$inventory" ] || [ -e "$TEST_WORK/fault.step" ] || [ "$(logged)" -gt "$before" ] ||
			wrong "no inventory, and slurmd says nothing" "$out" || return
		[ "$task" = true ] || [ "$lines" -eq 1 ] || wrong "died, with $lines lines" "$out" || return
	elif [ $status -gt 128 ] && [ -e "$TEST_WORK/fault.$submit" ] && [[ $(cat "$TEST_WORK/fault.$submit") == signals* ]]; then
		outcome="ended: by the signal" # and who has sent it knows
	else
		[ $status -ne 0 ] && [ $status -ne 124 ] && [ "$lines" -eq 1 ] || wrong "ended with $status and $lines lines" "$out" || return
	fi
	[ "$lines" -eq 0 ] || outcome=$(sed -n 's/.*eth-hpp: /ended: /p' "$out")
}

nothing_left() {
	[ -z "$(on_node n1 find /run/eth-hpp -mindepth 1 -name '[0-9]*' 2>/dev/null)" ]
}

# Of epilogs that failed.
remove_left() {
	on_node n1 sh -c 'rm -rf /run/eth-hpp/[0-9]*'
}

nothing_left_unsaid() {
	nothing_left || [ "$(logged)" -gt "$logged_before" ]
}

# Sets `outcome` to how a job that asked went; fails where that, or another job, or the node went wrong, or where an epilog
# has left an inventory and slurmd's log does not say why.
observe() {
	local logged_before
	observe_plain && wait_until 10 cluster_is_idle || return
	logged_before=$(logged)
	observe_asked || return
	if [ -e "$TEST_WORK/fault.epilog" ]; then
		wait_until 10 nothing_left_unsaid || wrong "something is left in /run/eth-hpp, and slurmd says nothing" || return
		remove_left
	else
		wait_until 10 nothing_left || wrong "something is left in /run/eth-hpp" || return
	fi
	wait_until 10 cluster_is_idle || wrong "the node is $(on_cluster sinfo -h -p all -o '%T, %E')"
}

tell() { # FAULT OUTCOME
	printf '%-56s %s\n' "$1" "$2" >>"$TABLE"
}

# One fault, one line of the table.
row() { # FAULT
	observe || {
		tell "$1" "$outcome"
		echo "$1: $outcome"
		return 1
	}
	tell "$1" "$outcome${inventory:+$(sed -n 's/.*"why_empty": *"\([^"]*\)".*/, told "\1"/p' <<<"$inventory")}"
}

# A class of calls in one part, failing one after the other until there is none left to fail.
sweep() { # PART CLASS ERRNO
	local number last=0 failed=0
	local -A outcomes=()
	for ((number = 1; ; number++)); do
		fault "$1" "$2 $number ${ERRNO[$3]}"
		observe || failed=1
		[ -e "$TEST_WORK/fault.log" ] || break
		last=$number
		[[ $outcome != *"out of memory for"* ]] || outcome="ended: out of memory for ..."
		outcomes[$outcome]=$((${outcomes[$outcome]:-0} + 1))
		[ $failed -eq 0 ] || break
	done
	no_fault
	for outcome in "${!outcomes[@]}"; do
		tell "$1: $2 calls, one after the other ($last): $3" "${outcomes[$outcome]} x $outcome"
	done
	[ $last -gt 0 ] && [ $failed -eq 0 ] || {
		echo "$1: $2 call $last of $number: $3: $outcome"
		return 1
	}
}

fail_all() { # PART CLASS ERRNO
	fault "$1" "$2 1 ${ERRNO[$3]} on"
	row "$1: $2 calls, all: $3"
	[ -e "$TEST_WORK/fault.log" ]
}

# A job whose inventory is taken by a child that does this.
child() { # COMMAND WHAT
	printf '#!/bin/sh\n%s\n' "$1" >"$TEST_WORK/inventory"
	chmod 755 "$TEST_WORK/inventory"
	row "the inventory's child $2"
}

slurmd_starts() { # FAULT NAME
	no_fault
	on_node n1 sh -c 'pid=$(cat "$0"); kill "$pid"; while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done
		export FAULT="$1" FAULT_LOG="$2" LD_PRELOAD="$3"; exec slurmd -N n1 -d "$4"' "$CLUSTER_DIR/run/slurmd-n1.pid" \
		"$1" "$TEST_WORK/fault.log" "$TEST_WORK/failing_calls.so" "$TEST_WORK/slurmstepd"
	wait_until 20 test -e "$TEST_WORK/fault.log"
	wait_until 20 cluster_is_idle
	restart_slurmd -d "$TEST_WORK/slurmstepd"
	row "$2"
}
