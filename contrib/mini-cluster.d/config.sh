# Writes the configuration of a mini-cluster into its folder. Sourced by mini-cluster.
# shellcheck shell=bash

node_address() { # INDEX
	echo "10.77.0.$((10 + $1))"
}

# The namespaced cluster has the network for itself; the plain one lives on the loopback device.
write_hosts() {
	local i
	{
		echo "127.0.0.1 localhost"
		echo "10.77.0.1 login"
		for i in "${!node_names[@]}"; do echo "$(node_address "$i") ${node_names[i]}"; done
	} >"$dir/etc/hosts"
}

write_slurm_conf() {
	local i gpus controller
	if [ "$mode" = namespaces ]; then
		controller="login(10.77.0.1)"
	else
		controller="$(uname -n)(127.0.0.1)"
	fi
	{
		cat <<-END
			ClusterName=mini
			SlurmctldHost=$controller
			SlurmctldPort=$first_port
			SlurmUser=root
			SlurmdUser=root
			AuthType=auth/munge
			AuthInfo=socket=$dir/run/munge.socket
			CredType=cred/munge
			StateSaveLocation=$dir/state
			SlurmdSpoolDir=$dir/nodes/%n/spool
			TmpFS=$tmp_fs
			SlurmctldPidFile=$dir/run/slurmctld.pid
			SlurmdPidFile=$dir/run/slurmd-%n.pid
			SlurmctldLogFile=$dir/log/slurmctld.log
			SlurmdLogFile=$dir/log/slurmd-%n.log
			PlugStackConfig=$dir/etc/plugstack.conf
			# A container or a small machine: no cgroups, no accounting, more CPUs than there are.
			ProctrackType=proctrack/linuxproc
			TaskPlugin=task/none
			JobAcctGatherType=jobacct_gather/none
			SlurmdParameters=config_overrides
			SelectType=select/cons_tres
			SelectTypeParameters=CR_Core
			GresTypes=gpu
			MpiDefault=$(mpi_plugin)
			PrologFlags=Alloc
			ReturnToService=2
			# A handful of nodes that are all near: notice quickly, give up quickly. Only the
			# backfill scheduler starts heterogeneous jobs, so it has to run often.
			SchedulerType=sched/backfill
			SchedulerParameters=bf_interval=1,sched_interval=2,sched_min_interval=0
			TreeWidth=16
			MessageTimeout=10
			KillWait=2
			UnkillableStepTimeout=50
			SlurmdTimeout=60
			CompleteWait=0
			EpilogMsgTime=0
		END
		for i in "${!node_names[@]}"; do
			gpus=$(node_gres "$i")
			echo "NodeName=${node_names[i]} $(node_location "$i") CPUs=${node_cpus[i]} RealMemory=65536${gpus:+ Gres=$gpus}"
		done
		write_partitions
	} >"$dir/etc/slurm.conf"
}

node_location() { # INDEX
	if [ "$mode" = namespaces ]; then
		echo "NodeHostname=${node_names[$1]} NodeAddr=$(node_address "$1") Port=$((first_port + 1))"
	else
		echo "NodeHostname=$(uname -n) NodeAddr=127.0.0.1 Port=$((first_port + 1 + $1))"
	fi
}

# gpu:H100-SXM:2 of a node, one entry a kind.
node_gres() { # INDEX
	tr ' ' '\n' <<<"${node_gpus[$1]}" | awk 'NF { count[$1]++; if (count[$1] == 1) order[++kinds] = $1 }
		END { for (i = 1; i <= kinds; i++) printf "%sgpu:%s:%d", (i > 1 ? "," : ""), order[i], count[order[i]] }'
}

write_partitions() {
	local i name all
	local -A members=()
	local -a order=() names
	for i in "${!node_names[@]}"; do
		IFS=, read -ra names <<<"${node_partitions[i]}"
		for name in "${names[@]}"; do
			[ -v "members[$name]" ] || order+=("$name")
			members[$name]+="${members[$name]:+,}${node_names[i]}"
		done
	done
	all=$(IFS=,; echo "${node_names[*]}")
	echo "PartitionName=all Nodes=$all Default=YES MaxTime=INFINITE State=UP"
	for name in "${order[@]}"; do
		echo "PartitionName=$name Nodes=${members[$name]} MaxTime=INFINITE State=UP"
	done
}

