#!/usr/bin/env bats
# The SPANK plugin on a cluster of its own, where a double of the eth-hpp program shows what is handed over.

load helpers
CLUSTER_DIR=$OTHER_CLUSTER_DIR

setup_file() {
	printf '%s\n' 'n1 T4:2 partition=a' 'n2 T4:2 partition=b' >"$BATS_FILE_TMPDIR/nodes"
	cp "$CHECKOUT/tests/emulation/launcher" "$TEST_WORK/launcher"
	mini_cluster start --nodes "$BATS_FILE_TMPDIR/nodes" --plugin "$PLUGIN" --launcher "$TEST_WORK/launcher"
}

teardown_file() {
	mini_cluster stop
}

setup() {
	cp "$CLUSTER_DIR/etc/plugstack.conf" "$BATS_TEST_TMPDIR/"
}

teardown() {
	rm -f "$TEST_WORK/inventory"
	cancel_all_jobs
	# Another node may be in its epilog still, which reads plugstack.conf.
	wait_until 10 no_inventory_left
	cp "$BATS_TEST_TMPDIR/plugstack.conf" "$CLUSTER_DIR/etc/"
}

no_inventory_left() {
	[ -z "$(on_node n1 find /run/eth-hpp -mindepth 1 -name '[0-9]*' 2>/dev/null)" ] &&
		[ -z "$(on_node n2 find /run/eth-hpp -mindepth 1 -name '[0-9]*' 2>/dev/null)" ]
}

# What a double's inventory does, by way of a script that replaces it.
inventory_does() { # COMMAND
	printf '#!/bin/sh\n%s\n' "$1" >"$TEST_WORK/inventory"
	chmod 755 "$TEST_WORK/inventory"
}

add_to_plugstack() { # WORDS
	sed -i "s|\$| $1|" "$CLUSTER_DIR/etc/plugstack.conf"
}

has() { # LINE: among the output's lines
	grep -qxF -- "$1" <<<"$output" || {
		echo "no line '$1' in:"
		echo "$output"
		return 1
	}
}

@test "shows Slurm its hooks alone and links the C library and json-c alone" {
	run nm -D --defined-only "$PLUGIN"
	[ -z "$(awk '{ print $3 }' <<<"$output" | grep -vE '^(plugin_(name|type|version)|slurm_spank_[a-z_]+)$')" ]
	[[ $output == *" plugin_name"* && $output == *" slurm_spank_task_init"* ]]
	run ldd "$PLUGIN"
	[ -z "$(grep -vE 'linux-vdso|libjson-c|libc\.so|ld-linux' <<<"$output")" ]
}

@test "srun: every task runs through the launcher, with its words, options and inventory" {
	run on_cluster srun -N2 --eth-hpp=gpt2 --eth-hpp-global-batch=24 --eth-hpp-dry-run \
		sh -c 'printf "%s|" "$@"; echo' name 'two words' '' '$x "y"'
	[ "$status" -eq 0 ]
	has "launched 0"
	has "launched 1"
	has "word <sh>"
	has "word <two words>"
	has "word <>"
	has 'word <$x "y">'
	has "ETH_HPP_MODEL=gpt2"
	has "ETH_HPP_GLOBAL_BATCH=24"
	has "ETH_HPP_DRY_RUN=yes"
	[[ $output == *'ETH_HPP_INVENTORY=/run/eth-hpp/'*'/n2.json'* ]]
	has 'two words||$x "y"|'
	[[ $output != *ETH_HPP_STEP* && $output != *ETH_HPP_DTYPE* ]]
}

@test "the inventory is root's, readable, taken by nobody with a clean environment, and gone afterwards" {
	run on_cluster srun -N1 --eth-hpp=gpt2 sh -c \
		'stat -c "%U %a" "$ETH_HPP_INVENTORY" "${ETH_HPP_INVENTORY%/*}" /run/eth-hpp; cat "$ETH_HPP_INVENTORY"'
	[ "$status" -eq 0 ]
	[ "$(grep -cxE 'root (644|710|711)' <<<"$output")" -eq 3 ]
	[[ $output == *'"driver":"65534 65534 65534 0"'* ]]
	wait_until 10 no_inventory_left
}

@test "sbatch: options in the script; the batch step itself is untouched" {
	cat >"$TEST_WORK/job" <<-'END'
		#!/bin/bash
		#SBATCH -N2 --eth-hpp=gpt2
		#SBATCH --eth-hpp-seq=128
		echo "batch ${ETH_HPP_INVENTORY-none} ${ETH_HPP_MODEL-none}"
		srun true
		exit 5
	END
	run on_cluster sbatch -W -o out job
	[ "$status" -eq 5 ]
	output=$(cat "$TEST_WORK/out")
	has "batch none none"
	has "ETH_HPP_SEQ=128"
	[ "$(grep -c launched <<<"$output")" -eq 2 ]
}

