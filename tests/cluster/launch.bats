#!/usr/bin/env bats
# eth-hpp launch, train and profile under real Slurm, by hand (without the plugin). The GPUs are emulated.

load helpers

setup_file() {
	export ETH_HPP_SITE_FILE=$CLUSTER_DIR/etc/site.json
	cp /usr/share/common-licenses/GPL-3 "$TEST_WORK/text"
	# What every plan is compared with.
	on_cluster srun --quiet -n1 --gpus=1 --mpi=pmix "$ETH_HPP_PREFIX/bin/eth-hpp" launch --model=gpt2-tiny6 --global-batch=16 -- \
		"$ETH_HPP_PREFIX/bin/eth-hpp" train --data=text --steps=10 --lr=3e-3 --metrics=one.jsonl
}

teardown() {
	cancel_all_jobs
}

eth_hpp=$ETH_HPP_PREFIX/bin/eth-hpp

all_gpus() { on_cluster srun --quiet -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix "$@"; }

# Lines of the project's own; srun adds some for each task.
own_lines() { grep '^eth-hpp: ' <<<"$output"; }

# The command fails with this exit code, within 30 s, and one line says why.
refused() { # CODE TEXT COMMAND...
	local code=$1 text=$2 start=$SECONDS
	shift 2
	run "$@"
	echo "$output"
	[ "$status" -eq "$code" ]
	[ $((SECONDS - start)) -le 30 ]
	[ "$(own_lines | wc -l)" -eq 1 ]
	[[ $(own_lines) == *"$text"* ]]
}

losses() { grep -o '"loss":[-0-9.e]*' "$TEST_WORK/$1" | cut -d: -f2; }

same_losses() { # FILE FILE
	paste <(losses "$1") <(losses "$2") |
		awk '{ d = $1 - $2; if (NF != 2 || d > 1e-4 * $1 || d < -1e-4 * $1) { print NR ": " $0; bad = 1 } } END { exit bad || NR == 0 }'
}

@test "a dry run shows the plan, says that it is emulated, and runs nothing" {
	run all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --dry-run -- touch ran
	[ "$status" -eq 0 ]
	[[ $output == *"plan for gpt2-tiny6"* ]]
	[[ $output == *"emulated"* ]]
	[ "$(grep -c 'predicted step' <<<"$output")" -eq 1 ]
	[ ! -e "$TEST_WORK/ran" ]
	[[ $output =~ "calibration: devices in "[0-9.]+" s".*", links in "[0-9.]+" s" ]]
}