# Some builds of Slurm have no PMIx.
mpi_plugin() {
	if compgen -G "$root/usr/lib/*/slurm*/mpi_pmix*.so" >/dev/null; then
		echo pmix
	else
		echo pmi2
	fi
}

# Later than 22.05 Slurm asks for cgroups unless told not to; that one does not know the word.
write_cgroup_conf() {
	local version
	version=$(in_root slurmctld -V)
	[[ $version =~ [^0-9]([0-9]+)\. && ${BASH_REMATCH[1]} -le 22 ]] ||
		echo "CgroupPlugin=disabled" >"$dir/etc/cgroup.conf"
}

# Slurm sets CUDA_VISIBLE_DEVICES only for character devices; these stand in for /dev/nvidia0...
write_gres_conf() {
	local i index device file
	{
		echo "AutoDetect=off"
		for i in "${!node_names[@]}"; do
			index=0
			for device in ${node_gpus[i]}; do
				file=$dir/dev/${node_names[i]}/gpu$index
				mkdir -p "${file%/*}"
				mknod -m 600 "$file" c 195 "$index"
				echo "NodeName=${node_names[i]} Name=gpu Type=$device File=$file"
				index=$((index + 1))
			done
		done
	} >"$dir/etc/gres.conf"
}

plugstack() {
	if [ -n "$plugin" ]; then
		echo "required $plugin${launcher:+ launcher=$launcher} site_file=$dir/etc/site.json"
	else
		echo "# started without --plugin"
	fi
}

# An uuid that is the same at every start, so that what is cached by it stays valid.
stable_uuid() { # TEXT
	local sum
	sum=$(md5sum <<<"$1")
	echo "${sum:0:8}-${sum:8:4}-4${sum:13:3}-8${sum:17:3}-${sum:20:12}"
}

# What the nodes claim to have (eth-hpp-site).
write_site_file() {
	local i separator=
	{
		echo '{"format":"eth-hpp-site","version":1,"nodes":['
		for i in "${!node_names[@]}"; do
			printf '%s' "$separator"
			write_site_node "$i"
			separator=$',\n'
		done
		printf '\n]}\n'
	} >"$dir/etc/site.json"
	chmod 644 "$dir/etc/site.json"
}

write_site_node() { # INDEX
	local node=${node_names[$1]} index=0 separator="" device bytes
	local memory capability multiprocessors clock generation name
	local -a devices
	read -ra devices <<<"${node_gpus[$1]}"
	printf '{"name":"%s","gpus":[' "$node"
	for device in "${devices[@]}"; do
		read -r _ memory capability multiprocessors clock generation name < <(device_line "$device")
		printf '%s\n  {"index":%d,"uuid":"GPU-%s","name":"%s","device":"%s","memory_bytes":%s,' \
			"$separator" "$index" "$(stable_uuid "$node/$index")" "$name" "$device" "$memory"
		printf '"compute_capability":"%s","multiprocessors":%s,"max_sm_clock_hz":%s,' \
			"$capability" "$multiprocessors" "$clock"
		printf '"pci":"0000:%02x:00.0","pcie_generation":%s,"pcie_width":16,"numa_node":0,"mig":false,"healthy":true}' \
			$((7 + 8 * index)) "$generation"
		separator=,
		index=$((index + 1))
	done
	printf '],\n "nics":['
	bytes=$(rate_bytes "${node_rates[$1]}")
	[ -z "$bytes" ] || printf '{"name":"eth0","kind":"ethernet","bandwidth":%s,"numa_node":0}' "$bytes"
	printf ']'
	if [ ${#devices[@]} -gt 0 ]; then
		printf ',\n "emulation":{"devices":["%s"],"speed":[%s],"time_scale":%s}' \
			"${node_gpus[$1]// /\",\"}" "${node_speeds[$1]// /,}" "${node_time_scales[$1]}"
	fi
	printf '}'
}
