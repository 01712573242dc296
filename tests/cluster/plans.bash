# Plans for the eight GPUs of the tests' cluster, written by hand so that each exercises one feature of the runtime.
# shellcheck shell=bash

# A worker: NODE GPU SAMPLES.
worker() { printf '{"node":"%s","gpus":[%s],"samples":%s}' "$1" "$2" "$3"; }

# A stage: FIRST END EXTRA WORKER...; EXTRA is further keys, with a comma in front, or nothing.
stage() {
	local first=$1 end=$2 extra=$3 IFS=,
	shift 3
	printf '{"layers":[%s,%s]%s,"workers":[%s]}' "$first" "$end" "$extra" "$*"
}

# A pipeline: MICRO_BATCH MICRO_BATCHES STAGE...
pipeline() {
	local size=$1 count=$2 IFS=,
	shift 2
	printf '{"micro_batch":%s,"micro_batches":%s,"stages":[%s]}' "$size" "$count" "$*"
}

# A plan for gpt2-tiny6 (eight layers: embedding, six decoders, head) and a global batch of 16: PIPELINE...
plan() {
	local IFS=,
	printf '{"format":"eth-hpp-plan","version":1,"model":{"name":"gpt2-tiny6","layers":8,"sequence_length":64},"global_batch":16,"schedule":"1f1b","dtype":"fp32","pipelines":[%s]}\n' "$*"
}

# Every GPU holds all layers and gets the same data.
plan_even() {
	local node pipelines=()
	for node in node1 node2 node3 node4; do
		pipelines+=("$(pipeline 1 2 "$(stage 0 8 "" "$(worker $node 0 1)")")"
			"$(pipeline 1 2 "$(stage 0 8 "" "$(worker $node 1 1)")")")
	done
	plan "${pipelines[@]}"
}

# Unlike pipelines of one, two, three and two stages, with cuts at different places.
plan_unlike() {
	plan "$(pipeline 2 3 "$(stage 0 8 "" "$(worker node1 0 2)")")" \
		"$(pipeline 2 2 "$(stage 0 6 "" "$(worker node1 1 2)")" "$(stage 6 8 "" "$(worker node2 0 2)")")" \
		"$(pipeline 1 4 "$(stage 0 4 "" "$(worker node2 1 1)")" "$(stage 4 6 "" "$(worker node3 0 1)")" \
			"$(stage 6 8 "" "$(worker node3 1 1)")")" \
		"$(pipeline 1 2 "$(stage 0 3 "" "$(worker node4 0 1)")" "$(stage 3 8 "" "$(worker node4 1 1)")")"
}

# Unlike GPUs share each micro-batch inside a stage, in other proportions from stage to stage; three GPUs are idle.
plan_mixed() {
	plan "$(pipeline 4 4 "$(stage 0 4 "" "$(worker node1 0 3)" "$(worker node4 0 1)")" \
		"$(stage 4 8 "" "$(worker node2 0 2)" "$(worker node3 0 1)" "$(worker node3 1 1)")")"
}

# One pipeline with a layer a stage.
plan_deep() {
	local layer=0 node stages=()
	for node in node1 node2 node3 node4; do
		stages+=("$(stage $layer $((layer + 1)) "" "$(worker $node 0 2)")"
			"$(stage $((layer + 1)) $((layer + 2)) "" "$(worker $node 1 2)")")
		layer=$((layer + 2))
	done
	plan "$(pipeline 2 8 "${stages[@]}")"
}

# All micro-batches in flight, as in GPipe.
plan_gpipe() {
	local all=',"in_flight":4'
	plan "$(pipeline 2 4 "$(stage 0 2 $all "$(worker node1 0 2)")" "$(stage 2 5 $all "$(worker node2 0 2)")" \
		"$(stage 5 8 $all "$(worker node3 0 2)")")" \
		"$(pipeline 2 4 "$(stage 0 5 $all "$(worker node1 1 2)")" "$(stage 5 8 $all "$(worker node2 1 2)")")"
}

# The owners of a block each update a share of it.
shard() { sed 's/"dtype"/"optimizer":"sharded","dtype"/'; }
plan_sharded() { plan_unlike | shard; }
plan_sharded_mixed() { plan_mixed | shard; }
plan_sharded_recompute() { plan_gpipe | sed 's/"in_flight"/"recompute":true,&/g' | shard; }

# Activations are computed again in the backward.
plan_recompute() {
	local again=',"recompute":true'
	plan "$(pipeline 2 8 "$(stage 0 4 $again "$(worker node1 0 2)")" "$(stage 4 8 $again "$(worker node2 0 2)")")"
}
