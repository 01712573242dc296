#!/usr/bin/env bats
# contrib/mini-cluster: the tool, on clusters of its own.

load helpers

setup() {
	other=$OTHER_CLUSTER_DIR
	nodes=$BATS_TEST_TMPDIR/nodes
	printf '%s\n' 'one T4:1' 'two none partition=cpu' >"$nodes"
}

teardown() {
	mini stop
}

mini() { # COMMAND ARGUMENTS...
	local command=$1
	shift
	"$CHECKOUT/contrib/mini-cluster" "$command" --dir "$other" "$@"
}

# Processes that still belong to the other cluster.
leftovers() {
	grep -slzF "$other" /proc/[0-9]*/cmdline /proc/[0-9]*/environ | grep -v "^/proc/\($$\|$BASHPID\|self\)/" |
		while read -r file; do
			case $(readlink "${file%/*}/exe") in */slurm* | */munged | */sleep) echo "$file" ;; esac
		done
}

@test "runs beside another cluster, twice started is once started, and leaves nothing" {
	mini start --nodes "$nodes"
	run mini start --nodes "$nodes"
	[ "$status" -eq 0 ]
	[[ $output == *"already running"* ]]
	run mini start
	[ "$status" -eq 1 ]
	[[ $output == *"other nodes or another plugin"* ]]
	[ "$(cd / && mini exec -- srun -N2 hostname | sort | xargs)" = "one two" ]
	[ "$(on_cluster srun -N4 hostname | wc -l)" -eq 4 ]
	[ "$(ip -o link | grep -c 'switch\|port0')" -eq 0 ]
	mini stop
	[ ! -e "$other" ]
	[ -z "$(leftovers)" ]
	run mini stop
	[ "$status" -eq 0 ]
}

@test "the plain way works without namespaces, and its jobs end with it" {
	mini start --plain --nodes "$nodes"
	[[ $(mini status) == *plain* ]]
	(cd / && mini exec -- srun -N2 --mpi=pmix "$TEST_WORK/pmix_exchange")
	cd /
	mini exec -- sbatch -N2 -o /dev/null --wrap 'srun sleep 300'
	wait_until 20 running_job
	mini stop
	[ -z "$(leftovers)" ]
}

running_job() {
	[ "$(mini exec -- squeue -h -o %T)" = RUNNING ]
}

@test "stop and start work after the daemons were killed" {
	mini start --nodes "$nodes"
	mini exec -- pkill -KILL 'slurm|munged'
	mini exec --on one -- pkill -KILL slurmd
	mini stop
	[ -z "$(leftovers)" ]
	mini start --nodes "$nodes"
	kill -KILL "$(cat "$other/run/login.pid")"
	wait_until 10 not_running
	mini start --nodes "$nodes"
	mini status
}

not_running() {
	run mini status
	[ "$status" -eq 3 ]
}

@test "an interrupted start leaves nothing behind" {
	# A shell in the background ignores SIGINT, so ask with SIGTERM.
	"$CHECKOUT/contrib/mini-cluster" start --dir "$other" &
	wait_until 10 test -e "$other/run/login.pid"
	kill -TERM $!
	run wait $!
	wait_until 20 test ! -e "$other"
	[ -z "$(leftovers)" ]
}

@test "status --json names the files and nodes" {
	run mini status --json
	[ "$status" -eq 3 ]
	[ "$output" = "{\"running\":false,\"dir\":\"$other\"}" ]
	mini start --nodes "$nodes"
	mini status --json | perl -MJSON::PP -0ne '
		my $s = decode_json($_);
		die unless $s->{running} && $s->{nodes}[0]{gres} eq "gpu:T4:1" && -e $s->{slurm_conf} && -e $s->{site_file};
		decode_json(do { local (@ARGV, $/) = $s->{site_file}; <> });'
}

@test "a network rate of a node is kept" {
	printf '%s\n' 'one none rate=200mbit' 'two none' >"$nodes"
	mini start --nodes "$nodes"
	cat >"$BATS_TEST_TMPDIR/server" <<-'END'
		use IO::Socket::INET;
		my $peer = IO::Socket::INET->new(LocalPort => 7000, Listen => 1, ReuseAddr => 1)->accept;
		1 while sysread $peer, my $data, 1 << 16;
	END
	mini exec --on two -- perl - <"$BATS_TEST_TMPDIR/server" 3>&- &
	sleep 0.5
	started=${EPOCHREALTIME/./}
	mini exec --on one -- bash -c 'head -c 25000000 /dev/zero >/dev/tcp/two/7000'
	wait $!
	elapsed=$((${EPOCHREALTIME/./} - started))
	echo "25 MB took $elapsed microseconds"
	[ $elapsed -gt 900000 ]
	[ $elapsed -lt 3000000 ]
}

@test "a folder that is somebody else's is neither used nor removed" {
	mkdir -p "$other"
	touch "$other/precious"
	run mini start --nodes "$nodes"
	[ "$status" -eq 1 ]
	[[ $output == *"no folder of a mini-cluster"* ]]
	mini stop
	[ -e "$other/precious" ]
	rm -r "$other"
}

@test "mistakes in a node file are named with their line" {
	while IFS='|' read -r text message; do
		printf '# nodes\n%s\n' "$text" >"$nodes"
		run mini start --nodes "$nodes"
		echo "$text: $output"
		[ "$status" -eq 1 ]
		[ "$output" = "mini-cluster: $nodes:2: $message" ]
		[ ! -e "$other" ]
	done <<-'END'
		Node T4:1|'Node' is no node name (a-z, 0-9 and -, not 'login')
		n1|GPUs are missing: DEVICE:COUNT or none
		n1 T4|'T4' is not DEVICE:COUNT with a count of 1 to 16
		n1 T4:0|'T4:0' is not DEVICE:COUNT with a count of 1 to 16
		n1 T4:1 rate=fast|rate 'fast' is not like 10gbit, 500mbit or unlimited
		n1 T4:1 color=red|'color=red' is none of partition= rate= cpus= speed= time_scale=
		n1 T4:3 speed=1,2|2 speeds for 3 GPUs
		n1 T4:1 speed=0|speed '0' is not a number above 0
	END
	echo 'n1 X9:1' >"$nodes"
	run mini start --nodes "$nodes"
	[[ $output == *"unknown device 'X9'; known are: H100-SXM "* ]]
	echo '# nothing' >"$nodes"
	run mini start --nodes "$nodes"
	[[ $output == *"no nodes in it" ]]
}

@test "a root filesystem without Slurm, and one without namespaces, are refused" {
	mkdir -p "$BATS_TEST_TMPDIR/root"
	run mini start --root "$BATS_TEST_TMPDIR/root"
	[ "$status" -eq 1 ]
	[[ $output == "mini-cluster: missing here or in $BATS_TEST_TMPDIR/root: munged slurmctld slurmd srun; "* ]]
	run mini start --root / --plain
	[ "$status" -eq 1 ]
	[[ $output == *"--root needs namespaces"* ]]
	[ ! -e "$other" ]
}

@test "unknown commands and arguments are refused" {
	run "$CHECKOUT/contrib/mini-cluster" dance
	[ "$status" -eq 2 ]
	run mini start --fast
	[ "$status" -eq 1 ]
	[[ $output == *"unknown argument '--fast'"* ]]
	run setpriv --reuid=65534 --clear-groups "$CHECKOUT/contrib/mini-cluster" start --dir "$other"
	[ "$status" -eq 1 ]
	[[ $output == *"must be run as root"* ]]
}
