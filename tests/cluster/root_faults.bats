#!/usr/bin/env bats
# All that can fail under a hook of the plugin's fails at once: the short cut of tests/root/faults.bats, which says what
# jobs must end with.

load helpers
CLUSTER_DIR=$OTHER_CLUSTER_DIR
load root_faults

setup_file() {
	start_cluster_of_faults
}

teardown_file() {
	stop_cluster_of_faults
}

teardown() {
	clean_up_fault
}

@test "prolog, epilog, slurmstepd and srun: all calls fail" {
	fail_all prolog memory ENOMEM
	fail_all prolog files EROFS
	fail_all prolog processes EAGAIN
	fail_all epilog files EROFS
	fail_all step memory ENOMEM
	fail_all srun memory ENOMEM
}
