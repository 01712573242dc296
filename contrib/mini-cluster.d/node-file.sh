# Reads a node file into arrays, one entry a node. Sourced by mini-cluster.
# shellcheck shell=bash

node_names=()       # node1 ...
node_gpus=()        # "H100-SXM H100-SXM": one word a GPU, empty where there is none
node_partitions=()  # "new" or "new,fast"
node_rates=()       # 10gbit, or "unlimited"
node_cpus=()
node_speeds=()      # "1.0 1.0": one word a GPU
node_time_scales=()

node_file_error() { # FILE LINE MESSAGE
	die "$1:$2: $3"
}

# Bytes a second of a rate such as 10gbit; empty for "unlimited".
rate_bytes() {
	case $1 in
	unlimited) echo "" ;;
	*gbit) echo $((${1%gbit} * 125000000)) ;;
	*mbit) echo $((${1%mbit} * 125000)) ;;
	esac
}

# "A:2,B:1" -> "A A B"
node_gpus_expand() { # FILE LINE GPUS
	local -a kinds all=()
	local kind device count i
	[ "$3" = none ] && return
	IFS=, read -ra kinds <<<"$3"
	for kind in "${kinds[@]}"; do
		device=${kind%:*} count=${kind##*:}
		[[ $kind == *:* && $count =~ ^([1-9]|1[0-6])$ ]] ||
			node_file_error "$1" "$2" "'$kind' is not DEVICE:COUNT with a count of 1 to 16"
		device_line "$device" >/dev/null ||
			node_file_error "$1" "$2" "unknown device '$device'; known are: $(device_names)"
		for ((i = 0; i < count; i++)); do all+=("$device"); done
	done
	echo "${all[*]}"
}

node_file_read() { # FILE
	local file=$1 number=0 line name gpus word count
	local -a words
	local -A defaults=([partition]="" [rate]=10gbit [cpus]=16 [speed]=1.0 [time_scale]=5e4) set

	[ -r "$file" ] || die "cannot read the node file $file"
	while read -r line || [ -n "$line" ]; do
		number=$((number + 1))
		read -ra words <<<"${line%%#*}"
		[ ${#words[@]} -gt 0 ] || continue
		name=${words[0]} gpus=none
		unset set
		local -A set=()
		for word in "${!defaults[@]}"; do set[$word]=${defaults[$word]}; done
		words=("${words[@]:1}")
		if [ "$name" != defaults ]; then
			[[ $name =~ ^[a-z][a-z0-9-]{0,30}$ && $name != login ]] ||
				node_file_error "$file" $number "'$name' is no node name (a-z, 0-9 and -, not 'login')"
			[[ " ${node_names[*]} " != *" $name "* ]] ||
				node_file_error "$file" $number "node '$name' is there twice"
			[ ${#words[@]} -gt 0 ] || node_file_error "$file" $number "GPUs are missing: DEVICE:COUNT or none"
			gpus=$(node_gpus_expand "$file" $number "${words[0]}") || exit
			words=("${words[@]:1}")
		fi
		for word in "${words[@]}"; do
			[[ $word == *=* && -v defaults[${word%%=*}] ]] ||
				node_file_error "$file" $number "'$word' is none of partition= rate= cpus= speed= time_scale="
			set[${word%%=*}]=${word#*=}
		done
		[[ ${set[rate]} =~ ^([1-9][0-9]{0,3}(gbit|mbit)|unlimited)$ ]] ||
			node_file_error "$file" $number "rate '${set[rate]}' is not like 10gbit, 500mbit or unlimited"
		[[ ${set[cpus]} =~ ^[1-9][0-9]{0,2}$ ]] || node_file_error "$file" $number "cpus must be 1..999"
		if [ "$name" = defaults ]; then
			for word in "${!set[@]}"; do defaults[$word]=${set[$word]}; done
			continue
		fi
		count=$(wc -w <<<"$gpus")
		node_names+=("$name")
		node_gpus+=("$gpus")
		node_partitions+=("${set[partition]}")
		node_rates+=("${set[rate]}")
		node_cpus+=("${set[cpus]}")
		node_time_scales+=("${set[time_scale]}")
		node_speeds+=("$(node_speeds_expand "$file" $number "$count" "${set[speed]}")") || exit
	done <"$file"
	[ ${#node_names[@]} -gt 0 ] || die "$file: no nodes in it"
}

# One speed for all of the node's GPUs, or one for each.
node_speeds_expand() { # FILE LINE COUNT SPEEDS
	local -a speeds
	local speed
	IFS=, read -ra speeds <<<"$4"
	for speed in "${speeds[@]}"; do
		[[ $speed =~ ^[0-9]+(\.[0-9]+)?$ && ! $speed =~ ^[0.]+$ ]] ||
			node_file_error "$1" "$2" "speed '$speed' is not a number above 0"
	done
	if [ ${#speeds[@]} -eq 1 ]; then
		while [ ${#speeds[@]} -lt "$3" ]; do speeds+=("${speeds[0]}"); done
	elif [ ${#speeds[@]} -ne "$3" ]; then
		node_file_error "$1" "$2" "${#speeds[@]} speeds for $3 GPUs"
	fi
	echo "${speeds[*]}"
}

# The fields of a device in the table beside this file.
device_line() { # DEVICE
	awk -v device="$1" '$1 == device { print; found = 1 } END { exit !found }' "$parts/devices"
}

device_names() {
	awk '!/^#/ { printf "%s%s", sep, $1; sep = " " }' "$parts/devices"
}
