#!/usr/bin/env bats
# What goes wrong under root's part of the plugin, in each hook and in the inventory's child: memory, disk, processes,
# /run, the clock. A job that did not ask is never touched; one that asked starts, or ends with one clear line; nothing
# hangs, and no node drains. Ends with a table of faults and outcomes.

load ../cluster/helpers
CLUSTER_DIR=$OTHER_CLUSTER_DIR
load ../cluster/root_faults

setup_file() {
	start_cluster_of_faults
}

teardown_file() {
	stop_cluster_of_faults
	rm -rf "$TEST_WORK"
}

teardown() {
	clean_up_fault
}

@test "prolog, epilog, slurmstepd and srun: each call fails once" {
	sweep prolog memory ENOMEM
	sweep prolog files ENOSPC
	sweep prolog processes EAGAIN
	sweep prolog waits EINTR
	sweep prolog signals SIGKILL
	sweep epilog files EIO
	sweep epilog processes EAGAIN
	sweep epilog signals SIGKILL
	sweep step memory ENOMEM
	sweep step files EACCES
	sweep step signals SIGKILL
	sweep srun memory ENOMEM
	sweep srun files EACCES
	sweep srun signals SIGTERM
}

@test "salloc and sbatch: files and memory are none, and signals come" {
	for submit in salloc sbatch; do
		sweep $submit files EACCES
		sweep $submit signals SIGTERM
		fail_all $submit memory ENOMEM
	done
}

@test "prolog and slurmstepd: all calls fail in other ways" {
	fail_all prolog files EMFILE
	fail_all prolog processes ENFILE
	fail_all prolog waits EINTR
	fail_all prolog signals SIGTERM
	fail_all epilog signals SIGTERM
	fail_all step files EACCES
}

@test "a rank dies where no process can be started to end its step" {
	task='kill -SEGV $$'
	sweep step processes EAGAIN
	sweep step waits EINTR
	fail_all step processes EAGAIN
	fail_all step interrupts SIGTERM
}

@test "/run is missing, read-only, full, or has something else in the folder's place" {
	fault no-run ""
	row "/run is missing"
	no_fault
	on_node n1 sh -c 'rm -rf /run/eth-hpp; mount -o remount,ro /run'
	row "/run is read-only"
	on_node n1 sh -c 'mount -o remount,rw /run; mkdir /run/eth-hpp; mount -t tmpfs -o size=4k small /run/eth-hpp; head -c 4096 /dev/zero >/run/eth-hpp/all'
	row "/run is full"
	on_node n1 sh -c 'umount /run/eth-hpp; mount -t tmpfs -o nr_inodes=1 small /run/eth-hpp'
	row "/run has no inodes"
	on_node n1 sh -c 'umount /run/eth-hpp; rmdir /run/eth-hpp; echo >/run/eth-hpp'
	row "/run/eth-hpp is a file"
	on_node n1 sh -c 'rm /run/eth-hpp; mkdir -m 777 /tmp/theirs; ln -s /tmp/theirs /run/eth-hpp'
	row "/run/eth-hpp is a link to another's folder"
	[ -z "$(on_node n1 ls /tmp/theirs)" ]
	on_node n1 sh -c 'rm /run/eth-hpp; mkdir /run/eth-hpp; chown 33 /run/eth-hpp'
	row "/run/eth-hpp is another's"
	[ -z "$(on_node n1 ls /run/eth-hpp)" ]
	on_node n1 rmdir /run/eth-hpp
}

@test "the inventory's child hangs, crashes, floods, or is not there" {
	child 'sleep 300' "hangs"
	child 'trap "" TERM; exec >&- 2>&-; sleep 300' "hangs with its streams closed"
	child 'sleep 300 & exit 0' "leaves one behind that hangs"
	child 'kill -SEGV $$' "crashes"
	child 'kill -KILL $PPID' "ends its prolog" # has no right to
	child 'kill -KILL 0' "kills its group"
	child 'exec cat /dev/zero' "floods"
	child 'while :; do echo error >&2; done' "floods with errors"
	child 'exec dd if=/dev/zero of=/dev/null bs=2G count=1' "eats memory"
	[[ $inventory == *"memory exhausted"* ]]
	child 'printf "{\"format\":\"eth-hpp-inventory\",\"version\":1,\"node\":\"n2\",\"source\":\"none\",\"gpus\":[],\"nics\":[]}"' \
		"tells of another node"
	[[ $inventory == *"of node n2"* ]]
	[ -z "$(on_node n1 pgrep -f 'sleep 300|cat /dev/zero')" ]
	rm "$TEST_WORK/inventory"
	sed -i "s|launcher=[^ ]*|launcher=$TEST_WORK/launcher-alias|" "$CLUSTER_DIR/etc/plugstack.conf"
	row "the launcher is not there"
	[[ $outcome == "ended: cannot run the launcher "* ]]
}

@test "the inventory's child has no file of root's open" {
	fault open "" # with a high number
	child 'for fd in /proc/self/fd/*; do readlink "$fd"; done | grep -q shadow && echo "has /etc/shadow open" >&2; exit 1' \
		"looks for /etc/shadow"
	[[ $inventory != *shadow* ]]
}

@test "the clock jumps" {
	local seconds
	for seconds in 86400 -86400 4000000000 -4000000000; do
		fault prolog "clock $seconds 0"
		row "prolog: the clock jumps by $seconds s"
	done
	no_fault
	# Noted as stuck before the clock went back: it would be for as long as it went back.
	on_node n1 sh -c 'touch -d tomorrow /run/eth-hpp/n1.stuck'
	row "the driver hung tomorrow"
	[[ $outcome == started ]]
}

@test "a child that cannot be ended is not started again for ten minutes" {
	printf '#!/bin/sh\nsleep 300\n' >"$TEST_WORK/inventory"
	chmod 755 "$TEST_WORK/inventory"
	fault prolog "stuck 1 0 on"
	row "the child hangs in the driver"
	[[ $inventory == *"cannot be ended"* ]]
	no_fault
	rm "$TEST_WORK/inventory"
	row "the child hung in the driver just now"
	[[ $inventory == *"not asked again"* ]]
	on_node n1 touch -d '11 minutes ago' /run/eth-hpp/n1.stuck
	row "the child hung in the driver eleven minutes ago"
	[[ $inventory != *"not asked again"* ]]
	on_node n1 rm /run/eth-hpp/n1.stuck
}

@test "slurmd starts whatever fails in its hook" {
	slurmd_starts "memory 1 12" "slurmd: the first allocation fails"
	slurmd_starts "memory 1 12 on" "slurmd: all allocations fail"
}
