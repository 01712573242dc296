#!/usr/bin/env bats
# The cluster itself is as the other tests need it.

load helpers

@test "four unlike nodes, two partitions and one that holds all" {
	run on_cluster sinfo -h -N -p all -o '%N %G'
	[ "$output" = "node1 gpu:H100-SXM:2
node2 gpu:A100-SXM-40GB:2
node3 gpu:V100-SXM-16GB:2
node4 gpu:T4:2" ]
	[ "$(on_cluster sinfo -h -p new -o %N)" = "node[1-2]" ]
	[ "$(on_cluster sinfo -h -p old -o %N)" = "node[3-4]" ]
}

@test "each node has a host name, boot id, network and /tmp of its own" {
	on_node node1 touch /tmp/only-on-node1
	run on_cluster srun -N4 --label sh -c \
		'echo "$(hostname) $(cat /proc/sys/kernel/random/boot_id) $(ls /sys/class/net | tr "\n" , ) $(ls /tmp | grep -c only)"'
	[ "$status" -eq 0 ]
	[ "$(awk '{ print $2 }' <<<"$output" | sort | xargs)" = "node1 node2 node3 node4" ]
	[ "$(awk '{ print $3 }' <<<"$output" | sort -u | wc -l)" -eq 4 ]
	[ "$(awk '{ print $4 }' <<<"$output" | sort -u)" = "eth0,lo," ]
	[ "$(awk '{ sum += $5 } END { print sum }' <<<"$output")" -eq 1 ]
}

@test "each task gets GPUs of its node" {
	run on_cluster srun -N4 --ntasks-per-node=2 --gpus-per-task=1 \
		sh -c 'echo "$(hostname) $CUDA_VISIBLE_DEVICES"'
	[ "$status" -eq 0 ]
	[ "$(sort <<<"$output" | xargs)" = \
		"node1 0 node1 1 node2 0 node2 1 node3 0 node3 1 node4 0 node4 1" ]
}

@test "PMIx carries data between eight ranks on four nodes" {
	run on_cluster srun -N4 --ntasks-per-node=2 --gpus-per-node=2 --mpi=pmix ./pmix_exchange
	[ "$status" -eq 0 ]
	[ "${lines[0]}" = "rank 0 on node1" ]
	[ "${lines[7]}" = "rank 7 on node4" ]
	[ ${#lines[@]} -eq 8 ]
}

@test "a heterogeneous job is one PMIx world" {
	run on_cluster_het 10 srun --quiet -p new -N2 --ntasks-per-node=2 : -p old -N1 --ntasks-per-node=1 ./pmix_exchange
	[ "$status" -eq 0 ]
	[ "${lines[4]}" = "rank 4 on node3" ]
	[ ${#lines[@]} -eq 5 ]
}

@test "a task that is killed ends the step" {
	run on_cluster srun -N2 --kill-on-bad-exit=1 sh -c '[ $SLURM_PROCID = 0 ] || kill -KILL $$; sleep 60'
	[ "$status" -gt 128 ]
	[[ $output == *"node2: task 1: Killed"* ]]
	wait_until 20 cluster_is_idle
}

@test "a batch job can be requeued" {
	job=$(on_cluster sbatch --parsable --requeue -N2 -o requeue.out --open-mode=append \
		--wrap='echo "restarts ${SLURM_RESTART_COUNT:-0}"; [ -n "$SLURM_RESTART_COUNT" ] || sleep 60')
	wait_until 20 has_line 'restarts 0' requeue.out
	on_cluster scontrol requeue "$job"
	# slurmd refuses a job that starts in the second in which it was killed.
	sleep 2
	wait_until 60 restarted "$job"
	cancel_all_jobs
}

# Slurm holds a requeued job back for two minutes, counted from when it has left its nodes.
restarted() { # JOB
	on_cluster scontrol update job "$1" starttime=now 2>/dev/null
	has_line 'restarts 1' requeue.out
}
