# shellcheck shell=bash
# Trainings that something goes wrong with: how they are started, and what all of them must end with. The outcomes
# make a table, one line a fault, in FAULTS.

# Seconds after which a wait for another rank fails, and within which all ranks are to have ended then: the manual page
# says so.
WAIT_S=5
END_S=30
FAULTS=$BATS_FILE_TMPDIR/faults

# What all trainings here share: the rate is the same whatever --steps says, so one reference serves all of them.
training() { # NAME
	echo "$ETH_HPP_PREFIX/bin/eth-hpp train --data=text --lr=1e-3 --min-lr=1e-3 --seed=7 --log-every=1 --checkpoint=$1.ck \
		--metrics=$1.jsonl"
}

with_plugin="--eth-hpp=gpt2-tiny6 --eth-hpp-plan=unlike.json --eth-hpp-calibrate=no"
by_hand="$ETH_HPP_PREFIX/bin/eth-hpp launch --model=gpt2-tiny6 --plan=unlike.json --calibrate=no --"

# Runs a command on all eight GPUs, in the background; its lines go to NAME.out, its exit code to NAME.code, and the
# ranks' pids to NAME.pid.RANK. With `as` it is started through that command.
start_job() { # NAME HOW COMMAND
	rm -f "$TEST_WORK/$1".{out,code,pid.*}
	# shellcheck disable=SC2086 # several words, or none
	on_cluster ${as-} sh -c "ETH_HPP_TIMEOUT=$WAIT_S srun -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix $2 \
		sh -c 'echo \$\$ >$1.pid.\$RANK; exec $3' >$1.out 2>&1; echo \$? >$1.code" 3>&- &
}

# The same of a training, until it has a checkpoint and is some steps beyond it.
start_training() { # NAME [HOW [OPTION...]]
	local name=$1 how=${2-$with_plugin}
	rm -rf "$TEST_WORK/$name".{ck,jsonl}
	start_job "$name" "$how" "$(training "$name") --steps=100000 --checkpoint-every=4 ${*:3}"
	wait_until 60 grep -q 'checkpoint of step 4 ' "$TEST_WORK/$name.out"
	wait_until 20 grep -q '^step 6/' "$TEST_WORK/$name.out"
	fault_at=${EPOCHREALTIME/./}
}

send() { # NAME SIGNAL NODE RANK
	on_node "$3" kill "-$2" "$(cat "$TEST_WORK/$1.pid.$4")"
}

no_rank_left() {
	local node
	for node in node1 node2 node3 node4; do
		! on_node "$node" pgrep -f 'eth-hpp (train|launch)' >/dev/null || return 1
	done
}

# What is neither progress nor Slurm's own, of the time after the fault.
said() { # NAME
	grep -v '^step \|^plan \|^  \|^eth-hpp: checkpoint of step [0-9]* in \|^eth-hpp: going on from \|^srun: \|^slurmstepd' \
		"$TEST_WORK/$1.out"
}

# Slurm holds a job until the nodes that it cannot reach are back, or until SlurmdTimeout is over. This is what it does then.
take_for_lost() { # NODE
	on_cluster scontrol update nodename="$1" state=down reason="no answer"
}

bring_back() { # NODE
	on_node "$1" ip link set eth0 up
	on_cluster scontrol update nodename="$1" state=resume || true # where it was not down
}

# All ranks end in time, the job with this exit code, and one line says why.
ended_with() { # NAME FAULT SECONDS CODE LINE (a regular expression)
	local name=$1 seconds
	wait_until "$3" no_rank_left
	seconds=$(((${EPOCHREALTIME/./} - fault_at) / 100000))
	[ -z "${lost_node-}" ] || take_for_lost "$lost_node"
	wait_until 20 test -s "$TEST_WORK/$name.code"
	printf '%-44s %4d  %5s s  %s\n' "$2" "$(cat "$TEST_WORK/$name.code")" "$((seconds / 10)).$((seconds % 10))" "$(said "$name")" >>"$FAULTS"
	grep -v '^step ' "$TEST_WORK/$name.out" | tail -n 20
	[ "$(cat "$TEST_WORK/$name.code")" -eq "$4" ]
	[ "$(said "$name" | wc -l)" -eq 1 ]
	said "$name" | grep -q "^eth-hpp: $5"
}

# The newest checkpoint is whole, and a training goes on from it, on one rank, as if nothing had happened.
goes_on() { # NAME [FOLDER]
	local name=$1 folder=$TEST_WORK/${2-$1.ck} last
	on_cluster "$ETH_HPP_PREFIX/bin/eth-hpp" checkpoint verify "$folder"
	last=$(find "$folder" -name 'step-*' -printf '%f\n' | sort | grep -v partial | tail -n 1)
	STEPS=$((10#${last#step-} + 4))
	# shellcheck disable=SC2046 # several words
	on_cluster $(training "$name") --model=gpt2-tiny6 --global-batch=16 --checkpoint="$folder" --checkpoint-every=0 \
		--checkpoint-keep=1 --resume --steps=$STEPS
	head -n $STEPS "$TEST_WORK/reference.jsonl" >"$TEST_WORK/expected.jsonl"
	same_losses "$name" expected
}
