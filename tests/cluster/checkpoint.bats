#!/usr/bin/env bats
# A training that stops goes on as if it never had, on whatever nodes and under whatever plan.

load helpers
load losses
load plans
CLUSTER_DIR=$OTHER_CLUSTER_DIR

STEPS=20
MODEL=gpt2-tiny6

# On emulated devices that are hardly slower than the real arithmetic: time does not matter here.
setup_file() {
	sed 's/time_scale=[^ ]*/time_scale=2e3/' "$CHECKOUT/contrib/mini-cluster.d/unlike.nodes" >"$BATS_FILE_TMPDIR/nodes"
	mini_cluster start --nodes "$BATS_FILE_TMPDIR/nodes" --plugin "$PLUGIN" --launcher "$ETH_HPP_PREFIX/bin/eth-hpp"
	cp /usr/share/common-licenses/GPL-3 "$TEST_WORK/text"
	local plan
	for plan in even unlike mixed deep sharded; do "plan_$plan" >"$TEST_WORK/$plan.json"; done
	# One that never stops.
	train reference "$ETH_HPP_PREFIX/bin/eth-hpp" >"$TEST_WORK/reference.log" 2>&1
}

teardown_file() {
	mini_cluster stop
}

teardown() {
	cancel_all_jobs
}

# Trains with all the tests' settings; the losses go to NAME.jsonl.
train() { # NAME COMMAND... -- OPTION... (`train` and its settings are put between)
	local name=$1 command=()
	shift
	while [ $# -gt 0 ] && [ "$1" != -- ]; do
		command+=("$1")
		shift
	done
	on_cluster "${command[@]}" train --model=$MODEL --global-batch=16 --data=text --steps=$STEPS --seed=7 \
		--metrics="$name.jsonl" "${@:2}"
}

one_rank() { # NAME OPTION...
	train "$1" "$ETH_HPP_PREFIX/bin/eth-hpp" -- "${@:2}"
}

under_plan() { # NAME PLAN OPTION...
	train "$1" srun -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix --eth-hpp=gpt2-tiny6 --eth-hpp-plan="$2.json" \
		--eth-hpp-calibrate=no "$ETH_HPP_PREFIX/bin/eth-hpp" -- "${@:3}"
}

# A training stops for good after 8 steps of the 20, whatever the plan: what is after the checkpoint is lost.
stop_after_8() { # NAME
	rm -rf "$TEST_WORK/$1".*/step-000000012* "$TEST_WORK/$1".*/step-000000016* "$TEST_WORK/$1".*/step-000000020*
}

@test "unlike pipelines go on on one rank, and that under another plan" {
	under_plan one unlike --checkpoint=one.ck --checkpoint-every=4 --checkpoint-keep=0
	stop_after_8 one
	[ "$(ls "$TEST_WORK/one.ck/step-000000008"/model-*.safetensors | wc -l)" -eq 8 ] # every rank has a share
	cp -r "$TEST_WORK/one.ck" "$TEST_WORK/two.ck"
	cp "$TEST_WORK/one.jsonl" "$TEST_WORK/two.jsonl"
	one_rank one --checkpoint=one.ck --checkpoint-every=4 --checkpoint-keep=0 --resume
	same_losses_as_reference one
	stop_after_8 one
	ls "$TEST_WORK/one.ck"
	rm -rf "$TEST_WORK/one.ck/step-000000004"
	under_plan one deep --checkpoint=one.ck --resume=auto
	same_losses_as_reference one
	# idle ranks, and stages that share micro-batches
	under_plan two mixed --checkpoint=two.ck --resume=yes
	same_losses_as_reference two
}

@test "the moments of a sharded optimizer go on in a replicated one, and back" {
	under_plan shards sharded --checkpoint=shards.ck --checkpoint-every=4 --checkpoint-keep=0
	rm -rf "$TEST_WORK"/shards.ck/step-000000008 "$TEST_WORK"/shards.ck/step-0000000[12]*
	under_plan shards mixed --checkpoint=shards.ck --checkpoint-every=4 --checkpoint-keep=0 --resume
	same_losses_as_reference shards
	stop_after_8 shards
	under_plan shards sharded --checkpoint=shards.ck --resume
	same_losses_as_reference shards
}

@test "dropout goes on as it was, under another plan" {
	cat >"$TEST_WORK/dropping.config" <<-END
		{"model_type":"gpt2","vocab_size":256,"n_positions":64,"n_embd":64,"n_layer":6,"n_head":4,"n_inner":256,
		 "embd_pdrop":0.1,"resid_pdrop":0.1,"attn_pdrop":0.1}
	END
	MODEL=dropping.config
	one_rank dropping
	under_plan drops unlike --checkpoint=drops.ck --checkpoint-every=4 --checkpoint-keep=0
	stop_after_8 drops
	under_plan drops sharded --checkpoint=drops.ck --resume
	same_losses drops dropping
}

@test "a damaged checkpoint gives way to the one before it, with a warning that names file and offset" {
	under_plan damaged even --checkpoint=damaged.ck --checkpoint-every=5 --checkpoint-keep=0
	local last=$TEST_WORK/damaged.ck/step-000000020 before=$TEST_WORK/damaged.ck/step-000000015
	printf 'X' | dd of="$last/model-00001-of-00008.safetensors" bs=1 seek=100000 conv=notrunc status=none
	truncate -s -1 "$(ls "$before"/optimizer*.safetensors | tail -n 1)"
	run under_plan damaged unlike --checkpoint=damaged.ck --resume --checkpoint-every=5 --checkpoint-keep=0
	echo "$output" | grep eth-hpp:
	[ "$status" -eq 0 ]
	grep -q 'eth-hpp: .*step-000000020/model.*safetensors: is damaged between offset [0-9]* and [0-9]*: ' <<<"$output"
	grep -q 'eth-hpp: .*step-000000015/optimizer.*safetensors: .*offset [0-9]*' <<<"$output"
	grep -q 'eth-hpp: .*going on from step 10 ' <<<"$output"
	[ -d "$last.damaged" ] && [ -d "$before.damaged" ] && [ -d "$last" ]
	same_losses_as_reference damaged
}

@test "another model's checkpoint is refused by name, and a new training does not take its folder" {
	one_rank foreign --checkpoint=foreign.ck --checkpoint-every=0
	run on_cluster "$ETH_HPP_PREFIX/bin/eth-hpp" train --model=gpt2-tiny24 --global-batch=16 --data=text --steps=2 --checkpoint=foreign.ck --resume
	echo "$output" | grep eth-hpp:
	[ "$status" -eq 2 ]
	grep -q "eth-hpp: .*step-000000020: has no tensor transformer.h.6.ln_1.weight: it is another model's" <<<"$output"
	run one_rank foreign --checkpoint=foreign.ck
	[ "$status" -eq 2 ]
	grep -q 'eth-hpp: .*foreign.ck: holds checkpoints up to step 20' <<<"$output"
}

@test "what belongs to checkpoints is refused without a folder for them" {
	local option
	for option in --checkpoint-every=5 --checkpoint-keep=2 --resume --resume=auto; do
		run one_rank nowhere $option
		echo "$output"
		[ "$status" -eq 2 ]
		[[ $output == "eth-hpp: $option"*" needs a folder of checkpoints: give --checkpoint=DIR" ]]
	done
}

@test "checkpoints are shown, checked and made into a plain folder, from which another training starts" {
	one_rank plain --checkpoint=plain.ck --checkpoint-every=10
	run on_cluster "$ETH_HPP_PREFIX/bin/eth-hpp" checkpoint verify plain.ck
	[ "$status" -eq 0 ]
	[ "$(grep -c ': whole$' <<<"$output")" -eq 2 ]
	on_cluster "$ETH_HPP_PREFIX/bin/eth-hpp" checkpoint show plain.ck | grep -q 'step-000000020: step 20, 320 samples of 64 tokens seen, '
	rm -rf "$TEST_WORK/plain.hf"
	on_cluster "$ETH_HPP_PREFIX/bin/eth-hpp" checkpoint convert --output=plain.hf plain.ck
	[ "$(ls "$TEST_WORK/plain.hf" | tr '\n' ' ')" = 'config.json model.safetensors ' ]
	on_cluster "$ETH_HPP_PREFIX/bin/eth-hpp" train --init-from=plain.hf --seq=64 --global-batch=16 --data=text --steps=2 --lr=0 \
		--seed=7 --metrics=tuned.jsonl
	losses tuned | awk 'NR == 1 { exit !($2 < 4.9) }' # from scratch it is 5.5
	printf X | dd of="$TEST_WORK/plain.ck/step-000000010/model.safetensors" bs=1 seek=700000 conv=notrunc status=none
	run on_cluster "$ETH_HPP_PREFIX/bin/eth-hpp" checkpoint verify plain.ck
	[ "$status" -eq 2 ]
	grep -q 'eth-hpp: plain.ck/step-000000010/model.safetensors: is damaged between offset ' <<<"$output"
}

@test "a folder that not all nodes share is refused" {
	run under_plan unshared even --checkpoint=/tmp/eth-hpp-unshared
	echo "$output" | grep eth-hpp:
	[ "$status" -eq 2 ]
	[ "$(grep -c 'eth-hpp: .*is not the same folder on ' <<<"$output")" -eq 1 ]
}

# ---- signals ----

# Trains for 60 steps as a batch job that Slurm may put back into its queue.
submit_training() { # NAME SBATCH_OPTION...
	local name=$1
	cat >"$TEST_WORK/$name.sh" <<-END
		#!/bin/sh
		echo "on \$SLURM_JOB_NODELIST" >>$name.runs
		srun --quiet --mpi=pmix --ntasks-per-node=2 --eth-hpp=gpt2-tiny6 --eth-hpp-global-batch=16 --eth-hpp-calibrate=no \
			"$ETH_HPP_PREFIX/bin/eth-hpp" train --data=text --steps=60 --seed=7 --metrics=$name.jsonl --log-every=1 \
			--checkpoint=$name.ck --checkpoint-every=0 --resume=auto
		echo "srun: \$?" >>$name.runs
	END
	rm -rf "$TEST_WORK/$name".{ck,runs,jsonl,out}
	on_cluster sbatch --parsable --requeue --open-mode=append --output="$name.out" -N2 --ntasks-per-node=2 \
		--gpus-per-node=2 "${@:2}" "$name.sh" >"$TEST_WORK/$name.job"
	wait_until 60 grep -q 'step 10/' "$TEST_WORK/$name.out"
}

job_of() { cat "$TEST_WORK/$1.job"; }

job_is() { # NAME STATE
	[ "$(on_cluster squeue -h -j "$(job_of "$1")" -o %T)" = "$2" ]
}

@test "a job that Slurm puts back into its queue goes on by itself, on other nodes and under a new plan" {
	STEPS=60 one_rank reference60
	submit_training requeued -p new
	on_cluster scontrol requeue "$(job_of requeued)"
	wait_until 30 job_is requeued PENDING
	grep 'eth-hpp: ' "$TEST_WORK/requeued.out"
	grep -q 'eth-hpp: stopped by signal 15 after step' "$TEST_WORK/requeued.out"
	# Slurm would wait two minutes for old credentials to expire.
	on_cluster scontrol update jobid="$(job_of requeued)" partition=old StartTime=now
	wait_until 60 has_line "srun: 0" requeued.runs
	grep -q 'eth-hpp: .*going on from step' "$TEST_WORK/requeued.out"
	grep on "$TEST_WORK/requeued.runs"
	[ "$(grep -c '^on ' "$TEST_WORK/requeued.runs")" -eq 2 ]
	has_line "on node[1-2]" requeued.runs
	has_line "on node[3-4]" requeued.runs
	# The plan is made anew for what is there now.
	[ "$(grep -c '^plan for ' "$TEST_WORK/requeued.out")" -eq 2 ]
	sed -n '1,/going on from/p' "$TEST_WORK/requeued.out" | sed '1,/stopped by signal/d' | grep 'V100-SXM-16GB'
	STEPS=60 same_losses requeued reference60
}

@test "SIGUSR1 before a time limit ends all ranks in order with 128 + 10" {
	submit_training warned -p all
	on_cluster scancel --signal=USR1 "$(job_of warned).0"
	wait_until 30 has_line "srun: 138" warned.runs
	grep 'eth-hpp: ' "$TEST_WORK/warned.out"
	[ "$(grep -c 'eth-hpp: stopped by signal 10 after step' "$TEST_WORK/warned.out")" -eq 1 ]
	[ "$(grep 'eth-hpp: ' "$TEST_WORK/warned.out" | grep -c ' error\| lost\| waited')" -eq 0 ]
	[ "$(ls "$TEST_WORK/warned.ck")" != "" ]
}

@test "a signal to one rank alone ends all in order" {
	on_cluster sh -c "srun --quiet -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix --eth-hpp=gpt2-tiny6 \
		--eth-hpp-plan=unlike.json --eth-hpp-calibrate=no sh -c 'echo \$\$ >single.pid.\$RANK
		exec $ETH_HPP_PREFIX/bin/eth-hpp train --data=text --steps=100000 --log-every=1 --checkpoint=single.ck' \
		>single.out 2>&1; echo \$? >single.code" 3>&- &
	wait_until 60 grep -q 'step 3/' "$TEST_WORK/single.out"
	on_node node3 kill -TERM "$(cat "$TEST_WORK/single.pid.5")"
	wait_until 15 test -s "$TEST_WORK/single.code"
	grep 'eth-hpp: ' "$TEST_WORK/single.out"
	[ "$(cat "$TEST_WORK/single.code")" -eq 143 ]
	grep -q 'eth-hpp: stopped by signal 15 after step' "$TEST_WORK/single.out"
}
