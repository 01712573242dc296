#!/usr/bin/env bats
# The fault matrix: whatever fails in a training, all ranks end in time, with the documented exit code and one line that
# says which rank on which host failed how; the last checkpoint is whole, and the training goes on from it.

load helpers
load losses
load plans
CLUSTER_DIR=$OTHER_CLUSTER_DIR
load faults

# On emulated devices that are a little slower than the real arithmetic: a step takes a sixth of a second.
setup_file() {
	sed 's/time_scale=[^ ]*/time_scale=2e4/' "$CHECKOUT/contrib/mini-cluster.d/unlike.nodes" >"$BATS_FILE_TMPDIR/nodes"
	mkdir -p "$TEST_WORK/small"
	mount -t tmpfs -o size=9m small "$TEST_WORK/small" # before the nodes start, which then share it
	mini_cluster start --nodes "$BATS_FILE_TMPDIR/nodes" --plugin "$PLUGIN" --launcher "$ETH_HPP_PREFIX/bin/eth-hpp"
	cp /usr/share/common-licenses/GPL-3 "$TEST_WORK/text"
	plan_unlike >"$TEST_WORK/unlike.json"
	compile slow_fsync.so pmix
	# shellcheck disable=SC2046 # several words
	on_cluster $(training reference) --model=gpt2-tiny6 --global-batch=16 --steps=100 --checkpoint-every=0
}

teardown_file() {
	mini_cluster stop
	umount "$TEST_WORK/small"
	printf '# %s\n' "fault                                        code  all ended  line" >&3
	sed 's/^/# /' "$FAULTS" >&3
}

teardown() {
	[ -z "${lost_node-}" ] || bring_back "$lost_node"
	cancel_all_jobs
}

@test "a rank is killed" {
	start_training killed
	send killed KILL node3 5
	ended_with killed "killed rank" 10 137 'rank 5 on node3: ended by signal 9 (Killed)'
	goes_on killed
}

@test "a rank is killed where the plugin does not see it" {
	start_training unseen "$by_hand"
	send unseen KILL node3 5
	ended_with unseen "killed rank, without the plugin" 10 137 'rank 5 on node3 is lost: its process was killed or crashed'
	goes_on unseen
}

@test "a rank is stopped" {
	start_training stopped
	send stopped STOP node3 5
	ended_with stopped "stopped rank" $((WAIT_S + END_S)) 1 \
		'rank [0-9]* on node[0-9]: step [0-9]*, \(sync-block [0-9]*\|micro-batch [0-9]* of pipeline 2, [a-z]*-[a-z]*\): waited [0-9.]* s for a [a-z ]* rank 5 on node3$'
	goes_on stopped
}

@test "the first rank, which decides what is said, is stopped" {
	start_training first
	send first STOP node1 0
	ended_with first "stopped first rank" $((WAIT_S + END_S)) 1 'rank [0-9]* on node[0-9]: step .* waited .* rank 0 on node1$'
	goes_on first
}

cut_off() { # NAME NODE
	start_training "$1"
	lost_node=$2
	on_node "$2" ip link set eth0 down
}

@test "a node's link goes down" {
	cut_off cut node3
	ended_with cut "link of a node down" $((WAIT_S + END_S)) 1 'rank [0-9]* on node[124]: step .* waited .* rank [45] on node3$'
	goes_on cut
}

@test "the link of the first rank's node goes down" {
	cut_off severed node1
	ended_with severed "link of the first node down" $((WAIT_S + END_S)) 1 'rank [0-9]* on node[2-4]: step .* waited .* rank [01] on node1$'
	goes_on severed
}

