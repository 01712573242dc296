#!/usr/bin/env bats
# The examples of docs/users.md as they are but for the names of a site: partitions, model, sizes.

load helpers
load losses

setup_file() {
	cp /usr/share/common-licenses/GPL-3 "$TEST_WORK/text"
	STEPS=4
	one_rank reference
}

teardown() {
	cancel_all_jobs
}

# shellcheck disable=SC2034 # for losses.bash
STEPS=4

# What is trained here is tiny: gpt2-tiny6 on a text.
one_rank() { # NAME
	on_cluster "$ETH_HPP_PREFIX/bin/eth-hpp" train --model=gpt2-tiny6 --global-batch=16 --data=text --steps=$STEPS --log-every=1 \
		--metrics="$1.jsonl"
}

adapt() { # EXAMPLE [SED-EXPRESSION...]
	local name=$1
	shift
	to_this_site "s/metrics.jsonl/$name.jsonl/" "$@" <"$CHECKOUT/contrib/examples/$name.sbatch" >"$TEST_WORK/$name.sbatch"
	rm -f "$TEST_WORK"/{plan.json,"$name.jsonl","$name.out"}
}

to_this_site() { # [SED-EXPRESSION...]
	local expression
	local -a expressions=()
	for expression in "$@"; do expressions+=(-e "$expression"); done
	sed -e 's/=gpt2\b/=gpt2-tiny6/' -e 's/=512/=16/' -e 's/=corpus.bin/=text/' -e "s/--steps=[0-9]*/--steps=$STEPS/" "${expressions[@]}"
}

# The command lines that docs/users.md shows, which are no batch scripts, in their order.
commands() {
	awk '/^```/ { inside = $0 == "```bash"; first = inside; next } inside && first { first = 0; line = !/^#!/ } inside && line' \
		"$CHECKOUT/docs/users.md"
}

submit() { # EXAMPLE SBATCH-OPTION...
	local name=$1
	shift
	on_cluster env PATH="$ETH_HPP_PREFIX/bin:$PATH" sbatch --parsable -o "$name.out" "$@" "$name.sbatch"
}

@test "gpt2.sbatch" {
	adapt gpt2
	run submit gpt2 --wait
	cat "$TEST_WORK/gpt2.out"
	[ "$status" -eq 0 ]
	same_losses gpt2 reference
	grep -q '"eth-hpp-plan"' "$TEST_WORK/plan.json"
}

@test "partitions.sbatch" {
	adapt partitions s/=h100/=new/ s/=v100/=old/
	run on_cluster_het 40 env PATH="$ETH_HPP_PREFIX/bin:$PATH" sbatch --wait -o partitions.out partitions.sbatch
	cat "$TEST_WORK/partitions.out"
	[ "$status" -eq 0 ]
	same_losses partitions reference
}

is_pending() { [ "$(on_cluster squeue -h -j "$1" -o %T)" = PENDING ]; } # JOB

# Slurm holds a requeued job back for two minutes.
restarted() { # JOB
	on_cluster scontrol update job "$1" starttime=now 2>/dev/null
	grep -q 'going on from step' "$TEST_WORK/requeue.out"
}

@test "requeue.sbatch: goes on after the signal that Slurm sends before the time limit" {
	adapt requeue s/--steps=/--steps=2000/
	job=$(submit requeue)
	wait_until 60 grep -q 'step 10/' "$TEST_WORK/requeue.out"
	on_cluster scancel --signal=USR1 "$job.0"
	wait_until 30 is_pending "$job"
	sleep 2 # slurmd refuses a job that starts in the second in which it ended
	wait_until 60 restarted "$job" || {
		on_cluster scontrol show job "$job"
		cat "$TEST_WORK/requeue.out"
		false
	}
	grep -q 'stopped by signal 10 after step' "$TEST_WORK/requeue.out"
}

@test "given-plan.sbatch" {
	adapt given-plan
	run submit given-plan --wait
	cat "$TEST_WORK/given-plan.out"
	[ "$status" -eq 0 ]
	same_losses given-plan reference
	[ "$(grep -c '^plan for ' "$TEST_WORK/given-plan.out")" -eq 3 ] # found, shown and run
}

# After requeue.sbatch, whose checkpoints they show.
@test "the command lines" {
	commands | to_this_site 's/-p h100/-p new/' 's/-p v100/-p old/' >"$TEST_WORK/commands.sh"
	run on_cluster_het 100 env PATH="$ETH_HPP_PREFIX/bin:$PATH" bash -ex commands.sh
	echo "$output"
	[ "$status" -eq 0 ]
	[ "$(grep -c "^step $STEPS/$STEPS" <<<"$output")" -eq 2 ] # on two partitions, and by the plan made offline
	[[ $output == *"step-0000"*" samples of "*" tokens seen"* ]]
}
