#!/usr/bin/env bats
# Many tasks, many jobs after each other and at once. A short cut of it runs with the other tests, all of it as
# `tests/run load`, which sets the sizes.

load helpers
CLUSTER_DIR=$OTHER_CLUSTER_DIR

: "${LOAD_TASKS:=64}" "${LOAD_JOBS:=12}" "${LOAD_AT_ONCE:=12}"
# KiB that slurmd may grow by over all jobs: its own caches do, before and without the plugin.
GROWTH_KIB=1024

# Kinds come in sixteens, and four nodes have a quarter of the tasks each.
kinds() { # DEVICE
	local i list=$1:$((LOAD_TASKS / 4 < 16 ? LOAD_TASKS / 4 : 16))
	for ((i = 16; i < LOAD_TASKS / 4; i += 16)); do list+=,$1:16; done
	echo "$list"
}

setup_file() {
	printf '%s\n' 'defaults cpus=64' "n1 $(kinds H100-SXM)" "n2 $(kinds A100-SXM-40GB)" "n3 $(kinds V100-SXM-16GB)" "n4 $(kinds T4)" \
		>"$BATS_FILE_TMPDIR/nodes"
	cp "$CHECKOUT/tests/emulation/launcher" "$TEST_WORK/launcher"
	mini_cluster start --nodes "$BATS_FILE_TMPDIR/nodes" --plugin "$PLUGIN" --launcher "$ETH_HPP_PREFIX/bin/eth-hpp"
	: >"$BATS_FILE_TMPDIR/results"
}

teardown_file() {
	rm -f "$TEST_WORK/inventory"
	mini_cluster stop
	sed 's/^/# /' "$BATS_FILE_TMPDIR/results" >&3
}

teardown() {
	cancel_all_jobs
}

# A line of the table that the suite ends with.
result() { # TEXT...
	echo "$*" >>"$BATS_FILE_TMPDIR/results"
}

@test "many tasks meet, have a plan and become the program within 20 s" {
	local started=${EPOCHREALTIME/./} tenths
	run on_cluster srun -N4 --overcommit --ntasks-per-node=$((LOAD_TASKS / 4)) --gpus-per-node=$((LOAD_TASKS / 4)) --mpi=pmix \
		--eth-hpp=gpt2 --eth-hpp-calibrate=no sh -c 'echo "rank $RANK of $WORLD_SIZE"'
	tenths=$(((${EPOCHREALTIME/./} - started) / 100000))
	tail -n 20 <<<"$output"
	[ "$status" -eq 0 ]
	[ "$(grep -x "rank [0-9]* of $LOAD_TASKS" <<<"$output" | sort -u | wc -l)" -eq "$LOAD_TASKS" ]
	result "$LOAD_TASKS tasks: exchange, plan and exec in $((tenths / 10)).$((tenths % 10)) s"
	[ $tenths -lt 200 ]
}

# The files in the folders that a node has for itself, but for a checkout that lies there, and the names of the processes.
traces() {
	local node
	for node in n1 n2 n3 n4; do
		on_node $node sh -c 'find /run /tmp /dev/shm -path "$0" -prune -o -print | sort; ps -eo comm= | sort' "$CHECKOUT" | sed "s/^/$node /"
	done
}

slurmd_kib() { # NODE
	on_node "$1" sh -c 'grep VmRSS "/proc/$(cat "$1")/status"' sh "$CLUSTER_DIR/run/slurmd-$1.pid" | awk '{ print $2 }'
}

run_jobs() { # NUMBER
	local i
	for ((i = 0; i < $1; i++)); do
		on_cluster srun --quiet -N2 --ntasks-per-node=1 --gpus-per-node=1 --mpi=pmix --eth-hpp=gpt2 --eth-hpp-calibrate=no true \
			>"$BATS_TEST_TMPDIR/out" 2>&1 || {
			cat "$BATS_TEST_TMPDIR/out"
			return 1
		}
	done
	cancel_all_jobs # there is none, but epilogs may run still
}