@test "salloc: steps inside inherit the option" {
	run on_cluster salloc -Q -N2 --eth-hpp=gpt2 srun true
	[ "$status" -eq 0 ]
	[ "$(grep -c launched <<<"$output")" -eq 2 ]
	[[ $output == *"ETH_HPP_INVENTORY="*n2.json* ]]
}

@test "a step that asks inside a plain allocation has no inventory, but the site's file" {
	run on_cluster env ETH_HPP_INVENTORY=/etc/shadow salloc -Q -N2 srun --eth-hpp=gpt2 true
	[ "$status" -eq 0 ]
	[ "$(grep -c launched <<<"$output")" -eq 2 ]
	[[ $output != *ETH_HPP_INVENTORY* ]]
	has "ETH_HPP_SITE_FILE=$CLUSTER_DIR/etc/site.json"
}

@test "heterogeneous job: each component finds the inventory of its own nodes" {
	run on_cluster_het 10 srun -Q --eth-hpp=gpt2 -p a -N1 : -p b -N1 sh -c 'cat $ETH_HPP_INVENTORY'
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *'"node":"n1"'* && $output == *'"node":"n2"'* ]]
	[ "$(grep ^ETH_HPP_INVENTORY= <<<"$output" | cut -d/ -f4 | sort -u | wc -l)" -eq 2 ]
}

@test "options win over the environment, and that over plugstack.conf" {
	add_to_plugstack "global_batch=3 seq=77 model=gpt2-xl"
	run on_cluster env ETH_HPP_GLOBAL_BATCH=4 ETH_HPP_MODEL=gpt2-medium srun -N1 --eth-hpp=gpt2 true
	has "ETH_HPP_MODEL=gpt2"
	has "ETH_HPP_GLOBAL_BATCH=4"
	has "ETH_HPP_SEQ=77"
	run on_cluster srun -N1 --eth-hpp true
	has "ETH_HPP_MODEL=gpt2-xl"
}

@test "a job that did not ask is untouched: same environment, same exit code" {
	on_cluster srun -N2 env | grep -vE 'JOB_?ID=|JOB_SLUID=|precondition_transports=|TIME=|PORT|_HOST|PID|PMIX|PMI_|EPOCH' | sort >"$BATS_TEST_TMPDIR/with"
	echo >"$CLUSTER_DIR/etc/plugstack.conf"
	on_cluster srun -N2 env | grep -vE 'JOB_?ID=|JOB_SLUID=|precondition_transports=|TIME=|PORT|_HOST|PID|PMIX|PMI_|EPOCH' | sort >"$BATS_TEST_TMPDIR/without"
	diff "$BATS_TEST_TMPDIR/with" "$BATS_TEST_TMPDIR/without"
	[ "$(wc -l <"$BATS_TEST_TMPDIR/with")" -gt 40 ]
	cp "$BATS_TEST_TMPDIR/plugstack.conf" "$CLUSTER_DIR/etc/"
	run on_cluster srun -N1 sh -c 'exit 42'
	[ "$status" -eq 42 ]
	[ -z "$(on_node n1 ls /run/eth-hpp 2>/dev/null)" ]
}

@test "exit codes of launched tasks are kept" {
	run on_cluster srun -N1 --eth-hpp=gpt2 sh -c 'exit 42'
	[ "$status" -eq 42 ]
}

@test "bad input is refused with one clear line, and nothing is submitted" {
	jobs=$(on_cluster scontrol show jobs | grep -c JobId=)
	printf '#!/bin/sh\n' >"$TEST_WORK/job"
	while IFS='|' read -r options message; do
		for command in srun salloc sbatch; do
			# shellcheck disable=SC2086 # several words
			run on_cluster $command $options "$TEST_WORK/job"
			echo "$command $options: $output"
			[ "$status" -ne 0 ]
			[[ ${lines[0]} == "eth-hpp: $message"* ]]
			[ "$(grep -c '^eth-hpp: ' <<<"$output")" -eq 1 ]
		done
	done <<-'END'
		--eth-hpp|--eth-hpp needs a model
		--eth-hpp=gpt9|--eth-hpp: there is no model "gpt9"
		--eth-hpp=/no/config.json|--eth-hpp: there is no model "/no/config.json"
		--eth-hpp-seq=8|--eth-hpp-seq does nothing without --eth-hpp
		--eth-hpp=gpt2 --eth-hpp-global-batch=0|--eth-hpp-global-batch: must be a whole number 1..
		--eth-hpp=gpt2 --eth-hpp-seq=1e3|--eth-hpp-seq: must be a whole number 1..
		--eth-hpp=gpt2 --eth-hpp-dtype=int8|--eth-hpp-dtype: must be one of auto
		--eth-hpp=gpt2 --eth-hpp-plan=/no/plan|--eth-hpp-plan: cannot read /no/plan: No such file
		--eth-hpp=gpt2 --eth-hpp-profile=/etc|--eth-hpp-profile: /etc is not a file
		--eth-hpp=gpt2 --eth-hpp-plan=/etc/passwd --eth-hpp-seq=8|--eth-hpp-plan and --eth-hpp-seq contradict
	END
	run on_cluster env ETH_HPP_SEQ=no srun --eth-hpp=gpt2 true
	[[ ${lines[0]} == "eth-hpp: environment variable ETH_HPP_SEQ: must be"* ]]
	[ "$(on_cluster scontrol show jobs | grep -c JobId=)" -eq "$jobs" ]
}

