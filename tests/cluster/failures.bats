#!/usr/bin/env bats
# What happens to a job when a rank or a node fails in the middle of training: all ranks end in time, with one line
# that names the cause.

load helpers
load plans

setup_file() {
	cp /usr/share/common-licenses/GPL-3 "$TEST_WORK/text"
	plan_unlike >"$TEST_WORK/unlike.json"
}

teardown() {
	cancel_all_jobs
}

# Trains on all eight GPUs, in the background, until step 3 is done. The ranks' pids are in NAME.pid.RANK.
start_training() { # NAME SRUN_OPTION...
	local name=$1
	shift
	rm -f "$TEST_WORK/$name".*
	on_cluster sh -c "ETH_HPP_TIMEOUT=6 srun --quiet -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix --eth-hpp=gpt2-tiny6 \
		--eth-hpp-plan=unlike.json --eth-hpp-calibrate=no sh -c 'echo \$\$ >$name.pid.\$RANK
		exec $ETH_HPP_PREFIX/bin/eth-hpp train --data=text --steps=100000 --log-every=1' \
		>$name.out 2>&1; echo \$? >$name.code" 3>&- &
	wait_until 60 grep -q 'step 3/' "$TEST_WORK/$name.out"
}

send() { # NAME SIGNAL NODE RANK
	on_node "$3" kill "-$2" "$(cat "$TEST_WORK/$1.pid.$4")"
}

# The job has ended with an error, and has said why in one line.
ended_with() { # NAME SECONDS TEXT
	wait_until "$2" test -s "$TEST_WORK/$1.code"
	sed 's/^/# /' "$TEST_WORK/$1.out" | grep -v 'step ' | tail -n 20
	[ "$(cat "$TEST_WORK/$1.code")" -ne 0 ]
	[ "$(sed -n '/step 3\//,$p' "$TEST_WORK/$1.out" | grep -c 'eth-hpp: ')" -eq 1 ]
	grep -q "eth-hpp: .*$3" "$TEST_WORK/$1.out"
}

@test "a rank that is killed is named by the plugin alone" {
	start_training killed
	send killed KILL node3 5
	ended_with killed 15 'rank 5 on node3: ended by signal 9 (Killed)'
}

@test "a rank that is asked to end ends all" {
	start_training quit
	send quit TERM node2 2
	wait_until 15 test -s "$TEST_WORK/quit.code"
	[ "$(cat "$TEST_WORK/quit.code")" -ne 0 ]
}

@test "of ranks that wait for each other, the one that hangs is named" {
	start_training stopped
	send stopped STOP node3 5
	# Stopped, it ends by no message: Slurm ends it.
	ended_with stopped 30 'waited .* rank 5 on node3'
}

@test "the first rank, which decides what is said, may be the one that hangs" {
	start_training first
	send first STOP node1 0
	ended_with first 30 'waited .* rank 0 on node1'
}

@test "a node that is cut off from the network is named" {
	start_training cut
	on_node node3 ip link set eth0 down
	wait_until 40 grep -q 'eth-hpp: .* rank [45] on node3' "$TEST_WORK/cut.out"
	on_node node3 ip link set eth0 up
	[ "$(grep -c 'eth-hpp: .* waited .* node3' "$TEST_WORK/cut.out")" -eq 1 ]
}
