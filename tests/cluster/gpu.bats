#!/usr/bin/env bats
# Ranks on GPUs under real Slurm. The GPUs are EMULATED: the very same kernels run on the host (tests/emulation/cuda).

# shellcheck disable=SC2016 # devices are texts for the ranks' shells
load helpers
load losses

STEPS=3
NCCL_SETTING=""

setup_file() {
	[ -e "$EMULATED_MODULE" ] || return 0
	cp "$EMULATED_MODULE" "$TEST_WORK/emulated_cuda.so" # where all nodes see it
	cp /usr/share/common-licenses/GPL-3 "$TEST_WORK/text"
	mkdir "$TEST_WORK/nccl" # nodes have a /dev/shm each
	train reference -N1 -n1 --gpus=1 cpu
}

setup() {
	[ -e "$EMULATED_MODULE" ] || skip "no emulated GPU module: no C++17 compiler or oneDNN"
}

teardown() {
	cancel_all_jobs
}

# Trains for STEPS steps with a rank's device given by the shell text DEVICE; the losses go to NAME.jsonl.
# The plugin watches the ranks: a killed one on a GPU, whose peers compute, is otherwise only srun's to name.
train() { # NAME SRUN-ARGUMENTS... DEVICE
	local name=$1 device=${*: -1}
	on_cluster srun --quiet --mpi=pmix "${@:2:$#-2}" --eth-hpp=gpt2-tiny6 --eth-hpp-global-batch=16 \
		--eth-hpp-calibrate=no sh -c "unset ETH_HPP_EMULATION
			export ETH_HPP_CUDA_MODULE=$TEST_WORK/emulated_cuda.so ETH_HPP_DEVICE=$device
			export ETH_HPP_EMULATED_NCCL_FOLDER=$TEST_WORK/nccl $NCCL_SETTING
			exec $ETH_HPP_PREFIX/bin/eth-hpp train --data=text --steps=$STEPS --seed=7 --metrics=$name.jsonl"
}

# The training ends with this code, and one line of all ranks says why.
ends_saying() { # CODE TEXT TRAIN-ARGUMENTS...
	local code=$1 text=$2
	run train "${@:3}"
	echo "$output"
	[ "$status" -eq "$code" ]
	[ "$(grep -c "$text" <<<"$output")" -eq 1 ]
}

@test "emulated GPUs of two nodes train as a CPU does, by NCCL" {
	run train gpus -N2 --ntasks-per-node=2 --gpus-per-node=2 cuda
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(grep -c "GPUs exchange data by NCCL [0-9.]*, emulated" <<<"$output")" -eq 1 ]
	[[ $output == *"(emulated devices)"* ]]
	[ "$(grep -c '"emulated":true' "$TEST_WORK/gpus.jsonl")" -eq $STEPS ]
	same_losses_as_reference gpus
}

@test "without NCCL they do so through the host" {
	NCCL_SETTING=ETH_HPP_NCCL_LIBRARY=none
	run train hosts -N2 --ntasks-per-node=2 --gpus-per-node=2 cuda
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(grep -c "GPUs exchange data through the host, emulated: ETH_HPP_NCCL_LIBRARY is none" <<<"$output")" -eq 1 ]
	same_losses_as_reference hosts
}

@test "a rank that has another NCCL setting ends all ranks and is named" {
	ends_saying 2 "rank 2 on node[0-9]* has NCCL_ALGO=Tree .*, rank 0 on node[0-9]* has no NCCL_ALGO" unlike \
		-N2 --ntasks-per-node=2 --gpus-per-node=2 'cuda; [ $RANK != 2 ] || export NCCL_ALGO=Tree'
}

@test "GPUs beside CPUs are refused with the reason" {
	ends_saying 2 "computes on a CPU and rank [0-9]* on a GPU" mixed -N2 --ntasks-per-node=2 --gpus-per-node=2 \
		'$([ $RANK = 2 ] && echo cpu || echo cuda)'
}

@test "a rank whose GPU module cannot be opened ends all ranks" {
	ends_saying 2 "/nowhere/module.so" broken -N2 --ntasks-per-node=2 --gpus-per-node=2 \
		'cuda; [ $RANK != 3 ] || ETH_HPP_CUDA_MODULE=/nowhere/module.so'
}

@test "the death of a rank on a GPU ends all ranks" {
	STEPS=100000
	local start=$SECONDS
	run train killed -N2 --ntasks-per-node=2 --gpus-per-node=2 \
		'cuda; [ $RANK != 3 ] || { until grep -qs step killed.jsonl; do sleep 0.1; done; kill -KILL $$; } &'
	echo "$output"
	[ "$status" -gt 128 ] # by the signal that killed rank 3, or one that ended the others
	[ $((SECONDS - start)) -le 60 ]
	[ "$(grep -c '^eth-hpp: .*rank 3' <<<"$output")" -eq 1 ]
}