@test "every rank's program finds its place and the plan" {
	run all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --calibrate=no -- sh -c \
		'test -r "$ETH_HPP_PLAN_FILE" && echo "rank $RANK/$WORLD_SIZE $LOCAL_RANK $(hostname) $MASTER_ADDR $MASTER_PORT $ETH_HPP_GPU ${ETH_HPP_EMULATION%%:*}"'
	[ "$status" -eq 0 ]
	[ "$(grep '^rank' <<<"$output" | sort | awk '{ print $2, $3, $4, $5, $7, $8 }')" = "0/8 0 node1 node1 0 H100-SXM
1/8 1 node1 node1 1 H100-SXM
2/8 0 node2 node1 0 A100-SXM-40GB
3/8 1 node2 node1 1 A100-SXM-40GB
4/8 0 node3 node1 0 V100-SXM-16GB
5/8 1 node3 node1 1 V100-SXM-16GB
6/8 0 node4 node1 0 T4
7/8 1 node4 node1 1 T4" ]
	[ "$(grep '^rank' <<<"$output" | awk '{ print $6 }' | sort -u | wc -l)" -eq 1 ]
}

@test "nodes may have unlike numbers of ranks, spread in any order" {
	run on_cluster srun --quiet -N2 -n3 --gpus-per-node=2 --distribution=cyclic --mpi=pmix "$eth_hpp" launch \
		--model=gpt2-tiny6 --calibrate=no -- sh -c 'echo "rank $RANK $(hostname) $LOCAL_RANK"'
	[ "$status" -eq 0 ]
	[ "$(grep '^rank' <<<"$output" | sort)" = "rank 0 node1 0
rank 1 node2 0
rank 2 node1 1" ]
}

@test "the program's exit code is kept" {
	run all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --calibrate=no -- sh -c 'exit 7'
	[ "$status" -eq 7 ]
}

@test "what cannot work is refused with one line" {
	refused 2 "there is no model \"nosuch\"" all_gpus "$eth_hpp" launch --model=nosuch -- true
	refused 2 "no model: give --model=MODEL" all_gpus "$eth_hpp" launch -- true
	refused 2 "no program" all_gpus "$eth_hpp" launch --model=gpt2-tiny6
	refused 2 "did you mean --model?" all_gpus "$eth_hpp" launch --modle=gpt2-tiny6 -- true
	refused 2 "must be a whole number" all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --global-batch=0 -- true
	refused 2 "longer than the context" all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --seq=65 -- true
	refused 2 "the runtime cannot train in it" all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --dtype=bf16 -- true
	refused 2 "cannot open" all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --plan=nosuch.json -- true
	: >"$TEST_WORK/empty.json"
	refused 2 "empty.json: the file is empty" all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --plan=empty.json -- true
	refused 2 "/nosuch: cannot open" all_gpus env ETH_HPP_INVENTORY=/nosuch "$eth_hpp" launch --model=gpt2-tiny6 -- true
	refused 3 "" all_gpus "$eth_hpp" launch --model=llama-70b --calibrate=no -- true
}

@test "a program that is not there is refused on all ranks" {
	run all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --calibrate=no -- nosuchprogram
	[ "$status" -eq 2 ]
	[ "$(own_lines)" = "eth-hpp: rank 0 on node1: nosuchprogram: there is no such program on the PATH" ]
}

@test "several tasks without PMIx are told to use it" {
	refused 2 "--mpi=pmix" on_cluster srun --quiet -N2 --gpus-per-node=1 --mpi=none "$eth_hpp" launch --model=gpt2-tiny6 -- true
}

@test "more ranks than GPUs, and two ranks on one GPU, are refused" {
	refused 2 "3 ranks but 2 GPUs on node node1" on_cluster srun --quiet -wnode1 --ntasks-per-node=3 --gpus-per-node=2 --mpi=pmix \
		"$eth_hpp" launch --model=gpt2-tiny6 -- true
	refused 2 "both have GPU 0 of node node1" on_cluster srun --quiet -wnode1 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix \
		env CUDA_VISIBLE_DEVICES=0 "$eth_hpp" launch --model=gpt2-tiny6 -- true
	refused 2 "the job has no GPU on node node1, which has 2" on_cluster srun --quiet -wnode1 --mpi=pmix \
		env CUDA_VISIBLE_DEVICES= "$eth_hpp" launch --model=gpt2-tiny6 -- true
}

@test "a given plan is run again, on other nodes of the same kinds too" {
	run all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --global-batch=32 --save-plan=saved.json --dry-run
	[ "$status" -eq 0 ]
	run all_gpus "$eth_hpp" launch --plan=saved.json --save-plan=again.json --dry-run
	[ "$status" -eq 0 ]
	cmp <(grep -v _s "$TEST_WORK/saved.json" | grep -c '"layers"') <(grep -v _s "$TEST_WORK/again.json" | grep -c '"layers"')
	sed 's/node\([1-4]\)/other-\1/' "$TEST_WORK/saved.json" >"$TEST_WORK/renamed.json"
	run all_gpus "$eth_hpp" launch --plan=renamed.json --save-plan=bound.json --dry-run
	[ "$status" -eq 0 ]
	! grep -q other- "$TEST_WORK/bound.json"
	refused 2 "contradicts the given plan" all_gpus "$eth_hpp" launch --plan=saved.json --global-batch=33 --dry-run
	refused 2 "" on_cluster srun --quiet -N1 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix "$eth_hpp" launch \
		--plan=saved.json --dry-run
}

@test "training by the plan gives the losses of one rank" {
	run all_gpus "$eth_hpp" launch --model=gpt2-tiny6 --global-batch=16 -- \
		"$eth_hpp" train --data=text --steps=10 --lr=3e-3 --metrics=all.jsonl
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"measured/predicted"* ]]
	same_losses all.jsonl one.jsonl
}

@test "a heterogeneous job trains as one" {
	run on_cluster_het 40 srun --quiet --mpi=pmix -p new -N1 --ntasks-per-node=2 --gpus-per-node=2 "$eth_hpp" launch --model=gpt2-tiny6 \
		--global-batch=16 -- "$eth_hpp" train --data=text --steps=10 --lr=3e-3 --metrics=het.jsonl : \
		-p old -N1 --ntasks-per-node=1 --gpus-per-node=1 "$eth_hpp" launch --model=gpt2-tiny6 --global-batch=16 -- \
		"$eth_hpp" train --data=text --steps=10 --lr=3e-3 --metrics=het.jsonl
	echo "$output"
	[ "$status" -eq 0 ]
	same_losses het.jsonl one.jsonl
}

@test "without the plugin too a rank that is killed in training ends all, with one line" {
	on_cluster sh -c "srun --quiet -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix $eth_hpp launch --model=gpt2-tiny6 \
		--global-batch=16 -- sh -c 'echo \$\$ >by-hand.pid.\$RANK; exec $eth_hpp train --data=text --steps=100000 --log-every=1' \
		>by-hand.out 2>&1; echo \$? >by-hand.code" &
	wait_until 40 grep -q 'step 3/' "$TEST_WORK/by-hand.out"
	on_node node3 kill -KILL "$(cat "$TEST_WORK/by-hand.pid.5")"
	wait_until 30 test -s "$TEST_WORK/by-hand.code"
	[ "$(cat "$TEST_WORK/by-hand.code")" -ne 0 ]
	grep '^eth-hpp: ' "$TEST_WORK/by-hand.out"
	[ "$(grep -c '^eth-hpp: .*rank 5.*node3' "$TEST_WORK/by-hand.out")" -eq 1 ]
}

@test "training alone needs neither Slurm nor a GPU" {
	cd "$TEST_WORK"
	run env -u ETH_HPP_SITE_FILE "$eth_hpp" train --model=gpt2-tiny6 --data=text --steps=5 --global-batch=4 --metrics=alone.jsonl
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(wc -l <alone.jsonl)" -eq 5 ]
	run env -u ETH_HPP_SITE_FILE "$eth_hpp" train --model=gpt2-tiny6 --steps=5
	[ "$status" -eq 2 ]
	[ "$output" = "eth-hpp: no data: give --data=FILE" ]
}