@test "srun --eth-hpp gpt2, without =, is recognised" {
	for words in "srun --eth-hpp gpt2 true" "srun --eth-hpp conf/config.json true"; do
		# shellcheck disable=SC2086
		run on_cluster env ETH_HPP_MODEL=gpt2-xl $words
		[ "$status" -ne 0 ]
		[[ ${lines[0]} == 'eth-hpp: --eth-hpp takes its model after "=": write --eth-hpp='* ]]
	done
	# What follows may be an option whose file has such a name.
	run on_cluster env ETH_HPP_MODEL=gpt2 srun --eth-hpp --eth-hpp-profile=missing.json true
	[[ ${lines[0]} == 'eth-hpp: --eth-hpp-profile: cannot read missing.json'* ]]
	# The command's own words are its own business.
	run on_cluster srun -N1 --eth-hpp=gpt2 echo --eth-hpp gpt2
	[ "$status" -eq 0 ]
}

@test "an inventory that hangs is given up: the job starts and is told why" {
	add_to_plugstack "timeout=1"
	inventory_does 'echo "{"; sleep 300 & wait'
	started=$SECONDS
	run on_cluster srun -N1 --eth-hpp=gpt2 sh -c 'cat $ETH_HPP_INVENTORY'
	[ "$status" -eq 0 ]
	[ $((SECONDS - started)) -lt 8 ]
	[[ $output == *'longer than 1 s'* ]]
	run on_node n1 pgrep -f 'sleep 300'
	[ "$status" -eq 1 ]
}

@test "an inventory that fails, or prints nonsense, leaves one that says why" {
	inventory_does 'echo "eth-hpp: the moon is full" >&2; exit 1'
	run on_cluster srun -N1 --eth-hpp=gpt2 sh -c 'cat $ETH_HPP_INVENTORY'
	[ "$status" -eq 0 ]
	[[ $output == *'the moon is full'* ]]
	inventory_does 'echo "{\"format\":\"eth-hpp-inventory\",\"version\":1"'
	run on_cluster srun -N1 --eth-hpp=gpt2 sh -c 'cat $ETH_HPP_INVENTORY'
	[ "$status" -eq 0 ]
	echo "$output"
	[[ $output == *'truncated'* ]]
	inventory_does 'kill -SEGV $$'
	run on_cluster srun -N1 --eth-hpp=gpt2 sh -c 'cat $ETH_HPP_INVENTORY'
	[ "$status" -eq 0 ]
	[[ $output == *'ended by signal 11'* ]]
	inventory_does 'head -c 3000000 /dev/zero'
	run on_cluster srun -N1 --eth-hpp=gpt2 sh -c 'cat $ETH_HPP_INVENTORY'
	[ "$status" -eq 0 ]
	[[ $output == *'larger than'* ]]
}

@test "a rank that is killed is named with its node and signal, once" {
	run on_cluster srun -N2 --ntasks-per-node=2 -K1 --eth-hpp=gpt2 \
		sh -c '[ $SLURM_PROCID = 3 ] && { sleep 0.5; kill -SEGV $$; }; exec sleep 60'
	[ "$status" -ne 0 ]
	[ "$(grep -c 'ended by signal' <<<"$output")" -eq 1 ]
	has "eth-hpp: rank 3 on n2: ended by signal 11 (Segmentation fault)"
}

restart_slurmd() { # NODE
	on_node "$1" sh -c 'pid=$(cat "$1"); kill "$pid"; while kill -0 "$pid" 2>/dev/null; do sleep 0.05; done; exec slurmd -N "$2"' \
		sh "$CLUSTER_DIR/run/slurmd-$1.pid" "$1"
	wait_until 20 cluster_is_idle
}

told() { # LINE: how often n1's slurmd has
	grep -c -- "eth-hpp: $1" "$CLUSTER_DIR/log/slurmd-n1.log" || true
}

