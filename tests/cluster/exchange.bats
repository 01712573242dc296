#!/usr/bin/env bats
# The exchange among all ranks when they come late, or never.

load helpers
load plans

eth_hpp=$ETH_HPP_PREFIX/bin/eth-hpp

setup_file() {
	cp /usr/share/common-licenses/GPL-3 "$TEST_WORK/text"
	plan_unlike >"$TEST_WORK/unlike.json"
	compile late_finalize.so pmix
}

teardown() {
	cancel_all_jobs
}

all_gpus() { on_cluster srun --quiet -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix "$@"; }

# Fails within 30 s, and one line says why: whose it is, the ranks' or the plugin's, does not matter.
fails_naming() { # TEXT COMMAND...
	local start=$SECONDS text=$1
	shift
	run "$@"
	echo "$output"
	[ "$status" -ne 0 ]
	[ $((SECONDS - start)) -le 30 ]
	[ "$(grep -c 'eth-hpp: ' <<<"$output")" -eq 1 ]
	[[ $output == *"eth-hpp: $text"* ]]
}

# A rank does something in place of the training, which all others begin.
train_but() { # RANK COMMAND
	all_gpus --eth-hpp=gpt2-tiny6 --eth-hpp-plan=unlike.json --eth-hpp-calibrate=no sh -c \
		"[ \$RANK != $1 ] || $2; exec $eth_hpp train --data=text --steps=1"
}

@test "a rank that is late to become the program does not spoil the exchange of the others" {
	run all_gpus --export="ALL,LD_PRELOAD=$TEST_WORK/late_finalize.so" --eth-hpp=gpt2-tiny6 --eth-hpp-plan=unlike.json \
		--eth-hpp-calibrate=no "$eth_hpp" train --data=text --steps=1
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"step 1/1"* ]]
}

# A rank does something in place of the launch, which all others begin.
launch_but() { # RANK COMMAND
	all_gpus sh -c "[ \$SLURM_PROCID != $1 ] || $2; exec $eth_hpp launch --model=gpt2-tiny6 -- true"
}

# One rank a node, where no other one of the node could tell.
one_a_node() { on_cluster srun --quiet -N4 --ntasks-per-node=1 --gpus-per-node=1 --mpi=pmix "$@"; }

@test "a rank that is stopped before the launch meets is named, and all end" {
	fails_naming "rank 0 on node1 did not come to the exchange" launch_but 0 'kill -STOP $$'
}

@test "a rank that is killed before the launch meets is named, and all end" {
	fails_naming "rank 5 on node3 did not come to the exchange" launch_but 5 'kill -KILL $$'
}

@test "a rank that ends by itself before the launch meets is named, and all end" {
	fails_naming "rank 3 on node2 did not come to the exchange" launch_but 3 'exit 7'
}

# Its server is gone with them, and others that try to reach it answer late, so who is missing is not known.
@test "all end where the ranks of a node have ended by themselves before the launch meets" {
	fails_naming "the exchange among all ranks was not done within 16 s: nobody answers for rank" launch_but '4 ] && [ $SLURM_PROCID != 5' 'exit 7'
}

@test "all end where the ranks of the first node have ended by themselves before the launch meets" {
	local start=$SECONDS # Slurm's own PMIx plugin gives up first, and says so
	run launch_but '0 ] && [ $SLURM_PROCID != 1' 'exit 7'
	echo "$output"
	[ "$status" -ne 0 ]
	[ $((SECONDS - start)) -le 30 ]
	[ "$(grep -c 'eth-hpp: ' <<<"$output")" -le 1 ]
}

@test "a rank that is killed before the program meets is named by the plugin alone, and all end" {
	fails_naming "rank 5 on node3: ended by signal 9 (Killed)" train_but 5 'kill -KILL $$'
}

@test "a rank that is alone on its node and killed before the program meets is named by the plugin alone, and all end" {
	fails_naming "rank 2 on node3: ended by signal 9 (Killed)" one_a_node --eth-hpp=gpt2-tiny6 --eth-hpp-calibrate=no sh -c \
		"[ \$RANK != 2 ] || kill -KILL \$\$; exec $eth_hpp train --data=text --steps=1" 2>&1
}

@test "a rank that is stopped before the program meets is named, and all end" {
	fails_naming "rank 2 on node2 did not come to the exchange" train_but 2 'kill -STOP $$'
}

@test "all end where the ranks of a node have ended by themselves before the program meets" {
	fails_naming "the exchange among all ranks was not done within 16 s: nobody answers for rank" train_but '4 ] && [ $RANK != 5' 'exit 7'
}

@test "a node whose ranks do not come is named by one of the others" {
	fails_naming "rank 0 on node1 and 1 more did not come to the exchange" train_but '0 ] && [ $RANK != 1' 'kill -STOP $$'
}

