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

# Fails within 30 s (and what srun takes to start), and one line of the ranks themselves says why. Where the plugin
# runs it may say in others whom a signal has ended.
fails_naming() { # RANK COMMAND...
	local start=$SECONDS text="eth-hpp: rank $1 did not come to the exchange"
	shift
	run "$@"
	echo "$output"
	[ "$status" -ne 0 ]
	[ $((SECONDS - start)) -le 32 ]
	[ "$(grep '^eth-hpp: ' <<<"$output" | grep -cv 'ended by signal')" -eq 1 ]
	[[ $output == *"$text"* ]]
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

@test "a rank that is stopped before the launch meets is named, and all end" {
	fails_naming "0 on node1" all_gpus sh -c \
		"[ \$SLURM_PROCID != 0 ] || kill -STOP \$\$; exec $eth_hpp launch --model=gpt2-tiny6 -- true"
}

@test "a rank that is killed before the program meets is named, and all end" {
	fails_naming "5 on node3" train_but 5 'kill -KILL $$'
}

@test "a rank that is stopped before the program meets is named, and all end" {
	fails_naming "2 on node2" train_but 2 'kill -STOP $$'
}

@test "a node whose ranks do not come is named by one of them" {
	fails_naming "0 on node1 and 1 more" train_but '0 ] && [ $RANK != 1' 'kill -STOP $$'
}
