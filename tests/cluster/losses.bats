#!/usr/bin/env bats
# The result does not depend on the plan: the same loss at every step, to rounding.

load helpers
load losses
load plans
CLUSTER_DIR=$OTHER_CLUSTER_DIR

STEPS=50
MODEL=gpt2-tiny6
PLANNED=gpt2-tiny6 # what plans are made for, where MODEL is a variation of it
DATA=text

# On emulated devices that are hardly slower than the real arithmetic: time does not matter here.
setup_file() {
	sed 's/time_scale=[^ ]*/time_scale=2e3/' "$CHECKOUT/contrib/mini-cluster.d/unlike.nodes" >"$BATS_FILE_TMPDIR/nodes"
	mini_cluster start --nodes "$BATS_FILE_TMPDIR/nodes" --plugin "$PLUGIN" --launcher "$ETH_HPP_PREFIX/bin/eth-hpp"
	cat /usr/share/common-licenses/GPL-3 >"$TEST_WORK/text"
	# One rank without a launcher or Slurm: what all others are held against.
	train reference "$ETH_HPP_PREFIX/bin/eth-hpp" >"$TEST_WORK/reference.log" 2>&1
}

teardown_file() {
	mini_cluster stop
}

# Trains for STEPS steps; the losses go to NAME.jsonl.
train() { # NAME COMMAND... (to which `train` and its options are added)
	local name=$1
	shift
	on_cluster "$@" train --model=$MODEL --global-batch=16 --data=$DATA --steps=$STEPS --seed=7 --metrics="$name.jsonl"
}

# Each computing rank's arena holds at most what the plan has foreseen, and at least four fifths of it (these emulated
# devices have no reserve).
memory_as_predicted() { # NAME
	head -n 1 "$TEST_WORK/$1.jsonl" | grep -o '"rank":[^}]*' | tr -d '"a-z_:' | tr ',' ' ' | awk '
		$3 > 0 { share = $2 / $3; printf "rank %d: %.3f of %d bytes\n", $1, share, $3; ranks++; if (share > 1 || share < 0.8) wrong = 1 }
		END { exit wrong || ranks == 0 }'
}

# Trains under a plan on the eight GPUs.
check_plan() { # NAME [REFERENCE]
	"plan_$1" | sed "s/gpt2-tiny6/$PLANNED/" >"$TEST_WORK/$1.json"
	train "$1" srun -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix --eth-hpp=$PLANNED --eth-hpp-plan="$1.json" \
		--eth-hpp-calibrate=no "$ETH_HPP_PREFIX/bin/eth-hpp"
	same_losses "$1" "${2:-reference}"
	memory_as_predicted "$1"
}

@test "the loss of one rank falls on real text" {
	[ "$(losses reference | wc -l)" -eq $STEPS ]
	losses reference | awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(first > 5.3 && last < 0.75 * first) }'
}

@test "an even plan" { check_plan even; }
@test "unlike pipelines" { check_plan unlike; }
@test "stages of mixed kinds, and idle ranks" { check_plan mixed; }
@test "a single deep pipeline" { check_plan deep; }
@test "all micro-batches in flight" { check_plan gpipe; }
@test "recomputed activations" { check_plan recompute; }
@test "recomputed activations of all micro-batches, and a sharded optimizer" { check_plan sharded_recompute; }
@test "a sharded optimizer of unlike pipelines" { check_plan sharded; }
@test "a sharded optimizer of mixed stages" { check_plan sharded_mixed; }

@test "dropout, with and without recomputed activations" {
	MODEL=dropping.config
	cat >"$TEST_WORK/$MODEL" <<-END
		{"model_type":"gpt2","vocab_size":256,"n_positions":64,"n_embd":64,"n_layer":6,"n_head":4,"n_inner":256,
		 "embd_pdrop":0.1,"resid_pdrop":0.1,"attn_pdrop":0.1}
	END
	train dropping "$ETH_HPP_PREFIX/bin/eth-hpp"
	run same_losses_as_reference dropping
	[ "$status" -ne 0 ]
	check_plan unlike dropping
	check_plan mixed dropping
	check_plan recompute dropping
}

@test "a Llama, with and without recomputed activations" {
	MODEL=llama-tiny PLANNED=llama-tiny
	train llama "$ETH_HPP_PREFIX/bin/eth-hpp"
	losses llama | awk 'NR == 1 { first = $2 } { last = $2 } END { exit !(first > 5.3 && last < 0.75 * first) }'
	check_plan unlike llama
	check_plan mixed llama
	check_plan recompute llama
}

# The text as 16-bit tokens, with stretches of padding in which whole samples lie.
pad_text() {
	local piece
	iconv -f latin1 -t utf-16le "$TEST_WORK/text" >"$TEST_WORK/words"
	for piece in {0..15}; do
		dd if="$TEST_WORK/words" bs=2000 skip="$piece" count=1 status=none
		head -c $((piece * 100)) /dev/zero | tr '\0' '\377'
	done >"$TEST_WORK/padded.bin"
}

@test "padded targets: the mean is over the real ones of the whole batch" {
	DATA=padded.bin
	pad_text
	train padded "$ETH_HPP_PREFIX/bin/eth-hpp"
	sed -n 's/.*"targets": *\([0-9]*\).*/\1/p' "$TEST_WORK/padded.jsonl" | sort -n | tr '\n' ' '
	sed -n 's/.*"targets": *\([0-9]*\).*/\1/p' "$TEST_WORK/padded.jsonl" | awk '
		{ if ($1 >= 1024) whole = 1; if (NR == 1 || $1 < least) least = $1 } END { exit whole || least > 700 }'
	check_plan even padded # a sample a micro-batch: some have no target
	check_plan unlike padded
	check_plan sharded padded
}

@test "the solver's plan on a heterogeneous job" {
	on_cluster_het 100 srun --quiet -p new -N2 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix --eth-hpp=gpt2-tiny6 \
		--eth-hpp-global-batch=16 : -p old -N2 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix \
		"$ETH_HPP_PREFIX/bin/eth-hpp" train --data=text --steps=$STEPS --seed=7 --metrics=het.jsonl
	same_losses_as_reference het
	memory_as_predicted het
}
