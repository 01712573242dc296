# The life of the packages on a cluster with jobs in it, whatever installs them. Who loads this defines
#   install_on FOLDER MEMBER  installs or upgrades to the packages of a folder
#   remove_from MEMBER        removes all of them
#   remove_plugin MEMBER      removes the plugin's alone
# shellcheck shell=bash disable=SC2154 # status and output are bats'

a_plain_step_runs() {
	run on_cluster srun -N2 --overlap hostname
	[ "$status" -eq 0 ]
}

installed_they_enable_nothing() { # FOLDER
	start_jobs
	for member in "${MEMBERS[@]}"; do install_on "$1" "$member"; done
	a_plain_step_runs
	run on_cluster srun -N1 --overlap --eth-hpp=gpt2 hostname
	[ "$status" -ne 0 ]
	[[ $output == *"unrecognized option"* ]]
	jobs_end_well
}

enabled_the_plugin_runs_the_launcher() {
	for member in "${MEMBERS[@]}"; do enable_on "$member"; done
	for node in n1 n2; do restart_slurmd "$node"; done
	wait_until 20 cluster_is_idle
	# shellcheck disable=SC2016 # for the tasks' shell
	run on_cluster srun -N2 "${ASKING[@]}" sh -c 'echo "rank $RANK with $ETH_HPP_INVENTORY"'
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"rank 0 with /run/eth-hpp/"*n1.json* && $output == *"rank 1 with /run/eth-hpp/"*n2.json* ]]
	# As docs/admin.md tells to try it, but that emulated GPUs measure too slowly.
	# shellcheck disable=SC2016,SC2046 # backquotes of the document, several words
	run on_cluster env ETH_HPP_CALIBRATE=no $(sed -n 's/^[0-9]. Try it: `\(.*\)` prints a plan\.$/\1/p' "$CHECKOUT/docs/admin.md")
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"plan for gpt2: "* ]]
}

upgraded_jobs_go_on() { # FOLDER
	start_jobs "${ASKING[@]}"
	for member in "${MEMBERS[@]}"; do
		install_on "$1" "$member"
		on_node "$member" test -e "$CONFIGURATION"
		a_plain_step_runs
	done
	jobs_end_well
	run on_cluster srun -N2 "${ASKING[@]}" true
	[ "$status" -eq 0 ]
}

switched_off_jobs_go_on() {
	start_jobs "${ASKING[@]}"
	for member in "${MEMBERS[@]}"; do on_node "$member" sed -i '/^required/s/$/ enabled=no/' "$CONFIGURATION"; done
	a_plain_step_runs
	run on_cluster srun -N1 --overlap --eth-hpp=gpt2 hostname
	[ "$status" -ne 0 ]
	[[ $output == *"switched off"* ]]
	jobs_end_well
	for member in "${MEMBERS[@]}"; do enable_on "$member"; done
}

named_elsewhere_the_plugin_stays() { # FILE...
	for file in "$@"; do
		# shellcheck disable=SC2016 # for the member's shell
		on_node n1 sh -c 'mkdir -p "${2%/*}" && cat "$1" >"$2"' sh "$CONFIGURATION" "$file"
		run remove_plugin n1
		echo "$output"
		[ "$status" -ne 0 ]
		[[ $output == *"take the line with spank_eth_hpp.so out of $file first"* ]]
		on_node n1 test -e /usr/libexec/eth-hpp/eth-hpp-step
		on_node n1 test -e "$CONFIGURATION"
		on_node n1 rm "$file"
	done
}

# An administrator's words of the configuration are kept under a name that nothing includes, where there is no purge.
removed_nothing_fails_and_nothing_is_left() { # [KEPT-FILE]
	start_jobs "${ASKING[@]}"
	for member in "${MEMBERS[@]}"; do remove_from "$member"; done
	a_plain_step_runs
	jobs_end_well
	for node in n1 n2; do restart_slurmd "$node"; done
	wait_until 20 cluster_is_idle
	run on_cluster srun -N2 hostname
	[ "$status" -eq 0 ]
	for member in "${MEMBERS[@]}"; do
		run on_node "$member" find /usr /etc /var/lib /run -xdev -iname '*eth*hpp*' -newer "$TEST_WORK/nodes"
		echo "$member: $output"
		[ "$output" = "${1-}" ]
	done
}