@test "a mistake in plugstack.conf is named once by slurmd, and stops those who ask, nobody else" {
	add_to_plugstack "color=red inventory=always"
	restart_slurmd n1
	run on_cluster srun -N2 hostname
	[ "$status" -eq 0 ]
	run on_cluster srun -N1 --eth-hpp=gpt2 hostname
	[ "$status" -ne 0 ]
	[ "${lines[0]}" = 'eth-hpp: plugstack.conf: "color=red" is no KEY=VALUE that is known' ]
	[ "$(told 'plugstack.conf: "color=red" is no KEY=VALUE that is known; jobs that ask')" -eq 1 ]
	[ "$(told 'plugstack')" -eq 1 ]
	no_inventory_left
	cluster_is_idle
}

@test "switched off, eth-hpp refuses those who ask, is not seen by others, and lets a running step go on" {
	on_cluster srun -N2 --eth-hpp=gpt2 sh -c 'touch running.$SLURM_PROCID; while [ ! -e go ]; do sleep 0.1; done' \
		>"$TEST_WORK/step.out" 2>&1 3>&- &
	step=$!
	wait_until 20 test -e "$TEST_WORK/running.1"
	printf '#!/bin/sh\n' >"$TEST_WORK/job"
	add_to_plugstack "enabled=no inventory=always"
	run on_cluster srun -N2 --overlap env
	[ "$status" -eq 0 ]
	[[ $output != *ETH_HPP_INVENTORY* && $output != *launched* ]]
	for command in srun sbatch salloc; do
		run on_cluster $command --eth-hpp=gpt2 "$TEST_WORK/job"
		[ "$status" -ne 0 ]
		[ "${lines[0]}" = 'eth-hpp: switched off by enabled=no in plugstack.conf' ]
	done
	touch "$TEST_WORK/go"
	wait $step
	rm -f "$TEST_WORK"/{go,running.*}
	wait_until 10 no_inventory_left
	restart_slurmd n1
	[ "$(told 'switched off by enabled=no in plugstack.conf')" -eq 1 ]
}

@test "inventory=always: a step that asks inside a plain allocation has an inventory" {
	add_to_plugstack "inventory=always"
	run on_cluster salloc -Q -N2 srun --eth-hpp=gpt2 true
	[ "$status" -eq 0 ]
	[[ $output == *ETH_HPP_INVENTORY=*n1.json* && $output == *ETH_HPP_INVENTORY=*n2.json* ]]
	wait_until 10 no_inventory_left
}

@test "a plugin of another release is refused with the release that it was built for" {
	cp "$PLUGIN" "$TEST_WORK/other.so"
	# In place of the number that Slurm compares.
	number=$(readelf --syms --wide "$PLUGIN" | awk '$8 == "plugin_version" { print "0x" $2; exit }')
	printf '\x06\x02\x17\x00' | dd of="$TEST_WORK/other.so" bs=1 seek=$((number)) conv=notrunc status=none
	sed -i "s|required [^ ]*|required $TEST_WORK/other.so|" "$CLUSTER_DIR/etc/plugstack.conf"
	run on_cluster srun -N1 hostname
	echo "$output"
	[ "$status" -ne 0 ]
	[[ $output == *"Incompatible Slurm plugin $TEST_WORK/other.so version (23.02.6)"* ]]
}

@test "a plugstack.conf that is wrong on a node fails the step with the reason, and drains nothing" {
	# srun reads the good file and the nodes a bad one.
	on_cluster salloc -Q -N2 --eth-hpp=gpt2 --no-shell -J held
	job=$(on_cluster squeue -h -n held -o %A)
	sed 's|launcher=[^ ]*|launcher=relative|' "$CLUSTER_DIR/etc/plugstack.conf" >"$TEST_WORK/bad"
	for node in n1 n2; do
		on_node "$node" mount --bind "$TEST_WORK/bad" "$CLUSTER_DIR/etc/plugstack.conf"
	done
	run on_cluster srun --jobid="$job" --eth-hpp=gpt2 hostname
	for node in n1 n2; do on_node "$node" umount "$CLUSTER_DIR/etc/plugstack.conf"; done
	[ "$status" -ne 0 ]
	[[ $output == *"eth-hpp: plugstack.conf: launcher: must be an absolute path"* ]]
	[[ $output != *launched* ]]
	on_cluster scancel "$job"
	wait_until 20 cluster_is_idle
}

@test "a user who is not root gets the same, and cannot touch the inventory" {
	setpriv --reuid=65534 --regid=65534 --clear-groups test -r "$PLUGIN" ||
		skip "the build folder is closed to other users"
	run on_cluster setpriv --reuid=65534 --regid=65534 --clear-groups srun -N2 --eth-hpp=gpt2 \
		sh -c 'id -u; head -c 1 "$ETH_HPP_INVENTORY"; ! rm -f "$ETH_HPP_INVENTORY" && ! touch /run/eth-hpp/x'
	[ "$status" -eq 0 ]
	[ "$(grep -c launched <<<"$output")" -eq 2 ]
	has 65534
}
