#!/usr/bin/env bats
# The launcher and a short training where tasks find each other by PMI-2, as with a Slurm that has no PMIx, or by what
# MPI names: tests/run runs these under other releases of Slurm too.

load helpers
load losses
load plans

: "${MPI:=pmi2}"
eth_hpp=$ETH_HPP_PREFIX/bin/eth-hpp
train="$eth_hpp train --data=text --seed=7 --log-every=1 --metrics="

setup_file() {
	cp /usr/share/common-licenses/GPL-3 "$TEST_WORK/text"
	plan_unlike >"$TEST_WORK/unlike.json"
	compile late_finalize.so pmix
}

teardown() {
	cancel_all_jobs
}

all_gpus() { on_cluster srun --quiet -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=$MPI "$@"; }

# shellcheck disable=SC2086,SC2034 # several words; for losses.bash
@test "the plugin runs the launcher, and the training has the losses of one rank" {
	STEPS=4
	all_gpus --eth-hpp=gpt2-tiny6 --eth-hpp-plan=unlike.json --eth-hpp-calibrate=no ${train}ranks.jsonl --steps=$STEPS
	on_cluster ${train}single.jsonl --model=gpt2-tiny6 --global-batch=16 --steps=$STEPS
	same_losses ranks single
}

@test "the launcher is run by hand, measures, and tells the ranks and the first one's address" {
	run all_gpus "$eth_hpp" launch --model=gpt2-tiny6 -- sh -c 'echo "rank $RANK/$WORLD_SIZE $LOCAL_RANK $(hostname) $MASTER_ADDR"'
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(grep '^rank' <<<"$output" | sort)" = "rank 0/8 0 node1 node1
rank 1/8 1 node1 node1
rank 2/8 0 node2 node1
rank 3/8 1 node2 node1
rank 4/8 0 node3 node1
rank 5/8 1 node3 node1
rank 6/8 0 node4 node1
rank 7/8 1 node4 node1" ]
}

@test "a task may launch more than once, each time with that launch's plan, and the program's exit code is kept" {
	run all_gpus sh -c "for batch in 16 24 32; do
		$eth_hpp launch --model=gpt2-tiny6 --global-batch=\$batch --calibrate=no -- sh -c 'tr -d \" \" <\$ETH_HPP_PLAN_FILE | grep \"^.global_batch\"; exit 7' || code=\$?
	done; exit \$code"
	echo "$output"
	[ "$status" -eq 7 ]
	for batch in 16 24 32; do [ "$(grep -c "^\"global_batch\":$batch,$" <<<"$output")" -eq 8 ]; done
}

# The first of a node is back in PMIx before the second has left it.
@test "a rank that is late between two launches does not spoil the second" {
	local launch="$eth_hpp launch --model=gpt2-tiny6 --calibrate=no --"
	run all_gpus --export="ALL,LD_PRELOAD=$TEST_WORK/late_finalize.so" sh -c "$launch true && exec $launch sh -c 'exit 7'"
	echo "$output"
	[ "$status" -eq 7 ]
}

@test "a heterogeneous job is one training" {
	local task="$eth_hpp train --data=text --steps=2"
	# shellcheck disable=SC2086 # several words
	run on_cluster_het 30 srun --quiet --mpi=$MPI -p new -N1 --ntasks-per-node=2 --gpus-per-node=2 \
		--eth-hpp=gpt2-tiny6 --eth-hpp-calibrate=no $task : -p old -N1 --ntasks-per-node=1 --gpus-per-node=1 $task
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"step 2/2"* ]]
}

# Fails, and one line says why.
fails_naming() { # TEXT COMMAND...
	local text=$1
	shift
	run "$@"
	echo "$output"
	[ "$status" -ne 0 ]
	[ "$(grep -c 'eth-hpp: ' <<<"$output")" -eq 1 ]
	[[ $output == *"eth-hpp: $text"* ]]
}

@test "a rank that is stopped before the launch meets is named, and all end" {
	fails_naming "rank 0 on node1 did not come to the exchange" all_gpus \
		sh -c "[ \$SLURM_PROCID != 0 ] || kill -STOP \$\$; exec $eth_hpp launch --model=gpt2-tiny6 -- true"
}

# Slurm's PMIx plugin may notice first, and ends the step by itself.
@test "all end where the ranks of a node have ended by themselves before the launch meets" {
	run all_gpus sh -c "[ \$SLURM_NODEID != 2 ] || exit 7; exec $eth_hpp launch --model=gpt2-tiny6 -- true"
	echo "$output"
	[ "$status" -ne 0 ]
	if [[ $MPI == pmi2 || $output == *"eth-hpp: "* ]]; then
		[ "$(grep -c 'eth-hpp: ' <<<"$output")" -eq 1 ]
		[[ $output == *"eth-hpp: the exchange among all ranks was not done within 16 s: "* ]]
	fi
}

@test "a rank that is killed before the program meets is named by the plugin alone, and all end" {
	fails_naming "rank 5 on node3: ended by signal 9 (Killed)" all_gpus --eth-hpp=gpt2-tiny6 --eth-hpp-calibrate=no \
		sh -c "[ \$RANK != 5 ] || kill -KILL \$\$; exec $eth_hpp train --data=text --steps=1"
}