same_traces() { # FILE
	traces >"$BATS_TEST_TMPDIR/now"
	cmp -s "$1" "$BATS_TEST_TMPDIR/now"
}

@test "jobs one after the other leave no file, process or memory behind" {
	local node grown most=0
	local -A before
	run_jobs 2 # what is there once: the folder, and what slurmd loads
	traces >"$BATS_TEST_TMPDIR/before"
	for node in n1 n2; do before[$node]=$(slurmd_kib $node); done
	run_jobs "$LOAD_JOBS"
	wait_until 10 same_traces "$BATS_TEST_TMPDIR/before" || diff "$BATS_TEST_TMPDIR/before" "$BATS_TEST_TMPDIR/now"
	for node in n1 n2; do
		grown=$(($(slurmd_kib $node) - before[$node]))
		[ $grown -lt $most ] || most=$grown
	done
	result "$LOAD_JOBS jobs one after the other: slurmd grew by $most KiB; no file and no process left"
	[ $most -le $GROWTH_KIB ]
}

# Each inventory says a number of its own, which no other one has.
@test "jobs at once do not mix their inventories" {
	local i
	cat >"$TEST_WORK/inventory" <<-'END'
		#!/bin/sh
		while [ $# -gt 1 ]; do
			[ "$1" != --node ] || node=$2
			shift
		done
		printf '{"format":"eth-hpp-inventory","version":1,"node":"%s","source":"none","driver":"%s","gpus":[],"nics":[]}\n' \
			"$node" "$(cat /proc/sys/kernel/random/uuid)"
	END
	chmod 755 "$TEST_WORK/inventory"
	cp "$CLUSTER_DIR/etc/plugstack.conf" "$BATS_TEST_TMPDIR/"
	sed -i "s|\$| launcher=$TEST_WORK/launcher|" "$CLUSTER_DIR/etc/plugstack.conf"
	rm -f "$TEST_WORK"/at-once.*
	for ((i = 0; i < LOAD_AT_ONCE; i++)); do
		on_cluster srun --quiet -N1 -n1 -c4 --mpi=none --eth-hpp=gpt2 sh -c 'echo "$SLURM_JOB_ID $SLURMD_NODENAME $ETH_HPP_INVENTORY $(
			sed "s/.*\"node\":\"\([^\"]*\)\".*\"driver\":\"\([^\"]*\)\".*/\1 \2/" "$ETH_HPP_INVENTORY")" >"at-once.$0.new"
			mv "at-once.$0.new" "at-once.$0"
			while [ ! -e at-once.go ]; do sleep 0.2; done' $i >"$TEST_WORK/at-once-$i.out" 2>&1 3>&- &
	done
	wait_until 90 all_started
	touch "$TEST_WORK/at-once.go"
	wait
	cp "$BATS_TEST_TMPDIR/plugstack.conf" "$CLUSTER_DIR/etc/"
	cat "$TEST_WORK"/at-once.[0-9]* >"$BATS_TEST_TMPDIR/all"
	# JOB NODE /run/eth-hpp/JOB/NODE.json NODE DRIVER: its own job's, its own node's, and like no other.
	[ "$(awk '$3 == "/run/eth-hpp/" $1 "/" $2 ".json" && $4 == $2 && length($5) == 36' "$BATS_TEST_TMPDIR/all" | wc -l)" -eq "$LOAD_AT_ONCE" ]
	[ "$(cut -d' ' -f5 "$BATS_TEST_TMPDIR/all" | sort -u | wc -l)" -eq "$LOAD_AT_ONCE" ]
	result "$LOAD_AT_ONCE jobs at once, all in their steps at the same time: each has its own inventory"
}

all_started() {
	[ "$(find "$TEST_WORK" -name 'at-once.[0-9]*' ! -name '*.new' | wc -l)" -eq "$LOAD_AT_ONCE" ]
}