# Each file of a checkpoint takes a second, and training does not wait for that.
@test "a rank is killed while a checkpoint is written" {
	start_training torn "--export=ALL,LD_PRELOAD=$TEST_WORK/slow_fsync.so $with_plugin"
	wait_until 20 grep -q '^step 10/' "$TEST_WORK/torn.out"
	send torn KILL node2 3
	[ "$(sed '/^step 10/q' "$TEST_WORK/torn.out" | grep -c 'checkpoint of step')" -eq 1 ]
	[ -e "$TEST_WORK/torn.ck/step-000000008.partial" ]
	ended_with torn "killed rank while a checkpoint is written" 10 137 'rank 3 on node2: ended by signal 9 (Killed)'
	goes_on torn
	[ "$(ls "$TEST_WORK/torn.ck")" = step-000000008 ] # what was half-written is gone
}

@test "the disk is full when a checkpoint is written" {
	fault_at=${EPOCHREALTIME/./}
	start_job full "$with_plugin" "$(training full) --checkpoint=small/ck --checkpoint-every=5 --checkpoint-keep=0 --steps=40"
	wait_until 60 test -s "$TEST_WORK/full.code"
	ended_with full "full disk at a checkpoint" 10 1 \
		'rank [0-9]* on node[0-9]: the checkpoint of step 15: small/ck/.*: cannot write: No space left on device$'
	goes_on full small/ck
	[ "$(ls "$TEST_WORK/small/ck")" = step-000000014 ] # what was half-written is gone
}

@test "data are cut off while they are read" {
	cp "$TEST_WORK/text" "$TEST_WORK/short"
	start_training short "$with_plugin" --data=short
	truncate -s 100 "$TEST_WORK/short"
	ended_with short "data cut off in use" 10 2 'rank [0-9]* on node[0-9]: short: is cut off at offset [0-9]*$'
	goes_on short
}

# A training that a fault keeps from beginning: it has a checkpoint to go on from.
does_not_begin() { # NAME FAULT CODE LINE HOW OPTION...
	local name=$1
	# shellcheck disable=SC2046 # several words
	on_cluster $(training "$name") --model=gpt2-tiny6 --global-batch=16 --steps=4 --checkpoint-every=0
	fault_at=${EPOCHREALTIME/./}
	start_job "$name" "$5" "$(training "$name") --steps=100 --checkpoint-every=0 --resume ${*:6}"
	wait_until 60 test -s "$TEST_WORK/$name.code"
	ended_with "$name" "$2" 10 "$3" "$4"
	goes_on "$name"
}

@test "data are missing on one node" {
	local node
	for node in node1 node2 node4; do on_node $node cp "$TEST_WORK/text" /tmp/own-text; done
	does_not_begin missing "data missing on one node" 2 \
		'rank [45] on node3: /tmp/own-text: cannot open: No such file or directory$' "$with_plugin" --data=/tmp/own-text
}

@test "data may not be read" {
	install -m 600 "$TEST_WORK/text" "$TEST_WORK/private"
	chmod 1777 "$TEST_WORK"
	as="setpriv --reuid=65534 --regid=65534 --clear-groups"
	does_not_begin forbidden "data that may not be read" 2 'rank [0-9]* on node[0-9]: private: cannot open: Permission denied$' \
		"$with_plugin" --data=private
}

@test "numbers are none" {
	does_not_begin diverged "loss that is not finite" 1 'rank [0-9]* on node[0-9]: step [0-9]*: the .* is not finite: ' \
		"$with_plugin" --lr=1000 --min-lr=1000 --clip=0
}

@test "a rank that is asked to end, without checkpoints, ends all" {
	start_job quit "$with_plugin" "$ETH_HPP_PREFIX/bin/eth-hpp train --data=text --steps=100000 --log-every=1"
	wait_until 60 grep -q '^step 3/' "$TEST_WORK/quit.out"
	send quit TERM node2 2
	wait_until 10 test -s "$TEST_WORK/quit.code"
	no_rank_left
	[ "$(cat "$TEST_WORK/quit.code")" -eq 143 ]
	[ "$(said quit | wc -l)" -eq 0 ] # it was wanted
}
